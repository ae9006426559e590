"""Which GPUs have room for one more: what is free, less what others were promised and have not taken yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuwatch.declarations import Basis
from gpuwatch.model import Gpu, Health, Process, Snapshot, known
from gpuwatch.shares import Standing, standings, usable
from gpuwatch.units import GIB

_MOST_NAMED = 3
"""Holders that a reason names; the rest of them are summed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is looked for; exactly one of `share` and `memory` is given."""

    share: float | None = None
    """Fraction of what a GPU can give."""
    memory: int | None = None
    """Bytes."""
    busy: float | None = None
    """Percent of utilization up to which a GPU may be busy; None for any."""

    def bytes_on(self, gpu: Gpu) -> int | None:
        """Give the bytes that this comes to on one GPU; None where its size is not known."""
        if self.memory is not None:
            return self.memory
        whole = usable(gpu)
        return None if whole is None or self.share is None else int(self.share * whole)


class Reserved(NamedTuple):
    """What a program that was started here asked for: until it holds that much, the rest is kept for it."""

    pids: frozenset[int]
    """The program and all below it."""
    uid: int
    gpus: Mapping[str, int]
    """Bytes by the UUID of the GPU."""


class Promise(NamedTuple):
    """What somebody may still take beyond what is held."""

    user: str
    bytes: int


class Room(NamedTuple):
    """What one GPU has to offer."""

    gpu: Gpu
    wanted: int
    """Bytes; 0 where it is not known what they would be."""
    free: int
    """Bytes that nobody holds or was promised; 0 where that is not known."""
    why: str
    """Why it cannot be had, in words; empty where it can."""


def rooms(
    snapshot: Snapshot, wish: Wish, reserved: Sequence[Reserved] = (), *, hidden: Mapping[str, str] | None = None
) -> list[Room]:
    """Judge every GPU, in the order of their indices; `hidden` are keys of GPUs not to be used, and why."""
    people = {process.pid: process for process in snapshot.processes}
    limits: defaultdict[str, list[Standing]] = defaultdict(list)
    for standing in standings(snapshot):
        limits[standing.gpu].append(standing)
    found = []
    for gpu in snapshot.gpus:
        promises = promised(gpu, limits[gpu.uuid], reserved, people)
        wanted = wish.bytes_on(gpu) or 0
        free = int(gpu.memory.free) if known(gpu.memory.free) else 0
        free = max(0, free - sum(promise.bytes for promise in promises))
        why = (hidden or {}).get(gpu.key, "") or _unfit(gpu) or _exclusive(gpu, reserved, people) or _busy(gpu, wish)
        if not why and free < wanted:
            why = f"{_gib(free)} GiB free of {_gib(wanted)} wanted{_taken(gpu, people, promises)}"
        found.append(Room(gpu, wanted, free, why))
    return found


def choose(offers: Iterable[Room], count: int) -> list[Room]:
    """Take the `count` GPUs with the most room, of equals the less busy one and then the lower index; fewer if so."""
    fit = [room for room in offers if not room.why]
    return sorted(fit, key=_rank)[:count]


def _rank(room: Room) -> tuple[int, float, int]:
    busy = room.gpu.utilization
    return (-room.free, float(busy) if known(busy) else 100.0, room.gpu.index)


def promised(
    gpu: Gpu, limits: Sequence[Standing], reserved: Sequence[Reserved], people: Mapping[int, Process]
) -> list[Promise]:
    """Give what may still be taken on a GPU by those who declared or reserved it.

    `limits` are those on this GPU. Where the same processes are under several, the least counts; where one holds for
    some of those that share another, the shared one does.
    """
    least: dict[frozenset[int], Standing] = {}
    for limit in sorted(limits, key=lambda limit: _limit(limit, gpu)):
        least.setdefault(frozenset(limit.pids), limit)
    counted = {pids: limit for pids, limit in least.items() if not any(pids < others for others in least)}
    promises = [
        Promise(_user(limit.pids[0], people), rest)
        for limit in counted.values()
        if (rest := _limit(limit, gpu) - limit.held) > 0
    ]
    for one in _outermost(reserved, gpu.uuid):
        under = {pid for pids in counted if pids & one.pids for pid in pids}
        covered = sum(max(limit.held, _limit(limit, gpu)) for pids, limit in counted.items() if pids & one.pids)
        covered += _held(gpu, one.pids - under)
        if (rest := one.gpus.get(gpu.uuid, 0) - covered) > 0:
            promises.append(Promise(_name(one.uid, people), rest))
    return promises


def _outermost(reserved: Sequence[Reserved], gpu: str) -> Iterable[Reserved]:
    """Give what was reserved on a GPU, once: a run within another one takes from what that one reserved."""
    for one in reserved:
        if not any(one.pids < other.pids for other in reserved):
            inner = sum(other.gpus.get(gpu, 0) for other in reserved if other.pids < one.pids)
            yield one._replace(gpus={gpu: max(one.gpus.get(gpu, 0), inner)})


def _limit(standing: Standing, gpu: Gpu) -> int:
    """Give a limit in bytes: a fraction is one of what CUDA has, which is less than NVML's total by what is reserved.

    By NVML's total two halves of a GPU would be more than it can give.
    """
    whole, total = usable(gpu), gpu.memory.total
    if standing.declaration.basis is not Basis.TOTAL or whole is None or not known(total) or not total:
        return standing.limit.bytes
    return int(standing.limit.bytes * whole / total)


def _held(gpu: Gpu, pids: Collection[int]) -> int:
    return sum(int(one.memory) for one in gpu.holdings if one.pid in pids and known(one.memory))


def _unfit(gpu: Gpu) -> str:
    """Say what keeps anybody from starting on a GPU; empty for nothing."""
    if gpu.health is not Health.OK:
        return f"{gpu.health.value}: {gpu.words}" if gpu.words else gpu.health.value
    if gpu.mig is True:
        return "it is cut into MIG instances, which are not chosen from here"
    if not known(gpu.memory.free) or usable(gpu) is None:
        return "its memory cannot be read"
    return "its compute mode is prohibited" if gpu.compute_mode == "prohibited" else ""


def _exclusive(gpu: Gpu, reserved: Sequence[Reserved], people: Mapping[int, Process]) -> str:
    """Say who has a GPU that takes one process alone; empty where it takes many, or its one process is the MPS server.

    Source: docs.nvidia.com/deploy/mps, "When to Use MPS": the mode restricts the MPS server, and not its clients.
    """
    if gpu.compute_mode != "exclusive process":
        return ""
    holders = [one for one in gpu.holdings if "C" in one.kind]
    if any("M" in one.kind or _is_mps_server(people.get(one.pid)) for one in holders):
        return ""
    owners = [_user(one.pid, people) for one in holders]
    owners += [_name(one.uid, people) for one in reserved if one.gpus.get(gpu.uuid)]
    return f"its compute mode is exclusive process, and {owners[0]} has it" if owners else ""


def _is_mps_server(process: Process | None) -> bool:
    return process is not None and process.name.startswith("nvidia-cuda-mps")  # the kernel keeps 15 characters


def _busy(gpu: Gpu, wish: Wish) -> str:
    if wish.busy is None:
        return ""
    if not known(gpu.utilization):
        return "its utilization is not known"
    return f"{gpu.utilization:.0f} % busy, {wish.busy:g} % allowed" if gpu.utilization > wish.busy else ""


def _taken(gpu: Gpu, people: Mapping[int, Process], promises: Sequence[Promise]) -> str:
    """Say who holds a GPU and who was promised more of it."""
    held: defaultdict[str, int] = defaultdict(int)
    for one in gpu.holdings:
        if known(one.memory):
            held[_user(one.pid, people)] += int(one.memory)
    owed: defaultdict[str, int] = defaultdict(int)
    for promise in promises:
        owed[promise.user] += promise.bytes
    words = [f"held by {_named(held)}"] if held else []
    if owed:
        words.append(f"promised to {_named(owed)} more")
    if known(gpu.unattributed) and gpu.unattributed >= GIB:
        words.append(f"{_gib(gpu.unattributed)} held by nobody we can see")
    return "".join(f"; {word}" for word in words)


def _named(amounts: Mapping[str, int]) -> str:
    """Print who has how much, the most first: `ada 49.5, ben 14.1, 2 others 1.3`."""
    most = sorted(amounts.items(), key=lambda item: (-item[1], item[0]))
    rest = most[_MOST_NAMED:]
    if len(rest) > 1:
        most = [*most[:_MOST_NAMED], (f"{len(rest)} others", sum(amount for _, amount in rest))]
    return ", ".join(f"{user} {_gib(amount)}" for user, amount in most)


def _user(pid: int, people: Mapping[int, Process]) -> str:
    process = people.get(pid)
    return (process.user if process else "") or f"PID {pid}"


def _name(uid: int, people: Mapping[int, Process]) -> str:
    """Name a user by what the snapshot knows: to ask the user database could take for ever."""
    return next((one.user for one in people.values() if one.uid == uid and one.user), f"uid {uid}")


def _gib(amount: float) -> str:
    """Print bytes as GiB, rounded down: what is free is not to look as if it were enough."""
    return f"{int(amount / GIB * 10) / 10:.1f}"
