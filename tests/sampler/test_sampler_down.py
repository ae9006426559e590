"""The sampler on a machine whose driver cannot be used, or goes away."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from gpuwatch import procfs
from gpuwatch.model import SourceState
from gpuwatch.sampler.protocol import Exit
from tests.driver import GIB, MIB, Driver
from tests.support.sampling import eight, once, running, well


@pytest.mark.parametrize("content", [None, b"this is no library\n"])
def test_a_library_that_is_missing_or_broken(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "libnvidia-ml.so.1").write_bytes(content)
    elif any(Path(folder, "libnvidia-ml.so.1").exists() for folder in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu")):
        pytest.skip("this machine has a driver of its own")
    snapshot, code = once({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert (snapshot.state, code, snapshot.gpus) == (SourceState.NO_DRIVER, Exit.NO_DRIVER, ())
    assert "libnvidia-ml.so.1" in snapshot.words
    assert "gpuwatch --demo" in snapshot.words or "--gpus all" in snapshot.words


@pytest.mark.parametrize(
    ("code", "state", "words"),
    [
        (9, SourceState.DRIVER_DOWN, "not loaded"),
        (18, SourceState.DRIVER_DOWN, "reboot, or reload the nvidia modules"),
        (999, SourceState.DRIVER_DOWN, "NVML error 999"),
        (4, SourceState.DRIVER_DOWN, "/dev/nvidia"),
        (28, SourceState.NO_GPU, "lists no GPU"),
        (4242, SourceState.DRIVER_DOWN, "NVML error 4242"),
    ],
)
def test_a_driver_that_does_not_start(driver: Driver, code: int, state: SourceState, words: str) -> None:
    driver.faults = [f"nvmlInitWithFlags ret={code}", "nvmlErrorString hang"]
    snapshot, exit_code = once(driver.write().env())
    assert (snapshot.state, exit_code) == (state, Exit.NO_DRIVER)
    assert words in snapshot.words


def test_both_versions_are_named_when_they_differ(driver: Driver, tmp_path: Path) -> None:
    """The module's version is the kernel's to tell, the library's is in the name of its file."""
    proc = tmp_path / "proc"
    (proc / "driver/nvidia").mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.08  Thu May  1 02:00:00 UTC 2025\n"
        "GCC version:  gcc version 13.2.0\n"
    )
    (proc / "self").mkdir()
    (proc / "self/maps").write_text("7f00-7f01 r-xp 00000000 08:01 77 /usr/lib/libnvidia-ml.so.580.95.05 (deleted)\n")
    driver.faults = ["nvmlInitWithFlags ret=18"]
    snapshot, _ = once(driver.write().env(), proc=str(proc))
    assert "570.148.08" in snapshot.words
    assert "580.95.05" in snapshot.words


def test_no_gpu(driver: Driver) -> None:
    driver.gpus = []
    snapshot, code = once(driver.write().env())
    assert (snapshot.state, code) == (SourceState.NO_GPU, Exit.NO_DRIVER)


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("pynvml/__init__.py", "from pynvml.nvml import *\n", "pynvml/__init__.py"),
        ("pynvml.py", "def nvmlInit(): pass\n", "pynvml.py"),
        ("pynvml.py", "raise RuntimeError('old \x1b[31m')\n", "RuntimeError"),
    ],
)
def test_another_package_in_place_of_the_binding(
    driver: Driver, tmp_path: Path, path: str, text: str, words: str
) -> None:
    shadow = tmp_path / "first"
    (shadow / path).parent.mkdir(parents=True)
    (shadow / path).write_text(text)
    if path.endswith("__init__.py"):
        (shadow / "pynvml/nvml.py").write_text("def nvmlInit(): pass\n")
    snapshot, code = once({**driver.env(), "PYTHONPATH": str(shadow)})
    assert (snapshot.state, code) == (SourceState.NO_DRIVER, Exit.NO_DRIVER)
    assert words in snapshot.words
    assert "-m pip" in snapshot.words
    assert '"nvidia-ml-py>=12.535.108,<14"' in snapshot.words
    assert "\x1b" not in snapshot.words


@pytest.mark.parametrize("options", [{"what": 1}, {"only": ["x"]}, {"page": 1}, {"interval": ""}])
def test_a_wrong_command_line_ends_in_words(driver: Driver, options: dict[str, Any]) -> None:
    with running(driver.env(), **options) as sampler:
        snapshot = sampler.next()
        assert snapshot.state is SourceState.ENDED
        assert "options" in snapshot.words
        assert sampler.ends() == Exit.USAGE


def test_a_fault_of_our_own_reaches_the_reader(driver: Driver) -> None:
    with running(driver.env()) as sampler:
        sampler.next()
        sampler.send(interval="soon")
        last = sampler.until(lambda snapshot: snapshot.state is not SourceState.OK)
        assert last.state is SourceState.DRIVER_DOWN  # and not ended: its parent starts another
        assert "ValidationError" in last.words
        assert sampler.ends() == Exit.BUG


def mapped(pid: int) -> int:
    """Return the bytes of address space that a process has."""
    return int(procfs.read_file(pid, "statm").split()[0]) * resource.getpagesize()


def test_the_memory_of_the_sampler_has_an_end(driver: Driver) -> None:
    with running(driver.env(), interval=60) as sampler:  # it writes nothing that nobody reads meanwhile
        sampler.next()
        pid = sampler.process.pid
        most, _ = resource.prlimit(pid, resource.RLIMIT_AS)
        assert mapped(pid) + GIB < most < mapped(pid) + 8 * GIB
        resource.prlimit(pid, resource.RLIMIT_AS, (mapped(pid) + 32 * MIB, most))
        assert sampler.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            sampler.process.stdin.write(bytes(128 * MIB))  # a command without an end
        last = sampler.until(lambda snapshot: snapshot.state is not SourceState.OK)
        assert last.state is SourceState.DRIVER_DOWN
        assert "GiB of memory" in last.words
        assert sampler.ends() == Exit.BUG
        assert sampler.errors() == ""


@pytest.mark.parametrize("code", [1, 9, 18, 999])
def test_a_driver_that_goes_away_ends_the_sampler(driver: Driver, code: int) -> None:
    """Only a fresh process can find it again; the parent is told so by the exit code."""
    eight(driver)
    with running(driver.env()) as sampler:
        sampler.until(lambda snapshot: well(snapshot) == list(range(8)))
        eight(driver, f"* ret={code}")
        down = sampler.until(lambda snapshot: snapshot.state is SourceState.DRIVER_DOWN)
        assert f"NVML error {code}" in down.words
        assert sampler.line() is None
        assert sampler.ends() == Exit.AGAIN


def test_a_container_that_lost_its_gpus_is_told_why(driver: Driver, tmp_path: Path) -> None:
    """Systemctl daemon-reload on the host takes the device cgroup away."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text("11:devices:/docker/0123456789abcdef\n")
    with running(eight(driver).env(), proc=str(proc)) as sampler:
        sampler.next()
        eight(driver, "* ret=999")
        down = sampler.until(lambda snapshot: snapshot.state is SourceState.DRIVER_DOWN)
        assert "daemon-reload" in down.words
        assert "recreate the container" in down.words
