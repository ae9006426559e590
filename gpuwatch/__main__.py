"""Entry point, installed or as `python -m gpuwatch`: forks the sampler, then imports and runs the command line.

The sampler's start takes as long as all imports of the dashboard together, so it is started first and waits for its
options; before it has them it calls no GPU. A fork of this process saves 0.03 s and 2 MiB compared to a new
interpreter. Whether a sampler is needed is guessed from the command line: a wrong guess starts one for nothing, or
lets the command start it later.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from types import SimpleNamespace

from gpuwatch.base.replaced import quote_path, replaced

# msgspec prefers typing_extensions to typing, which has the same names since Python 3.11; it imports uuid, which asks
# platform for the name of the system, as uname has it, and textwrap, for JSON schemas, which gpuwatch does not make.
# pathlib imports urllib.parse, with ipaddress, for `Path.as_uri` alone. A start takes 11 ms less without these four.
with replaced(
    typing_extensions=None,
    platform=SimpleNamespace(system=lambda: os.uname().sysname),
    textwrap=SimpleNamespace(),
    **{"urllib.parse": SimpleNamespace(quote_from_bytes=quote_path)},
):
    import pathlib  # noqa: F401

    import msgspec  # noqa: F401

import gpuwatch.base.procfs
import gpuwatch.model.snapshot  # noqa: F401
from gpuwatch.base.child import start_error

SELDOM = 30_000
"""New objects between two garbage collections: imports create many objects that stay, and what a frame of the dashboard
needs is freed without a collection. With Python's 700 there was one for each frame."""

_WITHOUT_DRIVER = frozenset(
    {"--demo", "--help", "--help=all", "-h", "--version", "--recording", "events", "report", "replay", "recording"}
    | {"completion", "config", "docs", "notify", "status", "--unit", "--host", "fleet", "--fleet"}
    | {"--rules", "--dashboard", "--scrape-config"}
)
"""Words of command lines that need no driver, or need it seldom: `status` mostly finds a live file."""


def main() -> None:
    """Run gpuwatch and end with its exit code: at once, since the interpreter's normal exit would wait for threads."""
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(code)


def _run() -> int:
    words = sys.argv[1:]
    ours = words[: words.index("--")] if "--" in words else words  # what follows is another program's
    sampler = None
    gc.set_threshold(SELDOM)
    try:
        _open_closed()
        if _WITHOUT_DRIVER.isdisjoint(ours) and not any(word.startswith("--host=") for word in ours):
            import gpuwatch.inspector.protocol  # noqa: F401 - and what it imports: all three processes need it
            from gpuwatch.sources.sampler_process import SamplerProcess

            sampler = SamplerProcess(command=_run_sampler)
    except OSError as error:  # no memory, no room for a process, no more descriptors
        sys.stderr.write(f"gpuwatch: the sampler cannot be started: {start_error(error)}\n")
        return 3
    from gpuwatch import cli  # argparse and all that follows is imported while the sampler starts

    try:
        return cli.main(words, sampler)
    finally:
        if sampler is not None:
            sampler.kill()


def _run_sampler() -> None:
    """Run the sampler in a fork of this process."""
    from gpuwatch.sampler.__main__ import main

    main([], once="--once" in sys.argv)


def _open_closed() -> None:
    """Open /dev/null where stdin, stdout or stderr is closed: else the sampler's pipes would get their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - they stay open to the end
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


if __name__ == "__main__":
    main()
