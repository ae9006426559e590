"""Run of a process: finds its head, all processes below it, and those with its key on a GPU, and pins each.

A process below the head belongs to the run because it descends from it: its own handle is opened first, and then the
handle of its parent shows that the parent still lives. A PID that was reused meanwhile has another parent. A process
that is no descendant, but has the key of the run, must have a GPU device open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuwatch.base import procfs, programs
from gpuwatch.base.text import clean
from gpuwatch.kill.outcome import Outcome, Refusal, Refused
from gpuwatch.kill.pinned import KillTarget, PinnedProcess, Pinner, find_targets
from gpuwatch.model.snapshot import Process, Snapshot

MEMBERS_MAX: Final = 600
"""Processes of one run, at most: each needs a descriptor, and 1024 is the usual limit. 8 ranks with 32 workers fit."""


class Member(msgspec.Struct):
    """Process of an ending, with its signals and outcome; times are those of the ending's clock."""

    pinned: PinnedProcess
    above: int = 0
    """PID of its parent in the ending; 0 where there is none."""
    waits: bool = False
    """Whether it is signalled only after the process above it has ended: that forwards signals, or needs it to save."""
    signalled: float | None = None
    """Time of the present signal; None where it was not sent yet."""
    ended: float | None = None
    outcome: Outcome | None = None
    """Its final outcome."""

    @property
    def pid(self) -> int:
        return self.pinned.target.pid

    @property
    def exited(self) -> bool:
        return self.ended is not None or (self.outcome is not None and self.outcome.over)


class PinnedRun(msgspec.Struct, frozen=True):
    """Processes that are ended together, all pinned, the head first."""

    members: tuple[Member, ...] = ()
    key: str = ""
    """The same for all processes of a run; empty for one process."""
    left_out: tuple[tuple[int, str], ...] = ()
    """PIDs of processes that get no signal, each with the reason."""


def find_run(
    pinner: Pinner,
    target: PinnedProcess,
    snapshot: Snapshot,
    is_under_way: Callable[[tuple[int, int]], bool] = lambda process: False,
) -> PinnedRun | Refused:
    """Pin all processes of the run of a pinned process, which is one of them; it stays open after a refusal.

    Its head is the one that the snapshot names, where that is above the process, else the process itself. Shells,
    session keepers and other users' processes are left out, with all below them. `is_under_way` returns whether another
    ending has a process (PID, start time): then the run is refused.
    """
    search = _Search(pinner, target, snapshot)
    try:
        run = search.find()
        for member in run.members:
            if member.pinned is not target and is_under_way(member.pinned.target.key):
                raise _RefusedError(Refusal.UNDER_WAY, member.pid)
        return run
    except BaseException as error:
        search.close()
        if isinstance(error, _RefusedError):
            return error.refused
        target.close()
        raise


class _RefusedError(Exception):
    def __init__(self, reason: Refusal, pid: int, detail: str = "") -> None:
        super().__init__(reason.value)
        self.refused = Refused(reason, pid, detail)


class _Search:
    """Search for the members of a run."""

    def __init__(self, pinner: Pinner, target: PinnedProcess, snapshot: Snapshot) -> None:
        self._pinner = pinner
        self._target = target
        self._known = find_targets(snapshot)
        self._shown = self._known.get(target.target.key, target.target).process
        self._protected = {pinner.policy.pid, *procfs.find_ancestors(pinner.policy.pid, pinner.proc)}
        self._members: dict[int, Member] = {}
        self._left_out: dict[int, str] = {}
        self._opened: list[PinnedProcess] = []

    def find(self) -> PinnedRun:
        """Find and pin the members; raises _RefusedError."""
        target = self._target.target
        head = self._find_head()
        if head is not None:
            self._add(head)
        if target.pid not in self._members:  # the head that the snapshot names is not above it
            self._members, self._left_out = {}, {}
            self._add(self._target)
        for pinned in self._find_by_key():
            self._add(pinned)
        members = tuple(self._members.values())
        used = {id(member.pinned) for member in members}
        for pinned in self._opened:
            if id(pinned) not in used:
                pinned.close()
        return PinnedRun(members, self._shown.run_key, tuple(sorted(self._left_out.items())))

    def close(self) -> None:
        """Close all handles except the target's."""
        for pinned in self._opened:
            pinned.close()

    def _find_head(self) -> PinnedProcess | None:
        """Return the head that the snapshot names, or the rank of a worker; None where no run can begin with it."""
        run = self._shown.run
        if run is None or (run.head, run.head_start) == self._target.target.key:
            return None
        pid, start = (run.head, run.head_start) if run.head > 0 else (run.worker_of or 0, None)
        head = self._open(pid, start) if pid > 0 else None
        return None if head is None or self._find_exclusion(head) else head

    def _find_by_key(self) -> Iterator[PinnedProcess]:
        """Yield processes with the key of the run that are not below its head: each must have a GPU open.

        A run has each rank only once. Variables that were exported in a shell give all its children the same rank.
        """
        running = [target.process for target in self._known.values() if not target.process.has_ended]
        same = [process for process in running if process.run_key == self._shown.run_key]
        runs = {process.pid: process.run for process in same if process.run is not None}
        ranks = {pid: run.rank for pid, run in runs.items() if run.rank is not None and not run.orphaned}
        counts = Counter(ranks.values())  # leftovers of a rank have its variables, and may be many
        for process in same:
            pid = process.pid
            rank_of = pid if pid in ranks or pid not in runs else runs[pid].worker_of or 0
            if pid in self._members or process.uid != self._pinner.policy.may_end or process.start <= 0:
                continue
            if rank_of in ranks and counts[ranks[rank_of]] > 1 and rank_of not in self._members:
                self._left_out[pid] = f"more than one process claims to be rank {ranks[rank_of]}"
            elif pinned := self._open(pid, process.start):
                reason = self._find_exclusion(pinned)
                if not reason and self._pinner.is_on_gpu(pid):
                    yield pinned
                else:
                    self._left_out[pid] = reason or "it has no GPU device file open, so it may not belong to this run"

    def _add(self, top: PinnedProcess) -> None:
        """Add a process and all its descendants, the upper ones first; raises _RefusedError."""
        waiting = [self._add_member(top, None)]
        while waiting:
            above = waiting.pop(0)
            for pid in procfs.find_children(above.pid, self._pinner.proc):
                child = None if pid in self._members else self._open_child(above, pid)
                if child is not None:
                    waiting.append(self._add_member(child, above))

    def _open_child(self, above: Member, pid: int) -> PinnedProcess | None:
        """Pin a child and prove that it is a child; None where it has ended or must not be signalled."""
        child = self._target if pid == self._target.target.pid else self._open(pid)
        stat = None if child is None else procfs.find_stat(pid, self._pinner.proc, child.target.process.start)
        if child is None or stat is None or stat.ppid != above.pid or above.pinned.has_exited() or child.has_exited():
            return None
        if reason := self._find_exclusion(child):
            self._left_out[pid] = reason
            return None
        return child

    def _add_member(self, pinned: PinnedProcess, above: Member | None) -> Member:
        target = pinned.target
        if target.pid in self._protected:
            reason = Refusal.ITSELF if target.pid == self._pinner.policy.pid else Refusal.ANCESTOR
            name = procfs.read_pid_and_name(target.pid, self._pinner.proc)[1]
            raise _RefusedError(reason, target.pid, f"PID {target.pid} ({name}), which started its run")
        if len(self._members) >= MEMBERS_MAX:
            raise _RefusedError(Refusal.TOO_MANY, self._target.target.pid, f"over {MEMBERS_MAX}")
        run = self._shown.run
        helps = target.process.run is not None and target.process.run.worker_of is not None
        helps = helps or (not target.gpus and above is not None and bool(above.pinned.target.gpus))
        launched = run is not None and run.launcher in programs.SIGNAL_FORWARDERS
        member = Member(pinned, above.pid if above else 0, helps or launched)
        self._members[target.pid] = member
        return member

    def _find_exclusion(self, pinned: PinnedProcess) -> str:
        """Return why a process gets no signal with a run; empty where it may."""
        pid = pinned.target.pid
        stat = procfs.find_stat(pid, self._pinner.proc, pinned.target.process.start)
        if stat is None:
            return "it cannot be read"
        name = programs.name_from_comm(clean(stat.comm))
        is_login_shell = stat.session == pid and stat.tty != 0 and name in programs.SHELLS
        # An editor or an IDE that was started by a run ends with it; the shells of its terminals do not.
        if programs.is_session_keeper(name) or name in programs.USER_SWITCHES or is_login_shell:
            return f"{procfs.format_name(stat.comm)}: it has its own session"
        if others := self._pinner.find_uids(pid) - {self._pinner.policy.may_end}:
            return f"it runs as uid {min(others)}"
        return ""

    def _open(self, pid: int, start_ticks: int | None = None) -> PinnedProcess | None:
        """Pin a process with its facts; None where it has ended, or has another start time. Raises _RefusedError."""
        pinned = self._pinner.open(pid)
        if isinstance(pinned, Refused):
            if pinned.reason is Refusal.TOO_MANY:
                raise _RefusedError(pinned.reason, pid, pinned.detail)
            return None
        self._opened.append(pinned)
        stat = procfs.find_stat(pid, self._pinner.proc, start_ticks)
        if stat is None or pinned.has_exited():
            return None
        process = Process(pid=pid, start=stat.start_ticks, uid=self._pinner.policy.may_end)
        target = self._known.get(process.key, KillTarget(process))
        command, program = target.process.command, target.process.program
        if not command or not stat.program or program not in ("", stat.program):  # it runs another program by now
            command = self._pinner.read_command(pid) or procfs.format_name(stat.comm)
        pinned.target = replace(target, process=replace(target.process, command=command, program=stat.program))
        return pinned
