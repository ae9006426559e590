"""The sampler end to end: processes with GPUs' device files open that the tests' driver does not list."""

from __future__ import annotations

import os
import signal

import pytest

from gpuwatch.alerts.unattributed import GapEvidence, GapKind
from gpuwatch.model.snapshot import Snapshot, Unlisted
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.process import ME, GpuHolder, need_the_machines_own_pids
from tests.support.sampler import Running, once, running

CUDA = ("nvidiactl", "nvidia-uvm", "nvidia0")


def of(snapshot: Snapshot, *pids: int) -> dict[int, Unlisted]:
    """Return the entries of these processes, which may not be the only ones of the machine."""
    return {one.process.pid: one for one in snapshot.unlisted if one.process.pid in pids}


def training(driver: Driver, *pids: int) -> Driver:
    """Let the driver list these processes on the second of two GPUs, whose device file is /dev/nvidia0."""
    return driver.put(
        gpus=[Gpu(0, minor=1), Gpu(1, minor=0, memory_used=8 * GIB)],
        procs=[Proc(1, pid, memory=GIB, sm=50) for pid in pids],
    )


def test_workers_are_told_and_dropped_when_they_end_or_are_listed(driver: Driver) -> None:
    with GpuHolder(devices=CUDA, children=3) as held, running(training(driver, held.pid).env()) as sampler:
        snapshot = sampler.until(lambda snapshot: len(of(snapshot, *held.children)) == 3)
        first, second, third = held.children
        assert [gpu.minor for gpu in snapshot.gpus] == [1, 0]
        one = of(snapshot, first)[first]
        assert (one.gpus, one.cuda_context) == ((snapshot.gpus[1].uuid,), True)
        assert (one.process.uid, one.process.ppid, one.process.command) == (ME, held.pid, held.command)
        assert one.process.declared is None
        assert snapshot.taken - 30 < snapshot.searched <= snapshot.taken
        assert of(snapshot, held.pid, sampler.process.pid) == {}
        assert {process.pid for process in snapshot.processes} == {held.pid}

        sampler.until(
            lambda it: all(
                process.context is not None
                for process in (*it.processes, *(one.process for one in of(it, *held.children).values()))
            )
        )

        os.kill(first, signal.SIGKILL)
        sampler.until(lambda it: not of(it, first))  # nobody reaps it: it is read every 5 s
        training(driver, held.pid, second)
        _within_a_tick(sampler, second)
        assert set(of(sampler.next(), *held.children)) == {third}


def _within_a_tick(sampler: Running, pid: int) -> None:
    """One snapshot may have been on its way, and one sample been going on."""
    looks = [sampler.next() for _ in range(3)]
    assert [pid in of(look, pid) for look in looks][-1] is False


@pytest.mark.parametrize(
    ("listed_on", "devices", "kind"),
    [(0, CUDA[:2], "C"), (1, CUDA[:2], "C"), (1, CUDA[:1], "G")],
    ids=["its worker", "listed on another GPU", "listed on another GPU for graphics"],
)
def test_memory_is_not_lost_for_sure_while_a_listed_process_or_its_worker_has_the_gpu_open(
    driver: Driver, listed_on: int, devices: tuple[str, ...], kind: str
) -> None:
    """Nobody is listed for 8 GiB of GPU 0; somebody has its file, which no other test uses, open all the same."""
    with GpuHolder(devices=(*devices, "nvidia30", "nvidia31"), children=1 - listed_on) as held:
        opener = held.pid if listed_on else held.children[0]
        driver.gpus = [Gpu(0, minor=30, memory_used=(9 - listed_on) * GIB), Gpu(1, minor=31, memory_used=GIB)]
        driver.procs = [Proc(listed_on, held.pid, kind, memory=GIB)]
        with running(driver.write().env()) as sampler:
            snapshot = sampler.until(lambda snapshot: snapshot.searched > 0)
        leak = GapEvidence(snapshot).causes(snapshot.gpus[0])[-1]
        assert (leak.kind, snapshot.gpus[0].unattributed) == (GapKind.LEAK, 8 * GIB)
        assert "no other process has it open" not in leak.reason
        assert opener in snapshot.gpus[0].opened_by


def test_a_worker_whose_parent_has_ended_stays(driver: Driver) -> None:
    with GpuHolder(devices=CUDA, children=1) as held, running(training(driver, held.pid).env()) as sampler:
        worker = held.children[0]
        sampler.until(lambda snapshot: worker in of(snapshot, worker))
        os.kill(held.pid, signal.SIGKILL)
        held.wait_until_exited()
        training(driver)
        snapshot = sampler.until(
            lambda snapshot: (
                not snapshot.processes
                and worker in of(snapshot, worker)
                and of(snapshot, worker)[worker].process.adopted
            )
        )
        assert of(snapshot, worker)[worker].process.ppid != held.pid
        assert snapshot.gpus[1].unattributed == 8 * GIB


def test_a_single_snapshot_finds_who_is_left_where_nobody_is_listed(driver: Driver) -> None:
    need_the_machines_own_pids()
    with GpuHolder(devices=CUDA, orphan=True) as held:
        snapshot, _ = once(training(driver).env())  # 8 GiB to explain: it waits, without being asked to
        one = of(snapshot, held.pid)[held.pid]
    assert (snapshot.processes, snapshot.gpus[1].unattributed) == ((), 8 * GIB)
    assert one.process.adopted
    assert one.process.context is not None
    likeliest = GapEvidence(snapshot).causes(snapshot.gpus[1])[0]
    assert likeliest.kind is GapKind.LEFTOVER
    assert held.pid in likeliest.pids


def test_where_nothing_is_asked_of_processes_nobody_is_searched_for(driver: Driver) -> None:
    with GpuHolder(devices=CUDA, children=1) as held:
        snapshot, _ = once(training(driver, held.pid).env(), declared=False)
    assert (snapshot.unlisted, snapshot.searched) == ((), 0.0)


def test_one_gpu_alone_says_nothing_of_those_that_may_be_on_others(driver: Driver) -> None:
    with GpuHolder(devices=(*CUDA, "nvidia1"), children=1) as held:
        env = training(driver, held.pid).env()
        assert of(once(env, long_search=True, only=[1])[0], *held.children) == {}
        snapshot, _ = once(env, long_search=True)
    assert {*of(snapshot, held.pid, *held.children)} == {*held.children}
    assert snapshot.searched > 0
