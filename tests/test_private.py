"""Folders that are ours alone, and those that must stay everybody's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuwatch import private


def test_a_folder_is_made_and_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "gpuwatch"
    os.close(private.open_folder(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    os.close(private.open_folder(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_for_everybody_stays_so(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(private.UnsafePathError, match="for everybody"):
        private.open_folder(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_what_the_user_named_is_taken_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    os.close(private.open_folder(tmp_path, private=False))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
