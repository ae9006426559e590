"""Strays screen: one's own strays, ticked off and ended one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.analysis.strays import Judged, Stray, Sureness, notes
from gpuwatch.kill.session import DEMO_NOTICE, Choice
from gpuwatch.model import Snapshot, SourceState
from gpuwatch.ui.endings import LEFT_ALONE, Key, Stage, Staged
from gpuwatch.ui.screens.dialog import ConfirmScreen
from gpuwatch.ui.screens.list_screen import ListScreen
from gpuwatch.ui.theme import Glyphs, Kit, Role
from gpuwatch.ui.widgets.footer import Footer, hints
from gpuwatch.ui.widgets.lines import CursorList, Line, LinePanel, Pen, blank
from gpuwatch.ui.widgets.notice import nothing_words, notice_lines
from gpuwatch.units import duration, gib, size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuwatch.monitor import Frame
    from gpuwatch.ui.actions import Actions


WIDE: Final = 100
"""From this width on a line has the command too."""
NARROW: Final = 60
"""From this width on it has the idle time."""
_ROLES: Final[dict[Stage, Role]] = {
    Stage.WAITING: "muted",
    Stage.ENDING: "note",
    Stage.ENDED: "text",
    Stage.LEFT: "warning",
}


def title_line(kit: Kit, width: int) -> Line:
    """Draw the titles of the columns."""
    pen = Pen(kit, "band").gap(6).write("PID", "muted", 8, right=True).write("GPU", "muted", 6, right=True)
    pen.write("GiB", "muted", 7, right=True)
    if width >= NARROW:
        pen.write("idle", "muted", 8 + kit.glyphs.ascii, right=True)
    if width >= WIDE:
        pen.write("age", "muted", 8, right=True)
    pen.gap(2).write("why", "muted", _why_cells(width) if width >= WIDE else None)
    if width >= WIDE:
        pen.gap(2).write("command", "muted")
    return pen.line(width)


def _why_cells(width: int) -> int:
    return (width - 47) * 3 // 5


def stray_line(
    stray: Stray, kit: Kit, width: int, now: float, *, ticked: bool, under_cursor: bool, staged: Staged | None
) -> Line:
    """Draw one stray; once it was staged, what became of it stands in the place of the reasons."""
    pen = Pen(kit, "cursor" if under_cursor else "base").write(kit.glyphs.cursor if under_cursor else "", "strong", 2)
    possible = stray.sure is Sureness.POSSIBLE
    box = "[x]" if ticked else "[ ]" if stray.ends and staged is None and not possible else "   "
    pen.write(box, "strong" if ticked else "muted", 3).gap()
    pen.write(str(stray.process.pid), "muted", 8, right=True)
    pen.write(",".join(map(str, stray.indices)) or kit.glyphs.missing, "text", 6, right=True)
    pen.write(kit.glyphs.missing if stray.held is None else gib(stray.held), "strong", 7, right=True)
    if width >= NARROW:
        pen.write(idle_words(stray, kit.glyphs), "text", 8 + kit.glyphs.ascii, right=True)
    if width >= WIDE:
        began = stray.process.started
        pen.write(kit.glyphs.missing if began is None else duration(now - began), "muted", 8, right=True)
    pen.gap(2)
    words = _words(stray, kit.glyphs) if staged is None else staged.said
    role: Role = ("muted" if possible else "text") if staged is None else _ROLES[staged.stage]
    if width < WIDE or staged is not None:
        return pen.write(words, role, max(0, width - pen.cells)).line(width)
    pen.write(words, role, _why_cells(width)).gap(2)
    command = stray.process.command or f"[{stray.process.name}]"
    return pen.write(command, "muted", max(0, width - pen.cells)).line(width)


def _words(stray: Stray, glyphs: Glyphs) -> str:
    sure = "" if stray.sure is Sureness.CERTAIN else f" ({stray.sure.value})"
    first = stray.why[0] if stray.why else stray.cause.value
    return f"{stray.cause.value}{sure} {glyphs.dot} {first}"


def idle_words(stray: Stray, glyphs: Glyphs) -> str:
    """Print how long it has been idle, as far as that is known."""
    if stray.idle is None:
        return glyphs.missing
    return f"{glyphs.least if stray.idle_at_least else ''}{duration(stray.idle)}"


def about(stray: Stray | None, kit: Kit, width: int, lines: int, staged: Staged | None) -> list[Line]:
    """Draw all that is known of the stray under the cursor, in as many lines as there are."""
    if lines <= 0:
        return []
    drawn = [Pen(kit, "band").line(width)]
    for label, words in _facts(stray, staged) if stray is not None else ():
        pen = Pen(kit).gap(2).write(label, "muted", 10)
        drawn.append(pen.write(words, "text", max(0, width - pen.cells)).line(width))
    return (drawn + [blank(kit, width)] * lines)[:lines]


def _facts(stray: Stray, staged: Staged | None) -> list[tuple[str, str]]:
    process = stray.process
    why = [(("why" if not place else ""), words) for place, words in enumerate(stray.why)]
    if why:
        why[0] = ("why", f"{why[0][1]} ({stray.sure.value})")
    around = process.surroundings
    found = [("command", process.command or process.name), *why, ("in", around.where if around else "")]
    if staged is not None:
        found.insert(1, ("now", staged.said))
    if not stray.listed:
        found.append(("memory", "the driver does not list it: what it holds is among the unattributed memory"))
    return [(label, words) for label, words in found if words]


def total(strays: Collection[Stray], possible: Collection[Stray] = ()) -> str:
    """Say how many they are and what they hold, and how many may be strays: `2 strays · 18.0 GiB · 1 possible`."""
    more = [f"{len(possible)} possible"] * bool(possible)
    if not strays:
        return " · ".join(["no strays", *more])
    known = [one.held for one in strays if one.held is not None]
    least = "at least " * (len(known) < len(strays))
    held = [f"{least}{size(sum(known))}"] * bool(known)
    return " · ".join([f"{len(strays)} stray{'s' * (len(strays) != 1)}", *held, *more])


class StrayList(CursorList):
    """The strays; the cursor follows its process, not the line."""

    class Ticked(Message):
        """The box of the one under the cursor was clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.found: list[Stray] = []

    @property
    def chosen(self) -> Stray | None:
        """The stray under the cursor."""
        return self.found[self.cursor] if self.found else None

    def take(self, found: Sequence[Stray]) -> None:
        """Take other strays."""
        self.found = list(found)
        self._settle([one.key for one in self.found])

    def draw(
        self,
        kit: Kit,
        width: int,
        lines: int,
        seen: Snapshot,
        *,
        ticked: Collection[Key],
        staged: Mapping[Key, Staged],
        below: Sequence[Line] = (),
    ) -> None:
        """Draw as many as there are lines, and as much of what stands `below` them as there is room for."""
        drawn = [
            stray_line(
                self.found[place],
                kit,
                width,
                seen.taken,
                ticked=self.found[place].key in ticked,
                under_cursor=place == self.cursor,
                staged=staged.get(self.found[place].key),
            )
            for place in self._shown(lines)
        ]
        if below:
            drawn = [*drawn, blank(kit, width), *below][:lines]
        self.show(drawn + [blank(kit, width)] * (lines - len(drawn)))

    def on_click(self, event: events.Click) -> None:
        """Choose the stray that was clicked; a click on its box ticks it."""
        place = self.top + event.y
        if place < len(self.found):
            self.move(place - self.cursor)
            if event.x < 6:
                self.post_message(self.Ticked())


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
        if self.app.endings is not None:
            self.app.endings.show_strays(self.paint)
        self.paint()

    def refresh_frame(self, frame: Frame) -> None:
        """Take a new frame."""
        self._frame = frame
        self.paint()

    @property
    def _staged(self) -> Mapping[Key, Staged]:
        return self.app.endings.strays if self.app.endings is not None else {}

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
        if self.app.endings is not None and self.app.endings.has_dialog(chosen.key):
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
        elif self.app.may_end() and self.app.endings is not None:
            del self.app.endings.strays[chosen.key]
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
        self.app.need_endings().begin(asked, choice, self.app.newest or self._frame, self.paint)
        self._ticked.clear()
        self.paint()

    def action_close(self) -> None:
        """Go back; what waits for its turn is left alone."""
        if self.app.endings is not None:
            self.app.endings.leave_strays()
        self.dismiss(None)


def _question(ticked: list[Stray]) -> tuple[str, list[str]]:
    held = [one.held for one in ticked if one.held is not None]
    title = f"End {len(ticked)} process{'es' * (len(ticked) != 1)} of yours?"
    lines = [f"{one.process.pid}  {one.process.command or one.process.name}" for one in ticked]
    least = "at least " * (len(held) < len(ticked))
    return title, [*lines, f"together {least}{size(sum(held))}, one after the other"] if held else lines
