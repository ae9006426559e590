"""Prompt in which a filter is typed; the list follows each key."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input

from gpuwatch.analysis.rows import Filter, FilterError
from gpuwatch.ui.theme import Skin
from gpuwatch.ui.widgets.lines import LineBuilder, LinePanel

HINTS = (
    "user:ada  gpu:0,2  pid:123  mine  any text  -not   Enter keeps it, Esc clears it",
    "user:ada  gpu:0,2  pid:123  mine  any text  -not",
    "user:ada gpu:0,2 pid:123 mine text -not",
    "user: gpu: pid: mine text -not",
)
"""How a filter looks; the longest that fits is shown."""
NOTE = 0.6
"""Part of the width for the note beside the filter."""


class Prompt(Horizontal):
    """Line with an input for a filter."""

    class Changed(Message):
        """Message: a valid filter was typed."""

        def __init__(self, filter: Filter) -> None:
            self.filter = filter
            super().__init__()

    class Left(Message):
        """Message: the prompt was closed."""

    class _Note(LinePanel):
        """Error of the filter, or examples."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._skin: Skin | None = None

    def compose(self) -> ComposeResult:
        yield LinePanel(id="slash")
        yield Input(compact=True, select_on_focus=False, id="filter")
        yield self._Note(id="note")

    def on_mount(self) -> None:
        """Turn the blinking of the cursor off: each blink is a write to the terminal."""
        self.query_one(Input).cursor_blink = False

    def open(self, text: str, skin: Skin) -> None:
        """Show the prompt with the present filter."""
        self.display = True
        self._skin = skin
        self.query_one("#slash", LinePanel).show([LineBuilder(skin, "band").write(" / ", "strong").build(3)])
        entry = self.query_one(Input)
        entry.value = text
        entry.cursor_position = len(text)
        self.screen.set_focus(entry)  # at once: entry.focus() would let the next keys pass as commands
        self._say("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Parse the filter; an invalid one leaves the last valid one in place."""
        event.stop()
        if self._skin is None:  # the input is being made
            return
        try:
            self.post_message(self.Changed(Filter.parse(event.value)))
        except FilterError as error:
            self._say(str(error))
        else:
            self._say("")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        event.stop()
        self.close()

    def close(self) -> None:
        self.display = False
        self.screen.set_focus(None)
        self.post_message(self.Left())

    def _say(self, wrong: str) -> None:
        if self._skin is None:
            return
        note = self.query_one(self._Note)
        width = max(2, int(self.app.size.width * NOTE))
        text = wrong or next((hint for hint in HINTS if len(hint) < width), HINTS[-1])
        builder = LineBuilder(self._skin, "band").gap()
        note.show([builder.write(text, "warning" if wrong else "muted", width - 1).build(width)])

    @property
    def note(self) -> str:
        return self.query_one(self._Note).text[0].strip()
