"""`gpuwatch explain PID`: real processes with real environments, on the fake driver and without any."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.program import Launcher, starting

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a process with an environment and nothing else."""
    with starting() as cat:
        yield lambda **env: cat(env={"PATH": os.environ["PATH"], **env})


@pytest.fixture
def launch(driver: Driver, tmp_path: Path) -> Launcher:
    driver.gpus = [Gpu(0), Gpu(1, memory_used=40 * GIB)]
    driver.write()
    return Launcher(driver, tmp_path, in_process=True)


def held_by(driver: Driver, process: subprocess.Popen[bytes]) -> str:
    driver.procs = [Proc(1, process.pid, memory=40 * GIB)]
    driver.write()
    return str(process.pid)


def test_a_process_on_a_gpu_is_explained(launch: Launcher, driver: Driver, start: Start) -> None:
    pid = held_by(driver, start(CUDA_VISIBLE_DEVICES="1", GPUWATCH_SHARE="0.4"))
    done = launch("explain", pid)
    assert (done.returncode, done.stderr) == (0, "")
    head, blank, *lines = done.stdout.splitlines()
    assert head.startswith(f"PID {pid} · ")
    assert head.endswith(" · cat")
    assert blank == ""
    text = "\n".join(lines)
    assert "cuda:0 → GPU 1" in text
    assert "CUDA_VISIBLE_DEVICES=1 · environment · " in text
    assert "grant 0.4 of the GPU, 31.6 GiB on GPU 1" in text
    assert "GPUWATCH_SHARE=0.4 · environment · certain · in effect" in text
    assert "40.0 GiB on GPU 1" in text
    assert "8.4 GiB over the declared 31.6 GiB, more than the allowance of 600 MiB" in text


def test_without_a_driver_it_says_so_and_explains_what_it_can(launch: Launcher, start: Start) -> None:
    done = launch("explain", str(start(GPUWATCH_SHARE="0.4").pid), LD_LIBRARY_PATH="/nowhere")
    assert done.returncode == 3
    assert done.stderr.startswith("gpuwatch: no GPUs: no usable NVIDIA driver library")
    assert "GPUWATCH_SHARE=0.4 · environment" in done.stdout


# -- what no real process shows at will ------------------------------------------------------------------------------
