"""People screen: one row for each person, with the GPU memory and the processes that they have."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec.structs import replace
from rich.cells import cell_len
from textual.binding import Binding, BindingType

from gpuwatch.analysis.people import PERSON, Person, people, stable_order, story, totals
from gpuwatch.base.units import ranges
from gpuwatch.model.shares import is_pending, was_read
from gpuwatch.model.snapshot import Process
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank
from gpuwatch.ui.draw.notice import nothing_words
from gpuwatch.ui.draw.row_list import RowList
from gpuwatch.ui.draw.table import Cell, Column, UsefulColumns, bar_cell, field_column
from gpuwatch.ui.draw.theme import Background, Role, StyleSet
from gpuwatch.ui.screens.list_screen import SORT_KEYS, ListScreen

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame


LEAST_BAR: Final = 10
"""Least cells of a bar; a shorter one would not be readable."""
LONGEST_BAR: Final = 80
_BADGE: Final = Column("badge", "", 1, right=False)


_FIXED: Final = {
    "memory": field_column(PERSON["memory"], 8, role="strong"),
    "part": field_column(PERSON["part"], 8),
    "declared": field_column(PERSON["declared"], 10, role="muted"),
    "sm": field_column(PERSON["sm"], 7),
    "use": field_column(PERSON["use"], 9, role="muted"),
    "waste": field_column(PERSON["waste"], 8),
    "longest": field_column(PERSON["longest"], 10),
    "processes": field_column(PERSON["processes"], 7, role="muted"),
}
_NEEDED: Final = ("user", "memory", "longest", "sm", "part", "gpus", "waste", "bar", "use", "processes", "declared")
"""Columns, the most needed first: a narrow terminal shows fewer."""
_SHOWN: Final = ("user", "bar", "memory", "part", "declared", "gpus", "sm", "use", "waste", "longest", "processes")
"""Columns from left to right."""


def columns(width: int, found: Sequence[Person], useless: Collection[str] = ()) -> list[Column]:
    """Return the columns that fit; a wider terminal shows at least those of a narrower one."""
    longest = max((cell_len(name_of(one)) for one in found), default=0)
    most = 24 if width >= 100 else 16 if width >= 70 else 10 if width >= 50 else 8
    cards = max((len(ranges(one.gpus)) for one in found), default=0)
    sized = {
        **_FIXED,
        # A name may fill its column; the next column begins with blanks.
        "user": field_column(PERSON["user"], min(most, max(8, longest)), gap=1),
        "gpus": field_column(PERSON["gpus"], min(10, max(5, cards)), role="muted", gap=2),
        "bar": Column("bar", "memory", LEAST_BAR, right=False, gap=2, order="memory"),
    }
    kept: list[str] = []
    left = width - 2 - _BADGE.cells
    for name in _NEEDED:
        if name in useless:
            continue
        cells = sized[name].gap + sized[name].cells
        if cells > left and kept:
            break
        left -= cells
        kept.append(name)
    if "bar" in kept:
        sized["bar"] = replace(sized["bar"], cells=min(LONGEST_BAR, LEAST_BAR + max(0, left - 1)))
    return [_BADGE, *(sized[name] for name in _SHOWN if name in kept)]


def _is_read(process: Process) -> bool | None:
    """Return whether it is known what a process declared; None where that may be read yet."""
    return True if was_read(process.declared) else None if is_pending(process.declared) else False


def name_of(one: Person) -> str:
    return "owner unknown" if one.uid is None else one.name


class PeopleList(RowList[Person]):
    """List of people; the cursor follows the person, not the line."""

    fields = PERSON

    def __init__(self) -> None:
        super().__init__()
        self.by = "memory"
        self._order = stable_order()
        self._largest = 1
        """Bytes of the person with the most memory, to whom the bars are scaled."""
        self.useful = UsefulColumns[Process]({"declared": _is_read})

    @property
    def unseen_order(self) -> str:
        """The order in words where no column on screen shows it; otherwise empty."""
        shown = [column.id for column in self._columns]
        return "" if self.by in shown or not shown else f"by {PERSON[self.by].name}"

    def identity(self, row: Person) -> Hashable:
        """Return the uid, in a tuple: the uid of people who are not visible is None."""
        return (row.uid,)

    def ordered(self, rows: Sequence[Person]) -> list[Person]:
        return self._order.sort(rows, self.by, reverse=self.reverse)

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        self._largest = max([1, *(one.memory for one in self.found)])
        return columns(width, self.found, self.useful.useless)

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        one = self.found[place]
        role: Role = "strong" if one.viewer else "muted" if one.uid is None else "text"
        cells: list[Cell] = []
        for column in self._columns:
            if column.id == "badge":
                cells.append(((styles.initial(one.uid), styles.badge(one.uid, background)),))
            elif column.id == "user":
                cells.append(((name_of(one), role),))
            elif column.id == "bar":
                cells.append(bar_cell(one.memory / self._largest, one.uid, column.cells, styles))
            else:
                cells.append(((PERSON[column.id].cell(one, styles.glyphs.missing, styles.glyphs.least), column.role),))
        return tuple(cells)


class PeopleScreen(ListScreen[PeopleList, Person]):
    """Screen that lists people."""

    LIST = PeopleList
    NAME = TITLE = "people"
    KEYS = (
        Binding("escape,q,u", "close", "back", id="people.close", tooltip="Back to the dashboard"),
        Binding(
            "enter", "choose", "show only this user", id="people.choose", tooltip="Show only the processes of this user"
        ),
        *SORT_KEYS,
        Binding("r", "reverse", "reverse", id="people.reverse", tooltip="Reverse the sort order"),
        Binding("y", "message", "message", id="people.message", tooltip="Copy a message for this user"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]
    DETAIL_LINES = ((24, 5), (16, 4), (10, 2))

    def read_rows(self) -> None:
        if self._frame is not None:
            self.style_set.add_people(self._frame.holdings.names)
            self.rows.useful.update(self._frame.snapshot.processes, self._frame.received)
            self.rows.update_rows(people(self._frame.holdings, self._frame.history))

    def summary(self, room: int) -> list[tuple[str, Role]]:
        if self._frame is None or not self._frame.snapshot.gpus:
            return []
        forms = totals(self.rows.found, self._frame.snapshot)
        return [(next((form for form in forms if cell_len(form) <= room), forms[-1]), "text")]

    def position(self) -> str:
        return f" {self.style_set.glyphs.dot} ".join(filter(None, (super().position(), self.rows.unseen_order)))

    def detail(self, width: int, lines: int) -> list[Line]:
        """Draw sentences about the person, below a coloured line where there is room for one."""
        drawn = [LineBuilder(self.style_set, "band").build(width)] if lines >= 4 else []
        chosen = self.rows.selected
        if chosen is not None and self._frame is not None:
            words = self._story(chosen, self._frame, width - 3, lines - len(drawn))
            drawn += [
                LineBuilder(self.style_set).gap(2).write(text, "text", max(0, width - 3)).build(width) for text in words
            ]
        return (drawn + [blank(self.style_set, width)] * lines)[:lines]

    @staticmethod
    def _story(chosen: Person, frame: Frame, width: int, lines: int) -> list[str]:
        """Return sentences that fit into `lines` lines; the first is left out first, as the list shows the same."""
        sentences = story(chosen, frame.snapshot.taken, frame.history.watched)
        for kept in (sentences, sentences[1:], sentences[-1:]):
            wrapped = [part for sentence in kept for part in wrap(sentence, max(1, width))]
            if wrapped and len(wrapped) <= lines:
                return wrapped
        return [*wrapped[: lines - 1], " ".join(wrapped[lines - 1 :])]

    def why_empty(self) -> Sequence[str]:
        seen = self._frame.snapshot if self._frame is not None else None
        return ["no data yet" if seen is None else nothing_words(seen) or "nobody uses a GPU"]

    # -- what the user does ----------------------------------------------------------------------------------------

    def choose(self, row: Person) -> None:
        """Go back to the dashboard, and show only the processes of a person."""
        self.dismiss(None)
        actions_of(self).show_only_user(row.uid)

    def action_message(self) -> None:
        if (chosen := self.selected) is not None:
            actions_of(self).write_to_owner(self._frame, lambda row: row.process.uid == chosen.uid)
