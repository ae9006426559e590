"""Pinned process: held by a pidfd that a reused PID cannot redirect, and the reasons for which it is not signalled.

Python has both calls only where it was compiled against a glibc of 2020 or later. Conda's and other portable
builds are not, and they are what many GPU programs run under, so the system calls are made by number there:
both numbers are the same on every architecture that NVIDIA's driver supports.
"""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from gpuwatch import procfs
from gpuwatch.kill.outcome import End, Outcome
from gpuwatch.text import clean

if TYPE_CHECKING:
    from gpuwatch.kill.target import Killer


_SYS_PIDFD_SEND_SIGNAL = 424
_SYS_PIDFD_OPEN = 434


def open_pidfd(pid: int) -> int:
    """Open a close-on-exec handle on a process; raises `OSError`, with ENOSYS before Linux 5.3."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    return open_by_number(pid)


def send_signal(pidfd: int, sig: signal.Signals) -> None:
    """Send a signal to the process behind a handle; raises `OSError`, with ESRCH once it has been reaped."""
    if hasattr(signal, "pidfd_send_signal"):
        signal.pidfd_send_signal(pidfd, sig)
    else:
        send_by_number(pidfd, sig)


def open_by_number(pid: int) -> int:
    """`open_pidfd` by the number of the system call."""
    return _syscall(_SYS_PIDFD_OPEN, pid, 0)


def send_by_number(pidfd: int, sig: signal.Signals) -> None:
    """`send_signal` by the number of the system call."""
    _syscall(_SYS_PIDFD_SEND_SIGNAL, pidfd, sig, None, 0)


def exited(pidfd: int, timeout: float = 0.0) -> bool:
    """Whether all threads of the process have ended within `timeout` seconds, reaped by its parent or not."""
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


class Refusal(StrEnum):
    """A reason for which nothing is signalled; the value is what the audit file says."""

    READ_ONLY = "read-only"
    ROOT = "root"
    UNRELIABLE = "unreliable list"
    STALE = "stale row"
    NO_IDENTITY = "no identity"
    SYSTEM_PID = "system pid"
    ITSELF = "gpuwatch itself"
    HELPER = "part of gpuwatch"
    ANCESTOR = "ancestor"
    KERNEL_THREAD = "kernel thread"
    CHANGED = "process changed"
    GONE = "gone"
    ZOMBIE = "zombie"
    NOT_YOURS = "not yours"
    NO_DEVICE = "no gpu device"
    NOT_ON_GPU = "not on a gpu"
    TOO_MANY = "too many"
    FILES_UNREADABLE = "open files unreadable"
    UNREADABLE = "process unreadable"
    OTHER_NAMESPACE = "other pid namespace"
    IGNORED = "signal ignored"
    RUN_UNKNOWN = "run unknown"
    UNDER_WAY = "under way"


_SENTENCES = {
    Refusal.READ_ONLY: "gpuwatch was started with --read-only",
    Refusal.ROOT: "gpuwatch runs as root: ending a process needs --allow-root-kill",
    Refusal.UNRELIABLE: "the driver's list of processes makes no sense at the moment, so no PID on it is trusted",
    Refusal.STALE: "what is on screen is too old to act on",
    Refusal.NO_IDENTITY: "its owner or start time is not known, so a reused PID could not be told apart",
    Refusal.SYSTEM_PID: "PID 1 and below belong to the system",
    Refusal.ITSELF: "this is gpuwatch itself",
    Refusal.HELPER: "this is a part of gpuwatch",
    Refusal.ANCESTOR: "gpuwatch runs inside it (a shell, tmux, a login): ending it would end this session",
    Refusal.KERNEL_THREAD: "this is a kernel thread, which no signal ends",
    Refusal.CHANGED: "process changed: this PID is no longer the process on screen",
    Refusal.GONE: "it has already exited",
    Refusal.ZOMBIE: "it has already exited",
    Refusal.NOT_YOURS: "it is not yours",
    Refusal.NO_DEVICE: "it holds no GPU device open, so nothing shows that it is the process on the GPU",
    Refusal.NOT_ON_GPU: "it is on no GPU: the driver does not list it, and it holds no GPU's device file open",
    Refusal.TOO_MANY: "that is more processes than gpuwatch can hold on to at once",
    Refusal.FILES_UNREADABLE: "its open files cannot be read, so nothing shows that it is the process on the GPU",
    Refusal.UNREADABLE: "the kernel does not let us read what it is",
    Refusal.IGNORED: "it ignores this signal",
    Refusal.RUN_UNKNOWN: "what it belongs to could not be read, so nothing tells which processes are its run",
    Refusal.UNDER_WAY: "one of its processes is being ended already, and a second signal may break off how it ends",
    Refusal.OTHER_NAMESPACE: (
        "gpuwatch runs in a container with PIDs of its own, and nothing shows that this PID is the process on the GPU"
    ),
}


@dataclass(frozen=True)
class Refused:
    """A process that is not signalled, and why."""

    reason: Refusal
    pid: int
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The reason for a person, without a capital and a full stop."""
        return f"{_SENTENCES[self.reason]}: {self.detail}" if self.detail else _SENTENCES[self.reason]


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
    unlisted: bool = False
    """It was named by its PID, and no GPU is known to be held by it."""
    program: str = ""
    """The program whose command that is, see `procfs.Stat.program`; empty where that cannot be told."""
    unsure: bool = False
    """The driver may mean another process by this PID (`Presence.UNSURE`)."""


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
        self._program = ""
        self._command: str | None = None
        """As described when it was pinned; compared where no mark of its program can be."""
        self._had_device = False
        self._sent = False
        self.unrecorded: str | None = None
        """Why the last line about this process is not on record; None when it is."""
        self.run = ""
        """What the run is called that it is ended with; empty where it is ended alone."""
        self._family: dict[int, int] = {}
        self._closed = False

    def note_program(self, stat: procfs.Stat) -> None:
        """Take note of what it runs, by a stat line of its own; before each signal that is compared."""
        self._program = stat.program
        self._command = None if self._program else self._killer.described(self.target.pid)

    def note_device(self) -> None:
        """Take note of whether it has a GPU's device file open; before each signal that is compared."""
        self._had_device = self.on_gpu()

    def send(self, sig: signal.Signals, *, recorded: bool = False) -> Outcome | None:
        """Signal the process; None when it was sent, else why not. A line of intent is on record before it.

        Nothing is sent to one that is not what it was when it was pinned; the kernel has no call that looks and sends
        at once, so what it does in the microseconds between remains. `recorded` is for who has seen to that line
        already, and to its family.
        """
        if self._closed:
            raise ValueError(f"PID {self.target.pid} is no longer pinned")
        if not recorded:
            self.record("intent", signal=sig.name)
            self.find_family()
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
        """Whether all its threads have ended, reaped or not; does not block."""
        if self._handle is not None:
            return exited(self._handle)
        return not self._same() or procfs.ended(self.target.pid, self._proc)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the end of the process; whether it has ended."""
        if self._handle is not None:
            return exited(self._handle, timeout)
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
            states = self._thread_states() if killed else {main}
        except (OSError, ValueError):
            states, main = set(), ""  # it ended since it was asked, or cannot be read: not known to be stuck
        if procfs.UNINTERRUPTIBLE in states:
            return Outcome(End.STUCK, seconds, killed)
        return Outcome(End.STOPPED if main in procfs.STOPPED and not killed else End.RUNNING, seconds, killed)

    def _thread_states(self) -> set[str]:
        threads = islice(procfs.thread_states(self.target.pid, self._proc), procfs.THREADS_MAX)
        return {state for _, state in threads}

    def find_family(self) -> None:
        """Take note of what it has started so far; once it has ended, nothing tells any more."""
        self._family |= procfs.descendants(self.target.pid, self._proc)

    def family(self) -> tuple[int, ...]:
        """PIDs of what it was seen to have started, and that still run."""
        return tuple(pid for pid, start_ticks in sorted(self._family.items()) if self._runs(pid, start_ticks))

    def left_behind(self, listed: Collection[int] = ()) -> tuple[int, ...]:
        """Of those the PIDs that hold a GPU device open (orphaned data workers), or that the driver lists still."""
        left = []
        for pid in self.family():
            try:
                left += [pid] if pid in listed or holds_gpu(pid, self._proc, self._dev) else []
            except (OSError, ValueError):
                continue  # it has ended, or its files are closed to us: not known to hold anything
        return tuple(left)

    def on_gpu(self) -> bool:
        """Whether it still runs and has a GPU device open; False where that cannot be read."""
        try:
            return not self.exited() and holds_gpu(self.target.pid, self._proc, self._dev)
        except (OSError, ValueError):
            return False

    def ignores(self, sig: signal.Signals) -> bool:
        """Whether the process lets a signal pass unheard; False where that cannot be read.

        Such is SIGINT to what a script started with `&`: POSIX has it ignored there, and Python then leaves it so.
        Source: the mask SigIgn of /proc/PID/status, proc_pid_status(5).
        """
        try:
            lines = procfs.read_status(self.target.pid, self._proc).splitlines()
            mask = next((int(line.split()[1], 16) for line in lines if line.startswith(b"SigIgn:")), 0)
        except (OSError, ValueError, IndexError):
            return False
        return bool(mask >> (sig - 1) & 1)

    def record(self, event: str, **fields: object) -> str | None:
        """Put a line about this process on record; returns why that failed."""
        facts = self._killer.facts(self.target) | ({"run": self.run} if self.run else {})
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

    def _runs(self, pid: int, start_ticks: int) -> bool:
        try:
            stat = procfs.read_stat(pid, self._proc)
            return stat.start_ticks == start_ticks and not procfs.ended(pid, self._proc)
        except (OSError, ValueError):
            return False

    def _changed(self) -> str:
        """Say what of it is no longer as it was pinned; empty for nothing. Raises `OSError` or `ValueError`.

        It is another program, and not only another title of the same, where the kernel has put it elsewhere in the
        memory. Where that does not tell, another command line counts as another program.
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
        if self._had_device and not holds_gpu(self.target.pid, self._proc, self._dev):
            return "it has no GPU device open any more"
        return ""

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
        return parent_of(stat.ppid, self._proc)


def holds_gpu(pid: int, proc: Path = procfs.PROC, dev: str = "/dev") -> bool:
    """Whether a process holds a GPU's device file open: /dev/nvidia… natively, /dev/dxg under WSL.

    Raises `OSError`: `PermissionError` where the process is not ours.
    """
    nvidia, dxg = f"{dev}/nvidia", f"{dev}/dxg"
    return any(name.startswith(nvidia) or name == dxg for name in procfs.open_files(pid, proc))


def parent_of(pid: int, proc: Path) -> tuple[int, str]:
    """Give the PID and the name of a parent, for a sentence."""
    try:
        return pid, clean(procfs.read_stat(pid, proc).comm)
    except (OSError, ValueError):
        return pid, "unknown"
