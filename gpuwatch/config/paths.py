"""Paths of the configuration files: the user's own, and those of the administrator."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuwatch.base import files

FILE: Final = "gpuwatch.toml"
ADMINISTRATORS: Final = Path("/etc/gpuwatch") / FILE
SECRETS: Final = "notify.toml"
"""File beside the administrator's with its `[notify]`, which root alone reads: the other one is for everybody."""


def path() -> Path:
    """Return the path of the user's configuration file."""
    return files.config_folder() / FILE
