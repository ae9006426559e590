"""Ending of the demo's processes: every step of the dialog with an invented outcome; nothing is signalled.

A real process on this machine may have a PID of the demo. So nothing in this module can affect a process: it opens no
handle, reads nothing from /proc and calls nothing that sends a signal. It changes only the demo's own script.
"""

from __future__ import annotations

import signal
from collections.abc import Collection
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuwatch.kill.outcome import End, Outcome, Refusal, Refused
from gpuwatch.kill.policy import Policy
from gpuwatch.kill.run import Member, Run, holdings_by_key, job_of, processes_by_key
from gpuwatch.kill.session import DEMO_NOTICE, PinnedProcess
from gpuwatch.kill.target import Target, target_of_unlisted
from gpuwatch.model import Snapshot
from gpuwatch.sources import demo_machine as cast
from gpuwatch.sources.demo import DemoSource

KILLED_AFTER: Final = 0.3
"""Seconds from SIGKILL to the end of a process."""


class _Reaction(msgspec.Struct, frozen=True):
    """Seconds from a signal to the end of a process; None where it ignores the signal."""

    interrupt: float | None = 0.2
    terminate: float = 0.2


_REACTIONS: Final = {
    # It was started in the background of a shell, which lets such processes ignore SIGINT.
    cast.STRAY_PID: _Reaction(interrupt=None, terminate=1.4),
    # It saves first. With SIGTERM that takes longer than the dialog's 10 s, so the dialog asks what to do.
    cast.RUN_PID: _Reaction(interrupt=3.0, terminate=13.0),
}


class DemoProcess:
    """Process of the demo, with the methods of `target.Pinned`; no signal is sent."""

    weaker = ""

    def __init__(self, source: DemoSource, target: Target) -> None:
        self.target = target
        self.run = ""
        self._source = source
        self._reaction = _REACTIONS.get(target.pid, _Reaction())

    def send(self, sig: signal.Signals) -> Outcome | None:
        """End the simulated process as a real one would react to this signal."""
        if self.exited():
            return Outcome(End.GONE)
        after = {
            signal.SIGINT: self._reaction.interrupt,
            signal.SIGTERM: self._reaction.terminate,
            signal.SIGKILL: KILLED_AFTER,
        }.get(sig)
        if after is not None:
            self._source.end(self.target.pid, after)
        return None

    def exited(self) -> bool:
        return self._source.has_ended(self.target.pid)

    def look(self, *, seconds: float = 0.0, killed: bool = False) -> Outcome:
        return Outcome(End.EXITED if self.exited() else End.RUNNING, seconds, killed)

    def find_family(self) -> None:
        """Do nothing: its workers end with the process."""

    def family(self) -> tuple[int, ...]:
        return ()

    def leftovers(self, listed: Collection[int] = ()) -> tuple[int, ...]:
        return ()

    def on_gpu(self) -> bool:
        return not self.exited()

    def ignores(self, sig: signal.Signals) -> bool:
        return sig is signal.SIGINT and self._reaction.interrupt is None

    def record(self, event: str, **fields: object) -> None:
        """Record nothing: nothing was done."""

    def close(self) -> None:
        """Do nothing: there is no handle."""


class DemoEnder:
    """Access to the processes of a `DemoSource`, with the methods of `target.Killer`; no signal is sent."""

    notice = DEMO_NOTICE

    def __init__(self, source: DemoSource, *, read_only: bool = False) -> None:
        self._source = source
        self.policy = Policy(uid=cast.VIEWER_UID, euid=cast.VIEWER_UID, pid=0, read_only=read_only)

    def problem(self) -> None:
        """Return None: the demo writes no audit file, so that cannot fail."""

    def pin(self, target: Target) -> DemoProcess | Refused:
        """Return the process, or the refusal that a real machine would return."""
        if self.policy.read_only:
            return Refused(Refusal.READ_ONLY, target.pid)
        if target.uid is None:
            return Refused(Refusal.NO_IDENTITY, target.pid)
        if target.uid != self.policy.may_end:
            return Refused(Refusal.NOT_YOURS, target.pid, f"it runs as uid {target.uid}")
        held = DemoProcess(self._source, target)
        return Refused(Refusal.GONE, target.pid) if held.exited() else held

    def pin_run(self, held: PinnedProcess, snapshot: Snapshot, *, asked: bool = True) -> Run:
        """Return the viewer's processes of the same run, its head first."""
        processes, holdings = processes_by_key(snapshot), holdings_by_key(snapshot)
        job = job_of(processes.get(held.target.key))
        members = [held]
        for key, process in processes.items():
            other = job_of(process)
            same = job is not None and other is not None and other.key == job.key
            if same and process.uid == self.policy.may_end and key != held.target.key:
                gpus, memory = holdings.get(key, ((), 0))
                members.append(DemoProcess(self._source, replace(target_of_unlisted(process, gpus), held=memory)))
        head = job.head if job is not None else held.target.pid
        members.sort(key=lambda one: (one.target.pid != head, one.target.pid))
        return Run(
            job.key if job is not None else f"{held.target.pid}:{held.target.start_ticks}",
            tuple(Member(one, head if one.target.pid != head else 0, waits=True) for one in members),
        )

    def refuse(self, target: Target, refused: Refused, **more: object) -> None:
        """Record nothing."""
