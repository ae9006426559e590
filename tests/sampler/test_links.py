"""PCIe and NVLink of the GPU in focus: values, units, reasons, and the calls that they take."""

from __future__ import annotations

from gpuwatch.model import Gpu, Health, Reason
from gpuwatch.sampler import nvml
from gpuwatch.sampler.shared_page import LINK_CALLS
from tests.driver import Code, Driver
from tests.driver import Gpu as Card
from tests.sampler.test_sampler_time import Later, later
from tests.support.sampling import running

__all__ = ["later"]

TX, RX = 138, 139
"""Ids of the counters of NVLink."""
FIELDS = ("pcie_rx", "pcie_tx", "pcie_link", "nvlinks", "nvlink_rx", "nvlink_tx")


def linked(index: int) -> Card:
    """Return a GPU whose 12 of 18 NVLinks are active."""
    return Card(
        index,
        pcie_tx=1_500,
        pcie_rx=24_000_000,
        pcie_gen=4,
        pcie_width=8,
        nvlinks=18,
        nvlinks_active=12,
        values={TX: 1000, RX: 5000},
    )


def links(row: Gpu) -> dict[str, object]:
    """Return the fields of PCIe and NVLink."""
    return {field: getattr(row, field) for field in FIELDS}


def link_calls(driver: Driver, index: int) -> int:
    """Count the calls about PCIe and NVLink to a GPU."""
    return sum(count for name, count in driver.calls(index).items() if name in LINK_CALLS)


def test_the_gpu_in_focus_alone_is_asked(driver: Driver, later: Later) -> None:
    driver.put(gpus=[linked(0), linked(1)])
    before = later(0)
    assert {link_calls(driver, index) for index in (0, 1)} == {0}
    assert set(links(before.gpus[1]).values()) == {Reason.NO_SAMPLE}
    key = str(driver.gpus[1].uuid)
    later(1, key)
    driver.gpus[1].values = {TX: 1000 + 2048, RX: 5000 + 512}
    driver.write()
    found = later(2, key)
    assert links(found.gpus[1]) == {
        "pcie_tx": 1_500_000,
        "pcie_rx": 24_000_000_000,
        "pcie_link": "gen4 x8",
        "nvlinks": 12,
        "nvlink_tx": 1024 * 1024,
        "nvlink_rx": 256 * 1024,
    }
    assert set(links(found.gpus[0]).values()) == {Reason.NO_SAMPLE}
    assert link_calls(driver, 0) == 0
    assert set(links(later(1).gpus[1]).values()) == {Reason.NO_SAMPLE}, "out of focus nothing is known"


def test_a_rate_needs_two_readings_of_a_counter_that_grows(driver: Driver, later: Later) -> None:
    driver.put(gpus=[linked(0)])
    key = str(driver.gpus[0].uuid)
    assert later(0, key).gpus[0].nvlink_tx is Reason.NO_SAMPLE
    assert later(1, key).gpus[0].nvlink_tx == 0
    driver.gpus[0].values = {TX: 0, RX: 9000}  # the driver was loaded again
    driver.write()
    row = later(1, key).gpus[0]
    assert (row.nvlink_tx, row.nvlink_rx) == (Reason.NO_SAMPLE, Reason.NO_SAMPLE)
    assert later(1, key).gpus[0].nvlink_tx == 0
    later(1)
    assert later(60, key).gpus[0].nvlink_tx is Reason.NO_SAMPLE, "what passed without focus was not read"


def test_a_minute_in_focus_takes_three_calls_a_second_more(driver: Driver, later: Later) -> None:
    driver.put(gpus=[linked(0)])
    key = str(driver.gpus[0].uuid)
    later(0)
    for _ in range(60):
        later(1, key)
    calls = driver.calls(0)
    assert calls["nvmlDeviceGetPcieThroughput"] == 2 * 60
    assert calls["nvmlDeviceGetFieldValues"] == 60
    assert calls["nvmlDeviceGetCurrPcieLinkWidth"] in (6, 7)
    assert calls["nvmlDeviceGetNvLinkState"] in (19 * 6, 19 * 7)


MISSING: list[tuple[dict[str, object], str, object]] = [
    ({"pcie_tx": None}, "pcie_tx", Reason.UNSUPPORTED),
    ({"pcie_rx": Code(nvml.Code.NO_PERMISSION)}, "pcie_rx", Reason.DENIED),
    ({"pcie_width": None}, "pcie_link", Reason.UNSUPPORTED),
    ({"pcie_gen": Code(nvml.Code.UNKNOWN)}, "pcie_link", Reason.ERROR),
    ({"nvlinks": None}, "nvlinks", Reason.UNSUPPORTED),
    ({"nvlinks_active": 0}, "nvlinks", 0),
    ({"values": {}}, "nvlink_tx", Reason.UNSUPPORTED),
    ({"values": {TX: 7}}, "nvlink_rx", Reason.UNSUPPORTED),
    ({"values": {TX: Code(nvml.Code.TIMEOUT), RX: 7}}, "nvlink_tx", Reason.ERROR),
    ({"pcie_tx": Code(nvml.Code.TIMEOUT)}, "pcie_tx", Reason.ERROR),
]


def test_a_value_that_is_missing_has_a_reason_and_costs_no_other(driver: Driver, later: Later) -> None:
    """Each of another GPU, which the focus passes one after the other."""
    cards = [linked(index) for index in range(len(MISSING))]
    for card, (changes, _, _) in zip(cards, MISSING, strict=True):
        for name, value in changes.items():
            setattr(card, name, value)
    driver.put(gpus=cards)
    later(0)
    for index, (_, field, expected) in enumerate(MISSING):
        row = later(1, str(cards[index].uuid)).gpus[index]
        assert getattr(row, field) == expected, MISSING[index]
        assert (row.health, row.words, row.temperature) == (Health.OK, "", 31)


def test_what_is_not_supported_is_asked_once_and_is_said_out_of_focus_too(driver: Driver, later: Later) -> None:
    driver.put(gpus=[Card(0, pcie_tx=None, pcie_rx=None)])
    key = str(driver.gpus[0].uuid)
    for _ in range(20):
        later(1, key)
    calls = driver.calls(0)
    assert (calls["nvmlDeviceGetPcieThroughput"], calls["nvmlDeviceGetFieldValues"]) == (2, 1)
    assert calls["nvmlDeviceGetNvLinkState"] == 18 + 1
    row = later(1).gpus[0]
    assert (row.pcie_tx, row.nvlinks, row.nvlink_rx) == (Reason.UNSUPPORTED,) * 3


def test_the_focus_of_a_running_sampler_changes(driver: Driver) -> None:
    driver.put(gpus=[linked(0), linked(1)])
    with running(driver.env(), declared=False) as sampler:
        sampler.send(focus=sampler.next().gpus[1].key)
        seen = sampler.until(lambda it: it.gpus[1].pcie_link == "gen4 x8")
        assert seen.gpus[0].pcie_link == Reason.NO_SAMPLE
        sampler.send(focus="")
        sampler.until(lambda it: it.gpus[1].pcie_tx is Reason.NO_SAMPLE)
