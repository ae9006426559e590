"""CUDA_VISIBLE_DEVICES read as the driver reads it, on machines of identical, different and MIG GPUs."""

from __future__ import annotations

import string
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.declared.facts import GpuFacts
from gpuwatch.declared.visible_devices import parse
from gpuwatch.model import Order
from tests.support.cards import MIXED, A, B, D, card, part


def seen(value: str | None, cards: Sequence[GpuFacts] = A, order: str | None = None) -> list[int | str]:
    """Return the NVML indices of the whole GPUs that are visible, and the UUIDs of instances."""
    index = {one.uuid: one.index for one in cards}
    return [index.get(uuid, uuid) for uuid in parse(value, cards, order).gpus]


@pytest.mark.parametrize(
    ("value", "expected", "note"),
    [
        (None, [0, 1, 2, 3], ""),
        ("", [], ""),
        ("  ", [], None),
        ("2", [2], None),
        ("2,1", [2, 1], None),
        ("3,2", [3, 2], ""),
        ("0,2,-1,1", [0, 2], "-1 hides all that follow"),
        ("-1", [], ""),
        ("-1,0", [], "-1 hides all that follow"),
        ("16", [], "16 is no GPU: there are 4"),
        ("1,5,0", [1], None),
        ("0,0", [], "0 is given twice, which hides every GPU"),
        ("0, 1, 2, 1", [], None),
        ("2, +3, -0, 1", [2, 3, 0, 1], None),
        ("1gpu2,2ampere", [1, 2], None),
        ("0-2", [0], "0-2 is read as 0"),
        ("0x1", [0], None),
        ("08", [], None),
        ("000003", [3], None),
        (" 0 ,\t1 ", [0, 1], None),
        ("0,", [0], ""),
        ("0,,1", [0], "an entry is empty, which hides all that follow"),
        ("+", [], None),
        ("one,two,3", [], None),
        ("3,two,1", [3], None),
        ("NoDevFiles", [], None),
        ('"0,1"', [], '"0 is no GPU: the quotes are part of the value, which hides all that follow'),
        ("'0'", [], None),
        ("99999999999999999999", [], None),
        ("9" * 5000, [], None),
        ("²", [], None),
        ("GPU-aaaa0001", [0], None),
        ("GPU-bbbb0002,GPU-aaaa0001", [1, 0], None),
        ("GPU-a", [0], None),
        ("GPU-bbb,GPU-d", [1, 3], None),
        ("GPU-b", [], "GPU-b is the start of two GPUs"),
        ("GPU-a,GPU-b,GPU-d", [0], None),
        ("GPU-", [], "GPU- is the start of 4 GPUs"),
        ("GPU-none,GPU-a", [], None),
        ("GPU-aaaa0001,GPU-a", [], "GPU-a is given twice, which hides every GPU"),
        ("GPU-a,GPU-d,GPU-aaaa0001", [], None),
        ("gpu-aaaa0001", [], None),
        ("GPU-a, GPU-d", [0], None),
        (" GPU-a", [], "GPU-a is no GPU: there is a blank beside it"),
        ("GPU-a,2", [0], "2 cannot stand in a list of GPU UUIDs"),
        ("GPU-a,", [0], None),
        ("0,GPU-d", [0], None),
        ("0,MIG-1111", [0], None),
        ("GPU-a,MIG-1111", [0], None),
        ("MIG-1111", [], None),
        ("GPU-bbbb,GPU-aaaa", [1, 0], ""),
        ("-2,0", [], "-2 is no GPU, which hides all that follow"),
        ("GPU-b,GPU-a", [], "GPU-b is the start of two GPUs, which hides all that follow"),
        ("one", [], "one is no GPU"),
        ("GPU-none", [], "GPU-none is no GPU"),
        ("'2'", [], "'2' is no GPU: the quotes are part of the value"),
        ("0,GPU-a,1", [0], "GPU-a cannot stand in a list of indices, which hides all that follow"),
        ("MIG-1111,GPU-a", [], "MIG-1111 is no GPU, which hides all that follow"),
        ("1gpu2", [1], "1gpu2 is read as 1"),
        ("0-2,9", [0], "9 is no GPU: there are 4; 0-2 is read as 0"),
        ("\x1b[2J", [], "\N{REPLACEMENT CHARACTER}[2J is no GPU"),
    ],
)
def test_a_value_shows_the_gpus_that_the_driver_shows(value: str | None, expected: list[int], note: str | None) -> None:
    assert seen(value) == expected
    assert note is None or parse(value, A).note == note


@pytest.mark.parametrize(
    ("cards", "value", "note"), [(A[:1], "1", "1 is no GPU: there is one"), ([], "0", "0 is no GPU: there is none")]
)
def test_an_ordinal_beyond_the_last_says_how_many_there_are(cards: list[GpuFacts], value: str, note: str) -> None:
    assert parse(value, cards).note == note


@pytest.mark.parametrize(
    ("cards", "value", "order", "certainty"),
    [
        (A, "2", None, Order.IDENTICAL),
        (A, None, None, Order.IDENTICAL),
        (A, "2", "PCI_BUS_ID", Order.EXACT),
        (A, "GPU-a", None, Order.EXACT),
        (A, "", None, Order.EXACT),
        (A[:1], "0", None, Order.EXACT),
        (B, "0", None, Order.HEURISTIC),
        (B, "0", "FASTEST_FIRST", Order.HEURISTIC),
        (B, "0", "pci_bus_id", Order.HEURISTIC),
        (B, "0", "PCI_BUS_ID", Order.EXACT),
        (B, None, None, Order.HEURISTIC),
        (B, "GPU-fa", None, Order.EXACT),
        ([card(0, "GPU-1", name=""), card(1, "GPU-2", name="")], "0", None, Order.HEURISTIC),
        (D, "MIG-1111", None, Order.EXACT),
        (D, None, None, Order.HEURISTIC),
        (D, "0", "PCI_BUS_ID", Order.HEURISTIC),
        ([card(0, "GPU-1", mig=True, slices=(part("MIG-1", 7),))], "0", None, Order.EXACT),
    ],
)
def test_how_sure_an_ordinal_is(cards: list[GpuFacts], value: str | None, order: str | None, certainty: Order) -> None:
    assert parse(value, cards, order).order is certainty


def test_an_order_that_cuda_does_not_know_is_named() -> None:
    assert "CUDA_DEVICE_ORDER=pci_bus_id is neither" in parse("0", B, "pci_bus_id").note
    assert parse("0", B, "FASTEST_FIRST").note == ""


def test_pci_bus_id_counts_by_slot_and_not_by_nvml_s_index() -> None:
    swapped = [card(0, "GPU-high", bus_id="00000000:C1:00.0"), card(1, "GPU-low", bus_id="00000000:0a:00.0")]
    assert seen("0", swapped, "PCI_BUS_ID") == [1]
    assert seen("0", swapped) == [0]
    unknown = [card(0, "GPU-high", bus_id="00000000:C1:00.0"), card(1, "GPU-low", bus_id="")]
    assert seen("0", unknown, "PCI_BUS_ID") == [0]


def test_a_gpu_that_never_gave_its_uuid_cannot_be_shown() -> None:
    assert seen(None, [card(0, ""), card(1, "GPU-b")]) == [1]


@pytest.mark.parametrize(
    ("cards", "value", "expected"),
    [
        (D, "MIG-1111", ["MIG-1111"]),
        (D, "MIG-2", ["MIG-2222"]),
        (D, "MIG-", []),
        (D, "MIG-1111,MIG-1", []),
        (D, "MIG-2222,MIG-1111", ["MIG-2222", "MIG-1111"]),
        (D, "MIG-1111,0", ["MIG-1111"]),
        (D, "MIG-GPU-aaaa0001/8/0", []),
        (D, "0", ["MIG-1111"]),
        (D, "1", []),
        (D, "GPU-aaaa0001", ["MIG-1111"]),
        (D, None, ["MIG-1111", "MIG-2222"]),
        (MIXED, None, [1, 3, "MIG-1111", "MIG-2222"]),
        (MIXED, "0", [1]),
        (MIXED, "0,1,2", [1, 3, "MIG-1111"]),
        (MIXED, "3", []),
        (MIXED, "MIG-1112,MIG-1111,MIG-2222", ["MIG-1112", "MIG-2222"]),
        (MIXED, "GPU-bbbb,GPU-bbcc,GPU-d", [1]),
        (MIXED, "GPU-a,GPU-d", ["MIG-1111", 3]),
    ],
)
def test_mig_instances_and_gpus_in_mig_mode(
    cards: list[GpuFacts], value: str | None, expected: list[int | str]
) -> None:
    assert seen(value, cards) == expected


BEFORE_R570 = "drivers before R570 show only the first MIG instance, and no other GPU"


@pytest.mark.parametrize(
    ("cards", "value", "note"),
    [
        (D, "MIG-1111", ""),
        (D, "MIG-1111,MIG-2222", BEFORE_R570),
        (D, "MIG-", "MIG- is the start of two MIG instances"),
        (D, "MIG-1111,0,1", "0 cannot stand in a list of MIG UUIDs, which hides all that follow"),
        (D, "GPU-a", "GPU 0 is in MIG mode: CUDA takes its first instance"),
        (D, "0gpu", "0gpu is read as 0; GPU 0 is in MIG mode: CUDA takes its first instance"),
        (MIXED, "GPU-bbcc", "GPU-bbcc is in MIG mode and has no instance"),
        (MIXED, "MIG-1111,MIG-1112", "MIG-1112 is in the same GPU instance as MIG-1111: CUDA shows one"),
        (MIXED, None, BEFORE_R570),
    ],
)
def test_what_is_odd_about_mig_is_said(cards: list[GpuFacts], value: str | None, note: str) -> None:
    assert parse(value, cards).note == note


@pytest.mark.parametrize(
    ("cards", "value", "old", "new"),
    [
        (D, None, ["MIG-1111"], ["MIG-1111", "MIG-2222"]),
        (D, "MIG-2222,MIG-1111", ["MIG-2222"], ["MIG-2222", "MIG-1111"]),
        (D, "MIG-2222", ["MIG-2222"], ["MIG-2222"]),
        (D, "0", ["MIG-1111"], ["MIG-1111"]),
        (MIXED, None, ["MIG-1111"], [1, 3, "MIG-1111", "MIG-2222"]),
        (MIXED, "0,1,2", ["MIG-1111"], [1, 3, "MIG-1111"]),
        (MIXED, "0,1", [1, 3], [1, 3]),
        (MIXED, "GPU-bbbb,GPU-d", [1, 3], [1, 3]),
        (A, None, [0, 1, 2, 3], [0, 1, 2, 3]),
    ],
)
def test_how_many_mig_instances_are_seen_depends_on_the_driver(
    cards: list[GpuFacts], value: str | None, old: list[int | str], new: list[int | str]
) -> None:
    index = {one.uuid: one.index for one in cards}
    for driver, expected in (("550.54.15", old), ("565.57.01", old), ("570.86.10", new), ("580.95.05", new)):
        seen = parse(value, cards, driver=driver)
        assert [index.get(uuid, uuid) for uuid in seen.gpus] == expected
        assert (BEFORE_R570 in seen.note) is (expected != new)


@pytest.mark.parametrize("driver", ["", "unknown", "\N{SUPERSCRIPT TWO}"])
def test_a_driver_of_no_known_version_is_taken_for_a_new_one(driver: str) -> None:
    seen = parse(None, D, driver=driver)
    assert (seen.gpus, seen.note) == (("MIG-1111", "MIG-2222"), BEFORE_R570)


# ---------------------------------------------------------------------------------------------------------------
# Any text

ENTRIES = st.one_of(
    st.text(max_size=12),
    st.text(alphabet=string.digits + "+- ", max_size=4),
    st.sampled_from(["GPU-a", "GPU-b", "GPU-bbbb0002", "GPU-", "MIG-", "MIG-1111", "MIG-GPU-a/1/1", "-1", "0", "1"]),
)
MACHINES = st.sampled_from([A, B, D, MIXED, []])


@given(value=st.lists(ENTRIES, max_size=6).map(",".join), cards=MACHINES, order=st.none() | st.text(max_size=12))
def test_no_text_raises_and_what_is_seen_is_there_and_once(
    value: str, cards: list[GpuFacts], order: str | None
) -> None:
    result = parse(value, cards, order)
    there = {one.uuid for one in cards if not one.mig} | {one.uuid for whole in cards for one in whole.slices}
    assert there.issuperset(result.gpus)
    assert len(set(result.gpus)) == len(result.gpus)
    assert result.note.isprintable()
    assert parse(value + ",-1", cards, order).gpus == result.gpus
