"""Panels: Textual's widgets around lines that `gpuwatch.ui.draw` makes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.screen import Screen
from textual.strip import Strip
from textual.widget import Widget

from gpuwatch.alerts.alert import Alert
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.alerts import AlertLines
from gpuwatch.ui.draw.footer import FooterLine, Hint, draw_footer
from gpuwatch.ui.draw.lines import Line, changed, plain, width_of
from gpuwatch.ui.draw.row_list import WHEEL, ClickEffect, CursorList
from gpuwatch.ui.draw.theme import Style, StyleSet


@lru_cache(1024)
def rich_style(style: Style) -> RichStyle:
    attributes: dict[str, Any] = {name: True for name, value in style._asdict().items() if value is True}
    return RichStyle(color=style.color, bgcolor=style.background, **attributes)


@contextmanager
def drawing(screen: Screen[Any]) -> Iterator[None]:
    """Context in which panels of a screen show other lines; at its end the screen draws their changed cells at once.

    Textual would send a message to each panel and two to the screen, and wake a timer twice, to draw them later.
    """
    with screen.app.batch_update():
        yield
    screen._on_timer_update()


class LinePanel(Widget):
    """Widget that shows lines; only the cells that changed are drawn again."""

    DEFAULT_CSS = "LinePanel { width: 1fr; height: 1; }"
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()
        """Lines on screen."""
        self._room = (-1, 0)

    def show(self, lines: Sequence[Line]) -> None:
        """Show lines, which have the width of the panel; outside of `drawing` Textual draws them soon."""
        old, self.lines = self.lines, lines
        same_width = bool(old and lines) and width_of(old[0]) == width_of(lines[0])
        if not same_width or len(old) != len(lines):
            if old or lines:
                self.refresh()
            return
        dirty = [
            Region(start, y, end - start, 1)
            for y, (before, after) in enumerate(zip(old, lines, strict=True))
            if before is not after and before != after
            for start, end in changed(before, after)
        ]
        if dirty and self.app._batch_count:
            self._set_dirty(*dirty)
            self.screen._dirty_widgets.add(self)
        elif dirty:
            self.refresh(*dirty)

    def _set_dirty(self, *regions: Region) -> None:
        # Without Textual's caches of rendered lines, which are not used, and cost more than to draw the regions.
        self._repaint_regions.update(regions or (self.size.region,))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a region as they are: a panel has no border, padding or tint that Textual would add."""
        background = self.background_colors[1]
        filters = self.get_line_filters()
        strips = []
        for line in [*self.lines[crop.y : crop.bottom], *[()] * (crop.bottom - len(self.lines))]:
            strip = Strip([Segment(text, rich_style(style)) for text, style, _ in line], width_of(line))
            strip = strip.adjust_cell_length(self.size.width, self.rich_style)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            strips.append(strip.crop(crop.x, crop.right))
        return strips[: crop.height]

    def set_height(self, height: int, above: int = 0) -> None:
        """Set the number of lines, and of blank lines above; Textual computes a new layout only after a change."""
        if self._room != (height, above):
            self._room = (height, above)
            self.styles.height = height
            self.styles.margin = (above, 0, 0, 0)

    @property
    def text(self) -> list[str]:
        return [plain(line) for line in self.lines]


class ListPanel(LinePanel):
    """Panel of a list with a cursor, which the mouse moves and scrolls."""

    @dataclass
    class Clicked(Message):
        """Message: the mouse changed cursor, scroll or order, or chose an item."""

        effect: ClickEffect

    def __init__(self, rows: CursorList[Any], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.rows = rows

    def on_click(self, event: events.Click) -> None:
        effect = self.rows.click(event.x, event.y, again=event.chain > 1)
        if effect:
            self.post_message(self.Clicked(effect))

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scroll(event, WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scroll(event, -WHEEL)

    def _scroll(self, event: events.MouseEvent, by: int) -> None:
        event.stop()
        self.rows.scroll(by)
        self.post_message(self.Clicked("moved"))


class Alerts(LinePanel):
    """Panel of alerts; a click on one shows its process or GPU, and one on their number the list of all."""

    DEFAULT_CSS = "Alerts { pointer: pointer; }"

    @dataclass
    class Chosen(Message):
        """Message: an alert was clicked."""

        alert: Alert

    class Counted(Message):
        """Message: the number of the other alerts was clicked."""

    _drawn = AlertLines()

    def show_alerts(self, drawn: AlertLines) -> None:
        self._drawn = drawn
        self.show(drawn.lines)

    def on_click(self, event: events.Click) -> None:
        if event.y == len(self._drawn.lines) - 1 and event.x >= self._drawn.more:
            self.post_message(self.Counted())
        elif event.y < len(self._drawn.alerts):
            self.post_message(self.Chosen(self._drawn.alerts[event.y]))


class Footer(LinePanel):
    """The line of keys."""

    @dataclass
    class Pressed(Message):
        """Message: a hint was clicked."""

        action: str

    _buttons: Sequence[tuple[int, int, str]]

    def draw(self, found: Sequence[Hint], styles: StyleSet, width: int) -> None:
        """Draw the hints that fit, without those of actions that are refused."""
        refused = actions_of(self).refused
        self.show_keys(draw_footer([hint for hint in found if hint[2] not in refused], styles, width))

    def show_keys(self, drawn: FooterLine) -> None:
        self._buttons = drawn.buttons
        self.show([drawn.line])

    def on_click(self, event: events.Click) -> None:
        for start, end, action in self._buttons:
            if start <= event.x < end:
                self.post_message(self.Pressed(action))
