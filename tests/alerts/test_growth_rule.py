"""When a GPU is said to fill up, and all that looks like it and is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp
from typing import Any

import pytest

from gpuwatch.alerts.alert import Severity, Unit
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Rule
from gpuwatch.alerts.rules.memory import FULL, RULES, find_time_to_full, format_prediction
from gpuwatch.model import Health, Reason
from tests.support.alerting import Bench, only, words
from tests.support.builders import USABLE_GIB, gpu, holding, process

MINUTE = 60.0


def bench(**limits: Any) -> Bench:
    return Bench(Limits(quiet=0, **limits), rules=[Rule(FULL, find_time_to_full)])


def run(
    tested: Bench,
    course: Callable[[float], float | Mapping[int, float]],
    until: float,
    **changes: Any,
) -> list[str]:
    """Feed GiB by process (7 of ada's where there is but one) as a function of the second; say what changed."""
    found: list[str] = []
    for second in range(int(until)):
        held = course(float(second))
        sizes = {7: held} if isinstance(held, float | int) else held
        card = gpu(0, holdings=[holding(pid, size) for pid, size in sizes.items()], **changes)
        found += words(tested.feed(card))
    return found


def leak(per_minute: float, of: float = 0.0, since: float = 0.0) -> Callable[[float], float]:
    """Return a process that holds `of` GiB, and takes more from a second on, until the GPU is full."""
    return lambda second: min(USABLE_GIB - 0.2, of + per_minute * max(0.0, second - since) / MINUTE)


# What is one


def test_a_leak_with_little_left_is_told_with_who_and_when() -> None:
    tested = bench()
    assert run(tested, leak(2.0, of=USABLE_GIB - 12), 100) == ["+warning"]
    alert = only(tested, FULL)
    assert alert.title == "GPU 0 full in about 4 min"
    assert alert.evidence == f"ada grew 2.0 GiB/min · 8.7 of {USABLE_GIB:.1f} GiB free"
    assert (alert.owners, alert.pids, alert.unit) == (("ada",), (7,), Unit.SECONDS)
    assert alert.last == pytest.approx(8.7 / 2 * 60, rel=0.05)


def test_it_becomes_critical_and_stays_until_it_grows_no_more() -> None:
    tested = bench()
    found = run(tested, leak(4.0, of=USABLE_GIB - 20), 250)
    assert found == ["+warning", "+critical"]
    held = float(leak(4.0, of=USABLE_GIB - 20)(249))
    assert run(tested, lambda _: held, 60) == []
    assert run(tested, lambda _: held, 60) == ["cleared"]


def test_a_leak_in_steps_and_among_others_is_one() -> None:
    tested = bench()

    def course(second: float) -> Mapping[int, float]:
        return {7: 30 + 4.0 * (second // 10) * 10 / MINUTE, 8: 20.0}

    people = [process(7, "ben"), process(8, "ada")]
    for second in range(200):
        held = [holding(pid, size) for pid, size in course(float(second)).items()]
        tested.feed(gpu(0, holdings=held), people=people)
    alert = only(tested, FULL)
    assert alert.evidence.startswith("ben grew 4.")
    assert alert.owners == ("ben",)


def test_a_jagged_leak_is_one() -> None:
    # A step of a training takes and frees 1.5 GiB every 6 s on top of what leaks.
    tested = bench()
    assert run(tested, lambda second: 50 + 3.0 * second / MINUTE + 0.25 * (second % 6), 300) == ["+warning"]


# What is none


def warming_up(to: float, seconds: float) -> Callable[[float], float]:
    """Return a process that takes less and less, until it has what it needs."""
    return lambda second: 10 + (to - 10) * (1 - exp(-second / seconds))


@pytest.mark.parametrize("to", [30.0, 70.0])
@pytest.mark.parametrize("seconds", [10, 30])
def test_an_allocator_that_warms_up_is_no_trend(to: float, seconds: float) -> None:
    assert run(bench(), warming_up(to, seconds), 600) == []


@pytest.mark.parametrize("watched", [0, 21, 32, 63, 124])
def test_a_model_that_is_loaded_is_no_trend(watched: int) -> None:
    # 60 GiB in 40 s, by a process that was there before, however long we have watched.
    assert run(bench(), lambda second: 2 + 1.5 * min(40.0, max(0.0, second - watched)), watched + 200) == []


@pytest.mark.parametrize("size", [10.0, 70.0])
@pytest.mark.parametrize("seconds", [1, 5, 20])
def test_a_step_is_no_trend(size: float, seconds: int) -> None:
    assert run(bench(), lambda second: 2 + size * min(1.0, max(0.0, second - 90) / seconds), 500) == []


@pytest.mark.parametrize("period", [2, 7, 20, 60])
@pytest.mark.parametrize("height", [2.0, 30.0])
def test_a_sawtooth_is_no_trend(period: int, height: float) -> None:
    assert run(bench(), lambda second: 40 + height * (second % period) / period, 700) == []


@pytest.mark.parametrize("period", [90, 150])
def test_a_slow_sawtooth_is_no_trend_once_a_tooth_was_seen(period: int) -> None:
    def course(second: float) -> float:
        return 40 + 30 * (second % period) / period

    tested = bench()
    run(tested, course, 2 * period)
    assert not {"+warning", "+critical"} & set(run(tested, course, 900))


def test_a_leak_that_takes_hours_is_nothing() -> None:
    assert run(bench(), leak(0.1), 700) == []


def test_where_memory_is_near_its_limit_nothing_new_is_said() -> None:
    tested = Bench(Limits(quiet=0), rules=RULES)
    run(tested, leak(0.6, of=0.96 * USABLE_GIB), 120)
    assert [alert.rule for alert in tested.last.active] == ["memory near limit"]


def test_what_is_raised_is_kept_while_it_grows_on_near_the_limit() -> None:
    tested = bench()
    run(tested, leak(2.0, of=USABLE_GIB - 8), 100)
    before = only(tested, FULL)
    run(tested, leak(2.0, of=USABLE_GIB - 4.5), 60)
    assert only(tested, FULL).id == before.id


# What cannot be judged


@pytest.mark.parametrize("seconds", [30, 59])
def test_less_than_a_minute_says_nothing(seconds: int) -> None:
    tested = bench(full_for=0)
    assert run(tested, leak(10.0, of=40), seconds) == []


def test_a_gap_starts_anew_and_keeps_what_is_raised() -> None:
    tested = bench()
    run(tested, leak(2.0, of=USABLE_GIB - 12), 100)
    before = only(tested, FULL)
    for _ in range(30):
        tested.feed(gpu(0, health=Health.LOST, utilization=Reason.NO_SAMPLE))
    assert run(tested, lambda _: USABLE_GIB - 8, 50) == []
    assert only(tested, FULL).id == before.id
    assert run(tested, lambda _: USABLE_GIB - 8, 50) == ["cleared"]


@pytest.mark.parametrize("changes", [{"mig": True}, {"holdings_note": "may not be seen"}])
def test_what_cannot_be_judged_says_nothing(changes: dict[str, Any]) -> None:
    assert run(bench(), leak(2.0, of=USABLE_GIB - 12), 200, **changes) == []


@pytest.mark.parametrize(
    ("seconds", "told"), [(3, "10 s"), (41, "50 s"), (57, "1 min"), (100, "2 min"), (590, "10 min")]
)
def test_a_prediction_is_not_told_to_the_second(seconds: float, told: str) -> None:
    assert format_prediction(seconds) == told


def test_severities_follow_the_limits() -> None:
    tested = bench(full_warning=100, full_critical=50, memory_critical=1)
    assert run(tested, leak(2.0, of=USABLE_GIB - 12), 200) == []
    assert run(tested, leak(2.0, of=USABLE_GIB - 12 + 200 / 30), 90) == ["+warning"]
    assert tested.severities() == [Severity.WARNING]


def test_a_leak_goes_on_to_be_one_while_jobs_come_and_go_beside_it() -> None:
    tested = bench()

    def course(second: float) -> Mapping[int, float]:
        others = {100 + int(second // 25): 4.0} if second % 25 < 15 else {}
        return {7: 60 + 2.0 * second / MINUTE, **others}

    assert run(tested, course, 240) == ["+warning"]
    assert only(tested, FULL).pids == (7,)
