"""Prompt in which a filter is typed: the list follows each key, a mistake is marked, and saved filters are offered."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rich.cells import cell_len
from rich.highlighter import Highlighter
from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input

from gpuwatch.model.filters import FilterError, ListFilter, parse_most
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.lines import LineBuilder
from gpuwatch.ui.draw.row_list import RowList
from gpuwatch.ui.draw.theme import StyleSet
from gpuwatch.ui.widgets.panels import LinePanel

KEYS_HINT: Final = "Enter keeps it, Esc clears it"
FIND_HINT: Final = "Enter jumps to it, n and N to other matches"
NOTE = 0.6
"""Part of the width for the note at the right of the filter."""

_MISTAKE: Final = Style(reverse=True)  # visible without colours, too


class FilterInput(Input):
    """Input of a filter that marks a wrong term. Tab and Down put the next saved filter in, as `@name`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,down", "offer(1)", "saved filter", show=False),
        Binding("shift+tab,up", "offer(-1)", "previous saved filter", show=False),
    ]

    class _Marker(Highlighter):
        """Marks the wrong term."""

        def __init__(self) -> None:
            self.place = (0, 0)

        def highlight(self, text: Text) -> None:
            text.stylize(_MISTAKE, *self.place)

    def __init__(self, *, id: str | None = None) -> None:
        self._marker = self._Marker()
        super().__init__(compact=True, select_on_focus=False, highlighter=self._marker, id=id)

    @property
    def saved(self) -> Mapping[str, str]:
        """Saved filters by name."""
        return actions_of(self).options.filters

    def on_mount(self) -> None:
        """Turn the blinking of the cursor off: each blink is a write to the terminal."""
        self.cursor_blink = False

    def open(self, text: str) -> None:
        """Begin with a text; the next keys go to it."""
        self.value = text
        self.cursor_position = len(text)
        self.mark(None)
        self.screen.set_focus(self)  # at once: self.focus() would let the next keys pass as commands

    def mark(self, error: FilterError | None) -> None:
        """Mark the wrong term of an error; None for no error."""
        self._marker.place = (error.start, error.end) if error else (0, 0)
        self.refresh()

    def action_offer(self, by: int) -> None:
        """Put the next saved filter in place of the last word where that begins with `@`, or after it."""
        names = list(self.saved)
        head, blank, word = self.value.rpartition(" ")
        if not word.startswith("@"):
            head, blank, word = (self.value.rstrip(), " ", "") if self.value.strip() else ("", "", "")
        begun = [name for name in names if name.casefold().startswith(word[1:].casefold())]
        if word[1:] in names:
            name = names[(names.index(word[1:]) + by) % len(names)]
        elif begun:
            name = begun[0 if by > 0 else -1]
        else:
            return
        self.value = f"{head}{blank}@{name}"
        self.cursor_position = len(self.value)

    @property
    def offered(self) -> str:
        """The saved filter that the last word names, with its text; else the names of all; empty for none."""
        word = self.value.rpartition(" ")[2].lstrip("-!")
        if text := self.saved.get(word[1:]) if word.startswith("@") else None:
            return f"{word}: {text}"
        return f"Tab: {' '.join(f'@{name}' for name in self.saved)}" if self.saved else ""


class Prompt(Horizontal):
    """Line with an input for a filter, or for a search."""

    @dataclass
    class Changed(Message):
        """Message: a filter was typed; it has no wrong term."""

        filter: ListFilter[Any]

    class Sought(Message):
        """Message: a filter to jump by was typed and confirmed."""

    class Left(Message):
        """Message: the prompt was closed."""

    def __init__(
        self, parse: Callable[[str, Mapping[str, str]], ListFilter[Any]], hint: str, *, id: str | None = None
    ) -> None:
        """`parse` parses a filter with the saved filters by name, and raises FilterError.

        `hint` is an example: terms with two blanks between them; as many as fit are shown.
        """
        super().__init__(id=id)
        self.display = False
        self._parse = parse
        self._terms = hint.split("  ")
        self._style_set: StyleSet | None = None
        self.finding = False
        """Whether it asks what to jump to; the list stays as it is."""
        self.sought: ListFilter[Any] = ListFilter()
        """Last filter that was typed: `n` and `N` jump by it."""
        self._typed: ListFilter[Any] = ListFilter()
        self._wrong: FilterError | None = None
        """Error of what is typed; the wrong term is left out."""

    def compose(self) -> ComposeResult:
        yield LinePanel(id="slash")
        yield FilterInput(id="filter")
        yield LinePanel(id="note")  # the error of the filter, or examples

    def open(self, text: str, styles: StyleSet, *, finding: bool = False) -> None:
        """Show the prompt with the present filter."""
        self.display = True
        self._style_set = styles
        self.finding, self._typed, self._wrong = finding, ListFilter(), None
        sign = " n " if finding else " / "
        self.query_one("#slash", LinePanel).show([LineBuilder(styles, "band").write(sign, "strong").build(3)])
        self.query_one(FilterInput).open(text)
        self._say()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Parse the filter; a wrong term is marked and left out."""
        event.stop()
        if self._style_set is None:  # the input is being made
            return
        entry = self.query_one(FilterInput)
        parsed, wrong = parse_most(event.value, lambda text: self._parse(text, entry.saved))
        self._typed = parsed
        if not self.finding:
            self.sought = parsed if parsed.terms else self.sought
            self.post_message(self.Changed(parsed))
        self._wrong = wrong
        entry.mark(wrong)
        self._say()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter, or jump."""
        event.stop()
        if self._wrong is not None:
            self.notify(f"ignored: {self._wrong}", severity="warning", markup=False, timeout=6)
        if self.finding and self._typed.terms:
            self.sought = self._typed
            self.post_message(self.Sought())
        self.close()

    def find(self, rows: RowList[Any], by: int, row: str, styles: StyleSet) -> bool:
        """Move a list's cursor to the next match of the last filter, and ask where there was none; False for no match.

        `row` is what a row of the list is: `process`.
        """
        if not self.sought.terms:
            self.open("", styles, finding=True)
            return False
        found = rows.find(self.sought, by)
        if not found:
            self.notify(f"no {row} here matches {self.sought.text}", markup=False, timeout=4)
        return found

    def cancel(self) -> None:
        """Close it with an empty filter; letters that were typed in the same moment are reported before that."""
        self.query_one(FilterInput).value = ""
        self.close()

    def close(self) -> None:
        self.display = False
        self.screen.set_focus(None)
        self.post_message(self.Left())

    def _say(self) -> None:
        if self._style_set is None:
            return
        note, entry, wrong = self.query_one("#note", LinePanel), self.query_one(FilterInput), self._wrong
        width = max(2, int(self.app.size.width * NOTE))
        offered = entry.offered
        hints = ["  ".join(self._terms[:count]) for count in range(len(self._terms), 0, -1)]
        if entry.value or self.finding:
            keys = FIND_HINT if self.finding else KEYS_HINT
            hints = [*(f"{keys}   {hint}" for hint in hints), keys]
        if offered.startswith("Tab"):
            hints = [*(f"{hint}   {offered}" for hint in hints), *hints]
        elif offered:
            hints = [offered]
        text = str(wrong) if wrong else next((hint for hint in hints if len(hint) < width), hints[-1])
        if wrong:  # all that the filter leaves, but for the sign before it and the cursor behind it
            width = max(width, min(cell_len(text) + 2, self.app.size.width - 5 - cell_len(entry.value)))
        note.styles.width = width
        builder = LineBuilder(self._style_set, "band").gap()
        note.show([builder.write(text, "warning" if wrong else "muted", width - 1).build(width)])

    @property
    def note(self) -> str:
        return self.query_one("#note", LinePanel).text[0].strip()
