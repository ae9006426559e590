"""The memory bar and the sparkline, as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuwatch.model import Memory, Process, Reason
from gpuwatch.ui.graphs import Part, level, memory_bar, parts, sparkline
from gpuwatch.ui.theme import ASCII, PLAIN, UNICODE, Glyphs
from tests import builders
from tests.builders import GIB, RESERVED, TOTAL

USABLE = (TOTAL - RESERVED) / GIB
NAMES = st.text(st.sampled_from("ab日éz[/]"), min_size=1, max_size=12)


def drawn(held: list[Part], width: int, glyphs: Glyphs = UNICODE, unattributed_gib: float = 0.0) -> str:
    card = builders.gpu(0, unattributed=round(unattributed_gib * GIB))
    return "".join(piece.text for piece in memory_bar(card, held, width, glyphs))


def part(name: str, gib: float, uid: int | None = 1) -> Part:
    return Part(uid, name, round(gib * GIB))


@given(
    sizes=st.lists(st.tuples(NAMES, st.floats(0, 120)), max_size=30),
    width=st.integers(0, 200),
    unattributed=st.floats(0, 100),
    glyphs=st.sampled_from([UNICODE, PLAIN, ASCII]),
)
def test_a_bar_always_fills_its_width(
    sizes: list[tuple[str, float]], width: int, unattributed: float, glyphs: Glyphs
) -> None:
    held = sorted(
        (part(name, gib, uid) for uid, (name, gib) in enumerate(sizes)), key=lambda one: one.bytes, reverse=True
    )
    assert cell_len(drawn(held, width, glyphs, unattributed)) == width


@given(st.lists(st.floats(1.5, 30), min_size=1, max_size=8))
def test_every_owner_with_a_cell_has_a_name_or_an_initial(sizes: list[float]) -> None:
    names = "abcdefgh"
    fitting = [size * min(1.0, USABLE / sum(sizes)) for size in sizes]
    held = sorted((part(names[n], size, n) for n, size in enumerate(fitting)), key=lambda one: -one.bytes)
    large = {one.name for one in held if one.bytes >= USABLE * GIB / 60}
    assert large <= set(drawn(held, 60))


def test_an_owner_is_named_with_the_amount_or_the_name_or_the_initial() -> None:
    assert "ada 40.0" in drawn([part("ada", 40)], 40)
    assert "ada" in drawn([part("ada", 40)], 12)
    assert "40.0" not in drawn([part("ada", 40)], 12)
    assert drawn([part("ada", 40)], 4).startswith("▏a")


def test_a_long_name_keeps_its_beginning() -> None:
    assert "▏alex…" in drawn([part("alexandra.papadopoulou", 20.0)], 30)
    assert "▏a  ▏" in drawn([part("alexandra", 11.0)], 30)


def test_lengths_are_shares_of_what_processes_can_have() -> None:
    card = builders.gpu(0)
    pieces = memory_bar(card, [part("ada", USABLE / 2)], 40, UNICODE)
    owned = sum(len(piece.text) for piece in pieces if piece.kind in ("seam", "fill"))
    assert owned == 20
    assert pieces[-1].kind == "free"
    assert len(pieces[-1].text) == 20


def test_a_part_of_a_cell_is_drawn_in_eighths() -> None:
    pieces = memory_bar(builders.gpu(0), [part("ada", USABLE * 10.5 / 40)], 40, UNICODE)
    assert [piece.text for piece in pieces if piece.kind == "edge"] == ["▌"]


def test_the_unattributed_part_is_hatched() -> None:
    assert "░" * 10 in drawn([part("ada", USABLE / 4)], 40, unattributed_gib=USABLE / 4)
    assert "." * 10 in drawn([part("ada", USABLE / 4)], 40, ASCII, unattributed_gib=USABLE / 4)


def test_memory_that_the_driver_attributes_to_nobody_is_hatched_and_not_free() -> None:
    card = builders.gpu(0, used_gib=USABLE / 2, unattributed=Reason.DENIED)
    assert "".join(piece.text for piece in memory_bar(card, [], 20, UNICODE)) == "░" * 10 + " " * 10


def test_the_smallest_owners_are_merged() -> None:
    small = [part(f"u{n}", 0.5, n) for n in range(8)]
    assert "+8" in drawn([part("ada", 40, 99), *small], 60)


def test_without_a_total_there_is_no_bar_and_no_crash() -> None:
    card = builders.gpu(0, memory=Memory(total=Reason.UNSUPPORTED))
    assert "".join(piece.text for piece in memory_bar(card, [part("ada", 3)], 10, UNICODE)) == " " * 10


def test_ascii_is_ascii() -> None:
    assert drawn([part("ada", 40, 1), part("ben", 12.3, 2)], 40, ASCII, 3).isascii()


def test_parts_add_up_by_uid_and_put_the_unseen_together() -> None:
    held = [builders.holding(1, 4), builders.holding(2, 5), builders.holding(3, 1), builders.holding(4, 2)]
    unknown = builders.holding(5).__class__(pid=5, memory=Reason.UNSUPPORTED)
    owners: dict[int, Process] = {
        1: builders.process(1, "ada"),
        2: builders.process(2, "ben"),
        3: builders.process(3, "ben"),
    }
    found = [(one.name, round(one.bytes / GIB)) for one in parts([*held, unknown], owners)]
    assert found == [("ben", 6), ("ada", 4), ("?", 2)]


@pytest.mark.parametrize(("percent", "block"), [(0, "▁"), (0.4, "▁"), (1, "▂"), (50, "▅"), (99, "█"), (100, "█")])
def test_levels_are_on_a_fixed_scale(percent: float, block: str) -> None:
    assert level(percent, UNICODE) == block


def test_a_gap_is_not_zero() -> None:
    points = [None] * 20 + [0.0] * 20 + [100.0] * 20
    assert sparkline(points, 15, 59, UNICODE) == "     ▁▁▁▁▁█████"


def test_a_cell_once_drawn_only_moves() -> None:
    values = [float(n * 37 % 101) for n in range(90)]
    seen = {second: sparkline(values[second - 59 : second + 1], 15, second, UNICODE) for second in range(60, 90)}
    for second in range(60, 89):
        older, newer = seen[second], seen[second + 1]
        if (second + 1) % 4:
            assert newer[1:-1] == older[1:-1]
        else:
            assert newer[1:-2] == older[2:-1]


@given(st.lists(st.none() | st.floats(0, 100), min_size=60, max_size=60), st.integers(1, 60), st.integers(0, 10**6))
def test_a_sparkline_has_its_width(points: list[float | None], cells: int, second: int) -> None:
    assert len(sparkline(points, cells, second, UNICODE)) == cells
