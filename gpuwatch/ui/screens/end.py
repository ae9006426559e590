"""Dialog that asks before a process is ended, and shows what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpuwatch.kill.session import Choice, DialogView, Phase, Session
from gpuwatch.ui.screens.dialog import ChoiceButton, ChoiceRow, Dialog
from gpuwatch.ui.screens.sheet import plain
from gpuwatch.ui.theme import UNICODE, Glyphs

Meant = tuple[tuple[Choice, ...], tuple[str, ...], str, tuple[str, ...]]


def _meant(view: DialogView) -> Meant:
    """Return what pressing a button would mean: the choices, their labels, the scope and the warnings."""
    return view.choices, view.labels, view.scope, view.warnings


class EndScreen(Dialog[None]):
    """Dialog on one session, which may outlive it."""

    DEFAULT_CSS = """
    EndScreen #told {
        height: auto;
        max-height: 100%;
        scrollbar-size-vertical: 1;
    }
    EndScreen #told > Static {
        height: auto;
    }
    EndScreen #notice {
        height: 1;
        color: $text-warning;
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    EndScreen #command {
        max-height: 4;
        text-style: bold;
    }
    EndScreen #facts {
        color: $text-muted;
    }
    EndScreen #notes, EndScreen #members {
        color: $text-muted;
    }
    EndScreen #scope {
        text-style: bold;
    }
    EndScreen #members {
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    EndScreen #warnings {
        color: $text-warning;
    }
    EndScreen #said {
        margin-top: 1;
    }
    EndScreen .-empty {
        display: none;
    }
    EndScreen.-low #said {
        margin-top: 0;
    }
    EndScreen.-low #command {
        max-height: 2;
    }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "back", id="end.back", tooltip="Close the dialog; no signal is sent"),
        Binding("left,h", "move(-1)", "left", show=False, id="end.left", tooltip="Mark the button to the left"),
        Binding("right,l", "move(1)", "right", show=False, id="end.right", tooltip="Mark the button to the right"),
        Binding("s", "scope", "its run", id="end.scope", tooltip="Its whole run, or this process alone"),
        Binding("up", "scroll(-1)", "up", show=False, id="end.up", tooltip="Scroll up"),
        Binding("down", "scroll(1)", "down", show=False, id="end.down", tooltip="Scroll down"),
    ]

    def __init__(self, session: Session, told: Sequence[str], glyphs: Glyphs = UNICODE) -> None:
        super().__init__(classes="-ascii" if glyphs.ascii else None)
        self._glyphs = glyphs
        self.session = session
        self.closed = False
        """Whether it was on screen and is no more."""
        self._ready = False
        self.told = told
        """The command of the process, and under it what else is to be known of it."""
        self._view: DialogView | None = None
        self._buttons: tuple[ChoiceButton, ...] = ()
        self._offered: Meant | None = None
        """What the buttons on screen are for."""
        self.shows_end = False
        """Whether it has shown how the session ended."""

    def compose(self) -> ComposeResult:
        """Build the lines and the row of buttons."""
        dialog = Vertical(id="dialog")
        dialog.border_title = Content(self._title())
        with dialog:
            notice = Static(Content(self.session.notice), id="notice", classes="" if self.session.notice else "-empty")
            yield notice  # outside of what scrolls: it is in sight at each step
            with VerticalScroll(id="told", can_focus=False):
                # First what must not be overlooked: a low terminal shows only the beginning.
                yield Static(id="warnings", markup=False)
                yield Static(Content(self.told[0]), id="command")
                yield Static(Content(self._plain("\n".join(self.told[1:]))), id="facts")
                yield Static(id="notes", markup=False)
                yield Static(id="scope", markup=False)
                yield Static(id="members", markup=False)
                yield Static(id="said", markup=False)
            yield ChoiceRow(id="choices")

    async def on_mount(self) -> None:
        """Show where the session stands."""
        self._ready = True
        await self.refresh_view()

    def on_unmount(self) -> None:
        """Keep that the dialog is gone, whoever closed it."""
        self.closed = True

    async def refresh_view(self) -> None:
        """Show where the session stands, if that has changed.

        To be called in the screen's own message loop, by `call_later`: another that waits for new buttons here would
        wait for ever where the dialog is closed meanwhile.
        """
        if not self._ready or self.closed:
            return
        self.shows_end = self.session.over
        view = self.session.view
        if view == self._view:
            return
        before, self._view = self._view, view
        said = f"Not ended: {view.said}." if view.phase is Phase.REFUSED else view.said
        self._write("#warnings", "\n".join(f"▲ {words}" for words in view.warnings))
        self._write("#notes", "\n".join(view.notes))
        other = "s: this process alone" if self.session.whole_run else "s: its whole run"
        self._write("#scope", f"{view.scope} ({other})" if view.scope else "")
        self._write("#members", "\n".join(one.line for one in view.members))
        self._write("#said", said)
        self.query_one("#dialog").border_title = Content(self._title())
        if self._offered != _meant(view):
            await self._offer(view)
        warned = before is not None and before.warnings != view.warnings
        if before is None or before.phase is not view.phase or warned:
            # What is new stands last, but what must not be overlooked comes first.
            told, asks = self.query_one("#told"), view.phase in (Phase.CHECKING, Phase.ASKING)
            (told.scroll_home if asks or warned else told.scroll_end)(animate=False)

    def _write(self, selector: str, text: str) -> None:
        line = self.query_one(selector, Static)
        line.update(Content(self._plain(text)))
        line.set_class(not text, "-empty")

    def _plain(self, text: str) -> str:
        return plain(text) if self._glyphs.ascii else text

    def _title(self) -> str:
        demo = " (demo)" * bool(self.session.notice)
        return f"End {'the run of ' if self.session.run else 'process '}{self.session.target.pid}?{demo}"

    async def _offer(self, view: DialogView) -> None:
        row = self.query_one(ChoiceRow)
        kept = [button.choice for button in self._buttons if button.has_focus and button.choice.signal is None]
        pairs = zip(view.choices, view.labels, strict=True)
        self._buttons = tuple(ChoiceButton(choice, label, self._glyphs) for choice, label in pairs)
        self._offered = _meant(view)
        async with self.batch():
            await row.remove_children()
            await row.mount_all(self._buttons)
            row.fit()
        # The first is one that sends nothing, and what sends nothing keeps the focus; no signal ever gets it by itself.
        again = [button for button in self._buttons if button.choice in kept]
        self.set_focus((again or self._buttons)[0])

    def on_choice_button_chosen(self, message: ChoiceButton.Chosen) -> None:
        """Hand the choice to the session."""
        message.stop()
        # A key may be quicker than the screen: what a button did not say yet is not what was chosen with it. Where two
        # steps offer the same (Hide, while it is recorded and while it stops), a button holds for both.
        if message.button in self._buttons and self._offered == _meant(self.session.view):
            self._choose(message.choice)

    def _choose(self, choice: Choice) -> None:
        if self.session.choose(choice) and not self.closed:
            self.closed = True
            self.dismiss(None)

    def action_back(self) -> None:
        """Close: call it off, leave the process alone, or let what was begun go on behind the dashboard."""
        choices = self.session.view.choices
        self._choose(Choice.LEAVE if Choice.LEAVE in choices else choices[0])

    def action_scope(self) -> None:
        """Choose its whole run, or this process alone again; the harmless button is marked then."""
        self.session.toggle()
        self.call_later(self.refresh_view)
