"""Recorded events: written by one gpuwatch at a time, and another goes on where that one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from gpuwatch.alerts.alert import TROUBLE, Alert, Mute, Severity
from gpuwatch.analysis.events import State
from gpuwatch.recorder.events import read_events
from gpuwatch.recorder.opening import StoreError
from gpuwatch.recorder.schema import lock_path, own_store
from tests.support.builders import EPOCH
from tests.support.environment import environment
from tests.support.store import (
    QUICK,
    Record,
    Recording,
    alert,
    ask,
    damage,
    ended,
    frame,
    kill,
    marks,
    recording,
    saved_marks,
    start_program,
    story,
    wait_for,
    write,
)

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
# What is written, and who writes


class Life(msgspec.Struct, forbid_unknown_fields=True):
    """Line of lives.jsonl: what several gpuwatches see and do, one after the other."""

    about: str
    steps: list[str]
    """`1 feed a=critical -b` hands the first gpuwatch a frame in which `a` holds and `b` has ended.

    `a@2` was raised 2 seconds later than others. `stored a ended, b warning` and `marks a` wait until the store has
    that, `1 says` until this is its trouble. `1 follows a` is no leader, and goes on with `a`. `+60` lets time pass.
    """


LIVES = [
    msgspec.json.decode(line, type=Life) for line in (Path(__file__).parent / "lives.jsonl").read_text().splitlines()
]


def read_alerts(words: Sequence[str]) -> tuple[list[Alert], list[Alert]]:
    """Return the alerts that hold and those that have ended."""
    held, over = [], []
    for word in words:
        name, _, level = word.removeprefix("-").partition("=")
        name, _, later = name.partition("@")
        severity = Severity[level.upper()] if level else Severity.WARNING
        one = alert(name, id=f"id-{name}{later}", severity=severity, most=severity, raised=EPOCH + float(later or 0))
        over.append(ended(one)) if word.startswith("-") else held.append(one)
    return held, over


@pytest.mark.parametrize("life", LIVES, ids=lambda life: life.about)
def test_life(record: Record, folder: Path, life: Life) -> None:
    made: dict[str, Recording] = {}
    path, now = own_store(folder), EPOCH + 1000.0
    for step in life.steps:
        who, _, rest = step.partition(" ")
        verb, _, words = rest.partition(" ")
        if who.startswith("+"):
            now += float(who)
        elif who == "stored":
            expected = [f"id-{one}" for one in rest.split(", ")]
            wait_for(lambda: story(path) == expected, step)  # noqa: B023 - at once
        elif who == "how":
            name, _, how = rest.partition(": ")
            assert {one.id: one.how for one in read_events(path).alerts}[f"id-{name}"] == how
        elif who == "gaps":
            assert [round(gap.until - gap.since, -1) for gap in read_events(path).gaps] == [
                float(one) for one in rest.split()
            ]
        elif who == "marks":
            acted = list(made.values())
            wait_for(lambda: all(marks(one.attention) == {*rest.split()} for one in acted), step)  # noqa: B023
            wait_for(lambda: saved_marks(path) == {*rest.split()}, step)  # noqa: B023
        elif who == "unlink":
            path.unlink()
        else:
            if who not in made:
                made[who] = record(now=now)
            act(made[who], verb, words)
            now = max(now, made[who].now)


def act(one: Recording, verb: str, words: str) -> None:
    """Let a gpuwatch do or see something."""
    held, over = read_alerts(words.split()) if verb in ("settle", "feed") else ([], [])
    if verb == "settle":
        one.settle(*held)
    elif verb == "feed":
        one.feed(*held, cleared=over)
    elif verb == "follows":
        one.start()
        wait_for(lambda: one.restored)
        assert (one.is_leader, one.trouble) == (False, "")
        assert [each.id for each in one.restored[0]] == [f"id-{name}" for name in words.split()]
    elif verb == "says":
        wait_for(lambda: one.trouble == words, f"it says {one.trouble!r}")
    elif verb in ("fails", "works"):
        one.stores[0].failure = StoreError(words) if words else None
    elif verb == "acknowledges":
        one.mark(lambda before: before.acknowledged(alert(words), one.now))
    elif verb == "forgets":
        one.mark(lambda before: before.unacknowledged(alert(words)))
    elif verb == "mutes":
        rule, _, until = words.partition(" until ")
        one.mark(lambda before: before.muted(Mute(rule=rule, until=one.now + float(until) if until else None)))
    elif verb == "unmutes":
        one.mark(lambda before: before.unmuted(words))
    else:
        assert verb in ("start", "close")
        one.start() if verb == "start" else one.close()


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


def test_the_store_says_which_messages_were_sent(record: Record) -> None:
    now = EPOCH + 1000.0
    for sends, restored in ((False, None), (True, False), (False, True), (True, True)):
        one = record(now=now, was_sent=lambda _: sends).start()  # noqa: B023 - at once
        if restored is not None:
            wait_for(lambda: one.restored)  # noqa: B023 - at once
            assert [each.sent for each in one.restored[0]] == [restored]
        one.settle(alert())
        wait_for(lambda: [each.sent for each in read_events(one.path).open] == [sends or bool(restored)])  # noqa: B023
        one.close()
        now = one.now + 5.0


def test_that_a_message_was_sent_is_written_at_once(record: Record) -> None:
    sent: set[str] = set()
    one = record(was_sent=lambda alert: alert.id in sent).settle(alert())
    one.expect("id-a warning")
    assert not read_events(one.path).open[0].sent
    sent.add("id-a")
    one.recorder.write_soon()
    wait_for(lambda: read_events(one.path).open[0].sent)


def test_our_own_troubles_and_made_up_events_are_not_written(record: Record) -> None:
    one = record().settle()
    one.feed(alert("t", rule=TROUBLE))
    one.feed(alert("demo"), demo=True)
    one.feed(alert())
    one.expect("id-a warning")


# ---------------------------------------------------------------------------------------------------------------
# Times


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


def test_no_event_ends_before_it_was_seen(record: Record, folder: Path) -> None:
    path = write(own_store(folder), alert(seen=EPOCH + 90.0), now=EPOCH + 50.0)
    lock_path(path).touch()
    os.utime(lock_path(path), (EPOCH + 50.0, EPOCH + 50.0))
    record(now=EPOCH + 1000.0).settle()
    wait_for(lambda: story(path) == ["id-a ended"])
    (one,) = read_events(path).alerts
    assert (one.ended, one.lasted) == (EPOCH + 90.0, 90.0)


def test_an_event_that_ended_between_two_writes_is_recorded(record: Record) -> None:
    one = record().settle()
    one.feed(cleared=[ended(alert(raised=EPOCH + 990.0), after=5.0)])
    one.expect("id-a ended")


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
# Others that are killed or stopped


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
        expected = "not recorded: your other gpuwatch, which records, has not answered for "
        wait_for(lambda: second.trouble.startswith(expected))
        other.send_signal(signal.SIGCONT)
    finally:
        kill(other)
    second.feed()
    wait_for(lambda: second.is_leader and not second.trouble)  # it may have been stopped within a transaction


# ---------------------------------------------------------------------------------------------------------------
# A bad day


def test_more_than_can_wait_is_lost_and_reported(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.recorder.events.MOST", 10)
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


def test_damaged_files_are_never_overwritten_and_do_not_fill_the_disk(record: Record, folder: Path) -> None:
    one = record().settle(alert())
    one.expect("id-a warning")
    for number in range(5):
        damage(one.path, f"rubbish {number}".encode() * 1000)
        one.feed(alert(), alert(str(number)))
        wait_for(lambda: f"id-{number} warning" in story(one.path) and "was damaged" in one.trouble)  # noqa: B023 - at once
    damage(one.path, b"rubbish 5" * 1000)
    one.feed(alert("last"))
    wait_for(lambda: "5 damaged files are kept already" in one.trouble)
    assert one.path.read_bytes() == b"rubbish 5" * 1000
    assert {file.read_bytes()[:9] for file in folder.glob("*.damaged*")} == {b"rubbish %d" % n for n in range(5)}


def test_where_no_use_is_kept_surplus_events_are_deleted_too(
    record: Record, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuwatch.recorder.store._MOST_EVENTS", 10)
    one = record(pace=QUICK._replace(usage=0.0, prune=0.0)).settle()
    assert not one.path.exists(), "nothing happened yet"
    write(one.path, *(ended(alert(str(number))) for number in range(30)))
    wait_for(lambda: len(story(one.path)) == 10)


def test_a_folder_that_cannot_be_made_is_reported(record: Record, folder: Path) -> None:
    folder.parent.touch()
    one = record()
    one.feed(alert())
    wait_for(lambda: one.trouble == f"not recorded: {one.path}: not a directory; 1 event is waiting")
    folder.parent.unlink()
    one.settle(alert())
    one.expect("id-a warning")
    assert one.trouble == ""


def test_sqlite_is_loaded_only_where_something_is_recorded_or_read() -> None:
    program = "import sys, gpuwatch.commands.dashboard_app; sys.exit('sqlite3' in sys.modules)"
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=False, env=environment()).returncode == 0
