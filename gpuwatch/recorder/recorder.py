"""Recorder: one thread that writes events, marks and usage to the store, whatever the number of gpuwatches.

Of all gpuwatches of a user and host the one that holds the lock records: it writes events and usage, sends messages,
and writes the live file; another one takes over when it ends. A dashboard hands over to a `gpuwatch watch` that waits.
Two that run side by side see the same conditions a moment apart, and each gives them an id of its own. So an alert is
looked up in the store, by its id and else by its key: an open event that is found there is the same event.

    start ──► lock held ──► read the store, hand over its open events ──► two snapshots later: compare ──► write news
              └─► somebody else has it: hand over what is open, write nothing, ask again

Marks: every gpuwatch writes what its own user acknowledged and muted, in a transaction, and reads what others did.

The store may lie on a file system that hangs, so nothing but this thread touches it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Final, NamedTuple

import msgspec

from gpuwatch import files, text, units
from gpuwatch.alerts.alert import NO_ATTENTION, TROUBLE, Alert, Attention, Unit
from gpuwatch.config import Config
from gpuwatch.monitor import Frame, Monitor, Sink
from gpuwatch.recorder.live_writer import LiveFile
from gpuwatch.recorder.messages import Messenger
from gpuwatch.recorder.store import (
    UNWATCHED,
    DamagedError,
    Gap,
    Marks,
    Store,
    StoreError,
    changed_marks,
    check_file,
    check_pages,
    file_state,
    lock_path,
    marks_of,
    own_store,
    read_about,
    read_events,
    read_marks,
    reading,
    with_marks,
    write_events,
    write_marks,
)
from gpuwatch.recorder.use import Sums, UseCounter, write_use
from gpuwatch.threads import Worker

NOT_RUNNING: Final = "gpuwatch was not running"
"""How an event ended that was over before gpuwatch began to record again."""
NOT_SEEN: Final = "its end was not recorded"
ECHO: Final = 30.0
"""Seconds after a recorded end in which the same alert, still held by another gpuwatch, is no new event."""
MOST: Final = 10_000
"""Events that wait to be written, at most; beyond that they are lost, and counted."""

_MOST_FINISHED: Final = 2000
_MOST_RECENT: Final = 500
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
    """Between two signs of life, and between two comparisons of the held alerts with the store."""
    carry: float = 3600.0
    """Between two writes of all open events, which save their worst values so far."""
    silent: float = 60.0
    """Time without a sign of life after which the lock's holder is reported as silent."""
    usage: float = 60.0
    prune: float = 3600.0


# ---------------------------------------------------------------------------------------------------------------
# Events as the store has them


class Ledger:
    """Copy of the store's events in memory; each method returns the events that must be written."""

    def __init__(self, alerts: Iterable[Alert] = ()) -> None:
        """`alerts` are the store's, with those that have ended."""
        self._open: dict[str, Alert] = {}
        """Open events by id."""
        self._ids: dict[str, str] = {}
        """Ids of the open events by key."""
        self._finished: dict[str, Alert] = {}
        """Ended events by key, the last one of each."""
        for alert in alerts:
            if alert.ended is None:
                self._add(alert)
            else:
                self._finished[alert.key] = alert

    @property
    def open(self) -> tuple[Alert, ...]:
        """Events that have not ended."""
        return tuple(self._open.values())

    def update(self, alert: Alert, at: float) -> list[Alert]:
        """Add an alert as it was at a wall-clock time: as a new event, or as a change of a stored one."""
        return self._update_held(alert, at) if alert.ended is None else self._update_ended(alert, at)

    def settle(self, held: Mapping[str, Alert], at: float, until: float, how: str) -> list[Alert]:
        """Add all held alerts (by key), and end all other events: at `until`, or when last seen if that is later."""
        changed = [one for alert in held.values() for one in self.update(alert, at)]
        holding = {self._find(alert).id for alert in held.values()}
        for alert in [one for one in self._open.values() if one.id not in holding]:
            ended = max(until, alert.seen, alert.raised)
            lasted = max(alert.lasted, ended - alert.raised)
            changed += self.update(msgspec.structs.replace(alert, ended=ended, lasted=lasted, how=how), at)
        return changed

    def _find(self, alert: Alert) -> Alert:
        """Return the open event of the store that is the same as an alert; the alert itself where there is none."""
        return self._open.get(alert.id) or self._open.get(self._ids.get(alert.key, ""), alert)

    def _find_finished(self, alert: Alert, at: float) -> Alert | None:
        """Return the recently ended event that is the same as an alert of another gpuwatch; None for no such event."""
        done = self._finished.get(alert.key)
        if done is None or done.ended is None or alert.raised > done.ended:
            return None
        # Known before it ended, and not by its own id: the clock was set back, and by it this one is older than it is.
        return None if at < done.ended - ECHO and alert.id != done.id else done

    def _add(self, alert: Alert) -> None:
        self._remove(alert.id)  # its key changes when its GPU gets a name
        self._open[alert.id] = alert
        self._ids[alert.key] = alert.id

    def _remove(self, id: str) -> None:
        before = self._open.pop(id, None)
        if before is not None and self._ids.get(before.key) == id:
            del self._ids[before.key]

    def _update_held(self, alert: Alert, at: float) -> list[Alert]:
        before = self._find(alert)
        is_news = before.id not in self._open or before.severity != alert.severity
        if before.id not in self._open and (done := self._find_finished(alert, at)) is not None:
            if at - (done.ended or 0.0) < ECHO:
                return []  # its end will come: the gpuwatch that wrote before us saw it first
            before = done
        now = _merge(before, alert)
        self._add(now)
        return [now] if is_news else []

    def _update_ended(self, alert: Alert, at: float) -> list[Alert]:
        before = self._find(alert)
        if before.id not in self._open and self._find_finished(alert, at) is not None:
            return []
        self._remove(before.id)
        ended = _merge(before, alert)
        self._finished.pop(ended.key, None)
        self._finished[ended.key] = ended
        if len(self._finished) > _MOST_FINISHED:
            del self._finished[next(iter(self._finished))]
        return [ended]


def _merge(before: Alert, now: Alert) -> Alert:
    """Return the alert `now` with the id and the history of the stored event `before`."""
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


# ---------------------------------------------------------------------------------------------------------------
# Parts of the recorder


class RecorderLock:
    """Lock that elects the gpuwatch of a user and host that records; `gpuwatch watch` comes before dashboards.

    The recorder's thread acquires and releases it; others look at `held`.
    """

    def __init__(self, store: Path, *, watch: bool = False, private: bool = True) -> None:
        """`watch` is whether this is a `gpuwatch watch`; `private` is as in `files.open_folder`."""
        self._lock = files.FileLock(lock_path(store), private=private)
        self._watches = lock_path(store, "watch")
        self._watch = files.FileLock(self._watches, private=private) if watch else None
        """Lock that a `gpuwatch watch` holds while it runs, which dashboards see."""

    @property
    def held(self) -> bool:
        """Whether this gpuwatch holds the lock."""
        return self._lock.held

    @property
    def touched(self) -> float | None:
        """Wall-clock time of the last sign of life of another holder; None where there was none."""
        return self._lock.touched

    @property
    def is_wanted(self) -> bool:
        """Whether this is a dashboard, and a `gpuwatch watch` runs, which comes first."""
        return self._watch is None and files.read_lock(self._watches)[0]

    def acquire(self) -> bool:
        """Try to get the lock, without waiting; return whether it is held. Raises OSError where locking fails."""
        if self._watch is not None:
            self._watch.acquire()
        elif not self._lock.held and self.is_wanted:
            return False
        return self._lock.acquire()

    def touch(self, now: float) -> None:
        """Give a sign of life at a wall-clock time; raises OSError."""
        self._lock.touch(now)

    def release(self) -> None:
        self._lock.release()

    def close(self) -> None:
        """Release it, and let dashboards record again."""
        self._lock.release()
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
        raise NotImplementedError

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
        with_demo: bool,
    ) -> None:
        super().__init__(store, pace, wall)
        self._lock = lock
        self._restore = restore
        self._with_demo = with_demo
        # What the monitor's thread hands over, under the guard.
        self._news: dict[str, tuple[float, Alert]] = {}
        """Alerts that were raised, got worse, eased or ended, by id: the newest state of each and its time."""
        self._held: dict[str, Alert] = {}
        self._lost: Gap | None = None
        self._snapshots = 0
        self._newest: object = None
        # What is the thread's own.
        self._ledger: Ledger | None = None
        """None until the store has been read under the lock."""
        self._changed: dict[str, Alert] = {}
        """Events that are to be written, by id."""
        self._gaps: list[Gap] = []
        self._recent: deque[tuple[float, Alert]] = deque(maxlen=_MOST_RECENT)
        """Alerts that ended recently while another gpuwatch wrote: it may have died before it wrote them."""
        self._settle_at: int | None = None
        """Number of snapshots after which all held alerts are compared with the store; None once that is done."""
        self._until = 0.0
        """Wall-clock time until which a gpuwatch recorded before this one."""
        self._identity = ""
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
    def is_settled(self) -> bool:
        """Whether all held alerts have been compared with the store."""
        return self._ledger is not None and self._settle_at is None

    @property
    def waiting(self) -> str:
        """What is not written yet, in a few words; empty for nothing."""
        count = len(self._changed.keys() | self._news.keys())
        words = [f"{count} {'event waits' if count == 1 else 'events wait'}"] if count else []
        return ", ".join([*words, f"{self._lost.lost} are lost"] if self._lost else words)

    def take(self, frame: Frame) -> bool:
        """Read a frame; a demo's alerts are recorded only in a store that the user named."""
        if frame.snapshot.demo and not self._with_demo:
            return False
        now = self._wall()
        held = {alert.key: alert for alert in frame.alerts if alert.rule != TROUBLE}
        with self._guard:
            changed = (*frame.cleared, *frame.raised, *frame.eased)
            news = [alert for alert in changed if alert.rule != TROUBLE]
            self._held = held
            # Without a host's name nothing was gone on with yet.
            if frame.snapshot is not self._newest and frame.snapshot.host:
                self._newest = frame.snapshot
                self._snapshots += 1
            for alert in news:
                if len(self._news) < MOST or alert.id in self._news:
                    self._news[alert.id] = (now, alert)
                else:
                    since, lost = (self._lost.since, self._lost.lost) if self._lost else (now, 0)
                    self._lost = Gap(since, now, lost + 1)
        return bool(news) or self._settle_at is not None

    def step(self) -> None:
        """Write events, or try to become the gpuwatch that writes them."""
        if not self._lock_held():
            self._ledger = None
            self._forget()
        elif self._is_due("retry"):
            self._record(self._ledger or self._take_over())
            self.error = ""

    def leave(self) -> None:
        """Write all that is left, and the present state of the alerts that hold."""
        if self._ledger is not None and self._lock.held:
            if self._settle_at is None:
                self._digest(self._ledger)
                for alert in self._copy_held().values():
                    self._ledger.update(alert, self._wall())
                self._changed |= {alert.id: alert for alert in self._ledger.open}
            self._write()
            self._lock.touch(self._wall())
        self._ledger = None

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
            self._ledger = None
            self._due.pop("retry", None)
        self._no_lock = False
        if not held:
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

    def _take_over(self) -> Ledger:
        now = self._wall()
        check_pages(self.store.path)  # a page of an old event is read by others alone, and must not be damaged
        found = read_events(self.store.path, now - UNWATCHED)
        # The lock is ours: what its holder touched last is known from when it was acquired.
        stamps = [self._lock.touched or 0.0, found.watched_until or 0.0 if not found.watched else 0.0]
        self._until = max(stamps)
        ledger = Ledger(found.alerts)
        self._identity = found.identity
        if self._until and now - self._until > UNWATCHED:
            self._gaps.append(Gap(self._until, now))
            self._note(ledger.settle({}, now, self._until, NOT_RUNNING))
        with self._guard:
            self._settle_at = self._snapshots + _SNAPSHOTS
        self._hand_over(ledger.open)
        self._ledger = ledger
        self._set("carry", self._pace.carry)
        self._due.pop("touch", None)
        return ledger

    def _hand_over(self, alerts: Iterable[Alert]) -> None:
        """Let the engine continue the store's open events."""
        if ours := list(alerts):
            self._restore(ours)

    def _forget(self) -> None:
        """Discard new alerts because another gpuwatch writes them; keep those that ended a moment ago."""
        if self._no_lock:
            return
        now = self._wall()
        with self._guard:
            self._recent += [item for item in self._news.values() if item[1].ended is not None]
            self._news.clear()
            self._lost = None
        self._changed.clear()
        self._gaps.clear()
        while self._recent and not 0 <= now - self._recent[0][0] <= ECHO:
            self._recent.popleft()

    # -- what is written ---------------------------------------------------------------------------------------

    def _record(self, ledger: Ledger) -> None:
        now = self._wall()
        if self._is_due("touch"):
            self._set("touch", self._pace.touch)
            self._lock.touch(now)
            self._compare(ledger, now)
        if self._settle_at is not None and self._snapshots >= self._settle_at:
            self._settle(ledger, now)
        self._write()  # what failed before comes first: what is new has its bound in the queue
        if self._settle_at is None:
            self._digest(ledger)
            self._write()

    def _copy_held(self) -> dict[str, Alert]:
        with self._guard:
            return self._held

    def _compare(self, ledger: Ledger, now: float) -> None:
        """Compare all held alerts with the store; they differ only where an event was lost."""
        with self._guard:
            if self._news or self._settle_at is not None:
                return
            held = self._held
        self._note(ledger.settle(held, now, now, NOT_SEEN))
        if self._is_due("carry"):
            self._set("carry", self._pace.carry)
            self._note(ledger.open)

    def _settle(self, ledger: Ledger, now: float) -> None:
        """Compare held alerts with the store for the first time; an event that is open only in the store has ended."""
        with self._guard:
            items = [*self._recent, *self._news.values()]
            self._recent.clear()
            self._news.clear()
            held, self._settle_at = self._held, None
        for at, alert in items:
            self._note(ledger.update(alert, at))
        self._note(ledger.settle(held, now, self._until or now, NOT_RUNNING))

    def _digest(self, ledger: Ledger) -> None:
        with self._guard:
            items, lost = list(self._news.values()), self._lost
            self._news.clear()
            self._lost = None
        for at, alert in items:
            self._note(ledger.update(alert, at))
        if lost:
            self._gaps.append(lost)
            self._due.pop("touch", None)  # all that holds is to be compared

    def _note(self, alerts: Iterable[Alert]) -> None:
        self._changed |= {alert.id: alert for alert in alerts}

    def _write(self) -> None:
        """Write the changed events; where that fails, keep them and raise StoreError."""
        if not self._changed and not self._gaps:
            return
        identity = self._write_events(self._changed.values())
        if identity != self._identity and self._ledger is not None:  # a new file lacks what was written before
            self._identity = identity
            self._write_events(self._ledger.open)
        self._changed.clear()
        self._gaps.clear()

    def _write_events(self, alerts: Collection[Alert]) -> str:
        return self.store.write(lambda connection: write_events(connection, alerts, self._gaps, self._wall()))


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
        self._identity = ""
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
                found, identity = read_marks(connection), read_about(connection, "identity")
        except FileNotFoundError:
            return
        if self._identity not in ("", identity):  # a new file, which lacks what the one before had
            self._change = marks_of(self._known)
            self._save()
            return
        known = found.pruned((), self._wall())
        is_news = known != self._known
        self._known, self._identity, self._state = known, identity, state
        if is_news:
            self._hand_over(known)

    def _save(self) -> None:
        """Write the user's changes into the store's present marks."""
        wanted = NO_ATTENTION

        def write(change: Marks) -> str:
            def apply(connection: Connection) -> None:
                nonlocal wanted
                wanted = write_marks(connection, change, self._wall())

            return self.store.write(apply)

        identity = write(self._change)
        if self._identity not in ("", identity):
            write(marks_of(self._known) | self._change)
        self._state = None  # another gpuwatch may have written since our transaction: it is read again
        self._known, self._identity, self._change = wanted, identity, {}
        if changed_marks(self._seen, wanted):
            self._hand_over(wanted)

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
    ) -> None:
        super().__init__(store, pace, wall)
        self._lock = lock
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
                self._counter = self._counter or UseCounter()
                self._counter.add(frame.snapshot, frame.history)
        return False

    def step(self) -> None:
        """Write the sums of the last minute."""
        if not self.settings.is_kept:
            if self._counter is not None and self._lock.held:
                self._write(last=True)  # what was counted until the configuration changed
            self._counter, self.error = None, ""
            return
        if not self._is_due("retry") or not self._lock_held() or not (self._is_due("usage") or self.error):
            return
        self._set("usage", self._pace.usage)
        self._write()
        if self._is_due("prune"):
            self._set("prune", self._pace.prune)
            self.store.prune(self._wall())
        self.error = ""

    def leave(self) -> None:
        """Write the sums."""
        if self._lock_held():
            self._write(last=True)

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
        self.store.keep, self.store.largest = self.settings.keep, self.settings.largest

        def write(connection: Connection) -> None:
            for sums in self._waiting:
                write_use(connection, sums)

        if self._waiting:
            self.store.write(write)
        self._waiting.clear()


# ---------------------------------------------------------------------------------------------------------------
# The recorder


class Recorder:
    """Sink that saves events, marks and usage, on a thread of its own."""

    name = "recorder"

    def __init__(
        self,
        *,
        folder: Path | None = None,
        named: Path | None = None,
        demo: bool = False,
        part: bool = False,
        watch: bool = False,
        restore: Callable[[Sequence[Alert]], object] = lambda alerts: None,
        attend: Callable[[Attention], object] = lambda attention: None,
        usage: UsageSettings | None = None,
        pace: Pace | None = None,
        wall: Callable[[], float] = time.time,
        make_store: Callable[..., Store] = Store,
    ) -> None:
        """Keep events in the store at `named`, all else in the user's store; in a demo only a named store is written.

        `folder` stands in for the user's state folder. `restore` and `attend` are called from the recorder's thread:
        with the alerts that held when a gpuwatch recorded last, and with what others acknowledged and muted. Where only
        a `part` of the GPUs is watched, events are kept at `named` alone. `watch` is whether this is a `gpuwatch
        watch`. UsageError where something else is at `named`.
        """
        if named is not None:
            check_file(named)
        pace = pace or Pace()
        own = own_store(folder)
        path = named or own
        store = make_store(path, private=named is None)
        lock = RecorderLock(path, watch=watch, private=named is None)
        self._locks = [lock] if named is None else [lock, RecorderLock(own, watch=watch)]
        self.lock = self._locks[-1]
        """Lock of the user's own store."""
        self.events: EventsPart | None = None
        if named is not None or not part:
            self.events = EventsPart(store, lock, restore, pace, wall, with_demo=named is not None)
        self._parts: list[_Part] = [self.events] if self.events is not None else []
        self.usage: UsagePart | None = None
        if not demo:
            if named is not None:
                store = make_store(own)
            self._parts.append(MarksPart(store, attend, pace, wall))
        if not demo and not part:
            self.usage = UsagePart(store, self.lock, usage or UsageSettings(), pace, wall)
            self._parts.append(self.usage)
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

    def configure(self, usage: UsageSettings) -> None:
        """Use other settings from now on; from any thread."""
        if self.usage is not None:
            self.usage.settings = usage

    def close(self, seconds: float) -> None:
        """Write all that is left, and give up after `seconds`."""
        self._worker.close(seconds)

    def _task(self) -> float:
        if any(lock.held and lock.is_wanted for lock in self._locks):
            for part in self._parts:
                part.run(part.leave)
            for lock in self._locks:
                lock.release()
        for part in self._parts:
            part.run(part.step)
        events = self.events
        damaged = {id(part.store) for part in self._parts if part.is_damaged}
        if events is not None and events.is_leader and id(events.store) in damaged:
            events.run(lambda: self._set_aside(events.store))
        return self._pace.poll

    def _set_aside(self, store: Store) -> None:
        """Rename the damaged file, and make every part write to a new one."""
        self._note = (store.set_aside(), time.monotonic() + _SHOWN)
        for part in self._parts:
            part.begin_anew()

    def _leave(self) -> None:
        for part in self._parts:
            part.run(part.leave)
        for lock in self._locks:
            lock.close()


# ---------------------------------------------------------------------------------------------------------------
# All sinks of a run


class Sinks:
    """Sinks of one run: the recorder, the messenger and the live file.

    A demo is neither recorded nor sent; its events are written only to a store that the user named.
    """

    def __init__(
        self,
        monitor: Monitor,
        config: Config,
        *,
        demo: bool = False,
        named: Path | None = None,
        watch: bool = False,
        part: bool = False,
    ) -> None:
        """Make the sinks and add them to the monitor; raises UsageError where `named` is something else than a store.

        `watch` is whether this is a `gpuwatch watch`, which comes before dashboards and keeps usage even where the
        configuration says that a dashboard keeps none. Where only a `part` of the GPUs is watched, marks and a named
        store alone are written.
        """
        self._watch = watch
        self._recorder: Recorder | None = None
        self._messenger: Messenger | None = None
        self._sinks: list[Sink] = []
        if named is not None or not demo:
            self._recorder = Recorder(
                named=named,
                demo=demo,
                part=part,
                watch=watch,
                restore=monitor.restore,
                attend=monitor.attend,
                usage=self._usage_settings(config),
            )
            self._sinks.append(self._recorder)
        if self._recorder is not None and not demo and not part:
            lock = self._recorder.lock
            self._messenger = Messenger(config.notify, lambda: lock.held)
            self._sinks += [self._messenger, LiveFile(lambda: lock.held)]
        monitor.add(*self._sinks)
        if self._recorder is not None:
            self._recorder.start()  # what held before is to be known before the first snapshot is judged

    def configure(self, old: Config, new: Config) -> None:
        """Use another configuration from now on."""
        if self._messenger is not None and new.notify != old.notify:
            self._messenger.configure(new.notify)
        if self._recorder is not None:
            self._recorder.configure(self._usage_settings(new))

    def close(self, seconds: float) -> None:
        """Close every sink, the recorder last; give up after `seconds`."""
        end = time.monotonic() + seconds
        sinks = list(reversed(self._sinks))
        for number, sink in enumerate(sinks):
            sink.close(max(0.0, end - time.monotonic()) / (len(sinks) - number))

    def _usage_settings(self, config: Config) -> UsageSettings:
        report = config.report
        return UsageSettings(self._watch or report.dashboard, report.keep, report.largest)
