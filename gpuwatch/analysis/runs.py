"""Runs: the processes of the GPUs as a tree of runs, ranks and workers, with sums at each level. Pure functions.

A run is what one start set going (`Surroundings.job`); a process of which that is not known is a run of its own. What
runs alone is one node, not two. Processes that have GPU device files open and that NVML does not list stand below the
process that they work for, and in groups of their own at the end where there is none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch.analysis.rows import Row, RowKey, rows
from gpuwatch.history import HistoryView, Idle
from gpuwatch.model import Gpu, Health, Job, Presence, Process, Reading, Snapshot, Unlisted, known
from gpuwatch.units import gib, ranges

NodeKey: TypeAlias = tuple[str, int, str]
"""What identifies a node for good: (`run`, uid, key of the run), (`process`, pid, start) or (`group`, 0, title)."""

LEFTOVER_WORKERS: Final = "orphan holders"
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

    ENDED = "gone"
    """NVML lists it and there is no such process."""
    ZOMBIE = "zombie"
    LEFTOVER_WORKER = "orphan holder"
    """It has device files open, NVML does not list it, and who it worked for has ended."""
    LEFTOVER = "orphaned"
    """It belongs to something that has ended."""
    STOPPED = "stopped"


class PartialSum(NamedTuple):
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
    memory: PartialSum
    """Bytes."""


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What a process, or several, take together."""

    memory: PartialSum = PartialSum()
    """Bytes on all GPUs. What NVML does not list adds nothing and leaves no doubt: no memory is attributed to it."""
    sm: PartialSum = PartialSum()
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
    """Return a command line without the folder of its program, as the process list has it."""
    program, space, rest = (process.command or f"[{process.name}]").partition(" ")
    return (program.rpartition("/")[2] if program.startswith("/") else program) + space + rest


def common(words: Iterable[str]) -> str:
    """Return what all say; empty where they differ."""
    found = set(words)
    return found.pop() if len(found) == 1 else ""


def sum_of(readings: Sequence[Reading]) -> PartialSum:
    """Add up readings."""
    numbers = [one for one in readings if known(one)]
    return PartialSum(sum(numbers) if numbers else None, len(numbers) < len(readings))


def add(sums: Iterable[PartialSum]) -> PartialSum:
    """Add up sums."""
    value: float | None = None
    missing = False
    for one in sums:
        if one.value is not None:
            value = one.value if value is None else value + one.value
        missing = missing or one.missing
    return PartialSum(value, missing)


def shortest(idles: Sequence[Idle | None]) -> Idle | None:
    """Return the idleness of all together: one that is surely busy settles it, else one that is not known leaves it."""
    found = [idle for idle in idles if idle is not None]
    if not found or (len(found) < len(idles) and all(idle.seconds > 0 for idle in found)):
        return None
    return min(found)


def put(on: dict[str, OnGpu], held: OnGpu) -> None:
    """Add what is held on a GPU to what is known of that GPU already."""
    before = on.get(held.key)
    on[held.key] = held._replace(memory=add([before.memory, held.memory])) if before else held


def total(parts: Sequence[Totals]) -> Totals:
    """Return what several take together; there is at least one."""
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


DEEPEST: Final = 8
"""Levels below a run; workers of workers beyond it stand side by side on the last one."""


class Member:
    """One process, while it is given its place."""

    __slots__ = ("job", "mine", "parent", "pid", "process", "rows", "start", "totals", "uid", "unlisted", "workers")

    def __init__(self, process: Process, held: tuple[Row, ...], unlisted: Unlisted | None, viewer: int) -> None:
        self.process = process
        self.pid = process.pid
        self.mine = process.uid is not None and process.uid == viewer
        self.rows = held
        self.unlisted = unlisted
        self.start = held[0].holding.start if held else process.start
        self.uid = process.uid
        self.job = process.surroundings.job if process.surroundings else None
        self.parent: Member | None = None
        self.workers: list[Member] = []
        self.totals = Totals()

    @property
    def helper(self) -> bool:
        """Whether it is no rank, as far as that is known."""
        return self.job.worker_of is not None if self.job else self.unlisted is not None

    @property
    def orphan(self) -> bool:
        """Whether it holds device files on for somebody who has ended. A service has no parent by its nature."""
        one = self.unlisted
        if one is None or not one.context or self.parent is not None:
            return False
        around = self.process.surroundings
        if around and (around.unit or around.server):
            return False
        return self.process.adopted or (self.job is not None and self.job.orphaned)


def members_of(snapshot: Snapshot, history: HistoryView | None, *, mine: bool) -> list[Member]:
    """Return every process that has memory on a GPU or its device file open, each once; with `mine` the viewer's."""
    held: dict[tuple[int, int], list[Row]] = {}
    for row in rows(snapshot):
        held.setdefault((row.holding.pid, row.holding.start), []).append(row)
    members = [Member(listed[0].process, tuple(listed), None, snapshot.viewer) for listed in held.values()]
    indices = {gpu.key: gpu.index for gpu in snapshot.gpus}
    seen = {pid for pid, _ in held}
    for one in snapshot.unlisted:
        if one.process.pid not in seen:  # else NVML has come to list it since the search
            seen.add(one.process.pid)
            members.append(Member(one.process, (), one, snapshot.viewer))
    if mine:
        members = [one for one in members if one.mine]
    for member in members:
        member.totals = _own(member, history, indices)
    return members


def _own(member: Member, history: HistoryView | None, indices: dict[str, int]) -> Totals:
    """Return what one process takes; what is wrong with it depends on its place, and is added there."""
    started, held = member.process.started, member.rows
    job = member.job
    ranks = (job.rank,) if job is not None and job.rank is not None and job.worker_of is None else ()
    if len(held) == 1:  # nearly all: this is most of what a tree costs
        row = held[0]
        size, sm = row.holding.memory, row.holding.sm
        memory = PartialSum(size) if known(size) else PartialSum(None, True)
        return Totals(
            memory=memory,
            sm=PartialSum(sm) if known(sm) else PartialSum(None, True),
            gpus=(OnGpu(row.gpu.index, row.gpu.key, memory),),
            ranks=ranks,
            idle=history.idle(*row.key) if history else None,
            started=started,
        )
    if member.unlisted:
        opened = sorted(indices[key] for key in member.unlisted.gpus if key in indices)
        return Totals(opened=tuple(opened), holders=1, ranks=ranks, started=started)
    on: dict[str, OnGpu] = {}
    for row in held:
        put(on, OnGpu(row.gpu.index, row.gpu.key, sum_of([row.holding.memory])))
    return Totals(
        memory=sum_of([row.holding.memory for row in held]),
        sm=sum_of([row.holding.sm for row in held]),
        gpus=tuple(sorted(on.values())),
        ranks=ranks,
        idle=shortest([history.idle(*row.key) for row in held]) if history else None,
        started=started,
    )


def run_keys(members: Sequence[Member]) -> list[NodeKey]:
    """Return each process its run: by its job; an unlisted one of unknown job goes where its parent is."""
    by_pid = {member.pid: member for member in members}
    return [_run_key(_source(member, by_pid)) for member in members]


def _source(member: Member, by_pid: dict[int, Member]) -> Member:
    """Return the process that decides which run `member` belongs to."""
    source = member
    for _ in range(DEEPEST):
        if source.job is not None or source.unlisted is None:
            break
        parent = by_pid.get(source.process.ppid or 0)
        if parent is None or parent is member or parent.uid != member.uid or not _elder(parent, source):
            break
        source = parent
    return source


def _run_key(member: Member) -> NodeKey:
    key = member.job.key if member.job else f"{member.pid}:{member.start}"
    return ("run", -1 if member.uid is None else member.uid, key)


def _elder(one: Member, other: Member) -> bool:
    """Return whether `one` may have started `other`: a PID may be somebody else's by now."""
    return not one.start or not other.start or one.start <= other.start


def hang(together: Sequence[Member]) -> None:
    """Return the workers of a run to those that they work for; who that is not known of stays below the run."""
    by_pid = {member.pid: member for member in together}
    for member in together:
        if member.helper:
            member.parent = _employer(member, by_pid)
    for member in sorted(together, key=lambda one: (one.pid, one.start)):
        # Who works for himself, by what he says, works for the run. One link of each ring is cut.
        up, passed = member.parent, {member.pid}
        while up is not None and up.pid not in passed:
            passed.add(up.pid)
            up = up.parent
        if up is member:
            member.parent = None
    for member in sorted(together, key=_level):
        boss = member.parent
        if boss is not None:
            if _level(member) >= DEEPEST:
                boss = member.parent = boss.parent or boss
            boss.workers.append(member)


def _employer(member: Member, by_pid: dict[int, Member]) -> Member | None:
    for pid in (member.job.worker_of if member.job else None, member.process.ppid):
        found = by_pid.get(pid) if pid is not None else None
        if found is not None and found is not member and _elder(found, member):
            return found
    return None


def _level(member: Member) -> int:
    level, up = 0, member.parent
    while up is not None:
        level, up = level + 1, up.parent
    return level


def flags_of(member: Member) -> list[Flag]:
    """Return what is wrong with a process, the worst first."""
    state = member.process.state
    found = [Flag.ENDED] * (member.process.presence is Presence.GONE) + [Flag.ZOMBIE] * (state in ("zombie", "dead"))
    if member.orphan:
        found.append(Flag.LEFTOVER_WORKER)
    elif member.job is not None and member.job.orphaned:
        found.append(Flag.LEFTOVER)
    return found + [Flag.STOPPED] * (state == "stopped")


def _lowest_gpu(node: Node) -> float:
    totals = node.totals
    return min((held.gpu for held in totals.gpus), default=min(totals.opened, default=1 << 20))


def _group_order(node: Node) -> int:
    """Put groups after runs, in their own order."""
    return 0 if node.kind is not Kind.GROUP else 1 + (node.title != LEFTOVER_WORKERS)


SORTS: Final[dict[str, str]] = {"name": "name", "user": "user", "gpu": "GPU", "memory": "memory", "sm": "SM %"}
"""What runs are sorted by: id → words. Numbers sort the greatest first, GPUs and text from the start."""


class Order:
    """Sorts the runs again and again so that a figure that only jitters moves nothing; groups stay last.

    As in the process list, a run stays where it is until its figure has moved by more than a twentieth.
    """

    TOLERANCE: Final = 0.05

    def __init__(self) -> None:
        self._by = ""
        self._held: dict[NodeKey, float] = {}

    def sort(self, nodes: Iterable[Node], by: str) -> list[Node]:
        """Sort by one of `SORTS`; runs without a value come last, ties stay by GPU and key."""
        before = self._held if by == self._by else {}
        self._by, self._held = by, {}

        def value(node: Node) -> tuple[bool, float | str]:
            if by == "name":
                return False, node.name.casefold()
            if by == "user":
                return not node.user, node.user.casefold()
            if by == "gpu":
                return False, _lowest_gpu(node)
            figure = (node.totals.sm if by == "sm" else node.totals.memory).value
            if figure is None:
                return True, 0.0
            held = before.get(node.key, figure)
            self._held[node.key] = figure if abs(figure - held) > self.TOLERANCE * abs(held) else held
            return False, -self._held[node.key]

        keyed = [(_group_order(node), *value(node), _lowest_gpu(node), node.key, node) for node in nodes]
        keyed.sort(key=lambda one: one[:-1])
        return [node for *_, node in keyed]


_MANY = {Flag.ZOMBIE: "zombies", Flag.LEFTOVER_WORKER: "orphan holders"}
"""Words that are others where there are several; `2 stopped` needs no other."""

_GROUPS = {
    LEFTOVER_WORKERS: (
        "what they worked for has ended, and they still have GPU device files open",
        "the driver does not list them: what they hold is not known",
    ),
    ASKERS: ("they have GPU device files open and run no CUDA: monitors, exporters and the like",),
}


def role_label(node: Node, *, top: bool) -> str:
    """Return what stands before a process's command: `rank 3`, `worker`; empty for what needs no word.

    `top` is a node that stands below none.
    """
    if node.process is None:
        return ""
    rank = node.job.rank if node.job else None
    words = f"rank {rank}" if rank is not None and node.kind is Kind.RANK else ""
    if top and words and not (node.job and node.job.world and node.job.world > 1):
        words = ""  # it is all there is
    if node.kind is Kind.WORKER:
        words = "worker"
    elif not words and node.job and node.job.launcher and node.job.head == node.process.pid and not top:
        words = "launcher"
    if Flag.LEFTOVER_WORKER in node.flags:
        return ""  # that is said already
    if node.unlisted is None or not node.unlisted.context:
        return words
    return f"{words}, holds device files" if words else "holds device files"


def flag_words(node: Node) -> str:
    """Say in a word or two what is wrong with a node or what is below it, the worst first; empty when all is well."""
    found = [
        flag.value for flag in node.flags if flag is not Flag.ENDED
    ]  # who is gone has no command: it says so there
    for flag, count in node.totals.flags:
        below = count - (flag in node.flags)
        if not below or (node.kind is Kind.GROUP and flag is Flag.LEFTOVER_WORKER):
            continue  # its title says so
        many = "all" if count == node.totals.processes else str(below)
        of_workers = node.process is not None and flag is not Flag.LEFTOVER_WORKER
        found.append(
            f"{many} worker{'s' * (below > 1)} {flag.value}" if of_workers else f"{many} {_counted(flag, below)}"
        )
    if node.absent:
        found.append(f"no rank {ranges(node.absent)}")
    return ", ".join(found)


def count_flags(nodes: Iterable[Node]) -> str:
    """Count what is wrong in all of a tree, the worst first: `1 gone, 2 orphan holders`; empty when all is well."""
    counts: Counter[Flag] = Counter()
    for node in nodes:
        counts.update(dict(node.totals.flags))
    return ", ".join(f"{counts[flag]} {_counted(flag, counts[flag])}" for flag in Flag if counts[flag])


def _counted(flag: Flag, count: int) -> str:
    return flag.value if count == 1 else _MANY.get(flag, flag.value)


def size_words(node: Node) -> str:
    """Return the ranks that are here, `7/8 ranks`, or how many processes there are; empty for one process alone."""
    totals, world = node.totals, node.job.world if node.job else None
    if node.kind is Kind.RUN and totals.ranks:
        count = len(totals.ranks)
        if world and world != count:
            return f"{count}/{world} ranks"
        return f"{count} rank{'s' * (count != 1)}"
    return f"{totals.processes} procs" if totals.processes > 1 else ""


def describe(node: Node) -> str:
    """Tell all of a node in one line: `torchrun · ranks 0-7 of 8 on GPUs 0-7 · 4 workers hold device files · …`."""
    if node.kind is Kind.GROUP:
        said = [f"{node.totals.processes} processes", *_GROUPS.get(node.title, ())]
    elif node.process is None:
        said = [*_run_words(node), _place_words(node), _by_gpu(node)]
    else:
        said = [*_process_words(node), _place_words(node), _by_gpu(node), node.name]
    return " · ".join(word for word in said if word)


def _run_words(node: Node) -> list[str]:
    totals, job = node.totals, node.job
    found = [job.launcher] if job and job.launcher else []
    if totals.ranks:
        many = len(totals.ranks) > 1
        members = f"rank{'s' * many} {ranges(totals.ranks)}" + (f" of {job.world}" if job and job.world else "")
    else:
        members = f"{totals.processes} processes"
    found.append(f"{members}{_on_gpus(node)}")
    if node.absent:
        many = len(node.absent) > 1
        found.append(f"rank{'s' * many} {ranges(node.absent)} {'are' if many else 'is'} on none of these GPUs")
    return [*found, *_helpers(node)]


def _process_words(node: Node) -> list[str]:
    process, job = node.process, node.job
    if process is None:
        return []
    found = [f"PID {process.pid}"]
    if job and job.rank is not None and node.kind is Kind.RANK:
        found[0] += f", rank {job.rank}" + (f" of {job.world}" if job.world else "")
    elif job and job.worker_of is not None:
        found[0] += f", worker of {job.worker_of}"
    found[0] += _on_gpus(node)
    if job and job.launcher:
        found.append(job.launcher)
    if node.unlisted is not None:
        opened = ranges(node.own.opened) if node.own else ""
        files = f"the device file of GPU {opened}" if opened.isdigit() else f"device files of GPUs {opened}"
        found.append(f"has {files if opened else 'GPU device files'} open, and the driver does not list it")
    if process.presence is Presence.GONE:
        found.append("no such process, and its memory is still held")
    if job and job.orphaned:
        found.append("what it belongs to has ended")
    elif process.adopted and Flag.LEFTOVER_WORKER in node.flags:
        found.append("the process that started it has ended")
    found += [f"it is {flag.value}" for flag in node.flags if flag in (Flag.STOPPED, Flag.ZOMBIE)]
    own, every = (node.own or node.totals).memory, node.totals.memory
    if node.children and own.value is not None and every.value != own.value:
        found.append(
            f"{_size(own.value, own.at_least)} itself, {_size(every.value or 0.0, every.at_least)} with its workers"
        )
    return [*found, *_helpers(node)]


def _helpers(node: Node) -> list[str]:
    """Count those below it that only hold device files."""
    orphans = dict(node.totals.flags).get(Flag.LEFTOVER_WORKER, 0)
    own = node.unlisted is not None
    workers = node.totals.holders - orphans - (own and Flag.LEFTOVER_WORKER not in node.flags)
    orphans -= own and Flag.LEFTOVER_WORKER in node.flags
    found = [f"{workers} worker{'s hold' if workers > 1 else ' holds'} device files"] if workers > 0 else []
    return found + [f"{orphans} orphan holder{'s' * (orphans > 1)}"] * (orphans > 0)


def _on_gpus(node: Node) -> str:
    gpus = ranges(held.gpu for held in node.totals.gpus)
    return f" on GPU{'s' * (not gpus.isdigit())} {gpus}" if gpus else ""


def _place_words(node: Node) -> str:
    where, server = node.where, node.server
    place = f"over {where}" if where.startswith("ssh ") else f"in {where}" if where else ""
    waits = f"a server: {server}" if server else ""
    return " · ".join(word for word in (place, waits) if word)


def _by_gpu(node: Node) -> str:
    """Return what is held on each of several GPUs."""
    held = node.totals.gpus
    if len(held) < 2:
        return ""
    sizes = ["—" if one.memory.value is None else gib(one.memory.value) for one in held]
    return "GiB: " + ", ".join(f"{size} on {one.gpu}" for size, one in zip(sizes, held, strict=True))


def _size(value: float, at_least: bool) -> str:
    return f"{'≥' if at_least else ''}{gib(value)} GiB"


MOST_RANKS: Final = 4096
"""Local rank beyond which what a process says of itself is not believed."""


def build_tree(snapshot: Snapshot, history: HistoryView | None = None, *, mine: bool = False) -> list[Node]:
    """Return the runs, each with its ranks and workers, in the order of their keys, and the groups after them.

    Every process is in it once. `mine` leaves out what is not the viewer's.
    """
    members = members_of(snapshot, history, mine=mine)
    runs: dict[NodeKey, list[Member]] = {}
    for member, key in zip(members, run_keys(members), strict=True):
        runs.setdefault(key, []).append(member)
    whole = _complete(snapshot.gpus)
    nodes: list[Node] = []
    groups: dict[str, list[Node]] = {LEFTOVER_WORKERS: [], ASKERS: []}
    for key, together in sorted(runs.items()):
        hang(together)
        node = _run(key, together, whole=whole)
        lonely = not node.totals.gpus
        if lonely and all(member.orphan for member in together if member.parent is None):
            groups[LEFTOVER_WORKERS].append(node)
        elif lonely and not any(member.unlisted and member.unlisted.context for member in together):
            groups[ASKERS].append(node)
        else:
            nodes.append(node)
    return nodes + [_group(title, found) for title, found in groups.items() if found]


def _run(key: NodeKey, together: Sequence[Member], *, whole: bool) -> Node:
    """Return the node of a run: of its only process, where nothing else stands beside that."""
    tops = [_process(member) for member in sorted((one for one in together if one.parent is None), key=_place)]
    if len(tops) == 1:
        return msgspec.structs.replace(tops[0], key=key)
    first = tops[0]
    job = first.job
    jobs = [one.job for one in together if one.job and not one.helper]
    return Node(
        key=key,
        kind=Kind.RUN,
        title=(job.name if job else "") or first.name,
        totals=total([top.totals for top in tops]),
        children=tuple(tops),
        uid=first.uid,
        user=first.user,
        mine=first.mine,
        job=job,
        absent=_absent(jobs) if whole else (),
    )


def _place(member: Member) -> tuple[bool, bool, int, int, int]:
    """Sort ranks by number, GPU and PID, workers without a rank after them, and what NVML does not list last."""
    rank = member.job.rank if member.job else None
    gpu = member.totals.gpus[0].gpu if member.totals.gpus else 0
    return (member.unlisted is not None, member.helper, -1 if rank is None else rank, gpu, member.pid)


def _process(member: Member) -> Node:
    process = member.process
    own = member.totals
    flags = flags_of(member)
    if flags:
        own = msgspec.structs.replace(own, flags=tuple((flag, 1) for flag in flags))
    workers: tuple[Node, ...] = ()
    if member.workers:
        workers = tuple(_process(one) for one in sorted(member.workers, key=_place))
    return Node(
        key=("process", member.pid, str(member.start)),
        kind=Kind.WORKER if member.helper and (member.job or member.parent) else Kind.RANK,
        totals=total([own, *(worker.totals for worker in workers)]) if workers else own,
        own=own,
        children=workers,
        process=process,
        rows=member.rows,
        unlisted=member.unlisted,
        uid=member.uid,
        user=process.user or "?",
        mine=member.mine,
        job=member.job,
    )


def _group(title: str, found: Sequence[Node]) -> Node:
    people = {node.uid for node in found}
    return Node(
        key=("group", 0, title),
        kind=Kind.GROUP,
        title=title,
        totals=total([node.totals for node in found]),
        children=tuple(found),
        uid=found[0].uid if len(people) == 1 else None,
        user=found[0].user if len(people) == 1 else "",
        mine=all(node.mine for node in found),
    )


def _complete(gpus: Sequence[Gpu]) -> bool:
    """Return whether who is not listed is not there: every GPU is watched, is well, and its list can be trusted."""
    whole = [gpu.index for gpu in gpus] == list(range(len(gpus)))
    return whole and all(gpu.health is Health.OK and not gpu.holdings_note for gpu in gpus)


def _absent(jobs: Sequence[Job]) -> tuple[int, ...]:
    """Return the ranks between those that are here; only where ranks on this host follow one another.

    Launchers count local ranks from 0 without a gap (torchrun: rank = node rank × ranks a node + local rank). How many
    there are to be on this host, none of them tells, so that those after the last one are not missed.
    """
    here = {(one.rank, one.local_rank) for one in jobs if one.rank is not None and one.local_rank is not None}
    offsets = {rank - local for rank, local in here}
    most = max((local for _, local in here), default=0)
    if len(offsets) != 1 or not 0 <= most <= MOST_RANKS or not all(one.world for one in jobs):
        return ()
    first = offsets.pop()
    return tuple(first + local for local in range(most) if (first + local, local) not in here)
