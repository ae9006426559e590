"""What is said of alerts, and in which words: one message a raise and one a clear, and one for many. Pure."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec

from gpuwatch import text, units
from gpuwatch.alerts.alert import MARKS, Alert, Severity

TITLE: Final = 200
"""Characters of a title at most: what a telephone shows, and more than a line of a mail's subject needs."""
BODY: Final = 2000
"""Characters of a line of the body at most."""
LINES: Final = 10
"""Alerts that a digest names; the others are counted."""

_OVER: Final = "✓"
_DAY: Final = 20 * 3600.0
"""Seconds from which on a time of day alone could be mistaken for today's."""


class Kind(StrEnum):
    """What a message tells."""

    RAISED = "raised"
    WORSE = "worse"
    CLEARED = "cleared"
    DIGEST = "digest"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """What is sent once to each way out; all its texts are clean."""

    title: str
    """With a mark for the severity and the host: `▲ box3: GPU 3 full in about 4 min`."""
    body: str = ""
    """Who, why, and since when; lines."""
    kind: Kind
    severity: Severity
    """Of a digest the worst that is in it."""
    alerts: tuple[Alert, ...]
    """The one that it is about; of a digest all, the worst first."""
    host: str = ""
    line: str = ""
    """The title without the host, for a digest."""
    parts: tuple[Message, ...] = ()
    """Of a digest, the messages that it is made of."""

    @property
    def count(self) -> int:
        """How many messages it stands for."""
        return len(self.parts) or 1


class Flaps(msgspec.Struct, frozen=True, kw_only=True):
    """How often a condition was raised lately."""

    times: int = 1
    since: float = 0.0
    """Wall-clock time of the first."""

    def words(self, now: float) -> str:
        """Say it where that was more than once: ` (3 times since 14:02)`."""
        return f" ({self.times} times since {clock_time(self.since, now)})" if self.times > 1 else ""


def raised(alert: Alert, kind: Kind, flaps: Flaps) -> Message:
    """Give what is said of an alert that holds: its title; evidence, since when, whose doing."""
    now = max(alert.seen, alert.raised)
    told = [
        alert.evidence,
        f"{alert.severity.name.lower()} now" if kind is Kind.WORSE else "",
        f"since {clock_time(alert.raised, now)}",
        _owners(alert),
    ]
    return _message(kind, alert, f"{MARKS[alert.severity]} ", f"{alert.title}{flaps.words(now)}", told)


def cleared(alert: Alert, title: str, flaps: Flaps) -> Message:
    """Give what is said of an alert that has ended; `title` is the one that its raise was told with."""
    end = alert.ended if alert.ended is not None else max(alert.seen, alert.raised)
    lasted = alert.lasted or end - alert.raised
    told = [
        alert.how,
        f"{clock_time(alert.raised, end)} to {clock_time(end, end)}",
        _owners(alert),
    ]
    words = f"over after {units.long_duration(lasted)}{flaps.words(end)}: {title}"
    return _message(Kind.CLEARED, alert, f"{_OVER} ", words, told)


def digest(messages: Sequence[Message]) -> Message:
    """Make one message of several, which may be digests themselves: the worst first, what has ended last."""
    parts = sorted((part for one in messages for part in one.parts or (one,)), key=_order)
    over = sum(part.kind is Kind.CLEARED for part in parts)
    hold = len(parts) - over
    host = _host(parts[0].host)
    if not hold:
        title = f"{_OVER} {over} alerts on {host} are over"
    else:
        count = f"{hold} alert{'s' * (hold > 1)} on {host}" + (f", {over} over" if over else "")
        mark, _, words = parts[0].line.partition(" ")
        title = f"{mark} {count}: {words}"
    lines = [part.line for part in parts[:LINES]]
    if len(parts) > LINES:
        lines.append(f"and {len(parts) - LINES} more")
    return Message(
        title=text.clean(title, TITLE),
        body="\n".join(lines),
        kind=Kind.DIGEST,
        severity=parts[0].severity,
        alerts=tuple(alert for part in parts for alert in part.alerts),
        host=parts[0].host,
        parts=tuple(parts),
    )


def clock_time(wall: float, now: float) -> str:
    """Give a wall-clock time as people here read it: `14:02`, with the date where that was not today."""
    return time.strftime("%H:%M" if abs(now - wall) < _DAY else "%Y-%m-%d %H:%M", time.localtime(wall))


def _message(kind: Kind, alert: Alert, mark: str, words: str, told: Sequence[str]) -> Message:
    return Message(
        title=text.clean(f"{mark}{_host(alert.host)}: {words}", TITLE),
        body="\n".join(text.clean(line, BODY) for line in told if line),
        kind=kind,
        severity=alert.severity,
        alerts=(alert,),
        host=alert.host,
        line=text.clean(mark + words, TITLE),
    )


def _owners(alert: Alert) -> str:
    return f"by {', '.join(alert.owners)}" if alert.owners else ""


def _host(host: str) -> str:
    return host or "this machine"


def _order(part: Message) -> tuple[bool, int, float]:
    return (part.kind is Kind.CLEARED, -part.severity, part.alerts[0].raised)
