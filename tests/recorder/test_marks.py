"""Marks: changes that add up; `lives.jsonl` tells who changes them."""

from __future__ import annotations

from pathlib import Path
from sqlite3 import Connection

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import Acknowledgement, Attention, Mute
from gpuwatch.recorder.marks import changed_marks, marks_of, read_marks, with_marks, write_marks
from gpuwatch.recorder.opening import reading
from gpuwatch.recorder.store import Store
from tests.support.builders import EPOCH

NOW = EPOCH + 1000.0


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


def test_marks_of_a_rule_that_was_renamed_still_apply(tmp_path: Path) -> None:
    def marks(rule: str) -> Attention:
        return Attention(
            acks=(Acknowledgement(key=f"{rule}|box3|GPU-0", at=NOW),),
            mutes=(Mute(rule=rule), Mute(rule=rule, key=f"{rule}|box3|GPU-1")),
        )

    def write_old(connection: Connection) -> None:
        write_marks(connection, marks_of(marks("memory near limit")), NOW)

    path = tmp_path / "store.db"
    Store(path).write(write_old)
    with reading(path) as connection:
        assert read_marks(connection) == marks("nearly full")
