"""Recorded events: those of several stores as one, repeated ones folded, and the words for one."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.rules.memory import FULL
from gpuwatch.base.units import Unit, duration, gib, long_duration

UNFINISHED: Final = "ongoing when gpuwatch stopped"
"""End of an event that no gpuwatch saw end."""

SAME: Final = 30.0
"""Largest difference in seconds between the starts of one event as two gpuwatch record it."""


def same_event(known: Iterable[Alert]) -> Callable[[Alert], Alert | None]:
    """Return the function that finds the event of `known` that an event is; None where it is another one.

    Whoever recorded it may be another gpuwatch, which raised the same event under an id of its own. The machine's
    service publishes no process, so that such an event is the nearest one of the same rule, GPUs and users, as far as
    these are published, that held at its time; each event of `known` is one of the service's at most. An event without
    an end held until it was last seen: what began later is another one, which may be somebody else's.
    """
    every = list(known)
    ids = {alert.id: alert for alert in every}
    by_key: defaultdict[str, list[Alert]] = defaultdict(list)
    by_gpu: defaultdict[tuple[str, str], list[Alert]] = defaultdict(list)
    matched: dict[str, Alert] = {}
    """Events of the service that were found, by id: one that goes over midnight is published twice."""
    for alert in every:
        by_key[alert.key].append(alert)
        by_gpu[alert.rule, alert.gpu].append(alert)

    def is_same(one: Alert, other: Alert) -> bool:
        people, gpus, others = {user.uid for user in one.users}, set(one.gpus), set(other.gpus)
        return (
            one.raised <= _until(other)
            and other.raised <= _until(one)
            and (not people or any(other.is_about(uid) for uid in people))
            and not (gpus and others and gpus.isdisjoint(others))
        )

    def find(one: Alert) -> Alert | None:
        if same := ids.get(one.id) or matched.get(one.id):
            return same
        began = (other for other in by_key[one.key] if abs(one.raised - other.raised) <= SAME)
        if same := next(began, None):
            return same
        taken = {each.id for each in matched.values()}
        held = [other for other in by_gpu[one.rule, one.gpu] if other.id not in taken and is_same(one, other)]
        if one.evidence or not held:
            return None
        matched[one.id] = min(held, key=lambda other: abs(other.raised - one.raised))
        return matched[one.id]

    return find


def _until(alert: Alert) -> float:
    """Return the wall-clock time until which an event surely held."""
    return max(alert.raised, alert.seen if alert.ended is None else alert.ended)


def without_known(logged: Iterable[Alert], known: Iterable[Alert]) -> list[Alert]:
    """Return the events of the log that are not in `known`."""
    find = same_event(known)
    return [one for one in logged if find(one) is None]


class State(StrEnum):
    """State of a recorded event."""

    ENDED = "ended"
    ONGOING = "ongoing"
    OPEN = "open"
    """The event held when gpuwatch stopped; nobody saw how it ended."""


class Gap(NamedTuple):
    """Time in which not all events were recorded, by wall-clock times."""

    since: float
    until: float
    lost: int = 0
    """Events that could not be written; 0 where gpuwatch was not running."""


class Events(msgspec.Struct, frozen=True):
    alerts: tuple[Alert, ...] = ()
    """Events as they were last seen, in the order of their start."""
    aliases: dict[str, str] = {}
    """Ids of events by other ids that they have in other stores."""
    gaps: tuple[Gap, ...] = ()
    damaged: int = 0
    """Rows that gpuwatch cannot have written."""
    watched: bool = False
    """Whether a gpuwatch records now."""
    watched_until: float | None = None
    """Wall-clock time until which a gpuwatch recorded; None where one records now, or none ever did."""
    since: float | None = None
    """Wall-clock time of the first minute with a record; None where that is not known."""
    exists: bool = False

    @classmethod
    def joined(cls, parts: Sequence[Events]) -> Events:
        """Return the events of several stores as those of one; of an event under two ids the first counts.

        Where another store saw it begin earlier, it began then; where the first was no longer written when it ended,
        and another was, it ended as that one says.
        """
        alerts: dict[str, Alert] = {}
        told_by: dict[str, Events] = {}
        """The part that has the end of each."""
        aliases: dict[str, str] = {}
        for part in parts:
            find = same_event(alerts.values())
            for one in part.alerts:
                same = find(one)
                if same is None:
                    alerts[one.id], told_by[one.id] = one, part
                    continue
                aliases[one.id] = same.id
                first, before = alerts[same.id], told_by[same.id]
                if one.raised < first.raised:
                    lasted = first.lasted + first.raised - one.raised
                    first = replace(first, raised=one.raised, lasted=lasted)
                if first.ended is None and part._reaches > before._reaches:
                    told_by[same.id] = part
                    lasted = max(first.lasted, (one.ended or one.seen) - first.raised)
                    first = replace(first, ended=one.ended, how=one.how, seen=one.seen, lasted=lasted)
                alerts[same.id] = first
        last = max((part._reaches for part in parts), default=0.0)
        every = [one if told_by[one.id]._reaches == last else told_by[one.id]._finish(one) for one in alerts.values()]
        return cls(
            alerts=tuple(sorted(every, key=lambda alert: alert.raised)),
            aliases=aliases,
            gaps=tuple(sorted(gap for part in parts for gap in part.gaps)),
            damaged=sum(part.damaged for part in parts),
            watched=any(part.watched for part in parts),
            watched_until=max((part.watched_until or 0.0 for part in parts), default=None),
            since=min((part.since for part in parts if part.since is not None), default=None),
            exists=any(part.exists for part in parts),
        )

    @property
    def _reaches(self) -> float:
        """Wall-clock time up to which it has events."""
        return math.inf if self.watched else self.watched_until or 0.0

    def _finish(self, alert: Alert) -> Alert:
        """Return an event, which ended with the gpuwatch that recorded it where it has no end."""
        if self.watched or alert.ended is not None:
            return alert
        return replace(alert, ended=self.watched_until or alert.seen, how=UNFINISHED)

    def watched_seconds(self, since: float, until: float) -> float:
        """Return how long a gpuwatch recorded in a span of wall-clock time: without gaps of `UNWATCHED` and more."""
        at, end, seconds = max(since, self.since or since), min(until, self.watched_until or until), 0.0
        for gap in (*sorted(one for one in self.gaps if not one.lost), Gap(end, math.inf)):
            seconds += max(0.0, min(gap.since, end) - at)
            at = max(at, gap.until)
        return seconds

    def state(self, alert: Alert) -> State:
        if alert.ended is not None:
            return State.ENDED
        return State.ONGOING if self.watched else State.OPEN

    @property
    def finished(self) -> tuple[Alert, ...]:
        """Events; where no gpuwatch records any more, those without an end have ended with it."""
        return tuple(map(self._finish, self.alerts))

    @property
    def note(self) -> str:
        """What is missing from the record, in a few words; empty for nothing."""
        lost = sum(gap.lost for gap in self.gaps)
        words = [f"{lost} events could not be written"] if lost else []
        return ", ".join([*words, f"{self.damaged} events are damaged"] if self.damaged else words)

    @property
    def open(self) -> tuple[Alert, ...]:
        """Events without an end."""
        return tuple(alert for alert in self.alerts if alert.ended is None)


LEAST_REPEATS: Final = 3


class Repeated(NamedTuple):
    """Event, and how often the same condition was raised among those listed."""

    alert: Alert
    times: int = 1
    other: float = 0.0
    """Wall-clock time at which the last of them began, or the first where the event is the last."""
    lasted: float = 0.0
    """Seconds that all of them lasted."""
    ids: tuple[str, ...] = ()
    """Ids of all of them, where it is more than one."""


def fold_repeats(alerts: Iterable[Alert], *, newest: bool = False) -> list[Repeated]:
    """Return events with one for all of a condition that was raised three times or more.

    It is the first of them, or the newest, with the words and figures of the worst. What is ongoing stays by itself.
    """
    every = list(alerts)
    times: defaultdict[str, list[Alert]] = defaultdict(list)
    for alert in every:
        if alert.ended is not None:
            times[alert.key].append(alert)
    events = []
    for alert in every:
        same = sorted(times[alert.key], key=lambda one: one.raised) if alert.ended is not None else []
        if len(same) < LEAST_REPEATS:
            events.append(Repeated(alert))
        elif alert is same[-1 if newest else 0]:
            worst = max(same, key=_badness)
            shown = replace(
                alert,
                severity=worst.severity,
                most=max(one.most for one in same),
                title=worst.title,
                short=worst.short,
                evidence=worst.evidence,
                peak=worst.peak,
                mean=None,
            )
            lasted = sum(one.lasted for one in same)
            other = same[0 if newest else -1].raised
            events.append(Repeated(shown, len(same), other, lasted, tuple(one.id for one in same)))
    return events


def _badness(alert: Alert) -> tuple[int, float]:
    least = _is_least_worst(alert)
    return max(alert.most, alert.severity), (-1 if least else 1) * (alert.peak or 0.0)


def _is_least_worst(alert: Alert) -> bool:
    """Return whether the smallest value is the worst: free memory and time to full, but not an idle time."""
    return alert.unit is Unit.FREE or alert.rule == FULL


def repeat_words(event: Repeated, now: float, word: str = "first") -> str:
    """Return how often an event was raised: `12 times, 1h08m total, first 03:10:00`; empty for once."""
    if event.times == 1:
        return ""
    return f"{event.times} times, {duration(event.lasted)} total, {word} {moment(event.other, now)}"


def moment(at: float, now: float) -> str:
    """Format a wall-clock time in the local time zone, with the date where it is not today."""
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M:%S", then)
    return time.strftime("%d %b %H:%M:%S" if then.tm_year == today.tm_year else "%d %b %Y %H:%M:%S", then)


def lasted_words(alert: Alert, now: float) -> str:
    """Format how long an event lasted, until `now` (wall clock) where it is ongoing; in 6 cells at most."""
    return duration(alert.lasted if alert.ended is not None else max(alert.lasted, now - alert.raised))


def state_words(alert: Alert) -> str:
    """Return how an event ended; empty while it is ongoing."""
    if alert.ended is None:
        return ""
    return alert.how if alert.how and alert.how != alert.title else "ended"


def value_words(alert: Alert, *, last: bool = False) -> str:
    """Format the worst value, the mean and, with `last`, the last value; empty where there is no figure."""
    worst, mean, newest = (_value(value, alert.unit) for value in (alert.peak, alert.mean, alert.last))
    if not worst:
        return ""
    word = "at worst" if _is_least_worst(alert) else "longest" if alert.unit is Unit.SECONDS else "peak"
    found = [f"{word} {worst}{_UNITS.get(alert.unit, '')}"]
    found += [f"mean {mean}"] * (mean not in ("", worst) and alert.unit is not Unit.SECONDS)
    found += [f"last {newest}"] * (last and newest not in ("", worst))
    return ", ".join(found)


_UNITS: Final = {
    Unit.FREE: " GiB free",
    Unit.BYTES: " GiB",
    Unit.CELSIUS: " °C",
    Unit.WATTS: " W",
    Unit.PERCENT: " %",
    Unit.MHZ: " MHz",
}


def _value(value: float | None, unit: Unit) -> str:
    if value is None or unit in (Unit.NONE, Unit.COUNT):
        return ""
    if unit in (Unit.FREE, Unit.BYTES):
        return gib(value)
    return long_duration(value) if unit is Unit.SECONDS else f"{value:.0f}"
