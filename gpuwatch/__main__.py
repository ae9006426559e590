"""Where the program begins, installed or as `python -m gpuwatch`: with the sampler, before the command line is read.

The sampler takes as long to get ready as all imports of the dashboard together, so it is started first and waits for
its orders; no GPU is touched before it has them. Whether one is wanted is guessed from a look at the words: a wrong
guess costs its start, or the time until `cli` starts one itself, and never changes what is done.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys

TYPE_CHECKING = False  # typing itself takes 7 ms to import, and this stands before the sampler's start
if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.sources.child import Child

TAKE_A_VALUE = frozenset(
    {"--only", "--user", "--interval", "--memory-warning", "--memory-critical", "--theme", "--config"}
)
"""The flags that may stand before a command and are followed by a value."""

SELDOM = 30_000
"""Objects made between two looks for garbage: imports make many that stay."""

_WITHOUT_DRIVER = frozenset({"--demo", "--help", "-h", "--version"})


def main() -> None:
    """Run gpuwatch and end with its exit code: at once, for the interpreter's own end would wait for threads."""
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(code)


def _run() -> int:
    words = sys.argv[1:]
    gc.set_threshold(SELDOM)
    try:
        _open_closed()
        sampler = _sampler(words)
    except OSError as error:  # no memory, no room for a process, no more descriptors
        from gpuwatch.threads import child_error

        sys.stderr.write(f"gpuwatch: the sampler cannot be started: {child_error(error)}\n")
        return 3
    from gpuwatch import cli  # argparse takes 8 ms

    try:
        return cli.main(words, sampler)
    finally:
        if sampler is not None:
            sampler.kill()


def _open_closed() -> None:
    """Put /dev/null where stdin, stdout or stderr was closed: else the sampler's pipes would take their numbers."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free: this one
    sys.stdin = sys.stdin or open(0, closefd=False)  # noqa: SIM115 - they stay open to the end
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _sampler(words: Sequence[str]) -> Child | None:
    """Start a sampler where the command line looks as if one was wanted; raises OSError."""
    ours = words[: words.index("--")] if "--" in words else words  # what follows is another program's
    if not _WITHOUT_DRIVER.isdisjoint(ours):
        return None
    name = guessed(ours)
    if name in ("events", "config", "report", "docs"):
        return None
    if name == "status":
        from gpuwatch.recorder.status_path import looks_fresh

        if looks_fresh():
            return None
    from gpuwatch.sources.child import ONE_SAMPLE, UNDECLARED, Child

    # The orders of `status` are known before its arguments: a third of the time that it may take is saved.
    return Child(ONE_SAMPLE, command=UNDECLARED) if name == "status" else Child()


def guessed(words: Sequence[str]) -> str:
    """Guess the command: the first word that is neither a flag nor a flag's value; empty for the dashboard."""
    is_value = False
    for word in words:
        if not is_value and not word.startswith("-"):
            return word
        is_value = not is_value and word in TAKE_A_VALUE
    return ""


if __name__ == "__main__":
    main()
