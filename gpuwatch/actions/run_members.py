"""The processes of one run, each held by a handle."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch import procfs

if TYPE_CHECKING:
    from gpuwatch.actions.interfaces import HeldProcess
    from gpuwatch.actions.kill import Killer


@dataclass(frozen=True, slots=True)
class Member:
    """One process of a run, as found in /proc."""

    pinned: HeldProcess
    above: int = 0
    """PID of the member that it descends from most nearly; 0 for none."""
    waits: bool = False
    """It is told by the one above, or of use to it while that saves: not to be signalled before that one has ended."""
    session: int = 0


@dataclass(slots=True)
class Run:
    """The processes of one run, each pinned, the head first; close it."""

    key: str
    members: tuple[Member, ...]
    left_out: tuple[tuple[int, str], ...] = ()
    """Processes below the head that are not touched: PID and why."""
    killer: Killer | None = field(default=None, repr=False)

    @property
    def pids(self) -> tuple[int, ...]:
        """PIDs of the members, in their order."""
        return tuple(member.pinned.target.pid for member in self.members)

    @property
    def weaker(self) -> str:
        """Why the check of one of them is weaker; empty where none is."""
        return next((member.pinned.weaker for member in self.members if member.pinned.weaker), "")

    def on_gpu(self) -> tuple[int, ...]:
        """PIDs of the members that still run and have a GPU open; those that were seen to hold memory first."""
        open_by = [member.pinned for member in self.members if member.pinned.on_gpu()]
        return tuple(one.target.pid for one in sorted(open_by, key=lambda one: not one.target.gpus))

    def find_family(self) -> None:
        """Take note of what they have started so far."""
        for member in self.members:
            if not member.above:
                member.pinned.find_family()

    def left(self, since: int) -> tuple[int, ...]:
        """PIDs that belong to the run, still run and are no members; `since` is the first signal, in ticks since boot.

        They were seen below a member, or began after the first signal, in a session of the run and without a parent.
        """
        if self.killer is None:
            return ()
        ours, uid, proc = set(self.pids), self.killer.policy.may_end, self.killer.proc
        found = {pid for member in self.members for pid in member.pinned.family()}
        out = {pid for pid, _ in self.left_out}
        sessions = {member.session for member in self.members if member.session}
        for pid, stat in _every(proc):
            began_late = stat.start_ticks >= since and stat.session in sessions and stat.state not in procfs.DEAD
            if began_late and pid not in found and _session_of(stat.ppid, proc) not in sessions:
                found.add(pid)
        return tuple(pid for pid in sorted(found - ours - out) if uids_of(pid, proc) == {uid})

    def close(self, *, but: HeldProcess | None = None) -> None:
        """Give all handles back, `but` one; the processes are left as they are."""
        for member in self.members:
            if member.pinned is not but:
                member.pinned.close()


def uids_of(pid: int, proc: Path) -> set[int]:
    """The uids of a process; empty where they cannot be read."""
    try:
        return set(procfs.read_uids(pid, proc))
    except (OSError, ValueError):
        return set()


def _session_of(pid: int, proc: Path) -> int:
    """The session of a process; 0 where it cannot be read."""
    try:
        return procfs.read_stat(pid, proc).session
    except (OSError, ValueError):
        return 0


def _every(proc: Path) -> Iterable[tuple[int, procfs.Stat]]:
    """All processes that can be seen."""
    for folder in proc.iterdir():
        if folder.name.isdecimal():
            try:
                yield int(folder.name), procfs.read_stat(int(folder.name), proc)
            except (OSError, ValueError):
                continue  # it ended meanwhile, or is not ours to see
