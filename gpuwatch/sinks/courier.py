"""One thread and one bounded queue for each way out, so that a slow one holds up nobody else."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

from gpuwatch import text
from gpuwatch.errors import NoThreadError
from gpuwatch.recorder.delivery import Message, Outlet, digest
from gpuwatch.spawn import start_thread

RETRY: Final = 30.0
"""Seconds after a failure until that way out is tried again; a message is tried twice."""
WAITING: Final = 50
"""Messages that wait for one way out at most; the oldest are dropped, and counted."""


class Courier:
    """Takes messages to one outlet, in a thread that is started with the first of them."""

    def __init__(
        self,
        outlet: Outlet,
        *,
        together: int,
        retry: float = RETRY,
        waiting: int = WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """More messages than `together` that have come to wait go out as one digest."""
        self._outlet = outlet
        self._together = together
        self._retry = retry
        self._most = waiting
        self._clock = clock
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._failed: Message | None = None
        """The one that is to be tried a second time."""
        self._not_before = 0.0
        self._lost = 0
        self._why = ""
        self._busy = False
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def trouble(self) -> str:
        """What keeps messages from going out, until the next one does: `slack does not answer (timeout)`."""
        with self._changed:
            if not self._why and not self._lost:
                return ""
            # One that is dropped only because many came at once is no failure of the outlet.
            words = f"{self._outlet.name} {self._why or 'is too slow'}"
            lost = f"; {self._lost} message{'s' * (self._lost > 1)} not delivered" if self._lost else ""
            return text.clean(words + lost, 300)

    def give(self, message: Message) -> None:
        """Take a message to be delivered; at once, from any thread."""
        with self._changed:
            if self._closing:
                return
            if len(self._queue) >= self._most:
                self._lost += self._queue.popleft().count
            self._queue.append(message)
            self._start()
            self._changed.notify_all()

    def start(self) -> None:
        """Try again to start the thread, where messages wait for one."""
        with self._changed:
            if self._queue and not self._closing:
                self._start()

    def close(self, deadline: float) -> None:
        """Deliver what can be until `deadline` on the clock, then give up; to be called once."""
        with self._changed:
            # What failed already will not get a second try.
            while (self._busy or (self._queue and not self._why)) and (left := deadline - self._clock()) > 0:
                self._changed.wait(left)
            self._closing = True
            self._changed.notify_all()
        self._outlet.close()
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - self._clock()) + 0.5)

    def _start(self) -> None:
        if self._thread is not None:
            return
        name = f"gpuwatch-{self._outlet.name.split()[0]}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            start_thread(thread)
        except NoThreadError as error:
            self._why = f"is not told: {error}"
        else:
            self._thread, self._why = thread, ""

    def _run(self) -> None:
        while (message := self._next()) is not None:
            try:
                why = self._outlet.send(message)
            except Exception as error:  # noqa: BLE001 - whatever a way out does, the thread goes on and says so
                why = f"failed: {type(error).__name__}: {error}"
            self._note(message, why)

    def _next(self) -> Message | None:
        """Wait for what is to be delivered; None once we are closing."""
        with self._changed:
            while not self._closing:
                hold = self._not_before - self._clock()
                if (self._failed or self._queue) and hold <= 0:
                    self._busy = True
                    return self._failed or self._waiting_ones()
                self._changed.wait(hold if self._failed or self._queue else None)
            return None

    def _waiting_ones(self) -> Message:
        if len(self._queue) <= self._together:
            return self._queue.popleft()
        together = digest(self._queue)
        self._queue.clear()
        return together

    def _note(self, message: Message, why: str) -> None:
        with self._changed:
            self._busy = False
            self._why = why
            if not why:
                self._lost, self._failed, self._not_before = 0, None, 0.0
            else:
                self._lost += message.count if self._failed else 0
                self._failed = None if self._failed else message
                self._not_before = self._clock() + self._retry
            self._changed.notify_all()
