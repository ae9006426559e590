"""Full screen of a page that scrolls, and of graphs over time with keys for their span and cursor."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from concurrent.futures import Future
from typing import TYPE_CHECKING, ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.alerts.alert import Alert
from gpuwatch.base.text import clean
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.footer import Hint, hints
from gpuwatch.ui.draw.row_list import WHEEL
from gpuwatch.ui.draw.sheet import Canvas, Placed, SheetDrawing, SheetPage
from gpuwatch.ui.draw.theme import StyleSet, make_styles
from gpuwatch.ui.draw.time_axis import SPANS
from gpuwatch.ui.draw.time_graphs import FrameGraphs, GraphBlock, TimeGraphs
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.full_screen import FullScreen
from gpuwatch.ui.widgets.panels import LinePanel, drawing

if TYPE_CHECKING:
    from gpuwatch.analysis.events import Events
    from gpuwatch.monitor import Frame


class Sheet(FullScreen):
    """Screen of a page, which a function makes again for each frame, size and set of styles."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "back", id="sheet.close", tooltip="Back to the dashboard"),
        Binding("down,j", "line(1)", "down", show=False, id="sheet.down", tooltip="Scroll down"),
        Binding("up,k", "line(-1)", "up", show=False, id="sheet.up", tooltip="Scroll up"),
        Binding("space,pagedown", "page(1)", "scroll", id="sheet.page_down", tooltip="Scroll down one page"),
        Binding("pageup,b", "page(-1)", "page up", show=False, id="sheet.page_up", tooltip="Scroll up one page"),
        Binding("home,g", "end(0)", "top", show=False, id="sheet.top", tooltip="Scroll to the top"),
        Binding("end,G", "end(1)", "bottom", show=False, id="sheet.bottom", tooltip="Scroll to the bottom"),
    ]

    LEFT: ClassVar[float] = 0.5
    """Part of the width that the left half has; 1.0 for one column at any width."""

    def __init__(self, styles: StyleSet | None = None) -> None:
        super().__init__(styles or make_styles("gpuwatch-dark"))
        self.drawing = SheetDrawing()
        self.page = SheetPage("", ())
        self._body = LinePanel(id="body")

    @abstractmethod
    def make_page(self, canvas: Canvas) -> SheetPage:
        """Return the page as it is now."""

    def compose(self) -> ComposeResult:
        yield from (self._title_panel, self._notice_panel, self._body, self._footer)

    def on_mount(self) -> None:
        super().on_mount()
        self.redraw()

    @property
    def canvas(self) -> Canvas:
        return Canvas(self.style_set, *self.app.size, self.LEFT)

    @property
    def room(self) -> int:
        """Lines between title and keys."""
        return self.canvas.room(self.page.notice)

    def redraw(self) -> None:
        if not self.hidden:
            self.page = self.make_page(self.canvas)
            self.paint()

    def paint(self) -> None:
        """Draw the page, as far as it is on screen."""
        if self.hidden:
            return
        page, canvas = self.page, self.canvas
        with drawing(self):
            self._body.set_height(self.room)
            self._body.show(self.drawing.draw(page, canvas))
            self.draw_frame(canvas.title_line(page), canvas.notice_lines(page.notice, page.notice_role), self.hints())

    def hints(self) -> list[Hint]:
        """Return the keys for the footer, the most needed first."""
        own = [
            binding for kind in type(self).__mro__ if kind is not Sheet for binding in vars(kind).get("BINDINGS", ())
        ]
        bindings = [binding for binding in (*own, *Sheet.BINDINGS) if isinstance(binding, Binding)]
        found = hints(self.own_keys(bindings))
        if self.drawing.length <= self.room:
            found = [hint for hint in found if hint[2] != "page(1)"]
        return [hint for hint in found if self.check_action(hint[2].partition("(")[0], ())]

    # -- what the user does ----------------------------------------------------------------------------------------

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_line(WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_line(-WHEEL)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._point(event, 0)

    def on_click(self, event: events.Click) -> None:
        self._point(event, event.chain)

    def _point(self, event: events.MouseEvent, clicks: int) -> None:
        """Find the part under the mouse, which was moved, or clicked `clicks` times."""
        if event.widget is self._body and (placed := self.drawing.at(event.x, event.y)) is not None:
            self.point(placed, event.x - placed.x, event.y + self.drawing.top - placed.y, clicks)

    def point(self, placed: Placed, x: int, y: int, clicks: int) -> None:
        """React to the mouse over a part; `clicks` is 0 where it was only moved."""

    def action_line(self, lines: int) -> None:
        self.drawing.top += lines
        self.paint()

    def action_page(self, pages: int) -> None:
        """Scroll by pages, less one line."""
        self.action_line(pages * max(1, self.room - 1))

    def action_end(self, bottom: int) -> None:
        self.drawing.top = 0
        self.action_line(self.drawing.length if bottom else 0)


class TimeSheet(Sheet):
    """Sheet with graphs over a span of time, wherever their values come from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                str(number),
                f"span({span:.0f})",
                "span",
                id=f"graph.span.{number}",
                key_display="1-5" if number == 1 else None,
                show=number == 1,
                tooltip=f"Show the last {name}",
            )
            for number, (span, name) in enumerate(SPANS.items(), 1)
        ),
        Binding("left", "read(-1)", "time", id="graph.left", tooltip="Show earlier values in the graphs"),
        Binding("right", "read(1)", "time", id="graph.right", tooltip="Show later values in the graphs"),
        Binding("comma", "window(-1)", "shift", id="graph.earlier", key_display=", .", tooltip="Show an earlier time"),
        Binding("full_stop", "window(1)", "later", show=False, id="graph.later", tooltip="Show a later time"),
    ]

    graphs: TimeGraphs

    def action_span(self, seconds: float) -> None:
        self.graphs.set_span(float(seconds))
        self.redraw()

    def action_read(self, by: int) -> None:
        self.graphs.move_cursor(by)
        self.redraw()

    def action_window(self, by: int) -> None:
        self.graphs.move_window(by)
        self.redraw()

    def action_close(self) -> None:
        """Remove the cursor, or show the newest values again; without either go back."""
        if self.graphs.reset():
            self.redraw()
        else:
            self.dismiss(None)

    def point(self, placed: Placed, x: int, y: int, clicks: int) -> None:
        """Put the cursor where the mouse is over a graph."""
        if isinstance(placed.part, GraphBlock) and y > 0 and self.graphs.point(x):
            self.redraw()


class FrameSheet(TimeSheet):
    """Sheet of graphs and facts about a frame, from the timeline and the stores."""

    class OlderRead(Message):
        """Message: what was recorded before has been read."""

    class EventsRead(Message):
        """Message: the events log has been read."""

    graphs: FrameGraphs

    def __init__(
        self,
        frame: Frame,
        styles: StyleSet | None = None,
        helpers: Helpers | None = None,
        ended: Collection[Alert] = (),
    ) -> None:
        super().__init__(styles)
        self.graphs = FrameGraphs(frame, self.style_set, ended)
        self.helpers = helpers or Helpers()
        self._older: Future[None] | None = None
        self._log: Future[Events] | None = None

    @property
    def frame(self) -> Frame:
        return self.graphs.frame

    def on_mount(self) -> None:
        if self.helpers.events is not None:
            self._log = actions_of(self).background("gpuwatch-graphs")(self.helpers.events)
            self._log.add_done_callback(lambda _: self.post_message(self.EventsRead()))
        self.observe()
        super().on_mount()

    def observe(self) -> None:
        """Keep what the newest frame has, for when a later one lacks it."""

    def on_frame_sheet_events_read(self) -> None:
        """Show the events of the log; if it cannot be read, only those of this run are shown."""
        if self._log is not None and self._log.exception() is None:
            self.graphs.recorded = self._log.result().finished
        self._log = None
        self.redraw()

    @property
    def reading(self) -> bool:
        return self._log is not None

    def redraw(self) -> None:
        super().redraw()
        if not self.hidden and self._read_older():
            super().redraw()  # the title says so

    def _read_older(self) -> bool:
        """Read what was recorded before where the graphs begin later than their span; once for a timeline."""
        older, timeline, now = self.helpers.older, self.frame.history.timeline, self.graphs.now
        if older is None or self._older is not None or not self.graphs.lacks_older:
            return False
        self._older = actions_of(self).background("gpuwatch-graphs")(lambda: older(timeline, now))
        self.graphs.reads_older = not self._older.done()
        self._older.add_done_callback(lambda _: self.post_message(self.OlderRead()))
        return True

    def on_frame_sheet_older_read(self) -> None:
        is_done = self._older is not None and self._older.done()
        if self._older is not None and is_done and (error := self._older.exception()) is not None:
            self.app.notify(clean(f"older data cannot be read: {error}"), severity="warning", markup=False)
        self.graphs.reads_older = self._older is not None and not is_done
        self.graphs.forget()
        self.redraw()

    def refresh_frame(self, frame: Frame) -> None:
        if self.graphs.update(frame):
            self._older, self.graphs.reads_older = None, False
        self.observe()
        self.redraw()
