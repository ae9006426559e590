"""The supervisor where a call about PCIe or NVLink hangs or crashes: it costs no GPU, and is not made again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpuwatch.model.snapshot import Health, Reason
from tests.driver import Driver
from tests.sources.test_local import QUICK, Start, all_are_well, eight, live, row, start
from tests.support.sampler import until

pytestmark = pytest.mark.slow

__all__ = ["start"]


@pytest.mark.parametrize(
    "fault",
    ["nvmlDeviceGetPcieThroughput@2 hang", "nvmlDeviceGetNvLinkState@2 hang", "nvmlDeviceGetFieldValues@2 segv"],
)
def test_it_costs_no_gpu_and_is_made_again_when_the_user_asks(driver: Driver, start: Start, fault: str) -> None:
    eight(driver)
    source = start(timeouts=replace(QUICK, probe=60.0, probe_most=60.0))
    first = until(source, all_are_well)
    driver.put(faults=[fault])
    source.set_focus(row(first, 2).key)
    seen = until(source, lambda it: row(it, 2).pcie_tx is Reason.ERROR)
    assert row(seen, 2).nvlinks is Reason.ERROR
    until(source, all_are_well)
    symbol = fault.partition("@")[0]
    made = driver.calls(2)[symbol]
    first = until(source, lambda it: all_are_well(it) and row(it, 2).pcie_tx is Reason.ERROR)
    source.set_focus(None)
    source.set_focus(row(first, 2).key)
    until(source, lambda it: it.sequence > first.sequence + 3 and live(it) == list(range(8)))
    assert driver.calls(2)[symbol] == made
    source.set_focus(row(first, 3).key)
    until(source, lambda it: row(it, 3).pcie_link == "gen5 x16" and row(it, 2).pcie_tx is Reason.NO_SAMPLE)
    driver.put(faults=[])
    source.set_focus(row(first, 2).key)
    source.poke()
    until(source, lambda it: row(it, 2).pcie_link == "gen5 x16")


def test_a_sampler_that_is_started_later_knows_the_focus(driver: Driver, start: Start) -> None:
    eight(driver)
    source = start()
    first = until(source, all_are_well)
    source.set_focus(row(first, 2).key)
    driver.put(faults=["nvmlDeviceGetPowerUsage@5 hang"])
    until(source, lambda it: row(it, 5).health is Health.SILENT)
    seen = until(source, lambda it: len(live(it)) == 7)
    until(source, lambda it: row(it, 2).pcie_link == "gen5 x16" and row(it, 2).sampled > seen.monotonic)
