"""Target of a signal: compared with what was on screen before it is pinned and signalled.

The kernel alone would let root hit anyone, and a PID read a second ago may be somebody else's by now. So a handle
(pidfd) is opened before anything is read, every fact is then compared with what the person saw, and the handle is
asked at the end whether the process was alive all along: if so, the facts are about it and no other.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch import procfs
from gpuwatch.analysis.rows import Row, rows
from gpuwatch.kill import pinned as pidfd
from gpuwatch.kill import run
from gpuwatch.kill.audit import Audit
from gpuwatch.kill.outcome import unreaped
from gpuwatch.kill.pinned import Pinned as Pinned
from gpuwatch.kill.pinned import Refusal, Refused, parent_of
from gpuwatch.kill.pinned import Target as Target
from gpuwatch.kill.pinned import holds_gpu as holds_gpu
from gpuwatch.model import Presence, Process, Snapshot, known
from gpuwatch.text import clean

if TYPE_CHECKING:
    from gpuwatch.kill.interfaces import HeldProcess, ProcessEnder
    from gpuwatch.kill.run import Run
    from gpuwatch.model import Snapshot


WEAKER = "weaker check: this kernel gives no handle on a process, so its start time is compared before each signal"

_NOT_A_PROCESS = (errno.EINVAL, errno.ENOENT)
"""pidfd_open's answers for the id of a thread that is no process, before and since Linux 6.15."""

_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""pidfd_open's answers where there is no room for one more handle."""

_WITHOUT_EVIDENCE = (Refusal.NO_DEVICE, Refusal.NOT_ON_GPU, Refusal.FILES_UNREADABLE, Refusal.OTHER_NAMESPACE)
"""What a process looks like that ended between two reads: its files are closed by then."""


@dataclass(frozen=True)
class Policy:
    """Who is asking, and what they allowed on the command line."""

    uid: int
    euid: int
    pid: int
    """gpuwatch's own."""
    sudo_uid: int | None = None
    read_only: bool = False
    allow_root: bool = False

    @classmethod
    def of_this_process(
        cls, *, read_only: bool, allow_root: bool = False, environ: Mapping[str, str] = os.environ
    ) -> Policy:
        """The policy for the user who runs this program; `SUDO_UID` counts only for root."""
        sudo = environ.get("SUDO_UID", "")
        sudo_uid = int(sudo) if sudo.isdecimal() and sudo.isascii() else None
        return cls(os.getuid(), os.geteuid(), os.getpid(), sudo_uid, read_only, allow_root)

    @property
    def may_end(self) -> int:
        """The one uid whose processes may be ended: one's own, and under sudo that of the person behind it."""
        return self.sudo_uid if self.euid == 0 and self.sudo_uid is not None else self.euid


class Killer:
    """The only way to a signal: refuses, or hands out a process that has been proven to be the one on screen."""

    notice = ""
    """Nothing is made up here: see `interfaces.ProcessEnder`."""

    def __init__(
        self,
        policy: Policy,
        audit: Audit,
        *,
        describe: Callable[[int], str | None] | None = None,
        proc: Path = procfs.PROC,
        dev: str = "/dev",
        open_pidfd: Callable[[int], int] = pidfd.open_pidfd,
    ) -> None:
        """`describe` makes a process's command as the screen shows it; without one, commands are not compared."""
        self.policy = policy
        self.audit = audit
        self._describe = describe
        self.proc = proc
        self.dev = dev
        self._open_pidfd = open_pidfd

    def pin(self, target: Target) -> Pinned | Refused:
        """Open a handle on the process and prove that it is the target; a refusal is put on record.

        The caller closes what it gets. Never raises for a process that is gone, hidden or somebody else's.
        """
        pinned_or_refused = self._refuse_unseen(target) or self._pin(target)
        if isinstance(pinned_or_refused, Refused):
            self.refuse(target, pinned_or_refused)
        return pinned_or_refused

    def pin_run(self, held: HeldProcess, snapshot: Snapshot, *, asked: bool = True) -> Run | Refused:
        """Pin the whole run of a process that `pin` gave: see `run_scope.pin_run`."""
        if not isinstance(held, Pinned):
            raise TypeError(f"PID {held.target.pid} was not pinned on this machine")
        return run.pin_run(self, held, snapshot, asked=asked)

    def problem(self) -> str | None:
        """Return why actions could not be recorded now; None where they could."""
        return self.audit.problem()

    def refuse(self, target: Target, refused: Refused, **more: object) -> None:
        """Put a refusal on record; `more` are further fields of its line."""
        said = {"result": refused.reason.value, "detail": refused.detail}
        self.audit.append("refused", {**self.facts(target), **more, **said})

    def handle(self, pid: int) -> tuple[int | None, str] | Refused:
        """Open a handle on whatever has this PID now, which proves nothing yet; the caller closes it.

        Without one (None), the second says why the check will be weaker.
        """
        try:
            return self._open_pidfd(pid), ""
        except ProcessLookupError:
            return self.absent(pid)
        except OSError as error:
            if error.errno in _NOT_A_PROCESS:
                return Refused(Refusal.CHANGED, pid, "it is a thread now")
            if error.errno in _NO_MORE:
                return Refused(Refusal.TOO_MANY, pid, error.strerror or "")
            return None, f"{WEAKER} ({error.strerror})"

    def held_by(self, target: Target, handle: int | None, weaker: str) -> Pinned:
        """Make of a handle what can be asked and signalled; whoever calls this owns the proof that it is `target`."""
        return Pinned(self, target, handle, weaker, self.proc, self.dev)

    def described(self, pid: int) -> str | None:
        """Give the command of a process as the screen shows it; None where that cannot be read."""
        return self._describe(pid) if self._describe is not None else None

    def shown(self, pid: int, comm: bytes) -> str:
        """Give the command of a process as the screen shows it, or its bare name where that cannot be read."""
        return self.described(pid) or clean(comm)

    def facts(self, target: Target) -> dict[str, object]:
        """What every line of the record says about a target."""
        return {
            "uid": self.policy.uid,
            "pid": target.pid,
            "start_ticks": target.start_ticks,
            "target_uid": target.uid,
            "gpus": list(target.gpus),
            "held": target.held,
            "command": target.command,
        }

    def _refuse_unseen(self, target: Target) -> Refused | None:
        """The refusals for which the process need not be looked at."""
        checks = (
            (Refusal.READ_ONLY, self.policy.read_only),
            (Refusal.ROOT, self.policy.euid == 0 and not self.policy.allow_root),
            (Refusal.UNRELIABLE, target.unreliable),
            (Refusal.OTHER_NAMESPACE, target.unsure),
            (Refusal.STALE, target.stale),
            (Refusal.SYSTEM_PID, target.pid <= 1),
            (Refusal.ITSELF, target.pid == self.policy.pid),
            (Refusal.NO_IDENTITY, target.start_ticks <= 0 or target.uid is None),
        )
        return next((Refused(reason, target.pid) for reason, holds in checks if holds), None)

    def _pin(self, target: Target) -> Pinned | Refused:
        opened = self.handle(target.pid)
        if isinstance(opened, Refused):
            return opened
        pinned = self.held_by(target, *opened)
        try:
            refused = self._refuse_seen(target, pinned)
        except BaseException:
            pinned.close()
            raise
        if refused is not None:
            pinned.close()
        return refused or pinned

    def absent(self, pid: int) -> Refused:
        """Say of a PID that the kernel does not know why nothing is sent to it."""
        inside = procfs.in_pid_namespace(self.proc)
        return Refused(Refusal.OTHER_NAMESPACE if inside else Refusal.GONE, pid)

    def _refuse_seen(self, target: Target, pinned: Pinned) -> Refused | None:
        """The refusals that follow from what the process is."""
        try:
            refused = self._refuse_identity(target, pinned) or self._refuse_without_device(target)
            pinned.note_device()
        except procfs.GONE:
            return self.absent(target.pid)
        except (OSError, ValueError) as error:
            return Refused(Refusal.UNREADABLE, target.pid, str(error))
        if (refused is None or refused.reason in _WITHOUT_EVIDENCE) and pinned.exited():
            return Refused(Refusal.GONE, target.pid)
        return refused

    def _refuse_identity(self, target: Target, pinned: Pinned) -> Refused | None:
        pid = target.pid
        stat = procfs.read_stat(pid, self.proc)
        uids = procfs.read_uids(pid, self.proc)
        if stat.start_ticks != target.start_ticks:
            return Refused(Refusal.CHANGED, pid, "it started at another time")
        if stat.kernel_thread:
            return Refused(Refusal.KERNEL_THREAD, pid)
        if pid in procfs.ancestors(self.policy.pid, self.proc):
            return Refused(Refusal.ANCESTOR, pid)
        if self.policy.pid in procfs.ancestors(pid, self.proc):
            return Refused(Refusal.HELPER, pid)
        if target.uid not in uids:
            return Refused(Refusal.CHANGED, pid, f"it runs as uid {uids[1]} now")
        if set(uids) != {self.policy.may_end}:
            other = next(uid for uid in uids if uid != self.policy.may_end)
            return Refused(Refusal.NOT_YOURS, pid, f"it runs as uid {other}")
        if procfs.ended(pid, self.proc):
            return Refused(Refusal.ZOMBIE, pid, unreaped(parent_of(stat.ppid, self.proc)))
        stat = procfs.read_living_stat(pid, self.proc) or stat
        pinned.note_program(stat)
        if target.program and stat.program:
            if stat.program != target.program:
                return Refused(Refusal.CHANGED, pid, f"it runs another program now: {self.shown(pid, stat.comm)}")
        elif self._describe is not None and self._describe(pid) != target.command:
            return Refused(Refusal.CHANGED, pid, "its command is another")
        return None

    def _refuse_without_device(self, target: Target) -> Refused | None:
        try:
            has_device = holds_gpu(target.pid, self.proc, self.dev)
        except PermissionError:
            return Refused(Refusal.FILES_UNREADABLE, target.pid)
        inside = procfs.in_pid_namespace(self.proc)
        if target.unlisted:  # in a container it may be listed by its number outside
            return Refused(Refusal.OTHER_NAMESPACE if inside and has_device else Refusal.NOT_ON_GPU, target.pid)
        if has_device:
            return None
        return Refused(Refusal.OTHER_NAMESPACE if inside else Refusal.NO_DEVICE, target.pid)


def not_yours(process: Process, policy: Policy) -> str:
    """Say whose a process is that is not one's own; empty where it is, or where nothing may be ended at all."""
    if policy.read_only or process.uid in (None, policy.may_end):
        return ""
    return f"it belongs to {process.user or '?'}, and gpuwatch signals only your own processes"


def wrong_machine(snapshot: Snapshot, ender: ProcessEnder) -> str:
    """Return why nothing of a snapshot may be ended through `ender`; empty where it may.

    The PIDs of a demo may be those of real processes here, so its snapshots go with its own ender alone.
    """
    if snapshot.demo and not ender.notice:
        return "demo: its processes are not real"
    return "a demo can end no real process" if ender.notice and not snapshot.demo else ""


def target_of(held: Sequence[Row], snapshot: Snapshot, age: float = 0.0) -> Target:
    """Give what `actions.kill` must find: the process of `held`, its rows on all GPUs, as the screen shows it.

    `age` is how many seconds ago the snapshot came.
    """
    first = held[0]
    # A tenth of an interval more, since a sample that is due has not always been taken yet.
    oldest = 2.1 * max(snapshot.interval, 0.5) - age
    return Target(
        pid=first.holding.pid,
        start_ticks=first.process.start or first.holding.start,
        uid=first.process.uid,
        command=first.process.command,
        gpus=tuple(row.gpu.key for row in held),
        held=sum(int(row.holding.memory) for row in held if known(row.holding.memory)),
        stale=any(snapshot.monotonic - row.gpu.sampled > oldest for row in held),
        unreliable=any(row.gpu.unreliable for row in held),
        program=first.process.program,
        unsure=first.process.presence is Presence.UNSURE,
    )


def target_of_unlisted(process: Process, gpus: Sequence[str] = ()) -> Target:
    """Give the same for a process that the driver does not list, and that has device files of these GPUs open."""
    return Target(process.pid, process.start, process.uid, process.command, tuple(gpus), program=process.program)


def target_of_pid(pid: int, snapshot: Snapshot, killer: Killer) -> tuple[Target, Process | None]:
    """Give the same for a PID that somebody typed, and its process, where the snapshot has it."""
    held = [row for row in rows(snapshot) if row.holding.pid == pid]
    if held:
        return target_of(held, snapshot), held[0].process
    found = next((one for one in snapshot.unlisted if one.process.pid == pid), None)
    if found is not None:
        return target_of_unlisted(found.process, found.gpus), found.process
    try:
        stat, uid = procfs.read_stat(pid), procfs.read_uids(pid)[1]
    except (OSError, ValueError):
        return Target(pid, 1, killer.policy.may_end, "", unlisted=True), None  # the pin says what is the matter
    command = killer.shown(pid, stat.comm)
    return Target(pid, stat.start_ticks, uid, command, unlisted=True, program=stat.program), None
