"""Recorded events: written by one gpuwatch at a time, and another goes on where that one ends."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.alerts.alert import TROUBLE, Severity
from gpuwatch.errors import UsageError
from gpuwatch.recorder.recorder import Recorder, UsageSettings
from gpuwatch.recorder.store import UNWATCHED, State, StoreError, lock_path, own_store, read_events
from tests.support import uncovered
from tests.support.builders import EPOCH
from tests.support.recording import (
    QUICK,
    Record,
    alert,
    ask,
    change,
    damage,
    ended,
    frame,
    kill,
    recording,
    start_program,
    story,
    wait_for,
)

NOW = EPOCH + 100.0
CRITICAL = Severity.CRITICAL


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that does not exist yet."""
    return tmp_path / "state" / "gpuwatch"


@pytest.fixture
def record(folder: Path) -> Iterator[Record]:
    """Return a function that makes a recorder in the folder."""
    with recording(folder) as make:
        yield make


# ---------------------------------------------------------------------------------------------------------------
# What is written


def test_an_event_is_one_row_from_raised_to_ended(record: Record) -> None:
    one = record().settle()
    one.feed(alert())
    one.expect("id-a warning")
    one.feed(alert(severity=CRITICAL, most=CRITICAL))
    one.expect("id-a critical")
    one.feed(alert(most=CRITICAL))
    one.expect("id-a warning")
    one.feed(cleared=[ended(alert(most=CRITICAL))])
    one.expect("id-a ended")
    (event,) = read_events(one.path).alerts
    assert event == ended(alert(most=CRITICAL))
    assert ask(one.path, "SELECT severity FROM events") == [(3,)], "the worst that it was"


def test_what_holds_at_the_end_and_every_now_and_then_is_written_with_its_worst_value(record: Record) -> None:
    first = record().settle()
    first.feed(alert(peak=1.0))
    first.feed(alert(peak=7.0))
    first.expect("id-a warning")
    first.close()
    assert read_events(first.path).alerts[0].peak == 7.0
    second = record(now=first.now, pace=QUICK._replace(carry=0.0)).settle(alert(peak=7.0))
    second.feed(alert(peak=9.0))
    wait_for(lambda: read_events(second.path).alerts[0].peak == 9.0)


def test_our_own_troubles_and_made_up_events_are_not_written(record: Record) -> None:
    one = record().settle()
    one.feed(alert("t", rule=TROUBLE))
    one.feed(alert("demo"), demo=True)
    one.feed(alert())
    one.expect("id-a warning")


# ---------------------------------------------------------------------------------------------------------------
# After a restart


def test_an_event_goes_on_over_restarts_under_its_id(record: Record) -> None:
    first = record().settle()
    first.feed(alert())
    first.expect("id-a warning")
    first.close()
    for number in range(1, 4):
        one = record(now=first.now + 60 * number).settle(alert())
        assert [[alert.id for alert in handed] for handed in one.restored] == [["id-a"]]
        one.close()
        assert story(one.path) == ["id-a warning"]
    last = record(now=first.now + 300).settle(alert())
    last.feed(cleared=[ended(alert(), after=1300.0)])
    last.expect("id-a ended")
    assert read_events(last.path).alerts[0].lasted == 1300.0


def test_what_is_over_after_a_restart_ended_while_gpuwatch_was_not_running(record: Record) -> None:
    first = record().settle(alert())
    first.expect("id-a warning")
    first.close()
    record(now=first.now + 60).settle()
    wait_for(lambda: read_events(first.path).alerts[0].ended)
    found = read_events(first.path)
    assert (found.alerts[0].how, found.alerts[0].ended) == ("gpuwatch was not running", first.now)
    assert found.gaps == (), "a minute is no gap"


def test_what_held_long_ago_is_over_and_the_time_between_is_a_gap(record: Record) -> None:
    first = record().settle(alert())
    first.expect("id-a warning")
    first.close()
    second = record(now=first.now + UNWATCHED + 60).settle(alert(id="new", raised=first.now + UNWATCHED))
    assert second.restored == []
    second.expect("id-a ended", "new warning")
    found = read_events(first.path)
    assert (found.alerts[0].how, found.alerts[0].ended) == ("gpuwatch was not running", first.now)
    ((since, until, lost),) = found.gaps
    assert (since, lost) == (first.now, 0)
    assert first.now + UNWATCHED + 60 < until <= second.now


def test_nothing_is_ended_before_the_engine_could_go_on(record: Record) -> None:
    first = record().settle(alert())
    first.expect("id-a warning")
    first.close()
    second = record(now=first.now + 5).start()
    wait_for(lambda: second.restored)
    again = frame(alert("unnamed", host=""), host="")
    for one in (frame(), *[again] * 5):  # of no host yet, or the same snapshot with other marks
        second.recorder.take(one)
    second.close()
    assert [one.id for one in read_events(first.path).open] == ["id-a"]


def test_the_lock_says_until_when_a_gpuwatch_recorded(record: Record) -> None:
    one = record().settle(alert())
    one.expect("id-a warning")
    found = read_events(one.path)
    assert (found.watched, found.watched_until, found.state(found.alerts[0])) == (True, None, State.ONGOING)
    one.now += 500.0
    wait_for(lambda: lock_path(one.path).stat().st_mtime == one.now)
    one.close()
    found = read_events(one.path)
    assert (found.watched, found.watched_until, found.state(found.alerts[0])) == (False, one.now, State.OPEN)
    assert read_events(one.path, one.now + 1).alerts == ()
    lock_path(one.path).unlink()
    assert read_events(one.path).watched_until == one.now, "the store knows it too"


# ---------------------------------------------------------------------------------------------------------------
# Several at a time


def test_one_of_two_writes_and_the_second_takes_over_under_the_ids_of_the_store(record: Record) -> None:
    first, second = record().settle(), record()
    mine = alert(id="other", raised=EPOCH + 1)
    first.feed(alert(), alert("b"))
    first.expect("id-a warning", "id-b warning")
    second.feed(mine, alert("c"))
    wait_for(lambda: second.restored)
    assert [one.id for one in second.restored[0]] == ["id-a", "id-b"]
    assert (first.is_leader, second.is_leader, second.trouble) == (True, False, "")
    first.expect("id-a warning", "id-b warning")
    first.close()
    second.settle(mine, alert("c"))
    second.feed(alert("c"), cleared=[ended(mine)])
    second.expect("id-a ended", "id-b ended", "id-c warning")
    found = {one.id: one for one in read_events(second.path).alerts}
    assert found["id-b"].how == "gpuwatch was not running"
    assert (found["id-a"].raised, found["id-a"].how) == (EPOCH, "back within the limit")


def test_what_another_recorded_from_its_start_to_its_end_is_not_written_again(record: Record) -> None:
    first, second = record().settle(), record()
    mine = alert(id="mine", raised=EPOCH + 2)
    first.feed(alert())
    first.expect("id-a warning")
    second.feed(mine)
    wait_for(lambda: second.restored, "it did not look who records")
    first.feed(cleared=[ended(alert())])
    first.expect("id-a ended")
    first.close()
    wait_for(lambda: second.is_leader)
    second.feed(cleared=[ended(mine)])

    def is_recorded() -> bool:
        second.feed(alert("b"))
        return story(second.path) == ["id-a ended", "id-b warning"]

    wait_for(is_recorded)


@pytest.mark.slow
def test_who_is_killed_is_followed_by_the_next_and_nothing_comes_twice(record: Record, folder: Path) -> None:
    """The other writes at every moment."""
    other = start_program(folder, 3)
    try:
        held = [alert(str(number), id=f"mine-{number}", raised=EPOCH + 2) for number in range(3)]
        second = record()
        second.feed(*held)
        wait_for(lambda: second.restored)
        assert not second.is_leader
    finally:
        kill(other)
    second.settle(*held)
    second.feed(cleared=[ended(one, after=2000.0) for one in held])
    second.expect("id-0 ended", "id-1 ended", "id-2 ended")
    assert [one.how for one in read_events(second.path).alerts] == ["back within the limit"] * 3
    assert ask(second.path, "PRAGMA integrity_check") == [("ok",)]


@pytest.mark.slow
def test_a_holder_of_the_lock_that_is_stopped_is_reported(record: Record, folder: Path) -> None:
    other = start_program(folder)
    try:
        second = record(pace=QUICK._replace(silent=0.5)).start()
        wait_for(lambda: second.restored)
        other.send_signal(signal.SIGSTOP)
        expected = "not recorded: another gpuwatch of yours records, and has not answered for "
        wait_for(lambda: second.trouble.startswith(expected))
        other.send_signal(signal.SIGCONT)
    finally:
        kill(other)
    second.feed()
    wait_for(lambda: second.is_leader and not second.trouble)  # it may have been stopped within a transaction


# ---------------------------------------------------------------------------------------------------------------
# A bad day


@pytest.mark.parametrize("failure", [StoreError("no space left on device"), OSError(errno.EIO, "gone"), TypeError("x")])
def test_what_cannot_be_written_is_reported_and_written_later(record: Record, failure: Exception) -> None:
    one = record().settle()
    one.stores[0].failure = failure
    one.feed(alert())
    one.feed(alert(), alert("b"))
    one.feed(alert("b"), cleared=[ended(alert())])
    why = {"StoreError": "no space left on device", "OSError": "gone", "TypeError": "TypeError: x"}
    expected = f"not recorded: {why[type(failure).__name__]}; 2 events wait"
    wait_for(lambda: one.trouble == expected, f"it says {one.trouble!r}")
    assert one.is_leader
    one.stores[0].failure = None
    one.expect("id-a ended", "id-b warning")
    wait_for(lambda: one.trouble == "")


def test_more_than_can_wait_is_lost_and_reported(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.recorder.recorder.MOST", 10)
    one = record().settle(alert("stays"), alert("goes"))
    one.expect("id-stays warning", "id-goes warning")
    one.stores[0].failure = StoreError("full")
    one.feed(alert("stays"), alert("goes"), alert("first"))
    wait_for(lambda: one.trouble)
    many = [alert(str(number)) for number in range(20)]
    one.feed(alert("stays"), alert("first"), *many, cleared=[ended(alert("goes"))])
    one.feed(alert("stays"), cleared=[ended(alert("first")), *(ended(each) for each in many)])
    wait_for(lambda: "are lost" in one.trouble)
    one.stores[0].failure = None
    wait_for(lambda: not one.trouble and not read_events(one.path).open[1:])
    found = read_events(one.path)
    (gap,) = found.gaps
    assert gap.lost > 0
    assert found.note == f"{gap.lost} events could not be written"
    assert {event.id for event in found.open} == {"id-stays"}
    assert {event.id: event.how for event in found.alerts}["id-goes"] == "back within the limit"


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_file_that_is_taken_away_is_begun_anew_with_what_holds(record: Record, how: str) -> None:
    one = record().settle(alert())
    one.expect("id-a warning")
    one.path.unlink() if how == "removed" else damage(one.path, b"")
    one.feed(alert(), alert("b"))
    wait_for(lambda: set(story(one.path)) == {"id-a warning", "id-b warning"} and not one.trouble)
    assert not one.path.with_name(f"{one.path.name}.damaged").exists()


def test_damaged_files_are_never_overwritten_and_do_not_fill_the_disk(record: Record, folder: Path) -> None:
    one = record().settle(alert())
    one.expect("id-a warning")
    for number in range(5):
        damage(one.path, f"rubbish {number}".encode() * 1000)
        one.feed(alert(), alert(str(number)))
        wait_for(lambda: f"id-{number} warning" in story(one.path) and "is kept" in one.trouble)  # noqa: B023 - at once
    damage(one.path, b"rubbish 5" * 1000)
    one.feed(alert("last"))
    wait_for(lambda: "5 damaged ones are kept already" in one.trouble)
    assert one.path.read_bytes() == b"rubbish 5" * 1000
    assert {file.read_bytes()[:9] for file in folder.glob("*.damaged*")} == {b"rubbish %d" % n for n in range(5)}


def test_a_folder_that_cannot_be_made_is_reported(record: Record, folder: Path) -> None:
    folder.parent.touch()
    one = record()
    one.feed(alert())
    wait_for(lambda: one.trouble == f"not recorded: {one.path}: not a directory; 1 event waits")
    one.feed(cleared=[ended(alert())])
    one.feed(alert("b"))
    folder.parent.unlink()
    one.settle(alert("b"))
    wait_for(lambda: set(story(one.path)) == {"id-a ended", "id-b warning"})
    assert one.trouble == ""


@pytest.mark.parametrize("what", ["text", "pipe", "database", "nowhere"])
def test_a_named_file_that_is_something_else_is_refused(tmp_path: Path, what: str) -> None:
    path = tmp_path / "mine"
    if what == "text":
        path.write_text("shopping list\n")
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "database":
        change(path, "CREATE TABLE mine (one)")
    else:
        path = tmp_path / "missing" / "mine"
    before = path.read_bytes() if path.is_file() else b""
    with pytest.raises(UsageError, match=str(path)):
        Recorder(named=path)
    assert not path.is_file() or path.read_bytes() == before


def test_a_named_file_is_gone_on_with_and_takes_the_events_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    path = tmp_path / "mine.sqlite"
    for _ in range(2):
        with recording(tmp_path / "state") as make:
            make(named=path, demo=True).settle(alert(), demo=True).expect("id-a warning")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755
    assert {file.name for file in tmp_path.iterdir()} == {"mine.sqlite", "mine.lock"}
    with recording(tmp_path / "state") as make:
        one = make(named=path, usage=UsageSettings()).settle(alert())
        one.mark(lambda before: before.acknowledged(alert(), one.now))
        wait_for(own_store(tmp_path / "state").exists)
    assert ask(path, "SELECT count(*) FROM marks") == [(0,)]
    assert ask(own_store(tmp_path / "state"), "SELECT count(*) FROM events") == [(0,)]


def test_sqlite_is_loaded_only_where_something_is_recorded_or_read() -> None:
    program = "import sys, gpuwatch.commands.dashboard_app; sys.exit('sqlite3' in sys.modules)"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=False, env=uncovered.environment()).returncode == 0
