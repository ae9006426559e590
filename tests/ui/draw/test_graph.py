"""Graphs: their size, gaps, legend, cursor and axes, with colours, without, and in ASCII."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.history.timeline import Extent
from gpuwatch.ui.draw.graph import (
    Curve,
    Graph,
    GraphLimit,
    Values,
    axis_top,
    draw_legend,
    draw_plot,
)
from gpuwatch.ui.draw.lines import Line, plain
from gpuwatch.ui.draw.theme import Style, StyleSet, make_styles
from gpuwatch.ui.draw.time_axis import AXIS, SPANS, STEPS, Mark, axis_end

END = 1_795_269_840.0
"""Saturday 21 November 2026, 14:04 UTC."""
STYLE_SETS = {
    "colours": make_styles("gpuwatch-dark"),
    "light": make_styles("gpuwatch-light"),
    "256": make_styles("gpuwatch-dark", colors=256),
    "16": make_styles("gpuwatch-dark", colors=16),
    "none": make_styles("gpuwatch-dark", colors=0),
    "ascii": make_styles("gpuwatch-dark", ascii_only=True),
    "plain ascii": make_styles("gpuwatch-dark", ascii_only=True, colors=0),
}


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have the clock times of the axis in UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    os.environ.pop("TZ", None)
    time.tzset()


def of(
    *values: Values,
    stacked: bool = False,
    styles: StyleSet = STYLE_SETS["colours"],
    top: float = 100.0,
    limits: tuple[GraphLimit, ...] = (),
    marks: tuple[Mark, ...] = (),
    **other: Any,
) -> Graph:
    """A graph of some curves, called a, b and so on."""
    styles.add_people({place: chr(97 + place) for place in range(len(values))})
    line = styles("note")
    curves = [
        Curve(f"{chr(97 + place)}da", one, styles.owner(place).fill if stacked else line, chr(97 + place), 7.0)
        for place, one in enumerate(values)
    ]
    return Graph("Memory", END, 600.0, curves, top, "GiB", stacked=stacked, limits=limits, marks=marks, **other)


def draw_graph(graph: Graph, styles: StyleSet, width: int, height: int, **other: Any) -> list[Line]:
    """The legend and the plot."""
    legend = draw_legend(graph, styles, width, cursor=other.get("cursor"))
    return [legend, *draw_plot(graph, styles, width, height - 1, **other)]


def text(lines: list[Line]) -> str:
    return "\n".join(plain(line) for line in lines)


def plot(lines: list[Line]) -> list[str]:
    """The lines between the legend and the time axis, without the value axis."""
    return [plain(line)[AXIS:] for line in lines[1:-1]]


def backgrounds(line: Line) -> list[str | None]:
    """The background of each cell."""
    return [span.style.background for span in line for _ in range(span.cells)]


numbers = st.none() | st.floats() | st.floats(0, 120)
series = st.lists(numbers, max_size=150)


@given(
    st.lists(series, min_size=1, max_size=5),
    st.sampled_from(["stacked", "filled", "line", "mirrored"]),
    st.integers(10, 400),
    st.integers(3, 60),
    st.sampled_from(list(STYLE_SETS)),
    st.floats(1e-6, 1e9) | st.just(100.0),
    st.floats(-1e12, 1e12) | st.just(END - 200),
    series,
)
@pytest.mark.uncounted
def test_every_graph_is_as_large_as_asked(
    values: list[list[float | None]],
    shape: str,
    width: int,
    height: int,
    name: str,
    top: float,
    cursor: float,
    limit: list[float | None],
) -> None:
    styles = STYLE_SETS[name]
    limits = (GraphLimit("limit", limit, styles("strong")), GraphLimit("max", 30.0, styles("muted")))
    marks = (Mark(cursor, "!", Style()), Mark(END - 10, "!", Style()))
    other: dict[str, Any] = {"filled": shape != "line"}
    if shape == "mirrored":
        other["down"] = of(values[-1], styles=styles, top=top)
    graph = of(*values, stacked=shape == "stacked", styles=styles, top=top, limits=limits, marks=marks, **other)
    lines = draw_graph(graph, styles, width, height, axis=height % 2 == 0, cursor=cursor)
    assert len(lines) == height
    assert [sum(span.cells for span in line) for line in lines] == [width] * height
    assert [len(plain(line)) for line in lines] == [width] * height
    assert text(lines).isascii() or not styles.glyphs.ascii


@given(
    st.lists(st.none() | st.floats(0, 100), min_size=1, max_size=60), st.booleans(), st.sampled_from(list(STYLE_SETS))
)
def test_gaps_stay_empty(values: list[float | None], stacked: bool, name: str) -> None:
    styles = STYLE_SETS[name]
    cells = 4 * len(values)
    lines = draw_graph(of(values, stacked=stacked, styles=styles), styles, cells + AXIS, 10)
    background = styles("text").background
    for line in lines[1:-1]:
        drawn, back = plain(line)[AXIS:], backgrounds(line)[AXIS:]
        for place, value in enumerate(values):
            if value is None:
                assert drawn[4 * place : 4 * place + 4].isspace()
                assert set(back[4 * place : 4 * place + 4]) == {background} or not stacked


def test_a_line_joins_its_values_and_stays_on_its_level() -> None:
    rows = plot(draw_graph(of([0.0] * 12 + [100.0] * 12, filled=False), STYLE_SETS["colours"], 12 + AXIS, 6))
    assert rows == ["      ⡏⠉⠉⠉⠉⠉", "      ⡇     ", "      ⡇     ", "⣀⣀⣀⣀⣀⣀⠇     "]


def test_areas_are_stacked_in_the_owners_colours() -> None:
    styles = STYLE_SETS["colours"]
    lines = draw_graph(of([25.0] * 24, [50.0] * 24, stacked=True), styles, 24 + AXIS, 6)
    fills = styles.palette.fills
    column = [backgrounds(line)[AXIS + 3] for line in lines[1:-1]]
    assert column == [styles.palette.base, *[styles.owner(1).fill.background] * 2, fills[0]]


def test_areas_without_colours_are_made_of_initials() -> None:
    styles = STYLE_SETS["none"]
    rows = plot(draw_graph(of([25.0] * 24, [50.0] * 24, stacked=True, styles=styles), styles, 24 + AXIS, 6))
    assert rows == [" " * 24, "b" * 24, "bbbbbbbb bda 7 bbbbbbbbb"[:24], "aaaaaaaa ada 7 aaaaaaaaa"[:24]]


@pytest.mark.parametrize("name", STYLE_SETS)
def test_a_limit_is_a_line_of_its_own_sign_with_and_without_colours(name: str) -> None:
    """On areas, on what is free above them, and across a curve on its level, where every fourth cell is the limit's."""
    styles = STYLE_SETS[name]
    sign = "-" if styles.glyphs.ascii else "╌"
    for limit, row in ((30.0, 2), (90.0, 0)):
        limits = (GraphLimit("limit", limit, styles("warning")),)
        graph = of([50.0] * 24, stacked=True, styles=styles, limits=limits)
        rows = plot(draw_graph(graph, styles, 24 + AXIS, 6))
        assert [sign * 24 in one for one in rows] == [at == row for at in range(4)]
    limits = (GraphLimit("limit", 90.0, styles("warning")),)
    rows = plot(draw_graph(of([10.0] * 24, styles=styles, limits=limits), styles, 24 + AXIS, 6))
    assert len(set(rows[0])) == 1
    assert rows[0][0] != " "
    if styles.glyphs.ascii:
        graph = of([90.0] * 24, styles=styles, limits=limits, filled=False)
        rows = plot(draw_graph(graph, styles, 24 + AXIS, 6))
        assert rows[0].count(sign) == 6


def test_filled_curves_stand_on_a_line_and_hang_from_it() -> None:
    """A value of 0 has its lowest dots, and a gap none; without braille there are blocks or ASCII."""
    values = [0.0, 50.0, 100.0, None]
    drawn = {}
    for name in ("colours", "16", "ascii"):
        styles = STYLE_SETS[name]
        graph = of([one for one in values for _ in range(8)], styles=styles)
        graph = msgspec.structs.replace(graph, down=msgspec.structs.replace(graph, top=200.0))
        lines = [draw_legend(graph, styles, 16 + AXIS), *draw_plot(graph, styles, 16 + AXIS, 4, axis=False)]
        drawn[name] = ["".join(plain(line)[AXIS::4]) for line in lines[1:]]
    assert drawn["colours"] == ["  ⣿ ", "⣀⣿⣿ ", "⠉⠛⣿ ", "    "]
    assert drawn["16"] == ["  █ ", "▁██ ", "▀▀█ ", "    "]
    assert drawn["ascii"] == ["  # ", "_## ", "''# ", "    "]


def test_an_area_has_its_owners_name_and_value_once_in_the_longest_form_that_fits() -> None:
    styles = STYLE_SETS["colours"]
    graph = of([50.0] * 24 + [None] * 12, stacked=True, limits=(GraphLimit("", 25.0, Style()),))
    graph = msgspec.structs.replace(graph, curves=[graph.curves[0]._replace(limit="31.6")])

    def names(cells: int, cursor: float | None = None) -> list[str]:
        rows = plot(draw_graph(graph, styles, cells + AXIS, 8, cursor=cursor))
        return [found[0].strip() for row in rows if (found := re.search(r"[a-z].*[a-z0-9]", row))]

    assert names(60) == ["ada 7 of 31.6 declared"]
    assert names(30) == ["ada 7"]
    assert names(30, END - 500.0) == ["ada 50"]
    assert names(12) == ["ada 7"]
    assert draw_plot(of([50.0] * 6 + [None] * 30, stacked=True), styles, 18 + AXIS, 8)[4][-1].text.isspace()


def test_the_legend_has_the_newest_values_and_those_of_the_cursor() -> None:
    graph = of([1.0] * 30 + [2.0] * 30, [5.0] * 60, stacked=True, whole=80.0)
    styles = STYLE_SETS["colours"]
    assert plain(draw_legend(graph, styles, 30)) == "╶ Memory ────────── 14 of 80 ╴"
    early, late = (plain(draw_legend(graph, styles, 66, cursor=END - back)) for back in (500.0, 100.0))
    assert " 13:55:40 · 6 of 80 · ada 1 · bda 5 ╴" in early
    assert "ada 2 · bda 5" in late


def test_the_legend_has_limits_and_extremes_where_there_is_room() -> None:
    graph = of([1.0] * 60, limits=(GraphLimit("limit", 120.0, Style()),))
    styles = STYLE_SETS["colours"]
    graph = msgspec.structs.replace(graph, curves=[graph.curves[0]._replace(extent=Extent(0.0, 1.0, 2.0, 3.0))])
    both = msgspec.structs.replace(graph, down=graph)

    def words(graph: Graph, width: int) -> str:
        return re.sub("[╶─╴]+ ?", "", plain(draw_legend(graph, styles, width))).strip()

    assert words(graph, 80) == "Memory 7 GiB · limit 120 · min 1 mean 2 max 3"
    assert words(graph, 40) == "Memory 7 GiB · limit 120"
    assert words(graph, 20) == "Memory 7 GiB"
    assert words(both, 80) == "Memory 7 GiB mean 2 · 7 GiB · limit 120 · min 1 mean 2 max 3"


@pytest.mark.parametrize(
    ("width", "span", "until", "named"),
    [
        (100, 86400.0, END, ["Fri 16:00", "Sat 00:00"]),
        (46, 86400.0, END, ["Fri 16:00", "Sat 00:00"]),
        (34, 86400.0, END - 12 * 3600, ["Fri 12:00", "Sat"]),  # narrow, soon after midnight
        (24, 86400.0, END - 12 * 3600, ["Sat 00:00"]),
        (100, 21600.0, END - 12 * 3600, ["Fri 21:00", "Sat 00:00"]),
        (100, 21600.0, END, []),
    ],
)
def test_an_axis_over_two_days_names_them(width: int, span: float, until: float, named: list[str]) -> None:
    graph = msgspec.structs.replace(of([1.0] * 60), span=span, until=axis_end(until, span))
    axis = plain(draw_graph(graph, STYLE_SETS["colours"], width, 9)[-1])
    assert re.findall(r"[A-Z][a-z]+(?: \d\d:\d\d)?", axis) == named


def test_the_cursor_in_a_gap_has_no_value() -> None:
    graph = of([1.0] * 30 + [None] * 30)
    assert plain(draw_graph(graph, STYLE_SETS["colours"], 66, 9, cursor=END - 100)[0]).rstrip().endswith("· — ╴")


def test_the_axes_have_round_values_and_clock_times() -> None:
    lines = [plain(line) for line in draw_graph(of([1.0] * 60), STYLE_SETS["colours"], 100 + AXIS, 12)]
    assert [line[:AXIS].strip(" ┤│└") for line in lines[1:]] == ["100", "", "", "", "", "50", "", "", "", "0", ""]
    assert "┴13:55" in lines[-1]
    assert "┴14:03" in lines[-1]


@pytest.mark.parametrize(("value", "top"), [(0.4, 1), (3, 3), (11, 12), (83, 90), (735, 800), (2619, 3000)])
@pytest.mark.parametrize("scale", [1.0, 2.0**30])
def test_a_value_axis_ends_at_a_round_value(value: float, top: float, scale: float) -> None:
    assert axis_top(value * scale, scale) == top * scale


def test_a_graph_without_values_says_why() -> None:
    styles = STYLE_SETS["none"]
    graph = msgspec.structs.replace(of([None] * 60, styles=styles), empty="no permission")
    assert "no permission" in text(draw_graph(graph, styles, 60, 6))
    assert "no permission" in text(draw_graph(graph, styles, 60, 6, cursor=END - 300))
    assert "no permission" not in text(
        draw_graph(msgspec.structs.replace(graph, curves=of([1.0]).curves), styles, 60, 6)
    )


def test_marks_stand_on_the_time_axis() -> None:
    graph = of([1.0] * 60, marks=(Mark(END - 300, "▲", Style()), Mark(END - 900, "●", Style())))
    axis = plain(draw_graph(graph, STYLE_SETS["colours"], 100 + AXIS, 12)[-1])
    assert axis[AXIS + 50] == "▲"
    assert "●" not in axis


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("now", [END - 1, END, END + 0.5, END + 3599])
def test_the_time_axis_ends_at_a_round_time_after_now(span: float, now: float) -> None:
    end = axis_end(now, span)
    assert now < end <= now + STEPS[span]
    assert end % STEPS[span] == 0
