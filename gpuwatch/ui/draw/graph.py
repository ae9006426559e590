"""Graphs over time, drawn as lines of cells: stacked areas, filled curves and lines, with limits, marks and a cursor.

A graph is drawn by pure functions from its values; nothing is read here. The first line has the title and the values of
now or of the cursor's time, the last line is the time axis. A value that is not known is a gap: its cells stay empty,
and no line leads across it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from math import ceil, floor, isfinite
from typing import Final, NamedTuple, TypeAlias

import msgspec
from rich.cells import cell_len

from gpuwatch.history.timeline import Extent
from gpuwatch.ui.draw.lines import Line, LineBuilder, Span, draw_rule
from gpuwatch.ui.draw.theme import Glyphs, Style, StyleSet
from gpuwatch.ui.draw.time_axis import AXIS, Mark, Piece, column_of, draw_axis, join_pieces, plot_cells
from gpuwatch.ui.draw.view import day_time

_LEAST_CELLS: Final = 12
"""Least width of a plot in cells; a narrower graph has only its legend."""
_MOST_STEPS: Final = 5
"""Steps of the value axis, at most."""
_LEAST_STEP: Final = 2
"""Rows from one label of the value axis to the next, at least."""
_SNAP: Final = 8
"""Cells by which the words in an area move, so that they stay in place while it grows."""

_LEFT: Final = (0x01, 0x02, 0x04, 0x40)
_RIGHT: Final = (0x08, 0x10, 0x20, 0x80)
"""Bits of the dots of a braille character, from top to bottom."""
_BRAILLE: Final = {mask: chr(0x2800 + mask) if mask else " " for mask in range(256)}
_STANDS: Final = [[sum(side[4 - dots :]) for dots in range(5)] for side in (_LEFT, _RIGHT)]
_HANGS: Final = [[sum(side[:dots]) for dots in range(5)] for side in (_LEFT, _RIGHT)]
"""Bits of 0 to 4 dots of the left and the right column, from below and from above."""
_HANGING: Final = {False: "▀█", True: "'#"}
"""Parts of a cell that hang down from its upper edge, in blocks and in ASCII."""

Values: TypeAlias = Sequence[float | None]
"""Values of equal parts of the span, oldest first; None is a gap."""


class Curve(NamedTuple):
    """Values of one thing over time."""

    label: str
    values: Values
    style: Style
    """Colour of its line, or text and background of its area."""
    mark: str = "*"
    """Character that its area is made of where there are no colours."""
    now: float | None = None
    """Newest value."""
    hatched: bool = False
    """Whether its area is hatched, and has no background."""
    limit: str = ""
    """Declared value, after the one in its area."""
    extent: Extent | None = None
    """Lowest, mean and highest value, for the legend."""


class GraphLimit(NamedTuple):
    """Line that a curve should stay below: one number, or values over time like those of a curve."""

    label: str
    """Words in the legend; without any the limit has no entry there."""
    value: float | Values
    """The legend shows only a single number; values over time are heights in a stack."""
    style: Style

    @property
    def values(self) -> Values:
        return [self.value] if isinstance(self.value, (int, float)) else self.value


class Graph(msgspec.Struct, frozen=True):
    """Graph of a curve, or of several that are stacked as areas."""

    title: str
    until: float
    """Wall-clock time of the right end of the time axis."""
    span: float
    """Seconds of the time axis."""
    curves: Sequence[Curve]
    top: float
    """Value of the upper end, more than that of the lower one."""
    unit: str = ""
    low: float = 0.0
    stacked: bool = False
    filled: bool = True
    """Whether the area of the curve is filled; such an axis begins with 0."""
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
    whole: float | None = None
    """Total that stacked curves divide, for the legend."""
    down: Graph | None = None
    """Graph that hangs down from the base line of this one: the lower half of the plot."""
    named: bool = True
    """Whether areas have their names and values inside."""
    ends: tuple[str, str] | None = None
    """Words at the ends of the value axis in place of values: what goes up and what goes down."""

    @property
    def drawn_from(self) -> tuple[object, ...]:
        """Inputs of the plot and its axes; the legend has more, which changes each second."""
        curves = [(one.label, one.limit, one.values, one.style, one.now and self.show(one.now)) for one in self.curves]
        own = (self.until, self.span, self.low, self.top, curves, self.limits, self.marks, self.empty)
        return (*own, self.down.drawn_from) if self.down is not None else own


def draw_plot(
    graph: Graph, styles: StyleSet, width: int, height: int, *, axis: bool = True, cursor: float | None = None
) -> list[Line]:
    """Draw a graph without its legend in `height` lines of `width` cells; without room for a plot they are empty.

    Without `axis` it has no time axis of its own.
    """
    cells, rows = plot_cells(width), height - axis
    if rows < 1 or cells < _LEAST_CELLS:
        return [LineBuilder(styles).build(width)] * height
    column = column_of(cursor, graph.until, graph.span, cells) if cursor is not None else None
    plot = plot_rows(graph, styles, cells, rows, column)
    labels = _value_labels(graph, rows)
    lines = []
    for row, spans in enumerate(plot):
        builder = LineBuilder(styles).write(labels.get(row, ""), "muted", AXIS - 1, right=True)
        builder.write("|" if styles.glyphs.ascii else "┤" if row in labels else "│", "faint")
        lines.append(builder.write_spans(spans).build(width))
    return [*lines, *[draw_axis(graph.until, graph.span, styles, width, graph.marks, column)] * axis]


def plot_rows(graph: Graph, styles: StyleSet, cells: int, rows: int, cursor: int | None = None) -> list[list[Span]]:
    """Draw only the plot of a graph: `rows` rows of `cells` cells, empty if there are too few; `cursor` is a column."""
    if rows < 1 or cells < _LEAST_CELLS:
        return [[]] * rows
    below = rows // 2 if graph.down is not None else 0
    plot = _areas(graph, styles, cells, rows, cursor) if graph.stacked else _curve(graph, styles, cells, rows - below)
    if graph.down is not None and below:
        plot += _curve(graph.down, styles, cells, below, hangs=True)
    drawn = [join_pieces(with_cursor(row, cursor, styles)) for row in plot]
    if graph.empty and all(one is None for curve in graph.curves for one in curve.values):
        drawn[rows // 2] = list(LineBuilder(styles).write(f"  {graph.empty}", "muted", cells).build(cells))
    return drawn


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


def columns(values: Values, count: int) -> list[float | None]:
    """Return a value for each of some columns."""
    return [at_column(values, column, count) for column in range(count)]


# -- the legend and the axes ---------------------------------------------------------------------------------------


def draw_legend(graph: Graph, styles: StyleSet, width: int, *, cursor: float | None = None) -> Line:
    """Draw the title and the present values, or those at the cursor, as a rule; what does not fit is left out."""
    column = column_of(cursor, graph.until, graph.span, plot_cells(width)) if cursor is not None else None
    words = _words(graph, styles, column, plot_cells(width))
    if column is not None and cursor is not None:
        words.insert(0, day_time(cursor, graph.until - 1, "%H:%M:%S"))
    return draw_rule(graph.title, words, styles, width)


def _words(graph: Graph, styles: StyleSet, column: int | None, cells: int) -> list[str]:
    """Return the values of now or of a column, and the extent: `588 W`, `limit 700`, `min 46 mean 75 max 83`."""

    def shown(value: float | None) -> str:
        return graph.show(value) if value is not None and isfinite(value) else styles.glyphs.missing

    values = [curve.now if column is None else at_column(curve.values, column, cells) for curve in graph.curves]
    extent = graph.extent
    if graph.stacked:
        some = [one for one in values if one is not None]
        words = [f"{shown(sum(some) if some else None)}{f' of {shown(graph.whole)}' * (graph.whole is not None)}"]
        if column is not None:
            words += [f"{one.label} {shown(value)}" for one, value in zip(graph.curves, values, strict=True) if value]
    else:
        unit = f" {graph.unit}" * (bool(graph.unit) and values[0] is not None)
        words, extent = [shown(values[0]) + unit], graph.curves[0].extent
    mean = f" mean {shown(extent.mean)}" if extent is not None and column is None else ""
    if graph.down is not None:  # both halves have their words in one line
        return [words[0] + mean, *_words(graph.down, styles, column, cells)]
    words += [f"{one.label} {graph.show(one.value)}" for one in graph.limits if isinstance(one.value, (int, float))]
    if extent is not None and column is None and shown(extent.low) != shown(extent.high):
        words.append(f"min {shown(extent.low)}{mean} max {shown(extent.high)}")
    return words


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


def _value_labels(graph: Graph, rows: int) -> dict[int, str]:
    """Return the labels of the value axis by row: both ends, and round values where there is room."""
    low, top = graph.low, graph.top
    if graph.down is not None:
        ends = graph.ends or (graph.show(top), graph.down.show(graph.down.top))
        return {rows - rows // 2 if graph.ends else rows - 1: ends[1], 0: ends[0]}
    labels = {rows - 1: graph.show(low), 0: graph.show(top)}
    if rows < _LEAST_STEP * 2 + 1:
        return labels
    step = graph.scale * round_up((top - low) / graph.scale / min(_MOST_STEPS, (rows - 1) // _LEAST_STEP))
    for number in range(floor(low / step) + 1, ceil(top / step)):
        value = number * step
        row = _row_of(value, graph, rows)
        if row is not None and _LEAST_STEP <= row <= rows - 1 - _LEAST_STEP:
            labels[row] = graph.show(value)
    return labels


def with_cursor(pieces: Sequence[Piece], column: int | None, styles: StyleSet) -> list[Piece]:
    """Draw the column of the cursor: a line where there is nothing, and another background where there is something."""
    drawn = [*pieces]
    if column is not None:
        char, style = drawn[column]
        if char == " " and style.background == styles("text").background:
            drawn[column] = Piece("|" if styles.glyphs.ascii else "│", styles("note"))
        elif styles.color:
            drawn[column] = Piece(char, style._replace(background=styles.palette.cursor))
        else:
            drawn[column] = Piece(char, style._replace(reverse=True))
    return drawn


# -- curves --------------------------------------------------------------------------------------------------------


def _curve(graph: Graph, styles: StyleSet, cells: int, rows: int, *, hangs: bool = False) -> list[list[Piece]]:
    """Draw a curve: its area up from the lowest row, or down from the uppermost one where it `hangs`; or as a line.

    A known value of 0 has the lowest dots, so that it differs from a gap; a value beyond the axis is at its end. Each
    value of a line is joined with the one before. On a line every fourth cell has the limit's colour where both are in
    one cell.
    """
    curve, glyphs = graph.curves[0], styles.glyphs
    signs = " " + (_HANGING[glyphs.ascii] if hangs else glyphs.levels)
    across, steps = (2, 4) if glyphs.braille else (1, len(signs) - 1)
    highest = rows * steps
    scale = highest / (graph.top - graph.low)
    found = columns(curve.values, cells * across)
    tops = [0 if one is None else round(min(highest, max(1.0, (one - graph.low) * scale))) for one in found]
    lows = [0] * len(tops)
    if not graph.filled:
        pairs = [(level, before or level) for before, level in zip([0, *tops], tops, strict=False)]
        lows = [before if before < level else max(0, level - 1) for level, before in pairs]
        tops = [max(level, before - 1) if level else 0 for level, before in pairs]
    drawn = []
    for row in range(rows):
        base = steps * (row if hangs else rows - 1 - row)
        parts, empty = ([min(steps, max(0, one - base)) for one in ends] for ends in (tops, lows))
        if glyphs.braille:
            sides = _HANGS if hangs else _STANDS
            masks = [
                sides[x % 2][part] & ~sides[x % 2][low] for x, (part, low) in enumerate(zip(parts, empty, strict=True))
            ]
            drawn.append("".join(_BRAILLE[one | two] for one, two in zip(masks[::2], masks[1::2], strict=True)))
        elif graph.filled:
            drawn.append("".join(signs[part] for part in parts))
        else:
            drawn.append("".join("*" if part > low else " " for part, low in zip(parts, empty, strict=True)))
    pieces = [[Piece(char, curve.style if char != " " else styles("text")) for char in text] for text in drawn]
    for limit in () if hangs else graph.limits:
        for column, value in enumerate(columns(limit.values, cells)):
            at = _row_of(value, graph, rows)
            if at is not None and (graph.filled or column % 4 == 0 or pieces[at][column].char == " "):
                pieces[at][column] = Piece(_limit_sign(glyphs), limit.style)
    return pieces


# -- areas ---------------------------------------------------------------------------------------------------------


def _areas(graph: Graph, styles: StyleSet, cells: int, rows: int, cursor: int | None) -> list[list[Piece]]:
    """Draw stacked curves: each area has its colour, and its name and value once; without colours it shows initials."""
    if rows == 1:
        return [_area_row(graph, styles, cells)]
    whole = styles.glyphs.ascii or not styles.color
    per = 1 if whole else 8
    scale = rows * per / (graph.top - graph.low)
    values = [columns(curve.values, cells) for curve in graph.curves]
    limits = [
        columns(limit.values, cells)
        for limit in graph.limits
        if rows >= _LEAST_STEP * 2  # in fewer rows lines would cover the areas
    ]
    paint = cache(_AreaPainter(graph, styles, rows, per).paint)  # columns that are alike are painted once
    painted = []
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
        lines = tuple(_row_of(one[column], graph, rows) for one in limits)
        painted.append(paint(tuple(ends), lines) if some else [Piece(" ", styles("text"))] * rows)
    plot = [list(pieces) for pieces in zip(*painted, strict=True)]
    for place, curve in enumerate(graph.curves if graph.named else ()):
        value = curve.now if cursor is None else values[place][cursor]
        _write_name(plot, curve, "" if value is None else graph.show(value), styles)
    return plot


def _area_row(graph: Graph, styles: StyleSet, cells: int) -> list[Piece]:
    """Draw stacked curves in one row: eighth blocks of their sum, in the colour of the largest."""
    levels, pieces = styles.glyphs.levels, [Piece(" ", styles("text"))] * cells
    for column, values in enumerate(zip(*[columns(curve.values, cells) for curve in graph.curves], strict=True)):
        sizes = [max(0.0, value or 0.0) for value in values]
        if any(value is not None for value in values):
            style = graph.curves[sizes.index(max(sizes))].style
            level = int(sum(sizes) / graph.top * len(levels))
            color = Style(style.background or style.color, styles("text").background)
            pieces[column] = Piece(levels[min(level, len(levels) - 1)], color)
    return pieces


def _write_name(plot: list[list[Piece]], curve: Curve, value: str, styles: StyleSet) -> None:
    """Write name and value into the widest stretch of an area, in the longest form that fits; nothing where none does.

    Of several stretches it is the middle one, and the place moves by `_SNAP` cells.
    """
    glyphs = styles.glyphs
    full = Piece(glyphs.hatch if curve.hatched else " " if styles.color else curve.mark, curve.style)
    stretches: list[tuple[int, list[Piece], int]] = []
    for pieces in plot:
        x = 0
        for piece, run in groupby(pieces):
            cells = len(list(run))
            if piece == full:
                stretches.append((cells, pieces, x))
            x += cells
    widest = max((cells for cells, *_ in stretches), default=0)
    parts = [curve.label, value, f"of {curve.limit} declared" if curve.limit else ""]
    for count in (3, 2, 1):
        words = " ".join(["", *filter(None, parts[:count]), ""])
        if cell_len(words) == len(words) <= widest and (words.isascii() or not glyphs.ascii):
            found = [one for one in stretches if one[0] == widest]
            _, pieces, first = found[len(found) // 2]
            first += (widest - len(words)) // 2 // _SNAP * _SNAP
            pieces[first : first + len(words)] = [Piece(char, curve.style) for char in words]
            return


def _row_of(value: float | None, graph: Graph, rows: int) -> int | None:
    """Return the row, from the top, in which a limit's line is drawn; None outside of the plot."""
    if value is None or not graph.low <= value <= graph.top:
        return None
    return max(0, rows - max(1, ceil((value - graph.low) * (rows / (graph.top - graph.low)))))


class _AreaPainter:
    """Painter of the columns of stacked areas."""

    def __init__(self, graph: Graph, styles: StyleSet, rows: int, per: int) -> None:
        self._curves, self._limits = graph.curves, graph.limits
        self._style_set, self._rows, self._per = styles, rows, per
        self._base = styles("text")

    def paint(self, ends: tuple[int, ...], lines: tuple[int | None, ...]) -> list[Piece]:
        """Return the cells of a column, from the top: `ends` are those of the areas, and `lines` rows of limits."""
        owners: list[int | None] = []  # of each part of the column, from below
        for owner, end in enumerate(ends):
            owners += [owner] * (end - len(owners))
        owners += [None] * (self._rows * self._per - len(owners))
        pieces: list[Piece] = []
        for row in range(self._rows):
            low = (self._rows - 1 - row) * self._per
            most, piece = self._cell(owners[low : low + self._per])
            for limit, at in zip(self._limits, lines, strict=False):
                if at == row:
                    # On an area it is as bright as text there; elsewhere it has its own colour.
                    area = self._curves[most].style if most is not None else Style()
                    style = Style(area.color, area.background) if area.background else limit.style
                    piece = Piece(_limit_sign(self._style_set.glyphs), style)
            pieces.append(piece)
        return pieces

    def _cell(self, owners: Sequence[int | None]) -> tuple[int | None, Piece]:
        """Return the owner of most of a cell (None for nothing), and the cell: it shows two of its owners at most."""
        runs = [(owner, len([*run])) for owner, run in groupby(owners)]
        place = max(range(len(runs)), key=lambda one: runs[one][1])
        most, inside = runs[place]
        if len(runs) > 1 and place == 0:
            return most, self._split(most, runs[1][0], inside)
        if len(runs) > 1 and place == len(runs) - 1:
            return most, self._split(runs[-2][0], most, len(owners) - inside)
        return most, self._full(most)

    def _full(self, owner: int | None) -> Piece:
        if owner is None:
            return Piece(" ", self._base)
        curve = self._curves[owner]
        if curve.hatched:
            return Piece(self._style_set.glyphs.hatch, curve.style)
        return Piece(" " if self._style_set.color else curve.mark, curve.style)

    def _split(self, lower: int | None, upper: int | None, eighths: int) -> Piece:
        """Return a cell with two owners, the lower one in some eighths of it."""
        below = None if lower is None else self._curves[lower]
        above = None if upper is None else self._curves[upper]
        if below is None or below.hatched:
            return self._full(lower if eighths >= 4 else upper)
        background = self._base.background if above is None or above.hatched else above.style.background
        return Piece(self._style_set.glyphs.levels[eighths - 1], Style(below.style.background, background))
