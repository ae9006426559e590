"""What GPUs, drivers and process lists do not have, or have wrong; and GPUs cut into instances."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuwatch.model import Health, Reason
from gpuwatch.sampler.shared_page import EVENT_CALLS, LINK_CALLS
from tests.driver import GIB, MIB, Driver, Gpu, Mig, Proc, build
from tests.sampler.test_sampler_time import Later, later
from tests.support.sampling import ME, eight, once

__all__ = ["later"]


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


def test_a_cut_gpu_keeps_to_the_budget(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Gpu(0, mig_mode=1, migs=[Mig(gi=index + 1) for index in range(7)])])
    assert len(later(0).gpus[0].instances) == 7
    before = driver.calls(0)
    for _ in range(10):
        later(0.1)
    assert sum((driver.calls(0) - before).values()) <= 8 * 10
