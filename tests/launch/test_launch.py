"""Choosing GPUs: what counts as room, who is promised what, and which variables tell it."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.base.units import parse_share
from gpuwatch.launch.environment import Allocation, VariableChange, changes
from gpuwatch.launch.placement import LEAST, Offer, Request, choose, find_offers, way_out
from gpuwatch.model.shares import RESERVATION_GRACE, Reservation
from gpuwatch.model.snapshot import (
    Basis,
    Declaration,
    Declared,
    Gpu,
    Health,
    Holding,
    Kind,
    Limit,
    Memory,
    Process,
    Reason,
    Snapshot,
)
from tests.support.builders import EPOCH, GIB, RESERVED, TOTAL, gpu, holding, process, snapshot, uid

USABLE = TOTAL - RESERVED
FEW = 20 * GIB


def room(shown: Snapshot, index: int = 0, *, memory: int = FEW, reserved: tuple[Reservation, ...] = ()) -> Offer:
    """Return the room on one GPU for somebody who wants so many bytes."""
    return find_offers(shown, Request(memory=memory), reserved)[index]


def free_gib(shown: Snapshot, **changes: object) -> float:
    """Return the GiB that are free on the first GPU."""
    return room(shown, **changes).left / GIB  # type: ignore[arg-type]


def reservation(pids: frozenset[int], owner: int, gpus: dict[str, int], *, age: float = 60.0) -> Reservation:
    """Return what was reserved so many seconds before the snapshot was taken."""
    return Reservation(pids, owner, gpus, made=EPOCH - age)


def limited(
    pid: int, card: Gpu, size: int, *, scope: str = "", basis: Basis = Basis.BYTES, user: str = "ada"
) -> Process:
    """Return a process that declared so many bytes on one GPU."""
    said = Declaration(channel="GPUWATCH_SHARE", kind=Kind.GRANT, basis=basis, scope=scope, effective=True)
    limit = Limit(gpu=card.uuid, bytes=size, declaration=0, scope=scope)
    return process(pid, user, declared=Declared(declarations=(said,), limits=(limit,)))


# -- room ------------------------------------------------------------------------------------------------------------


def reserved(*pids: int, index: int = 0, age: float = 60.0) -> Reservation:
    """Return a reservation of 30 GiB for these processes."""
    return reservation(frozenset(pids), 4242, {gpu(index).uuid: 30 * GIB}, age=age)


def limits(*pids: int, gib: int = 30, scope: str = "") -> list[Process]:
    """Return processes that declared so much on GPU 0."""
    return [limited(pid, gpu(0), gib * GIB, scope=scope) for pid in pids]


@pytest.mark.parametrize(
    ("card", "people", "reservations", "taken"),
    [
        ({}, [], [], 0),
        ({"used_gib": 50, "holdings": [holding(1, 40)]}, [], [], 50),  # what no process admits to is not free
        ({"holdings": [holding(1, 10)]}, limits(1), [], 30),  # a limit counts in full before it is held
        ({"holdings": [holding(1, 40)]}, limits(1), [], 40),
        ({"holdings": [holding(1, 5), holding(2, 5)]}, limits(1, 2, scope="genv 4"), [], 30),  # counts once
        ({}, [], [reserved(7, 8)], 30),
        ({"holdings": [holding(8, 10)]}, [], [reserved(7, 8)], 30),
        ({"holdings": [holding(8, 31)]}, [], [reserved(7, 8)], 31),
        ({"holdings": [holding(7, 2)]}, limits(7, gib=25), [reserved(7)], 30),  # of one program: not added
        ({}, [], [reserved(age=RESERVATION_GRACE - 1)], 30),
        ({}, [], [reserved(age=RESERVATION_GRACE)], 0),  # nothing comes of it
        ({"holdings_note": "no list"}, [], [reserved(age=9 * RESERVATION_GRACE)], 30),  # that cannot be told
        ({}, [], [reserved(7, index=1)], 0),
        ({"compute_mode": "exclusive process"}, [], [], 0),
    ],
)
def test_room_is_what_nobody_holds_and_nobody_was_promised(
    card: dict[str, Any], people: list[Process], reservations: list[Reservation], taken: int
) -> None:
    offer = room(snapshot([gpu(0, **card)], people), reserved=tuple(reservations))
    assert offer.left == pytest.approx(USABLE - taken * GIB)
    assert offer.why == ""


def test_a_limit_of_ones_own_inside_a_shared_one_is_not_added_to_it() -> None:
    card = gpu(0, holdings=[holding(1, 5), holding(2, 5)])
    both = limited(1, card, 30 * GIB, scope="genv 4")
    assert both.declared is not None
    own = Limit(gpu=card.uuid, bytes=20 * GIB, declaration=0)
    inner = process(1, declared=Declared(declarations=both.declared.declarations, limits=(own, *both.declared.limits)))
    shown = snapshot([card], [inner, limited(2, card, 30 * GIB, scope="genv 4")])
    assert room(shown).left == USABLE - 30 * GIB
    alone = snapshot([gpu(0, holdings=[holding(1, 5)])], [inner])
    assert room(alone).left == USABLE - 20 * GIB, "for the same processes the least counts"


def test_two_halves_are_a_whole() -> None:
    card = gpu(0, holdings=[holding(1, 1)])
    half = limited(1, card, USABLE // 2, basis=Basis.TOTAL)
    (offer,) = find_offers(snapshot([card], [half]), Request(share=0.5))
    assert offer.why == ""


def test_a_reservation_of_which_something_came_stays() -> None:
    old = reservation(
        frozenset({7}), uid("ben"), {gpu(0).uuid: 30 * GIB, gpu(1).uuid: 30 * GIB}, age=9 * RESERVATION_GRACE
    )
    shown = snapshot([gpu(0, holdings=[holding(7, 1)]), gpu(1)])
    assert free_gib(shown, reserved=(old,)) == pytest.approx(USABLE / GIB - 30)
    assert room(shown, 1, reserved=(old,)).left == USABLE, "and lapses on a GPU of which nothing came"


def test_neither_a_reservation_nor_a_limit_counts_for_more_than_the_gpu_can_give() -> None:
    card = gpu(0)
    many = tuple(reservation(frozenset(), 4242, {card.uuid: 1 << 50}) for _ in range(3))
    assert room(snapshot([card]), reserved=many).promised == USABLE
    held = gpu(0, holdings=[holding(1, 1)])
    assert room(snapshot([held], [limited(1, held, 1 << 50)])).promised == USABLE - GIB


def test_reservations_can_be_ignored_and_limits_cannot() -> None:
    card = gpu(0, holdings=[holding(1, 10)], compute_mode="exclusive process")
    free = gpu(1, compute_mode="exclusive process")
    mine = reservation(frozenset(), 4242, {card.uuid: 5 * GIB, free.uuid: 5 * GIB})
    shown = snapshot([card, free], [limited(1, card, 30 * GIB)])
    first, second = find_offers(shown, Request(memory=FEW), [mine], ignore=True)
    assert first.promised == 20 * GIB
    assert [(one.user, one.bytes) for one in first.ignored] == [("uid 4242", 5 * GIB)]
    assert (second.why, second.left) == ("", USABLE), "that nobody holds an exclusive GPU is enough then"
    assert "uid 4242 uses it" in find_offers(shown, Request(memory=FEW), [mine])[1].why


def test_room_is_never_negative() -> None:
    card = gpu(0, holdings=[holding(1, 1), holding(2, 1)])
    people = [limited(pid, card, 70 * GIB) for pid in (1, 2)]
    assert room(snapshot([card], people)).left == 0


def test_a_reason_names_who_is_in_the_way() -> None:
    card = gpu(
        0,
        used_gib=77.05,
        holdings=[holding(1, 49.65), holding(2, 24), holding(3, 0.5), holding(4, 0.5), holding(5, 0.25)],
    )
    people = [process(1), process(2, "ben"), process(3, "cyn"), process(4, "dov"), limited(5, card, GIB, user="eve")]
    mine = reservation(frozenset({99}), 4242, {card.uuid: GIB})
    assert room(snapshot([card], people), reserved=(mine,)).why == (
        "0.3 GiB left, 20.0 wanted: 2.1 GiB free, 1.8 promised; held by ada 49.7, ben 24.0, cyn 0.5, 2 others 0.8; "
        "promised to uid 4242 1.0, eve 0.8; 2.1 of unknown processes"
    )


def test_what_is_just_too_little_does_not_look_like_enough() -> None:
    card = gpu(0, used_gib=USABLE / GIB - 19.99)
    assert room(snapshot([card])).why.startswith("19.9 GiB free, 20.0 wanted")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"health": Health.LOST, "words": "off the bus"}, "lost: off the bus"),
        ({"health": Health.QUARANTINED}, "quarantined"),
        ({"mig": True}, "MIG"),
        ({"memory": Memory(total=TOTAL)}, "cannot be read"),
        ({"memory": Memory(total=Reason.ERROR, used=0, free=GIB)}, "cannot be read"),
        ({"compute_mode": "prohibited"}, "prohibited"),
        ({"compute_mode": "exclusive process", "holdings": [holding(1, 1)]}, "exclusive process"),
    ],
)
def test_a_gpu_that_nobody_can_start_on_is_never_offered(changes: dict[str, Any], said: str) -> None:
    offer = room(snapshot([gpu(0, **changes)]), memory=1)
    assert said in offer.why
    assert choose([offer], 1) == []


def test_an_exclusive_gpu_is_taken_as_soon_as_it_is_reserved() -> None:
    mine = reservation(frozenset({7}), uid("ben"), {gpu(0).uuid: GIB})
    for card, free in ((gpu(0, compute_mode="exclusive process"), False), (gpu(0), True)):
        assert (room(snapshot([card]), reserved=(mine,)).why == "") is free


@pytest.mark.parametrize("held", [holding(1, 1), holding(2, 1, kind="M+C")])
def test_an_exclusive_gpu_of_the_mps_server_takes_many(held: Holding) -> None:
    """The one process is the server, and the mode does not restrict its clients."""
    card = gpu(0, compute_mode="exclusive process", holdings=[held])
    server = process(1, "root", name="nvidia-cuda-mps-server")
    assert room(snapshot([card], [server])).why == ""


def test_a_busy_gpu_is_passed_over_where_that_is_asked_for() -> None:
    cards = [gpu(0, utilization=80), gpu(1, utilization=20), gpu(2, utilization=Reason.NO_SAMPLE)]
    offers = find_offers(snapshot(cards), Request(share=0.4, busy=20))
    assert [offer.why for offer in offers] == ["80 % busy, 20 % allowed", "", "its utilization is not known"]


def test_an_empty_gpu_has_no_program_that_computes_and_nothing_that_is_promised() -> None:
    cards = [
        gpu(0),
        gpu(1, holdings=[holding(1, 1)]),
        gpu(2, holdings=[holding(2, 1, kind="G")]),
        gpu(3, holdings=[holding(3, 1, kind="M+C")]),
        gpu(4),
        gpu(5, unattributed=2 * GIB),
        gpu(6, holdings_note="NVML lists none in this container"),
        gpu(7, utilization=100),
        gpu(8, utilization=100, persistence=False),  # our own look may have woken it
    ]
    promised = (reservation(frozenset({7}), uid("ben"), {cards[4].uuid: GIB}),)
    offers = find_offers(snapshot(cards, [process(1, "ada")]), Request(empty=True), promised)
    assert [bool(offer.why) for offer in offers] == [False, True, False, True, True, True, True, True, False]
    assert "held by ada 1.0" in offers[1].why
    assert "promised to uid" in offers[4].why
    assert "NVML lists none in this container" in offers[6].why
    assert "100 % busy" in offers[7].why
    assert offers[0].wanted == offers[0].left > 0, "without a size it is all of the memory"
    half = find_offers(snapshot(cards), Request(share=0.5, empty=True))[0]
    assert (half.why, half.wanted) == ("", USABLE // 2)


def test_the_way_out_is_what_all_of_the_wanted_gpus_have_left() -> None:
    cards = [gpu(0, used_gib=40.05), gpu(1, used_gib=60), gpu(2, used_gib=78.5), gpu(3, health=Health.LOST)]
    offers = find_offers(snapshot(cards), Request(memory=LEAST))
    assert way_out(offers, 1) == "GPU 0 has 39.0 GiB left: try `--memory 39GiB` or `--share 0.4`"
    assert way_out(offers, 2) == "GPUs 0-1 have 19.1 GiB left or more: try `--memory 19GiB` or `--share 0.2`"
    assert way_out(offers, 3) == ""
    few = find_offers(snapshot([gpu(0, used_gib=75)]), Request(memory=LEAST))
    assert way_out(few, 1) == "GPU 0 has 4.1 GiB left: try `--memory 4GiB`"
    for words in ({"memory": 39 * GIB}, {"share": 0.4}):
        assert find_offers(snapshot(cards), Request(**words))[0].why == "", "what is named fits"


def test_who_is_in_the_way_is_named_and_what_can_never_fit_is_known() -> None:
    cards = [gpu(0, holdings=[holding(1, 1), holding(2, 1, kind="G")]), gpu(1), gpu(2, mig=True)]
    promised = (reservation(frozenset(), 4242, {cards[0].uuid: GIB}),)
    people = [process(1, "ada"), process(2, "ben")]
    offers = find_offers(snapshot(cards, people), Request(empty=True), promised)
    assert [(offer.holders, offer.hopeless) for offer in offers] == [
        (["ada", "uid 4242"], False),
        ([], False),
        ([], True),
    ]
    assert all(offer.hopeless for offer in find_offers(snapshot(cards), Request(memory=USABLE + 1)))


def test_what_is_hidden_is_said_before_anything_else() -> None:
    card = gpu(0, mig=True)
    (offer,) = find_offers(snapshot([card]), Request(memory=1), hidden={card.key: "hidden from you"})
    assert offer.why == "hidden from you"


def test_a_gpu_whose_sensors_fail_comes_last() -> None:
    failing: tuple[dict[str, Any], ...] = tuple({name: Reason.ERROR} for name in ("power", "temperature", "sm_clock"))
    for figures in failing:
        seen = snapshot([gpu(0, used_gib=0, **figures), gpu(1, used_gib=70)])
        assert [one.gpu.index for one in choose(find_offers(seen, Request(memory=GIB)), 2)] == [1, 0]


def test_the_most_room_comes_first_then_the_less_busy_then_the_lower_index() -> None:
    cards = [
        gpu(0, used_gib=10),
        gpu(1, used_gib=5, utilization=90),
        gpu(2, used_gib=5, utilization=10),
        gpu(3, used_gib=5, utilization=10),
        gpu(4, used_gib=5, utilization=Reason.NO_SAMPLE),
        gpu(5, used_gib=70),
        gpu(6, utilization=100),  # by whom, nobody knows
    ]
    cards[1:3] = [msgspec.structs.replace(one, holdings=(holding(9),)) for one in cards[1:3]]
    chosen = choose(find_offers(snapshot(cards), Request(memory=FEW)), 9)
    assert [one.gpu.index for one in chosen] == [2, 3, 1, 4, 0, 6]
    assert len(choose(chosen, 2)) == 2


# -- the environment -------------------------------------------------------------------------------------------------

UUID = "GPU-aaaa0001"


def allocation(share: float | None = 0.4, memory: int = FEW, wholes: tuple[int, ...] = (USABLE,)) -> Allocation:
    amounts = [memory if share is None else int(share * whole) for whole in wholes]
    return Allocation([f"{UUID}{place}" for place in range(len(wholes))], amounts, wholes, share)


def told(
    environ: dict[str, str] | None = None, one: Allocation | None = None, *, torch: str = ""
) -> dict[str, VariableChange]:
    no_daemon = {"CUDA_MPS_PIPE_DIRECTORY": "/nowhere"}
    found = list(changes(one or allocation(), no_daemon | (environ or {}), torch=torch))
    assert len({change.name for change in found}) == len(found)
    return {change.name: change for change in found}


def values(
    environ: dict[str, str] | None = None, one: Allocation | None = None, *, torch: str = ""
) -> dict[str, str | None]:
    return {name: change.value for name, change in told(environ, one, torch=torch).items()}


def test_a_share_is_told_to_every_framework() -> None:
    assert values() == {
        "CUDA_VISIBLE_DEVICES": f"{UUID}0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "GPUWATCH_SHARE": "0.4",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.4",
        "PYTORCH_CUDA_ALLOC_CONF": "per_process_memory_fraction:0.4",
        "CUPY_GPU_MEMORY_LIMIT": "40%",
        "FLAGS_gpu_memory_limit_mb": "32400",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def test_bytes_are_told_as_bytes_where_that_can_be_and_else_as_no_more_than_them() -> None:
    found = values(one=allocation(None))
    assert found["GPUWATCH_SHARE"] == "20480MiB"
    assert found["CUPY_GPU_MEMORY_LIMIT"] == str(FEW)
    assert found["FLAGS_gpu_memory_limit_mb"] == "20480"
    fraction = float(found["XLA_PYTHON_CLIENT_MEM_FRACTION"] or 0)
    assert FEW - USABLE / 10_000 < fraction * USABLE <= FEW


@given(st.integers(1, 1 << 40), st.lists(st.integers(1 << 28, 1 << 38), min_size=1, max_size=4))
def test_no_gpu_is_given_more_than_was_asked_for_whatever_their_sizes(memory: int, wholes: list[int]) -> None:
    one = allocation(None, min(memory, *wholes), tuple(wholes))
    assert one.fraction == pytest.approx(1e-4) or all(
        one.fraction * whole <= one.bytes * (1 + 1e-9) for whole in wholes
    )
    assert 0 < one.fraction <= 1


def test_bytes_that_are_no_whole_mib_are_told_exactly() -> None:
    assert values(one=allocation(None, FEW + 1))["GPUWATCH_SHARE"] == f"{FEW + 1}B"


@pytest.mark.parametrize(
    ("name", "before", "after", "said"),
    [
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.9", "0.4", "was 0.9, which is more"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", ".3", None, "left at .3"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "a lot", None, "left at a lot, which is not a number"),
        ("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.4", "0.4", "JAX"),
        ("XLA_CLIENT_MEM_FRACTION", "0.9", "0.4", "was 0.9"),
        ("XLA_CLIENT_MEM_FRACTION", "0.3", None, "left at 0.3"),
        ("CUPY_GPU_MEMORY_LIMIT", "30%", None, "left at 30%"),
        ("CUPY_GPU_MEMORY_LIMIT", "1073741824", None, "left at"),
        ("CUPY_GPU_MEMORY_LIMIT", "90%", "40%", "was 90%"),
        ("CUPY_GPU_MEMORY_LIMIT", "0", "40%", "was 0"),
        ("FLAGS_gpu_memory_limit_mb", "1024", None, "left at 1024"),
        ("FLAGS_gpu_memory_limit_mb", "0", "32400", "was 0"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "false", None, "left at false"),
        ("TF_FORCE_GPU_ALLOW_GROWTH", "1", None, "left at 1; TensorFlow accepts only true and false"),
        ("CUDA_VISIBLE_DEVICES", "7", f"{UUID}0", "was 7"),
        ("CUDA_DEVICE_ORDER", "FASTEST_FIRST", "PCI_BUS_ID", "was FASTEST_FIRST"),
        ("GPUWATCH_SHARE", "0.1\x1b[2J", "0.4", "was 0.1\ufffd[2J"),
    ],
)
def test_what_the_user_set_stays_unless_it_asks_for_more(name: str, before: str, after: str | None, said: str) -> None:
    change = told({name: before})[name]
    assert change.value == after
    assert said in change.note


def test_jax_is_never_given_both_of_its_names() -> None:
    """jax ends with a ValueError where both are set."""
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in values({"XLA_CLIENT_MEM_FRACTION": "0.9"})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "platform", "JAX; the platform allocator ignores it"),
        ("TF_GPU_ALLOCATOR", "cuda_malloc_async", "JAX; TF_GPU_ALLOCATOR=cuda_malloc_async ignores it"),
        ("XLA_PYTHON_CLIENT_ALLOCATOR", "bfc", "JAX"),
    ],
)
def test_a_share_that_another_variable_makes_void_is_not_told_as_if_it_held(name: str, value: str, said: str) -> None:
    assert told({name: value})["XLA_PYTHON_CLIENT_MEM_FRACTION"].note == said


@pytest.mark.parametrize(
    ("share", "said"), [(1e-5, "0.00001"), (1e-9, "0.000000001"), (1 / 3, "0.333333333"), (1, "1")]
)
def test_a_share_is_written_as_it_can_be_read_again(share: float, said: str) -> None:
    found = values(one=allocation(share))
    assert found["GPUWATCH_SHARE"] == found["XLA_PYTHON_CLIENT_MEM_FRACTION"] == said
    assert parse_share(said) == pytest.approx(share)


KEY = "per_process_memory_fraction"
CUDA, ANY = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"


@pytest.mark.parametrize(
    ("environ", "name", "after"),
    [
        (
            {CUDA: "max_split_size_mb:64, rounds:[256:1,512:2]"},
            CUDA,
            f"max_split_size_mb:64,rounds:[256:1,512:2],{KEY}:0.4",
        ),
        ({ANY: "backend:cudaMallocAsync"}, ANY, f"backend:cudaMallocAsync,{KEY}:0.4"),
        ({CUDA: f"{KEY} : 0.9"}, CUDA, f"{KEY}:0.4"),
        ({CUDA: f"{KEY}:0.3"}, CUDA, None),
        ({ANY: "a:1", CUDA: "b:2"}, CUDA, f"b:2,{KEY}:0.4"),
    ],
)
def test_pytorch_keeps_its_other_settings(environ: dict[str, str], name: str, after: str | None) -> None:
    found = values(environ)
    assert found[name] == after
    assert sum(key.startswith("PYTORCH") for key in found) == 1


def test_a_pytorch_that_would_not_understand_is_left_alone() -> None:
    change = told(torch="it is older than 2.10")["PYTORCH_CUDA_ALLOC_CONF"]
    assert change == ("PYTORCH_CUDA_ALLOC_CONF", None, "no limit for PyTorch: it is older than 2.10")


def test_mps_is_told_only_where_a_daemon_listens(tmp_path: Path) -> None:
    name = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
    where = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path)}
    two = allocation(wholes=(USABLE, USABLE // 2))
    assert name not in values(where, two)
    (tmp_path / "control").write_text("no daemon makes a plain file")
    assert name not in values(where, two)
    (tmp_path / "control").unlink()
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(str(tmp_path / "control"))
        assert values(where, two)[name] == "0=32400M,1=16200M"
        for less in ("0=1G", f"''{UUID}0=1G,1=90G,junk,1=0G''"):
            change = told(where | {name: less}, two)[name]
            assert change.value == "0=1024M,1=16200M", "who asked for less keeps that"
            assert "was " in change.note
