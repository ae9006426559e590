"""Strays screen: the user's own strays, which can be selected and ended one after the other."""

from __future__ import annotations

import signal
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final

from textual.binding import Binding, BindingType

from gpuwatch.analysis.strays import STRAY, Stray, StrayCertainty, StrayReport, held_words, notes
from gpuwatch.base import procfs
from gpuwatch.base.units import duration
from gpuwatch.kill.demo import DEMO_NOTICE
from gpuwatch.kill.ending import IGNORES_INTERRUPT, KillChoice
from gpuwatch.kill.queue import LEFT_ALONE, Key, QueuedStray
from gpuwatch.model.fields import PROCESS, brief_command
from gpuwatch.model.snapshot import SourceState
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.notice import nothing_words
from gpuwatch.ui.draw.row_list import CURSOR_CELLS, ClickEffect, RowList
from gpuwatch.ui.draw.table import Cell, Column, field_column
from gpuwatch.ui.draw.theme import Background, Role, StyleSet
from gpuwatch.ui.screens.dialog import ConfirmDialog
from gpuwatch.ui.screens.list_screen import ListScreen

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame


WIDE: Final = 100
"""Least width for the column of commands."""
NARROW: Final = 60
"""Least width for the column of idle times."""


def total(strays: Collection[Stray], possible: Collection[Stray] = ()) -> str:
    """Format how many strays there are, their memory, and the possible ones: `2 strays · 18.0 GiB · 1 possible`.

    Empty if there is none: a sentence in place of the list says so.
    """
    if not strays:
        return ""
    parts = [f"{len(strays)} stray{'s' * (len(strays) != 1)}", held_words(strays)]
    return " · ".join(filter(None, [*parts, f"{len(possible)} possible" * bool(possible)]))


class StrayList(RowList[Stray]):
    """List of strays; the cursor follows its process, not the line."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        """Wall-clock time of the snapshot."""
        self.chosen: set[Key] = set()
        """Strays that the user selected."""
        self.queued: Mapping[Key, QueuedStray] = {}

    def identity(self, row: Stray) -> Hashable:
        return row.key

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        cards = max([5, *(len(STRAY["gpu"].cell(one)) for one in self.found)])
        found = [
            Column("box", "", 3, right=False),
            field_column(STRAY["pid"], 8, role="muted", gap=1),
            field_column(STRAY["gpu"], cards, gap=2),
            field_column(STRAY["memory"], 7, role="strong"),
        ]
        if width >= NARROW:
            found.append(field_column(STRAY["idle"], 8 + styles.glyphs.ascii))
        if width < WIDE:
            return [*found, Column("why", "why", 0, right=False, gap=2)]
        found.append(field_column(PROCESS["age"], 8, role="muted"))
        left = width - CURSOR_CELLS - sum(column.gap + column.cells for column in found)
        why = Column("why", "why", left * 3 // 5, right=False, gap=2)
        return [*found, why, field_column(STRAY["command"], 0, role="muted", gap=2)]

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        """Return the cells of a stray; once it is queued, its state replaces the reasons and the command."""
        stray, glyphs = self.found[place], styles.glyphs
        queued, chosen = self.queued.get(stray.key), stray.key in self.chosen
        possible = stray.sure is StrayCertainty.POSSIBLE
        began = stray.process.started
        sure = "" if stray.sure is StrayCertainty.CERTAIN else f" ({stray.sure.value})"
        why = stray.why[0] if stray.why else stray.cause.value
        texts: dict[str, tuple[str, Role]] = {
            "box": (
                "[x]" if chosen else "[ ]" if stray.ends and queued is None and not possible else "",
                "strong" if chosen else "muted",
            ),
            "age": (glyphs.missing if began is None else duration(self.now - began), "muted"),
            "why": (f"{stray.cause.value}{sure} {glyphs.dot} {why}", "muted" if possible else "text"),
        }
        columns = self._columns
        if queued is not None:
            under_way: Role = "muted" if queued.waiting else "note" if queued.open else "text"
            texts["why"] = (queued.message, "warning" if queued.left else under_way)
            columns = [column for column in columns if column.id != "command"]
        return tuple(
            (texts.get(column.id) or (STRAY[column.id].cell(stray, glyphs.missing, glyphs.least), column.role),)
            for column in columns
        )

    def react(self, x: int) -> ClickEffect:
        return "box" if x < 6 else ""


class StraysScreen(ListScreen[StrayList, Stray]):
    """Screen that lists the user's strays."""

    LIST = StrayList
    NAME = "strays"
    TITLE = "your strays"
    KEYS = (
        Binding("escape,q,S", "close", "back", id="strays.close", tooltip="Back to the dashboard"),
        Binding("space,x", "select", "select", id="strays.select", tooltip="Select or unselect"),
        Binding("enter,K", "end", "end", id="strays.end", tooltip="End the selected ones, or this one (asks first)"),
        Binding("i", "detail", "detail", id="strays.detail", tooltip="Show everything about this process"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]

    _frame: Frame

    def start(self) -> None:
        """Show also strays that are still being ended."""
        if queue := actions_of(self).kill_queue:
            queue.follow_strays(self.paint)

    @property
    def _queued(self) -> Mapping[Key, QueuedStray]:
        queue = actions_of(self).kill_queue
        return queue.strays if queue is not None else {}

    @property
    def _report(self) -> StrayReport:
        return actions_of(self).strays_of(self._frame)

    # -- drawing ---------------------------------------------------------------------------------------------------

    def found(self) -> list[Stray]:
        """Return the strays of the newest frame, queued processes that are no longer strays, and possible strays."""
        strays, queued = {one.key: one for one in self._report.strays}, self._queued
        past = [one.stray for key, one in queued.items() if key not in strays]
        return [*strays.values(), *past, *(one for one in self._report.possible if one.key not in queued)]

    def read_rows(self) -> None:
        """Update the strays, the states of strays that are being ended, and the selection."""
        queued = self._queued
        self.rows.now, self.rows.queued = self._frame.snapshot.taken, queued
        self.rows.update_rows(self.found())
        free = {one.key for one in self._report.strays if one.key not in queued or queued[one.key].left}
        self.rows.chosen &= free

    def paint(self) -> None:
        if self.ready:
            self.read_rows()
        super().paint()

    def summary(self, room: int) -> list[tuple[str, Role]]:
        strays, possible, _ = self._report
        if not self._frame.snapshot.gpus:
            return []
        demo = DEMO_NOTICE.partition(",")[0] if self._frame.snapshot.demo else ""
        chosen = f"{len(self.rows.chosen)} selected" if self.rows.chosen else ""
        return [(demo, "note"), (total(strays, possible), "muted"), (chosen, "note")]

    def facts(self, row: Stray) -> Sequence[tuple[str, str]]:
        queued = self._queued.get(row.key)
        first, *rest = row.why or (row.cause.value,)
        context = row.process.context
        return [
            ("now", queued.message if queued is not None else ""),
            ("why", f"{first} ({row.sure.value})"),
            *(("", words) for words in rest),
            ("command", row.process.command or row.process.name),
            ("runs in", context.where if context else ""),
            ("memory", "" if row.listed else "not listed: its memory is part of the memory of unknown processes"),
        ]

    def key_words(self) -> Mapping[str, str]:
        """Leave out keys that need a row if there is none, and show the number of selected strays."""
        if self.selected is None:
            return dict.fromkeys(("select", "end", "detail"), "")
        return {"end": f"end {len(self.rows.chosen)} selected"} if self.rows.chosen else {}

    def notes(self) -> Sequence[str]:
        """Return the notes that `gpuwatch strays` prints, too."""
        seen, options = self._frame.snapshot, actions_of(self).options
        if not seen.gpus or seen.state is not SourceState.OK:
            return [nothing_words(seen)]
        history = self._frame.history
        known = [history.idle(gpu.key, one.pid, one.start) for gpu in seen.gpus for one in gpu.holdings]
        watched = max([history.watched, *(one.seconds for one in known if one is not None)])
        return notes(self._report, seen, watched, options.stray_limits)

    def why_empty(self) -> Sequence[str]:
        return self.notes()

    # -- actions ---------------------------------------------------------------------------------------------------

    def _refusal(self, row: Stray) -> str:
        """Return why a row cannot be ended; empty where it can."""
        queue, is_possible = actions_of(self).kill_queue, row.sure is StrayCertainty.POSSIBLE
        if not row.ends:
            return "it has already ended: only its parent can remove it"
        if row.key not in {one.key for one in (*self._report.strays, *self._report.possible * is_possible)}:
            return "it is no longer a stray"
        if queue is not None and (queue.find_asked(row.key) or queue.has_stray(row.key)):
            return "already being ended: Enter shows it"
        return ""

    def action_select(self) -> None:
        """Select or unselect the stray under the cursor; if that is not possible, tell the user why."""
        if (row := self.selected) is None:
            return
        doubt = "not yet known to be idle: it cannot be selected, but Enter ends it (asks first)"
        if refusal := self._refusal(row) or doubt * (row.sure is StrayCertainty.POSSIBLE):
            self.notify(refusal, markup=False, timeout=5)
            return
        self.rows.chosen ^= {row.key}
        self.paint()

    def action_detail(self) -> None:
        chosen = self.rows.selected
        if chosen is not None and chosen.listed:
            actions_of(self).show_detail((chosen.gpus[0], *chosen.key))
        elif chosen is not None:
            self.notify("not listed: everything known about it is below the list", markup=False)

    def action_end(self) -> None:
        """Ask whether to end the selected strays, or without a selection the one under the cursor."""
        if (row := self.selected) is None:
            return
        chosen = [one for one in self.found() if one.key in self.rows.chosen]
        actions, queue, queued = actions_of(self), actions_of(self).kill_queue, self._queued.get(row.key)
        is_asked = queue is not None and (queued is not None or queue.find_asked(row.key) is not None)
        if chosen:
            self._ask(chosen)
        elif queued is not None and not queued.left:
            self.notify(queued.message, markup=False, timeout=5)
        elif is_asked or "select" in actions.refused:  # it was left, has its own dialog, or is on another host
            if queue is not None:
                queue.strays.pop(row.key, None)
            actions.ask_to_end((row.gpus[0] if row.gpus else "", *row.key))
            self.paint()
        elif refusal := self._refusal(row):
            self.notify(refusal, markup=False, timeout=5)
        else:
            self._ask([row])

    def _ask(self, chosen: list[Stray]) -> None:
        if not actions_of(self).may_end():
            return
        held = held_words(chosen)
        together = f"together they hold {held}; they are ended one by one" if len(chosen) > 1 else f"it holds {held}"
        lines = [DEMO_NOTICE] * self._frame.snapshot.demo
        for one in chosen:
            doubt = ": not yet known to be a stray" if one.sure is StrayCertainty.POSSIBLE else ""
            lines.append(f"{one.process.pid}  {brief_command(one.process)}{doubt}")
        lines += [together] * bool(held)
        deaf = [one.process.pid for one in chosen if procfs.ignores_signal(one.process.pid, signal.SIGINT)]
        interrupts = len(deaf) < len(chosen) or self._frame.snapshot.demo  # whose PIDs may be real ones
        lines += [] if interrupts else [f"SIGINT would do nothing: {IGNORES_INTERRUPT}"]
        title = f"End {len(chosen)} process{'es' * (len(chosen) != 1)} of yours?"
        question = ConfirmDialog(title, lines, len(chosen), self.style_set.glyphs, interrupts=interrupts)
        self.app.push_screen(question, lambda choice: self._confirmed(chosen, choice))

    def _confirmed(self, asked: list[Stray], choice: KillChoice | None) -> None:
        """End the strays of the question, except processes that are no longer strays."""
        if choice is None or choice is KillChoice.CANCEL or not actions_of(self).may_end():
            return
        past = [str(one.process.pid) for one in asked if self._refusal(one)]
        asked = [one for one in asked if not self._refusal(one)]
        if past:
            words = "is no longer a stray" if len(past) == 1 else "are no longer strays"
            self.notify(f"PID {', '.join(past)} {words}: {LEFT_ALONE}", markup=False, timeout=6)
        if asked:
            actions_of(self).end_strays(asked, choice, actions_of(self).newest or self._frame)
            self.start()
            self.rows.chosen.clear()
            self.paint()

    def action_close(self) -> None:
        """Go back; strays that wait for their turn are left alone."""
        queue = actions_of(self).kill_queue
        if waiting := queue.drop_waiting() if queue is not None else 0:
            strays = "1 waiting stray is" if waiting == 1 else f"{waiting} waiting strays are"
            self.app.notify(f"{strays} {LEFT_ALONE}", markup=False, timeout=6)
        self.dismiss(None)
