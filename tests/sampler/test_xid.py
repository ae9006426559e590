"""XIDs as the sampler tells of them, through the real binding on the tests' driver library; more in `stories.jsonl`."""

from __future__ import annotations

from pathlib import Path

from gpuwatch.model import Health, Reason, Xid
from gpuwatch.sampler.shared_page import EVENT_CALLS
from gpuwatch.sampler.xid import XidCounter
from tests.driver import Driver, build
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


def test_a_driver_whose_events_cannot_be_waited_for(driver: Driver, later: Later, tmp_path: Path) -> None:
    driver.library = build(tmp_path / "older", absent=("nvmlEventSetWait_v2",))
    row = [later(1) for _ in range(3)][-1].gpus[0]
    assert (row.health, row.xids, row.remap_pending) == (Health.OK, Reason.UNSUPPORTED, False)
    assert not driver.calls()["nvmlEventSetCreate"]
