"""The reader gives back what was recorded."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from gpuwatch.base.errors import UsageError
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.schema import own_store
from tests.support.environment import uncounted
from tests.support.store import alert, demo, record, small, write


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of 150 seconds of the demo."""
    with uncounted():
        return record(tmp_path_factory.mktemp("recording") / "day", demo(150))


def test_every_snapshot_is_given_back_from_the_row_that_has_a_time_on(day: Path) -> None:
    snapshots, recording = demo(150), Recording([day])
    assert list(recording.snapshots()) == snapshots
    assert [row.since for row in recording.rows] == [snapshots[index].taken for index in range(0, 150, 10)]
    assert (recording.first, recording.last) == (snapshots[0].taken, snapshots[-1].taken)
    assert recording.host == "lab-gpu-03"
    for second, first in ((-50, 0), (0, 0), (9, 0), (10, 10), (15, 10), (24, 20), (9999, 140)):
        assert next(recording.snapshots(snapshots[0].taken + second)) == snapshots[first]


def test_a_row_begins_with_what_held_before_it(day: Path) -> None:
    snapshots, recording = demo(150), Recording([day])
    standing, after = recording.play(snapshots[145].taken)
    assert next(after).sequence == snapshots[140].sequence
    assert {one.rule for one in standing.alerts} >= {"nearly full", "overbooked"}
    assert {one.id for one in standing.alerts} <= {one.id for one in recording.events().alerts}
    idle = {one.gpu: one.seconds for one in standing.idle}
    assert max(idle.values()) == pytest.approx(139, abs=1)


def test_means_and_use_are_those_of_the_snapshots(day: Path) -> None:
    first, recording = demo(1)[0], Recording([day])
    zero = first.taken
    assert [one.at - zero for one in recording.minutes()] == [0, 60, 120]
    assert [one.at - zero for one in recording.minutes(zero + 60, zero + 120)] == [60]
    users = {f"user:{one.uid}": one.user for one in first.processes if one.uid and one.user}
    assert users.items() <= next(recording.minutes()).users.items()


def test_several_files_play_as_one(tmp_path: Path) -> None:
    snapshots = small(70)
    late, early = record(tmp_path / "b", snapshots[33:]), record(tmp_path / "a", snapshots[:33])
    assert list(Recording([late, early]).snapshots()) == snapshots


@pytest.mark.parametrize(
    ("back", "played"),
    [
        (60.0, [*range(30), *range(100, 190)]),
        (10.0, [*range(80), *range(100, 190)]),
        (600.0, [*range(100, 190), *range(100)]),  # to a time before the recording: nothing is recorded twice
    ],
)
def test_where_the_clock_was_set_back_the_later_recording_of_a_time_is_read(
    tmp_path: Path, back: float, played: list[int]
) -> None:
    snapshots = small(190)
    late = [msgspec.structs.replace(one, taken=one.taken - 10 - back) for one in snapshots[100:]]
    recording = Recording([record(tmp_path / "day", [*snapshots[:100], *late])])
    found = list(recording.snapshots())
    assert [one.sequence for one in found] == [snapshots[one].sequence for one in played]
    assert (recording.first, recording.last) == (found[0].taken, found[-1].taken)
    assert any("the clock was set back" in one for one in recording.notes) == (back < 600)


def test_a_late_snapshot_is_left_out(tmp_path: Path) -> None:
    snapshots = small(30)
    late = msgspec.structs.replace(snapshots[15], sequence=999)
    recording = Recording([record(tmp_path / "day", [*snapshots[:18], late, *snapshots[18:]])])
    assert list(recording.snapshots()) == snapshots
    assert not recording.notes


def test_a_store_without_snapshots_and_recordings_of_two_hosts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no snapshots; read it with `--file`"):
        Recording([write(own_store(tmp_path), alert())])
    (one,) = small(1)
    paths = [record(tmp_path / host, [msgspec.structs.replace(one, host=host)]) for host in ("box2", "box1")]
    with pytest.raises(UsageError, match="recordings of different hosts: box1, box2"):
        Recording(paths)
