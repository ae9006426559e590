"""`gpuwatch replay`: what it refuses, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch import cli
from gpuwatch.recorder.recording import Recording
from gpuwatch.units import format_moment
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "the following arguments are required: FILE"),
        (["{day}", "--demo"], "--demo does not go with `gpuwatch replay`"),
        (["{day}", "--once"], "--once does not go with `gpuwatch replay`"),
        (["{day}", "--at", "noon"], "--at: time 'noon' is not understood; write 03:10"),
        (["{day}", "--at", "2020-01-01 03:10"], "is not in the recording, which covers {first} to {last}"),
        (["{day}.none"], "no such file"),
        (["{day}"], "the dashboard needs a terminal"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], said: str, day: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    recording = Recording([day])
    names = {"day": str(day), "first": format_moment(recording.first), "last": format_moment(recording.last)}
    assert cli.main(["replay", *(word.format(**names) for word in words)], None) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert said.format(**names).lower() in out.err.lower()
    assert out.err.count("\n") == 1
