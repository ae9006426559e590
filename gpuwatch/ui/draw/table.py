"""Tables of aligned cells: columns with titles, and rows whose changed cells are drawn again."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import msgspec
from rich.cells import cell_len

from gpuwatch.model.fields import Field
from gpuwatch.ui.draw.lines import Line, LineBuilder, Span
from gpuwatch.ui.draw.theme import Background, Role, Style, StyleSet

T = TypeVar("T")

Cell: TypeAlias = tuple[tuple[str, Role | Style], ...]
"""Runs of text with their styles. The last one is cut or padded to the column, the others are written as they are."""


class Column(msgspec.Struct, frozen=True):
    """One column of a table."""

    id: str
    title: str
    cells: int
    """Width; 0 for a last column that fills the rest of the line."""
    right: bool = True
    """Whether titles and cells are aligned to the right."""
    role: Role = "text"
    gap: int = 0
    """Blank cells before it."""
    order: str = ""
    """Order that a click on the title asks for; empty for the one of its id."""


def field_column(field: Field[Any], cells: int, *, role: Role = "text", gap: int = 0) -> Column:
    return Column(field.key, field.title, cells, right=field.right, role=role, gap=gap)


def bar_cell(part: float, uid: int | None, cells: int, styles: StyleSet, track: float = 1.0) -> Cell:
    """Return a bar of exactly `cells` cells: `part` is filled in an owner's colour, `track` has the background."""
    eighths, until = styles.glyphs.eighths, round(track * cells)
    filled = min(part, track) * cells
    whole = int(filled) if eighths else round(filled)
    if part and filled < 1 and not eighths:
        whole = 1  # a small part is still visible
    runs: list[tuple[str, Role | Style]] = [(styles.glyphs.fill * whole, styles.owner(uid).fill)]
    eighth = round((filled - whole) * 8) if eighths else 0
    if part and not whole:
        eighth = max(eighth, 1)
    if eighth > 0 and whole < cells:
        runs.append((eighths[min(eighth, 7) - 1], styles.owner(uid).edge))
        whole += 1
    return (*runs, (" " * (until - whole), styles("faint", "track")), (" " * (cells - max(until, whole)), "text"))


HELD: Final = 60.0
"""Seconds for which a column must be useful, or useless, before it is shown or left out."""


class UsefulColumns(Generic[T]):
    """Columns with a value in any row: decided at the start, then changed when the opposite has held for a minute."""

    def __init__(self, tests: Mapping[str, Callable[[T], bool | None]]) -> None:
        """`tests` return by column whether a row has a value to show; None if that is not known yet."""
        self.useless: frozenset[str] = frozenset()
        """Ids of the columns that are of no use."""
        self._tests = tests
        self._decided: set[str] = set()
        self._since: dict[str, float] = {}
        """Monotonic time since which the opposite holds, by column."""

    def update(self, rows: Collection[T], now: float) -> None:
        """Judge the columns by all rows that there are; `now` is in monotonic seconds."""
        for column, has_value in self._tests.items():
            is_unknown, is_useful = not rows, False
            for row in rows:
                found = has_value(row)
                is_unknown = is_unknown or found is None
                if found:
                    is_useful = True
                    break
            if is_unknown and not is_useful:
                continue
            if is_useful == (column not in self.useless):
                self._since.pop(column, None)
            elif column in self._decided and now - self._since.setdefault(column, now) < HELD:
                continue
            else:
                self.useless ^= {column}
                self._since.pop(column, None)
            self._decided.add(column)


class TableRow(NamedTuple):
    """One row of a table; its last cell fills the line where there are fewer cells than columns."""

    key: Hashable
    """Identity of the row from one drawing to the next."""
    cells: tuple[Cell, ...]
    background: Background = "base"


class _Drawn(NamedTuple):
    row: TableRow
    parts: list[tuple[list[Span], int]]
    """Each cell as it was drawn: its spans, and their terminal cells."""
    line: Line


class Table:
    """Rows as they were last drawn."""

    def __init__(self) -> None:
        self._style_set: StyleSet | None = None
        self._form: tuple[int, Sequence[Column]] = (0, ())
        self._drawn: dict[Hashable, _Drawn] = {}

    def lines(self, styles: StyleSet, width: int, columns: Sequence[Column], rows: Iterable[TableRow]) -> list[Line]:
        same = styles is self._style_set and self._form == (width, columns)
        before = self._drawn if same else {}
        self._style_set, self._form = styles, (width, columns)
        drawn = [self._draw(row, before.get(row.key), columns) for row in rows]
        self._drawn = {one.row.key: one for one in drawn}
        return [one.line for one in drawn]

    def _draw(self, row: TableRow, before: _Drawn | None, columns: Sequence[Column]) -> _Drawn:
        assert self._style_set is not None
        if before is not None and before.row.background != row.background:
            before = None
        if before is not None and before.row.cells == row.cells:
            return before
        is_alike = before is not None and len(before.row.cells) == len(row.cells)
        old: Sequence[Cell | None] = before.row.cells if before and is_alike else [None] * len(row.cells)
        width = self._form[0]
        builder = LineBuilder(self._style_set, row.background)
        parts: list[tuple[list[Span], int]] = []
        for place, (column, cell, was) in enumerate(zip(columns, row.cells, old, strict=False)):
            if before is not None and was == cell:
                parts.append(before.parts[place])
                spans, cells = parts[-1]
                builder.spans += spans
                builder.cells += cells
                continue
            start, at = len(builder.spans), builder.cells
            builder.gap(column.gap)
            fills = not column.cells or place + 1 == len(row.cells) < len(columns)
            end = width if fills else builder.cells + column.cells
            for text, style in cell[:-1]:
                builder.write(text, style)
            text, style = cell[-1]
            builder.write(text, style, max(0, end - builder.cells), right=column.right and not fills)
            parts.append((builder.spans[start:], builder.cells - at))
        return _Drawn(row, parts, builder.build(width))


def write_titles(columns: Iterable[Column], styles: StyleSet, by: str = "", sign: str = "") -> LineBuilder:
    """Begin a line with the titles of columns; `sign` marks the column `by` that rows are sorted by."""
    builder = LineBuilder(styles, "band")
    for column in columns:
        arrow = sign if column.id == by else ""
        for words in (column.title, column.title.partition(" ")[0]):
            title = f"{arrow}{words}" if column.right else f"{words}{arrow}"
            touches = bool(arrow) and column.right and not column.gap and cell_len(title) == column.cells
            if not column.cells or (cell_len(title) <= column.cells and not touches):
                break
        builder.gap(column.gap).write(title, "text" if arrow else "muted", column.cells or None, right=column.right)
    return builder
