"""Files as a process sees them, read without trusting what they are, and the bytes of its environment.

A path in a command line may lead to a FIFO, a device, a folder, something huge, or out of a container. Some of these
do something when they are opened: a watchdog restarts the machine, a tape is wound. So it is first looked at.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple

from gpuwatch.declared.facts import Unread


def decode_environ(raw: bytes) -> str:
    """Give foreign bytes as text that can be turned back into the same bytes; nothing to show before `text.clean`."""
    return raw.decode("utf-8", "surrogateescape")


def encode_environ(text: str) -> bytes:
    """Return the bytes that `decode` was given."""
    return text.encode("utf-8", "surrogateescape")


def parse_environ(raw: bytes) -> dict[str, str] | Unread:
    """Read an environment block: `NAME=value`, each ended by a NUL; the first of two equal names counts, as in getenv.

    A program that shows a title of its own (setproctitle) writes it over its arguments and its environment, and fills
    the rest of both with NULs, while os.environ goes on to work: then nothing is known of the environment. The title's
    end may itself have an `=` in it, so a block that is mostly NULs at its end is no environment either.
    Source: proc_pid_environ(5); github.com/dvarrazzo/py-setproctitle README, SPT_NOENV.
    """
    if not raw:
        return {}
    written = raw.rstrip(b"\0")
    if b"=" not in written or len(written) < len(raw) // 2:
        return Unread.OVERWRITTEN
    found: dict[str, str] = {}
    for entry in written.split(b"\0"):
        name, given, value = entry.partition(b"=")
        if given and name:
            found.setdefault(decode_environ(name), decode_environ(value))
    return found


_LOOK = os.O_PATH | os.O_CLOEXEC
"""What is there, without opening it: open(2)."""

_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_SYS_OPENAT2 = 437
"""The same on every architecture; Python has no call for it. Linux 5.6."""

_RESOLVE = 0x10 | 0x02
"""RESOLVE_IN_ROOT, and RESOLVE_NO_MAGICLINKS: root may follow /proc/PID/cwd into folders that are closed to others."""

_NO_OPENAT2 = frozenset({errno.ENOSYS, errno.EPERM})
"""An older kernel, or a container's seccomp filter that does not know the call."""


class Found(NamedTuple):
    """What an ordinary file holds."""

    data: bytes
    modified: float
    """Seconds since the epoch."""
    likely: bool
    """It was opened by its path in our own tree: the process could see another file there."""


class Unsuitable(OSError):
    """It is no ordinary file, or too large."""


class _How(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def read_file(process: Path, path: str, limit: int) -> Found:
    """Read a file of up to `limit` bytes by the path that a process has for it; `process` is its folder in /proc.

    A symbolic link is followed within the root of the process, so that one in a container does not lead out of it.
    Where that root is closed to us (another user's process), an absolute path is opened in our own tree.
    Raises OSError: PermissionError for what we may not see, Unsuitable for what is no ordinary file or too large.
    """
    try:
        root = os.open(process / "root", _LOOK | os.O_DIRECTORY)
    except PermissionError:
        if not path.startswith("/"):
            raise
        return read_ordinary(_open_outside(path), limit, likely=True)
    try:
        return read_ordinary(_open_inside(process, root, path), limit, likely=False)
    finally:
        os.close(root)


def read_ordinary(place: int, limit: int, *, likely: bool) -> Found:
    """Open and read what was looked at (a descriptor of O_PATH), and let go of it; raises as `read` does."""
    try:
        seen = os.fstat(place)
        if not stat.S_ISREG(seen.st_mode):
            raise Unsuitable(errno.EINVAL, "no ordinary file")
        if seen.st_size > limit:
            raise Unsuitable(errno.EFBIG, f"over {limit} bytes")
        if not seen.st_size:  # nothing, or a file of /proc, which is written by reading it
            return Found(b"", seen.st_mtime, likely)
        with open(os.open(f"/proc/self/fd/{place}", _READ), "rb") as file:
            data = file.read(limit + 1)
    finally:
        os.close(place)
    if len(data) > limit:
        raise Unsuitable(errno.EFBIG, f"over {limit} bytes")
    return Found(data, seen.st_mtime, likely)


def _open_inside(process: Path, root: int, path: str) -> int:
    if not path.startswith("/"):
        path = f"{(process / 'cwd').readlink()}/{path}"
    try:
        return _openat2(root, path)
    except OSError as error:
        if error.errno not in _NO_OPENAT2:
            raise
        return os.open(encode_environ(path.lstrip("/")), _LOOK, dir_fd=root)


def _open_outside(path: str) -> int:
    """Look at a path in our own tree; where nothing is there, the process may still see something: that is denied."""
    try:
        return os.open(encode_environ(path), _LOOK)
    except FileNotFoundError:
        raise PermissionError(errno.EACCES, "its file system is closed to us") from None


def _openat2(root: int, path: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    how = _How(flags=_LOOK, mode=0, resolve=_RESOLVE)
    result = libc.syscall(_SYS_OPENAT2, root, encode_environ(path), ctypes.byref(how), ctypes.sizeof(how))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return int(result)
