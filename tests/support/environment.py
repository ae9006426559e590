"""What a test runs in: no home, no service of the machine, a folder for everybody, and lines that are not counted."""

from __future__ import annotations

import ctypes
import os
import pwd
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

SERVICE = ("/run/gpuwatch", "/var/lib/gpuwatch", "/etc/gpuwatch")

_CLONE_NEWNS, _MS_REC, _MS_PRIVATE = 0x20000, 0x4000, 1 << 18


def hide_service() -> list[str]:
    """Mount an empty folder over each of them where that is possible; return those that are still seen.

    Only the thread that calls it, and what that starts later, no longer sees them: pytest's main thread.
    """
    found = [folder for folder in SERVICE if Path(folder).is_dir() and any(Path(folder).iterdir())]
    libc = ctypes.CDLL(None)
    if not found or os.geteuid() or libc.unshare(_CLONE_NEWNS):
        return found
    libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)  # what is mounted from now on is seen here alone
    return [folder for folder in found if libc.mount(b"tmpfs", folder.encode(), b"tmpfs", 0, b"mode=755")]


def make_homeless(patch: pytest.MonkeyPatch, home: str | None = None) -> None:
    """Let there be no HOME, or one that is no folder's absolute path, and nobody of our number."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        patch.delenv(name, raising=False)
    if home is not None:
        patch.setenv("HOME", home)

    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    patch.setattr(pwd, "getpwuid", unknown)


def environment() -> dict[str, str]:
    """Give our own environment without what makes a child count its lines."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


@contextmanager
def uncounted() -> Iterator[None]:
    """Count no lines in this thread, and none in threads that start meanwhile.

    pytest-cov's `no_cover` saves nothing in a worker of pytest-xdist: it pauses one of several collectors.
    """
    here, later = sys.gettrace(), threading.gettrace()
    sys.settrace(None)
    threading.settrace(None)
    try:
        yield
    finally:
        sys.settrace(here)
        threading.settrace(later)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may read, with a short path: that of a socket has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
