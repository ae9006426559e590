"""CUDA_VISIBLE_DEVICES read as the driver reads it, on machines of identical, different and MIG GPUs."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import GpuFacts
from gpuwatch.declared.visible_devices import parse
from gpuwatch.model.snapshot import Order
from tests.declared.machines import MIXED, A, B, D, gpu, part
from tests.declared.tables import Case, cases

MACHINES = {"A": A, "A1": A[:1], "B": B, "D": D, "MIXED": MIXED, "NONE": []}
"""Those of `machines`; A1 is one gpu."""


@cases("declared/visible")
def test_a_value_shows_the_gpus_that_the_driver_shows(case: Case) -> None:
    """`sees` has NVML indices of whole GPUs and UUIDs of instances; before R570 a process sees one instance."""
    machine = MACHINES[case["cards"]]
    index = {one.uuid: one.index for one in machine}
    seen = parse(case["value"], machine, case.get("order"), driver=case.get("driver", ""))
    found = {"sees": [index.get(uuid, uuid) for uuid in seen.gpus], "note": seen.note, "certainty": seen.order}
    assert {key: found[key] for key in case["expect"]} == case["expect"]


def test_hostile_numbers_and_drivers_of_no_known_version() -> None:
    assert parse("9" * 5000, A).gpus == ()
    assert parse(None, D, driver="\N{SUPERSCRIPT TWO}").gpus == ("MIG-1111", "MIG-2222")


@pytest.mark.parametrize(
    ("gpus", "certainty"),
    [
        ([gpu(0, "GPU-1", name=""), gpu(1, "GPU-2", name="")], Order.HEURISTIC),
        ([gpu(0, "GPU-1", mig=True, slices=(part("MIG-1", 7),))], Order.EXACT),
    ],
)
def test_how_sure_an_ordinal_is_without_a_model_and_of_one_instance(gpus: list[GpuFacts], certainty: Order) -> None:
    assert parse("0", gpus).order is certainty


def test_an_order_that_cuda_does_not_know_is_named() -> None:
    assert "CUDA_DEVICE_ORDER=pci_bus_id is neither" in parse("0", B, "pci_bus_id").note
    assert parse("0", B, "FASTEST_FIRST").note == ""


@pytest.mark.parametrize(
    ("low", "order", "first"),
    [
        ("00000000:0a:00.0", "PCI_BUS_ID", "GPU-low"),
        ("00000000:0a:00.0", None, "GPU-high"),
        ("", "PCI_BUS_ID", "GPU-high"),
    ],
)
def test_pci_bus_id_counts_by_slot_and_not_by_nvml_s_index(low: str, order: str | None, first: str) -> None:
    swapped = [gpu(0, "GPU-high", bus_id="00000000:C1:00.0"), gpu(1, "GPU-low", bus_id=low)]
    assert parse("0", swapped, order).gpus == (first,)


def test_a_gpu_that_never_gave_its_uuid_cannot_be_shown() -> None:
    assert parse(None, [gpu(0, ""), gpu(1, "GPU-b")], None).gpus == ("GPU-b",)


ENTRIES = st.one_of(
    st.text(max_size=12),
    st.text(alphabet=string.digits + "+- ", max_size=4),
    st.sampled_from(["GPU-a", "GPU-b", "GPU-bbbb0002", "GPU-", "MIG-", "MIG-1111", "MIG-GPU-a/1/1", "-1", "0", "1"]),
)


@given(
    value=st.lists(ENTRIES, max_size=6).map(",".join),
    gpus=st.sampled_from([A, B, D, MIXED, []]),
    order=st.none() | st.text(max_size=12),
)
def test_no_text_raises_and_what_is_seen_is_there_and_once(value: str, gpus: list[GpuFacts], order: str | None) -> None:
    result = parse(value, gpus, order)
    there = {one.uuid for one in gpus if not one.mig} | {one.uuid for whole in gpus for one in whole.slices}
    assert there.issuperset(result.gpus)
    assert len(set(result.gpus)) == len(result.gpus)
    assert result.note.isprintable()
    assert parse(value + ",-1", gpus, order).gpus == result.gpus
