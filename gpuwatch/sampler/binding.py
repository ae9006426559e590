"""NVIDIA's binding `pynvml`: whether it is the right one, whether the library loads, whether the driver answers.

Whatever is wrong is raised as `Unusable`, in words that end in what to do next.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from gpuwatch import procfs
from gpuwatch.model import SourceState
from gpuwatch.sampler import machine
from gpuwatch.sampler.board import INIT, Board
from gpuwatch.sampler.codes import Code, error
from gpuwatch.text import clean

REQUIREMENT = "nvidia-ml-py>=12.535.108,<14"

_NEEDED = (
    "_nvmlGetFunctionPointer",
    "c_nvmlMemory_v2_t",
    "nvmlInit",
    "nvmlMemory_v2",
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "NVMLError",
)
"""What the packages that shadow the binding lack, or lack some of: PyPI's old `pynvml`, `nvidia-ml-py3`."""


class Unusable(Exception):
    """The driver cannot be asked at all: the state that the stream is in, and words for it."""

    def __init__(self, state: SourceState, words: str) -> None:
        super().__init__(state, words)
        self.state = state
        self.words = words


def load() -> Any:
    """Import `pynvml` and make sure that it is NVIDIA's; raises Unusable."""
    install = f'{sys.executable} -m pip install --force-reinstall "{REQUIREMENT}"'
    try:
        import pynvml
    except ModuleNotFoundError:
        raise Unusable(SourceState.NO_DRIVER, f"NVIDIA's binding is not installed: {install}") from None
    except Exception as broken:  # a foreign package's import may raise anything
        said = clean(f"{type(broken).__name__}: {broken}", 200)
        raise Unusable(SourceState.NO_DRIVER, f"the Python module pynvml is broken ({said}): {install}") from broken
    missing = [name for name in _NEEDED if not hasattr(pynvml, name)]
    if missing or hasattr(pynvml, "__path__"):
        where = clean(str(getattr(pynvml, "__file__", None) or "an unknown place"), 300)
        remove = f"{sys.executable} -m pip uninstall -y pynvml nvidia-ml-py3 nvidia-ml-py"
        words = f"{where} is not NVIDIA's module pynvml, or too old a one; mend it by: {remove} && {install}"
        raise Unusable(SourceState.NO_DRIVER, words)
    return pynvml


def initialise(pynvml: Any, board: Board, proc: Path = procfs.PROC) -> None:
    """Load the library and initialise it; raises Unusable. May block for seconds, or for ever."""
    board.enter(-1, INIT)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as failure:
        raise Unusable(*explain_start(failure.value, proc)) from None
    finally:
        board.leave()


def explain_start(code: int, proc: Path = procfs.PROC) -> tuple[SourceState, str]:
    """Say what it means that NVML does not start, and what to do next."""
    if code in (Code.LIBRARY_NOT_FOUND, Code.FUNCTION_NOT_FOUND):
        return SourceState.NO_DRIVER, _no_library(proc)
    if code == Code.GPU_NOT_FOUND:
        return SourceState.NO_GPU, no_gpu(proc)
    if code == Code.DRIVER_NOT_LOADED:
        return (
            SourceState.DRIVER_DOWN,
            f"the NVIDIA kernel module is not loaded ({error(code)}): modprobe nvidia, or wait for a driver upgrade",
        )
    return SourceState.DRIVER_DOWN, explain_down(code, proc)


def _no_library(proc: Path) -> str:
    cause = "no usable NVIDIA driver library (libnvidia-ml.so.1): it is missing, or not one for this machine"
    if machine.in_container(proc):
        return (
            f"{cause}; in a container it comes with the `utility` capability: "
            "--gpus all, or NVIDIA_DRIVER_CAPABILITIES=compute,utility; without a GPU, try: gpuwatch --demo"
        )
    return f"{cause}; install the NVIDIA driver, or try: gpuwatch --demo"


def no_gpu(proc: Path = procfs.PROC) -> str:
    """Say that the driver works and lists nothing."""
    where = "passed to this container (--gpus all)" if machine.in_container(proc) else "on this machine"
    return f"the driver is here and lists no GPU {where}"


def explain_down(code: int, proc: Path = procfs.PROC) -> str:
    """Say why a driver that is there does not answer, and what to do next."""
    if code == Code.LIB_RM_VERSION_MISMATCH:
        loaded = machine.loaded_driver(proc) or "of an unknown version"
        library = machine.library_version(proc) or "of another version"
        return (
            f"the driver was upgraded ({error(code)}): the kernel module loaded is {clean(loaded)}, "
            f"the library is {clean(library)}; reboot, or reload the nvidia modules"
        )
    if code == Code.UNKNOWN and machine.in_container(proc):
        return (
            f"this container lost its access to the GPUs ({error(code)}), as happens when the host's systemd reloads "
            "(daemon-reload) and resets the device cgroup; recreate the container"
        )
    if code == Code.NO_PERMISSION:
        return f"you may not use the NVIDIA driver ({error(code)}): look at the permissions of /dev/nvidia*"
    if code == Code.DRIVER_NOT_LOADED:
        return f"the NVIDIA kernel module is not loaded any more ({error(code)}): an upgrade or a reset is under way"
    return f"the NVIDIA driver does not work ({error(code)}): see dmesg, or reboot"
