"""XIDs: counts the GPU errors that the driver reports as events; the kernel's log has the same errors.

From NVIDIA's NVML reference (Event Handling Methods): events are recorded only after the registration; on Linux each
XID is a separate event; a wait of 0 ms returns at once, with NVML_ERROR_TIMEOUT where there is no event; the wait fails
where any GPU of the set cannot be reached any more; a registration that fails with NVML_ERROR_UNKNOWN leaves the set
undefined, to be freed. On a GPU divided by MIG an unprivileged user receives only the events of the whole GPU.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuwatch.model.snapshot import Reason, Xid
from gpuwatch.sampler.nvml import Calls, Code, Failed, Handle, reason

RENEWAL = 5.0
"""Seconds between two creations of an event set, at least: one that fails repeatedly is not created at each tick."""

RETRY = 60.0
"""Seconds until a failed registration of a GPU is tried again, where the failure may pass."""

_EVENTS_A_TICK = 32
"""Events that are read per tick, at most: a failing GPU may report hundreds; the rest waits in the driver."""

_CODES = 16
"""Different XIDs that are kept per GPU: the newest."""

_WAIT = "nvmlEventSetWait_v2"
_XID = 8  # nvmlEventTypeXidCriticalError


class XidCounter:
    """Counter of one GPU's XIDs since the sampler's start. It outlives the handle: XID 79 explains its loss."""

    def __init__(self, missing: Reason = Reason.NO_SAMPLE) -> None:
        self.missing: Reason | None = missing
        """Why no events of this GPU come; None while they come."""
        self.set_number: int | None = None
        """Number of the event set with which the GPU's handle is registered."""
        self.due = 0.0
        """Time of the next attempt to register the GPU, on the sampler's clock."""
        self._xids: dict[int, Xid] = {}  # the newest is the last

    def add(self, code: int, wall: float) -> None:
        """Count an XID that was reported at this wall-clock time."""
        before = self._xids.pop(code, None)
        self._xids[code] = Xid(code=code, count=before.count + 1 if before else 1, last=wall)
        if len(self._xids) > _CODES:
            del self._xids[next(iter(self._xids))]

    def reset_registration(self) -> None:
        """Let the GPU be registered again, since it has a new handle."""
        self.set_number, self.due = None, 0.0

    @property
    def xids(self) -> tuple[Xid, ...] | Reason:
        """The XIDs by code; where there are none and none can come, the reason."""
        if self._xids or self.missing is None:
            return tuple(self._xids[code] for code in sorted(self._xids))
        return self.missing


class Registration(msgspec.Struct, frozen=True):
    """GPU that can be registered for events."""

    index: int
    handle: Handle
    counter: XidCounter


class XidEvents:
    """Event set of all GPUs. Its failures concern no GPU, so none is raised."""

    def __init__(
        self,
        calls: Calls,
        *,
        on: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make no call yet; with `on` False no call before `resume`."""
        self.missing = Reason.NO_SAMPLE if on else Reason.ERROR
        """Why no events come from a GPU that is not registered."""
        self._calls = calls
        self._on = on
        self._clock = clock
        self._wall = wall
        self._set: Any = None
        self._number = 0
        self._due = 0.0
        self._counters: dict[int, XidCounter] = {}  # by the address of the handle that was registered
        self._data: Any = None

    def resume(self) -> None:
        """Listen again, after a hang or a crash in an event call stopped it."""
        self._on = True

    def listen(self, gpus: Sequence[Registration]) -> None:
        """Register the GPUs that are not registered yet, or have a new handle."""
        now = self._clock()
        fresh = self._unregistered(gpus, now) if self._on else []
        if any(_address(gpu.handle) in self._counters for gpu in fresh):  # twice in one set, events might come twice
            if now < self._due:
                return
            self._free()
            fresh = self._unregistered(gpus, now)
        if fresh and self._set is None and not self._create(now):
            for gpu in fresh:
                gpu.counter.missing = self.missing
            return
        for gpu in fresh:
            if self._set is not None:  # a registration may have freed it
                self._register(gpu, now)

    def _unregistered(self, gpus: Sequence[Registration], now: float) -> list[Registration]:
        current = None if self._set is None else self._number
        return [
            gpu for gpu in gpus if (current is None or gpu.counter.set_number != current) and gpu.counter.due <= now
        ]

    def _create(self, now: float) -> bool:
        """Create an event set, unless the last is too new or creation is impossible; return whether there is one."""
        if now < self._due:
            return False
        self._due = now + RENEWAL
        try:
            if not self._calls.has(_WAIT):  # a driver older than R450
                raise Failed(_WAIT, Code.FUNCTION_NOT_FOUND)
            self._set = self._calls.ask("nvmlEventSetCreate")
        except Failed as failed:
            self.missing = reason(failed.code)
            self._due = _retry_time(self.missing, now)
            return False
        self._data = self._data or self._calls.pynvml.c_nvmlEventData_t()
        self._number += 1
        return True

    def _register(self, gpu: Registration, now: float) -> None:
        counter = gpu.counter
        try:
            with self._calls.about(gpu.index):
                if not self._calls.ask("nvmlDeviceGetSupportedEventTypes", gpu.handle) & _XID:
                    raise Failed("nvmlDeviceGetSupportedEventTypes", Code.NOT_SUPPORTED)
                self._calls.ask("nvmlDeviceRegisterEvents", gpu.handle, _XID, self._set)
        except Failed as failed:
            counter.set_number, counter.missing = None, reason(failed.code)
            counter.due = _retry_time(counter.missing, now)
            if failed.code == Code.UNKNOWN:
                self._free()
            return
        counter.set_number, counter.missing = self._number, None
        self._counters[_address(gpu.handle)] = counter

    def collect(self) -> None:
        """Count the events that the driver has reported since the last call; never waits."""
        if not self._counters:
            return
        for _ in range(_EVENTS_A_TICK):
            code = self._calls.raw(_WAIT, self._set, ctypes.byref(self._data), ctypes.c_uint(0))
            if code == Code.TIMEOUT:
                return
            if code != Code.SUCCESS:
                self._free()
                return
            counter = self._counters.get(_address(self._data.device))
            if counter is not None and self._data.eventType & _XID:
                counter.add(int(self._data.eventData), self._wall())

    def _free(self) -> None:
        """Free the event set; the GPUs are registered with the next one."""
        for counter in self._counters.values():
            counter.set_number, counter.missing = None, Reason.ERROR
        self._counters.clear()
        old, self._set = self._set, None
        try:
            self._calls.ask("nvmlEventSetFree", old)
        except Failed:  # then it stays until gpuwatch ends; it cannot be freed
            return


def _retry_time(why: Reason, now: float) -> float:
    return now + RETRY if why is Reason.ERROR else math.inf


def _address(handle: Handle) -> int:
    """Return a number that identifies the GPU of a handle."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
