"""Entry point of the inspector as a program; see `gpuwatch.inspector.worker`.

python -P gpuwatch/inspector/__main__.py
"""

from __future__ import annotations

import gc
import os


def main() -> None:
    gc.disable()  # imported objects stay: collecting them frees nothing
    from gpuwatch.inspector import worker

    gc.freeze()
    gc.enable()
    worker.main()


if __name__ == "__main__":
    main()
    os._exit(0)  # the interpreter's own end has nothing to do
