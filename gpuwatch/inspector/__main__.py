"""Entry point of the inspector as a program; see `gpuwatch.inspector.worker`.

python -P gpuwatch/inspector/__main__.py
"""

from __future__ import annotations

import gc
import os
import select

from gpuwatch.inspector import IDLE


def main() -> None:
    """Wait for the first line on stdin, then import what reads processes, and answer.

    Where a dashboard starts, its first snapshot needs the cores: the imports begin when there is something to ask.
    """
    if not select.select([0], [], [], IDLE)[0]:
        return
    gc.disable()  # imported objects stay: collecting them frees nothing
    from gpuwatch.inspector import worker

    gc.freeze()
    gc.enable()
    worker.main()


if __name__ == "__main__":
    main()
    os._exit(0)  # the interpreter's own end has nothing to do
