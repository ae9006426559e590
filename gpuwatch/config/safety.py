"""Whether a file may tell us what to run, or be run: only where nobody but us or root could have written it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Final

from gpuwatch import text

_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH
_MOST_LINKS: Final = 40
"""As many as Linux follows."""


def check_source(
    path: Path, uid: int | None = None, *, read: os.stat_result | None = None, missing_ok: bool = False
) -> str:
    """Say in one line why what `path` names is not to be believed; empty where it is.

    `read` are the facts of the open file that was read: another one may have been put there for us to look at. With
    `missing_ok` there may be no such file, in folders where only we and root could put one.
    Looked at are the file, each link on the way to it, and each folder above: whoever can write one of these could have
    put another file in its place. Each must be owned by `uid` (default: who we are) or root, and be writable for its
    owner alone; only in a sticky folder, such as /tmp, others can write without being able to replace what is ours.
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
    """Say who else can write it; a link has no mode of its own, and a sticky folder protects what is in it."""
    sticky = stat.S_ISDIR(state.st_mode) and state.st_mode & stat.S_ISVTX
    if stat.S_ISLNK(state.st_mode) or sticky or not state.st_mode & _OTHERS:
        return ""
    mode = f"{stat.S_IMODE(state.st_mode):04o}"
    return f"others can write {_named(place)} (mode {mode}); `chmod go-w {_named(place)}` ends that"


def _named(place: Path) -> str:
    return text.clean(str(place))
