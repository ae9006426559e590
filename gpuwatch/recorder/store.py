"""Store: one SQLite file per user and host, with events, marks (what is acknowledged and muted) and use.

`gpuwatch-HOST.2.sqlite` in the user's state folder, mode 0600. Each write opens the file and closes it again, so that a
file that was taken away is noticed by the next write. Nothing here needs SQLite beyond 3.24 (2018), the first with
upserts.

The journal is SQLite's rollback journal on every file system. WAL needs memory that all processes share through the
file system, which a home on a file server does not have (sqlite.org/wal.html), and its gain is small where writes come
seconds apart: 70 ms a write in place of 30 on a busy disk, in a thread that nothing waits for. With
`synchronous = EXTRA` a committed write is still there after a power failure.

Nothing that is read is trusted: the schema must be ours to the letter, rows that gpuwatch cannot have written are
counted and left out, and every text is cleaned again. A file of something else, of another user or of a newer gpuwatch
is never touched.

A journal beside a store is rolled back by whoever opens the store for writing, and it may name another file, which
SQLite then deletes (sqlite.org/fileformat2.html, 3). So a file that somebody sent is never opened for writing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from sqlite3 import Connection
from typing import Final, TypeAlias
from urllib.parse import quote

import msgspec

from gpuwatch.alerts.alert import UNSEEN_USER, Acknowledgement, Alert, AlertGpu, AlertUser, Attention, Mute
from gpuwatch.analysis.events import Events, Gap
from gpuwatch.base import files, text
from gpuwatch.base.errors import GpuwatchError, UsageError

APPLICATION: Final = 0x67707577
"""Value of `PRAGMA application_id` in every store: `gpuw`."""
VERSION: Final = 2
"""Value of `PRAGMA user_version`; a store of version 1 had other tables, and another name."""
PATIENCE: Final = 10.0
"""Seconds to wait for another process that writes, at most, and seconds that a query may take."""

_COPY_S: Final = 600.0
"""Seconds that a copy may take, at most."""

_SCHEMA: Final = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    # Times are seconds since the epoch; `alert` is an `Alert` as JSON, the other columns are what is searched for.
    """CREATE TABLE events (id TEXT PRIMARY KEY, key TEXT, rule TEXT, severity INTEGER, gpu TEXT,
        raised REAL, seen REAL, ended REAL, alert TEXT)""",
    "CREATE INDEX events_by_key ON events (key)",
    # Of what report counts: `kind` is gpu, or user or run of those who cause the event; `who` is the key of a GPU, a
    # uid, or the uid and key of a run: `1001/4711:88211`.
    """CREATE TABLE event_about (event TEXT NOT NULL, kind TEXT NOT NULL, who NOT NULL,
        PRIMARY KEY (event, kind, who)) WITHOUT ROWID""",
    "CREATE TABLE gaps (since REAL, until REAL, lost INTEGER)",
    # `kind` is ack or mute; an ack has no rule, the mute of a whole rule has no key.
    """CREATE TABLE marks (kind TEXT NOT NULL, rule TEXT NOT NULL, key TEXT NOT NULL,
        at REAL, severity INTEGER, until REAL, PRIMARY KEY (kind, rule, key))""",
    "CREATE TABLE gpus (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, number INTEGER, name TEXT, total INTEGER)",
    "CREATE TABLE users (uid INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    """CREATE TABLE runs (id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, key TEXT NOT NULL,
        name TEXT, launcher TEXT, first REAL, last REAL, UNIQUE (uid, key))""",
    # `at` is the start of `span` seconds, a minute or an hour. Run 0 is the GPU itself, without a uid.
    """CREATE TABLE use (at INTEGER NOT NULL, span INTEGER NOT NULL, gpu INTEGER NOT NULL, uid INTEGER,
        run INTEGER NOT NULL, held_s REAL NOT NULL, busy_s REAL NOT NULL, unknown_s REAL NOT NULL,
        byte_s REAL NOT NULL, idle_byte_s REAL NOT NULL, unsized_s REAL NOT NULL, gpu_s REAL NOT NULL,
        PRIMARY KEY (at, span, gpu, run)) WITHOUT ROWID""",
    # `at` is the start of a minute; `body` is the values of a `timeline.Minute` as JSON, compressed by zlib.
    "CREATE TABLE graph_values (at INTEGER PRIMARY KEY, body BLOB NOT NULL)",
    # The same means of each GPU itself, without people and processes: bytes, percent, watts and degrees.
    """CREATE TABLE gpu_values (at INTEGER NOT NULL, gpu INTEGER NOT NULL, used INTEGER, utilization REAL,
        power REAL, temperature REAL, PRIMARY KEY (at, gpu)) WITHOUT ROWID""",
)
_SNAPSHOTS: Final = (
    # In a recording alone. A row has the snapshots of ten seconds; `recording.py` says what `body` is.
    """CREATE TABLE snapshots (id INTEGER PRIMARY KEY, since REAL NOT NULL, until REAL NOT NULL,
        count INTEGER NOT NULL, body BLOB NOT NULL)""",
    # With it the list of all rows is read without their bodies.
    "CREATE INDEX snapshots_by_time ON snapshots (since, until, count)",
)
_STATEMENTS: Final = {words.split()[2]: " ".join(words.split()) for words in (*_SCHEMA, *_SNAPSHOTS)}
"""Statement of each table and index by its name."""
_LONGEST_VALUE: Final = 16 << 20
"""Bytes of a value, a row or a statement, at most; a row of snapshots has the longest."""
_MOST_TEXT: Final = 256 << 20
"""Bytes of all texts that are read at a time, at most. The events of a store have 14 MiB."""
_MOST_MEMORY: Final = 128 << 20
"""Bytes that SQLite may take, at most: a forged schema may have millions of tables."""
_HEADER: Final = b"SQLite format 3\0"
_SUPER: Final = bytes.fromhex("d9d505f920a163d7")
"""Last bytes of a journal that names another file. Source: sqlite.org/fileformat2.html, 3."""
_WRITING_S: Final = 1.0
"""Seconds to wait for a writer to end its transaction, at most, which takes some 30 ms."""

NOBODY: Final = -1
"""Uid of all processes whose owner is unknown: ended, hidden, in another namespace, or not listed. They are one run."""
KEEP: Final = 90.0 * 24 * 3600
LARGEST: Final = 64 << 20
EVENTS_BYTES: Final = 32 << 20
"""Bytes of the file for events and minutes, besides the bytes that the user allows for usage."""
_MOST_EVENTS: Final = 20_000
"""Events that are kept, at most: the newest ones, about 14 MiB."""
_MOST_MARKS: Final = 1000
"""Acknowledgements and mutes that are kept, at most: the newest ones."""
_MOST_ASIDE: Final = 5
"""Damaged files that are kept, at most, so that they do not fill the disk."""

HOUR: Final = 3600
MINUTE: Final = 60
_DAY: Final = 24 * HOUR
_WEEK: Final = 7 * _DAY
"""Seconds for which use is kept by minute; then the minutes of an hour are added into one row."""
_STEPS: Final = (_WEEK, _DAY, HOUR)
"""Steps in seconds by which use is deleted from a full file: the largest step that the use covers.

In a file half full use is kept by minute for so long only.
"""
_MOST_PAGES: Final = (1 << 32) - 2
"""Pages of a SQLite file, at most. Source: sqlite.org/limits.html"""
_FULL: Final = 0.95
"""Part of the largest size at which old rows are deleted, and below which the file is after that."""
_ROOM: Final = 0.9
_TRUSTED: Final = 24
"""Watched hours after which the clock is trusted when old rows are deleted."""
_SOUND: Final = f"typeof(at) = 'integer' AND at BETWEEN 0 AND {1 << 40}"
"""SQL test for a valid time: in a damaged file it may be a text, or a number that is too large for SQLite."""


USE_COLUMNS: Final = ("held_s", "busy_s", "unknown_s", "byte_s", "idle_byte_s", "unsized_s", "gpu_s")
"""Columns of the table `use` with the fields of `history.Use`."""
ADD_USE: Final = f"INSERT INTO use (at, span, gpu, uid, run, {', '.join(USE_COLUMNS)})"
"""SQL that adds to rows, followed by values or a query, and by `ON_CONFLICT`."""
ON_CONFLICT: Final = "ON CONFLICT (at, span, gpu, run) DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in USE_COLUMNS
)
_ROLL_UP: Final = f"""{ADD_USE}
    SELECT at / {HOUR} * {HOUR} AS hour, {HOUR}, gpu, uid, run, {", ".join(f"sum({name})" for name in USE_COLUMNS)}
    FROM use WHERE {_SOUND} AND span = {MINUTE} AND at < ? GROUP BY hour, gpu, run {ON_CONFLICT}"""


class StoreError(GpuwatchError):
    """The store cannot be read or written; one line names the file and says why."""


class DamagedError(StoreError):
    """The store is damaged."""


def own_store(folder: Path | None = None) -> Path:
    """Return the path of the user's own store; `folder` stands in for the user's state folder."""
    return (folder or files.state_folder()) / f"gpuwatch-{files.host_name()}.{VERSION}.sqlite"


DAYS: Final = Path("/var/lib/gpuwatch")
"""Folder of the machine's service, with its public days."""
_DAY_NAME: Final = re.compile(r"public-(\d{4}-\d\d-\d\d)\.sqlite")
_LARGEST_DAY: Final = 16 << 20
"""Bytes of a public day that is read, at most."""
_FRESH: Final = 90.0
"""Seconds since a public day was written for which the service counts as running: it writes every minute."""


def public_file(folder: Path, day: str) -> Path:
    """Return the path of a public day, such as 2026-11-24."""
    return folder / f"public-{day}.sqlite"


def day_of(path: Path) -> date:
    """Return the day of a public day, by its name."""
    return date.fromisoformat(path.stem.removeprefix("public-"))


def is_public(path: Path) -> bool:
    """Return whether a store is a public day of the machine's service, by its name."""
    return bool(_DAY_NAME.fullmatch(path.name))


def public_files(folder: Path = DAYS) -> list[Path]:
    """Return the public days, the newest first."""
    with contextlib.suppress(OSError, ValueError):  # a name that is no date is not the service's
        return sorted((path for path in folder.iterdir() if is_public(path) and day_of(path)), reverse=True)
    return []


def stores_read(
    folder: Path | None = None,
    *,
    since: float = 0.0,
    days: Path = DAYS,
    warn: Callable[[str], object] = lambda words: None,
) -> list[Path]:
    """Return the stores that are read: public days from `since` (wall clock) on, the newest first, then one's own.

    Where several have a value the first counts. `warn` gets a line for each public day that is not used. `folder` is as
    in `own_store`.
    """
    first = date.fromtimestamp(since) - timedelta(days=1)  # the service may be in another time zone
    found = [path for path in public_files(days) if day_of(path) >= first]
    refused = {path: words for path in found if (words := refused_day(path))}
    for words in refused.values():
        warn(f"left out: {words}")
    return [*(path for path in found if path not in refused), own_store(folder)]


def is_use_public(now: float, days: Path = DAYS) -> bool:
    """Return whether the machine's service publishes the use of everybody, at a wall-clock time."""
    newest = next(iter(public_files(days)), None)
    if newest is None or refused_day(newest) or now - newest.stat().st_mtime > _FRESH:
        return False
    with reading(newest) as connection:
        return read_about(connection, "publish") == "use"


def refused_day(path: Path) -> str:
    """Return in one line why a public day is not used; empty where it is."""
    return files.check_source(path, 0) or _unreadable_day(path, file_state(path))


@lru_cache(maxsize=256)
def _unreadable_day(path: Path, _state: object) -> str:
    try:
        size = path.stat().st_size
        if size > _LARGEST_DAY:
            return f"{path} has more than {_LARGEST_DAY >> 20} MiB"
        with reading(path) as connection:
            read_about(connection, "publish")
    except StoreError as error:
        return str(error)
    except FileNotFoundError:
        return f"{path} is gone"
    return ""


def former_store(store: Path) -> str:
    """Return a line about the store of an older gpuwatch beside one's own; empty where there is none."""
    former = store.with_name(store.name.replace(f".{VERSION}.", "."))
    if former == store or not former.exists():
        return ""
    return text.clean(f"{former} is of gpuwatch 0.1: it is left alone, and not read", 300)


def lock_path(store: Path, duty: str = "") -> Path:
    """Return the path of the lock file beside a store that elects who does `duty`: recording by default."""
    return store.parent / f"{store.name.removesuffix('.sqlite')}{f'-{duty}' if duty else ''}.lock"


# ---------------------------------------------------------------------------------------------------------------
# Opening


@contextlib.contextmanager
def reading(
    path: Path, *, named: bool = False, repairs: bool = False, seconds: float = PATIENCE
) -> Iterator[Connection]:
    """Open a store for reading; raises FileNotFoundError and StoreError.

    A store that the user `named`, or a public day, may belong to anybody; it is not opened for writing. With `repairs`
    one whose writer was killed is repaired all the same, where nobody else can have changed it. A query may take
    `seconds`.
    """
    named = named or is_public(path)
    with explained(path):
        facts = path.stat() if named else path.lstat()
        if not stat.S_ISREG(facts.st_mode):
            raise StoreError("it is not a regular file")
        if not named and facts.st_uid != os.geteuid():
            raise StoreError(f"the file belongs to uid {facts.st_uid}")
        is_foreign = named and not (repairs and _is_closed(path))
        (_refuse_unfinished if is_foreign else _check_journal)(path)
        try:
            connection = _connect(path, "ro", seconds)
        except sqlite3.OperationalError as error:
            if is_foreign or _code(error) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            _is_shared(path.parent)
            _check_journal(path)  # it may not have been there before
            connection = _connect(path, "rw", seconds)  # a killed writer left its journal: SQLite undoes that write
        with contextlib.closing(connection):
            connection.execute("PRAGMA query_only = ON")
            if not _read_version(connection):  # another process is just making it
                raise StoreError("it is empty") if named else FileNotFoundError(path)
            yield connection


def _connect(path: Path, mode: str, seconds: float) -> Connection:
    """Open a database, and check that it is a store or empty."""
    where = f"file:{quote(str(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(where, uri=True, timeout=seconds, isolation_level=None)
    connection.text_factory = _TextDecoder()
    try:
        # A file that somebody planted runs no code of its own, and takes neither for ever nor all memory.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.execute(f"PRAGMA hard_heap_limit = {_MOST_MEMORY}")
        connection.execute("PRAGMA trusted_schema = OFF")
        end = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(100)
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION and (application or found):
            raise StoreError("it is a database of something else")
        version = _read_version(connection)
        if version > VERSION:
            raise StoreError(f"it is of a newer gpuwatch (version {version} of the store; this one knows {VERSION})")
        if 0 < version < VERSION:
            raise StoreError(f"it is of gpuwatch 0.1 (version {version} of the store), which this one leaves alone")
        for kind, name, statement in found:
            if statement is None:  # the index of a primary key
                continue
            if name not in _STATEMENTS or kind not in ("table", "index"):
                raise StoreError("it holds what no gpuwatch made")
            if " ".join(str(statement).split()) != _STATEMENTS[name]:
                raise DamagedError(f"it is damaged (its {kind} {name} is not that of gpuwatch)")
    except BaseException:
        connection.close()
        raise
    return connection


def _read_version(connection: Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


class _TextDecoder:
    """Decoder of text cells; bytes that are no UTF-8 (a damaged file) become replacement characters.

    Cells of a forged file may share their bytes, so that its texts are many times its size.
    """

    def __init__(self) -> None:
        self._left = _MOST_TEXT

    def __call__(self, raw: bytes) -> str:
        self._left -= len(raw)
        if self._left < 0:
            raise StoreError(f"it has more than {_MOST_TEXT >> 20} MiB of text")
        return raw.decode("utf-8", "replace")


def _check_journal(path: Path) -> None:
    """Refuse a journal that SQLite must not roll back: of another user, no regular file, or naming another file.

    SQLite would wait for a FIFO forever, and follow a link.
    """
    journal = Path(f"{os.path.realpath(path)}-journal")
    with contextlib.suppress(FileNotFoundError):
        facts = journal.lstat()
        if not stat.S_ISREG(facts.st_mode):
            raise StoreError(f"its journal {journal.name} is not a regular file")
        if facts.st_uid != os.geteuid():
            raise StoreError(f"its journal {journal.name} belongs to uid {facts.st_uid}")
        with open(files.open_ordinary(journal), "rb") as file:
            file.seek(max(0, facts.st_size - len(_SUPER)))
            if file.read(len(_SUPER)) == _SUPER:
                raise StoreError(f"its journal {journal.name} names another file, as no gpuwatch's does")


def _is_shared(folder: Path) -> bool:
    """Return whether all may add files to a folder, such as /tmp; raises StoreError where they may rename ours."""
    mode = folder.stat().st_mode
    if mode & 0o002 and not mode & stat.S_ISVTX:
        raise StoreError(f"everybody may rename what is in the folder {folder}")
    return bool(mode & 0o002)


def _refuse_unfinished(path: Path) -> None:
    """Refuse a store with a journal or a write-ahead log beside it; wait for a writer that is about to end."""
    real = os.path.realpath(path)
    end = time.monotonic() + _WRITING_S
    while True:
        left = [name for name in (f"{real}-journal", f"{real}-wal") if _has_content(name)]
        if not left:
            break
        if time.monotonic() > end:
            raise StoreError(f"its writer was killed or is still writing ({Path(left[0]).name} lies beside it)")
        time.sleep(0.05)
    with open(files.open_ordinary(path), "rb") as file:
        header = file.read(20)
    if header.startswith(_HEADER) and header[18:20] != b"\1\1":  # SQLite would make files beside it
        raise StoreError("it is a database of something else")


def _has_content(name: str) -> bool:
    try:
        facts = os.lstat(name)
    except FileNotFoundError:
        return False
    return bool(facts.st_size) or not stat.S_ISREG(facts.st_mode)


def _is_closed(path: Path) -> bool:
    """Return whether a file, its journal and their folder are ours, and writable for nobody else."""
    real = os.path.realpath(path)
    try:
        facts = [os.lstat(name) for name in (Path(real).parent, real)]
        if os.path.lexists(f"{real}-journal"):
            facts.append(os.lstat(f"{real}-journal"))
    except OSError:
        return False
    return all(one.st_uid == os.geteuid() and not one.st_mode & 0o022 for one in facts)


def copy_store(path: Path, target: Path) -> None:
    """Copy a store that may be being written; raises FileNotFoundError, StoreError, and UsageError about `target`.

    SQLite's backup begins again where the store was written meanwhile, so that the copy is of one moment.
    """
    with reading(path, named=True, repairs=True, seconds=_COPY_S) as connection, explained(target):
        try:
            os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise UsageError(files.words(error, target)) from None
        with contextlib.closing(sqlite3.connect(target)) as copy:
            copy.execute("PRAGMA journal_mode = OFF")
            connection.backup(copy, pages=4096)


# ---------------------------------------------------------------------------------------------------------------
# Errors


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Context that replaces errors of SQLite and the system by StoreError, with words that name the file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, sqlite3.Error, StoreError, UnicodeDecodeError, MemoryError) as error:
        kind, words = _explain(error, path)
        raise kind(words) from error


def _code(error: Exception) -> int:
    """Return SQLite's extended error code; 0 for an error of the sqlite3 module itself, which has none."""
    return getattr(error, "sqlite_errorcode", 0)


def _explain(error: Exception, path: Path) -> tuple[type[StoreError], str]:
    """Return the class of the error to raise, and its words."""
    code = _code(error)
    kind: type[StoreError] = type(error) if isinstance(error, StoreError) else StoreError
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return kind, files.words(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None)
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_ERROR:
            # None of our own fixed statements has an error.
            kind, words = DamagedError, f"it is damaged ({error})"
        case sqlite3.SQLITE_INTERRUPT:
            words = f"reading it took longer than {PATIENCE:g} s"
        case sqlite3.SQLITE_BUSY:
            words = "another program keeps it locked"
        case sqlite3.SQLITE_READONLY if code == sqlite3.SQLITE_READONLY_ROLLBACK:
            words = f"the journal of an unfinished write lies beside it ({error})"
        case _ if isinstance(error, UnicodeDecodeError):  # in a message of SQLite's that quotes damaged bytes
            kind, words = DamagedError, "it is damaged (a name in it is no text)"
        case _ if isinstance(error, MemoryError):
            words = "it takes too much memory"
        case _ if isinstance(error, OSError):
            return kind, files.words(error, path)
        case _:
            words = str(error)
    return kind, text.clean(words if words.startswith(f"{path}: ") else f"{path}: {words}", 300)


# ---------------------------------------------------------------------------------------------------------------
# Writing


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
            if _used(connection) > _FULL * self._pages(connection):
                self._shrink(connection)
            try:
                with _transaction(connection):
                    change(connection)
            except sqlite3.OperationalError as error:
                disk_is_full = _used(connection) < _ROOM * self._pages(connection)
                if _code(error) & 0xFF != sqlite3.SQLITE_FULL or disk_is_full:
                    raise
                self._shrink(connection)
                with _transaction(connection):
                    change(connection)

    def prune(self, now: float) -> None:
        """Delete rows older than `keep` at the wall-clock time `now`, and surplus events; raises StoreError.

        Rows by minute that are older than a week become rows by hour; in a file half full those older than a day, or an
        hour. A clock that is wrong for a short time deletes nothing: it is trusted only after `_TRUSTED` watched hours.
        """
        hours = f"SELECT DISTINCT at / {HOUR} * {HOUR} AS hour FROM use WHERE {_SOUND} ORDER BY hour DESC"
        with self._writing() as connection:
            row = connection.execute(f"{hours} LIMIT 1 OFFSET {_TRUSTED}").fetchone()
            trusted = 0.0 if row is None else min(now, row[0])
            for kept in _STEPS:
                hour = (trusted - kept) // HOUR * HOUR
                with _transaction(connection):
                    connection.execute(_ROLL_UP, (hour,))
                    connection.execute(f"DELETE FROM use WHERE {_SOUND} AND span = {MINUTE} AND at < ?", (hour,))
                if _used(connection) < _ROOM / 2 * self._pages(connection):
                    break
            _delete_old(connection, trusted - self.keep)

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
                is_shared = _is_shared(self.path.parent) if self.path.parent.exists() else False
                facts = self._claim()
            except FileNotFoundError as error:
                raise StoreError(files.words(error, self.path)) from error
            _check_journal(self.path)
            if is_shared:  # an empty journal of our own, which nobody else can replace, takes the place of a forged one
                os.close(os.open(f"{self.path}-journal", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
                _check_journal(self.path)
            with contextlib.closing(_connect(self.path, "rw", self._patience)) as connection:
                connection.set_progress_handler(None, 0)
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded before the first table alone
                connection.execute(f"PRAGMA journal_mode = {'TRUNCATE' if is_shared else 'DELETE'}")
                connection.execute("PRAGMA synchronous = EXTRA")
                create_tables(connection, (*_SCHEMA, *(_SNAPSHOTS if self._recording else ())))
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
            if stat.S_IMODE(facts.st_mode) & ~0o600:
                os.chmod(name, 0o600, dir_fd=folder)
        finally:
            os.close(folder)
        return facts

    def _pages(self, connection: Connection) -> int:
        if self._recording:
            return _MOST_PAGES
        return (self.largest + EVENTS_BYTES) // int(connection.execute("PRAGMA page_size").fetchone()[0])

    def _shrink(self, connection: Connection) -> None:
        """Delete the oldest weeks until a tenth of the file is free."""
        pages, asked = self._pages(connection), f"SELECT min(at), max(at) FROM use WHERE {_SOUND}"
        while _used(connection) > _ROOM * pages:
            oldest, newest = connection.execute(asked).fetchone()
            if oldest is None:
                break
            span = newest - oldest
            _delete_old(connection, oldest + next((step for step in _STEPS if span >= step), HOUR))
        connection.execute(f"PRAGMA max_page_count = {pages}")


def create_tables(connection: Connection, schema: Iterable[str] = _SCHEMA) -> None:
    """Create the tables that a new store lacks, or one that was begun before there were as many."""
    wanted = {statement.split()[2]: statement for statement in schema}
    if wanted.keys() <= tables(connection):
        return
    with _transaction(connection):  # another process may have created them meanwhile
        there = tables(connection)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        for statement in [one for name, one in wanted.items() if name not in there]:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


def tables(connection: Connection) -> set[str]:
    """Return the names of the tables and indexes of a store."""
    return {str(name) for (name,) in connection.execute("SELECT name FROM sqlite_master").fetchmany(100)}


@contextlib.contextmanager
def _transaction(connection: Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _used(connection: Connection) -> int:
    """Return the pages of a store that are in use."""
    (pages,), (free,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
    return int(pages) - int(free)


def used_bytes(connection: Connection) -> int:
    """Return the bytes of a store that are in use, also within a transaction."""
    return _used(connection) * int(connection.execute("PRAGMA page_size").fetchone()[0])


def _delete_old(connection: Connection, before: float) -> None:
    """Delete what ended before a wall-clock time, and all but the newest events; return the space to the disk."""
    with _transaction(connection):
        delete_before(connection, before)
    # It frees a page at each step, and `execute` makes one step where there are no columns.
    connection.executescript("PRAGMA incremental_vacuum")


def delete_before(connection: Connection, before: float) -> None:
    """Delete what ended before a wall-clock time, and all but the newest events, inside an open transaction."""
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


def write_about(connection: Connection, name: str, value: object) -> None:
    """Set one fact about the store."""
    asked = "INSERT INTO about VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    connection.execute(asked, (name, value))


def read_about(connection: Connection, name: str, most: int = 200) -> str:
    """Return one fact about the store as clean text of `most` characters; empty where it is not there."""
    row = connection.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
    return text.clean(str(row[0]), most) if row and row[0] is not None else ""


# ---------------------------------------------------------------------------------------------------------------
# Events

UNWATCHED: Final = 600.0
"""Seconds without any gpuwatch after which the time counts as a gap, and an older open event as ended."""
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


def check_pages(path: Path) -> None:
    """Check all pages of a store; raises DamagedError, and StoreError where it cannot be read."""
    with contextlib.suppress(FileNotFoundError), reading(path) as connection:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise DamagedError(f"it is damaged ({found})")


def read_events(path: Path, since: float | None = None, *, named: bool = False, repairs: bool = False) -> Events:
    """Read the events that had not ended before `since` (wall-clock time), all for None; raises StoreError."""
    watched, touched = files.read_lock(lock_path(path))
    try:
        with reading(path, named=named, repairs=repairs) as connection:
            found = connection.execute("SELECT alert FROM events WHERE ended IS NULL OR ended >= ?", (since or 0.0,))
            alerts = [_decode_alert(row[0]) for row in found]
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
        watched = touched is not None and time.time() - touched < _FRESH
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
    found = Events.joined(parts)
    if days := {day_of(path) for path in paths if is_public(path)}:  # while the machine's service ran, somebody watched
        machine = {gap for path, part in zip(ordered, parts, strict=True) if is_public(path) for gap in part.gaps}
        for gap in found.gaps:
            begin, end = date.fromtimestamp(gap.since), date.fromtimestamp(gap.until)
            if not days.issuperset(
                begin + timedelta(days=number) for number in range(min(1000, (end - begin).days + 1))
            ):
                machine.add(gap)
        found = msgspec.structs.replace(found, gaps=tuple(sorted(machine)))
    return found


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Return inode, time and size of a file, which tell whether it has changed; None where there is no file."""
    try:
        facts = path.lstat()
    except OSError:  # what is wrong is said by reading it
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


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


# ---------------------------------------------------------------------------------------------------------------
# Marks

Marks: TypeAlias = dict[tuple[str, str, str], Acknowledgement | Mute | None]
"""Acknowledgements and mutes by kind, rule and key; None for one that the user took back."""


def marks_of(attention: Attention) -> Marks:
    """Return acknowledgements and mutes as marks."""
    acks: Marks = {("ack", "", one.key): one for one in attention.acks}
    return acks | {("mute", one.rule, one.key): one for one in attention.mutes}


def changed_marks(before: Attention, after: Attention) -> Marks:
    """Return the marks that differ."""
    old, new = marks_of(before), marks_of(after)
    return {key: new.get(key) for key in (*old, *new) if old.get(key) != new.get(key)}


def with_marks(attention: Attention, change: Marks, now: float) -> Attention:
    """Return acknowledgements and mutes after a change, without expired ones."""
    marks = (marks_of(attention) | change).values()
    return Attention(
        acks=tuple(one for one in marks if isinstance(one, Acknowledgement))[-_MOST_MARKS:],
        mutes=tuple(one for one in marks if isinstance(one, Mute))[-_MOST_MARKS:],
    ).pruned((), now)


def write_marks(connection: Connection, change: Marks, now: float) -> Attention:
    """Apply a change to the stored marks, and return all of them; `now` is the wall-clock time."""
    wanted = with_marks(read_marks(connection), change, now)
    connection.execute("DELETE FROM marks")
    rows: list[tuple[object, ...]] = [("ack", "", one.key, one.at, int(one.severity), None) for one in wanted.acks]
    rows += [("mute", one.rule, one.key, None, None, one.until) for one in wanted.mutes]
    connection.executemany("INSERT INTO marks VALUES (?, ?, ?, ?, ?, ?)", rows)
    return wanted


def read_marks(connection: Connection) -> Attention:
    """Return the stored marks; a row that gpuwatch cannot have written is left out."""
    acks: list[Acknowledgement] = []
    mutes: list[Mute] = []
    asked = "SELECT kind, rule, key, at, severity, until FROM marks ORDER BY rowid DESC LIMIT ?"
    for kind, rule, key, at, severity, until in connection.execute(asked, (2 * _MOST_MARKS,)):
        with contextlib.suppress(msgspec.ValidationError):
            key = text.clean(str(key))
            if kind == "ack" and _are_numbers((at,)):
                acks.append(msgspec.convert({"key": key, "at": at, "severity": severity}, Acknowledgement))
            elif kind == "mute" and (until is None or _are_numbers((until,))):
                mutes.append(Mute(rule=text.clean(str(rule)), key=key, until=until))
    return Attention(acks=tuple(reversed(acks)), mutes=tuple(reversed(mutes)))
