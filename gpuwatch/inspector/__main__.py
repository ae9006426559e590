"""Where the reader begins; see `gpuwatch.inspector.worker`.

python -P gpuwatch/inspector/__main__.py
"""

from __future__ import annotations

import os

from gpuwatch import lean


def main() -> None:
    """Answer until nobody asks any more."""
    lean.begin()
    from gpuwatch.inspector import worker

    lean.ready()
    worker.main()


if __name__ == "__main__":
    main()
    os._exit(0)  # the interpreter's own end takes 5 ms and has nothing to do
