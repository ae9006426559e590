"""What NVML's return codes mean for a figure, for a GPU and for the driver, in words of our own.

The binding's own text for a code it does not know is asked of the library (`nvmlErrorString`), which may be the very
thing that hangs; so nothing here, and nobody in the sampler, ever turns an NVMLError into text.
Source of the codes: `nvmlReturn_t` in NVIDIA's nvml.h.
"""

from __future__ import annotations

from enum import IntEnum

from gpuwatch.model import Health, Reason


class Code(IntEnum):
    """The codes that we tell apart."""

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
    """An NVML call that did not succeed: which, and with what code."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(call, code)
        self.call = call
        self.code = code


OLDER_CALL = frozenset({Code.FUNCTION_NOT_FOUND, Code.ARGUMENT_VERSION_MISMATCH, Code.DEPRECATED})
"""This generation of a call is not there: an older one may be."""

UNSUPPORTED = OLDER_CALL | {Code.NOT_SUPPORTED}
"""The figure does not exist here; asking again is of no use."""

DENIED = frozenset({Code.NO_PERMISSION, Code.OPERATING_SYSTEM})

WHOLE_GPU = frozenset({Code.INSUFFICIENT_POWER, Code.IRQ_ISSUE, Code.GPU_IS_LOST, Code.RESET_REQUIRED, Code.NOT_READY})
"""From any one call they concern the whole GPU: other calls may still succeed, and must not be believed."""

NOT_THERE = frozenset({Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.GPU_NOT_FOUND})
"""From the look-up of a GPU they say that it is not where it was."""

WHOLE_DRIVER = frozenset({Code.UNINITIALIZED, Code.DRIVER_NOT_LOADED, Code.LIB_RM_VERSION_MISMATCH, Code.UNKNOWN})
"""Where every GPU says one of these, the driver below has changed or is out of reach: start afresh."""

_NAMES: dict[int, str] = {
    Code.UNINITIALIZED: "uninitialized",
    Code.INVALID_ARGUMENT: "invalid argument",
    Code.NOT_SUPPORTED: "not supported",
    Code.NO_PERMISSION: "no permission",
    Code.NOT_FOUND: "not found",
    Code.INSUFFICIENT_SIZE: "insufficient size",
    Code.INSUFFICIENT_POWER: "insufficient power",
    Code.DRIVER_NOT_LOADED: "driver not loaded",
    Code.TIMEOUT: "timeout",
    Code.IRQ_ISSUE: "interrupt issue",
    Code.LIBRARY_NOT_FOUND: "library not found",
    Code.FUNCTION_NOT_FOUND: "function not found",
    Code.CORRUPTED_INFOROM: "corrupted inforom",
    Code.GPU_IS_LOST: "GPU is lost",
    Code.RESET_REQUIRED: "reset required",
    Code.OPERATING_SYSTEM: "operating system",
    Code.LIB_RM_VERSION_MISMATCH: "library and driver versions differ",
    Code.ARGUMENT_VERSION_MISMATCH: "argument version mismatch",
    Code.DEPRECATED: "deprecated",
    Code.NOT_READY: "not ready",
    Code.GPU_NOT_FOUND: "GPU not found",
    Code.UNKNOWN: "unknown error",
}

_GPU: dict[int, tuple[Health, str]] = {
    # nvml.h: "The GPU has fallen off the bus or has otherwise become inaccessible".
    Code.GPU_IS_LOST: (
        Health.LOST,
        "cannot be reached (it fell off the bus or hangs): programs on it fail until a reset or a reboot",
    ),
    Code.RESET_REQUIRED: (Health.RESET, "must be reset before it works again: nvidia-smi --gpu-reset, or a reboot"),
    Code.NO_PERMISSION: (Health.DENIED, "you may not open this GPU"),
    Code.OPERATING_SYSTEM: (
        Health.DENIED,
        "the system blocks this GPU: its device file is outside the cgroups of this job or container",
    ),
    Code.NOT_READY: (Health.NOT_READY, "is not ready yet: still starting, or not released for confidential computing"),
    Code.TIMEOUT: (Health.FAILED, "did not answer in the driver's own time"),
    Code.IRQ_ISSUE: (Health.FAILED, "its interrupts do not reach the driver"),
    Code.INSUFFICIENT_POWER: (Health.FAILED, "its power cables are not attached properly"),
    Code.CORRUPTED_INFOROM: (Health.FAILED, "its inforom is corrupted"),
    Code.UNKNOWN: (Health.FAILED, "the driver gives no reason"),
    Code.UNINITIALIZED: (Health.FAILED, "the driver library was shut down under us"),
    Code.DRIVER_NOT_LOADED: (Health.FAILED, "the driver is not loaded any more"),
    Code.LIB_RM_VERSION_MISMATCH: (Health.FAILED, "the driver was replaced while we ran"),
    Code.INVALID_ARGUMENT: (Health.MISSING, "the driver no longer lists it"),
    Code.NOT_FOUND: (Health.MISSING, "the driver no longer lists it"),
    Code.GPU_NOT_FOUND: (Health.MISSING, "the driver no longer lists it"),
}


def error(code: int) -> str:
    """Name a code for a person: `NVML error 15: GPU is lost`, and for one of the future `NVML error 4242`."""
    name = _NAMES.get(code)
    return f"NVML error {code}: {name}" if name else f"NVML error {code}"


def health(failed: Failed) -> tuple[Health, str]:
    """Judge a GPU by the call that failed for all of it: its health, and words that name call and code."""
    state, words = _GPU.get(failed.code, (Health.FAILED, ""))
    where = f"{error(failed.code)} ({failed.call})"
    return state, f"{words}; {where}" if words else where


def reason(code: int) -> Reason:
    """Say why a figure is missing, by the code of its call."""
    if code in UNSUPPORTED:
        return Reason.UNSUPPORTED
    if code in DENIED:
        return Reason.DENIED
    return Reason.ERROR
