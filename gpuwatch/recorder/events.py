"""Events in stores: recorded from each frame, written in their present state, read from several stores as from one."""

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

from gpuwatch.alerts.alert import RENAMED, TROUBLE, Alert, AlertGpu, AlertUser, Severity
from gpuwatch.analysis.events import Events, Gap
from gpuwatch.base import files, text, units
from gpuwatch.model.holdings import UNSEEN_USER
from gpuwatch.monitor import Frame
from gpuwatch.recorder.opening import check_pages, reading
from gpuwatch.recorder.part import Part, RecorderContext
from gpuwatch.recorder.schema import FRESH, NOBODY, day_of, file_state, is_public, lock_path, read_about, write_about

UNWATCHED: Final = 600.0
"""Seconds without any gpuwatch after which the time counts as a gap, and an older open event as ended."""
NOT_RUNNING: Final = "gpuwatch was not running"
"""End of an event that was over before gpuwatch began to record again."""
_FAR: Final = float(1 << 33)
"""Seconds since the epoch in the year 2242: no valid time is later, and `localtime` may refuse one."""
_HUGE: Final = 1e18
_LONGEST: Final = 1 << 16
"""Characters of an alert as JSON, at most; a usual one has 500, with the longest command line 6000."""
_MOST_NAMES: Final = 256
_SHORT: Final = 400
"""Characters of a name or a title, at most."""
_TEXTS: Final = {"id": 40, "subject": text.LIMIT, "evidence": text.LIMIT} | dict.fromkeys(
    ("rule", "host", "gpu", "title", "short", "forecast", "how"), _SHORT
)
"""Texts of an alert, and their characters, at most."""
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
    # A name is never removed, so that all events of a user or a run are found.
    about = [(one.id, kind, who) for one in alerts for kind, who in _about(one)]
    connection.executemany("INSERT OR IGNORE INTO event_about VALUES (?, ?, ?)", about)
    connection.executemany("INSERT INTO gaps VALUES (?, ?, ?)", gaps)
    write_about(connection, "written", now)


def end_event(alert: Alert, until: float, how: str) -> Alert:
    """Return an event that ended at `until`, or when it was last seen if that is later."""
    end = max(until, alert.seen, alert.raised)
    return msgspec.structs.replace(alert, ended=end, lasted=max(alert.lasted, end - alert.raised), how=how)


def _about(alert: Alert) -> Iterator[tuple[str, object]]:
    """Yield the kind and the identity of the GPUs that an alert is about, and of the users and runs that cause it.

    An alert about a GPU itself names all holders: the first, with the most memory, causes it; the others suffer.
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
    # An open event counts up to the last sign of life of its gpuwatch; later times are not known.
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
    if alert.rule in RENAMED:
        alert = msgspec.structs.replace(alert, rule=RENAMED[alert.rule])
    if not alert.title:  # of a public day, which has no words
        about = f"GPU {alert.index}: " if alert.index is not None else ""
        alert = msgspec.structs.replace(alert, title=f"{about}{alert.rule}")
    return msgspec.structs.replace(
        alert,
        **{name: _clean(getattr(alert, name), limit) for name, limit in _TEXTS.items()},
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


# -- The part of the recorder -------------------------------------------------------------------------------------

NOT_SEEN: Final = "its end was not recorded"
MOST: Final = 10_000
"""Events that wait to be written, at most; beyond that they are lost, and counted."""
_SNAPSHOTS: Final = 2
"""Snapshots after which the engine has surely taken over the open events: the first may have begun before."""


class EventsPart(Part):
    """Part that writes events, where it holds the lock."""

    def __init__(
        self,
        context: RecorderContext,
        restore: Callable[[Sequence[Alert]], object],
        was_sent: Callable[[Alert], bool],
    ) -> None:
        """`restore` and `was_sent` are those of `Recorder`."""
        super().__init__(context)
        self._was_sent = was_sent
        self.is_settled = False
        """Whether it is known which events of before still hold."""
        self._restore = restore
        # Handed over by the monitor's thread, under the guard.
        self._news: dict[str, Alert] = {}
        """Alerts that were raised, got worse, eased or ended, by id: the newest state of each."""
        self._active: dict[str, Alert] = {}
        """Alerts of the newest frame by key."""
        self._levels: dict[str, Severity] = {}
        self._lost: Gap | None = None
        self._snapshots = 0
        self._newest: object = None
        # Used only by the thread.
        self._open: dict[str, Alert] | None = None
        """Events of the store that have not ended, by key; None until they have been read under the lock."""
        self._changed: dict[str, Alert] = {}
        """Events that are to be written, by id."""
        self._gaps: list[Gap] = []
        self._settle_at: int | None = None
        """Number of snapshots after which the store's open events are compared with the active alerts; then None."""
        self._until = 0.0
        """Wall-clock time until which a gpuwatch recorded before this one."""
        self._others = 0.0
        """Wall-clock time at which another gpuwatch was last seen to record."""
        self._silence: tuple[float, float] | None = None
        """Last sign of life of the lock's holder, and the time at which it was first seen."""
        self._no_lock = False
        """Whether no process can get the lock."""
        self._first = True

    @property
    def is_leader(self) -> bool:
        """Whether this gpuwatch writes the events: it holds the lock, or no process can get the lock."""
        return self._no_lock or self._lock.held

    @property
    def waiting(self) -> str:
        count = len(self._changed.keys() | self._news.keys())
        words = [f"{count} {'event is' if count == 1 else 'events are'} waiting"] if count else []
        return ", ".join([*words, f"{self._lost.lost} are lost"] if self._lost else words)

    def take(self, frame: Frame) -> bool:
        """Read a frame; a demo's alerts are not recorded."""
        if frame.snapshot.demo:
            return False
        now = self._wall()
        active = {alert.key: alert for alert in frame.alerts if alert.rule != TROUBLE}
        with self._guard:
            news = [alert for alert in frame.cleared if alert.rule != TROUBLE]
            news += [alert for alert in active.values() if self._levels.get(alert.id) != alert.severity]
            self._levels = {alert.id: alert.severity for alert in active.values()}
            self._active = active
            # Without a host's name no stored event was continued yet.
            if frame.snapshot is not self._newest and frame.snapshot.host:
                self._newest = frame.snapshot
                self._snapshots += 1
            for alert in news:
                if len(self._news) < MOST or alert.id in self._news:
                    self._news[alert.id] = alert
                else:
                    since, lost = (self._lost.since, self._lost.lost) if self._lost else (now, 0)
                    self._lost = Gap(since, now, lost + 1)
        return bool(news) or self._settle_at is not None

    def write_soon(self) -> None:
        """Write all open events with the next step, since a message about one was sent; from any thread."""
        self._set("carry", 0.0)

    def step(self) -> None:
        """Write events, or try to become the gpuwatch that writes them."""
        if not self._lock_held():
            self._open = None
            if not self._no_lock:  # another gpuwatch writes them
                with self._guard:
                    self._news.clear()
                    self._lost = None
                self._changed.clear()
                self._gaps.clear()
        elif self._is_due("retry"):
            self._record(self._take_over() if self._open is None else self._open)
            self.error = ""

    def finish(self) -> None:
        """Write all remaining events, and the present state of the active alerts."""
        if self._open is not None and self._lock.held:
            if self._settle_at is None:
                self._update_all(self._open, also_active=True)
            self._write()
            self._lock.touch(self._wall())
        self._open = None

    # -- election of the writer ------------------------------------------------------------------------

    def _lock_held(self) -> bool:
        """Return whether this gpuwatch holds the lock; raises OSError where no process can get it."""
        if not self._lock.held and not self._is_due("retry"):
            return False
        was_held = self._lock.held
        try:
            held = self._lock.acquire()
        except OSError:
            self._no_lock = True
            raise
        if held and not was_held:
            self._open = None
            self._due.pop("retry", None)
        self._no_lock = False
        if not held:
            self._others = self._wall()
            self.error = self._holder_error()
            if self._first:
                self._hand_over(read_events(self.store.path).open)
        self._first = False
        return held

    def _holder_error(self) -> str:
        """Return an error where the lock's holder gives no sign of life: it was stopped, or its disk hangs."""
        now, touched = time.monotonic(), self._lock.touched or 0.0
        if self._silence is None or self._silence[0] != touched:
            self._silence = (touched, now)
        silent = now - self._silence[1]
        if silent < self._pace.silent:
            return ""
        return f"your other gpuwatch, which records, has not answered for {units.duration(silent)}"

    def _take_over(self) -> dict[str, Alert]:
        """Read the store's open events, and let the engine continue them."""
        now = self._wall()
        check_pages(self.store.path)  # only others read the pages of old events, which must not be damaged
        found = read_events(self.store.path, now - UNWATCHED)
        # This process has the lock: the last touch of its former holder is known from its acquisition.
        self._until = max(self._lock.touched or 0.0, found.watched_until or 0.0 if not found.watched else 0.0)
        events = {alert.key: alert for alert in found.open}
        if self._until and now - self._until > UNWATCHED:
            self._gaps.append(Gap(self._until, now))
            for alert in list(events.values()):
                self._update(events, end_event(alert, self._until, NOT_RUNNING))
        with self._guard:
            self._settle_at = self._snapshots + _SNAPSHOTS
        self._hand_over([*events.values(), *(alert for alert in found.alerts if alert.ended is not None)])
        self._open, self.is_settled = events, not events
        self._set("carry", self._pace.carry)
        self._due.pop("touch", None)
        return events

    def _hand_over(self, alerts: Iterable[Alert]) -> None:
        """Let the engine continue the store's open events, and the messenger know which were sent."""
        if ours := list(alerts):
            self._restore(ours)

    # -- writing ---------------------------------------------------------------------------------------

    def _record(self, events: dict[str, Alert]) -> None:
        now = self._wall()
        if self._is_due("touch"):
            self._set("touch", self._pace.touch)
            self._lock.touch(now)
        self._write()  # failed writes first: the queue bounds the new ones
        if self._settle_at is not None and self._snapshots >= self._settle_at:
            self._settle_at = None
            self._update_all(events)
            self._settle(events, self._until or now, NOT_RUNNING)
            self.is_settled = True
        elif self._settle_at is None:
            lost = self._update_all(events, also_active=self._is_due("carry"))
            if lost is not None:
                self._gaps.append(lost)
                self._settle(events, now, NOT_SEEN)
        self._write()

    def _update_all(self, events: dict[str, Alert], *, also_active: bool = False) -> Gap | None:
        """Add new events, and the active alerts with their worst values so far; return the lost ones."""
        with self._guard:
            news, lost, active = list(self._news.values()), self._lost, self._active
            self._news.clear()
            self._lost = None
        for alert in news:
            self._update(events, alert)
        if also_active:
            self._set("carry", self._pace.carry)
            for alert in active.values():
                self._update(events, alert, is_news=True)
        return lost

    def _settle(self, events: dict[str, Alert], until: float, how: str) -> None:
        """Add all active alerts, and end the events that are open only in the store."""
        with self._guard:
            active = self._active
        for alert in active.values():
            self._update(events, alert)
        for alert in [one for key, one in events.items() if key not in active]:
            self._update(events, end_event(alert, until, how))

    def _update(self, events: dict[str, Alert], alert: Alert, *, is_news: bool = False) -> None:
        """Add an alert as a new event, or as a change of the open event with its key or, after a rename, its id."""
        same = next((event for event in events.values() if event.id == alert.id), None)
        before = events.get(alert.key, same)
        if before is None and alert.ended is not None and alert.raised <= self._others:
            return  # another gpuwatch recorded all of it
        sent = self._was_sent(alert) or (before is not None and before.sent)
        alert = msgspec.structs.replace(alert, raised_monotonic=0.0, unjudged=False, sent=sent)
        if before is not None and before.id != alert.id:  # as another gpuwatch saw it
            alert = msgspec.structs.replace(
                alert,
                id=before.id,
                raised=min(before.raised, alert.raised),
                lasted=alert.lasted + max(0.0, alert.raised - before.raised),
                most=max(before.most, alert.most),
            )
        for event in (before, same):
            if event is not None:
                events.pop(event.key, None)
        if alert.ended is None:
            events[alert.key] = alert
        kept = before is not None and (before.severity, before.sent) == (alert.severity, sent)
        if is_news or not kept or alert.ended is not None:
            self._changed[alert.id] = alert

    def _write(self) -> None:
        """Write the changed events; where that fails, keep them and raise StoreError."""
        if not self._changed and not self._gaps:
            return
        if self._open is not None and self.store.is_empty:  # the new file lacks the earlier events
            self._changed |= {one.id: one for one in self._open.values() if one.id not in self._changed}
        news = self._changed.values()
        self.store.write(lambda connection: write_events(connection, news, self._gaps, self._wall()))
        self._changed.clear()
        self._gaps.clear()
