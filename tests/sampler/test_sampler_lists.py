"""What GPUs, drivers and process lists do not have, or have wrong; and GPUs cut into instances."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gpuwatch.model import Health, Reason
from tests.driver import GIB, MIB, Code, Driver, Gpu, Mig, Proc, build
from tests.support.sampling import ME, eight, gpu, once, running


def test_what_is_not_supported_is_asked_once(driver: Driver) -> None:
    eight(driver, "nvmlDeviceGetPowerUsage@3 ret=3", "nvmlDeviceGetProcessUtilization@3 ret=3")
    with running(driver.env()) as sampler:
        first = sampler.next()
        last = sampler.until(lambda snapshot: snapshot.sequence >= first.sequence + 5)
    assert gpu(last, 3).power is Reason.UNSUPPORTED
    assert gpu(last, 3).holdings[0].sm is Reason.UNSUPPORTED
    assert driver.calls(3)["nvmlDeviceGetPowerUsage"] == 1
    assert driver.calls(3)["nvmlDeviceGetProcessUtilization"] == 1


NEW = ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV", "nvmlDeviceGetCurrentClocksEventReasons")


def _lists(*generations: str) -> Iterable[str]:
    kinds = ("Compute", "Graphics", "MPSCompute")
    return [f"nvmlDeviceGet{kind}RunningProcesses{generation}" for kind in kinds for generation in generations]


@pytest.mark.parametrize(
    ("absent", "used"),
    [(_lists("_v3"), "_v2"), ([*NEW, *_lists("_v3", "_v2")], "")],
    ids=["no _v3", "neither _v3 nor _v2, nor any newer call"],
)
def test_an_old_driver_fills_all_that_it_can(tmp_path: Path, absent: list[str], used: str) -> None:
    """Each call has an older one below it."""
    driver = eight(Driver(tmp_path, build(tmp_path / "old", absent=absent)))
    row = gpu(once(driver.env())[0], 0)
    assert (row.health, row.temperature, row.throttle, row.utilization) == (Health.OK, 31, (), 50)
    assert [(held.pid, held.memory, held.sm) for held in row.holdings] == [(ME, 2 * GIB, 40)]
    assert driver.calls()[f"nvmlDeviceGetComputeRunningProcesses{used}"]
    if "nvmlDeviceGetMemoryInfo_v2" in absent:
        assert (row.memory.used, row.memory.reserved) == (3 * GIB + 551 * MIB, Reason.UNSUPPORTED)
        assert row.unattributed is Reason.UNSUPPORTED
    else:
        assert (row.memory.used, row.unattributed) == (3 * GIB, GIB)


def test_a_driver_without_a_process_list(tmp_path: Path) -> None:
    driver = eight(Driver(tmp_path, build(tmp_path / "old", absent=_lists("_v3", "_v2", ""))))
    row = gpu(once(driver.env())[0], 0)
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


def test_memory_that_we_may_not_read_is_not_unified(driver: Driver) -> None:
    driver.gpus = [Gpu(0, memory_total=Code(4)), Gpu(1)]
    row = once(driver.write().env())[0].gpus[0]
    assert (row.memory.unified, row.memory.total, row.memory.used) == (False, Reason.DENIED, Reason.DENIED)
    assert row.unattributed is Reason.NO_SAMPLE


def test_a_name_of_any_bytes(driver: Driver) -> None:
    driver.gpus = [Gpu(0, name=b"NVIDIA \xff\xfe H100"), Gpu(1, name="A\x1b]52;c;eA==\x07B", uuid=b"GPU-\xff")]
    snapshot, _ = once(driver.write().env())
    assert snapshot.gpus[0].name == "NVIDIA \ufffd\ufffd H100"
    assert snapshot.gpus[1].name == "A\ufffd]52;c;eA==\ufffdB"
    assert snapshot.gpus[1].uuid == "GPU-\ufffd"


def test_a_list_that_grows_at_each_call_is_given_up(driver: Driver) -> None:
    eight(driver)
    with running(driver.env()) as sampler:
        sampler.next()
        eight(driver, "nvmlDeviceGetComputeRunningProcesses_v3@3 grow")
        row = gpu(sampler.until(lambda snapshot: bool(gpu(snapshot, 3).holdings_note)), 3)
    assert "incomplete" in row.holdings_note
    assert [held.pid for held in row.holdings] == [ME]
    assert (row.unattributed, row.health) == (Reason.NO_SAMPLE, Health.OK)
    before = driver.calls(3)
    snapshot, _ = once(driver.env())
    assert (driver.calls(3) - before)["nvmlDeviceGetComputeRunningProcesses_v3"] == 4
    assert gpu(snapshot, 3).holdings == ()
    assert "incomplete" in gpu(snapshot, 3).holdings_note


@pytest.mark.parametrize("fault", ["ret=6", "empty"])
def test_no_sample_of_utilization_is_idleness(driver: Driver, fault: str) -> None:
    """NOT_FOUND, and success with nothing: 0 %, measured."""
    row = gpu(once(eight(driver, f"nvmlDeviceGetProcessUtilization@3 {fault}").env())[0], 3)
    assert (row.holdings[0].sm, row.holdings[0].decoder, row.health) == (0, 0, Health.OK)


def test_a_list_that_makes_no_sense_is_marked(driver: Driver) -> None:
    """R535: another layout under the same name. What can be true stays, and nothing on it may be signalled."""
    driver.procs = [Proc(0, ME), Proc(0, 4294967295), Proc(0, 7, memory=2**60), Proc(0, ME)]
    row = once(driver.write().env())[0].gpus[0]
    assert [held.pid for held in row.holdings] == [ME]
    assert row.unreliable
    assert row.holdings_note == "process list unreliable on driver 580.95.05"
    assert row.unattributed is Reason.NO_SAMPLE


def test_a_process_list_that_we_may_not_see(driver: Driver) -> None:
    row = gpu(once(eight(driver, "nvmlDeviceGetComputeRunningProcesses_v3@3 ret=4").env())[0], 3)
    assert row.holdings == ()
    assert "may not see" in row.holdings_note
    assert row.unattributed is Reason.NO_SAMPLE


def test_a_graphics_process_that_ended_does_not_linger(driver: Driver) -> None:
    """The graphics list is read every 10 s; that its process left the compute list makes it due."""
    driver.procs = [Proc(0, ME, kind="CG")]
    with running(driver.write().env()) as sampler:
        sampler.next()
        driver.put(procs=[])
        changed = sampler.next().monotonic
        gone = sampler.until(lambda snapshot: not snapshot.gpus[0].holdings)
        assert gone.monotonic < changed + 5


def cut(driver: Driver, *faults: str) -> Driver:
    """Cut GPU 0 into two instances with an empty slot before them, a process of ours on the second."""
    migs = [Mig(gi=7), Mig(gi=9, memory_used=4 * GIB)]
    return driver.put(
        gpus=[Gpu(0, mig_mode=1, migs=migs, util_gpu=99, memory_used=5 * GIB), Gpu(1)],
        procs=[Proc(0, ME, gi=9, ci=0, memory=3 * GIB, sm=77)],
        faults=list(faults),
    )


def test_instances_and_what_a_cut_gpu_does_not_have(driver: Driver) -> None:
    row = once(cut(driver).env())[0].gpus[0]
    assert row.mig is True
    assert [(one.gpu_instance, one.memory.used) for one in row.instances] == [(7, GIB), (9, 4 * GIB)]
    assert all(one.uuid.startswith("MIG-") and "1g.10gb" in one.name for one in row.instances)
    assert (row.utilization, row.encoder, row.decoder) == (Reason.UNSUPPORTED,) * 3
    (held,) = row.holdings
    assert (held.gpu_instance, held.compute_instance, held.memory, held.sm) == (9, 0, 3 * GIB, Reason.UNSUPPORTED)
    assert "nvmlDeviceGetUtilizationRates" not in driver.calls(0)


def test_an_empty_slot_hides_no_instance_behind_it(driver: Driver) -> None:
    """NOT_FOUND is an empty slot and not the end."""
    cut(driver, "nvmlDeviceGetMigDeviceHandleByIndex@0 ret=6 ok_after=1")
    assert [one.gpu_instance for one in once(driver.env())[0].gpus[0].instances] == [9]


def test_a_user_who_may_not_see_the_whole_gpu(driver: Driver) -> None:
    cut(driver, "nvmlDeviceGetComputeRunningProcesses_v3@0 ret=4 ok_after=1")
    driver.gpus[0].memory_used = Code(4)
    row = once(driver.write().env())[0].gpus[0]
    assert row.memory.used is Reason.DENIED
    assert [(held.pid, held.gpu_instance) for held in row.holdings] == [(ME, 9)]
    assert row.instances[1].memory.used == 4 * GIB


def test_a_cut_gpu_keeps_to_the_budget(driver: Driver) -> None:
    cut(driver)
    driver.gpus[0].migs = [Mig(gi=index + 1) for index in range(7)]
    driver.procs = []
    with running(driver.write().env()) as sampler:
        first = sampler.next()
        assert len(first.gpus[0].instances) == 7
        before, counted = driver.calls(0), sampler.next()
        last = sampler.until(lambda snapshot: snapshot.sequence >= counted.sequence + 10)
        spent = driver.calls(0) - before
        assert sum(spent.values()) <= 8 * (last.sequence - counted.sequence + 2)
