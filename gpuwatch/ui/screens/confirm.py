"""The question before several processes are ended: what they are, and by which signal. Cancel is the default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpuwatch.kill.steps import Choice
from gpuwatch.ui.screens.dialog import ChoiceButton, ChoiceRow, Dialog
from gpuwatch.ui.screens.sheet import plain
from gpuwatch.ui.theme import UNICODE, Glyphs

CHOICES: Final = (Choice.CANCEL, Choice.INTERRUPT, Choice.TERMINATE)


class ConfirmScreen(Dialog[Choice]):
    """The question; its answer is a choice, None where it was closed."""

    DEFAULT_CSS = """
    ConfirmScreen #told {
        height: auto;
        max-height: 100%;
        scrollbar-size-vertical: 1;
    }
    ConfirmScreen Static {
        height: auto;
    }
    """

    AUTO_FOCUS = "ChoiceButton"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "back", id="confirm.close", tooltip="Close it; no signal is sent"),
        Binding("left,h", "move(-1)", "left", show=False, id="confirm.left", tooltip="Mark the button to the left"),
        Binding("right,l", "move(1)", "right", show=False, id="confirm.right", tooltip="Mark the button to the right"),
        Binding("down,j", "scroll(1)", "down", show=False, id="confirm.down", tooltip="Scroll down"),
        Binding("up,k", "scroll(-1)", "up", show=False, id="confirm.up", tooltip="Scroll up"),
    ]

    def __init__(self, title: str, lines: Sequence[str], count: int, glyphs: Glyphs = UNICODE) -> None:
        """`count` is how many processes would be signalled."""
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._title, self._lines, self._count, self._glyphs = title, lines, count, glyphs

    def compose(self) -> ComposeResult:
        """Build the lines and the row of buttons."""
        spell = plain if self._glyphs.ascii else str
        dialog = Vertical(id="dialog")
        dialog.border_title = Content(spell(self._title))
        with dialog:
            with VerticalScroll(id="told", can_focus=False):
                yield Static(Content(spell("\n".join(self._lines))))
            with ChoiceRow(id="choices"):
                yield from (ChoiceButton(choice, choice.label(self._count), self._glyphs) for choice in CHOICES)

    def on_choice_button_chosen(self, message: ChoiceButton.Chosen) -> None:
        """Answer."""
        message.stop()
        self.dismiss(message.choice)

    def action_close(self) -> None:
        """Close it, without an answer."""
        self.dismiss(None)
