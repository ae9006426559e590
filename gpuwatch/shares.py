"""What is declared beside what is held: for one process on one GPU, and for a GPU as a whole. Pure functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpuwatch.model import Declaration, Declared, Gpu, Knowledge, Limit, Process, Snapshot, known


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
    usable: int | None
    """What the GPU can give: total less reserved."""
    limits: int
    """How many there are."""
    unread: int
    """Processes whose declarations could not be read."""
    undeclared: int
    """Processes that were read and declared no limit."""

    @property
    def overcommitted(self) -> bool:
        """Whether more is declared than the GPU has."""
        return self.usable is not None and self.declared > self.usable


def limits_on(declared: Declared | None, gpu: str) -> tuple[Limit, ...]:
    """Give the limits of a process on a GPU, that of the process alone first."""
    found = [limit for limit in declared.limits if limit.gpu == gpu] if declared else []
    return tuple(sorted(found, key=lambda limit: (limit.scope != "", limit.bytes)))


def limit_on(declared: Declared | None, gpu: str) -> Limit | None:
    """Give the limit to show beside a holding: that of the process alone, else the smallest that it shares."""
    return next(iter(limits_on(declared, gpu)), None)


def readable(declared: Declared | None) -> bool:
    """Say whether the lack of a limit means that none was declared."""
    return declared is not None and declared.knowledge is Knowledge.READ


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
    groups: defaultdict[tuple[str, int], list[tuple[Limit, Declared, int]]] = defaultdict(list)
    for pid in dict.fromkeys(one.pid for one in gpu.holdings):
        declared = people[pid].declared if pid in people else None
        if declared is None:
            continue
        for limit in limits_on(declared, gpu.uuid):
            groups[limit.scope, 0 if limit.scope else pid].append((limit, declared, pid))
    for (scope, _), members in groups.items():
        limit, declared, _ = min(members, key=lambda member: member[0].bytes)
        pids = {pid for _, _, pid in members}
        sizes: defaultdict[int, int] = defaultdict(int)
        complete = True
        for one in gpu.holdings:
            if one.pid in pids and known(one.memory):
                sizes[one.pid] += int(one.memory)
            elif one.pid in pids:
                complete = False
        yield Standing(
            gpu=gpu.uuid,
            scope=scope,
            limit=limit,
            declaration=declared.declarations[limit.declaration],
            held=sum(sizes.values()),
            complete=complete,
            pids=tuple(sorted(pids, key=lambda pid: (-sizes[pid], pid))),
        )


def promised(gpu: Gpu, people: Mapping[int, Process]) -> Promised:
    """Add up what is declared on a GPU; `people` are the snapshot's processes by PID.

    A process that is under a limit of its own and under a shared one counts once, in the shared one.
    """
    shared = {pid for one in _standings(gpu, people) if one.scope for pid in one.pids}
    found = [one for one in _standings(gpu, people) if one.scope or one.pids[0] not in shared]
    under = {pid for one in found for pid in one.pids}
    others = [people.get(pid) for pid in {one.pid for one in gpu.holdings} - under]
    read = [other for other in others if other is not None and readable(other.declared)]
    return Promised(
        declared=sum(one.limit.bytes for one in found),
        held=sum(int(one.memory) for one in gpu.holdings if known(one.memory)),
        usable=usable(gpu),
        limits=len(found),
        unread=len(others) - len(read),
        undeclared=len(read),
    )
