"""The writer adds rows to a store of its own, keeps within its size, and goes on after errors."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import Any

import msgspec
import pytest

from gpuwatch import cli
from gpuwatch.errors import UsageError
from gpuwatch.model import Snapshot
from gpuwatch.recorder.recorder import NOT_RUNNING
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.recording_writer import MOST_ROWS, MOST_WAITING, RecordingWriter
from gpuwatch.recorder.store import Store, StoreError, own_store
from tests.recorder.test_recording import demo, record
from tests.support.recording import alert, ask, frame, write
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


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], object]]:
    """Return a dict whose entry `write` is called before each write to a store."""
    hooks: dict[str, Callable[[], object]] = {}
    real = Store.write

    def hooked(store: Store, change: Callable[[Connection], None]) -> None:
        hooks.get("write", lambda: None)()
        real(store, change)

    monkeypatch.setattr(Store, "write", hooked)
    return hooks


def put(writer: RecordingWriter, snapshots: Iterable[Snapshot]) -> None:
    """Record snapshots one by one: more than some would wait for the disk."""
    for one in snapshots:
        writer.take(frame(shown=one))
        wait_for(lambda: not writer._waiting)


def times(snapshots: Iterable[Snapshot]) -> list[float]:
    """Return when snapshots were taken."""
    return [one.taken for one in snapshots]


def play(path: Path) -> list[float]:
    """Return when the snapshots of a recording were taken."""
    return times(Recording([path]).snapshots())


def later(snapshots: Iterable[Snapshot], seconds: float) -> list[Snapshot]:
    """Return snapshots as they would have been taken later."""
    return [
        msgspec.structs.replace(one, taken=one.taken + seconds, monotonic=one.monotonic + seconds) for one in snapshots
    ]


def test_a_second_run_adds_to_the_recording(tmp_path: Path) -> None:
    path, snapshots = tmp_path / "day", demo(40)
    record(path, snapshots[:20])
    record(path, snapshots[20:])
    assert play(path) == times(snapshots)


@pytest.mark.parametrize(("pause", "count", "hows"), [(0.0, 1, {""}), (3600.0, 2, {"", NOT_RUNNING})])
def test_an_event_goes_on_in_a_second_run_that_comes_soon(
    tmp_path: Path, pause: float, count: int, hows: set[str]
) -> None:
    path, snapshots = tmp_path / "day", demo(60)
    record(path, snapshots[:40])
    record(path, later(snapshots[40:], pause))
    found = Recording([path]).events()
    events = [one for one in found.alerts if one.rule == "overbooked"]
    assert (len(events), {one.how for one in events}) == (count, hows)
    assert len(found.gaps) == (1 if pause else 0)


def test_a_recording_is_readable_for_its_owner_alone(tmp_path: Path) -> None:
    path = record(tmp_path / "day", demo(1))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_written_can_be_read_while_the_recording_goes_on(tmp_path: Path, make: Make) -> None:
    writer, snapshots = make(tmp_path / "day"), demo(3)
    for number, one in enumerate(snapshots, 1):
        writer.take(frame(shown=one))
        wait_for(lambda: ask(tmp_path / "day", "SELECT sum(count) FROM snapshots") == [(number,)])  # noqa: B023
        assert len(play(tmp_path / "day")) == number


def test_beyond_its_size_the_oldest_rows_and_what_is_older_are_deleted(tmp_path: Path, make: Make) -> None:
    path, snapshots = tmp_path / "day", demo(600, step=4)
    writer = make(path, size=400_000)
    put(writer, snapshots)
    writer.close(PATIENCE)
    played = play(path)
    assert played == times(snapshots)[-len(played) :]
    assert 10 < len(played) < len(snapshots) - 10
    assert path.stat().st_size < 600_000
    assert min(one.at for one in Recording([path]).minutes()) >= played[0] - 120


def test_a_folder_that_was_removed_is_reported_and_used_again(tmp_path: Path, make: Make) -> None:
    folder, snapshots = tmp_path / "recordings", demo(30)
    folder.mkdir()
    path = folder / "day"
    writer = make(path)
    put(writer, snapshots[:1])
    wait_for(lambda: ask(path, "SELECT count FROM snapshots") == [(1,)])
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
    assert play(path) == times(snapshots[20 - MOST_ROWS :])


def test_a_file_that_was_moved_is_complete_and_a_new_one_begins(tmp_path: Path, make: Make) -> None:
    path, snapshots = tmp_path / "day", demo(30)
    writer = make(path)
    put(writer, snapshots[:20])
    wait_for(lambda: len(play(path)) == 20)
    path.rename(tmp_path / "old")
    put(writer, snapshots[20:])
    writer.close(PATIENCE)
    assert not writer.trouble
    assert times(Recording([tmp_path / "old", path]).snapshots()) == times(snapshots)
    assert {one.rule for one in Recording([path]).events().alerts} >= {"overbooked"}


def test_a_full_disk_is_reported_and_what_waits_is_written_later(
    tmp_path: Path, make: Make, disk: dict[str, Callable[[], object]]
) -> None:
    path, snapshots = tmp_path / "day", demo(40)
    writer = make(path)

    def full() -> None:
        raise StoreError("no space left on device")

    disk["write"] = full
    put(writer, snapshots[:10])
    wait_for(lambda: writer.trouble.endswith("no space left on device"))
    put(writer, snapshots[10:20])
    wait_for(lambda: "no space left on device; 8 snapshots are lost" in writer.trouble)
    disk.clear()
    writer._retry_at = 0.0
    put(writer, snapshots[20:])
    wait_for(lambda: not writer.trouble)
    writer.close(PATIENCE)
    assert play(path) == times(snapshots[20 - MOST_ROWS :])


def test_frames_beyond_a_slow_disk_are_lost_and_the_monitor_never_waits(
    tmp_path: Path, make: Make, disk: dict[str, Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck, go = threading.Event(), threading.Event()
    monkeypatch.setattr("gpuwatch.recorder.recording_writer._SLOW", 0.0)
    writer, snapshots = make(tmp_path / "day"), demo(MOST_WAITING + 11)

    def slow() -> None:
        stuck.set()
        go.wait(60.0)

    disk["write"] = slow
    writer.take(frame(shown=snapshots[0]))
    assert stuck.wait(60.0)
    for one in snapshots[1:]:
        writer.take(frame(shown=one))
    assert "the disk has not answered" in writer.trouble
    assert "10 snapshots are lost" in writer.trouble
    go.set()
    writer.close(60.0)
    assert len(play(tmp_path / "day")) == MOST_WAITING + 1


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("day.gz", "a recording is no .gz file; try day.gpuwatch"),
        ("folder", "it is not a regular file"),
        ("fifo", "it is not a regular file"),
        ("link", "it is (a symbolic link|not a regular file)"),
        ("foreign", "not a database"),
        ("store.sqlite", "it is a store without snapshots"),
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
    make(tmp_path / "held")
    before = {path: path.lstat() for path in tmp_path.iterdir()}
    with pytest.raises(UsageError, match=words):
        make(tmp_path / name)
    for path, facts in before.items():
        after = path.lstat()
        assert (after.st_mode, after.st_mtime_ns, after.st_size) == (facts.st_mode, facts.st_mtime_ns, facts.st_size)


def test_stand_ins_begin_with_a_new_file(tmp_path: Path, make: Make) -> None:
    path = record(tmp_path / "day", demo(2))
    with pytest.raises(UsageError, match="the stand-ins of --anonymise last for one run"):
        make(path, commands=msgspec.convert("anonymised", type=type(make(tmp_path / "x")._commands)))


def test_a_recording_of_another_host_is_not_added_to(tmp_path: Path, make: Make) -> None:
    path, snapshots = tmp_path / "day", demo(3)
    record(path, snapshots)
    writer = make(path)
    put(writer, [msgspec.structs.replace(snapshots[2], host="box9")])
    wait_for(lambda: "it is a recording of lab-gpu-03, and this is box9" in writer.trouble)
    assert len(play(path)) == 3


def test_a_copy_is_made_while_the_recording_goes_on(tmp_path: Path, make: Make) -> None:
    path, copy, snapshots = tmp_path / "day", tmp_path / "copy", demo(20)
    writer = make(path)
    put(writer, snapshots[:10])
    wait_for(lambda: len(play(path)) == 10)
    assert cli.main(["recording", "copy", str(path), str(copy)], None) == 0
    assert play(copy) == times(snapshots[:10])
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("copy {day} {day}", "file exists"),
        ("copy {day} {day}/none", "not a directory"),
        ("copy {day}.none {day}.copy", "No such file or directory"),
        ("copy /etc/passwd {day}.copy", "not a database"),
        ("move {day} {day}.copy", "invalid choice: 'move'"),
        ("copy {day}", "the following arguments are required: TO"),
    ],
)
def test_what_cannot_be_copied_is_one_line(
    tmp_path: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    day = record(tmp_path / "day", demo(1))
    before = sorted(tmp_path.iterdir())
    assert cli.main(["recording", *words.format(day=day).split()], None) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before
