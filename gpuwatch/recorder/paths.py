"""Paths of stores and of their locks: a user's own, and the public days of the machine's service."""

from __future__ import annotations

import contextlib
import re
from datetime import date
from pathlib import Path
from typing import Final

from gpuwatch.base import files
from gpuwatch.recorder.schema import VERSION

DAYS: Final = Path("/var/lib/gpuwatch")
"""Folder of the machine's service, with its public days."""
_DAY_NAME: Final = re.compile(r"public-(\d{4}-\d\d-\d\d)\.sqlite")
FRESH: Final = 90.0
"""Seconds since a public day was written for which the service counts as running: it writes every minute."""


def own_store(folder: Path | None = None) -> Path:
    """Return the path of the user's own store; `folder` stands in for the user's state folder."""
    return (folder or files.state_folder()) / f"gpuwatch-{files.host_name()}.{VERSION}.sqlite"


def lock_path(store: Path, duty: str = "") -> Path:
    """Return the path of the lock file beside a store that elects who does `duty`: recording by default."""
    return store.parent / f"{store.name.removesuffix('.sqlite')}{f'-{duty}' if duty else ''}.lock"


def public_file(folder: Path, day: str) -> Path:
    """Return the path of a public day, such as 2026-11-24."""
    return folder / f"public-{day}.sqlite"


def public_files(folder: Path = DAYS) -> list[Path]:
    """Return the public days, the newest first."""
    with contextlib.suppress(OSError, ValueError):  # a name that is no date is not the service's
        return sorted((path for path in folder.iterdir() if is_public(path) and day_of(path)), reverse=True)
    return []


def is_public(path: Path) -> bool:
    """Return whether a store is a public day of the machine's service, by its name."""
    return bool(_DAY_NAME.fullmatch(path.name))


def day_of(path: Path) -> date:
    """Return the day of a public day, by its name."""
    return date.fromisoformat(path.stem.removeprefix("public-"))


def file_state(path: Path) -> tuple[int, int, int] | None:
    """Return inode, time and size of a file, which tell whether it has changed; None where there is no file."""
    try:
        facts = path.lstat()
    except OSError:  # what is wrong is said by reading it
        return None
    return facts.st_ino, facts.st_mtime_ns, facts.st_size
