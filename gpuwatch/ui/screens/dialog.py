"""What the dialogs have in common: a box in the middle, one that scrolls what it tells, and buttons on one line."""

from __future__ import annotations

from typing import ClassVar, TypeVar

from textual import events
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget

from gpuwatch.actions.steps import Choice
from gpuwatch.ui.theme import Glyphs

Answer = TypeVar("Answer")


class ChoiceButton(Widget, can_focus=True):
    """One button of the dialog, on one line; the one that Enter presses is marked by shape as well as by colour."""

    DEFAULT_CSS = """
    ChoiceButton {
        width: auto;
        height: 1;
        margin: 0 1;
        color: $foreground;
        pointer: pointer;
    }
    ChoiceButton:hover {
        background: $panel;
    }
    ChoiceButton:focus {
        background: $primary;
        color: $background;
        text-style: bold;
    }
    ChoiceButton.-signal:focus {
        background: $error;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "press", "choose", id="end.choose", tooltip="Press the marked button"),
    ]

    class Chosen(Message):
        """A button was pressed."""

        def __init__(self, button: ChoiceButton) -> None:
            self.button = button
            self.choice = button.choice
            super().__init__()

    def __init__(self, choice: Choice, label: str, glyphs: Glyphs) -> None:
        """`label` is what it says: the choice in words, and of how many processes."""
        super().__init__(classes="-signal" if choice.signal is not None else None)
        self.choice = choice
        self.label = label
        self._marks = "[]" if glyphs.ascii else "▌▐"

    def render(self) -> Content:
        """Draw the label, between marks while it has the focus."""
        marks = self._marks if self.has_focus else "  "
        return Content(f"{marks[0]} {self.label} {marks[1]}")

    def action_press(self) -> None:
        """Press it."""
        self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        """Press it with the mouse."""
        event.stop()
        self.action_press()


class Dialog(ModalScreen[Answer]):
    """A box `#dialog` over the dashboard, with `#told` in it where there is something to scroll.

    The class `-ascii` draws its border in ASCII.
    """

    DEFAULT_CSS = """
    Dialog {
        align: center middle;
        background: $background 60%;
    }
    Dialog #dialog {
        width: 76;
        max-width: 100%;
        height: auto;
        max-height: 100%;
        padding: 1 2;
        border: round $primary;
        border-title-color: $foreground;
        border-title-style: bold;
        border-subtitle-color: $text-muted;
        background: $surface;
    }
    Dialog.-ascii #dialog {
        border: ascii $primary;
    }
    Dialog.-low #dialog {
        padding: 0 1;
    }
    """

    VERTICAL_BREAKPOINTS = [(0, "-low"), (16, "-high")]  # noqa: RUF012 - Textual declares it so
    AUTO_FOCUS = ""

    def action_move(self, by: int) -> None:
        """Mark the next button, without going round."""
        buttons = list(self.query(ChoiceButton))
        at = next((index for index, button in enumerate(buttons) if button.has_focus), 0)
        self.set_focus(buttons[min(max(at + by, 0), len(buttons) - 1)])

    def action_scroll(self, lines: int) -> None:
        """Scroll what is told."""
        self.query_one("#told").scroll_relative(y=lines, animate=False)
