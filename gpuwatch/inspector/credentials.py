"""Rights of other users: reads the owner of a process, and opens files with the rights of that user.

A monitor that root runs must not show users the contents of files that they may not read: a script is opened with the
rights of the user who runs it.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gpuwatch.base import procfs
from gpuwatch.base.child import LIBC, die_with_parent

_NOBODY_NEW = 0xFFFFFFFF
"""-1 as a uid_t: setfsuid(2) changes nothing and gives the present one."""


_OWNER = re.compile(rb"^Uid:\s+(\d+).*\nGid:\s+(\d+).*(?:\n(?:(?!Groups:).*\n){0,8}Groups:([\d \t]*))?", re.MULTILINE)


class Owner(NamedTuple):
    """Owner of a process: its real uid and gid, and its supplementary groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]


def read_owner(pid: int, proc: Path = procfs.PROC) -> Owner:
    """Read the owner of a process from /proc/PID/status; raises `OSError` (see `procfs.GONE`) or `ValueError`."""
    found = _OWNER.search(procfs.read_status(pid, proc))
    if found is None:
        raise ValueError("/proc/PID/status: no Uid or no Gid line")
    uid, gid, groups = found.groups()
    return Owner(int(uid), int(gid), tuple(map(int, (groups or b"").split())))


def read_account(uid: int) -> tuple[str, str]:
    """Return the name and the home folder of a user; the uid and an empty text where there is no account."""
    try:
        found = pwd.getpwuid(uid)
    except KeyError:
        return str(uid), ""
    return found.pw_name, found.pw_dir


@contextlib.contextmanager
def acting_as(owner: Owner) -> Iterator[None]:
    """Context in which root opens files with the filesystem uid, gid and groups of `owner`; others change nothing.

    Raises PermissionError where root may not (a container without CAP_SETUID). A change of the filesystem uid makes
    the kernel forget that we must end with our parent (commit_creds in kernel/cred.c), so that is set again each time.
    """
    if os.geteuid() != 0 or owner.uid == 0:
        yield
        return
    groups = os.getgroups()
    os.setgroups(owner.groups)
    try:
        LIBC.setfsgid(owner.gid)
        LIBC.setfsuid(owner.uid)
        die_with_parent()
        if LIBC.setfsuid(_NOBODY_NEW) != owner.uid:
            raise PermissionError(f"root may not act as uid {owner.uid} here")
        yield
    finally:
        LIBC.setfsuid(0)
        LIBC.setfsgid(os.getegid())
        die_with_parent()
        os.setgroups(groups)
