"""The tests' driver library itself: its events and its remapped rows, through the binding that the program uses."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.driver import Driver, Gpu
from tests.support.nvml_child import Child

XID = 8
NONE = 0xFFFFFFFF
SET = "(h.get('set') or h.setdefault('set', nvmlEventSetCreate()))"


def wait(nvml: Child, which: str = SET) -> tuple[int, int] | int:
    """Return the XID that a set has to tell, with NVML's index of its GPU; else the return code."""
    code = nvml.code(f"h.__setitem__('last', nvmlEventSetWait_v2({which}, 0))")
    if code:
        return code
    index, xid, kind, gpu_instance, compute_instance = nvml.ask(
        "[(nvmlDeviceGetIndex(d.device), d.eventData, d.eventType, d.gpuInstanceId, d.computeInstanceId) "
        "for d in [h['last']]][0]"
    )
    assert (kind, gpu_instance, compute_instance) == (XID, NONE, NONE)
    return (index, xid)


def happens(driver: Driver, *xids: tuple[int, int]) -> None:
    """Let these XIDs happen: (index of the GPU, code)."""
    driver.xids += xids
    driver.write()


def two(driver: Driver) -> None:
    """Put two GPUs into the machine."""
    driver.gpus = [Gpu(0), Gpu(1)]
    driver.write()


def test_each_event_is_told_once_in_order_and_nothing_from_before(driver: Driver, nvml: Child) -> None:
    two(driver)
    happens(driver, (1, 13))
    assert wait(nvml) == 10
    for gpu in (0, 1):
        nvml.ask(f"nvmlDeviceRegisterEvents({{{gpu}}}, {XID}, {SET})")
    assert wait(nvml) == 10
    happens(driver, (1, 79), (0, 31), (1, 79))
    assert [wait(nvml) for _ in range(4)] == [(1, 79), (0, 31), (1, 79), 10]


def test_two_programs_and_two_sets_are_told_alike(driver: Driver, start_nvml: Callable[[], Child]) -> None:
    two(driver)
    programs = [start_nvml(), start_nvml()]
    other = SET.replace("'set'", "'other'")
    for nvml in programs:
        nvml.ask(f"nvmlDeviceRegisterEvents({{0}}, {XID}, {SET})")
        nvml.ask(f"nvmlDeviceRegisterEvents({{1}}, {XID}, {other})")
    happens(driver, (0, 48), (1, 63))
    for nvml in programs:
        assert [wait(nvml), wait(nvml)] == [(0, 48), 10]
        assert [wait(nvml, other), wait(nvml, other)] == [(1, 63), 10]


def test_a_gpu_registered_twice_is_told_of_twice(driver: Driver, nvml: Child) -> None:
    for _ in range(2):
        nvml.ask(f"nvmlDeviceRegisterEvents({{0}}, {XID}, {SET})")
    happens(driver, (0, 79))
    assert [wait(nvml) for _ in range(3)] == [(0, 79), (0, 79), 10]


def test_what_is_refused(driver: Driver, nvml: Child) -> None:
    driver.gpus = [Gpu(0, event_types=0x97), Gpu(1, event_types=None)]
    driver.write()
    assert nvml.ask("nvmlDeviceGetSupportedEventTypes({0})") == 0x97
    assert nvml.code("nvmlDeviceGetSupportedEventTypes({1})") == 3
    assert nvml.code(f"nvmlDeviceRegisterEvents({{0}}, {XID}, {SET})") == 3
    assert nvml.code(f"nvmlEventSetFree({SET})") == 0
    assert nvml.code(f"nvmlEventSetFree({SET})") == 2
    assert wait(nvml) == 2


def test_a_wait_ends_when_its_time_is_over(driver: Driver, nvml: Child) -> None:
    nvml.ask(f"nvmlDeviceRegisterEvents({{0}}, {XID}, {SET})")
    before = time.monotonic()
    assert nvml.code(f"nvmlEventSetWait_v2({SET}, 40)") == 10
    assert time.monotonic() - before >= 0.04


def test_an_event_ends_a_wait(driver: Driver, nvml: Child) -> None:
    nvml.ask(f"nvmlDeviceRegisterEvents({{0}}, {XID}, {SET})")
    nvml.send(f"nvmlEventSetWait_v2({SET}, 60_000).eventData")
    happens(driver, (0, 94))
    assert nvml.process.stdout is not None
    assert nvml.process.stdout.readline() == '{"value": 94}\n'


def test_remapped_rows(driver: Driver, nvml: Child) -> None:
    driver.gpus = [Gpu(0, remapped_corrected=1, remapped_uncorrected=2, remap_pending=1), Gpu(1, remap_failed=None)]
    driver.write()
    assert nvml.ask("nvmlDeviceGetRemappedRows({0})") == [1, 2, 1, 0]
    assert nvml.code("nvmlDeviceGetRemappedRows({1})") == 3
