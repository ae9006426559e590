"""Opening a store for reading, and the errors of all stores.

Nothing that is read is trusted: the schema must be exactly gpuwatch's, rows that gpuwatch cannot have written are
counted and left out, and every text is cleaned again. A file of another program, another user or a newer gpuwatch is
never changed.

Opening a store for writing rolls back the journal next to it, and the journal may name another file, which SQLite then
deletes (sqlite.org/fileformat2.html, 3). So a file that somebody sent is never opened for writing.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import Final
from urllib.parse import quote

from gpuwatch.base import files, text
from gpuwatch.base.errors import GpuwatchError, UsageError
from gpuwatch.recorder.schema import APPLICATION, STATEMENTS, VERSION, is_public, read_version

PATIENCE: Final = 10.0
"""Seconds to wait for another process that writes, at most, and seconds that a query may take."""
_COPY_S: Final = 600.0
"""Seconds that a copy may take, at most."""
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
"""Seconds to wait for a writer to end its transaction, at most."""


class StoreError(GpuwatchError):
    """The store cannot be read or written; one line names the file and says why."""


class DamagedError(StoreError):
    """The store is damaged."""


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
        (_refuse_unfinished if is_foreign else check_journal)(path)
        try:
            connection = connect(path, "ro", seconds)
        except sqlite3.OperationalError as error:
            if is_foreign or error_code(error) != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            is_shared(path.parent)
            check_journal(path)  # it may not have been there before
            connection = connect(path, "rw", seconds)  # a killed writer left its journal: SQLite undoes that write
        with contextlib.closing(connection):
            connection.execute("PRAGMA query_only = ON")
            if not read_version(connection):  # another process is just making it
                raise StoreError("it is empty") if named else FileNotFoundError(path)
            yield connection


def connect(path: Path, mode: str, seconds: float) -> Connection:
    """Open a database, and check that it is a store or empty."""
    where = f"file:{quote(str(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(where, uri=True, timeout=seconds, isolation_level=None)
    connection.text_factory = _TextDecoder()
    try:
        # A file that somebody planted runs no code of its own, and uses neither unlimited time nor all memory.
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
        connection.execute(f"PRAGMA hard_heap_limit = {_MOST_MEMORY}")
        connection.execute("PRAGMA trusted_schema = OFF")
        end = time.monotonic() + seconds
        connection.set_progress_handler(lambda: time.monotonic() > end, 100_000)
        found = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchmany(100)
        application = connection.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION and (application or found):
            raise StoreError("it is a database of another program")
        version = read_version(connection)
        if version > VERSION:
            raise StoreError(f"a newer gpuwatch wrote it (store version {version}; this gpuwatch reads {VERSION})")
        for kind, name, statement in found:
            if statement is None:  # the index of a primary key
                continue
            if name not in STATEMENTS or kind not in ("table", "index"):
                raise StoreError("it contains objects that gpuwatch did not create")
            if " ".join(str(statement).split()) != STATEMENTS[name]:
                raise DamagedError(f"it is damaged (its {kind} {name} differs from gpuwatch's)")
    except BaseException:
        connection.close()
        raise
    return connection


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


def check_journal(path: Path) -> None:
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
                raise StoreError(f"its journal {journal.name} names another file, which gpuwatch never does")


def is_shared(folder: Path) -> bool:
    """Return whether all may add files to a folder, such as /tmp; raises StoreError where they may rename its files."""
    mode = folder.stat().st_mode
    if mode & 0o002 and not mode & stat.S_ISVTX:
        raise StoreError(f"everybody may rename files in the folder {folder}")
    return bool(mode & 0o002)


def _refuse_unfinished(path: Path) -> None:
    """Refuse a store with a journal or a write-ahead log next to it; wait for a writer that is about to end."""
    real = os.path.realpath(path)
    end = time.monotonic() + _WRITING_S
    while True:
        left = [name for name in (f"{real}-journal", f"{real}-wal") if _has_content(name)]
        if not left:
            break
        if time.monotonic() > end:
            raise StoreError(f"its writer was killed or is still writing ({Path(left[0]).name} is next to it)")
        time.sleep(0.05)
    with open(files.open_ordinary(path), "rb") as file:
        header = file.read(20)
    if header.startswith(_HEADER) and header[18:20] != b"\1\1":  # SQLite would create files next to it
        raise StoreError("it is a database of another program")


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


def check_pages(path: Path) -> None:
    """Check all pages of a store; raises DamagedError, and StoreError where it cannot be read."""
    with contextlib.suppress(FileNotFoundError), reading(path) as connection:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise DamagedError(f"it is damaged ({found})")


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


def error_code(error: Exception) -> int:
    """Return SQLite's extended error code; 0 for an error of the sqlite3 module itself, which has none."""
    return getattr(error, "sqlite_errorcode", 0)


def _explain(error: Exception, path: Path) -> tuple[type[StoreError], str]:
    """Return the class of the error to raise, and its words."""
    code = error_code(error)
    kind: type[StoreError] = type(error) if isinstance(error, StoreError) else StoreError
    match code & 0xFF:
        case sqlite3.SQLITE_FULL:
            return kind, files.words(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None)
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_ERROR:
            # gpuwatch's own fixed statements have no error.
            kind, reason = DamagedError, f"it is damaged ({error})"
        case sqlite3.SQLITE_INTERRUPT:
            reason = f"reading it took longer than {PATIENCE:g} s"
        case sqlite3.SQLITE_BUSY:
            reason = "another program keeps it locked"
        case sqlite3.SQLITE_READONLY if code == sqlite3.SQLITE_READONLY_ROLLBACK:
            reason = f"the journal of an unfinished write is next to it ({error})"
        case _ if isinstance(error, UnicodeDecodeError):  # in a message of SQLite's that quotes damaged bytes
            kind, reason = DamagedError, "it is damaged (a name in it is not text)"
        case _ if isinstance(error, MemoryError):
            reason = "reading it takes too much memory"
        case _ if isinstance(error, OSError):
            return kind, files.words(error, path)
        case _:
            reason = str(error)
    return kind, text.clean(reason if reason.startswith(f"{path}: ") else f"{path}: {reason}", 300)
