"""Starting threads, and what is said where the system gives no more of them, or no more processes."""

from __future__ import annotations

import errno
import threading

from gpuwatch.errors import NoThreadError

WHY = "the limit of processes is reached (ulimit -u, or the cgroup's pids.max)"
"""Why clone(2) fails with EAGAIN; both limits count threads."""


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raises NoThreadError where the system gives no more, and it may be tried again then."""
    try:
        thread.start()
    except RuntimeError as error:  # CPython's word for any failure of pthread_create(3)
        if thread.ident is not None:
            raise
        raise no_thread_error() from error


def no_thread_error() -> NoThreadError:
    """Give the error for a thread that could not be started."""
    return NoThreadError(f"no more threads: {WHY}")


def child_error(error: OSError) -> str:
    """Say why a child process was not started."""
    return WHY if error.errno == errno.EAGAIN else str(error)
