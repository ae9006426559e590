"""What the events log says against what holds: which lines are to be written. Pure; the writer keeps the file.

Two gpuwatches that run side by side see the same conditions a moment apart, and each gives them an id of its own. A
line is therefore written by comparing with the log and not by what one of them calls news: an alert is the one that
the log has open under its id, or else under its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from gpuwatch.alerts.alert import Alert, Unit
from gpuwatch.recorder.events_log import Event, Record

ECHO: Final = 30.0
"""Seconds after an end in the log for which somebody else may still hold the same event without it being news."""
UNWATCHED: Final = "nobody watched"
UNSEEN: Final = "ended while the log could not be written"

_MOST_FINISHED: Final = 2000


class Ledger:
    """What the log says holds; each method gives the records that bring it up to date."""

    def __init__(self, alerts: Iterable[Alert] = ()) -> None:
        """`alerts` are those that the log has, ended ones among them."""
        self._open: dict[str, Alert] = {}
        """By id."""
        self._ids: dict[str, str] = {}
        """Of the open ones, by key."""
        self._finished: dict[str, Alert] = {}
        """By key, the last that ended."""
        for alert in alerts:
            if alert.ended is None:
                self._hold(alert)
            else:
                self._finished[alert.key] = alert

    @property
    def open(self) -> tuple[Alert, ...]:
        """What holds, as far as the log knows."""
        return tuple(self._open.values())

    def note(self, alert: Alert, at: float) -> list[Record]:
        """Take in an alert as it is, or as it ended; give what the log does not say of it yet."""
        return self._note_held(alert, at) if alert.ended is None else self._note_ended(alert, at)

    def carried(self, at: float) -> list[Record]:
        """Give a record of each alert that holds, for a file to begin with, or to keep its worst value."""
        return [Record(at=at, event=Event.CARRIED, alert=alert) for alert in self._open.values()]

    def settle(
        self,
        held: Mapping[str, Alert],
        at: float,
        until: float,
        how: str,
        judged: Callable[[Alert], bool] = lambda alert: True,
    ) -> list[Record]:
        """Take in all that holds, by key, and end all else: at `until`, or when it was last judged if that is later.

        What is not `judged`, because its GPU is not watched, stays as it is.
        """
        records: list[Record] = []
        for alert in held.values():
            records += self.note(alert, at)
        holding = {self._found(alert).id for alert in held.values()}
        for alert in [one for one in self._open.values() if one.id not in holding and judged(one)]:
            ended = max(until, alert.seen, alert.raised)
            lasted = max(alert.lasted, ended - alert.raised)
            records += self.note(msgspec.structs.replace(alert, ended=ended, lasted=lasted, how=how), at)
        return records

    def _found(self, alert: Alert) -> Alert:
        """Give the open alert of the log which this one is; itself where there is none."""
        return self._open.get(alert.id) or self._open.get(self._ids.get(alert.key, ""), alert)

    def _same(self, alert: Alert, at: float) -> Alert | None:
        """Give the event of the log that ended of late and that this one is, as somebody else saw it; None if none."""
        done = self._finished.get(alert.key)
        if done is None or done.ended is None or alert.raised > done.ended:
            return None
        # Known before it ended, and not by its own id: the clock was set back, and by it this one is older than it is.
        return None if at < done.ended - ECHO and alert.id != done.id else done

    def _hold(self, alert: Alert) -> None:
        self._let_go(alert.id)  # its key changes when its GPU gets a name
        self._open[alert.id] = alert
        self._ids[alert.key] = alert.id

    def _let_go(self, id: str) -> None:
        before = self._open.pop(id, None)
        if before is not None and self._ids.get(before.key) == id:
            del self._ids[before.key]

    def _note_held(self, alert: Alert, at: float) -> list[Record]:
        before = self._found(alert)
        if before.id in self._open:
            event = _change(before, alert)
        else:
            done = self._same(alert, at)
            if done is None:
                event = Event.RAISED
            elif at - (done.ended or 0.0) < ECHO:
                return []  # its end will come: whoever wrote before us saw it first
            else:
                before, event = done, Event.CARRIED
        now = _joined(before, alert)
        self._hold(now)
        return [] if event is None else [Record(at=at, event=event, alert=now)]

    def _note_ended(self, alert: Alert, at: float) -> list[Record]:
        before = self._found(alert)
        records: list[Record] = []
        if before.id not in self._open:
            if self._same(alert, at) is not None:
                return []
            first = msgspec.structs.replace(alert, ended=None, how="", raised_monotonic=0.0)
            records.append(Record(at=at, event=Event.RAISED, alert=first))
        self._let_go(before.id)
        ended = _joined(before, alert)
        self._finished.pop(ended.key, None)
        self._finished[ended.key] = ended
        if len(self._finished) > _MOST_FINISHED:
            del self._finished[next(iter(self._finished))]
        return [*records, Record(at=at, event=Event.ENDED, alert=ended)]


def _change(before: Alert, now: Alert) -> Event | None:
    if now.severity > before.severity:
        return Event.WORSE
    return Event.EASED if now.severity < before.severity else None


def _joined(before: Alert, now: Alert) -> Alert:
    """Give an alert as it is now under the id and with the past that the log has."""
    if before.id == now.id:
        return msgspec.structs.replace(now, raised_monotonic=0.0)
    peaks = [value for value in (before.peak, now.peak) if value is not None]
    return msgspec.structs.replace(
        now,
        id=before.id,
        raised=min(before.raised, now.raised),
        raised_monotonic=0.0,
        lasted=now.lasted + max(0.0, now.raised - before.raised),
        most=max(before.most, now.most),
        peak=(min if now.unit is Unit.FREE else max)(peaks, default=None),
    )


def gap(lost: tuple[int, float, float], now: float) -> list[Record]:
    """Give what tells of lines that were lost: how many, and when the first and the last of them were."""
    count, since, until = lost
    return [Record(at=now, event=Event.GAP, lost=count, since=since, until=until)] if count else []
