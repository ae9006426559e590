"""Form of stores: the names of their files, their tables, their facts and transactions.

Users have such files: a change here changes `VERSION`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from datetime import date
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from gpuwatch.base import files, text

APPLICATION: Final = 0x67707577
"""Value of `PRAGMA application_id` in every store: `gpuw`."""
VERSION: Final = 2
"""Value of `PRAGMA user_version`, and part of the name of a user's own store."""
NOBODY: Final = -1
"""Uid of all processes whose owner is unknown: ended, hidden, in another namespace, or not listed. They are one run."""
HOUR: Final = 3600
MINUTE: Final = 60
DAYS: Final = Path("/var/lib/gpuwatch")
"""Folder of the machine's service, with its public days."""
_DAY_NAME: Final = re.compile(r"public-(\d{4}-\d\d-\d\d)\.sqlite")
FRESH: Final = 90.0
"""Seconds since a public day was written for which the service counts as running: it writes every minute."""
TABLES: Final = (
    "CREATE TABLE about (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    # Times are seconds since the epoch; `alert` is an `Alert` as JSON, the other columns are what is searched for.
    """CREATE TABLE events (id TEXT PRIMARY KEY, key TEXT, rule TEXT, severity INTEGER, gpu TEXT,
        raised REAL, seen REAL, ended REAL, alert TEXT)""",
    "CREATE INDEX events_by_key ON events (key)",
    # Subjects that a report counts: `kind` is gpu, or the user or run that causes the event; `who` is the key of a GPU,
    # a uid, or the uid and key of a run: `1001/4711:88211`.
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
SNAPSHOT_TABLES: Final = (
    # Only in a recording. A row has the snapshots of ten seconds; `recording.py` says what `body` is.
    """CREATE TABLE snapshots (id INTEGER PRIMARY KEY, since REAL NOT NULL, until REAL NOT NULL,
        count INTEGER NOT NULL, body BLOB NOT NULL)""",
    # With it the list of all rows is read without their bodies.
    "CREATE INDEX snapshots_by_time ON snapshots (since, until, count)",
)
STATEMENTS: Final = {words.split()[2]: " ".join(words.split()) for words in (*TABLES, *SNAPSHOT_TABLES)}
"""Statement of each table and index by its name."""
USE_COLUMNS: Final = ("held_s", "busy_s", "unknown_s", "byte_s", "idle_byte_s", "unsized_s", "gpu_s")
"""Columns of the table `use` with the fields of `history.Use`."""
ADD_USE: Final = f"INSERT INTO use (at, span, gpu, uid, run, {', '.join(USE_COLUMNS)})"
"""SQL that adds to rows, followed by values or a query, and by `ON_CONFLICT`."""
ON_CONFLICT: Final = "ON CONFLICT (at, span, gpu, run) DO UPDATE SET " + ", ".join(
    f"{name} = {name} + excluded.{name}" for name in USE_COLUMNS
)


def own_store(folder: Path | None = None) -> Path:
    """Return the path of the user's own store; `folder` replaces the user's state folder."""
    return (folder or files.state_folder()) / f"gpuwatch-{files.host_name()}.{VERSION}.sqlite"


def lock_path(store: Path, duty: str = "") -> Path:
    """Return the path of the lock file next to a store that elects the process for `duty`: recording by default."""
    return store.parent / f"{store.name.removesuffix('.sqlite')}{f'-{duty}' if duty else ''}.lock"


def public_file(folder: Path, day: str) -> Path:
    """Return the path of a public day, such as 2026-11-24."""
    return folder / f"public-{day}.sqlite"


def public_files(folder: Path = DAYS) -> list[Path]:
    """Return the public days, the newest first."""
    with contextlib.suppress(OSError, ValueError):  # a name that is no date is not the service's
        return sorted((path for path in folder.iterdir() if is_public(path) and day_of(path)), reverse=True)
    return []


def is_public(path: Path) -> bool:
    """Return whether a store is a public day of the machine's service, by its name."""
    return bool(_DAY_NAME.fullmatch(path.name))


def day_of(path: Path) -> date:
    return date.fromisoformat(path.stem.removeprefix("public-"))


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Return inode, time and size of a file, which show whether it has changed; None where there is no file."""
    try:
        facts = path.lstat()
    except OSError:  # reading it reports the error
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size


def read_version(connection: Connection) -> int:
    """Return the version of a store; 0 where it has no tables yet."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def create_tables(connection: Connection, statements: Iterable[str] = TABLES) -> None:
    if read_version(connection):
        return
    with transaction(connection):
        if read_version(connection):  # another process has created them meanwhile
            return
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        for statement in statements:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")


@contextlib.contextmanager
def transaction(connection: Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def write_about(connection: Connection, name: str, value: object) -> None:
    asked = "INSERT INTO about VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value"
    connection.execute(asked, (name, value))


def read_about(connection: Connection, name: str, most: int = 200) -> str:
    """Return one fact about the store as clean text of `most` characters; empty where it is not there."""
    row = connection.execute("SELECT value FROM about WHERE name = ?", (name,)).fetchone()
    return text.clean(str(row[0]), most) if row and row[0] is not None else ""
