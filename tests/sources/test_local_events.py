"""The supervisor where the driver's events hang or crash the sampler: they cost no GPU, and are tried again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpuwatch.model.snapshot import Health, Reason, SourceState
from tests.driver import Driver
from tests.sources.test_local import QUICK, Start, eight, live, row, start
from tests.support.sampler import until

pytestmark = pytest.mark.slow

__all__ = ["start"]

PATIENT = replace(QUICK, probe=60.0, probe_most=60.0)


@pytest.mark.parametrize(
    "fault",
    [
        "nvmlEventSetCreate hang",
        "nvmlDeviceGetSupportedEventTypes@3 segv",
        "nvmlDeviceRegisterEvents@3 hang",
        "nvmlEventSetWait_v2 segv",
    ],
)
def test_a_hang_or_a_crash_costs_the_events_and_no_gpu(driver: Driver, start: Start, fault: str) -> None:
    eight(driver)
    driver.put(faults=[fault])
    source = start(timeouts=PATIENT)
    snapshot = until(source, lambda it: len(live(it)) == 8 and row(it, 0).xids is Reason.ERROR)
    assert {gpu.xids for gpu in snapshot.gpus} == {Reason.ERROR}
    first = snapshot.sequence
    states = set()
    while snapshot.sequence < first + 5:
        snapshot = until(source, lambda _: True)
        states |= {snapshot.state, *(gpu.health for gpu in snapshot.gpus)}
    assert states == {SourceState.OK, Health.OK}


def test_it_listens_again_after_a_while(driver: Driver, start: Start) -> None:
    eight(driver)
    source = start()
    until(source, lambda it: len(live(it)) == 8 and row(it, 7).xids == ())
    driver.put(faults=["nvmlEventSetWait_v2 hang"])
    until(source, lambda it: row(it, 7).xids is Reason.ERROR)
    driver.put(faults=[])
    until(source, lambda it: row(it, 7).xids == () and len(live(it)) == 8)
    driver.xids.append((2, 79))
    driver.write()
    until(source, lambda it: bool(row(it, 2).xids) and row(it, 3).xids == ())


def test_asking_again_listens_again(driver: Driver, start: Start) -> None:
    driver.put(faults=["nvmlEventSetWait_v2 segv"])
    source = start(timeouts=PATIENT)
    until(source, lambda it: live(it) == [0] and row(it, 0).xids is Reason.ERROR)
    driver.put(faults=[])
    source.poke()
    until(source, lambda it: row(it, 0).xids == ())


def test_a_sampler_started_while_events_are_off_does_without(driver: Driver, start: Start) -> None:
    eight(driver)
    driver.put(faults=["nvmlEventSetWait_v2 hang"])
    source = start(timeouts=PATIENT)
    until(source, lambda it: len(live(it)) == 8 and row(it, 0).xids is Reason.ERROR)
    driver.faults += ["nvmlDeviceGetPowerUsage@2 hang"]
    driver.write()
    snapshot = until(source, lambda it: row(it, 2).health is Health.SILENT and len(live(it)) == 7)
    before = snapshot.sequence
    snapshot = until(source, lambda it: it.sequence != before and row(it, 0).sampled > snapshot.monotonic)
    assert row(snapshot, 0).xids is Reason.ERROR
    assert live(snapshot) == [0, 1, 3, 4, 5, 6, 7]
