"""Events log: one JSON object a line, how it is written, rotated, locked and read back.

{"schema":1,"at":1700000000.0,"event":"raised","alert":{"id":"3f…","rule":"memory near limit",…}}

It is `events-HOST.jsonl` in the user's state folder (a home on a file server is shared by many hosts); older lines are
in `.1` to `.3`. Each file stands alone: it begins with what held when it was begun. Beside it lies a lock, held by the
one gpuwatch that writes, whose time of change says until when somebody watched. What is read is believed in nothing:
a line that is no record is skipped and counted, and every text is cleaned again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from gpuwatch import files, text
from gpuwatch.alerts.alert import Alert
from gpuwatch.errors import UsageError
from gpuwatch.files import state_folder
from gpuwatch.text import clean

SCHEMA: Final = 1
"""Version of the log; a field or a kind of event is only ever added within one version."""
KEPT: Final = 3
"""Older files that are kept beside the one that is written to."""

_LONGEST: Final = 1 << 16
"""Bytes of a line; one of ours takes 500, and 6 kB with the longest command line."""
_LARGEST: Final = 1 << 24
"""Bytes of one file that are read, the newest; ours are turned over at 4 MiB."""
_FAR: Final = float(1 << 33)
"""Seconds since the epoch in the year 2242: what lies beyond is no time of ours, and `localtime` may refuse it."""
_HUGE: Final = 1e18
_MOST_NAMES: Final = 256
_SHORT: Final = 400
"""Characters of a name or a title."""
_PLAIN: Final = re.compile("[ -~·—°…≥→µ]*")
"""Text that `text.clean` leaves as it is, found in a tenth of the time."""
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


class Event(StrEnum):
    """What a line tells."""

    RAISED = "raised"
    WORSE = "worse"
    EASED = "eased"
    ENDED = "ended"
    CARRIED = "carried"
    """It still holds: told at the start of a file, every hour, and when watching stops."""
    GAP = "gap"
    """Lines are missing here."""
    BEGAN = "began"
    """Somebody began to write; `from` says until when somebody watched before."""
    STOPPED = "stopped"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line."""

    schema: int = 0
    """`SCHEMA` in the first record of a file; 0 in all others."""
    at: float
    """Wall-clock time at which it was seen; it may have been written later."""
    event: Event
    alert: Alert | None = None
    """As it was then; absent in what tells of the log itself."""
    lost: int = 0
    """Lines that could not be written, in a gap."""
    since: float | None = msgspec.field(default=None, name="from")
    until: float | None = msgspec.field(default=None, name="to")
    pid: int = 0
    """Who began."""


class State(StrEnum):
    """How an alert in the log stands."""

    ENDED = "ended"
    ONGOING = "ongoing"
    OPEN = "open"
    """It held when watching stopped; what came of it nobody saw."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A time of which the log does not tell all."""

    since: float
    until: float
    lost: int = 0
    """Lines that could not be written; 0 where nobody watched."""


@dataclass(frozen=True, slots=True)
class Events:
    """What a log tells."""

    alerts: tuple[Alert, ...] = ()
    """One for each event, as it is known last; by when they were raised."""
    gaps: tuple[Gap, ...] = ()
    damaged: int = 0
    """Lines that are no records of ours."""
    watched: bool = False
    """Whether somebody writes the log now."""
    watched_until: float | None = None
    """Wall-clock time until which somebody watched, as far as that is known; None for now, and for never."""
    last: float | None = None
    """The time of its last line: not the newest of all, for a clock that ran ahead may have been set back."""
    exists: bool = False

    def state(self, alert: Alert) -> State:
        """Say how one of its alerts stands."""
        if alert.ended is not None:
            return State.ENDED
        return State.ONGOING if self.watched else State.OPEN

    @property
    def note(self) -> str:
        """What the alerts do not tell, in a few words; empty when all is there."""
        lost = sum(gap.lost for gap in self.gaps)
        words = [f"{lost} lines could not be written"] if lost else []
        return ", ".join([*words, f"{self.damaged} lines are damaged"] if self.damaged else words)

    @property
    def open(self) -> tuple[Alert, ...]:
        """Those without an end."""
        return tuple(alert for alert in self.alerts if alert.ended is None)


# ---------------------------------------------------------------------------------------------------------------
# Names and lines


def for_host(kind: str, host: str | None = None) -> str:
    """Give the name, without its ending, of a file that is about one host: `events-box3`."""
    host = os.uname().nodename if host is None else host
    return f"{kind}-{re.sub('[^A-Za-z0-9._-]', '_', host)[:64].lstrip('.') or 'host'}"


def log_name(host: str | None = None) -> str:
    """Give the name of the log of a host, this one where none is given."""
    return f"{for_host('events', host)}.jsonl"


def own_log() -> Path:
    """Return the path of the user's own log."""
    return state_folder() / log_name()


def lock_name(name: str) -> str:
    """Give the name of the lock beside a log."""
    return f"{name.removesuffix('.jsonl')}.lock"


def encode(record: Record) -> bytes:
    """Give a record as a line, with its end."""
    return msgspec.json.encode(record) + b"\n"


_decoder: Final = msgspec.json.Decoder(Record)


def decode(line: bytes) -> Record | None:
    """Give the record of a line, its texts not yet cleaned; None where it is none of ours."""
    if len(line) > _LONGEST:
        return None
    try:
        record = _decoder.decode(line)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    times = (record.at, record.since or 0.0, record.until or 0.0)
    if not all(map(_is_time, times)) or not 0 <= record.lost < _HUGE:
        return None
    if record.event in (Event.GAP, Event.BEGAN, Event.STOPPED):
        return record
    return record if record.alert is not None and _is_sound(record.alert, record.event) else None


def is_ours(begin: bytes) -> bool:
    """Say whether a file that begins with these bytes, its first line and more, is an events log; an empty one is."""
    start = b'{"schema":1,"at":'
    first, complete, _ = begin.partition(b"\n")
    if not complete:  # torn while the file was begun
        return first.startswith(start) or start.startswith(first)
    record = decode(first)
    return record is not None and record.schema >= 1


def _is_time(moment: float) -> bool:
    return 0.0 <= moment < _FAR


def _is_sound(alert: Alert, event: Event) -> bool:
    """Say whether an alert can be one that we wrote: its numbers in bounds, its end where there must be one."""
    times = (alert.raised, alert.seen, alert.lasted, 0.0 if alert.ended is None else alert.ended)
    values = (alert.peak or 0.0, alert.mean or 0.0, alert.last or 0.0, float(alert.index or 0))
    if not (alert.id and alert.rule and all(map(_is_time, times)) and all(abs(value) < _HUGE for value in values)):
        return False
    return (alert.ended is not None) == (event is Event.ENDED)


# ---------------------------------------------------------------------------------------------------------------
# Reading


def read_events(path: Path, since: float | None = None, *, older: bool = True) -> Events:
    """Read a log with its older files; raises OSError where it is there and cannot be read.

    `since` (wall-clock time) leaves out what ended before; without `older` only the newest file is read, which stands
    alone: it tells of all that holds.
    """
    files = _open_files(path, older)
    try:
        found = _Merge(since)
        for at, (file, changed) in enumerate(files):
            if since is None or changed >= since or at == len(files) - 1:
                found.take(_lines(file))
    finally:
        for file, _ in files:
            os.close(file)
    watched, touched = watching(path)
    # What holds was written down since the lock was last touched, or the lock is gone.
    until = max(filter(None, (touched, found.last)), default=None)

    def counts(alert: Alert) -> bool:
        end = alert.ended if alert.ended is not None or watched else until
        return since is None or end is None or end >= since

    alerts = [cleaned(alert) for alert in found.alerts.values() if counts(alert)]
    return Events(
        alerts=tuple(sorted(alerts, key=lambda alert: alert.raised)),
        gaps=tuple(gap for gap in found.gaps if since is None or gap.until >= since),
        damaged=found.damaged,
        watched=watched,
        watched_until=None if watched else until,
        last=found.last,
        exists=bool(files),
    )


class LogReader:
    """Reads one log again and again: only where it has changed, or whether somebody writes it has."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._events = Events()

    def __call__(self) -> Events:
        """Give what the log tells; raises OSError where it is there and cannot be read."""
        seen = self._state()
        if not seen or seen != self._seen:
            self._events = read_events(self._path)
            self._seen = seen
        return self._events

    def _state(self) -> tuple[int, ...]:
        try:
            facts = self._path.lstat()
        except OSError:  # none yet, or what is wrong is said by reading it
            return ()
        return facts.st_ino, facts.st_size, facts.st_mtime_ns, watching(self._path)[0]


def watching(path: Path) -> tuple[bool, float | None]:
    """Say whether somebody writes the log at `path` now, and when its lock was last touched, where there is one."""
    try:
        lock = os.open(path.parent / lock_name(path.name), _READ | os.O_NOFOLLOW)
    except OSError:  # none yet, or not ours to see
        return False, None
    try:
        touched = os.fstat(lock).st_mtime
        try:
            # A writer that asks in this very moment is told that it is taken, and asks again.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True, touched
        return False, touched
    finally:
        os.close(lock)


def cleaned(alert: Alert) -> Alert:
    """Give an alert from a file with its texts cleaned and cut, as if they had just entered."""
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
        raised_monotonic=0.0,
    )


def _clean(words: str, limit: int = _SHORT) -> str:
    return words if len(words) <= limit and _PLAIN.fullmatch(words) else text.clean(words, limit)


class _Merge:
    """Puts records together to one alert for each event."""

    def __init__(self, since: float | None) -> None:
        self.alerts: dict[str, Alert] = {}
        self.gaps: list[Gap] = []
        self.damaged = 0
        self.last: float | None = None
        """As in `Events`."""
        self._since = since

    def take(self, lines: Iterable[bytes]) -> None:
        """Take in the lines of one file, after those of all older ones."""
        for line in lines:
            record = decode(line)
            if record is None:
                self.damaged += 1
                continue
            self.last = record.at
            if record.alert is not None:
                self.alerts[record.alert.id] = record.alert
            elif record.event is not Event.STOPPED and record.since is not None:
                until = record.at if record.until is None else record.until
                self.gaps.append(Gap(record.since, until, record.lost))


def _open_files(path: Path, older: bool) -> list[tuple[int, float]]:
    """Open a log and its older files; give descriptors and times of change, the oldest first."""
    files: dict[tuple[int, int], tuple[int, float]] = {}
    try:
        # The newest first: if they are turned over meanwhile, one is met twice and none is missed.
        for name in (path.name, *(f"{path.name}.{number}" for number in range(1, KEPT + 1))):
            if files and not older:
                break
            try:
                file = os.open(path.parent / name, _READ)
            except FileNotFoundError:
                continue
            facts = os.fstat(file)
            if (facts.st_dev, facts.st_ino) in files or not stat.S_ISREG(facts.st_mode):
                os.close(file)
                if not stat.S_ISREG(facts.st_mode):
                    raise OSError("it is not a regular file")
            else:
                files[facts.st_dev, facts.st_ino] = (file, facts.st_mtime)
    except OSError:
        for file, _ in files.values():
            os.close(file)
        raise
    return list(reversed(files.values()))


def _lines(file: int) -> Iterator[bytes]:
    """Give the lines of an open file that are not empty."""
    size = os.fstat(file).st_size
    start = max(0, size - _LARGEST)
    content = read_all(lambda at, most: os.pread(file, most, at), start, size)
    lines = content.split(b"\n")
    return filter(None, lines[1:] if start else lines)


def read_all(read: Callable[[int, int], bytes], start: int, end: int) -> bytes:
    """Read from one place to another, in as many reads as it takes; `read` gets the place and the most it may give."""
    parts: list[bytes] = []
    while start < end and (part := read(start, end - start)):
        parts.append(part)
        start += len(part)
    return b"".join(parts)


LIMIT: Final = 4 << 20
"""Bytes at which a file is turned over: about 8000 lines."""

_APPEND: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT
_START: Final = 1 << 16
"""Bytes of a file that are read to see what it is."""


def check_file(path: Path) -> None:
    """Require that `path` is an events log, or that there is none yet; raises UsageError, and makes nothing."""
    name = clean(str(path))
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        if not path.parent.is_dir():
            raise UsageError(f"{name}: there is no folder {clean(str(path.parent))}") from None
        return
    except OSError as error:
        raise UsageError(f"{name}: {files.reason(error)}") from None
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise UsageError(f"{name} is not a regular file; events are written to a file of their own")
        if not is_ours(os.pread(file, _START, 0)):
            raise UsageError(f"{name} holds something else than events; give a new file, or one that gpuwatch wrote")
    except OSError as error:
        raise UsageError(f"{name}: {files.reason(error)}") from None
    finally:
        os.close(file)


class Lock:
    """The lock beside a log: whoever holds it writes. The kernel gives it back when its holder dies."""

    def __init__(self, path: Path, *, private_folder: bool) -> None:
        """`path` is that of the log."""
        self._folder = path.parent
        self._name = lock_name(path.name)
        self._private_folder = private_folder
        self._file: int | None = None
        self.touched: float | None = None
        """Wall-clock time at which somebody else touched it last; None where it was not there."""

    @property
    def held(self) -> bool:
        """Whether it is ours."""
        return self._file is not None

    def take(self) -> bool:
        """Try to take it, without waiting; raises OSError where no lock can be had at all."""
        folder = files.open_folder(self._folder, private=self._private_folder)
        try:
            file, touched = self._open(folder)
        finally:
            os.close(folder)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            self.touched = touched
            return False
        except OSError:
            os.close(file)
            raise
        self._file = file
        if not self.is_there():  # taken away in between: somebody else may hold the new one
            self.release()
            return False
        self.touched = touched
        return True

    def _open(self, folder: int) -> tuple[int, float | None]:
        try:
            file = files.open_file(folder, self._name, os.O_RDWR)
        except FileNotFoundError:
            return files.open_file(folder, self._name, os.O_RDWR | os.O_CREAT), None
        return file, os.fstat(file).st_mtime

    def is_there(self) -> bool:
        """Say whether the lock that we hold is still the one which others would find."""
        if self._file is None:
            return False
        ours = os.fstat(self._file)
        try:
            there = (self._folder / self._name).lstat()
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def touch(self, now: float) -> None:
        """Say that somebody watches at this wall-clock time; raises OSError."""
        if self._file is not None:
            os.utime(self._file, (now, now))

    def release(self) -> None:
        """Give it back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


class LogFile:
    """Appends records in whole lines; used by who holds the lock, from one thread."""

    def __init__(
        self,
        path: Path,
        *,
        private_folder: bool,
        limit: int = LIMIT,
        write: Callable[[int, bytes], int] = os.write,
    ) -> None:
        """`limit` is where a file is turned over, in bytes; `write` is os.write outside of tests."""
        self.path = path
        self._private_folder = private_folder
        self._limit = limit
        self._write = write
        self._file: int | None = None
        self._begun = 0
        """Bytes that the file began with."""

    def append(self, records: Sequence[Record], begin: Callable[[], Sequence[Record]]) -> None:
        """Write records to the end, all of them or none; raises OSError.

        `begin` gives those with which a new file begins. What was written of a part is taken back.
        """
        file, size = self._opened()
        content = b"".join(map(encode, records))
        # With so much that holds that a new file would be full at once, it must grow before it is turned over.
        if size and size + len(content) > self._limit and size > 2 * self._begun:
            try:
                self._turn_over(_first([*begin(), *records]))
            except OSError:
                # A new file needs room before the oldest one gives any: go on with this one as long as that works.
                self._add(file, size, content)
        else:
            self._add(file, size, content if size else _first([*begin(), *records]))

    def close(self) -> None:
        """Close the file; a later `append` opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _opened(self) -> tuple[int, int]:
        """Give the file, opened anew if it is no longer the one under that name, and its size."""
        if self._file is not None and not self._is_there(self._file):
            self.close()
        if self._file is None:
            folder = files.open_folder(self.path.parent, private=self._private_folder)
            try:
                self._file = files.open_file(folder, self.path.name, _APPEND)
            finally:
                os.close(folder)
        return self._file, os.fstat(self._file).st_size

    def _is_there(self, file: int) -> bool:
        ours = os.fstat(file)
        try:
            there = self.path.lstat()
        except OSError:
            return False
        return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)

    def _add(self, file: int, size: int, content: bytes) -> None:
        # After a torn line, begin on a fresh one: else both would be unreadable.
        if size and os.pread(file, 1, size - 1) != b"\n":
            content = b"\n" + content
        try:
            left = content
            while left:
                left = left[self._write(file, left) :]
            os.fdatasync(file)  # where a file server tells of a full disk; and a machine that goes down loses nothing
        except OSError:
            with contextlib.suppress(OSError):  # then a torn line stays, and the next one begins afresh
                os.ftruncate(file, size)
            raise

    def _turn_over(self, content: bytes) -> None:
        """Put a new file in place of the one that is written to, which becomes `.1`."""
        folder = files.open_folder(self.path.parent, private=self._private_folder)
        try:
            name, draft = self.path.name, f"{self.path.name}.new"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            new = files.open_file(folder, draft, _APPEND | os.O_EXCL)
            try:
                self._add(new, 0, content)
                for number in range(KEPT, 0, -1):
                    source = f"{name}.{number - 1}" if number > 1 else name
                    with contextlib.suppress(FileNotFoundError):
                        os.rename(source, f"{name}.{number}", src_dir_fd=folder, dst_dir_fd=folder)
                os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                os.close(new)
                raise
        finally:
            os.close(folder)
        self.close()
        self._file, self._begun = new, len(content)


def _first(records: Sequence[Record]) -> bytes:
    """Give the lines of a file's first records; the first of all names the schema."""
    return b"".join(map(encode, [msgspec.structs.replace(records[0], schema=SCHEMA), *records[1:]]))
