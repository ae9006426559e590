"""Optional packages: the command that installs those of an extra into the environment in which gpuwatch runs."""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

from gpuwatch.base.text import clean

_NAMES = ("gpuwatch-tui", "gpuwatch")
"""Names of the distribution, the newest first."""


def install_hint(extra: str, prefix: Path | None = None) -> str:
    """Return the command that installs the packages of an extra by their names, without gpuwatch itself.

    `prefix` is the environment, by default the one that runs.
    """
    place = prefix or Path(sys.prefix)
    words = shlex.join(packages_of(extra)) or f"the packages of the extra {extra}"
    if (place / "pipx_metadata.json").is_file():
        command = f"pipx inject {shlex.quote(place.name)}"
    elif (file := place / "pyvenv.cfg").is_file() and re.search("^uv = ", file.read_text(), re.MULTILINE):  # has no pip
        command = f"uv pip install --python {shlex.quote(str(place / 'bin' / 'python'))}"
    else:
        command = f"{shlex.quote(str(place / 'bin' / 'pip'))} install"
    return clean(f"{'' if os.access(place, os.W_OK) else 'sudo '}{command} {words}", 400)


def packages_of(extra: str) -> list[str]:
    """Return the packages of an extra with their versions, as gpuwatch's own metadata names them."""
    from importlib import metadata  # it is slow, and nearly nobody needs it

    for name in _NAMES:
        try:
            wanted = metadata.requires(name) or ()
        except metadata.PackageNotFoundError:
            continue
        parts = [one.partition(";") for one in wanted]
        found = [package.strip() for package, _, when in parts if re.search(rf"extra == ['\"]{extra}['\"]", when)]
        if found:
            return found
    return []
