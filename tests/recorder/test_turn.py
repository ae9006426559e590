"""Whose turn it is to send messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.recorder.events_log import for_host
from gpuwatch.recorder.leader_lock import Turn


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch"


def test_one_has_it_until_it_is_given_back(folder: Path) -> None:
    first, second = Turn(folder), Turn(folder)
    assert [first(), second(), first(), second()] == [True, False, True, False]
    first.release()
    assert [second(), first()] == [True, False]
    second.release()


def test_it_is_private(folder: Path) -> None:
    turn = Turn(folder)
    assert turn()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / f"{for_host('messages')}.lock").stat().st_mode & 0o777 == 0o600
    turn.release()


def test_one_that_is_taken_away_is_taken_anew(folder: Path) -> None:
    first, second = Turn(folder), Turn(folder)
    assert first()
    (folder / f"{for_host('messages')}.lock").unlink()
    assert [first(), second()] == [True, False]
    first.release()
    second.release()


def test_where_no_lock_can_be_had_it_is_everybodys(folder: Path) -> None:
    folder.parent.mkdir()
    folder.touch()
    first, second = Turn(folder), Turn(folder)
    assert [first(), second()] == [True, True]
