"""The list under the process list and the list screens: what a row is drawn with, and what is drawn again."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from gpuwatch.fields import Field, table
from gpuwatch.ui.theme import Ground, Skin, make_skin
from gpuwatch.ui.widgets.lines import Line
from gpuwatch.ui.widgets.row_list import RowList
from gpuwatch.ui.widgets.table import Cell, Column

SKIN = make_skin("gpuwatch-dark")
Fruit = tuple[str, int]


class Fruits(RowList[Fruit]):
    """Names and numbers."""

    fields = table((Field("name", "name", lambda row: row[0], ascending=True), Field("number", "number", str)))
    spanning = False

    def identity(self, row: Fruit) -> Hashable:
        return row[0]

    def columns(self, skin: Skin, width: int) -> list[Column]:
        found = [Column("mark", "", 1, gap=1), Column("name", "name", 8, right=False), Column("number", "number", 8)]
        return found if width >= 30 else found[:2]

    def cells(self, place: int, skin: Skin, ground: Ground) -> tuple[Cell, ...]:
        name, number = self.found[place]
        drawn: list[Cell] = [(("*", "note"),), ((name, "text"),), ((str(number), "muted"),)]
        return tuple(drawn[: 2 if self.spanning else len(self._columns)])

    def ordered(self, rows: Sequence[Fruit]) -> list[Fruit]:
        return sorted(rows, key=lambda row: row[self.by == "number"], reverse=self.reverse)


def drawn(fruits: Fruits, width: int = 30, lines: int = 5) -> list[Line]:
    fruits.draw(SKIN, width, lines)
    return list(fruits.lines)


def some(*rows: Fruit) -> Fruits:
    fruits = Fruits()
    fruits.by = "name"
    fruits.update_rows(rows or [("apple", 1), ("fig", 22), ("kiwi", 3)])
    return fruits


def test_titles_and_rows_stand_in_columns() -> None:
    fruits = some()
    drawn(fruits)
    assert fruits.text == [
        "    name▴     number          ",
        "›  *apple          1          ",
        "   *fig           22          ",
        "   *kiwi           3          ",
        " " * 30,
    ]


def test_a_row_that_stays_the_same_is_not_drawn_again() -> None:
    fruits = some()
    before = drawn(fruits)
    fruits.update_rows([("apple", 1), ("fig", 23), ("kiwi", 3)])
    after = drawn(fruits)
    assert [one is two for one, two in zip(before, after, strict=True)][1:4] == [True, False, True]
    assert "23" in fruits.text[2]
    kept = {id(span) for span in before[2]}
    assert [span.text for span in after[2] if id(span) not in kept] == ["      23", " " * 10]


def test_the_last_of_fewer_cells_takes_what_is_left() -> None:
    fruits = some(("a long name of a fruit", 1))
    drawn(fruits)
    assert fruits.text[1] == "›  *a long …       1          "
    fruits.spanning = True
    drawn(fruits)
    assert fruits.text[1] == "›  *a long name of a fruit    "


def test_the_cursor_stays_on_its_row_when_others_come_and_go() -> None:
    fruits = some()
    drawn(fruits)
    fruits.point(1)
    fruits.update_rows([("banana", 5), ("apple", 1), ("fig", 22)])
    assert fruits.selected == ("fig", 22)
    fruits.update_rows([("banana", 5), ("apple", 1)])
    assert fruits.selected == ("banana", 5)
    fruits.update_rows([])
    assert fruits.selected is None
