"""Usage store: one SQLite file per user and host, its schema, queries and bounds.

Times are in seconds, moments in seconds since the epoch, sizes in bytes. An hour is named by its start. In `hours`,
`who` is a GPU's id, a uid or a run's id, by the scope; uid -1 stands for owners whom nobody could see. What is added
up is in `hours` and `watched`; `held_s` and the like are those of `history.usage.Use`. The order of its key lets a
report add up 90 days of one user, or look up a week's runs, without sorting.

The version is in `PRAGMA user_version`. Nothing here needs SQLite beyond 3.24 (2018), the first with upserts.

`usage-HOST.sqlite` in the user's state folder, 0600. Several may write at once: what they add, SQLite adds up. A file
that is something else, or of a newer gpuwatch, is never touched. Each writing opens the file, and closes it: whoever
takes it away, or puts another in its place, is heard of a minute later. See `STEPS` for what is in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias
from urllib.parse import quote

from gpuwatch import files
from gpuwatch.errors import GpuwatchError
from gpuwatch.history import NO_USE, Use
from gpuwatch.recorder.events_log import for_host
from gpuwatch.recorder.status_file import boot
from gpuwatch.recorder.usage import HOUR, NOBODY, UNSEEN
from gpuwatch.text import clean

if TYPE_CHECKING:
    from sqlite3 import Connection

    from gpuwatch.history import Use
    from gpuwatch.recorder.usage import Batch, JobId


APPLICATION: Final = 0x67707577
"""What `PRAGMA application_id` says of a store of ours: `gpuw`."""

_FIRST: Final = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    "CREATE TABLE gpus (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE, number INTEGER, name TEXT, total INTEGER)",
    "CREATE TABLE users (uid INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    """CREATE TABLE jobs (id INTEGER PRIMARY KEY, uid INTEGER NOT NULL, boot TEXT NOT NULL, key TEXT NOT NULL,
        name TEXT, launcher TEXT, first REAL, last REAL, UNIQUE (uid, boot, key))""",
    """CREATE TABLE hours (scope TEXT NOT NULL, hour INTEGER NOT NULL, who INTEGER NOT NULL, gpu INTEGER NOT NULL,
        held_s REAL NOT NULL, busy_s REAL NOT NULL, unknown_s REAL NOT NULL,
        byte_s REAL NOT NULL, idle_byte_s REAL NOT NULL, unsized_s REAL NOT NULL,
        PRIMARY KEY (scope, who, gpu, hour)) WITHOUT ROWID""",
    """CREATE TABLE watched (hour INTEGER NOT NULL, gpu INTEGER NOT NULL, seconds REAL NOT NULL,
        PRIMARY KEY (hour, gpu)) WITHOUT ROWID""",
    """CREATE TABLE events (id TEXT PRIMARY KEY, rule TEXT, severity INTEGER, gpu INTEGER, raised REAL, seen REAL,
        ended REAL, peak REAL, title TEXT) WITHOUT ROWID""",
    """CREATE TABLE event_user (event TEXT NOT NULL, uid INTEGER NOT NULL,
        PRIMARY KEY (event, uid)) WITHOUT ROWID""",
    """CREATE TABLE event_job (event TEXT NOT NULL, job INTEGER NOT NULL,
        PRIMARY KEY (event, job)) WITHOUT ROWID""",
)


def _begin(connection: Connection) -> None:
    """Version 1: what was held and used, and what was raised."""
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    for statement in _FIRST:
        connection.execute(statement)


def _add_holdings(connection: Connection) -> None:
    """Version 2: how long each holding has been idle, for who has but one snapshot."""
    connection.execute(
        """CREATE TABLE holdings (gpu TEXT NOT NULL, pid INTEGER NOT NULL, start INTEGER NOT NULL,
        idle_s REAL NOT NULL, at_least INTEGER NOT NULL, PRIMARY KEY (gpu, pid, start)) WITHOUT ROWID"""
    )


def _drop_holdings(connection: Connection) -> None:
    """Version 3: that was too old to be believed, once a minute; it is kept beside the newest figures now."""
    connection.execute("DROP TABLE holdings")
    connection.execute("DELETE FROM about WHERE name IN ('boot', 'looked')")


Step: TypeAlias = Callable[["Connection"], None]

STEPS: Final[Sequence[Step]] = (_begin, _add_holdings, _drop_holdings)
"""The n-th makes version n of version n - 1. One that was ever published is not changed any more."""
VERSION: Final = len(STEPS)

TABLES: Final = frozenset(
    ("about", "gpus", "users", "jobs", "hours", "watched", "events", "event_user", "event_job", "holdings")
)
"""Those that a store of any version may have."""


def upgrade(connection: Connection, steps: Sequence[Step] = STEPS) -> None:
    """Make a store one of the newest version, each step whole or not at all; raises sqlite3.Error.

    The connection must be in autocommit mode. Another process may do the same at the same time.
    """
    while version(connection) < len(steps):
        connection.execute("BEGIN IMMEDIATE")
        try:
            at = version(connection)  # again: somebody else may have been quicker
            if at < len(steps):
                steps[at](connection)
                connection.execute(f"PRAGMA user_version = {at + 1}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def version(connection: Connection) -> int:
    """Return the version of a store; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


_SUMS: Final = ("held_s", "busy_s", "unknown_s", "byte_s", "idle_byte_s", "unsized_s")
_GROW: Final = "ON CONFLICT (scope, who, gpu, hour) DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in _SUMS
)
_HOURS: Final = f"INSERT INTO hours (scope, hour, who, gpu, {', '.join(_SUMS)})"

_ABOUT: Final = "INSERT INTO about VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
_GPU: Final = """INSERT INTO gpus (uuid, number, name, total) VALUES (?, ?, ?, ?)
    ON CONFLICT (uuid) DO UPDATE SET number = excluded.number, name = excluded.name, total = excluded.total"""
# A number stands for a name only as long as that is not known.
_USER: Final = """INSERT INTO users VALUES (?, ?) ON CONFLICT (uid) DO UPDATE SET name = excluded.name
    WHERE excluded.name != CAST(uid AS TEXT)"""
_JOB: Final = """INSERT INTO jobs (uid, boot, key, name, launcher, first, last) VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (uid, boot, key) DO UPDATE SET name = excluded.name, launcher = excluded.launcher,
    first = min(first, excluded.first), last = max(last, excluded.last)"""
_ADD: Final = f"{_HOURS} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) {_GROW}"
_WATCHED: Final = """INSERT INTO watched VALUES (?, ?, ?)
    ON CONFLICT (hour, gpu) DO UPDATE SET seconds = seconds + excluded.seconds"""
_EVENT: Final = """INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET severity = max(severity, excluded.severity), seen = max(seen, excluded.seen),
    ended = coalesce(excluded.ended, ended), peak = excluded.peak, title = excluded.title"""
# What begins with SELECT needs a WHERE, or ON is taken for that of a join. Source: sqlite.org/lang_upsert.html
_MOVE: Final = f"""{_HOURS} SELECT scope, hour, ?, gpu, {", ".join(_SUMS)} FROM hours
    WHERE scope = 'job' AND who = ? AND hour >= ? {_GROW}"""

_BEFORE: Final = 4 * 3600
"""Seconds before a run was first seen in which something may have been charged to it: two and a half of the longest
intervals, and the hour that this begins in. Thus the whole table need not be looked through."""


def add(connection: Connection, batch: Batch, boot: str) -> None:
    """Add a batch, in a transaction that is open; raises sqlite3.Error."""
    if batch.host:
        connection.execute(_ABOUT, ("host", batch.host))
    gpus = [(uuid, card.number, card.name, card.total) for uuid, card in batch.gpus.items()]
    connection.executemany(_GPU, gpus)
    connection.executemany(_USER, batch.users.items())
    jobs = [(job.uid, boot, job.key, *facts) for job, facts in batch.jobs.items()]
    connection.executemany(_JOB, jobs)
    cards: dict[str, int] = dict(connection.execute("SELECT uuid, id FROM gpus"))
    runs = _Runs(connection, boot)
    connection.executemany(_ADD, _rows(batch, cards, runs))
    watched = [(hour, cards[gpu], seconds) for (hour, gpu), seconds in batch.watched.items()]
    connection.executemany(_WATCHED, watched)
    _move(connection, batch, runs)
    _tell(connection, batch, cards, runs)


class _Runs:
    """The ids of runs."""

    def __init__(self, connection: Connection, boot: str) -> None:
        self._connection, self._boot = connection, boot
        self._found: dict[JobId, int | None] = {}

    def __call__(self, job: JobId) -> int | None:
        """Return the id of a run; None where the store has none of it."""
        if job not in self._found:
            asked = "SELECT id FROM jobs WHERE uid = ? AND boot = ? AND key = ?"
            row = self._connection.execute(asked, (job.uid, self._boot, job.key)).fetchone()
            self._found[job] = row[0] if row else None
        return self._found[job]


def _rows(batch: Batch, cards: Mapping[str, int], runs: _Runs) -> Iterator[tuple[object, ...]]:
    def row(scope: str, hour: int, who: int | None, gpu: str, use: Use) -> tuple[object, ...]:
        return (scope, hour, who, cards[gpu], *use)

    for (hour, gpu), use in batch.by_gpu.items():
        yield row("gpu", hour, cards[gpu], gpu, use)
    for (hour, gpu, uid), use in batch.by_user.items():
        yield row("user", hour, uid, gpu, use)
    for (hour, gpu, job), use in batch.by_job.items():
        yield row("job", hour, runs(job), gpu, use)


def _move(connection: Connection, batch: Batch, runs: _Runs) -> None:
    """Put what was charged to a process before its run was known to that run."""
    for old, new in batch.moved.items():
        before, after = runs(old), runs(new)
        if before is None or after is None or before == after:
            continue
        (first,) = connection.execute("SELECT coalesce(first, 0.0) FROM jobs WHERE id = ?", (before,)).fetchone()
        since = first - _BEFORE
        connection.execute(_MOVE, (after, before, since))
        connection.execute("DELETE FROM hours WHERE scope = 'job' AND who = ? AND hour >= ?", (before, since))
        connection.execute("UPDATE OR IGNORE event_job SET job = ? WHERE job = ?", (after, before))
        connection.execute("DELETE FROM event_job WHERE job = ?", (before,))
        connection.execute("DELETE FROM jobs WHERE id = ?", (before,))


def _tell(connection: Connection, batch: Batch, cards: Mapping[str, int], runs: _Runs) -> None:
    for told in batch.events.values():
        one = told.alert
        worst, gpu = int(max(one.most, one.severity)), cards.get(one.gpu)
        row = (one.id, one.rule, worst, gpu, one.raised, one.seen, one.ended, one.peak, one.title)
        connection.execute(_EVENT, row)
        connection.executemany("INSERT OR IGNORE INTO event_user VALUES (?, ?)", _pairs(one.id, told.uids))
        found = (runs(batch.moved.get(job, job)) for job in told.jobs)
        connection.executemany("INSERT OR IGNORE INTO event_job VALUES (?, ?)", _pairs(one.id, filter(None, found)))


def _pairs(event: str, numbers: Iterable[int | None]) -> list[tuple[str, int | None]]:
    return [(event, number) for number in numbers]


PATIENCE: Final = 10.0
"""Seconds for which another who writes is waited for."""

_DAY: Final = 24 * 3600
_STEPS: Final = (7 * _DAY, _DAY, 3600)
"""Seconds that go at once where the file is full; the largest that is not more than there is."""
_FULL: Final = 0.95
"""Part of the largest size at which something goes, and how much is used after that."""
_ROOM: Final = 0.9
_TRUSTED: Final = 24
"""Hours that were watched after one before what is old is told by it."""
_SOUND_HOUR: Final = f"typeof(hour) = 'integer' AND hour BETWEEN 0 AND {1 << 40}"
"""In a damaged file an hour may be a text, or a number that SQLite cannot be asked about."""


class StoreError(GpuwatchError):
    """A file that is no store of ours; one line that says what it is."""


def store_name(host: str | None = None) -> str:
    """Return the name of the store of a host, this one where none is given."""
    return f"{for_host('usage', host)}.sqlite"


def own_store(folder: Path | None = None) -> Path:
    """Return the place of the user's own store."""
    if folder is None:
        from gpuwatch.files import state_folder

        folder = state_folder()
    return folder / store_name()


# ---------------------------------------------------------------------------------------------------------------
# Opening


@contextlib.contextmanager
def reading(path: Path, *, follow: bool = False, seconds: float = PATIENCE) -> Iterator[Connection]:
    """Open a store to read it; one of an older version too. Nothing in it is changed.

    `follow` allows a symbolic link, for a file that the user named; no question may take longer than `seconds`. Raises
    FileNotFoundError, OSError, StoreError, sqlite3.Error.
    """
    import sqlite3

    if not stat.S_ISREG((path.stat() if follow else path.lstat()).st_mode):
        raise StoreError("it is not a regular file")
    _check_journal(path)
    where = f"file:{quote(str(path.absolute()))}?mode=ro"
    with _undecodable_as_damage():
        try:
            connection = _looked_into(where, seconds)
        except sqlite3.OperationalError as error:
            # On a disk that is full or read-only, where SQLite cannot make what it needs beside it, one that nobody
            # writes to is read as it lies.
            if _code(error) & 0xFF == sqlite3.SQLITE_BUSY or _has_more(path):
                raise
            connection = _looked_into(f"{where}&immutable=1", seconds)
        try:
            if not version(connection):
                raise StoreError("it is empty")
            yield connection
        finally:
            connection.close()


@contextlib.contextmanager
def _undecodable_as_damage() -> Iterator[None]:
    """Raise StoreError where SQLite's message quotes damaged bytes: sqlite3 then raises UnicodeDecodeError instead."""
    try:
        yield
    except UnicodeDecodeError:
        raise StoreError(_damage("a name in it is no text")) from None


def _damage(why: str) -> str:
    return f"it is damaged ({why}); move it away, and a new one is begun"


def _decode(raw: bytes) -> str:
    """Decode a text cell; flipped bits make bytes that are no UTF-8."""
    return raw.decode("utf-8", "replace")


def _code(error: Exception) -> int:
    """Return SQLite's extended error code; 0 for an error of the sqlite3 module itself, which has none."""
    return getattr(error, "sqlite_errorcode", 0)


def _check_journal(path: Path) -> None:
    """Refuse a journal beside a database that is no regular file: SQLite would wait for a FIFO without end."""
    journal = Path(f"{os.path.realpath(path)}-journal")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(journal.lstat().st_mode):
            raise StoreError(f"its journal {journal.name} is not a regular file")


def _has_more(path: Path) -> bool:
    """Return whether there is something in the log beside a database that is not yet in it."""
    try:
        return path.with_name(f"{path.name}-wal").stat().st_size > 0
    except OSError:
        return False


def _looked_into(where: str, seconds: float) -> Connection:
    """Open a database read-only, and require that it is ours."""
    import sqlite3

    connection = sqlite3.connect(where, uri=True, timeout=seconds, isolation_level=None)
    connection.text_factory = _decode
    try:
        # A file that somebody planted runs no code of its own, and does not keep us for ever.
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
        end = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        _check(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: Connection) -> None:
    """Require a store of ours that we understand, or an empty database; raises StoreError."""
    kinds = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(100)
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    if application != APPLICATION and (application or kinds):
        raise StoreError("it is a database of something else")
    at = version(connection)
    if at > VERSION:
        raise StoreError(f"it is of a newer gpuwatch (version {at} of the store; this one knows {VERSION})")
    for kind, name, statement in kinds:
        ours = kind == "table" and name in TABLES and not str(statement).upper().startswith("CREATE VIRTUAL")
        if not ours and not (kind == "index" and statement is None):
            raise StoreError("it holds what no gpuwatch made")


# ---------------------------------------------------------------------------------------------------------------
# Writing


class Store:
    """Adds to the store; used from one thread at a time."""

    def __init__(
        self,
        path: Path,
        *,
        keep: float = 90.0 * _DAY,
        largest: int = 64 << 20,
        patience: float = PATIENCE,
        boot_id: Callable[[], str] = boot,
        steps: Sequence[Step] = STEPS,
    ) -> None:
        """`keep` (seconds) and `largest` (bytes) bound it; `patience` (seconds) is how long another is waited for."""
        self.path = path
        self.keep, self.largest = keep, largest
        self._patience = patience
        self._boot = boot_id
        self._steps = steps

    def write(self, batch: Batch) -> None:
        """Add what a batch holds, all of it or nothing; raises OSError, StoreError, sqlite3.Error."""
        import sqlite3

        with self._writing() as (connection, facts):
            if _used(connection) > _FULL * self._pages(connection):
                self._shrink(connection)
            try:
                self._add(connection, batch)
            except sqlite3.OperationalError as error:
                if not _is_full(error) or _used(connection) < _ROOM * self._pages(connection):
                    raise  # it is the disk that is full
                self._shrink(connection)
                self._add(connection, batch)
            if not _is_there(self.path, facts):
                raise StoreError("it was taken away while it was written")

    def prune(self, now: float) -> None:
        """Forget what is older than `keep`, by the wall-clock time `now`; raises as `write` does.

        A clock that is far ahead for a while makes nothing old: a day has to be watched by it before.
        """
        with self._writing() as (connection, _):
            newest = f"SELECT DISTINCT hour FROM watched WHERE {_SOUND_HOUR} ORDER BY hour DESC LIMIT 1 OFFSET ?"
            row = connection.execute(newest, (_TRUSTED,)).fetchone()
            if row is not None:
                _drop(connection, min(now, row[0]) - self.keep)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[tuple[Connection, os.stat_result]]:
        import sqlite3

        facts = _claimed(self.path)
        _check_journal(self.path)
        with _undecodable_as_damage():
            _looked_into(f"file:{quote(str(self.path.absolute()))}?mode=ro", self._patience).close()
            connection = sqlite3.connect(self.path, timeout=self._patience, isolation_level=None)
            connection.text_factory = _decode
            try:
                self._prepare(connection)
                yield connection, facts
            finally:
                connection.close()

    def _prepare(self, connection: Connection) -> None:
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # heeded before the first table alone
        upgrade(connection, self._steps)
        # Readers and who writes do not wait for each other then. Where a file system cannot, SQLite keeps to what it
        # did before, which is as safe: the answer does not matter.
        _wait_out(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), self._patience)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA max_page_count = {self._pages(connection)}")

    def _pages(self, connection: Connection) -> int:
        return max(1, self.largest // int(connection.execute("PRAGMA page_size").fetchone()[0]))

    def _add(self, connection: Connection, batch: Batch) -> None:

        with _whole(connection):
            add(connection, batch, self._boot())

    def _shrink(self, connection: Connection) -> None:
        """Let the oldest weeks go until a tenth is free."""
        pages = self._pages(connection)
        while _used(connection) > _ROOM * pages:
            asked = f"SELECT min(hour), max(hour) FROM watched WHERE {_SOUND_HOUR}"
            oldest, newest = connection.execute(asked).fetchone()
            if oldest is None:
                break
            span = newest - oldest
            _drop(connection, oldest + next((step for step in _STEPS if span >= step), 3600))
        connection.execute(f"PRAGMA max_page_count = {pages}")


def _used(connection: Connection) -> int:
    (pages,), (free,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
    return int(pages) - int(free)


def _drop(connection: Connection, before: float) -> None:
    """Forget what was over before a wall-clock time, and give the room back."""
    with _whole(connection):
        connection.execute("DELETE FROM hours WHERE hour + 3600 <= ?", (before,))
        connection.execute("DELETE FROM watched WHERE hour + 3600 <= ?", (before,))
        connection.execute("DELETE FROM events WHERE coalesce(ended, seen) < ?", (before,))
        connection.execute("DELETE FROM event_user WHERE event NOT IN (SELECT id FROM events)")
        connection.execute("DELETE FROM event_job WHERE event NOT IN (SELECT id FROM events)")
        connection.execute("DELETE FROM jobs WHERE last < ?", (before,))
    # It gives a page back at each step, and `execute` takes one step where there are no columns.
    connection.executescript("PRAGMA incremental_vacuum")


@contextlib.contextmanager
def _whole(connection: Connection) -> Iterator[None]:
    """Do all that is done in it, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _wait_out(do: Callable[[], object], seconds: float) -> None:
    """Do what SQLite does not wait for by itself, where another has the file."""
    import sqlite3

    end = time.monotonic() + seconds
    while True:
        try:
            do()
        except sqlite3.OperationalError as error:
            if _code(error) & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
        else:
            return


def _is_full(error: Exception) -> bool:
    import sqlite3

    return _code(error) & 0xFF == sqlite3.SQLITE_FULL


def _claimed(path: Path) -> os.stat_result:
    """Return what is known of a file of ours at `path`, made where it is missing; raises OSError.

    One that is there is never opened but by SQLite: to close it again would take away all locks that this process has
    on it, as those of another thread that writes. Source: sqlite.org/howtocorrupt.html, 2.2.
    """
    folder = files.open_folder(path.parent)
    try:
        if os.fstatvfs(folder).f_flag & os.ST_RDONLY:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        with contextlib.suppress(FileExistsError):
            os.close(files.open_file(folder, path.name, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        facts = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            raise files.UnsafePathError("it is a symbolic link")
        if not stat.S_ISREG(facts.st_mode):
            raise files.UnsafePathError("it is not a regular file")
        if facts.st_uid != os.geteuid():
            raise files.UnsafePathError(f"the file belongs to uid {facts.st_uid}")
        if stat.S_IMODE(facts.st_mode) & ~0o600:
            os.chmod(path.name, 0o600, dir_fd=folder)
    finally:
        os.close(folder)
    return facts


def _is_there(path: Path, ours: os.stat_result) -> bool:
    try:
        there = path.lstat()
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def store_words(error: Exception, path: Path) -> str:
    """Say in one clean line what is wrong with the store."""
    import sqlite3

    from gpuwatch.text import clean

    if isinstance(error, OSError):
        return files.words(error, path)
    code = _code(error) & 0xFF
    # The second is what a full disk gives where memory is shared with readers.
    if code == sqlite3.SQLITE_FULL or _code(error) == sqlite3.SQLITE_IOERR_SHMSIZE:
        return files.words(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None)
    if code == sqlite3.SQLITE_NOTADB:
        words = "it is no SQLite database, and is left as it is"
    elif code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR):  # of our own fixed statements none has an error
        words = _damage(str(error))
    elif _code(error) in (sqlite3.SQLITE_READONLY_ROLLBACK, sqlite3.SQLITE_READONLY_RECOVERY):
        words = f"the journal of an unfinished writing lies beside it ({error})"
    elif code == sqlite3.SQLITE_INTERRUPT:
        words = f"reading it took longer than {PATIENCE:g} s"
    elif code == sqlite3.SQLITE_BUSY:
        words = "another program keeps it locked"
    elif isinstance(error, StoreError):
        words = str(error)
    else:
        words = str(error) if isinstance(error, sqlite3.Error) else f"{type(error).__name__}: {error}"
    return clean(f"{path}: {words}", 300)


By: TypeAlias = Literal["user", "gpu", "job"]

_OVERSHOOT: Final = "uses more than declared"
_WARNING: Final = 2
_ADDED: Final = "sum(held_s), sum(busy_s), sum(unknown_s), sum(byte_s), sum(idle_byte_s), sum(unsized_s)"
_OF_JOBS: Final = "FROM jobs CROSS JOIN hours ON scope = 'job' AND who = id AND hour >= ?1 WHERE last >= ?1"
_LONGEST: Final = 200
"""Characters of a name."""
_HUGE: Final = 1e30
_MOST: Final = 1_000_000
"""Rows that are read; ours have a thousandth of that."""


@dataclass(frozen=True, slots=True)
class Events:
    """How many there were."""

    overshoots: int = 0
    all: int = 0
    warnings: int = 0
    """Those that were a warning or worse."""


NONE: Final = Events()


class _Card(NamedTuple):
    """What is known of a GPU."""

    number: int
    uuid: str
    name: str


@dataclass(frozen=True, slots=True)
class Line:
    """One user, GPU or run, over the whole time."""

    name: str
    """The user, the GPU's name or the run's."""
    use: Use = NO_USE
    gpus: tuple[int, ...] = ()
    """NVML's indices, as they were last, of the GPUs that it held."""
    events: Events = NONE
    uid: int | None = None
    user: str = ""
    """Of a run; with the uid None an owner whom nobody could see."""
    uuid: str = ""
    """Of a GPU."""
    watched: float | None = None
    """Of a GPU: seconds in which it was watched."""
    key: str = ""
    launcher: str = ""
    first: float | None = None
    last: float | None = None
    """Of a run: wall-clock times at which it was first and last seen, as far as they lie in the store."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What the store tells."""

    by: By
    since: float
    """Start of the first hour that counts, in seconds since the epoch."""
    host: str = ""
    lines: tuple[Line, ...] = ()
    """By the GPU time held, the most first."""
    watched: float = 0.0
    """Seconds in which at least one GPU was watched."""
    total: Use = NO_USE
    """Of all lines together: of two users on one GPU each is counted."""
    gpus: tuple[int, ...] = ()
    """Indices of all GPUs that were watched."""
    events: Events = NONE
    """Each counted once, those of nobody too."""
    more: int = 0
    """Lines that were not asked for; `total` is with them."""


def read_kept(path: Path, by: By, since: float, *, follow: bool = False, most: int | None = None) -> Kept:
    """Read what was kept of the time since the start of the hour of `since` (wall clock).

    Of runs, of which a quarter of a year has many thousands, at most `most` are given, those that held the most.
    Raises what `store.reading` raises.
    """
    hour = int(since // HOUR) * HOUR
    with reading(path, follow=follow) as connection:
        return _read(connection, by, hour, most)


def _read(connection: Connection, by: By, hour: int, most: int | None) -> Kept:
    cards = _cards(connection)
    times = _watched(connection, hour)
    events, total = _events(connection, by, hour)
    if by == "user":
        lines = _users(connection, hour, cards, events)
    elif by == "gpu":
        lines = _gpus(connection, hour, cards, events, times)
    else:
        lines = _jobs(connection, hour, cards, events, -1 if most is None else most)
    summed = Use(*map(sum, zip(*(line.use for line in lines), strict=True))) if lines else NO_USE
    more = 0
    if by == "job" and most is not None and len(lines) >= most:
        more, summed = _all_jobs(connection, hour)
        more = max(0, more - len(lines))
    lines.sort(key=lambda line: (-line.use.held, -line.use.memory, line.name, line.gpus))
    # An hour in which the clock was set back was watched for longer than an hour.
    both = "SELECT sum(min(most, 3600)) FROM (SELECT max(seconds) AS most FROM watched WHERE hour >= ? GROUP BY hour)"
    host = connection.execute("SELECT value FROM about WHERE name = 'host'").fetchone()
    return Kept(
        by=by,
        since=float(hour),
        host=_text(host[0]) if host else "",
        lines=tuple(lines),
        watched=_amount(connection.execute(both, (hour,)).fetchone()[0]),
        total=summed,
        gpus=_indices(times, cards),
        events=total,
        more=more,
    )


def _cards(connection: Connection) -> dict[int, _Card]:
    found = connection.execute("SELECT id, uuid, number, name FROM gpus").fetchmany(_MOST)
    return {_whole_kept(gpu): _Card(_index(number), _text(uuid), _text(name)) for gpu, uuid, number, name in found}


def _watched(connection: Connection, hour: int) -> dict[int, float]:
    found = connection.execute("SELECT gpu, sum(seconds) FROM watched WHERE hour >= ? GROUP BY gpu", (hour,))
    return {_whole_kept(gpu): _amount(seconds) for gpu, seconds in found.fetchmany(_MOST)}


def _indices(gpus: Iterable[int], cards: Mapping[int, _Card]) -> tuple[int, ...]:
    return tuple(sorted({cards[gpu].number for gpu in gpus if gpu in cards and cards[gpu].number >= 0}))


def _events(connection: Connection, by: By, hour: int) -> tuple[dict[int, Events], Events]:
    """Count what was raised, or still held, since; by whom it is about, and all of it."""
    counts = """sum(rule = ?), count(*), sum(severity >= ?)"""
    since = "coalesce(ended, seen) >= ?"
    values = (_OVERSHOOT, _WARNING, hour)
    whose = {
        "gpu": f"SELECT gpu, {counts} FROM events WHERE gpu IS NOT NULL AND {since} GROUP BY gpu",
        "user": f"SELECT uid, {counts} FROM events JOIN event_user ON event = id WHERE {since} GROUP BY uid",
        "job": f"SELECT job, {counts} FROM events JOIN event_job ON event = id WHERE {since} GROUP BY job",
    }[by]
    found = {
        _whole_kept(who): Events(*map(_whole_kept, row))
        for who, *row in connection.execute(whose, values).fetchmany(_MOST)
    }
    all_of_them = connection.execute(f"SELECT {counts} FROM events WHERE {since}", values).fetchone()
    return found, Events(*map(_whole_kept, all_of_them))


def _users(connection: Connection, hour: int, cards: Mapping[int, _Card], events: Mapping[int, Events]) -> list[Line]:
    names = _names(connection)
    uses: dict[int, Use] = {}
    held: dict[int, list[int]] = {}
    for who, gpu, *sums in _sums(connection, "user", hour):
        uses[who] = uses.get(who, NO_USE).plus(_use(sums))
        held.setdefault(who, []).append(gpu)
    return [
        Line(
            names.get(uid, str(uid)),
            use,
            _indices(held[uid], cards),
            events.get(uid, NONE),
            uid=None if uid == NOBODY else uid,
        )
        for uid, use in uses.items()
    ]


def _gpus(
    connection: Connection,
    hour: int,
    cards: Mapping[int, _Card],
    events: Mapping[int, Events],
    times: Mapping[int, float],
) -> list[Line]:
    uses = dict.fromkeys(times, NO_USE)  # one that nobody held was watched all the same
    for _, gpu, *sums in _sums(connection, "gpu", hour):
        uses[gpu] = uses.get(gpu, NO_USE).plus(_use(sums))
    return [
        Line(
            cards[gpu].name,
            use,
            _indices([gpu], cards),
            events.get(gpu, NONE),
            uuid=cards[gpu].uuid,
            watched=times.get(gpu, 0.0),
        )
        for gpu, use in uses.items()
        if gpu in cards
    ]


def _jobs(
    connection: Connection, hour: int, cards: Mapping[int, _Card], events: Mapping[int, Events], most: int
) -> list[Line]:
    names = _names(connection)
    # By the runs that were there since: of a week among many only these are looked up. Which of them are wanted is
    # found first, so that the others need neither names nor lists of GPUs; -1 is all of them.
    asked = f"""SELECT id, uid, key, name, launcher, first, last, group_concat(DISTINCT gpu), {_ADDED}
        FROM (SELECT id AS wanted {_OF_JOBS} GROUP BY id ORDER BY sum(held_s) DESC, sum(byte_s) DESC, id LIMIT ?2)
        CROSS JOIN jobs ON id = wanted CROSS JOIN hours ON scope = 'job' AND who = id AND hour >= ?1 GROUP BY id"""
    if most < 0:
        asked = f"""SELECT id, uid, key, name, launcher, first, last, group_concat(DISTINCT gpu), {_ADDED}
            {_OF_JOBS} AND ?2 < 0 GROUP BY id"""
    lines = []
    found = connection.execute(asked, (hour, most)).fetchmany(_MOST)
    for job, uid, key, name, launcher, first, last, gpus, *sums in found:
        owner = _whole_kept(uid)
        line = Line(
            _text(name) or UNSEEN,
            _use(sums),
            _indices(_listed(gpus), cards),
            events.get(job, NONE),
            uid=None if owner == NOBODY else owner,
            user=names.get(owner, str(owner)),
            key=_text(key),
            launcher=_text(launcher),
            first=_amount(first),
            last=_amount(last),
        )
        lines.append(line)
    return lines


def _all_jobs(connection: Connection, hour: int) -> tuple[int, Use]:
    """Count the runs, and add them up."""
    asked = f"SELECT count(DISTINCT id), {_ADDED} {_OF_JOBS}"
    count, *sums = connection.execute(asked, (hour,)).fetchone()
    return _whole_kept(count), _use(sums)


def _sums(connection: Connection, by: By, hour: int) -> Iterable[tuple[Any, ...]]:
    asked = f"SELECT who, gpu, {_ADDED} FROM hours WHERE scope = ? AND hour >= ? GROUP BY who, gpu"
    for who, gpu, *sums in connection.execute(asked, (by, hour)).fetchmany(_MOST):
        yield _whole_kept(who), _whole_kept(gpu), *sums


def _use(sums: Iterable[object]) -> Use:
    return Use(*map(_amount, sums))


def _names(connection: Connection) -> dict[int, str]:
    found = connection.execute("SELECT uid, name FROM users").fetchmany(_MOST)
    return {_whole_kept(uid): _text(name) or str(uid) for uid, name in found} | {NOBODY: UNSEEN}


# ---------------------------------------------------------------------------------------------------------------
# A cell of SQLite's may hold anything


def _text(value: object) -> str:
    return clean(value, _LONGEST) if isinstance(value, str | bytes) else ""


def _amount(value: object) -> float:
    return float(value) if isinstance(value, int | float) and 0 <= value < _HUGE else 0.0


def _whole_kept(value: object) -> int:
    return value if isinstance(value, int) else 0


def _listed(value: object) -> list[int]:
    return [int(part) for part in str(value).split(",") if part.isdecimal() and len(part) < 10]


def _index(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 10_000 else -1
