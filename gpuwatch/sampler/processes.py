"""Processes on a GPU and its MIG instances: NVML's lists merged and checked, and what each process used.

Source of the layouts: nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t (which `_v2` and `_v3` calls fill) and
nvmlProcessUtilizationSample_t in nvml.h. Drivers R535.43 to .86 filled another layout under the same name: a list
that makes no sense is what that looks like from here.

The driver may reuse a handle for another instance when the GPU is cut anew (nvml.h,
nvmlDeviceGetMigDeviceHandleByIndex), so the UUID is asked for with each reading.
"""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from gpuwatch.model import Holding, Instance, Memory, Reading, Reason, known
from gpuwatch.sampler import nvml
from gpuwatch.sampler.metrics import FallbackCalls, missing_memory, read_memory
from gpuwatch.sampler.nvml import WHOLE_GPU, Calls, Code, Failed, Handle, reason
from gpuwatch.text import clean

NOT_AVAILABLE = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: this process's memory is not told (WSL, some MIG and vGPU set-ups)."""
NO_INSTANCE = 2**32 - 1

_ENTRY_V1 = struct.Struct("I4xQ")
_ENTRY = struct.Struct("I4xQII")
_SAMPLE = struct.Struct("I4xQIIII")

_TRIES = 4
"""One, and three more with twice the room each, for a list that outgrows its buffer."""


class Incomplete(Exception):
    """A list outgrew its buffer each time that it was asked for."""


class Entry(NamedTuple):
    """One line of a process list; `memory` in bytes or NOT_AVAILABLE, instances or NO_INSTANCE."""

    pid: int
    memory: int
    gpu_instance: int = NO_INSTANCE
    compute_instance: int = NO_INSTANCE


class Sample(NamedTuple):
    """What a process used of a GPU in one of the driver's sample periods; `time` is wall-clock µs, the rest percent."""

    pid: int
    time: int
    sm: int
    memory: int
    encoder: int
    decoder: int


class Room:
    """A buffer that the driver fills with a list, kept from call to call so that one call is enough."""

    def __init__(self, capacity: int = 128) -> None:
        self.capacity = capacity
        self._buffer = ctypes.create_string_buffer(0)

    def buffer(self, size: int) -> ctypes.Array[ctypes.c_char]:
        """Give room for the capacity, twice: a driver whose entries are larger than we think stays inside it."""
        if len(self._buffer) < 2 * self.capacity * size:
            self._buffer = ctypes.create_string_buffer(2 * self.capacity * size)
        return self._buffer

    def grow(self, wanted: int) -> None:
        """Make room for twice as many, or for as many as the driver says it has."""
        self.capacity = max(2 * self.capacity, min(wanted, 2**20))


class Lists:
    """Asks for the lists by the newest calls that the driver has."""

    def __init__(self, calls: Calls, room: Room | None = None) -> None:
        self._calls = calls
        self._room = room or Room()
        self._symbols: dict[str, tuple[str, struct.Struct]] = {}

    def processes(self, kind: str, handle: Handle) -> list[Entry]:
        """Return one of the process lists: `Compute`, `Graphics` or `MPSCompute`. Raises Failed or Incomplete."""
        symbol, layout = self._symbol(f"nvmlDeviceGet{kind}RunningProcesses")
        for _ in range(_TRIES):
            count = ctypes.c_uint(self._room.capacity)
            buffer = self._room.buffer(layout.size)
            code = self._calls.raw(symbol, handle, ctypes.byref(count), buffer)
            if code == Code.SUCCESS:
                return [Entry(*entry) for entry in self._entries(layout, buffer, count.value)]
            if code != Code.INSUFFICIENT_SIZE:
                raise Failed(symbol, code)
            self._room.grow(count.value)
        raise Incomplete

    def utilization(self, handle: Handle, last: int) -> list[Sample]:
        """Return the samples newer than `last` (wall-clock µs); none where nothing ran. Raises Failed or Incomplete."""
        symbol = "nvmlDeviceGetProcessUtilization"
        for _ in range(_TRIES):
            count = ctypes.c_uint(self._room.capacity)
            buffer = self._room.buffer(_SAMPLE.size)
            code = self._calls.raw(symbol, handle, buffer, ctypes.byref(count), ctypes.c_ulonglong(last))
            if code == Code.SUCCESS:
                return [Sample(*entry) for entry in self._entries(_SAMPLE, buffer, count.value)]
            if code == Code.NOT_FOUND:  # no process ran since then: measured idleness, and no error [nvml.h]
                return []
            if code != Code.INSUFFICIENT_SIZE:
                raise Failed(symbol, code)
            self._room.grow(count.value)
        raise Incomplete

    def _entries(
        self, layout: struct.Struct, buffer: ctypes.Array[ctypes.c_char], count: int
    ) -> Iterable[tuple[int, ...]]:
        """Read the filled part of a buffer, by the room that was offered and not by a count that claims more."""
        return layout.iter_unpack(memoryview(buffer).cast("B")[: min(count, self._room.capacity) * layout.size])

    def _symbol(self, name: str) -> tuple[str, struct.Struct]:
        """Find the newest generation of a call that the library has."""
        found = self._symbols.get(name)
        if found is None:
            generations = ((name + "_v3", _ENTRY), (name + "_v2", _ENTRY), (name, _ENTRY_V1))
            there = (pair for pair in generations if self._calls.has(pair[0]))
            found = self._symbols[name] = next(there, generations[-1])
        return found


# -- sense ---------------------------------------------------------------------------------------------------------


class Bounds(NamedTuple):
    """What an entry of a list cannot exceed."""

    pid_max: int
    memory: Reading


class Sound(NamedTuple):
    """The entries that make sense, and how many did not."""

    entries: list[Entry]
    dropped: int


def sound(entries: Sequence[Entry], bounds: Bounds) -> Sound:
    """Keep the entries of one list that can be true: a possible pid, no more memory than there is, each one once."""
    seen: set[tuple[int, int, int]] = set()
    kept = []
    for entry in entries:
        key = (entry.pid, entry.gpu_instance, entry.compute_instance)
        fits = entry.memory == NOT_AVAILABLE or not known(bounds.memory) or entry.memory <= bounds.memory
        if 0 < entry.pid <= bounds.pid_max and fits and key not in seen:
            seen.add(key)
            kept.append(entry)
    return Sound(kept, len(entries) - len(kept))


def merge(lists: Mapping[str, Sequence[Entry]]) -> list[Holding]:
    """Join the lists of a GPU (by kind: C, G, M) into one holding a process and instance.

    A process on several lists is there once with all its kinds and the greater of its figures: the lists count the
    same memory, each as far as it goes.
    """
    kinds: dict[tuple[int, int, int], list[str]] = {}
    memory: dict[tuple[int, int, int], int | None] = {}
    for kind, entries in lists.items():
        for entry in entries:
            key = (entry.pid, entry.gpu_instance, entry.compute_instance)
            kinds.setdefault(key, []).append(kind)
            figure = None if entry.memory == NOT_AVAILABLE else entry.memory
            before = memory.get(key)
            memory[key] = figure if before is None else before if figure is None else max(before, figure)
    return [
        Holding(
            pid=key[0],
            kind="+".join(of),
            memory=Reason.UNSUPPORTED if (figure := memory[key]) is None else figure,
            gpu_instance=None if key[1] == NO_INSTANCE else key[1],
            compute_instance=None if key[2] == NO_INSTANCE else key[2],
        )
        for key, of in kinds.items()
    ]


def held(holdings: Iterable[Holding]) -> Reading:
    """Add the holdings up, in bytes; no sample where one of them is not known."""
    total = 0.0
    for holding in holdings:
        if not known(holding.memory):
            return Reason.NO_SAMPLE
        total += holding.memory
    return int(total)


# -- use -----------------------------------------------------------------------------------------------------------

_SHORTEST = 1_250_000
"""µs. The driver samples each 1/6 to 1 s, by product: only a process without a sample for longer is surely idle."""

_AHEAD = 1_000_000
"""µs. A sample from further in the future than that is garbage."""


class Window(msgspec.Struct):
    """Use of one GPU by its processes since the last look, and over 1.25 s at least.

    NVML gives one sample a process: its average over all the driver's sample periods since the time that was asked for,
    with the time at which it last ran. One that ran in none of them has none. Sources: nvml.h,
    nvmlDeviceGetProcessUtilization; NVIDIA/go-nvml#51 and Syllo/nvtop#110 have what drivers answer; asked from 0 it is
    a long average with processes long gone in it (Syllo/nvtop#91). So the figures of one answer belong together, and
    add up to 100 % at most; those of two answers do not. A driver that gives several samples of a process gives those
    of the single periods.
    """

    asked: int = 0
    """Wall-clock µs of the last look."""
    uses: dict[int, tuple[float, ...]] = msgspec.field(default_factory=dict)
    """By pid: (sm, memory, encoder, decoder) in percent; without those that ran nothing."""
    garbled: frozenset[int] = frozenset()
    """The pids of which there are only samples that cannot be true."""

    def since(self, now: int) -> int:
        """Return time from which on to ask; to be called at each look. Starts afresh where the clock was set back."""
        last = self.asked if 0 < self.asked <= now else now
        self.asked = now
        return min(last, now - _SHORTEST)

    def add(self, samples: Iterable[Sample], since: int, pids: frozenset[int], now: int) -> None:
        """Take what the driver answered to a question from `since` on, of these processes, as far as it can be true."""
        found: dict[int, list[Sample]] = {}
        garbled = set()
        for sample in samples:
            if sample.pid not in pids or sample.time <= since:
                continue
            if max(sample.sm, sample.memory, sample.encoder, sample.decoder) > 100 or sample.time > now + _AHEAD:
                garbled.add(sample.pid)
            else:
                found.setdefault(sample.pid, []).append(sample)
        single = all(len(of) == 1 for of in found.values())
        periods = 1 if single else len({sample.time for of in found.values() for sample in of})
        figures = {
            pid: [sum(column) / periods for column in zip(*(sample[2:] for sample in of), strict=True)]
            for pid, of in found.items()
        }
        # Of a driver that gave each process's last period instead, or that has rounded up: each its part of the whole.
        excess = [max(1.0, sum(column) / 100) for column in zip(*figures.values(), strict=True)]
        self.uses = {
            pid: tuple(figure / over for figure, over in zip(of, excess, strict=True)) for pid, of in figures.items()
        }
        self.garbled = frozenset(garbled - found.keys())

    def of(self, pid: int) -> tuple[Reading, ...]:
        """Return a process's (sm, memory, encoder, decoder); all 0 for one that ran nothing."""
        return (Reason.NO_SAMPLE,) * 4 if pid in self.garbled else self.uses.get(pid, (0, 0, 0, 0))


def with_use(holdings: Iterable[Holding], window: Window | Reason) -> tuple[Holding, ...]:
    """Add to holdings what their processes used, or the reason that it is not known."""
    result = []
    for holding in holdings:
        use = (window,) * 4 if isinstance(window, Reason) else window.of(holding.pid)
        sm, memory, encoder, decoder = use
        result.append(
            msgspec.structs.replace(holding, sm=sm, memory_utilization=memory, encoder=encoder, decoder=decoder)
        )
    return tuple(result)


class _Cut(msgspec.Struct):
    """One instance and the handle that it has until the GPU is cut anew."""

    handle: Handle
    uuid: str
    name: str
    gpu_instance: int
    compute_instance: int
    memory: Memory


class Instances:
    """The instances of one GPU; they are looked up again every 60 s, and as soon as a handle means another one."""

    def __init__(self, fallback: FallbackCalls, lists: Lists) -> None:
        self._fallback = fallback
        self._lists = lists
        self._cuts: list[_Cut] = []
        self._turn = itertools.count()

    def clear(self) -> None:
        """Forget all instances and their handles."""
        self._cuts = []

    def look_up(self, gpu: Handle) -> None:
        """Find the instances that there are now and read the memory of each; raises Failed."""
        calls = self._fallback.calls
        before = {cut.uuid: cut.memory for cut in self._cuts}
        self._cuts = []
        for index in range(calls.ask("nvmlDeviceGetMaxMigDeviceCount", gpu)):
            try:
                handle = calls.ask("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index)
            except Failed as failed:
                if failed.code in (Code.NOT_FOUND, Code.INVALID_ARGUMENT):
                    continue  # an empty slot: there may be more behind it
                raise
            uuid = clean(calls.text("nvmlDeviceGetUUID", handle))
            cut = _Cut(
                handle=handle,
                uuid=uuid,
                name=clean(calls.text("nvmlDeviceGetName", handle)),
                gpu_instance=calls.ask("nvmlDeviceGetGpuInstanceId", handle),
                compute_instance=calls.ask("nvmlDeviceGetComputeInstanceId", handle),
                memory=before.get(uuid, Memory()),
            )
            self._cuts.append(cut)
            if cut.uuid not in before:
                self._read(cut)

    def refresh(self, most: int) -> bool:
        """Read the memory of the next instances, `most` at most; two calls each.

        False where a handle means another instance than it did: then all are to be looked up. Raises Failed for what
        concerns the whole GPU.
        """
        for _ in range(min(most, len(self._cuts))):
            cut = self._cuts[next(self._turn) % len(self._cuts)]
            if not self._is_same(cut):
                return False
            self._read(cut)
        return True

    def _is_same(self, cut: _Cut) -> bool:
        try:
            return clean(self._fallback.calls.text("nvmlDeviceGetUUID", cut.handle)) == cut.uuid
        except Failed as failed:
            if failed.code in WHOLE_GPU:
                raise
            return False

    def _read(self, cut: _Cut) -> None:
        try:
            memory = read_memory(self._fallback, cut.handle)
        except Failed as failed:
            if failed.code in WHOLE_GPU:
                raise
            cut.memory = missing_memory(reason(failed.code))
        else:
            cut.memory = memory or missing_memory(Reason.UNSUPPORTED)

    def processes(self, kind: str) -> list[Entry]:
        """Ask each instance for its own process list, for a user who may not see the GPU's. Raises Failed."""
        found = []
        for cut in self._cuts:
            for entry in self._lists.processes(kind, cut.handle):
                if entry.gpu_instance == NO_INSTANCE:
                    entry = entry._replace(gpu_instance=cut.gpu_instance, compute_instance=cut.compute_instance)
                found.append(entry)
        return found

    def __len__(self) -> int:
        return len(self._cuts)

    def rows(self) -> tuple[Instance, ...]:
        """Return the instances as they were last seen."""
        return tuple(
            Instance(
                uuid=cut.uuid,
                name=cut.name,
                gpu_instance=cut.gpu_instance,
                compute_instance=cut.compute_instance,
                memory=cut.memory,
            )
            for cut in self._cuts
        )


COMPUTE, GRAPHICS, MPS = "Compute", "Graphics", "MPSCompute"

_KINDS = {COMPUTE: "C", GRAPHICS: "G", MPS: "M"}

_NOTES = {
    Reason.DENIED: "you may not see this GPU's processes",
    Reason.UNSUPPORTED: "this driver does not list this GPU's processes",
    Reason.ERROR: "the list of processes could not be read",
}
_INCOMPLETE = "list incomplete: it grew faster than it could be read"


class GpuProcesses:
    """The processes on one GPU."""

    def __init__(self, lists: Lists, instances: Instances, excuse: Callable[[Failed], Reason], pid_max: int) -> None:
        """Take the function that gives the reason for a failed call, or raises what concerns the whole GPU."""
        self.holdings: tuple[Holding, ...] = ()
        self._lists = lists
        self._instances = instances
        self._excuse = excuse
        self._pid_max = pid_max
        self._entries: dict[str, list[Entry]] = {}
        self._notes: dict[str, str] = {}
        self._nonsense: set[str] = set()
        self._unsupported: set[str] = set()
        self._window = Window()
        self._use: Window | Reason = self._window

    @property
    def unreliable(self) -> bool:
        """Whether an entry of a list cannot be true."""
        return bool(self._nonsense)

    @property
    def complete(self) -> bool:
        """Whether all holdings are known, so that they may be added up."""
        return not self._notes and not self._nonsense

    @property
    def held(self) -> Reading:
        """Bytes that the holdings take together, or the reason that it is not known."""
        return held(self.holdings) if COMPUTE not in self._notes else Reason.NO_SAMPLE

    def note(self, driver: str) -> str:
        """Return what is wrong with the list; empty where it can be trusted."""
        notes = list(dict.fromkeys(self._notes.values()))
        if self.unreliable:
            notes.insert(0, f"process list unreliable on driver {driver or 'of unknown version'}")
        return "; ".join(notes)

    def read(self, handle: Handle, lists: Iterable[str], total: Reading, *, mig: bool) -> bool:
        """Read some of the lists anew; raises Failed for what concerns the whole GPU.

        The others stay as they were. Says whether one of those has a process that has just left the compute list:
        it is likely to have ended, and that list is out of date.
        """
        before = {entry.pid for entry in self._entries.get(_KINDS[COMPUTE], ())}
        for name in lists:
            self._read_list(name, handle, Bounds(self._pid_max, total), mig=mig)
        self.holdings = tuple(merge(self._entries))
        left = before - {entry.pid for entry in self._entries.get(_KINDS[COMPUTE], ())}
        return any(holding.pid in left for holding in self.holdings)

    def _read_list(self, name: str, handle: Handle, bounds: Bounds, *, mig: bool) -> None:
        if name in self._unsupported:
            return
        kind = _KINDS[name]
        try:
            entries = self._ask(name, handle, mig=mig)
        except Incomplete:  # the last list that fitted is more than nothing
            self._notes[name] = _INCOMPLETE
            return
        except Failed as failed:
            why = self._excuse(failed)
            if why is Reason.UNSUPPORTED:
                self._unsupported.add(name)
            self._entries.pop(kind, None)
            self._nonsense.discard(name)
            # A GPU without graphics or MPS lacks nothing that a reader would miss.
            if name == COMPUTE or why is not Reason.UNSUPPORTED:
                self._notes[name] = _NOTES[why]
            return
        self._notes.pop(name, None)
        self._entries[kind], dropped = sound(entries, bounds)
        if dropped:
            self._nonsense.add(name)
        else:
            self._nonsense.discard(name)

    def _ask(self, name: str, handle: Handle, *, mig: bool) -> list[Entry]:
        try:
            return self._lists.processes(name, handle)
        except Failed as failed:
            if mig and failed.code in nvml.DENIED and len(self._instances):
                return self._instances.processes(name)
            raise

    def read_use(self, handle: Handle, now: int, *, mig: bool) -> None:
        """Add to the holdings what their processes used; `now` is wall-clock µs. Raises as `read` does."""
        since = self._window.since(now)
        if mig:
            self._use = Reason.UNSUPPORTED
        elif self._use is not Reason.UNSUPPORTED and self.holdings:
            self._ask_use(handle, since, now)
        self.holdings = with_use(self.holdings, self._use)

    def _ask_use(self, handle: Handle, since: int, now: int) -> None:
        window = self._window
        try:
            samples = self._lists.utilization(handle, since)
        except Incomplete:
            self._use = Reason.NO_SAMPLE
        except Failed as failed:
            self._use = self._excuse(failed)
        else:
            window.add(samples, since, frozenset(holding.pid for holding in self.holdings), now)
            self._use = window
