"""The trend of a GPU's memory: what grows on and on, and what only seems to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.history import SLOT, History, Trend, estimate_trend
from tests.support.builders import GIB, gpu, holding, snapshot
from tests.support.histories import KEY, machine, watched


def trend_after(course: Callable[[int], float], until: int, step: int = 1, **changes: Any) -> Trend | None:
    history = History()
    for second in range(0, until, step):
        base = snapshot([gpu(0, holdings=[holding(7, course(second))], **changes)], interval=float(step))
        view = watched(history, base, second)
    return view.trend(KEY)


def test_a_steady_growth_has_its_speed_after_a_minute() -> None:
    assert trend_after(lambda second: second / 30, 65) is None
    trend = trend_after(lambda second: second / 30, 71)
    assert trend is not None
    assert trend.steady
    assert trend.speed == pytest.approx(GIB / 30, rel=0.01)


@pytest.mark.parametrize("step", [1, 2, 5, 10, 30, 60])
def test_a_trend_is_found_at_any_interval_up_to_a_minute(step: int) -> None:
    trend = trend_after(lambda second: second / 30, 400, step)
    assert trend is not None
    assert trend.steady
    assert trend.speed == pytest.approx(GIB / 30, rel=0.01)


def test_a_step_and_a_level_are_no_trend() -> None:
    assert trend_after(lambda second: 40, 100) == Trend()
    assert trend_after(lambda second: 40 if second > 150 else 10, 400) == Trend()
    assert trend_after(lambda second: 40 - second / 30, 400) == Trend()


def test_a_step_does_not_change_the_speed_of_a_slow_growth() -> None:
    trend = trend_after(lambda second: second / 100 + (30 if second > 150 else 0), 310)
    assert trend is not None
    assert trend.speed == pytest.approx(GIB / 100, rel=0.05)


def test_what_has_stopped_growing_for_a_minute_is_flat() -> None:
    assert trend_after(lambda second: min(second, 200) / 10, 270) == Trend()


def test_a_gap_starts_a_trend_anew() -> None:
    history = History()
    for second in range(100):
        watched(history, machine(holding(7, second / 30)), second)
    assert watched(history, machine(holding(7, 99 / 30)), 119).trend(KEY) is not None
    assert watched(history, machine(holding(7, 40)), 145).trend(KEY) is None


def test_a_process_that_loads_in_its_first_minute_is_no_growth() -> None:
    history = History()
    for second in range(200):
        held = [holding(8, min(60.0, second - 100))] if second > 100 else []
        view = watched(history, machine(*held), second)
    assert view.trend(KEY) == Trend()


@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 80 * GIB)), min_size=1, max_size=80, unique_by=lambda p: p[0]
    )
)
def test_a_trend_never_grows_faster_than_its_points(points: list[tuple[int, int]]) -> None:
    points.sort()
    trend = estimate_trend(points)
    if trend is not None and trend.speed:
        pairs = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(points, 2)]
        assert 0 < trend.speed * SLOT <= max(pairs) + 1e-6
