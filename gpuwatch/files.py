"""Files and folders that are ours alone: no planted link, no pipe and no other user comes between."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from pathlib import Path
from typing import Final

from gpuwatch.text import clean

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
"""O_NONBLOCK, because a FIFO planted under that name would hold us for ever."""
FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})
"""Errors of the disk as a whole: which file it was says nothing more."""

_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40
"""As many as Linux follows."""

NO_HOME: Final = Path("/nonexistent")
"""What stands for the home folder of somebody who has none, by a custom of Debian's: nothing can be made there."""
DRAFT_AGE: Final = 300.0
"""Seconds after which a draft is no longer being written, even where its writer's PID is one of another container."""


class UnsafePathError(OSError):
    """A folder or a file is not one that we may trust."""


def open_folder(path: Path, *, private: bool = True) -> int:
    """Open a folder and give its descriptor; raises OSError.

    A `private` one is made where it is missing, must be ours, and loses what others may do with it; one that is shared
    (sticky, as /tmp is) is never closed to others. Any other (one that the user named) is taken as it is.
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


def _make_folders(path: Path) -> None:
    """Make a folder and those above it that are missing, each closed to others whatever the umask; raises OSError."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except FileNotFoundError:
        if path.parent == path:
            raise
        _make_folders(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)


def open_ordinary(path: Path) -> int:
    """Open a file of anybody's to read it, through links too; raises OSError, for a FIFO or a device as well.

    Opening a FIFO without O_NONBLOCK would wait for somebody to write to it.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise UnsafePathError("is no ordinary file")
    return file


def open_file(folder: int, name: str, flags: int) -> int:
    """Open a regular file of ours in an open folder, with mode 0600, and give its descriptor; raises OSError."""
    file = os.open(name, flags | _FILE, 0o600, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise UnsafePathError("it is not a regular file")
        _make_private(file, 0o600, "the file")
    except OSError:
        os.close(file)
        raise
    return file


def replace_file(folder: int, name: str, content: bytes, *, durable: bool = True) -> None:
    """Put a file in an open folder in one step: a reader sees the old one or the new one, whole; raises OSError.

    What need not outlive the machine is not `durable`, and costs no wait for a disk.
    """
    draft = f".{name}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)  # of a writing that failed
    file = open_file(folder, draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_all(file, content)
            if durable:
                os.fsync(file)  # where a quota or a full disk of a file server is told
        finally:
            os.close(file)
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):  # the error that is on its way says more
            os.unlink(draft, dir_fd=folder)
        raise


def sweep_drafts(folder: int, name: str) -> None:
    """Remove the drafts of `replace_file` that killed writers left in an open folder.

    A draft is removed where it is an ordinary file of ours, minutes old, and its writer's PID is nobody's any more.
    """
    drafts = re.compile(rf"\.{re.escape(name)}\.([1-9][0-9]{{0,9}})")
    try:
        for left in os.listdir(folder):
            found = drafts.fullmatch(left)
            if found is None or Path("/proc", found[1]).exists():
                continue
            facts = os.stat(left, dir_fd=folder, follow_symlinks=False)
            ours = stat.S_ISREG(facts.st_mode) and facts.st_uid == os.geteuid()
            if ours and time.time() - facts.st_mtime > DRAFT_AGE:
                os.unlink(left, dir_fd=folder)
    except OSError:  # somebody else sweeps too; what is left is found the next time
        return


def write_all(file: int, content: bytes) -> None:
    """Write all of it, in as many writes as it takes; raises OSError."""
    view = memoryview(content)
    while view:
        written = os.write(file, view)
        if not written:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[written:]


def reason(error: OSError) -> str:
    """Say in a few words why a file could not be opened, read or written."""
    return "it is a symbolic link" if error.errno == errno.ELOOP else error.strerror or str(error)


def words(error: Exception, path: Path | None) -> str:
    """Say in a few clean words, for a line that says whose trouble it is, what went wrong with a file."""
    if not isinstance(error, OSError):
        return clean(f"{type(error).__name__}: {error}", 200)
    why = reason(error)
    why = why[:1].lower() + why[1:]
    return clean(why if error.errno in FULL or path is None else f"{path}: {why}", 200)


def _make_private(descriptor: int, mode: int, what: str) -> None:
    """Require our own, and take away what others may do with it."""
    facts = os.fstat(descriptor)
    if facts.st_uid != os.geteuid():
        raise UnsafePathError(f"{what} belongs to uid {facts.st_uid}")
    if stat.S_IMODE(facts.st_mode) & ~mode:
        os.fchmod(descriptor, mode)


def check_source(
    path: Path, uid: int | None = None, *, read: os.stat_result | None = None, missing_ok: bool = False
) -> str:
    """Return in one line why somebody else could have written a file; empty where only the user or root could.

    `read` is the stat of the open file that was read: another one may have been put there since. With `missing_ok` the
    file may be missing, in folders where only the user and root could put one.
    Checked are the file, each link on the way to it, and each folder above: whoever can write one of these could have
    put another file in its place. Each must be owned by `uid` (default: the effective one) or root, and be writable
    for its owner alone. In a sticky folder, such as /tmp, others can write, but not replace the user's files.
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
            if words := _owner(place, state, trusted) or _mode(place, state):
                return words
            if stat.S_ISLNK(state.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    return f"{_named(path)} is a link without end"
                target = place.readlink()
                ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
                place = Path("/") if target.is_absolute() else place.parent
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return ""
        return f"{_named(place)} cannot be checked ({error.strerror})"
    if not stat.S_ISREG(state.st_mode):
        return f"{_named(place)} is no ordinary file"
    if read is not None and (read.st_dev, read.st_ino) != (state.st_dev, state.st_ino):
        return f"{_named(place)} was replaced while it was read"
    return ""


def _owner(place: Path, state: os.stat_result, trusted: set[int]) -> str:
    if state.st_uid in trusted:
        return ""
    return f"{_named(place)} belongs to uid {state.st_uid}, who is neither you nor root"


def _mode(place: Path, state: os.stat_result) -> str:
    """Return that others can write it. A link has no mode of its own, and a sticky folder protects its files."""
    sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(state.st_mode) or sticky or not state.st_mode & _OTHERS:
        return ""
    mode = f"{stat.S_IMODE(state.st_mode):04o}"
    return f"others can write {_named(place)} (mode {mode}); `chmod go-w {_named(place)}` ends that"


def _named(place: Path) -> str:
    return clean(str(place))


def shown_path(file: Path) -> str:
    """Return the path of a file as it is shown: cleaned, and from `~` on below the home folder."""
    home, where = os.environ.get("HOME", ""), str(file)
    return clean(f"~{where.removeprefix(home)}" if home and where.startswith(f"{home}/") else where)
