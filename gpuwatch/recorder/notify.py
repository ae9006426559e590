"""Notifications: which alerts are sent and when, each way out with a thread and a bounded queue.

a raise ──`gather` s──► told ──cool-down──► told once more, if it came and went since: "3 times since 14:02"
  │ over by then, quiet, or of little weight: nothing is said          its clear is told as soon as it is known
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from gpuwatch import text
from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.config import Notify
from gpuwatch.errors import NoThreadError
from gpuwatch.monitor import Frame
from gpuwatch.recorder import delivery
from gpuwatch.recorder.delivery import Flaps, Kind, Message, Outlet, digest
from gpuwatch.threads import start_thread

_DEFAULT: Final = Notify()


class Manner(msgspec.Struct, frozen=True, kw_only=True):
    """How much is told; times are seconds."""

    least: Severity = _DEFAULT.least
    """What is worth less is never told."""
    cooldown: float = _DEFAULT.cooldown
    """After a message of a condition, for how long another raise of it waits, unless it is worse."""
    gather: float = _DEFAULT.gather
    """For how long a message waits for others, and for its alert to be over."""
    digest: int = _DEFAULT.digest
    """More messages than this that go out together are made one."""


@dataclass(slots=True)
class _Topic:
    """What is known of one condition, and what people believe of it."""

    alert: Alert
    holds: bool = True
    told: bool = False
    """People believe that it holds."""
    title: str = ""
    """The title it was told with last."""
    worst_told: int = 0
    """The worst that it was told as in this cool-down, or since it was told; 0 for never."""
    calm_until: float = -math.inf
    """Until when only what is worse is told of it, besides that it is over."""
    times: int = 1
    """How often it was raised since `since`."""
    mentioned: int = 0
    """How many of these people know of."""
    since: float = 0.0
    """Wall-clock time."""
    look: float | None = None
    """When to see whether there is anything to say of it."""

    @property
    def flaps(self) -> Flaps:
        """How often, for the words."""
        return Flaps(times=self.times, since=self.since)


class Plan:
    """Says what to send, from what was raised and has ended; all times are of the clock of whoever calls it.

    It remembers a condition while it holds, and for a cool-down after.
    """

    def __init__(self, manner: Manner | None = None) -> None:
        self.manner = manner or Manner()
        """May be replaced at any time."""
        self._topics: dict[str, _Topic] = {}
        self._window: float | None = None
        """When what waits now goes out."""

    def take(self, raised: Iterable[Alert], cleared: Iterable[Alert], active: Iterable[Alert], now: float) -> None:
        """Take in what a frame says; `active` is all that holds.

        What is active without having been raised was raised under another gpuwatch, and counts as told. What holds no
        longer without having been cleared, because frames were lost, is over.
        """
        current = {alert.key: alert for alert in active}
        self._rename(current)
        for alert in cleared:
            self._end(alert, now)
        for alert in raised:
            self._begin(alert, now)
        for key, alert in current.items():
            topic = self._topics.get(key)
            if topic is None:
                if alert.rule != TROUBLE:  # a sink's trouble is on screen and nowhere else: messages may be what fails
                    self._topics[key] = self._taken_over(alert)
            elif not topic.holds:
                self._begin(alert, now)
            else:
                speaks_again = topic.alert.quiet and not alert.quiet
                topic.alert = alert
                if speaks_again:
                    self._schedule(topic, now)
        for key, topic in self._topics.items():
            if topic.holds and key not in current:
                self._end(topic.alert, now)

    def due(self, now: float) -> list[Message]:
        """Return what is to be sent now; it counts as told, whether or not it arrives."""
        if self._window is not None and self._window <= now:
            self._window = None
        ready = [topic for topic in self._topics.values() if topic.look is not None and topic.look <= now]
        said = [message for topic in ready if (message := self._say(topic, now))]
        for key, topic in list(self._topics.items()):
            if not topic.holds and topic.look is None and topic.calm_until <= now:
                del self._topics[key]
        return [delivery.digest(said)] if len(said) > self.manner.digest else said

    def rest(self, now: float) -> list[Message]:
        """Return what waits only for others to come, before the end."""
        return self.due(max(now, self._window)) if self._window is not None else self.due(now)

    def wake(self) -> float | None:
        """Return when `due` will have something to look at; None where nothing waits."""
        return min((topic.look for topic in self._topics.values() if topic.look is not None), default=None)

    def _begin(self, alert: Alert, now: float) -> None:
        topic = self._topics.get(alert.key)
        if topic is None:
            topic = self._topics[alert.key] = _Topic(alert, since=alert.raised)
        elif topic.holds:
            if topic.told and topic.calm_until <= now:
                # It eased meanwhile, of which nobody is told: getting worse again is news.
                topic.worst_told = min(topic.worst_told, topic.alert.severity)
        elif topic.told or now < topic.calm_until:
            topic.times += 1
        else:
            topic.times, topic.mentioned, topic.since, topic.worst_told = 1, 0, alert.raised, 0
        topic.alert, topic.holds = alert, True
        self._schedule(topic, now)

    def _end(self, alert: Alert, now: float) -> None:
        topic = self._topics.get(alert.key)
        if topic is None:
            topic = self._topics[alert.key] = self._taken_over(alert)
        topic.alert, topic.holds = alert, False
        self._schedule(topic, now)

    def _taken_over(self, alert: Alert) -> _Topic:
        worst = max(alert.severity, alert.most)
        told = worst >= self.manner.least and not alert.quiet
        return _Topic(alert, told=told, worst_told=worst if told else 0, mentioned=1, since=alert.raised)

    def _rename(self, current: dict[str, Alert]) -> None:
        """Follow alerts whose GPU is known by another key now; their id stays."""
        unknown = {alert.id: key for key, alert in current.items() if alert.id and key not in self._topics}
        if not unknown:
            return
        for old, topic in list(self._topics.items()):
            new = unknown.get(topic.alert.id)
            if new is not None and topic.holds and old not in current:
                self._topics[new] = self._topics.pop(old)

    def _schedule(self, topic: _Topic, now: float) -> None:
        if self._window is None:
            self._window = now + self.manner.gather
        topic.look = self._window if topic.look is None else min(topic.look, self._window)

    def _say(self, topic: _Topic, now: float) -> Message | None:
        topic.look = None
        return self._say_it_holds(topic, now) if topic.holds else self._say_it_is_over(topic, now)

    def _say_it_holds(self, topic: _Topic, now: float) -> Message | None:
        alert = topic.alert
        if alert.severity < self.manner.least or alert.quiet:
            return None
        worse = alert.severity > topic.worst_told
        if topic.told and not worse and topic.times == topic.mentioned:
            return None
        if not worse and now < topic.calm_until:
            topic.look = topic.calm_until
            return None
        kind = Kind.WORSE if topic.told and worse else Kind.RAISED
        message = delivery.raised(alert, kind, topic.flaps)
        topic.told, topic.title = True, alert.title
        topic.worst_told = max(topic.worst_told, alert.severity)
        topic.mentioned = topic.times
        topic.calm_until = now + self.manner.cooldown
        return message

    def _say_it_is_over(self, topic: _Topic, now: float) -> Message | None:
        alert = topic.alert
        if alert.quiet or not topic.worst_told:
            # Nobody knows of it, or nobody wants to.
            topic.told, topic.mentioned = False, topic.times
            return None
        if not topic.told:
            if topic.times == topic.mentioned:
                return None
            if now < topic.calm_until:
                topic.look = topic.calm_until
                return None
            topic.calm_until = now + self.manner.cooldown
        message = delivery.cleared(alert, topic.title or alert.title, topic.flaps)
        topic.told, topic.mentioned = False, topic.times
        return message


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
