"""Whose rights this process reads files with, and that it ends with its parent.

A monitor that root runs must be no oracle for files: a script is opened with the rights of whoever runs it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator

from gpuwatch.procfs import Owner

_PR_SET_PDEATHSIG = 1
_NOBODY_NEW = 0xFFFFFFFF
"""-1 as a uid_t: setfsuid(2) changes nothing and gives the present one."""


def die_with_parent() -> None:
    """Ask the kernel to kill us when our parent dies, even inside a call that hangs (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextlib.contextmanager
def acting_as(owner: Owner) -> Iterator[None]:
    """As root, open files with the rights of `owner`: filesystem uid, gid and groups. As anybody else, as oneself.

    Raises PermissionError where root may not (a container without CAP_SETUID). A change of the filesystem uid makes
    the kernel forget that we end with our parent (commit_creds in kernel/cred.c), so it is asked again each time.
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
