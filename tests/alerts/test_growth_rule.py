"""Time to full: which courses of memory are a trend, and which only look like one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import exp
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Rule
from gpuwatch.alerts.rules.memory import FULL, MEMORY, RULES, find_time_to_full, format_prediction, time_to_full
from gpuwatch.base.units import Unit
from gpuwatch.model.snapshot import Health, Reason
from tests.support.alerts import Bench, only, words
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
    assert (alert.short, alert.forecast) == ("was filling", "full in 4 min")
    restored = bench()
    restored.restore(alert)
    restored.feed(gpu(0, health=Health.LOST, utilization=Reason.NO_SAMPLE))
    before = only(restored, FULL)
    assert (before.short, before.forecast) == ("was filling", "")
    # A gap starts anew and keeps what is raised.
    for _ in range(30):
        tested.feed(gpu(0, health=Health.LOST, utilization=Reason.NO_SAMPLE))
    assert run(tested, lambda _: USABLE_GIB - 8, 50) == []
    forecasts: list[str] = []
    while tested.of(FULL):
        forecasts.append(only(tested, FULL).forecast)
        tested.feed(gpu(0, holdings=[holding(7, USABLE_GIB - 8)]))
    assert (forecasts[0], forecasts[-1], words(tested.last)) == ("full in 4 min", "", ("cleared",))


def test_near_the_limit_nothing_new_is_raised_and_what_is_raised_goes_on() -> None:
    both = Bench(Limits(quiet=0), rules=RULES)
    run(both, leak(0.6, of=0.96 * USABLE_GIB), 120)
    assert [alert.rule for alert in both.last.active] == ["nearly full"]
    tested = bench()
    run(tested, leak(2.0, of=USABLE_GIB - 8), 100)
    before = only(tested, FULL)
    run(tested, leak(2.0, of=USABLE_GIB - 4.5), 60)
    assert only(tested, FULL).id == before.id


# -- growth after five minutes without any ------------------------------------------------------------------------

BEGINS: Final = 301
"""Second at which the growth of the traces begins; before, the GPU was flat."""
HELD: Final = 20.0
"""GiB held until then."""


class Trace(NamedTuple):
    """What was seen of a trace: seconds at which it happened, since its growth began."""

    warned: list[int]
    ended: list[int]
    near: list[int]
    worst: float
    """Most that a figure was off the truth, as a factor."""
    measured: list[int]
    """Seconds with a value for the metric."""
    words: tuple[str, ...]
    """Words near the limit."""


def said(title: str) -> float | None:
    """Return the seconds that a title predicts."""
    found = re.search(r"full in about (?:(\d+) min ?)?(?:(\d+) s)?", title)
    return 60.0 * int(found[1] or 0) + int(found[2] or 0) if found else None


def watch(course: Course, until: int, speed: float = 0.0) -> Trace:
    """Watch a course that grows by `speed` GiB/min from `BEGINS` on."""
    tested, warned, ended, near, measured, worst = Bench(Limits(quiet=0), rules=RULES), [], [], [], [], 1.0
    words: dict[str, None] = {}
    for second in range(until):
        held = course(float(second))
        sizes = {7: held} if isinstance(held, float | int) else held
        card = gpu(0, holdings=[holding(*one) for one in sizes.items()])
        changes = tested.feed(card)
        since = second - BEGINS
        warned += [since for alert in changes.raised if alert.rule == FULL]
        ended += [since for alert in changes.cleared if alert.rule == FULL]
        near += [since for alert in changes.raised if alert.rule == MEMORY]
        words |= dict.fromkeys(alert.title for alert in tested.of(MEMORY))
        trend = tested.history.view.gpu(card.key).trend
        metric = time_to_full(card, trend) if trend is not None and trend.steady else None
        measured += [since] * (metric is not None)
        truth = 60 * (USABLE_GIB - HELD) / speed - since if speed else 0.0
        figures = [metric, *(said(one.title) for one in tested.last.active if not one.evidence.startswith("now: "))]
        for figure in figures if truth >= 5 else ():
            worst = max(worst, figure / truth, truth / figure) if figure else worst
    return Trace(warned, ended, near, worst, measured, tuple(words))


def grows(speed: float, every: int = 1, noise: float = 0.0) -> Callable[[float], float]:
    """Return a process that is flat, and then takes so many GiB a minute, in steps of `every` seconds."""
    jitter = Random(1)

    def course(second: float) -> float:
        seconds = max(0.0, second - BEGINS) // every * every
        return min(USABLE_GIB, HELD + speed * seconds / 60 + noise * jitter.uniform(-1, 1))

    return course


MOST: Final = 75
"""Seconds of growth after which a trend is told at the latest: the load of a model takes a minute, and is none."""


@pytest.mark.parametrize(
    ("speed", "every", "noise", "late", "factor"),
    [
        # GiB/min; seconds of a step; GiB of noise; most seconds until it is told; the figure's greatest error
        (2.0, 1, 0.0, 15, 1.5),
        (5.5, 1, 0.0, 60, 1.5),
        (5.5, 1, 0.02, 60, 1.5),
        (10.0, 1, 0.0, MOST, 1.5),
        (10.0, 1, 0.1, MOST, 1.5),
        (20.0, 1, 0.0, MOST, 1.5),
        (30.0, 1, 0.0, MOST, 1.5),
        # Between two steps the memory stands still: that much nobody can know.
        (5.5, 10, 0.0, 70, 2.7),
        (5.5, 30, 0.0, 150, 6.0),
    ],
)
def test_growth_after_a_flat_time_is_told_early_and_with_the_right_time(
    speed: float, every: int, noise: float, late: float, factor: float
) -> None:
    full = 60 * (USABLE_GIB - HELD) / speed
    seen = watch(grows(speed, every, noise), BEGINS + int(full), speed)
    below = max(0.0, full - 600)
    assert below <= seen.warned[0] + 30
    assert seen.warned[0] <= below + late
    assert seen.warned[0] < seen.near[0]
    assert seen.measured[0] > 60
    assert seen.worst <= factor
    assert not seen.ended
    assert ", full in about " in seen.words[0]


def freed(second: float) -> float | Mapping[int, float]:
    return grows(5.5)(second) if second < BEGINS + 600 else HELD


def whose_process_ends(second: float) -> dict[int, float]:
    return {8: 1.0} if second >= BEGINS + 600 else {7: grows(5.5)(second), 8: 1.0}


def beside_one_that_ends(second: float) -> dict[int, float]:
    """Return a slow growth that goes on, and a fast one whose process ends."""
    held = {7: 5 + 1.0 * max(0.0, second - BEGINS) / 60}
    return held if second >= BEGINS + 600 else {**held, 8: HELD - 5 + 5.0 * max(0.0, second - BEGINS) / 60}


# Beside one that ends there is a time still, so that it steps down first.
@pytest.mark.parametrize(("course", "within"), [(freed, 10), (whose_process_ends, 10), (beside_one_that_ends, 12)])
def test_what_was_freed_ends_it_within_ten_seconds(course: Course, within: int) -> None:
    seen = watch(course, BEGINS + 630)
    assert seen.warned[0] < 600
    (ended,) = seen.ended
    assert 600 <= ended <= 600 + within
    if course is not beside_one_that_ends:
        assert seen.measured[-1] <= 606


def loads(size: float, seconds: float, since: float = BEGINS) -> Course:
    return lambda second: 10 + size * min(1.0, max(0.0, second - since) / seconds)


def jobs_one_after_another(second: float) -> dict[int, float]:
    """Return jobs of 170 s, each of which grows for a minute after its first."""
    number, age = divmod(second, 170)
    return {100 + int(number): 2 + 20 * max(0.0, min(60.0, age - 70)) / 60, 8: 30.0}


def one_that_starts_and_climbs(second: float) -> dict[int, float]:
    return {8: 10.0} | ({7: 1 + 20 * min(120.0, second - 200) / 60} if second >= 200 else {})


@pytest.mark.parametrize(
    "course",
    [
        *(loads(size, 60, BEGINS + phase) for size in (14, 30, 60) for phase in range(5)),
        *(loads(60, seconds) for seconds in (1, 12, 40)),
        *(lambda second, tau=tau: 10 + 60 * (1 - exp(-max(0.0, second - BEGINS) / tau)) for tau in (20, 40, 60, 80)),
        jobs_one_after_another,
        one_that_starts_and_climbs,
    ],
)
def test_a_load_is_no_growth(course: Course) -> None:
    seen = watch(course, BEGINS + 150)
    assert (seen.warned, seen.measured) == ([], [])


def test_a_pause_does_not_end_it_and_other_words_stand_near_the_limit() -> None:
    def pauses(second: float) -> float:
        grown = second - BEGINS - max(0.0, min(12.0, second - BEGINS - 120))
        return HELD + 5.5 * max(0.0, grown) / 60

    seen = watch(pauses, BEGINS + 240)
    assert (len(seen.warned), seen.ended) == (1, [])
    flat = watch(lambda second: 0.96 * USABLE_GIB, 60)
    assert flat.words == (f"GPU 0 nearly full: {0.04 * USABLE_GIB:.1f} GiB of {USABLE_GIB:.1f} free",)


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
    ("seconds", "words"), [(3, "5 s"), (41, "40 s"), (57, "1 min"), (100, "2 min"), (590, "10 min")]
)
def test_a_prediction_is_not_precise_to_the_second(seconds: float, words: str) -> None:
    assert format_prediction(seconds) == words
