"""Threads: a worker that makes calls in order, and the error where the system starts no more of them."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

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
    """Return the error for a thread that could not be started."""
    return NoThreadError(f"no more threads: {WHY}")


def child_error(error: OSError) -> str:
    """Return why a child process was not started."""
    return WHY if error.errno == errno.EAGAIN else str(error)


class Worker:
    """Daemon thread that makes calls in order; an executor's thread would be waited for when the program quits."""

    def __init__(self, name: str) -> None:
        """The thread starts with the first call."""
        self._name = name
        self._calls: SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __call__(self, call: Callable[[], Any]) -> Future[Any]:
        """Make a call once those before it have returned; its result or its exception is in the future.

        Where the thread cannot be started, that is a NoThreadError, and the call is not made; the next one tries again.
        """
        future: Future[Any] = Future()
        if self._thread is None:
            thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            try:
                start_thread(thread)
            except NoThreadError as error:
                future.set_exception(error)
                return future
            self._thread = thread
        self._calls.put((call, future))
        return future

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001 - it is handed to the one who asked, as executors do
                future.set_exception(error)
