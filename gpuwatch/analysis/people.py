"""Sums of memory, utilization and use for each person on the machine. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from gpuwatch.analysis.rows import StableOrder
from gpuwatch.base.units import GIB, MIB, NONE, Unit, gib, long_duration, parse_percent, percent, ranges
from gpuwatch.history.history import NO_USE, HistoryView, Use
from gpuwatch.model import shares
from gpuwatch.model.fields import PROCESS, QUIET_S, Amount, Field, Format, amount, table
from gpuwatch.model.holdings import GpuOwner, GpuProcess, Holdings, declared_by
from gpuwatch.model.snapshot import Gpu, Idle, Snapshot

LEAST: Final = 256 * MIB
"""Smaller holdings (bytes) are never the longest idle one: just a CUDA context takes some hundred MiB."""
DOUBT: Final = 0.05
"""Part of the time without SM values above which the idle part is a lower bound: one sample is always missing."""


class Longest(NamedTuple):
    """Holding that has been idle for the longest time."""

    idle: Idle
    gpu: int
    """Index."""
    pid: int
    memory: int
    """Bytes."""


class Person(msgspec.Struct, frozen=True):
    """Sums of what one person holds and uses on all GPUs."""

    uid: int | None
    """None for all people together who are not visible."""
    name: str
    """Full name; the uid in digits while the name is not known."""
    viewer: bool
    gpus: tuple[int, ...]
    """Indices, in order."""
    memory: int
    """Bytes of all holdings whose size is known."""
    at_least: bool
    """Whether the size of a holding is not known, so that there is more memory."""
    share: float | None
    """Percent of all the memory that programs can have, on GPUs that report it; None where no GPU does."""
    declared: int | None
    """Bytes: the sum of the limits by GPU and process, a shared limit counted once. None without a limit."""
    unread: bool
    """Whether some of the person's processes could not be read: more may be declared."""
    sm: float | None
    """Percent, added up over GPUs with at most 100 of each: 250 is two and a half GPUs busy. None where no process
    has a figure."""
    sm_at_least: bool
    """Whether the SM value of some processes is not known."""
    use: Use
    """Use since gpuwatch started."""
    longest: Longest | None
    """Longest idle holding of `LEAST` bytes or more; None where no such holding is known to be idle."""
    idle: int
    """Bytes of holdings that ran nothing for `QUIET_S` or longer."""
    processes: int
    oldest: float | None
    """Wall-clock time at which the oldest of these processes started."""

    @property
    def waste(self) -> float | None:
        """Idle part in percent of memory × time; None if nothing was measured."""
        use = self.use
        return 100 * use.idle_memory / use.memory if use.memory > 0 and use.held > use.unknown else None

    @property
    def waste_at_least(self) -> bool:
        """Whether the idle part is a lower bound, since too much of the time was not measured."""
        return self.use.unknown > DOUBT * self.use.held


def people(holdings: Holdings, view: HistoryView | None = None) -> list[Person]:
    """Return the people who hold GPU memory, unsorted; all who are not visible are one person."""
    held: dict[int | None, list[GpuOwner]] = {}
    for gpu in holdings.snapshot.gpus:
        for owner in holdings.owners(gpu):
            held.setdefault(owner.uid, []).append(owner)
    total = _total(holdings.snapshot.gpus)
    return [_person(on, holdings, view, total) for on in held.values()]


def filter_for(uid: int | None) -> str:
    """Return the filter for the processes of one person: `uid:1001`."""
    return "uid:?" if uid is None else f"uid:{uid}"


def _total(gpus: Iterable[Gpu]) -> int | None:
    sizes = [shares.usable(gpu) for gpu in gpus]
    return sum(size for size in sizes if size is not None) if any(size for size in sizes) else None


def _person(on: Sequence[GpuOwner], holdings: Holdings, view: HistoryView | None, total: int | None) -> Person:
    """Return the sums of one person, whom `on` has for each GPU."""
    uid, name = on[0].uid, on[0].name
    every = [one for owner in on for one in owner.processes]
    # Of a GPU that does not say how much it has, what is held is no part of the whole.
    counted = [one.memory for one in every if one.sized and shares.usable(one.gpu)]
    busy = [[one.sm for one in owner.processes if one.sm is not None] for owner in on]
    idles = [(one, view.idle(one.gpu.key, one.process.pid, one.start)) for one in every] if view else []
    declared = [declared_by(owner.gpu, owner.processes, holdings.processes) for owner in on]
    return Person(
        uid=uid,
        name=name,
        viewer=uid is not None and uid == holdings.snapshot.viewer,
        gpus=tuple(sorted(owner.gpu.index for owner in on)),
        memory=sum(one.memory for one in every),
        at_least=not all(one.complete for one in every),
        share=100 * sum(counted) / total if total and counted else None,
        declared=sum(one.declared for one in declared) if any(one.limits for one in declared) else None,
        unread=any(one.unread for one in declared),
        sm=sum(min(sum(figures), 100.0) for figures in busy) if any(busy) else None,
        sm_at_least=not all(one.sm_complete for one in every),
        use=view.use(uid) if view and uid is not None else NO_USE,
        longest=_longest(idles),
        idle=sum(one.memory for one, idle in idles if idle and idle.seconds >= QUIET_S),
        processes=len({one.process.pid for one in every}),
        oldest=min((one.process.started for one in every if one.process.started is not None), default=None),
    )


def _longest(idles: Iterable[tuple[GpuProcess, Idle | None]]) -> Longest | None:
    found = [
        Longest(idle, one.gpu.index, one.process.pid, one.memory)
        for one, idle in idles
        if idle is not None and idle.seconds > 0 and one.memory >= LEAST
    ]
    return max(found, key=lambda one: (one.idle.seconds, one.memory), default=None)


# ---------------------------------------------------------------------------------------------------------------
# Order


_PARTS: Final = Format(lambda part: percent(part, 100), parse_percent)


def _longest_idle(one: Person) -> Amount | str | None:
    if one.longest is not None:
        return Amount(*one.longest.idle)
    return "" if one.sm else None


def _use(one: Person) -> Amount | None:
    use = one.use
    is_unknown = use.held <= 0 or (use.unsized > 0 and not use.memory)
    return None if is_unknown else Amount(use.memory / 3600, use.unsized > 0)


PERSON: Final[Mapping[str, Field[Person]]] = table(
    (
        PROCESS["user"].of(lambda one: "" if one.uid is None else one.name),
        Field(
            "gpus",
            "GPUs",
            lambda one: cards if len(cards := ranges(one.gpus)) <= 10 else f"{len(one.gpus)} GPUs",
            words="number of GPUs",
            rank=lambda one: len(one.gpus),
            right=False,
        ),
        PROCESS["memory"].of(lambda one: Amount(one.memory, one.at_least) if one.memory or not one.at_least else None),
        Field(
            "part",
            "mem %",
            lambda one: amount(one.share, at_least=one.at_least),
            words="part of all GPU memory",
            own_format=_PARTS,
        ),
        Field(
            "declared",
            "declared",
            lambda one: ("" if one.unread else NONE) if one.declared is None else Amount(one.declared, one.unread),
            Unit.BYTES,
            rank=lambda one: one.declared,
        ),
        PROCESS["sm"].of(lambda one: amount(one.sm, at_least=one.sm_at_least)),
        Field("use", "GiB·h", _use, Unit.BYTES, words="memory × time"),
        Field(
            "waste",
            "idle %",
            lambda one: amount(one.waste, at_least=one.waste_at_least),
            words="idle part",
            own_format=_PARTS,
        ),
        PROCESS["idle"].of(
            _longest_idle,
            key="longest",
            title="idle for",
            words="longest idle",
            rank=lambda one: one.longest.idle.seconds if one.longest else None,
        ),
        Field("processes", "procs", lambda one: Amount(one.processes), words="processes"),
    )
)
"""Columns of the list of people."""


def stable_order() -> StableOrder[Person]:
    """Return a stable order of people; ties are in the order of uids."""
    return StableOrder(PERSON, lambda one: one.uid, lambda one: (one.uid is None, one.uid or 0))


# ---------------------------------------------------------------------------------------------------------------
# Words


def totals(found: Sequence[Person], snapshot: Snapshot) -> tuple[str, ...]:
    """Return wordings of the totals, the longest first: `9 people · 44 processes · 402 of 632 GiB held, 96 idle`."""
    visible = sum(one.uid is not None for one in found)
    unseen = any(one.uid is None for one in found)
    persons = f"{'at least ' * unseen}{_count(max(visible, unseen), 'person', 'people')}"
    processes = sum(one.processes for one in found)
    held = f"{'at least ' * any(one.at_least for one in found)}{_whole_gib(sum(one.memory for one in found))}"
    total = _total(snapshot.gpus)
    of = f" of {_whole_gib(total)}" if total is not None else ""
    idle = sum(one.idle for one in found)
    memory = f"{held}{of} GiB held" + (f", {_whole_gib(idle)} idle" if idle else "")
    return (
        " · ".join([persons, _count(processes, "process", "processes"), memory]),
        " · ".join([persons, memory]),
        memory,
        f"{held}{of} GiB held",
    )


def story(one: Person, taken: float, watched: float) -> list[str]:
    """Return up to three sentences, without full stops, about what one person holds, used and left idle.

    `taken` is the snapshot's wall-clock time, `watched` the seconds since gpuwatch started: about the time before, the
    sentences give only the age of the processes.
    """
    return [sentence for sentence in (_holds(one, taken), _used(one, watched), _idles(one)) if sentence]


def _holds(one: Person, taken: float) -> str:
    who = "an unknown owner holds" if one.uid is None else "you hold" if one.viewer else f"{one.name} holds"
    cards = f"GPU {ranges(one.gpus)}" if len(one.gpus) == 1 else f"GPUs {ranges(one.gpus)}"
    size = f"{gib(one.memory)} GiB" if one.memory or not one.at_least else "memory"
    least = "at least " * (one.at_least and one.memory > 0)
    age = long_duration(taken - one.oldest) if one.oldest is not None else ""
    if one.processes == 1:
        by = "one process" + (f" that is {age} old" if age else "")
    else:
        by = f"{one.processes} processes" + (f", the oldest {age} old" if age else "")
    promise = f", declared {'at least ' * one.unread}{gib(one.declared)}" if one.declared is not None else ""
    return f"{who} {least}{size} on {cards}{promise}, by {by}"


def _used(one: Person, watched: float) -> str:
    """Return what a person used since gpuwatch started; time on two GPUs counts twice."""
    use = one.use
    if use.held <= 0:
        return ""
    whole, used = long_duration(use.held), long_duration(use.busy)
    held = f"in the last {long_duration(watched)}: {whole} of GPU time"
    if use.unknown >= use.held:
        return f"{held}; whether it was used is not known"
    busy = "none of it used" if use.busy <= 0 else "all of it used" if used == whole else f"{used} of it used"
    doubt = f" (not known for {long_duration(use.unknown)})" if one.waste_at_least else ""
    if not one.waste:
        return f"{held}, {busy}{doubt}"
    least = "at least " * one.waste_at_least
    memory = f"{least}{percent(one.waste, 100)} % of the memory ({gib(use.memory / 3600)} GiB·h) was idle"
    return f"{held}, {busy}{doubt}; {memory}"


def _idles(one: Person) -> str:
    if one.longest is None or one.longest.idle.seconds < QUIET_S:
        return ""
    idle, gpu, pid, memory = one.longest
    least = "at least " * idle.at_least
    return f"now idle for {least}{long_duration(idle.seconds)}: PID {pid} on GPU {gpu} with {gib(memory)} GiB"


def _whole_gib(size: float) -> str:
    return gib(size) if size < 10 * GIB else f"{size / GIB:.0f}"


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
