"""Entry point of the sampler: starts the inspector, which takes as long to get ready as all that the sampler imports.

See `gpuwatch.sampler.main` for the command line.
"""

from __future__ import annotations

import gc
import os
import sys

from gpuwatch.child import ChildProcess
from gpuwatch.inspector import INSPECTOR


def main() -> None:
    """Run the sampler and end with its exit code."""
    gc.disable()  # what is imported stays, and looking through it takes 10 ms
    arguments = sys.argv[1:]
    inspector = None
    if "--no-declared" not in arguments:
        try:
            inspector = ChildProcess(INSPECTOR)
        except OSError:  # no memory, no room for a process: it is tried again when there is something to ask
            inspector = None
    from gpuwatch.sampler import main as loop  # while the inspector starts

    gc.freeze()
    gc.enable()
    # Not sys.exit: the end of the interpreter would wait for a thread that looks up a user, and unload the driver.
    os._exit(loop.main(arguments, inspector))


if __name__ == "__main__":
    main()
