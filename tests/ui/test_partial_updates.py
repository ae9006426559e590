"""Only what changed is drawn and sent, and a terminal that reads it shows the same as one that reads all."""

from __future__ import annotations

import io
import re

import pyte
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from gpuwatch.ui.draw.lines import Line, LineBuilder, Span, changed, crop, plain
from gpuwatch.ui.draw.theme import Style, make_styles
from gpuwatch.ui.partial_updates import CellRun, PartialUpdate

STYLES = [Style(), Style(bold=True), Style(color="#ff0000"), Style(color="#ff0000", background="#000010", reverse=True)]
WORDS = st.text(st.sampled_from("ab 日é▁"), min_size=1, max_size=8)
SPANS = st.lists(st.tuples(WORDS, st.sampled_from(STYLES)), max_size=6)
WIDTH = 30


def line(spans: list[tuple[str, Style]]) -> Line:
    builder = LineBuilder(make_styles("gpuwatch-dark"))
    for text, style in spans:
        builder.write(text, style)
    return builder.build(WIDTH)


def cells(one: Line) -> list[tuple[str, Style]]:
    """Return what is in each cell; the second cell of a wide character holds nothing."""
    found: list[tuple[str, Style]] = []
    for text, style, _ in one:
        for char in text:
            width = cell_len(char)
            if width == 0 and found:
                found[-1] = (found[-1][0] + char, style)
            found += [(char, style)] * min(width, 1) + [("", style)] * (width - 1)
    return found


@given(SPANS, SPANS)
def test_whatever_differs_is_in_a_changed_run(old: list[tuple[str, Style]], new: list[tuple[str, Style]]) -> None:
    before, after = line(old), line(new)
    runs = changed(before, after)
    assert all(0 <= start < end <= WIDTH for start, end in runs)
    assert runs == sorted(runs)
    inside = {x for start, end in runs for x in range(start, end)}
    differing = {x for x, (one, two) in enumerate(zip(cells(before), cells(after), strict=True)) if one != two}
    assert differing <= inside


def test_only_the_digit_that_changed_is_a_run() -> None:
    base = Style()
    old = (Span("GPU 0   ", base, 8), Span(" 49.6", base, 5), Span(" " * 17, base, 17))
    new = (old[0], Span(" 49.7", base, 5), old[2])
    assert changed(old, new) == [(12, 13)]
    assert changed(old, old) == []


def test_only_the_cells_by_which_an_area_has_grown_are_a_run() -> None:
    area, base = Style(background="#00ff00"), Style()
    old = (Span(" " * 10, area, 10), Span(" " * 20, base, 20))
    assert changed(old, (Span(" " * 11, area, 11), Span("." + " " * 18, base, 19))) == [(10, 12)]
    assert changed(old, (Span(" " * 11, area, 11), Span(" " * 19, base, 19))) == [(10, 11)]


@given(SPANS, st.lists(st.tuples(st.integers(0, 29), st.integers(1, 30)), min_size=1, max_size=4))
def test_a_terminal_shows_the_changed_runs_and_nothing_else(
    spans: list[tuple[str, Style]], runs: list[tuple[int, int]]
) -> None:
    drawn = line([(text.encode("ascii", "replace").decode(), style) for text, style in spans])
    wanted = plain(drawn)
    spread = [(y, start, min(WIDTH, start + length)) for y, (start, length) in enumerate(runs)]
    update = PartialUpdate([CellRun(start, y, crop(drawn, start, end)) for y, start, end in spread])
    screen = pyte.Screen(WIDTH, len(runs))
    stream = pyte.Stream(screen)
    stream.feed(update.render_segments(Console(file=io.StringIO(), color_system="truecolor")))
    for y, start, end in spread:
        assert screen.display[y][start:end] == wanted[start:end]
        assert not screen.display[y][:start].strip()
        assert not screen.display[y][end:].strip()
    assert screen.cursor.attrs == screen.default_char


@given(st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=4))
def test_after_an_update_a_terminal_shows_what_it_would_if_all_were_sent(
    lines: list[tuple[list[tuple[str, Style]], list[tuple[str, Style]]]],
) -> None:
    def sent(runs: list[CellRun]) -> str:
        return PartialUpdate(runs).render_segments(Console(file=io.StringIO(), color_system="truecolor"))

    olds, news = (
        [line([(ascii_of(text), style) for text, style in each]) for each in part] for part in zip(*lines, strict=True)
    )
    screens = [pyte.Screen(WIDTH, len(lines)) for _ in range(2)]
    updated, whole = map(pyte.Stream, screens)
    updated.feed(sent([CellRun(0, y, old) for y, old in enumerate(olds)]))
    parts = [
        CellRun(start, y, crop(new, start, end))
        for y, (old, new) in enumerate(zip(olds, news, strict=True))
        for start, end in changed(old, new)
    ]
    updated.feed(sent(parts))
    whole.feed(sent([CellRun(0, y, new) for y, new in enumerate(news)]))
    for y in range(len(lines)):
        assert [screens[0].buffer[y][x] for x in range(WIDTH)] == [screens[1].buffer[y][x] for x in range(WIDTH)]


def test_each_style_is_set_once_an_update() -> None:
    strong, muted = Style("#ffffff", "#000000", bold=True), Style("#808080", "#000000")
    runs = [CellRun(0, y, (Span("1", strong, 1), Span("22", muted, 2))) for y in range(20)]
    sent = PartialUpdate(runs).render_segments(Console(file=io.StringIO(), color_system="truecolor"))
    assert len(re.findall(r"\x1b\[[0-9;]*m", sent)) == 3  # and the end


def ascii_of(text: str) -> str:
    return text.encode("ascii", "replace").decode()
