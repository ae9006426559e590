"""Reader of ordinary files by the paths that another process uses, and parser of environment blocks.

A path in a command line may lead to a FIFO, a device, a folder, a huge file, or out of a container. Opening some
devices has an effect: a watchdog restarts the machine, a tape rewinds. So the type is checked before the opening.
"""

from __future__ import annotations

import ctypes
import errno
import os
from pathlib import Path
from typing import NamedTuple

from gpuwatch.base import files
from gpuwatch.base.child import LIBC
from gpuwatch.declared.facts import Unread


def decode_environ(raw: bytes) -> str:
    """Return foreign bytes as text that `encode_environ` turns back into the same bytes; not clean."""
    return raw.decode("utf-8", "surrogateescape")


def encode_environ(text: str) -> bytes:
    """Return the bytes of a text from `decode_environ`."""
    return text.encode("utf-8", "surrogateescape")


def parse_environ(raw: bytes) -> dict[str, str] | Unread:
    """Parse an environment block: `NAME=value`, each ended by a NUL; of equal names the first counts, as in getenv.

    A program that sets a title (setproctitle) writes it over its arguments and its environment, and fills the rest of
    both with NULs: then the environment is unknown. The title may contain `=`, so that a block whose end is mostly NULs
    counts as overwritten, too. Source: proc_pid_environ(5); github.com/dvarrazzo/py-setproctitle, SPT_NOENV.
    """
    if not raw:
        return {}
    written = raw.rstrip(b"\0")
    if b"=" not in written or len(written) < len(raw) // 2:
        return Unread.OVERWRITTEN
    found: dict[str, str] = {}
    for entry in decode_environ(written).split("\0"):
        name, given, value = entry.partition("=")
        if given and name:
            found.setdefault(name, value)
    return found


_LOOK = os.O_PATH | os.O_CLOEXEC
"""Flags for a descriptor that names a path without opening the file: open(2)."""

_SYS_OPENAT2 = 437
"""System call of Linux 5.6, without a function in Python; the number is the same on every architecture."""

_RESOLVE = 0x10 | 0x02
"""RESOLVE_IN_ROOT and RESOLVE_NO_MAGICLINKS: else root could follow /proc/PID/cwd into folders closed to others."""

_NO_OPENAT2 = frozenset({errno.ENOSYS, errno.EPERM})
"""Errors of an older kernel, or of a container's seccomp filter that does not know the call."""


class FileContent(NamedTuple):
    """Content of an ordinary file."""

    data: bytes
    modified: float
    """Last change of the content or of the entry (`mv`, `cp -p` and rsync keep an old mtime), in seconds since 1970."""
    likely: bool
    """True where the file was opened by its path in our own mount namespace: the process may see another file there."""
    entry: tuple[int, int]
    """Device and inode."""


class _How(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def read_file(process: Path, path: str, limit: int) -> FileContent:
    """Read a file of up to `limit` bytes by its path in a process; `process` is that process's folder in /proc.

    A symbolic link is followed within the root of the process, so that it does not lead out of a container. Where that
    root is not readable (another user's process), an absolute path is opened in our own mount namespace.
    Raises OSError: PermissionError without permission, UnsafePathError for a file that is not ordinary or too large.
    """
    likely = False
    try:
        root = os.open(f"{process}/root", _LOOK | os.O_DIRECTORY)
    except PermissionError:
        if not path.startswith("/"):
            raise
        place, likely = _open_outside(path), True
    else:
        try:
            place = _open_inside(process, root, path)
        finally:
            os.close(root)
    try:
        data, facts = files.read_ordinary(place, limit)
    finally:
        os.close(place)
    return FileContent(data, max(facts.st_mtime, facts.st_ctime), likely, (facts.st_dev, facts.st_ino))


def _open_inside(process: Path, root: int, path: str) -> int:
    if not path.startswith("/"):
        path = f"{os.readlink(f'{process}/cwd')}/{path}"  # noqa: PTH115 - a Path would take twice as long
    try:
        return _openat2(root, path)
    except OSError as error:
        if error.errno not in _NO_OPENAT2:
            raise
        return os.open(encode_environ(path.lstrip("/")), _LOOK, dir_fd=root)


def _open_outside(path: str) -> int:
    """Open a path in our own mount namespace; raises PermissionError for a missing file: the process may see one."""
    try:
        return os.open(encode_environ(path), _LOOK)
    except FileNotFoundError:
        raise PermissionError(errno.EACCES, "no permission to read its file system") from None


def _openat2(root: int, path: str) -> int:
    how = _How(flags=_LOOK, mode=0, resolve=_RESOLVE)
    result = LIBC.syscall(_SYS_OPENAT2, root, encode_environ(path), ctypes.byref(how), ctypes.sizeof(how))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
