"""The message to somebody else whose processes hold a GPU: shown, and put on the terminal's clipboard. Never sent."""

from __future__ import annotations

from base64 import b64encode
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpuwatch.ui.desktop import passed_through
from gpuwatch.ui.screens.dialog import Dialog
from gpuwatch.ui.screens.sheet import plain
from gpuwatch.ui.theme import UNICODE, Glyphs

_COPIED: Final = (
    "Copied to the clipboard, if your terminal lets programs do that (OSC 52). "
    "Nothing was sent: paste it where you like."
)
_TMUX: Final = " In tmux it takes `set -g set-clipboard on`."


def clipboard(words: str, *, tmux: bool = False) -> str:
    """Return what puts words on the terminal's clipboard: OSC 52, which carries them in base64.

    tmux takes it with `set-clipboard on`, and passes it to the terminal outside with `allow-passthrough on`: both are
    asked for. Source: xterm's ctlseqs, Operating System Commands; tmux(1), set-clipboard.
    """
    sequence = f"\x1b]52;c;{b64encode(words.encode()).decode()}\a"
    return sequence + passed_through(sequence) if tmux else sequence


class PoliteScreen(Dialog[None]):
    """The message, to be read before it is pasted."""

    DEFAULT_CSS = """
    PoliteScreen #dialog {
        width: 88;
    }
    PoliteScreen #told {
        height: auto;
        max-height: 70vh;
        scrollbar-size-vertical: 1;
    }
    PoliteScreen Static {
        height: auto;
    }
    PoliteScreen #copied {
        margin-top: 1;
        color: $text-muted;
    }
    PoliteScreen.-low #copied {
        margin-top: 0;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,y,enter", "close", "back", id="polite.close", tooltip="Close it"),
        Binding("down,j", "scroll(1)", "down", show=False, id="polite.down", tooltip="Scroll down"),
        Binding("up,k", "scroll(-1)", "up", show=False, id="polite.up", tooltip="Scroll up"),
    ]

    def __init__(self, whom: str, words: str, glyphs: Glyphs = UNICODE, *, tmux: bool = False) -> None:
        """`words` is the message, which was copied already; `tmux` is whether tmux stands between."""
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._whom, self._words, self._tmux = whom, words, tmux
        self._spell = plain if glyphs.ascii else str

    def compose(self) -> ComposeResult:
        """Build the message and what was done with it."""
        dialog = Vertical(id="dialog")
        dialog.border_title = Content(self._spell(f"A message to {self._whom}"))
        dialog.border_subtitle = Content("Esc closes")
        with dialog, VerticalScroll(id="told", can_focus=False):
            yield Static(Content(self._spell(self._words)))
            yield Static(Content(self._spell(_COPIED + _TMUX * self._tmux)), id="copied")

    def action_close(self) -> None:
        """Close it."""
        self.dismiss(None)
