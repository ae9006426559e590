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
_STEPS: Final = (_WEEK, _DAY, HOUR)
"""Steps in seconds by which use is deleted from a full file: the largest step that the use covers.

In a file half full use is kept by minute for so long only.
"""
_FULL: Final = 0.95
"""Part of the largest size at which old rows are deleted, and below which the file is after that."""
_ROOM: Final = 0.9
_TRUSTED: Final = 24
"""Watched hours after which the clock is trusted when old rows are deleted."""
_ROLL_UP: Final = f"""{ADD_USE}
    SELECT at / {HOUR} * {HOUR} AS hour, {HOUR}, gpu, uid, run, {", ".join(f"sum({name})" for name in USE_COLUMNS)}
    FROM use WHERE span = {MINUTE} AND at < ? GROUP BY hour, gpu, run {ON_CONFLICT}"""


def prune(connection: Connection, now: float, keep: float, pages: int) -> None:
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


def is_nearly_full(connection: Connection, pages: int) -> bool:
    """Return whether a store that may have so many pages is to lose rows before the next write."""
    return _used_pages(connection) > _FULL * pages


def has_room(connection: Connection, pages: int) -> bool:
    """Return whether a tenth of the pages that a store may have is free."""
    return _used_pages(connection) < _ROOM * pages


def make_room(connection: Connection, pages: int) -> None:
    """Delete the oldest weeks until a tenth of the pages is free."""
    while not has_room(connection, pages):
        oldest, newest = connection.execute("SELECT min(at), max(at) FROM use").fetchone()
        if oldest is None:
            break
        span = newest - oldest
        _delete_old(connection, oldest + next((step for step in _STEPS if span >= step), HOUR))
    connection.execute(f"PRAGMA max_page_count = {pages}")


def _used_pages(connection: Connection) -> int:
    """Return the pages of a store that are in use."""
    (pages,), (free,) = (connection.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "freelist_count"))
    return int(pages) - int(free)


def used_bytes(connection: Connection) -> int:
    """Return the bytes of a store that are in use, also within a transaction."""
    return _used_pages(connection) * int(connection.execute("PRAGMA page_size").fetchone()[0])


def _delete_old(connection: Connection, before: float) -> None:
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
