"""The sampler process on the tests' driver library: its protocol, what it says of itself, and one sick GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from gpuwatch.base import procfs
from gpuwatch.model.snapshot import Health, Presence, Reason, SourceState, Xid, decode
from gpuwatch.sampler.protocol import Exit
from gpuwatch.sampler.shared_page import EVENT_CALLS
from tests.driver import GIB, Driver, Proc
from tests.driver import Gpu as Card
from tests.support.environment import environment
from tests.support.sampler import ALL_BUT_3, ME, Running, all_are_well, eight, gpu, once, running, well
from tests.support.waiting import wait_for


def test_a_single_snapshot(driver: Driver) -> None:
    driver.put(procs=[Proc(0, ME, memory=20 * GIB)])
    snapshot, code = once(driver.env())
    assert (code, snapshot.state, snapshot.driver, snapshot.cuda) == (0, SourceState.OK, "580.95.05", "13.0")
    ((held,),) = (row.holdings for row in snapshot.gpus)
    (process,) = snapshot.processes
    assert (process.pid, process.presence, process.uid) == (ME, Presence.SEEN, os.getuid())
    assert held.start == process.start > 0


def test_snapshots_keep_coming_and_commands_are_obeyed(driver: Driver) -> None:
    eight(driver)
    with running(driver.env(), interval=0.1) as sampler:
        first, second = sampler.next(), sampler.next()
        assert second.sequence == first.sequence + 1
        assert second.monotonic > first.monotonic
        assert second.nvml_calls > first.nvml_calls
        assert second.processes[0].cpu != Reason.NO_SAMPLE
        sampler.send(skip=[second.gpus[3].uuid])
        sampler.until(lambda snapshot: [row.index for row in snapshot.gpus] == ALL_BUT_3)
        sampler.send(skip=[])
        sampler.until(all_are_well)
        sampler.send(focus=second.gpus[1].key)
        focused = sampler.until(lambda snapshot: snapshot.gpus[1].pcie_link == "gen5 x16")
        assert focused.gpus[0].pcie_link == Reason.NO_SAMPLE
        sampler.send(focus="")
        sampler.until(lambda snapshot: snapshot.gpus[1].pcie_tx is Reason.NO_SAMPLE)
        sampler.send(interval=3600)
        slow = sampler.until(lambda snapshot: snapshot.interval == 3600)
        sampler.send(poke=True)
        assert sampler.next().sequence == slow.sequence + 1
        assert sampler.process.stdin is not None
        sampler.process.stdin.close()
        assert sampler.ends() == Exit.DONE


def test_gpus_that_are_left_alone_are_not_called_at_all(driver: Driver) -> None:
    snapshot, _ = once(eight(driver).env(), only=[0, 2, 5], skip=[5])
    assert [row.index for row in snapshot.gpus] == [0, 2]
    assert [index for index in range(8) if driver.calls(index)] == [0, 2]
    snapshot, code = once(driver.env(), only=[9])
    assert (snapshot.state, code) == (SourceState.ENDED, Exit.USAGE)
    assert snapshot.words == "--gpu: there is no GPU 9; this machine has 0 to 7"


def test_the_output_ends_when_nobody_reads(driver: Driver) -> None:
    with running(eight(driver).env(), interval=0.05, declared=False) as sampler:
        sampler.next()
        assert sampler.process.stdout is not None
        sampler.process.stdout.close()
        assert sampler.ends() == Exit.DONE
        assert sampler.errors() == ""


def test_a_library_that_prints_spoils_no_line(driver: Driver, tmp_path: Path) -> None:
    shadow = tmp_path / "first"
    shadow.mkdir()
    (shadow / "sitecustomize.py").write_text(
        "import atexit, ctypes\nctypes.CDLL(None).puts(b'hello')\nctypes.CDLL(None).fflush(None)\n"
    )
    with running({**driver.env(), "PYTHONPATH": str(shadow)}, once=True) as sampler:
        assert sampler.line() == b"hello"  # before our own first line, as a shell's profile might
        assert decode(sampler.line() or b"").state is SourceState.OK


STARTS_A_SAMPLER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-P", "-m", "gpuwatch.sampler", "{}"], stdin=subprocess.PIPE)
print(child.pid, flush=True)
time.sleep(600)
"""


def test_it_dies_with_its_parent(driver: Driver) -> None:
    """Even inside a call that hangs, where no end of stdin is seen."""
    env = eight(driver, "nvmlDeviceGetPowerUsage@0 hang").env(environment())
    with closing(Running.script(STARTS_A_SAMPLER, env)) as parent:
        pid = int(parent.line() or b"")
        wait_for(lambda: driver.calls(0)["nvmlDeviceGetPowerUsage"] > 0)
        parent.process.kill()
        wait_for(lambda: procfs.has_ended(pid))


def test_gpus_without_a_handle_cost_no_other(driver: Driver) -> None:
    faults = [f"nvmlDeviceGetHandleByIndex_v2@{index} ret={code}" for index, code in ((1, 4), (3, 15), (6, 4242))]
    snapshot, exit_code = once(eight(driver, *faults, "nvmlErrorString hang").env())
    assert (exit_code, snapshot.state, well(snapshot)) == (0, SourceState.OK, [0, 2, 4, 5, 7])
    for index, health, words in (
        (1, Health.DENIED, "no permission to open"),
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
    assert declared.visible.gpus == tuple(str(gpu.uuid) for gpu in driver.gpus)


def test_a_figure_is_as_old_as_the_sample_that_it_was_read_in(driver: Driver) -> None:
    """The memory is read before a call that takes its time: it is no newer than that."""
    snapshot, _ = once(eight(driver, "nvmlDeviceGetPowerUsage@7 sleep=100").env())
    assert snapshot.monotonic - gpu(snapshot, 7).sampled >= 0.1


def happens(driver: Driver, *xids: tuple[int, int]) -> None:
    """Let these XIDs happen: (index of the GPU, code)."""
    driver.xids += xids
    driver.write()


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
    xids = {row.index: [(one.code, one.count) for one in row.xids] for row in told.gpus if isinstance(row.xids, tuple)}
    assert {index: found for index, found in xids.items() if found} == {3: [(79, 2)], 5: [(31, 1)]}
    (xid,) = gpu(told, 3).xids
    assert isinstance(xid, Xid)
    assert first.taken <= xid.last <= told.taken
    assert "nvmlErrorString" not in driver.calls()


def test_a_single_snapshot_listens_for_nothing(driver: Driver) -> None:
    snapshot, _ = once(eight(driver).env())
    assert {row.xids for row in snapshot.gpus} == {Reason.NO_SAMPLE}
    assert not driver.calls().keys() & EVENT_CALLS
