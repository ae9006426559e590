"""Holdings: who holds what on which GPU, folded once a snapshot by process and by owner. Pure functions.

What is not known is never 0: a sum has the bytes that are known, and says whether these are all. Growth, idle times,
limits and initials are no part of it: who shows them joins them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuwatch.model.shares import DeclaredMemory, LimitUsage, declared_memory, limit_usages
from gpuwatch.model.snapshot import Gpu, Holding, Process, Reason, Snapshot, number

UNSEEN_USER: Final = "?"
"""Name of the owner of what no visible user holds."""


class GpuProcess(msgspec.Struct, eq=False):
    """One process on one GPU; its holdings on several MIG instances of the GPU are added up. It never changes."""

    process: Process
    """One that the snapshot does not have is without facts, and its owner is not visible."""
    gpu: Gpu
    start: int
    """Start time as the holdings have it, to look up the history."""
    holdings: Sequence[Holding]
    """One, but on several MIG instances."""
    memory: int
    """Bytes that are known."""
    complete: bool
    """Whether all of its memory is known."""
    sm: float | None
    """Percent, the highest of the known figures; None where none is known."""
    sm_complete: bool
    """Whether its figure is known on each instance: else `sm` is a minimum."""
    graphics: bool
    """Whether it only draws a screen."""

    @property
    def sized(self) -> bool:
        """Whether any of its memory is known."""
        return self.complete or self.memory > 0

    @property
    def kinds(self) -> frozenset[str]:
        """C, G and M, as in `Holding.kind`."""
        return frozenset(kind for one in self.holdings for kind in one.kind.split("+"))

    @property
    def silent(self) -> bool:
        """Whether NVML has no SM value for it, as on MIG and vGPUs: its idle time can never be known."""
        return all(one.sm is Reason.UNSUPPORTED for one in self.holdings)


class GpuOwner(msgspec.Struct, eq=False):
    """One owner on one GPU; all owners who are not visible are one. It never changes."""

    uid: int | None
    """None for those who are not visible."""
    name: str
    """Full name, the uid in digits while the name is not known, or `UNSEEN_USER`."""
    gpu: Gpu
    processes: Sequence[GpuProcess]
    """In the order of the driver's list; at least one."""

    @property
    def memory(self) -> int:
        """Bytes that are known."""
        return sum([one.memory for one in self.processes])

    @property
    def complete(self) -> bool:
        """Whether the memory of each process is known."""
        return all(one.complete for one in self.processes)


def fold_processes(gpu: Gpu, processes: Mapping[int, Process]) -> tuple[GpuProcess, ...]:
    """Return the processes on a GPU, in the order of the driver's list; `processes` are the snapshot's by PID."""
    found: dict[tuple[int, int], GpuProcess] = {}
    for one in gpu.holdings:
        size, sm, key = number(one.memory), number(one.sm), (one.pid, one.start)
        process = processes.get(one.pid) or Process(pid=one.pid, start=one.start)
        new = GpuProcess(
            process, gpu, one.start, (one,), int(size or 0), size is not None, sm, sm is not None, one.kind == "G"
        )
        found[key] = _added(found[key], new) if key in found else new
    return tuple(found.values())


def _added(one: GpuProcess, other: GpuProcess) -> GpuProcess:
    return replace(
        one,
        holdings=(*one.holdings, *other.holdings),
        memory=one.memory + other.memory,
        complete=one.complete and other.complete,
        sm=max((sm for sm in (one.sm, other.sm) if sm is not None), default=None),
        sm_complete=one.sm_complete and other.sm_complete,
        graphics=one.graphics and other.graphics,
    )


def declared_by(gpu: Gpu, held: Iterable[GpuProcess], processes: Mapping[int, Process]) -> DeclaredMemory:
    """Return the sums of the limits of some of the processes on a GPU; `processes` are the snapshot's by PID."""
    theirs = tuple([holding for one in held for holding in one.holdings])
    return declared_memory(replace(gpu, holdings=theirs), processes)


def fold_owners(gpu: Gpu, listed: Iterable[GpuProcess], names: Mapping[int, str]) -> tuple[GpuOwner, ...]:
    """Return the owners of processes on a GPU, in the order of the driver's list; `names` are by uid."""
    by_uid: defaultdict[int | None, list[GpuProcess]] = defaultdict(list)
    for one in listed:
        by_uid[one.process.uid].append(one)
    return tuple(
        [GpuOwner(uid, UNSEEN_USER if uid is None else names[uid], gpu, theirs) for uid, theirs in by_uid.items()]
    )


def user_names(processes: Iterable[Process]) -> dict[int, str]:
    """Return the names of the owners of processes by uid; of two the one that is no uid whose name is looked up yet."""
    names: dict[int, str] = {}
    for one in processes:
        if one.uid is not None and names.get(one.uid, "") in ("", str(one.uid)):
            names[one.uid] = one.user or names.get(one.uid) or str(one.uid)
    return names


class Holdings:
    """Both folds of one snapshot, each made for a GPU when it is first read, from any thread."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        # By key and index: a driver may give two GPUs one UUID.
        self._processes: dict[tuple[str, int], tuple[GpuProcess, ...]] = {}
        self._owners: dict[tuple[str, int], tuple[GpuOwner, ...]] = {}

    @cached_property
    def processes(self) -> Mapping[int, Process]:
        """Processes of the snapshot by PID."""
        return {one.pid: one for one in self.snapshot.processes}

    @cached_property
    def limit_usages(self) -> Sequence[LimitUsage]:
        """Use of every limit, GPU by GPU."""
        return limit_usages(self.snapshot)

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Names of the owners of all processes by uid."""
        return user_names(self.snapshot.processes)

    def on(self, gpu: Gpu) -> Sequence[GpuProcess]:
        """Return the processes on a GPU of the snapshot, in the order of the driver's list."""
        key = (gpu.key, gpu.index)
        found = self._processes.get(key)
        if found is None:
            found = self._processes[key] = fold_processes(gpu, self.processes)
        return found

    @cached_property
    def by_process(self) -> Mapping[tuple[int, int], Sequence[GpuProcess]]:
        """What each process holds, by its PID and start time, in the order of the GPUs."""
        held: defaultdict[tuple[int, int], list[GpuProcess]] = defaultdict(list)
        for gpu in self.snapshot.gpus:
            for part in self.on(gpu):
                held[part.process.pid, part.start].append(part)
        return held

    def owners(self, gpu: Gpu) -> Sequence[GpuOwner]:
        """Return the owners on a GPU of the snapshot, in the order of the driver's list."""
        key = (gpu.key, gpu.index)
        found = self._owners.get(key)
        if found is None:
            found = self._owners[key] = fold_owners(gpu, self.on(gpu), self.names)
        return found

    def owners_on_instance(self, gpu: Gpu, instance: int) -> Sequence[GpuOwner]:
        """Return the owners on one MIG instance of a GPU, by NVML's id of it."""
        here = replace(gpu, holdings=tuple([one for one in gpu.holdings if one.gpu_instance == instance]))
        return fold_owners(here, fold_processes(here, self.processes), self.names)
