"""Dialogs: their bases, the choice of columns, the question before strays are ended, and the message to an owner."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import ClassVar, Final, TypeVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from gpuwatch.kill.ending import KillChoice
from gpuwatch.model.fields import PROCESS
from gpuwatch.ui.draw.sheet import plain
from gpuwatch.ui.draw.theme import UNICODE, Glyphs

Answer = TypeVar("Answer")

CONFIRM: Final = (KillChoice.CANCEL, KillChoice.INTERRUPT, KillChoice.TERMINATE)
"""Choices of the question before several processes are ended; Cancel is the default."""


class ChoiceButton(Widget, can_focus=True):
    """Button on one line; the button with the focus is marked by shape as well as by colour."""

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
        Binding("enter", "press", "choose", id="dialog.choose", tooltip="Press the selected button"),
    ]

    class Picked(Message):
        def __init__(self, button: ChoiceButton) -> None:
            self.button = button
            self.choice = button.choice
            super().__init__()

    def __init__(self, choice: KillChoice, label: str, glyphs: Glyphs) -> None:
        """`label` is the choice in words, with the number of processes."""
        super().__init__(classes="-signal" if choice.signal is not None else None)
        self.choice = choice
        self.label = label
        self._text = f" {label} "
        self._marks = "[]" if glyphs.ascii else "▌▐"

    def render(self) -> Content:
        marks = self._marks if self.has_focus else "  "
        return Content(f"{marks[0]}{self._text}{marks[1]}")

    def shorten(self, *, short: bool, tight: bool) -> int:
        """Leave out the name of the signal, or the blanks around the words; return the columns that it needs."""
        words = self.label.partition(" (")[0] if short else self.label
        self._text = words if tight else f" {words} "
        self.refresh(layout=True)
        return len(self._text) + 2

    def action_press(self) -> None:
        self.post_message(self.Picked(self))

    def on_click(self, event: events.Click) -> None:
        event.stop()
        self.action_press()


class ChoiceRow(Horizontal):
    """Row of buttons on the last line of a dialog; the button with the focus is always visible."""

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
        self.fit()

    def fit(self) -> None:
        """Shorten the buttons until the row fits: first remove the blanks, then the names of the signals."""
        buttons = list(self.query(ChoiceButton))
        for short, tight in ((False, False), (False, True), (True, False), (True, True)):
            if sum(button.shorten(short=short, tight=tight) for button in buttons) <= self.size.width:
                break
        for button in buttons:
            if button.has_focus:
                button.scroll_visible(animate=False)


class Dialog(ModalScreen[Answer]):
    """Box over the dashboard: a title, a text that scrolls, and choices below it."""

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
    Dialog #text {
        height: auto;
        max-height: 100%;
        scrollbar-size-vertical: 1;
    }
    Dialog #text > Static {
        height: auto;
    }
    Dialog .-empty {
        display: none;
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
    AUTO_FOCUS = "ChoiceButton"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "back", id="dialog.close", tooltip="Close the dialog; no signal is sent"),
        Binding("left,h", "move(-1)", "left", show=False, id="dialog.left", tooltip="Select the button on the left"),
        Binding("right,l", "move(1)", "right", show=False, id="dialog.right", tooltip="Select the button on the right"),
        Binding("up,k", "scroll(-1)", "up", show=False, id="dialog.up", tooltip="Scroll up"),
        Binding("down,j", "scroll(1)", "down", show=False, id="dialog.down", tooltip="Scroll down"),
    ]

    def __init__(self, title: str = "", texts: Sequence[str] = (), glyphs: Glyphs = UNICODE) -> None:
        """`texts` are paragraphs, in widgets `#text-0`, `#text-1`."""
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self.glyphs = glyphs
        self._title = title
        self._texts = texts

    def compose(self) -> ComposeResult:
        with self.box(self._title):
            with VerticalScroll(id="text", can_focus=False):
                for place, text in enumerate(self._texts):
                    yield Static(Content(self.spell(text)), id=f"text-{place}")
            buttons = self.buttons()
            if buttons:
                with ChoiceRow():
                    yield from buttons

    def box(self, title: str) -> Vertical:
        box = Vertical(id="dialog")
        box.border_title = Content(self.spell(title))
        return box

    def buttons(self) -> Sequence[ChoiceButton]:
        """Return the buttons; none if the dialog has no question."""
        return ()

    def spell(self, text: str) -> str:
        """Return text as the terminal can show it."""
        return plain(text) if self.glyphs.ascii else text

    def show_text(self, name: str, text: str) -> None:
        """Show a text in the widget with this id; an empty one takes no line."""
        line = self.query_one(f"#{name}", Static)
        line.update(Content(self.spell(text)))
        line.set_class(not text, "-empty")

    def action_close(self) -> None:
        self.dismiss(None)

    def action_move(self, by: int) -> None:
        buttons = list(self.query(ChoiceButton))
        if buttons:
            at = next((index for index, button in enumerate(buttons) if button.has_focus), 0)
            self.set_focus(buttons[min(max(at + by, 0), len(buttons) - 1)])

    def action_scroll(self, lines: int) -> None:
        for text in self.query("#text"):
            text.scroll_relative(y=lines, animate=False)


class OptionDialog(Dialog[None]):
    """Dialog with a list of options; Enter picks the selected one, a click any."""

    DEFAULT_CSS = """
    OptionDialog OptionList, OptionDialog OptionList:focus {
        height: auto;
        padding: 0;
        border: none;
        background: $surface;
    }
    OptionDialog OptionList > .option-list--option-highlighted {
        background: $primary;
        color: $background;
        text-style: bold;
    }
    """

    AUTO_FOCUS = "OptionList"
    ABOVE: ClassVar[Sequence[str]] = ()
    """Ids of the texts above the list."""
    BELOW: ClassVar[Sequence[str]] = ()

    def compose(self) -> ComposeResult:
        with self.box(self._title):
            yield from (Static(id=name, markup=False) for name in self.ABOVE)
            yield OptionList(markup=False)
            yield from (Static(id=name, markup=False) for name in self.BELOW)

    @abstractmethod
    def pick(self, option: str) -> None:
        """Do what the option with this id offers."""

    @property
    def options(self) -> OptionList:
        return self.query_one(OptionList)

    def show_options(self, options: Mapping[str, str], marked: int | None, disabled: Collection[str] = ()) -> None:
        """Show options by their ids, and mark one; `disabled` ones are dimmed, and cannot be picked."""
        shown = self.options
        if [option.id for option in shown.options] != [*options]:
            shown.clear_options()
            shown.add_options([Option("", id=name) for name in options])
        for place, (name, text) in enumerate(options.items()):
            if shown.options[place].disabled is not (name in disabled):
                (shown.disable_option_at_index if name in disabled else shown.enable_option_at_index)(place)
            shown.replace_option_prompt_at_index(place, Content(text))
        shown.highlighted = marked

    def action_scroll(self, lines: int) -> None:
        self.options.action_cursor_down() if lines > 0 else self.options.action_cursor_up()

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        message.stop()
        self.pick(message.option_id or "")


_COLUMN_KEYS = "Space shows or hides, < and > move, d resets, Esc closes"
_SHORT_KEYS = "Space shows, < > move, Esc closes"
"""Short hint for the border of a low window."""


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
        Binding("less_than_sign,shift+up", "shift(-1)", "up", id="columns.up", tooltip="Move the column left"),
        Binding("greater_than_sign,shift+down", "shift(1)", "down", id="columns.down", tooltip="Move the column right"),
        Binding("d", "default", "default", id="columns.default", tooltip="Show the default columns for this width"),
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
        self.query_one("#dialog").border_subtitle = _SHORT_KEYS if self.size.height < 21 else ""

    def on_mount(self) -> None:
        self.show_text("hint", _COLUMN_KEYS)
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
            line = f"[{'x' if name in self._shown else ' '}] {title:<16}{words if words != title else ''}"
            lines[name] = line.rstrip()
        self.show_options(lines, place)


class ConfirmDialog(Dialog[KillChoice]):
    """Question before several processes are ended; its answer is a choice, None where it was closed."""

    def __init__(
        self, title: str, lines: Sequence[str], count: int, glyphs: Glyphs = UNICODE, *, interrupts: bool = True
    ) -> None:
        """`count` is how many processes would be signalled; `interrupts` whether SIGINT is offered."""
        super().__init__(title, ("\n".join(lines),), glyphs)
        self._count = count
        self._offered = [one for one in CONFIRM if interrupts or one is not KillChoice.INTERRUPT]

    def buttons(self) -> Sequence[ChoiceButton]:
        return [ChoiceButton(choice, choice.label(self._count), self.glyphs) for choice in self._offered]

    def on_choice_button_picked(self, message: ChoiceButton.Picked) -> None:
        message.stop()
        self.dismiss(message.choice)


_COPIED: Final = "Copied to the clipboard, if your terminal allows that (OSC 52). Nothing was sent."
_TMUX: Final = "tmux copies it only with `set -g set-clipboard on`, which is not its default. Nothing was sent."


class OwnerMessageDialog(Dialog[None]):
    """Message to the owner of processes, which was copied to the clipboard and is never sent."""

    DEFAULT_CSS = """
    OwnerMessageDialog #dialog {
        width: 88;
    }
    OwnerMessageDialog #text {
        max-height: 70vh;
    }
    OwnerMessageDialog #text-1 {
        margin-top: 1;
        color: $text-muted;
    }
    OwnerMessageDialog.-low #text-1 {
        margin-top: 0;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y,enter", "close", "back", show=False, id="message.close", tooltip="Close the message"),
    ]

    def __init__(self, owner: str, words: str, command: str, glyphs: Glyphs = UNICODE, *, tmux: bool = False) -> None:
        """`words` is the message, which `command` prints; `tmux` is whether gpuwatch runs in tmux."""
        note = f"{_TMUX if tmux else _COPIED} `{command}` prints it again."
        super().__init__(f"Message to {owner}", (words, note), glyphs)

    def on_mount(self) -> None:
        self.query_one("#dialog").border_subtitle = Content("Esc: close")
