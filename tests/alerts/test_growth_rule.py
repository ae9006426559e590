"""Time to full: which courses of memory are a trend, and which only look like one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp
from typing import Any

import pytest

from gpuwatch.alerts.alert import Unit
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Rule
from gpuwatch.alerts.rules.memory import FULL, RULES, find_time_to_full, format_prediction
from gpuwatch.model import Health, Reason
from tests.support.alerting import Bench, only, words
from tests.support.builders import USABLE_GIB, gpu, holding

Course = Callable[[float], float | Mapping[int, float]]
"""GiB by process (PID 7 where there is but one) as a function of the second."""


def bench(**limits: Any) -> Bench:
    return Bench(Limits(quiet=0, **limits), rules=[Rule(FULL, find_time_to_full)])


def run(tested: Bench, course: Course, until: float, **changes: Any) -> list[str]:
    """Feed a course for some seconds; return what changed."""
    found: list[str] = []
    for second in range(int(until)):
        held = course(float(second))
        sizes = {7: held} if isinstance(held, float | int) else held
        found += words(tested.feed(gpu(0, holdings=[holding(*one) for one in sizes.items()], **changes)))
    return found


def leak(per_minute: float, of: float = 0.0) -> Course:
    """Return a process that holds `of` GiB, and takes more until the GPU is full."""
    return lambda second: min(USABLE_GIB - 0.2, of + per_minute * second / 60)


def jobs_beside_a_leak(second: float) -> Mapping[int, float]:
    others = {100 + int(second // 25): 4.0} if second % 25 < 15 else {}
    return {7: 60 + 2.0 * second / 60, **others}


@pytest.mark.parametrize(
    ("course", "seconds", "limits", "changes"),
    [
        (leak(2.0, of=USABLE_GIB - 12), 100, {}, ["+warning"]),
        (leak(4.0, of=USABLE_GIB - 20), 250, {}, ["+warning", "+critical"]),
        # In steps of 10 s, with 1.5 GiB taken and freed every 6 s, and beside jobs that come and go.
        (lambda second: {7: 30 + 4.0 * (second // 10) * 10 / 60, 8: 20.0}, 200, {}, ["+warning"]),
        (lambda second: 50 + 3.0 * second / 60 + 0.25 * (second % 6), 300, {}, ["+warning"]),
        (jobs_beside_a_leak, 240, {}, ["+warning"]),
        (leak(0.1), 700, {}, []),
        (leak(10.0, of=40), 59, {"full_for": 0}, []),
        (
            leak(2.0, of=USABLE_GIB - 12),
            290,
            {"full_warning": 100, "full_critical": 50, "memory_critical": 1},
            ["+warning"],
        ),
    ],
)
def test_a_leak_is_a_trend(course: Course, seconds: float, limits: dict[str, Any], changes: list[str]) -> None:
    tested = bench(**limits)
    assert run(tested, course, seconds) == changes
    assert all(alert.pids == (7,) for alert in tested.last.active)


def test_a_leak_is_reported_with_who_and_when_until_it_grows_no_more() -> None:
    tested = bench()
    run(tested, leak(2.0, of=USABLE_GIB - 12), 100)
    alert = only(tested, FULL)
    assert (alert.title, alert.unit, alert.owners) == ("GPU 0 full in about 4 min", Unit.SECONDS, ("ada",))
    assert alert.evidence == f"ada grew 2.0 GiB/min · 8.7 of {USABLE_GIB:.1f} GiB free"
    assert alert.last == pytest.approx(8.7 / 2 * 60, rel=0.05)
    # A gap starts anew and keeps what is raised.
    for _ in range(30):
        tested.feed(gpu(0, health=Health.LOST, utilization=Reason.NO_SAMPLE))
    assert run(tested, lambda _: USABLE_GIB - 8, 50) == []
    assert run(tested, lambda _: USABLE_GIB - 8, 50) == ["cleared"]


def test_near_the_limit_nothing_new_is_raised_and_what_is_raised_goes_on() -> None:
    both = Bench(Limits(quiet=0), rules=RULES)
    run(both, leak(0.6, of=0.96 * USABLE_GIB), 120)
    assert [alert.rule for alert in both.last.active] == ["memory near limit"]
    tested = bench()
    run(tested, leak(2.0, of=USABLE_GIB - 8), 100)
    before = only(tested, FULL)
    run(tested, leak(2.0, of=USABLE_GIB - 4.5), 60)
    assert only(tested, FULL).id == before.id


def warming_up(to: float, seconds: float) -> Course:
    """Return an allocator that takes less and less."""
    return lambda second: 10 + (to - 10) * (1 - exp(-second / seconds))


def step(size: float, seconds: float, since: float = 90) -> Course:
    """Return a process that was there before, and takes so much at once: a model that is loaded."""
    return lambda second: 2 + size * min(1.0, max(0.0, second - since) / seconds)


def sawtooth(height: float, period: float) -> Course:
    return lambda second: 40 + height * (second % period) / period


@pytest.mark.parametrize(
    "course",
    [
        *(warming_up(to, seconds) for to, seconds in ((30, 10), (70, 30))),
        *(step(60, 40, since) for since in (0, 32, 124)),
        *(step(size, seconds) for size, seconds in ((10, 1), (70, 5), (70, 20))),
        *(sawtooth(height, period) for height, period in ((2, 7), (30, 2), (30, 20), (30, 60))),
    ],
)
def test_what_is_no_trend(course: Course) -> None:
    assert run(bench(), course, 600) == []


@pytest.mark.parametrize("period", [150])
def test_a_slow_sawtooth_is_no_trend_once_a_tooth_was_seen(period: int) -> None:
    tested = bench()
    run(tested, sawtooth(30, period), 2 * period)
    assert not {"+warning", "+critical"} & set(run(tested, sawtooth(30, period), 900))


@pytest.mark.parametrize("changes", [{"mig": True}, {"holdings_note": "may not be seen"}])
def test_what_cannot_be_judged_says_nothing(changes: dict[str, Any]) -> None:
    assert run(bench(), leak(2.0, of=USABLE_GIB - 12), 200, **changes) == []


@pytest.mark.parametrize(
    ("seconds", "words"), [(3, "10 s"), (41, "50 s"), (57, "1 min"), (100, "2 min"), (590, "10 min")]
)
def test_a_prediction_is_not_precise_to_the_second(seconds: float, words: str) -> None:
    assert format_prediction(seconds) == words
