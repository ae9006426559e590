"""`gpuwatch explain PID`: real processes with real environments, on the fake driver and without any."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from gpuwatch.commands.explain import ReadDeclarations, explanation_lines, find_process
from gpuwatch.config import Config
from gpuwatch.model import Declared, Knowledge, Process, Snapshot
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.launching import Launcher, starting

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
    assert "grant 0.4 of the GPU, 31.9 GiB on GPU 1" in text
    assert "GPUWATCH_SHARE=0.4 · environment · certain · in effect" in text
    assert "40.0 GiB on GPU 1" in text
    assert "overshoot, 8.1 GiB over the 31.9 GiB that were declared (allowance 600 MiB)" in text


def test_a_process_on_no_gpu_is_explained_too(launch: Launcher, start: Start) -> None:
    pid = str(start(GPUWATCH_SHARE="20GiB").pid)
    done = launch("explain", pid, "--ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "grant 20.0 GiB on each of GPU 0-1" in done.stdout
    assert "cuda:0 -> GPU 0, cuda:1 -> GPU 1" in done.stdout
    assert "holds" not in done.stdout
    assert done.stdout.isascii()


def test_json_is_the_model(launch: Launcher, driver: Driver, start: Start) -> None:
    pid = held_by(driver, start(GPUWATCH_SHARE="0.4"))
    done = launch("explain", pid, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    parts = json.loads(done.stdout)
    assert list(parts) == ["process", "declared"]
    assert msgspec.convert(parts["process"], Process).pid == int(pid)
    declared = msgspec.convert(parts["declared"], Declared)
    assert declared.knowledge is Knowledge.READ
    assert [limit.bytes for limit in declared.limits] == [round(0.4 * 81559 * 2**20)] * 2


def test_without_a_driver_it_says_so_and_explains_what_it_can(launch: Launcher, start: Start) -> None:
    done = launch("explain", str(start(GPUWATCH_SHARE="0.4").pid), LD_LIBRARY_PATH="/nowhere")
    assert done.returncode == 3
    assert done.stderr.startswith("gpuwatch: without GPUs: no usable NVIDIA driver library")
    assert "GPUWATCH_SHARE=0.4 · environment" in done.stdout


def test_an_agreement_of_the_configuration_is_in_the_answer(launch: Launcher, start: Start, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[[share]]\ncommand = "^cat"\nmemory = "8GiB"\n')
    done = launch("explain", str(start().pid), "--config", str(file))
    assert done.returncode == 0
    assert "8.0 GiB" in done.stdout
    assert "mine.toml" in done.stdout


def test_a_secret_and_an_escape_do_not_reach_the_terminal(launch: Launcher, start: Start) -> None:
    pid = str(start(GPUWATCH_SHARE="0.4\x1b]0;x\x07", CUDA_VISIBLE_DEVICES="\x1b[2J").pid)
    for flags in ((), ("--json",)):
        done = launch("explain", pid, *flags)
        assert "\x1b" not in done.stdout + done.stderr
        assert "\\u001b" not in done.stdout


def test_a_thread_of_the_kernel_has_not_ended_and_has_no_environment(launch: Launcher) -> None:
    names = {path.parent.name: path.read_text().strip() for path in Path("/proc").glob("[0-9]*/comm")}
    thread = next((pid for pid, name in names.items() if name == "kthreadd"), None)
    if thread is None:
        pytest.skip("this runs in a container, where no thread of the kernel is to be seen")
    done = launch("explain", thread)
    assert done.returncode == 0
    assert "is a thread of the kernel: it has no environment" in done.stderr
    assert "ended" not in done.stdout + done.stderr
    assert "environment" not in done.stdout


# -- what no real process shows at will ------------------------------------------------------------------------------


def explained(shown: Snapshot, read: ReadDeclarations) -> list[str]:
    """Return what is printed of PID 7 in a snapshot."""
    return explanation_lines(find_process(7, shown, Config(), read=read), shown, Config())


def never(process: Process, snapshot: Snapshot, config: Config) -> Process:
    raise AssertionError("there is nothing to look at")


def test_what_the_sampler_has_read_is_not_read_again() -> None:
    shown = snapshot([gpu(0, holdings=[holding(7)])], [process(7, declared=Declared())])
    lines = explained(shown, never)
    assert lines[0] == "PID 7 · ada · running · python train.py"
    assert "  nothing" in "\n".join(lines)


def test_what_the_sampler_had_no_time_for_is_read() -> None:
    waiting = process(7, declared=Declared(knowledge=Knowledge.PENDING))
    shown = snapshot([gpu(0, holdings=[holding(7)])], [waiting])

    def read(one: Process, snapshot: Snapshot, config: Config) -> Process:
        return msgspec.structs.replace(one, declared=Declared(frameworks=("JAX",)))

    assert "uses      JAX" in explained(shown, read)
