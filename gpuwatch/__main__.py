"""Where the program begins, installed or as `python -m gpuwatch`: with the sampler, before the command line is read.

The sampler takes as long to get ready as all imports of the dashboard together, so it is started first and waits for
its orders; no GPU is touched before it has them.
"""

from __future__ import annotations

import contextlib
import os
import sys


def main() -> None:
    """Run gpuwatch and end with its exit code: at once, for the interpreter's own end would wait for threads."""
    code = _run()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # whoever read it has gone
            stream.flush()
    os._exit(code)


def _run() -> int:
    words = sys.argv[1:]
    ours = words[: words.index("--")] if "--" in words else words  # what follows is another program's
    if {"--demo", "--help", "-h", "--version"} & set(ours):
        sampler = None
    else:
        from gpuwatch.sources.child import Child

        try:
            sampler = Child()
        except OSError as error:  # no memory, no room for a process
            sys.stderr.write(f"gpuwatch: the sampler cannot be started: {error}\n")
            return 3
    from gpuwatch import cli  # argparse takes 8 ms

    try:
        return cli.main(words, sampler)
    finally:
        if sampler is not None:
            sampler.kill()


if __name__ == "__main__":
    main()
