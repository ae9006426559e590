"""Recording: a store with a table of snapshots, and its reader, which bounds the cost of a file.

A row of the table has the snapshots of ten seconds, compressed by lzma:

    body     = standing, then one line of JSON for each snapshot
    standing = {"idle": […], "alerts": […]}    alerts and idle times before the first snapshot of the row

All other tables are those of the store, made from the snapshots as they are recorded.
"""

from __future__ import annotations

import contextlib
import lzma
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from sqlite3 import Connection
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from gpuwatch.alerts.alert import Alert
from gpuwatch.analysis.events import Events
from gpuwatch.base import files
from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import LIMIT, clean
from gpuwatch.base.units import MAX_INTERVAL_S, format_moment
from gpuwatch.history.timeline import Minute
from gpuwatch.model.snapshot import SCHEMA, IdleHolding, Snapshot
from gpuwatch.recorder.events import read_events
from gpuwatch.recorder.opening import StoreError, reading
from gpuwatch.recorder.schema import read_about
from gpuwatch.recorder.use import read_means

T = TypeVar("T")

ROW_S: Final = 10.0
"""Seconds of snapshots in one row: the most that is lost when gpuwatch is killed."""
LARGEST_ROW: Final = 16 * 2**20
"""Bytes of the lines of a row after which the writer begins another."""
LARGEST: Final = 2 * LARGEST_ROW
"""Bytes of the lines of a row, at most; 8 GPUs and 43 processes have 40,000 in a snapshot."""
_LARGEST_BODY: Final = 8 * 2**20
"""Compressed bytes of a row, at most; those of the machine above have 7,000."""
_MEMORY: Final = 16 * 2**20
"""Bytes of memory of the decompressor, at most; preset 0 needs 1 MiB."""
_MOST_LINES: Final = 1000
"""Snapshots in a row, at most; 100 are made in ten seconds at the shortest interval."""
MOST_ROWS: Final = 400_000
"""Rows that are read, at most: the newest, 46 days."""
MOST_GPUS: Final = 256
"""GPUs in a snapshot, at most: sixteen times those of a large machine."""
_MOST_NOTES: Final = 20
_LATEST: Final = 4102444800.0
"""Latest wall-clock time that is believed: the year 2100."""
_GREATEST: Final = 2.0**63
_GREAT: Final = re.compile(rb"[:,\[]-?(?:[0-9]{18}|[0-9.]+[eE])")
"""Number in JSON that may be greater, and is not in a string: there a quote precedes it."""
_TIMES: Final = frozenset({"taken", "since", "searched", "started", "raised", "seen", "ended"})
"""Fields with wall-clock times."""
_ODD_TIME: Final = re.compile(rb'"(?:%s)":(?!0[.,}]|[1-3]?[0-9]{1,9}[.,}]|null)' % b"|".join(map(str.encode, _TIMES)))
"""Time that may be later, or before 1970."""
_SET_BACK: Final = "the clock was set back; where a time was recorded twice, the later recording is used"


class Standing(msgspec.Struct, frozen=True):
    """Alerts and idle times before the first snapshot of a row."""

    idle: tuple[IdleHolding, ...] = ()
    alerts: tuple[Alert, ...] = ()


class RecordingRow(NamedTuple):
    """Place and times of one row."""

    since: float
    """Wall-clock time of its first snapshot."""
    until: float
    """Wall-clock time of its last snapshot."""
    file: int
    """Index of its file in `Recording.paths`."""
    id: int


class DamagedRowError(Exception):
    """Error in a row: the rest of the row is not read."""


def pack(standing: Standing, lines: Iterable[bytes]) -> bytes:
    """Return the body of a row; `lines` are encoded snapshots."""
    whole = b"".join([line + b"\n" for line in (msgspec.json.encode(standing), *lines)])
    return lzma.compress(whole, check=lzma.CHECK_CRC32, preset=0)


def other_format(connection: Connection) -> str | None:
    """Return the error of a recording whose snapshots have another schema than this gpuwatch's; None otherwise."""
    schema, version = read_about(connection, "snapshots", 9), read_about(connection, "version", 20)
    if not schema.isdigit() or int(schema) == SCHEMA:
        return None
    hint = "; install the newer one" if int(schema) > SCHEMA else ""
    return f"recorded by gpuwatch {version} with schema {schema}, and this gpuwatch knows schema {SCHEMA}{hint}"


def unpack(body: bytes) -> list[bytes]:
    """Return the lines of a row, the standing first; raises DamagedRowError."""
    unpacker = lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY)
    try:
        whole = unpacker.decompress(body, LARGEST + 1)
    except (lzma.LZMAError, EOFError, MemoryError):
        raise DamagedRowError("it is damaged") from None
    if not unpacker.eof or len(whole) > LARGEST:
        raise DamagedRowError(f"it has more than {LARGEST >> 20} MiB")
    lines = whole.split(b"\n", _MOST_LINES + 2)
    if len(lines) > _MOST_LINES + 2:
        raise DamagedRowError(f"it has more than {_MOST_LINES:,} snapshots")
    return lines[:-1]


class Recording:
    """Recording of one host in one or several files; any thread may read it.

    Each read opens its file and closes it again, so that no transaction stays open next to a writer.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """List the rows of all files; raises UsageError where one is no recording."""
        self.paths = list(paths)
        self.rows: list[RecordingRow] = []
        """All rows, oldest first; never empty."""
        self.notes: list[str] = []
        """What could not be read so far, in one line each."""
        self.limits = ""
        """Limits of the alerts of the last file, as JSON."""
        hosts = {self._add(index) for index in range(len(self.paths))}
        if len(hosts) > 1:
            raise UsageError(f"recordings of different hosts: {', '.join(sorted(hosts))}")
        self.host = hosts.pop()
        self.rows.sort()
        self.first: float = self.rows[0].since
        """Wall-clock time of the first snapshot."""
        self.last: float = self.rows[-1].until
        """Wall-clock time of the last snapshot."""

    def snapshots(self, at: float = 0.0, until: float = inf) -> Iterator[Snapshot]:
        """Yield the snapshots from the row that has the time `at` on, oldest first, up to the row with `until`.

        Of a damaged row `notes` gets a line, and the next row follows.
        """
        return self._read(self._rows(at, until))

    def play(self, at: float) -> tuple[Standing, Iterator[Snapshot]]:
        """Return the state before the row that has the time `at`, and the snapshots from that row on."""
        rows = self._rows(at, inf)
        try:
            standing = _decode_checked(self._lines(rows[0])[0], Standing)
        except DamagedRowError as error:
            self._note(rows[0], str(error))
            standing = Standing()
        return standing, self._read(rows)

    def minutes(self, since: float = 0.0, until: float = inf) -> Iterator[Minute]:
        """Yield the stored minutes that began in a span of wall-clock time, oldest first."""
        for path in self.paths:
            with explained(path), reading(path, named=True, repairs=True) as connection:
                found = list(read_means(connection, since, until))
            yield from found

    def events(self, since: float | None = None) -> Events:
        """Return the events that had not ended before `since` (all for None), by their start; raises UsageError."""
        parts = []
        for path in self.paths:
            with explained(path):
                parts.append(read_events(path, since, named=True, repairs=True))
        found = Events.joined(parts)
        return found if found.watched else msgspec.structs.replace(found, watched_until=self.last)

    def _rows(self, at: float, until: float) -> list[RecordingRow]:
        first = max(0, bisect_right(self.rows, at, key=lambda row: row.since) - 1)
        return [row for row in self.rows[first:] if row.since <= until]

    def _read(self, rows: Iterable[RecordingRow]) -> Iterator[Snapshot]:
        newest = -inf
        for row in rows:
            try:
                for line in self._lines(row)[1:]:
                    snapshot = read_snapshot(line)
                    if not row.since <= snapshot.taken <= row.until:
                        raise DamagedRowError("a snapshot has the wrong time")
                    if snapshot.taken > newest:
                        newest = snapshot.taken
                        yield snapshot
            except DamagedRowError as error:
                self._note(row, str(error))

    def _lines(self, row: RecordingRow) -> list[bytes]:
        """Read the lines of a row; raises DamagedRowError."""
        asked = "SELECT body FROM snapshots WHERE id = ? AND typeof(body) = 'blob' AND length(body) <= ?"
        path = self.paths[row.file]
        try:
            with reading(path, named=True, repairs=True) as connection:
                found = connection.execute(asked, (row.id, _LARGEST_BODY)).fetchone()
        except (StoreError, FileNotFoundError) as error:
            raise DamagedRowError(files.words(error, None)) from None
        lines = unpack(found[0]) if found is not None else []
        if not lines:
            raise DamagedRowError("it is damaged")
        return lines

    def _note(self, row: RecordingRow, words: str) -> None:
        self._add_note(f"{clean(str(self.paths[row.file]))}: the 10 s from {format_moment(row.since)}: {words}")

    def _add_note(self, note: str) -> None:
        if note not in self.notes and len(self.notes) < _MOST_NOTES:
            self.notes.append(note)

    def _add(self, index: int) -> str:
        """Add the rows of a file, and return its host; raises UsageError."""
        path = self.paths[index]
        name = clean(str(path))
        with explained(path), reading(path, named=True, repairs=True) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'snapshots'").fetchone():
                raise UsageError(f"{name}: it has events and use, but no snapshots; read it with `--file`")
            if words := other_format(connection):
                raise UsageError(f"{name}: {words}")
            host, self.limits = read_about(connection, "host"), read_about(connection, "limits", 100_000)
            asked = "SELECT since, until, id FROM snapshots ORDER BY since DESC LIMIT ?"
            cells = connection.execute(asked, (MOST_ROWS + 1,)).fetchall()
        rows = [RecordingRow(since, until, index, id) for since, until, id in cells if _are_times(since, until)]
        if len(rows) < len(cells):
            self._add_note(f"{name}: {len(cells) - len(rows)} rows are damaged")
        if len(cells) > MOST_ROWS:
            self._add_note(f"{name}: the newest {MOST_ROWS:,} rows are read")
        kept = without_replaced(rows)
        if len(kept) < len(rows):
            self._add_note(f"{name}: {_SET_BACK}")
        if not kept:
            raise UsageError(f"{name}: it contains no snapshots")
        self.rows += kept
        return host


def without_replaced(rows: Iterable[RecordingRow]) -> list[RecordingRow]:
    """Return rows by time, without those whose time a later row has too: the clock was set back in between."""
    kept: list[RecordingRow] = []
    for row in sorted(rows):
        while kept and kept[-1].until >= row.since and kept[-1].id < row.id:
            kept.pop()
        if not kept or kept[-1].until < row.since:
            kept.append(row)
    return kept


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Context that replaces the errors of a store by UsageError."""
    try:
        yield
    except StoreError as error:
        raise UsageError(str(error)) from None
    except FileNotFoundError:
        raise UsageError(f"{clean(str(path))}: No such file or directory") from None


# -- Lines --------------------------------------------------------------------------------------------------------


def _are_times(since: object, until: object) -> bool:
    """Return whether a row may have these times: it has ten seconds, and one snapshot more."""
    return (
        isinstance(since, float)
        and isinstance(until, float)
        and 0.0 < since <= until < _LATEST
        and until - since <= 2 * ROW_S
    )


def read_snapshot(line: bytes) -> Snapshot:
    """Decode a snapshot that somebody sent, with clean texts and believable numbers; raises DamagedRowError."""
    try:
        # Checking each value takes four times as long.
        snapshot = _decode_snapshot(line) if _is_plain(line) else _decode_checked(line, Snapshot)
    except (ValueError, RecursionError):
        raise DamagedRowError("it is damaged") from None
    if not 0.0 < snapshot.interval <= MAX_INTERVAL_S or len(snapshot.gpus) > MOST_GPUS:
        raise DamagedRowError("it is damaged")
    return snapshot


_decode_snapshot: Final = msgspec.json.Decoder(Snapshot).decode


def _is_plain(line: bytes) -> bool:
    """Return whether a line has neither texts that `clean` would change nor numbers that `_checked` would refuse."""
    if not line.isascii() or b"\\" in line or not line.decode("ascii").isprintable():
        return False
    return not _GREAT.search(line) and not _ODD_TIME.search(line) and max(map(len, line.split(b'"'))) <= LIMIT


def _decode_checked(line: bytes, kind: type[T]) -> T:
    """Decode one line, with clean texts and believable numbers; raises DamagedRowError."""
    try:
        return msgspec.convert(_checked(msgspec.json.decode(line)), kind)
    except (ValueError, RecursionError):
        raise DamagedRowError("it is damaged") from None


def _checked(value: Any, name: str = "") -> Any:
    kind = type(value)
    if kind is str:
        return clean(value)
    if kind is dict:
        return {clean(key): _checked(one, key) for key, one in value.items()}
    if kind is list:
        return [_checked(one) for one in value]
    if kind in (int, float) and not (0 <= value < _LATEST if name in _TIMES else -_GREATEST < value < _GREATEST):
        raise DamagedRowError("a number is out of range")
    return value
