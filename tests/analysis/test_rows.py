"""The process rows: joined, filtered, sorted, and steady while figures jitter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec import structs

from gpuwatch.analysis.rows import process_order, rows
from gpuwatch.model.fields import PROCESS, Row, share_words
from gpuwatch.model.snapshot import Declared, Knowledge, Memory, Presence, Process, Reason, Snapshot
from tests.support.builders import GIB, MIB, USABLE_GIB, declares, gpu, holding, process, snapshot

ADA, BEN, YOU = "ada", "ben", "you"


def machine() -> Snapshot:
    """Two GPUs, three people, a process on both, one that nobody can see."""
    return snapshot(
        [
            gpu(0, holdings=[holding(11, 40, sm=90), holding(12, 2, sm=0)]),
            gpu(1, holdings=[holding(11, 10, sm=80), holding(13, 12), holding(14, memory=Reason.UNSUPPORTED, sm=5)]),
        ],
        [
            process(11, ADA, command="/home/ada/env/bin/python train.py"),
            process(12, BEN, command="python serve.py"),
            process(13, YOU, command="python mine.py"),
            Process(pid=14, presence=Presence.GONE),
        ],
    )


def places(found: Sequence[Row]) -> list[tuple[int, int]]:
    """Give rows as (GPU, pid)."""
    return [(row.gpu.index, row.holding.pid) for row in found]


def test_every_holding_is_a_row_whatever_is_known_of_its_owner() -> None:
    found = rows(machine())
    assert places(found) == [(0, 11), (0, 12), (1, 11), (1, 13), (1, 14)]
    assert [row.holding.pid for row in found if row.mine] == [13], "mine goes by uid"
    unseen = found[-1]
    assert (unseen.owner, unseen.share) == ("?", None)
    assert "(ended: it still holds memory)" in unseen.command
    assert places(process_order().sort(found, "memory")) == [(0, 11), (1, 13), (1, 11), (0, 12), (1, 14)]
    assert places(process_order().sort(found, "memory", reverse=True)) == [(0, 12), (1, 11), (1, 13), (0, 11), (1, 14)]


@pytest.mark.parametrize("by", PROCESS)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_column_sorts_all_rows_and_what_is_missing_last(by: str, reverse: bool) -> None:
    found = process_order().sort(rows(machine()), by, reverse=reverse)
    assert sorted(places(found)) == places(rows(machine()))
    missing = [PROCESS[by].order(row)[0] for row in found]
    assert missing == sorted(missing)


def two(first: float, second: float) -> list[Row]:
    """Return two rows with so many GiB."""
    return rows(snapshot([gpu(0, holdings=[holding(1, first), holding(2, second)])]))


def test_a_figure_that_jitters_moves_no_row_until_another_column_is_sorted() -> None:
    order = process_order()
    assert places(order.sort(two(10.0, 9.9), "memory")) == [(0, 1), (0, 2)]
    assert places(order.sort(two(9.9, 10.3), "memory")) == [(0, 1), (0, 2)]
    assert places(order.sort(two(9.9, 11.5), "memory")) == [(0, 2), (0, 1)]
    order.sort(two(10.0, 9.9), "pid")
    assert places(order.sort(two(10.3, 9.9), "memory")) == [(0, 1), (0, 2)]


def test_the_share_is_of_what_the_gpu_can_give_as_declarations_are() -> None:
    (row,) = rows(snapshot([gpu(0, holdings=[holding(1, 10)])]))
    assert row.share == pytest.approx(100 * 10 / USABLE_GIB)


HELD = declares(0, 0.4 * USABLE_GIB * GIB)
SHARED = declares(0, 0.1 * USABLE_GIB * GIB, scope="genv 12")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (HELD, ("13", "40")),
        (declares(0, 9 * GIB), ("13", "11")),
        (declares(0, 10 * MIB), ("13", "<1")),
        (declares(0, 1.2 * USABLE_GIB * GIB), ("13", "120")),
        (declares(0, 0.4 * USABLE_GIB * GIB, scope="genv 12"), ("Σ13", "40")),
        (declares(1, 0.4 * USABLE_GIB * GIB), ("13", "·")),
        (Declared(), ("13", "·")),
        (Declared(knowledge=Knowledge.UNREADABLE), ("13", "")),
        (Declared(knowledge=Knowledge.PENDING), ("13", "")),
        (None, ("13", "")),
        (structs.replace(HELD, knowledge=Knowledge.UNREADABLE), ("13", "40")),
        (structs.replace(HELD, limits=(*SHARED.limits, *HELD.limits)), ("13", "40")),
    ],
)
def test_used_and_limit(declared: Declared | None, words: tuple[str, str]) -> None:
    card = gpu(0, holdings=[holding(1, 10)])
    without_total = structs.replace(card, memory=Memory(total=Reason.UNSUPPORTED))
    unknown = gpu(0, holdings=[holding(1, memory=Reason.UNSUPPORTED)])
    no_limit = words[1] if words[1] == "·" else ""
    without = "Σ" if words[0].startswith("Σ") else words[1]
    for one, expected in ((card, words), (without_total, ("—", no_limit)), (unknown, ("—", without))):
        (row,) = rows(snapshot([one], [process(1, declared=declared)]))
        assert share_words(row) == expected


def test_processes_under_one_limit_have_their_sum_once_beside_the_oldest() -> None:
    shared = declares(0, 0.4 * USABLE_GIB * GIB, scope="genv 12")
    people = [process(1, start=9, declared=shared), process(2, start=5, declared=shared)]
    found = rows(snapshot([gpu(0, holdings=[holding(1, 10, start=9), holding(2, 10, start=5)])], people))
    assert [share_words(row) for row in found] == [("13", "Σ"), ("Σ25", "40")]
