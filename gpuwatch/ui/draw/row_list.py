"""Lists with a cursor that stays on its item, and lists of rows under column titles.

`ItemCursor` is under every list of the program, `CursorList` under those that have a panel. `RowList` is under the
process list and the screens of people, runs, strays and events: a list is a subclass that has the columns for a width,
the text of each cell, and what identifies a row; drawing, sorting, and what keys and mouse do are here. `FieldList` is
under the lists of hosts and of a fleet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar

from rich.cells import cell_len

from gpuwatch.analysis.rows import StableOrder
from gpuwatch.model.fields import Field
from gpuwatch.model.filters import find_next
from gpuwatch.ui.draw.lines import Line, blank
from gpuwatch.ui.draw.table import Cell, Column, Table, TableRow, field_column, write_titles
from gpuwatch.ui.draw.theme import Background, Role, StyleSet

T = TypeVar("T")

ClickEffect: TypeAlias = Literal["", "moved", "chosen", "box"]
"""Effect of a click: none, cursor or order moved, the item under the cursor was clicked again, or its box."""

WHEEL: Final = 3
"""Rows that one notch of the mouse wheel moves."""
CURSOR_CELLS: Final = 2
_CURSOR: Final = Column("cursor", "", CURSOR_CELLS, right=False)


class ItemCursor(Generic[T]):
    """Items with a cursor on one of them. The cursor follows its item when the items move."""

    def __init__(self) -> None:
        self.found: list[T] = []
        """All items, in order."""
        self.cursor = 0
        """Index of the cursor's item among all items."""
        self._keys: Sequence[Hashable] = ()
        self._key: Hashable = None

    @abstractmethod
    def identity(self, row: T) -> Hashable:
        """Return the identity of an item, by which the cursor finds it again."""

    @property
    def selected(self) -> T | None:
        """The item under the cursor."""
        return self.found[self.cursor] if self.cursor < len(self.found) else None

    def update_rows(self, rows: Sequence[T]) -> None:
        """Replace the items; the cursor follows its item, or stays in place if the item has ended."""
        self.found = list(rows)
        self._follow([self.identity(row) for row in self.found])

    def point(self, place: int) -> None:
        """Put the cursor on an item, as the user asked."""
        self._put(place)

    def _follow(self, keys: Sequence[Hashable]) -> None:
        """Put the cursor on its item again, after the items have changed."""
        self._keys = keys
        self._put(keys.index(self._key) if self._key in keys else self.cursor)

    def _put(self, place: int) -> None:
        self.cursor = max(0, min(place, len(self._keys) - 1))
        self._key = self._keys[self.cursor] if self._keys else None


class CursorList(ItemCursor[T]):
    """Items with a cursor on one of them, and the effects of keys and mouse."""

    def __init__(self) -> None:
        super().__init__()
        self.active = True
        """Whether the keys move this cursor; on a screen with two lists one of them is active."""

    def move(self, by: int) -> None:
        """Move the cursor by `by` lines."""
        self.point(self.cursor + by)

    def page(self, by: int) -> None:
        """Move the cursor by `by` screens."""
        self.move(by * max(1, len(self.found)))

    @abstractmethod
    def click(self, x: int, y: int, *, again: bool) -> ClickEffect:
        """React to a click at a cell; `again` if it is not the first one there."""

    def scroll(self, by: int) -> None:
        """Scroll by lines; the cursor stays on its item."""


class RowList(CursorList[T]):
    """List, one line a row.

    Keys move the cursor and scroll to it; the mouse wheel scrolls the list and leaves the cursor on its row.
    """

    fields: ClassVar[Mapping[str, Field[Any]]] = {}
    """Fields of the list, by key."""
    sorts: ClassVar[Collection[str]] = ()
    """Keys of the fields that the list can be sorted by, where these are not all."""
    reversible: ClassVar[bool] = True
    titled: ClassVar[bool] = True
    """Whether the list shows column titles, where it has two lines or more."""

    def __init__(self) -> None:
        super().__init__()
        self.by = ""
        """Order of the rows, one of `sorts`."""
        self.reverse = False
        self.top = 0
        """First row on screen."""
        self.page_rows = 1
        """Number of rows that fit on screen."""
        self._columns: list[Column] = []
        self._title_lines = 0
        self._table = Table()

    # -- what each list has of its own -----------------------------------------------------------------------------

    @abstractmethod
    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        """Return the columns for a width."""

    @abstractmethod
    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        """Return the cells of a row, one for each column; the last of fewer cells fills the line."""

    def ordered(self, rows: Sequence[T]) -> list[T]:
        """Sort rows by the chosen order."""
        return list(rows)

    def react(self, x: int) -> ClickEffect:
        """React to a click at a cell of the row under the cursor; empty where that cell is like any other."""
        return ""

    # -- rows and cursor -------------------------------------------------------------------------------------------

    def update_rows(self, rows: Sequence[T]) -> None:
        """Replace the rows, and sort them."""
        super().update_rows(self.ordered(rows))

    def sort_rows(self) -> None:
        """Sort the rows again, by another order."""
        self.update_rows(self.found)

    def sort_by(self, order: str) -> None:
        """Sort by an order; once more reverses it."""
        self._set_order(order, reverse=self.reversible and order == self.by and not self.reverse)

    @property
    def _orders(self) -> Collection[str]:
        return self.sorts or self.fields

    def sort_next(self, by: int) -> None:
        """Sort by the column to the right or the left of the present one."""
        orders = self.orders
        place = orders.index(self.by) if self.by in orders else 0
        self._set_order(orders[(place + by) % len(orders)], reverse=False)

    @property
    def orders(self) -> list[str]:
        """The orders that `sort_next` steps through: those of the columns on screen."""
        return [column.id for column in self._columns if column.id in self._orders] or list(self._orders)

    def _set_order(self, order: str, *, reverse: bool) -> None:
        self.by, self.reverse = order, reverse
        self.to_top()
        self.sort_rows()

    def move(self, by: int) -> None:
        super().move(by)
        self._reveal()

    def page(self, by: int) -> None:
        self.move(by * max(1, self.page_rows - 1))

    def find(self, is_sought: Callable[[T], bool], by: int) -> bool:
        """Move the cursor to the next row that is sought, or the one before; returns whether there is any."""
        place = find_next(self.found, is_sought, self.cursor, by)
        if place is not None:
            self.move(place - self.cursor)
        return place is not None

    def to_top(self) -> None:
        """Put the cursor on the first row of the next order."""
        self.cursor = self.top = 0
        self._key = None

    def part(self, dash: str = "-") -> str:
        """Return the numbers of the rows on screen, `1-20 of 47`; empty if all rows are on screen."""
        every = len(self._keys)
        until = min(self.top + self.page_rows, every)
        return f"{self.top + 1}{dash}{until} of {every}" if every > self.page_rows else ""

    def _follow(self, keys: Sequence[Hashable]) -> None:
        """Put the cursor on its row again, after the rows have changed; a cursor on screen stays there."""
        was_on_screen = self._is_on_screen()
        super()._follow(keys)
        if was_on_screen:
            self._reveal()

    def _shown(self, room: int) -> range:
        """Return the places of the rows that `room` lines show; a cursor on screen stays there."""
        was_on_screen = self._is_on_screen()
        self.page_rows = max(1, room)
        if was_on_screen:
            self._reveal()
        self.top = max(0, min(self.top, len(self._keys) - self.page_rows))
        return range(self.top, min(self.top + room, len(self._keys)))

    def _is_on_screen(self) -> bool:
        return self.top <= self.cursor < self.top + self.page_rows

    def _reveal(self) -> None:
        self.top = max(min(self.top, self.cursor), self.cursor - self.page_rows + 1)

    # -- mouse -----------------------------------------------------------------------------------------------------

    def click(self, x: int, y: int, *, again: bool) -> ClickEffect:
        """Select a row, choose it at the second click, or sort by the column whose title was clicked."""
        place = y - self._title_lines
        if place < 0:
            order = self.order_at(x)
            if order not in self._orders:
                return ""
            self.sort_by(order)
            return "moved"
        place += self.top
        if place >= len(self.found):
            return ""
        again = again and place == self.cursor
        self.point(place)
        return self.react(x) or ("chosen" if again else "moved")

    def order_at(self, x: int) -> str:
        """Return the order of the column at a cell of the titles; empty for none.

        A column without a title has the order of the column to its right.
        """
        end = 0
        for column in self._table_columns:
            end += column.gap + column.cells
            if column.title and (x < end or not column.cells):
                return column.order or column.id
        return ""

    def scroll(self, by: int) -> None:
        self.top = max(0, min(self.top + by, len(self._keys) - self.page_rows))

    # -- drawing ---------------------------------------------------------------------------------------------------

    def lines(
        self, styles: StyleSet, width: int, height: int, empty: Sequence[Line] = (), *, below: Sequence[Line] = ()
    ) -> list[Line]:
        """Draw titles and rows in `height` lines: `empty` where there are no rows, and `below` after a blank line."""
        self._title_lines = int(self.titled and height > 1)
        shown = self._shown(height - self._title_lines)
        self._columns = self.columns(styles, width)
        drawn = [self.title_line(styles, width)] if self._title_lines else []
        drawn += self._table.lines(styles, width, self._table_columns, self._rows(shown, styles))
        if not self.found:
            drawn += empty
        elif below:
            drawn += [blank(styles, width), *below]
        return (drawn + [blank(styles, width)] * (height - len(drawn)))[:height]

    def title_line(self, styles: StyleSet, width: int) -> Line:
        return write_titles(self._table_columns, styles, self.by, self._arrow(styles)).build(width)

    @property
    def _table_columns(self) -> list[Column]:
        return [_CURSOR, *self._columns]

    def _arrow(self, styles: StyleSet) -> str:
        field = self.fields.get(self.by)
        return styles.glyphs.up if field is not None and field.ascending != self.reverse else styles.glyphs.down

    def _rows(self, places: range, styles: StyleSet) -> Iterator[TableRow]:
        for place in places:
            here = self.active and place == self.cursor
            background: Background = "cursor" if here else "base"
            cursor: Cell = ((styles.glyphs.cursor if here else "", "strong"),)
            yield TableRow(
                (self._keys[place], background), (cursor, *self.cells(place, styles, background)), background
            )


NAME_CELLS: Final = 24
"""Cells of the longest name that is not cut."""
LEAST_WORDS: Final = 14
"""Cells of a last column that fills the line, at least."""


class FieldList(RowList[T]):
    """List whose columns are fields of its rows."""

    WIDTHS: ClassVar[Mapping[str, int]]
    """Cells of each column, from left to right, with one for the mark of the order.

    0 is for the column of names, and for the last one, which fills the line.
    """
    NAMES: ClassVar[str]
    """Column that is as wide as its longest text."""
    NEEDED: ClassVar[Sequence[str]] = ()
    """Columns but the last, the most needed first: a narrow terminal shows fewer. Empty for their order."""

    def __init__(self) -> None:
        super().__init__()
        self._order = StableOrder[T](self.fields, self.identity, lambda _: 0)

    def ordered(self, rows: Sequence[T]) -> list[T]:
        """Sort rows by the chosen column; without one they keep their order."""
        return self._order.sort(rows, self.by, reverse=self.reverse) if self.by else list(rows)

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        longest = max((cell_len(self.fields[self.NAMES].cell(row)) for row in self.found), default=0)
        widths = {**self.WIDTHS, self.NAMES: min(NAME_CELLS, max(longest, 6))}
        *needed, last = widths
        left = width - CURSOR_CELLS - LEAST_WORDS - 1
        kept = {last}
        for key in self.NEEDED or needed:
            left -= widths[key] + 1
            if left < 0 and len(kept) > 1:
                break
            kept.add(key)
        found: list[Column] = []
        for key in (one for one in widths if one in kept):
            role: Role = "strong" if key == self.NAMES else "text"
            gap = 0 if not found else 2 if key == last else 1
            found.append(field_column(self.fields[key], widths[key], role=role, gap=gap))
        return found

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        return tuple(self.cell(column, self.found[place], styles) for column in self._columns)

    def cell(self, column: Column, row: T, styles: StyleSet) -> Cell:
        return ((self.fields[column.id].cell(row, styles.glyphs.missing, styles.glyphs.least), column.role),)
