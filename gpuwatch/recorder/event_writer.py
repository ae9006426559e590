"""Writer of the events log: one gpuwatch of a user and host writes, another takes over when it ends.

Two gpuwatches that run side by side see the same conditions a moment apart, and each gives them an id of its own. A
line is therefore written by comparing with the log and not by what one of them calls news: an alert is the one that
the log has open under its id, or else under its key.

start ──► lock taken ──► read the log, hand over what it has open ──► two snapshots later: settle ──► write news
          └─► somebody else has it: hand over what the log has open, write nothing, ask again

All of it is on a thread of its own: a file system that hangs holds up nothing else.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatch import files, units
from gpuwatch.alerts.alert import TROUBLE, Alert, Severity, Unit
from gpuwatch.recorder.events_log import LIMIT, Event, Events, Lock, LogFile, Record, check_file, log_name, read_events
from gpuwatch.threads import start_thread

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame


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
        """Return a record of each alert that holds, for a file to begin with, or to keep its worst value."""
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
        """Return the open alert of the log which this one is; itself where there is none."""
        return self._open.get(alert.id) or self._open.get(self._ids.get(alert.key, ""), alert)

    def _same(self, alert: Alert, at: float) -> Alert | None:
        """Return event of the log that ended of late and that this one is, as somebody else saw it; None if none."""
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
    """Return an alert as it is now under the id and with the past that the log has."""
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
    """Return what tells of lines that were lost: how many, and when the first and the last of them were."""
    count, since, until = lost
    return [Record(at=now, event=Event.GAP, lost=count, since=since, until=until)] if count else []


MOST: Final = 10_000
"""Lines that wait to be written; more are lost, and counted."""
RECENT: Final = 600.0
"""Seconds without anybody watching after which what the log has open is over, rather than gone on with."""

_BATCH: Final = 500
_SNAPSHOTS: Final = 2
"""New snapshots after which the engine surely goes on with what it was handed: the first may have been under way."""


class Pace(NamedTuple):
    """Seconds between two of what is done again and again; tests hand in less."""

    retry: float = 30.0
    """After an error."""
    lock: float = 2.0
    """Asking for the lock."""
    touch: float = 10.0
    """Saying that somebody watches, and comparing what holds with the log."""
    carry: float = 3600.0
    """Telling of what still holds: its worst value so far."""
    deaf: float = 60.0
    """Without a sign of life after which whoever holds the lock is said to be stopped."""


class EventsLog:
    """A `watch.Sink` that writes what is raised, gets worse, eases and ends; at most one of a user and host does."""

    name = "events log"

    def __init__(
        self,
        *,
        path: Path | None = None,
        folder: Path | None = None,
        restore: Callable[[Sequence[Alert]], object] = lambda alerts: None,
        only: Collection[int] = (),
        pace: Pace | None = None,
        limit: int = LIMIT,
        wall: Callable[[], float] = time.time,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        """Write to `path`, or else to this host's log in `folder`, or else in the user's state folder.

        `restore` is handed the alerts that held when somebody last watched, from the log's own thread; `only` are the
        GPUs that are watched, empty for all; `write` is os.write. UsageError where something else is at `path`.
        """
        if path is not None:
            check_file(path)
        self._given = path
        self._folder = folder
        self._restore = restore
        self._only = frozenset(only)
        self._pace = pace or Pace()
        self._limit = limit
        self._wall = wall
        self._write = write
        # What the watch thread hands over, under the guard.
        self._guard = threading.Lock()
        self._items: deque[tuple[float, Alert]] = deque()
        self._held: dict[str, Alert] = {}
        self._levels: dict[str, Severity] = {}
        self._lost: tuple[int, float, float] = (0, 0.0, 0.0)
        """How many were lost, and when the first and the last of them were."""
        self._snapshots = 0
        self._newest: object = None
        self._gpus: frozenset[str] = frozenset()
        """Keys of the GPUs in the newest snapshot that has any."""
        # What is the thread's own.
        self._lock: Lock | None = None
        self._file: LogFile | None = None
        self._ledger = Ledger()
        self._waiting: list[Record] = []
        self._recent: deque[tuple[float, Alert]] = deque(maxlen=_BATCH)
        """What ended of late while somebody else wrote, who may have died before writing it."""
        self._settle_at: int | None = None
        """The count of snapshots at which to settle; None once that is done."""
        self._until: float | None = None
        """Until when somebody watched before us; wall-clock time."""
        self._due: dict[str, float] = {}
        """When to do what next, on the machine's monotonic clock."""
        self._error = ""
        self._deaf_since: tuple[float, float] | None = None
        self._alone = False
        """Whether no lock can be had at all: then nobody else has it either."""
        self._began = False
        """Whether the log was read since we have the lock, so that we know what to write."""
        self._first = True
        self._bell = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuwatch-events", daemon=True)
        self._started = False

    # -----------------------------------------------------------------------------------------------------------
    # For the watch thread, and for everybody

    @property
    def is_holder(self) -> bool:
        """Whether this gpuwatch is the one that writes; also where no lock can be had at all, by nobody else either."""
        return self._alone or (self._lock is not None and self._lock.held)

    @property
    def trouble(self) -> str:
        """What keeps it from writing, in one line; empty when all is well."""
        if not self._error:
            return ""
        count = sum(record.alert is not None for record in self._waiting) + len(self._items)
        wait = f"; {count} {'event waits' if count == 1 else 'events wait'}" if count else ""
        lost = f", {self._lost[0]} are lost" if self._lost[0] else ""
        return f"events log: {self._error}{wait}{lost}"

    def start(self) -> None:
        """Start the thread, unless it has been; the first frame does, too."""
        if not self._started:
            start_thread(self._thread)
            self._started = True

    def take(self, frame: Frame) -> None:
        """Put what is new in a frame on the queue. Made-up figures go only where the user said."""
        if frame.snapshot.demo and self._given is None:
            return
        now = self._wall()
        held = {alert.key: alert for alert in frame.alerts if alert.rule != TROUBLE}
        with self._guard:
            news = [alert for alert in frame.cleared if alert.rule != TROUBLE]
            news += [alert for alert in held.values() if self._levels.get(alert.id) != alert.severity]
            self._levels = {alert.id: alert.severity for alert in held.values()}
            self._held = held
            # Without a host's name nothing was gone on with yet.
            if frame.snapshot is not self._newest and frame.snapshot.host:
                self._newest = frame.snapshot
                self._snapshots += 1
                self._gpus = frozenset(gpu.key for gpu in frame.snapshot.gpus) or self._gpus
            for alert in news:
                if len(self._items) < MOST:
                    self._items.append((now, alert))
                else:
                    self._lost = (self._lost[0] + 1, self._lost[1] or now, now)
        self.start()
        if news or self._settle_at is not None:
            self._bell.set()

    def close(self, seconds: float) -> None:
        """Write what is on the queue, and that watching stops; give up after so many seconds."""
        self._closing.set()
        self._bell.set()
        if self._started:
            self._thread.join(seconds)

    # -----------------------------------------------------------------------------------------------------------
    # The thread

    def _run(self) -> None:
        while not self._closing.is_set():
            self._bell.clear()
            self._try(self._step)
            self._first = False
            if not self._closing.is_set():
                self._bell.wait(self._pause())
        self._try(self._leave)
        if self._file is not None:
            self._file.close()
        if self._lock is not None:
            self._lock.release()

    def _try(self, do: Callable[[], None]) -> None:
        try:
            do()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            self._error = files.words(error, self._file.path if self._file else self._given)
            self._set("retry", self._pace.retry)

    def _step(self) -> None:
        lock = self._open()
        if not lock.held and self._is_due("lock"):
            self._ask(lock)
        if not lock.held:
            self._listen()
            return
        if not self._began:
            if not self._is_due("retry"):
                return
            self._take_over(lock)
        if self._is_due("touch") and not self._keep(lock):
            return
        if self._settle_at is not None and self._snapshots >= self._settle_at:
            self._settle()
        if self._is_due("retry"):
            self._put()
            self._error = ""
            if self._settle_at is None:
                while self._digest():
                    self._put()

    def _open(self) -> Lock:
        if self._lock is None or self._file is None:
            path, given = self._given, self._given is not None
            if path is None:
                from gpuwatch.files import state_folder

                path = (self._folder or state_folder()) / log_name()
            self._file = LogFile(path, private_folder=not given, limit=self._limit, write=self._write)
            self._lock = Lock(path, private_folder=not given)
        return self._lock

    def _pause(self) -> float:
        if self._lock is not None and not self._lock.held:
            names = ["lock"]
        elif self._lock is None or not self._began:  # it failed, and nothing else is done before the next try
            names = ["retry"]
        else:
            names = ["touch", *["retry"] * bool(self._error)]
        now = time.monotonic()
        return max(0.001, min(self._due.get(name, now) - now for name in names))

    def _set(self, name: str, seconds: float) -> None:
        self._due[name] = time.monotonic() + seconds

    def _is_due(self, name: str) -> bool:
        return time.monotonic() >= self._due.get(name, 0.0)

    # -----------------------------------------------------------------------------------------------------------
    # Who writes

    def _ask(self, lock: Lock) -> None:
        """Ask for the lock; at the start, go on with what the log of somebody else has open."""
        self._set("lock", self._pace.lock)
        try:
            taken = lock.take()
        except OSError:
            self._alone = True
            self._set("lock", self._pace.retry)
            raise
        self._alone = False
        self._error = "" if taken else self._deaf(lock)
        self._began = False
        self._due.pop("retry", None)
        if not taken and self._first:
            found = self._read()
            self._hand_over(found.open)

    def _take_over(self, lock: Lock) -> None:
        self._set("touch", self._pace.touch)
        self._set("carry", self._pace.carry)
        now = self._wall()
        found = self._read(now - RECENT)
        self._until = max(filter(None, (lock.touched, found.last)), default=None)
        self._ledger = Ledger(found.alerts)
        self._waiting = [Record(at=now, event=Event.BEGAN, since=self._until, pid=os.getpid())]
        self._began = True
        lock.touch(now)
        if self._until is not None and now - self._until > RECENT:
            self._waiting += self._ledger.settle({}, now, self._until, UNWATCHED)
        with self._guard:
            self._settle_at = self._snapshots + _SNAPSHOTS
        self._hand_over(self._ledger.open)

    def _hand_over(self, alerts: Iterable[Alert]) -> None:
        """Let the engine go on with what the log has open, of the GPUs that it watches."""
        if ours := [alert for alert in alerts if self._is_watched(alert)]:
            self._restore(ours)

    def _is_watched(self, alert: Alert) -> bool:
        if not self._only or alert.index is None:
            return True
        # Its index may be another's now; of a GPU that has not told its UUID so far nothing else is known.
        gpus = self._gpus
        return bool(gpus & {alert.gpu, f"index-{alert.index}"}) if gpus else alert.index in self._only

    def _read(self, since: float | None = None) -> Events:
        assert self._file is not None
        return read_events(self._file.path, since, older=False)

    def _listen(self) -> None:
        """While somebody else writes: forget what is new, but for what ended a moment ago."""
        if self._alone:
            return
        now = self._wall()
        with self._guard:
            self._recent += [(at, alert) for at, alert in self._items if alert.ended is not None]
            self._items.clear()
            self._lost = (0, 0.0, 0.0)
        while self._recent and not 0 <= now - self._recent[0][0] <= ECHO:
            self._recent.popleft()

    def _deaf(self, lock: Lock) -> str:
        """Say so where whoever holds the lock gives no sign of life: it was stopped, or its disk hangs."""
        now, touched = time.monotonic(), lock.touched or 0.0
        if self._deaf_since is None or self._deaf_since[0] != touched:
            self._deaf_since = (touched, now)
        silent = now - self._deaf_since[1]
        if silent < self._pace.deaf:
            return ""
        return f"another gpuwatch of yours keeps it, and has not been heard of for {units.duration(silent)}"

    def _keep(self, lock: Lock) -> bool:
        """Say that somebody watches, see that the lock is still ours, and compare what holds with the log."""
        if not lock.is_there():
            lock.release()
            self._due.pop("lock", None)
            return False
        self._set("touch", self._pace.touch)
        now = self._wall()
        lock.touch(now)
        with self._guard:
            held = {} if self._items or self._settle_at is not None else self._held
        for alert in held.values():
            self._waiting += self._ledger.note(alert, now)
        if self._is_due("carry"):
            self._set("carry", self._pace.carry)
            self._waiting += self._ledger.carried(now)
        return True

    # -----------------------------------------------------------------------------------------------------------
    # What is written

    def _settle(self) -> None:
        """Compare what holds with what the log has open: what it has and nobody holds ended while nobody watched."""
        now = self._wall()
        with self._guard:
            items = [*self._recent, *self._items]
            self._recent.clear()
            self._items.clear()
            held, lost, self._lost = self._held, self._lost, (0, 0.0, 0.0)
            self._settle_at = None
        for at, alert in items:
            self._waiting += self._ledger.note(alert, at)
        self._waiting += gap(lost, now)
        self._waiting += self._ledger.settle(
            held, now, now if self._until is None else self._until, UNWATCHED, self._is_watched
        )

    def _digest(self) -> bool:
        """Make records of what is on the queue, as many as fit in one write; say whether there are any."""
        now = self._wall()
        with self._guard:
            items = [self._items.popleft() for _ in range(min(len(self._items), _BATCH))]
            lost, held = self._lost, self._held
            if self._items:
                lost = (0, 0.0, 0.0)  # it is told after what came before it
            else:
                self._lost = (0, 0.0, 0.0)
        for at, alert in items:
            self._waiting += self._ledger.note(alert, at)
        if lost[0]:
            self._waiting += gap(lost, now)
            self._waiting += self._ledger.settle(held, now, lost[2], UNSEEN, self._is_watched)
        return bool(self._waiting)

    def _put(self) -> None:
        """Write what waits; raises OSError, and keeps it then."""
        if not self._waiting or self._file is None:
            return
        raised = {record.alert.id for record in self._waiting if record.alert is not None}
        now = self._wall()

        def begin() -> list[Record]:
            carried = self._ledger.carried(now)
            return [record for record in carried if record.alert is not None and record.alert.id not in raised]

        self._file.append(self._waiting, begin)
        self._waiting = []

    def _leave(self) -> None:
        """Write all that there is, with what still holds as it is now, and that watching stops."""
        lock = self._lock
        if lock is None or not (lock.held and self._began and lock.is_there()):
            return
        now = self._wall()
        if self._settle_at is None:
            while self._digest():
                self._put()
            with self._guard:
                held = self._held
            for alert in held.values():
                self._waiting += self._ledger.note(alert, now)
            self._waiting += self._ledger.carried(now)
        self._waiting.append(Record(at=now, event=Event.STOPPED))
        self._put()
        lock.touch(now)
