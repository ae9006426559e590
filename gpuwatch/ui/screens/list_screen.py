"""A full screen with one list and its keys; what it says of the row under the cursor is each screen's own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.screen import ModalScreen

from gpuwatch.ui.theme import Kit
from gpuwatch.ui.view import View
from gpuwatch.ui.widgets.footer import Footer
from gpuwatch.ui.widgets.lines import CursorList
from gpuwatch.units import long_duration

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame


class ListScreen(ModalScreen[None]):
    """A screen of rows; modal, so that the dashboard's keys do nothing behind it."""

    DEFAULT_CSS = """
    ListScreen {
        background: $background;
        layout: vertical;
        overflow: hidden;
    }
    """

    AUTO_FOCUS = ""

    def __init__(self, frame: Frame | None, kit: Kit, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is the monotonic clock that frames are stamped with."""
        super().__init__()
        self._frame = frame
        self._kit = kit
        self._clock = clock

    def on_mount(self) -> None:
        """Look once a second whether frames still come; a screen's own `on_mount` is called besides."""
        self.set_interval(1.0, self._beat)

    def _beat(self) -> None:
        if self.old():
            self.paint()

    def old(self) -> str:
        """Say how old the figures are, `14 s old`; empty while they are new."""
        if self._frame is None:
            return ""
        view = View(self._frame, self._clock(), self._kit, self._frame.snapshot.interval)
        return f"{long_duration(int(view.newest_age))} old" if view.behind else ""

    def take_kit(self, kit: Kit) -> None:
        """Draw by another theme."""
        self._kit = kit
        self.paint()

    def paint(self) -> None:
        """Draw everything."""
        raise NotImplementedError

    def on_resize(self) -> None:
        """Give the room anew."""
        self.paint()

    def on_cursor_list_moved(self, message: CursorList.Moved) -> None:
        """Draw the cursor and what is on screen."""
        message.stop()
        self.paint()

    def on_footer_pressed(self, message: Footer.Pressed) -> None:
        """Do what the key would do."""
        message.stop()
        self.call_later(self._press, message.action)

    async def _press(self, action: str) -> None:
        if self.is_active:  # not where the click before has opened something over this
            await self.run_action(action)

    def action_close(self) -> None:
        """Go back."""
        self.dismiss(None)

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.query_one(CursorList).move(by)

    def action_page(self, by: int) -> None:
        """Move the cursor by a screenful."""
        self.query_one(CursorList).page(by)
