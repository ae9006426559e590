"""Writer of a recording: a sink that adds a row of snapshots every ten seconds, with their events, use and means.

A separate thread does everything that may wait. Events, use and means are made again from the snapshots as they are
recorded, so that the file contains nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from sqlite3 import Connection
from typing import Final

import msgspec

from gpuwatch.alerts.alert import TROUBLE, Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.analysis.events import Gap
from gpuwatch.base import files
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.threads import Worker
from gpuwatch.base.units import GIB
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import SCHEMA, Snapshot, encode, to_idle_times
from gpuwatch.monitor import Frame, seconds_suspended
from gpuwatch.recorder.anonymise import Anonymiser, Commands
from gpuwatch.recorder.events import NOT_RUNNING, UNWATCHED, end_event, read_events, write_events
from gpuwatch.recorder.opening import StoreError, reading
from gpuwatch.recorder.recording import LARGEST_ROW, ROW_S, Standing, other_format, pack
from gpuwatch.recorder.schema import lock_path, read_about, write_about
from gpuwatch.recorder.store import Store, delete_before, used_bytes
from gpuwatch.recorder.use import Sums, UseCounter, write_use
from gpuwatch.version import __version__

SIZE: Final = 2 * GIB
"""Default size in bytes beyond which the oldest snapshots are deleted."""
MOST_ROWS: Final = 12
"""Rows that wait for a slow or full disk, at most; beyond that the oldest is lost, and counted."""
MOST_WAITING: Final = 120
"""Snapshots that wait for the thread, at most; beyond that they are lost, and counted."""
_SLOW: Final = 30.0
"""Seconds after which a disk that does not answer is reported."""
_MOST_SUMS: Final = 10_000
"""Sums that wait for the disk, at most: of a day."""
_FOREVER: Final = 1e9
"""Seconds for which a recording keeps its means."""


class WaitingRow(msgspec.Struct, frozen=True):
    """Row that is not written yet."""

    since: float
    until: float
    count: int
    body: bytes


class RecordingWriter:
    """Sink that records every snapshot in a store of its own."""

    name = "recording"

    def __init__(
        self,
        path: Path,
        *,
        size: int = SIZE,
        commands: Commands = Commands.NAMES,
        limits: Limits | None = None,
        pace: float = ROW_S,
    ) -> None:
        """Create the file, or open it to add to it; raises UsageError where it cannot be used.

        `size` is in bytes, 0 for no limit; `pace` is the seconds of a row.
        """
        self._path, self._size, self._commands, self._pace = path, size, commands, pace
        self._waiting: deque[tuple[Snapshot, float, Standing | None]] = deque()
        self._newest: Snapshot | None = None
        self._lost = 0
        self._error = ""
        self._busy: float | None = None
        """Time at which a call began that may wait for the disk."""
        self._retry_at = 0.0
        # Used only by the worker.
        self._anonymise = Anonymiser(commands)
        limits = limits or Limits()
        # The name of a user's own rule may be that of a person.
        self._limits = msgspec.structs.replace(limits, custom=()) if commands is Commands.ANONYMISED else limits
        self._history, self._engine = History(), Engine(self._limits)
        self._counter = UseCounter()
        self._last: Snapshot | None = None
        """Last snapshot, as it is recorded."""
        self._alerts: tuple[Alert, ...] = ()
        """Alerts that hold after it."""
        self._standing = Standing()
        """Alerts and idle times before the row that is being made."""
        self._lines: list[bytes] = []
        """Snapshots of that row."""
        self._since = 0.0
        self._began = 0.0
        """Time on the monotonic clock at which that row began."""
        self._rows: deque[WaitingRow] = deque()
        self._changed: dict[str, Alert] = {}
        """Events that are to be written, by id."""
        self._gaps: list[Gap] = []
        self._sums: deque[Sums] = deque(maxlen=_MOST_SUMS)
        self._host, self._until, self._open = "", 0.0, tuple[Alert, ...]()
        """Host of the recording before this run, its last time, and the events that held then."""
        self._store = Store(path, private=False, recording=True)
        self._lock = files.FileLock(lock_path(path), private=False)
        try:
            self._prepare()
        except (StoreError, OSError) as error:
            self._lock.release()
            words = str(error) if isinstance(error, StoreError) else f"{clean(str(path))}: {files.reason(error)}"
            raise UsageError(f"--record: {words}; give a new file, or a recording of gpuwatch") from None
        self._worker = Worker("gpuwatch-recording", self._task, last=self._finish)

    @property
    def trouble(self) -> str:
        busy = self._busy
        slow = 0.0 if busy is None else time.monotonic() - busy
        error = f"the disk has not answered for {slow:.0f} s" if slow > _SLOW else self._error
        if not error:
            return ""
        lost = f"; {self._lost} {'snapshot is' if self._lost == 1 else 'snapshots are'} lost" if self._lost else ""
        return clean(f"not recorded: {self._path}: {error}{lost}", 400)

    def take(self, frame: Frame) -> None:
        if frame.snapshot is self._newest or not frame.snapshot.host:
            return
        known: Standing | None = None
        if self._newest is None:  # state before the recording; alerts have texts that it may leave out
            known = Standing(tuple(frame.history.idle_holdings(frame.snapshot)))
        self._newest = frame.snapshot
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append((frame.snapshot, seconds_suspended(), known))
        else:
            self._lost += 1
        self._worker.wake()

    def close(self, seconds: float) -> None:
        self._worker.close(seconds)

    # -- the file ------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Lock the file, and create it or read where it ended; raises StoreError, OSError and UsageError."""
        name = clean(str(self._path))
        if not self._lock.acquire():
            raise StoreError(f"{name}: another gpuwatch records to it")
        try:
            with reading(self._path) as connection:
                if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'snapshots'").fetchone():
                    raise StoreError(f"{name}: it is a store without snapshots")
                if words := other_format(connection):
                    raise StoreError(f"{name}: {words}")
                self._host = read_about(connection, "host")
                self._until = connection.execute("SELECT max(until) FROM snapshots").fetchone()[0] or 0.0
            self._open = read_events(self._path).open
        except FileNotFoundError:
            pass
        except StoreError:
            if self._path.lstat().st_size:  # an empty file counts as none
                raise
        if self._host and self._commands is Commands.ANONYMISED:
            raise StoreError(f"{name}: a recording made with --anonymise cannot be continued")
        self._store.write(self._write_facts)

    def _write_facts(self, connection: Connection) -> None:
        write_about(connection, "snapshots", str(SCHEMA))
        write_about(connection, "version", __version__)
        write_about(connection, "commands", self._commands.value)
        write_about(connection, "limits", msgspec.json.encode(self._limits).decode())

    # -- snapshots, in the worker --------------------------------------------------------------------------------

    def _task(self) -> float | None:
        while self._waiting:
            try:
                self._add(*self._waiting.popleft())
            except Exception as error:  # noqa: BLE001 - last handler of the thread: any error must reach the user
                self._error, self._lost = f"{type(error).__name__}: {error}", self._lost + 1
            self._write()
        if self._lines and time.monotonic() >= self._began + self._pace:
            self._end_row()
        self._write()
        due = [self._began + self._pace] * bool(self._lines) + [self._retry_at] * bool(self._rows)
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _finish(self) -> None:
        self._task()
        if self._lines:
            self._end_row(last=True)
        self._retry_at = 0.0
        self._write()
        self._lock.release()

    def _add(self, snapshot: Snapshot, slept: float, known: Standing | None) -> None:
        """Add a snapshot to the row, and to events, use and means; `slept` is as in `History.add`."""
        snapshot = self._anonymise(snapshot)
        now = snapshot.monotonic
        if self._host not in ("", snapshot.host):
            self._error, self._lost = f"it is a recording of {self._host}, and this is {snapshot.host}", self._lost + 1
            return
        last = self._last
        if last is None:
            self._standing = known or Standing()
            self._begin(snapshot, slept, self._standing)
        elif 0.0 <= last.taken - snapshot.taken < ROW_S:
            return  # a late one
        elif snapshot.taken - last.taken >= UNWATCHED:
            self._gaps.append(Gap(last.taken, snapshot.taken))
        if self._lines and not 0.0 <= snapshot.taken - self._since < self._pace:
            self._end_row()
        if not self._lines:
            if last is not None:
                self._standing = Standing(tuple(self._history.view.idle_holdings(last)), self._alerts)
            self._since, self._began = snapshot.taken, time.monotonic()
        view = self._history.add(snapshot, now, slept)
        changes = self._engine.update(snapshot, view, now, snapshot.taken)
        alerts, cleared = changes.active, [one for one in changes.cleared if one.rule != TROUBLE]
        self._counter.add(snapshot, view)
        self._changed |= {one.id: one for one in (*alerts, *cleared)}
        self._lines.append(encode(snapshot))
        self._alerts, self._last = alerts, snapshot
        if sum(map(len, self._lines)) > LARGEST_ROW:
            self._end_row()

    def _begin(self, snapshot: Snapshot, slept: float, known: Standing) -> None:
        """Go on from where the recording ended, if that was not long ago."""
        self._host = snapshot.host
        self._history.restore_idle(to_idle_times(known.idle), snapshot.monotonic + slept)
        if snapshot.taken - self._until < UNWATCHED:
            self._engine.restore(self._open, snapshot.monotonic, snapshot.taken)
        elif self._until:
            self._gaps.append(Gap(self._until, snapshot.taken))
            self._changed |= {one.id: end_event(one, self._until, NOT_RUNNING) for one in self._open}

    def _end_row(self, *, last: bool = False) -> None:
        assert self._last is not None
        self._rows.append(
            WaitingRow(self._since, self._last.taken, len(self._lines), pack(self._standing, self._lines))
        )
        self._lines = []
        self._sums.append(self._counter.pop(last=last))
        if len(self._rows) > MOST_ROWS:
            self._lost += self._rows.popleft().count

    def _write(self) -> None:
        """Write the rows that wait, one a transaction; after an error try again later."""
        while self._rows and time.monotonic() >= self._retry_at:
            self._busy = time.monotonic()
            try:
                self._store.write(self._write_row)
            except Exception as error:  # noqa: BLE001 - last handler of the thread: any error must reach the user
                self._error = str(error) if isinstance(error, StoreError) else files.words(error, None)
                self._retry_at = time.monotonic() + ROW_S
            else:
                self._rows.popleft()
                self._changed, self._gaps = {}, []
                self._sums.clear()
                self._error, self._lost = "", 0
            self._busy = None

    def _write_row(self, connection: Connection) -> None:
        row = self._rows[0]
        self._write_facts(connection)
        write_events(connection, self._changed.values(), self._gaps, row.until)
        for sums in self._sums:
            write_use(connection, sums, _FOREVER)
        cells = msgspec.structs.astuple(row)
        connection.execute("INSERT INTO snapshots (since, until, count, body) VALUES (?, ?, ?, ?)", cells)
        if self._size:
            _delete_oldest(connection, self._size)


def _delete_oldest(connection: Connection, size: int) -> None:
    """Delete the oldest rows, and everything older than the others, until the store uses at most `size` bytes."""
    before = None
    while used_bytes(connection) > size:
        rows = connection.execute("SELECT id FROM snapshots ORDER BY id LIMIT 13").fetchall()
        if len(rows) < 2:
            return
        connection.executemany("DELETE FROM snapshots WHERE id = ?", rows[: min(12, len(rows) - 1)])
        (before,) = connection.execute("SELECT min(since) FROM snapshots").fetchone()
    if before is not None:
        delete_before(connection, before)
        for table in ("graph_values", "gpu_values"):
            connection.execute(f"DELETE FROM {table} WHERE at < ?", (before - 60,))
