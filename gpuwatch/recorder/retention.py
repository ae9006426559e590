"""Retention: which rows of a store are deleted or added up, and when, so that its file stays within its bounds."""

from __future__ import annotations

from sqlite3 import Connection
from typing import Final

from gpuwatch.recorder.schema import ADD_USE, HOUR, MINUTE, ON_CONFLICT, USE_COLUMNS, transaction

KEEP: Final = 90.0 * 24 * 3600
LARGEST: Final = 64 << 20
EVENTS_BYTES: Final = 32 << 20
"""Bytes of the file for events and minutes, besides the bytes that the user allows for usage."""
_MOST_EVENTS: Final = 20_000
"""Events that are kept, at most: the newest ones, about 14 MiB."""
_DAY: Final = 24 * HOUR
_WEEK: Final = 7 * _DAY
"""Seconds for which use is kept by minute; then the minutes of an hour are added into one row."""
STEPS: Final = (_WEEK, _DAY, HOUR)
"""Steps in seconds by which use is deleted from a full file: the largest step that the use covers.

In a file half full use is kept by minute for so long only.
"""
FULL: Final = 0.95
"""Part of the largest size at which old rows are deleted, and below which the file is after that."""
ROOM: Final = 0.9
TRUSTED: Final = 24
"""Watched hours after which the clock is trusted when old rows are deleted."""
SOUND: Final = f"typeof(at) = 'integer' AND at BETWEEN 0 AND {1 << 40}"
"""SQL test for a valid time: in a damaged file it may be a text, or a number that is too large for SQLite."""
ROLL_UP: Final = f"""{ADD_USE}
    SELECT at / {HOUR} * {HOUR} AS hour, {HOUR}, gpu, uid, run, {", ".join(f"sum({name})" for name in USE_COLUMNS)}
    FROM use WHERE {SOUND} AND span = {MINUTE} AND at < ? GROUP BY hour, gpu, run {ON_CONFLICT}"""


def used_pages(connection: Connection) -> int:
    """Return the pages of a store that are in use."""
    (pages,), (free,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
    return int(pages) - int(free)


def used_bytes(connection: Connection) -> int:
    """Return the bytes of a store that are in use, also within a transaction."""
    return used_pages(connection) * int(connection.execute("PRAGMA page_size").fetchone()[0])


def delete_old(connection: Connection, before: float) -> None:
    """Delete what ended before a wall-clock time, and all but the newest events; return the space to the disk."""
    with transaction(connection):
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
