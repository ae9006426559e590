"""Events in a store: written as they stand, and read again, of several stores as of one."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import date, timedelta
from pathlib import Path
from sqlite3 import Connection
from typing import Final

import msgspec

from gpuwatch.alerts.alert import Alert, AlertGpu, AlertUser
from gpuwatch.analysis.events import Events, Gap
from gpuwatch.base import files, text
from gpuwatch.model.holdings import UNSEEN_USER
from gpuwatch.recorder.opening import reading
from gpuwatch.recorder.paths import FRESH, day_of, file_state, is_public, lock_path
from gpuwatch.recorder.schema import NOBODY, read_about, write_about

UNWATCHED: Final = 600.0
"""Seconds without any gpuwatch after which the time counts as a gap, and an older open event as ended."""
NOT_RUNNING: Final = "gpuwatch was not running"
"""How an event ended that was over before gpuwatch began to record again."""
_FAR: Final = float(1 << 33)
"""Seconds since the epoch in the year 2242: no valid time is later, and `localtime` may refuse one."""
_HUGE: Final = 1e18
_LONGEST: Final = 1 << 16
"""Characters of an alert as JSON, at most; a usual one has 500, with the longest command line 6000."""
_MOST_NAMES: Final = 256
_SHORT: Final = 400
"""Characters of a name or a title, at most."""
_PLAIN: Final = re.compile("[ -~·—°…≥→µ]*")
"""Text that `text.clean` leaves unchanged; this test takes a tenth of its time."""
_EVENT: Final = """INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET
    key = excluded.key, severity = excluded.severity, gpu = excluded.gpu, raised = excluded.raised,
    seen = excluded.seen, ended = excluded.ended, alert = excluded.alert"""
_decoder: Final = msgspec.json.Decoder(Alert)
_BY_MINUTE: Final = ("use", "graph_values")
"""Tables with a row for each minute in which a gpuwatch recorded."""


def write_events(connection: Connection, alerts: Collection[Alert], gaps: Iterable[Gap], now: float) -> None:
    """Write the present state of events, in place of their stored state; `now` is the wall-clock time."""
    rows = [
        (
            *(one.id, one.key, one.rule, int(max(one.most, one.severity)), one.gpu, one.raised, one.seen, one.ended),
            msgspec.json.encode(one).decode(),
        )
        for one in alerts
    ]
    connection.executemany(_EVENT, rows)
    # Whoever was once named stays named, so that the events of a user or a run are all there.
    about = [(one.id, kind, who) for one in alerts for kind, who in _about(one)]
    connection.executemany("INSERT OR IGNORE INTO event_about VALUES (?, ?, ?)", about)
    connection.executemany("INSERT INTO gaps VALUES (?, ?, ?)", gaps)
    write_about(connection, "written", now)


def _about(alert: Alert) -> Iterator[tuple[str, object]]:
    """Yield the kind and the identity of the GPUs that an alert is about, and of the users and runs that cause it.

    An alert about a GPU itself names all who hold it: the first, with the most, causes it, and the others suffer.
    """
    yield from (("gpu", one.key) for one in alert.gpus)
    if alert.owners[:1] == (UNSEEN_USER,):
        yield from (("user", NOBODY), ("run", f"{NOBODY}/"))
        return
    causes = alert.causes
    if not alert.subject:
        first = alert.users[0].uid if alert.users else None
        causes = tuple(one for one in causes if one.uid == first)[:1] or causes[:1]
    for one in causes:
        uid = NOBODY if one.uid is None else one.uid
        yield from (("user", uid), ("run", f"{uid}/{one.run}"))


def read_events(path: Path, since: float | None = None, *, named: bool = False, repairs: bool = False) -> Events:
    """Read the events that had not ended before `since` (wall-clock time), all for None; raises StoreError."""
    watched, touched = files.read_lock(lock_path(path))
    try:
        with reading(path, named=named, repairs=repairs) as connection:
            encoded = connection.execute("SELECT alert FROM events WHERE ended IS NULL OR ended >= ?", (since or 0.0,))
            alerts = [_decode_alert(row[0]) for row in encoded]
            rows = connection.execute("SELECT since, until, lost FROM gaps WHERE until >= ?", (since or 0.0,))
            gaps = [Gap(float(row[0]), float(row[1]), int(row[2])) for row in rows if _are_numbers(row)]
            written = read_about(connection, "written")
            firsts = [connection.execute(f"SELECT min(at) FROM {name}").fetchone() for name in _BY_MINUTE]
            with contextlib.suppress(ValueError):  # a public day says when its service began
                firsts.append((float(read_about(connection, "since")),))
    except FileNotFoundError:
        return Events(watched=watched, watched_until=None if watched else touched)
    with contextlib.suppress(ValueError):
        touched = max(filter(None, (touched, float(written))), default=None)
    if is_public(path):
        watched = touched is not None and time.time() - touched < FRESH
    old = since is not None and touched is not None and not watched and touched < since
    # What is open held until the last sign of life of its gpuwatch: nobody knows of later.
    sound = [
        one if one.ended is not None else msgspec.structs.replace(one, seen=max(one.seen, touched or 0.0))
        for one in alerts
        if one is not None and not (old and one.ended is None)
    ]
    return Events(
        alerts=tuple(sorted(sound, key=lambda alert: alert.raised)),
        gaps=tuple(gaps),
        damaged=alerts.count(None),
        watched=watched,
        watched_until=None if watched else touched,
        since=min((float(row[0]) for row in firsts if _are_numbers(row)), default=None),
        exists=True,
    )


class EventsReader:
    """Reader of some stores that reads again only where a file has changed, or whether a gpuwatch records."""

    def __init__(self, paths: Callable[[], Iterable[Path]]) -> None:
        """`paths` returns the stores; each counts before those after it."""
        self._paths = paths
        self._seen: list[object] = []
        self._events = Events()

    def __call__(self) -> Events:
        """Return the events; raises StoreError."""
        paths = list(self._paths())
        seen: list[object] = [(path, file_state(path), files.read_lock(lock_path(path))[0]) for path in paths]
        if seen != self._seen:
            self._events = read_all_events(paths)
            self._seen = seen
        return self._events


def read_all_events(paths: Sequence[Path], since: float | None = None, *, named: bool = False) -> Events:
    """Read the events of some stores as those of one, as in `read_events`; one's own count before the machine's."""
    ordered = sorted(paths, key=is_public)
    parts = [read_events(path, since, named=named) for path in ordered]
    if len(parts) == 1:
        return parts[0]
    events = Events.joined(parts)
    if days := {day_of(path) for path in paths if is_public(path)}:  # while the machine's service ran, somebody watched
        machine = {gap for path, part in zip(ordered, parts, strict=True) if is_public(path) for gap in part.gaps}
        for gap in events.gaps:
            begin, end = date.fromtimestamp(gap.since), date.fromtimestamp(gap.until)
            if not days.issuperset(
                begin + timedelta(days=number) for number in range(min(1000, (end - begin).days + 1))
            ):
                machine.add(gap)
        events = msgspec.structs.replace(events, gaps=tuple(sorted(machine)))
    return events


def _decode_alert(content: object) -> Alert | None:
    """Return an alert that was written as JSON, its texts cleaned; None where gpuwatch cannot have written it."""
    if not isinstance(content, str) or len(content) > _LONGEST:
        return None
    try:
        alert = _decoder.decode(content)
    except (ValueError, RecursionError):
        return None
    times = (alert.raised, alert.seen, alert.lasted, alert.ended or 0.0)
    values = (alert.peak or 0.0, alert.mean or 0.0, alert.last or 0.0, float(alert.index or 0))
    sound = all(0.0 <= time < _FAR for time in times) and all(abs(value) < _HUGE for value in values)
    if not (sound and alert.id and alert.rule):
        return None
    if not alert.title:  # of a public day, which has no words
        about = f"GPU {alert.index}: " if alert.index is not None else ""
        alert = msgspec.structs.replace(alert, title=f"{about}{alert.rule}")
    return _cleaned(alert)


def _cleaned(alert: Alert) -> Alert:
    return msgspec.structs.replace(
        alert,
        id=_clean(alert.id, 40),
        rule=_clean(alert.rule),
        host=_clean(alert.host),
        gpu=_clean(alert.gpu),
        subject=_clean(alert.subject, text.LIMIT),
        title=_clean(alert.title),
        short=_clean(alert.short),
        forecast=_clean(alert.forecast),
        evidence=_clean(alert.evidence, text.LIMIT),
        how=_clean(alert.how),
        owners=tuple(_clean(owner) for owner in alert.owners[:_MOST_NAMES]),
        pids=alert.pids[:_MOST_NAMES],
        gpus=tuple(AlertGpu(_clean(one.key), one.index) for one in alert.gpus[:_MOST_NAMES]),
        users=tuple(AlertUser(one.uid, _clean(one.name)) for one in alert.users[:_MOST_NAMES]),
        causes=tuple(
            msgspec.structs.replace(one, user=_clean(one.user), run=_clean(one.run))
            for one in alert.causes[:_MOST_NAMES]
        ),
        raised_monotonic=0.0,
    )


def _clean(words: str, limit: int = _SHORT) -> str:
    return words if len(words) <= limit and _PLAIN.fullmatch(words) else text.clean(words, limit)


def _are_numbers(row: tuple[object, ...]) -> bool:
    return all(isinstance(value, int | float) and 0 <= value < _FAR for value in row)
