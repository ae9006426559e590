"""gpuwatch: live monitor for NVIDIA GPUs that several people share."""

from importlib import import_module
from typing import TYPE_CHECKING

from gpuwatch.version import __version__ as __version__

if TYPE_CHECKING:
    from gpuwatch.api import Overshoot, Process, Snapshot, Stream, recording, snapshot, stream
    from gpuwatch.base.errors import GpuwatchError, UnavailableError, UsageError
    from gpuwatch.model.snapshot import Gpu, Holding, Reason, known

__all__ = [
    "Gpu",
    "GpuwatchError",
    "Holding",
    "Overshoot",
    "Process",
    "Reason",
    "Snapshot",
    "Stream",
    "UnavailableError",
    "UsageError",
    "known",
    "recording",
    "snapshot",
    "stream",
]

_MODULES = {
    **dict.fromkeys(("Overshoot", "Process", "Snapshot", "Stream", "recording", "snapshot", "stream"), "gpuwatch.api"),
    **dict.fromkeys(("GpuwatchError", "UnavailableError", "UsageError"), "gpuwatch.base.errors"),
    **dict.fromkeys(("Gpu", "Holding", "Reason", "known"), "gpuwatch.model.snapshot"),
}
"""Module of each name. It is imported when the name is first used: `import gpuwatch` loads none of them."""

if not TYPE_CHECKING:  # a type checker would take any name for one of gpuwatch

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'gpuwatch' has no attribute {name!r}")
        return getattr(import_module(_MODULES[name]), name)
