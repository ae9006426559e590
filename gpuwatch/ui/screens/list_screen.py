"""Full screen with one list, facts about the row under the cursor, and the keys.

The screens of people, runs, strays and events are subclasses, each with its list, its words and its keys.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget

from gpuwatch.base.units import long_duration
from gpuwatch.model.filters import ListFilter, Term
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.footer import Hint, hints
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank
from gpuwatch.ui.draw.notice import notice_lines
from gpuwatch.ui.draw.row_list import RowList
from gpuwatch.ui.draw.theme import Role, StyleSet
from gpuwatch.ui.draw.view import View, replay_words
from gpuwatch.ui.screens.full_screen import FullScreen
from gpuwatch.ui.widgets.panels import LinePanel, ListPanel, drawing
from gpuwatch.ui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

L = TypeVar("L", bound=RowList[Any])
R = TypeVar("R")

_LABEL: Final = 10
"""Cells of the label of a fact."""


_LEAST_DETAIL: Final = 3
"""Lines left by the rows that are enough for facts where a terminal is too low to keep any for them."""
SORT_KEYS: Final = (
    Binding("less_than_sign", "sort(-1)", "sort", id="list.left", tooltip="Sort by the previous column"),
    Binding("greater_than_sign", "sort(1)", "sort", id="list.right", tooltip="Sort by the next column"),
)
"""Keys of the lists that can be sorted."""


def fact_lines(facts: Iterable[tuple[str, str]], styles: StyleSet, width: int, lines: int) -> list[Line]:
    """Draw labelled facts in `lines` lines, below a coloured line; long facts wrap into the lines that are left."""
    if lines <= 0:
        return []
    drawn = [LineBuilder(styles, "band").build(width)]
    shown = [(label, words) for label, words in facts if words]
    spare = max(0, lines - 1 - len(shown))
    for label, words in shown:
        parts = wrap(words, max(1, width - 2 - _LABEL))
        kept = [*parts[:spare], " ".join(parts[spare:])] if len(parts) > 1 + spare else parts
        spare -= len(kept) - 1
        for place, part in enumerate(kept):
            builder = LineBuilder(styles).gap(2).write("" if place else label, "muted", _LABEL)
            drawn.append(builder.write(part, "text", max(0, width - builder.cells)).build(width))
    return (drawn + [blank(styles, width)] * lines)[:lines]


class ListScreen(FullScreen, Generic[L, R]):
    """Screen with one list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", show=False, id="list.down", tooltip="Move to the next row"),
        Binding("up,k", "move(-1)", "up", show=False, id="list.up", tooltip="Move to the previous row"),
        Binding("pagedown,space", "page(1)", "page down", show=False, id="list.pagedown", tooltip="Move down a page"),
        Binding("pageup,b", "page(-1)", "page up", show=False, id="list.pageup", tooltip="Move up a page"),
        Binding("home,g", "move(-1000000)", "first", show=False, id="list.first", tooltip="Move to the first row"),
        Binding("end,G", "move(1000000)", "last", show=False, id="list.last", tooltip="Move to the last row"),
    ]
    LIST: type[L]
    """Class of its list."""
    TITLE: ClassVar[str]
    KEYS: ClassVar[Sequence[Binding]] = ()
    """Its own keys, the most needed first: a narrow footer leaves out the last ones."""
    DETAIL_LINES: ClassVar[Sequence[tuple[int, int]]] = ((24, 8), (16, 6))
    """Least height of the terminal, and least lines about the row under the cursor from that height on.

    They are below the last row, and use the lines that the rows leave; a lower terminal has only these.
    """

    def __init__(self, frame: Frame | None, styles: StyleSet, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is the monotonic clock that frames are stamped with."""
        super().__init__(styles)
        self.rows = self.LIST()
        self._frame = frame
        self._clock = clock
        self.list_panel = ListPanel(self.rows, id=f"{self.NAME}-list")
        self._detail = LinePanel(id=f"{self.NAME}-detail")

    # -- what each screen has of its own ---------------------------------------------------------------------------

    @abstractmethod
    def read_rows(self) -> None:
        """Update the rows from the newest frame."""

    @abstractmethod
    def summary(self, room: int) -> list[tuple[str, Role]]:
        """Return the parts of the title after the name of the screen, for `room` cells."""

    def facts(self, row: R) -> Sequence[tuple[str, str]]:
        """Return labelled facts of a row; those without words are left out."""
        return ()

    def detail(self, width: int, lines: int) -> list[Line]:
        """Draw the facts of the row under the cursor, in exactly `lines` lines."""
        row = self.selected
        facts = self.facts(row) if row is not None else ()
        return fact_lines(facts, self.style_set, width, lines)

    @abstractmethod
    def why_empty(self) -> Sequence[str]:
        """Return lines that explain why there are no rows."""

    def notes(self) -> Sequence[str]:
        """Return lines for below the rows, where there is room."""
        return ()

    def notice(self) -> str:
        """Return a warning for below the title, in one line or more; empty for none."""
        return ""

    def position(self) -> str:
        """Return the right end of the title: the rows on screen, `1-20 of 47`; empty where all are."""
        return self.rows.part(self.style_set.glyphs.dash)

    def hints(self) -> list[Hint]:
        """Return the keys for the footer, by the row under the cursor."""
        changed = self.key_words()
        found = [(key, changed.get(action, word), action) for key, word, action in hints(self.own_keys(self.KEYS))]
        return [hint for hint in found if hint[1]]

    def key_words(self) -> Mapping[str, str]:
        """Return other words for keys, by their actions; a key with none is left out."""
        return {}

    def entries(self) -> Iterable[Widget]:
        """Return input widgets, which are placed above the keys."""
        return ()

    def start(self) -> None:
        """Start timers and other work of the screen, once its widgets exist."""

    @property
    def selected(self) -> R | None:
        return cast("R | None", self.rows.selected)

    # -- life ------------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield from (self._title_panel, self._notice_panel, self.list_panel, self._detail)
        yield from (*self.entries(), self._footer)

    def on_mount(self) -> None:
        super().on_mount()
        self.set_interval(1.0, self._beat)
        self.start()
        self.refresh_frame(self._frame)

    def _beat(self) -> None:
        if self.old():
            self.paint()

    def old(self) -> str:
        """Return how old the figures are, `14 s old`; empty while they are new."""
        if self._frame is None:
            return ""
        view = View(self._frame, self._clock(), self.style_set, self._frame.snapshot.interval)
        return f"{long_duration(int(view.newest_age))} old" if view.behind else ""

    def refresh_frame(self, frame: Frame | None) -> None:
        self._frame = frame
        if self.ready:
            self.read_rows()
            self.paint()

    def paint(self) -> None:
        if self.hidden:
            return
        width, height = self.app.size
        styles, rows = self.style_set, self.rows
        detail = next((lines for least, lines in self.DETAIL_LINES if height >= least), 0)
        footer = 1 if height >= 4 else 0
        notice = wrap(self.notice(), max(1, width - 2))[: max(0, height - 3)]
        room = max(1, height - 1 - len(notice) - footer - detail)
        notes = [line for words in self.notes() for line in wrap(words, max(1, min(120, width - 4)))]
        most = room - rows.titled - len(rows.found) - 1 - _LEAST_DETAIL
        if 0 < most < len(notes):  # what is known of the row counts more than the end of the notes
            notes = [*notes[: most - 1], f"{notes[most - 1]} {styles.glyphs.ellipsis}"]
        spare = max(0, room - rows.titled - len(rows.found) - len(notes) - bool(notes)) if rows.found else 0
        if detail or spare >= _LEAST_DETAIL:
            room, detail = room - spare, detail + spare
        with drawing(self):
            self.list_panel.set_height(room)
            why: list[tuple[str, Role]] = [(words, "muted") for words in self.why_empty()] if not rows.found else []
            empty = notice_lines(why, styles, width, room - (rows.titled and room > 1))
            below = [LineBuilder(styles).gap(2).write(words, "muted").build(width) for words in notes]
            self.list_panel.show(rows.lines(styles, width, room, empty, below=below))
            self._detail.display = detail > 0
            self._detail.set_height(max(detail, 1))
            self._detail.show(self.detail(width, detail) if detail else [])
            keys = self.hints()
            while len(keys) > 1 and sum(len(key) + len(words) + 3 for key, words, _ in keys) > width:
                keys.pop()
            warnings = [LineBuilder(styles).gap().write(line, "warning").build(width) for line in notice]
            is_typing = any(entry.display for entry in self.entries())
            self.draw_frame(self._title_line(width), warnings, keys, has_footer=not is_typing)

    def _title_line(self, width: int) -> Line:
        position = self.position()
        builder = LineBuilder(self.style_set, "band").gap().write(self.TITLE, "strong").gap(2)
        end = width - 1 - (cell_len(position) + 2 if position else 0)
        if self._frame is not None and (host := actions_of(self).options.host):
            builder.write(host, "text").gap(2)
        for words in filter(None, (replay_words(self._frame), self.old())):
            builder.write(words, "warning").gap(2)
        for words, role in self.summary(end - builder.cells):
            room = end - builder.cells
            if words and room > 0:
                builder.write(words, role, min(cell_len(words), room)).gap(2)
        if position:
            builder.gap(max(0, end + 2 - builder.cells)).write(position, "muted")
        return builder.build(width)

    # -- what the user does ----------------------------------------------------------------------------------------

    def on_list_panel_clicked(self, message: ListPanel.Clicked) -> None:
        """Draw the list again, or choose the row that was clicked twice."""
        message.stop()
        if message.effect == "box":
            self.action_select()
        elif message.effect == "chosen":
            self.action_choose()
        else:
            self.paint()

    def action_select(self) -> None:
        """Select the row under the cursor, or unselect it."""

    def choose(self, row: R) -> None:
        """Do what Enter does on a row."""

    def action_choose(self) -> None:
        if (row := self.selected) is not None:
            self.choose(row)

    def action_move(self, by: int) -> None:
        self.rows.move(by)
        self.paint()

    def action_page(self, by: int) -> None:
        self.rows.page(by)
        self.paint()

    def action_sort(self, by: int) -> None:
        self.rows.sort_next(by)
        self.paint()

    def action_reverse(self) -> None:
        self.rows.sort_by(self.rows.by)
        self.paint()


FILTER_KEY: Final = Binding(
    # Priority, as on the dashboard: keys that are typed in the same moment already go to the filter.
    "slash", "filter", "filter", id="list.filter", tooltip="Filter the rows", priority=True
)  # fmt: skip


class FilteredListScreen(ListScreen[L, R]):
    """Screen with one list and a filter of its rows, which follows each key. Its `paint` draws the rows that match."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("n", "find(1)", "next match", show=False, id="list.next", tooltip="Jump to the next match"),
        Binding("N", "find(-1)", "previous match", show=False, id="list.before", tooltip="Jump to the previous match"),
    ]
    FILTER_HINT: ClassVar[str]
    """How a filter looks, with two blanks between its terms."""
    ROW: ClassVar[str]
    """What a row is: `event`."""

    def __init__(self, frame: Frame | None, styles: StyleSet, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(frame, styles, clock=clock)
        self.filter: ListFilter[R] = ListFilter()
        self.prompt = Prompt(
            lambda text, saved: ListFilter(text.strip(), self.parse_filter(text, saved)), self.FILTER_HINT
        )

    @abstractmethod
    def parse_filter(self, words: str, saved: Mapping[str, str]) -> tuple[Term[R], ...]:
        """Parse a filter of the rows; `saved` are the saved filters by name. Raises FilterError."""

    def entries(self) -> Iterable[Widget]:
        return (self.prompt,)

    def on_prompt_changed(self, message: Prompt.Changed) -> None:
        message.stop()
        self.filter = message.filter
        self.paint()

    def on_prompt_sought(self, message: Prompt.Sought) -> None:
        message.stop()
        self.action_find(1)

    def on_prompt_left(self, message: Prompt.Left) -> None:
        message.stop()
        self.paint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave `/` to the filter where it is open."""
        return action != "filter" or not self.prompt.display

    def action_filter(self) -> None:
        self.prompt.open(self.filter.text, self.style_set)
        self.paint()

    def action_find(self, by: int) -> None:
        """Move the cursor to the next row that matches the last filter; ask where there was none."""
        self.prompt.find(self.rows, by, self.ROW, self.style_set)
        self.paint()

    def action_close(self) -> None:
        """Close what asks where to jump, or clear the filter where there is one; otherwise go back."""
        prompt = self.prompt
        if not (prompt.display or self.filter.text):
            self.leave()
            return
        if not (prompt.display and prompt.finding):
            self.filter = ListFilter()
        prompt.cancel()

    def leave(self) -> None:
        """Go back to the screen below."""
        self.dismiss(None)
