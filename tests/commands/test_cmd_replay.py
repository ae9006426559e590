"""`gpuwatch replay`: what it refuses, and in which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch import cli
from gpuwatch.recording.format import codec_of
from gpuwatch.recording.reader import Recording
from tests.recording.test_reader import demo, record


@pytest.fixture
def day(tmp_path: Path) -> Path:
    """Return a recording of the demo of 90 seconds."""
    return record(tmp_path / "day.gz", demo(90))


def test_a_recording_without_any_snapshot_is_refused(day: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Recording([day]) as recording:
        block = recording.blocks[0]
    codec = codec_of(day)
    header = next(iter(codec.decompressor().decompress(day.read_bytes()[: block.end]).splitlines()))
    compressor = codec.compressor()
    day.write_bytes(compressor.compress(header + b"\n") + compressor.flush(codec.end))
    assert cli.main(["replay", str(day)], None) == 2
    assert capsys.readouterr().err == f"gpuwatch: {day}: no snapshot can be read\n"
