"""What a tree is made of: runs, ranks, workers and groups, each with what it takes together with all below it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch.analysis.rows import Row, RowKey
from gpuwatch.history import Idle
from gpuwatch.model import Process, Reading, Unlisted, known
from gpuwatch.surroundings import Job

NodeKey: TypeAlias = tuple[str, int, str]
"""What identifies a node for good: (`run`, uid, key of the run), (`process`, pid, start) or (`group`, 0, title)."""

ORPHAN_HOLDERS: Final = "orphan holders"
ASKERS: Final = "only ask the driver"


class Kind(StrEnum):
    """What a node stands for."""

    RUN = "run"
    """Several processes of one run; it has no process of its own."""
    RANK = "rank"
    """A process that is nobody's helper: a rank, or all there is of its run."""
    WORKER = "worker"
    GROUP = "group"
    """What belongs to no run, gathered under a title."""


class Flag(StrEnum):
    """What is wrong with a process; the value is the word on screen. The worst stands first."""

    GONE = "gone"
    """NVML lists it and there is no such process."""
    ZOMBIE = "zombie"
    ORPHAN = "orphan holder"
    """It has device files open, NVML does not list it, and who it worked for has ended."""
    ORPHANED = "orphaned"
    """It belongs to something that has ended."""
    STOPPED = "stopped"


class Sum(NamedTuple):
    """A sum of figures of which some may be missing: those count as nothing, and it says so."""

    value: float | None = None
    """None where there is no figure at all."""
    missing: bool = False

    @property
    def at_least(self) -> bool:
        """Whether the true sum may be greater."""
        return self.missing and self.value is not None


class OnGpu(NamedTuple):
    """What is held on one GPU."""

    gpu: int
    """NVML's index."""
    key: str
    memory: Sum
    """Bytes."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a process, or several, take together."""

    memory: Sum = Sum()
    """Bytes on all GPUs. What NVML does not list adds nothing and leaves no doubt: no memory is attributed to it."""
    sm: Sum = Sum()
    """Percent, added up over GPUs: two that are fully busy are 200."""
    gpus: tuple[OnGpu, ...] = ()
    """Those with memory held, by index."""
    opened: tuple[int, ...] = ()
    """Indices of GPUs whose device files are open by those that NVML does not list."""
    processes: int = 1
    holders: int = 0
    """How many of these NVML does not list."""
    ranks: tuple[int, ...] = ()
    """Ranks that are here."""
    flags: tuple[tuple[Flag, int], ...] = ()
    """What is wrong, with how many processes, the worst first."""
    idle: Idle | None = None
    """The shortest of the parts'; None where nothing says so of one that may be busy."""
    started: float | None = None
    """Wall-clock start of the oldest."""


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """A run, a process of it, or a group; with all that stands below it."""

    key: NodeKey
    kind: Kind
    title: str = ""
    """Of a run or a group; empty where it has a process."""
    totals: Totals
    """Of the node with all that is below it."""
    own: Totals | None = None
    """Of its process alone; None where it has none."""
    children: tuple[Node, ...] = ()
    process: Process | None = None
    rows: tuple[Row, ...] = ()
    """The holdings of its process, by GPU."""
    unlisted: Unlisted | None = None
    uid: int | None = None
    user: str = ""
    """Empty where several people have a part in it, `?` where the owner is hidden."""
    mine: bool = False
    job: Job | None = None
    """Of its process, or of the first rank."""
    absent: tuple[int, ...] = ()
    """Ranks that belong to this host, by the local ranks of the others, and are not here."""

    @property
    def name(self) -> str:
        """A run's name, a process's command line without the folder of its program, or a group's title."""
        if self.process is None:
            return self.title
        return self.rows[0].brief if self.rows else brief(self.process)

    @property
    def where(self) -> str:
        """What it runs in, as the column `in` has it; empty where that is not known, or differs below it."""
        if self.process is None:
            return common(child.where for child in self.children)
        return self.process.surroundings.where if self.process.surroundings else ""

    @property
    def server(self) -> str:
        """Why it is taken for a server; empty for none, or where that differs below it."""
        if self.process is None:
            return common(child.server for child in self.children)
        return self.process.surroundings.server if self.process.surroundings else ""

    @property
    def flags(self) -> tuple[Flag, ...]:
        """What is wrong with its own process."""
        return tuple(flag for flag, _ in self.own.flags) if self.own else ()

    @property
    def target(self) -> Node | None:
        """The first process of it: its own, or the first listed one below it."""
        if self.process is not None:
            return self
        found = [child.target for child in self.children]
        return next((one for one in found if one and one.rows), found[0] if found else None)

    @property
    def row_key(self) -> RowKey | None:
        """Identity of its process as the process list has it; of an unlisted one with the first GPU it has open."""
        if self.rows:
            return self.rows[0].key
        if self.process is None:
            return None
        opened = self.unlisted.gpus if self.unlisted else ()
        return (opened[0] if opened else "", *self.process.key)


def brief(process: Process) -> str:
    """Give a command line without the folder of its program, as the process list has it."""
    program, space, rest = (process.command or f"[{process.name}]").partition(" ")
    return (program.rpartition("/")[2] if program.startswith("/") else program) + space + rest


def common(words: Iterable[str]) -> str:
    """Give what all say; empty where they differ."""
    found = set(words)
    return found.pop() if len(found) == 1 else ""


def sum_of(readings: Sequence[Reading]) -> Sum:
    """Add up readings."""
    numbers = [one for one in readings if known(one)]
    return Sum(sum(numbers) if numbers else None, len(numbers) < len(readings))


def add(sums: Iterable[Sum]) -> Sum:
    """Add up sums."""
    value: float | None = None
    missing = False
    for one in sums:
        if one.value is not None:
            value = one.value if value is None else value + one.value
        missing = missing or one.missing
    return Sum(value, missing)


def shortest(idles: Sequence[Idle | None]) -> Idle | None:
    """Give the idleness of all together: one that is surely busy settles it, else one that is not known leaves it."""
    found = [idle for idle in idles if idle is not None]
    if not found or (len(found) < len(idles) and all(idle.seconds > 0 for idle in found)):
        return None
    return min(found)


def put(on: dict[str, OnGpu], held: OnGpu) -> None:
    """Add what is held on a GPU to what is known of that GPU already."""
    before = on.get(held.key)
    on[held.key] = held._replace(memory=add([before.memory, held.memory])) if before else held


def total(parts: Sequence[Totals]) -> Totals:
    """Give what several take together; there is at least one."""
    if len(parts) == 1:
        return parts[0]
    on: dict[str, OnGpu] = {}
    flags: Counter[Flag] = Counter()
    for part in parts:
        for held in part.gpus:
            put(on, held)
        for flag, count in part.flags:
            flags[flag] += count
    return Totals(
        memory=add(part.memory for part in parts),
        sm=add(part.sm for part in parts),
        gpus=tuple(sorted(on.values())),
        opened=tuple(sorted({index for part in parts for index in part.opened})),
        processes=sum(part.processes for part in parts),
        holders=sum(part.holders for part in parts),
        ranks=tuple(sorted({rank for part in parts for rank in part.ranks})),
        flags=tuple((flag, flags[flag]) for flag in Flag if flags[flag]),
        idle=shortest([part.idle for part in parts if part.gpus]),
        started=min((part.started for part in parts if part.started is not None), default=None),
    )
