"""Ending a process of one's own: pin it first, prove that it is the one on screen, and only then signal it.

The kernel alone would let root hit anyone, and a PID read a second ago may be somebody else's by now. So a handle
(pidfd) is opened before anything is read, every fact is then compared with what the person saw, and the handle is
asked at the end whether the process was alive all along: if so, the facts are about it and no other.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gpuwatch import procfs
from gpuwatch.actions import pidfd
from gpuwatch.actions.audit import Audit
from gpuwatch.actions.outcome import End, Outcome, unreaped
from gpuwatch.actions.refusal import Refusal, Refused
from gpuwatch.text import clean

WEAKER = "weaker check: this kernel gives no handle on a process, so its start time is compared before each signal"

_NOT_A_PROCESS = (errno.EINVAL, errno.ENOENT)
"""pidfd_open's answers for the id of a thread that is no process, before and since Linux 6.15."""

_WITHOUT_EVIDENCE = (Refusal.NO_DEVICE, Refusal.FILES_UNREADABLE, Refusal.OTHER_NAMESPACE)
"""What a process looks like that ended between two reads: its files are closed by then."""


@dataclass(frozen=True)
class Target:
    """The process as it was on screen when the person chose it."""

    pid: int
    start_ticks: int
    """Clock ticks since boot (field 22 of /proc/PID/stat); 0 where it was not known."""
    uid: int | None
    command: str
    """As displayed: cleaned, secrets masked."""
    gpus: tuple[str, ...] = ()
    """UUIDs."""
    held: int = 0
    """Bytes on all of them."""
    stale: bool = False
    """The row is older than two intervals."""
    unreliable: bool = False
    """The driver's list makes no sense (`Gpu.unreliable`)."""


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
        self._proc = proc
        self._dev = dev
        self._open_pidfd = open_pidfd

    def pin(self, target: Target) -> Pinned | Refused:
        """Open a handle on the process and prove that it is the target; a refusal is put on record.

        The caller closes what it gets. Never raises for a process that is gone, hidden or somebody else's.
        """
        pinned_or_refused = self._refuse_unseen(target) or self._pin(target)
        if isinstance(pinned_or_refused, Refused):
            record = {**self.facts(target), "result": pinned_or_refused.reason.value}
            self.audit.append("refused", {**record, "detail": pinned_or_refused.detail})
        return pinned_or_refused

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
            (Refusal.STALE, target.stale),
            (Refusal.SYSTEM_PID, target.pid <= 1),
            (Refusal.ITSELF, target.pid == self.policy.pid),
            (Refusal.NO_IDENTITY, target.start_ticks <= 0 or target.uid is None),
        )
        return next((Refused(reason, target.pid) for reason, holds in checks if holds), None)

    def _pin(self, target: Target) -> Pinned | Refused:
        handle: int | None = None
        weaker = ""
        try:
            handle = self._open_pidfd(target.pid)
        except ProcessLookupError:
            return self._absent(target)
        except OSError as error:
            if error.errno in _NOT_A_PROCESS:
                return Refused(Refusal.CHANGED, target.pid, "it is a thread now")
            weaker = f"{WEAKER} ({error.strerror})"
        pinned = Pinned(self, target, handle, weaker, self._proc, self._dev)
        try:
            refused = self._refuse_seen(target, pinned)
        except BaseException:
            pinned.close()
            raise
        if refused is not None:
            pinned.close()
        return refused or pinned

    def _absent(self, target: Target) -> Refused:
        inside = procfs.in_pid_namespace(self._proc)
        return Refused(Refusal.OTHER_NAMESPACE if inside else Refusal.GONE, target.pid)

    def _refuse_seen(self, target: Target, pinned: Pinned) -> Refused | None:
        """The refusals that follow from what the process is."""
        try:
            refused = self._refuse_identity(target) or self._refuse_without_device(target)
        except procfs.GONE:
            return self._absent(target)
        except (OSError, ValueError) as error:
            return Refused(Refusal.UNREADABLE, target.pid, str(error))
        if (refused is None or refused.reason in _WITHOUT_EVIDENCE) and pinned.exited():
            return Refused(Refusal.GONE, target.pid)
        return refused

    def _refuse_identity(self, target: Target) -> Refused | None:
        pid = target.pid
        stat = procfs.read_stat(pid, self._proc)
        uids = procfs.read_uids(pid, self._proc)
        if stat.start_ticks != target.start_ticks:
            return Refused(Refusal.CHANGED, pid, "it started at another time")
        if stat.kernel_thread:
            return Refused(Refusal.KERNEL_THREAD, pid)
        if pid in procfs.ancestors(self.policy.pid, self._proc):
            return Refused(Refusal.ANCESTOR, pid)
        if self.policy.pid in procfs.ancestors(pid, self._proc):
            return Refused(Refusal.HELPER, pid)
        if target.uid not in uids:
            return Refused(Refusal.CHANGED, pid, f"it runs as uid {uids[1]} now")
        if set(uids) != {self.policy.may_end}:
            other = next(uid for uid in uids if uid != self.policy.may_end)
            return Refused(Refusal.NOT_YOURS, pid, f"it runs as uid {other}")
        if procfs.ended(pid, self._proc):
            return Refused(Refusal.ZOMBIE, pid, unreaped(_parent(stat.ppid, self._proc)))
        if self._describe is not None and self._describe(pid) != target.command:
            return Refused(Refusal.CHANGED, pid, "its command is another")
        return None

    def _refuse_without_device(self, target: Target) -> Refused | None:
        try:
            if holds_gpu(target.pid, self._proc, self._dev):
                return None
        except PermissionError:
            return Refused(Refusal.FILES_UNREADABLE, target.pid)
        inside = procfs.in_pid_namespace(self._proc)
        return Refused(Refusal.OTHER_NAMESPACE if inside else Refusal.NO_DEVICE, target.pid)


class Pinned:
    """A process that is certainly the one on screen, and stays it: signals go to the handle, not to the PID.

    Where the kernel gives no handle (`weaker` says why), the start time is compared before each signal instead.
    Use it as a context manager, or close it.
    """

    def __init__(self, killer: Killer, target: Target, handle: int | None, weaker: str, proc: Path, dev: str) -> None:
        """Made by `Killer.pin`, which owns the checks."""
        self.target = target
        self.weaker = weaker
        self._killer = killer
        self._handle = handle
        self._proc = proc
        self._dev = dev
        self.unrecorded: str | None = None
        """Why the last line about this process is not on record; None when it is."""
        self._family: dict[int, int] = {}
        self._closed = False

    def send(self, sig: signal.Signals) -> Outcome | None:
        """Signal the process; None when it was sent, else why not. A line of intent is on record before it."""
        if self._closed:
            raise ValueError(f"PID {self.target.pid} is no longer pinned")
        self.record("intent", signal=sig.name)
        self._family |= procfs.descendants(self.target.pid, self._proc)
        if self.exited():
            return Outcome(End.GONE)
        try:
            if set(procfs.read_uids(self.target.pid, self._proc)) != {self._killer.policy.may_end}:
                return Outcome(End.DENIED, detail="it runs as another user now")
            handle = self._handle
            if handle is not None:
                pidfd.send_signal(handle, sig)
            elif self.weaker:
                os.kill(self.target.pid, sig)
            else:  # another thread let go of the handle: nothing holds the PID to this process any more
                return Outcome(End.DENIED, detail="it is no longer pinned")
        except procfs.GONE:
            return Outcome(End.GONE)
        except (OSError, ValueError) as error:
            return Outcome(End.DENIED, detail=getattr(error, "strerror", None) or str(error))
        return None

    def exited(self) -> bool:
        """Whether all its threads have ended, reaped or not; does not block."""
        if self._handle is not None:
            return pidfd.exited(self._handle)
        return not self._same() or procfs.ended(self.target.pid, self._proc)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end of the process; whether it has ended."""
        if self._handle is not None:
            return pidfd.exited(self._handle, timeout)
        deadline = time.monotonic() + timeout
        while not self.exited() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.exited()

    def look(self, *, seconds: float = 0.0, killed: bool = False) -> Outcome:
        """What has become of the process by now."""
        if self.exited():
            parent = self._unreaped_by()
            return Outcome(End.ZOMBIE if parent else End.EXITED, seconds, killed, parent)
        try:
            main = procfs.read_stat(self.target.pid, self._proc).state
            # After SIGKILL only a thread inside the kernel can be left; before it, one such thread means little.
            states = procfs.thread_states(self.target.pid, self._proc) if killed else (main,)
        except (OSError, ValueError):
            states, main = (), ""  # it ended since it was asked, or cannot be read: not known to be stuck
        if procfs.UNINTERRUPTIBLE in states:
            return Outcome(End.STUCK, seconds, killed)
        return Outcome(End.STOPPED if main in procfs.STOPPED and not killed else End.RUNNING, seconds, killed)

    def left_behind(self) -> tuple[int, ...]:
        """PIDs that it had started, and that still run and hold a GPU device open (orphaned data workers)."""
        left = []
        for pid, start_ticks in sorted(self._family.items()):
            try:
                if procfs.read_stat(pid, self._proc).start_ticks == start_ticks:
                    left += [pid] if holds_gpu(pid, self._proc, self._dev) else []
            except (OSError, ValueError):
                continue  # it has ended, or its files are closed to us: not known to hold anything
        return tuple(left)

    def record(self, event: str, **fields: object) -> str | None:
        """Put a line about this process on record; returns why that failed."""
        facts = self._killer.facts(self.target)
        self.unrecorded = self._killer.audit.append(event, {**facts, "weaker": bool(self.weaker), **fields})
        return self.unrecorded

    def close(self) -> None:
        """Give the handle back; the process is left as it is."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
        self._closed = True

    def __enter__(self) -> Pinned:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _same(self) -> bool:
        try:
            return procfs.read_stat(self.target.pid, self._proc).start_ticks == self.target.start_ticks
        except (OSError, ValueError):
            return False  # gone; and what cannot be read is not proven to be the same, so nothing is sent to it

    def _unreaped_by(self) -> tuple[int, str] | None:
        try:
            stat = procfs.read_stat(self.target.pid, self._proc)
        except (OSError, ValueError):
            return None  # reaped
        if stat.start_ticks != self.target.start_ticks or stat.state not in procfs.DEAD:
            return None
        return _parent(stat.ppid, self._proc)


def holds_gpu(pid: int, proc: Path = procfs.PROC, dev: str = "/dev") -> bool:
    """Whether a process holds a GPU's device file open: /dev/nvidia… natively, /dev/dxg under WSL.

    Raises `OSError`: `PermissionError` where the process is not ours.
    """
    nvidia, dxg = f"{dev}/nvidia", f"{dev}/dxg"
    return any(name.startswith(nvidia) or name == dxg for name in procfs.open_files(pid, proc))


def _parent(pid: int, proc: Path) -> tuple[int, str]:
    try:
        return pid, clean(procfs.read_stat(pid, proc).comm)
    except (OSError, ValueError):
        return pid, "unknown"
