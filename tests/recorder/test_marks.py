"""Marks: what a damaged store has of them, and changes that add up; `lives.jsonl` tells who changes them."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import Acknowledgement, Attention, Mute
from gpuwatch.recorder.marks import changed_marks, marks_of, with_marks
from gpuwatch.recorder.paths import own_store
from gpuwatch.recorder.store import Store
from tests.support.builders import EPOCH
from tests.support.store import change, marks, recording, wait_for

NOW = EPOCH + 1000.0


def test_rows_that_cannot_be_ours_are_left_out_and_texts_are_cleaned(tmp_path: Path) -> None:
    path = own_store(tmp_path)
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
    with recording(tmp_path) as make:
        one = make().start()
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
