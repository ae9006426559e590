"""`gpuwatch replay`: what it refuses, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch import cli
from tests.recorder.test_recording import demo, record
from tests.support.recording import change


@pytest.fixture
def day(tmp_path: Path) -> Path:
    """Return a recording of the demo of 90 seconds."""
    return record(tmp_path / "day", demo(90))


def test_a_recording_of_which_no_snapshot_can_be_read_is_refused(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(day, "UPDATE snapshots SET body = x'00'")
    assert cli.main(["replay", str(day)], None) == 2
    assert capsys.readouterr().err == f"gpuwatch: {day}: no snapshot can be read\n"
