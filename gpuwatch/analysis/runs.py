"""Runs: the processes of the GPUs as a tree of runs, ranks and workers, with sums at each level. Pure functions.

A run is all that one launch started (`ProcessContext.run`); a process whose run is not known is a run of its own. A run
of one process is one node, not two. Processes that have GPU device files open and that NVML does not list stand below
the process that they work for, or in a group of their own at the end.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch.analysis.rows import StableOrder
from gpuwatch.base.units import gib, ranges
from gpuwatch.history.history import HistoryView
from gpuwatch.model.fields import PROCESS, Amount, Field, RowKey, amount, brief_command, table
from gpuwatch.model.holdings import GpuProcess, Holdings
from gpuwatch.model.snapshot import (
    Health,
    Idle,
    Presence,
    Process,
    ProcessContext,
    Reason,
    Run,
    Unlisted,
)

NodeKey: TypeAlias = tuple[str, int, str]
"""Identity of a node: (`run`, uid, key of the run), (`process`, pid, start) or (`group`, 0, title)."""

LEFTOVERS: Final = "leftovers"
ASKERS: Final = "only ask the driver"


class NodeKind(StrEnum):
    RUN = "run"
    """Several processes of one run; it has no process of its own."""
    RANK = "rank"
    """A process that works for no other: a rank, or the only one of its run."""
    WORKER = "worker"
    GROUP = "group"
    """Processes of no run, under a title."""


class NodeFlag(StrEnum):
    """Trouble of a process; the first word of the value is the one on screen. The worst is first."""

    ENDED = "ended"
    """NVML lists it with memory, and there is no such process."""
    ZOMBIE = "zombie"
    LEFTOVER_WORKER = "leftover, not listed"
    """It has device files open, NVML does not list it, and the process that it worked for has ended."""
    LEFTOVER = "leftover"
    """Its run has ended."""
    STOPPED = "stopped"

    @property
    def word(self) -> str:
        return self.value.partition(",")[0]


class PartialSum(NamedTuple):
    """Sum of figures; some may be missing."""

    value: float | None = None
    """Sum of the known figures; None where no figure is known."""
    missing: bool = False

    @property
    def at_least(self) -> bool:
        """Whether the true sum may be greater, since a figure is missing."""
        return self.missing and self.value is not None


class NodeTotals(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """Sums over one or several processes."""

    held: tuple[GpuProcess, ...] = ()
    """What they hold on each GPU. A process that NVML does not list holds nothing that is known."""
    opened: tuple[int, ...] = ()
    """Indices of GPUs whose device files are open by processes that NVML does not list."""
    processes: int = 1
    holders: int = 0
    """Number of processes that NVML does not list."""
    ranks: tuple[int, ...] = ()
    """Ranks of the run on this machine."""
    flags: tuple[tuple[NodeFlag, int], ...] = ()
    """Troubles with the number of processes, the worst first."""
    idle: Idle | None = None
    """Shortest idle time; None where a process may be busy and its idle time is not known."""
    started: float | None = None
    """Wall-clock start of the oldest process."""

    @cached_property
    def by_gpu(self) -> Mapping[int, Sequence[GpuProcess]]:
        """What they hold by NVML's index of the GPU, in its order."""
        parts: defaultdict[int, list[GpuProcess]] = defaultdict(list)
        for part in sorted(self.held, key=lambda part: part.gpu.index):
            parts[part.gpu.index].append(part)
        return parts

    @cached_property
    def memory(self) -> PartialSum:
        """Bytes on all GPUs."""
        return memory_of(self.held)

    @cached_property
    def sm(self) -> PartialSum:
        """Percent, added up over GPUs with at most 100 of each: two that are fully busy are 200."""
        sums = [add(PartialSum(part.sm, not part.sm_complete) for part in parts) for parts in self.by_gpu.values()]
        return add(busy if busy.value is None else busy._replace(value=min(busy.value, 100)) for busy in sums)


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """Node of the tree: a run, a process or a group, with the nodes below it."""

    key: NodeKey
    kind: NodeKind
    title: str = ""
    """Title of a run or a group; empty for a process."""
    totals: NodeTotals
    """Sums of the node and all below it."""
    own: NodeTotals | None = None
    """Sums of only the node's own process; None for a node without a process."""
    children: tuple[Node, ...] = ()
    process: Process | None = None
    unlisted: Unlisted | None = None
    uid: int | None = None
    user: str = ""
    """User name; empty where several people have processes below the node, `?` where the owner is not visible."""
    mine: bool = False
    run: Run | None = None
    """Run of the node's process, or of the first rank."""
    absent: tuple[int, ...] = ()
    """Missing ranks of this host, computed from the local ranks of the others."""

    @property
    def name(self) -> str:
        """A run's name, what a process runs, or a group's title."""
        return self.title if self.process is None else brief_command(self.process, below=self.key[0] == "process")

    @property
    def where(self) -> str:
        """Container, job or terminal; empty where that is not known, or differs among the processes below."""
        return self._common(lambda context: context.where)

    @property
    def server(self) -> str:
        """Reason why the process counts as a server; empty for none, or where it differs among the processes below."""
        return self._common(lambda context: context.server)

    def _common(self, words: Callable[[ProcessContext], str]) -> str:
        if self.process is None:
            found = {child._common(words) for child in self.children}
            return found.pop() if len(found) == 1 else ""
        return words(self.process.context) if self.process.context else ""

    @property
    def flags(self) -> tuple[NodeFlag, ...]:
        """Troubles of its own process."""
        return tuple(flag for flag, _ in self.own.flags) if self.own else ()

    @property
    def process_node(self) -> Node | None:
        """The node of its own process, or of the first listed one below it."""
        if self.process is not None:
            return self
        below = [child.process_node for child in self.children]
        return next((node for node in below if node and node.is_listed), below[0] if below else None)

    @property
    def is_listed(self) -> bool:
        """Whether NVML lists its own process on a GPU."""
        return self.own is not None and bool(self.own.held)

    @property
    def row_key(self) -> RowKey | None:
        """Key of its process in the process list; for an unlisted process, with the first GPU that it has open."""
        if self.process is None:
            return None
        if self.own is not None and self.own.held:
            part = self.own.held[0]
            return (part.gpu.key, self.process.pid, part.start)
        opened = self.unlisted.gpus if self.unlisted else ()
        return (opened[0] if opened else "", *self.process.key)


# ---------------------------------------------------------------------------------------------------------------
# Sums


def add(sums: Iterable[PartialSum]) -> PartialSum:
    several = list(sums)
    values = [each.value for each in several if each.value is not None]
    return PartialSum(sum(values) if values else None, any(each.missing for each in several))


def memory_of(held: Iterable[GpuProcess]) -> PartialSum:
    """Return the bytes that processes hold on GPUs."""
    return add(PartialSum(part.memory if part.sized else None, not part.complete) for part in held)


def shortest(idles: Sequence[Idle | None]) -> Idle | None:
    """Return the shortest of several idle times: 0 if a process is busy, None if a process may be busy."""
    known_times = [idle for idle in idles if idle is not None]
    if not known_times or (len(known_times) < len(idles) and all(idle.seconds > 0 for idle in known_times)):
        return None
    return min(known_times)


def total(parts: Sequence[NodeTotals]) -> NodeTotals:
    """Add up the sums of several processes; there is at least one."""
    if len(parts) == 1:
        return parts[0]
    flags: Counter[NodeFlag] = Counter()
    for part in parts:
        for flag, count in part.flags:
            flags[flag] += count
    return NodeTotals(
        held=tuple(chain.from_iterable(part.held for part in parts)),
        opened=tuple(sorted({index for part in parts for index in part.opened})),
        processes=sum(part.processes for part in parts),
        holders=sum(part.holders for part in parts),
        ranks=tuple(sorted({rank for part in parts for rank in part.ranks})),
        flags=tuple((flag, flags[flag]) for flag in NodeFlag if flags[flag]),
        idle=shortest([part.idle for part in parts if part.held]),
        started=min((part.started for part in parts if part.started is not None), default=None),
    )


# ---------------------------------------------------------------------------------------------------------------
# Building the tree

DEEPEST: Final = 8
"""Levels below a run; deeper workers of workers are all placed on the last level."""

_MOST_RANKS: Final = 4096
"""Largest local rank that is accepted from the environment of a process."""


class _Member(msgspec.Struct, eq=False):
    """Process of a run, while the tree is built."""

    process: Process
    held: tuple[GpuProcess, ...]
    unlisted: Unlisted | None
    mine: bool
    parent: _Member | None = None
    workers: list[_Member] = msgspec.field(default_factory=list)
    pid: int = 0
    start: int = 0
    run: Run | None = None

    def __post_init__(self) -> None:
        self.pid = self.process.pid
        self.start = self.held[0].start if self.held else self.process.start
        self.run = self.process.run

    @property
    def is_helper(self) -> bool:
        """Whether it works for another process, as far as that is known."""
        return self.run.worker_of is not None if self.run else self.unlisted is not None

    @property
    def is_leftover_worker(self) -> bool:
        """Whether the process that it held device files for has ended. A service has no parent by its nature."""
        if self.unlisted is None or not self.unlisted.cuda_context or self.parent is not None:
            return False
        context = self.process.context
        if context and (context.unit or context.server):
            return False
        return self.process.adopted or (self.run is not None and self.run.orphaned)

    @property
    def flags(self) -> list[NodeFlag]:
        """Its troubles, the worst first."""
        state, flags = self.process.state, []
        if self.process.presence is Presence.GONE:
            flags.append(NodeFlag.ENDED)
        if state in ("zombie", "dead"):
            flags.append(NodeFlag.ZOMBIE)
        if self.is_leftover_worker:
            flags.append(NodeFlag.LEFTOVER_WORKER)
        elif self.run is not None and self.run.orphaned:
            flags.append(NodeFlag.LEFTOVER)
        return [*flags, NodeFlag.STOPPED] if state == "stopped" else flags

    @property
    def order(self) -> tuple[bool, bool, int, int, int]:
        """Sort key: ranks by number, GPU and PID, then workers without a rank, then processes NVML does not list."""
        rank = self.run.rank if self.run else None
        gpu = self.held[0].gpu.index if self.held else 0
        return (self.unlisted is not None, self.is_helper, -1 if rank is None else rank, gpu, self.pid)

    @property
    def ancestors(self) -> list[_Member]:
        """Members that it works for, the nearest first; each once, even in a cycle."""
        above_by_id: dict[int, _Member] = {}
        above = self.parent
        while above is not None and id(above) not in above_by_id:
            above_by_id[id(above)] = above
            above = above.parent
        return list(above_by_id.values())


def build_tree(holdings: Holdings, history: HistoryView | None = None, *, mine: bool = False) -> list[Node]:
    """Return the runs, each with its ranks and workers, in the order of their keys, and the groups after them.

    Every process is in it once. `mine` leaves out processes of others than the viewer.
    """
    snapshot = holdings.snapshot
    members = _find_members(holdings, mine=mine)
    by_pid = {member.pid: member for member in members}
    runs: defaultdict[NodeKey, list[_Member]] = defaultdict(list)
    for member in members:
        runs[_run_key(member, by_pid)].append(member)
    indices = {gpu.key: gpu.index for gpu in snapshot.gpus}
    # All GPUs are watched and healthy, with complete lists: a process in no list then uses no GPU.
    watched = [gpu.index for gpu in snapshot.gpus] == list(range(len(snapshot.gpus)))
    complete = watched and all(gpu.health is Health.OK and not gpu.holdings_note for gpu in snapshot.gpus)
    nodes: list[Node] = []
    groups: dict[str, list[Node]] = {LEFTOVERS: [], ASKERS: []}
    for key, together in sorted(runs.items()):
        _attach_workers(together)
        tops = [member for member in together if member.parent is None]
        node = _run_node(key, [_process_node(top, history, indices) for top in sorted(tops, key=lambda top: top.order)])
        if complete and node.process is None:
            node = msgspec.structs.replace(node, absent=_absent_ranks(tops))
        group = None
        if not node.totals.held and all(top.is_leftover_worker for top in tops):
            group = LEFTOVERS
        elif not node.totals.held and not any(member.unlisted and member.unlisted.cuda_context for member in together):
            group = ASKERS
        (groups[group] if group else nodes).append(node)
    return nodes + [_joint_node(("group", 0, title), title, parts) for title, parts in groups.items() if parts]


def _find_members(holdings: Holdings, *, mine: bool) -> list[_Member]:
    """Return every process that has memory on a GPU or its device file open, each once."""
    viewer = holdings.snapshot.viewer
    held = holdings.by_process
    members = [_Member(parts[0].process, tuple(parts), None, parts[0].process.uid == viewer) for parts in held.values()]
    seen = {pid for pid, _ in held}
    for unlisted in holdings.snapshot.unlisted:
        process = unlisted.process
        if process.pid not in seen:  # else NVML has come to list it since the search
            seen.add(process.pid)
            members.append(_Member(process, (), unlisted, process.uid == viewer))
    return [member for member in members if member.mine or not mine]


def _run_key(member: _Member, by_pid: dict[int, _Member]) -> NodeKey:
    """Return the key of a process's run; an unlisted process whose run is not known belongs to that of its parent."""
    source = member
    for _ in range(DEEPEST):
        if source.run is not None or source.unlisted is None:
            break
        parent = by_pid.get(source.process.ppid or 0)
        if parent is None or parent is member or parent.process.uid != member.process.uid:
            break
        if not _may_have_started(parent, source):
            break
        source = parent
    uid = source.process.uid
    return ("run", -1 if uid is None else uid, source.process.run_key)


def _may_have_started(parent: _Member, child: _Member) -> bool:
    """Return whether `parent` is old enough to have started `child`: a PID may have been used again."""
    return not parent.start or not child.start or parent.start <= child.start


def _attach_workers(together: Sequence[_Member]) -> None:
    """Attach the workers of a run to the processes that they work for; others stay at the top of the run."""
    by_pid = {member.pid: member for member in together}
    for member in together:
        if member.is_helper:
            above = (by_pid.get(pid or 0) for pid in (member.run and member.run.worker_of, member.process.ppid))
            candidates = (one for one in above if one and one is not member and _may_have_started(one, member))
            member.parent = next(candidates, None)
    for member in sorted(together, key=lambda one: (one.pid, one.start)):
        if member in member.ancestors:  # by what they say, they work for each other: one link of the ring is cut
            member.parent = None
    for member in sorted(together, key=lambda one: len(one.ancestors)):
        employer = member.parent
        if employer is not None:
            if len(member.ancestors) >= DEEPEST:
                employer = member.parent = employer.parent or employer
            employer.workers.append(member)


def _process_node(member: _Member, history: HistoryView | None, indices: dict[str, int]) -> Node:
    process, run = member.process, member.run
    opened = sorted(indices[key] for key in member.unlisted.gpus if key in indices) if member.unlisted else ()
    idles = [history.idle(part.gpu.key, member.pid, part.start) for part in member.held] if history else []
    own = NodeTotals(
        held=member.held,
        opened=tuple(opened),
        holders=int(member.unlisted is not None),
        ranks=(run.rank,) if run is not None and run.rank is not None and run.worker_of is None else (),
        flags=tuple((flag, 1) for flag in member.flags),
        idle=shortest(idles),
        started=process.started,
    )
    workers = [_process_node(one, history, indices) for one in sorted(member.workers, key=lambda one: one.order)]
    return Node(
        key=("process", member.pid, str(member.start)),
        kind=NodeKind.WORKER if member.is_helper and (run or member.parent) else NodeKind.RANK,
        totals=total([own, *(worker.totals for worker in workers)]) if workers else own,
        own=own,
        children=tuple(workers),
        process=process,
        unlisted=member.unlisted,
        uid=process.uid,
        user=process.user or "?",
        mine=member.mine,
        run=run,
    )


def _run_node(key: NodeKey, tops: Sequence[Node]) -> Node:
    """Return the node of a run; if all of a run is below one process, that process's own node."""
    first = tops[0]
    if len(tops) == 1:
        return msgspec.structs.replace(first, key=key)
    return _joint_node(key, (first.run.name if first.run else "") or first.name, tops, first.run)


def _joint_node(key: NodeKey, title: str, nodes: Sequence[Node], run: Run | None = None) -> Node:
    """Return the node of a run or a group, over the nodes of several processes."""
    one_owner = len({node.uid for node in nodes}) == 1
    return Node(
        key=key,
        kind=NodeKind(key[0]),
        title=title,
        totals=total([node.totals for node in nodes]),
        children=tuple(nodes),
        uid=nodes[0].uid if one_owner else None,
        user=nodes[0].user if one_owner else "",
        mine=all(node.mine for node in nodes),
        run=run,
    )


def _absent_ranks(tops: Iterable[_Member]) -> tuple[int, ...]:
    """Return the missing ranks between the present ranks; only where this host has consecutive ranks.

    Launchers count local ranks from 0 without a gap (torchrun: rank = node rank × ranks a node + local rank). No
    launcher gives the number of ranks on this host, so ranks after the last present rank are not found.
    """
    runs = [top.run for top in tops if top.run and not top.is_helper]
    here = {(run.rank, run.local_rank) for run in runs if run.rank is not None and run.local_rank is not None}
    offsets = {rank - local for rank, local in here}
    most = max((local for _, local in here), default=0)
    if len(offsets) != 1 or not 0 <= most <= _MOST_RANKS or not all(run.world for run in runs):
        return ()
    first = offsets.pop()
    return tuple(first + local for local in range(most) if (first + local, local) not in here)


# ---------------------------------------------------------------------------------------------------------------
# Order


def _lowest_gpu(node: Node) -> float:
    totals = node.totals
    return min(totals.by_gpu or totals.opened, default=1 << 20)


def _sum(one: PartialSum) -> Amount | Reason | None:
    return amount(one.value, at_least=one.missing)


def _gpu_words(node: Node) -> str:
    """Format the GPUs with memory held; GPUs that are only open are in brackets."""
    used = [*node.totals.by_gpu]
    indices = used or node.totals.opened
    words = ranges(indices)
    if len(words) > 7:
        words = f"{len(indices)} GPUs"
    return words if used or not words else f"({words})"


NODE: Final[Mapping[str, Field[Node]]] = table(
    (
        Field("name", "run", lambda node: node.name, words="name", ascending=True, right=False),
        PROCESS["user"].of(lambda node: node.user),
        PROCESS["gpu"].of(_gpu_words, title="GPUs", words="GPU", rank=_lowest_gpu),
        PROCESS["memory"].of(lambda node: _sum(node.totals.memory)),
        PROCESS["sm"].of(lambda node: _sum(node.totals.sm)),
        PROCESS["idle"].of(lambda node: Amount(*node.totals.idle) if node.totals.idle else None),
        PROCESS["in"].of(lambda node: node.where),
        PROCESS["pid"].of(lambda node: str(node.process.pid) if node.process is not None else ""),
        Field("parts", "procs/ranks", lambda node: size_words(node)),
    )
)
"""Fields of a node of the tree."""
ORDERS: Final = ("name", "user", "gpu", "memory", "sm")
"""Fields that runs are sorted by."""


def run_order() -> StableOrder[Node]:
    """Return an order of runs that stays when a figure only varies a little; groups stay last."""

    def tie(node: Node) -> tuple[int, float, NodeKey]:
        """Order nodes that are otherwise equal: groups last, in their own order, then by GPU and key."""
        group = 0 if node.kind is not NodeKind.GROUP else 1 + (node.title != LEFTOVERS)
        return group, _lowest_gpu(node), node.key

    return StableOrder(NODE, lambda node: node.key, tie, is_last=lambda node: node.kind is NodeKind.GROUP)


# ---------------------------------------------------------------------------------------------------------------
# Words

_MANY: Final = {"zombie": "zombies", "leftover": "leftovers"}
"""Plurals of flags that differ from the singular; `2 stopped` does not."""

_GROUPS: Final = {
    LEFTOVERS: (
        "their run has ended, and they still have GPU device files open",
        "the driver does not list them: their memory is not known",
    ),
    ASKERS: ("they have GPU device files open and run no CUDA: monitors, exporters and the like",),
}


def _plural(count: int, word: str) -> str:
    return f"{word}s" if count != 1 else word


def _counted(word: str, count: int) -> str:
    return word if count == 1 else _MANY.get(word, word)


def role_label(node: Node, *, top: bool) -> str:
    """Return the words before a process's command: `rank 3`, `worker`; empty for none. `top` nodes are at the top."""
    run, flags = node.run, node.flags
    if node.process is None or NodeFlag.LEFTOVER_WORKER in flags:
        return ""
    words = ""
    if node.kind is NodeKind.WORKER:
        words = "worker"
    elif run and run.rank is not None and (not top or (run.world or 0) > 1):
        words = f"rank {run.rank}"
    elif run and run.launcher and run.head == node.process.pid and not top:
        words = "launcher"
    holds = "holds device files" if node.unlisted is not None and node.unlisted.cuda_context else ""
    return ", ".join(filter(None, (words, holds)))


def flag_words(node: Node) -> str:
    """Return the troubles of a node and of those below it, the worst first; empty when all is well."""
    words = [flag.word for flag in node.flags if flag is not NodeFlag.ENDED]  # the command of an ended one says so
    for flag, count in node.totals.flags:
        below = count - (flag in node.flags)
        if not below or (node.kind is NodeKind.GROUP and flag is NodeFlag.LEFTOVER_WORKER):
            continue  # the title of the group says so
        many = "all" if count == node.totals.processes else str(below)
        if node.process is not None and flag is not NodeFlag.LEFTOVER_WORKER:
            words.append(f"{many} {_plural(below, 'worker')} {flag.word}")
        else:
            words.append(f"{many} {_counted(flag.word, below)}")
    if node.absent:
        words.append(f"no rank {ranges(node.absent)}")
    return ", ".join(words)


def count_flags(nodes: Iterable[Node]) -> str:
    """Return the troubles in all of a tree, the worst first: `1 ended, 2 leftovers`; empty when all is well."""
    counts: Counter[str] = Counter()
    for node in nodes:
        for flag, count in node.totals.flags:
            counts[flag.word] += count
    words = dict.fromkeys(flag.word for flag in NodeFlag)
    return ", ".join(f"{counts[word]} {_counted(word, counts[word])}" for word in words if counts[word])


def size_words(node: Node) -> str:
    """Return the ranks that are here, `7/8 ranks`, or the number of processes; empty for a single process."""
    totals, world = node.totals, node.run.world if node.run else None
    if node.kind is NodeKind.RUN and totals.ranks:
        count = len(totals.ranks)
        return f"{count}/{world} ranks" if world and world != count else f"{count} {_plural(count, 'rank')}"
    return f"{totals.processes} procs" if totals.processes > 1 else ""


def describe(node: Node) -> str:
    """Return a node in one line: `torchrun · ranks 0-7 of 8 on GPUs 0-7 · 4 workers hold device files · …`."""
    if node.kind is NodeKind.GROUP:
        words = [f"{node.totals.processes} processes", *_GROUPS.get(node.title, ())]
    else:
        words = _run_words(node) if node.process is None else _process_words(node, node.process)
        words += _helper_words(node)
        if node.where:
            words.append(f"over {node.where}" if node.where.startswith("ssh ") else f"in {node.where}")
        words += [f"a server: {node.server}"] if node.server else []
        if len(by_gpu := node.totals.by_gpu) > 1:
            sizes = {gpu: memory_of(parts).value for gpu, parts in by_gpu.items()}
            sizes_in_words = [f"{gib(held) if held is not None else '—'} on {gpu}" for gpu, held in sizes.items()]
            words.append(f"GiB: {', '.join(sizes_in_words)}")
        words += [node.name] if node.process is not None else []
    return " · ".join(words)


def _run_words(node: Node) -> list[str]:
    totals, run = node.totals, node.run
    world = f" of {run.world}" if run and run.world else ""
    members = f"{totals.processes} processes"
    if totals.ranks:
        members = f"{_plural(len(totals.ranks), 'rank')} {ranges(totals.ranks)}{world}"
    words = [run.launcher] if run and run.launcher else []
    words.append(f"{members}{_on_gpus(node)}")
    if node.absent:
        verb = "is" if len(node.absent) == 1 else "are"
        words.append(f"{_plural(len(node.absent), 'rank')} {ranges(node.absent)} {verb} on none of these GPUs")
    return words


def _process_words(node: Node, process: Process) -> list[str]:
    run, role = node.run, ""
    if run and run.rank is not None and node.kind is NodeKind.RANK:
        role = f", rank {run.rank}" + (f" of {run.world}" if run.world else "")
    elif run and run.worker_of is not None:
        role = f", worker of {run.worker_of}"
    words = [f"PID {process.pid}{role}{_on_gpus(node)}"]
    if run and run.launcher:
        words.append(run.launcher)
    if node.unlisted is not None:
        opened = ranges(node.own.opened) if node.own else ""
        files = f"the device file of GPU {opened}" if opened.isdigit() else f"device files of GPUs {opened}"
        words.append(f"has {files if opened else 'GPU device files'} open, and the driver does not list it")
    if process.presence is Presence.GONE:
        words.append("it has ended, and still holds memory")
    if run and run.orphaned:
        words.append("its run has ended")
    elif process.adopted and NodeFlag.LEFTOVER_WORKER in node.flags:
        words.append("the process that started it has ended")
    words += [f"it is {flag.word}" for flag in node.flags if flag in (NodeFlag.STOPPED, NodeFlag.ZOMBIE)]
    own, every = (node.own or node.totals).memory, node.totals.memory
    if node.children and own.value is not None and every.value != own.value:
        words.append(f"{_size(own)} itself, {_size(every)} with its workers")
    return words


def _helper_words(node: Node) -> list[str]:
    """Count the processes below a node that only hold device files."""
    is_leftover = NodeFlag.LEFTOVER_WORKER in node.flags
    leftovers = dict(node.totals.flags).get(NodeFlag.LEFTOVER_WORKER, 0)
    workers = node.totals.holders - leftovers - (node.unlisted is not None and not is_leftover)
    leftovers -= is_leftover
    words = [f"{workers} {'workers hold' if workers > 1 else 'worker holds'} device files"] if workers > 0 else []
    return words + ([f"{leftovers} {_plural(leftovers, 'leftover')}"] if leftovers > 0 else [])


def _on_gpus(node: Node) -> str:
    gpus = ranges(node.totals.by_gpu)
    return f" on GPU{'s' * (not gpus.isdigit())} {gpus}" if gpus else ""


def _size(figure: PartialSum) -> str:
    return f"{'≥' if figure.at_least else ''}{gib(figure.value or 0.0)} GiB"
