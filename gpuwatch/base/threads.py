"""Threads: a background worker, and the error where the system starts no more threads."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuwatch.base.errors import PROCESS_LIMIT, NoThreadError

if TYPE_CHECKING:
    from concurrent.futures import Future


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; raises NoThreadError where the system starts no more; the caller may try again."""
    try:
        thread.start()
    except RuntimeError as error:  # CPython's word for any failure of pthread_create(3)
        if thread.ident is not None:
            raise
        raise no_thread_error() from error


def no_thread_error() -> NoThreadError:
    """Return the error for a thread that could not be started."""
    return NoThreadError(f"no more threads: {PROCESS_LIMIT}")


class Worker:
    """Daemon thread that runs queued calls in order, and its task when it is woken or the task is due.

    When the program quits, Python waits for an executor's thread without a limit; for this thread `close` waits until a
    deadline. The thread starts when it is first needed.
    """

    def __init__(
        self,
        name: str,
        task: Callable[[], float | None] = lambda: None,
        *,
        last: Callable[[], object] = lambda: None,
    ) -> None:
        """`task` returns the seconds until its next call, or None to be called only after `wake`.

        `last` is called once, instead of the task, when the worker is closed. Neither may raise.
        """
        self._name = name
        self._task = task
        self._last = last
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._changed = threading.Condition()
        self._woken = self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_closing(self) -> bool:
        """Whether the worker was closed: a long task should end."""
        return self._closing

    def __call__(self, call: Callable[[], Any]) -> Future[Any]:
        """Run a call after all earlier calls; its result or its exception is in the future.

        Where the thread cannot be started, the future has a NoThreadError, and the call is not run; the next call tries
        again.
        """
        from concurrent.futures import Future  # not loaded in the sampler

        future: Future[Any] = Future()
        with self._changed:
            self._calls.append((call, future))
            try:
                self._start()
            except NoThreadError as error:
                self._calls.pop()
                future.set_exception(error)
            self._changed.notify()
        return future

    def wake(self) -> None:
        """Run the task at once; from any thread. Raises NoThreadError; a later call tries again."""
        with self._changed:
            if not self._closing:
                self._woken = True
                self._start()
                self._changed.notify()

    def close(self, seconds: float) -> None:
        """Let the thread finish, and stop waiting for it after `seconds`; from any thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(seconds)

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            start_thread(thread)
            self._thread = thread

    def _run(self) -> None:
        pause: float | None = None
        while (call := self._next(pause)) is not None:
            pause = call()
        self._last()

    def _next(self, pause: float | None) -> Callable[[], float | None] | None:
        """Wait for a queued call or the time of the task, and return it; None once the worker is closed."""
        end = None if pause is None else time.monotonic() + pause
        with self._changed:
            while True:
                if self._calls:
                    # The task keeps its time.
                    call, future = self._calls.popleft()
                    return lambda: _settle(call, future, end)
                if self._closing:
                    return None
                left = None if end is None else end - time.monotonic()
                if self._woken or (left is not None and left <= 0):
                    self._woken = False
                    return self._task
                self._changed.wait(left)


def _settle(call: Callable[[], Any], future: Future[Any], end: float | None) -> float | None:
    """Run a call, put its result or exception into the future, and return the seconds left until `end`."""
    try:
        future.set_result(call())
    except BaseException as error:  # noqa: BLE001 - it is returned to the caller, as executors do
        future.set_exception(error)
    return None if end is None else max(0.0, end - time.monotonic())
