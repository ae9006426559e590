"""What gets better and worse again within seconds: two events, not one each time."""

from __future__ import annotations

from itertools import chain, repeat

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.condition import CALM
from gpuwatch.alerts.rules.memory import MEMORY
from tests.support.alerting import Bench, only

FULL, ROOM = 8, 30
"""Percent free."""
QUICK = int(CALM / 2)


def swinging(bench: Bench, times: int) -> list[str]:
    """Let memory be near its limit and not, in turns; returns all that changed."""
    turns = [*repeat(FULL, QUICK), *repeat(ROOM, QUICK)] * times
    return list(chain(*bench.feed_free(*turns)))


def test_it_is_raised_twice_and_then_goes_on() -> None:
    bench = Bench()
    assert swinging(bench, 1) == ["+warning", "cleared"]
    assert swinging(bench, 10) == ["+warning"]
    assert only(bench, MEMORY).severity is Severity.WARNING


def test_it_ends_once_it_is_better_for_as_long_as_that() -> None:
    bench = Bench()
    swinging(bench, 3)
    calm = bench.feed_free(*repeat(ROOM, int(CALM)))
    assert [second for second, changes in enumerate(calm, QUICK + 1) if changes] == [CALM + 1]


def test_after_a_while_it_ends_as_any() -> None:
    bench = Bench()
    swinging(bench, 3)
    bench.feed_free(*repeat(ROOM, int(3 * CALM)))
    assert bench.feed_free(FULL, FULL, FULL, ROOM, ROOM, ROOM) == [(), (), ("+warning",), (), (), ("cleared",)]


def test_steps_up_and_down_are_told_twice_too() -> None:
    bench = Bench()
    found = list(chain(*bench.feed_free(*[*repeat(FULL, QUICK), *repeat(3, QUICK)] * 10)))
    assert found == ["+warning", "+critical", "+critical"]
    assert only(bench, MEMORY).severity is Severity.CRITICAL
