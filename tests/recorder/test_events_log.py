"""The events log: its lines, how they are put together again, and which lines are to be written."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import Alert, Severity, Unit
from gpuwatch.recorder.event_writer import ECHO, Ledger
from gpuwatch.recorder.events_log import (
    Event,
    Gap,
    LogReader,
    Record,
    State,
    decode,
    encode,
    for_host,
    is_ours,
    lock_name,
    log_name,
    read_events,
)
from tests.support.builders import EPOCH
from tests.support.eventlogs import alert, ended

NOW = EPOCH + 100.0


def write(path: Path, *records: Record | bytes) -> Path:
    """Write a log."""
    path.write_bytes(b"".join(one if isinstance(one, bytes) else encode(one) for one in records))
    return path


def raised(one: Alert, at: float = EPOCH) -> Record:
    return Record(at=at, event=Event.RAISED, alert=one)


def over(one: Alert) -> Record:
    return Record(at=one.ended or 0.0, event=Event.ENDED, alert=one)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "events-box3.jsonl"


# ---------------------------------------------------------------------------------------------------------------
# Lines


def test_a_line_has_the_alert_as_it_is() -> None:
    one = alert(owners=("ada", "ben"), pids=(1, 2), peak=5.0, unit=Unit.BYTES)
    line = encode(Record(schema=1, at=1.5, event=Event.RAISED, alert=one))
    assert line.startswith(b'{"schema":1,"at":1.5,"event":"raised","alert":{"id":"id-a","rule":"memory near limit",')
    assert line.count(b"\n") == 1
    assert decode(line) == Record(schema=1, at=1.5, event=Event.RAISED, alert=one)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"null",
        b"\x00\x00\x00",
        b"\xff\xfe",
        b"[" * 60000,
        b'{"at":1,"event":"raised"}',
        b'{"at":1,"event":"exploded"}',
        b'{"at":"1","event":"began"}',
        b'{"at":1e300,"event":"began"}',
        b'{"at":-1,"event":"began"}',
        b'{"at":1,"event":"gap","lost":-1,"from":1,"to":1}',
        b'{"at":1,"event":"began"}' + b" " * 70000,
        encode(raised(alert(raised=1e15))),
        encode(raised(alert(lasted=1e200))),
        encode(raised(alert(peak=1e300))),
        encode(raised(alert(id=""))),
        encode(raised(ended(alert()))),
        encode(Record(at=1.0, event=Event.ENDED, alert=alert())),
        encode(raised(alert())).replace(b'"severity":2', b'"severity":9'),
        encode(raised(alert())).replace(b'"severity":2', b'"severity":"2"'),
    ],
)
def test_what_is_no_record_is_none(line: bytes) -> None:
    assert decode(line) is None


def test_names_are_of_the_host() -> None:
    assert log_name("box3") == "events-box3.jsonl"
    assert for_host("attention", "../../etc/pass wd\n") == "attention-_.._etc_pass_wd_"
    assert for_host("events", "..") == "events-host"
    assert len(log_name("x" * 500)) < 100
    assert lock_name("events-box3.jsonl") == "events-box3.lock"
    assert lock_name("mine.txt") == "mine.txt.lock"


@pytest.mark.parametrize(
    ("begin", "ours"),
    [
        (b"", True),
        (b'{"schema":1,"at":1.0,"event":"began"}\nanything', True),
        (b'{"schema":1,"at":17', True),
        (b'{"sche', True),
        (b'{"at":1.0,"event":"began"}\n', False),
        (b"root:x:0:0\n", False),
        (b"\n", False),
        (b"{}", False),
        (b'{"schema":1,"at":1.0,"event":"exploded"}\n', False),
    ],
)
def test_a_log_is_known_by_its_first_line(begin: bytes, ours: bool) -> None:
    assert is_ours(begin) is ours


# ---------------------------------------------------------------------------------------------------------------
# Reading


def test_no_log_is_no_events(path: Path) -> None:
    found = read_events(path)
    assert (found.exists, found.alerts, found.watched, found.watched_until) == (False, (), False, None)


def test_records_of_one_event_are_one_alert(path: Path) -> None:
    worse = alert(severity=Severity.CRITICAL, most=Severity.CRITICAL)
    write(
        path,
        raised(alert("b", raised=EPOCH + 5)),
        raised(alert()),
        Record(at=EPOCH, event=Event.WORSE, alert=worse),
        over(ended(worse)),
    )
    found = read_events(path)
    assert [(one.id, one.severity, one.how) for one in found.alerts] == [
        ("id-a", Severity.CRITICAL, "back within the limit"),
        ("id-b", Severity.WARNING, ""),
    ]
    assert [found.state(one) for one in found.alerts] == [State.ENDED, State.OPEN]
    assert [one.id for one in found.open] == ["id-b"]


def test_what_is_damaged_is_counted_and_the_rest_is_read(path: Path) -> None:
    line = encode(raised(alert()))
    write(path, line[:50], b"\n", b"\n\n", b"\x00" * 100, b"\n", line, b"\xff\xff\n", over(ended(alert())), line[:-9])
    found = read_events(path)
    assert [one.id for one in found.alerts] == ["id-a"]
    assert found.alerts[0].ended is not None
    assert found.damaged == 4
    assert found.note == "4 lines are damaged"


def test_texts_are_cleaned_again_and_cut(path: Path) -> None:
    line = encode(raised(alert(title="T", evidence="E", how="", owners=("O",))))
    foreign = rb"\u001b[31mred\u202e\n" + b"x" * 5000
    write(path, line.replace(b'"T"', b'"' + foreign + b'"').replace(b'"O"', b'"' + foreign + b'"'))
    (one,) = read_events(path).alerts
    for words in (one.title, one.owners[0]):
        assert words.startswith("�[31mred��xxx")
        assert len(words) == 400


def test_older_files_are_read_first(path: Path) -> None:
    write(path.with_name(f"{path.name}.2"), raised(alert()))
    write(path.with_name(f"{path.name}.1"), raised(alert("b")), over(ended(alert())))
    write(path, Record(at=EPOCH, event=Event.CARRIED, alert=alert("b")), over(ended(alert("b"))))
    found = read_events(path)
    assert [(one.id, one.ended is not None) for one in found.alerts] == [("id-a", True), ("id-b", True)]
    assert [one.id for one in read_events(path, older=False).alerts] == ["id-b"]


def test_the_newest_file_that_is_there_is_read_alone(path: Path) -> None:
    """A machine that goes down while files are turned over leaves none under the first name."""
    write(path.with_name(f"{path.name}.2"), raised(alert()))
    write(path.with_name(f"{path.name}.1"), raised(alert("b")))
    assert [one.id for one in read_events(path, older=False).alerts] == ["id-b"]


def test_since_leaves_out_what_ended_before(path: Path) -> None:
    write(path, raised(alert()), over(ended(alert())), raised(alert("b")), over(ended(alert("b"), after=500.0)))
    assert [one.id for one in read_events(path, EPOCH + 100).alerts] == ["id-b"]


def test_a_held_lock_makes_what_has_no_end_ongoing(path: Path) -> None:
    write(path, raised(alert()))
    lock = path.with_name(lock_name(path.name))
    lock.touch()
    os.utime(lock, (NOW, NOW))
    found = read_events(path)
    assert (found.watched, found.watched_until, found.state(found.alerts[0])) == (False, NOW, State.OPEN)
    assert read_events(path, NOW + 1).alerts == ()
    with open(lock) as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        found = read_events(path, NOW + 1)
        assert (found.watched, found.watched_until, found.state(found.alerts[0])) == (True, None, State.ONGOING)


def test_a_log_that_has_not_changed_is_not_read_again(path: Path) -> None:
    read = LogReader(path)
    assert not read().exists
    write(path, raised(alert("a")))
    first = read()
    assert [one.id for one in first.alerts] == ["id-a"]
    assert read() is first
    with path.open("ab") as log:
        log.write(encode(over(ended(alert("a")))))
    (one,) = read().alerts
    assert one.ended is not None
    before = read()
    with (path.parent / lock_name(path.name)).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert read() is not before
        assert read().watched


def test_until_when_somebody_watched_is_known_without_a_lock(path: Path) -> None:
    write(path, raised(alert()), Record(at=NOW, event=Event.STOPPED))
    assert read_events(path).watched_until == NOW


def test_gaps_are_told(path: Path) -> None:
    write(
        path,
        Record(at=NOW, event=Event.BEGAN, since=EPOCH, pid=7),
        Record(at=NOW + 9, event=Event.GAP, lost=3, since=NOW + 1, until=NOW + 2),
    )
    found = read_events(path)
    assert found.gaps == (Gap(EPOCH, NOW, 0), Gap(NOW + 1, NOW + 2, 3))
    assert found.note == "3 lines could not be written"


def test_a_pipe_under_the_name_is_refused_at_once(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(OSError, match="not a regular file"):
        read_events(path)


texts = st.text(max_size=20)
alerts = st.builds(
    lambda name, title, severity, done: ended(alert(name, title=title)) if done else alert(name, severity=severity),
    st.sampled_from("abc"),
    texts,
    st.sampled_from(list(Severity)),
    st.booleans(),
)


def record_of(one: Alert, event: Event) -> Record:
    if one.ended is not None:
        return over(one)
    return Record(at=EPOCH, event=Event.RAISED if event is Event.ENDED else event, alert=one)


@given(
    st.lists(st.tuples(alerts, st.sampled_from([Event.RAISED, Event.WORSE, Event.EASED, Event.CARRIED, Event.ENDED]))),
    st.integers(min_value=0),
    st.binary(max_size=30),
)
def test_any_part_of_a_log_with_anything_after_it_is_read(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[Alert, Event]], cut: int, rubbish: bytes
) -> None:
    path = tmp_path_factory.mktemp("log") / "events-box3.jsonl"
    whole = b"".join(encode(record_of(one, event)) for one, event in told)
    path.write_bytes(whole[: cut % (len(whole) + 1)] + rubbish)
    found = read_events(path)
    assert found.damaged <= 1 + rubbish.count(b"\n")
    assert {one.id for one in found.alerts} <= {one.id for one, _ in told}
    path.write_bytes(whole)
    assert {one.id for one in read_events(path).alerts} == {one.id for one, _ in told}


def test_four_mebibytes_are_read_quickly(path: Path) -> None:
    """A guard against a merge whose time grows with its square, not a measurement."""
    line = encode(raised(alert("NAME", evidence="cyn holds 77.6 · ben grew 2.1 GiB in the last minute " * 6)))
    count = (4 << 20) // len(line)
    path.write_bytes(b"".join(line.replace(b"NAME", str(number).encode()) for number in range(count)))
    began = time.process_time()
    assert len(read_events(path).alerts) == count
    assert time.process_time() - began < 3.0


# ---------------------------------------------------------------------------------------------------------------
# Which lines are to be written


def events(records: list[Record]) -> list[tuple[str, str]]:
    return [(record.event.value, record.alert.id if record.alert else "") for record in records]


def test_what_the_log_says_already_is_not_written_again() -> None:
    ledger = Ledger()
    assert events(ledger.note(alert(), NOW)) == [("raised", "id-a")]
    assert ledger.note(alert(), NOW) == []
    critical = alert(severity=Severity.CRITICAL)
    assert events(ledger.note(critical, NOW)) == [("worse", "id-a")]
    assert events(ledger.note(alert(), NOW)) == [("eased", "id-a")]
    assert events(ledger.note(ended(alert()), NOW)) == [("ended", "id-a")]
    assert ledger.note(ended(alert()), NOW) == []
    assert ledger.open == ()


def test_the_same_condition_goes_on_under_the_id_that_the_log_has() -> None:
    ledger = Ledger([alert(peak=9.0)])
    mine = alert(id="mine", raised=EPOCH + 3, peak=5.0, lasted=10.0, severity=Severity.CRITICAL)
    (record,) = ledger.note(mine, NOW)
    assert record.event is Event.WORSE
    assert record.alert is not None
    assert (record.alert.id, record.alert.raised, record.alert.peak, record.alert.lasted) == ("id-a", EPOCH, 9.0, 13.0)
    assert events(ledger.note(ended(mine), NOW)) == [("ended", "id-a")]


def test_of_bytes_free_the_least_is_the_worst() -> None:
    ledger = Ledger([alert(peak=9.0, unit=Unit.FREE)])
    (record,) = ledger.note(alert(id="mine", peak=5.0, unit=Unit.FREE, severity=Severity.CRITICAL), NOW)
    assert record.alert is not None
    assert record.alert.peak == 5.0


def test_an_alert_whose_gpu_got_its_name_stays_the_same() -> None:
    ledger = Ledger([alert(gpu="index-0")])
    assert ledger.note(alert(gpu="GPU-real"), NOW) == []
    assert events(ledger.note(ended(alert(gpu="GPU-real")), NOW)) == [("ended", "id-a")]


def test_an_end_that_the_log_has_is_no_news_from_somebody_else() -> None:
    done = ended(alert())
    ledger = Ledger([done])
    mine = alert(id="mine", raised=EPOCH + 1)
    assert done.ended is not None
    assert ledger.note(mine, done.ended + 1) == []
    assert ledger.note(ended(mine), done.ended + 2) == []
    # What still holds long after is told again, as the event that it is.
    assert events(ledger.note(mine, done.ended + ECHO)) == [("carried", "id-a")]
    assert [one.id for one in ledger.open] == ["id-a"]


def test_the_same_condition_later_is_an_event_of_its_own() -> None:
    done = ended(alert())
    ledger = Ledger([done])
    later = alert(id="later", raised=EPOCH + 61)
    assert events(ledger.note(later, EPOCH + 61)) == [("raised", "later")]


def test_a_clock_that_is_set_back_hides_no_event() -> None:
    done = ended(alert())
    assert done.ended is not None
    ledger = Ledger([done])
    back = done.ended - 3600
    later = alert(id="later", raised=back)
    assert events(ledger.note(later, back)) == [("raised", "later")]
    assert events(ledger.note(ended(later), back + 60)) == [("ended", "later")]
    short = alert(id="short", raised=back + 70)
    assert events(ledger.note(ended(short, after=1.0), back + 71)) == [("raised", "short"), ("ended", "short")]
    # The event itself, told once more, is still no news.
    ledger = Ledger([done])
    assert ledger.note(done, back) == []


def test_an_event_that_nobody_wrote_is_written_whole() -> None:
    assert events(Ledger().note(ended(alert()), NOW)) == [("raised", "id-a"), ("ended", "id-a")]


def test_settling_ends_what_nobody_holds() -> None:
    ledger = Ledger([alert(), alert("b", seen=EPOCH + 70), alert("c")])
    records = ledger.settle({alert("c").key: alert("c"), alert("d").key: alert("d")}, NOW, EPOCH + 60, "nobody watched")
    assert events(records) == [("raised", "id-d"), ("ended", "id-a"), ("ended", "id-b")]
    ends = {record.alert.id: record.alert for record in records if record.alert and record.event is Event.ENDED}
    assert {name: (one.ended, one.lasted, one.how) for name, one in ends.items()} == {
        "id-a": (EPOCH + 60, 60.0, "nobody watched"),
        "id-b": (EPOCH + 70, 70.0, "nobody watched"),
    }
    assert {one.id for one in ledger.open} == {"id-c", "id-d"}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("12"), st.integers(0, 3)), max_size=40))
def test_whoever_tells_it_an_event_is_raised_once_and_ended_once(told: list[tuple[str, str, int]]) -> None:
    """Two who see the same, each with ids of its own: raised and ended alternate for each condition."""
    ledger, records, moment = Ledger(), list[Record](), EPOCH
    for name, who, level in told:
        moment += 1.0
        one = alert(name, id=f"{name}{who}", raised=moment)
        if level:
            records += ledger.note(alert(name, id=f"{name}{who}", raised=moment, severity=Severity(level)), moment)
        else:
            records += ledger.note(ended(one, after=0.0), moment)
    for name in "ab":
        order = [
            record.event.value
            for record in records
            if record.alert
            and record.alert.gpu == f"GPU-{name}"
            and record.event in (Event.RAISED, Event.ENDED, Event.CARRIED)
        ]
        assert order == ["raised", "ended"] * (len(order) // 2) + ["raised"] * (len(order) % 2)


def test_an_alert_in_the_log_means_nothing_to_another_clock() -> None:
    changes: dict[str, Any] = {"raised_monotonic": 77.0}
    (record,) = Ledger().note(alert(**changes), NOW)
    assert record.alert is not None
    assert record.alert.raised_monotonic == 0.0
