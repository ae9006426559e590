"""Sessions that end processes behind the dashboard: those of dialogs, and a queue of strays.

Sessions go on after their screen was closed. A notification replaces the questions and reports of a closed dialog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import wait
from typing import Any, Final

import msgspec
from msgspec.structs import replace
from textual.app import App

from gpuwatch.analysis.rows import RowKey, rows
from gpuwatch.analysis.strays import Stray, StrayReport
from gpuwatch.kill.session import LOOK_EVERY, Choice, Phase, ProcessEnder, Session
from gpuwatch.kill.target import Target, target_of, target_of_unlisted
from gpuwatch.monitor import Frame
from gpuwatch.threads import Worker
from gpuwatch.ui.screens.detail import brief, held_by
from gpuwatch.ui.screens.dialog import EndDialog
from gpuwatch.ui.theme import UNICODE, Glyphs

Key = tuple[int, int]
"""PID and start time."""

LEFT_ALONE: Final = "left alone"

OLD: Final = 90.0
"""Seconds after which the result of a search for open device files is too old to end a process by."""


class QueuedStray(msgspec.Struct):
    """Stray process in a queue of strays that are ended one by one."""

    stray: Stray
    choice: Choice
    """The signal that the user confirmed."""
    session: Session | None = None
    """Session that ends the stray; None until it is the stray's turn."""
    message: str = "waits for its turn"
    open: bool = True
    """Whether the stray is still to be ended."""

    @property
    def waiting(self) -> bool:
        """Whether it is not the stray's turn yet."""
        return self.open and self.session is None

    @property
    def left(self) -> bool:
        """Whether the stray was refused or called off, or its process still runs."""
        return not self.open and not (self.session is not None and self.session.ended)

    def leave(self, message: str) -> None:
        """Do nothing more about the stray: `message` says how it ended, or why it is left alone."""
        self.open, self.message = False, message

    def call_off(self, message: str) -> None:
        """Leave the stray alone, unless it was signalled: then its session goes on to its end."""
        if self.waiting:
            self.leave(message)
        elif self.open and self.session is not None and self.session.phase in (Phase.CHECKING, Phase.ASKING):
            self.session.abandon()

    def tick(self) -> None:
        """Advance the session without a question: the user has confirmed all strays together."""
        session = self.session
        assert session is not None
        session.tick()
        if session.phase is Phase.ASKING:
            problem = ""
            if session.unrecorded:  # of which nobody was warned
                problem = f"not ended: {session.unrecorded}; K asks whether to do it unrecorded"
            elif self.choice not in session.choices:
                problem = f"it ignores that signal: {self.choice.value} would do nothing"
            session.choose(Choice.CANCEL if problem else self.choice)
            if problem:
                self.leave(problem)
                return
        self.message = session.view.message or self.message
        if session.phase is Phase.STILL_THERE:
            self.leave(f"{session.view.message}; K asks what to do")
            session.choose(Choice.LEAVE)
        elif session.phase is Phase.REFUSED:
            self.leave(f"not ended: {session.message}")
        elif session.over:
            self.leave(session.message or LEFT_ALONE)


class Endings:
    """All sessions that end processes; the app has one of these.

    Call `open` for a key, `begin` for selected strays, `observe` for each frame, and `abandon` and `close` when the
    program ends.
    """

    def __init__(
        self,
        app: App[Any],
        ender: ProcessEnder,
        *,
        judge: Callable[[Frame], StrayReport] | None = None,
        glyphs: Glyphs = UNICODE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`judge` finds the strays of a frame."""
        self._app = app
        self._ender = ender
        self._judge = judge
        self._glyphs = glyphs
        self._clock = clock
        self._worker = Worker("gpuwatch-endings")
        self._stray_worker = Worker("gpuwatch-strays")
        self._dialogs: list[EndDialog] = []
        """Dialogs whose sessions are under way, on screen or hidden."""
        self.strays: dict[Key, QueuedStray] = {}
        """Queue of strays, with the finished ones: the next stray begins when the one before is finished or left."""
        self._paint_strays: Callable[[], None] | None = None
        """Function that draws the strays screen, while that is open."""
        self._frame: Frame | None = None
        self._timer = app.set_interval(LOOK_EVERY, self._tick, pause=True)

    # -- dialogs ---------------------------------------------------------------------------------------------------

    def open(self, key: RowKey, frame: Frame, *, whole_run: bool = False) -> bool:
        """Ask about the process of a row; False where the frame has no such row, or a dialog is open already.

        `key` may also name a process that the driver does not list. With `whole_run` its run is chosen from the start.
        Where a hidden dialog has already sent the process a signal, that dialog is shown again.
        """
        if any(not dialog.closed for dialog in self._dialogs):
            return False
        hidden = self._dialog_of(key[1:])
        if hidden is not None:  # a second signal may break off what the first set going
            self._dialogs.remove(hidden)
            self._show(EndDialog(hidden.session, hidden.facts, self._glyphs))
            return True
        snapshot, age = frame.snapshot, max(0.0, self._clock() - frame.received)
        held = held_by(key[1:], frame, key[0])
        unlisted = next((one for one in snapshot.unlisted if one.process.key == key[1:]), None)
        if held:
            target, facts = target_of(held, snapshot, age), brief(held, snapshot)
        elif unlisted is not None:
            process, target = unlisted.process, target_of_unlisted(unlisted.process, unlisted.gpus)
            facts = [process.command or f"[{process.name}]", "unlisted: it has a GPU open, the driver does not list it"]
        else:
            self._app.notify(f"process {key[1]} is on no GPU any more", markup=False)
            return False
        session = Session(
            self._ender,
            target,
            snapshot,
            submit=self._worker,
            find_run=True,
            whole_run=whole_run,
            is_under_way=lambda process: self.has_dialog(process) or self.has_stray(process),
            clock=self._clock,
        )
        self._show(EndDialog(session, facts, self._glyphs))
        self._timer.resume()
        return True

    def _show(self, dialog: EndDialog) -> None:
        self._dialogs.append(dialog)
        self._app.push_screen(dialog)

    def has_dialog(self, process: Key) -> bool:
        """Return whether a session of a dialog about that process is under way."""
        return self._dialog_of(process) is not None

    def _dialog_of(self, process: Key) -> EndDialog | None:
        return next((dialog for dialog in self._dialogs if dialog.session.follows(process)), None)

    def _follow_hidden(self, dialog: EndDialog) -> None:
        """Notify the user about a session whose dialog was closed, in place of asking in the dialog."""
        session = dialog.session
        if session.phase is Phase.STILL_THERE and not session.abandoned:
            words = f"{session.view.message}; press K on it to decide what to do"
            session.choose(Choice.LEAVE)
            self._notify(session.target.pid, words, "warning")
        elif session.over:
            if session.signalled and session.message != "left running" and not dialog.shows_end:
                self._notify(session.target.pid, session.message)
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

    def begin(self, strays: Iterable[Stray], choice: Choice, frame: Frame, paint: Callable[[], None]) -> None:
        """End strays of a frame by the signal that the user confirmed, after those that are under way."""
        self._frame, self._paint_strays = frame, paint
        for stray in strays:
            before = self.strays.get(stray.key)
            if before is None or before.left:
                self.strays[stray.key] = QueuedStray(stray, choice)
        self._timer.resume()

    def leave_strays(self) -> None:
        """Remove waiting strays, since their screen was closed; the session of a signalled stray goes on."""
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

    def _tick_strays(self) -> None:
        under_way = next((one for one in self.strays.values() if one.open and one.session), None)
        current = under_way or next(one for one in self.strays.values() if one.open)
        if current.session is None:
            assert self._frame is not None  # a frame showed the stray
            target = self._target_of(current.stray, self._frame)
            current.session = Session(self._ender, target, self._frame.snapshot, submit=self._stray_worker)
        current.tick()
        if self._paint_strays is not None:
            self._paint_strays()
        elif under_way is not None and not under_way.open:
            self._notify(under_way.stray.process.pid, under_way.message)

    def _target_of(self, stray: Stray, frame: Frame) -> Target:
        """Return the target as the newest frame has it, with the program that the user was shown."""
        age = max(0.0, time.monotonic() - frame.received)
        held = [row for row in rows(frame.snapshot, frame.history) if row.process.key == stray.key]
        if held:
            shown = stray.process
            return replace(target_of(held, frame.snapshot, age), command=shown.command, program=shown.program)
        stale = frame.snapshot.taken - frame.snapshot.searched + age > OLD
        return replace(target_of_unlisted(stray.process, stray.gpus), stale=stale)

    def _without_signalled(self, frame: Frame) -> Frame:
        """Return a frame without signalled strays: their end must not change how others of the run are judged."""
        signalled = {key for key, one in self.strays.items() if one.session and one.session.signalled}
        seen = frame.snapshot
        processes = tuple(one for one in seen.processes if one.key not in signalled)
        unlisted = tuple(one for one in seen.unlisted if one.process.key not in signalled)
        return replace(frame, snapshot=msgspec.structs.replace(seen, processes=processes, unlisted=unlisted))

    # -- both ------------------------------------------------------------------------------------------------------

    def observe(self, frame: Frame) -> None:
        """Add a new frame, also behind other screens and while paused, since freed memory is judged by it.

        While all GPUs can be judged, a process that is no longer a stray, and was not signalled yet, is left alone.
        """
        self._frame = frame
        for session in self._sessions():
            session.observe(frame.snapshot)
        if self.busy and self._judge is not None:
            found = self._judge(self._without_signalled(frame))
            if not found.unjudged:
                self._call_off_strays(f"{LEFT_ALONE}: no longer a stray", but={one.key for one in found.strays})

    def abandon(self) -> None:
        """Abandon all sessions, since the program ends; the audit records for signalled processes say so."""
        self._timer.stop()
        self._call_off_strays()
        for session in self._sessions():
            session.abandon()

    def close(self, deadline: float) -> None:
        """Wait until the audit records of abandoned sessions are written, or until `deadline` (monotonic clock)."""
        for session in self._sessions():
            while not session.over and time.monotonic() < deadline:
                time.sleep(0.005)  # the call under way takes milliseconds, unless a file system hangs
                session.tick()
        if self._sessions():
            last = [worker(lambda: None) for worker in (self._worker, self._stray_worker)]
            wait(last, max(0.0, deadline - time.monotonic()))
        self._dialogs.clear()

    def _sessions(self) -> list[Session]:
        strays = [one.session for one in self.strays.values() if one.session is not None]
        return [*(dialog.session for dialog in self._dialogs), *strays]

    def _tick(self) -> None:
        for dialog in list(self._dialogs):
            dialog.session.tick()
            if dialog.closed:
                self._follow_hidden(dialog)
            else:
                dialog.call_later(dialog.refresh_view)
        if self.busy:
            self._tick_strays()
        if not self._dialogs and not self.busy:
            self._timer.pause()

    def _notify(self, pid: int, words: str, severity: Any = "information") -> None:
        # markup=False: the words may name a parent process, whose name is another's to choose.
        title = f"process {pid}{' (demo)' * bool(self._ender.notice)}"
        self._app.notify(words, title=title, severity=severity, markup=False, timeout=10)
