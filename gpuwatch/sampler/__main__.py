"""Entry point of the sampler: forks the inspector before the driver is loaded, then runs the sampler.

See `gpuwatch.sampler.main` for the command line.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from gpuwatch.base.child import ChildProcess
from gpuwatch.inspector import protocol  # noqa: F401 - and what it imports: both processes need it
from gpuwatch.inspector.__main__ import main as inspect


def main(arguments: Sequence[str], *, once: bool = False) -> None:
    """Run the sampler; with `once` the inspector begins its imports at once, not when the options are there."""
    gc.disable()  # imported objects stay: collecting them frees nothing
    gc.freeze()
    inspector = None
    if "--no-declared" not in arguments:
        try:
            inspector = ChildProcess(inspect)
            if once:
                inspector.write(b"\n")
        except OSError:  # no memory, no room for a process: it is tried again when there is something to ask
            inspector = None
    from gpuwatch.sampler import main as loop  # while the inspector gets ready

    gc.freeze()
    gc.enable()
    # Not sys.exit: the end of the interpreter would wait for a thread that looks up a user, and unload the driver.
    os._exit(loop.main(arguments, inspector))


if __name__ == "__main__":
    main(sys.argv[1:])
