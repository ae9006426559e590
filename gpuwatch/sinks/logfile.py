"""The events log on disk: appended to, turned over by size, and the lock of the one who writes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from gpuwatch import files
from gpuwatch.errors import UsageError
from gpuwatch.sinks.log import KEPT, SCHEMA, Record, encode, is_ours, lock_name
from gpuwatch.text import clean

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
