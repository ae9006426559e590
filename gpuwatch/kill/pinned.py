"""Pinned process: proven to be the one on screen, kept by a pidfd, and compared again before each signal.

The kernel lets root signal any process, and a PID read a second ago may belong to another process now. So a pidfd is
opened before anything is read, every fact is then compared with the row on screen, and at the end the pidfd shows
whether the process was alive all the time: if so, the facts belong to it.

Python has the two calls for pidfds only where it was compiled against a glibc of 2020 or later. Conda's and other
portable builds are not, and many GPU programs use them, so the system calls are made by number there: both numbers are
the same on every architecture that NVIDIA's driver supports.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gpuwatch.base import procfs
from gpuwatch.base.child import LIBC
from gpuwatch.base.files import state_folder
from gpuwatch.kill.audit import Audit
from gpuwatch.kill.outcome import End, Outcome, Refusal, Refused, format_parent
from gpuwatch.kill.policy import Policy
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.snapshot import Presence, Process, Snapshot
from gpuwatch.sampler.owners import read_command

_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434

_NOT_A_PROCESS = (errno.EINVAL, errno.ENOENT)
"""Errors of pidfd_open for the id of a thread that is no process, before and since Linux 6.15."""

_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of pidfd_open where no more handles can be opened."""

_WITHOUT_EVIDENCE = (Refusal.NO_DEVICE, Refusal.NOT_ON_GPU, Refusal.FILES_UNREADABLE, Refusal.OTHER_NAMESPACE)
"""Refusals that also occur where a process ends between two reads, which closes its files."""

_SEARCH_AGE_MAX = 90.0
"""Seconds after which the result of a search for open device files is too old to end a process by."""


def open_pidfd(pid: int) -> int:
    """Open a close-on-exec handle on a process; raises `OSError`, with ENOSYS before Linux 5.3."""
    return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else _syscall(_SYS_PIDFD_OPEN, pid, 0)


def send_signal(pidfd: int, sig: signal.Signals) -> None:
    """Send a signal to the process of a handle; raises `OSError`, with ESRCH after it has been reaped."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, sig)
    else:
        _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, sig, None, 0)


def _syscall(number: int, *arguments: int | None) -> int:
    result = int(LIBC.syscall(ctypes.c_long(number), *(None if a is None else ctypes.c_long(a) for a in arguments)))
    if result < 0:
        code = ctypes.get_errno() or errno.ENOSYS
        raise OSError(code, os.strerror(code))
    return result


class KillTarget(msgspec.Struct, frozen=True):
    """Process as it was on screen when the user chose it."""

    process: Process
    gpus: tuple[str, ...] = ()
    """UUIDs of its GPUs."""
    memory: int = 0
    """Bytes on all its GPUs."""
    doubt: Refusal | None = None
    """Why the data on screen cannot be trusted; None where it can."""
    on_screen: bool = True
    """Whether a snapshot shows that it is on a GPU; else only its PID was named."""

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def key(self) -> tuple[int, int]:
        return self.process.key


def refuse_owner(target: KillTarget, uid: int) -> str:
    """Return a refusal that names the owner of a process on screen; empty where that is the user `uid`, or unknown."""
    process = target.process
    if not process.user or process.uid in (None, uid):
        return ""
    return f"it belongs to {process.user}, and gpuwatch signals only your own processes"


def find_targets(snapshot: Snapshot, age: float = 0.0) -> dict[tuple[int, int], KillTarget]:
    """Return a target for each process on a GPU, by PID and start time; the snapshot is `age` seconds old."""
    # A tenth of an interval more, since a sample that is due has not always been taken yet.
    oldest = 2.1 * max(snapshot.interval, 0.5) - age
    targets = {}
    for (_, start), held in Holdings(snapshot).by_process.items():
        doubts = (
            (Refusal.UNRELIABLE, any(part.gpu.unreliable for part in held)),
            (Refusal.OTHER_NAMESPACE, held[0].process.presence is Presence.UNSURE),
            (Refusal.STALE, any(snapshot.monotonic - part.gpu.sampled > oldest for part in held)),
        )
        doubt = next((doubt for doubt, applies in doubts if applies), None)
        process = replace(held[0].process, start=start)
        memory = sum(part.memory for part in held)
        targets[process.key] = KillTarget(process, tuple(part.gpu.key for part in held), memory, doubt)
    old = Refusal.STALE if snapshot.taken - snapshot.searched + age > _SEARCH_AGE_MAX else None
    for unlisted in snapshot.unlisted:
        targets.setdefault(unlisted.process.key, KillTarget(unlisted.process, unlisted.gpus, doubt=old))
    return targets


class PinnedProcess:
    """Process with a pidfd, so that a reused PID can never redirect a signal; only `Pinner` makes one."""

    def __init__(self, pinner: Pinner, target: KillTarget, pidfd: int) -> None:
        self.target = target
        self.signals: list[signal.Signals] = []
        """Signals that were sent."""
        self._pinner = pinner
        self._proc = pinner.proc
        self._pidfd: int | None = pidfd

    def has_exited(self) -> bool:
        """Return whether all threads of the process have ended, reaped by the parent or not."""
        poller = select.poll()
        poller.register(self._handle(), select.POLLIN)
        return bool(poller.poll(0))

    def send(self, sig: signal.Signals) -> Outcome | None:
        """Signal the process; return None where the signal was sent, else the outcome.

        No signal is sent to a process that has another owner, start time or program than when it was pinned, except in
        the microseconds between the comparison and the signal.
        """
        if self.has_exited():
            return Outcome(End.GONE)
        try:
            if set(procfs.read_uids(self.target.pid, self._proc)) != {self._pinner.policy.may_end}:
                return Outcome(End.DENIED, detail="it runs as another user now")
            if changed := self._pinner.find_change(self.target.process):
                not_sent = f"{sig.name} was not sent" if self.signals else "nothing was sent"
                return Outcome(End.CHANGED, detail=f"{changed}; {not_sent}")
            self._pinner.send_signal(self._handle(), sig)
        except procfs.GONE:
            return Outcome(End.GONE)
        except (OSError, ValueError) as error:
            return Outcome(End.DENIED, detail=getattr(error, "strerror", None) or str(error))
        self.signals.append(sig)
        return None

    def read_outcome(self, seconds: float, sent: signal.Signals) -> Outcome:
        """Read the state of the process `seconds` after the first signal; `sent` is the last one."""
        pid, killed = self.target.pid, sent is signal.SIGKILL
        if self.has_exited():
            stat = procfs.find_stat(pid, self._proc, self.target.process.start)
            if stat is None or stat.state not in procfs.DEAD:
                return Outcome(End.EXITED, seconds, sent)
            return Outcome(End.ZOMBIE, seconds, sent, procfs.read_pid_and_name(stat.ppid, self._proc))
        try:
            main = procfs.read_stat(pid, self._proc).state
            threads = islice(procfs.read_threads(pid, self._proc), procfs.THREADS_MAX)
            # After SIGKILL only a thread inside the kernel can be left; before it, one such thread is no evidence.
            states = {stat.state for _, stat in threads} if killed else {main}
        except (OSError, ValueError):
            states, main = set(), ""  # it ended since it was asked, or cannot be read: not known to be stuck
        if procfs.UNINTERRUPTIBLE in states:
            return Outcome(End.STUCK, seconds, sent)
        return Outcome(End.STOPPED if main in procfs.STOPPED and not killed else End.RUNNING, seconds, sent)

    def ignores(self, sig: signal.Signals) -> bool:
        """Return whether the process ignores a signal; False where that cannot be read."""
        return procfs.ignores_signal(self.target.pid, sig, self._proc)

    def close(self) -> None:
        """Close the handle; the process keeps running."""
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _handle(self) -> int:
        if self._pidfd is None:
            raise ValueError(f"PID {self.target.pid} is no longer pinned")
        return self._pidfd


class Pinner:
    """Access to the processes of this machine: proves that a process is the target and pins it, or refuses."""

    def __init__(
        self,
        policy: Policy,
        audit: Audit,
        *,
        describe: Callable[[int], str | None] | None = None,
        proc: Path = procfs.PROC,
        dev: str = "/dev",
        open_pidfd: Callable[[int], int] = open_pidfd,
        send_signal: Callable[[int, signal.Signals], None] = send_signal,
    ) -> None:
        """`describe` returns a process's command as the screen shows it; without one, commands are not compared."""
        self.policy = policy
        self.audit = audit
        self._describe = describe
        self.proc = proc
        self.dev = dev
        self._open_pidfd = open_pidfd
        self.send_signal = send_signal

    def find_target(self, pid: int, snapshot: Snapshot) -> KillTarget:
        """Return the target for a PID that the user typed."""
        for target in find_targets(snapshot).values():
            if target.pid == pid:
                return target
        process = Process(pid=pid, start=1, uid=self.policy.may_end)  # where it cannot be read, pinning it reports that
        try:
            stat, uid = procfs.read_stat(pid, self.proc), procfs.read_uids(pid, self.proc)[1]
        except (OSError, ValueError):
            return KillTarget(process, on_screen=False)
        command = self.read_command(pid) or procfs.format_name(stat.comm)
        process = replace(process, start=stat.start_ticks, uid=uid, command=command, program=stat.program)
        return KillTarget(process, on_screen=False)

    def pin(self, target: KillTarget) -> PinnedProcess | Refused:
        """Open a handle on a process and prove that it is the target; a refusal is recorded.

        The caller closes the result. Never raises for a process that has ended, is hidden or has another owner.
        """
        result = self._refuse_unread(target) or self.open(target.pid)
        if isinstance(result, Refused) and result.reason is Refusal.GONE and not target.on_screen:
            result = replace(result, reason=Refusal.ABSENT)  # a PID that was typed may be wrong
        if isinstance(result, PinnedProcess):
            result.target = target
            try:
                refused = self._refuse_read(result)
            except BaseException:
                result.close()
                raise
            if refused is None:
                return result
            result.close()
            result = refused
        self.record_refusal(target, result)
        return result

    def open(self, pid: int) -> PinnedProcess | Refused:
        """Open a handle on a PID; that proves nothing yet. The caller closes it."""
        try:
            return PinnedProcess(self, KillTarget(Process(pid=pid)), self._open_pidfd(pid))
        except ProcessLookupError:
            return self._absent(pid)
        except OSError as error:
            if error.errno in _NOT_A_PROCESS:
                return Refused(Refusal.CHANGED, pid, "it is a thread now")
            reason = Refusal.TOO_MANY if error.errno in _NO_MORE else Refusal.NO_PIDFD
            return Refused(reason, pid, error.strerror or "")

    def read_command(self, pid: int) -> str | None:
        """Return the command of a process as on screen; None where it cannot be read."""
        return self._describe(pid) if self._describe is not None else None

    def find_change(self, shown: Process) -> str:
        """Return how a process differs from the one that was shown; empty if it does not. Raises OSError, ValueError.

        Other addresses in memory mean another program, and not only another title of the same program. Where the
        addresses are not known, another command line counts as another program.
        """
        stat = procfs.read_living_stat(shown.pid, self.proc)
        if stat is None:
            return ""  # it is ending: there is nothing left to compare, and a signal has no effect
        if stat.start_ticks != shown.start:
            return "it started at another time"
        if shown.program and stat.program:
            changed = "it runs another program now" if stat.program != shown.program else ""
        else:
            is_same = self._describe is None or self._describe(shown.pid) == shown.command
            changed = "" if is_same else "it may run another program now"
        return f"{changed}: {self.read_command(shown.pid) or procfs.format_name(stat.comm)}" if changed else ""

    def find_uids(self, pid: int) -> set[int]:
        """Return the uids of a process; empty where they cannot be read."""
        with suppress(OSError, ValueError):
            return set(procfs.read_uids(pid, self.proc))
        return set()

    def is_running(self, pid: int, start_ticks: int) -> bool:
        """Return whether the process of this start time still runs; False where that cannot be read."""
        with suppress(OSError, ValueError):
            same = procfs.find_stat(pid, self.proc, start_ticks) is not None
            return same and not procfs.has_ended(pid, self.proc)
        return False

    def is_on_gpu(self, pid: int) -> bool:
        """Return whether a process has a GPU's device file open; False where that cannot be read."""
        with suppress(OSError, ValueError):
            return procfs.has_gpu_open(pid, self.proc, self.dev)
        return False

    def record(self, event: str, target: KillTarget, fields: Mapping[str, object]) -> None:
        """Write a line about a target to the audit file."""
        process = target.process
        facts = {"uid": self.policy.uid, "pid": process.pid, "start_ticks": process.start, "target_uid": process.uid}
        seen = {"gpus": target.gpus, "held": target.memory, "command": process.command}
        self.audit.append(event, {**facts, **seen, **fields})

    def record_refusal(self, target: KillTarget, refused: Refused) -> None:
        self.record("refused", target, {"result": refused.reason.word, "detail": refused.detail})

    def _absent(self, pid: int) -> Refused:
        inside = procfs.is_in_pid_namespace(self.proc)
        return Refused(Refusal.OTHER_NAMESPACE if inside else Refusal.GONE, pid)

    def refuse_shown(self, target: KillTarget) -> Refused | None:
        """Return the refusal that follows from the data on screen, without reading the process; None for none."""
        uid, pid = target.process.uid, target.pid
        refused = Refused(Refusal.NOT_YOURS, pid, f"it runs as uid {uid}") if uid != self.policy.may_end else None
        return self._refuse_unread(target) or refused

    def _refuse_unread(self, target: KillTarget) -> Refused | None:
        """Return the refusal that needs no facts about the process; None where there is none."""
        checks = (
            (Refusal.READ_ONLY, self.policy.read_only),
            (Refusal.ROOT, self.policy.euid == 0 and not self.policy.allow_root),
            (target.doubt or Refusal.STALE, target.doubt is not None),
            (Refusal.SYSTEM_PID, target.pid <= 1),
            (Refusal.ITSELF, target.pid == self.policy.pid),
            (Refusal.NO_IDENTITY, target.process.start <= 0 or target.process.uid is None),
        )
        return next((Refused(reason, target.pid) for reason, applies in checks if applies), None)

    def _refuse_read(self, pinned: PinnedProcess) -> Refused | None:
        """Return the refusal that follows from the facts about the process; None where there is none."""
        pid = pinned.target.pid
        try:
            refused = self._refuse_identity(pinned) or self._refuse_without_gpu(pinned.target)
        except procfs.GONE:
            return self._absent(pid)
        except (OSError, ValueError) as error:
            return Refused(Refusal.UNREADABLE, pid, str(error))
        if (refused is None or refused.reason in _WITHOUT_EVIDENCE) and pinned.has_exited():
            return Refused(Refusal.GONE, pid)
        return refused

    def _refuse_identity(self, pinned: PinnedProcess) -> Refused | None:
        shown, pid = pinned.target.process, pinned.target.pid
        stat = procfs.read_stat(pid, self.proc)
        uids = procfs.read_uids(pid, self.proc)
        if stat.start_ticks != shown.start:
            return Refused(Refusal.CHANGED, pid, "it started at another time")
        if pid in procfs.find_ancestors(self.policy.pid, self.proc):
            return Refused(Refusal.ANCESTOR, pid)
        if self.policy.pid in procfs.find_ancestors(pid, self.proc):
            return Refused(Refusal.HELPER, pid)
        if shown.uid not in uids:
            return Refused(Refusal.CHANGED, pid, f"it runs as uid {uids[1]} now")
        if others := set(uids) - {self.policy.may_end}:
            return Refused(Refusal.NOT_YOURS, pid, f"it runs as uid {min(others)}")
        if procfs.has_ended(pid, self.proc):
            return Refused(Refusal.GONE, pid, format_parent(procfs.read_pid_and_name(stat.ppid, self.proc)))
        if changed := self.find_change(shown):
            return Refused(Refusal.CHANGED, pid, changed)
        stat = procfs.read_living_stat(pid, self.proc) or stat
        pinned.target = replace(pinned.target, process=replace(shown, program=stat.program or shown.program))
        return None

    def _refuse_without_gpu(self, target: KillTarget) -> Refused | None:
        try:
            has_device = procfs.has_gpu_open(target.pid, self.proc, self.dev)
        except PermissionError:
            return Refused(Refusal.FILES_UNREADABLE, target.pid)
        inside = procfs.is_in_pid_namespace(self.proc)
        if not target.on_screen:  # in a container it may be listed by its number outside
            return Refused(Refusal.OTHER_NAMESPACE if inside and has_device else Refusal.NOT_ON_GPU, target.pid)
        if has_device:
            return None
        return Refused(Refusal.OTHER_NAMESPACE if inside else Refusal.NO_DEVICE, target.pid)


def make_pinner(*, read_only: bool, allow_root: bool) -> Pinner:
    """Return the pinner of this program, with an audit file that never blocks for long."""
    policy = Policy.of_this_process(read_only=read_only, allow_root=allow_root)
    return Pinner(policy, Audit(state_folder()), describe=shown_command)


def shown_command(pid: int) -> str | None:
    """Return the command line of a process as on screen; None where it cannot be read."""
    with suppress(OSError):
        return read_command(pid)
    return None
