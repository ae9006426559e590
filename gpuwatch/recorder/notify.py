"""Notifications: which alerts are sent and when, and one queue of messages for each notifier.

a raise ──`gather` s──► sent ──cool-down──► sent once more, if it came and went since: "3 times since 14:02"
  │ over by then, quiet, or of little weight: nothing is sent          its end is sent as soon as it is known
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

from gpuwatch import text
from gpuwatch.alerts.alert import TROUBLE, Alert
from gpuwatch.config import Notify
from gpuwatch.errors import NoThreadError
from gpuwatch.monitor import Frame
from gpuwatch.recorder import delivery
from gpuwatch.recorder.delivery import Kind, Message, Notifier, Repeats, digest
from gpuwatch.threads import Worker


class _Topic(msgspec.Struct):
    """State of one condition, and what was sent about it."""

    alert: Alert
    holds: bool = True
    sent: bool = False
    """Whether the last message that was sent says that the condition holds."""
    title: str = ""
    """The title of the last message."""
    worst_sent: int = 0
    """The worst severity that was sent in this cool-down, or since the last message; 0 where nothing was sent."""
    calm_until: float = -math.inf
    """Time until which only a worse severity, or the end, is sent."""
    times: int = 1
    """How often it was raised since `since`."""
    mentioned: int = 0
    """How many of these times messages have reported."""
    since: float = 0.0
    """Wall-clock time of the first of these times."""
    due: float | None = None
    """Time to check whether to send a message about the condition; None for never."""

    @property
    def repeats(self) -> Repeats:
        """Repeats for the text of a message."""
        return Repeats(times=self.times, since=self.since)


class Deduplicator:
    """Filter that decides which alerts are sent and when; all times are of the caller's clock.

    It remembers a condition while it holds, and for a cool-down after.
    """

    def __init__(self, policy: Notify | None = None) -> None:
        self.policy = policy or Notify()
        """May be replaced at any time."""
        self._topics: dict[str, _Topic] = {}
        self._window: float | None = None
        """Time at which the messages that are being gathered are sent; None where none is."""

    def update(self, raised: Iterable[Alert], cleared: Iterable[Alert], active: Iterable[Alert], now: float) -> None:
        """Add the alerts of a frame; `active` are all that hold.

        An active alert that was never in `raised` was raised by another gpuwatch, and counts as sent. One that is
        missing in `active`, and was never in `cleared` (frames were lost), has ended.
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
                if alert.rule != TROUBLE:  # a sink's trouble is on screen alone: messages may be what fails
                    self._topics[key] = self._inherited(alert)
            elif not topic.holds:
                self._begin(alert, now)
            else:
                is_unmuted = topic.alert.quiet and not alert.quiet
                topic.alert = alert
                if is_unmuted:
                    self._schedule(topic, now)
        for key, topic in self._topics.items():
            if topic.holds and key not in current:
                self._end(topic.alert, now)

    def pop_due(self, now: float) -> list[Message]:
        """Return the messages that are due; they count as sent, even where the delivery fails."""
        if self._window is not None and self._window <= now:
            self._window = None
        ready = [topic for topic in self._topics.values() if topic.due is not None and topic.due <= now]
        messages = [message for topic in ready if (message := self._message(topic, now))]
        for key, topic in list(self._topics.items()):
            if not topic.holds and topic.due is None and topic.calm_until <= now:
                del self._topics[key]
        return [delivery.digest(messages)] if len(messages) > self.policy.digest else messages

    def pop_all(self, now: float) -> list[Message]:
        """Return all messages, even those that wait for `gather` to pass; for the end of the program."""
        return self.pop_due(now if self._window is None else max(now, self._window))

    def next_due(self) -> float | None:
        """Return when `pop_due` will have something to check; None where nothing waits."""
        return min((topic.due for topic in self._topics.values() if topic.due is not None), default=None)

    def _begin(self, alert: Alert, now: float) -> None:
        topic = self._topics.get(alert.key)
        if topic is None:
            topic = self._topics[alert.key] = _Topic(alert, since=alert.raised)
        elif topic.holds:
            if topic.sent and topic.calm_until <= now:
                # It eased meanwhile, which is not sent: getting worse again is news.
                topic.worst_sent = min(topic.worst_sent, topic.alert.severity)
        elif topic.sent or now < topic.calm_until:
            topic.times += 1
        else:
            topic.times, topic.mentioned, topic.since, topic.worst_sent = 1, 0, alert.raised, 0
        topic.alert, topic.holds = alert, True
        self._schedule(topic, now)

    def _end(self, alert: Alert, now: float) -> None:
        topic = self._topics.get(alert.key)
        if topic is None:
            topic = self._topics[alert.key] = self._inherited(alert)
        topic.alert, topic.holds = alert, False
        self._schedule(topic, now)

    def _inherited(self, alert: Alert) -> _Topic:
        worst = max(alert.severity, alert.most)
        sent = worst >= self.policy.least and not alert.quiet
        return _Topic(alert, sent=sent, worst_sent=worst if sent else 0, mentioned=1, since=alert.raised)

    def _rename(self, current: dict[str, Alert]) -> None:
        """Move the state of alerts whose GPU has a new key; an alert keeps its id."""
        unknown = {alert.id: key for key, alert in current.items() if alert.id and key not in self._topics}
        if not unknown:
            return
        for old, topic in list(self._topics.items()):
            new = unknown.get(topic.alert.id)
            if new is not None and topic.holds and old not in current:
                self._topics[new] = self._topics.pop(old)

    def _schedule(self, topic: _Topic, now: float) -> None:
        if self._window is None:
            self._window = now + self.policy.gather
        topic.due = self._window if topic.due is None else min(topic.due, self._window)

    def _message(self, topic: _Topic, now: float) -> Message | None:
        topic.due = None
        return self._message_of_held(topic, now) if topic.holds else self._message_of_ended(topic, now)

    def _message_of_held(self, topic: _Topic, now: float) -> Message | None:
        alert = topic.alert
        if alert.severity < self.policy.least or alert.quiet:
            return None
        worse = alert.severity > topic.worst_sent
        if topic.sent and not worse and topic.times == topic.mentioned:
            return None
        if not worse and now < topic.calm_until:
            topic.due = topic.calm_until
            return None
        kind = Kind.WORSE if topic.sent and worse else Kind.RAISED
        message = delivery.raised(alert, kind, topic.repeats)
        topic.sent, topic.title = True, alert.title
        topic.worst_sent = max(topic.worst_sent, alert.severity)
        topic.mentioned = topic.times
        topic.calm_until = now + self.policy.cooldown
        return message

    def _message_of_ended(self, topic: _Topic, now: float) -> Message | None:
        alert = topic.alert
        if alert.quiet or not topic.worst_sent:
            # It was never sent, or is not to be.
            topic.sent, topic.mentioned = False, topic.times
            return None
        if not topic.sent:
            if topic.times == topic.mentioned:
                return None
            if now < topic.calm_until:
                topic.due = topic.calm_until
                return None
            topic.calm_until = now + self.policy.cooldown
        message = delivery.cleared(alert, topic.title or alert.title, topic.repeats)
        topic.sent, topic.mentioned = False, topic.times
        return message


RETRY: Final = 30.0
"""Seconds between a failure and the next attempt of a notifier; a message is tried twice."""
WAITING: Final = 50
"""Messages that wait for one notifier, at most; beyond that the oldest are dropped and counted."""
_STOP_WAIT: Final = 0.5
"""Seconds that a notifier may take to end once its queue is closed."""


class DeliveryQueue:
    """Queue of messages that a notifier delivers in the background, each tried twice."""

    def __init__(
        self,
        notifier: Notifier,
        *,
        together: int,
        retry: float = RETRY,
        waiting: int = WAITING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Where more than `together` messages wait, they are sent as one digest."""
        self._notifier = notifier
        self._together = together
        self._retry = retry
        self._most = waiting
        self._clock = clock
        self._guard = threading.Lock()
        self._queue: deque[Message] = deque()
        self._failed: Message | None = None
        """The message that failed once and is to be tried a second time."""
        self._not_before = 0.0
        self._lost = 0
        self._error = ""
        self._stopped = False
        self._worker = Worker(f"gpuwatch-{notifier.name.split()[0]}", self._deliver, last=self._deliver)

    @property
    def trouble(self) -> str:
        """Why messages are not delivered, until one is: `slack does not answer (timeout)`; empty for no failure."""
        with self._guard:
            if not self._error and not self._lost:
                return ""
            # A message that is dropped only because many came at once is no failure of the notifier.
            words = f"{self._notifier.name} {self._error or 'is too slow'}"
            lost = f"; {self._lost} message{'s' * (self._lost > 1)} not delivered" if self._lost else ""
            return text.clean(words + lost, 300)

    def put(self, message: Message) -> None:
        """Queue a message; returns at once; from any thread."""
        with self._guard:
            if self._worker.is_closing:
                return
            if len(self._queue) >= self._most:
                self._lost += self._queue.popleft().count
            self._queue.append(message)
        self.start()

    def start(self) -> None:
        """Start the thread that delivers; where no thread can be started, a later call tries again."""
        if not self._queue:
            return
        try:
            self._worker.wake()
        except NoThreadError as error:
            self._error = f"gets no messages: {error}"

    def close(self, deadline: float) -> None:
        """Deliver as many messages as possible until `deadline` on the clock, then give up."""
        self._worker.close(max(0.0, deadline - self._clock()))
        self._stopped = True
        self._notifier.close()
        self._worker.close(_STOP_WAIT)

    def _deliver(self) -> float | None:
        """Deliver the messages that wait; return the seconds until the next attempt; None where none waits."""
        while (message := self._next()) is not None:
            try:
                error = self._notifier.send(message)
            except Exception as failure:  # noqa: BLE001 - whatever a notifier does, the thread goes on and says so
                error = f"failed: {type(failure).__name__}: {failure}"
            self._note(message, error)
        with self._guard:
            return max(0.0, self._not_before - self._clock()) if self._failed or self._queue else None

    def _next(self) -> Message | None:
        with self._guard:
            # Once the queue is closed, what failed already does not get a second try.
            is_over = self._stopped or (self._worker.is_closing and bool(self._error))
            if is_over or self._not_before > self._clock():
                return None
            if self._failed or len(self._queue) <= self._together:
                return self._failed or (self._queue.popleft() if self._queue else None)
            together = digest(self._queue)
            self._queue.clear()
            return together

    def _note(self, message: Message, error: str) -> None:
        with self._guard:
            self._error = error
            if not error:
                self._lost, self._failed, self._not_before = 0, None, 0.0
            else:
                self._lost += message.count if self._failed else 0
                self._failed = None if self._failed else message
                self._not_before = self._clock() + self._retry


NEWS: Final = 600
"""Frames that wait, at most; handling one takes far less time than the next takes to come."""
_PAUSE: Final = 1.0
"""Seconds until the next attempt after a bug raised an exception."""


class _News(NamedTuple):
    """Alerts of one frame."""

    raised: tuple[Alert, ...]
    cleared: tuple[Alert, ...]
    active: tuple[Alert, ...]


class Lock(Protocol):
    """Lock that one of several processes can hold, such as `files.FileLock`."""

    def acquire(self) -> bool:
        """Try to get the lock, without waiting; raises OSError where no process can get it."""

    def release(self) -> None:
        """Release the lock."""


class Messenger:
    """Sink that sends messages; of one user's gpuwatches on a host that have a notifier, only one sends.

    The others keep track of the alerts, so that one of them can go on when the sender stops. A failure is `trouble`
    until that notifier delivers again. The lock is not the recorder's: a gpuwatch that was started before `[notify]`
    was written may hold that one, and it sends nothing.
    """

    name = "messages"

    def __init__(
        self,
        policy: Notify,
        notifiers: Sequence[Notifier],
        lock: Lock,
        *,
        clock: Callable[[], float] = time.monotonic,
        retry: float = RETRY,
    ) -> None:
        self._deduplicator = Deduplicator(policy)
        self._lock = lock
        self._clock = clock
        self._retry = retry
        self._guard = threading.Lock()
        self._news: deque[_News] = deque(maxlen=NEWS)
        self._policy = policy
        self._queues = self._make_queues(policy, notifiers)
        self._failure = ""
        self._worker = Worker("gpuwatch-messages", self._task, last=lambda: self._task(last=True))

    @property
    def trouble(self) -> str:
        """What was not delivered and why, in one line; empty where all was delivered."""
        words = [one for one in (self._failure, *(queue.trouble for queue in self._queues)) if one]
        return f"messages: {'; '.join(words)}" if words else ""

    def take(self, frame: Frame) -> None:
        """Queue a frame; returns at once."""
        if not self._worker.is_closing:
            with self._guard:
                self._news.append(_News(frame.raised, frame.cleared, frame.alerts))
            self._worker.wake()

    def configure(self, policy: Notify, notifiers: Sequence[Notifier]) -> None:
        """Use another policy and other notifiers from now on; from any thread, without waiting."""
        with self._guard:
            before, self._queues = self._queues, self._make_queues(policy, notifiers)
            self._policy = policy
        self._worker(lambda: _close(before, self._clock() + 1.0))

    def close(self, seconds: float) -> None:
        """Send also the messages that wait for others, and give up after `seconds`; from any thread."""
        deadline = self._clock() + seconds
        self._worker.close(seconds)
        _close(self._queues, deadline)
        self._lock.release()

    def _make_queues(self, policy: Notify, notifiers: Sequence[Notifier]) -> tuple[DeliveryQueue, ...]:
        return tuple(
            DeliveryQueue(one, together=policy.digest, retry=self._retry, clock=self._clock) for one in notifiers
        )

    def _task(self, *, last: bool = False) -> float | None:
        try:
            self._update()
            now = self._clock()
            self._send(self._deduplicator.pop_all(now) if last else self._deduplicator.pop_due(now))
            self._failure = ""
        except Exception as error:  # noqa: BLE001 - a fault of ours must be seen, and must not end the messages
            self._failure = text.clean(f"failed: {type(error).__name__}: {error}", 200)
            return _PAUSE
        due = self._deduplicator.next_due()
        return None if due is None else max(0.0, due - self._clock())

    def _update(self) -> None:
        with self._guard:
            news, self._deduplicator.policy = list(self._news), self._policy
            self._news.clear()
        for one in news:
            self._deduplicator.update(*one, self._clock())

    def _send(self, messages: Sequence[Message]) -> None:
        with self._guard:
            queues = self._queues
        if messages and self._is_sender():
            for queue in queues:
                for message in messages:
                    queue.put(message)
        for queue in queues:
            queue.start()

    def _is_sender(self) -> bool:
        if not self._queues:
            self._lock.release()
            return False
        try:
            return self._lock.acquire()
        except OSError:  # nobody can have the lock: a message that comes twice is better than none
            return True


def _close(queues: Sequence[DeliveryQueue], deadline: float) -> None:
    """Close all queues at the same time; each delivers what it can until the deadline."""
    for queue in queues:
        queue.close(deadline)
