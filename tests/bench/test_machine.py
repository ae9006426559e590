"""The machine of the benchmark has the processes that its figures are about."""

from __future__ import annotations

from pathlib import Path

import psutil

from gpuwatch.base import procfs
from tests.bench.machine import Lab, Machine
from tests.support.process import unavailable
from tests.support.waiting import wait_for


def start(folder: Path, lab: Lab) -> Machine:
    """Start a machine with two GPUs."""
    try:
        return Machine(folder, lab, gpus=2)
    except RuntimeError as error:
        unavailable(str(error))


def has_ended(process: psutil.Process) -> bool:
    """Return whether a process has ended, reaped or not."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_lab_has_jobs_that_compute_and_holders_of_every_device(tmp_path: Path) -> None:
    with start(tmp_path, Lab(processes=11, holders=20, turnover=False)) as machine:
        jobs, tree = {proc.pid for proc in machine.driver.procs}, machine.tree()
        assert len(jobs) == 11
        assert len(tree) == 11 + 20
        assert jobs < {process.pid for process in tree}
        for process in tree:
            assert {"/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm"} < set(procfs.read_open_files(process.pid))
        used = Path(f"/proc/{machine.driver.procs[4].pid}/schedstat")
        before = used.read_text()
        wait_for(lambda: used.read_text() != before)
    wait_for(lambda: all(has_ended(process) for process in tree))


def test_jobs_are_replaced_and_have_short_lived_workers(tmp_path: Path) -> None:
    machine = start(tmp_path, Lab(processes=11))
    wait_for(lambda: len(machine.tree()) == 11 + 2 * 2)
    old = machine.driver.procs[5].pid
    machine.replace(5)
    assert machine.driver.procs[5].pid != old
    wait_for(lambda: not psutil.pid_exists(old))
    with machine:  # only now figures and jobs change by themselves
        wait_for(lambda: len(machine.tree()) == 11 + 2 * 2)
