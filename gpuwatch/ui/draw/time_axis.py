"""Time axis of graphs: its steps, its clock times, the marks of events on it, and the strip of the last day."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import ceil, floor
from typing import Final, NamedTuple

from gpuwatch.history.timeline import DAY
from gpuwatch.ui.draw.lines import Line, LineBuilder, Span
from gpuwatch.ui.draw.theme import Style, StyleSet
from gpuwatch.ui.draw.view import day_time

STEPS: Final = {60.0: 10.0, 600.0: 60.0, 3600.0: 300.0, 21600.0: 1800.0, 86400.0: 7200.0}
"""Spans of time in seconds, each with the step by which its time axis moves: a move redraws and sends all cells."""
SPANS: Final = {60.0: "1 min", 600.0: "10 min", 3600.0: "1 h", 21600.0: "6 h", 86400.0: "24 h"}

AXIS: Final = 6
"""Cells of the value axis at the left."""


class Mark(NamedTuple):
    """Event on the time axis."""

    at: float
    text: str
    """One cell."""
    style: Style


class Piece(NamedTuple):
    """Cell of a plot."""

    char: str
    style: Style


def axis_end(now: float, span: float) -> float:
    """Return the wall-clock time at which a time axis ends: a round time of the local clock, after `now`."""
    step = STEPS[span]
    offset = time.localtime(now).tm_gmtoff
    return (floor((now + offset) / step) + 1) * step - offset


def plot_cells(width: int) -> int:
    """Return the cells of a plot in a graph of `width` cells."""
    return max(0, width - AXIS)


def column_of(at: float, until: float, span: float, cells: int) -> int | None:
    """Return the column that has a time, of some `cells` that end at `until`; None where none has it."""
    place = floor((at - until + span) / span * cells)
    return place if 0 <= place < cells else None


def draw_axis(
    until: float, span: float, styles: StyleSet, width: int, marks: Sequence[Mark] = (), cursor: int | None = None
) -> Line:
    """Draw a time axis: clock times at round times, and marks and the column of a cursor in place of the line."""
    ascii_only = styles.glyphs.ascii
    bar, tick, corner = ("-", "+", "+") if ascii_only else ("─", "┴", "└")
    form = "%H:%M:%S" if span <= 60 else "%H:%M"
    start, cells = until - span, plot_cells(width)
    dated = time.localtime(start)[:3] != time.localtime(until - 1)[:3]
    label_cells = len(time.strftime(form, time.localtime(until))) + 3 + 4 * dated
    step = STEPS[span]
    interval = next((step * many for many in (1, 2, 3, 4, 6, 12) if cells * step * many / span >= label_cells), span)
    pieces = [Piece(bar, styles("faint"))] * cells
    offset = time.localtime(until).tm_gmtoff
    at = ceil((start + offset) / interval) * interval - offset
    before = 0.0
    marked = {column_of(mark.at, until, span, cells): Piece(mark.text, mark.style) for mark in marks}
    while at < until:
        place = floor((at - start) / span * cells)
        # The first label, and the first of each day, name the day: where there is no room, at the left or only the day.
        hour = time.strftime(form, time.localtime(at))
        day = day_time(at, before, form) if dated else hour
        short = day.removesuffix(f" {hour}") if hour.startswith("00:00") else day
        for label in (tick + day, f"{day}{tick}", *[tick + short, f"{short}{tick}"] * (day != hour)):
            first = place - label.index(tick)
            where = range(first, first + len(label))
            if all(0 <= x < cells and pieces[x].char == bar and (x == place or x not in marked) for x in where):
                pieces[first : where.stop] = [Piece(one, styles("faint" if one == tick else "muted")) for one in label]
                before = at
                break
        at += interval
    for column, piece in marked.items():
        if column is not None:
            pieces[column] = piece
    if cursor is not None:
        pieces[cursor] = Piece(styles.glyphs.up, styles("note"))
    builder = LineBuilder(styles).gap(AXIS - 1).write(corner, "faint")
    return builder.write_spans(join_pieces(pieces)).build(width)


def draw_strip(
    values: Sequence[float | None], until: float, window: tuple[float, float], styles: StyleSet, *, times: bool
) -> list[Line]:
    """Draw parts of 1 over the day that ends at `until`, one in a cell, with the window of the graphs in it.

    A line of clock times is below it where `times` is set. It is a cell wider than a plot of as many values.
    """
    ascii_only, levels, cells = styles.glyphs.ascii, styles.glyphs.levels, len(values)
    highest = len(levels) - 1
    pieces = [
        Piece(" " if one is None else levels[min(highest, int(one * len(levels)))], styles("muted")) for one in values
    ]
    pieces.append(Piece(" ", styles("text")))
    first, last = (min(max(0, floor((at - until + DAY) / DAY * cells)), cells - 1) for at in window)
    inside, edge = styles("strong", "cursor"), styles("note")
    pieces[first : last + 1] = [piece._replace(style=inside) for piece in pieces[first : last + 1]]
    if first > 0:
        pieces[first - 1] = Piece("[" if ascii_only else "▐", edge)
    pieces[last + 1] = Piece("]" if ascii_only else "▌", edge)
    builder = (
        LineBuilder(styles).write("24 h", "muted", AXIS - 1, right=True).write("|" if ascii_only else "▕", "faint")
    )
    lines = [builder.write_spans(join_pieces(pieces)).build(AXIS + cells + 1)]
    if times:
        axis = LineBuilder(styles).write_spans(draw_axis(until, DAY, styles, AXIS + cells))
        lines.append(axis.build(AXIS + cells + 1))
    return lines


def join_pieces(pieces: Iterable[Piece]) -> list[Span]:
    """Join neighbours of one style into spans."""
    spans = []
    for style, run in groupby(pieces, key=lambda one: one.style):
        text = "".join(one.char for one in run)
        spans.append(Span(text, style, len(text)))
    return spans
