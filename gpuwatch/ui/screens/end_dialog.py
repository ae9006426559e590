"""Groups that are ended behind the dashboard: those of dialogs, and a queue of strays.

Groups go on after their screen was closed. A notification replaces the questions and reports of a closed dialog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, Protocol, cast

import msgspec
from msgspec.structs import replace
from textual.app import App
from textual.screen import Screen

from gpuwatch.analysis.strays import Stray, StrayReport
from gpuwatch.base.threads import Worker
from gpuwatch.kill.demo import DemoEnder
from gpuwatch.kill.group import POLL_SECONDS, KillChoice, KillState, ProcessGroup
from gpuwatch.kill.pinned import KillTarget, Pinner, find_targets
from gpuwatch.model.fields import RowKey
from gpuwatch.monitor import Frame
from gpuwatch.ui.screens.detail import brief, held_by
from gpuwatch.ui.screens.dialog import EndDialog
from gpuwatch.ui.theme import UNICODE, Glyphs

Key = tuple[int, int]
"""PID and start time."""

LEFT_ALONE: Final = "left alone"


class QueuedStray(msgspec.Struct):
    """Stray process in a queue of strays that are ended one by one."""

    stray: Stray
    choice: KillChoice
    """The signal that the user confirmed."""
    group: ProcessGroup | None = None
    """Group that is ended; None until it is the stray's turn."""
    message: str = "waits for its turn"
    open: bool = True
    """Whether the stray is still to be ended."""

    @property
    def waiting(self) -> bool:
        """Whether it is not the stray's turn yet."""
        return self.open and self.group is None

    @property
    def left(self) -> bool:
        """Whether the stray was refused or called off, or its process still runs."""
        return not self.open and not (self.group is not None and self.group.exited)

    def leave(self, message: str) -> None:
        """Do nothing more about the stray: `message` says how it ended, or why it is left alone."""
        self.open, self.message = False, message
        if self.group is not None:
            self.group.abandon()

    def call_off(self, message: str) -> None:
        """Leave the stray alone, unless it was signalled: then its group goes on to its end."""
        if self.open and (self.group is None or self.group.sent is None):
            self.leave(message)

    def tick(self, group: ProcessGroup) -> None:
        """Advance the group without a question: the user has confirmed all strays together."""
        group.tick()
        asks = group.state is KillState.ASKING
        if group.asks_again:
            self.leave(f"{group.sentence}; K asks what to do")
        elif asks and group.warnings:
            self.leave(f"not ended: {group.warnings[0]}; K asks whether to do it unrecorded")
        elif asks and self.choice not in group.choices:
            self.leave(f"it ignores that signal: {self.choice.value} would do nothing")
        elif asks:
            group.choose(self.choice)
        elif group.over:
            self.leave(f"not ended: {group.message}" if group.refused else group.message or LEFT_ALONE)
        if self.open:
            self.message = group.sentence


class EndActions(Protocol):
    """What the application knows of the processes that are ended."""

    endings: Endings | None
    """None before the first."""

    def need_endings(self) -> Endings:
        """Return the groups that are ended, made at the first call; requires `may_end`."""


class Endings:
    """All groups that are ended; the app has one of these.

    Call `open` for a key, `begin` for selected strays, `observe` for each frame, and `close` when the program ends.
    """

    def __init__(
        self,
        app: App[Any],
        ender: Pinner | DemoEnder,
        *,
        find_strays: Callable[[Frame], StrayReport] | None = None,
        glyphs: Glyphs = UNICODE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find_strays` returns the strays of a frame."""
        self._app = app
        self._ender = ender
        self._find_strays = find_strays
        self._glyphs = glyphs
        self._clock = clock
        self._worker = Worker("gpuwatch-endings")
        self._dialogs: list[EndDialog] = []
        """Dialogs whose groups are under way, on screen or hidden."""
        self.strays: dict[Key, QueuedStray] = {}
        """Queue of strays, with the finished ones: the next stray begins when the one before is finished or left."""
        self._paint_strays: Callable[[], None] | None = None
        """Function that draws the strays screen, while that is open."""
        self._frame: Frame | None = None
        self._timer = app.set_interval(POLL_SECONDS, self._tick, pause=True)

    # -- dialogs ---------------------------------------------------------------------------------------------------

    def open(self, key: RowKey, frame: Frame, *, whole_run: bool = False) -> bool:
        """Ask about the process of a row; False where the frame has no such row, or a dialog is open already.

        `key` may also name a process that the driver does not list. With `whole_run` its run is chosen from the start.
        Where a hidden dialog has already sent the process a signal, that dialog is shown again.
        """
        if any(not dialog.closed for dialog in self._dialogs):
            return False
        hidden = self.find_dialog(key[1:])
        if hidden is not None:  # a second signal may break off what the first set going
            self._dialogs.remove(hidden)
            self._show(EndDialog(hidden.group, hidden.facts, self._glyphs))
            return True
        targets = find_targets(frame.snapshot, max(0.0, self._clock() - frame.received))
        target = targets.get(key[1:])
        if target is None:
            self._app.notify(f"process {key[1]} is on no GPU any more", markup=False)
            return False
        if isinstance(self._ender, DemoEnder):
            run = [one for one in targets.values() if one.process.run_key == target.process.run_key]
            self._notify(target.pid, self._ender.end(run if whole_run and run else [target]))
            return True
        unlisted = "not listed: it has a GPU open, and the driver does not list it"
        held = held_by(key[1:], frame, key[0])
        command = target.process.command or f"[{target.process.name}]"
        facts = brief(held, frame.snapshot) if held else [command, unlisted]
        group = ProcessGroup(
            self._ender,
            target,
            frame.snapshot,
            submit=self._worker,
            has_run=True,
            whole_run=whole_run,
            is_under_way=lambda process: self.find_dialog(process) is not None or self.has_stray(process),
            clock=self._clock,
        )
        self._timer.resume()
        if group.over:  # what is on screen already forbids it: there is nothing to ask
            hint = "; y copies a message to its owner" * (target.process.uid not in (None, self._ender.policy.may_end))
            self._notify(target.pid, f"not ended: {group.message}{hint}", "warning")
            return True
        self._show(EndDialog(group, facts, self._glyphs))
        return True

    def _show(self, dialog: EndDialog) -> None:
        self._dialogs.append(dialog)
        self._app.push_screen(dialog)

    def find_dialog(self, process: Key) -> EndDialog | None:
        """Return the dialog whose group, which is under way, has that process."""
        return next((dialog for dialog in self._dialogs if dialog.group.has(process)), None)

    def _follow_hidden(self, dialog: EndDialog) -> None:
        """Notify the user about a group whose dialog was closed, in place of asking in the dialog."""
        group = dialog.group
        if group.asks_again and not group.abandoned:
            self._notify(group.target.pid, f"{group.sentence}; press K on it to decide what to do", "warning")
            group.abandon()
        elif group.over:
            if group.sent is not None and group.message != "left running" and not dialog.shows_end:
                self._notify(group.target.pid, group.message)
            self._dialogs.remove(dialog)

    # -- strays ----------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether a stray is still to be ended."""
        return any(one.open for one in self.strays.values())

    def has_stray(self, process: Key) -> bool:
        """Return whether that process is a stray that is still to be ended."""
        stray = self.strays.get(process)  # the worker asks, too
        return stray is not None and stray.open

    def show_strays(self, paint: Callable[[], None]) -> None:
        """Call `paint` at each step from now on; where no stray is still to be ended, drop the finished ones."""
        if not self.busy:
            self.strays.clear()
        self._paint_strays = paint

    def begin(self, strays: Iterable[Stray], choice: KillChoice, frame: Frame, paint: Callable[[], None]) -> None:
        """End strays of a frame by the signal that the user confirmed, after those that are under way."""
        self._frame, self._paint_strays = frame, paint
        if isinstance(self._ender, DemoEnder):
            targets = [KillTarget(stray.process) for stray in strays]
            self._notify(targets[0].pid, self._ender.end(targets))
            return
        for stray in strays:
            before = self.strays.get(stray.key)
            if before is None or before.left:
                self.strays[stray.key] = QueuedStray(stray, choice)
        self._timer.resume()

    def leave_strays(self) -> None:
        """Remove waiting strays, since their screen was closed; the group of a signalled stray goes on."""
        self._paint_strays = None
        waiting = sum(one.waiting for one in self.strays.values())
        self._call_off_strays()
        if waiting:
            strays = "1 stray that waited for its turn is" if waiting == 1 else f"{waiting} strays that waited are"
            self._app.notify(f"{strays} left alone", markup=False, timeout=6)

    def _call_off_strays(self, message: str = LEFT_ALONE, but: Collection[Key] = ()) -> None:
        for key, one in self.strays.items():
            if key not in but:
                one.call_off(message)

    def _tick_strays(self, ender: Pinner, frame: Frame) -> None:
        current = min((one for one in self.strays.values() if one.open), key=lambda one: one.group is None)
        if current.group is None:
            target = self._target_of(current.stray, frame)
            current.group = ProcessGroup(ender, target, frame.snapshot, submit=self._worker)
        current.tick(current.group)
        if self._paint_strays is not None:
            self._paint_strays()
        elif not current.open:
            self._notify(current.stray.process.pid, current.message)

    def _target_of(self, stray: Stray, frame: Frame) -> KillTarget:
        """Return the target as the newest frame has it, with the program that the user was shown."""
        age, shown = max(0.0, time.monotonic() - frame.received), stray.process
        target = find_targets(frame.snapshot, age).get(stray.key, KillTarget(shown, stray.gpus))
        process = replace(target.process, command=shown.command, program=shown.program)
        return replace(target, process=process)

    def _without_signalled(self, frame: Frame) -> Frame:
        """Return a frame without signalled strays: their end must not change how others of the run are judged."""
        signalled = {key for key, one in self.strays.items() if one.group and one.group.sent is not None}
        seen = frame.snapshot
        processes = tuple(one for one in seen.processes if one.key not in signalled)
        unlisted = tuple(one for one in seen.unlisted if one.process.key not in signalled)
        return replace(frame, snapshot=replace(seen, processes=processes, unlisted=unlisted))

    # -- both ------------------------------------------------------------------------------------------------------

    def observe(self, frame: Frame) -> None:
        """Add a new frame, also behind other screens and while paused, since freed memory is judged by it.

        While all GPUs can be judged, a process that is no longer a stray, and was not signalled yet, is left alone.
        """
        self._frame = frame
        for group in self._groups():
            group.observe(frame.snapshot)
        if self.busy and self._find_strays is not None:
            found = self._find_strays(self._without_signalled(frame))
            if not found.unjudged:
                self._call_off_strays(f"{LEFT_ALONE}: no longer a stray", but={one.key for one in found.strays})

    def close(self, deadline: float) -> None:
        """Leave all processes as they are, and wait until `deadline` (monotonic clock) for the lines that say so."""
        self._timer.stop()
        self._call_off_strays()
        for group in self._groups():
            group.abandon()
        if isinstance(self._ender, Pinner):
            self._ender.audit.flush(max(0.0, deadline - time.monotonic()))
        self._dialogs.clear()

    def _groups(self) -> list[ProcessGroup]:
        strays = [one.group for one in self.strays.values() if one.group is not None]
        return [*(dialog.group for dialog in self._dialogs), *strays]

    def _tick(self) -> None:
        assert isinstance(self._ender, Pinner)
        for dialog in list(self._dialogs):
            dialog.group.tick()
            if dialog.closed:
                self._follow_hidden(dialog)
            else:
                dialog.call_later(dialog.refresh_view)
        if self.busy and self._frame is not None:
            self._tick_strays(self._ender, self._frame)
        if problem := self._ender.audit.flush(0.0):
            self._app.notify(problem, severity="warning", markup=False, timeout=10)
        if not self._dialogs and not self.busy:
            self._timer.pause()

    def _notify(self, pid: int, words: str, severity: Any = "information") -> None:
        # markup=False: the words may name a parent process, whose name is another's to choose.
        title = f"process {pid}{' (demo)' * isinstance(self._ender, DemoEnder)}"
        self._app.notify(words, title=title, severity=severity, markup=False, timeout=10)


def ends_of(screen: Screen[Any]) -> EndActions:
    """Return the application of a screen, as far as that may use it."""
    return cast("EndActions", screen.app)
