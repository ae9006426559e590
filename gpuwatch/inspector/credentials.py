"""Rights of other users: opens files with the rights of the user whose process is read.

A monitor that root runs must not show users the contents of files that they may not read: a script is opened with the
rights of the user who runs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

from gpuwatch.child import die_with_parent
from gpuwatch.procfs import Owner

_NOBODY_NEW = 0xFFFFFFFF
"""-1 as a uid_t: setfsuid(2) changes nothing and gives the present one."""


@contextlib.contextmanager
def acting_as(owner: Owner) -> Iterator[None]:
    """Context in which root opens files with the filesystem uid, gid and groups of `owner`; others change nothing.

    Raises PermissionError where root may not (a container without CAP_SETUID). A change of the filesystem uid makes
    the kernel forget that we must end with our parent (commit_creds in kernel/cred.c), so that is set again each time.
    """
    if os.geteuid() != 0 or owner.uid == 0:
        yield
        return
    libc = ctypes.CDLL(None)
    groups = os.getgroups()
    os.setgroups(owner.groups)
    try:
        libc.setfsgid(owner.gid)
        libc.setfsuid(owner.uid)
        die_with_parent()
        if libc.setfsuid(_NOBODY_NEW) != owner.uid:
            raise PermissionError(f"root may not act as uid {owner.uid} here")
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(os.getegid())
        die_with_parent()
        os.setgroups(groups)
