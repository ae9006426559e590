"""The store of `gpuwatch report`: one SQLite file of a user and host, added to once a minute, bounded in size.

`usage-HOST.sqlite` in the user's state folder, 0600. Several may write at once: what they add, SQLite adds up. A file
that is something else, or of a newer gpuwatch, is never touched. Each writing opens the file, and closes it: whoever
takes it away, or puts another in its place, is heard of a minute later. See `sinks.schema` for what is in it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from gpuwatch import files
from gpuwatch.errors import GpuwatchError
from gpuwatch.recorder.events_log import for_host
from gpuwatch.recorder.status_file import boot
from gpuwatch.sinks import schema

if TYPE_CHECKING:
    from sqlite3 import Connection

    from gpuwatch.sinks.tally import Batch

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
    """Give the name of the store of a host, this one where none is given."""
    return f"{for_host('usage', host)}.sqlite"


def own_store(folder: Path | None = None) -> Path:
    """Give the place of the user's own store."""
    if folder is None:
        from gpuwatch.kill.audit import state_folder

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
            if not schema.version(connection):
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
    """Say whether there is something in the log beside a database that is not yet in it."""
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
    if application != schema.APPLICATION and (application or kinds):
        raise StoreError("it is a database of something else")
    at = schema.version(connection)
    if at > schema.VERSION:
        raise StoreError(f"it is of a newer gpuwatch (version {at} of the store; this one knows {schema.VERSION})")
    for kind, name, statement in kinds:
        ours = kind == "table" and name in schema.TABLES and not str(statement).upper().startswith("CREATE VIRTUAL")
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
        steps: Sequence[schema.Step] = schema.STEPS,
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
        schema.upgrade(connection, self._steps)
        # Readers and who writes do not wait for each other then. Where a file system cannot, SQLite keeps to what it
        # did before, which is as safe: the answer does not matter.
        _wait_out(lambda: connection.execute("PRAGMA journal_mode = WAL").fetchone(), self._patience)
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA max_page_count = {self._pages(connection)}")

    def _pages(self, connection: Connection) -> int:
        return max(1, self.largest // int(connection.execute("PRAGMA page_size").fetchone()[0]))

    def _add(self, connection: Connection, batch: Batch) -> None:
        from gpuwatch.sinks.adding import add

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
    """Give what is known of a file of ours at `path`, made where it is missing; raises OSError.

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
