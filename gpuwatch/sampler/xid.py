"""What the driver reports by itself: XIDs, the errors of a GPU as they stand in the kernel's log.

From NVIDIA's NVML reference (Event Handling Methods): recording begins with the registration and tells nothing from
before it; on Linux each XID is an event of its own; a wait of 0 ms returns at once, with NVML_ERROR_TIMEOUT where there
is nothing; it fails as a whole where one GPU of the set fell off the bus; a registration that fails with
NVML_ERROR_UNKNOWN leaves the set undefined, to be freed. On a GPU cut by MIG a user without rights hears only what
concerns all of it.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuwatch.model import Reason, Xid
from gpuwatch.sampler.nvml import Calls, Code, Failed, Handle, reason

RENEWAL = 5.0
"""Seconds that an event set lives at least: one that fails again and again is not made anew each tick."""

RETRY = 60.0
"""Seconds until a GPU that could not be registered is tried again, where that may pass."""

_EVENTS_A_TICK = 32
"""A GPU that fails may report by the hundred; the rest waits in the driver for the next tick."""

_CODES = 16
"""Different XIDs that are kept of a GPU: the newest."""

_WAIT = "nvmlEventSetWait_v2"
_XID = 8  # nvmlEventTypeXidCriticalError


class XidCounter:
    """The XIDs of one GPU since this sampler began. They outlive its handle: XID 79 says why it fell off the bus."""

    def __init__(self, deaf: Reason = Reason.NO_SAMPLE) -> None:
        self.deaf: Reason | None = deaf
        """Why nothing is heard of this GPU; None while its events come."""
        self.set: int | None = None
        """Number of the event set with which the GPU's handle was registered."""
        self.due = 0.0
        """When to try to register it, on the sampler's clock."""
        self._xids: dict[int, Xid] = {}  # the one heard last is the last

    def hear(self, code: int, wall: float) -> None:
        """Count an XID that was reported at this wall-clock time."""
        before = self._xids.pop(code, None)
        self._xids[code] = Xid(code=code, count=before.count + 1 if before else 1, last=wall)
        if len(self._xids) > _CODES:
            del self._xids[next(iter(self._xids))]

    def reopen(self) -> None:
        """Let the GPU be registered anew: it has a fresh handle."""
        self.set, self.due = None, 0.0

    @property
    def xids(self) -> tuple[Xid, ...] | Reason:
        """What was heard, by code; where nothing was and nothing comes, the reason."""
        if self._xids:
            return tuple(self._xids[code] for code in sorted(self._xids))
        return () if self.deaf is None else self.deaf


class Registration(msgspec.Struct, frozen=True):
    """A GPU that can be registered."""

    index: int
    handle: Handle
    counter: XidCounter


class Events:
    """One event set for all GPUs. None of its failures is a GPU's, so none leaves it."""

    def __init__(
        self,
        calls: Calls,
        *,
        on: bool = True,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make no call yet; with `on` false make none at all before `resume`."""
        self.deaf = Reason.NO_SAMPLE if on else Reason.ERROR
        """Why nothing is heard of a GPU that is not registered."""
        self._calls = calls
        self._on = on
        self._clock = clock
        self._wall = wall
        self._set: Any = None
        self._made = 0
        self._due = 0.0
        self._counters: dict[int, XidCounter] = {}  # by the address of the handle that was registered
        self._data: Any = None

    def resume(self) -> None:
        """Listen again, after a sampler that hung or crashed over it."""
        self._on = True

    def listen(self, posts: Sequence[Registration]) -> None:
        """Register the GPUs that are not registered yet, or have a fresh handle."""
        now = self._clock()
        fresh = self._fresh(posts, now) if self._on else []
        if not fresh:
            return
        if any(_address(post.handle) in self._counters for post in fresh):  # twice in one set, it might be told twice
            if now < self._due:
                return
            self._let_go()
            fresh = self._fresh(posts, now)
        if self._set is None and not self._begin(now):
            for post in fresh:
                post.counter.deaf = self.deaf
            return
        for post in fresh:
            if self._set is not None:
                self._register(post, now)

    def _fresh(self, posts: Sequence[Registration], now: float) -> list[Registration]:
        current = None if self._set is None else self._made
        return [post for post in posts if (current is None or post.counter.set != current) and post.counter.due <= now]

    def _begin(self, now: float) -> bool:
        """Make an event set, unless the last one was made just now or there can be none; say whether there is one."""
        if now < self._due:
            return False
        self._due = now + RENEWAL
        try:
            if not self._calls.has(_WAIT):  # a driver older than R450
                raise Failed(_WAIT, Code.FUNCTION_NOT_FOUND)
            self._set = self._calls.ask("nvmlEventSetCreate")
        except Failed as failed:
            self.deaf = reason(failed.code)
            self._due = _next_try(self.deaf, now)
            return False
        self._data = self._data or self._calls.pynvml.c_nvmlEventData_t()
        self._made += 1
        return True

    def _register(self, post: Registration, now: float) -> None:
        counter = post.counter
        counter.set = self._made
        try:
            with self._calls.about(post.index):
                if not self._calls.ask("nvmlDeviceGetSupportedEventTypes", post.handle) & _XID:
                    raise Failed("nvmlDeviceGetSupportedEventTypes", Code.NOT_SUPPORTED)
                self._calls.ask("nvmlDeviceRegisterEvents", post.handle, _XID, self._set)
        except Failed as failed:
            counter.set, counter.deaf = None, reason(failed.code)
            counter.due = _next_try(counter.deaf, now)
            if failed.code == Code.UNKNOWN:
                self._let_go()
            return
        counter.deaf = None
        self._counters[_address(post.handle)] = counter

    def drain(self) -> None:
        """Take what the driver has reported since the last look; it never waits for more."""
        if not self._counters:
            return
        for _ in range(_EVENTS_A_TICK):
            code = self._calls.raw(_WAIT, self._set, ctypes.byref(self._data), ctypes.c_uint(0))
            if code == Code.TIMEOUT:
                return
            if code != Code.SUCCESS:
                self._let_go()
                return
            counter = self._counters.get(_address(self._data.device))
            if counter is not None and self._data.eventType & _XID:
                counter.hear(int(self._data.eventData), self._wall())

    def _let_go(self) -> None:
        """Free the event set; the GPUs are registered with the next one."""
        for counter in self._counters.values():
            counter.set, counter.deaf = None, Reason.ERROR
        self._counters.clear()
        old, self._set = self._set, None
        try:
            self._calls.ask("nvmlEventSetFree", old)
        except Failed:  # then it stays until we end; there is nothing that it could be asked instead
            return


def _next_try(why: Reason, now: float) -> float:
    return now + RETRY if why is Reason.ERROR else math.inf


def _address(handle: Handle) -> int:
    """Return the number by which the same GPU is known again."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
