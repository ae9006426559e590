"""Run to be ended: finds its launcher, ranks and workers, and pins each before the first signal.

A process belongs to the run because it descends from the run's head. The search proves that: the handle of the parent
shows that it lives, and the handle of the process shows that the facts read are this process's. A PID that was reused
meanwhile has another parent. A process that is no descendant, but has the run's key, must have a GPU device open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec.structs import replace

from gpuwatch import procfs, programs
from gpuwatch.kill.outcome import Refusal, Refused
from gpuwatch.model import Job, Process, Snapshot, known
from gpuwatch.text import clean

if TYPE_CHECKING:
    from gpuwatch.kill.session import PinnedProcess
    from gpuwatch.kill.target import Killer, Pinned


class Member(msgspec.Struct, frozen=True):
    """Pinned process of a run."""

    pinned: PinnedProcess
    above: int = 0
    """PID of its nearest ancestor in the run; 0 where there is none."""
    waits: bool = False
    """Whether it is signalled only after the process above it has ended: that forwards signals, or needs it to save."""
    session: int = 0


class Run(msgspec.Struct):
    """Processes of one run, all pinned, the head first."""

    key: str
    members: tuple[Member, ...]
    left_out: tuple[tuple[int, str], ...] = ()
    """PIDs of processes below the head that get no signal, each with the reason."""
    killer: Killer | None = None

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(member.pinned.target.pid for member in self.members)

    @property
    def weaker(self) -> str:
        """Why the check of a member is weaker; empty where none is."""
        return next((member.pinned.weaker for member in self.members if member.pinned.weaker), "")

    def on_gpu(self) -> tuple[int, ...]:
        """Return the PIDs of running members that have a GPU open, those with known memory first."""
        open_by = [member.pinned for member in self.members if member.pinned.on_gpu()]
        return tuple(one.target.pid for one in sorted(open_by, key=lambda one: not one.target.gpus))

    def left(self, since: int) -> tuple[int, ...]:
        """Return the PIDs of running processes of the run that are no members; `since` is in clock ticks since boot.

        They were seen below a member, or were started after `since` in a session of the run, without a parent in the
        run.
        """
        if self.killer is None:
            return ()
        ours, uid, proc = set(self.pids), self.killer.policy.may_end, self.killer.proc
        found = {pid for member in self.members for pid in member.pinned.family()}
        out = {pid for pid, _ in self.left_out}
        sessions = {member.session for member in self.members if member.session}
        for pid in (int(folder.name) for folder in proc.iterdir() if folder.name.isdecimal()):
            stat = procfs.find_stat(pid, proc)
            if stat is None or stat.start_ticks < since or stat.session not in sessions or stat.state in procfs.DEAD:
                continue
            if _session_of(stat.ppid, proc) not in sessions:
                found.add(pid)
        return tuple(pid for pid in sorted(found - ours - out) if _find_uids(pid, proc) == {uid})

    def close(self, *, but: PinnedProcess | None = None) -> None:
        """Close all handles except `but`; the processes keep running."""
        for member in self.members:
            if member.pinned is not but:
                member.pinned.close()


def _find_uids(pid: int, proc: Path) -> set[int]:
    """Return the uids of a process; empty where they cannot be read."""
    try:
        return set(procfs.read_uids(pid, proc))
    except (OSError, ValueError):
        return set()


def _session_of(pid: int, proc: Path) -> int | None:
    stat = procfs.find_stat(pid, proc)
    return stat.session if stat else None


MOST: Final = 600
"""Processes of one run, at most: each needs a descriptor, of which 1024 are usual. 8 ranks with 32 workers fit."""

_ABOVE_MOST: Final = 64
"""Generations up to the head that are searched, at most."""


class _Node(msgspec.Struct):
    """Process below the head, used during the search."""

    pinned: Pinned
    depth: int
    above: int
    stat: procfs.Stat
    ours: bool = True


class _RefusedError(Exception):
    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.sentence)
        self.refused = refused


def pin_run(killer: Killer, target: Pinned, snapshot: Snapshot, *, asked: bool = True) -> Run | Refused:
    """Pin all processes of the run of a pinned process, `target` among them; a refusal is recorded where `asked`.

    The head is the sampler's `Job.head` where that is an ancestor of the target, else the topmost ancestor of the same
    run; only ancestors with the user's uid count, no login shell, and no program that starts other runs. Without such
    an ancestor the head is the target. Other users' processes and interactive shells are left out. Closing the run
    closes `target` too.
    """
    search = _Search(killer, target, snapshot)
    try:
        return search.run()
    except BaseException as error:
        search.close()
        if not isinstance(error, _RefusedError):
            raise
        refused = error.refused
        if asked:
            killer.refuse(target.target, refused, run=search.key)
        return refused


class _Search:
    """Search for the members of a run: from the target up to its head, then down to all descendants."""

    def __init__(self, killer: Killer, target: Pinned, snapshot: Snapshot) -> None:
        self._killer = killer
        self._proc = killer.proc
        self._target = target
        self._uid = killer.policy.may_end
        self._known = processes_by_key(snapshot)
        self._held = holdings_by_key(snapshot)
        self._job = job_of(self._known.get(target.target.key))
        self.key = self._job.key if self._job else f"{target.target.pid}:{target.target.start_ticks}"
        self._protected = {killer.policy.pid, *procfs.find_ancestors(killer.policy.pid, self._proc)}
        self._nodes: dict[int, _Node] = {}
        self._left_out: dict[int, str] = {}
        self._opened: list[Pinned] = []

    def close(self) -> None:
        """Close all handles except the target's."""
        for pinned in self._opened:
            pinned.close()

    def run(self) -> Run:
        """Find and pin the members; raises _RefusedError."""
        chain = self._chain()
        top = self._head_of(chain)
        place = self._below_agents(chain, top)
        head = chain[place]
        self._check(head)
        self._add(head, 0, 0)
        for sibling in self._siblings() if place == top else ():
            self._add(sibling, 0, 0)
        ours = [node for node in self._nodes.values() if node.ours]
        ours.sort(
            key=lambda node: (
                node.pinned is not head,
                node.depth,
                not node.pinned.target.gpus,
                node.pinned.target.pid,
            )
        )
        if not any(node.pinned is self._target for node in ours):
            pid = self._target.target.pid
            gone = Refused(Refusal.GONE, pid)
            changed = Refused(Refusal.CHANGED, pid, "its run changed while it was looked up")
            raise _RefusedError(gone if self._target.exited() else changed)
        members = tuple(self._member(node) for node in ours)
        kept = {id(member.pinned) for member in members}
        for pinned in self._opened:
            if id(pinned) not in kept:
                pinned.close()
        return Run(self.key, members, tuple(sorted(self._left_out.items())), self._killer)

    # Upwards

    def _chain(self) -> list[Pinned]:
        """Return the target and its ancestors with the user's uid, each proven to be the parent of the previous one."""
        chain = [self._target]
        while len(chain) < _ABOVE_MOST:
            below = chain[-1]
            parent = self._parent(below)
            if parent is None:
                break
            chain.append(parent)
        return chain

    def _parent(self, below: Pinned) -> Pinned | None:
        pid = self._ppid(below)
        if pid <= 1:
            if pid == 1 and self._job is not None and self._job.head == 1:
                raise _RefusedError(Refused(Refusal.SYSTEM_PID, 1, "its run begins with PID 1"))
            return None
        above = self._open(pid)
        if above is None or self._ppid(below) != pid or below.exited() or above.exited():
            return None
        return above if _find_uids(pid, self._proc) == {self._uid} else None

    def _ppid(self, pinned: Pinned) -> int:
        stat = procfs.find_stat(pinned.target.pid, self._proc)
        return stat.ppid if stat else 0

    def _head_of(self, chain: list[Pinned]) -> int:
        """Return the index in the chain at which the run begins, according to the sampler."""
        place = 0
        for index, pinned in enumerate(chain):
            job = job_of(self._known.get(pinned.target.key))
            if self._job and pinned.target.key == (self._job.head, self._job.head_start):
                place = index
                break
            if self._job and job and job.key == self._job.key:
                place = index
        while place > 0 and self._is_keeper(chain[place]):
            place -= 1
        return place

    def _below_agents(self, chain: list[Pinned], top: int) -> int:
        """Return the index in the chain below agents (programs that start other runs too) and below their shells.

        No list can name every agent, editor and server. An agent holds no GPU, and starts each program, also the
        target, in a separate session. A known launcher of ranks, or the process that forked the target, is no agent.
        """
        place, job = top, self._job
        if job is None or job.launcher or job.world is not None:
            return place
        while place > 0 and job.worker_of != chain[place].target.pid:
            one, below = chain[place], chain[place - 1]
            if not self._is_agent(one, below) and (place == top or not self._is_shell(one)):
                break
            place -= 1
        return place

    def _is_agent(self, pinned: Pinned, below: Pinned) -> bool:
        pid = pinned.target.pid
        if pinned.target.gpus or _session_of(pid, self._proc) == _session_of(below.target.pid, self._proc):
            return False
        sessions = {_session_of(child, self._proc) for child in procfs.find_children(pid, self._proc)}
        return len(sessions - {None}) > 1

    def _is_shell(self, pinned: Pinned) -> bool:
        stat = procfs.find_stat(pinned.target.pid, self._proc)
        return stat is None or _name(stat) in programs.SHELLS

    def _is_keeper(self, pinned: Pinned) -> bool:
        stat = procfs.find_stat(pinned.target.pid, self._proc)
        if stat is None:
            return True  # it has just gone: the run begins below it
        name = _name(stat)
        keeper = programs.is_boundary(name) or name in programs.USER_SWITCHES
        return keeper or _is_login_shell(pinned.target.pid, stat)

    def _check(self, pinned: Pinned) -> None:
        pid = pinned.target.pid
        if pid in self._protected:
            reason = Refusal.ITSELF if pid == self._killer.policy.pid else Refusal.ANCESTOR
            raise _RefusedError(
                Refused(
                    reason,
                    pid,
                    f"PID {pid} ({procfs.read_pid_and_name(pid, self._proc)[1]}), which its run goes back to",
                )
            )

    # Downwards

    def _add(self, top: Pinned, depth: int, above: int) -> None:
        """Add a process and all its descendants, the upper ones first."""
        stat = self._stat(top)
        if stat is None:
            return
        self._nodes[top.target.pid] = _Node(top, depth, above, stat)
        waiting = [self._nodes[top.target.pid]]
        while waiting:
            node = waiting.pop(0)
            for pid in procfs.find_children(node.pinned.target.pid, self._proc):
                child = None if pid in self._nodes else self._child(node, pid)
                if child is not None:
                    self._nodes[pid] = child
                    waiting.append(child)
                    if len(self._nodes) > MOST:
                        raise _RefusedError(Refused(Refusal.TOO_MANY, self._target.target.pid, f"over {MOST}"))

    def _child(self, parent: _Node, pid: int) -> _Node | None:
        """Pin a child and prove that it is a child; None where it has ended or must not be signalled."""
        child = self._target if pid == self._target.target.pid else self._open(pid)
        stat = None if child is None else self._stat(child)
        if child is None or stat is None or stat.ppid != parent.pinned.target.pid or parent.pinned.exited():
            return None
        self._check(child)
        name = _name(stat)
        # An editor or an IDE that was started by a run ends with it; the shells of its terminals do not.
        if _is_login_shell(pid, stat) or programs.is_session_keeper(name) or name in programs.USER_SWITCHES:
            self._left_out[pid] = f"{procfs.format_name(stat.comm)}: it keeps a session of its own"
            return None
        uids = _find_uids(pid, self._proc)
        if child.exited() or not uids:
            return None
        ours = uids == {self._uid}
        if not ours:
            other = next(uid for uid in uids if uid != self._uid)
            self._left_out[pid] = f"it runs as uid {other}"
        above = parent.pinned.target.pid if parent.ours else parent.above
        return _Node(child, parent.depth + 1, above, stat, ours)

    def _siblings(self) -> Iterable[Pinned]:
        """Return processes of the run, according to the sampler, that are not below its head: each must hold a GPU.

        A run has each rank only once. Variables that were exported in a shell give all its children the same rank.
        """
        if self._job is None:
            return
        running = (one for one in self._known.values() if not one.has_ended)
        same = [(one, job) for one in running if (job := job_of(one)) and job.key == self._job.key]
        said = [(one.pid, job.rank) for one, job in same if job.rank is not None and not job.orphaned]
        ranks = Counter(rank for _, rank in said)  # what a rank left behind has its variables, and may be many
        twins = {pid: rank for pid, rank in said if ranks[rank] > 1}
        for process, job in same:
            pid, start = process.pid, process.start
            if pid in self._nodes or process.uid != self._uid or start <= 0:
                continue
            if (one := pid if pid in twins else job.worker_of) in twins and one not in self._nodes:
                self._left_out[pid] = f"more than one says that it is rank {twins[one]}"
                continue
            sibling = self._open(pid)
            stat = None if sibling is None else self._stat(sibling)
            if sibling is None or stat is None or stat.start_ticks != start or sibling.exited():
                continue
            self._check(sibling)
            if _find_uids(pid, self._proc) != {self._uid}:
                self._left_out[pid] = "it runs as another user now"
            elif not self._holds(pid):
                self._left_out[pid] = "it holds no GPU device open, so nothing shows that it is of this run"
            else:
                yield sibling

    def _holds(self, pid: int) -> bool:
        try:
            return procfs.has_gpu_open(pid, self._proc, self._killer.dev)
        except (OSError, ValueError):
            return False

    def _open(self, pid: int) -> Pinned | None:
        """Open a handle on a PID; None where the process is missing. Raises _RefusedError without a handle."""
        bare = self._killer.open(pid)
        if isinstance(bare, Refused):
            if bare.reason is Refusal.TOO_MANY:
                raise _RefusedError(bare)
            return None
        self._opened.append(bare)
        stat = self._read(pid)
        if stat is None:
            return None
        shown = self._known.get((pid, stat.start_ticks))
        gpus, held = self._held.get((pid, stat.start_ticks), ((), 0))
        command = shown.command if shown and shown.command else self._killer.shown(pid, stat.comm)
        if shown and shown.program and stat.program and shown.program != stat.program:
            command = self._killer.shown(pid, stat.comm)  # it runs another program by now: that one is asked about
        bare.target = replace(bare.target, start_ticks=stat.start_ticks, command=command, gpus=gpus, held=held)
        bare.note_program(stat)
        return bare

    def _stat(self, pinned: Pinned) -> procfs.Stat | None:
        """Return the stat line of a process; None where it has ended or its PID was reused."""
        stat = self._read(pinned.target.pid)
        same = stat is not None and stat.start_ticks == pinned.target.start_ticks and not pinned.exited()
        return stat if same else None

    def _read(self, pid: int) -> procfs.Stat | None:
        """Return the stat line of a PID; None where it is missing. Raises _RefusedError where it is unreadable."""
        try:
            return procfs.read_stat(pid, self._proc)
        except procfs.GONE:
            return None
        except (OSError, ValueError) as error:
            raise _RefusedError(Refused(Refusal.UNREADABLE, pid, f"PID {pid} of its run: {error}")) from None

    # Order

    def _member(self, node: _Node) -> Member:
        target = node.pinned.target
        job = job_of(self._known.get(target.key))
        above = self._nodes.get(node.above)
        helps = job is not None and job.worker_of is not None
        helps = helps or (not target.gpus and above is not None and bool(above.pinned.target.gpus))
        launched = self._job is not None and self._job.launcher in programs.SIGNAL_FORWARDERS
        node.pinned.note_device()
        return Member(node.pinned, node.above, helps or launched, node.stat.session)


def job_of(process: Process | None) -> Job | None:
    return process.surroundings.job if process and process.surroundings else None


def processes_by_key(snapshot: Snapshot) -> dict[tuple[int, int], Process]:
    """Return all processes of a snapshot by PID and start time, even those that the driver does not list."""
    processes = [*snapshot.processes, *(one.process for one in snapshot.unlisted)]
    return {(process.pid, process.start): process for process in processes}


def holdings_by_key(snapshot: Snapshot) -> dict[tuple[int, int], tuple[tuple[str, ...], int]]:
    """Return the GPUs of each process and the sum of its bytes on them, by PID and start time."""
    owners = {process.pid: process.start for process in snapshot.processes}
    found: dict[tuple[int, int], tuple[tuple[str, ...], int]] = {}
    for gpu in snapshot.gpus:
        for holding in gpu.holdings:
            key = (holding.pid, owners.get(holding.pid) or holding.start)
            gpus, held = found.get(key, ((), 0))
            more = int(holding.memory) if known(holding.memory) else 0
            found[key] = ((*gpus, gpu.key), held + more)
    return found


def _name(stat: procfs.Stat) -> str:
    return programs.name_from_comm(clean(stat.comm))


def _is_login_shell(pid: int, stat: procfs.Stat) -> bool:
    """Return whether a process is an interactive shell: the leader of a session with a terminal."""
    return stat.session == pid and stat.tty != 0 and _name(stat) in programs.SHELLS
