"""Folders that are ours alone, and those that must stay everybody's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuwatch.base import files
from gpuwatch.kill.audit import Audit


def test_a_folder_is_made_and_closed_to_others(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "gpuwatch"
    os.close(files.open_folder(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    os.close(files.open_folder(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize("mask", [0, 0o22, 0o77])
def test_each_folder_that_is_made_is_closed_to_others(tmp_path: Path, mask: int) -> None:
    folder = tmp_path / ".local" / "state" / "gpuwatch"
    before = os.umask(mask)
    try:
        assert Audit(folder).problem() is None
    finally:
        os.umask(before)
    for made in (folder, folder.parent, folder.parent.parent):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700, made
    assert stat.S_IMODE((folder / "actions.jsonl").stat().st_mode) == 0o600


def test_a_folder_above_that_is_there_stays_as_it_is(tmp_path: Path) -> None:
    local = tmp_path / ".local"
    local.mkdir()
    local.chmod(0o755)
    os.close(files.open_folder(local / "state" / "gpuwatch"))
    assert stat.S_IMODE(local.stat().st_mode) == 0o755


def test_nothing_can_be_made_below_what_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        files.open_folder(tmp_path / "file" / "state" / "gpuwatch")
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(OSError, match="exists"):
        files.open_folder(tmp_path / "link")


def test_a_folder_for_everybody_stays_so(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    with pytest.raises(files.UnsafePathError, match="for everybody"):
        files.open_folder(shared)
    assert stat.S_IMODE(shared.stat().st_mode) == 0o1777


def test_what_the_user_named_is_taken_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    os.close(files.open_folder(tmp_path, private=False))
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


def test_a_draft_that_cannot_take_its_place_is_removed(tmp_path: Path) -> None:
    (tmp_path / "name" / "full").mkdir(parents=True)
    with files.opened_folder(tmp_path) as folder, pytest.raises(OSError, match="directory"):
        files.replace_file(folder, "name", b"new")
    assert [one.name for one in tmp_path.iterdir()] == ["name"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_trial_of_a_folder_says_why_nothing_can_be_written(tmp_path: Path) -> None:
    files.check_folder(tmp_path / "new" / "below")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 1234, 1234)
    with pytest.raises(files.UnsafePathError, match="uid 1234"):
        files.check_folder(theirs)
    with pytest.raises(OSError, match="space"):
        files.check_folder(Path("/proc"))  # it has no nameless files, and no free blocks
