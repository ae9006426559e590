"""Dialogs about processes that are being ended, and the notices in their place once they were closed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from gpuwatch.analysis.strays import Stray
from gpuwatch.base.units import size
from gpuwatch.kill.ending import POLL_SECONDS, KillChoice, KillState
from gpuwatch.kill.queue import AskedEnding, KillNotice, KillQueue
from gpuwatch.model.fields import RowKey, brief_command
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.process_page import brief, held_by
from gpuwatch.ui.draw.theme import UNICODE, Glyphs
from gpuwatch.ui.screens.dialog import ChoiceButton, ChoiceRow, Dialog

Offer = tuple[tuple[KillChoice, ...], tuple[str, ...], str]
"""Meaning of the buttons: the choices, their labels, and whether they are about the process or its run."""


class EndDialog(Dialog[None]):
    """Dialog about the ending of a process or its run; the ending may outlive it."""

    DEFAULT_CSS = """
    EndDialog #command {
        max-height: 4;
        text-style: bold;
    }
    EndDialog #facts, EndDialog #notes, EndDialog #members {
        color: $text-muted;
    }
    EndDialog #scope {
        text-style: bold;
    }
    EndDialog #members {
        text-wrap: nowrap;
        text-overflow: ellipsis;
    }
    EndDialog #warnings {
        color: $text-warning;
    }
    EndDialog #said {
        margin-top: 1;
    }
    EndDialog.-low #said {
        margin-top: 0;
    }
    EndDialog.-low #command {
        max-height: 2;
    }
    """

    AUTO_FOCUS = ""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "scope", "its run", id="end.scope", tooltip="End its whole run, or only this process"),
    ]

    def __init__(self, asked: AskedEnding, glyphs: Glyphs = UNICODE) -> None:
        super().__init__(glyphs=glyphs)
        self.ending = asked.ending
        self.asked = asked
        self._ready = False
        self._view: dict[str, str] = {}
        self._buttons: tuple[ChoiceButton, ...] = ()
        self._offered: Offer | None = None
        """Meaning of the buttons on screen."""

    def compose(self) -> ComposeResult:
        with self.box(""):
            with VerticalScroll(id="text", can_focus=False):
                # Warnings come first: a low terminal shows only the beginning.
                for name in ("warnings", "command", "facts", "notes", "scope", "members", "said"):
                    yield Static(id=name, markup=False)
            yield ChoiceRow()

    async def on_mount(self) -> None:
        self._ready = True
        await self.refresh_view()

    def on_unmount(self) -> None:
        """Note that the dialog was closed, by the user or by the program."""
        self.asked.hidden = True

    async def refresh_view(self) -> None:
        """Draw the state of the ending, if it has changed.

        To be called in the screen's own message loop, by `call_later`: a wait for new buttons in another message loop
        would never end where the dialog is closed meanwhile.
        """
        if not self._ready or self.asked.hidden:
            return
        ending, offer = self.ending, self._offer()
        asks = ending.state in (KillState.CHECKING, KillState.ASKING) and not ending.asks_again
        members = [
            f"{one.pid:>8} {size(one.memory) if one.memory else '':>9}  {brief_command(one.process)}"
            for one in ending.targets
        ]
        said = f"Not ended: {ending.sentence}." if ending.refused else ending.sentence
        view = {
            "warnings": "\n".join(f"▲ {words}" for words in ending.warnings),
            "command": self.asked.facts[0],
            "facts": "\n".join(self.asked.facts[1:]),
            "notes": "\n".join(ending.notes),
            "scope": offer[-1],
            "members": "\n".join(members) if ending.chosen.key and asks else "",
            "said": said,
        }
        self.asked.shows_end = ending.over
        for name, text in view.items():
            if text != self._view.get(name):
                self.show_text(name, text)
        self._view = view
        if offer != self._offered:
            title = f"End {'the run of ' if ending.chosen.key else 'process '}{ending.target.pid}?"
            title = f"Process {ending.target.pid}" if ending.refused or ending.over else title
            self.query_one("#dialog").border_title = Content(self.spell(title))
            is_new = self._offered is None or self._offered[0] != offer[0]
            await self._show_buttons(offer)
            if is_new:  # new text comes last, but warnings come first
                scrolled = self.query_one("#text")
                (scrolled.scroll_home if asks else scrolled.scroll_end)(animate=False)

    def _offer(self) -> Offer:
        ending = self.ending
        count, whole = max(ending.left, 1), bool(ending.chosen.key)
        scope = ""
        if ending.run is not None and ending.state is KillState.ASKING and not ending.asks_again:
            total = len(ending.run.members)
            scope = f"its run: {total} processes (s: only this process)"
            scope = scope if whole else f"this process; its run has {total} (s: its whole run)"
        return ending.choices, tuple(choice.label(count) for choice in ending.choices), scope

    async def _show_buttons(self, offer: Offer) -> None:
        row = self.query_one(ChoiceRow)
        kept = [button.choice for button in self._buttons if button.has_focus and button.choice.signal is None]
        pairs = zip(offer[0], offer[1], strict=True)
        self._buttons = tuple(ChoiceButton(choice, label, self.glyphs) for choice, label in pairs)
        self._offered = offer
        async with self.batch():
            await row.remove_children()
            await row.mount_all(self._buttons)
            row.fit()
        # The first choice sends no signal, and a choice that sends none keeps the focus: no signal gets it by itself.
        again = [button for button in self._buttons if button.choice in kept]
        self.set_focus((again or self._buttons)[0])

    def on_choice_button_picked(self, message: ChoiceButton.Picked) -> None:
        message.stop()
        # A key may be quicker than the screen: what a button did not say yet is not what was chosen with it.
        if message.button in self._buttons and self._offered == self._offer():
            self._choose(message.choice)

    def _choose(self, choice: KillChoice) -> None:
        if self.ending.choose(choice) and not self.asked.hidden:
            self.asked.hidden = True
            self.dismiss(None)

    def action_close(self) -> None:
        """Answer with the harmless choice: cancel, leave the process alone, or go on with the dialog closed."""
        choices = self.ending.choices
        self._choose(KillChoice.LEAVE if KillChoice.LEAVE in choices else choices[0])

    def action_scope(self) -> None:
        """Switch between the process and its whole run; the focus goes to the harmless button."""
        self.ending.toggle()
        self.call_later(self.refresh_view)


class EndDialogs:
    """Driver of a queue of processes that are being ended: it opens dialogs about them, and shows its notices."""

    def __init__(self, app: App[Any], queue: KillQueue, glyphs: Glyphs = UNICODE) -> None:
        self.queue = queue
        self._app = app
        self._glyphs = glyphs
        self._dialog: EndDialog | None = None
        self._timer = app.set_interval(POLL_SECONDS, self._tick, pause=True)

    def open(self, key: RowKey, frame: Frame, *, whole_run: bool = False) -> bool:
        """Ask about the process of a row, as `KillQueue.ask` does; False where a dialog is open, or nothing to ask."""
        if self._dialog is not None and not self._dialog.asked.hidden:
            return False
        asked = self.queue.ask(key[1:], frame, whole_run=whole_run)
        if not self.queue.is_demo:
            self._timer.resume()
        if isinstance(asked, KillNotice):
            self._notify(asked)
            return False
        if not asked.facts:
            process, held = asked.ending.target.process, held_by(key[1:], frame, key[0])
            unlisted = "not listed: it has a GPU open, and the driver does not list it"
            asked.facts = brief(held, frame.snapshot) if held else (process.command or f"[{process.name}]", unlisted)
        self._dialog = EndDialog(asked, self._glyphs)
        self._app.push_screen(self._dialog)
        return True

    def end_strays(self, strays: Sequence[Stray], choice: KillChoice, frame: Frame) -> None:
        """End strays of a frame one by one, by the signal that the user confirmed."""
        if notice := self.queue.begin(strays, choice, frame):
            self._notify(notice)
        else:
            self._timer.resume()

    def close(self, deadline: float) -> None:
        """Leave all processes alone, and wait until `deadline` (monotonic clock) for their audit records."""
        self._timer.stop()
        self.queue.close(deadline)

    def _tick(self) -> None:
        for notice in self.queue.tick():
            self._notify(notice)
        if self._dialog is not None and not self._dialog.asked.hidden:
            self._dialog.call_later(self._dialog.refresh_view)
        if not self.queue.busy:
            self._timer.pause()

    def _notify(self, notice: KillNotice) -> None:
        # markup=False: the text may name a parent process, whose name is another's to choose.
        title = "" if notice.pid is None else f"process {notice.pid}"
        self._app.notify(
            notice.text,
            title=title,
            severity="warning" if notice.warning else "information",
            markup=False,
            timeout=10,
        )
