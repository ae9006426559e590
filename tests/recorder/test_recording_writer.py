"""The writer appends whole blocks, makes parts, and goes on after errors."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch import files
from gpuwatch.errors import UsageError
from gpuwatch.model import Snapshot
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.recording_writer import MOST_WAITING, RecordingWriter
from tests.recorder.test_recording import SUFFIXES, demo, record
from tests.support.recording import frame
from tests.support.waiting import PATIENCE, wait_for

Make = Callable[..., RecordingWriter]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make writers that write at once, and close them at the end."""
    made = []

    def call(path: Path, **options: Any) -> RecordingWriter:
        made.append(RecordingWriter(path, **{"pace": 0.0, **options}))
        return made[-1]

    yield call
    for one in made:
        one.close(PATIENCE)


def put(writer: RecordingWriter, snapshots: Iterable[Snapshot]) -> None:
    """Record snapshots one by one: more than some would wait for the disk."""
    for one in snapshots:
        writer.take(frame(shown=one))
        wait_for(lambda: not writer._waiting)


def play(path: Path) -> list[Snapshot]:
    """Return all snapshots of a recording."""
    with Recording([path]) as recording:
        return list(recording.snapshots())


def times(snapshots: list[Snapshot]) -> list[float]:
    """Return when snapshots were taken."""
    return [one.taken for one in snapshots]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_second_run_appends_to_the_recording(tmp_path: Path, suffix: str) -> None:
    path, snapshots = tmp_path / f"day.{suffix}", demo(40)
    record(path, snapshots[:20])
    record(path, snapshots[20:])
    assert times(play(path)) == times(snapshots)


def test_a_recording_is_readable_for_its_owner_alone(tmp_path: Path) -> None:
    path = record(tmp_path / "day.gz", demo(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_what_was_written_can_be_read_while_the_recording_goes_on(tmp_path: Path, make: Make, suffix: str) -> None:
    writer, snapshots = make(tmp_path / f"day.{suffix}"), demo(3)
    for number, one in enumerate(snapshots, 1):
        writer.take(frame(shown=one))
        wait_for(lambda: (tmp_path / f"day.{suffix}").stat().st_size > 0)
        wait_for(lambda count=number: len(play(tmp_path / f"day.{suffix}")) == count)  # type: ignore[misc]


@pytest.mark.parametrize("cut", [1, 7, 100, 1000])
def test_a_recording_with_a_torn_end_is_read_and_appended_to(tmp_path: Path, cut: int) -> None:
    path, snapshots = tmp_path / "day.gz", demo(90)
    record(path, snapshots[:70])
    os.truncate(path, path.stat().st_size - cut)
    torn = times(play(path))
    assert torn == times(snapshots)[: len(torn)]
    assert len(torn) >= 60
    record(path, snapshots[70:])
    assert times(play(path)) == torn + times(snapshots[70:])


def test_a_full_file_becomes_a_part_and_the_oldest_part_is_removed(tmp_path: Path, make: Make) -> None:
    path, snapshots = tmp_path / "day.gz", demo(600, step=20)
    writer = make(path, size=1, parts=3)
    put(writer, snapshots)
    writer.close(PATIENCE)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["day.1.gz", "day.2.gz", "day.3.gz", "day.gz"]
    assert times(play(path)) == times(snapshots)[-4 * 3 :]


def test_another_file_in_the_place_of_a_part_is_left_alone(tmp_path: Path, make: Make) -> None:
    path, snapshots = tmp_path / "day.gz", demo(125)
    (tmp_path / "day.1.gz").write_text("mine")
    writer = make(path, size=1)
    put(writer, snapshots[:61])
    wait_for(lambda: bool(writer.trouble))
    assert "day.1.gz: it is there, and is no recording" in writer.trouble
    assert (tmp_path / "day.1.gz").read_text() == "mine"
    (tmp_path / "day.1.gz").unlink()
    put(writer, snapshots[61:])
    wait_for(lambda: not writer.trouble)
    writer.close(PATIENCE)
    assert times(play(path))[-1] == snapshots[-1].taken


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_folder_that_was_removed_is_reported_and_used_again(tmp_path: Path, make: Make, suffix: str) -> None:
    folder, snapshots = tmp_path / "recordings", demo(130)
    folder.mkdir()
    path = folder / f"day.{suffix}"
    writer = make(path)
    writer.take(frame(shown=snapshots[0]))
    wait_for(lambda: path.stat().st_size > 0)
    path.unlink()
    folder.rmdir()
    put(writer, snapshots[1:65])
    lost = f"not recorded: {path}: No such file or directory; 64 snapshots are lost"
    wait_for(lambda: writer.trouble == lost)
    folder.mkdir()
    put(writer, snapshots[65:])
    wait_for(lambda: not writer.trouble)
    writer.close(PATIENCE)
    assert times(play(path))[-1] == snapshots[-1].taken


def test_a_file_that_was_moved_is_complete_and_a_new_one_begins(tmp_path: Path, make: Make) -> None:
    path, snapshots = tmp_path / "day.gz", demo(30)
    writer = make(path, pace=3600.0)
    put(writer, snapshots[:20])
    wait_for(lambda: not writer._waiting)
    path.rename(tmp_path / "old.gz")
    writer._pace = 0.0
    put(writer, snapshots[20:])
    writer.close(PATIENCE)
    assert not writer.trouble
    with Recording([tmp_path / "old.gz", path]) as recording:
        assert times(list(recording.snapshots())) == times(snapshots)


def test_a_full_disk_is_reported_and_the_recording_goes_on(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, snapshots = tmp_path / "day.gz", demo(20)
    write, is_full = files.write_all, True

    def torn(file: int, content: bytes) -> None:
        if not is_full:
            write(file, content)
            return
        os.write(file, content[: len(content) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_all", torn)
    writer = make(path)
    put(writer, snapshots[:10])
    wait_for(lambda: "No space left on device; 10 snapshots are lost" in writer.trouble)
    is_full = False
    put(writer, snapshots[10:])
    wait_for(lambda: not writer.trouble)
    writer.close(PATIENCE)
    played = times(play(path))
    assert played[-10:] == times(snapshots[10:])
    assert set(played) <= set(times(snapshots))


def test_frames_beyond_a_slow_disk_are_lost_and_the_monitor_never_waits(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, go = threading.Event(), threading.Event()
    write = files.write_all

    def slow(file: int, content: bytes) -> None:
        stuck.set()
        go.wait(60.0)
        write(file, content)

    monkeypatch.setattr(files, "write_all", slow)
    monkeypatch.setattr("gpuwatch.recorder.recording_writer._SLOW", 0.0)
    writer, snapshots = make(tmp_path / "day.gz"), demo(MOST_WAITING + 11)
    writer.take(frame(shown=snapshots[0]))
    assert stuck.wait(60.0)
    for one in snapshots[1:]:
        writer.take(frame(shown=one))
    assert "the disk has not answered" in writer.trouble
    assert "10 snapshots are lost" in writer.trouble
    go.set()
    writer.close(30.0)
    assert len(play(tmp_path / "day.gz")) == MOST_WAITING + 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("day.txt", "ends in .gz or .zst"),
        ("folder.gz", "it is not a regular file"),
        ("fifo.gz", "it is not a regular file"),
        ("link.gz", "it is a symbolic link"),
        ("foreign.gz", "is no recording"),
        ("missing/day.gz", "No such file"),
        ("held.gz", "another gpuwatch"),
    ],
)
def test_what_is_no_recording_is_refused_and_never_touched(tmp_path: Path, make: Make, name: str, words: str) -> None:
    (tmp_path / "folder.gz").mkdir()
    os.mkfifo(tmp_path / "fifo.gz")
    (tmp_path / "link.gz").symlink_to(tmp_path / "held.gz")
    (tmp_path / "foreign.gz").write_text("mine")
    (tmp_path / "foreign.gz").chmod(0o644)
    make(tmp_path / "held.gz")
    before = (tmp_path / "foreign.gz").stat()
    with pytest.raises(UsageError, match=words):
        make(tmp_path / name)
    after = (tmp_path / "foreign.gz").stat()
    assert (after.st_mode, after.st_mtime_ns, after.st_size) == (before.st_mode, before.st_mtime_ns, before.st_size)


def test_a_recording_of_another_host_is_not_appended_to(tmp_path: Path, make: Make) -> None:
    path, snapshots = tmp_path / "day.gz", demo(3)
    record(path, snapshots)
    writer = make(path)
    other = msgspec.structs.replace(snapshots[2], host="box9")
    put(writer, [other])
    wait_for(lambda: "it is a recording of lab-gpu-03, and this is box9" in writer.trouble)
    assert len(play(path)) == 3
