"""Starts the reader, a process of its own. Imports little: the sampler does this before all else."""

from __future__ import annotations

import os
import subprocess
import sys

import gpuwatch.inspector

TYPE_CHECKING = False  # typing itself takes 7 ms to import
if TYPE_CHECKING:
    from collections.abc import Sequence

READER = (sys.executable, "-P", gpuwatch.inspector.__path__[0] + "/__main__.py")
"""By path and with -P, as the sampler itself is started."""


def start(command: Sequence[str] = READER) -> subprocess.Popen[bytes]:
    """Start it with pipes that never block us; raises OSError."""
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        os.set_blocking(pipe.fileno(), False)
    return child
