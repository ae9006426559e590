"""Writer of a recording: a sink that compresses each snapshot, and appends to the file every ten seconds.

All that may wait is done on a thread of its own. After an error (a full disk, a folder that is gone) it tries again
with the next snapshots, in a new block; what was not written yet is lost, and counted.
"""

from __future__ import annotations

import os
import stat
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from gpuwatch import __version__, files
from gpuwatch.errors import UsageError
from gpuwatch.minute import Minute
from gpuwatch.model import Snapshot, encode
from gpuwatch.monitor import Frame
from gpuwatch.recorder.anonymise import Anonymiser
from gpuwatch.recorder.recording import DamagedError, newer, part_of, read_header
from gpuwatch.recorder.recording_format import (
    BLOCK_S,
    SCHEMA,
    Codec,
    Commands,
    First,
    Header,
    LastMinute,
    changes,
    codec_of,
)
from gpuwatch.text import clean
from gpuwatch.threads import Worker
from gpuwatch.units import MIB

SIZE: Final = 256 * MIB
"""Default size in bytes at which a file becomes a part."""
PARTS: Final = 8
"""Default number of parts that are kept."""
FLUSH_S: Final = 10.0
"""Seconds between two writes to the file: what is lost when gpuwatch is killed, at most. Also the pause after an
error."""
MOST_WAITING: Final = 120
"""Frames that wait for a slow disk, at most; beyond that they are lost, and counted."""
_SLOW: Final = 30.0
"""Seconds after which a disk that does not answer is reported."""

_encode: Final = msgspec.json.Encoder().encode


class RecordingWriter:
    """Sink that appends every snapshot to a recording.

    The file is opened anew where it was moved or removed, and becomes the part `day.1.gz` where it is too large.
    """

    name = "recording"

    def __init__(
        self,
        path: Path,
        *,
        size: int = SIZE,
        parts: int = PARTS,
        commands: Commands = Commands.NAMES,
        pace: float = FLUSH_S,
    ) -> None:
        """Open the file, or create it; raises UsageError where it cannot be used.

        `size` is in bytes, 0 for no limit; `parts` is the number of older parts that are kept. Stand-ins last for one
        run, so an anonymised recording begins with a new file.
        """
        self._path, self._codec = path, codec_of(path)
        self._size, self._parts, self._pace = size, parts, pace
        self._commands, self._anonymiser = commands, Anonymiser(commands)
        self._waiting: deque[Frame] = deque()
        self._newest: Snapshot | None = None
        # What follows belongs to the worker.
        self._file: int | None = None
        self._host = ""
        """Host of which the file is a recording; empty for an empty file."""
        self._block: Any = None
        """Compressor of the block that is being written; None between two blocks."""
        self._began = 0.0
        """Wall-clock time of the first snapshot of that block."""
        self._last: Snapshot | None = None
        """Snapshot before, in that block."""
        self._ready: list[bytes] = []
        """Compressed bytes that are not written yet."""
        self._count = 0
        """Snapshots in them."""
        self._minute: Minute | None = None
        """Minute that the next block begins with."""
        self._error = ""
        self._lost = 0
        self._at = time.monotonic()
        """Time of the last write, or of the last error."""
        self._busy: float | None = None
        """Time at which a call began that may wait for the disk."""
        try:
            self._open()
            if commands is Commands.ANONYMISED and self._length():
                self._rotate()
                self._open()
        except OSError as error:
            self._close()
            raise UsageError(f"--record: {clean(str(path))}: {files.reason(error)}") from None
        self._worker = Worker("gpuwatch-recording", self._task, last=self._leave)

    @property
    def trouble(self) -> str:
        """Why snapshots are not recorded, in one line; empty for no trouble."""
        busy = self._busy
        slow = 0.0 if busy is None else time.monotonic() - busy
        error = f"the disk has not answered for {slow:.0f} s" if slow > _SLOW else self._error
        if not error:
            return ""
        lost = f"; {self._lost} {'snapshot is' if self._lost == 1 else 'snapshots are'} lost" if self._lost else ""
        return clean(f"not recorded: {self._path}: {error}{lost}", 400)

    def take(self, frame: Frame) -> None:
        """Queue the snapshot of a frame; returns at once."""
        if frame.snapshot is self._newest or not frame.snapshot.host:
            return
        self._newest = frame.snapshot
        if len(self._waiting) < MOST_WAITING:
            self._waiting.append(frame)
        else:
            self._lost += 1
        self._worker.wake()

    def close(self, seconds: float) -> None:
        """Write what waits, and give up after `seconds`."""
        self._worker.close(seconds)

    # -- blocks, in the worker ---------------------------------------------------------------------------------------

    def _task(self) -> float | None:
        while self._waiting:
            self._run(lambda: self._add(self._waiting.popleft()))
        if self._block is None:
            return None
        left = self._pace - (time.monotonic() - self._at)
        if left <= 0:
            self._run(lambda: self._flush(self._codec.part))
        return max(left, 0.0) or self._pace

    def _leave(self) -> None:
        self._task()
        if self._block is not None:
            self._run(lambda: self._flush(self._codec.end))
        self._close()

    def _run(self, step: Callable[[], None]) -> None:
        """Run a step; after an error begin a new block, after a pause."""
        try:
            step()
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            self._error = files.reason(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
            self._lost += self._count
            self._busy, self._at = None, time.monotonic()
            self._abandon()
            self._close()

    def _add(self, frame: Frame) -> None:
        snapshot = frame.snapshot
        if frame.minute is not None:
            self._minute = self._anonymiser.minute(frame.minute)
        if self._error and time.monotonic() - self._at < self._pace:
            self._lost += 1
            return
        self._count += 1
        snapshot = self._anonymiser.snapshot(snapshot)
        if self._last is not None and (
            snapshot.taken // BLOCK_S != self._began // BLOCK_S
            or snapshot.taken < self._last.taken  # the clock was set back
            or self._is_moved()
        ):
            self._end_block()
            self._count = 1  # this snapshot
        if self._block is None:
            self._begin(snapshot)
        self._put(encode(snapshot) if self._last is None else _encode(changes(self._last, snapshot)))
        self._last = snapshot

    def _begin(self, snapshot: Snapshot) -> None:
        """Begin a block, in a new file where the present one is full, or was moved or removed."""
        if self._file is not None and self._is_moved():
            self._close()
        self._busy = time.monotonic()
        if self._file is None:
            self._open()
        if self._size and self._length() >= self._size:
            self._rotate()
            self._open()
        self._busy = None
        if self._host not in ("", snapshot.host):
            raise files.UnsafePathError(f"it is a recording of {self._host}, and this is {snapshot.host}")
        self._host = snapshot.host
        self._block = self._codec.compressor()
        self._began = snapshot.taken
        header = Header(
            version=__version__,
            host=snapshot.host,
            at=snapshot.taken,
            interval=snapshot.interval,
            commands=self._commands,
        )
        self._put(_encode(First(header)))
        if self._minute is not None:
            self._put(_encode(LastMinute(self._minute)))
            self._minute = None

    def _end_block(self) -> None:
        """End the block in its file, also where that was moved; what belongs to a removed file is lost."""
        assert self._file is not None
        if os.fstat(self._file).st_nlink:
            self._flush(self._codec.end)
        else:
            self._lost += self._count - 1
            self._abandon()

    def _is_moved(self) -> bool:
        """Return whether the file was moved or removed."""
        assert self._file is not None
        self._busy = time.monotonic()
        is_moved = not files.is_same_file(os.fstat(self._file), self._path)
        self._busy = None
        return is_moved

    def _put(self, line: bytes) -> None:
        self._ready.append(self._block.compress(line + b"\n"))

    def _flush(self, mode: int) -> None:
        """Write what is compressed to the file."""
        assert self._file is not None
        self._busy = time.monotonic()
        self._ready.append(self._block.flush(mode))
        files.write_all(self._file, b"".join(self._ready))
        self._busy, self._at, self._error, self._lost = None, time.monotonic(), "", 0
        self._ready.clear()
        self._count = 0
        if mode == self._codec.end:
            self._abandon()

    def _abandon(self) -> None:
        """Begin a new block with the next snapshot."""
        self._block, self._last, self._count = None, None, 0
        self._ready.clear()

    # -- files -------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Open the file for appending; raises OSError where it is no recording, or another gpuwatch writes it."""
        self._file, self._host = _open_recording(self._path, self._codec, os.O_CREAT)
        if not files.try_lock(self._file):
            raise files.UnsafePathError("another gpuwatch records to it")

    def _length(self) -> int:
        assert self._file is not None
        return os.fstat(self._file).st_size

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _rotate(self) -> None:
        """Make the file the newest part, and remove the oldest; raises OSError where another file is in the way."""
        numbers = [number for number in range(1, self._parts + 1) if os.path.lexists(part_of(self._path, number))]
        for number in numbers:
            part = part_of(self._path, number)
            try:
                os.close(_open_recording(part, self._codec)[0])
            except OSError as error:
                raise files.UnsafePathError(f"it is full, and {part.name}: {files.reason(error)}") from None
        free = next((number for number in range(1, self._parts + 1) if number not in numbers), self._parts)
        for number in range(free, 1, -1):
            part_of(self._path, number - 1).replace(part_of(self._path, number))
        if self._parts:
            self._path.replace(part_of(self._path, 1))
        else:
            self._path.unlink()
        self._close()


def _open_recording(path: Path, codec: Codec, flags: int = 0) -> tuple[int, str]:
    """Open a recording of ours, or an empty file, for appending; raises OSError, also for another file.

    Return the file, and the host of which it is a recording.
    """
    host = ""
    with files.opened_folder(path.parent, private=False) as folder:
        try:
            file = os.open(path.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        except FileNotFoundError:
            pass
        else:
            try:
                host = _check(file, codec)
            finally:
                os.close(file)
        # It makes the file private, so another one must not come so far.
        return files.open_file(folder, path.name, os.O_WRONLY | os.O_APPEND | flags), host


def _check(file: int, codec: Codec) -> str:
    """Return the host of an open recording, empty for an empty file; raises OSError where nothing may be appended."""
    facts = os.fstat(file)
    if not stat.S_ISREG(facts.st_mode):
        raise files.UnsafePathError("it is not a regular file")
    if not facts.st_size:
        return ""
    try:
        header = read_header(file, codec, 0, facts.st_size)
    except DamagedError:
        raise files.UnsafePathError("it is there, and is no recording; choose another name") from None
    if header.schema > SCHEMA:
        raise files.UnsafePathError(newer(header))
    return header.host
