"""The supervisor where something else than the driver goes wrong: no new process, a stopped one, a fault of our own."""

from __future__ import annotations

import os
import signal
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuwatch.model.snapshot import Gpu, Health, SourceState
from gpuwatch.sources.local import LocalSource, Quarantine, Timeouts
from gpuwatch.sources.sampler_process import SAMPLER, SamplerProcess
from tests.driver import Driver
from tests.driver import Gpu as Card
from tests.sources.test_local import QUICK, Start, all_are_well, eight, ends_once, live, row, start, stub
from tests.support.sampler import close, until
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

__all__ = ["start"]


def descriptors() -> int:
    """Count our own open files."""
    return len(list(Path("/proc/self/fd").iterdir()))


def stop(source: LocalSource, *, inside: bool) -> int:
    """Stop the sampler inside a call of the driver, or outside of any; its PID."""
    child = source._child
    assert child is not None
    while True:
        os.kill(child.pid, signal.SIGSTOP)
        if (child.in_flight() is not None) is inside:
            return child.pid
        os.kill(child.pid, signal.SIGCONT)
        source.next(0.01)


def put(python: Path) -> None:
    """Put an interpreter in place."""
    fresh = python.with_suffix(".new")
    fresh.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n', "ascii")
    fresh.chmod(0o755)
    fresh.replace(python)


def test_a_sampler_that_cannot_be_started_is_said_and_tried_again(start: Start, tmp_path: Path) -> None:
    python = tmp_path / "python"  # stands for an interpreter that is being replaced, and for EAGAIN and ENOMEM
    before = descriptors() + 1  # the event that wakes the source
    source = start(command=(str(python), *SAMPLER[1:]))
    snapshot = until(source, lambda it: it.state is not SourceState.STARTING)
    assert (snapshot.state, descriptors()) == (SourceState.DRIVER_DOWN, before)
    assert "cannot be started" in snapshot.words
    assert "No such file" in snapshot.words
    put(python)
    until(source, lambda it: live(it) == [0])


def test_a_probe_that_cannot_be_started_is_tried_again(driver: Driver, start: Start, tmp_path: Path) -> None:
    eight(driver)
    python = tmp_path / "python"
    put(python)
    source = start(command=(str(python), *SAMPLER[1:]))
    until(source, all_are_well)
    driver.put(faults=["*@2 hang"])
    before = until(source, lambda it: len(live(it)) == 7 and row(it, 2).health is Health.SILENT)
    python.unlink()
    until(source, lambda it: it.monotonic > before.monotonic + 2 * QUICK.probe_most and len(live(it)) == 7)
    driver.put(faults=[])
    put(python)
    until(source, all_are_well)


def test_a_fault_of_the_sampler_itself_does_not_end_the_watch(start: Start, tmp_path: Path) -> None:
    ending = """
from gpuwatch.sampler.main import main
os._exit(main(["no options"], None))
"""
    source = start(command=ends_once(tmp_path, ending))
    snapshot = until(source, lambda it: "a fault in gpuwatch's sampler: DecodeError" in it.words)
    assert snapshot.state is SourceState.DRIVER_DOWN
    until(source, lambda it: it.host == "second")


def test_a_sampler_that_ends_again_and_again_is_started_less_and_less_often(start: Start, tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    body = f"""
with open({str(begun)!r}, "a") as file:
    file.write(f"{{time.monotonic()}}\\n")
print(encode(Snapshot(gpus=(Gpu(index=0),))).decode(), flush=True)
os._exit(70)
"""
    source = start(command=stub(body), timeouts=replace(QUICK, restart=0.05, restart_most=60.0))
    until(source, lambda _: begun.exists() and len(begun.read_text().splitlines()) >= 6)
    times = [float(line) for line in begun.read_text().splitlines()]
    gaps = [after - before for before, after in pairwise(times)]
    assert gaps[4] >= 0.05 * 2**4


def test_a_gpu_of_only_that_is_gone_after_a_restart_is_missing_and_the_others_go_on(
    driver: Driver, start: Start
) -> None:
    driver.put(gpus=[Card(0), Card(1), Card(2)])
    source = start(only=(0, 2))
    until(source, lambda it: live(it) == [0, 2])
    last = driver.gpus.pop()
    (sampler,) = source.pids
    os.kill(sampler, signal.SIGSTOP)
    driver.write()
    os.kill(sampler, signal.SIGKILL)
    snapshot = until(source, lambda it: it.state is SourceState.ENDED or row(it, 2).health is Health.MISSING)
    assert (snapshot.state, row(snapshot, 2).uuid, live(snapshot)) == (SourceState.OK, last.uuid, [0])
    driver.gpus.append(last)
    driver.write()
    (sampler,) = source.pids
    os.kill(sampler, signal.SIGKILL)
    until(source, lambda it: live(it) == [0, 2])


def test_a_sampler_killed_from_outside_is_no_crash_of_the_gpu_it_asks(driver: Driver, start: Start) -> None:
    driver.put(faults=["nvmlDeviceGetPowerUsage sleep=300"])
    source = start()
    until(source, lambda it: live(it) == [0] and len(source.pids) == 1)
    sampler = stop(source, inside=True)
    os.kill(sampler, signal.SIGKILL)  # the machine is out of memory, say
    snapshot = until(source, lambda _: sampler not in source.pids)
    assert row(snapshot, 0).health is Health.OK


def test_a_driver_slow_to_start_is_said_at_any_interval(driver: Driver, start: Start) -> None:
    driver.put(faults=["nvmlInit_v2 hang", "nvmlInitWithFlags hang"])
    source = start(interval=3600.0, timeouts=Timeouts())
    snapshot = source.next(10.0)  # as long as the start may take
    assert snapshot is not None
    assert snapshot.state is SourceState.STARTING
    assert "nvmlInit" in snapshot.words


def test_a_hang_is_said_at_any_interval(driver: Driver, start: Start) -> None:
    driver.put(gpus=[Card(0)])
    source = start(interval=time.monotonic() + 3600)  # longer than the machine is up
    until(source, lambda it: live(it) == [0])
    driver.put(faults=["* hang"])
    assert source._child is not None
    source._child.send(poke=True)
    # In the call for a figure, or in one for events: then the next sampler hangs before any GPU can be asked.
    until(source, lambda it: row(it, 0).health is Health.SILENT or it.state is SourceState.SILENT)


def test_a_sampler_that_hangs_outside_the_driver_is_replaced(driver: Driver, start: Start) -> None:
    source = start(timeouts=replace(QUICK, silence=2.0))
    until(source, lambda it: live(it) == [0])
    sampler = stop(source, inside=False)  # there no call says that it hangs
    snapshot = until(source, lambda it: it.state is SourceState.SILENT)
    assert "sampler" in snapshot.words
    until(source, lambda it: it.state is SourceState.OK and live(it) == [0] and sampler not in source.pids)


def test_a_call_is_not_said_to_hang_for_the_time_in_which_we_were_stopped_too(driver: Driver, start: Start) -> None:
    driver.put(faults=["nvmlDeviceGetPowerUsage sleep=300"])
    source = start()
    until(source, lambda it: live(it) == [0])
    sampler = stop(source, inside=True)
    stopped = time.monotonic()
    while time.monotonic() < stopped + QUICK.call + 1.5:  # a paused machine, or ours alone: we do not look
        time.sleep(0.05)
    source.next(0.0)
    assert source.pids == {sampler}
    os.kill(sampler, signal.SIGCONT)
    then = time.monotonic()
    snapshot = until(source, lambda it: row(it, 0).sampled > then)
    assert row(snapshot, 0).health is Health.OK
    assert source.pids == {sampler}


def test_a_probe_that_may_not_be_started_yet_stays_due() -> None:
    started: list[int] = []
    quarantine = Quarantine(Timeouts(), lambda gpu: started.append(gpu.row.index), lambda _: None)
    quarantine.add(Gpu(index=2), Health.QUARANTINED, "it crashed", listed=8, now=100.0, wall=0.0)
    quarantine.retry_all(100.0)
    quarantine.poll(100.0, 0.0)
    quarantine.poll(100.2, 0.0)
    assert started == [2, 2]


def test_asking_again_starts_no_more_probes_than_may_get_stuck(driver: Driver, start: Start) -> None:
    driver.lab(4, 0)
    driver.put(faults=[f"*@{index} hang" for index in range(4)])
    source = start(timeouts=replace(QUICK, probe=60.0, probe_most=60.0))
    until(source, lambda it: len(it.gpus) == 4 and not live(it))
    source.poke()
    most = 0
    end = until(source, lambda _: True).monotonic + 2 * QUICK.start
    while until(source, lambda _: True).monotonic < end:
        most = max(most, len(source._quarantine.probes))
    assert most == QUICK.stuck
    driver.put(faults=[])
    while source._quarantine.gpus:
        source.poke()
        until(source, lambda _: True)
    until(source, lambda it: len(live(it)) == 4)


def test_samplers_killed_a_moment_ago_are_not_said_to_hang_in_the_kernel(start: Start) -> None:
    source = start(command=stub("time.sleep(60)"))
    for _ in range(QUICK.stuck):
        child = SamplerProcess(command=stub("time.sleep(60)"))
        child.kill()
        source._abandoned.append(child)
        child.exit_code = lambda timeout=0.0: None  # type: ignore[method-assign]
    assert source._may_start()
    for child in source._abandoned:
        child.killed_at = time.monotonic() - 60.0
    assert not source._may_start()
    for child in source._abandoned:
        del child.exit_code  # it is reaped at the end


@pytest.mark.parametrize("closing", [True, False])
def test_nothing_is_started_once_closed(start: Start, closing: bool) -> None:
    source: LocalSource = start()
    if closing:
        source.close()
    assert source._may_start() is not closing


def test_one_that_closed_its_output_and_lives_on_is_ended_with_the_source(start: Start) -> None:
    before = descriptors()
    source = start(command=(sys.executable, "-c", "import os, time; os.close(1); time.sleep(60)"))
    pids = source.pids
    wait_for(lambda: source.next(0.01) is None and not source.pids, "it is given a second to go")
    assert not source.pids
    close(source)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
    assert descriptors() == before
