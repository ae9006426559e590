"""Somebody without a home folder, as in a container that runs under a number that it does not know; drafts of files."""

from __future__ import annotations

import os
import pwd
import subprocess
import time
from pathlib import Path

import pytest


def make_homeless(patch: pytest.MonkeyPatch, home: str | None = None) -> None:
    """Let there be no HOME, or one that is no folder's absolute path, and nobody of our number."""
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        patch.delenv(name, raising=False)
    if home is not None:
        patch.setenv("HOME", home)

    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    patch.setattr(pwd, "getpwuid", unknown)


def plant_drafts(folder: Path, name: str) -> tuple[set[str], set[str]]:
    """Leave drafts of a file in a folder; give the names of those that nobody writes any more, and of the others."""
    with subprocess.Popen(["true"]) as process:
        gone = process.pid
    dead = {f".{name}.{gone}"}
    kept = {f".{name}.{os.getppid()}", f".{name}.{gone}x", f".{name}.0", f".other.{gone}", f"{name}.{gone}"}
    for one in dead | kept:
        (folder / one).write_bytes(b"half of it")
        os.utime(folder / one, (time.time() - 1000,) * 2)
    with subprocess.Popen(["true"]) as process:
        young, link = f".{name}.{process.pid}", f".{name}.{process.pid + 1_000_000_000}"
    (folder / young).touch()
    (folder / link).symlink_to(next(iter(kept)))
    os.utime(folder / link, (0, 0), follow_symlinks=False)
    return dead, kept | {young, link}
