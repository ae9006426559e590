"""Dialog in which the columns of the process list are chosen and ordered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType

from gpuwatch.model.fields import PROCESS
from gpuwatch.ui.draw.theme import UNICODE, Glyphs
from gpuwatch.ui.screens.dialog import OptionDialog

_HINT = "Space shows or hides, < and > move, d: as the width allows, Esc closes"
_SHORT = "Space shows, < > move, Esc closes"
"""Hint in the border, in a window that has no room for the other."""


class ColumnsDialog(OptionDialog):
    """Dialog with a line for each column. Each change is applied at once; the command is always the last column."""

    DEFAULT_CSS = """
    ColumnsDialog #dialog {
        width: 44;
    }
    ColumnsDialog OptionList {
        max-height: 100%;
    }
    ColumnsDialog #hint {
        height: auto;
        margin-top: 1;
        color: $text-muted;
    }
    ColumnsDialog.-low #hint {
        display: none;
    }
    """

    BELOW = ("hint",)
    VERTICAL_BREAKPOINTS = [(0, "-low"), (21, "-high")]  # noqa: RUF012 - Textual declares it so

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,C", "close", "back", id="columns.close", tooltip="Close the dialog"),
        Binding("space,enter", "show", "show", id="columns.show", priority=True, tooltip="Show or hide the column"),
        Binding("less_than_sign,shift+up", "shift(-1)", "up", id="columns.up", tooltip="Move the column forward"),
        Binding("greater_than_sign,shift+down", "shift(1)", "down", id="columns.down", tooltip="Move the column back"),
        Binding("d", "default", "default", id="columns.default", tooltip="The columns that suit the width"),
    ]

    def __init__(
        self, shown: Sequence[str], apply: Callable[[tuple[str, ...]], None], glyphs: Glyphs = UNICODE
    ) -> None:
        """`shown` are the columns now, in order; `apply` is called with those of each change."""
        super().__init__("columns", glyphs=glyphs)
        self._shown = {*shown}
        self._order = [*shown, *(name for name in PROCESS if name not in shown)]
        self._apply = apply

    def on_resize(self) -> None:
        """Show the keys in the border where there is no room for the hint."""
        self.query_one("#dialog").border_subtitle = _SHORT if self.size.height < 21 else ""

    def on_mount(self) -> None:
        self.show_text("hint", _HINT)
        self._draw(0)

    def action_show(self) -> None:
        """Show or hide the column under the cursor; the last one that is shown stays."""
        place = self._place
        if self._shown != {self._order[place]}:
            self._shown ^= {self._order[place]}
            self._change(place)

    def action_shift(self, by: int) -> None:
        place, order = self._place, self._order
        other = place + by
        if 0 <= other < len(order):
            order[place], order[other] = order[other], order[place]
            self._change(other)

    def action_default(self) -> None:
        """Show the columns that suit the width again, and close the dialog."""
        self._apply(())
        self.dismiss(None)

    def pick(self, option: str) -> None:
        """Show or hide the column that was clicked."""
        self.action_show()

    @property
    def _place(self) -> int:
        return self.options.highlighted or 0

    def _change(self, place: int) -> None:
        self._draw(place)
        self._apply(tuple(name for name in self._order if name in self._shown))

    def _draw(self, place: int) -> None:
        lines = {}
        for name in self._order:
            title, words = PROCESS[name].title, PROCESS[name].name
            line = f"[{'x' if name in self._shown else ' '}] {title:<14}{words if words != title else ''}"
            lines[name] = line.rstrip()
        self.show_options(lines, place)
