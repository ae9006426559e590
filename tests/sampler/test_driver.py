"""The tests' driver library itself: its figures and lists, through the binding that the program uses."""

import time

from tests.driver import GIB, MIB, Code, Driver, Gpu, Mig, Proc
from tests.support.nvml_child import Child
from tests.support.waiting import wait_for


def test_figures(driver: Driver, nvml: Child) -> None:
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
    assert {asked: nvml.ask(asked) for asked in expected} == expected


def test_what_is_not_supported_and_what_fails(driver: Driver, nvml: Child) -> None:
    driver.gpus = [Gpu(util_gpu=None, temperature=Code(15), name=Code(999), bus=b"\xff:;")]
    driver.write()
    assert nvml.code("nvmlDeviceGetUtilizationRates({0})") == 3
    assert nvml.code("nvmlDeviceGetTemperature({0}, 0)") == 15
    assert nvml.code("nvmlDeviceGetName({0})") == 999
    assert nvml.code("nvmlDeviceGetFanSpeed({0})") == 3
    assert nvml.code("nvmlDeviceGetHandleByIndex(1)") == 2
    assert nvml.code("nvmlDeviceGetHandleByUUID(b'GPU-none')") == 6
    assert nvml.code("nvmlDeviceGetDriverModel({0})") == 3
    assert nvml.code("nvmlShutdown()") == 0
    assert nvml.code("nvmlDeviceGetCount()") == 1
    assert nvml.ask("nvmlErrorString(1)") == "Uninitialized"


def test_a_name_may_hold_any_byte(driver: Driver, nvml: Child) -> None:
    name = bytes(range(1, 96))
    read = "(create_string_buffer(96), {0})"
    for part in (name, b"caf\xe9 \xff%41!\x1b[2J"):
        driver.gpus = [Gpu(name=part)]
        driver.write()
        asked = f"[(call('nvmlDeviceGetName', h, b, 96), b.value) for b, h in [{read}]][0]"
        assert nvml.ask(asked) == [0, part.decode("latin-1")]
    assert nvml.ask(f"[call('nvmlDeviceGetName', h, b, 4) for b, h in [{read}]]") == [7]


def test_the_state_may_change_under_a_program(driver: Driver, nvml: Child) -> None:
    assert nvml.ask("nvmlDeviceGetTemperature({0}, 0)") == 31
    for degrees in (41, 42, 43, 44):  # files of one size, within one tick of the clock
        driver.gpus[0].temperature = degrees
        driver.write()
        assert nvml.ask("nvmlDeviceGetTemperature({0}, 0)") == degrees
    driver.gpus = []
    driver.write()
    assert nvml.ask("nvmlDeviceGetCount()") == 0
    assert nvml.code("nvmlDeviceGetTemperature({0}, 0)") == 15


def test_a_gpu_that_falls_off_takes_its_processes_along(driver: Driver, nvml: Child) -> None:
    driver.gpus = [Gpu(0), Gpu(2)]
    driver.procs = [Proc(1, 11), Proc(2, 22)]
    driver.write()
    assert nvml.ask("nvmlDeviceGetMinorNumber({1})") == 2
    assert [p["pid"] for p in nvml.ask("nvmlDeviceGetComputeRunningProcesses({1})")] == [22]
    assert nvml.ask("nvmlDeviceGetComputeRunningProcesses({0})") == []


def test_a_handle_stays_with_its_gpu_when_the_driver_drops_another(driver: Driver, nvml: Child) -> None:
    driver.gpus = [Gpu(0), Gpu(1), Gpu(2, temperature=62)]
    driver.faults = ["nvmlDeviceGetPowerUsage@1 ret=999"]
    driver.write()
    assert nvml.ask("[nvmlDeviceGetIndex(one) for one in ({0}, {1}, {2})]") == [0, 1, 2]
    del driver.gpus[1]
    driver.write()
    assert nvml.ask("[nvmlDeviceGetIndex({2}), nvmlDeviceGetTemperature({2}, 0)]") == [1, 62]
    assert nvml.code("nvmlDeviceGetPowerUsage({2})") == 999, "faults go by the index"
    assert nvml.code("nvmlDeviceGetTemperature({1}, 0)") == 15
    assert nvml.ask("nvmlDeviceGetUUID(nvmlDeviceGetHandleByIndex(1))") == driver.gpus[1].uuid
    driver.gpus.insert(1, Gpu(1))
    driver.write()
    assert nvml.ask("[nvmlDeviceGetIndex(one) for one in ({0}, {1}, {2})]") == [0, 1, 2]


def test_process_lists(driver: Driver, nvml: Child) -> None:
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
        assert nvml.ask(f"nvmlDeviceGetComputeRunningProcesses{version}({{0}})") == [first, second]
        assert nvml.ask(f"nvmlDeviceGetGraphicsRunningProcesses{version}({{0}})") == [second]
        assert nvml.ask(f"nvmlDeviceGetMPSComputeRunningProcesses{version}({{0}})") == [third]
    old = "nvmlDeviceGetComputeRunningProcesses"  # pid and memory, 16 bytes each
    words = f"[(call('{old}', {{0}}, byref(n), b), n.value, *b) for n, b in [(c_uint(2), (c_ulonglong * 4)())]][0]"
    assert nvml.ask(words) == [0, 2, 100, 3 * GIB, 200, 2**64 - 1]
    small = words.replace("c_uint(2)", "c_uint(1)")
    assert nvml.ask(small) == [7, 2, 0, 0, 0, 0]


def test_lists_that_grow_or_are_empty(driver: Driver, nvml: Child) -> None:
    driver.procs = [Proc(0, 100, sm=5)]
    driver.faults = ["nvmlDeviceGetComputeRunningProcesses_v3 grow", "nvmlDeviceGetProcessUtilization@0 empty"]
    driver.write()
    assert nvml.code("nvmlDeviceGetComputeRunningProcesses({0})") == 7
    name = "nvmlDeviceGetComputeRunningProcesses_v3"
    grow = f"[(call('{name}', {{0}}, byref(n), None), n.value) for n in [c_uint(9)]][0]"
    assert nvml.ask(grow) == [7, 10]
    name = "nvmlDeviceGetProcessUtilization"
    empty = f"[(call('{name}', {{0}}, None, byref(n), c_ulonglong(0)), n.value) for n in [c_uint(9)]][0]"
    assert nvml.ask(empty) == [0, 0]


def test_samples_of_utilization(driver: Driver, nvml: Child) -> None:
    driver.procs = [Proc(0, 1), Proc(0, 2, sm=40, mem=20, enc=3, dec=4), Proc(0, 3, sm=999, ts=7)]
    driver.write()
    before = time.time_ns() // 1000
    fresh, fixed = nvml.ask("nvmlDeviceGetProcessUtilization({0}, 0)")
    assert fixed == {"pid": 3, "timeStamp": 7, "smUtil": 999, "memUtil": 0, "encUtil": 0, "decUtil": 0}
    stamp = fresh.pop("timeStamp")
    assert fresh == {"pid": 2, "smUtil": 40, "memUtil": 20, "encUtil": 3, "decUtil": 4}
    assert before - 166_000 <= stamp <= time.time_ns() // 1000
    newer = f"nvmlDeviceGetProcessUtilization({{0}}, {stamp})"
    wait_for(lambda: nvml.code(newer) == 0)  # the next period has its sample
    assert [s["pid"] for s in nvml.ask(newer)] == [2]
    assert nvml.code(f"nvmlDeviceGetProcessUtilization({{0}}, {stamp + 10**12})") == 6
    driver.procs = [Proc(0, 4, sm=1, age=60_000_000), Proc(0, 5, sm=1, age=-60_000_000)]
    driver.write()
    old, ahead = nvml.ask("nvmlDeviceGetProcessUtilization({0}, 0)")
    assert old["timeStamp"] < before < ahead["timeStamp"]


def test_mig(driver: Driver, nvml: Child) -> None:
    driver.gpus = [
        Gpu(0, mig_mode=1, mig_pending=1, util_gpu=None, migs=[Mig(7), Mig(8, 1, uuid="MIG-two", memory_used=2 * GIB)])
    ]
    driver.procs = [Proc(0, 70, gi=7, ci=0), Proc(0, 81, gi=8, ci=1)]
    driver.write()
    mig = "nvmlDeviceGetMigDeviceHandleByIndex({0}, 1)"
    assert nvml.ask("nvmlDeviceGetMigMode({0})") == [1, 1]
    assert nvml.ask("nvmlDeviceGetMaxMigDeviceCount({0})") == 7
    assert nvml.code("nvmlDeviceGetMigDeviceHandleByIndex({0}, 2)") == 6
    assert nvml.ask(f"nvmlDeviceGetUUID({mig})") == "MIG-two"
    assert nvml.ask("nvmlDeviceGetGpuInstanceId(nvmlDeviceGetHandleByUUID(b'MIG-two'))") == 8
    assert nvml.ask(f"nvmlDeviceGetComputeInstanceId({mig})") == 1
    assert nvml.ask(f"nvmlDeviceIsMigDeviceHandle({mig}).value") == 1
    assert nvml.ask(f"nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle({mig}))") == 0
    assert nvml.ask(f"nvmlDeviceGetMemoryInfo({mig}, version=nvmlMemory_v2).used") == 2 * GIB
    assert nvml.ask(f"nvmlDeviceGetAttributes_v2({mig})")["memorySizeMB"] == 10 * 1024
    assert nvml.code(f"nvmlDeviceGetUtilizationRates({mig})") == 3
    assert [p["pid"] for p in nvml.ask(f"nvmlDeviceGetComputeRunningProcesses({mig})")] == [81]
    assert [p["pid"] for p in nvml.ask("nvmlDeviceGetComputeRunningProcesses({0})")] == [70, 81]
