"""Paths of the configuration files of the user and of the administrator."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuwatch.base import files

FILE: Final = "gpuwatch.toml"
ADMINISTRATORS: Final = Path("/etc/gpuwatch") / FILE
SECRETS: Final = "notify.toml"
"""File next to the administrator's with its `[notify]`, which only root reads: the other one is for everybody."""


def path() -> Path:
    """Return the path of the user's configuration file."""
    return files.config_folder() / FILE
