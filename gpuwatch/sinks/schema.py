"""What the store of `gpuwatch report` looks like, and how one of an older gpuwatch becomes one of ours.

Times are in seconds, moments in seconds since the epoch, sizes in bytes. An hour is named by its start. In `hours`,
`who` is a GPU's id, a uid or a run's id, by the scope; uid -1 stands for owners whom nobody could see. What is added
up is in `hours` and `watched`; `held_s` and the like are those of `history.usage.Use`. The order of its key lets a
report add up 90 days of one user, or look up a week's runs, without sorting.

The version is in `PRAGMA user_version`. Nothing here needs SQLite beyond 3.24 (2018), the first with upserts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from sqlite3 import Connection

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
    """Give the version of a store; 0 for an empty one."""
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
