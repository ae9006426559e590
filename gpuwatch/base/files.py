"""Files: finds their folders, opens them safely against links, pipes and other users, replaces and locks them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pwd
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from gpuwatch.base.text import clean

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LOOK: Final = os.O_PATH | os.O_CLOEXEC
"""Flags for a descriptor that names a path without opening the file: open(2)."""
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK, because opening a FIFO that somebody planted under that name would wait forever."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""Errors of the whole disk, for which the name of the file does not matter."""

_NO_NAMELESS: Final = frozenset({errno.EOPNOTSUPP, errno.EISDIR})
"""Errors of a file system or a kernel that has no files without a name; see open(2), O_TMPFILE."""
_TRIAL: Final = 256 << 10
"""Bytes that `check_folder` writes: a new store and its journal take less."""
_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40
"""Links that are followed, at most, as in Linux."""

NO_HOME: Final = Path("/nonexistent")
"""Folder that replaces a missing home folder, as in Debian: nothing can be created there."""


class UnsafePathError(OSError):
    """Error: a folder or a file cannot be trusted."""


# ---------------------------------------------------------------------------------------------------------------
# Places


def config_folder() -> Path:
    """Return the user's folder for configuration, `$XDG_CONFIG_HOME/gpuwatch`."""
    return _user_folder("XDG_CONFIG_HOME", ".config")


def state_folder(euid: int | None = None, environ: Mapping[str, str] | None = None) -> Path:
    """Return the user's folder for permanent data, `$XDG_STATE_HOME/gpuwatch`; root's own under sudo or su.

    Root never writes below another user's HOME: the user could not remove such files, and could have planted links
    there.
    """
    euid = os.geteuid() if euid is None else euid
    environ = os.environ if environ is None else environ
    folder = _user_folder("XDG_STATE_HOME", ".local/state")
    if euid == 0 and ("SUDO_UID" in environ or _owner_of_nearest(folder) != 0):
        return Path(pwd.getpwuid(0).pw_dir) / ".local" / "state" / "gpuwatch"
    return folder


def runtime_folder(
    environ: Mapping[str, str] | None = None, uid: int | None = None, runtimes: str = "/run/user"
) -> Path:
    """Return the folder for data of this boot, `$XDG_RUNTIME_DIR/gpuwatch`, or a replacement.

    A runtime folder of another user (the variable stays set under `sudo -E`) is not used. The replacement is our own
    folder below the folder for temporary files; the caller must check its owner.
    """
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    for runtime in (environ.get("XDG_RUNTIME_DIR", ""), f"{runtimes}/{uid}"):
        with contextlib.suppress(OSError):
            facts = Path(runtime).stat()
            if runtime.startswith("/") and stat.S_ISDIR(facts.st_mode) and facts.st_uid == uid:
                return Path(runtime, "gpuwatch")
    return Path(environ.get("TMPDIR") or "/tmp", f"gpuwatch-{uid}")


def host_name(host: str | None = None) -> str:
    """Return a host name, by default this machine's, as part of a file name: many hosts may share a home."""
    host = os.uname().nodename if host is None else host
    return re.sub("[^A-Za-z0-9._-]", "_", host)[:64].lstrip(".") or "host"


def _user_folder(variable: str, default: str) -> Path:
    try:
        folder = Path(os.environ.get(variable, "").strip() or Path("~", default).expanduser(), "gpuwatch")
    except RuntimeError:  # no HOME, and no user of this number
        folder = Path()
    # Writing there fails with an error.
    return folder if folder.is_absolute() else NO_HOME / default / "gpuwatch"


def _owner_of_nearest(folder: Path) -> int | None:
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError):  # missing: ask the folder above
            return place.stat().st_uid
    return None


# ---------------------------------------------------------------------------------------------------------------
# Opening and replacing


def open_folder(path: Path, *, private: bool = True) -> int:
    """Open a folder and return its descriptor; raises OSError.

    A `private` folder is created where it is missing, must be the user's, and loses all permissions of other users; a
    shared folder (sticky, as /tmp is) keeps them. Any other folder (one that the user named) is opened unchanged.
    """
    if not private:
        return os.open(path, _FOLDER)
    _make_folders(path)
    folder = os.open(path, _FOLDER | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_mode & stat.S_ISVTX:
            raise UnsafePathError("the folder is for everybody")
        _make_private(folder, 0o700, "the folder")
    except OSError:
        os.close(folder)
        raise
    return folder


@contextlib.contextmanager
def opened_folder(path: Path, *, private: bool = True) -> Iterator[int]:
    """Context that opens a folder as `open_folder` does, and closes it at the end."""
    folder = open_folder(path, private=private)
    try:
        yield folder
    finally:
        os.close(folder)


def _make_folders(path: Path) -> None:
    """Create a folder and its missing parents, all private whatever the umask; raises OSError."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if path.parent == path:
            raise
        _make_folders(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def open_ordinary(path: Path | str, *, folder: int | None = None, links: bool = True, owner: int | None = None) -> int:
    """Open a file for reading and return its descriptor; raises OSError, also for a FIFO or a device.

    `path` counts from the open `folder`; with `links` False its last part may be no symbolic link. A file that is not
    of the user `owner` is refused; None means any user.
    Its type is known before it is opened: opening a FIFO waits for a writer, and opening some devices has an effect.
    """
    place = os.open(path, _LOOK if links else _LOOK | os.O_NOFOLLOW, dir_fd=folder)
    try:
        return _reopen(place, owner)
    finally:
        os.close(place)


def read_ordinary(place: int, limit: int) -> tuple[bytes, os.stat_result]:
    """Read any user's file of up to `limit` bytes by its O_PATH descriptor, as `open_ordinary` does; raises OSError.

    A file of no size is not opened: it is empty, or a file of /proc, and some of these can be read only once.
    """
    facts = _check_ordinary(place, None)
    if not facts.st_size:
        return b"", facts
    data = b""
    if facts.st_size <= limit:
        with open(_reopen(place, None), "rb") as file:
            data = file.read(limit + 1)
    if max(facts.st_size, len(data)) > limit:
        raise UnsafePathError(errno.EFBIG, f"over {limit} bytes")
    return data, facts


def _reopen(place: int, owner: int | None) -> int:
    _check_ordinary(place, owner)
    return os.open(f"/proc/self/fd/{place}", _READ)


def _check_ordinary(descriptor: int, owner: int | None) -> os.stat_result:
    """Return the stat of an ordinary file of the user `owner`, None for any; raises UnsafePathError for others."""
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise UnsafePathError("is not a regular file")
    if owner is not None and facts.st_uid != owner:
        raise UnsafePathError(f"the file belongs to uid {facts.st_uid}")
    return facts


def check_folder(path: Path) -> None:
    """Raise OSError where no file can be created and written in a folder, or where the folder cannot be created.

    Nothing is changed: the file has no name (O_TMPFILE), so that closing it removes it. It lies in the nearest
    folder above where this one is missing. A file system without such files, as a server's, is asked for the rights and
    the free blocks.
    """
    nearest = next(one for one in (path, *path.parents) if os.path.lexists(one))
    exists = nearest == path
    folder = os.open(nearest, _FOLDER | os.O_NOFOLLOW if exists else _FOLDER)
    try:
        owner = os.fstat(folder).st_uid
        if exists and owner != os.geteuid():
            raise UnsafePathError(f"the folder belongs to uid {owner}")
        try:
            file = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=folder)
        except OSError as error:
            if error.errno not in _NO_NAMELESS:
                raise
            _check_rights(folder)
            return
        try:
            write_all(file, os.urandom(_TRIAL))
            os.fsync(file)
        finally:
            os.close(file)
    finally:
        os.close(folder)


def _check_rights(folder: int) -> None:
    """Raise OSError where the rights or the free blocks of an open folder allow no new file."""
    room = os.fstatvfs(folder)
    if room.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not os.access(".", os.W_OK | os.X_OK, dir_fd=folder, effective_ids=True):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    if room.f_bavail * room.f_frsize < _TRIAL:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def open_file(folder: int, name: str, flags: int) -> int:
    """Open a regular file of ours in an open folder, with mode 0600, and return its descriptor; raises OSError."""
    file = os.open(name, flags | _FILE, 0o600, dir_fd=folder)
    try:
        _check_ordinary(file, None)
        _make_private(file, 0o600, "the file")
    except OSError:
        os.close(file)
        raise
    return file


def replace_file(folder: int, name: str, content: bytes, *, durable: bool = True, mode: int = 0o600) -> None:
    """Replace a file in an open folder in one step: readers see the old or the new file, complete; raises OSError.

    With `durable` False the file may be lost in a power failure, and the call does not wait for the disk. `mode` is
    that of the new file.
    """
    draft = f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)  # of a writing that failed
    file = open_file(folder, draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_all(file, content)
            if mode != 0o600:
                os.fchmod(file, mode)
            if durable:
                os.fsync(file)  # a file server reports a quota or a full disk here
        finally:
            os.close(file)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):  # the first error says more
            os.unlink(draft, dir_fd=folder)
        raise


# ---------------------------------------------------------------------------------------------------------------
# Locks


def try_lock(descriptor: int) -> bool:
    """Lock an open file or folder without waiting; return whether it is locked; raises OSError where locking fails."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class FileLock:
    """Lock that lets only one process of a user do a task; the kernel releases it when its holder ends.

    The lock is a separate file. Its modification time shows until when a holder did the task.
    """

    def __init__(self, path: Path, *, private: bool = True) -> None:
        """`private` is as in `open_folder`."""
        self._path = path
        self._private = private
        self._file: int | None = None
        self.touched: float | None = None
        """Wall-clock time of the last `touch` by another holder; None where the lock file did not exist."""

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self) -> bool:
        """Try to get the lock, without waiting; return whether it is held. Raises OSError where locking fails."""
        if self._file is not None:
            if self._is_current(self._file):
                return True
            self.release()  # the file was taken away: others would lock a new one
        with opened_folder(self._path.parent, private=self._private) as folder:
            file, touched = self._open(folder)
        try:
            # A file that was taken away in between does not count: another process may have locked a new one.
            locked = try_lock(file) and self._is_current(file)
        except OSError:
            os.close(file)
            raise
        self.touched = touched
        if locked:
            self._file = file
        else:
            os.close(file)
        return locked

    def touch(self, now: float) -> None:
        """Set the modification time to a wall-clock time; raises OSError."""
        if self._file is not None:
            os.utime(self._file, (now, now))

    def release(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, folder: int) -> tuple[int, float | None]:
        try:
            file = open_file(folder, self._path.name, os.O_RDWR)
        except FileNotFoundError:
            return open_file(folder, self._path.name, os.O_RDWR | os.O_CREAT), None
        return file, os.fstat(file).st_mtime

    def _is_current(self, file: int) -> bool:
        return is_same_file(os.fstat(file), self._path)


def is_same_file(facts: os.stat_result, path: Path) -> bool:
    """Return whether the file with the stat `facts` is still the file at a path."""
    try:
        there = path.lstat()
    except OSError:
        return False
    return (facts.st_dev, facts.st_ino) == (there.st_dev, there.st_ino)


def read_lock(path: Path) -> tuple[bool, float | None]:
    """Return whether another process holds the lock at a path, and the time of its last touch (None: never created)."""
    try:
        file = os.open(path, os.O_RDONLY | _FILE)
    except OSError:  # none yet, or no permission
        return False, None
    try:
        touched = os.fstat(file).st_mtime
        try:
            # Whoever asks for the lock in this very moment does not get it, and asks again.
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True, touched
        return False, touched
    finally:
        os.close(file)


# ---------------------------------------------------------------------------------------------------------------
# Writing, and words


def write_all(file: int, content: bytes) -> None:
    """Write all bytes, in as many writes as needed; raises OSError."""
    view = memoryview(content)
    while view:
        written = os.write(file, view)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[written:]


def reason(error: OSError) -> str:
    """Return in a few words why a file could not be opened, read or written."""
    return "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)


def words(error: Exception, path: Path | None) -> str:
    """Return a short clean reason for a failure of a file, for a line that names the affected part."""
    if not isinstance(error, OSError):
        return clean(f"{type(error).__name__}: {error}", 200)
    why = reason(error)
    why = why[:1].lower() + why[1:]
    return clean(why if error.errno in FULL or path is None else f"{path}: {why}", 200)


def _make_private(descriptor: int, mode: int, what: str) -> None:
    """Require that a file is the user's, and remove the permissions of other users."""
    facts = os.fstat(descriptor)
    if facts.st_uid != os.geteuid():
        raise UnsafePathError(f"{what} belongs to uid {facts.st_uid}")
    if stat.S_IMODE(facts.st_mode) & ~mode:
        os.fchmod(descriptor, mode)


def check_source(
    path: Path,
    uid: int | None = None,
    *,
    read: os.stat_result | None = None,
    missing_ok: bool = False,
    kind: int = stat.S_IFREG,
) -> str:
    """Return in one line why another user could have written a file; empty where only the user or root could.

    `read` is the stat of the open file that was read: another file may be at its path now. With `missing_ok` the file
    may be missing, in folders where only the user and root could create it. `kind` is the type that it must have.
    The file, each link to it, and each folder above are checked: whoever can write any of these could have replaced the
    file. Each must be owned by `uid` (default: the effective uid) or root, and be writable only for its owner. In a
    sticky folder, such as /tmp, others can write, but not replace the user's files.
    """
    trusted = {os.geteuid() if uid is None else uid, 0}
    place, links = Path("/"), 0
    try:
        state = place.stat()
        ahead = [*reversed(path.absolute().parts[1:])]
        while ahead:
            part = ahead.pop()
            place = place.parent if part == ".." else place / part
            state = place.lstat()
            if state.st_uid not in trusted:
                others = "who is neither you nor root" if os.geteuid() in trusted else "not to root"
                return f"{_named(place)} belongs to uid {state.st_uid}, {others}"
            if words := _mode(place, state):
                return words
            if stat.S_ISLNK(state.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    return f"{_named(path)} is a link that leads to itself"
                target = place.readlink()
                ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                place = Path("/") if target.is_absolute() else place.parent
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return ""
        return f"{_named(place)} cannot be checked ({error.strerror})"
    if stat.S_IFMT(state.st_mode) != kind:
        return f"{_named(place)} is not {'a socket' if kind == stat.S_IFSOCK else 'a regular file'}"
    if read is not None and (read.st_dev, read.st_ino) != (state.st_dev, state.st_ino):
        return f"{_named(place)} was replaced while it was read"
    return ""


def _mode(place: Path, state: os.stat_result) -> str:
    """Return the mode where others can write the place.

    A link has no mode, that of a socket says who may connect, and a sticky folder protects its files.
    """
    sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
    if stat.S_IFMT(state.st_mode) in (stat.S_IFLNK, stat.S_IFSOCK) or sticky or not state.st_mode & _OTHERS:
        return ""
    mode = f"{stat.S_IMODE(state.st_mode):04o}"
    return f"others can write {_named(place)} (mode {mode}); fix it with `chmod go-w {_named(place)}`"


def _named(place: Path) -> str:
    return clean(str(place))


def shown_path(file: Path) -> str:
    """Return the path of a file for display: cleaned, and with `~` for the home folder."""
    home, where = os.environ.get("HOME", ""), str(file)
    return clean(f"~{where.removeprefix(home)}" if home and where.startswith(f"{home}/") else where)
