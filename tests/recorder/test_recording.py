"""The reader gives back what was recorded."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.errors import UsageError
from gpuwatch.history import History
from gpuwatch.minute import MinuteMaker
from gpuwatch.model import Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.recording_format import Commands
from gpuwatch.recorder.recording_writer import MOST_WAITING, RecordingWriter
from gpuwatch.sources.demo import DemoSource
from tests.support.recording import frame
from tests.support.waiting import wait_for

SUFFIXES = ("gz", "zst")
_DEMO = DemoSource(wall=lambda: 1795269780.0)


def demo(seconds: int, *, first: int = 0, step: int = 1) -> list[Snapshot]:
    """Return a snapshot of the demo every `step` seconds; the wall clock begins at a full minute."""
    return [_demo_at(second) for second in range(first, first + seconds, step)]


@cache
def _demo_at(second: int) -> Snapshot:
    return _DEMO.at(float(second))


def record(path: Path, snapshots: Iterable[Snapshot], **options: Any) -> Path:
    """Write a recording, complete, and return its path; with whole command lines where nothing else is said."""
    writer = RecordingWriter(path, **{"commands": Commands.ALL, **options})
    for one in snapshots:
        writer.take(frame(shown=one))
        wait_for(lambda: len(writer._waiting) < MOST_WAITING)
    writer.close(30.0)
    assert not writer.trouble
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_recording_gives_back_every_snapshot(tmp_path: Path, suffix: str) -> None:
    snapshots = demo(150)
    with Recording([record(tmp_path / f"day.{suffix}", snapshots)]) as recording:
        assert list(recording.snapshots()) == snapshots
        assert [block.at for block in recording.blocks] == [snapshots[index].taken for index in (0, 60, 120)]
        assert (recording.first, recording.last) == (snapshots[0].taken, snapshots[-1].taken)
        assert recording.host == "lab-gpu-03"


@pytest.mark.parametrize(("at", "first"), [(0, 0), (59, 0), (60, 60), (75, 60), (149, 120), (9999, 120)])
def test_snapshots_are_read_from_the_block_that_has_a_time(tmp_path: Path, at: int, first: int) -> None:
    snapshots = demo(150)
    with Recording([record(tmp_path / "day.gz", snapshots)]) as recording:
        assert next(recording.snapshots(snapshots[0].taken + at)) == snapshots[first]


@pytest.mark.parametrize("commands", Commands)
def test_a_block_begins_with_the_summary_of_the_minute_before(tmp_path: Path, commands: Commands) -> None:
    snapshots, maker, view = demo(150), MinuteMaker(), History().view
    zero = snapshots[0].taken
    writer = RecordingWriter(tmp_path / "day.gz", commands=commands)
    for one in snapshots:
        writer.take(Frame(one, one.taken, view, minute=maker.add(one, view)))
        wait_for(lambda: not writer._waiting)
    writer.close(30.0)
    with Recording([tmp_path / "day.gz"]) as recording:
        minutes = list(recording.minutes())
        assert [one.at - zero for one in minutes] == [0, 60]
        assert [one.seconds for one in minutes] == pytest.approx([59, 60], abs=2)
        users = {f"user:{one.uid}": one.user for one in next(recording.snapshots()).processes if one.uid and one.user}
        assert users.items() <= minutes[0].users.items()
        assert {*minutes[0].use[snapshots[0].gpus[0].key]} & {*users}
        assert [one.at - zero for one in recording.minutes(zero + 60, zero + 120)] == [60]


def test_several_files_play_as_one(tmp_path: Path) -> None:
    snapshots = demo(150)
    late, early = record(tmp_path / "b.gz", snapshots[70:]), record(tmp_path / "a.zst", snapshots[:70])
    with Recording([late, early]) as recording:
        assert list(recording.snapshots()) == snapshots


@pytest.mark.parametrize(
    ("back", "played"),
    [
        (60.0, [*range(30), *range(100, 190)]),  # into the middle of the first block
        (10.0, [*range(80), *range(100, 190)]),  # within the second one
        (600.0, [*range(100, 190), *range(100)]),  # to a time before the recording: nothing is recorded twice
    ],
)
def test_where_the_clock_was_set_back_the_later_recording_of_a_time_is_read(
    tmp_path: Path, back: float, played: list[int]
) -> None:
    snapshots = demo(190)
    late = [msgspec.structs.replace(one, taken=one.taken - 10 - back) for one in snapshots[100:]]
    path = record(tmp_path / "day.gz", [*snapshots[:100], *late])
    with Recording([path]) as recording:
        found = list(recording.snapshots())
        assert [one.sequence for one in found] == [snapshots[one].sequence for one in played]
        assert (recording.first, recording.last) == (found[0].taken, found[-1].taken)
        assert any("the clock was set back" in one for one in recording.notes) == (back < 600)


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8b\x08\0\0\0\0\0" + bytes(100)])
def test_another_file_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "day.gz").write_bytes(content)
    with pytest.raises(UsageError, match=r"day\.gz: .*(empty|not a recording)"):
        Recording([tmp_path / "day.gz"])


def test_recordings_of_two_hosts_do_not_play_as_one(tmp_path: Path) -> None:
    one = demo(1)
    paths = [record(tmp_path / f"{host}.gz", [msgspec.structs.replace(one[0], host=host)]) for host in ("box2", "box1")]
    with pytest.raises(UsageError, match="recordings of different hosts: box1, box2"):
        Recording(paths)


def test_an_empty_file_with_a_part_is_a_recording(tmp_path: Path) -> None:
    snapshots = demo(3)
    record(tmp_path / "day.1.gz", snapshots)
    (tmp_path / "day.gz").touch()
    with Recording([tmp_path / "day.gz"]) as recording:
        assert list(recording.snapshots()) == snapshots
