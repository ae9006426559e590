"""One's own processes that nobody tends: each ticked off by hand, then ended one by one, and what became of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gpuwatch.analysis.strays import Judged, Stray, Sureness, notes
from gpuwatch.kill.steps import DEMO_NOTICE, Choice
from gpuwatch.model import SourceState
from gpuwatch.ui.panels.footer import Footer, hints
from gpuwatch.ui.panels.notice import nothing_words, notice_lines
from gpuwatch.ui.panels.strays import StrayList, about, title_line, total
from gpuwatch.ui.screens.confirm import ConfirmScreen
from gpuwatch.ui.screens.list_screen import ListScreen
from gpuwatch.ui.staging import LEFT_ALONE, Key, Stage, Staged
from gpuwatch.ui.stray_endings import StrayEndings
from gpuwatch.ui.theme import Kit, Role
from gpuwatch.ui.widgets.lines import Line, LinePanel, Pen
from gpuwatch.units import size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.monitor import Frame
    from gpuwatch.ui.actions import Actions

ABOUT: Final = 6
"""Lines about the chosen stray, with the one above them; 2 more where there is room."""
_KEYS: Final[list[Binding]] = [
    Binding("escape,q,S", "close", "back", id="strays.close", key_display="Esc", tooltip="Go back to the dashboard"),
    Binding("space,x", "tick", "tick", id="strays.tick", key_display="Space", tooltip="Tick this one off, or not"),
    Binding("enter", "end", "end ticked", id="strays.end", key_display="Enter", tooltip="End those that are ticked"),
    Binding("K", "decide", "decide", show=False, id="strays.decide", tooltip="What to do with one that was left"),
    Binding("i", "detail", "detail", id="strays.detail", tooltip="All that is known of this process"),
    Binding("down,j", "move(1)", "down", show=False, id="strays.down", tooltip="The next one"),
    Binding("up,k", "move(-1)", "up", show=False, id="strays.up", tooltip="The one before"),
    Binding("pagedown", "page(1)", "page down", show=False, id="strays.pagedown", tooltip="A screenful down"),
    Binding("pageup,b", "page(-1)", "page up", show=False, id="strays.pageup", tooltip="A screenful up"),
    Binding("home,g", "move(-1000000)", "first", show=False, id="strays.first", tooltip="The first"),
    Binding("end,G", "move(1000000)", "last", show=False, id="strays.last", tooltip="The last"),
]


class StraysScreen(ListScreen):
    """The screen of strays."""

    BINDINGS: ClassVar[list[BindingType]] = [*_KEYS]
    app: Actions

    def __init__(self, frame: Frame, kit: Kit, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(frame, kit, clock=clock)
        self._frame: Frame = frame
        self._ticked: set[Key] = set()

    def compose(self) -> ComposeResult:
        """Give the title, the list, what is known of the chosen one, and the keys."""
        yield LinePanel(id="strays-title")
        yield LinePanel(id="strays-columns")
        yield StrayList(id="strays-list")
        yield LinePanel(id="strays-about")
        yield Footer(id="strays-keys")

    def on_mount(self) -> None:
        """Show what there is, what is still being ended included."""
        if self.app.stray_endings is not None:
            self.app.stray_endings.show(self.paint)
        self.paint()

    def refresh_frame(self, frame: Frame) -> None:
        """Take a new frame."""
        self._frame = frame
        self.paint()

    @property
    def _staged(self) -> Mapping[Key, Staged]:
        endings = self.app.stray_endings
        return endings.staging.staged if endings is not None else {}

    @property
    def _judged(self) -> Judged:
        return self.app.judged(self._frame)

    def _strays(self) -> Mapping[Key, Stray]:
        return {one.key: one for one in self._judged.strays}

    # -- drawing ---------------------------------------------------------------------------------------------------

    def found(self) -> list[Stray]:
        """Give the strays of the newest frame, what was staged and is no stray any more, and what may be one."""
        found, staged = self._strays(), self._staged
        gone = [one.stray for key, one in staged.items() if key not in found]
        return [*found.values(), *gone, *(one for one in self._judged.possible if one.key not in staged)]

    def paint(self) -> None:
        """Draw everything."""
        if not self.is_mounted or not self.query(StrayList):  # it is being made, or taken away
            return
        width, height = self.app.size
        kit, listed = self._kit, self.query_one(StrayList)
        found, strays, staged = self.found(), self._strays(), self._staged
        listed.take(found)
        self._ticked &= {key for key in strays if key not in staged or staged[key].stage is Stage.LEFT}
        lines = ABOUT + 2 * (height >= 24) if height >= 16 else 0
        room = max(1, height - 3 - lines)
        with self.app.batch_update():
            self.query_one("#strays-columns", LinePanel).show([title_line(kit, width)])
            listed.give(room)
            if found:
                below = self._notes(width)
                listed.draw(kit, width, room, self._frame.snapshot, ticked=self._ticked, staged=staged, below=below)
            else:
                listed.show(notice_lines(self._why_empty(), kit, width, room))
            self.query_one("#strays-title", LinePanel).show([self._title(width)])
            panel = self.query_one("#strays-about", LinePanel)
            panel.display = lines > 0
            panel.give(max(lines, 1))
            chosen = listed.chosen
            panel.show(about(chosen, kit, width, lines, staged.get(chosen.key) if chosen else None))
            self.query_one(Footer).draw(hints(_KEYS), kit, width)

    def _title(self, width: int) -> Any:
        strays, possible, _ = self._judged
        pen = Pen(self._kit, "band").gap().write("strays of yours", "strong").gap(2)
        old = self.old()
        if old:
            pen.write(old, "warning").gap(2)
        if not self._frame.snapshot.gpus:
            return pen.line(width)
        if self._frame.snapshot.demo:
            pen.write(DEMO_NOTICE.partition(",")[0], "note").gap(2)
        pen.write(total(strays, possible), "muted")
        ticked = [one for one in strays if one.key in self._ticked]
        if ticked:
            pen.gap(2).write(f"{len(ticked)} ticked", "note")
        part = self.query_one(StrayList).part(self._kit.glyphs.dash)
        if part and pen.cells + 2 + cell_len(part) < width:
            pen.gap(width - pen.cells - cell_len(part) - 1).write(part, "muted")
        return pen.line(width)

    def _words(self) -> list[str]:
        """Say what the rows do not, as `gpuwatch strays` does."""
        seen, options = self._frame.snapshot, self.app.options
        if not seen.gpus or seen.state is not SourceState.OK:
            return [nothing_words(seen)]
        watched = None if self._frame.kept is not None else self._frame.history.watched
        return notes(self._judged, seen, watched, options.tending)

    def _notes(self, width: int) -> list[Line]:
        wrapped = [line for words in self._words() for line in wrap(words, max(1, min(120, width - 4)))]
        return [Pen(self._kit).gap(2).write(words, "muted").line(width) for words in wrapped]

    def _why_empty(self) -> list[tuple[str, Role]]:
        return [(words, "muted") for words in self._words()]

    # -- what the user does ----------------------------------------------------------------------------------------

    def on_stray_list_ticked(self, _message: StrayList.Ticked) -> None:
        """Tick what was clicked."""
        self.action_tick()

    def action_tick(self) -> None:
        """Tick the one under the cursor off, or take the tick away."""
        chosen = self.query_one(StrayList).chosen
        if chosen is None:
            return
        if not chosen.ends:
            self.notify("it has ended already, and no signal reaches it: its parent has to take note", markup=False)
            return
        if chosen.sure is Sureness.POSSIBLE:
            self.notify("whether it is idle is not known yet: K on the dashboard ends it anyway", markup=False)
            return
        if chosen.key not in self._strays():
            self.notify("it is no longer seen as a stray", markup=False, timeout=4)
            return
        if self.app.endings is not None and self.app.endings.follows(chosen.key):
            self.notify("it is being ended already: K on the dashboard shows it", markup=False, timeout=4)
            return
        self._ticked ^= {chosen.key}
        self.paint()

    def action_detail(self) -> None:
        """Show all that is known of the one under the cursor."""
        chosen = self.query_one(StrayList).chosen
        if chosen is not None and chosen.listed:
            self.app.show_detail((chosen.gpus[0], *chosen.key))
        elif chosen is not None:
            self.notify("the driver does not list it: what is known of it stands below the list", markup=False)

    def action_end(self) -> None:
        """Ask whether to end those that are ticked, one after the other."""
        ticked = [one for one in self.found() if one.key in self._ticked]
        if not ticked:
            self.notify("tick with Space what is to be ended", markup=False, timeout=4)
        elif self.app.may_end():
            title, lines = _question(ticked)
            lines = [DEMO_NOTICE] * self._frame.snapshot.demo + lines
            question = ConfirmScreen(title, lines, len(ticked), self._kit.glyphs)
            self.app.push_screen(question, lambda choice: self._confirmed(ticked, choice))

    def action_decide(self) -> None:
        """Ask what to do with the one under the cursor, where it was left; else the same as to end those ticked."""
        chosen = self.query_one(StrayList).chosen
        if chosen is None or chosen.key not in self._staged or self._staged[chosen.key].stage is not Stage.LEFT:
            self.action_end()
        elif self.app.may_end() and self.app.stray_endings is not None:
            self.app.stray_endings.staging.forget(chosen.key)
            self.app.ask_to_end((chosen.gpus[0] if chosen.gpus else "", *chosen.key))
            self.paint()

    def _confirmed(self, asked: list[Stray], choice: Choice | None) -> None:
        """End those that were asked about, as they were shown; who has ceased to be a stray meanwhile lost its tick."""
        if choice is None or choice is Choice.CANCEL or self.app.helpers.killer is None:
            return
        spared = [str(one.process.pid) for one in asked if one.key not in self._ticked]
        asked = [one for one in asked if one.key in self._ticked]
        if spared:
            words = "is no longer seen as a stray" if len(spared) == 1 else "are no longer seen as strays"
            self.notify(f"PID {', '.join(spared)} {words}: {LEFT_ALONE}", markup=False, timeout=6)
        if not asked:
            return
        if self.app.stray_endings is None:
            self.app.stray_endings = StrayEndings(self.app, self.app.helpers.killer())
            self.app.stray_endings.show(self.paint)
        self.app.stray_endings.begin(asked, choice)
        self._ticked.clear()
        self.paint()

    def action_close(self) -> None:
        """Go back; what waits for its turn is left alone."""
        if self.app.stray_endings is not None:
            self.app.stray_endings.leave()
        self.dismiss(None)


def _question(ticked: list[Stray]) -> tuple[str, list[str]]:
    held = [one.held for one in ticked if one.held is not None]
    title = f"End {len(ticked)} process{'es' * (len(ticked) != 1)} of yours?"
    lines = [f"{one.process.pid}  {one.process.command or one.process.name}" for one in ticked]
    least = "at least " * (len(held) < len(ticked))
    return title, [*lines, f"together {least}{size(sum(held))}, one after the other"] if held else lines
