"""Full screen with one list, what is known of the row under the cursor, and the keys.

The screens of people, runs, strays and events are subclasses, each with its list, its words and what its keys do.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding
from textual.screen import ModalScreen
from textual.widget import Widget

from gpuwatch.ui.theme import Skin
from gpuwatch.ui.view import View
from gpuwatch.ui.widgets.footer import Footer, Hint, hints
from gpuwatch.ui.widgets.lines import Line, LineBuilder, LinePanel, blank
from gpuwatch.ui.widgets.row_list import RowList
from gpuwatch.units import long_duration

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame
    from gpuwatch.ui.app import GpuwatchApp

L = TypeVar("L", bound=RowList[Any])

_LABEL: Final = 10
"""Cells of a label before a fact."""


def moving_keys(screen: str, *, page_down: str = "pagedown", first: str, last: str) -> list[Binding]:
    """Return the keys that move the cursor of a list; `first` and `last` say which rows those are."""
    return [
        Binding("down,j", "move(1)", "down", show=False, id=f"{screen}.down", tooltip="The next row"),
        Binding("up,k", "move(-1)", "up", show=False, id=f"{screen}.up", tooltip="The row before"),
        Binding(page_down, "page(1)", "page down", show=False, id=f"{screen}.pagedown", tooltip="A screenful down"),
        Binding("pageup,b", "page(-1)", "page up", show=False, id=f"{screen}.pageup", tooltip="A screenful up"),
        Binding("home,g", "move(-1000000)", "first", show=False, id=f"{screen}.first", tooltip=first),
        Binding("end,G", "move(1000000)", "last", show=False, id=f"{screen}.last", tooltip=last),
    ]


def fact_lines(
    facts: Iterable[tuple[str, str]], skin: Skin, width: int, lines: int, *, wrapped: str | None = None
) -> list[Line]:
    """Draw labelled facts below a coloured line, in so many lines; the `wrapped` one takes the lines to spare."""
    if lines <= 0:
        return []
    drawn = [LineBuilder(skin, "band").build(width)]
    shown = [(label, words) for label, words in facts if words]
    spare = max(0, lines - 1 - len(shown))
    for label, words in shown:
        parts = wrap(words, max(1, width - 2 - _LABEL)) if label == wrapped else [words]
        kept = [*parts[:spare], " ".join(parts[spare:])] if len(parts) > 1 + spare else parts
        for place, part in enumerate(kept):
            builder = LineBuilder(skin).gap(2).write("" if place else label, "muted", _LABEL)
            drawn.append(builder.write(part, "text", max(0, width - builder.cells)).build(width))
    return (drawn + [blank(skin, width)] * lines)[:lines]


class ListScreen(ModalScreen[None], Generic[L]):
    """A screen of rows; modal, so that the dashboard's keys do nothing behind it."""

    DEFAULT_CSS = """
    ListScreen {
        background: $background;
        layout: vertical;
        overflow: hidden;
    }
    """

    AUTO_FOCUS = ""
    app: GpuwatchApp
    NAME: ClassVar[str]
    """Beginning of the ids of its widgets: `tree` for `tree-list`."""
    TITLE: ClassVar[str]
    KEYS: ClassVar[Sequence[Binding]] = ()
    """Those that the footer shows, among others."""
    DETAIL_LINES: ClassVar[Sequence[tuple[int, int]]] = ((24, 8), (16, 6))
    """Lines about the row under the cursor, by the height from which on there are so many."""

    def __init__(
        self, rows: L, frame: Frame | None, skin: Skin, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Show `rows`; `clock` is the monotonic clock that frames are stamped with."""
        super().__init__()
        self.rows = rows
        rows.id = f"{self.NAME}-list"
        self._frame = frame
        self._skin = skin
        self._clock = clock
        self._title_panel = LinePanel(id=f"{self.NAME}-title")
        self._detail = LinePanel(id=f"{self.NAME}-detail")
        self._footer = Footer(id=f"{self.NAME}-keys")
        self._ready = False
        """Whether there are widgets to draw in."""

    # -- what each screen has of its own ---------------------------------------------------------------------------

    @abstractmethod
    def read_rows(self) -> None:
        """Update the rows from the newest frame."""

    @abstractmethod
    def write_title(self, builder: LineBuilder, width: int) -> None:
        """Write what stands behind the name of the screen."""

    @abstractmethod
    def detail(self, width: int, lines: int) -> list[Line]:
        """Draw what is known of the row under the cursor, in exactly so many lines."""

    @abstractmethod
    def empty(self, width: int, lines: int) -> list[Line]:
        """Draw why there are no rows."""

    def below(self, width: int) -> list[Line]:
        """Draw what stands below the rows, where there is room."""
        return []

    def hints(self, width: int) -> list[Hint]:
        """Return the keys for the footer."""
        return hints(self.KEYS)

    def entries(self) -> Iterable[Widget]:
        """Return widgets to type into, which stand above the keys."""
        return ()

    def start(self) -> None:
        """Begin whatever goes on for as long as the screen is open."""

    # -- life ------------------------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        """Build the title, the list, the lines about the chosen row, and the keys."""
        widgets: list[Widget] = [self._title_panel, self.rows, self._detail, *self.entries(), self._footer]
        yield from widgets

    def on_mount(self) -> None:
        """Show what there is, and look once a second whether frames still come."""
        self._ready = True
        self.set_interval(1.0, self._beat)
        self.start()
        self.refresh_frame(self._frame)

    def _beat(self) -> None:
        if self.old():
            self.paint()

    def old(self) -> str:
        """Print how old the figures are, `14 s old`; empty while they are new."""
        if self._frame is None:
            return ""
        view = View(self._frame, self._clock(), self._skin, self._frame.snapshot.interval)
        return f"{long_duration(int(view.newest_age))} old" if view.behind else ""

    def refresh_frame(self, frame: Frame | None) -> None:
        """Show a new frame."""
        self._frame = frame
        if self._ready:
            self.read_rows()
            self.paint()

    def set_skin(self, skin: Skin) -> None:
        """Draw by another theme."""
        self._skin = skin
        self.paint()

    def paint(self) -> None:
        """Draw everything."""
        if not self._ready or not self.children:  # it is being made, or taken away
            return
        width, height = self.app.size
        skin, rows = self._skin, self.rows
        detail = next((lines for least, lines in self.DETAIL_LINES if height >= least), 0)
        footer = 1 if height >= 4 else 0
        room = max(1, height - 1 - footer - detail)
        with self.app.batch_update():
            rows.set_height(room)
            empty = [] if rows.found else self.empty(width, room - (rows.titled and room > 1))
            rows.draw(skin, width, room, empty, below=self.below(width))
            builder = LineBuilder(skin, "band").gap().write(self.TITLE, "strong").gap(2)
            self.write_title(builder, width)
            self._title_panel.show([builder.build(width)])
            self._detail.display = detail > 0
            self._detail.set_height(max(detail, 1))
            self._detail.show(self.detail(width, detail) if detail else [])
            self._footer.display = footer > 0 and not any(entry.display for entry in self.entries())
            self._footer.draw(self.hints(width), skin, width)

    def write_old(self, builder: LineBuilder) -> None:
        """Write how old the figures are, where they are."""
        old = self.old()
        if old:
            builder.write(old, "warning").gap(2)

    def write_right(self, builder: LineBuilder, words: str, width: int) -> None:
        """Write words at the right edge of the title, two blanks behind the others at least."""
        if words:
            builder.gap(max(2, width - builder.cells - cell_len(words) - 1)).write(words, "muted")

    def on_resize(self) -> None:
        """Lay everything out again."""
        self.paint()

    # -- what the user does ----------------------------------------------------------------------------------------

    def on_row_list_moved(self, message: RowList.Moved) -> None:
        """Draw the cursor and what is on screen."""
        message.stop()
        self.paint()

    def on_row_list_chosen(self, message: RowList.Chosen) -> None:
        """Choose the row that was clicked twice."""
        message.stop()
        self.action_choose()

    def on_footer_pressed(self, message: Footer.Pressed) -> None:
        """Do what the key would do."""
        message.stop()
        self.call_later(self._press, message.action)

    async def _press(self, action: str) -> None:
        if self.is_active:  # not where the click before has opened something over this
            await self.run_action(action)

    def action_choose(self) -> None:
        """Do what Enter does for the row under the cursor; nothing where a screen does not say what."""

    def action_close(self) -> None:
        """Go back."""
        self.dismiss(None)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.rows.move(by)

    def action_page(self, by: int) -> None:
        """Move the cursor by a screenful."""
        self.rows.page(by)

    def action_sort(self, by: int) -> None:
        """Sort by the next column."""
        self.rows.sort_next(by)

    def action_reverse(self) -> None:
        """Reverse the order."""
        self.rows.sort_by(self.rows.by)
