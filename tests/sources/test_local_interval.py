"""Another interval while figures are on the way."""

from __future__ import annotations

import time

import pytest

from gpuwatch.model import SourceState
from tests.driver import Driver
from tests.sources.test_local import Start, start, until

pytestmark = pytest.mark.slow

__all__ = ["start"]


def test_a_shorter_interval_makes_no_figures_late(driver: Driver, start: Start) -> None:
    driver.lab(1, 1)
    driver.write()
    source = start(interval=60.0)
    seen = until(source, lambda it: it.state is SourceState.OK and bool(it.gpus and it.gpus[0].sampled))
    stamp = seen.gpus[0].sampled
    # As old as figures may be under the old interval, and not under the new one.
    old = time.monotonic() + 0.5
    while time.monotonic() < old:
        source.next(0.05)
    source.set_interval(0.1)
    while seen.gpus[0].sampled == stamp:
        seen = source.next(0.5) or seen
        assert seen.gpus[0].sampled > stamp or seen.interval == 60.0, "what is given again is late by the old one"
    assert until(source, lambda it: it.interval == 0.1)
