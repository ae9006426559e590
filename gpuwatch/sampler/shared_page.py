"""Page of shared memory on which the sampler notes its present NVML call, for its parent to read.

A process cannot notice that its own call hangs. The page is a memfd that the parent creates and the child inherits.
Both understand the times on it: CLOCK_MONOTONIC is the same for all processes of a machine.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

INIT = "nvmlInit_v2"
"""Name of the call while the library is loaded and initialised, whichever init the binding calls."""

EVENT_CALLS = frozenset(
    {
        "nvmlDeviceGetSupportedEventTypes",
        "nvmlDeviceRegisterEvents",
        "nvmlEventSetCreate",
        "nvmlEventSetFree",
        "nvmlEventSetWait_v2",
    }
)
"""Calls that listen for events. A hang or a crash in one of them disables the events, but no GPU."""

LINK_CALLS = frozenset(
    {
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetCurrPcieLinkWidth",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetPcieThroughput",
    }
)
"""Calls that read PCIe and NVLink of the GPU in focus. After a hang or a crash in one of them they are no longer made
for that GPU."""

_STARTED = struct.Struct("d")  # native, so that it is one aligned 8-byte store: never half a number
_CALL = struct.Struct("ii48s288s96s")
_STARTED_AT, _CALL_AT = 0, 8
_NAME_MOST = 47
"""Bytes of a call's name. NVML's UUIDs have 96 bytes at most and its addresses 32, and each byte may become a
character of three."""

_TRIES = 3
"""Attempts to read a call that changes while it is read."""


class CallInFlight:
    """Call in which the sampler is now; no NamedTuple, since `typing` is not imported before the sampler's start.

    `gpu` is NVML's index of `listed` GPUs, or -1 for a call that concerns no single GPU; `uuid` and `bus_id` are empty
    while they are unknown; `started` is on the monotonic clock, in seconds.
    """

    __slots__ = ("bus_id", "call", "gpu", "listed", "started", "uuid")

    def __init__(self, call: str, started: float, gpu: int, listed: int, uuid: str, bus_id: str) -> None:
        self.call = call
        self.started = started
        self.gpu = gpu
        self.listed = listed
        self.uuid = uuid
        self.bus_id = bus_id


class SharedPage:
    """Page of memory that sampler and parent share: the sampler notes its calls on it, and the parent reads it."""

    def __init__(self, fd: int = -1) -> None:
        """Map the page of a descriptor; for -1 a private page. Raises OSError or ValueError."""
        self.fd = fd
        self.calls = 0
        """Number of calls so far, counted by the sampler."""
        self._page = mmap.mmap(fd, mmap.PAGESIZE)
        self._names: dict[str, bytes] = {}

    @classmethod
    def create(cls) -> SharedPage:
        """Make a page that a child can inherit by its `fd`; raises OSError."""
        fd = os.memfd_create("gpuwatch-page", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            return cls(fd)
        except OSError:
            os.close(fd)
            raise

    def begin_call(self, gpu: int, call: str, listed: int = 0, uuid: bytes = b"", bus_id: bytes = b"") -> None:
        """Note that a call begins; see `CallInFlight`."""
        name = self._names.get(call)
        if name is None:
            name = self._names[call] = call.encode("ascii", "replace")[:_NAME_MOST]
        self.calls += 1
        _CALL.pack_into(self._page, _CALL_AT, gpu, listed, name, uuid, bus_id)
        _STARTED.pack_into(self._page, _STARTED_AT, time.monotonic())  # last: it makes the rest valid

    def end_call(self) -> None:
        """Note that the call has returned."""
        _STARTED.pack_into(self._page, _STARTED_AT, 0.0)

    def read(self) -> CallInFlight | None:
        """Return the call in which the sampler is; None between calls, and after the page is closed."""
        try:
            for _ in range(_TRIES):
                (started,) = _STARTED.unpack_from(self._page, _STARTED_AT)
                if not started:
                    return None
                gpu, listed, *words = _CALL.unpack_from(self._page, _CALL_AT)
                if _STARTED.unpack_from(self._page, _STARTED_AT) == (started,):
                    call, uuid, bus_id = (word.rstrip(b"\0").decode("utf-8", "replace") for word in words)
                    return CallInFlight(call, started, gpu, listed, uuid, bus_id)
        except ValueError:  # closed by another thread while we read
            return None
        return None

    def close(self) -> None:
        """Unmap the page and close its descriptor; may be called twice."""
        self._page.close()
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)
