"""Shares: computes the declared, reserved and promised memory of GPUs, and what processes hold of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from gpuwatch.base.units import GIB, MIB
from gpuwatch.model.snapshot import (
    Declaration,
    Declared,
    Gpu,
    Knowledge,
    Limit,
    Process,
    Promise,
    Reading,
    Reason,
    Snapshot,
    known,
)

STEADY: Final = 8 * MIB
"""Bytes by which the reserved memory of a GPU may change, or fractions may be rounded, before a size is another one."""

RESERVATION_GRACE: Final = 15 * 60.0
"""Seconds for which a reservation counts although none of its processes holds the GPU: half of what the rule `idle but
held` lets pass, and long enough to import a framework from a slow disk and to read a data set first."""


class LimitUsage(NamedTuple):
    """Use of a limit on one GPU, by one process or by all processes of one user in the scope of the limit."""

    gpu: str
    """UUID of the GPU."""
    scope: str
    """Scope of the limit; empty for one process."""
    limit: Limit
    declaration: Declaration
    held: int
    """Bytes of all its processes whose memory is known."""
    complete: bool
    """Whether the memory of all its processes is known."""
    pids: tuple[int, ...]
    """PIDs, the largest holder first."""


class DeclaredMemory(NamedTuple):
    """Sums of the limits and holdings on one GPU, in bytes."""

    declared: int
    """Sum of the limits, each scope counted once."""
    held: int
    """Sum of all known holdings."""
    total: int | None
    """Memory that the GPU can give, to which fractions refer."""
    limits: int
    """Number of limits."""
    unread: int
    """Processes whose declarations could not be read."""
    undeclared: int
    """Processes whose declarations were read and contain no limit."""

    @property
    def overbooked(self) -> bool:
        """Whether more is declared than the GPU has; two halves are not more, however they are rounded."""
        return self.total is not None and self.declared > self.total + STEADY


def limits_on(declared: Declared | None, gpu: str) -> tuple[Limit, ...]:
    """Return the limits of a process on a GPU, the limit of only this process first."""
    if declared is None or not declared.limits:
        return ()
    found = [limit for limit in declared.limits if limit.gpu == gpu]
    return tuple(sorted(found, key=lambda limit: (limit.scope != "", limit.bytes)))


def limit_on(declared: Declared | None, gpu: str) -> Limit | None:
    """Return the limit to show with a holding: that of only this process, else the lowest of its shared limits."""
    return next(iter(limits_on(declared, gpu)), None)


def was_read(declared: Declared | None) -> bool:
    """Return whether a process's declarations could be read."""
    return declared is not None and declared.knowledge is Knowledge.READ


def is_pending(declared: Declared | None) -> bool:
    """Return whether a process's declarations and context are still to be read."""
    return declared is not None and declared.knowledge is Knowledge.PENDING


def is_conclusive(declared: Declared | None) -> bool:
    """Return whether a missing limit means that none was declared.

    False where a limit is known only at run time, or where its GPU is a guess: it may be this GPU.
    """
    if declared is None or not was_read(declared) or declared.incomplete:
        return False
    return not any(one.undecided or (one.guessed and one.effective) for one in declared.declarations)


def usable(gpu: Gpu) -> int | None:
    """Return the bytes that a GPU can give to processes: total minus reserved."""
    return gpu.memory.usable


def limit_usages(snapshot: Snapshot) -> list[LimitUsage]:
    """Return the use of every limit, GPU by GPU."""
    processes = {process.pid: process for process in snapshot.processes}
    return [usage for gpu in snapshot.gpus for usage in _limit_usages(gpu, processes)]


_CONTAINER: Final = "container "
"""Beginning of a scope that the cgroup names: a user's environment can put nobody else into it."""


def _limit_usages(gpu: Gpu, processes: Mapping[int, Process], *, by_user: bool = True) -> Iterable[LimitUsage]:
    """Return the use of each limit on a GPU.

    What one user holds is never counted against another: the text of a scope may come from an environment. For sums
    of what is declared, not `by_user`, a container counts once, whoever runs in it.
    """
    sizes = dict.fromkeys((one.pid for one in gpu.holdings), 0)
    partial = {one.pid for one in gpu.holdings if not known(one.memory)}
    for one in gpu.holdings:
        sizes[one.pid] += int(one.memory) if known(one.memory) else 0
    groups: defaultdict[tuple[str, int | None, int], list[tuple[Limit, Declared, int]]] = defaultdict(list)
    for pid in sizes:
        declared = processes[pid].declared if pid in processes else None
        for limit in declared.limits if declared else ():
            if declared and limit.gpu == gpu.uuid:
                anybody = not by_user and limit.scope.startswith(_CONTAINER)
                uid = -1 if anybody else processes[pid].uid
                groups[limit.scope, uid, 0 if limit.scope and uid is not None else pid].append((limit, declared, pid))
    for members in groups.values():
        limit, declared, _ = min(members, key=lambda member: member[0].bytes)
        pids = sorted((pid for _, _, pid in members), key=lambda pid: (-sizes[pid], pid))
        yield LimitUsage(
            gpu=gpu.uuid,
            scope=limit.scope,
            limit=limit,
            declaration=declared.declarations[limit.declaration],
            held=sum(sizes[pid] for pid in pids),
            complete=partial.isdisjoint(pids),
            pids=tuple(pids),
        )


def additive_limits(gpu: Gpu, processes: Mapping[int, Process]) -> list[LimitUsage]:
    """Return the limits of a GPU that can be added up: where a process also has a shared limit, only the shared one."""
    found = list(_limit_usages(gpu, processes, by_user=False))
    shared = {pid for one in found if one.scope for pid in one.pids}
    return [one for one in found if one.scope or one.pids[0] not in shared]


def declared_memory(gpu: Gpu, processes: Mapping[int, Process]) -> DeclaredMemory:
    """Return the sums of the limits on a GPU; `processes` are the snapshot's processes by PID."""
    found = additive_limits(gpu, processes)
    under = {pid for one in found for pid in one.pids}
    others = [processes.get(pid) for pid in {one.pid for one in gpu.holdings} - under]
    read = [other for other in others if other is not None and is_conclusive(other.declared)]
    return DeclaredMemory(
        declared=sum(one.limit.bytes for one in found),
        held=sum(int(one.memory) for one in gpu.holdings if known(one.memory)),
        total=gpu.memory.usable,
        limits=len(found),
        unread=len(others) - len(read),
        undeclared=len(read),
    )


OWN: Final = 512 * MIB
"""Bytes that a driver may use for itself besides the reserved memory: page tables, channels, the display."""
OWN_EACH: Final = 32 * MIB
"""Bytes that a driver may use for itself per process that holds the GPU, in addition to `OWN`."""


def of_driver(gpu: Gpu) -> int:
    """Return the bytes that a driver may have taken for itself on a GPU: a smaller gap belongs to no process."""
    return OWN + OWN_EACH * len(gpu.holdings)


def has_gap(gpu: Gpu) -> bool:
    """Return whether a GPU has memory of unknown processes: more than a driver takes for itself."""
    return known(gpu.unattributed) and gpu.unattributed > of_driver(gpu)


class UnknownMemoryStart(NamedTuple):
    """Time at which the present memory of unknown processes was taken."""

    at: float
    """Wall-clock time by which it was there."""
    at_least: bool
    """Whether it was there when gpuwatch started: it may be older."""


def has_promised(gpu: Gpu) -> bool:
    """Return whether enough is promised to be shown as more than `<0.1`."""
    return known(gpu.promised) and gpu.promised >= 0.05 * GIB


def left(gpu: Gpu) -> int | Reason:
    """Return free memory, minus what is promised, in bytes; the reason where it is not known.

    Of a GPU that is cut into MIG instances it is the sum over these: what is in none of them nobody can take.
    """
    places: dict[int | None, Reading] = {}
    if gpu.mig is True:
        places = {one.gpu_instance: one.memory.free for one in gpu.instances}
    found = 0
    for place, free in (places or {None: gpu.memory.free}).items():
        if not known(free):
            return free if isinstance(free, Reason) else Reason.NO_SAMPLE
        promised = sum(one.bytes for one in gpu.promises if not places or one.gpu_instance == place)
        found += max(0, int(free) - promised)
    return found


def unread_words(count: int) -> str:
    """Return in a few words that the declared shares of some processes cannot be read."""
    return f"declared shares of {count} {'process' if count == 1 else 'processes'} are not readable"


def unread_processes(snapshot: Snapshot) -> int:
    """Return the number of processes whose declarations may not be read, as those of other people."""
    declared = (one.declared for one in snapshot.processes)
    return sum(one is not None and one.knowledge is Knowledge.UNREADABLE for one in declared)


# -- what may still be taken -----------------------------------------------------------------------------------------


class Reservation(NamedTuple):
    """Reservation by `gpuwatch run`: memory that is kept for a program until the program holds it."""

    pids: frozenset[int]
    """PIDs of the GPU holders that belong to it: the program and its descendants."""
    uid: int
    gpus: Mapping[str, int]
    """Bytes by the UUID of the GPU."""
    made: float
    """Wall-clock time of its creation; of the newest one where reservations were made inside it."""
    user: str = ""
    """Name of the user; empty where it was not looked up."""


def add_promised(snapshot: Snapshot, reserved: Sequence[Reservation]) -> Snapshot:
    """Return a snapshot with the promised memory of each GPU whose free memory is known."""
    processes = {process.pid: process for process in snapshot.processes}
    gpus = []
    for gpu in snapshot.gpus:
        there = known(gpu.memory.free) and known(gpu.memory.total)
        found = find_promised(gpu, processes, reserved, snapshot.taken) if there else []
        promised = sum(one.bytes for one in found) if there else Reason.NO_SAMPLE
        gpus.append(msgspec.structs.replace(gpu, promised=promised, promises=tuple(found)))
    return msgspec.structs.replace(snapshot, gpus=tuple(gpus))


def find_promised(
    gpu: Gpu, processes: Mapping[int, Process], reserved: Sequence[Reservation], now: float
) -> list[Promise]:
    """Return the memory that users who declared or reserved may still take, one by user and kind, the largest first.

    Empty where the GPU's size is not known. `processes` are those of the snapshot by PID, `now` is wall-clock time.
    Where several limits apply to the same processes, the lowest counts; where one applies to some of the processes of a
    shared limit, only the shared limit counts. No promise, and no user's sum of reservations, exceeds what the GPU can
    give.
    """
    whole = usable(gpu)
    if whole is None:
        return []
    least: dict[frozenset[int], tuple[int, LimitUsage]] = {}
    for usage in sorted(_limit_usages(gpu, processes, by_user=False), key=lambda one: one.limit.bytes):
        least.setdefault(frozenset(usage.pids), (min(usage.limit.bytes, whole), usage))
    shared = [pids for pids in least if len(pids) > 1]
    counted = {pids: limit for pids, limit in least.items() if not any(pids < others for others in shared)}
    instances = {one.pid: one.gpu_instance for one in gpu.holdings}
    declared: defaultdict[tuple[str, int | None, int | None], int] = defaultdict(int)
    for size, limit in counted.values():
        pid = limit.pids[0]
        if size > limit.held and not all(pid in processes and processes[pid].has_ended for pid in limit.pids):
            uid = processes[pid].uid if pid in processes else None
            declared[holder_name(pid, processes), uid, instances[pid]] += size - limit.held
    found = [
        Promise(user=user, bytes=size, uid=uid, gpu_instance=instance)
        for (user, uid, instance), size in declared.items()
    ]
    rests: defaultdict[int, int] = defaultdict(int)
    names: dict[int, str] = {}
    made: dict[int, float] = {}
    for one in active_reservations(gpu, reserved, now):
        covered = 0
        if one.pids:
            under = {pid for pids in counted if pids & one.pids for pid in pids}
            covered = sum(max(limit.held, size) for pids, (size, limit) in counted.items() if pids & one.pids)
            covered += sum(
                int(each.memory) for each in gpu.holdings if each.pid in one.pids - under and known(each.memory)
            )
        if (rest := min(one.gpus[gpu.uuid], whole) - covered) > 0:
            rests[one.uid] += rest
            names[one.uid] = one.user
            made[one.uid] = max(one.made, made.get(one.uid, 0.0))
    found += [
        Promise(user=names[uid] or user_name(uid, processes), bytes=min(rest, whole), uid=uid, reserved=made[uid])
        for uid, rest in rests.items()
    ]
    return sorted(found, key=lambda one: (-one.bytes, one.user))


def active_reservations(gpu: Gpu, reserved: Iterable[Reservation], now: float) -> list[Reservation]:
    """Return the reservations of a GPU that count: new ones, and those whose processes hold it.

    Where the list of holders cannot be trusted, no reservation counts as unused.
    """
    on = [one for one in reserved if one.gpus.get(gpu.uuid, 0) > 0]
    holders = {holding.pid for holding in gpu.holdings} if on else set()
    return [
        one for one in on if now - one.made < RESERVATION_GRACE or gpu.holdings_note or not one.pids.isdisjoint(holders)
    ]


def user_name(uid: int, processes: Mapping[int, Process]) -> str:
    """Return the name of a user in the snapshot; asking the user database could take forever."""
    return next((one.user for one in processes.values() if one.uid == uid and one.user), f"uid {uid}")


def holder_name(pid: int, processes: Mapping[int, Process]) -> str:
    """Return the name of a process's owner, or its PID."""
    process = processes.get(pid)
    return (process.user if process else "") or f"PID {pid}"
