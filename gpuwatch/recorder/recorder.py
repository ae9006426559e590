"""Recorder: one thread that writes events, marks and usage to the store, whatever the number of gpuwatches.

Of all gpuwatches of a user and host the one that holds the lock records: it writes events and usage, sends messages,
and writes the live file; another one takes over when it ends. A dashboard hands over to a `gpuwatch watch` that waits.
Who takes over goes on with the store's open events: an active alert with the key of one is the same event, and the
others have ended.

    start ──► lock held ──► read the store, hand over its open events ──► two snapshots later: compare ──► write news
              └─► somebody else has it: hand over what is open, write nothing, ask again

Marks: every gpuwatch writes what its own user acknowledged and muted, in a transaction, and reads what others did.

The store may lie on a file system that hangs, so nothing but this thread touches it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Final, NamedTuple

import msgspec

from gpuwatch.alerts.alert import NO_ATTENTION, TROUBLE, Alert, Attention, Severity
from gpuwatch.analysis.events import Gap
from gpuwatch.base import files, text, units
from gpuwatch.base.threads import Worker
from gpuwatch.config.types import Config
from gpuwatch.model.live import read_status
from gpuwatch.monitor import Frame, Monitor, Sink
from gpuwatch.recorder.live_writer import LiveFile
from gpuwatch.recorder.messages import Messenger
from gpuwatch.recorder.public import PublicDays, Publish
from gpuwatch.recorder.store import (
    UNWATCHED,
    DamagedError,
    Marks,
    Store,
    StoreError,
    changed_marks,
    check_pages,
    file_state,
    is_use_public,
    lock_path,
    marks_of,
    own_store,
    read_events,
    read_marks,
    reading,
    with_marks,
    write_events,
    write_marks,
)
from gpuwatch.recorder.use import Sums, UseCounter, write_use
from gpuwatch.sampler.owners import UserNames

NOT_RUNNING: Final = "gpuwatch was not running"
"""How an event ended that was over before gpuwatch began to record again."""
NOT_SEEN: Final = "its end was not recorded"
MOST: Final = 10_000
"""Events that wait to be written, at most; beyond that they are lost, and counted."""

_MOST_SUMS: Final = 1500
"""Sums that wait to be written, at most: the newest, of a day."""
_SNAPSHOTS: Final = 2
"""Snapshots after which the engine has surely taken over the open events: the first may have begun before."""
_SHOWN: Final = 600.0
"""Seconds for which a message says that a damaged file was renamed."""


class Pace(NamedTuple):
    """Intervals of the recorder in seconds; tests use shorter ones."""

    poll: float = 2.0
    """Between two checks of the locks and of the marks of other gpuwatches."""
    retry: float = 30.0
    """After an error."""
    touch: float = 10.0
    """Between two signs of life."""
    carry: float = 60.0
    """Between two writes of all open events, with their words and their worst values so far."""
    silent: float = 60.0
    """Time without a sign of life after which the lock's holder is reported as silent."""
    usage: float = 60.0
    prune: float = 3600.0


# ---------------------------------------------------------------------------------------------------------------
# Parts of the recorder


class RecorderLock(files.FileLock):
    """Lock that elects the gpuwatch of a user and host that records; `gpuwatch watch` comes before dashboards.

    The recorder's thread acquires and releases it; others look at `held`.
    """

    def __init__(self, store: Path, *, watch: bool = False) -> None:
        """`watch` is whether this is a `gpuwatch watch`."""
        super().__init__(lock_path(store))
        self._watches = lock_path(store, "watch")
        self._watch = files.FileLock(self._watches) if watch else None
        """Lock that a `gpuwatch watch` holds while it runs, which dashboards see."""

    @property
    def is_wanted(self) -> bool:
        """Whether this is a dashboard, and a `gpuwatch watch` runs, which comes first."""
        return self._watch is None and files.read_lock(self._watches)[0]

    def acquire(self) -> bool:
        """Try to get the lock, without waiting; return whether it is held. Raises OSError where locking fails."""
        if self._watch is not None:
            self._watch.acquire()
        elif not self.held and self.is_wanted:
            return False
        return super().acquire()

    def close(self) -> None:
        """Release it, and let dashboards record again."""
        self.release()
        if self._watch is not None:
            self._watch.release()


class _Part:
    """Part of the recorder: does a step again and again; after an error it waits before the next one."""

    def __init__(self, store: Store, pace: Pace, wall: Callable[[], float]) -> None:
        self.store, self._pace, self._wall = store, pace, wall
        self._guard = threading.Lock()
        """Guards what the monitor's thread hands over."""
        self._due: dict[str, float] = {}
        """Time of the next run of each task, on the machine's monotonic clock."""
        self.error = ""
        self.is_damaged = False
        """Whether the last step found the store damaged."""

    @property
    def waiting(self) -> str:
        """What is not written yet, in a few words; empty for nothing."""
        return ""

    def take(self, frame: Frame) -> bool:
        """Read a frame, in the monitor's thread; return whether there is something to write at once."""
        return False

    def step(self) -> None:
        """Do the work that is due; raises StoreError and OSError."""
        raise NotImplementedError

    def leave(self) -> None:
        """Write all that is left, before the lock is released."""
        raise NotImplementedError

    def run(self, step: Callable[[], None]) -> None:
        """Run a step; store the words of an exception in `error`."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            known = isinstance(error, StoreError)
            self.error = str(error) if known else files.words(error, self.store.path)
            self.is_damaged = isinstance(error, DamagedError)
            self._set("retry", self._pace.retry)

    def begin_anew(self) -> None:
        """Try again at once, on a new and empty file."""
        self.is_damaged = False
        self._due.pop("retry", None)

    def _set(self, name: str, seconds: float) -> None:
        self._due[name] = time.monotonic() + seconds

    def _is_due(self, name: str) -> bool:
        return time.monotonic() >= self._due.get(name, 0.0)


class EventsPart(_Part):
    """Part that writes events, where it holds the lock."""

    def __init__(
        self,
        store: Store,
        lock: RecorderLock,
        restore: Callable[[Sequence[Alert]], object],
        pace: Pace,
        wall: Callable[[], float],
        *,
        sends: bool,
    ) -> None:
        super().__init__(store, pace, wall)
        self.sends = sends
        """Whether this gpuwatch sends messages; may be replaced at any time."""
        self.is_settled = False
        """Whether it is known which events of before still hold."""
        self._lock = lock
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

    def leave(self) -> None:
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
        self._hand_over(events.values())
        self._open, self.is_settled = events, not events
        self._set("carry", self._pace.carry)
        self._due.pop("touch", None)
        return events

    def _hand_over(self, alerts: Iterable[Alert]) -> None:
        """Let the engine continue the store's open events."""
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
        same = next((one for one in events.values() if one.id == alert.id), None)
        before = events.get(alert.key, same)
        if before is None and alert.ended is not None and alert.raised <= self._others:
            return  # another gpuwatch recorded all of it
        sent = self.sends or alert.sent or (before is not None and before.sent)
        alert = msgspec.structs.replace(alert, raised_monotonic=0.0, unjudged=False, sent=sent)
        if before is not None and before.id != alert.id:  # as another gpuwatch saw it
            alert = msgspec.structs.replace(
                alert,
                id=before.id,
                raised=min(before.raised, alert.raised),
                lasted=alert.lasted + max(0.0, alert.raised - before.raised),
                most=max(before.most, alert.most),
            )
        for one in (before, same):
            if one is not None:
                events.pop(one.key, None)
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


class MarksPart(_Part):
    """Part that saves marks, and keeps them the same in all gpuwatches of a user on a host."""

    def __init__(
        self, store: Store, attend: Callable[[Attention], object], pace: Pace, wall: Callable[[], float]
    ) -> None:
        super().__init__(store, pace, wall)
        self._attend = attend
        self._frames: deque[tuple[Attention, Attention]] = deque()
        """For each frame its marks, and the marks that were last handed over before it."""
        self._last: Attention | None = None
        """The marks that came last, in the monitor's thread."""
        self._seen = NO_ATTENTION
        """The marks that were compared last."""
        self._attended = NO_ATTENTION
        """The marks that were last handed over and have come back in a frame."""
        self._known = NO_ATTENTION
        """The store's marks, as last read or written."""
        self._state: object = None
        """State of the file that `_known` was read from."""
        self._change: Marks = {}
        """Marks that must be saved."""

    @property
    def waiting(self) -> str:
        """What is not written yet, in a few words; empty for nothing."""
        return "what you acknowledged or muted counts in this gpuwatch alone" if self._change and self.error else ""

    def take(self, frame: Frame) -> bool:
        """Read the marks of a frame; a demo's marks are not saved."""
        if frame.snapshot.demo or frame.attention is self._last:
            return False
        self._last = frame.attention
        self._frames.append((frame.attention, frame.attended))
        return True

    def step(self) -> None:
        """Save the marks that the user changed; where there are none, read those that others have changed."""
        self._compare()
        if not self._is_due("retry"):
            return
        if self._change:
            self._save()
        else:
            self._look()
        self.error = ""

    def leave(self) -> None:
        """Save the marks that the user changed."""
        self._compare()
        if self._change:
            self._save()

    def begin_anew(self) -> None:
        """Save all known marks, in a new file."""
        super().begin_anew()
        self._change = marks_of(self._known) | self._change

    def _compare(self) -> None:
        """Find the marks that the user changed from frame to frame, without those that the recorder handed over."""
        while self._frames:
            now, attended = self._frames.popleft()
            before = self._seen if attended is self._attended else attended
            self._change |= changed_marks(before, now)
            self._seen, self._attended = now, attended

    def _look(self) -> None:
        """Read the store's marks, and hand over those that others have changed."""
        state = file_state(self.store.path)
        # A file that was taken away says nothing: it is written again with the next change.
        if state is None or state == self._state:
            return
        try:
            with reading(self.store.path) as connection:
                known = read_marks(connection).pruned((), self._wall())
        except FileNotFoundError:
            return
        is_news = known != self._known
        self._known, self._state = known, state
        if is_news:
            self._hand_over(known)

    def _save(self) -> None:
        """Write the user's changes into the store's present marks."""
        if self.store.is_empty:  # it lacks what was written before
            self._change = marks_of(self._known) | self._change

        def write(connection: Connection) -> None:
            self._known = write_marks(connection, self._change, self._wall())

        self.store.write(write)
        self._state = None  # another gpuwatch may have written since our transaction: it is read again
        self._change = {}
        if changed_marks(self._seen, self._known):
            self._hand_over(self._known)

    def _hand_over(self, attention: Attention) -> None:
        # What the user did a moment ago is not in the store yet: it would be undone on screen until it is.
        self._compare()
        self._attend(with_marks(attention, self._change, self._wall()))


class UsageSettings(NamedTuple):
    """How much of the usage is kept."""

    is_kept: bool = True
    keep: float = 90 * 24 * 3600.0
    """Age in seconds after which usage is deleted."""
    largest: int = 64 << 20
    """Size of the file in bytes, at most."""


class UsagePart(_Part):
    """Part that counts use, and writes it with the means of each minute, where it holds the lock.

    Two writers would count everything twice, so that without a lock nothing is written.
    """

    def __init__(
        self,
        store: Store,
        lock: RecorderLock,
        settings: UsageSettings,
        pace: Pace,
        wall: Callable[[], float],
        is_kept_elsewhere: Callable[[float], bool] = lambda now: False,
    ) -> None:
        """`is_kept_elsewhere` returns whether somebody else keeps use at a wall-clock time; means are kept anyway."""
        super().__init__(store, pace, wall)
        self._lock = lock
        self._is_kept_elsewhere = is_kept_elsewhere
        self.settings = settings
        """May be replaced at any time."""
        self._counter: UseCounter | None = None
        """Guarded; None where nothing was counted since use is kept, or since another gpuwatch wrote."""
        self._waiting: deque[Sums] = deque(maxlen=_MOST_SUMS)
        """Sums that are not written yet."""
        self._set("usage", pace.usage)

    def take(self, frame: Frame) -> bool:
        """Count the use of a frame; a demo's is ignored."""
        if not frame.snapshot.demo and self.settings.is_kept:
            with self._guard:
                self._counter = self._counter or UseCounter(UserNames().name)
                self._counter.add(frame.snapshot, frame.history)
        return False

    def step(self) -> None:
        """Write the sums of the last minute, and delete what is old; events are deleted where no use is kept too."""
        self.store.keep, self.store.largest = self.settings.keep, self.settings.largest
        if not self.settings.is_kept:
            if self._counter is not None and self._lock.held:
                self._write(last=True)  # what was counted until the configuration changed
            self._counter, self.error = None, ""
            if self._lock.held and self._is_due("usage") and not self.store.is_empty:
                self._prune()
            return
        if not self._is_due("retry") or not self._lock_held() or not (self._is_due("usage") or self.error):
            return
        self._set("usage", self._pace.usage)
        self._write()
        self._prune()
        self.error = ""

    def leave(self) -> None:
        """Write the sums."""
        if self._lock_held():
            self._write(last=True)

    def _prune(self) -> None:
        if self._is_due("prune"):
            self._set("prune", self._pace.prune)
            self.store.prune(self._wall())

    def _lock_held(self) -> bool:
        if not self._lock.acquire():
            with self._guard:  # the holder of the lock has written this too
                if self._counter is not None:
                    self._counter.pop()
            self._waiting.clear()
            self.error = ""
            return False
        return True

    def _write(self, *, last: bool = False) -> None:
        """Write the sums; where that fails, keep them and raise StoreError."""
        with self._guard:
            if self._counter is not None and (sums := self._counter.pop(last=last)):
                self._waiting.append(sums)
        if self._waiting and self._is_kept_elsewhere(self._wall()):
            for sums in self._waiting:
                sums.use.clear()

        def write(connection: Connection) -> None:
            for sums in self._waiting:
                write_use(connection, sums)

        if self._waiting:
            self.store.write(write)
        self._waiting.clear()


class PublicPart(_Part):
    """Part that publishes the days of the machine's service, where it holds the lock."""

    def __init__(
        self,
        days: PublicDays,
        events: EventsPart,
        usage: UsagePart,
        lock: RecorderLock,
        pace: Pace,
        wall: Callable[[], float],
    ) -> None:
        super().__init__(usage.store, pace, wall)
        self._days, self._events, self._usage, self._lock = days, events, usage, lock

    def configure(self, publish: Publish) -> None:
        """Publish other facts from now on."""
        self._days.publish = publish
        self._set("public", 0.0)

    def step(self) -> None:
        """Publish the days, once a minute; an event that is published without an end holds."""
        is_due = self._is_due("retry") and self._is_due("public")
        if self._lock.held and is_due and self._events.is_settled:
            self._set("public", self._pace.usage)
            with contextlib.suppress(FileNotFoundError):  # nothing was recorded yet
                self._days.write(self._wall(), self._usage.settings.keep)
            self.error = ""

    def leave(self) -> None:
        """Publish what was recorded last."""
        self._set("public", 0.0)
        self.step()


# ---------------------------------------------------------------------------------------------------------------
# The recorder


class Recorder:
    """Sink that saves events, marks and usage, on a thread of its own."""

    name = "recorder"

    def __init__(
        self,
        *,
        folder: Path | None = None,
        part: bool = False,
        watch: bool = False,
        days: PublicDays | None = None,
        restore: Callable[[Sequence[Alert]], object] = lambda alerts: None,
        attend: Callable[[Attention], object] = lambda attention: None,
        usage: UsageSettings | None = None,
        sends: bool = False,
        pace: Pace | None = None,
        wall: Callable[[], float] = time.time,
        make_store: Callable[..., Store] = Store,
    ) -> None:
        """`folder` stands in for the user's state folder.

        `restore` and `attend` are called from the recorder's thread: with the alerts that held when a gpuwatch recorded
        last, and with what others acknowledged and muted. Where only a `part` of the GPUs is watched, marks alone are
        kept. `watch` is whether this is a `gpuwatch watch`, `sends` whether it sends messages.
        """
        pace = pace or Pace()
        path = own_store(folder)
        store = make_store(path)
        self.lock = RecorderLock(path, watch=watch)
        """Lock of the user's store."""
        self.events: EventsPart | None = None
        self.usage: UsagePart | None = None
        self._parts: list[_Part] = [MarksPart(store, attend, pace, wall)]
        if not part:
            self.events = EventsPart(store, self.lock, restore, pace, wall, sends=sends)
            others = () if days is not None else (is_use_public,)
            self.usage = UsagePart(store, self.lock, usage or UsageSettings(), pace, wall, *others)
            self._parts = [self.events, *self._parts, self.usage]
        self._public: PublicPart | None = None
        if days is not None and self.events is not None and self.usage is not None:
            self._public = PublicPart(days, self.events, self.usage, self.lock, pace, wall)
            self._parts.append(self._public)
        self._pace = pace
        self._note: tuple[str, float] = ("", 0.0)
        """Message that a damaged file was renamed, and the time until which it is shown."""
        self._worker = Worker("gpuwatch-recorder", self._task, last=self._leave)

    @property
    def trouble(self) -> str:
        """Why nothing can be written, in one line; empty for no trouble."""
        errors = dict.fromkeys(part.error for part in self._parts if part.error)
        if errors:
            waiting = ", ".join(filter(None, (part.waiting for part in self._parts)))
            return text.clean("; ".join(filter(None, (f"not recorded: {', '.join(errors)}", waiting))), 500)
        words, until = self._note
        return words if words and time.monotonic() < until else ""

    def start(self) -> None:
        """Start the thread, as the first frame would. Raises NoThreadError."""
        self._worker.wake()

    def take(self, frame: Frame) -> None:
        """Queue a frame; returns at once."""
        news = [part.take(frame) for part in self._parts]
        if any(news) or not self._worker.is_running:
            self._worker.wake()

    def configure(self, usage: UsageSettings, publish: Publish = "none", *, sends: bool = False) -> None:
        """Use other settings from now on; from any thread."""
        if self.usage is not None:
            self.usage.settings = usage
        if self._public is not None:
            self._public.configure(publish)
        if self.events is not None:
            self.events.sends = sends

    def close(self, seconds: float) -> None:
        """Write all that is left, and give up after `seconds`."""
        self._worker.close(seconds)

    def _task(self) -> float:
        if self.lock.held and self.lock.is_wanted:
            for part in self._parts:
                part.run(part.leave)
            self.lock.release()
        for part in self._parts:
            part.run(part.step)
        events = self.events
        # What is published is another file, and is made anew by itself.
        is_damaged = any(part.is_damaged for part in self._parts if part is not self._public)
        if events is not None and events.is_leader and is_damaged:
            events.run(self._set_aside)
        return self._pace.poll

    def _set_aside(self) -> None:
        """Rename the damaged file, and make every part write to a new one."""
        self._note = (self._parts[0].store.set_aside(), time.monotonic() + _SHOWN)
        for part in self._parts:
            part.begin_anew()

    def _leave(self) -> None:
        for part in self._parts:
            part.run(part.leave)
        self.lock.close()


# ---------------------------------------------------------------------------------------------------------------
# All sinks of a run


def _silent_leader() -> int | None:
    """Return the PID of the gpuwatch of this user that records and sends no messages."""
    found = read_status()
    return found.pid if found is not None and not found.sends and found.pid != os.getpid() else None


class Sinks:
    """Sinks of one run: the recorder, the messenger and the live file. A demo has none."""

    def __init__(
        self,
        monitor: Monitor,
        config: Config,
        *,
        demo: bool = False,
        watch: bool = False,
        part: bool = False,
        service: bool = False,
    ) -> None:
        """Make the sinks and add them to the monitor.

        `watch` is whether this is a `gpuwatch watch`, which comes before dashboards and keeps usage even where the
        configuration says that a dashboard keeps none. Where only a `part` of the GPUs is watched, marks alone are
        written. A `service` publishes for everybody what `publish` in the configuration says.
        """
        self._watch, self._service = watch, service
        self._recorder: Recorder | None = None
        self._messenger: Messenger | None = None
        self._live: LiveFile | None = None
        self._sinks: list[Sink] = []
        if not demo:
            self._recorder = Recorder(
                part=part,
                watch=watch,
                restore=monitor.restore,
                attend=monitor.attend,
                days=PublicDays(own_store(), config.publish) if service else None,
            )
            self._sinks.append(self._recorder)
        if self._recorder is not None and not part:
            lock = self._recorder.lock
            self._messenger = Messenger(config.notify, lambda: lock.held, silent_leader=_silent_leader)
            self._live = LiveFile(lambda: lock.held, public=service)
            self._sinks += [self._messenger, self._live]
        self.configure(config, config)
        monitor.add(*self._sinks)
        if self._recorder is not None:
            self._recorder.start()  # what held before is to be known before the first snapshot is judged

    def configure(self, old: Config, new: Config) -> None:
        """Use another configuration from now on."""
        if self._messenger is not None and new.notify != old.notify:
            self._messenger.configure(new.notify)
        if self._recorder is not None:
            sends = new.notify.sends and self._messenger is not None
            usage = UsageSettings(self._watch or new.report.dashboard, new.report.keep, new.report.largest)
            self._recorder.configure(usage, new.publish, sends=sends)
        if self._live is not None:
            self._live.is_wanted, self._live.sends = new.publish != "none" or not self._service, new.notify.sends

    def close(self, seconds: float) -> None:
        """Close every sink, the recorder last; give up after `seconds`."""
        end = time.monotonic() + seconds
        sinks = list(reversed(self._sinks))
        for number, sink in enumerate(sinks):
            sink.close(max(0.0, end - time.monotonic()) / (len(sinks) - number))
