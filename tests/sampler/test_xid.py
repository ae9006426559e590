"""XIDs and remapped rows as the sampler tells of them, through the real binding on the tests' driver library."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuwatch.model import Health, Reason, Xid
from gpuwatch.sampler.shared_page import EVENT_CALLS
from gpuwatch.sampler.xid import XidCounter
from tests.driver import Driver, build
from tests.driver import Gpu as Card
from tests.sampler.test_sampler_time import Later, later
from tests.support.sampling import eight, gpu, once, running

__all__ = ["later"]


def happens(driver: Driver, *xids: tuple[int, int]) -> None:
    """Let these XIDs happen: (index of the GPU, code)."""
    driver.xids += xids
    driver.write()


def heard(xids: tuple[Xid, ...] | Reason) -> dict[int, int] | Reason:
    """Return how often each code was reported."""
    return xids if isinstance(xids, Reason) else {xid.code: xid.count for xid in xids}


def test_a_counter_counts_by_code_and_keeps_the_newest() -> None:
    assert XidCounter().xids is Reason.NO_SAMPLE
    counter = XidCounter()
    counter.missing = None
    assert heard(counter.xids) == {}
    for wall, code in enumerate([79, 31, 79], 100):
        counter.add(code, wall)
    assert counter.xids == (Xid(code=31, count=1, last=101), Xid(code=79, count=2, last=102))
    for code in range(200, 215):
        counter.add(code, 200.0)
    assert heard(counter.xids) == {79: 2, **dict.fromkeys(range(200, 215), 1)}
    counter.missing = Reason.ERROR
    assert len(counter.xids) == 16, "what was heard stays true"


def test_xids_reach_the_row_of_their_gpu_once_the_sampler_listens(driver: Driver) -> None:
    happens(eight(driver), (3, 48))
    with running(driver.env(), events=False, declared=False) as sampler:
        without = sampler.until(lambda snapshot: snapshot.sequence == 3)
        assert {row.xids for row in without.gpus} == {Reason.ERROR}
        assert not driver.calls().keys() & EVENT_CALLS
        sampler.send(events=True)
        first = sampler.until(lambda snapshot: all(row.xids == () for row in snapshot.gpus))
        happens(driver, (3, 79), (5, 31), (3, 79))
        told = sampler.until(lambda snapshot: bool(gpu(snapshot, 5).xids))
    assert {row.index: heard(row.xids) for row in told.gpus if row.xids} == {3: {79: 2}, 5: {31: 1}}
    (xid,) = gpu(told, 3).xids
    assert isinstance(xid, Xid)
    assert first.taken <= xid.last <= told.taken
    assert "nvmlErrorString" not in driver.calls()


def test_a_single_snapshot_listens_for_nothing(driver: Driver) -> None:
    snapshot, _ = once(eight(driver).env())
    assert {row.xids for row in snapshot.gpus} == {Reason.NO_SAMPLE}
    assert not driver.calls().keys() & EVENT_CALLS


def test_a_gpu_that_comes_back_is_heard_again_and_nothing_is_counted_twice(driver: Driver, later: Later) -> None:
    """XID 79 stays in the row of the lost GPU. The library tells twice of what is registered twice."""
    driver.put(gpus=[Card(0), Card(1)])
    later(0)
    happens(driver, (1, 48))
    assert heard(later(1).gpus[1].xids) == {48: 1}
    driver.faults = ["*@1 ret=15"]
    happens(driver, (1, 79))
    lost = later(6).gpus[1]
    assert (lost.health, heard(lost.xids)) == (Health.LOST, {48: 1, 79: 1})
    driver.put(faults=[])
    back = later(6).gpus
    assert (back[1].health, heard(back[1].xids), back[0].xids) == (Health.OK, {48: 1, 79: 1}, ())
    happens(driver, (1, 79), (0, 31))
    rows = later(1).gpus
    assert [heard(row.xids) for row in rows] == [{31: 1}, {48: 1, 79: 2}]
    assert driver.calls()["nvmlEventSetCreate"] == 2
    assert driver.calls()["nvmlEventSetFree"] == 1


def test_a_gpu_that_moves_up_takes_its_counter_along(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(0), Card(1), Card(2)])
    later(0)
    happens(driver, (1, 31), (2, 48))
    later(1)
    del driver.gpus[1]
    driver.write()
    rows = [later(1) for _ in range(70)][-1].gpus
    happens(driver, (2, 79))
    rows = later(1).gpus
    assert {row.uuid[:12]: heard(row.xids) for row in rows} == {
        "GPU-00000000": {},
        "GPU-00000001": {31: 1},
        "GPU-00000002": {48: 1, 79: 1},
    }


def test_a_storm_is_taken_in_parts(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(0), Card(1)])
    later(0)
    waits = driver.calls()["nvmlEventSetWait_v2"]
    later(1)
    assert driver.calls()["nvmlEventSetWait_v2"] == waits + 1
    happens(driver, *[(0, 31)] * 70)
    assert [heard(later(1).gpus[0].xids) for _ in range(3)] == [{31: 32}, {31: 64}, {31: 70}]


def test_gpus_that_report_nothing_cost_no_other(driver: Driver, later: Later) -> None:
    reasons = {1: Reason.UNSUPPORTED, 2: Reason.UNSUPPORTED, 3: Reason.DENIED, 4: Reason.ERROR}
    calls = ("nvmlDeviceGetSupportedEventTypes@1 ret=3", *(f"nvmlDeviceRegisterEvents@{n} ret={n + 1}" for n in (2, 3)))
    eight(driver, *calls, "nvmlDeviceRegisterEvents@4 ret=10")
    later(0)
    happens(driver, *((index, 79) for index in range(6)))
    rows = later(1).gpus
    assert {index: rows[index].xids for index in reasons} == reasons
    assert [heard(rows[index].xids) for index in (0, 5, 7)] == [{79: 1}, {79: 1}, {}]
    assert {row.health for row in rows} == {Health.OK}
    assert driver.calls(3)["nvmlDeviceGetSupportedEventTypes"] == 1


def test_a_gpu_without_xids_among_its_events(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(0, event_types=0x97, remap_pending=None), Card(1, event_types=0)])
    rows = [later(1) for _ in range(130)][-1].gpus
    assert [row.xids for row in rows] == [Reason.UNSUPPORTED] * 2
    assert rows[0].remap_pending is rows[0].remap_failed is Reason.UNSUPPORTED
    counted = driver.calls(0)
    assert (counted["nvmlDeviceGetSupportedEventTypes"], counted["nvmlDeviceGetRemappedRows"]) == (1, 1)
    assert driver.calls(1)["nvmlDeviceGetRemappedRows"] == 3
    assert driver.calls()["nvmlEventSetWait_v2"] == 0


def test_a_driver_whose_events_cannot_be_waited_for(driver: Driver, later: Later, tmp_path: Path) -> None:
    driver.library = build(tmp_path / "older", absent=("nvmlEventSetWait_v2",))
    row = [later(1) for _ in range(3)][-1].gpus[0]
    assert (row.health, row.xids, row.remap_pending) == (Health.OK, Reason.UNSUPPORTED, False)
    assert not driver.calls()["nvmlEventSetCreate"]


@pytest.mark.parametrize("code", [15, 999])
def test_an_event_set_that_breaks_is_made_anew(driver: Driver, later: Later, code: int) -> None:
    driver.put(gpus=[Card(0), Card(1)])
    later(0)
    happens(driver, (0, 31))
    later(1)
    driver.put(faults=[f"nvmlEventSetWait_v2 ret={code}"])
    for _ in range(30):
        rows = later(1).gpus
        assert [row.health for row in rows] == [Health.OK] * 2
    assert driver.calls()["nvmlEventSetCreate"] <= 7
    assert driver.calls()["nvmlEventSetFree"] >= driver.calls()["nvmlEventSetCreate"] - 1
    driver.put(faults=[])
    rows = [later(1) for _ in range(7)][-1].gpus
    assert [heard(row.xids) for row in rows] == [{31: 1}, {}]
    happens(driver, (0, 31), (1, 48))
    assert [heard(row.xids) for row in later(1).gpus] == [{31: 2}, {48: 1}]


def test_a_set_left_undefined_by_a_registration_is_freed(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(0), Card(1)], faults=["nvmlDeviceRegisterEvents@1 ret=999"])
    rows = [later(1) for _ in range(8)][-1].gpus
    assert [row.xids for row in rows] == [(), Reason.ERROR]
    assert driver.calls()["nvmlEventSetCreate"] == 2
    driver.put(faults=[])
    rows = [later(1) for _ in range(65)][-1].gpus
    assert [row.xids for row in rows] == [(), ()]


def test_no_event_set_is_asked_for_again_after_a_minute(driver: Driver, later: Later) -> None:
    driver.put(faults=["nvmlEventSetCreate ret=999"])
    assert [later(1).gpus[0].xids for _ in range(30)] == [Reason.ERROR] * 30
    assert driver.calls()["nvmlEventSetCreate"] == 1
    driver.put(faults=[])
    assert [later(1) for _ in range(40)][-1].gpus[0].xids == ()
