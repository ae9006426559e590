"""What was acknowledged and muted: kept over restarts, and the same for all gpuwatches that change it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import Acknowledgement, Attention, Mute
from gpuwatch.recorder.store import Store, StoreError, changed_marks, marks_of, own_store, with_marks
from tests.support.builders import EPOCH
from tests.support.recording import (
    Record,
    Recording,
    alert,
    change,
    marks,
    recording,
    saved_marks,
    wait_for,
)

NOW = EPOCH + 1000.0
OVER = "uses more than declared"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state" / "gpuwatch"


@pytest.fixture
def record(folder: Path) -> Iterator[Record]:
    """Return a function that starts a gpuwatch."""
    with recording(folder) as make:
        yield lambda **options: make(**options).start()


def acknowledge(one: Recording, name: str) -> None:
    one.mark(lambda before: before.acknowledged(alert(name), NOW))


def mute(one: Recording, rule: str, until: float | None = None) -> None:
    one.mark(lambda before: before.muted(Mute(rule=rule, until=until)))


def wait_for_marks(expected: set[str], *several: Recording) -> None:
    """Wait until the store and these gpuwatches have the same marks."""
    path = several[0].path
    wait_for(lambda: saved_marks(path) == expected and all(marks(one.attention) == expected for one in several))


def test_marks_are_there_after_a_restart(record: Record) -> None:
    first = record()
    acknowledge(first, "a")
    mute(first, OVER)
    first.close()
    second = record()
    wait_for_marks({"a", OVER}, second)
    assert second.attended_count == 1


def test_two_who_change_them_end_up_with_the_same(record: Record) -> None:
    first, second = record(), record()
    acknowledge(first, "a")
    mute(second, OVER)
    wait_for_marks({"a", OVER}, first, second)
    second.mark(lambda before: before.unmuted(OVER))
    wait_for_marks({"a"}, first, second)
    second.mark(lambda before: before.unacknowledged(alert("a")))
    wait_for_marks(set(), first, second)


def test_what_is_out_of_date_is_not_kept(record: Record) -> None:
    first = record()
    mute(first, OVER, until=NOW - 1)
    mute(first, "throttled", until=NOW + 1)
    wait_for(lambda: saved_marks(first.path) == {"throttled"})


def test_a_file_that_is_taken_away_changes_nothing_and_the_marks_come_back(record: Record) -> None:
    one, other = record(), record()
    acknowledge(one, "a")
    wait_for_marks({"a"}, one, other)
    one.path.unlink()
    acknowledge(one, "b")
    wait_for_marks({"a", "b"}, one, other)


def test_what_could_not_be_saved_is_saved_later(record: Record) -> None:
    one = record()
    one.stores[0].failure = StoreError("no room")
    acknowledge(one, "a")
    wait_for(
        lambda: one.trouble == "not recorded: no room; what you acknowledged or muted counts in this gpuwatch alone"
    )
    mute(one, OVER)
    one.stores[0].failure = None
    wait_for(lambda: saved_marks(one.path) == {"a", OVER} and not one.trouble)


def test_rows_that_cannot_be_ours_are_left_out_and_texts_are_cleaned(record: Record, folder: Path) -> None:
    path = own_store(folder)
    Store(path).write(lambda connection: None)
    rows = [
        "'ack', '', 'GPU-a', 1700000000.0, 2, NULL",
        "'ack', '', 'GPU-b', 1e300, 2, NULL",
        "'ack', '', 'GPU-c', 'soon', 2, NULL",
        "'ack', '', 'GPU-d', 1700000000.0, 9, NULL",
        "'mute', 'rule', '', NULL, NULL, -1",
        "'mute', '\x1b[31m', '', NULL, NULL, NULL",
        "'other', 'x', 'y', 1.0, 1, 1.0",
    ]
    change(path, *(f"INSERT INTO marks VALUES ({row})" for row in rows))
    one = record()
    wait_for(lambda: marks(one.attention) == {"a", "�[31m"})


states = st.builds(
    lambda acks, mutes: Attention(
        acks=tuple(Acknowledgement(key=key, at=NOW - at) for key, at in acks.items()),
        mutes=tuple(Mute(rule=rule, until=None if until is None else NOW + until) for rule, until in mutes.items()),
    ),
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)),
    st.dictionaries(st.sampled_from("xyz"), st.none() | st.integers(1, 3)),
)


@given(states, states, states)
def test_changes_add_up(one: Attention, other: Attention, third: Attention) -> None:
    first, second = changed_marks(one, other), changed_marks(other, third)
    assert not changed_marks(with_marks(one, first, NOW), other)
    assert not changed_marks(with_marks(one, first | second, NOW), third)
    assert not changed_marks(one, one)


@given(states, states, states)
def test_a_change_touches_nothing_else(one: Attention, other: Attention, disk: Attention) -> None:
    changed = changed_marks(one, other)
    result, before = marks_of(with_marks(disk, changed, NOW)), marks_of(disk)
    assert {key: mark for key, mark in result.items() if key not in changed} == {
        key: mark for key, mark in before.items() if key not in changed
    }
