"""The sampler on a machine whose driver cannot be used, or goes away; and what NVML's codes are said to mean."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from gpuwatch.base import procfs
from gpuwatch.model.snapshot import Health, Reason, SourceState
from gpuwatch.sampler import nvml
from gpuwatch.sampler.nvml import Code, Failed, error, health, reason
from gpuwatch.sampler.protocol import Exit
from tests.driver import GIB, MIB, Driver
from tests.support.sampler import all_are_well, eight, once, running


@pytest.mark.parametrize("content", [None, b"this is no library\n"])
def test_a_library_that_is_missing_or_broken(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "libnvidia-ml.so.1").write_bytes(content)
    elif any(Path(folder, "libnvidia-ml.so.1").exists() for folder in ("/usr/lib64", "/usr/lib/x86_64-linux-gnu")):
        pytest.skip("this machine has a driver of its own")
    snapshot, code = once({**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
    assert (snapshot.state, code, snapshot.gpus) == (SourceState.NO_DRIVER, Exit.NO_DRIVER, ())
    assert "libnvidia-ml.so.1" in snapshot.words
    assert "install the NVIDIA driver" in snapshot.words or "--gpus all" in snapshot.words


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
def test_why_a_driver_does_not_start(tmp_path: Path, code: int, state: SourceState, words: str) -> None:
    found, explanation = nvml.explain_start(code, tmp_path)
    assert found is state
    assert words in explanation
    # `systemctl daemon-reload` on the host takes the device cgroup of a container away.
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text("11:devices:/docker/0123456789abcdef\n")
    assert ("daemon-reload" in nvml.explain_down(code, tmp_path)) is (code == 999)


def test_a_driver_that_does_not_start_names_both_versions_where_they_differ(driver: Driver, tmp_path: Path) -> None:
    """The module's version is the kernel's to tell, the library's is in the name of its file."""
    proc = tmp_path / "proc"
    (proc / "driver/nvidia").mkdir(parents=True)
    (proc / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.148.08  Thu May  1 02:00:00 UTC 2025\n"
        "GCC version:  gcc version 13.2.0\n"
    )
    (proc / "self").mkdir()
    (proc / "self/maps").write_text("7f00-7f01 r-xp 00000000 08:01 77 /usr/lib/libnvidia-ml.so.580.95.05 (deleted)\n")
    driver.put(faults=["nvmlInitWithFlags ret=18", "nvmlErrorString hang"])
    snapshot, code = once(driver.env(), proc=str(proc))
    assert (snapshot.state, code) == (SourceState.DRIVER_DOWN, Exit.NO_DRIVER)
    assert "570.148.08" in snapshot.words
    assert "580.95.05" in snapshot.words


def test_no_gpu(driver: Driver) -> None:
    snapshot, code = once(driver.put(gpus=[]).env())
    assert (snapshot.state, code) == (SourceState.NO_GPU, Exit.NO_DRIVER)


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("pynvml/__init__.py", "def nvmlInit(): pass\n", "pynvml/__init__.py"),
        ("pynvml.py", "raise RuntimeError('old \x1b[31m')\n", "RuntimeError"),
    ],
)
def test_another_package_in_place_of_the_binding_is_named_with_the_commands_that_mend_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, text: str, words: str
) -> None:
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    modules = {name: module for name, module in sys.modules.items() if name != "pynvml"}
    with patch.dict(sys.modules, modules, clear=True), pytest.raises(nvml.Unusable) as refused:
        nvml.load()
    assert refused.value.state is SourceState.NO_DRIVER
    explanation = str(refused.value)
    assert words in explanation
    assert "-m pip" in explanation
    assert '"nvidia-ml-py>=12.535.108,<14"' in explanation
    assert "\x1b" not in explanation


def test_a_fault_of_our_own_reaches_the_reader(driver: Driver) -> None:
    with running(driver.env(), declared=False) as sampler:
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
    with running(driver.env(), interval=60, declared=False) as sampler:  # it writes nothing that nobody reads meanwhile
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


@pytest.mark.parametrize("code", [1, 999])
def test_a_driver_that_goes_away_ends_the_sampler(driver: Driver, code: int) -> None:
    """Only a fresh process can find it again; the parent is told so by the exit code."""
    with running(eight(driver).env(), declared=False) as sampler:
        sampler.until(all_are_well)
        driver.put(faults=[f"* ret={code}"])
        down = sampler.until(lambda snapshot: snapshot.state is SourceState.DRIVER_DOWN)
        assert f"NVML error {code}" in down.words
        assert sampler.line() is None
        assert sampler.ends() == Exit.AGAIN


@pytest.mark.parametrize(
    ("code", "expected", "words"),
    [
        (15, Health.LOST, "cannot be reached"),
        (16, Health.RESET, "must be reset"),
        (4, Health.DENIED, "no permission to open"),
        (17, Health.DENIED, "cgroups"),
        (27, Health.NOT_READY, "not ready yet"),
        (10, Health.FAILED, "did not answer"),
        (11, Health.FAILED, "interrupts"),
        (8, Health.FAILED, "power cables"),
        (999, Health.FAILED, "no reason"),
        (2, Health.MISSING, "no longer lists"),
        (4242, Health.FAILED, "NVML error 4242"),
    ],
)
def test_a_failed_gpu_is_judged_in_plain_words(code: int, expected: Health, words: str) -> None:
    found, said = health(Failed("nvmlDeviceGetPowerUsage", code))
    assert found is expected
    assert words in said
    assert "nvmlDeviceGetPowerUsage" in said
    assert str(code) in said


def test_every_code_has_words_and_a_reason() -> None:
    for code in (*range(40), 999, 4242, 2**31):
        assert error(code).startswith(f"NVML error {code}")
        assert reason(code) in Reason
    assert {reason(code) for code in (3, 13, 25, 26)} == {Reason.UNSUPPORTED}
    assert {reason(code) for code in (Code.NO_PERMISSION, Code.OPERATING_SYSTEM)} == {Reason.DENIED}
    assert {reason(code) for code in (999, 14, 6, 4242)} == {Reason.ERROR}
