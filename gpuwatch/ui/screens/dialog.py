"""Parts of dialogs: a box in the middle, a text that scrolls, and buttons on one line; the question built of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from gpuwatch.kill.session import Choice
from gpuwatch.ui.screens.sheet import plain
from gpuwatch.ui.theme import UNICODE, Glyphs

Answer = TypeVar("Answer")

CONFIRM: Final = (Choice.CANCEL, Choice.INTERRUPT, Choice.TERMINATE)
"""Choices of the question before several processes are ended; Cancel is the default."""


class ChoiceButton(Widget, can_focus=True):
    """Button on one line; the one that Enter presses is marked by shape as well as by colour."""

    DEFAULT_CSS = """
    ChoiceButton {
        width: auto;
        height: 1;
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
        """`label` is the choice in words, with the number of processes."""
        super().__init__(classes="-signal" if choice.signal is not None else None)
        self.choice = choice
        self.label = label
        self._spelled = f" {label} "
        self._marks = "[]" if glyphs.ascii else "▌▐"

    def render(self) -> Content:
        """Draw the label, between marks while it has the focus."""
        marks = self._marks if self.has_focus else "  "
        return Content(f"{marks[0]}{self._spelled}{marks[1]}")

    def spell(self, *, short: bool, tight: bool) -> int:
        """Leave out the name of the signal, or the blanks around the words; return the columns that it needs."""
        words = self.label.partition(" (")[0] if short else self.label
        self._spelled = words if tight else f" {words} "
        self.refresh(layout=True)
        return len(self._spelled) + 2

    def action_press(self) -> None:
        """Press it."""
        self.post_message(self.Chosen(self))

    def on_click(self, event: events.Click) -> None:
        """Press it with the mouse."""
        event.stop()
        self.action_press()


class ChoiceRow(Horizontal):
    """Row of buttons on the last line of a dialog; the one that has the focus is always in sight."""

    DEFAULT_CSS = """
    ChoiceRow {
        dock: bottom;
        height: 1;
        margin-top: 1;
        align-horizontal: center;
        overflow-x: auto;
        scrollbar-size: 0 0;
    }
    """

    def on_resize(self) -> None:
        """Fit the buttons into another width."""
        self.fit()

    def fit(self) -> None:
        """Where not all of it fits, first the blanks go, then the names of the signals."""
        buttons = list(self.query(ChoiceButton))
        for short, tight in ((False, False), (False, True), (True, False), (True, True)):
            if sum(button.spell(short=short, tight=tight) for button in buttons) <= self.size.width:
                break
        for button in buttons:
            if button.has_focus:
                button.scroll_visible(animate=False)


class Dialog(ModalScreen[Answer]):
    """Box `#dialog` over the dashboard, with `#told` in it where there is a text to scroll.

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
    Dialog.-low ChoiceRow {
        margin-top: 0;
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
        """Scroll the text."""
        self.query_one("#told").scroll_relative(y=lines, animate=False)


class ConfirmScreen(Dialog[Choice]):
    """Question before several processes are ended; its answer is a choice, None where it was closed."""

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
                yield from (ChoiceButton(choice, choice.label(self._count), self._glyphs) for choice in CONFIRM)

    def on_choice_button_chosen(self, message: ChoiceButton.Chosen) -> None:
        """Answer."""
        message.stop()
        self.dismiss(message.choice)

    def action_close(self) -> None:
        """Close it, without an answer."""
        self.dismiss(None)
