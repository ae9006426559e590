"""The process rows: joined, filtered, sorted, and steady while figures jitter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpuwatch.analysis.rows import process_order, rows, sort
from gpuwatch.fields import PROCESS, Row, share_words
from gpuwatch.filters import Filter, FilterError
from gpuwatch.model import Declared, Knowledge, Memory, Presence, Process, Reason, Snapshot
from tests.support.builders import GIB, MIB, TOTAL, gpu, holding, process, snapshot
from tests.support.declaring import declares

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


def filtered(text: str) -> list[tuple[int, int]]:
    """Return what a filter leaves of the machine."""
    wanted = Filter.parse(text)
    return places([row for row in rows(machine()) if wanted(row)])


def test_every_holding_is_a_row_whatever_is_known_of_its_owner() -> None:
    assert places(rows(machine())) == [(0, 11), (0, 12), (1, 11), (1, 13), (1, 14)]
    unseen = rows(machine())[-1]
    assert unseen.owner == "?"
    assert "dead process still holds memory" in unseen.command
    assert unseen.share is None


def test_mine_goes_by_uid_and_not_by_name() -> None:
    assert [row.holding.pid for row in rows(machine()) if row.mine] == [13]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("", [(0, 11), (0, 12), (1, 11), (1, 13), (1, 14)]),
        ("ada", [(0, 11), (1, 11)]),
        ("user:ADA gpu:1", [(1, 11)]),
        ("gpu:0,1 serve", [(0, 12)]),
        ("pid:13", [(1, 13)]),
        ("mine", [(1, 13)]),
        ("-user:ada -gpu:0", [(1, 13), (1, 14)]),
        ("!mine train", [(0, 11), (1, 11)]),
        ("gpu:", [(0, 11), (0, 12), (1, 11), (1, 13), (1, 14)]),
        ("-", [(0, 11), (0, 12), (1, 11), (1, 13), (1, 14)]),
        ("-user:", [(0, 11), (0, 12), (1, 11), (1, 13), (1, 14)]),
        ("GPU:1 !Pid:14", [(1, 11), (1, 13)]),
        ("nobody", []),
    ],
)
def test_filters(text: str, left: list[tuple[int, int]]) -> None:
    assert filtered(text) == left


def test_a_filter_that_is_none_says_what_is_allowed() -> None:
    with pytest.raises(FilterError, match="gpu:x is no number; try gpu:3 or gpu:0,2-4"):
        Filter.parse("gpu:x")


@given(st.text())
def test_any_text_is_a_filter_or_says_why_not(text: str) -> None:
    try:
        wanted = Filter.parse(text)
    except FilterError:
        return
    assert all(isinstance(wanted(row), bool) for row in rows(machine()))


@pytest.mark.parametrize("by", PROCESS)
@pytest.mark.parametrize("reverse", [False, True])
def test_every_column_sorts_all_rows_and_what_is_missing_last(by: str, reverse: bool) -> None:
    found = sort(rows(machine()), by, reverse=reverse)
    assert sorted(places(found)) == places(rows(machine()))
    missing = [PROCESS[by].order(row)[0] for row in found]
    assert missing == sorted(missing)


def test_the_greatest_holding_comes_first() -> None:
    assert places(sort(rows(machine()), "memory")) == [(0, 11), (1, 13), (1, 11), (0, 12), (1, 14)]
    assert places(sort(rows(machine()), "memory", reverse=True)) == [(0, 12), (1, 11), (1, 13), (0, 11), (1, 14)]


def two(first: float, second: float) -> list[Row]:
    """Return two rows with so many GiB."""
    return rows(snapshot([gpu(0, holdings=[holding(1, first), holding(2, second)])]))


def test_a_figure_that_jitters_moves_no_row() -> None:
    order = process_order()
    assert places(order.sort(two(10.0, 9.9), "memory")) == [(0, 1), (0, 2)]
    assert places(order.sort(two(9.9, 10.3), "memory")) == [(0, 1), (0, 2)]
    assert places(order.sort(two(9.9, 11.5), "memory")) == [(0, 2), (0, 1)]
    assert places(order.sort(two(10.2, 11.2), "memory")) == [(0, 2), (0, 1)]


def test_another_column_is_sorted_anew() -> None:
    order = process_order()
    order.sort(two(10.0, 9.9), "memory")
    order.sort(two(10.0, 9.9), "pid")
    assert places(order.sort(two(9.9, 10.3), "memory")) == [(0, 2), (0, 1)]


def test_the_share_is_of_all_the_memory_as_declarations_are() -> None:
    (row,) = rows(snapshot([gpu(0, holdings=[holding(1, 10)])]))
    assert row.share == pytest.approx(100 * 10 * GIB / TOTAL)


HELD = declares(0, 0.4 * TOTAL)
SHARED = declares(0, 0.1 * TOTAL, scope="genv 12")


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        (HELD, ("13", "40")),
        (declares(0, 9 * GIB), ("13", "11")),
        (declares(0, 10 * MIB), ("13", "<1")),
        (declares(0, 1.2 * TOTAL), ("13", "120")),
        (declares(0, 0.4 * TOTAL, scope="genv 12"), ("13", "40Σ")),
        (declares(1, 0.4 * TOTAL), ("13", "—")),
        (Declared(), ("13", "—")),
        (Declared(knowledge=Knowledge.UNREADABLE), ("13", "?")),
        (Declared(knowledge=Knowledge.PENDING), ("13", "?")),
        (None, ("13", "?")),
        (structs.replace(HELD, knowledge=Knowledge.UNREADABLE), ("13", "40")),
        (structs.replace(HELD, limits=(*SHARED.limits, *HELD.limits)), ("13", "40")),
    ],
)
def test_used_and_limit(declared: Declared | None, words: tuple[str, str]) -> None:
    card = gpu(0, holdings=[holding(1, 10)])
    without_total = structs.replace(card, memory=Memory(total=Reason.UNSUPPORTED))
    unknown = gpu(0, holdings=[holding(1, memory=Reason.UNSUPPORTED)])
    no_limit = words[1] if words[1] in "?—" else "?"
    for one, expected in ((card, words), (without_total, ("—", no_limit)), (unknown, ("—", words[1]))):
        (row,) = rows(snapshot([one], [process(1, declared=declared)]))
        assert share_words(row) == expected
