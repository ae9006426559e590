"""The writer adds rows to a store of its own, keeps within its size, and goes on after errors."""

from __future__ import annotations

import os
import random
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import msgspec
import pytest

from gpuwatch import cli
from gpuwatch.base.errors import UsageError
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Idle, IdleHolding, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.recorder import recording_writer
from gpuwatch.recorder.anonymise import Commands
from gpuwatch.recorder.events import NOT_RUNNING
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.recording_writer import MOST_ROWS, RecordingWriter
from gpuwatch.recorder.schema import own_store
from gpuwatch.recorder.store import Store
from tests.support.alerts import full
from tests.support.builders import at, gpu, holding, process, snapshot
from tests.support.store import alert, change, frame, record, small, write
from tests.support.waiting import PATIENCE, wait_for

Make = Callable[..., RecordingWriter]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make writers that write each snapshot at once, and close them at the end."""
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


def wait_until_written(writer: RecordingWriter, path: Path, count: int) -> None:
    """Wait until a recording has `count` snapshots and the writer has left the file: it checks it once more."""
    wait_for(lambda: not writer._waiting and not writer._rows and len(play(path)) == count)


def times(snapshots: Iterable[Snapshot]) -> list[float]:
    """Return when snapshots were taken."""
    return [one.taken for one in snapshots]


def play(path: Path) -> list[float]:
    """Return when the snapshots of a recording were taken; none before the first row is written."""
    try:
        return times(Recording([path]).snapshots())
    except UsageError:
        return []


def test_idle_times_of_before_the_recording_stand_at_its_beginning(tmp_path: Path, make: Make) -> None:
    history, shown = History(), at(snapshot([gpu(0, holdings=[holding(11, sm=0)])], [process(11)]), 0.0)
    history.restore_idle({(shown.gpus[0].key, 11, 11): Idle(600.0, at_least=True)}, 5000.0)
    make(tmp_path / "day").take(Frame(shown, 5000.0, history.add(shown, 5000.0)))
    wait_for(lambda: play(tmp_path / "day"))
    standing, _ = Recording([tmp_path / "day"]).play(0.0)
    assert standing.idle == (IdleHolding(shown.gpus[0].key, 11, 11, 600.0, True),)


@pytest.mark.parametrize(("pause", "count", "hows"), [(0.0, 1, {""}), (3600.0, 2, {"", NOT_RUNNING})])
def test_a_second_run_adds_to_the_recording_and_goes_on_with_its_events_if_it_comes_soon(
    tmp_path: Path, pause: float, count: int, hows: set[str]
) -> None:
    path = tmp_path / "day"
    snapshots = [full(float(second)) for second in range(10)]
    late = [full(second + pause) for second in map(float, range(10, 20))]
    record(path, snapshots)
    record(path, late)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert play(path) == times([*snapshots, *late])
    found = Recording([path]).events()
    events = [one for one in found.alerts if one.rule == "nearly full"]
    assert (len(events), {one.how for one in events}) == (count, hows)
    assert len(found.gaps) == (1 if pause else 0)


def test_beyond_its_size_the_oldest_rows_and_what_is_older_are_deleted(tmp_path: Path, make: Make) -> None:
    path, drawn = tmp_path / "day", random.Random(1)
    people = [process(pid, command=drawn.randbytes(190).hex()) for pid in range(1, 81)]  # nothing to compress
    snapshots = [at(snapshot([], people), 60.0 * number) for number in range(40)]
    writer = make(path, size=600_000, commands=Commands.ALL)
    put(writer, snapshots)
    writer.close(PATIENCE)
    played = play(path)
    assert played == times(snapshots)[-len(played) :]
    assert 5 < len(played) < len(snapshots) - 5
    assert path.stat().st_size < 750_000
    assert min(one.at for one in Recording([path]).minutes()) >= played[0] - 120


def test_a_folder_that_was_removed_is_reported_and_used_again(tmp_path: Path, make: Make) -> None:
    folder, snapshots = tmp_path / "recordings", small(30)
    folder.mkdir()
    path = folder / "day"
    writer = make(path)
    put(writer, snapshots[:1])
    wait_until_written(writer, path, 1)
    path.unlink()
    path.with_name("day.lock").unlink()
    folder.rmdir()
    put(writer, snapshots[1:20])
    wait_for(lambda: "7 snapshots are lost" in writer.trouble)
    folder.mkdir()
    writer._retry_at = 0.0
    put(writer, snapshots[20:])
    wait_for(lambda: not writer.trouble)
    writer.close(PATIENCE)
    assert play(path) == times(snapshots[20 - MOST_ROWS :]), "what waited was written then"


def test_a_file_that_was_moved_is_complete_and_a_new_one_begins(tmp_path: Path, make: Make) -> None:
    path = tmp_path / "day"
    snapshots = [full(float(second)) for second in range(20)]
    writer = make(path)
    put(writer, snapshots[:10])
    wait_until_written(writer, path, 10)
    path.rename(tmp_path / "old")
    put(writer, snapshots[10:])
    writer.close(PATIENCE)
    assert not writer.trouble
    assert times(Recording([tmp_path / "old", path]).snapshots()) == times(snapshots)
    assert {one.rule for one in Recording([path]).events().alerts} == {"nearly full"}


def test_frames_beyond_a_slow_disk_are_lost_and_the_monitor_never_waits(
    tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, go = threading.Event(), threading.Event()
    monkeypatch.setattr(recording_writer, "_SLOW", 0.0)
    monkeypatch.setattr(recording_writer, "MOST_WAITING", 9)
    writer, snapshots, real = make(tmp_path / "day"), small(20), Store.write

    def slow(store: Store, change: Callable[[Connection], None]) -> None:
        stuck.set()
        go.wait(60.0)
        real(store, change)

    monkeypatch.setattr(Store, "write", slow)
    writer.take(frame(shown=snapshots[0]))
    assert stuck.wait(60.0)
    for one in snapshots[1:]:
        writer.take(frame(shown=one))
    assert "the disk has not answered" in writer.trouble
    assert "10 snapshots are lost" in writer.trouble
    go.set()
    writer.close(60.0)
    assert len(play(tmp_path / "day")) == 10


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("folder", "it is not a regular file"),
        ("fifo", "it is not a regular file"),
        ("link", "it is (a symbolic link|not a regular file)"),
        ("foreign", "not a database"),
        ("store.sqlite", "it is a store without snapshots"),
        ("earlier", "with schema 1, and this gpuwatch knows schema 2"),
        ("missing/day", "No such file"),
        ("held", "another gpuwatch"),
    ],
)
def test_what_is_no_recording_is_refused_and_never_touched(tmp_path: Path, make: Make, name: str, words: str) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "held")
    (tmp_path / "foreign").write_text("mine")
    write(own_store(tmp_path), alert()).rename(tmp_path / "store.sqlite")
    earlier = make(tmp_path / "earlier")
    put(earlier, [snapshot()])
    earlier.close(PATIENCE)
    change(tmp_path / "earlier", "UPDATE about SET value = '1' WHERE name = 'snapshots'")
    make(tmp_path / "held")
    before = {path: path.lstat() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=words):
        make(tmp_path / name)
    for path, facts in before.items():
        after = path.lstat()
        assert (after.st_mode, after.st_mtime_ns, after.st_size) == (facts.st_mode, facts.st_mtime_ns, facts.st_size)


def test_nothing_is_added_for_another_host_or_with_other_stand_ins(tmp_path: Path, make: Make) -> None:
    path, snapshots = tmp_path / "day", small(3)
    record(path, snapshots)
    with pytest.raises(UsageError, match="a recording made with --anonymise cannot be continued"):
        make(path, commands=Commands.ANONYMISED)
    writer = make(path)
    put(writer, [msgspec.structs.replace(snapshots[2], host="box9")])
    wait_for(lambda: "it is a recording of box3, and this is box9" in writer.trouble)
    assert len(play(path)) == 3


def test_it_is_read_and_copied_while_the_recording_goes_on(tmp_path: Path, make: Make) -> None:
    path, copy, snapshots = tmp_path / "day", tmp_path / "copy", small(20)
    writer = make(path)
    for number, one in enumerate(snapshots[:3], 1):
        put(writer, [one])
        wait_for(lambda: len(play(path)) == number)  # noqa: B023 - at once
    assert cli.main(["recording", "copy", str(path), str(copy)], None) == 0
    put(writer, snapshots[3:])
    assert play(copy) == times(snapshots[:3])
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
