"""The sink that tells people who are not looking: alerts go to a plan, what it says goes to the ways out."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from gpuwatch import text
from gpuwatch.alerts.alert import Alert
from gpuwatch.errors import NoThreadError
from gpuwatch.monitor import Frame
from gpuwatch.recorder.delivery import Outlet
from gpuwatch.sinks.courier import RETRY, WAITING, Courier
from gpuwatch.sinks.plan import Manner, Plan
from gpuwatch.spawn import start_thread

NEWS: Final = 600
"""Frames that wait for the plan at most; it takes each in far less than a frame's time."""
_PAUSE: Final = 1.0
"""Seconds until the plan is asked again after a fault in it, at most: it would be asked at once, and for ever."""
_STOP_WAIT: Final = 0.5
"""Seconds that the plan's thread may take to end once it has nothing to wait for."""


class _News(NamedTuple):
    """What the plan wants to know of a frame."""

    raised: tuple[Alert, ...]
    cleared: tuple[Alert, ...]
    active: tuple[Alert, ...]


class Messenger:
    """Tells each outlet what the plan says, where `is_allowed`: only one gpuwatch of a user sends.

    One that is not allowed keeps its plan, so that it goes on where the other one stops. A failure is `trouble` until
    that outlet delivers again.
    """

    name = "messages"

    def __init__(
        self,
        plan: Plan,
        outlets: Sequence[Outlet],
        is_allowed: Callable[[], bool] = lambda: True,
        *,
        clock: Callable[[], float] = time.monotonic,
        retry: float = RETRY,
        waiting: int = WAITING,
    ) -> None:
        """`is_allowed` is asked, from a thread of ours, when there is something to send."""
        self._plan = plan
        self._is_allowed = is_allowed
        self._clock = clock
        self._retry = retry
        self._waiting = waiting
        self._changed = threading.Condition()
        self._news: deque[_News] = deque(maxlen=NEWS)
        self._manner: Manner | None = None
        self._couriers = self._hire(outlets)
        self._failure = ""
        self._closing = False
        self._thread: threading.Thread | None = None

    @property
    def trouble(self) -> str:
        """What was not delivered and why, in one line; empty when all is well."""
        words = [self._failure, *(courier.trouble for courier in self._couriers)]
        told = [one for one in words if one]
        return f"messages: {'; '.join(told)}" if told else ""

    def take(self, frame: Frame) -> None:
        """Take in a frame, at once; the plan sees it in a thread of ours."""
        with self._changed:
            if self._closing:
                return
            self._news.append(_News(frame.raised, frame.cleared, frame.alerts))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gpuwatch-messages", daemon=True)
                start_thread(thread)
                self._thread = thread
            self._changed.notify_all()

    def settle(self, manner: Manner, outlets: Sequence[Outlet]) -> None:
        """Go on in another manner, by other ways out; the old ones are closed.

        From any thread, without waiting where there is a thread to close them.
        """
        with self._changed:
            before, self._couriers = self._couriers, self._hire(outlets, manner)
            self._manner = manner
            self._changed.notify_all()
        if before:
            _in_thread(_dismiss, before, self._clock() + 1.0)

    def close(self, seconds: float) -> None:
        """Send what waits only for others to come, and give up after so many seconds; from any thread."""
        deadline = self._clock() + seconds
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds + _STOP_WAIT)
        _dismiss(self._couriers, deadline)

    def _hire(self, outlets: Sequence[Outlet], manner: Manner | None = None) -> tuple[Courier, ...]:
        together = (manner or self._plan.manner).digest
        return tuple(
            Courier(outlet, together=together, retry=self._retry, waiting=self._waiting, clock=self._clock)
            for outlet in outlets
        )

    def _run(self) -> None:
        while self._wait():
            self._step()
        self._step(last=True)

    def _wait(self) -> bool:
        """Wait until there is something to do; False once we are closing."""
        with self._changed:
            while not self._closing and not self._news:
                wake = self._plan.wake()
                left = None if wake is None else wake - self._clock()
                if left is not None and left <= 0:
                    break
                self._changed.wait(left)
            return not self._closing

    def _step(self, *, last: bool = False) -> None:
        with self._changed:
            news, manner, couriers = list(self._news), self._manner, self._couriers
            self._news.clear()
        try:
            if manner is not None:
                self._plan.manner = manner
            now = self._clock()
            for one in news:
                self._plan.take(*one, now)
            said = self._plan.rest(now) if last else self._plan.due(now)
            if said and self._is_allowed():
                for courier in couriers:
                    for message in said:
                        courier.give(message)
            for courier in couriers:
                courier.start()
            self._failure = ""
        except Exception as error:  # noqa: BLE001 - a fault of ours must be seen, and must not end the messages
            self._failure = text.clean(f"failed: {type(error).__name__}: {error}", 200)
            with self._changed:
                if not self._closing:
                    self._changed.wait(_PAUSE)


def _dismiss(couriers: Sequence[Courier], deadline: float) -> None:
    """Close all at the same time: each may deliver what it has until then."""
    for thread in [_in_thread(one.close, deadline) for one in couriers]:
        if thread is not None:
            thread.join()


def _in_thread(call: Callable[..., None], *arguments: object) -> threading.Thread | None:
    """Make a call on a thread of its own, and give that; where there is none to be had it is made at once."""
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    try:
        start_thread(thread)
    except NoThreadError:
        call(*arguments)
        return None
    return thread
