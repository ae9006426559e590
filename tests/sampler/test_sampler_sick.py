"""The sampler on a machine with one sick GPU: it costs no other."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpuwatch.model import Health, Reason, SourceState
from tests.driver import Driver, Proc
from tests.driver import Gpu as Card
from tests.support.sampling import ALL_BUT_3, all_are_well, eight, gpu, once, running, well


@pytest.mark.parametrize(
    ("code", "health", "words"),
    [
        (4, Health.DENIED, "may not open"),
        (15, Health.LOST, "its connection is lost"),
        (4242, Health.FAILED, "NVML error 4242"),
    ],
)
def test_one_gpu_without_a_handle_costs_no_other(driver: Driver, code: int, health: Health, words: str) -> None:
    eight(driver, f"nvmlDeviceGetHandleByIndex_v2@3 ret={code}", "nvmlErrorString hang")
    snapshot, exit_code = once(driver.env())
    assert (exit_code, snapshot.state, well(snapshot)) == (0, SourceState.OK, ALL_BUT_3)
    row = gpu(snapshot, 3)
    assert (row.health, row.holdings, row.sampled) == (health, (), 0.0)
    assert words in row.words
    assert row.since > 0


def test_a_gpu_is_lost_while_some_of_its_calls_still_succeed(driver: Driver) -> None:
    eight(driver)
    with running(driver.env(), retry=0.5) as sampler:
        before = sampler.until(all_are_well)
        eight(driver, "nvmlDeviceGetTemperatureV@3 ret=15")
        lost = gpu(sampler.until(lambda snapshot: well(snapshot) == ALL_BUT_3), 3)
        assert lost.health is Health.LOST
        assert "NVML error 15: GPU is lost (nvmlDeviceGetTemperatureV)" in lost.words
        assert (lost.uuid, lost.name) == (gpu(before, 3).uuid, gpu(before, 3).name)
        assert (lost.holdings, lost.utilization, lost.memory.used) == ((), Reason.NO_SAMPLE, Reason.NO_SAMPLE)
        assert lost.since > 0
        assert lost.sampled >= gpu(before, 3).sampled
        later = sampler.until(lambda snapshot: snapshot.monotonic > lost.sampled + 1.5)  # one retry, in vain
        assert gpu(later, 3).since == lost.since
        assert gpu(later, 3).health is Health.LOST
        eight(driver)
        healed = gpu(sampler.until(all_are_well), 3)
        assert (healed.uuid, healed.words) == (lost.uuid, "")
        assert healed.since >= lost.since
        assert healed.holdings


def test_a_figure_that_fails_costs_no_other_figure(driver: Driver) -> None:
    eight(
        driver,
        "nvmlDeviceGetPowerUsage@3 ret=4",
        "nvmlDeviceGetFanSpeed@3 ret=999",
        "nvmlDeviceGetTotalEccErrors@3 ret=3",
        "nvmlDeviceGetUtilizationRates@3 ret=17",
    )
    row = gpu(once(driver.env())[0], 3)
    assert (row.power, row.fan, row.ecc_uncorrected) == (Reason.DENIED, Reason.ERROR, Reason.UNSUPPORTED)
    assert (row.utilization, row.memory_utilization) == (Reason.DENIED, Reason.DENIED)
    assert (row.health, row.temperature, len(row.holdings)) == (Health.OK, 31, 1)


def test_a_timeout_now_and_then_only_ages_the_row(driver: Driver) -> None:
    eight(driver)
    with running(driver.env(), retry=0.5) as sampler:
        sampler.until(all_are_well)
        eight(driver, "nvmlDeviceGetPowerUsage@3 ret=10")
        aged = sampler.until(lambda snapshot: bool(gpu(snapshot, 3).words))
        assert (gpu(aged, 3).health, gpu(aged, 3).utilization) == (Health.OK, 50)
        assert gpu(aged, 3).sampled < gpu(aged, 4).sampled
        silent = gpu(sampler.until(lambda snapshot: gpu(snapshot, 3).health is Health.SILENT), 3)
        assert silent.utilization is Reason.NO_SAMPLE
        eight(driver)
        sampler.until(all_are_well)


def test_a_slow_gpu_is_asked_less_often(driver: Driver) -> None:
    eight(driver, "nvmlDeviceGetPowerUsage@3 sleep=250")
    with running(driver.env()) as sampler:
        first = sampler.until(all_are_well)
        later = sampler.until(lambda snapshot: snapshot.sequence >= first.sequence + 3)
        assert gpu(later, 3).sampled == gpu(first, 3).sampled
        assert gpu(later, 4).sampled > gpu(first, 4).sampled
        sampler.until(lambda snapshot: gpu(snapshot, 3).sampled > gpu(first, 3).sampled)


def test_a_round_a_little_slower_than_the_last_is_shown_once(driver: Driver) -> None:
    eight(driver, "nvmlDeviceGetPowerUsage@3 sleep=60 after=2")
    with running(driver.env(), interval=0.6) as sampler:
        for _ in range(5):
            stamps = [row.sampled for row in sampler.next().gpus]
            assert max(stamps) - min(stamps) < 0.5


def test_rows_appear_while_others_still_wake(driver: Driver) -> None:
    """Without persistence each GPU takes seconds: the first are shown before the last are there."""
    eight(driver, "nvmlDeviceGetHandleByIndex_v2@7 sleep=900", "nvmlDeviceGetHandleByIndex_v2@1 sleep=900")
    with running(driver.env()) as sampler:
        early = sampler.next()
        assert early.state is SourceState.STARTING
        assert len(early.gpus) == 8
        assert 0 in well(early)
        assert 7 not in well(early)
        assert sampler.until(all_are_well).state is SourceState.OK


def test_a_gpu_that_is_no_longer_listed_is_visible_to_nobody(driver: Driver) -> None:
    driver.gpus = [Card(0), Card(1), Card(2)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDA_")}
    with running(driver.write().env(), retry=0.5) as sampler:
        sampler.until(lambda snapshot: len(well(snapshot)) == 3)
        driver.gpus.pop()
        driver.write()
        sampler.until(lambda snapshot: gpu(snapshot, 2).health is Health.MISSING)
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment) as one:
            driver.put(procs=[Proc(0, one.pid)])
            snapshot = sampler.until(
                lambda snapshot: any(it.declared and it.declared.visible for it in snapshot.processes)
            )
            one.communicate()
    (declared,) = [it.declared for it in snapshot.processes if it.declared]
    assert declared.visible
    assert declared.visible.gpus == tuple(str(card.uuid) for card in driver.gpus)


def test_a_figure_is_as_old_as_the_sample_that_it_was_read_in(driver: Driver) -> None:
    """The memory is read before a call that takes its time: it is no newer than that."""
    snapshot, _ = once(eight(driver, "nvmlDeviceGetPowerUsage@7 sleep=500").env())
    assert snapshot.monotonic - gpu(snapshot, 7).sampled >= 0.5
