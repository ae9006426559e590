"""Which GPU is which when the driver drops one and the indices of those behind it move up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuwatch.model.snapshot import Gpu, Health, Snapshot, SourceState
from gpuwatch.sources.local import LocalSource
from tests.driver import Driver, build
from tests.driver import Gpu as Card
from tests.sources.test_local import QUICK, Start, start
from tests.support.sampler import until

pytestmark = pytest.mark.slow

__all__ = ["start"]

LATER = replace(QUICK, probe=3600.0, probe_most=3600.0)
"""As QUICK, but a GPU that was given up is tried again only when the user asks."""

MOVES = pytest.mark.parametrize("restarted", [True, False], ids=["the driver is reloaded", "the sampler goes on"])


def cards(driver: Driver, number: int, *faults: str) -> list[str]:
    """Put so many GPUs into the machine; their UUIDs."""
    driver.put(gpus=[Card(index) for index in range(number)], faults=list(faults))
    return [str(card.uuid) for card in driver.gpus]


def watch(driver: Driver, start: Start, number: int) -> tuple[LocalSource, list[str]]:
    """Start on a machine with so many GPUs, which are all well; the source and their UUIDs."""
    uuids = cards(driver, number)
    source = start(timeouts=LATER)
    until(source, lambda it: len(places(it)) == number)
    return source, uuids


def change(source: LocalSource, driver: Driver, *, restarted: bool) -> None:
    """Let the driver's new state be seen, by a sampler that is new to it or by the one that runs."""
    if not restarted:
        driver.write()
        return
    until(source, lambda _: source._child is not None)  # one that has just crashed is not there yet
    assert source._child is not None
    os.kill(source._child.pid, signal.SIGSTOP)
    driver.write()
    os.kill(source._child.pid, signal.SIGKILL)


def by_uuid(snapshot: Snapshot) -> dict[str, Gpu]:
    """Return the rows by UUID, each of which is there once."""
    rows = {row.key: row for row in snapshot.gpus}
    assert len(rows) == len(snapshot.gpus)
    return rows


def places(snapshot: Snapshot) -> dict[str, int]:
    """Return the UUID and the index of each GPU that is well."""
    return {uuid: row.index for uuid, row in by_uuid(snapshot).items() if row.health is Health.OK}


def watched(source: LocalSource, holds: Callable[[Snapshot], bool], *healthy: str) -> Snapshot:
    """Take snapshots until one shows what is asked for; in none is one of the `healthy` said to be anything else."""

    def check(snapshot: Snapshot) -> bool:
        if snapshot.state is SourceState.OK:
            rows = by_uuid(snapshot)
            assert {uuid: rows[uuid].health for uuid in healthy} == dict.fromkeys(healthy, Health.OK)
        return holds(snapshot)

    return until(source, check)


@pytest.mark.parametrize(("fault", "restarted"), [("hang", True), ("segv", False)])
def test_a_gpu_that_was_given_up_is_told_from_the_one_that_takes_its_index(
    driver: Driver, start: Start, fault: str, restarted: bool
) -> None:
    source, (zero, dropped, sick, three) = watch(driver, start, 4)
    driver.put(faults=[f"*@2 {fault}"])
    given_up = Health.SILENT if fault == "hang" else Health.QUARANTINED
    until(source, lambda it: by_uuid(it)[sick].health is given_up and len(places(it)) == 3)

    del driver.gpus[1]
    driver.faults = [f"*@1 {fault}"]
    change(source, driver, restarted=restarted)
    snapshot = watched(
        source,
        lambda it: by_uuid(it)[dropped].health is Health.MISSING and places(it) == {zero: 0, three: 2},
        zero,
        three,
    )
    assert (by_uuid(snapshot)[sick].health, by_uuid(snapshot)[sick].index) == (given_up, 1)
    later = watched(source, lambda it: min(by_uuid(it)[one].sampled for one in (zero, three)) > snapshot.monotonic)
    assert by_uuid(later)[sick].health is given_up, "and no call was made to it"

    driver.put(faults=[])
    source.poke()
    watched(source, lambda it: places(it) == {zero: 0, sick: 1, three: 2}, zero, three)


def test_a_gpu_that_was_given_up_and_is_dropped_itself_is_missing(driver: Driver, start: Start) -> None:
    source, (zero, sick, two) = watch(driver, start, 3)
    driver.put(faults=["*@1 hang"])
    until(source, lambda it: by_uuid(it)[sick].health is Health.SILENT and len(places(it)) == 2)
    del driver.gpus[1]
    driver.faults = []
    change(source, driver, restarted=True)
    watched(source, lambda it: places(it) == {zero: 0, two: 1}, zero, two)
    source.poke()
    watched(source, lambda it: by_uuid(it)[sick].health is Health.MISSING and len(places(it)) == 2, zero, two)


@MOVES
def test_no_other_card_takes_the_row_of_a_gpu_that_was_asked_for(driver: Driver, start: Start, restarted: bool) -> None:
    uuids = cards(driver, 8)
    source = start(only=[2, 5])
    until(source, lambda it: places(it) == {uuids[2]: 2, uuids[5]: 5})
    del driver.gpus[5], driver.gpus[3]
    change(source, driver, restarted=restarted)
    snapshot = watched(source, lambda it: by_uuid(it)[uuids[5]].health is Health.MISSING, uuids[2])
    assert by_uuid(snapshot).keys() == {uuids[2], uuids[5]}
    driver.gpus.insert(4, Card(5))
    change(source, driver, restarted=True)
    snapshot = watched(source, lambda it: places(it) == {uuids[2]: 2, uuids[5]: 4}, uuids[2])
    assert by_uuid(snapshot).keys() == {uuids[2], uuids[5]}
    assert [index for index in range(8) if driver.calls(index)] == [2, 4, 5], "no call is made to the others"


def test_no_other_card_takes_the_row_of_one_that_was_asked_for_and_never_said_which_it_is(
    driver: Driver, start: Start
) -> None:
    uuids = cards(driver, 6, "*@4 hang")
    source = start(only=[2, 4], timeouts=LATER)
    until(source, lambda it: places(it) == {uuids[2]: 2} and by_uuid(it)["index-4"].health is Health.SILENT)
    del driver.gpus[0]
    driver.faults = ["*@3 hang"]
    change(source, driver, restarted=True)
    snapshot = watched(source, lambda it: places(it) == {uuids[2]: 1}, uuids[2])
    source.poke()
    snapshot = watched(source, lambda it: it.gpus[0].sampled > snapshot.monotonic + QUICK.start, uuids[2])
    assert by_uuid(snapshot)["index-4"].health is Health.SILENT
    assert "restart gpuwatch" in by_uuid(snapshot)["index-4"].words
    driver.gpus.insert(0, Card(0))
    driver.faults = []
    change(source, driver, restarted=True)
    watched(source, lambda it: places(it).get(uuids[2]) == 2, uuids[2])
    source.poke()
    watched(source, lambda it: places(it) == {uuids[2]: 2, uuids[4]: 4} and len(it.gpus) == 2, uuids[2])


@MOVES
def test_a_gpu_that_never_said_which_it_is_is_looked_for_again_when_the_list_changes(
    driver: Driver, start: Start, restarted: bool
) -> None:
    zero, dropped, sick, three = cards(driver, 4, "*@2 hang")
    source = start(timeouts=LATER)
    snapshot = until(source, lambda it: places(it) == {zero: 0, dropped: 1, three: 3})
    assert by_uuid(snapshot)["index-2"].health is Health.SILENT
    del driver.gpus[1]
    driver.faults = ["*@1 hang"]
    change(source, driver, restarted=restarted)
    snapshot = watched(
        source,
        lambda it: places(it) == {zero: 0, three: 2} and "index-1" in by_uuid(it),
        zero,
        three,
    )
    assert by_uuid(snapshot)["index-1"].health is Health.SILENT
    assert by_uuid(snapshot).keys() == {zero, dropped, three, "index-1"}
    driver.put(faults=[])
    source.poke()
    watched(source, lambda it: places(it) == {zero: 0, sick: 1, three: 2} and len(it.gpus) == 4, zero, three)


@MOVES
def test_a_hang_is_of_the_gpu_that_is_asked_and_not_of_the_missing_one_with_its_index(
    driver: Driver, start: Start, restarted: bool
) -> None:
    source, (zero, dropped, sick, three) = watch(driver, start, 4)
    del driver.gpus[1]
    change(source, driver, restarted=restarted)
    until(source, lambda it: places(it) == {zero: 0, sick: 1, three: 2})
    driver.put(faults=["nvmlDeviceGetPowerUsage@1 hang"])
    snapshot = watched(source, lambda it: by_uuid(it)[sick].health is not Health.OK, zero, three)
    rows = by_uuid(snapshot)
    assert (rows[sick].health, rows[dropped].health) == (Health.SILENT, Health.MISSING)


def test_since_when_a_gpu_is_missing_outlives_the_sampler(driver: Driver, start: Start) -> None:
    source, (zero, dropped) = watch(driver, start, 2)
    driver.gpus.pop()
    change(source, driver, restarted=True)
    first = until(source, lambda it: by_uuid(it)[dropped].health is Health.MISSING)
    change(source, driver, restarted=True)
    later = watched(source, lambda it: by_uuid(it)[zero].sampled > first.monotonic, zero)
    assert by_uuid(later)[dropped].health is Health.MISSING
    assert (by_uuid(later)[dropped].since, by_uuid(later)[dropped].name) == (
        by_uuid(first)[dropped].since,
        by_uuid(first)[dropped].name,
    )


def test_a_driver_without_addresses_is_asked_by_index(driver: Driver, start: Start, tmp_path: Path) -> None:
    driver.library = build(tmp_path / "old", absent=["nvmlDeviceGetHandleByPciBusId_v2"])
    source, (zero, dropped, two) = watch(driver, start, 3)
    first = source.pids
    change(source, driver, restarted=True)
    until(source, lambda it: source.pids.isdisjoint(first) and places(it) == {zero: 0, dropped: 1, two: 2})
    del driver.gpus[1]
    change(source, driver, restarted=True)
    snapshot = until(source, lambda it: places(it) == {zero: 0, two: 1})
    assert by_uuid(snapshot)[dropped].health is Health.MISSING
