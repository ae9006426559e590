"""What GPUs, drivers and process lists do not have, or have wrong; and GPUs cut into instances."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuwatch.model import Health, Reason
from gpuwatch.sampler.shared_page import EVENT_CALLS, LINK_CALLS
from tests.driver import GIB, MIB, Code, Driver, Gpu, Mig, Proc, build
from tests.sampler.test_sampler_time import Later, later
from tests.support.sampling import ME, eight, once

__all__ = ["later"]


def test_what_is_not_supported_is_asked_once(driver: Driver, later: Later) -> None:
    eight(driver, "nvmlDeviceGetPowerUsage@3 ret=3", "nvmlDeviceGetProcessUtilization@3 ret=3")
    row = [later(1).gpus[3] for _ in range(6)][-1]
    assert (row.power, row.holdings[0].sm) == (Reason.UNSUPPORTED, Reason.UNSUPPORTED)
    assert driver.calls(3)["nvmlDeviceGetPowerUsage"] == 1
    assert driver.calls(3)["nvmlDeviceGetProcessUtilization"] == 1


NEW = (
    *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons"),
    "nvmlDeviceGetRemappedRows",
)


def _lists(*generations: str) -> Iterable[str]:
    kinds = ("Compute", "Graphics", "MPSCompute")
    return [f"nvmlDeviceGet{kind}RunningProcesses{generation}" for kind in kinds for generation in generations]


@pytest.mark.parametrize(
    ("absent", "used"),
    [(_lists("_v3"), "_v2"), ([*NEW, *_lists("_v3", "_v2"), *LINK_CALLS, *EVENT_CALLS], "")],
    ids=["no _v3", "neither _v3 nor _v2, nor any newer call"],
)
def test_an_old_driver_fills_all_that_it_can(
    driver: Driver, later: Later, tmp_path: Path, absent: list[str], used: str
) -> None:
    """Each call has an older one below it."""
    driver.library = build(tmp_path / "old", absent=absent)
    eight(driver)
    later(0)
    row = later(1, str(driver.gpus[0].uuid)).gpus[0]
    assert (row.health, row.temperature, row.throttle, row.utilization) == (Health.OK, 31, (), 50)
    assert [(held.pid, held.memory, held.sm) for held in row.holdings] == [(ME, 2 * GIB, 40)]
    assert driver.calls()[f"nvmlDeviceGetComputeRunningProcesses{used}"]
    if "nvmlDeviceGetMemoryInfo_v2" in absent:
        assert (row.memory.used, row.memory.reserved) == (3 * GIB + 551 * MIB, Reason.UNSUPPORTED)
        assert row.unattributed is Reason.UNSUPPORTED
        asked = (row.pcie_rx, row.pcie_tx, row.pcie_link, row.nvlinks, row.nvlink_rx, row.nvlink_tx)
        assert {*asked, row.xids, row.remap_pending} == {Reason.UNSUPPORTED}
    else:
        assert (row.memory.used, row.unattributed) == (3 * GIB, GIB)


def test_a_driver_without_a_process_list(driver: Driver, later: Later, tmp_path: Path) -> None:
    driver.library = build(tmp_path / "old", absent=_lists("_v3", "_v2", ""))
    row = later(0).gpus[0]
    assert (row.health, row.holdings, row.unattributed) == (Health.OK, (), Reason.NO_SAMPLE)
    assert "does not list" in row.holdings_note


def test_a_unified_machine_shows_the_machines_memory(driver: Driver, tmp_path: Path) -> None:
    """GB10: neither memory call is supported; the GPU's use is what its processes take."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text("MemTotal:       125829120 kB\nMemFree: 1 kB\nMemAvailable:   83886080 kB\n")
    driver.gpus = [Gpu(0, memory_total=None, memory_used=None), Gpu(1, memory_total=0)]
    driver.procs = [Proc(0, ME, memory=5 * GIB), Proc(0, ME - 1, memory=2 * GIB)]
    snapshot, _ = once(driver.write().env(), proc=str(proc))
    memory = snapshot.gpus[0].memory
    assert memory.unified
    assert (memory.total, memory.free, memory.used) == (120 * GIB, 80 * GIB, 7 * GIB)
    assert (memory.reserved, snapshot.gpus[0].unattributed) == (Reason.UNSUPPORTED, Reason.UNSUPPORTED)
    assert (snapshot.gpus[1].memory.unified, snapshot.gpus[1].memory.used) == (True, 0)


def test_lists_and_memory_that_are_wrong_incomplete_or_closed(driver: Driver, later: Later) -> None:
    """Each on a GPU of its own: what can be true stays, and a part that is not known is said to be so.

    R535 gives another layout under the same name: nothing on such a list may be signalled. An empty answer about
    utilization (NOT_FOUND, and success with nothing) is 0 %, measured.
    """
    eight(
        driver,
        "nvmlDeviceGetComputeRunningProcesses_v3@1 grow",
        "nvmlDeviceGetComputeRunningProcesses_v3@2 ret=4",
        "nvmlDeviceGetProcessUtilization@3 ret=6",
        "nvmlDeviceGetProcessUtilization@4 empty",
    )
    driver.gpus[5].memory_total = Code(4)
    driver.put(procs=[*driver.procs, Proc(0, 4294967295), Proc(0, 7, memory=2**60), Proc(0, ME)])
    rows = later(0).gpus
    assert ([held.pid for held in rows[0].holdings], rows[0].unreliable) == ([ME], True)
    assert rows[0].holdings_note == "process list unreliable on driver 580.95.05"
    for row, note in ((rows[1], "incomplete"), (rows[2], "may not see")):
        assert (row.holdings, row.health, row.unreliable) == ((), Health.OK, False)
        assert note in row.holdings_note
    assert driver.calls(1)["nvmlDeviceGetComputeRunningProcesses_v3"] == 4, "a list that grows at each call is given up"
    for row in rows[3:5]:
        assert (row.holdings[0].sm, row.holdings[0].decoder, row.health) == (0, 0, Health.OK)
    memory = rows[5].memory
    assert (memory.unified, memory.total, memory.used) == (False, Reason.DENIED, Reason.DENIED)
    assert {rows[index].unattributed for index in (0, 1, 2, 5)} == {Reason.NO_SAMPLE}
    assert rows[7].unattributed == GIB


def test_a_list_that_grows_later_keeps_what_was_on_it(driver: Driver, later: Later) -> None:
    eight(driver)
    later(0)
    eight(driver, "nvmlDeviceGetComputeRunningProcesses_v3@3 grow")
    row = later(1).gpus[3]
    assert ([held.pid for held in row.holdings], row.unattributed) == ([ME], Reason.NO_SAMPLE)
    assert "incomplete" in row.holdings_note


def test_a_graphics_process_that_ended_does_not_linger(driver: Driver, later: Later) -> None:
    """The graphics list is read every 10 s; that its process left the compute list makes it due."""
    driver.put(procs=[Proc(0, ME, kind="CG")])
    assert later(0).gpus[0].holdings
    driver.put(procs=[])
    assert not [later(1).gpus[0].holdings for _ in range(2)][-1]


def cut(driver: Driver, *faults: str) -> Driver:
    """Cut GPU 0 into two instances with an empty slot before them, a process of ours on the second."""
    migs = [Mig(gi=7), Mig(gi=9, memory_used=4 * GIB)]
    return driver.put(
        gpus=[Gpu(0, mig_mode=1, migs=migs, util_gpu=99, memory_used=5 * GIB), Gpu(1)],
        procs=[Proc(0, ME, gi=9, ci=0, memory=3 * GIB, sm=77)],
        faults=list(faults),
    )


def test_instances_and_what_a_cut_gpu_does_not_have(driver: Driver, later: Later) -> None:
    cut(driver)
    row = later(0).gpus[0]
    assert row.mig is True
    assert [(one.gpu_instance, one.memory.used) for one in row.instances] == [(7, GIB), (9, 4 * GIB)]
    assert all(one.uuid.startswith("MIG-") and "1g.10gb" in one.name for one in row.instances)
    assert (row.utilization, row.encoder, row.decoder) == (Reason.UNSUPPORTED,) * 3
    (held,) = row.holdings
    assert (held.gpu_instance, held.compute_instance, held.memory, held.sm) == (9, 0, 3 * GIB, Reason.UNSUPPORTED)
    assert "nvmlDeviceGetUtilizationRates" not in driver.calls(0)


def test_an_empty_slot_hides_no_instance_behind_it(driver: Driver, later: Later) -> None:
    """NOT_FOUND is an empty slot and not the end."""
    cut(driver, "nvmlDeviceGetMigDeviceHandleByIndex@0 ret=6 ok_after=1")
    assert [one.gpu_instance for one in later(0).gpus[0].instances] == [9]


def test_a_user_who_may_not_see_the_whole_gpu(driver: Driver, later: Later) -> None:
    cut(driver, "nvmlDeviceGetComputeRunningProcesses_v3@0 ret=4 ok_after=1")
    driver.gpus[0].memory_used = Code(4)
    driver.write()
    row = later(0).gpus[0]
    assert row.memory.used is Reason.DENIED
    assert [(held.pid, held.gpu_instance) for held in row.holdings] == [(ME, 9)]
    assert row.instances[1].memory.used == 4 * GIB


def test_a_cut_gpu_keeps_to_the_budget(driver: Driver, later: Later) -> None:
    cut(driver)
    driver.gpus[0].migs = [Mig(gi=index + 1) for index in range(7)]
    driver.put(procs=[])
    assert len(later(0).gpus[0].instances) == 7
    before = driver.calls(0)
    for _ in range(10):
        later(0.1)
    assert sum((driver.calls(0) - before).values()) <= 8 * 10
