"""Events as rows of plain text: a line each, the oldest first, for `gpuwatch events` and whoever else lists them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from gpuwatch.alerts.alert import MARKS, Alert, Unit
from gpuwatch.output.plain import COLORS, cells
from gpuwatch.recorder.events_log import Events, Gap, State
from gpuwatch.text import fit
from gpuwatch.units import UNKNOWN, duration, gib, long_duration

UNWATCHED: Final = 600.0
"""Seconds without anybody watching from which on a list says so."""

_GAP: Final = "  "
_WIDEST: Final = 24
"""Cells of a column that holds names."""
_NARROWEST: Final = 24
"""Cells that are left for the title, whatever stands before it."""
_DIM: Final = "2"


@dataclass(frozen=True, slots=True)
class EventRow:
    """One event, or a time that the log does not tell of, as text for each column."""

    start: str
    """`22:14:03`; with the date when that is not today's."""
    lasted: str
    """For how long: `6m`, `ongoing`, or `≥6m` of what nobody saw end."""
    mark: str
    """The severity's shape; empty in a gap."""
    severity: str
    """The worst that it was, in a word; empty in a gap."""
    gpu: str
    owners: str
    title: str
    worst: str
    """The worst value and the mean: `peak 91 °C, mean 88`; empty where that says nothing."""
    how: str
    """How it ended; empty while it holds."""
    alert: Alert | None = None


def events_rows(
    alerts: Iterable[Alert],
    now: float,
    *,
    watched: bool = True,
    until: float | None = None,
    gaps: Iterable[Gap] = (),
) -> list[EventRow]:
    """Give the rows of alerts and gaps, by when they began; `now` is the wall-clock time.

    Without `watched` what has no end was open when somebody watched last, which was at `until`.
    """
    found = Events(watched=watched, watched_until=until)
    rows = [(alert.raised, _row(alert, found, now)) for alert in alerts]
    rows += [(gap.since, _gap(gap, now)) for gap in gaps if gap.lost or gap.until - gap.since >= UNWATCHED]
    return [row for _, row in sorted(rows, key=lambda each: each[0])]


def table(rows: Sequence[EventRow], *, width: int | None = None, color: bool = False) -> list[str]:
    """Give a line for each row, after one of headers; `width` (cells) is where lines are cut, None for nowhere.

    What does not fit is cut off the title, and off what follows it; never off the columns before it.
    """
    head = EventRow("start", "for", "", "severity", "GPU", "who", "what", "", "")
    shown = [_columns(row) for row in (head, *rows)]
    widths = [max(cells(row[at]) for row in shown) for at in range(_COLUMNS)]
    lines: list[str] = []
    for row, columns in zip((head, *rows), shown, strict=True):
        before = [
            " " * (wide - cells(cell)) + cell if at in _RIGHT else cell + " " * (wide - cells(cell))
            for at, (cell, wide) in enumerate(zip(columns, widths, strict=True))
        ]
        rest = " · ".join(filter(None, (row.title, row.worst, row.how)))
        if width is not None:
            room = max(_NARROWEST, width - sum(widths) - len(_GAP) * _COLUMNS)
            rest = fit(rest, room)
        lines.append(_GAP.join(_painted(before, row) if color else before) + (_GAP + rest).rstrip())
    return [line.rstrip() for line in lines]


_COLUMNS: Final = 5
_RIGHT: Final = (0, 1, 3)
"""Columns whose text stands at the right."""


def _columns(row: EventRow) -> list[str]:
    mark = f"{row.mark} {row.severity}" if row.mark else f"  {row.severity}"
    return [row.start, row.lasted, mark.rstrip(), row.gpu, fit(row.owners, min(_WIDEST, cells(row.owners)))]


def _painted(columns: list[str], row: EventRow) -> list[str]:
    code = COLORS[row.alert.most] if row.alert is not None else _DIM
    return [*columns[:2], f"\x1b[{code}m{columns[2]}\x1b[0m", *columns[3:]]


def _row(alert: Alert, found: Events, now: float) -> EventRow:
    state = found.state(alert)
    worst = max(alert.most, alert.severity)
    how = alert.how
    if state is State.OPEN:
        how = "still held when watching stopped"
    elif state is State.ONGOING and worst > alert.severity:
        how = f"{alert.severity.name.lower()} now"
    return EventRow(
        start=moment(alert.raised, now),
        lasted=_lasted(alert, state, found.watched_until),
        mark=MARKS[worst],
        severity=worst.name.lower(),
        gpu=UNKNOWN if alert.index is None else str(alert.index),
        owners=", ".join(alert.owners),
        title=alert.title,
        worst=value_words(alert),
        how="" if how == alert.title else how,
        alert=alert,
    )


def _lasted(alert: Alert, state: State, until: float | None) -> str:
    if state is State.ONGOING:
        return State.ONGOING.value
    if state is State.ENDED:
        return lasted_words(alert, 0.0)
    return f"≥{duration(max(alert.lasted, (until or 0.0) - alert.raised))}"


def _gap(gap: Gap, now: float) -> EventRow:
    lines = "1 line" if gap.lost == 1 else f"{gap.lost} lines"
    title = f"{lines} could not be written" if gap.lost else "nobody watched"
    start, lasted = moment(gap.since, now), duration(gap.until - gap.since)
    return EventRow(start, lasted, "", "gap", "", "", title, "", "")


def moment(at: float, now: float) -> str:
    """Give a wall-clock time by this machine's zone, with the date when that is not today's."""
    then, today = time.localtime(at), time.localtime(now)
    if then[:3] == today[:3]:
        return time.strftime("%H:%M:%S", then)
    return time.strftime("%m-%d %H:%M:%S" if then.tm_year == today.tm_year else "%Y-%m-%d %H:%M:%S", then)


def lasted_words(alert: Alert, now: float) -> str:
    """Say how long an event lasted, or has lasted until `now` (wall clock) where it has no end; in 6 cells at most."""
    return duration(alert.lasted if alert.ended is not None else max(alert.lasted, now - alert.raised))


def state_words(alert: Alert) -> str:
    """Say how an event ended; empty while it holds."""
    if alert.ended is None:
        return ""
    return alert.how if alert.how and alert.how != alert.title else "ended"


def value_words(alert: Alert, *, last: bool = False) -> str:
    """Say what its worst value and the mean were, and the `last`, with their unit; empty where they say nothing."""
    worst, mean, newest = (_value(value, alert.unit) for value in (alert.peak, alert.mean, alert.last))
    if not worst:
        return ""
    word = "at worst" if alert.unit in (Unit.FREE, Unit.SECONDS) else "peak"
    found = [f"{word} {worst}{_UNITS.get(alert.unit, '')}"]
    found += [f"mean {mean}"] * (mean not in ("", worst))
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
