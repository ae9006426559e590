"""Alerts that another gpuwatch raised: they go on, once, until a sample says that they are over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.alerts.engine import FORGOTTEN
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules.health import STALE
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.model import Declared, Health, Knowledge, Memory, SourceState
from tests.support.alerting import Bench, cap, card, feed, only, overshooting, part, words
from tests.support.builders import EPOCH, filled, gpu, holding, process

WARNING, CRITICAL = Severity.WARNING, Severity.CRITICAL


def near(**changes: Any) -> Alert:
    """Return the alert of a GPU near its limit that somebody else raised a minute before the first snapshot."""
    bench = Bench()
    bench.feed_free(4, 3, 4)
    fields = {"id": "0123456789", "raised": EPOCH - 60, "raised_monotonic": 7.0}
    return msgspec.structs.replace(only(bench, MEMORY), **{**fields, **changes})


def held(**changes: Any) -> Alert:
    """Return an overshoot that somebody else raised."""
    return msgspec.structs.replace(only(overshooting(cap(10)), OVERSHOOT), raised=EPOCH - 60, **changes)


def test_a_restored_alert_goes_on_and_is_not_raised_again() -> None:
    bench, before = Bench(), near(peak=12.0, mean=100.0)
    bench.restore(before)
    assert bench.feed_free(4, 4, 4, 4) == [()] * 4
    alert = only(bench, MEMORY)
    assert (alert.id, alert.raised, alert.peak) == ("0123456789", EPOCH - 60, 12.0)
    assert (alert.raised_monotonic, alert.lasted) == (5000.0 - 1.0 - 61.0 + 2.0, 63.0)
    assert alert.mean is not None
    assert 100.0 < alert.mean < (alert.last or 0)


def test_it_is_held_in_the_first_seconds_and_while_readings_are_missing() -> None:
    bench = Bench(Limits())
    bench.restore(near())
    for shown in (filled(4, memory=Memory()), gpu(0, health=Health.SILENT), filled(60), filled(60), filled(60)):
        assert words(bench.feed(shown)) == ()
        assert only(bench, MEMORY).id == "0123456789"
    assert bench.feed_free(60) == [("cleared",)]
    assert bench.last.cleared[0].title == near().title
    assert bench.last.cleared[0].how == "47.5 of 79.1 GiB free again"


def test_it_gets_worse_and_steps_down_as_any() -> None:
    bench = Bench()
    bench.restore(near(severity=WARNING, most=WARNING))
    assert bench.feed_free(4, 4, 4) == [(), (), ("+critical",)]
    assert only(bench, MEMORY).id == "0123456789"
    bench.feed_free(8.5, 8.5, 8.5)
    assert [alert.severity for alert in bench.last.eased] == [WARNING]


def test_of_two_the_older_is_the_event() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    young = only(bench, MEMORY)
    bench.restore(near(peak=12.0, severity=WARNING))
    assert bench.feed_free(4) == [()]
    alert = only(bench, MEMORY)
    assert (alert.id, alert.raised, alert.peak, alert.severity) == ("0123456789", EPOCH - 60, 12.0, CRITICAL)
    assert alert.lasted == 63.0
    bench.restore(young)
    bench.feed_free(4)
    assert only(bench, MEMORY).id == "0123456789"


@pytest.mark.parametrize(
    "other",
    [near(host="box4"), near(ended=EPOCH), near(rule=TROUBLE, gpu="", subject="events log")],
    ids=["another host's", "ended", "gpuwatch's own"],
)
def test_what_is_not_restored(other: Alert) -> None:
    bench = Bench()
    bench.restore(other)
    bench.feed_free(60)
    assert (bench.last.active, bench.last.cleared) == ((), ())
    assert bench.engine._conditions == {}


def test_it_waits_until_the_host_is_known() -> None:
    bench = Bench()
    bench.restore(near(), near(host="", rule=STALE, gpu="", id="9876543210"))
    bench.feed(host="", state=SourceState.DRIVER_DOWN)
    bench.feed(filled(4), state=SourceState.DRIVER_DOWN)
    assert only(bench, MEMORY).id == "0123456789"
    assert (only(bench, STALE).id, only(bench, STALE).host) == ("9876543210", "box3")
    assert bench.last.raised == ()


def test_a_start_in_the_future_is_now() -> None:
    bench = Bench()
    bench.restore(near(raised=EPOCH + 3600))
    bench.feed_free(4)
    assert only(bench, MEMORY).lasted == 1.0


# Processes


def test_the_overshoot_of_a_process_goes_on() -> None:
    bench = Bench()
    bench.restore(held())
    for declared in (None, Declared(knowledge=Knowledge.PENDING), Declared(), cap(10)):
        assert feed(bench, declared, 50) == [()]
        assert only(bench, OVERSHOOT).raised == EPOCH - 60
    # From here on it has been judged, and ends as any.
    assert feed(bench, Declared(), 50) == [("cleared",)]


@pytest.mark.parametrize(
    "shown",
    [gpu(0), gpu(0, used_gib=40, holdings=[holding(100, 50.0, start=999)])],
    ids=["gone", "another with its pid"],
)
def test_it_ends_with_its_process(shown: Any) -> None:
    bench = Bench()
    bench.restore(held())
    assert words(bench.feed(shown)) == ("cleared",)
    assert bench.last.cleared[0].how == "process 100 has ended"


def test_the_processes_of_a_scope_are_known_by_their_pids() -> None:
    before = held(subject=f"genv 12 {gpu(0).key}", pids=(100, 101))
    bench = Bench()
    bench.restore(before)
    bench.feed(card((101, 5.0)), people=[process(101)])
    assert len(bench.of(OVERSHOOT)) == 1
    bench.feed(card((102, 5.0)), people=[process(102)])
    assert bench.last.cleared[0].how == "its processes have ended"


def test_what_no_sample_ever_judges_is_forgotten() -> None:
    bench = Bench()
    bench.restore(held())
    feed(bench, Declared(), *[50] * 3)
    assert len(bench.of(OVERSHOOT)) == 1
    feed(bench, Declared(), 50, seconds=FORGOTTEN)
    assert len(bench.last.cleared) == 1


def test_a_part_that_is_known_does_not_judge_it() -> None:
    bench = Bench()
    bench.restore(held())
    people = [process(100, declared=part(0.9))]
    bench.feed(card((100, 5.0), holdings_note="incomplete"), people=people)
    assert len(bench.of(OVERSHOOT)) == 1
