"""Processes on a GPU and its MIG instances: merges and checks NVML's lists, and adds the use of each process.

Source of the layouts: nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t (which `_v2` and `_v3` calls fill) and
nvmlProcessUtilizationSample_t in nvml.h. Drivers R535.43 to .86 filled another layout under the same name: their
lists contain impossible values.

The driver may reuse a handle for another instance when the GPU is divided again (nvml.h,
nvmlDeviceGetMigDeviceHandleByIndex), so the UUID is asked for with each reading.
"""

from __future__ import annotations

import ctypes
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from gpuwatch.base.text import clean
from gpuwatch.model.snapshot import Holding, Instance, Memory, Reading, Reason, known
from gpuwatch.sampler import nvml
from gpuwatch.sampler.metrics import FallbackCalls, missing_memory, read_memory
from gpuwatch.sampler.nvml import WHOLE_GPU, Calls, Code, Failed, Handle, reason

NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: the driver does not report this process's memory (WSL, some MIG and vGPU set-ups)."""
NO_INSTANCE = 2**32 - 1

_ENTRY_V1 = struct.Struct("I4xQ")
_ENTRY = struct.Struct("I4xQII")
_SAMPLE = struct.Struct("I4xQIIII")

_TRIES = 4
"""Attempts to read a list that outgrows its buffer: one, and three more with twice the room each."""


class Incomplete(Exception):
    """Error: a list outgrew its buffer at each attempt."""


class Entry(NamedTuple):
    """One line of a process list; `memory` in bytes or NOT_AVAILABLE, the instances' ids or NO_INSTANCE."""

    pid: int
    memory: int
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class Sample(NamedTuple):
    """Utilization by a process in one sample period of the driver; `time` is wall-clock µs, the rest percent."""

    pid: int
    time: int
    sm: int
    memory: int
    encoder: int
    decoder: int


class ProcessLists:
    """Reader of NVML's process lists, by the newest calls that the driver has.

    The buffer for the driver is kept between calls, so that one call is usually enough.
    """

    def __init__(self, calls: Calls, capacity: int = 128) -> None:
        self._calls = calls
        self._capacity = capacity
        self._buffer = ctypes.create_string_buffer(0)
        self._symbols: dict[str, tuple[str, struct.Struct]] = {}

    def processes(self, kind: str, handle: Handle) -> list[Entry]:
        """Return one of the process lists: `Compute`, `Graphics` or `MPSCompute`. Raises Failed or Incomplete."""
        symbol, layout = self._symbol(f"nvmlDeviceGet{kind}RunningProcesses")
        found = self._read(symbol, layout, lambda buffer, count: (handle, count, buffer))
        return [Entry(*entry) for entry in found]

    def utilization(self, handle: Handle, last: int) -> list[Sample]:
        """Return the samples newer than `last` (wall-clock µs); none where nothing ran. Raises Failed or Incomplete."""
        newer = ctypes.c_ulonglong(last)
        try:
            found = self._read(
                "nvmlDeviceGetProcessUtilization", _SAMPLE, lambda buffer, count: (handle, buffer, count, newer)
            )
        except Failed as failed:
            if failed.code == Code.NOT_FOUND:  # no process ran since then: measured idleness, and no error [nvml.h]
                return []
            raise
        return [Sample(*entry) for entry in found]

    def _read(
        self, symbol: str, layout: struct.Struct, arguments: Callable[[Any, Any], tuple[Any, ...]]
    ) -> Iterable[tuple[int, ...]]:
        """Call a function that fills a buffer with a list; `arguments` orders buffer and count."""
        for _ in range(_TRIES):
            count = ctypes.c_uint(self._capacity)
            # Room for twice as many: a driver whose entries are larger than we think stays inside the buffer.
            if len(self._buffer) < 2 * self._capacity * layout.size:
                self._buffer = ctypes.create_string_buffer(2 * self._capacity * layout.size)
            code = self._calls.raw(symbol, *arguments(self._buffer, ctypes.byref(count)))
            if code == Code.SUCCESS:
                filled = min(count.value, self._capacity)  # a count may claim more than there was room for
                return layout.iter_unpack(memoryview(self._buffer).cast("B")[: filled * layout.size])
            if code != Code.INSUFFICIENT_SIZE:
                raise Failed(symbol, code)
            self._capacity = max(2 * self._capacity, min(count.value, 2**20))
        raise Incomplete

    def _symbol(self, name: str) -> tuple[str, struct.Struct]:
        """Return the newest version of a call that the library has, and its layout."""
        found = self._symbols.get(name)
        if found is None:
            generations = ((name + "_v3", _ENTRY), (name + "_v2", _ENTRY), (name, _ENTRY_V1))
            there = (pair for pair in generations if self._calls.has(pair[0]))
            found = self._symbols[name] = next(there, generations[-1])
        return found


def valid_entries(entries: Sequence[Entry], pid_max: int, total: Reading) -> list[Entry]:
    """Return the entries of one list that can be true: possible PIDs, no more memory than the GPU has, each once."""
    kept: dict[tuple[int, int, int], Entry] = {}
    for entry in entries:
        fits = entry.memory == NOT_AVAILABLE or not known(total) or entry.memory <= total
        if 0 < entry.pid <= pid_max and fits:
            kept.setdefault((entry.pid, entry.gpu_instance, entry.compute_instance), entry)
    return list(kept.values())


def merge(lists: Mapping[str, Sequence[Entry]]) -> list[Holding]:
    """Merge the lists of a GPU (by kind: C, G, M) into one holding per process and instance.

    A process in several lists becomes one holding, with all its kinds and the largest memory: the lists count the same
    memory, some of them only a part.
    """
    merged: defaultdict[tuple[int, int, int], dict[str, int]] = defaultdict(dict)
    for kind, entries in lists.items():
        for entry in entries:
            memory = -1 if entry.memory == NOT_AVAILABLE else entry.memory
            merged[entry.pid, entry.gpu_instance, entry.compute_instance][kind] = memory
    return [
        Holding(
            pid=pid,
            kind="+".join(memory),
            memory=Reason.UNSUPPORTED if (most := max(memory.values())) < 0 else most,
            gpu_instance=None if gpu_instance == NO_INSTANCE else gpu_instance,
            compute_instance=None if compute_instance == NO_INSTANCE else compute_instance,
        )
        for (pid, gpu_instance, compute_instance), memory in merged.items()
    ]


def total_memory(holdings: Iterable[Holding]) -> Reading:
    """Return the sum of the holdings' memory in bytes; NO_SAMPLE where the memory of any is not known."""
    sizes = [one.memory for one in holdings]
    found = [size for size in sizes if known(size)]
    return int(sum(found)) if len(found) == len(sizes) else Reason.NO_SAMPLE


# -- utilization ---------------------------------------------------------------------------------------------------

_SHORTEST = 1_250_000
"""Microseconds. The driver samples each 1/6 to 1 s, by product: without a sample for longer, a process is idle."""

_AHEAD = 1_000_000
"""Microseconds. A sample from further in the future is invalid."""


class UtilizationWindow(msgspec.Struct):
    """Utilization of one GPU by its processes since the last sample, and over 1.25 s at least.

    NVML gives one sample per process: its average over all the driver's sample periods since the requested time, with
    the time at which it last ran. A process that ran in none of them has no sample. Sources: nvml.h,
    nvmlDeviceGetProcessUtilization; NVIDIA/go-nvml#51 and Syllo/nvtop#110 show drivers' answers; with the requested
    time 0 the average is long, and includes processes that ended long ago (Syllo/nvtop#91). So the figures of two
    answers are not mixed. A driver that gives several samples of a process gives one for each period. The figures are
    NVML's: those of a GPU's processes may add up to more than 100, as rounded ones and those of different periods do.
    """

    asked: int = 0
    """Wall-clock µs of the last request."""
    used: dict[int, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """(sm, memory, encoder, decoder) in percent by PID, without processes that ran nothing."""
    garbled: frozenset[int] = frozenset()
    """PIDs of the processes that have only impossible samples."""

    def begin(self, now: int) -> int:
        """Return the start time for the next request; start again where the clock was set back."""
        last = self.asked if 0 < self.asked <= now else now
        self.asked = now
        return min(last, now - _SHORTEST)

    def add(self, samples: Iterable[Sample], since: int, pids: frozenset[int], now: int) -> None:
        """Add the valid samples of an answer: from `since` on, of the processes `pids`."""
        by_pid: defaultdict[int, list[Sample]] = defaultdict(list)
        garbled = set()
        for sample in samples:
            if sample.pid not in pids or sample.time <= since:
                continue
            if max(sample[2:]) > 100 or sample.time > now + _AHEAD:
                garbled.add(sample.pid)
            else:
                by_pid[sample.pid].append(sample)
        single = all(len(of) == 1 for of in by_pid.values())
        periods = 1 if single else len({sample.time for of in by_pid.values() for sample in of})
        self.used = {
            pid: tuple(sum(column) / periods for column in zip(*(sample[2:] for sample in of), strict=True))
            for pid, of in by_pid.items()
        }
        self.garbled = frozenset(garbled - by_pid.keys())

    def of(self, pid: int) -> tuple[Reading, ...]:
        """Return a process's (sm, memory, encoder, decoder); all 0 for a process that ran nothing."""
        return (Reason.NO_SAMPLE,) * 4 if pid in self.garbled else self.used.get(pid, (0, 0, 0, 0))


def add_utilization(holdings: Iterable[Holding], window: UtilizationWindow | Reason) -> tuple[Holding, ...]:
    """Add to the holdings their processes' utilization, or the reason why it is not known."""
    result = []
    for holding in holdings:
        sm, memory, encoder, decoder = (window,) * 4 if isinstance(window, Reason) else window.of(holding.pid)
        result.append(
            msgspec.structs.replace(holding, sm=sm, memory_utilization=memory, encoder=encoder, decoder=decoder)
        )
    return tuple(result)


# -- MIG instances -------------------------------------------------------------------------------------------------


class MigInstances:
    """The MIG instances of one GPU; looked up again every 60 s, and when a handle means another instance."""

    def __init__(self, fallback: FallbackCalls, lists: ProcessLists) -> None:
        self.rows: tuple[Instance, ...] = ()
        """The instances as last seen."""
        self._handles: list[Handle] = []
        self._fallback = fallback
        self._lists = lists
        self._next = 0

    def clear(self) -> None:
        """Forget all instances and their handles."""
        self.rows, self._handles = (), []

    def look_up(self, gpu: Handle) -> None:
        """Find the present instances, and read the memory of new ones; raises Failed."""
        calls = self._fallback.calls
        before = {row.uuid: row.memory for row in self.rows}
        self.clear()
        for index in range(calls.ask("nvmlDeviceGetMaxMigDeviceCount", gpu)):
            try:
                handle = calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
            except Failed as failed:
                if failed.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                    continue  # an empty slot: there may be more behind it
                raise
            row = Instance(
                uuid=(uuid := clean(calls.text("nvmlDeviceGetUUID", handle))),
                name=clean(calls.text("nvmlDeviceGetName", handle)),
                gpu_instance=calls.ask("nvmlDeviceGetGpuInstanceId", handle),
                compute_instance=calls.ask("nvmlDeviceGetComputeInstanceId", handle),
                memory=before[uuid] if uuid in before else self._memory(handle),
            )
            self.rows, self._handles = (*self.rows, row), [*self._handles, handle]

    def refresh(self, most: int) -> bool:
        """Read the memory of the next instances, `most` at most, with two calls each.

        Returns False where a handle now means another instance: then call `look_up`. Raises Failed for a failure of the
        whole GPU.
        """
        rows = list(self.rows)
        for _ in range(min(most, len(rows))):
            self._next = (self._next + 1) % len(rows)
            handle = self._handles[self._next]
            if not self._is_same(handle, rows[self._next]):
                return False
            rows[self._next] = msgspec.structs.replace(rows[self._next], memory=self._memory(handle))
        self.rows = tuple(rows)
        return True

    def _is_same(self, handle: Handle, row: Instance) -> bool:
        try:
            return clean(self._fallback.calls.text("nvmlDeviceGetUUID", handle)) == row.uuid
        except Failed as failed:
            if failed.code in WHOLE_GPU:
                raise
            return False

    def _memory(self, handle: Handle) -> Memory:
        try:
            return read_memory(self._fallback, handle) or missing_memory(Reason.UNSUPPORTED)
        except Failed as failed:
            if failed.code in WHOLE_GPU:
                raise
            return missing_memory(reason(failed.code))

    def processes(self, kind: str) -> list[Entry]:
        """Read each instance's own process list, for a user who may not read the GPU's list. Raises Failed."""
        found = []
        for handle, row in zip(self._handles, self.rows, strict=True):
            for entry in self._lists.processes(kind, handle):
                if entry.gpu_instance == NO_INSTANCE:
                    entry = entry._replace(gpu_instance=row.gpu_instance, compute_instance=row.compute_instance)
                found.append(entry)
        return found


# -- one GPU -------------------------------------------------------------------------------------------------------

COMPUTE, GRAPHICS, MPS = "Compute", "Graphics", "MPSCompute"

_KINDS = {COMPUTE: "C", GRAPHICS: "G", MPS: "M"}

_NOTES = {
    Reason.DENIED: "no permission to list this GPU's processes",
    Reason.UNSUPPORTED: "this driver does not list this GPU's processes",
    Reason.ERROR: "the list of processes could not be read",
}
_INCOMPLETE = "list incomplete: it grew faster than it could be read"


class GpuProcesses:
    def __init__(
        self, lists: ProcessLists, instances: MigInstances, excuse: Callable[[Failed], Reason], pid_max: int
    ) -> None:
        """`excuse` returns the reason for a failed call, or raises a failure of the whole GPU."""
        self.holdings: tuple[Holding, ...] = ()
        self._lists = lists
        self._instances = instances
        self._excuse = excuse
        self._pid_max = pid_max
        self._entries: dict[str, list[Entry]] = {}
        self._notes: dict[str, str] = {}
        self._nonsense: set[str] = set()
        self._unsupported: set[str] = set()
        self._window = UtilizationWindow()
        self._utilization: UtilizationWindow | Reason = self._window

    @property
    def unreliable(self) -> bool:
        """Whether any entry of a list is impossible."""
        return bool(self._nonsense)

    @property
    def complete(self) -> bool:
        """Whether all holdings are known, so that their memory may be added up."""
        return not self._notes and not self._nonsense

    @property
    def memory(self) -> Reading:
        """Sum of the holdings' memory in bytes, or the reason why it is not known."""
        return total_memory(self.holdings) if COMPUTE not in self._notes else Reason.NO_SAMPLE

    def note(self, driver: str) -> str:
        """Return the fault of the lists; empty where they can be trusted."""
        notes = list(dict.fromkeys(self._notes.values()))
        if self.unreliable:
            notes.insert(0, f"process list unreliable on driver {driver or 'of unknown version'}")
        return "; ".join(notes)

    def read(self, handle: Handle, lists: Iterable[str], total: Reading, *, mig: bool) -> bool:
        """Read some of the lists again; raises Failed for a failure of the whole GPU.

        The other lists stay unchanged. Returns whether one of them has a process that has just left the compute list:
        the process has probably ended, and that list is out of date.
        """
        before = {entry.pid for entry in self._entries.get(_KINDS[COMPUTE], ())}
        for name in lists:
            if name not in self._unsupported:
                self._read_list(name, handle, total, mig=mig)
        self.holdings = tuple(merge(self._entries))
        left = before - {entry.pid for entry in self._entries.get(_KINDS[COMPUTE], ())}
        return any(holding.pid in left for holding in self.holdings)

    def _read_list(self, name: str, handle: Handle, total: Reading, *, mig: bool) -> None:
        try:
            entries = self._ask(name, handle, mig=mig)
        except Incomplete:  # the last list that fitted is better than none
            self._notes[name] = _INCOMPLETE
            return
        except Failed as failed:
            why = self._excuse(failed)
            if why is Reason.UNSUPPORTED:
                self._unsupported.add(name)
            self._entries.pop(_KINDS[name], None)
            self._nonsense.discard(name)
            # Graphics and MPS processes are missing on no GPU that lacks these lists.
            if name == COMPUTE or why is not Reason.UNSUPPORTED:
                self._notes[name] = _NOTES[why]
            return
        self._notes.pop(name, None)
        valid = self._entries[_KINDS[name]] = valid_entries(entries, self._pid_max, total)
        (self._nonsense.discard if len(valid) == len(entries) else self._nonsense.add)(name)

    def _ask(self, name: str, handle: Handle, *, mig: bool) -> list[Entry]:
        try:
            return self._lists.processes(name, handle)
        except Failed as failed:
            if mig and failed.code in nvml.DENIED and self._instances.rows:
                return self._instances.processes(name)
            raise

    def read_utilization(self, handle: Handle, now: int, *, mig: bool) -> None:
        """Add to the holdings their processes' utilization; `now` is wall-clock µs. Raises as `read` does."""
        since = self._window.begin(now)
        if mig:
            self._utilization = Reason.UNSUPPORTED
        elif self._utilization is not Reason.UNSUPPORTED and self.holdings:
            try:
                samples = self._lists.utilization(handle, since)
            except Incomplete:
                self._utilization = Reason.NO_SAMPLE
            except Failed as failed:
                self._utilization = self._excuse(failed)
            else:
                self._window.add(samples, since, frozenset(holding.pid for holding in self.holdings), now)
                self._utilization = self._window
        self.holdings = add_utilization(self.holdings, self._utilization)
