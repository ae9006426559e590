"""Who starts what where: a folder that is locked while GPUs are chosen, and a file in it for what each run reserved.

There are two folders: the user's own, and one that all users of the machine share. The lock is flock(2) on the folder
itself: there is no lock file to plant, to own or to remove. Both only help those who ask; neither grants anything.
The shared folder belongs to whoever made it first, who could spoil it as they could the GPU itself.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from gpuwatch import procfs
from gpuwatch.actions.launch import Reserved
from gpuwatch.text import clean

SHARED = Path("/run/lock/gpuwatch")
"""Of all users of the machine."""

PATIENCE = 10.0
"""Seconds that a lock is waited for; a choice takes milliseconds, so that who holds it longer is not choosing."""

_RETRY = 0.02

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""O_NONBLOCK, because a FIFO planted under such a name would hold us for ever."""
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_NAME = re.compile(r"[0-9]{1,10}-[0-9]{1,20}\.json")
_LARGEST = 1 << 14
"""Bytes of a file; one of 16 GPUs takes 1 kB."""
_MOST_FILES = 4096
_MOST_BYTES = 1 << 50


class Place(NamedTuple):
    """A folder, and whether it is that of all users."""

    path: Path
    shared: bool = False


class Folder(NamedTuple):
    """A folder that is open."""

    place: Place
    fd: int


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What stands in a file."""

    pid: int
    start: int
    """Clock ticks since boot: with the pid it names one process for good."""
    gpus: dict[str, int]
    """Bytes by the UUID of the GPU."""


class UnsafeFolderError(OSError):
    """A folder is not one to rely on."""


def places(
    shared: Path = SHARED, environ: Mapping[str, str] | None = None, uid: int | None = None
) -> tuple[Place, ...]:
    """Give both folders, in the order in which they are locked."""
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    given = environ.get("XDG_RUNTIME_DIR", "")
    runtime = Path(given) if given.startswith("/") else Path(f"/run/user/{uid}")
    own = runtime / "gpuwatch" if _belongs(runtime, uid) else Path(tempfile.gettempdir(), f"gpuwatch-{uid}")
    return Place(own), Place(shared, shared=True)


def _belongs(folder: Path, uid: int) -> bool:
    """Say whether a folder is a user's: under `sudo -E` it is the caller's, who could not use what root makes there."""
    try:
        facts = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == uid


@contextlib.contextmanager
def locked(
    folders: Sequence[Place],
    warn: Callable[[str], None],
    *,
    patience: float = PATIENCE,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[list[Folder]]:
    """Open and lock what can be had of the folders, in their order; `warn` is told, a line each, what cannot."""
    opened: list[Folder] = []
    try:
        for place in folders:
            try:
                folder = Folder(place, _open(place))
                opened.append(folder)
                if not _lock(folder.fd, clock() + patience, clock):
                    warn(f"somebody has locked {place.path} for {patience:.0f} s; going on without waiting")
            except OSError as error:
                warn(_sentence(place, error))
        yield opened
    finally:
        for folder in opened:
            os.close(folder.fd)  # which ends the lock too


def _sentence(place: Place, error: OSError) -> str:
    whose = "no lock is shared with other users" if place.shared else "you have no lock of your own"
    linked = error.errno in (errno.ELOOP, errno.ENOTDIR)
    reason = "it is a link, or no folder" if linked else error.strerror or str(error)
    return f"{whose}: {clean(str(place.path))}: {reason}"


def _open(place: Place, *, make: bool = True) -> int:
    """Open a folder, made if need be; raises OSError where there is none, or not one to rely on."""
    wanted = 0o1777 if place.shared else 0o700
    if make:
        with contextlib.suppress(FileExistsError):
            place.path.mkdir(mode=0o700)
    fd = os.open(place.path, _FOLDER)
    try:
        facts = os.fstat(fd)
        mode, ours = stat.S_IMODE(facts.st_mode), facts.st_uid == os.geteuid()
        if not place.shared and not ours:
            raise UnsafeFolderError(f"it belongs to uid {facts.st_uid}")
        if ours and mode != wanted:  # mkdir(2) heeds the umask; the mode is put right here
            os.fchmod(fd, wanted)
        elif mode != wanted:
            raise UnsafeFolderError(f"its mode is {mode:o} and not {wanted:o}")
    except OSError:
        os.close(fd)
        raise
    return fd


def _lock(fd: int, until: float, clock: Callable[[], float]) -> bool:
    """Lock a folder; False where it is still somebody's at the time `until`."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock() >= until:
                return False
            time.sleep(_RETRY)
        else:
            return True


# ---------------------------------------------------------------------------------------------------------------
# Reservations


def reserve(
    folders: Sequence[Folder], gpus: Mapping[str, int], warn: Callable[[str], None], *, proc: Path = procfs.PROC
) -> None:
    """Reserve bytes by GPU for this process, which the program it becomes inherits: where all see it, if possible."""
    pid = os.getpid()
    file = _File(pid=pid, start=procfs.read_stat(pid, proc).start_ticks, gpus=dict(gpus))
    name = _file_name(file.pid, file.start)
    for folder in sorted(folders, key=lambda folder: not folder.place.shared):
        try:
            _write(folder.fd, name, msgspec.json.encode(file))
        except OSError as error:
            warn(f"nothing is reserved in {clean(str(folder.place.path))}: {error.strerror}")
        else:
            return


def _write(folder: int, name: str, content: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)  # our own, of a run within this run
    file = os.open(name, _WRITE, 0o644, dir_fd=folder)
    try:
        os.fchmod(file, 0o644)  # others are to read it, whatever the umask
        os.write(file, content)
    finally:
        os.close(file)


def release(folders: Sequence[Place], *, proc: Path = procfs.PROC) -> None:
    """Take back what this process reserved: the program could not be started."""
    pid = os.getpid()
    name = _file_name(pid, procfs.read_stat(pid, proc).start_ticks)
    for place in folders:
        with contextlib.suppress(OSError):  # it is in one of them at most, and dies with us in any case
            (place.path / name).unlink()


def reserved(folders: Sequence[Folder], *, proc: Path = procfs.PROC) -> list[Reserved]:
    """Read what living processes reserved, but this one and those above it; removes files of our own that have ended.

    A file is believed only if it belongs to the user whose process it names. Others' processes that /proc hides from
    us (hidepid) count as ended: their reservations are not seen.
    """
    return [
        one for folder in folders for name in _names(folder.fd) if (one := _read(folder.fd, name, proc)) is not None
    ]


def peek(folders: Sequence[Place], *, proc: Path = procfs.PROC) -> list[Reserved]:
    """Read what living processes reserved, without making or locking a folder."""
    found = []
    for place in folders:
        try:
            fd = _open(place, make=False)
        except OSError:  # nobody has reserved anything there, or it is not to be relied on
            continue
        try:
            found += reserved([Folder(place, fd)], proc=proc)
        finally:
            os.close(fd)
    return found


def _file_name(pid: int, start: int) -> str:
    return f"{pid}-{start}.json"


def _names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in islice(entries, _MOST_FILES) if _NAME.fullmatch(entry.name))


def _read(folder: int, name: str, proc: Path) -> Reserved | None:
    try:
        fd = os.open(name, _READ, dir_fd=folder)
    except OSError:  # a link, a file that went this moment, one that we may not read: nothing to rely on
        return None
    try:
        facts = os.fstat(fd)
        content = os.read(fd, _LARGEST) if stat.S_ISREG(facts.st_mode) else b""
    finally:
        os.close(fd)
    try:
        file = msgspec.json.decode(content, type=_File)
    except (msgspec.MsgspecError, UnicodeDecodeError):  # not from here, or cut short
        return None
    if name != _file_name(file.pid, file.start):  # thousands of files for one process would cost a walk each
        return None
    if not _lives(file, proc):
        if facts.st_uid == os.geteuid():
            with contextlib.suppress(OSError):  # somebody else swept it
                os.unlink(name, dir_fd=folder)
        return None
    if not _owns(facts.st_uid, file.pid, proc):
        return None
    if any(not 0 <= amount <= _MOST_BYTES for amount in file.gpus.values()):
        return None
    pids = frozenset({file.pid, *procfs.descendants(file.pid, proc)})
    return None if os.getpid() in pids else Reserved(pids, facts.st_uid, file.gpus)


def _lives(file: _File, proc: Path) -> bool:
    try:
        return procfs.read_stat(file.pid, proc).start_ticks == file.start and not procfs.ended(file.pid, proc)
    except (OSError, ValueError):  # gone, or hidden from us
        return False


def _owns(uid: int, pid: int, proc: Path) -> bool:
    try:
        return uid == procfs.read_uids(pid, proc)[0]
    except (OSError, ValueError):  # it ended meanwhile
        return False
