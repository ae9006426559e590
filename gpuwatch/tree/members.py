"""From holdings to processes: who there is, which run each belongs to, and who works for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from gpuwatch.analysis.rows import Row, rows
from gpuwatch.history import HistoryView
from gpuwatch.model import Presence, Process, Snapshot, Unlisted, known
from gpuwatch.tree.nodes import Flag, NodeKey, OnGpu, Sum, Totals, put, shortest, sum_of

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
    """Give every process that has memory on a GPU or its device file open, each once; with `mine` the viewer's."""
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
    """Give what one process takes; what is wrong with it depends on its place, and is added there."""
    started, held = member.process.started, member.rows
    job = member.job
    ranks = (job.rank,) if job is not None and job.rank is not None and job.worker_of is None else ()
    if len(held) == 1:  # nearly all: this is most of what a tree costs
        row = held[0]
        size, sm = row.holding.memory, row.holding.sm
        memory = Sum(size) if known(size) else Sum(None, True)
        return Totals(
            memory=memory,
            sm=Sum(sm) if known(sm) else Sum(None, True),
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
    """Give each process its run: by its job; an unlisted one of unknown job goes where its parent is."""
    by_pid = {member.pid: member for member in members}
    return [_run_key(_source(member, by_pid)) for member in members]


def _source(member: Member, by_pid: dict[int, Member]) -> Member:
    """Give the process that decides which run `member` belongs to."""
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
    """Say whether `one` may have started `other`: a PID may be somebody else's by now."""
    return not one.start or not other.start or one.start <= other.start


def hang(together: Sequence[Member]) -> None:
    """Give the workers of a run to those that they work for; who that is not known of stays below the run."""
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
    """Say what is wrong with a process, the worst first."""
    state = member.process.state
    found = [Flag.GONE] * (member.process.presence is Presence.GONE) + [Flag.ZOMBIE] * (state in ("zombie", "dead"))
    if member.orphan:
        found.append(Flag.ORPHAN)
    elif member.job is not None and member.job.orphaned:
        found.append(Flag.ORPHANED)
    return found + [Flag.STOPPED] * (state == "stopped")
