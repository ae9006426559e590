"""Writer of events: what the alerts of each frame change in the store, where this gpuwatch holds the lock."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.analysis.events import Gap
from gpuwatch.base import units
from gpuwatch.monitor import Frame
from gpuwatch.recorder.events import NOT_RUNNING, UNWATCHED, read_events, write_events
from gpuwatch.recorder.opening import check_pages
from gpuwatch.recorder.part import Part, RecorderContext

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
        # What the monitor's thread hands over, under the guard.
        self._news: dict[str, Alert] = {}
        """Alerts that were raised, got worse, eased or ended, by id: the newest state of each."""
        self._active: dict[str, Alert] = {}
        """Alerts of the newest frame by key."""
        self._levels: dict[str, Severity] = {}
        self._lost: Gap | None = None
        self._snapshots = 0
        self._newest: object = None
        # What is the thread's own.
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
        """What is not written yet, in a few words; empty for nothing."""
        count = len(self._changed.keys() | self._news.keys())
        words = [f"{count} {'event waits' if count == 1 else 'events wait'}"] if count else []
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
            # Without a host's name nothing was gone on with yet.
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
        """Write all that is left, and the present state of the active alerts."""
        if self._open is not None and self._lock.held:
            if self._settle_at is None:
                self._update_all(self._open, also_active=True)
            self._write()
            self._lock.touch(self._wall())
        self._open = None

    # -- who writes --------------------------------------------------------------------------------------------

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
        return f"another gpuwatch of yours records, and has not answered for {units.duration(silent)}"

    def _take_over(self) -> dict[str, Alert]:
        """Read the store's open events, and let the engine continue them."""
        now = self._wall()
        check_pages(self.store.path)  # a page of an old event is read by others alone, and must not be damaged
        found = read_events(self.store.path, now - UNWATCHED)
        # The lock is ours: what its holder touched last is known from when it was acquired.
        self._until = max(self._lock.touched or 0.0, found.watched_until or 0.0 if not found.watched else 0.0)
        events = {alert.key: alert for alert in found.open}
        if self._until and now - self._until > UNWATCHED:
            self._gaps.append(Gap(self._until, now))
            self._end(events, events.values(), self._until, NOT_RUNNING)
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

    # -- what is written ---------------------------------------------------------------------------------------

    def _record(self, events: dict[str, Alert]) -> None:
        now = self._wall()
        if self._is_due("touch"):
            self._set("touch", self._pace.touch)
            self._lock.touch(now)
        self._write()  # what failed before comes first: what is new has its bound in the queue
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
        """Add what is new, and the active alerts with their worst values so far; return what was lost."""
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
        self._end(events, [one for key, one in events.items() if key not in active], until, how)

    def _end(self, events: dict[str, Alert], ended: Iterable[Alert], until: float, how: str) -> None:
        """End events at `until`, or when last seen if that is later."""
        for alert in list(ended):
            end = max(until, alert.seen, alert.raised)
            lasted = max(alert.lasted, end - alert.raised)
            self._update(events, msgspec.structs.replace(alert, ended=end, lasted=lasted, how=how))

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
        if self._open is not None and self.store.is_empty:  # it lacks what was written before
            self._changed |= {one.id: one for one in self._open.values() if one.id not in self._changed}
        news = self._changed.values()
        self.store.write(lambda connection: write_events(connection, news, self._gaps, self._wall()))
        self._changed.clear()
        self._gaps.clear()
