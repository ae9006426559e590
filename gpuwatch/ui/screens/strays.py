"""Strays screen: one's own strays, ticked off and ended one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Mapping
from textwrap import wrap
from typing import TYPE_CHECKING, ClassVar, Final

from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.analysis.strays import Certainty, Stray, StrayReport, notes
from gpuwatch.kill.session import DEMO_NOTICE, Choice
from gpuwatch.model import SourceState
from gpuwatch.ui.endings import LEFT_ALONE, Key, Stage, Staged
from gpuwatch.ui.screens.dialog import ConfirmDialog
from gpuwatch.ui.screens.list_screen import ListScreen, fact_lines, moving_keys
from gpuwatch.ui.theme import Glyphs, Ground, Role, Skin
from gpuwatch.ui.widgets.lines import Line, LineBuilder
from gpuwatch.ui.widgets.notice import nothing_words, notice_lines
from gpuwatch.ui.widgets.row_list import Cell, Column, RowList
from gpuwatch.units import duration, gib, size

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame


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


def columns(skin: Skin, width: int) -> list[Column]:
    """Return the columns that a width has room for."""
    found = [
        Column("box", "", 3, right=False),
        Column("pid", "PID", 8, role="muted", gap=1),
        Column("gpu", "GPU", 6),
        Column("memory", "GiB", 7, role="strong"),
    ]
    if width >= NARROW:
        found.append(Column("idle", "idle", 8 + skin.glyphs.ascii))
    if width < WIDE:
        return [*found, Column("why", "why", 0, right=False, gap=2)]
    found.append(Column("age", "age", 8, role="muted"))
    why = Column("why", "why", (width - 47) * 3 // 5, right=False, gap=2)
    return [*found, why, Column("command", "command", 0, right=False, role="muted", gap=2)]


def _words(stray: Stray, glyphs: Glyphs) -> str:
    sure = "" if stray.sure is Certainty.CERTAIN else f" ({stray.sure.value})"
    first = stray.why[0] if stray.why else stray.cause.value
    return f"{stray.cause.value}{sure} {glyphs.dot} {first}"


def idle_words(stray: Stray, glyphs: Glyphs) -> str:
    """Print how long it has been idle, as far as that is known."""
    if stray.idle is None:
        return glyphs.missing
    return f"{glyphs.least if stray.idle_at_least else ''}{duration(stray.idle)}"


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
    return found


def total(strays: Collection[Stray], possible: Collection[Stray] = ()) -> str:
    """Print how many they are and what they hold, and how many may be strays: `2 strays · 18.0 GiB · 1 possible`."""
    more = [f"{len(possible)} possible"] * bool(possible)
    if not strays:
        return " · ".join(["no strays", *more])
    known = [one.held for one in strays if one.held is not None]
    least = "at least " * (len(known) < len(strays))
    held = [f"{least}{size(sum(known))}"] * bool(known)
    return " · ".join([f"{len(strays)} stray{'s' * (len(strays) != 1)}", *held, *more])


class StrayList(RowList[Stray]):
    """The strays; the cursor follows its process, not the line."""

    class Ticked(Message):
        """The box of the one under the cursor was clicked."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.now = 0.0
        """Wall-clock time of the snapshot."""
        self.ticked: set[Key] = set()
        self.staged: Mapping[Key, Staged] = {}

    def identity(self, row: Stray) -> Hashable:
        """Return PID and start time."""
        return row.key

    def columns(self, skin: Skin, width: int) -> list[Column]:
        """Return the columns that a width has room for."""
        return columns(skin, width)

    def cells(self, place: int, skin: Skin, ground: Ground) -> tuple[Cell, ...]:
        """Return the cells of a stray; once it was staged, its state stands in the place of the reasons."""
        stray, glyphs = self.found[place], skin.glyphs
        staged, ticked = self.staged.get(stray.key), stray.key in self.ticked
        possible = stray.sure is Certainty.POSSIBLE
        box = "[x]" if ticked else "[ ]" if stray.ends and staged is None and not possible else "   "
        began = stray.process.started
        texts = {
            "pid": str(stray.process.pid),
            "gpu": ",".join(map(str, stray.indices)) or glyphs.missing,
            "memory": glyphs.missing if stray.held is None else gib(stray.held),
            "idle": idle_words(stray, glyphs),
            "age": glyphs.missing if began is None else duration(self.now - began),
            "command": stray.process.command or f"[{stray.process.name}]",
        }
        why: tuple[str, Role] = (_words(stray, glyphs), "muted" if possible else "text")
        if staged is not None:
            why = (staged.said, _ROLES[staged.stage])
        cells: list[Cell] = []
        for column in self._columns:
            if column.id == "box":
                cells.append(((box, "strong" if ticked else "muted"),))
            elif column.id == "why":
                cells.append((why,))
            elif column.id != "command" or staged is None:
                cells.append(((texts[column.id], column.role),))
        return tuple(cells)

    def react(self, x: int) -> bool:
        """Tick the stray whose box was clicked."""
        if x < 6:
            self.post_message(self.Ticked())
        return False


_KEYS: Final[list[Binding]] = [
    Binding("escape,q,S", "close", "back", id="strays.close", key_display="Esc", tooltip="Go back to the dashboard"),
    Binding("space,x", "tick", "tick", id="strays.tick", key_display="Space", tooltip="Tick this one off, or not"),
    Binding("enter", "end", "end ticked", id="strays.end", key_display="Enter", tooltip="End those that are ticked"),
    Binding("K", "decide", "decide", show=False, id="strays.decide", tooltip="What to do with one that was left"),
    Binding("i", "detail", "detail", id="strays.detail", tooltip="All that is known of this process"),
    *moving_keys("strays", first="The first", last="The last"),
]


class StraysScreen(ListScreen[StrayList]):
    """The screen of strays."""

    NAME = "strays"
    TITLE = "strays of yours"
    KEYS = _KEYS
    BINDINGS: ClassVar[list[BindingType]] = [*_KEYS]

    def __init__(self, frame: Frame, skin: Skin, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(StrayList(), frame, skin, clock=clock)
        self._frame: Frame = frame

    def start(self) -> None:
        """Show what is still being ended, too."""
        if self.app.endings is not None:
            self.app.endings.show_strays(self.paint)

    @property
    def _staged(self) -> Mapping[Key, Staged]:
        return self.app.endings.strays if self.app.endings is not None else {}

    @property
    def _judged(self) -> StrayReport:
        return self.app.judged(self._frame)

    def _strays(self) -> Mapping[Key, Stray]:
        return {one.key: one for one in self._judged.strays}

    # -- drawing ---------------------------------------------------------------------------------------------------

    def found(self) -> list[Stray]:
        """Return the strays of the newest frame, what was staged and is no stray any more, and what may be one."""
        found, staged = self._strays(), self._staged
        gone = [one.stray for key, one in staged.items() if key not in found]
        return [*found.values(), *gone, *(one for one in self._judged.possible if one.key not in staged)]

    def read_rows(self) -> None:
        """Update the strays, what becomes of those that are being ended, and the ticks."""
        strays, staged = self._strays(), self._staged
        self.rows.now, self.rows.staged = self._frame.snapshot.taken, staged
        self.rows.update_rows(self.found())
        self.rows.ticked &= {key for key in strays if key not in staged or staged[key].stage is Stage.LEFT}

    def paint(self) -> None:
        """Draw everything, as far as processes have been ended by now."""
        if self._ready:
            self.read_rows()
        super().paint()

    def write_title(self, builder: LineBuilder, width: int) -> None:
        """Write how many strays there are and what they hold."""
        strays, possible, _ = self._judged
        self.write_old(builder)
        if not self._frame.snapshot.gpus:
            return
        if self._frame.snapshot.demo:
            builder.write(DEMO_NOTICE.partition(",")[0], "note").gap(2)
        builder.write(total(strays, possible), "muted")
        ticked = sum(one.key in self.rows.ticked for one in strays)
        if ticked:
            builder.gap(2).write(f"{ticked} ticked", "note")
        part = self.rows.part(self._skin.glyphs.dash)
        if builder.cells + 2 + cell_len(part) < width:
            self.write_right(builder, part, width)

    def detail(self, width: int, lines: int) -> list[Line]:
        """Draw all that is known of the stray under the cursor."""
        chosen = self.rows.selected
        facts = _facts(chosen, self._staged.get(chosen.key)) if chosen is not None else []
        return fact_lines(facts, self._skin, width, lines)

    def _words(self) -> list[str]:
        """Return what the rows do not show, as `gpuwatch strays` prints it."""
        seen, options = self._frame.snapshot, self.app.options
        if not seen.gpus or seen.state is not SourceState.OK:
            return [nothing_words(seen)]
        watched = None if self._frame.kept is not None else self._frame.history.watched
        return notes(self._judged, seen, watched, options.stray_limits)

    def below(self, width: int) -> list[Line]:
        """Draw what the rows do not tell."""
        wrapped = [line for words in self._words() for line in wrap(words, max(1, min(120, width - 4)))]
        return [LineBuilder(self._skin).gap(2).write(words, "muted").build(width) for words in wrapped]

    def empty(self, width: int, lines: int) -> list[Line]:
        """Draw why there are no strays."""
        return notice_lines([(words, "muted") for words in self._words()], self._skin, width, lines)

    # -- what the user does ----------------------------------------------------------------------------------------

    def on_stray_list_ticked(self, _message: StrayList.Ticked) -> None:
        """Tick what was clicked."""
        self.action_tick()

    def action_tick(self) -> None:
        """Tick the one under the cursor off, or take the tick away."""
        chosen = self.rows.selected
        if chosen is None:
            return
        if not chosen.ends:
            self.notify("it has ended already, and no signal reaches it: its parent has to take note", markup=False)
            return
        if chosen.sure is Certainty.POSSIBLE:
            self.notify("whether it is idle is not known yet: K on the dashboard ends it anyway", markup=False)
            return
        if chosen.key not in self._strays():
            self.notify("it is no longer seen as a stray", markup=False, timeout=4)
            return
        if self.app.endings is not None and self.app.endings.has_dialog(chosen.key):
            self.notify("it is being ended already: K on the dashboard shows it", markup=False, timeout=4)
            return
        self.rows.ticked ^= {chosen.key}
        self.paint()

    def action_detail(self) -> None:
        """Show all that is known of the one under the cursor."""
        chosen = self.rows.selected
        if chosen is not None and chosen.listed:
            self.app.show_detail((chosen.gpus[0], *chosen.key))
        elif chosen is not None:
            self.notify("the driver does not list it: what is known of it stands below the list", markup=False)

    def action_end(self) -> None:
        """Ask whether to end those that are ticked, one after the other."""
        ticked = [one for one in self.found() if one.key in self.rows.ticked]
        if not ticked:
            self.notify("tick with Space what is to be ended", markup=False, timeout=4)
        elif self.app.may_end():
            title, lines = _question(ticked)
            lines = [DEMO_NOTICE] * self._frame.snapshot.demo + lines
            question = ConfirmDialog(title, lines, len(ticked), self._skin.glyphs)
            self.app.push_screen(question, lambda choice: self._confirmed(ticked, choice))

    def action_decide(self) -> None:
        """Ask what to do with the one under the cursor, where it was left; else the same as to end those ticked."""
        chosen = self.rows.selected
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
        spared = [str(one.process.pid) for one in asked if one.key not in self.rows.ticked]
        asked = [one for one in asked if one.key in self.rows.ticked]
        if spared:
            words = "is no longer seen as a stray" if len(spared) == 1 else "are no longer seen as strays"
            self.notify(f"PID {', '.join(spared)} {words}: {LEFT_ALONE}", markup=False, timeout=6)
        if not asked:
            return
        self.app.need_endings().begin(asked, choice, self.app.newest or self._frame, self.paint)
        self.rows.ticked.clear()
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
