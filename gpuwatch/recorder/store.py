"""Store: one SQLite file per user and host, with events, marks (what is acknowledged and muted) and use.

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
from gpuwatch.recorder import retention
from gpuwatch.recorder.opening import PATIENCE, StoreError, check_journal, connect, error_code, explained, is_shared
from gpuwatch.recorder.paths import file_state
from gpuwatch.recorder.retention import EVENTS_BYTES, KEEP, LARGEST
from gpuwatch.recorder.schema import SNAPSHOT_TABLES, TABLES, create_tables, transaction

_MOST_ASIDE: Final = 5
"""Damaged files that are kept, at most, so that they do not fill the disk."""
_MOST_PAGES: Final = (1 << 32) - 2
"""Pages of a SQLite file, at most. Source: sqlite.org/limits.html"""


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
            if retention.is_nearly_full(connection, pages):
                retention.make_room(connection, pages)
            try:
                with transaction(connection):
                    change(connection)
            except sqlite3.OperationalError as error:
                # Where the file has room it is the disk that has none.
                if error_code(error) & 0xFF != sqlite3.SQLITE_FULL or retention.has_room(connection, pages):
                    raise
                retention.make_room(connection, pages)
                with transaction(connection):
                    change(connection)

    def prune(self, now: float) -> None:
        """Delete rows older than `keep` at the wall-clock time `now`, and surplus events; raises StoreError."""
        with self._writing() as connection:
            retention.prune(connection, now, self.keep, self._pages(connection))

    def set_aside(self) -> str:
        """Rename a damaged file, with its journal, and return a line that says so; raises StoreError."""
        name = self.path.name
        with explained(self.path), files.opened_folder(self.path.parent, private=self._private):
            for number in range(_MOST_ASIDE):
                aside = self.path.with_name(f"{name}.damaged{f'-{number}' if number else ''}")
                journal, journal_aside = (one.with_name(f"{one.name}-journal") for one in (self.path, aside))
                if os.path.lexists(aside) or os.path.lexists(journal_aside):
                    continue
                # The journal first: beside a new file it would be taken for the journal of that one.
                with contextlib.suppress(FileNotFoundError):
                    journal.rename(journal_aside)
                self.path.rename(aside)
                return text.clean(f"{name} was damaged and is kept as {aside.name}; a new one is begun", 300)
            raise StoreError(f"it is damaged, and {_MOST_ASIDE} damaged ones are kept already; remove these")

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
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded before the first table alone
                connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if in_shared else 'DELETE'}")
                connection.execute("PRAGMA synchronous = EXTRA")
                create_tables(connection, (*TABLES, *(SNAPSHOT_TABLES if self._recording else ())))
                connection.execute(f"PRAGMA max_page_count = {self._pages(connection)}")
                yield connection
            if not files.is_same_file(facts, self.path):
                raise StoreError("it was taken away while it was written")

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
