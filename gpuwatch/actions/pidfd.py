"""A handle on one process that a reused PID cannot redirect: pidfd_open(2) and pidfd_send_signal(2).

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
