"""What the GPU says of itself: heat, throttling, power, memory errors and XIDs, raised and cleared sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from gpuwatch.alerts.alert import Alert, Severity, Unit
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules.hardware import (
    ECC,
    MEANINGS,
    POWER,
    RECENT,
    REMAP,
    RULES,
    TEMPERATURE,
    THROTTLED,
    XID,
)
from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Reason, Xid
from tests.support.alerting import Bench, observed, only, uuid, words
from tests.support.builders import EPOCH, gpu, holding, process, snapshot

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL


def bench(**limits: Any) -> Bench:
    """Return an engine that knows nothing but the rules about hardware."""
    return Bench(Limits(quiet=0, **limits), rules=RULES)


def card(index: int = 0, **changes: Any) -> Gpu:
    """Return a GPU that is well, and can say so in every way."""
    return gpu(index, **{"remap_pending": False, "remap_failed": False, "xids": (), **changes})


def run(one: Bench, seconds: int, **changes: Any) -> list[tuple[str, ...]]:
    """Let GPU 0 be so for some samples, a second apart; returns what changed, without the seconds when nothing did."""
    found = [words(one.feed(card(**changes))) for _ in range(seconds)]
    return [change for change in found if change]


def ended(one: Bench, most: int = 30, **changes: Any) -> Alert:
    """Let GPU 0 be so until an alert ends; gives that as it was last."""
    for _ in range(most):
        cleared = one.feed(card(**changes)).cleared
        if cleared:
            return cleared[0]
    raise AssertionError("nothing ended")


# Temperature


@pytest.mark.parametrize(
    ("degrees", "severity"), [(81, None), (82, WARNING), (84, WARNING), (86, WARNING), (87, CRITICAL), (90, CRITICAL)]
)
def test_a_gpu_is_hot_from_a_margin_below_its_own_slowdown_temperature(degrees: int, severity: Severity | None) -> None:
    one = bench()
    run(one, 11, temperature=degrees)
    assert [alert.severity for alert in one.of(TEMPERATURE)] == ([severity] if severity else [])


def test_a_hot_gpu_says_how_hot_where_it_slows_down_and_who_computes() -> None:
    one = bench()
    for _ in range(11):
        one.feed(
            card(1, temperature=84, fan=60, holdings=[holding(7, sm=10), holding(8, sm=90), holding(9, sm=0)]),
            people=[process(7, "ada"), process(8, "ben"), process(9, "cyn")],
        )
    alert = only(one, TEMPERATURE)
    assert alert.title == "GPU 1 at 84 °C, slows down at 87"
    assert alert.evidence == "310 of 700 W · SM clock 1980 MHz · fan 60 % · computing: ben, ada"
    assert (alert.unit, alert.peak, alert.last) == (Unit.CELSIUS, 84, 84)


@pytest.mark.parametrize(
    "changes",
    [
        {"slowdown_temperature": Reason.UNSUPPORTED},
        {"slowdown_temperature": 0},
        {"temperature": Reason.ERROR},
        {"health": Health.LOST},
    ],
    ids=str,
)
def test_what_is_not_known_of_a_temperature_says_nothing(changes: dict[str, Any]) -> None:
    one = bench()
    assert run(one, 30, **{"temperature": 95, **changes}) == []


def test_a_missing_temperature_neither_raises_nor_clears() -> None:
    one = bench()
    run(one, 11, temperature=84)
    assert run(one, 60, temperature=Reason.NO_SAMPLE) == []
    assert only(one, TEMPERATURE).title == "GPU 0 at 84 °C, slows down at 87"


# Throttling


@pytest.mark.parametrize(
    ("reasons", "title"),
    [
        (("hw thermal",), "GPU 0 slowed down by heat"),
        (("hw thermal", "sw thermal"), "GPU 0 slowed down by heat"),
        (("power brake",), "GPU 0 slowed down by its power brake"),
        (("hw slowdown",), "GPU 0 slowed down by its hardware"),
        (("hw thermal", "power brake", "power cap"), "GPU 0 slowed down by heat and its power brake"),
    ],
)
def test_a_gpu_that_its_hardware_slows_down_is_a_warning_after_a_minute(reasons: Sequence[str], title: str) -> None:
    one = bench()
    assert run(one, 60, throttle=reasons, sm_clock=345, temperature=75) == []
    assert run(one, 1, throttle=reasons, sm_clock=345, temperature=75) == [("+warning",)]
    alert = only(one, THROTTLED)
    assert alert.title == title
    assert alert.evidence == "75 °C · SM clock 345 MHz · 310 of 700 W"
    assert (alert.unit, alert.peak) == (Unit.MHZ, 345)


def test_the_lowest_clock_is_the_worst_and_those_after_it_do_not_count() -> None:
    one = bench()
    run(one, 70, throttle=("hw thermal",), sm_clock=600)
    run(one, 5, throttle=("hw thermal",), sm_clock=345)
    alert = ended(one, throttle=(), sm_clock=210)
    assert (alert.peak, alert.last) == (345, 345)


@pytest.mark.parametrize("reading", [Reason.UNSUPPORTED, Reason.NO_SAMPLE])
def test_unknown_throttling_judges_nothing(reading: Reason) -> None:
    one = bench()
    run(one, 61, throttle=("power brake",))
    assert run(one, 60, throttle=reading) == []
    assert len(one.of(THROTTLED)) == 1


# Power


def test_power_may_dip_for_three_samples() -> None:
    one = bench(power_for=300.0)
    for _ in range(80):
        run(one, 1, throttle=("power cap",))
        run(one, 3, throttle=())
    assert len(one.of(POWER)) == 1
    two = bench(power_for=300.0)
    for _ in range(80):
        run(two, 3, throttle=("power cap",))
        run(two, 4, throttle=())
    assert two.of(POWER) == []


def test_power_ends_after_a_minute_below() -> None:
    one = bench(power_for=10.0)
    run(one, 20, throttle=("power cap",), power_limit=Reason.DENIED)
    assert only(one, POWER).title == "GPU 0 at its power limit"
    assert run(one, 60, throttle=()) == []
    assert ended(one, 1, throttle=())


# Memory errors


def test_uncorrected_errors_are_a_warning_until_the_count_is_none_again() -> None:
    one = bench()
    assert run(one, 1, ecc_uncorrected=3) == [("+warning",)]
    alert = only(one, ECC)
    assert alert.title == "GPU 0: 3 uncorrected memory errors since the driver was loaded"
    assert alert.evidence == "none since gpuwatch started"
    assert (alert.unit, alert.peak) == (Unit.COUNT, 3)
    assert run(one, 100, ecc_uncorrected=3) == []
    assert run(one, 100, ecc_uncorrected=Reason.NO_SAMPLE) == []
    run(one, 1, ecc_uncorrected=0)
    assert only(one, ECC).title == "GPU 0: 3 uncorrected memory errors since the driver was loaded"
    assert only(one, ECC).evidence.startswith("now: ")
    assert ended(one, ecc_uncorrected=0).how == "the count is 0 again"


def test_an_alert_of_new_errors_from_before_we_watched_is_not_stepped_down_too_soon() -> None:
    one = bench()
    alert = Alert(
        rule=ECC, host="box3", gpu=uuid(), index=0, severity=CRITICAL, title="new", raised=EPOCH - 60, id="0123456789"
    )
    one.restore(alert)
    run(one, 100, ecc_uncorrected=2)
    assert only(one, ECC).severity is CRITICAL
    one.feed(card(ecc_uncorrected=2), seconds=RECENT)
    run(one, 5, ecc_uncorrected=2)
    assert only(one, ECC).severity is WARNING


def test_of_two_answers_about_rows_the_one_that_is_missing_neither_raises_nor_clears() -> None:
    one = bench()
    assert run(one, 5, remap_failed=Reason.ERROR) == []
    assert run(one, 1, remap_failed=Reason.ERROR, remap_pending=True) == [("+warning",)]
    run(one, 1, remap_failed=True)
    run(one, 50, remap_failed=Reason.ERROR, remap_pending=True)
    assert only(one, REMAP).severity is CRITICAL


# XIDs


def xid(code: int, count: int = 1, last: float = 0.0) -> Xid:
    return Xid(code=code, count=count, last=EPOCH + last)


@pytest.mark.parametrize(
    ("code", "severity", "title"),
    [
        (79, CRITICAL, "GPU 0: XID 79, the driver no longer reaches the GPU (fell off the bus)"),
        (48, CRITICAL, "GPU 0: XID 48, a double-bit memory error"),
        (94, WARNING, "GPU 0: XID 94, a memory error, only one program affected"),
    ],
)
def test_an_xid_is_raised_at_its_first_sample_with_what_it_means(code: int, severity: Severity, title: str) -> None:
    one = bench()
    run(one, 1)
    changes = one.feed(card(xids=(xid(code, last=1.0),)))
    (alert,) = changes.raised
    assert (alert.rule, alert.severity, alert.title) == (XID, severity, title)
    assert (alert.unit, alert.last, alert.index) == (Unit.COUNT, 1, 0)


def test_every_code_that_is_judged_has_words() -> None:
    limits = Limits()
    assert limits.xid_critical | limits.xid_warning <= MEANINGS.keys()


def test_the_faults_of_programs_are_not_judged_unless_somebody_wants_it() -> None:
    one = bench()
    assert run(one, 5, xids=(xid(13), xid(31), xid(45))) == []
    two = bench(xid_warning=frozenset({31, 999}))
    run(two, 1, xids=(xid(13), xid(31), xid(999)))
    assert [alert.title for alert in two.of(XID)] == [
        "GPU 0: XID 31, a program used memory that is not its own",
        "GPU 0: XID 999",
    ]


def test_several_codes_and_gpus_have_alerts_of_their_own() -> None:
    one = bench()
    one.feed(card(0, xids=(xid(79), xid(94))), card(1, xids=(xid(79),)))
    assert {(alert.index, alert.severity) for alert in one.of(XID)} == {(0, CRITICAL), (0, WARNING), (1, CRITICAL)}
    assert len({alert.key for alert in one.of(XID)}) == 3


def test_an_xid_names_who_holds_the_gpu() -> None:
    one = bench()
    people = [process(pid, user) for pid, user in enumerate(("ada", "ben", "cyn", "dan"), 1)]
    one.feed(card(xids=(xid(95),), holdings=[holding(pid) for pid in (1, 2, 3, 4)]), people=people)
    assert "held by ada, ben, cyn and 1 more" in only(one, XID).evidence


def test_where_the_driver_reports_no_xids_nothing_is_said() -> None:
    one = bench()
    assert run(one, 20, xids=Reason.UNSUPPORTED) == []
    view = HistoryView({}, 5000.0, 20.0)
    assert observed(XID, snapshot([card(xids=Reason.DENIED)]), view) == []


def test_what_was_seen_goes_on_while_the_driver_reports_nothing() -> None:
    one = bench()
    run(one, 1)
    run(one, 2, xids=(xid(94, last=1.0),))
    run(one, 100, xids=Reason.UNSUPPORTED)
    assert only(one, XID).severity is WARNING
    one.feed(card(xids=Reason.UNSUPPORTED), seconds=600)
    assert one.of(XID) == []


def test_an_xid_from_before_we_watched_is_held_until_it_is_too_old() -> None:
    one = bench()
    alert = Alert(
        rule=XID,
        host="box3",
        gpu=uuid(),
        index=0,
        subject=f"xid 79 {uuid()}",
        severity=CRITICAL,
        title="GPU 0: XID 79, the driver no longer reaches the GPU (fell off the bus)",
        raised=EPOCH - 100,
        id="0123456789",
    )
    one.restore(alert)
    run(one, 599)
    assert [held.id for held in one.of(XID)] == ["0123456789"]
    assert ended(one, 4).how == "no more for 10 min"
