"""Table of a GPU's figures: the NVML calls of each, how often they are made, units, and older calls.

A figure is read every tick (`FAST`), every 10 s (`SLOW`) or every 60 s (`RARE`), and costs one NVML call. Those of
PCIe and NVLink (`LINKS`) cost more, and are read for one GPU only.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gpuwatch.base import procfs
from gpuwatch.model.snapshot import Memory, Reading, Reason
from gpuwatch.sampler.machine import read_memory_use
from gpuwatch.sampler.nvml import OLDER_CALL, UNSUPPORTED, Calls, Code, Failed, Handle

Ask: TypeAlias = Callable[[Calls, Handle], tuple[Any, ...]]
"""Function that makes one call and returns a value for each field of the figure; raises Failed."""


class Figure(NamedTuple):
    """Figure of a GPU: the fields of `model.snapshot.Gpu` that one call fills."""

    fields: tuple[str, ...]
    asks: tuple[Ask, ...]
    """The calls, the newest version first."""
    under_mig: bool = True
    """False for a figure that a GPU with MIG instances does not have [nvml.h, "not supported when MIG is enabled"]."""


class FallbackCalls:
    """Reader of figures that uses the newest call of this driver; a call that the driver lacks is tried only once."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self._generations: dict[tuple[str, ...], int] = {}

    def read(self, figure: Figure, handle: Handle) -> tuple[Any, ...]:
        """Return a value for each field; raises Failed."""
        while True:
            generation = self._generations.get(figure.fields, 0)
            try:
                return figure.asks[generation](self.calls, handle)
            except Failed as failed:
                if failed.code not in OLDER_CALL or generation + 1 == len(figure.asks):
                    raise
                self._generations[figure.fields] = generation + 1


# -- calls ---------------------------------------------------------------------------------------------------------


def _call(function: str, *more: Any, make: Callable[[Any], Any] = lambda answer: answer) -> Ask:
    """Return a function that makes one NVML call with the arguments `more`, and converts its answer by `make`."""

    def ask(calls: Calls, handle: Handle) -> tuple[Any, ...]:
        return (make(calls.ask(function, handle, *more)),)

    return ask


def _percent(value: int) -> Reading:
    """Return a percentage; ERROR for a value over 100, which some drivers return (Syllo/nvtop#110)."""
    return value if value <= 100 else Reason.ERROR


def _first_percent(values: list[int]) -> Reading:
    return _percent(values[0])


def _utilization(calls: Calls, handle: Handle) -> tuple[Reading, Reading]:
    rates = calls.ask("nvmlDeviceGetUtilizationRates", handle)
    return _percent(rates.gpu), _percent(rates.memory)


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _pstate(value: int) -> Reading:
    return Reason.UNSUPPORTED if value == 32 else value  # NVML_PSTATE_UNKNOWN


def _remapped(calls: Calls, handle: Handle) -> tuple[bool, bool]:
    """Return whether remapped rows wait for a reset, and whether a remapping failed [Ampere or newer, without MIG]."""
    _, _, pending, failed = calls.ask("nvmlDeviceGetRemappedRows", handle)
    return bool(pending), bool(failed)


_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}


def _compute_mode(value: int) -> str:
    return _COMPUTE_MODES.get(value, f"mode {value}")


# nvmlClocksEventReasons: worst first. Idling (1) and driving a display (0x100) limit nothing.
_HW_SLOWDOWN = 0x08
_THROTTLE = (
    (0x40, "hw thermal"),
    (0x80, "power brake"),
    (0x20, "sw thermal"),
    (0x04, "power cap"),
    (0x10, "sync boost"),
    (0x02, "clock setting"),
)


def throttle(reasons: int) -> tuple[str, ...]:
    """Return the reasons that limit the clocks, worst first, from NVML's bits."""
    named = [words for bit, words in _THROTTLE if reasons & bit]
    if reasons & _HW_SLOWDOWN and not reasons & 0xC0:  # else it only repeats the two that say why
        named.insert(0, "hw slowdown")
    return tuple(named)


def _bytes_per_second(kilobytes: int) -> int:
    """Return a PCIe throughput in bytes per second.

    nvml.h says "KB/s" and not which; KB is taken as 1,000 bytes. Where 1,024 are meant, the result is 2.4 % too low.
    """
    return kilobytes * 1000


def _pcie_link(calls: Calls, handle: Handle) -> tuple[str]:
    """Return generation and width of the PCIe link as they are now: `gen4 x16`."""
    generation = calls.ask("nvmlDeviceGetCurrPcieLinkGeneration", handle)
    width = calls.ask("nvmlDeviceGetCurrPcieLinkWidth", handle)
    return (f"gen{generation} x{width}",)


def _nvlinks(calls: Calls, handle: Handle) -> tuple[int]:
    """Return the number of active NVLinks.

    A link that the GPU does not have is "not supported", and one that no GPU of its kind has an "invalid argument"
    [nvml.h, nvmlDeviceGetNvLinkState].
    """
    states = []
    missing: Failed | None = None
    for link in range(calls.pynvml.NVML_NVLINK_MAX_LINKS):
        try:
            states.append(calls.ask("nvmlDeviceGetNvLinkState", handle, link))
        except Failed as failed:
            if failed.code == Code.INVALID_ARGUMENT and link > 0:
                break
            if failed.code != Code.NOT_SUPPORTED:
                raise
            missing = failed
    if missing and not states:
        raise missing
    return (states.count(1),)


_TRANSMITTED, _RECEIVED = 138, 139  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, ..._RX
_ALL_LINKS = 0xFFFFFFFF


def _nvlink_bytes(calls: Calls, handle: Handle) -> tuple[int, int]:
    """Return the bytes that were ever sent and received over all NVLinks, without protocol overhead.

    Source: nvml.h, "NVLink TX Data throughput in KiB": a counter, and with the scope UINT_MAX the sum of all links. The
    scope that the binding uses by default is only link 0.
    """
    values = calls.ask("nvmlDeviceGetFieldValues", handle, [(_TRANSMITTED, _ALL_LINKS), (_RECEIVED, _ALL_LINKS)])
    for value in values:
        if value.nvmlReturn != Code.SUCCESS:
            raise Failed("nvmlDeviceGetFieldValues", value.nvmlReturn)
    return values[0].value.ullVal * 1024, values[1].value.ullVal * 1024


_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_SM, _MEMORY = 1, 2  # NVML_CLOCK_SM, NVML_CLOCK_MEM
_UNCORRECTED, _VOLATILE = 1, 0  # NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
_SLOWDOWN = 1  # NVML_TEMPERATURE_THRESHOLD_SLOWDOWN

FAST = (
    Figure(("utilization", "memory_utilization"), (_utilization,), under_mig=False),
    Figure(("power",), (_call("nvmlDeviceGetPowerUsage", make=_watts),)),
    Figure(
        ("temperature",),
        (_call("nvmlDeviceGetTemperatureV", _GPU_SENSOR), _call("nvmlDeviceGetTemperature", _GPU_SENSOR)),
    ),
    Figure(
        ("throttle",),
        (
            _call("nvmlDeviceGetCurrentClocksEventReasons", make=throttle),
            _call("nvmlDeviceGetCurrentClocksThrottleReasons", make=throttle),
        ),
    ),
)

SLOW = (
    Figure(("sm_clock",), (_call("nvmlDeviceGetClockInfo", _SM),)),
    Figure(("memory_clock",), (_call("nvmlDeviceGetClockInfo", _MEMORY),)),
    Figure(("encoder",), (_call("nvmlDeviceGetEncoderUtilization", make=_first_percent),), under_mig=False),
    Figure(("decoder",), (_call("nvmlDeviceGetDecoderUtilization", make=_first_percent),), under_mig=False),
    Figure(("fan",), (_call("nvmlDeviceGetFanSpeed"),)),
    Figure(("pstate",), (_call("nvmlDeviceGetPerformanceState", make=_pstate),)),
)

MIG = Figure(("mig",), (_call("nvmlDeviceGetMigMode", make=lambda modes: bool(modes[0])),))  # now, before a reset

RARE = (
    Figure(("power_limit",), (_call("nvmlDeviceGetEnforcedPowerLimit", make=_watts),)),
    Figure(("ecc_uncorrected",), (_call("nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE),)),
    Figure(("remap_pending", "remap_failed"), (_remapped,)),
    Figure(("persistence",), (_call("nvmlDeviceGetPersistenceMode", make=bool),)),
    Figure(("compute_mode",), (_call("nvmlDeviceGetComputeMode", make=_compute_mode),)),
    Figure(("display_active",), (_call("nvmlDeviceGetDisplayActive", make=bool),)),
)

STATIC = (
    Figure(("slowdown_temperature",), (_call("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN),)),
    Figure(("minor",), (_call("nvmlDeviceGetMinorNumber"),)),
    # By these CUDA's own order of different models is guessed. No minor version has had two digits.
    Figure(("compute_capability",), (_call("nvmlDeviceGetCudaComputeCapability", make=lambda v: v[0] + v[1] / 10),)),
    Figure(("cores",), (_call("nvmlDeviceGetNumGpuCores"),)),
    Figure(("sm_clock_max",), (_call("nvmlDeviceGetMaxClockInfo", _SM),)),
)

# Only for the GPU in focus: each call for PCIe throughput counts for 20 ms, and returns after that [nvml.h].
_SENT, _RECEIVED_PCIE = 0, 1  # NVML_PCIE_UTIL_TX_BYTES, NVML_PCIE_UTIL_RX_BYTES

LINKS = (
    Figure(("pcie_tx",), (_call("nvmlDeviceGetPcieThroughput", _SENT, make=_bytes_per_second),)),
    Figure(("pcie_rx",), (_call("nvmlDeviceGetPcieThroughput", _RECEIVED_PCIE, make=_bytes_per_second),)),
)

LINK_STATES = (Figure(("pcie_link",), (_pcie_link,)), Figure(("nvlinks",), (_nvlinks,)))

NVLINK_BYTES = Figure(("nvlink_tx", "nvlink_rx"), (_nvlink_bytes,))
"""Counters; the GPU makes rates of two readings."""


# -- memory --------------------------------------------------------------------------------------------------------


def _memory_v2(calls: Calls, handle: Handle) -> tuple[Memory]:
    info = calls.ask("nvmlDeviceGetMemoryInfo", handle, version=calls.pynvml.nvmlMemory_v2)
    return (Memory(total=info.total, used=info.used, free=info.free, reserved=info.reserved),)


def _memory_v1(calls: Calls, handle: Handle) -> tuple[Memory]:
    # Its `used` is given as it is: on drivers since R510 it has the reserved part in it, and no call tells how much.
    info = calls.ask("nvmlDeviceGetMemoryInfo", handle)
    return (Memory(total=info.total, used=info.used, free=info.free, reserved=Reason.UNSUPPORTED),)


MEMORY = Figure(("memory",), (_memory_v2, _memory_v1))


def read_memory(fallback: FallbackCalls, handle: Handle) -> Memory | None:
    """Read the memory of a GPU or an instance; None where it has no memory of its own (unified). Raises Failed.

    Unified machines (GB10) answer "not supported", to both generations of the call, or with a total of zero.
    """
    try:
        memory: Memory = fallback.read(MEMORY, handle)[0]
    except Failed as failed:
        if failed.code != Code.NOT_SUPPORTED:
            raise
        try:
            (memory,) = _memory_v1(fallback.calls, handle)
        except Failed as older:
            if older.code in UNSUPPORTED:
                return None
            raise
    return memory if memory.total else None


def unified_memory(held: Reading, proc: Path = procfs.PROC) -> Memory:
    """Return the machine's memory for a GPU that shares it; `held` is the memory of all its processes."""
    host = read_memory_use(proc)
    if host is None:
        return Memory(used=held, reserved=Reason.UNSUPPORTED, unified=True)
    return Memory(total=host.total, used=held, free=host.available, reserved=Reason.UNSUPPORTED, unified=True)


def missing_memory(why: Reason) -> Memory:
    """Return a memory reading in which no value is known."""
    return Memory(total=why, used=why, free=why, reserved=why)
