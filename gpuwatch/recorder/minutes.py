"""Minutes in the store: values of the last 25 hours, for graphs that reach back further than this gpuwatch has run."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final

import msgspec

from gpuwatch.minute import Minute
from gpuwatch.recorder.store import create_minutes, own_store, reading
from gpuwatch.text import clean
from gpuwatch.timeline import Metric, Timeline, parse_key

KEEP: Final = 25 * 3600
"""Seconds after which a minute is deleted."""
MOST_PROCESSES: Final = 100
"""Processes in a stored minute, at most: those with the most memory."""
_MOST: Final = KEEP // 60 + 1
_LARGEST: Final = 1 << 18
"""Bytes of a minute, at most; with 8 GPUs and 43 processes it has 2,200, and 15,000 decompressed."""
_LARGEST_JSON: Final = 1 << 21
_LARGEST_DAY: Final = 1 << 27
"""Bytes of all minutes that are read at a time, decompressed; a day of 16 GPUs and 100 processes has 45 MB."""
_SLOWEST: Final = 5.0
"""Seconds that reading a day may take, at most."""

_decoder: Final = msgspec.json.Decoder(dict[str, float])


def write_minutes(connection: Connection, minutes: Sequence[Minute], keep: float = KEEP) -> None:
    """Write minutes, and delete those that began `keep` seconds before the last one, inside an open transaction.

    Only the values are stored: the rest of a minute is in the tables of events and usage.
    """
    if not minutes:
        return
    create_minutes(connection)
    for one in minutes:
        body = zlib.compress(msgspec.json.encode(_without_small(one.values)))
        connection.execute("INSERT OR REPLACE INTO minutes VALUES (?, ?)", (int(one.at), body))
    newest = int(minutes[-1].at)
    # A minute to come is one of a clock that was wrong.
    connection.execute("DELETE FROM minutes WHERE at < ? OR at > ?", (newest - keep, newest))


def _without_small(values: Mapping[str, float]) -> dict[str, float]:
    """Return values without those of processes with little memory, where there are many."""
    keys = {words: parse_key(words) for words in values}
    sizes: dict[str, float] = {}
    for words, key in keys.items():
        if key is not None and key.owner.startswith("process:"):
            sizes[key.owner] = sizes.get(key.owner, 0.0) + (values[words] if key.metric is Metric.MEMORY else 0.0)
    small = set(sorted(sizes, key=sizes.__getitem__, reverse=True)[MOST_PROCESSES:])
    return {words: values[words] for words, key in keys.items() if key is not None and key.owner not in small}


def read_minutes(connection: Connection, since: float, until: float) -> Iterator[Minute]:
    """Yield the stored minutes that began in a span of wall-clock time, oldest first; damaged rows are left out."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'minutes'").fetchone():
        return  # it was written by a gpuwatch without minutes
    asked = "SELECT at, body FROM minutes WHERE at >= ? AND at < ? AND length(body) <= ? ORDER BY at DESC LIMIT ?"
    names = connection.execute("SELECT uid, name FROM users").fetchall()
    users: dict[str, str] = {f"user:{uid}": clean(name) for uid, name in names if isinstance(name, str)}
    found: list[Minute] = []
    left = _LARGEST_DAY
    for at, body in connection.execute(asked, (since, until, _LARGEST, _MOST)).fetchall():
        content = _decompress(body)
        left -= len(content)
        if left < 0:
            break
        values = _read_values(content)
        if values is not None and isinstance(at, int):
            found.append(Minute(at=float(at), values=values, users=users))
    yield from reversed(found)


def _decompress(body: Any) -> bytes:
    try:
        return zlib.decompressobj().decompress(body, _LARGEST_JSON) if isinstance(body, bytes) else b""
    except zlib.error:
        return b""


def _read_values(content: bytes) -> dict[str, float] | None:
    try:
        values = _decoder.decode(content)
    except (ValueError, RecursionError):
        return None
    return {words: value for words, value in values.items() if parse_key(words) is not None and value >= 0}


def load_older(timeline: Timeline, until: float, *, folder: Path | None = None) -> None:
    """Add the minutes of this user's store to a timeline, up to a wall-clock time; not for a demo or a replay.

    It reads a file, and takes about a second for a whole day: call it on a thread of its own. Raises StoreError. A
    store that does not exist adds nothing. `folder` stands in for the user's state folder.
    """
    try:
        with reading(own_store(folder), seconds=_SLOWEST) as connection:
            timeline.load(list(read_minutes(connection, until - KEEP, until)))
    except FileNotFoundError:
        pass
