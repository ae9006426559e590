"""The tests' driver library itself: its faults, its counters, and what it refuses to be told."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.driver import Driver, Gpu, build, symbols
from tests.support.nvml_child import Child
from tests.support.waiting import wait_for


def test_faults_with_a_return_code(driver: Driver, nvml: Child) -> None:
    driver.gpus = [Gpu(0), Gpu(1), Gpu(2)]
    driver.faults = [
        "nvmlDeviceGetTemperature@1 ret=15",
        "nvmlDeviceGetPowerUsage ret=999 after=3",
        "nvmlDeviceGetFanSpeed@0 ret=10 ok_after=2",
        "nvmlDeviceGetHandleByIndex_v2@2 ret=15",
    ]
    driver.write()
    assert [nvml.code(f"nvmlDeviceGetTemperature({{{gpu}}}, 0)") for gpu in (0, 1)] == [0, 15]
    assert [nvml.code("nvmlDeviceGetPowerUsage({0})") for _ in range(4)] == [0, 0, 999, 999]
    assert [nvml.code("nvmlDeviceGetFanSpeed({0})") for _ in range(4)] == [10, 10, 3, 3]
    assert [nvml.code(f"nvmlDeviceGetHandleByIndex({gpu})") for gpu in range(3)] == [0, 0, 15]
    driver.faults = ["*@1 ret=15"]
    driver.write()
    assert [nvml.code(f"nvmlDeviceGetPowerUsage({{{gpu}}})") for gpu in range(3)] == [0, 15, 0]
    assert nvml.code("nvmlDeviceGetHandleByIndex(1)") == 15
    assert nvml.code("nvmlDeviceGetCount()") == 0
    driver.faults = ["* ret=18"]
    driver.write()
    assert nvml.code("nvmlDeviceGetCount()") == 18


def test_a_call_that_is_slow(driver: Driver, nvml: Child) -> None:
    driver.faults = ["nvmlDeviceGetPowerUsage sleep=40 ret=10"]
    driver.write()
    nvml.ask("{0} and None")
    before = time.monotonic()
    assert nvml.code("nvmlDeviceGetPowerUsage({0})") == 10
    assert time.monotonic() - before >= 0.04


@pytest.mark.parametrize("call", ["nvmlDeviceGetPowerUsage({0})", "nvmlErrorString(3)"])
def test_a_call_that_hangs(driver: Driver, nvml: Child, call: str) -> None:
    name = call.partition("(")[0]
    nvml.ask("{0} and None")
    driver.faults = [f"{name} hang"]
    driver.write()
    nvml.send(call)
    wait_for(lambda: driver.calls()[name] == 1)
    with pytest.raises(subprocess.TimeoutExpired):
        nvml.process.communicate(timeout=0.1)  # with its input at an end, it would leave if it could
    nvml.process.kill()
    assert nvml.process.wait() == -signal.SIGKILL


def test_a_hang_holds_up_no_other_thread(driver: Driver, nvml: Child) -> None:
    driver.faults = ["nvmlDeviceGetPowerUsage hang"]
    driver.write()
    nvml.ask("{0} and None")
    hanging = "__import__('threading').Thread(target=nvmlDeviceGetPowerUsage, args=[{0}], daemon=True).start()"
    nvml.ask(hanging)
    wait_for(lambda: driver.calls()["nvmlDeviceGetPowerUsage"] == 1)
    assert nvml.ask("nvmlDeviceGetTemperature({0}, 0)") == 31


def test_a_call_that_crashes(driver: Driver, nvml: Child) -> None:
    driver.faults = ["nvmlDeviceGetPowerUsage@0 segv after=2"]
    driver.write()
    assert nvml.code("nvmlDeviceGetPowerUsage({0})") == 0
    nvml.send("nvmlDeviceGetPowerUsage({0})")
    assert nvml.process.wait() == -signal.SIGSEGV


def test_calls_are_counted_over_all_processes(driver: Driver, start_nvml: Callable[[], Child]) -> None:
    assert driver.calls() == {}
    driver.gpus = [Gpu(0), Gpu(1)]
    driver.write()
    for _ in range(2):
        nvml = start_nvml()
        for gpu in (0, 1, 1):
            nvml.ask(f"nvmlDeviceGetTemperature({{{gpu}}}, 0)")
    handles = {"nvmlDeviceGetHandleByIndex_v2": 4}
    assert driver.calls() == {"nvmlInitWithFlags": 2, "nvmlDeviceGetTemperature": 6, **handles}
    assert driver.calls(gpu=1) == {"nvmlDeviceGetTemperature": 4, "nvmlDeviceGetHandleByIndex_v2": 2}


def test_no_state_is_no_driver(driver: Driver) -> None:
    env = driver.env() | {"GPUWATCH_TEST_DRIVER": "/nowhere"}
    code = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as error: print(error.value)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "9\n"


def test_absent_symbols(driver: Driver, start_nvml: Callable[[], Child], tmp_path: Path) -> None:
    absent = ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"]
    driver.library = build(tmp_path / "older", absent=absent)
    nvml = start_nvml()
    assert nvml.code("nvmlDeviceGetMemoryInfo({0}, version=nvmlMemory_v2)") == 13
    assert nvml.code("nvmlDeviceGetMemoryInfo({0})") == 0
    assert nvml.code("nvmlDeviceGetComputeRunningProcesses_v3({0})") == 13
    assert nvml.code("nvmlDeviceGetComputeRunningProcesses_v2({0})") == 0
    with pytest.raises(ValueError, match="has no nvmlNothing"):
        build(tmp_path / "older", absent=["nvmlNothing"])


def test_the_symbols_are_those_that_the_library_exports(driver: Driver, nvml: Child) -> None:
    nvml.ask("nvmlDeviceGetCount()")
    names = {record[:64].rstrip(b"\0").decode() for record in _records((driver.folder / "driver.calls").read_bytes())}
    assert names == symbols()


def _records(data: bytes) -> list[bytes]:
    size = 64 + 8 * 33
    return [data[n : n + size] for n in range(0, len(data), size)]


@pytest.mark.parametrize("fault", ["nvmlDeviceGetTemprature hang", "nvmlInit_v2 hnag", "* ", "nvmlInit_v2@x hang"])
def test_a_fault_must_be_known(driver: Driver, fault: str) -> None:
    driver.faults = [fault]
    with pytest.raises(ValueError, match="not a fault"):
        driver.write()


def test_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="no C compiler"):
        build(tmp_path)


def test_the_lab_adds_up(driver: Driver) -> None:
    driver.lab(pids=[7, 8, 9])
    assert len(driver.gpus) == 8
    assert len(driver.procs) == 43
    assert {proc.pid for proc in driver.procs} == {7, 8, 9}
    for gpu in driver.gpus:
        procs = [proc for proc in driver.procs if proc.gpu == gpu.index]
        assert sum(proc.sm or 0 for proc in procs) == gpu.util_gpu
        assert sum(proc.memory or 0 for proc in procs) <= (gpu.memory_used or 0)
        assert (gpu.memory_used or 0) + (gpu.memory_reserved or 0) <= (gpu.memory_total or 0)
