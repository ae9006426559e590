"""Target of a signal: compared with the row on screen, pinned by a pidfd, and checked before each signal.

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
import time
from collections.abc import Callable, Collection, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import msgspec

from gpuwatch import procfs
from gpuwatch.analysis.rows import Row, rows
from gpuwatch.files import state_folder
from gpuwatch.kill import run
from gpuwatch.kill.audit import RECORD_SECONDS, Audit
from gpuwatch.kill.outcome import End, Outcome, Refusal, Refused, unreaped
from gpuwatch.kill.policy import Policy
from gpuwatch.model import Presence, Process, Snapshot, known
from gpuwatch.sampler.owners import read_command

if TYPE_CHECKING:
    from gpuwatch.kill.session import PinnedProcess

WEAKER = "weaker check: this kernel gives no handle on a process, so its start time is compared before each signal"

_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434

_NOT_A_PROCESS = (errno.EINVAL, errno.ENOENT)
"""Errors of pidfd_open for the id of a thread that is no process, before and since Linux 6.15."""

_NO_MORE = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of pidfd_open where no more handles can be opened."""

_WITHOUT_EVIDENCE = (Refusal.NO_DEVICE, Refusal.NOT_ON_GPU, Refusal.FILES_UNREADABLE, Refusal.OTHER_NAMESPACE)
"""Refusals that also occur where a process ends between two reads, which closes its files."""


# ---------------------------------------------------------------------------------------------------------------------
# System calls


def open_pidfd(pid: int) -> int:
    """Open a close-on-exec handle on a process; raises `OSError`, with ENOSYS before Linux 5.3."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return open_by_number(pid)


def send_signal(pidfd: int, sig: signal.Signals) -> None:
    """Send a signal to the process of a handle; raises `OSError`, with ESRCH after it has been reaped."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, sig)
    else:
        send_by_number(pidfd, sig)


def open_by_number(pid: int) -> int:
    """Open a handle by the number of the system call."""
    return _syscall(_SYS_PIDFD_OPEN, pid, 0)


def send_by_number(pidfd: int, sig: signal.Signals) -> None:
    """Send a signal by the number of the system call."""
    _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, sig, None, 0)


def has_exited(pidfd: int, timeout: float = 0.0) -> bool:
    """Return whether all threads of the process end within `timeout` seconds, reaped by the parent or not."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(max(0.0, timeout) * 1000))


def _syscall(number: int, *arguments: int | None) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    result = int(libc.syscall(ctypes.c_long(number), *(None if a is None else ctypes.c_long(a) for a in arguments)))
    if result < 0:
        code = ctypes.get_errno() or errno.ENOSYS
        raise OSError(code, os.strerror(code))
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Target


class Target(msgspec.Struct, frozen=True):
    """Process as it was on screen when the user chose it."""

    pid: int
    start_ticks: int
    """Clock ticks since boot (field 22 of /proc/PID/stat); 0 where not known."""
    uid: int | None
    command: str
    """Command as displayed: cleaned, secrets masked."""
    gpus: tuple[str, ...] = ()
    """UUIDs of its GPUs."""
    held: int = 0
    """Bytes on all its GPUs."""
    stale: bool = False
    """Whether the row is older than two intervals."""
    unreliable: bool = False
    """Whether the driver's list is impossible (`Gpu.unreliable`)."""
    unlisted: bool = False
    """Whether it was named by its PID, and no GPU is known to be held by it."""
    program: str = ""
    """Mark of the program with this command, see `procfs.Stat.program`; empty where it is not known."""
    unsure: bool = False
    """Whether the driver may mean another process by this PID (`Presence.UNSURE`)."""
    user: str = ""
    """Name of its owner; empty where the process is in no snapshot."""

    @property
    def key(self) -> tuple[int, int]:
        return self.pid, self.start_ticks


def target_of(held: Sequence[Row], snapshot: Snapshot, age: float = 0.0) -> Target:
    """Return the target for a process with these rows; the snapshot is `age` seconds old."""
    first, process = held[0], held[0].process
    # A tenth of an interval more, since a sample that is due has not always been taken yet.
    oldest = 2.1 * max(snapshot.interval, 0.5) - age
    return Target(
        pid=first.holding.pid,
        start_ticks=process.start or first.holding.start,
        uid=process.uid,
        command=process.command,
        gpus=tuple(row.gpu.key for row in held),
        held=sum(int(row.holding.memory) for row in held if known(row.holding.memory)),
        stale=any(snapshot.monotonic - row.gpu.sampled > oldest for row in held),
        unreliable=any(row.gpu.unreliable for row in held),
        program=process.program,
        unsure=process.presence is Presence.UNSURE,
        user=process.user or "?",
    )


def target_of_unlisted(process: Process, gpus: Sequence[str] = ()) -> Target:
    """Return the target for a process that has these GPUs open and is not listed by the driver."""
    return Target(
        process.pid,
        process.start,
        process.uid,
        process.command,
        tuple(gpus),
        program=process.program,
        user=process.user or "?",
    )


def target_of_pid(pid: int, snapshot: Snapshot, killer: Killer) -> Target:
    """Return the target for a PID that the user typed."""
    held = [row for row in rows(snapshot) if row.holding.pid == pid]
    if held:
        return target_of(held, snapshot)
    found = next((one for one in snapshot.unlisted if one.process.pid == pid), None)
    if found is not None:
        return target_of_unlisted(found.process, found.gpus)
    try:
        stat, uid = procfs.read_stat(pid), procfs.read_uids(pid)[1]
    except (OSError, ValueError):
        return Target(pid, 1, killer.policy.may_end, "", unlisted=True)  # pinning it says what is the matter
    return Target(pid, stat.start_ticks, uid, killer.shown(pid, stat.comm), unlisted=True, program=stat.program)


# ---------------------------------------------------------------------------------------------------------------------
# Checks


class Killer:
    """Access to the processes of this machine: proves that a process is the target and pins it, or refuses."""

    notice = ""
    """Notice that is shown at each step; only a demo has one."""

    def __init__(
        self,
        policy: Policy,
        audit: Audit,
        *,
        describe: Callable[[int], str | None] | None = None,
        proc: Path = procfs.PROC,
        dev: str = "/dev",
        open_pidfd: Callable[[int], int] = open_pidfd,
    ) -> None:
        """`describe` returns a process's command as the screen shows it; without one, commands are not compared."""
        self.policy = policy
        self.audit = audit
        self._describe = describe
        self.proc = proc
        self.dev = dev
        self._open_pidfd = open_pidfd

    def pin(self, target: Target) -> Pinned | Refused:
        """Open a handle on a process and prove that it is the target; a refusal is recorded.

        The caller closes the result. Never raises for a process that has ended, is hidden or has another owner.
        """
        result = self._refuse_unseen(target) or self._pin(target)
        if isinstance(result, Refused):
            self.refuse(target, result)
        return result

    def pin_run(self, held: PinnedProcess, snapshot: Snapshot, *, asked: bool = True) -> run.Run | Refused:
        """Pin the whole run of a process that `pin` returned: see `run.pin_run`."""
        if not isinstance(held, Pinned):
            raise TypeError(f"PID {held.target.pid} was not pinned on this machine")
        return run.pin_run(self, held, snapshot, asked=asked)

    def problem(self) -> str | None:
        """Return why actions cannot be recorded now; None where they can."""
        return self.audit.problem()

    def refuse(self, target: Target, refused: Refused, **more: object) -> None:
        """Record a refusal; `more` are further fields of its line."""
        fields = {"result": refused.reason.value, "detail": refused.detail}
        self.audit.append("refused", {**self.facts(target), **more, **fields})

    def open(self, pid: int) -> Pinned | Refused:
        """Open a handle on a PID; that proves nothing yet. The caller closes it.

        Where the kernel gives no handle, `Pinned.weaker` says why the check will be weaker.
        """
        bare = Target(pid, 0, self.policy.may_end, "")
        try:
            return Pinned(self, bare, self._open_pidfd(pid), "")
        except ProcessLookupError:
            return self._absent(pid)
        except OSError as error:
            if error.errno in _NOT_A_PROCESS:
                return Refused(Refusal.CHANGED, pid, "it is a thread now")
            if error.errno in _NO_MORE:
                return Refused(Refusal.TOO_MANY, pid, error.strerror or "")
            return Pinned(self, bare, None, f"{WEAKER} ({error.strerror})")

    def _absent(self, pid: int) -> Refused:
        inside = procfs.is_in_pid_namespace(self.proc)
        return Refused(Refusal.OTHER_NAMESPACE if inside else Refusal.GONE, pid)

    def described(self, pid: int) -> str | None:
        """Return the command of a process as on screen; None where it cannot be read."""
        return self._describe(pid) if self._describe is not None else None

    def shown(self, pid: int, comm: bytes) -> str:
        """Return the command of a process as on screen, or its name where that cannot be read."""
        return self.described(pid) or procfs.format_name(comm)

    def facts(self, target: Target) -> dict[str, object]:
        """Return the fields about a target for each line of the audit file."""
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
        """Return the refusal that needs no facts about the process; None where there is none."""
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
        return next((Refused(reason, target.pid) for reason, applies in checks if applies), None)

    def _pin(self, target: Target) -> Pinned | Refused:
        pinned = self.open(target.pid)
        if isinstance(pinned, Refused):
            return pinned
        pinned.target = target
        try:
            refused = self._refuse_seen(target, pinned)
        except BaseException:
            pinned.close()
            raise
        if refused is not None:
            pinned.close()
        return refused or pinned

    def _refuse_seen(self, target: Target, pinned: Pinned) -> Refused | None:
        """Return the refusal that follows from the facts about the process; None where there is none."""
        try:
            refused = self._refuse_identity(target, pinned) or self._refuse_without_device(target)
            if refused is None:
                pinned.note_device()
        except procfs.GONE:
            return self._absent(target.pid)
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
        if pid in procfs.find_ancestors(self.policy.pid, self.proc):
            return Refused(Refusal.ANCESTOR, pid)
        if self.policy.pid in procfs.find_ancestors(pid, self.proc):
            return Refused(Refusal.HELPER, pid)
        if target.uid not in uids:
            return Refused(Refusal.CHANGED, pid, f"it runs as uid {uids[1]} now")
        if set(uids) != {self.policy.may_end}:
            other = next(uid for uid in uids if uid != self.policy.may_end)
            return Refused(Refusal.NOT_YOURS, pid, f"it runs as uid {other}")
        if procfs.has_ended(pid, self.proc):
            return Refused(Refusal.ZOMBIE, pid, unreaped(procfs.read_pid_and_name(stat.ppid, self.proc)))
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
            has_device = procfs.has_gpu_open(target.pid, self.proc, self.dev)
        except PermissionError:
            return Refused(Refusal.FILES_UNREADABLE, target.pid)
        inside = procfs.is_in_pid_namespace(self.proc)
        if target.unlisted:  # in a container it may be listed by its number outside
            return Refused(Refusal.OTHER_NAMESPACE if inside and has_device else Refusal.NOT_ON_GPU, target.pid)
        if has_device:
            return None
        return Refused(Refusal.OTHER_NAMESPACE if inside else Refusal.NO_DEVICE, target.pid)


def make_killer(*, read_only: bool, allow_root: bool) -> Killer:
    """Return the killer of this program, with an audit file that never blocks for long."""
    policy = Policy.of_this_process(read_only=read_only, allow_root=allow_root)
    return Killer(policy, Audit(state_folder(), seconds=RECORD_SECONDS), describe=shown_command)


def shown_command(pid: int) -> str | None:
    """Return the command line of a process as on screen; None where it cannot be read."""
    try:
        return read_command(pid)
    except OSError:
        return None


# ---------------------------------------------------------------------------------------------------------------------
# Signal


class Pinned:
    """Process with a pidfd, so that a reused PID can never redirect a signal.

    Where the kernel gives no pidfd (`weaker` says why), the start time is compared before each signal instead.
    Use it as a context manager, or close it.
    """

    def __init__(self, killer: Killer, target: Target, handle: int | None, weaker: str) -> None:
        """To be called only by `Killer`, which proves that the process is `target`."""
        self.target = target
        self.weaker = weaker
        self.run = ""
        """Key of the run with which it is ended; empty where it is ended alone."""
        self._killer = killer
        self._handle = handle
        self._proc = killer.proc
        self._program = ""
        self._command: str | None = None
        """Command when it was pinned; compared where its program has no mark."""
        self._had_device = False
        self._intent = ""
        """Signal of the last line of intent, until that signal is sent."""
        self._sent = False
        self._family: dict[int, int] = {}
        self._closed = False

    def note_program(self, stat: procfs.Stat) -> None:
        """Store which program the process runs; compared before each signal."""
        self._program = stat.program
        self._command = None if self._program else self._killer.described(self.target.pid)

    def note_device(self) -> None:
        """Store whether the process has a GPU's device file open; compared before each signal."""
        self._had_device = self.on_gpu()

    def send(self, sig: signal.Signals) -> Outcome | None:
        """Signal the process; return None where the signal was sent, else the outcome.

        Raises `ValueError` without a line of intent for this signal: see `record`. No signal is sent to a
        process that has changed since it was pinned, except in the microseconds between the check and the signal.
        """
        if self._closed:
            raise ValueError(f"PID {self.target.pid} is no longer pinned")
        if self._intent != sig.name:
            raise ValueError(f"{sig.name} to PID {self.target.pid} has no line of intent")
        self._intent = ""
        if self.exited():
            return Outcome(End.GONE)
        try:
            if set(procfs.read_uids(self.target.pid, self._proc)) != {self._killer.policy.may_end}:
                return Outcome(End.DENIED, detail="it runs as another user now")
            if changed := self._changed():
                not_sent = f"{sig.name} was not sent" if self._sent else "nothing was sent"
                return Outcome(End.CHANGED, detail=f"{changed}; {not_sent}")
            handle = self._handle
            if handle is not None:
                send_signal(handle, sig)
            elif self.weaker:
                os.kill(self.target.pid, sig)
            else:  # another thread let go of the handle: nothing holds the PID to this process any more
                return Outcome(End.DENIED, detail="it is no longer pinned")
        except procfs.GONE:
            return Outcome(End.GONE)
        except (OSError, ValueError) as error:
            return Outcome(End.DENIED, detail=getattr(error, "strerror", None) or str(error))
        self._sent = True
        return None

    def exited(self) -> bool:
        """Return whether all threads of the process have ended, reaped or not."""
        if self._handle is not None:
            return has_exited(self._handle)
        return not self._same() or procfs.has_ended(self.target.pid, self._proc)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end of the process; return whether it has ended."""
        if self._handle is not None:
            return has_exited(self._handle, timeout)
        deadline = time.monotonic() + timeout
        while not self.exited() and time.monotonic() < deadline:
            time.sleep(0.02)
        return self.exited()

    def look(self, *, seconds: float = 0.0, killed: bool = False) -> Outcome:
        """Return the state of the process."""
        if self.exited():
            parent = self._unreaped_by()
            return Outcome(End.ZOMBIE if parent else End.EXITED, seconds, killed, parent)
        try:
            main = procfs.read_stat(self.target.pid, self._proc).state
            threads = islice(procfs.read_threads(self.target.pid, self._proc), procfs.THREADS_MAX)
            # After SIGKILL only a thread inside the kernel can be left; before it, one such thread means little.
            states = {stat.state for _, stat in threads} if killed else {main}
        except (OSError, ValueError):
            states, main = set(), ""  # it ended since it was asked, or cannot be read: not known to be stuck
        if procfs.UNINTERRUPTIBLE in states:
            return Outcome(End.STUCK, seconds, killed)
        return Outcome(End.STOPPED if main in procfs.STOPPED and not killed else End.RUNNING, seconds, killed)

    def find_family(self) -> None:
        """Add the process's present descendants to its family; after it has ended they can no longer be found."""
        self._family |= procfs.find_descendants(self.target.pid, self._proc)

    def family(self) -> tuple[int, ...]:
        """Return the PIDs of the running processes of its family."""
        return tuple(pid for pid, start_ticks in sorted(self._family.items()) if self._runs(pid, start_ticks))

    def leftovers(self, listed: Collection[int] = ()) -> tuple[int, ...]:
        """Return the PIDs of its family that have a GPU open, or that the driver lists: leftover workers."""
        left = []
        for pid in self.family():
            try:
                left += [pid] if pid in listed or procfs.has_gpu_open(pid, self._proc, self._killer.dev) else []
            except (OSError, ValueError):
                continue  # it has ended, or its files are closed to us: not known to hold anything
        return tuple(left)

    def on_gpu(self) -> bool:
        """Return whether the process still runs and has a GPU device open; False where that cannot be read."""
        try:
            return not self.exited() and procfs.has_gpu_open(self.target.pid, self._proc, self._killer.dev)
        except (OSError, ValueError):
            return False

    def ignores(self, sig: signal.Signals) -> bool:
        """Return whether the process ignores a signal; False where that cannot be read.

        A process that a script has started with `&` ignores SIGINT: POSIX demands it, and Python does not change it.
        Source: the mask SigIgn of /proc/PID/status, proc_pid_status(5).
        """
        try:
            lines = procfs.read_status(self.target.pid, self._proc).splitlines()
            mask = next((int(line.split()[1], 16) for line in lines if line.startswith(b"SigIgn:")), 0)
        except (OSError, ValueError, IndexError):
            return False
        return bool(mask >> (sig - 1) & 1)

    def record(self, event: str, **fields: object) -> str | None:
        """Write a line about this process to the audit file; return why that failed.

        A line of `intent` comes before each signal, one of `outcome` after it.
        """
        self._intent = str(fields.get("signal", "")) if event == "intent" else ""
        facts = self._killer.facts(self.target) | ({"run": self.run} if self.run else {})
        return self._killer.audit.append(event, {**facts, "weaker": bool(self.weaker), **fields})

    def close(self) -> None:
        """Close the handle; the process keeps running."""
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

    def _runs(self, pid: int, start_ticks: int) -> bool:
        try:
            return procfs.find_stat(pid, self._proc, start_ticks) is not None and not procfs.has_ended(pid, self._proc)
        except (OSError, ValueError):
            return False

    def _changed(self) -> str:
        """Return what has changed since it was pinned; empty for no change. Raises `OSError` or `ValueError`.

        Other addresses in memory mean another program, and not only another title of the same program. Where the
        addresses are not known, another command line counts as another program.
        """
        stat = procfs.read_living_stat(self.target.pid, self._proc)
        if stat is None:
            return ""  # it is on its way out: there is nothing more to compare, and a signal does nothing
        if stat.start_ticks != self.target.start_ticks:
            return "it started at another time"
        if self._program and stat.program:
            runs_another = "it runs another program now" if stat.program != self._program else ""
        else:
            same = self._command == self._killer.described(self.target.pid)
            runs_another = "" if same else "it may run another program now"
        if runs_another:
            return f"{runs_another}: {self._killer.shown(self.target.pid, stat.comm)}"
        if self._had_device and not procfs.has_gpu_open(self.target.pid, self._proc, self._killer.dev):
            return "it has no GPU device open any more"
        return ""

    def _same(self) -> bool:
        # What cannot be read is not proven to be the same, so nothing is sent to it.
        return procfs.find_stat(self.target.pid, self._proc, self.target.start_ticks) is not None

    def _unreaped_by(self) -> tuple[int, str] | None:
        stat = procfs.find_stat(self.target.pid, self._proc, self.target.start_ticks)
        if stat is None or stat.state not in procfs.DEAD:
            return None  # reaped, or it still runs
        return procfs.read_pid_and_name(stat.ppid, self._proc)
