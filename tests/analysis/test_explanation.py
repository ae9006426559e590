"""What is said of one process: pure words from the model's structs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from gpuwatch.alerts.limits import Allowances
from gpuwatch.analysis.explanation import Point, explain_process
from gpuwatch.model import (
    Basis,
    Confidence,
    Declaration,
    Declared,
    Hint,
    Instance,
    Kind,
    Knowledge,
    Limit,
    Margin,
    Order,
    Reason,
    Snapshot,
    Visible,
)
from tests.support.builders import GIB, MIB, gpu, holding, process, snapshot

UUIDS = [gpu(index).uuid for index in range(3)]
SAID = "config.gpu_options.per_process_gpu_memory_fraction = 0.4"


def cap(**changes: Any) -> Declaration:
    """Return a cap of 32 GiB on GPU 0, in effect."""
    fields: dict[str, Any] = {
        "channel": "per_process_gpu_memory_fraction",
        "where": "train.py",
        "line": 12,
        "text": SAID,
        "framework": "TensorFlow",
        "kind": Kind.CAP,
        "basis": Basis.TOTAL,
        "value": 0.4,
        "limits": {UUIDS[0]: 32 * GIB},
        "effective": True,
    }
    return Declaration(**{**fields, **changes})


def limit(size: int = 32 * GIB, **changes: Any) -> Limit:
    return Limit(**{"gpu": UUIDS[0], "bytes": size, "declaration": 0, **changes})


def explain(declared: Declared | None, *holdings: float | Reason, shown: Snapshot | None = None) -> list[Point]:
    """Explain PID 7, which holds so many GiB on GPU 0, GPU 1, …"""
    held = [holding(7, memory=one if isinstance(one, Reason) else round(one * GIB)) for one in holdings]
    cards = [gpu(place, holdings=[one]) for place, one in enumerate(held)]
    itself = process(7, declared=declared)
    return explain_process(itself, shown or snapshot(cards or [gpu(0), gpu(1)], [itself]))


def only(found: list[Point], label: str) -> Point:
    (point,) = [point for point in found if point.label == label]
    return point


def test_all_that_is_known_of_one_process() -> None:
    declared = Declared(
        frameworks=("TensorFlow",),
        visible=Visible(gpus=(UUIDS[0],), text="CUDA_VISIBLE_DEVICES=0", where="environment"),
        declarations=(cap(), cap(kind=Kind.GROWTH, basis=Basis.NONE, value=None, limits={}, line=13, why="no limit")),
        limits=(limit(),),
        hints=(Hint(rule="misspelt", words="CUDA_VISIBLE_DIVICES has no effect"),),
    )
    assert explain(declared, 49.6) == [
        ("uses", "TensorFlow", ""),
        ("sees", "cuda:0 → GPU 0", "CUDA_VISIBLE_DEVICES=0 · environment · exact"),
        (
            "declared",
            "cap 0.4 of the GPU, 32.0 GiB on GPU 0",
            f"{SAID} · train.py:12 · TensorFlow · certain · in effect",
        ),
        ("also set", "growth", f"{SAID} · train.py:13 · TensorFlow · certain · no limit"),
        (
            "holds",
            "49.6 GiB on GPU 0",
            "overshoot, 17.6 GiB over the 32.0 GiB that were declared (allowance 600 MiB)",
        ),
        ("hint", "CUDA_VISIBLE_DIVICES has no effect", ""),
    ]


@pytest.mark.parametrize(
    ("changes", "label", "value"),
    [
        (
            {"basis": Basis.BYTES, "value": 20 * GIB, "limits": {UUIDS[0]: 20 * GIB}},
            "declared",
            "cap 20.0 GiB on GPU 0",
        ),
        ({"limits": {UUIDS[0]: GIB, UUIDS[1]: GIB}}, "declared", "cap 0.4 of the GPU, 1.0 GiB on each of GPU 0-1"),
        (
            {"limits": {UUIDS[0]: GIB, UUIDS[1]: MIB}},
            "declared",
            "cap 0.4 of the GPU, 1.0 GiB on GPU 0; 1 MiB on GPU 1",
        ),
        ({"limits": {"GPU elsewhere": GIB}}, "declared", "cap 0.4 of the GPU, 1.0 GiB on GPU elsewhere"),
        ({"limits": {"GPU-elsewhere": GIB}}, "declared", "cap 0.4 of the GPU, 1.0 GiB on GPU-elsewhere"),
        (
            {"limits": {UUIDS[1]: GIB, "GPU-elsewhere": GIB, UUIDS[0]: GIB}},
            "declared",
            "cap 0.4 of the GPU, 1.0 GiB on each of GPU 0-1, GPU-elsewhere",
        ),
        ({"effective": False}, "also set", "cap 0.4 of the GPU, 32.0 GiB on GPU 0"),
        ({"value": None, "limits": {}}, "also set", "cap, no fixed number"),
        (
            {"kind": Kind.CACHE, "limits": {}, "basis": Basis.FREE_AFTER_LOAD},
            "also set",
            "cache 0.4 of what is free after loading",
        ),
        (
            {"kind": Kind.CACHE, "limits": {}, "basis": Basis.FREE_AT_START},
            "also set",
            "cache 0.4 of what is free at start",
        ),
        ({"kind": Kind.COMPUTE, "limits": {}, "basis": Basis.NONE}, "also set", "compute share 0.4 of the SMs"),
        ({"scope": "genv 4"}, "declared", "cap 0.4 of the GPU, 32.0 GiB on GPU 0, counted together as genv 4"),
    ],
)
def test_each_kind_of_number_is_said_as_what_it_is(changes: dict[str, Any], label: str, value: str) -> None:
    assert only(explain(Declared(declarations=(cap(**changes),))), label).value == value


@pytest.mark.parametrize(
    ("places", "words"),
    [(range(8), "each of GPU 0-7"), ((0, 2, 3, 4), "each of GPU 0,2-4"), ((5,), "GPU 5"), ((1, 7), "each of GPU 1,7")],
)
def test_many_gpus_are_said_in_short(places: Sequence[int], words: str) -> None:
    cards = snapshot([gpu(place, uuid=f"GPU-{place}") for place in range(8)])
    limits = {f"GPU-{place}": 20 * GIB for place in places}
    for changes in ({}, {"basis": Basis.BYTES, "value": 20 * GIB}):
        (point,) = [
            one
            for one in explain(Declared(declarations=(cap(limits=limits, **changes),)), shown=cards)
            if one.label == "declared"
        ]
        assert point.value.endswith(f"20.0 GiB on {words}")


def test_a_mig_instance_is_named_by_its_gpu() -> None:
    instance = Instance(uuid="MIG-1", name="1g.10gb", gpu_instance=7, compute_instance=0)
    shown = snapshot([gpu(2, mig=True, instances=(instance,)), gpu(0)])
    declared = Declared(
        declarations=(cap(limits={"MIG-1": GIB, UUIDS[0]: GIB}),), visible=Visible(gpus=("MIG-1",), text="X=MIG-1")
    )
    found = explain(declared, shown=shown)
    assert only(found, "declared").value.endswith("1.0 GiB on each of GPU 0, MIG 7/0 of GPU 2")
    assert only(found, "sees").value == "cuda:0 → MIG 7/0 of GPU 2"


@pytest.mark.parametrize(
    ("changes", "aside"),
    [
        ({"text": "", "line": 0}, "per_process_gpu_memory_fraction · train.py · TensorFlow · certain · in effect"),
        ({"framework": "", "confidence": Confidence.STALE}, f"{SAID} · train.py:12 · stale · in effect"),
        (
            {"effective": False, "why": "Y comes first"},
            f"{SAID} · train.py:12 · TensorFlow · certain · not in effect: Y comes first",
        ),
    ],
)
def test_a_declaration_says_where_it_stands_and_why_it_holds(changes: dict[str, Any], aside: str) -> None:
    (point,) = [
        one for one in explain(Declared(declarations=(cap(**changes),))) if one.label in ("declared", "also set")
    ]
    assert point.aside == aside


@pytest.mark.parametrize(
    ("visible", "value", "aside"),
    [
        (None, "not known", ""),
        (
            Visible(text="CUDA_VISIBLE_DEVICES=-1", where="environment"),
            "no GPU",
            "CUDA_VISIBLE_DEVICES=-1 · environment",
        ),
        (
            Visible(gpus=tuple(UUIDS[:2]), order=Order.IDENTICAL),
            "cuda:0 → GPU 0, cuda:1 → GPU 1",
            "not set, so all are visible · likely: GPUs of one model, which CUDA numbers as NVML does",
        ),
        (
            Visible(gpus=(UUIDS[1],), order=Order.HEURISTIC, text="X=0", note="odd"),
            "cuda:0 → GPU 1",
            "X=0 · a guess: of different models CUDA puts the fastest first · odd",
        ),
        (Visible(gpus=("GPU-gone",), text="X=0"), "cuda:0 → GPU-gone", "X=0 · exact"),
    ],
)
def test_the_gpus_that_it_sees_and_how_sure_that_is(visible: Visible | None, value: str, aside: str) -> None:
    assert only(explain(Declared(visible=visible)), "sees") == ("sees", value, aside)


def test_what_could_not_be_read_is_not_called_undeclared() -> None:
    unread = Declared(knowledge=Knowledge.UNREADABLE, words="its environment is not ours to read")
    found = explain(unread, 3)
    assert only(found, "not read") == (
        "not read",
        "its environment is not ours to read",
        "it may have declared more than is shown",
    )
    assert "declared" not in {point.label for point in found}
    assert only(explain(Declared(knowledge=Knowledge.PENDING)), "not read").value == "not read yet"
    assert only(explain(None), "declared").value == "not known: it was not read"


JAX = Declaration(
    channel="default",
    text="default of JAX: 0.75 of the GPU",
    framework="JAX",
    kind=Kind.DEFAULT,
    value=0.75,
    effective=True,
    why="a default is not a declaration",
)


def test_a_default_is_told_once_and_as_no_declaration() -> None:
    found = explain(Declared(declarations=(JAX,)))
    assert [point for point in found if point.label != "sees"] == [
        ("declared", "nothing", ""),
        ("default", "0.75 of the GPU", "JAX; a default is not a declaration"),
    ]
    unread = explain(Declared(knowledge=Knowledge.UNREADABLE, declarations=(JAX,)))
    assert "declared" not in {point.label for point in unread}
    assert "default" in {point.label for point in unread}


def test_a_default_that_yields_to_what_was_said_is_not_told() -> None:
    yields = structs.replace(JAX, effective=False, why="something else was declared")
    found = explain(Declared(declarations=(cap(), yields)))
    assert [point.label for point in found] == ["sees", "declared"]
    assert "default" not in str(found)


def test_what_applies_and_limits_nothing_says_why_and_not_that_it_is_in_effect() -> None:
    start = cap(kind=Kind.START, limits={}, why="a start size is no limit: more may be taken")
    (point,) = [one for one in explain(Declared(declarations=(start,))) if one.label == "also set"]
    assert point.aside.endswith("certain · a start size is no limit: more may be taken")


@pytest.mark.parametrize(
    ("held", "verdict"),
    [
        (30, "2.0 GiB under the 32.0 GiB that were declared"),
        (32, "0 B under the 32.0 GiB that were declared"),
        (32.5, "512 MiB over the 32.0 GiB that were declared, within the allowance of 600 MiB"),
        (33, "overshoot, 1.0 GiB over the 32.0 GiB that were declared (allowance 600 MiB)"),
        (Reason.UNSUPPORTED, "not known to be over the 32.0 GiB that were declared"),
    ],
)
def test_a_holding_is_set_against_its_limit(held: float | Reason, verdict: str) -> None:
    found = explain(Declared(declarations=(cap(),), limits=(limit(),)), held)
    amount = "an amount that is not known (unsupported)" if isinstance(held, Reason) else only(found, "holds").value[:8]
    assert only(found, "holds") == ("holds", f"{amount} on GPU 0".replace(" on GPU 0 on", " on"), verdict)


def test_who_exchanges_data_between_gpus_is_allowed_buffers() -> None:
    declared = Declared(frameworks=("JAX",), declarations=(cap(),), limits=(limit(),), collective=True)
    found = explain(declared, 33, 2)
    first, second = (point for point in found if point.label == "holds")
    assert first.aside.endswith("within the allowance of 1.1 GiB")
    assert second.value == "2.0 GiB on GPU 1"
    assert "buffers" in only(found, "uses").aside


def test_the_allowances_can_be_others() -> None:
    itself = process(7, declared=Declared(declarations=(cap(),), limits=(limit(margin=Margin.FRAMEWORK),)))
    shown = snapshot([gpu(0, holdings=[holding(7, 33)])], [itself])
    found = explain_process(itself, shown, Allowances(framework=2 * GIB))
    assert only(found, "holds").aside.endswith("within the allowance of 2.0 GiB")


def test_a_shared_limit_is_set_against_what_all_of_them_hold() -> None:
    declared = Declared(declarations=(cap(scope="genv 4"),), limits=(limit(scope="genv 4", margin=Margin.EXACT),))
    people = [process(pid, declared=declared) for pid in (7, 8)]
    shown = snapshot([gpu(0, holdings=[holding(7, 20), holding(8, 20)])], people)
    assert only(explain_process(people[0], shown), "holds") == (
        "holds",
        "20.0 GiB on GPU 0",
        "genv 4 holds 40.0 GiB in 2 processes: "
        "overshoot, 8.0 GiB over the 32.0 GiB that were declared (allowance 64 MiB)",
    )


def test_what_is_newer_than_the_snapshot_counts() -> None:
    """The dashboard's snapshot may have an older word of the process than what was read just now."""
    shown = snapshot([gpu(0, holdings=[holding(7, 40)])], [process(7)])
    found = explain_process(process(7, declared=Declared(declarations=(cap(),), limits=(limit(),))), shown)
    assert only(found, "holds").aside.startswith("overshoot, ")


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        (Declared(), "under no limit"),
        (Declared(knowledge=Knowledge.UNREADABLE), "not known to be under a limit"),
        (None, "not known to be under a limit"),
        (Declared(declarations=(cap(value=None, limits={}, undecided=True),)), "not known to be under a limit"),
    ],
)
def test_what_was_not_read_is_not_said_to_be_without_a_limit(declared: Declared | None, said: str) -> None:
    (found,) = (point for point in explain(declared, 1.0) if point.label == "holds")
    assert found.aside == said
