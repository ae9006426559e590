"""The tests' driver library itself, through the binding that the program uses, in a process of its own."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.driver import GIB, MIB, Code, Driver, Gpu, Mig, Proc, build, symbols

CHILD = """
import json, sys
from ctypes import *
from pynvml import *

def call(name, *args):  # past the binding's wrapper: the return code as it is
    return getattr(nvml_lib(), name)(*args)

def nvml_lib():
    import pynvml
    return pynvml.nvmlLib

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
        answer = {"value": eval(line)}
    except NVMLError as error:
        answer = {"code": error.value}
    print(json.dumps(answer, default=plain), flush=True)
"""
GET = "(h.get({0}) or h.setdefault({0}, nvmlDeviceGetHandleByIndex({0})))"


class Refused(Exception):
    """NVML's return code."""


class Child:
    """A process with pynvml that evaluates what it is sent. `{0}` is the handle of GPU 0."""

    def __init__(self, driver: Driver) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD], env=driver.env(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def send(self, expression: str) -> None:
        assert self.process.stdin is not None
        for gpu in range(8):
            expression = expression.replace(f"{{{gpu}}}", GET.format(gpu))
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()

    def ask(self, expression: str) -> Any:
        assert self.process.stdout is not None
        self.send(expression)
        answer = json.loads(self.process.stdout.readline())
        if "code" in answer:
            raise Refused(answer["code"])
        return answer["value"]

    def code(self, expression: str) -> int:
        try:
            self.ask(expression)
        except Refused as error:
            return int(error.args[0])
        return 0

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(driver: Driver) -> Iterator[Callable[[], Child]]:
    children: list[Child] = []

    def start() -> Child:
        children.append(Child(driver))
        return children[-1]

    yield start
    for child in children:
        child.close()


@pytest.fixture
def child(start: Callable[[], Child]) -> Child:
    return start()


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_figures(driver: Driver, child: Child) -> None:
    driver.gpus = [
        Gpu(0),
        Gpu(
            1,
            uuid="GPU-one",
            bus="00000000:AF:00.0",
            memory_total=80 * GIB,
            memory_used=7 * GIB,
            memory_reserved=1 * GIB,
            util_gpu=87,
            util_memory=41,
            util_encoder=3,
            temperature=66,
            fan=44,
            power=512_345,
            power_limit=600_000,
            clock_sm=1755,
            clock_memory=2619,
            clock_reasons=0x24,
            pstate=2,
            pcie_rx=9,
            ecc_uncorrected_aggregate=5,
            compute_mode=3,
            values={91: 18},
        ),
    ]
    driver.write()
    expected = {
        "nvmlSystemGetDriverVersion()": "580.95.05",
        "nvmlSystemGetNVMLVersion()": "13.580.95.05",
        "nvmlSystemGetCudaDriverVersion_v2()": 13000,
        "nvmlErrorString(15)": "GPU is lost",
        "nvmlDeviceGetCount()": 2,
        "nvmlDeviceGetName({1})": "NVIDIA H100 80GB HBM3",
        "nvmlDeviceGetUUID({1})": "GPU-one",
        "nvmlDeviceGetIndex(nvmlDeviceGetHandleByUUID(b'GPU-one'))": 1,
        "nvmlDeviceGetIndex(nvmlDeviceGetHandleByPciBusId(b'0000:af:00.0'))": 1,
        "nvmlDeviceGetPciInfo_v3({1}).busId": "00000000:AF:00.0",
        "nvmlDeviceGetPciInfo_v3({1}).busIdLegacy": "0000:AF:00.0",
        "nvmlDeviceGetPciInfo_v3({1}).bus": 0xAF,
        "nvmlDeviceGetMemoryInfo({1})": {"total": 80 * GIB, "free": 72 * GIB, "used": 8 * GIB},
        "nvmlDeviceGetMemoryInfo({1}, version=nvmlMemory_v2)": {
            "version": 0x02000028,
            "total": 80 * GIB,
            "reserved": 1 * GIB,
            "free": 72 * GIB,
            "used": 7 * GIB,
        },
        "nvmlDeviceGetBAR1MemoryInfo({1}).bar1Free": 128 * GIB - 4 * MIB,
        "nvmlDeviceGetUtilizationRates({1})": {"gpu": 87, "memory": 41},
        "nvmlDeviceGetEncoderUtilization({1})": [3, 166_000],
        "nvmlDeviceGetTemperature({1}, NVML_TEMPERATURE_GPU)": 66,
        "nvmlDeviceGetTemperatureV({1}, NVML_TEMPERATURE_GPU)": 66,
        "nvmlDeviceGetTemperatureThreshold({1}, NVML_TEMPERATURE_THRESHOLD_SLOWDOWN)": 89,
        "nvmlDeviceGetTemperatureThreshold({1}, NVML_TEMPERATURE_THRESHOLD_SHUTDOWN)": 92,
        "nvmlDeviceGetFanSpeed({1})": 44,
        "nvmlDeviceGetPowerUsage({1})": 512_345,
        "nvmlDeviceGetEnforcedPowerLimit({1})": 600_000,
        "nvmlDeviceGetPowerManagementLimit({1})": 700_000,
        "nvmlDeviceGetPowerManagementLimitConstraints({1})": [200_000, 700_000],
        "nvmlDeviceGetClockInfo({1}, NVML_CLOCK_SM)": 1755,
        "nvmlDeviceGetClockInfo({1}, NVML_CLOCK_MEM)": 2619,
        "nvmlDeviceGetMaxClockInfo({1}, NVML_CLOCK_SM)": 1980,
        "nvmlDeviceGetCurrentClocksEventReasons({1})": 0x24,
        "nvmlDeviceGetCurrentClocksThrottleReasons({1})": 0x24,
        "nvmlDeviceGetPerformanceState({1})": 2,
        "nvmlDeviceGetPcieThroughput({1}, NVML_PCIE_UTIL_RX_BYTES)": 9,
        "nvmlDeviceGetTotalEccErrors({1}, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_AGGREGATE_ECC)": 5,
        "nvmlDeviceGetTotalEccErrors({1}, NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC)": 0,
        "nvmlDeviceGetEccMode({1})": [1, 1],
        "nvmlDeviceGetPersistenceMode({1})": 1,
        "nvmlDeviceGetComputeMode({1})": 3,
        "nvmlDeviceGetDisplayActive({1})": 0,
        "nvmlDeviceGetMigMode({1})": [0, 0],
        "nvmlDeviceGetCudaComputeCapability({1})": [9, 0],
        "nvmlDeviceGetTotalEnergyConsumption({1})": 123_456_789,
        "[(f.nvmlReturn, f.value.ullVal) for f in nvmlDeviceGetFieldValues({1}, [186, 91, 92])]": [
            [0, 512_345],
            [0, 18],
            [3, 0],
        ],
    }
    assert {asked: child.ask(asked) for asked in expected} == expected


def test_what_is_not_supported_and_what_fails(driver: Driver, child: Child) -> None:
    driver.gpus = [Gpu(util_gpu=None, temperature=Code(15), name=Code(999), bus=b"\xff:;")]
    driver.write()
    assert child.code("nvmlDeviceGetUtilizationRates({0})") == 3
    assert child.code("nvmlDeviceGetTemperature({0}, 0)") == 15
    assert child.code("nvmlDeviceGetName({0})") == 999
    assert child.code("nvmlDeviceGetFanSpeed({0})") == 3
    assert child.code("nvmlDeviceGetHandleByIndex(1)") == 2
    assert child.code("nvmlDeviceGetHandleByUUID(b'GPU-none')") == 6
    assert child.code("nvmlDeviceGetDriverModel({0})") == 3
    assert child.code("nvmlShutdown()") == 0
    assert child.code("nvmlDeviceGetCount()") == 1
    assert child.ask("nvmlErrorString(1)") == "Uninitialized"


def test_a_name_may_hold_any_byte(driver: Driver, child: Child) -> None:
    name = bytes(range(1, 96))
    read = "(create_string_buffer(96), {0})"
    for part in (name, b"caf\xe9 \xff%41!\x1b[2J"):
        driver.gpus = [Gpu(name=part)]
        driver.write()
        asked = f"[(call('nvmlDeviceGetName', h, b, 96), b.value) for b, h in [{read}]][0]"
        assert child.ask(asked) == [0, part.decode("latin-1")]
    assert child.ask(f"[call('nvmlDeviceGetName', h, b, 4) for b, h in [{read}]]") == [7]


def test_the_state_may_change_under_a_program(driver: Driver, child: Child) -> None:
    assert child.ask("nvmlDeviceGetTemperature({0}, 0)") == 31
    for degrees in (41, 42, 43, 44):  # files of one size, within one tick of the clock
        driver.gpus[0].temperature = degrees
        driver.write()
        assert child.ask("nvmlDeviceGetTemperature({0}, 0)") == degrees
    driver.gpus = []
    driver.write()
    assert child.ask("nvmlDeviceGetCount()") == 0
    assert child.code("nvmlDeviceGetTemperature({0}, 0)") == 15


def test_a_gpu_that_falls_off_takes_its_processes_along(driver: Driver, child: Child) -> None:
    driver.gpus = [Gpu(0), Gpu(2)]
    driver.procs = [Proc(1, 11), Proc(2, 22)]
    driver.write()
    assert child.ask("nvmlDeviceGetMinorNumber({1})") == 2
    assert [p["pid"] for p in child.ask("nvmlDeviceGetComputeRunningProcesses({1})")] == [22]
    assert child.ask("nvmlDeviceGetComputeRunningProcesses({0})") == []


def test_process_lists(driver: Driver, child: Child) -> None:
    driver.procs = [
        Proc(0, 100, memory=3 * GIB),
        Proc(0, 200, "CG", memory=None),
        Proc(0, 300, "M", gi=2, ci=1, memory=5),
        Proc(0, 400, ""),
    ]
    driver.write()
    none = 0xFFFFFFFF
    first = {"pid": 100, "usedGpuMemory": 3 * GIB, "gpuInstanceId": none, "computeInstanceId": none}
    second = {"pid": 200, "usedGpuMemory": None, "gpuInstanceId": none, "computeInstanceId": none}
    third = {"pid": 300, "usedGpuMemory": 5, "gpuInstanceId": 2, "computeInstanceId": 1}
    for version in ("_v2", "_v3"):
        assert child.ask(f"nvmlDeviceGetComputeRunningProcesses{version}({{0}})") == [first, second]
        assert child.ask(f"nvmlDeviceGetGraphicsRunningProcesses{version}({{0}})") == [second]
        assert child.ask(f"nvmlDeviceGetMPSComputeRunningProcesses{version}({{0}})") == [third]
    old = "nvmlDeviceGetComputeRunningProcesses"  # pid and memory, 16 bytes each
    words = f"[(call('{old}', {{0}}, byref(n), b), n.value, *b) for n, b in [(c_uint(2), (c_ulonglong * 4)())]][0]"
    assert child.ask(words) == [0, 2, 100, 3 * GIB, 200, 2**64 - 1]
    small = words.replace("c_uint(2)", "c_uint(1)")
    assert child.ask(small) == [7, 2, 0, 0, 0, 0]


def test_lists_that_grow_or_are_empty(driver: Driver, child: Child) -> None:
    driver.procs = [Proc(0, 100, sm=5)]
    driver.faults = ["nvmlDeviceGetComputeRunningProcesses_v3 grow", "nvmlDeviceGetProcessUtilization@0 empty"]
    driver.write()
    assert child.code("nvmlDeviceGetComputeRunningProcesses({0})") == 7
    name = "nvmlDeviceGetComputeRunningProcesses_v3"
    grow = f"[(call('{name}', {{0}}, byref(n), None), n.value) for n in [c_uint(9)]][0]"
    assert child.ask(grow) == [7, 10]
    name = "nvmlDeviceGetProcessUtilization"
    empty = f"[(call('{name}', {{0}}, None, byref(n), c_ulonglong(0)), n.value) for n in [c_uint(9)]][0]"
    assert child.ask(empty) == [0, 0]


def test_samples_of_utilization(driver: Driver, child: Child) -> None:
    driver.procs = [Proc(0, 1), Proc(0, 2, sm=40, mem=20, enc=3, dec=4), Proc(0, 3, sm=999, ts=7)]
    driver.write()
    before = time.time_ns() // 1000
    fresh, fixed = child.ask("nvmlDeviceGetProcessUtilization({0}, 0)")
    assert fixed == {"pid": 3, "timeStamp": 7, "smUtil": 999, "memUtil": 0, "encUtil": 0, "decUtil": 0}
    stamp = fresh.pop("timeStamp")
    assert fresh == {"pid": 2, "smUtil": 40, "memUtil": 20, "encUtil": 3, "decUtil": 4}
    assert before - 166_000 <= stamp <= time.time_ns() // 1000
    newer = f"nvmlDeviceGetProcessUtilization({{0}}, {stamp})"
    eventually(lambda: child.code(newer) == 0)  # the next period has its sample
    assert [s["pid"] for s in child.ask(newer)] == [2]
    assert child.code(f"nvmlDeviceGetProcessUtilization({{0}}, {stamp + 10**12})") == 6
    driver.procs = [Proc(0, 4, sm=1, age=60_000_000), Proc(0, 5, sm=1, age=-60_000_000)]
    driver.write()
    old, ahead = child.ask("nvmlDeviceGetProcessUtilization({0}, 0)")
    assert old["timeStamp"] < before < ahead["timeStamp"]


def test_mig(driver: Driver, child: Child) -> None:
    driver.gpus = [
        Gpu(0, mig_mode=1, mig_pending=1, util_gpu=None, migs=[Mig(7), Mig(8, 1, uuid="MIG-two", memory_used=2 * GIB)])
    ]
    driver.procs = [Proc(0, 70, gi=7, ci=0), Proc(0, 81, gi=8, ci=1)]
    driver.write()
    mig = "nvmlDeviceGetMigDeviceHandleByIndex({0}, 1)"
    assert child.ask("nvmlDeviceGetMigMode({0})") == [1, 1]
    assert child.ask("nvmlDeviceGetMaxMigDeviceCount({0})") == 7
    assert child.code("nvmlDeviceGetMigDeviceHandleByIndex({0}, 2)") == 6
    assert child.ask(f"nvmlDeviceGetUUID({mig})") == "MIG-two"
    assert child.ask("nvmlDeviceGetGpuInstanceId(nvmlDeviceGetHandleByUUID(b'MIG-two'))") == 8
    assert child.ask(f"nvmlDeviceGetComputeInstanceId({mig})") == 1
    assert child.ask(f"nvmlDeviceIsMigDeviceHandle({mig}).value") == 1
    assert child.ask(f"nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle({mig}))") == 0
    assert child.ask(f"nvmlDeviceGetMemoryInfo({mig}, version=nvmlMemory_v2).used") == 2 * GIB
    assert child.ask(f"nvmlDeviceGetAttributes_v2({mig})")["memorySizeMB"] == 10 * 1024
    assert child.code(f"nvmlDeviceGetUtilizationRates({mig})") == 3
    assert [p["pid"] for p in child.ask(f"nvmlDeviceGetComputeRunningProcesses({mig})")] == [81]
    assert [p["pid"] for p in child.ask("nvmlDeviceGetComputeRunningProcesses({0})")] == [70, 81]


def test_faults_with_a_return_code(driver: Driver, child: Child) -> None:
    driver.gpus = [Gpu(0), Gpu(1), Gpu(2)]
    driver.faults = [
        "nvmlDeviceGetTemperature@1 ret=15",
        "nvmlDeviceGetPowerUsage ret=999 after=3",
        "nvmlDeviceGetFanSpeed@0 ret=10 ok_after=2",
        "nvmlDeviceGetHandleByIndex_v2@2 ret=15",
    ]
    driver.write()
    assert [child.code(f"nvmlDeviceGetTemperature({{{gpu}}}, 0)") for gpu in (0, 1)] == [0, 15]
    assert [child.code("nvmlDeviceGetPowerUsage({0})") for _ in range(4)] == [0, 0, 999, 999]
    assert [child.code("nvmlDeviceGetFanSpeed({0})") for _ in range(4)] == [10, 10, 3, 3]
    assert [child.code(f"nvmlDeviceGetHandleByIndex({gpu})") for gpu in range(3)] == [0, 0, 15]
    driver.faults = ["*@1 ret=15"]
    driver.write()
    assert [child.code(f"nvmlDeviceGetPowerUsage({{{gpu}}})") for gpu in range(3)] == [0, 15, 0]
    assert child.code("nvmlDeviceGetHandleByIndex(1)") == 15
    assert child.code("nvmlDeviceGetCount()") == 0
    driver.faults = ["* ret=18"]
    driver.write()
    assert child.code("nvmlDeviceGetCount()") == 18


def test_a_call_that_is_slow(driver: Driver, child: Child) -> None:
    driver.faults = ["nvmlDeviceGetPowerUsage sleep=40 ret=10"]
    driver.write()
    child.ask("{0} and None")
    before = time.monotonic()
    assert child.code("nvmlDeviceGetPowerUsage({0})") == 10
    assert time.monotonic() - before >= 0.04


@pytest.mark.parametrize("call", ["nvmlDeviceGetPowerUsage({0})", "nvmlErrorString(3)"])
def test_a_call_that_hangs(driver: Driver, child: Child, call: str) -> None:
    name = call.partition("(")[0]
    child.ask("{0} and None")
    driver.faults = [f"{name} hang"]
    driver.write()
    child.send(call)
    eventually(lambda: driver.calls()[name] == 1)
    with pytest.raises(subprocess.TimeoutExpired):
        child.process.communicate(timeout=0.1)  # with its input at an end, it would leave if it could
    child.process.kill()
    assert child.process.wait() == -signal.SIGKILL


def test_a_hang_holds_up_no_other_thread(driver: Driver, child: Child) -> None:
    driver.faults = ["nvmlDeviceGetPowerUsage hang"]
    driver.write()
    child.ask("{0} and None")
    hanging = "__import__('threading').Thread(target=nvmlDeviceGetPowerUsage, args=[{0}], daemon=True).start()"
    child.ask(hanging)
    eventually(lambda: driver.calls()["nvmlDeviceGetPowerUsage"] == 1)
    assert child.ask("nvmlDeviceGetTemperature({0}, 0)") == 31


def test_a_call_that_crashes(driver: Driver, child: Child) -> None:
    driver.faults = ["nvmlDeviceGetPowerUsage@0 segv after=2"]
    driver.write()
    assert child.code("nvmlDeviceGetPowerUsage({0})") == 0
    child.send("nvmlDeviceGetPowerUsage({0})")
    assert child.process.wait() == -signal.SIGSEGV


def test_calls_are_counted_over_all_processes(driver: Driver, start: Callable[[], Child]) -> None:
    assert driver.calls() == {}
    driver.gpus = [Gpu(0), Gpu(1)]
    driver.write()
    for _ in range(2):
        child = start()
        for gpu in (0, 1, 1):
            child.ask(f"nvmlDeviceGetTemperature({{{gpu}}}, 0)")
    handles = {"nvmlDeviceGetHandleByIndex_v2": 4}
    assert driver.calls() == {"nvmlInitWithFlags": 2, "nvmlDeviceGetTemperature": 6, **handles}
    assert driver.calls(gpu=1) == {"nvmlDeviceGetTemperature": 4, "nvmlDeviceGetHandleByIndex_v2": 2}


def test_no_state_is_no_driver(driver: Driver) -> None:
    env = driver.env() | {"GPUWATCH_TEST_DRIVER": "/nowhere"}
    code = "import pynvml\ntry: pynvml.nvmlInit()\nexcept pynvml.NVMLError as error: print(error.value)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "9\n"


def test_absent_symbols(driver: Driver, start: Callable[[], Child], tmp_path: Path) -> None:
    absent = ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3"]
    driver.library = build(tmp_path / "older", absent=absent)
    child = start()
    assert child.code("nvmlDeviceGetMemoryInfo({0}, version=nvmlMemory_v2)") == 13
    assert child.code("nvmlDeviceGetMemoryInfo({0})") == 0
    assert child.code("nvmlDeviceGetComputeRunningProcesses_v3({0})") == 13
    assert child.code("nvmlDeviceGetComputeRunningProcesses_v2({0})") == 0
    with pytest.raises(ValueError, match="has no nvmlNothing"):
        build(tmp_path / "older", absent=["nvmlNothing"])


def test_the_symbols_are_those_that_the_library_exports(driver: Driver, child: Child) -> None:
    child.ask("nvmlDeviceGetCount()")
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
