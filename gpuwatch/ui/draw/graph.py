"""Graphs over time, drawn as lines of cells: braille lines and stacked areas, with limits, marks and a cursor.

A graph is drawn by pure functions from its values; nothing is read here. The first line has the title and the legend
with the values of now or of the cursor's time, the last line is the time axis. A value that is not known is a gap: its
cells stay empty, and no line leads across it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, floor, inf, isfinite
from typing import Final, NamedTuple, TypeAlias

import msgspec
from rich.cells import cell_len

from gpuwatch.history.timeline import Extent
from gpuwatch.ui.draw.lines import Line, LineBuilder, Span
from gpuwatch.ui.draw.theme import Glyphs, Style, StyleSet
from gpuwatch.ui.draw.time_axis import AXIS, Mark, Piece, column_of, draw_axis, join_pieces, plot_cells
from gpuwatch.ui.draw.view import day_time

_LEAST_CELLS: Final = 12
"""Cells of a plot from which on it is drawn; below that there is the legend alone."""
_MOST_STEPS: Final = 5
"""Steps of the value axis, at most."""
_LEAST_STEP: Final = 2
"""Rows from one label of the value axis to the next, at least."""
_LETTERS: Final = 12
"""Cells from one initial to the next in an area."""

_LEFT: Final = (0x01, 0x02, 0x04, 0x40)
_RIGHT: Final = (0x08, 0x10, 0x20, 0x80)
"""Bits of the dots of a braille character, from top to bottom."""
_BRAILLE: Final = {mask: chr(0x2800 + mask) if mask else " " for mask in range(256)}

Values: TypeAlias = Sequence[float | None]
"""Values of equal parts of the span, oldest first; None is a gap."""


class Curve(NamedTuple):
    """Values of one thing over time."""

    label: str
    values: Values
    style: Style
    """Colour of its line, or text and background of its area."""
    mark: str = "*"
    """Character that stands for it: in the legend, in areas, and where there is no braille or no colour."""
    now: float | None = None
    """Newest value, for the legend."""
    hatched: bool = False
    """Whether its area is hatched, and has no background."""
    limit: str = ""
    """Limit that the legend shows with its newest value."""
    extent: Extent | None = None
    """Lowest, mean and highest value, for the legend."""


class GraphLimit(NamedTuple):
    """Line that a curve should stay below: one number, or values over time like those of a curve."""

    label: str
    """Words in the legend; without any the limit has no entry there."""
    value: float | Values
    """The legend shows one number; values over time are heights in a stack, and tell nothing as numbers."""
    style: Style

    @property
    def values(self) -> Values:
        return [self.value] if isinstance(self.value, (int, float)) else self.value


class Graph(msgspec.Struct, frozen=True):
    """Graph of some curves: as lines, or stacked as areas."""

    title: str
    until: float
    """Wall-clock time of the right end of the time axis."""
    span: float
    """Seconds of the time axis."""
    curves: Sequence[Curve]
    top: float
    """Value of the upper end."""
    unit: str = ""
    low: float = 0.0
    stacked: bool = False
    limits: Sequence[GraphLimit] = ()
    marks: Sequence[Mark] = ()
    show: Callable[[float], str] = "{:.0f}".format
    """Formats a value without its unit."""
    scale: float = 1.0
    """Size of the unit: values in bytes that are shown in GiB have 2**30. The value axis has round numbers of it."""
    empty: str = ""
    """Words in the plot where no curve has any value: the reason."""
    extent: Extent | None = None
    """Lowest, mean and highest sum of stacked curves, for the legend."""


def points(width: int, span: float, *, stacked: bool = False) -> int:
    """Return how many values a graph of `width` cells can show; not more than one a second."""
    return max(1, min(plot_cells(width) * (1 if stacked else 2), int(span)))


def time_at(graph: Graph, x: int, width: int) -> float | None:
    """Return the time in the middle of a column; None left of the plot and right of it."""
    cells = plot_cells(width)
    place = x - AXIS
    return graph.until - graph.span + (place + 0.5) * graph.span / cells if 0 <= place < cells else None


def draw_plot(graph: Graph, styles: StyleSet, width: int, height: int, *, cursor: float | None = None) -> list[Line]:
    """Draw all of a graph but its legend in `height` lines of `width` cells; without room for a plot they are empty."""
    cells, rows = plot_cells(width), height - 1
    if rows < 1 or cells < _LEAST_CELLS:
        return [LineBuilder(styles).build(width)] * height
    column = column_of(cursor, graph.until, graph.span, cells) if cursor is not None else None
    plot = _areas(graph, styles, cells, rows) if graph.stacked else _lines(graph, styles, cells, rows)
    if graph.empty and all(one is None for curve in graph.curves for one in curve.values):
        plot[rows // 2] = list(LineBuilder(styles).write(f"  {graph.empty}", "muted", cells).build(cells))
    labels = _value_labels(graph, rows, styles)
    lines = []
    for row, spans in enumerate(plot):
        builder = LineBuilder(styles).write(labels.get(row, ""), "muted", AXIS - 1, right=True)
        builder.write("|" if styles.glyphs.ascii else "┤" if row in labels else "│", "faint")
        builder.write_spans(spans if column is None else _with_cursor(spans, column, styles))
        lines.append(builder.build(width))
    return [*lines, draw_axis(graph.until, graph.span, styles, width, graph.marks, column)]


def at_column(values: Values, column: int, cells: int) -> float | None:
    """Return the mean of the values that a column shows; None for a gap.

    Where values are longer than columns it is the value at the middle of the column, whose time the legend shows.
    """
    number = len(values)
    if number <= cells:
        first = (2 * column + 1) * number // (2 * cells)
        some = values[first : first + 1]
    else:
        some = values[column * number // cells : -(-(column + 1) * number // cells)]
    inside = [one for one in some if one is not None and isfinite(one)]
    return sum(inside) / len(inside) if inside else None


def _columns(values: Values, columns: int) -> list[float | None]:
    """Return a value for each of some columns."""
    return [at_column(values, column, columns) for column in range(columns)]


# -- the legend and the axes ---------------------------------------------------------------------------------------


def draw_legend(
    graph: Graph, styles: StyleSet, width: int, *, lines: int = 1, cursor: float | None = None
) -> list[Line]:
    """Draw title and legend in `lines` lines at most; entries for which there is no room are counted, `+2`."""
    cells = plot_cells(width)
    column = column_of(cursor, graph.until, graph.span, cells) if cursor is not None else None
    builder = LineBuilder(styles).write(graph.title, "strong", min(cell_len(graph.title), width))
    if graph.unit:
        builder.gap().write(graph.unit, "muted")
    if column is not None and (at := time_at(graph, column + AXIS, width)) is not None:
        builder.gap().write(day_time(at, graph.until - 1, "%H:%M:%S"), "note")
    entries: list[list[tuple[str, Style | None]]] = []
    for curve in graph.curves:
        value = curve.now if column is None else at_column(curve.values, column, cells)
        shown = graph.show(value) if value is not None and isfinite(value) else styles.glyphs.missing
        several = len(graph.curves) > 1 or graph.stacked
        entries.append([(curve.mark, curve.style), (f" {curve.label} ", None)] if several else [])
        entries[-1].append((shown, styles("strong")))
        if curve.limit and column is None:
            entries[-1].append((f"/{curve.limit}", None))
    for limit in graph.limits:
        if not limit.label:
            continue
        shown = f" {graph.show(limit.value)}" if isinstance(limit.value, (int, float)) else ""
        drawn = not isinstance(limit.value, (int, float)) or graph.low <= limit.value <= graph.top
        sign = [(_limit_sign(styles.glyphs), limit.style), (" ", None)] if drawn else []
        entries.append([*sign, (f"{limit.label}{shown}", None)])
    counted = len(entries)
    extents = [(curve.mark if len(graph.curves) > 1 else "", curve.extent) for curve in graph.curves]
    for mark, found in [*extents, ("all", graph.extent)]:
        if found is not None:
            low, mean, high = (graph.show(one) for one in found[1:])
            if low != high:
                entries.append([(f"{mark} min {low} mean {mean} max {high}".lstrip(), None)])
    drawn_lines: list[Line] = []
    for place, entry in enumerate(entries):
        left = max(0, counted - place)
        needed = sum(cell_len(text) for text, _ in entry) + 2
        if builder.cells + needed > width and len(drawn_lines) + 1 < lines:
            drawn_lines.append(builder.build(width))
            builder = LineBuilder(styles).gap(AXIS - 2)
        is_last = len(drawn_lines) + 1 == lines
        if builder.cells + needed + (len(f"  +{left - 1}") if left > 1 and is_last else 0) > width:
            if left:
                builder.gap(2).write(f"+{left}", "muted")
            break
        builder.gap(2)
        for text, style in entry:
            builder.write(text, style or "muted")
    return [*drawn_lines, builder.build(width)]


def _limit_sign(glyphs: Glyphs) -> str:
    return "-" if glyphs.ascii else "╌"


def round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, 50 and so on."""
    scale = 1.0
    while value > 10 * scale:
        scale *= 10
    return next(scale * step for step in (1, 2, 5, 10) if value <= scale * step)


def axis_low(value: float) -> float:
    """Return a round lower end below a value for an axis that need not begin with 0."""
    step = round_up(value / 10)
    return max(0.0, floor(value / step - 0.5) * step)


def axis_top(value: float, scale: float = 1.0) -> float:
    """Return a round upper end for a value axis that has room for a value, in units of `scale`."""
    step = scale * round_up(value / scale / 10)
    return ceil(value / step) * step


def _value_labels(graph: Graph, rows: int, styles: StyleSet) -> dict[int, str]:
    """Return the labels of the value axis by row: both ends, and round values where there is room."""
    low, top = graph.low, graph.top
    labels = {rows - 1: graph.show(low), 0: graph.show(top)}
    if rows < _LEAST_STEP * 2 + 1 or not 0 < top - low < inf:
        return labels
    down = 4 if _in_braille(graph, styles) else 1
    step = graph.scale * round_up((top - low) / graph.scale / min(_MOST_STEPS, (rows - 1) // _LEAST_STEP))
    for number in range(floor(low / step) + 1, ceil(top / step)):
        value = number * step
        row: int | None
        if graph.stacked:
            row = _row_of(value, graph, rows / (top - low), rows, 1)
        else:
            level = _levels([value], 1, rows * down, low, top)[0]
            row = rows - 1 - (level or 0) // down
        if row is not None and _LEAST_STEP <= row <= rows - 1 - _LEAST_STEP:
            labels[row] = graph.show(value)
    return labels


def _with_cursor(spans: Sequence[Span], column: int, styles: StyleSet) -> list[Span]:
    """Draw the column of the cursor: a line where there is nothing, and another background where there is something."""
    found: list[Span] = []
    x = 0
    for span in spans:
        end = x + span.cells
        if not x <= column < end:
            found.append(span)
        else:
            place = column - x
            before, char, after = span.text[:place], span.text[place], span.text[place + 1 :]
            if char == " " and span.style.background == styles("text").background:
                inner = Span("|" if styles.glyphs.ascii else "│", styles("note"), 1)
            elif styles.color:
                inner = Span(char, span.style._replace(background=styles.palette.cursor), 1)
            else:
                inner = Span(char, span.style._replace(reverse=True), 1)
            found += [Span(before, span.style, place)] * bool(before)
            found.append(inner)
            found += [Span(after, span.style, len(after))] * bool(after)
        x = end
    return found


# -- lines ---------------------------------------------------------------------------------------------------------


def _levels(values: Values, columns: int, levels: int, low: float, top: float) -> list[int | None]:
    """Return the level of each column, 0 to `levels` - 1; a value beyond the axis has the outermost level."""
    highest = levels - 1
    scale = highest / (top - low) if top > low else 0.0
    found = _columns(values, columns)
    if not scale:
        return [None if one is None else 0 for one in found]
    return [None if one is None else round(min(highest, max(0.0, (one - low) * scale))) for one in found]


def _in_braille(graph: Graph, styles: StyleSet) -> bool:
    return not styles.glyphs.ascii and (bool(styles.color) or len(graph.curves) == 1)


def _lines(graph: Graph, styles: StyleSet, cells: int, rows: int) -> list[list[Span]]:
    """Draw curves as lines: in braille, or with a character for each where they would else look alike."""
    braille = _in_braille(graph, styles)
    across, down = (2, 4) if braille else (1, 1)
    masks = [[bytearray(cells) for _ in range(rows)] for _ in graph.curves]
    for curve, grid in zip(graph.curves, masks, strict=True):
        _trace(_levels(curve.values, cells * across, rows * down, graph.low, graph.top), grid, across, down)
    dashes = [
        _limit_places(limit, cells, rows * down, graph, styles, braille=braille, down=down) for limit in graph.limits
    ]
    base = styles("text")
    if len(masks) == 1 and not dashes and braille:
        style = graph.curves[0].style
        return [[Span(bytes(row).decode("latin-1").translate(_BRAILLE), style, cells)] for row in masks[0]]
    drawn = []
    for row in range(rows):
        pieces = [Piece(" ", base)] * cells
        dots = {}
        for dashed in dashes:
            for column, piece in dashed.get(row, ()):
                pieces[column] = dots[column] = piece
        for curve, grid in zip(graph.curves, masks, strict=True):
            mask = grid[row]
            if any(mask):
                for column, bits in enumerate(mask):
                    if bits:
                        pieces[column] = _crossed(bits, curve, dots.get(column), column, braille=braille)
        drawn.append(join_pieces(pieces))
    return drawn


def _crossed(bits: int, curve: Curve, limit: Piece | None, column: int, *, braille: bool) -> Piece:
    """Return a cell of a curve; where a limit is in the same cell, every fourth has the limit's colour."""
    if limit is None:
        return Piece(_BRAILLE[bits] if braille else curve.mark, curve.style)
    if not braille:
        return limit if column % 4 == 0 else Piece(curve.mark, curve.style)
    return Piece(_BRAILLE[bits | ord(limit.char) - 0x2800], limit.style if column % 4 == 0 else curve.style)


def _trace(levels: Sequence[int | None], grid: list[bytearray], across: int, down: int) -> None:
    """Set the dots of a curve: its level at each column, joined with the column before where that has one."""
    last = len(grid) * down - 1
    before: int | None = None
    for column, level in enumerate(levels):
        if level is not None:
            first, until = (level, level) if before is None else (min(level, before), max(level, before))
            if before is not None and until > first:  # the end that the column before has drawn already
                first, until = (first + 1, until) if before == first else (first, until - 1)
            place, bits = column // across, _RIGHT if column % across else _LEFT
            for dot in range(last - until, last - first + 1):
                grid[dot // down][place] |= bits[dot % down]
        before = level


def _limit_places(
    limit: GraphLimit, cells: int, levels: int, graph: Graph, styles: StyleSet, *, braille: bool, down: int
) -> dict[int, list[tuple[int, Piece]]]:
    """Return the cells of a limit's line by row: dotted, one dot a cell."""
    values = _columns(limit.values, cells)
    places: dict[int, list[tuple[int, Piece]]] = {}
    found = [one if one is not None and graph.low <= one <= graph.top else None for one in values]
    for column, level in enumerate(_levels(found, cells, levels, graph.low, graph.top)):
        if level is not None:
            dot = levels - 1 - level
            char = _BRAILLE[_LEFT[dot % down]] if braille else _limit_sign(styles.glyphs)
            places.setdefault(dot // down, []).append((column, Piece(char, limit.style)))
    return places


# -- areas ---------------------------------------------------------------------------------------------------------


def _areas(graph: Graph, styles: StyleSet, cells: int, rows: int) -> list[list[Span]]:
    """Draw curves stacked: each area has its colour, and its initial every few cells; without colours in every cell."""
    whole = styles.glyphs.ascii or not styles.color
    per = 1 if whole else 8
    extent = graph.top - graph.low
    scale = rows * per / extent if extent > 0 else 0.0
    values = [_columns(curve.values, cells) for curve in graph.curves]
    limits = [
        _columns(limit.values, cells)
        for limit in graph.limits
        if rows >= _LEAST_STEP * 2  # in fewer rows lines would cover the areas
    ]
    paint = cache(_AreaPainter(graph, styles, rows, per).paint)  # columns that are alike are painted once
    columns = []
    for column in range(cells):
        ends: list[int] = []
        total = 0.0
        some = False
        for one in values:
            value = one[column]
            if value is not None:
                some = True
                total += max(0.0, value)
            ends.append(round(min(rows * per, (total - graph.low) * scale)) if total > graph.low else 0)
        lines = tuple(_row_of(one[column], graph, scale, rows, per) for one in limits)
        letter = column % _LETTERS == _LETTERS // 2
        columns.append(paint(tuple(ends) if some else None, lines, letter))
    return [join_pieces(pieces) for pieces in zip(*columns, strict=True)]


def _row_of(value: float | None, graph: Graph, scale: float, rows: int, per: int) -> int | None:
    """Return the row, from the top, in which a limit's line is drawn; None outside of the plot."""
    if value is None or not graph.low <= value <= graph.top:
        return None
    return max(0, rows - max(1, ceil((value - graph.low) * scale / per)))


class _AreaPainter:
    """Painter of the columns of stacked areas."""

    def __init__(self, graph: Graph, styles: StyleSet, rows: int, per: int) -> None:
        self._curves, self._limits = graph.curves, graph.limits
        self._style_set, self._rows, self._per = styles, rows, per
        self._base = styles("text")

    def paint(self, ends: tuple[int, ...] | None, lines: tuple[int | None, ...], letter: bool) -> list[Piece]:
        """Return the cells of a column, from the top; `ends` are the upper ends of the areas, None for a gap."""
        pieces: list[Piece] = []
        for row in range(self._rows):
            low = (self._rows - 1 - row) * self._per
            owner, piece = (None, Piece(" ", self._base)) if ends is None else self._cell(ends, low, letter)
            for limit, at in zip(self._limits, lines, strict=False):
                if at == row and ends is not None:
                    piece = Piece(_limit_sign(self._style_set.glyphs), self._on(limit.style, owner))
            pieces.append(piece)
        return pieces

    def _on(self, style: Style, owner: int | None) -> Style:
        """Return the style of a limit's line on an area: as bright as text there, or in its own colour beside them."""
        area = Style() if owner is None else self._curves[owner].style
        return Style(area.color, area.background) if area.background and self._style_set.color else style

    def _cell(self, ends: tuple[int, ...], low: int, letter: bool) -> tuple[int | None, Piece]:
        """Return the owner of most of a cell (None for nothing), and the cell; `low` is the level of its lower edge."""
        per = self._per
        high = low + per
        parts: list[tuple[int, int | None, int, int]] = []
        start = 0
        for owner, end in enumerate(ends):
            if end > start:
                inside = min(end, high) - max(start, low)
                if inside > 0:
                    parts.append((inside, owner, max(start, low), min(end, high)))
                start = end
        if start < high:
            parts.append((high - max(start, low), None, max(start, low), high))
        place = max(range(len(parts)), key=lambda one: parts[one][0])
        inside, most, begin, until = parts[place]
        if inside == per or (begin > low and until < high):
            return most, self._full(most, letter)
        if begin == low:
            return most, self._split(most, parts[place + 1][1], until - low)
        return most, self._split(parts[place - 1][1], most, begin - low)

    def _full(self, owner: int | None, letter: bool) -> Piece:
        if owner is None:
            return Piece(" ", self._base)
        curve = self._curves[owner]
        if curve.hatched:
            return Piece(self._style_set.glyphs.hatch, curve.style)
        return Piece(curve.mark if letter or not self._style_set.color else " ", curve.style)

    def _split(self, lower: int | None, upper: int | None, eighths: int) -> Piece:
        """Return a cell with two owners, the lower one in some eighths of it."""
        below = None if lower is None else self._curves[lower]
        above = None if upper is None else self._curves[upper]
        if below is None or below.hatched:
            return self._full(lower if eighths >= 4 else upper, letter=False)
        background = self._base.background if above is None or above.hatched else above.style.background
        return Piece(self._style_set.glyphs.levels[eighths - 1], Style(below.style.background, background))
