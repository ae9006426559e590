"""`gpuwatch pick`: a value for CUDA_VISIBLE_DEVICES, or why there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.process import SOMEBODY_ELSE
from tests.support.program import Launcher, needs_root, starting, write


@pytest.fixture
def launch(driver: Driver, tmp_path: Path) -> Launcher:
    """Give gpuwatch on a machine with four GPUs: full, busy, free, and nearly free."""
    used = (75, 40, 0, 5)
    driver.gpus = [Gpu(index, memory_used=gib * GIB, util_gpu=gib) for index, gib in enumerate(used)]
    driver.procs = [Proc(index, os.getpid(), memory=gib * GIB) for index, gib in enumerate(used) if gib]
    driver.write()
    return Launcher(driver, tmp_path, in_process=True)


def uuids(driver: Driver, *indices: int) -> str:
    return ",".join(str(driver.gpus[index].uuid) for index in indices)


def test_the_gpu_with_the_most_room_is_printed_and_nothing_else(launch: Launcher, driver: Driver) -> None:
    done = launch("pick", "--memory", "20GiB")
    assert (done.returncode, done.stdout, done.stderr) == (0, uuids(driver, 2) + "\n", "")
    assert not launch.shared.exists(), "who only asks leaves nothing behind"
    assert not launch.own.exists()


def test_without_a_size_an_empty_gpu_is_picked_or_else_the_one_with_the_most_left(
    launch: Launcher, driver: Driver
) -> None:
    done = launch("pick")
    assert (done.returncode, done.stdout) == (0, uuids(driver, 2) + "\n")
    assert done.stderr == "gpuwatch: GPU 2 is empty: 79.1 GiB free\n"
    done = launch("pick", "--gpu", "0,3", "--index")
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "gpuwatch: GPU 3: 74.1 GiB free\n")
    none = launch("pick", "-n", "5")
    assert (none.returncode, none.stdout) == (1, "")


@pytest.mark.parametrize(
    ("environ", "is_said"),
    [({"SLURM_CONF": "/etc/slurm.conf"}, True), ({"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0,1"}, False)],
)
def test_allocations_of_slurm_are_not_known_outside_of_one(
    launch: Launcher, environ: dict[str, str], is_said: bool
) -> None:
    done = launch("pick", "--memory", "20GiB", **environ)
    assert done.returncode == 0
    assert ("Slurm manages this machine" in done.stderr) is is_said


def test_slurm_is_known_by_its_daemon(launch: Launcher, tmp_path: Path) -> None:
    daemon = tmp_path / "slurmd"
    shutil.copy("/bin/cat", daemon)
    with subprocess.Popen([daemon], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b".")
        assert process.stdout.read(1) == b"."  # it has its name
        assert "Slurm manages this machine" in launch("pick", "--memory", "20GiB").stderr


def test_what_the_caller_cannot_see_is_not_picked(launch: Launcher, driver: Driver) -> None:
    done = launch("pick", "--share", "0.4", CUDA_VISIBLE_DEVICES="1")
    assert done.stdout == uuids(driver, 1) + "\n"
    none = launch("pick", "--share", "0.4", CUDA_VISIBLE_DEVICES="-1")
    assert none.returncode == 1
    assert "GPU 2: hidden by CUDA_VISIBLE_DEVICES=-1 in your environment" in none.stderr


@pytest.mark.parametrize(
    "words", [("pick", "--memory", "1GiB", "--gpu", "2"), ("run", "--memory", "1GiB", "--gpu", "1,2", "--", "true")]
)
def test_a_named_gpu_that_the_caller_cannot_see_is_refused(launch: Launcher, words: Sequence[str]) -> None:
    done = launch(*words, CUDA_VISIBLE_DEVICES="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{words[3]}: GPU 2 is hidden by CUDA_VISIBLE_DEVICES=1 in your environment" in done.stderr
    assert not launch.shared.exists(), "who was refused has reserved nothing"


# -- reservations ----------------------------------------------------------------------------------------------------


def reserved_by(launch: Launcher, pid: int, index: int, size: int, *, owner: int | None = None) -> None:
    """Let a process have reserved so many bytes of a GPU."""
    write(launch.shared, pid, owner=owner, gpus={str(launch.driver.gpus[index].uuid): size})


def test_what_is_promised_is_one_number_everywhere(launch: Launcher) -> None:
    with starting() as start:
        reserved_by(launch, start().pid, 2, 30 * GIB)
        done = launch("pick", "--memory", "60GiB", "-n", "4")
        picked = json.loads(launch("pick", "--memory", "60GiB", "--json").stdout)["gpus"][2]
        seen = json.loads(launch("--once", "--json").stdout)["gpus"][2]
        title, *rows = launch("--once").stdout.splitlines()[2:]
    assert "GPU 2: 49.1 GiB left, 60.0 wanted: 79.1 GiB free, 30.0 promised; promised to " in done.stderr
    assert picked["promised"] == seen["promised"] == 30 * GIB
    assert picked["free"] == seen["memory"]["free"]
    assert picked["left"] == picked["free"] - picked["promised"]
    end = title.index("left") + len("left")
    assert [row[:end].split()[-1] for row in rows[:4]] == ["4.1", "39.1", "49.1", "74.1"]


def test_a_reservation_is_worth_at_most_its_gpu_and_can_be_ignored_aloud(launch: Launcher, driver: Driver) -> None:
    needs_root()
    with starting() as start:
        for _ in range(2):
            reserved_by(launch, start(user=SOMEBODY_ELSE).pid, 2, 1 << 50, owner=SOMEBODY_ELSE)
        counted = launch("pick", "--memory", "20GiB", "--json")
        ignored = launch("pick", "--memory", "20GiB", "--ignore-reservations")
    third = json.loads(counted.stdout)["gpus"][2]
    assert third["promised"] == third["free"]
    assert counted.stderr == ""
    assert json.loads(counted.stdout)["cuda_visible_devices"] == uuids(driver, 3)
    assert ignored.stdout == uuids(driver, 2) + "\n"
    assert f"ignored: uid {SOMEBODY_ELSE} has reserved 79.1 GiB of GPU 2" in ignored.stderr
