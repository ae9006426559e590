"""The tests' driver library itself, through the binding that the program uses: lists, faults, counters, events."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.driver import GIB, Code, Driver, Gpu, Proc
from tests.support.uncovered import environment
from tests.support.waiting import wait_for

XID = 8
NONE = 0xFFFFFFFF
SET = "(h.get('set') or h.setdefault('set', nvmlEventSetCreate()))"


CHILD = """
import json, sys
from ctypes import *
import pynvml
from pynvml import *

def call(name, *args):  # past the binding's wrapper: the return code as it is
    return getattr(pynvml.nvmlLib, name)(*args)

def plain(value):
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if hasattr(value, "_fields_"):
        return {f[0]: getattr(value, f[0]) for f in value._fields_}
    return vars(value)

nvmlInit()
h = {}
for line in sys.stdin:
    try:
        answer = [0, eval(line)]
    except NVMLError as error:
        answer = [error.value, None]
    print(json.dumps(answer, default=plain), flush=True)
"""
GET = "(h.get({0}) or h.setdefault({0}, nvmlDeviceGetHandleByIndex({0})))"


class Child:
    """Process with the unmodified pynvml that evaluates what it is sent. `{0}` is the handle of GPU 0."""

    def __init__(self, driver: Driver) -> None:
        command, env = [sys.executable, "-c", CHILD], driver.env(environment())
        self.process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def send(self, expression: str) -> None:
        assert self.process.stdin is not None
        for gpu in range(8):
            expression = expression.replace(f"{{{gpu}}}", GET.format(gpu))
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def evaluate(self, expression: str) -> tuple[int, Any]:
        """Return NVML's return code and the value."""
        assert self.process.stdout is not None
        self.send(expression)
        code, value = json.loads(self.process.stdout.readline())
        return code, value

    def ask(self, expression: str) -> Any:
        code, value = self.evaluate(expression)
        assert code == 0
        return value

    def codes(self, *expressions: str) -> list[int]:
        return [self.evaluate(expression)[0] for expression in expressions]


@pytest.fixture
def nvml(driver: Driver) -> Iterator[Child]:
    child = Child(driver)
    yield child
    child.process.kill()
    child.process.communicate()


def test_what_is_not_supported_and_what_fails(driver: Driver, nvml: Child) -> None:
    driver.put(gpus=[Gpu(util_gpu=None, temperature=Code(15), name=Code(999), bus=b"\xff:;")])
    expected = {
        "nvmlDeviceGetUtilizationRates({0})": 3,
        "nvmlDeviceGetTemperature({0}, 0)": 15,
        "nvmlDeviceGetName({0})": 999,
        "nvmlDeviceGetFanSpeed({0})": 3,
        "nvmlDeviceGetHandleByIndex(1)": 2,
        "nvmlDeviceGetHandleByUUID(b'GPU-none')": 6,
        "nvmlShutdown()": 0,
        "nvmlDeviceGetCount()": 1,
    }
    assert nvml.codes(*expected) == [*expected.values()]
    assert nvml.ask("nvmlErrorString(1)") == "Uninitialized"


def test_a_handle_stays_with_its_gpu_when_the_driver_drops_another(driver: Driver, nvml: Child) -> None:
    driver.put(gpus=[Gpu(0), Gpu(1), Gpu(2, temperature=62)], faults=["nvmlDeviceGetPowerUsage@1 ret=999"])
    assert nvml.ask("[nvmlDeviceGetIndex(one) for one in ({0}, {1}, {2})]") == [0, 1, 2]
    del driver.gpus[1]
    driver.write()
    assert nvml.ask("[nvmlDeviceGetIndex({2}), nvmlDeviceGetTemperature({2}, 0)]") == [1, 62]
    # Faults go by the index.
    assert nvml.codes("nvmlDeviceGetPowerUsage({2})", "nvmlDeviceGetTemperature({1}, 0)") == [999, 15]
    assert nvml.ask("nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(1))") == driver.gpus[1].uuid
    driver.gpus.insert(1, Gpu(1))
    driver.write()
    assert nvml.ask("[nvmlDeviceGetIndex(one) for one in ({0}, {1}, {2})]") == [0, 1, 2]


def test_process_lists(driver: Driver, nvml: Child) -> None:
    driver.procs = [Proc(0, 100, memory=3 * GIB), Proc(0, 200, "CG", memory=None)]
    driver.procs += [Proc(0, 300, "M", gi=2, ci=1, memory=5), Proc(0, 400, "")]
    driver.write()
    first = {"pid": 100, "usedGpuMemory": 3 * GIB, "gpuInstanceId": NONE, "computeInstanceId": NONE}
    second = {"pid": 200, "usedGpuMemory": None, "gpuInstanceId": NONE, "computeInstanceId": NONE}
    third = {"pid": 300, "usedGpuMemory": 5, "gpuInstanceId": 2, "computeInstanceId": 1}
    for version in ("_v2", "_v3"):
        assert nvml.ask(f"nvmlDeviceGetComputeRunningProcesses{version}({{0}})") == [first, second]
        assert nvml.ask(f"nvmlDeviceGetGraphicsRunningProcesses{version}({{0}})") == [second]
        assert nvml.ask(f"nvmlDeviceGetMPSComputeRunningProcesses{version}({{0}})") == [third]
    old = "nvmlDeviceGetComputeRunningProcesses"  # pid and memory, 16 bytes each
    words = f"[(call('{old}', {{0}}, byref(n), b), n.value, *b) for n, b in [(c_uint(2), (c_ulonglong * 4)())]][0]"
    assert nvml.ask(words) == [0, 2, 100, 3 * GIB, 200, 2**64 - 1]
    small = words.replace("c_uint(2)", "c_uint(1)")
    assert nvml.ask(small) == [7, 2, 0, 0, 0, 0]


def test_a_call_that_fails_for_a_while_and_one_that_hangs(driver: Driver, nvml: Child) -> None:
    driver.put(faults=["nvmlDeviceGetPowerUsage ret=999 after=3", "nvmlDeviceGetFanSpeed@0 ret=10 ok_after=2"])
    assert nvml.codes(*["nvmlDeviceGetPowerUsage({0})"] * 4) == [0, 0, 999, 999]
    assert nvml.codes(*["nvmlDeviceGetFanSpeed({0})"] * 4) == [10, 10, 3, 3]
    driver.put(faults=["nvmlDeviceGetPowerUsage hang"])
    nvml.send("nvmlDeviceGetPowerUsage({0})")
    wait_for(lambda: driver.calls()["nvmlDeviceGetPowerUsage"] == 5)
    with pytest.raises(subprocess.TimeoutExpired):
        nvml.process.communicate(timeout=0.1)  # with its input at an end, it would leave if it could
    nvml.process.kill()
    assert nvml.process.wait() == -signal.SIGKILL


def test_a_fault_must_be_known(driver: Driver) -> None:
    for fault in ("nvmlDeviceGetTemprature hang", "nvmlInit_v2 hnag", "* ", "nvmlInit_v2@x hang"):
        with pytest.raises(ValueError, match="not a fault"):
            driver.put(faults=[fault])


def test_each_event_is_told_once_in_order_and_nothing_from_before(driver: Driver, nvml: Child) -> None:
    def wait() -> list[Any] | int:
        """Return the XID that the set has to tell, with NVML's index of its GPU; else the return code."""
        (code,) = nvml.codes(f"h.__setitem__('last', nvmlEventSetWait_v2({SET}, 0))")
        names = ("eventData", "eventType", "gpuInstanceId", "computeInstanceId")
        return code or nvml.ask(f"[nvmlDeviceGetIndex(h['last'].device), *(getattr(h['last'], n) for n in {names})]")

    driver.put(gpus=[Gpu(0), Gpu(1)])
    driver.put(xids=[(1, 13)])
    assert wait() == 10
    for gpu in (0, 1):
        nvml.ask(f"nvmlDeviceRegisterEvents({{{gpu}}}, {XID}, {SET})")
    assert wait() == 10
    driver.put(xids=[(1, 13), (1, 79), (0, 31), (1, 79)])
    told = [[gpu, xid, XID, NONE, NONE] for gpu, xid in ((1, 79), (0, 31), (1, 79))]
    assert [wait() for _ in range(4)] == [*told, 10]
