"""Full screen with one list, facts about the row under the cursor, and the keys.

The screens of people, runs, strays and events are subclasses, each with its list, its words and its keys.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widget import Widget

from gpuwatch.ui.screens.full_screen import FullScreen
from gpuwatch.ui.theme import Role, StyleSet
from gpuwatch.ui.view import View, replay_words
from gpuwatch.ui.widgets.footer import Hint, hints
from gpuwatch.ui.widgets.lines import Line, LineBuilder, LinePanel, blank
from gpuwatch.ui.widgets.notice import notice_lines
from gpuwatch.ui.widgets.row_list import RowList
from gpuwatch.units import long_duration

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

L = TypeVar("L", bound=RowList[Any])

_LABEL: Final = 10
"""Cells of the label of a fact."""


SORT_KEYS: Final = (
    Binding("less_than_sign", "sort(-1)", "sort", id="list.left", tooltip="The column before"),
    Binding("greater_than_sign", "sort(1)", "sort", id="list.right", tooltip="The next column"),
)
"""Keys of the lists that can be sorted."""


def fact_lines(
    facts: Iterable[tuple[str, str]], styles: StyleSet, width: int, lines: int, *, wrapped: str | None = None
) -> list[Line]:
    """Draw labelled facts in `lines` lines, below a coloured line; the fact `wrapped` uses the lines that are left."""
    if lines <= 0:
        return []
    drawn = [LineBuilder(styles, "band").build(width)]
    shown = [(label, words) for label, words in facts if words]
    spare = max(0, lines - 1 - len(shown))
    for label, words in shown:
        parts = wrap(words, max(1, width - 2 - _LABEL)) if label == wrapped else [words]
        kept = [*parts[:spare], " ".join(parts[spare:])] if len(parts) > 1 + spare else parts
        for place, part in enumerate(kept):
            builder = LineBuilder(styles).gap(2).write("" if place else label, "muted", _LABEL)
            drawn.append(builder.write(part, "text", max(0, width - builder.cells)).build(width))
    return (drawn + [blank(styles, width)] * lines)[:lines]


class ListScreen(FullScreen, Generic[L]):
    """Screen with one list."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down,j", "move(1)", "down", show=False, id="list.down", tooltip="The next row"),
        Binding("up,k", "move(-1)", "up", show=False, id="list.up", tooltip="The row before"),
        Binding("pagedown,space", "page(1)", "page down", show=False, id="list.pagedown", tooltip="A screenful down"),
        Binding("pageup,b", "page(-1)", "page up", show=False, id="list.pageup", tooltip="A screenful up"),
        Binding("home,g", "move(-1000000)", "first", show=False, id="list.first", tooltip="The first row"),
        Binding("end,G", "move(1000000)", "last", show=False, id="list.last", tooltip="The last row"),
    ]
    LIST: type[L]
    """Class of its list."""
    TITLE: ClassVar[str]
    KEYS: ClassVar[Sequence[Binding]] = ()
    """Its own keys, the most needed first: a narrow footer leaves out the last ones."""
    DETAIL_LINES: ClassVar[Sequence[tuple[int, int]]] = ((24, 8), (16, 6))
    """Least height of the terminal, and lines about the row under the cursor from that height on."""

    def __init__(self, frame: Frame | None, styles: StyleSet, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is the monotonic clock that frames are stamped with."""
        super().__init__(styles)
        self.rows = self.LIST(id=f"{self.NAME}-list")
        self._frame = frame
        self._clock = clock
        self._detail = LinePanel(id=f"{self.NAME}-detail")

    # -- what each screen has of its own ---------------------------------------------------------------------------

    @abstractmethod
    def read_rows(self) -> None:
        """Update the rows from the newest frame."""

    @abstractmethod
    def summary(self, room: int) -> list[tuple[str, Role]]:
        """Return the parts of the title after the name of the screen, for `room` cells."""

    @abstractmethod
    def detail(self, width: int, lines: int) -> list[Line]:
        """Draw the facts of the row under the cursor, in exactly `lines` lines."""

    @abstractmethod
    def why_empty(self) -> Sequence[str]:
        """Return lines that say why there are no rows."""

    def notes(self) -> Sequence[str]:
        """Return lines for below the rows, where there is room."""
        return ()

    def position(self) -> str:
        """Return the right end of the title: the rows on screen, `1-20 of 47`; empty where all are."""
        return self.rows.part(self.style_set.glyphs.dash)

    def hints(self) -> list[Hint]:
        """Return the keys for the footer, by the row under the cursor."""
        return hints(self.own_keys(self.KEYS))

    def entries(self) -> Iterable[Widget]:
        """Return widgets to type into, which stand above the keys."""
        return ()

    def start(self) -> None:
        """Start the screen's own timers, and what else it needs once its widgets are there."""

    # -- life ------------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        widgets: list[Widget] = [self._title_panel, self.rows, self._detail, *self.entries(), self._footer]
        yield from widgets

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
        room = max(1, height - 1 - footer - detail)
        with self.app.batch_update():
            rows.set_height(room)
            why: list[tuple[str, Role]] = [(words, "muted") for words in self.why_empty()] if not rows.found else []
            empty = notice_lines(why, styles, width, room - (rows.titled and room > 1))
            notes = [line for words in self.notes() for line in wrap(words, max(1, min(120, width - 4)))]
            below = [LineBuilder(styles).gap(2).write(words, "muted").build(width) for words in notes]
            rows.draw(styles, width, room, empty, below=below)
            self._title_panel.show([self._title_line(width)])
            self._detail.display = detail > 0
            self._detail.set_height(max(detail, 1))
            self._detail.show(self.detail(width, detail) if detail else [])
            self._footer.display = footer > 0 and not any(entry.display for entry in self.entries())
            keys = self.hints()
            while len(keys) > 1 and sum(len(key) + len(words) + 3 for key, words, _ in keys) > width:
                keys.pop()
            self._footer.draw(keys, styles, width)

    def _title_line(self, width: int) -> Line:
        position = self.position()
        builder = LineBuilder(self.style_set, "band").gap().write(self.TITLE, "strong").gap(2)
        end = width - 1 - (cell_len(position) + 2 if position else 0)
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

    def on_cursor_panel_moved(self, message: RowList.Moved) -> None:
        message.stop()
        self.paint()

    def on_cursor_panel_chosen(self, message: RowList.Chosen) -> None:
        """Choose the row that was clicked twice."""
        message.stop()
        self.action_choose()

    def action_choose(self) -> None:
        """Run the action of Enter on the row under the cursor."""

    def action_move(self, by: int) -> None:
        self.rows.move(by)

    def action_page(self, by: int) -> None:
        self.rows.page(by)

    def action_sort(self, by: int) -> None:
        self.rows.sort_next(by)

    def action_reverse(self) -> None:
        self.rows.sort_by(self.rows.by)
