"""The memory bar and the sparkline, as text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from gpuwatch.model.snapshot import Reason
from gpuwatch.ui.draw.gpus import BarPart, BarSegment, memory_bar, sparkline
from gpuwatch.ui.draw.theme import ASCII, PLAIN, UNICODE, Glyphs, make_styles
from tests.support import builders
from tests.support.builders import GIB, RESERVED, TOTAL

USABLE = (TOTAL - RESERVED) / GIB
NAMES = st.text(st.sampled_from("ab日éz[/]"), min_size=1, max_size=12)


def drawn(held: list[BarPart], width: int, glyphs: Glyphs = UNICODE, unattributed_gib: float = 0.0) -> str:
    card = builders.gpu(0, unattributed=round(unattributed_gib * GIB))
    return "".join(piece.text for piece in memory_bar(card, held, width, glyphs))


def part(name: str, gib: float, uid: int | None = 1, declared: float | None = None) -> BarPart:
    return BarPart(uid, name, round(gib * GIB), None if declared is None else round(declared * GIB))


def cells(held: list[BarPart], width: int, glyphs: Glyphs = UNICODE) -> list[BarSegment]:
    """Return a bar cell by cell; all names are of letters that take one."""
    pieces = memory_bar(builders.gpu(0, unattributed=0), held, width, glyphs)
    return [piece._replace(text=letter) for piece in pieces for letter in piece.text]


def marks(held: list[BarPart], width: int) -> list[int]:
    return [at for at, cell in enumerate(cells(held, width)) if cell.kind == "mark"]


@given(
    sizes=st.lists(st.tuples(NAMES, st.floats(0, 120), st.none() | st.floats(0, 120)), max_size=30),
    width=st.integers(0, 200),
    unattributed=st.floats(0, 100),
    glyphs=st.sampled_from([UNICODE, PLAIN, ASCII]),
)
def test_a_bar_always_fills_its_width(
    sizes: list[tuple[str, float, float | None]], width: int, unattributed: float, glyphs: Glyphs
) -> None:
    made = (part(name, gib, uid, declared) for uid, (name, gib, declared) in enumerate(sizes))
    held = sorted(made, key=lambda one: one.bytes, reverse=True)
    assert cell_len(drawn(held, width, glyphs, unattributed)) == width


CELL = USABLE / 40
"""GiB of one cell of a bar of 40."""


@pytest.mark.parametrize(
    ("held", "width", "beginning"),
    [
        ([part("ada", 40)], 40, "▏ada 40.0  "),
        ([part("ada", 40)], 12, "▏ada  "),
        ([part("ada", 40)], 4, "▏a"),
        ([part("alexandra.papadopoulou", 20.0)], 30, "▏alex…"),
        ([part("alexandra", 11.0), part("ben", 10)], 30, "▏a  ▏"),
        ([part("ada", 20 * CELL)], 40, "▏ada 39.6 "),
        ([part("ada", 10.5 * CELL)], 40, "▏ada 20.8 ▌"),
        ([part("ada", 2 * CELL, declared=CELL)], 40, "a┃"),
        ([part("ada", 68), part("ben", 40, 2, declared=1)], 2, "▏a"),
        ([part("ada", 40, declared=5)], 40, "▏ ┃ada 40.0 "),
        ([part("ada", 16, declared=11)], 40, "▏ada ┃  "),
        ([part("ada", 4, declared=0.1), part("ben", 36, 2)], 40, "a┃▏ben 36.0"),
        ([part("ada", 40, 99), *(part(f"u{n}", 0.5, n) for n in range(8))], 60, "▏ada 40.0" + " " * 21 + "▏+8"),
    ],
)
def test_a_part_has_the_longest_label_that_fits(held: list[BarPart], width: int, beginning: str) -> None:
    assert drawn(held, width).startswith(beginning)


def test_memory_of_unknown_processes_is_hatched_and_not_free() -> None:
    assert drawn([part("ada", 10 * CELL)], 40, unattributed_gib=10 * CELL)[10:] == "░" * 10 + " " * 20
    assert "." * 10 in drawn([part("ada", 10 * CELL)], 40, ASCII, unattributed_gib=10 * CELL)
    card = builders.gpu(0, used_gib=USABLE / 2, unattributed=Reason.DENIED)
    assert "".join(piece.text for piece in memory_bar(card, [], 20, UNICODE)) == "░" * 10 + " " * 10


@pytest.mark.parametrize(
    ("held", "places"),
    [
        ([part("ada", 20 * CELL, declared=10 * CELL)], [9]),
        ([part("ada", 20 * CELL, declared=20 * CELL)], [19]),
        ([part("ada", 20 * CELL, declared=30 * CELL)], []),  # the rest is promised
        ([part("ada", 40)], []),
        # None stands on the line that its own part begins with.
        ([part("ada", 40, 1), part("ben", 30, 2, declared=0.1)], [21]),
    ],
)
def test_a_mark_stands_where_the_part_of_who_holds_more_would_end(held: list[BarPart], places: list[int]) -> None:
    assert marks(held, 40) == places


@pytest.mark.parametrize("glyphs", [UNICODE, PLAIN, ASCII], ids=["unicode", "few colours", "ascii"])
def test_the_mark_of_a_limit_is_seen_without_colours(glyphs: Glyphs) -> None:
    """Its sign is no part of the bar otherwise, and it is the only cell of the bar that is bold without colours."""
    held = [part("ada", 20 * CELL, declared=10 * CELL), part("ben", 10 * CELL, 2)]
    bar, without = drawn(held, 40, glyphs, 5 * CELL), drawn([part("ada", 20 * CELL), held[1]], 40, glyphs, 5 * CELL)
    assert bar[9] == glyphs.declared != " "
    assert (bar.count(glyphs.declared), glyphs.declared in without) == (1, False)
    fill, seam, edge, mark, _ = make_styles("gpuwatch-dark", colors=0).owner(1)
    assert mark.bold
    assert not any(style.bold for style in (fill, seam, edge))


def test_a_gap_is_not_zero() -> None:
    points = [None] * 20 + [0.0] * 20 + [100.0] * 20
    assert sparkline(points, 15, 59, UNICODE) == "     ▁▁▁▁▁█████"
