"""What is told when: nothing twice, nothing that is over before it was said, and many at once as one. Pure.

a raise ──`gather` s──► told ──cool-down──► told once more, if it came and went since: "3 times since 14:02"
  │ over by then, quiet, or of little weight: nothing is said          its clear is told as soon as it is known
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import msgspec

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.config.settings import Notify
from gpuwatch.recorder import delivery
from gpuwatch.recorder.delivery import Flaps, Kind, Message

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
        """Give what is to be sent now; it counts as told, whether or not it arrives."""
        if self._window is not None and self._window <= now:
            self._window = None
        ready = [topic for topic in self._topics.values() if topic.look is not None and topic.look <= now]
        said = [message for topic in ready if (message := self._say(topic, now))]
        for key, topic in list(self._topics.items()):
            if not topic.holds and topic.look is None and topic.calm_until <= now:
                del self._topics[key]
        return [delivery.digest(said)] if len(said) > self.manner.digest else said

    def rest(self, now: float) -> list[Message]:
        """Give what waits only for others to come, before the end."""
        return self.due(max(now, self._window)) if self._window is not None else self.due(now)

    def wake(self) -> float | None:
        """Give when `due` will have something to look at; None where nothing waits."""
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
