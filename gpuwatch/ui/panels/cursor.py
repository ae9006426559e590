"""A list of rows with a cursor: keys, wheel and room on screen do the same to all of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

from textual import events
from textual.message import Message

from gpuwatch.ui.panels.lines import LinePanel

WHEEL: Final = 3
"""Rows that one notch of the mouse wheel moves."""


class CursorList(LinePanel):
    """Rows, one of them under the cursor, which follows what its row is about and not the line.

    Keys move the cursor and bring it on screen; the wheel moves what is on screen, and the cursor stays on its row.
    """

    class Moved(Message):
        """Cursor, scroll or order changed: the panel wants to be drawn again."""

    class Chosen(Message):
        """The row under the cursor was chosen by a second click."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.cursor = 0
        """Its place among all rows."""
        self.top = 0
        """First row on screen."""
        self.page_rows = 1
        """Rows that there is room for."""
        self._keys: Sequence[Hashable] = ()
        self._key: Hashable = None

    def move(self, by: int) -> None:
        """Move the cursor by so many rows."""
        self._put(self.cursor + by)
        self._reveal()
        self.post_message(self.Moved())

    def page(self, by: int) -> None:
        """Move the cursor by so many screenfuls."""
        self.move(by * max(1, self.page_rows - 1))

    def to_top(self) -> None:
        """Put the cursor on whatever will be the first row: the order is about to change."""
        self.cursor = self.top = 0
        self._key = None

    def part(self, dash: str = "-") -> str:
        """Say which rows are on screen, `1-20 of 47`; empty where all are."""
        every = len(self._keys)
        until = min(self.top + self.page_rows, every)
        return f"{self.top + 1}{dash}{until} of {every}" if every > self.page_rows else ""

    def _settle(self, keys: Sequence[Hashable]) -> None:
        """Take what each row is about, in order; where what the cursor was on has gone, the cursor stays in place."""
        was_on_screen = self._is_on_screen()
        self._keys = keys
        self._put(keys.index(self._key) if self._key in keys else self.cursor)
        if was_on_screen:
            self._reveal()

    def _shown(self, room: int) -> range:
        """Take the room that there is, and give the places of the rows on screen; a cursor on screen stays there."""
        was_on_screen = self._is_on_screen()
        self.page_rows = max(1, room)
        if was_on_screen:
            self._reveal()
        self.top = max(0, min(self.top, len(self._keys) - self.page_rows))
        return range(self.top, min(self.top + room, len(self._keys)))

    def _is_on_screen(self) -> bool:
        return self.top <= self.cursor < self.top + self.page_rows

    def _put(self, place: int) -> None:
        self.cursor = max(0, min(place, len(self._keys) - 1))
        self._key = self._keys[self.cursor] if self._keys else None

    def _reveal(self) -> None:
        self.top = max(min(self.top, self.cursor), self.cursor - self.page_rows + 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Scroll; the cursor stays on its row."""
        event.stop()
        self._scroll(WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Scroll back."""
        event.stop()
        self._scroll(-WHEEL)

    def _scroll(self, by: int) -> None:
        self.top = max(0, min(self.top + by, len(self._keys) - self.page_rows))
        self.post_message(self.Moved())
