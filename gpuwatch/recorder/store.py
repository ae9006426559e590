"""Store: one SQLite file per user and host, with events, marks (acknowledgements and mutes) and use.

`gpuwatch-HOST.2.sqlite` in the user's state folder, mode 0600. Each write opens the file and closes it again, so that a
file that was taken away is noticed by the next write. Nothing here needs SQLite beyond 3.24 (2018), the first with
upserts.

The journal is SQLite's rollback journal on every file system. WAL needs memory that all processes share through the
file system, which a home on a file server does not have (sqlite.org/wal.html), and its gain is small where writes come
seconds apart, in a thread that nothing waits for. With `synchronous = EXTRA` a committed write is still there after a
power failure.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from gpuwatch.base import files, text
from gpuwatch.recorder.opening import PATIENCE, StoreError, check_journal, connect, error_code, explained, is_shared
from gpuwatch.recorder.schema import (
    ADD_USE,
    HOUR,
    MINUTE,
    ON_CONFLICT,
    SNAPSHOT_TABLES,
    TABLES,
    USE_COLUMNS,
    create_tables,
    file_state,
    transaction,
)

_MOST_ASIDE: Final = 5
"""Damaged files that are kept, at most, so that they do not fill the disk."""
_MOST_PAGES: Final = (1 << 32) - 2
"""Pages of a SQLite file, at most. Source: sqlite.org/limits.html"""
KEEP: Final = 90.0 * 24 * 3600
LARGEST: Final = 64 << 20
EVENTS_BYTES: Final = 32 << 20
"""Bytes of the file for events and minutes, in addition to the bytes that the user allows for usage."""
_MOST_EVENTS: Final = 20_000
"""Events that are kept, at most: the newest ones, about 14 MiB."""
_STEPS: Final = (7 * 24 * HOUR, 24 * HOUR, HOUR)
"""Seconds for which use is kept by minute, until the minutes of an hour are added into one row: the later ones where
the file is half full. Also steps by which use is deleted from a full file: the largest step that the use covers."""
_FULL: Final = 0.95
"""Part of the largest size at which old rows are deleted, and below which the file is after that."""
_ROOM: Final = 0.9
_TRUSTED: Final = 24
"""Watched hours after which the clock is trusted when old rows are deleted."""
_ROLL_UP: Final = f"""{ADD_USE}
    SELECT at / {HOUR} * {HOUR} AS hour, {HOUR}, gpu, uid, run, {", ".join(f"sum({name})" for name in USE_COLUMNS)}
    FROM use WHERE span = {MINUTE} AND at < ? GROUP BY hour, gpu, run {ON_CONFLICT}"""


class Store:
    """SQLite file that is written; used from one thread at a time."""

    def __init__(
        self,
        path: Path,
        *,
        private: bool = True,
        keep: float = KEEP,
        largest: int = LARGEST,
        patience: float = PATIENCE,
        recording: bool = False,
    ) -> None:
        """`keep` (seconds) and `largest` (bytes) bound the usage; `private` is as in `files.open_folder`.

        A `recording` has a table of snapshots too; its writer bounds it.
        """
        self.path = path
        self.keep, self.largest = keep, largest
        self._recording = recording
        self._private = private
        self._patience = patience

    @property
    def is_empty(self) -> bool:
        """Whether the next write begins a new file."""
        state = file_state(self.path)
        return state is None or not state[2]

    def write(self, change: Callable[[Connection], None]) -> None:
        """Make a change, completely or not at all, in a file that is created where it is missing; raises StoreError.

        Where the file is full its oldest rows are deleted, and the change is tried again.
        """
        with self._writing() as connection:
            pages = self._pages(connection)
            if _used_pages(connection) > _FULL * pages:
                _make_room(connection, pages)
            try:
                with transaction(connection):
                    change(connection)
            except sqlite3.OperationalError as error:
                # If the file has room, the disk is full.
                if error_code(error) & 0xFF != sqlite3.SQLITE_FULL or _has_room(connection, pages):
                    raise
                _make_room(connection, pages)
                with transaction(connection):
                    change(connection)

    def prune(self, now: float) -> None:
        """Delete rows older than `keep` at the wall-clock time `now`, and surplus events; raises StoreError."""
        with self._writing() as connection:
            _prune(connection, now, self.keep, self._pages(connection))

    def compact(self) -> None:
        """Write the file again without the deleted rows in its free pages; raises StoreError."""
        with self._writing() as connection:
            connection.execute("VACUUM")

    def set_aside(self) -> str:
        """Rename a damaged file, with its journal, and return a line about it; raises StoreError."""
        name = self.path.name
        with explained(self.path), files.opened_folder(self.path.parent, private=self._private):
            for number in range(_MOST_ASIDE):
                aside = self.path.with_name(f"{name}.damaged{f'-{number}' if number else ''}")
                journal, journal_aside = (one.with_name(f"{one.name}-journal") for one in (self.path, aside))
                if os.path.lexists(aside) or os.path.lexists(journal_aside):
                    continue
                # The journal first: next to a new file it would count as the journal of that file.
                with contextlib.suppress(FileNotFoundError):
                    journal.rename(journal_aside)
                self.path.rename(aside)
                return text.clean(f"{name} was damaged and is now {aside.name}; a new file was started", 300)
            raise StoreError(f"it is damaged, and {_MOST_ASIDE} damaged files are kept already; remove them")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Connection]:
        with explained(self.path):
            try:
                in_shared = is_shared(self.path.parent) if self.path.parent.exists() else False
                facts = self._claim()
            except FileNotFoundError as error:
                raise StoreError(files.words(error, self.path)) from error
            check_journal(self.path)
            if in_shared:  # an empty journal of our own, which nobody else can replace, takes the place of a forged one
                os.close(os.open(f"{self.path}-journal", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
                check_journal(self.path)
            with contextlib.closing(connect(self.path, "rw", self._patience)) as connection:
                connection.set_progress_handler(None, 0)
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect only before the first table
                connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if in_shared else 'DELETE'}")
                connection.execute("PRAGMA synchronous = EXTRA")
                create_tables(connection, (*TABLES, *(SNAPSHOT_TABLES if self._recording else ())))
                connection.execute(f"PRAGMA max_page_count = {self._pages(connection)}")
                yield connection
            if not files.is_same_file(facts, self.path):
                raise StoreError("it was removed while it was written")

    def _claim(self) -> os.stat_result:
        """Return the `stat` result of our file, created where it is missing; raises OSError.

        Only SQLite opens an existing file: if we opened and closed it, this process would lose all its locks on it,
        also those of another thread. Source: sqlite.org/howtocorrupt.html, 2.2.
        """
        name = self.path.name
        folder = files.open_folder(self.path.parent, private=self._private)
        try:
            if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))
            with contextlib.suppress(FileExistsError):
                os.close(files.open_file(folder, name, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISLNK(facts.st_mode):
                raise files.UnsafePathError("it is a symbolic link")
            if not stat.S_ISREG(facts.st_mode):
                raise files.UnsafePathError("it is not a regular file")
            if facts.st_uid != os.geteuid():
                raise files.UnsafePathError(f"the file belongs to uid {facts.st_uid}")
        finally:
            os.close(folder)
        return facts

    def _pages(self, connection: Connection) -> int:
        if self._recording:
            return _MOST_PAGES
        return (self.largest + EVENTS_BYTES) // int(connection.execute("PRAGMA page_size").fetchone()[0])


# -- Deletion and summing of rows, so that the file stays within its bounds -------------------------------------------


def _prune(connection: Connection, now: float, keep: float, pages: int) -> None:
    """Delete rows older than `keep` seconds at the wall-clock time `now`, and surplus events.

    Rows by minute that are older than a week become rows by hour; where half of the `pages` are used those older than a
    day, or an hour. A clock that is wrong for a short time deletes nothing: it is trusted only after `_TRUSTED` hours.
    """
    hours = f"SELECT DISTINCT at / {HOUR} * {HOUR} AS hour FROM use ORDER BY hour DESC"
    row = connection.execute(f"{hours} LIMIT 1 OFFSET {_TRUSTED}").fetchone()
    trusted = 0.0 if row is None else min(now, row[0])
    for kept in _STEPS:
        hour = (trusted - kept) // HOUR * HOUR
        with transaction(connection):
            connection.execute(_ROLL_UP, (hour,))
            connection.execute(f"DELETE FROM use WHERE span = {MINUTE} AND at < ?", (hour,))
        if _used_pages(connection) < _ROOM / 2 * pages:
            break
    _delete_old(connection, trusted - keep)


def _has_room(connection: Connection, pages: int) -> bool:
    """Return whether a tenth of the pages that a store may have is free."""
    return _used_pages(connection) < _ROOM * pages


def _make_room(connection: Connection, pages: int) -> None:
    """Delete the oldest weeks until a tenth of the pages is free."""
    while not _has_room(connection, pages):
        oldest, newest = connection.execute("SELECT min(at), max(at) FROM use").fetchone()
        if oldest is None:
            break
        span = newest - oldest
        _delete_old(connection, oldest + next((step for step in _STEPS if span >= step), HOUR))
    connection.execute(f"PRAGMA max_page_count = {pages}")


def _used_pages(connection: Connection) -> int:
    (pages,), (free,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
    return int(pages) - int(free)


def used_bytes(connection: Connection) -> int:
    """Return the bytes of a store that are in use, also within a transaction."""
    return _used_pages(connection) * int(connection.execute("PRAGMA page_size").fetchone()[0])


def _delete_old(connection: Connection, before: float) -> None:
    """Delete events that ended before a wall-clock time, and all but the newest; return the space to the disk."""
    with transaction(connection):
        delete_before(connection, before)
    # It frees a page at each step, and `execute` makes one step where there are no columns.
    connection.executescript("PRAGMA incremental_vacuum")


def delete_before(connection: Connection, before: float) -> None:
    """Delete events that ended before a wall-clock time, and all but the newest, inside an open transaction."""
    connection.execute("DELETE FROM use WHERE at + span <= ?", (before,))
    connection.execute("DELETE FROM events WHERE coalesce(ended, seen) < ?", (before,))
    connection.execute(
        "DELETE FROM events WHERE rowid IN "
        "(SELECT rowid FROM events ORDER BY ended IS NULL DESC, rowid DESC LIMIT -1 OFFSET ?)",
        (_MOST_EVENTS,),
    )
    connection.execute("DELETE FROM gaps WHERE until < ? OR rowid <= (SELECT max(rowid) FROM gaps) - 1000", (before,))
    connection.execute("DELETE FROM event_about WHERE event NOT IN (SELECT id FROM events)")
    connection.execute("DELETE FROM runs WHERE last < ?", (before,))
