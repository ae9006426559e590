"""Where the newest figures lie: in the user's runtime folder, which is in memory. Imports next to nothing."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping

FILE = "newest.json"

_YOUNG = 6.0
"""Seconds since its last change for which the file looks fresh; most people sample every second or two."""


def folder(environ: Mapping[str, str] | None = None, uid: int | None = None, runtimes: str = "/run/user") -> str:
    """Give gpuwatch's folder for what need not outlive the boot: `$XDG_RUNTIME_DIR/gpuwatch`, or its stand-in.

    A runtime folder that is not ours (it stays set under `sudo -E`) is not taken. Without any it is a folder of our own
    below that for temporary files; whoever opens it must see for themselves whose it is.
    """
    environ = os.environ if environ is None else environ
    uid = os.geteuid() if uid is None else uid
    for runtime in (environ.get("XDG_RUNTIME_DIR", ""), f"{runtimes}/{uid}"):
        if runtime.startswith("/") and _belongs(runtime, uid):
            return f"{runtime}/gpuwatch"
    import tempfile  # 6 ms

    return f"{tempfile.gettempdir()}/gpuwatch-{uid}"


def looks_fresh(environ: Mapping[str, str] | None = None) -> bool:
    """Guess whether somebody writes the newest figures, without reading them."""
    try:
        changed = os.lstat(f"{folder(environ)}/{FILE}").st_mtime
    except OSError:
        return False
    return abs(time.time() - changed) < _YOUNG


def _belongs(path: str, uid: int) -> bool:
    try:
        facts = os.stat(path)  # noqa: PTH116 - pathlib takes 5 ms to import
    except OSError:
        return False
    return stat.S_ISDIR(facts.st_mode) and facts.st_uid == uid
