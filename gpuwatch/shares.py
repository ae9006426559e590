"""What is declared beside what is held: for one process on one GPU, and for a GPU as a whole. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuwatch.declarations import LIMITS, Declaration, Declared, Knowledge, Limit
from gpuwatch.model import Gpu, Process, Snapshot, known
from gpuwatch.units import MIB


class Standing(NamedTuple):
    """How one limit stands on one GPU: a process alone, or all that share the limit's scope."""

    gpu: str
    """UUID."""
    scope: str
    """Empty for a process alone."""
    limit: Limit
    declaration: Declaration
    held: int
    """Bytes of those whose holding is known."""
    complete: bool
    """Whether every one of them is."""
    pids: tuple[int, ...]
    """The largest holder first; one for a process alone."""


class Promised(NamedTuple):
    """What is declared on one GPU, in bytes."""

    declared: int
    """Sum of the limits, each scope once."""
    held: int
    """Sum of all holdings that are known."""
    total: int | None
    """All of the GPU's memory: what fractions are counted of."""
    limits: int
    """How many there are."""
    unread: int
    """Processes whose declarations could not be read."""
    undeclared: int
    """Processes that were read and declared no limit."""

    @property
    def overcommitted(self) -> bool:
        """Whether more is declared than the GPU has; two halves are not, however they were rounded."""
        return self.total is not None and self.declared > self.total + MIB


def limits_on(declared: Declared | None, gpu: str) -> tuple[Limit, ...]:
    """Give the limits of a process on a GPU, that of the process alone first."""
    found = [limit for limit in declared.limits if limit.gpu == gpu] if declared else []
    return tuple(sorted(found, key=lambda limit: (limit.scope != "", limit.bytes)))


def limit_on(declared: Declared | None, gpu: str) -> Limit | None:
    """Give the limit to show beside a holding: that of the process alone, else the smallest that it shares."""
    return next(iter(limits_on(declared, gpu)), None)


def was_read(declared: Declared | None) -> bool:
    """Say whether a process's declarations could be looked for."""
    return declared is not None and declared.knowledge is Knowledge.READ


def conclusive(declared: Declared | None) -> bool:
    """Say whether the lack of a limit means that none was declared, and not one that only the program itself knows."""
    if declared is None or not was_read(declared):
        return False
    return not any(one.effective and one.kind in LIMITS and one.value is None for one in declared.declarations)


def usable(gpu: Gpu) -> int | None:
    """Bytes that a GPU can give to processes: total less reserved."""
    memory = gpu.memory
    if not known(memory.total):
        return None
    return int(memory.total - (memory.reserved if known(memory.reserved) else 0))


def standings(snapshot: Snapshot) -> list[Standing]:
    """Set every limit against what is held under it, GPU by GPU."""
    people = {process.pid: process for process in snapshot.processes}
    return [standing for gpu in snapshot.gpus for standing in _standings(gpu, people)]


def _standings(gpu: Gpu, people: Mapping[int, Process]) -> Iterable[Standing]:
    sizes: dict[int, int] = {}
    partial: set[int] = set()
    for one in gpu.holdings:
        sizes[one.pid] = sizes.get(one.pid, 0) + (int(one.memory) if known(one.memory) else 0)
        if not known(one.memory):
            partial.add(one.pid)
    groups: defaultdict[tuple[str, int], list[tuple[Limit, Declared, int]]] = defaultdict(list)
    for pid in sizes:
        declared = people[pid].declared if pid in people else None
        for limit in declared.limits if declared else ():
            if declared and limit.gpu == gpu.uuid:
                groups[limit.scope, 0 if limit.scope else pid].append((limit, declared, pid))
    for (scope, _), members in groups.items():
        limit, declared, _ = min(members, key=lambda member: member[0].bytes)
        pids = sorted((pid for _, _, pid in members), key=lambda pid: (-sizes[pid], pid))
        yield Standing(
            gpu=gpu.uuid,
            scope=scope,
            limit=limit,
            declaration=declared.declarations[limit.declaration],
            held=sum(sizes[pid] for pid in pids),
            complete=partial.isdisjoint(pids),
            pids=tuple(pids),
        )


def counted(found: Iterable[Standing]) -> list[Standing]:
    """Give the limits of a GPU that add up: of a process that is also under a shared one, the shared one alone."""
    found = list(found)
    shared = {pid for one in found if one.scope for pid in one.pids}
    return [one for one in found if one.scope or one.pids[0] not in shared]


def promised(gpu: Gpu, people: Mapping[int, Process]) -> Promised:
    """Add up what is declared on a GPU; `people` are the snapshot's processes by PID."""
    found = counted(_standings(gpu, people))
    under = {pid for one in found for pid in one.pids}
    others = [people.get(pid) for pid in {one.pid for one in gpu.holdings} - under]
    read = [other for other in others if other is not None and conclusive(other.declared)]
    return Promised(
        declared=sum(one.limit.bytes for one in found),
        held=sum(int(one.memory) for one in gpu.holdings if known(one.memory)),
        total=int(gpu.memory.total) if known(gpu.memory.total) else None,
        limits=len(found),
        unread=len(others) - len(read),
        undeclared=len(read),
    )
