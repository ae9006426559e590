"""`gpuwatch run` on the fake driver: a real lock, a real reservation, a real execve."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpuwatch.sampler.reservations import read_reservations
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.program import Launcher

pytestmark = pytest.mark.slow

SHOW = """
import json, os, sys
children = open("/proc/self/task/%d/children" % os.getpid()).read().split()
fds = sorted(map(int, os.listdir("/proc/self/fd")))[:-1]
print(json.dumps({"pid": os.getpid(), "env": dict(os.environ),
                  "children": children, "fds": fds, "argv": sys.argv[1:]}))
sys.exit(7)
"""

STAY = ("sh", "-c", "echo started; read line")
"""A program that says so and stays until it is ended."""


@pytest.fixture
def launch(driver: Driver, tmp_path: Path) -> Launcher:
    """Give gpuwatch on a machine with two GPUs: one that is held by this process, one that is free."""
    driver.gpus = [Gpu(0, memory_used=60 * GIB, util_gpu=90), Gpu(1, util_gpu=1)]
    driver.procs = [Proc(0, os.getpid(), memory=60 * GIB, sm=90)]
    driver.write()
    return Launcher(driver, tmp_path)


def uuid(driver: Driver, index: int) -> str:
    return str(driver.gpus[index].uuid)


def started(process: subprocess.Popen[str]) -> bool:
    """Wait until the program runs, or gpuwatch has ended; say which."""
    assert process.stdout is not None
    return process.stdout.readline() == "started\n"


def test_gpuwatch_becomes_the_program(launch: Launcher, driver: Driver) -> None:
    with launch.started(
        "run", "--share", "0.4", "--verbose", "--", sys.executable, "-c", SHOW, "--help", "--", "-n"
    ) as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 7
        seen = json.loads(out)
        assert seen["pid"] == process.pid
    assert seen["argv"] == ["--help", "--", "-n"]
    assert seen["children"] == [], "the sampler is gone, and no zombie of it is left to somebody who does not know it"
    assert seen["fds"] == [0, 1, 2]
    environ = seen["env"]
    assert environ["CUDA_VISIBLE_DEVICES"] == uuid(driver, 1)
    assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert environ["GPUWATCH_SHARE"] == environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] == "0.4"
    assert environ["CUPY_GPU_MEMORY_LIMIT"] == "40%"
    assert environ["TF_FORCE_GPU_ALLOW_GROWTH"] == "true"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in environ
    lines = err.splitlines()
    assert f"gpuwatch: CUDA_VISIBLE_DEVICES={uuid(driver, 1)}" in lines
    assert lines[0] == "gpuwatch: GPU 1: 79.1 GiB free, 31.6 GiB reserved for you, cuda:0"
    assert all(line.startswith("gpuwatch: ") for line in lines)
    for name in environ.keys() & {"GPUWATCH_SHARE", "XLA_PYTHON_CLIENT_MEM_FRACTION", "CUPY_GPU_MEMORY_LIMIT"}:
        assert sum(f" {name}=" in line for line in lines) == 1


def test_the_program_is_ended_by_a_pipe_that_nobody_reads_as_from_a_shell(launch: Launcher) -> None:
    """Python ignores SIGPIPE, and what is ignored stays so over execve."""
    done = launch("run", "--share", "0.4", "--quiet", "--", "grep", "SigIgn", "/proc/self/status")
    ignored = int(done.stdout.split()[1], 16)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored >> (number - 1) & 1


def test_of_two_that_are_started_together_one_has_the_last_place(launch: Launcher) -> None:
    arguments = ("run", "--share", "0.6", "--quiet", "--", *STAY)
    with launch.started(*arguments) as first, launch.started(*arguments) as second:
        won = [process for process in (first, second) if started(process)]
        assert len(won) == 1
        (lost,) = {first, second} - set(won)
        _, said = lost.communicate(timeout=60)
        assert lost.returncode == 1
        assert "GPU 1: 31.6 GiB left, 47.5 wanted: 79.1 GiB free, 47.5 promised; promised to " in said


def test_a_place_is_free_again_when_its_program_has_ended(launch: Launcher) -> None:
    wanted = ("run", "--share", "0.6", "--quiet", "--")
    with launch.started(*wanted, *STAY) as first:
        assert started(first)
        (file,) = launch.shared.iterdir()
        assert file.name.startswith(f"{first.pid}-")
        assert launch(*wanted, "true").returncode == 1
        assert launch("pick", "--share", "0.6").returncode == 1
        assert launch("pick", "--share", "0.3").returncode == 0
        first.communicate("\n", timeout=60)
    assert launch(*wanted, "true").returncode == 0
    assert launch("pick", "--share", "0.6").returncode == 0
    assert not launch.own.exists()
    assert list(launch.shared.iterdir()) == []


def test_it_waits_for_an_empty_gpu_and_says_for_whom(launch: Launcher, driver: Driver, tmp_path: Path) -> None:
    config, mail = tmp_path / "gpuwatch.toml", tmp_path / "mail"
    config.write_text(f"[notify]\nruns = true\ncommand = ['/bin/sh', '-c', 'cat >>{mail}']\n")
    config.chmod(0o600)
    user = pwd.getpwuid(os.geteuid()).pw_name
    driver.gpus[1] = Gpu(1, memory_used=GIB)
    driver.procs.append(Proc(1, os.getpid(), memory=GIB))
    driver.write()
    refused = launch("run", "--empty", "--", "true")
    assert refused.returncode == 1
    first = refused.stderr.splitlines()[0]
    assert first == (
        "gpuwatch: no GPU is empty; GPU 1 has 78.1 GiB left: try `--memory 78GiB` or `--share 0.9`; `--wait` waits"
    )
    waits = ("run", "--empty", "--wait", "--config", str(config), "--")
    with launch.started(*waits, "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") as process:
        assert process.stderr is not None
        assert process.stderr.readline() == f"gpuwatch: no GPU is empty; waiting for {user} (GPU 0-1)\n"
        driver.procs.pop(0)
        driver.gpus[0] = Gpu(0)
        driver.write()
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, f"{uuid(driver, 0)}\n")
    assert err == "gpuwatch: GPU 0: 79.1 GiB free, 79.1 GiB reserved for you, cuda:0\n"
    assert "starts on GPU 0" in json.loads(mail.read_text())["message"]


def test_what_can_never_fit_is_not_waited_for(launch: Launcher) -> None:
    done = launch("run", "--memory", "500GiB", "--wait", "--", "true")
    assert done.returncode == 1
    assert "`--wait` waits" not in done.stderr


def test_more_than_was_agreed_on_is_said_even_if_quiet(launch: Launcher, tmp_path: Path) -> None:
    file = tmp_path / "gpuwatch.toml"
    mine = f'user = "{os.geteuid()}"\ncommand = "train"\ngpu = 1\nmemory = "20GiB"\n'
    file.write_text(f"[[share]]\nshare = 0.5\n[[share]]\n{mine}")
    quiet = ("run", "--quiet", "--config", str(file))
    assert launch(*quiet, "--share", "0.5", "--", "true").stderr == ""
    done = launch(*quiet, "--share", "0.3", "--", "echo", "train")
    assert (done.returncode, done.stdout) == (0, "train\n")
    assert "more than was agreed on: GPU 1: 23.7 GiB wanted; 20.0 GiB allowed" in done.stderr


def test_a_program_that_the_kernel_refuses_is_126_and_keeps_no_place(launch: Launcher, tmp_path: Path) -> None:
    program = tmp_path / "notes"
    program.write_text("nothing to run")
    program.chmod(0o755)
    done = launch("run", "--share", "0.4", "--quiet", "--", str(program))
    assert (done.returncode, done.stderr) == (126, f"gpuwatch: {program}: Exec format error\n")
    assert read_reservations((launch.shared,), ()) == []


def test_a_link_in_place_of_the_shared_folder_is_said_and_the_own_one_serves(launch: Launcher, tmp_path: Path) -> None:
    target = tmp_path / "somebody's"
    target.mkdir()
    launch.shared.symlink_to(target)
    with launch.started("run", "--share", "0.6", "--", *STAY) as first:
        assert started(first)
        again = launch("run", "--share", "0.6", "--", "true")
        assert again.returncode == 1
        assert f"not locked against other users: {launch.shared}: it is a link or not a folder" in again.stderr
        assert len(list(launch.own.iterdir())) == 1
    assert list(target.iterdir()) == []
    quiet = launch("run", "--share", "0.6", "--quiet", "--", "true")
    assert "not locked against other users" in quiet.stderr, "quiet about what was set, not about what is wrong"
