"""The sampler on a machine with one sick GPU: it costs no other."""

from __future__ import annotations

import os
import subprocess
import sys

from gpuwatch.model import Health, SourceState
from tests.driver import Driver, Proc
from tests.driver import Gpu as Card
from tests.support.sampling import all_are_well, eight, gpu, once, running, well


def test_gpus_without_a_handle_cost_no_other(driver: Driver) -> None:
    faults = [f"nvmlDeviceGetHandleByIndex_v2@{index} ret={code}" for index, code in ((1, 4), (3, 15), (6, 4242))]
    snapshot, exit_code = once(eight(driver, *faults, "nvmlErrorString hang").env())
    assert (exit_code, snapshot.state, well(snapshot)) == (0, SourceState.OK, [0, 2, 4, 5, 7])
    for index, health, words in (
        (1, Health.DENIED, "may not open"),
        (3, Health.LOST, "its connection is lost"),
        (6, Health.FAILED, "NVML error 4242"),
    ):
        row = gpu(snapshot, index)
        assert (row.health, row.holdings, row.sampled) == (health, (), 0.0)
        assert words in row.words
        assert row.since > 0


def test_a_slow_gpu_is_asked_less_often(driver: Driver) -> None:
    eight(driver, "nvmlDeviceGetPowerUsage@3 sleep=250")
    with running(driver.env(), declared=False) as sampler:
        first = sampler.until(lambda snapshot: 3 in well(snapshot))
        later = sampler.until(lambda snapshot: snapshot.sequence >= first.sequence + 3)
    assert gpu(later, 3).sampled == gpu(first, 3).sampled
    assert gpu(later, 4).sampled > gpu(first, 4).sampled


def test_rows_appear_while_others_still_wake(driver: Driver) -> None:
    """Without persistence each GPU takes seconds: the first are shown before the last are there."""
    eight(driver, "nvmlDeviceGetHandleByIndex_v2@1 sleep=600", "nvmlDeviceGetHandleByIndex_v2@7 sleep=100")
    with running(driver.env(), declared=False) as sampler:
        early = sampler.next()
        assert (early.state, len(early.gpus)) == (SourceState.STARTING, 8)
        assert 0 in well(early)
        assert 7 not in well(early)
        assert sampler.until(all_are_well).state is SourceState.OK


def test_a_gpu_that_is_no_longer_listed_is_visible_to_nobody(driver: Driver) -> None:
    driver.gpus = [Card(0), Card(1), Card(2)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    with (
        running(driver.write().env(), retry=0.2) as sampler,
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as one,
    ):
        sampler.until(lambda snapshot: len(well(snapshot)) == 3)
        driver.gpus.pop()
        driver.write()
        sampler.until(lambda snapshot: gpu(snapshot, 2).health is Health.MISSING)
        driver.put(procs=[Proc(0, one.pid)])
        snapshot = sampler.until(lambda snapshot: any(it.declared and it.declared.visible for it in snapshot.processes))
        one.communicate()
    (declared,) = [it.declared for it in snapshot.processes if it.declared]
    assert declared.visible
    assert declared.visible.gpus == tuple(str(card.uuid) for card in driver.gpus)


def test_a_figure_is_as_old_as_the_sample_that_it_was_read_in(driver: Driver) -> None:
    """The memory is read before a call that takes its time: it is no newer than that."""
    snapshot, _ = once(eight(driver, "nvmlDeviceGetPowerUsage@7 sleep=100").env())
    assert snapshot.monotonic - gpu(snapshot, 7).sampled >= 0.1
