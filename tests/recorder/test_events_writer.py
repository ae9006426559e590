"""The events log as it is written: by one at a time, and another goes on where that one ends."""

from __future__ import annotations

import itertools
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuwatch.alerts.alert import TROUBLE, Severity
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.model import Snapshot
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.event_writer import RECENT, EventsLog
from gpuwatch.recorder.events_log import State, lock_name, log_name, read_events
from tests import CHECKOUT
from tests.support.builders import EPOCH, at, gpu, snapshot
from tests.support.eventlogs import PATIENCE, QUICK, Keep, Keeper, alert, ended, frame, keeping, lines, story, wait_for
from tests.support.watches import Reader, Script, full


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch"


@pytest.fixture
def keep(folder: Path) -> Iterator[Keep]:
    """Return a function that makes a log in the folder."""
    with keeping(folder) as make:
        yield make


# ---------------------------------------------------------------------------------------------------------------
# What is written


def test_an_event_is_written_from_raised_to_ended(keep: Keep) -> None:
    log = keep().settle()
    log.feed(alert())
    log.feed(alert(severity=Severity.CRITICAL))
    log.feed(alert(severity=Severity.WARNING, most=Severity.CRITICAL))
    log.feed(cleared=[ended(alert())])
    log.expect("raised id-a", "worse id-a", "eased id-a", "ended id-a")
    log.close()
    assert story(log.path)[0] == "began"
    assert story(log.path)[-1] == "stopped"
    first, *others = lines(log.path)
    assert first["schema"] == 1
    assert first["pid"] == os.getpid()
    assert not any("schema" in one for one in others)
    assert [one["at"] for one in others[:2]] == [EPOCH + 1001.0, EPOCH + 1002.0]


def test_what_holds_when_watching_stops_is_told_with_its_worst_value(keep: Keep) -> None:
    log = keep().settle()
    log.feed(alert(peak=1.0))
    log.feed(alert(peak=7.0))
    log.expect("raised id-a")
    log.close()
    assert story(log.path)[-2:] == ["carried id-a", "stopped"]
    (one,) = read_events(log.path).alerts
    assert one.peak == 7.0


def test_folder_and_files_are_private(keep: Keep, folder: Path) -> None:
    before = os.umask(0)
    try:
        keep().settle()
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir()} == {0o600}
    assert {file.name for file in folder.iterdir()} == {log_name(), lock_name(log_name())}


def test_our_own_troubles_and_made_up_ones_are_not_written(keep: Keep) -> None:
    log = keep().settle()
    log.feed(alert("t", rule=TROUBLE))
    log.log.take(frame(alert("demo"), demo=True))
    log.feed(alert())
    log.expect("raised id-a")


def test_a_demo_is_written_where_the_user_said(tmp_path: Path) -> None:
    log = Keeper(tmp_path, path=tmp_path / "mine.jsonl").settle(alert(), demo=True)
    log.expect("raised id-a")
    log.close()
    assert {file.name for file in tmp_path.iterdir()} == {"mine.jsonl", "mine.lock"}


def test_a_secret_in_a_command_line_is_masked_in_the_log(keep: Keep) -> None:
    from gpuwatch.text import command_line

    log = keep().settle()
    log.feed(alert(evidence=command_line(["python", "train.py", "--token", "hunter2hunter2"])))
    log.expect("raised id-a")
    assert b"hunter2" not in log.path.read_bytes()
    assert "--token ***" in lines(log.path)[-1]["alert"]["evidence"]


def test_a_file_is_turned_over_and_each_stands_alone(keep: Keep) -> None:
    log = keep(limit=4000).settle()
    log.feed(alert("long"))
    for number in range(60):
        one = alert(f"{number}", raised=EPOCH + number)
        log.feed(alert("long"), one)
        log.feed(alert("long"), cleared=[ended(one)])
        wait_for(lambda one=one: f"ended {one.id}" in story(log.path))  # type: ignore[misc]
    files = [log.path, *(log.path.with_name(f"{log.path.name}.{number}") for number in (1, 2, 3))]
    assert not log.path.with_name(f"{log.path.name}.4").exists()
    for file in files:
        assert file.stat().st_size <= 4000
        assert lines(file)[0]["schema"] == 1
        assert story(file)[0] in ("began", "carried id-long")
    found = read_events(log.path)
    assert [one.id for one in found.open] == ["id-long"]
    assert found.damaged == 0
    assert [one.id for one in read_events(log.path, older=False).open] == ["id-long"]


# ---------------------------------------------------------------------------------------------------------------
# After a restart


def test_an_event_goes_on_over_a_restart(keep: Keep) -> None:
    first = keep().settle()
    first.feed(alert())
    first.expect("raised id-a")
    first.close()
    second = keep(now=first.now + 60).settle(alert())
    assert [[one.id for one in handed] for handed in second.restored] == [["id-a"]]
    second.feed(cleared=[ended(alert(), after=1100.0)])
    second.expect("raised id-a", "carried id-a", "ended id-a")


def test_what_is_over_after_a_restart_ended_while_nobody_watched(keep: Keep) -> None:
    first = keep().settle()
    first.feed(alert())
    first.expect("raised id-a")
    first.close()
    keep(now=first.now + 60).settle()
    wait_for(lambda: read_events(first.path).alerts[0].ended)
    (one,) = read_events(first.path).alerts
    assert (one.how, one.ended) == ("nobody watched", first.now)


def test_what_held_long_ago_is_not_gone_on_with(keep: Keep) -> None:
    first = keep().settle()
    first.feed(alert())
    first.expect("raised id-a")
    first.close()
    second = keep(now=first.now + RECENT + 60).settle(alert(id="new", raised=first.now + RECENT))
    assert second.restored == []
    second.expect("raised id-a", "carried id-a", "ended id-a", "raised new")
    found = read_events(first.path)
    assert (found.alerts[0].how, found.alerts[0].ended) == ("nobody watched", first.now)
    assert [(gap.since, gap.until) for gap in found.gaps] == [(first.now, second.now)]


def test_nothing_is_settled_before_the_engine_could_go_on(keep: Keep) -> None:
    first = keep().settle()
    first.feed(alert())
    first.expect("raised id-a")
    first.close()
    second = keep(now=first.now + 5)
    second.log.start()
    wait_for(lambda: second.restored)
    second.log.take(frame())
    again = frame(alert("unnamed", host=""), host="")
    for _ in range(5):  # of no host yet, or the same snapshot with other marks
        second.log.take(again)
    second.close()
    assert [one.id for one in read_events(first.path).open] == ["id-a"]


def test_restarts_without_end_write_no_event_twice(keep: Keep) -> None:
    for number in range(6):
        log = keep(now=EPOCH + 1000.0 + 10 * number).settle(alert())
        log.close()
    assert story(log.path).count("raised id-a") == 1
    assert "ended id-a" not in story(log.path)


# ---------------------------------------------------------------------------------------------------------------
# Two at a time


def test_only_one_of_two_writes(keep: Keep) -> None:
    first = keep().settle()
    second = keep(now=first.now)
    second.log.start()
    first.feed(alert())
    for _ in range(4):
        second.feed(alert(id="other", raised=EPOCH + 1))
    first.expect("raised id-a")
    assert (first.log.is_holder, second.log.is_holder) == (True, False)
    assert second.log.trouble == ""


def test_who_sees_some_gpus_ends_nothing_of_the_others(keep: Keep) -> None:
    seen, other = alert(), alert("b", index=1)
    keep().settle(seen, other).close()
    log = keep(only=(0,)).settle()
    assert [one.id for alerts in log.restored for one in alerts] == ["id-a"]
    log.close()
    assert [line for line in log.told() if line.startswith("ended")] == ["ended id-a"]
    assert [one.id for one in read_events(log.path).open] == ["id-b"]


def test_the_gpus_that_are_seen_are_told_by_uuid_once_their_indices_have_moved(keep: Keep) -> None:
    moved, other = alert("a", gpu=gpu(5).uuid, index=4), alert("b", gpu=gpu(6).uuid, index=5)
    keep().settle(moved, other).close()
    log = keep(only=(5,))
    log.feed()
    wait_for(lambda: log.log.is_holder)
    log.settle(gpus=[gpu(4, uuid=gpu(5).uuid)]).close()
    assert [line for line in log.told() if line.startswith("ended")] == ["ended id-a"]
    assert [one.id for one in read_events(log.path).open] == ["id-b"]


def test_who_comes_second_goes_on_with_what_holds(keep: Keep) -> None:
    first = keep().settle()
    first.feed(alert())
    first.expect("raised id-a")
    second = keep(now=first.now)
    second.log.start()
    wait_for(lambda: second.restored)
    assert [one.id for one in second.restored[0]] == ["id-a"]


def test_the_second_takes_over_under_the_ids_of_the_log(keep: Keep) -> None:
    first, second = keep().settle(), keep()
    mine = alert(id="other", raised=EPOCH + 1)
    first.feed(alert(), alert("b"))
    first.expect("raised id-a", "raised id-b")
    second.feed(mine, alert("c"))
    first.close()
    second.settle(mine, alert("c"))
    second.feed(alert("c"), cleared=[ended(mine)])
    wait_for(lambda: "ended id-a" in second.told())
    told = [line for line in second.told() if "carried" not in line]
    assert told == ["raised id-a", "raised id-b", "raised id-c", "ended id-b", "ended id-a"]
    found = {one.id: one for one in read_events(second.path).alerts}
    assert found["id-b"].how == "nobody watched"
    assert (found["id-a"].raised, found["id-a"].how) == (EPOCH, "back within the limit")


def test_what_ended_just_before_a_takeover_ends_as_the_second_saw_it(keep: Keep) -> None:
    first, second = keep().settle(), keep()
    first.feed(alert())
    first.expect("raised id-a")
    second.feed(alert(id="other"))
    second.feed(cleared=[ended(alert(id="other"), after=1001.0, how="process 7 has ended")])
    wait_for(lambda: second.log._recent)
    first.close()
    second.settle()
    wait_for(lambda: "ended id-a" in second.told())
    assert read_events(second.path).alerts[0].how == "process 7 has ended"
    assert len(read_events(second.path).alerts) == 1


HOLDER = """
import sys, time
from pathlib import Path
from gpuwatch.recorder.event_writer import EventsLog
from gpuwatch.monitor import Monitor
from tests.support.builders import EPOCH, at, gpu, snapshot
from tests.support.eventlogs import QUICK, Keeper, alert, wait_for
keeper = Keeper(Path(sys.argv[1])).settle(*[alert(str(each)) for each in range(int(sys.argv[2]) - 1)])
for number in range(int(sys.argv[2])):
    keeper.feed(*[alert(str(each)) for each in range(number + 1)])
wait_for(lambda: len(keeper.told()) >= int(sys.argv[2]))
print("ready", flush=True)
while True:
    keeper.feed(*[alert(str(each)) for each in range(int(sys.argv[2]))])
    time.sleep(0.01)
"""


def start_holder(folder: Path, count: int = 1) -> subprocess.Popen[bytes]:
    """Start another gpuwatch that holds the lock and has written so many alerts."""
    command = [sys.executable, "-c", HOLDER, str(folder), str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=CHECKOUT)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_who_is_killed_is_followed_by_the_next_and_nothing_comes_twice(keep: Keep, folder: Path) -> None:
    other = start_holder(folder, 3)
    try:
        held = [alert(str(number), id=f"mine-{number}", raised=EPOCH + 2) for number in range(3)]
        second = keep()
        for _ in range(3):
            second.feed(*held)
        assert not second.log.is_holder
        wait_for(lambda: second.restored)
    finally:
        end(other)
    second.settle(*held)
    second.feed(cleared=[ended(one, after=2000.0) for one in held])
    names = [f"id-{number}" for number in range(3)]
    second.expect(*(f"raised {name}" for name in names), *(f"ended {name}" for name in names))
    assert [one.how for one in read_events(second.path).alerts] == ["back within the limit"] * 3


def test_a_crash_between_two_writes_leaves_nothing_twice(keep: Keep, folder: Path) -> None:
    for number in range(1, 4):
        end(start_holder(folder, number))
    log = keep().settle(*[alert(str(each)) for each in range(3)])
    told = log.told()
    assert sorted(line for line in told if line.startswith("raised")) == ["raised id-0", "raised id-1", "raised id-2"]
    assert not [line for line in told if line.startswith("ended")]


def test_somebody_who_is_stopped_with_the_lock_is_told_of(keep: Keep, folder: Path) -> None:
    other = start_holder(folder)
    try:
        second = keep(pace=QUICK._replace(deaf=0.5))
        second.log.start()
        wait_for(lambda: second.restored)
        other.send_signal(signal.SIGSTOP)
        wait_for(lambda: second.log.trouble)
        assert second.log.trouble.startswith("events log: another gpuwatch of yours keeps it, and has not been heard")
        other.send_signal(signal.SIGCONT)
    finally:
        end(other)
    second.settle()
    assert second.log.trouble == ""


def test_a_lock_that_is_taken_away_is_taken_anew(keep: Keep, folder: Path) -> None:
    log = keep().settle()
    lock = folder / lock_name(log_name())
    lock.unlink()
    wait_for(lambda: lock.exists() and log.log.is_holder)
    log.settle()
    log.feed(alert())
    log.expect("raised id-a")
    other = keep()
    other.log.start()
    wait_for(lambda: other.restored)
    assert not other.log.is_holder


def test_the_lock_says_until_when_somebody_watched(keep: Keep) -> None:
    log = keep().settle()
    log.now += 500.0
    lock = log.path.with_name(lock_name(log.path.name))
    wait_for(lambda: lock.stat().st_mtime == log.now)
    log.feed(alert())
    log.expect("raised id-a")
    found = read_events(log.path)
    assert (found.watched, found.state(found.alerts[0])) == (True, State.ONGOING)


# ---------------------------------------------------------------------------------------------------------------
# With a real watch


def watched(folder: Path, wall: list[float], steps: list[Snapshot]) -> tuple[Monitor, EventsLog, Script, Reader]:
    """Start a watch that writes to a log, on a wall clock of the test's own."""
    source, reader = Script(steps), Reader()
    moments = itertools.count(5000.0)
    watch = Monitor(
        source,
        reader,
        engine=Engine(Limits(quiet=2.0)),
        clock=lambda: next(moments),
        wall=lambda: wall[0],
        patience=0.01,
    )
    log = EventsLog(folder=folder, restore=watch.restore, pace=QUICK, wall=lambda: wall[0])
    watch.add(log)
    log.start()
    wait_for(lambda: log.is_holder)
    watch.start()
    return watch, log, source, reader


def feed_until(source: Script, true: Callable[[], object], make: Callable[[float], Snapshot], start: float) -> float:
    """Let a snapshot a second come until something is true."""
    second = start

    def one_more() -> bool:
        nonlocal second
        if source.steps.empty():
            second += 1.0
            source.steps.put(make(second))
        return bool(true())

    wait_for(one_more)
    return second


def test_an_alert_of_the_engine_goes_on_over_a_restart_and_ends_as_it_should(folder: Path) -> None:
    wall, path = [EPOCH], folder / log_name()
    watch, log, source, _ = watched(folder, wall, [])
    second = feed_until(source, lambda: any("raised" in line for line in story(path)), full, 0.0)
    watch.stop()
    log.close(PATIENCE)
    (before,) = read_events(path).alerts
    wall[0] += 30.0
    watch, log, source, reader = watched(folder, wall, [])
    second = feed_until(source, lambda: log._settle_at is None, full, second)
    second = feed_until(source, lambda: any("ended" in line for line in story(path)), empty, second)
    watch.stop()
    log.close(PATIENCE)
    told = [line for line in story(path) if before.id in line]
    assert told == [f"raised {before.id}", f"carried {before.id}", f"ended {before.id}"]
    (after,) = read_events(path).alerts
    assert (after.id, after.raised, after.how != "nobody watched") == (before.id, before.raised, True)
    frames = [reader.queue.get(timeout=PATIENCE) for _ in range(reader.queue.qsize())]
    assert not any(each.raised for each in frames)


def empty(second: float) -> Snapshot:
    """Return one GPU that nobody holds, so many seconds after the first snapshot."""
    return at(snapshot([gpu(0)]), second)
