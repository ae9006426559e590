"""NVML through NVIDIA's binding: loads it, makes its calls, and explains its return codes.

The binding asks the library (`nvmlErrorString`) for the text of a code that it does not know, and the library may hang.
So the sampler never turns an NVMLError into text. Source of the codes: `nvmlReturn_t` in NVIDIA's nvml.h.

Where the driver cannot be used, `Unusable` is raised, with a message that ends with the next thing to do.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

from gpuwatch.base import procfs
from gpuwatch.base.replaced import replaced
from gpuwatch.base.text import clean
from gpuwatch.model.snapshot import Health, Reason, SourceState
from gpuwatch.sampler import machine
from gpuwatch.sampler.shared_page import INIT, SharedPage


class Code(IntEnum):
    """Return codes that gpuwatch treats specially."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    IRQ_ISSUE = 11
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    CORRUPTED_INFOROM = 14
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    DEPRECATED = 26
    NOT_READY = 27
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


class Failed(Exception):
    """Error of an NVML call: the call's name and its return code."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call, code)
        self.call = call
        self.code = code


OLDER_CALL = frozenset({Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED})
"""Codes that mean that the driver lacks this version of a call: it may have an older version."""

UNSUPPORTED = OLDER_CALL | {Code.NOT_SUPPORTED}
"""Codes that mean that the value does not exist here: asking again is useless."""

DENIED = frozenset({Code.NO_PERMISSION, Code.OPERATING_SYSTEM})

WHOLE_GPU = frozenset({Code.INSUFFICIENT_POWER, Code.IRQ_ISSUE, Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.NOT_READY})
"""Codes that concern the whole GPU, whichever call returns them: values of other calls are not trusted then."""

NOT_THERE = frozenset({Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.GPU_NOT_FOUND})
"""Codes of a look-up that mean that the GPU is no longer at that place."""

WHOLE_DRIVER = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH, Code.UNKNOWN})
"""Codes that, where all GPUs return them, mean that the driver has changed or does not answer: start a new process."""

_GPU: dict[int, tuple[Health, str]] = {
    # nvml.h: "The GPU has fallen off the bus or has otherwise become inaccessible".
    Code.GPU_IS_LOST: (
        Health.LOST,
        "cannot be reached (its connection is lost, or it hangs): programs on it fail until a reset or a reboot",
    ),
    Code.RESET_REQUIRED: (Health.RESET, "must be reset before it works again: nvidia-smi --gpu-reset, or a reboot"),
    Code.NO_PERMISSION: (Health.DENIED, "no permission to open this GPU"),
    Code.OPERATING_SYSTEM: (
        Health.DENIED,
        "the system blocks this GPU: its device file is outside the cgroups of this job or container",
    ),
    Code.NOT_READY: (Health.NOT_READY, "is not ready yet: still starting, or not released for confidential computing"),
    Code.TIMEOUT: (Health.FAILED, "did not answer within the driver's time limit"),
    Code.IRQ_ISSUE: (Health.FAILED, "its interrupts do not reach the driver"),
    Code.INSUFFICIENT_POWER: (Health.FAILED, "its power cables are not attached properly"),
    Code.CORRUPTED_INFOROM: (Health.FAILED, "its inforom is corrupted"),
    Code.UNKNOWN: (Health.FAILED, "the driver gives no reason"),
    Code.UNINITIALIZED: (Health.FAILED, "the driver library was shut down while gpuwatch ran"),
    Code.DRIVER_NOT_LOADED: (Health.FAILED, "the driver is no longer loaded"),
    Code.LIB_RM_VERSION_MISMATCH: (Health.FAILED, "the driver was replaced while gpuwatch ran"),
    Code.INVALID_ARGUMENT: (Health.MISSING, "the driver no longer lists it"),
    Code.NOT_FOUND: (Health.MISSING, "the driver no longer lists it"),
    Code.GPU_NOT_FOUND: (Health.MISSING, "the driver no longer lists it"),
}


def error(code: int) -> str:
    """Describe a code: `NVML error 15: GPU is lost`; an unknown code as `NVML error 4242`."""
    if code == Code.LIB_RM_VERSION_MISMATCH:
        return f"NVML error {code}: driver/library version mismatch"  # as in nvidia-smi
    try:
        name = Code(code).name.lower().replace("_", " ").replace("gpu", "GPU")
    except ValueError:
        return f"NVML error {code}"
    return f"NVML error {code}: {name}"


def health(failed: Failed) -> tuple[Health, str]:
    """Return the health of a GPU after a call that failed for the whole GPU, and a text with call and code."""
    state, words = _GPU.get(failed.code, (Health.FAILED, ""))
    where = f"{error(failed.code)} ({failed.call})"
    return state, f"{words}; {where}" if words else where


def reason(code: int) -> Reason:
    """Return the reason why a figure is missing, by the code of its call."""
    if code in UNSUPPORTED:
        return Reason.UNSUPPORTED
    if code in DENIED:
        return Reason.DENIED
    return Reason.ERROR


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
"""Names that other packages called `pynvml` lack: PyPI's old `pynvml`, `nvidia-ml-py3`."""


class Unusable(Exception):
    """Error: the driver cannot be used; carries the source's state, and a message."""

    def __init__(self, state: SourceState, words: str) -> None:
        super().__init__(state, words)
        self.state = state
        self.words = words


def _find_library(library: str) -> str | None:
    from ctypes.util import find_library

    return find_library(library)


def load() -> Any:
    """Import `pynvml` and make sure that it is NVIDIA's; raises Unusable.

    It imports `find_library`, and does not call it: the real one loads `tempfile`, `shutil` and `random`, 4 ms.
    """
    install = f'{sys.executable} -m pip install --force-reinstall "{REQUIREMENT}"'
    try:
        with replaced(**{"ctypes.util": SimpleNamespace(find_library=_find_library)}):
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
        words = f"{where} is not NVIDIA's module pynvml, or is too old; to fix it: {remove} && {install}"
        raise Unusable(SourceState.NO_DRIVER, words)
    return pynvml


def initialise(pynvml: Any, page: SharedPage, proc: Path = procfs.PROC) -> None:
    """Load the library and initialise it; raises Unusable. May block for seconds, or forever."""
    page.begin_call(-1, INIT)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as failure:
        raise Unusable(*explain_start(failure.value, proc)) from None
    finally:
        page.end_call()


def explain_start(code: int, proc: Path = procfs.PROC) -> tuple[SourceState, str]:
    """Return the state for the code with which NVML failed to start, and a message with the next step."""
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
    cause = "no usable NVIDIA driver library (libnvidia-ml.so.1): it is missing, or is not for this machine"
    if machine.in_container(proc):
        return (
            f"{cause}; in a container it comes with the `utility` capability: "
            "--gpus all, or NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )
    return f"{cause}; install the NVIDIA driver"


def no_gpu(proc: Path = procfs.PROC) -> str:
    """Return the message for a driver that works and lists no GPU."""
    where = "passed to this container (--gpus all)" if machine.in_container(proc) else "on this machine"
    return f"the driver is loaded but lists no GPU {where}"


def explain_down(code: int, proc: Path = procfs.PROC) -> str:
    """Return why a loaded driver does not answer, and the next step."""
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
        return f"no permission to use the NVIDIA driver ({error(code)}): check the permissions of /dev/nvidia*"
    if code == Code.DRIVER_NOT_LOADED:
        return f"the NVIDIA kernel module is no longer loaded ({error(code)}): an upgrade or a reset is under way"
    return f"the NVIDIA driver does not work ({error(code)}): see dmesg, or reboot"


Handle: TypeAlias = Any
"""NVML's opaque pointer to a GPU or a MIG instance. A stale one may crash the library: dropped after a failure."""

_TEXT_SIZE = 96
"""Bytes of a text buffer: the longest of NVML_DEVICE_NAME_V2_BUFFER_SIZE and NVML_DEVICE_UUID_V2_BUFFER_SIZE."""


class Calls:
    """Caller of the binding's functions; notes each call on the shared page while it runs."""

    def __init__(self, pynvml: Any, page: SharedPage) -> None:
        self.pynvml = pynvml
        self._gpu = -1
        self._known: tuple[int, bytes, bytes] = (0, b"", b"")
        self._page = page

    @contextmanager
    def about(self, gpu: int, listed: int = 0, uuid: str = "", bus_id: str = "") -> Iterator[None]:
        """Context that notes on the page which GPU its calls concern, and the GPU's known ids; see `CallInFlight`."""
        self._gpu, self._known = gpu, (listed, uuid.encode(), bus_id.encode())
        try:
            yield
        finally:
            self._gpu, self._known = -1, (0, b"", b"")

    def ask(self, function: str, *arguments: Any, **options: Any) -> Any:
        """Call a function of the binding that makes one NVML call; raises Failed."""
        call = getattr(self.pynvml, function, None)
        if call is None:
            raise Failed(function, Code.FUNCTION_NOT_FOUND)
        self._page.begin_call(self._gpu, function, *self._known)
        try:
            return call(*arguments, **options)
        except self.pynvml.NVMLError as failure:
            raise Failed(function, failure.value) from None
        finally:
            self._page.end_call()

    def has(self, symbol: str) -> bool:
        """Return whether the library has a function."""
        try:
            self.pynvml._nvmlGetFunctionPointer(symbol)
        except self.pynvml.NVMLError:
            return False
        return True

    def raw(self, symbol: str, *arguments: Any) -> int:
        """Call a function of the library and return its code; raises Failed only where the function does not exist."""
        try:
            call = self.pynvml._nvmlGetFunctionPointer(symbol)
        except self.pynvml.NVMLError as failure:
            raise Failed(symbol, failure.value) from None
        self._page.begin_call(self._gpu, symbol, *self._known)
        try:
            return int(call(*arguments))
        finally:
            self._page.end_call()

    def text(self, symbol: str, *arguments: Any) -> bytes:
        """Read a text by a function with arguments (…, buffer, size); raises Failed.

        Returns bytes: the binding decodes strictly, and a driver may put any byte in a name.
        """
        buffer = ctypes.create_string_buffer(_TEXT_SIZE)
        code = self.raw(symbol, *arguments, buffer, ctypes.c_uint(_TEXT_SIZE))
        if code != Code.SUCCESS:
            raise Failed(symbol, code)
        return buffer.value
