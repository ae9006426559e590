"""What somebody has seen, or does not want to hear of."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import (
    HOUR,
    KEPT,
    NO_ATTENTION,
    URGENT,
    Acknowledgement,
    Alert,
    AlertCause,
    AlertUser,
    Attention,
    Mute,
    Severity,
)
from gpuwatch.alerts.rules import RULE_NAMES

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
RAISED = 1000.0


def alert(**changes: Any) -> Alert:
    """Return an alert that was raised at 1000."""
    fields: dict[str, Any] = {
        "rule": "over declared",
        "host": "box3",
        "gpu": "GPU-0",
        "subject": "100:100 GPU-0",
        "severity": WARNING,
        "title": "too much",
        "raised": RAISED,
    }
    return Alert(**{**fields, **changes})


def marks(attention: Attention, shown: Alert, now: float = RAISED + 10) -> tuple[bool, bool]:
    marked = attention.mark(shown, now)
    assert marked.quiet is (marked.acknowledged or marked.muted)
    return marked.acknowledged, marked.muted


CASES: tuple[tuple[float, Alert, Alert, bool], ...] = (
    # Seconds after the alert was raised at which it was acknowledged, as it was then, as it is now.
    (5, alert(), alert(), True),
    (5, alert(), alert(rule="opened GPUs it does not use"), False),
    (5, alert(), alert(host="box4"), False),
    (5, alert(), alert(subject="101:101 GPU-0"), False),
    (5, alert(), alert(raised=RAISED + 6), False),  # the next event of the same condition
    (-3600, alert(), alert(), True),  # the clock was set meanwhile
    (5, alert(), alert(severity=CRITICAL), False),
    (5, alert(), alert(severity=NOTE), True),
    (5, alert(severity=CRITICAL), alert(severity=CRITICAL), True),
)


@pytest.mark.parametrize(("after", "before", "now", "acknowledged"), CASES)
def test_an_acknowledged_alert_is_marked_until_it_gets_worse_or_begins_anew(
    after: float, before: Alert, now: Alert, acknowledged: bool
) -> None:
    attention = NO_ATTENTION.acknowledged(alert(), RAISED + after).acknowledged(before, RAISED + after)
    assert marks(attention, now) == (acknowledged, False)
    assert len(attention.acks) == 1
    marked = attention.mark(now, 0)
    assert attention.mark(marked, 0) is marked
    assert NO_ATTENTION.mark(now, 0) is now


def test_a_rule_is_muted_for_a_while_and_one_alert_for_good() -> None:
    rule = NO_ATTENTION.muted(Mute(rule="over declared", until=RAISED + HOUR))
    one = NO_ATTENTION.muted(Mute(rule="over declared", key=alert().key))
    other = alert(subject="101:101 GPU-0")
    assert [marks(each, shown) for each in (rule, one) for shown in (alert(), other)] == [
        (False, True),
        (False, True),
        (False, True),
        (False, False),
    ]
    later = RAISED + HOUR
    assert (rule.is_muted(alert(), later - 1), rule.is_muted(alert(), later)) == (True, False)
    assert one.is_muted(alert(raised=later), later + KEPT)
    assert not rule.is_muted(alert(rule="opened GPUs it does not use"), RAISED)


def test_a_mute_takes_the_place_of_another_and_goes() -> None:
    attention = NO_ATTENTION.muted(Mute(rule="XID", until=5.0)).muted(Mute(rule="XID", key="k"))
    attention = attention.muted(Mute(rule="XID", until=9.0))
    assert attention.mutes == (Mute(rule="XID", key="k"), Mute(rule="XID", until=9.0))
    assert attention.unmuted("XID").mutes == (Mute(rule="XID", key="k"),)
    assert attention.unmuted("XID", "k").unmuted("XID") == NO_ATTENTION


def test_what_has_ended_or_is_old_is_let_go() -> None:
    other = alert(subject="101:101 GPU-0")
    attention = NO_ATTENTION.acknowledged(alert(), RAISED).acknowledged(other, RAISED)
    attention = attention.muted(Mute(rule="XID", until=RAISED + 1)).muted(Mute(rule="XID", key="k"))
    assert attention.pruned([], RAISED) is attention
    left = attention.pruned([alert()], RAISED + 1)
    assert [one.key for one in left.acks] == [other.key]
    assert left.mutes == (Mute(rule="XID", key="k"),)
    assert left.pruned([], RAISED + KEPT + 1).acks == ()


@pytest.mark.parametrize("raw", ['{"acks":[{"key":"k","at":1.0}]}', "{}"])
def test_what_an_older_gpuwatch_wrote_is_read(raw: str) -> None:
    attention = msgspec.json.decode(raw, type=Attention)
    assert all(one.severity is CRITICAL for one in attention.acks)


_acks = st.builds(Acknowledgement, key=st.sampled_from("ab"), at=st.floats(0, 9), severity=st.sampled_from(Severity))
_mutes = st.builds(
    Mute, rule=st.sampled_from("ab"), key=st.sampled_from(["", "a"]), until=st.one_of(st.none(), st.floats(0, 9))
)


@given(st.builds(Attention, acks=st.lists(_acks).map(tuple), mutes=st.lists(_mutes).map(tuple)))
def test_it_is_written_and_read_again(attention: Attention) -> None:
    assert msgspec.json.decode(msgspec.json.encode(attention), type=Attention) == attention
    assert attention.pruned([], 5.0).pruned([], 5.0) == attention.pruned([], 5.0)


def test_what_needs_a_hand_now_comes_first() -> None:
    order = [
        alert(rule="nearly full", severity=CRITICAL, raised_monotonic=9),
        alert(rule="time to full", raised_monotonic=8),
        alert(severity=CRITICAL, raised_monotonic=7),
        alert(raised_monotonic=1),
        alert(rule="gpu health", severity=CRITICAL, raised_monotonic=6),
        alert(rule="XID", severity=CRITICAL, raised_monotonic=5),
        alert(rule="nearly full", raised_monotonic=4),
        alert(rule="idle but held", raised_monotonic=5),
        alert(rule="idle but held", severity=NOTE, raised_monotonic=2),
    ]
    given_last_first = [*reversed(order)]
    assert sorted(given_last_first, key=lambda one: one.weight) == order
    assert set(URGENT) <= RULE_NAMES


@pytest.mark.parametrize(
    ("changes", "after", "standing"),
    [
        ({}, 599, False),
        ({}, 600, True),
        ({"severity": NOTE}, 600, True),
        ({"severity": CRITICAL}, 6000, False),
        ({"worse": RAISED + 100}, 600, False),
        ({"worse": RAISED + 100}, 700, True),
        ({"rule": "time to full"}, 6000, False),
        ({"users": (AlertUser(7, "me"),)}, 6000, False),
        ({"causes": (AlertCause(uid=7, pid=1),)}, 6000, False),
        ({"users": (AlertUser(8, "ada"),)}, 6000, True),
    ],
)
def test_a_warning_about_others_that_stands_for_ten_minutes_is_known(
    changes: dict[str, Any], after: float, standing: bool
) -> None:
    assert alert(**changes).is_standing(RAISED + after, viewer=7) is standing
