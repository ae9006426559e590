"""Sessions that end processes behind the dashboard: those of the dialog, and a queue of strays.

They go on whether their screen is open or not. What a dialog would ask is told by a notification where it was closed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import wait
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import msgspec
from textual.app import App

from gpuwatch.analysis.rows import RowKey, rows
from gpuwatch.analysis.strays import Stray, StrayReport
from gpuwatch.kill.session import LOOK_EVERY, Choice, Phase, ProcessEnder, Session
from gpuwatch.kill.target import Target, target_of, target_of_unlisted
from gpuwatch.monitor import Frame
from gpuwatch.threads import Worker
from gpuwatch.ui.screens.detail import brief
from gpuwatch.ui.screens.dialog import EndDialog
from gpuwatch.ui.theme import UNICODE, Glyphs

Key = tuple[int, int]
"""PID and start time."""

WAITING: Final = "waits for its turn"
LEFT_ALONE: Final = "left alone"
NO_STRAY: Final = f"{LEFT_ALONE}: no longer seen as a stray"

OLD: Final = 90.0
"""Seconds after which the search for open device files is too old to act on what it found."""


class Stage(StrEnum):
    """Step that a stray in the queue has reached."""

    WAITING = "waiting"
    ENDING = "ending"
    ENDED = "ended"
    LEFT = "left"
    """Refused, or still running."""


@dataclass(slots=True)
class Staged:
    """Stray in the queue."""

    stray: Stray
    choice: Choice
    """The signal that the person confirmed."""
    stage: Stage = Stage.WAITING
    said: str = WAITING
    session: Session | None = None

    @property
    def open(self) -> bool:
        """Whether it is still to be ended."""
        return self.stage in (Stage.WAITING, Stage.ENDING)

    def leave(self, words: str) -> None:
        """End nothing more of it, for this reason."""
        self.stage, self.said = Stage.LEFT, words

    def call_off(self, words: str) -> None:
        """Leave it alone, unless it was signalled already; then it is followed to its end."""
        if self.stage is Stage.WAITING:
            self.leave(words)
        elif self.stage is Stage.ENDING and self.session and self.session.phase in (Phase.CHECKING, Phase.ASKING):
            self.session.abandon()

    def tick(self) -> None:
        """Drive its session without a question: the person was asked, for all of them at once."""
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
        self.said = session.view.message or self.said
        if session.phase is Phase.STILL_THERE:
            self.leave(f"{session.view.message}; K asks what to do")
            session.choose(Choice.LEAVE)
        elif session.over:
            refused = session.phase is Phase.REFUSED
            self.said = f"not ended: {session.message}" if refused else session.message or LEFT_ALONE
            self.stage = Stage.ENDED if session.ended and not refused else Stage.LEFT


@dataclass(slots=True)
class _Dialog:
    session: Session
    screen: EndDialog


class Endings:
    """All sessions that end processes; the app has one of these.

    Call `open` for a key, `begin` for ticked strays, `observe` for each frame, and `abandon` and `close` when the
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
        self._dialogs: list[_Dialog] = []
        self.strays: dict[Key, Staged] = {}
        """The queue of strays, those that are over included: the next begins when the one before is over or left."""
        self._paint_strays: Callable[[], None] | None = None
        """Draws the screen of strays, while it is open."""
        self._frame: Frame | None = None
        self._timer = app.set_interval(LOOK_EVERY, self._tick, pause=True)

    # -- dialog ----------------------------------------------------------------------------------------------------

    def open(self, key: RowKey, frame: Frame, *, whole_run: bool = False) -> bool:
        """Ask about the process of a row; False where the frame has no such row, or a dialog is open already.

        `key` may also name a process that the driver does not list. With `whole_run` its run is chosen from the start.
        Where a signal is under way to it already, the dialog that was hidden is shown again.
        """
        snapshot = frame.snapshot
        if any(not dialog.screen.closed for dialog in self._dialogs):
            return False
        hidden = self._dialog_of(key[1:])
        if hidden is not None:  # a second signal may break off what the first set going
            hidden.screen = EndDialog(hidden.session, hidden.screen.facts, self._glyphs)
            self._app.push_screen(hidden.screen)
            return True
        held = [row for row in rows(snapshot, frame.history) if row.key[1:] == key[1:]]
        held.sort(key=lambda row: (row.key[0] != key[0], row.gpu.index))
        found = next((one for one in snapshot.unlisted if one.process.key == key[1:]), None)
        if held:
            target, told = target_of(held, snapshot, max(0.0, self._clock() - frame.received)), brief(held, snapshot)
        elif found is not None:
            process, target = found.process, target_of_unlisted(found.process, found.gpus)
            told = [process.command or f"[{process.name}]", "not listed by the driver; it has GPU device files open"]
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
        dialog = _Dialog(session, EndDialog(session, told, self._glyphs))
        self._dialogs.append(dialog)
        self._app.push_screen(dialog.screen)
        self._timer.resume()
        return True

    def has_dialog(self, process: Key) -> bool:
        """Return whether a session of the dialog about that process is under way."""
        return self._dialog_of(process) is not None

    def _dialog_of(self, process: Key) -> _Dialog | None:
        return next((dialog for dialog in self._dialogs if dialog.session.follows(process)), None)

    def _go_on_hidden(self, dialog: _Dialog) -> None:
        """Bring a session to its end whose dialog was closed: what it would ask now is told instead."""
        session = dialog.session
        if session.phase is Phase.STILL_THERE and not session.abandoned:
            words = f"{session.view.message}; press K on it to decide what to do"
            session.choose(Choice.LEAVE)
            self._notify(session.target.pid, words, "warning")
        elif session.over:
            if session.signalled and session.message != "left running" and not dialog.screen.shows_end:
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
        """Draw the screen of strays from now on; it was just opened, so what was over before is dropped."""
        if not self.busy:
            self.strays.clear()
        self._paint_strays = paint

    def begin(self, strays: Iterable[Stray], choice: Choice, frame: Frame, paint: Callable[[], None]) -> None:
        """End strays of a frame by the signal that the person confirmed, after those that are under way."""
        self._frame, self._paint_strays = frame, paint
        for stray in strays:
            before = self.strays.get(stray.key)
            if before is None or before.stage is Stage.LEFT:
                self.strays[stray.key] = Staged(stray, choice)
        self._timer.resume()

    def leave_strays(self) -> None:
        """Begin with no more strays, since their screen was closed; the one that was signalled is followed up."""
        self._paint_strays = None
        waiting = sum(one.stage is Stage.WAITING for one in self.strays.values())
        self._call_off_strays()
        if waiting:
            strays = "1 stray that waited for its turn is" if waiting == 1 else f"{waiting} strays that waited are"
            self._app.notify(f"{strays} left alone", markup=False, timeout=6)

    def _call_off_strays(self, words: str = LEFT_ALONE, but: Collection[Key] = ()) -> None:
        for key, one in self.strays.items():
            if key not in but:
                one.call_off(words)

    def _tick_strays(self) -> None:
        under_way = next((one for one in self.strays.values() if one.stage is Stage.ENDING), None)
        current = under_way or next(one for one in self.strays.values() if one.stage is Stage.WAITING)
        if current.session is None:
            current.stage, current.session = Stage.ENDING, self._stray_session(current.stray)
        current.tick()
        if self._paint_strays is not None:
            self._paint_strays()
        elif under_way is not None and not under_way.open:
            self._notify(under_way.stray.process.pid, under_way.said)

    def _stray_session(self, stray: Stray) -> Session:
        assert self._frame is not None  # a frame showed the stray
        target = self._target_in(stray, self._frame)
        return Session(self._ender, target, self._frame.snapshot, submit=self._stray_worker)

    def _target_in(self, stray: Stray, frame: Frame) -> Target:
        """Make the target from the newest frame, with the program that the user was shown."""
        age = max(0.0, time.monotonic() - frame.received)
        held = [row for row in rows(frame.snapshot, frame.history) if row.process.key == stray.key]
        if held:
            shown = stray.process
            return replace(target_of(held, frame.snapshot, age), command=shown.command, program=shown.program)
        stale = frame.snapshot.taken - frame.snapshot.searched + age > OLD
        return replace(target_of_unlisted(stray.process, stray.gpus), stale=stale)

    def _without_signalled(self, frame: Frame) -> Frame:
        """Leave out strays that were signalled: how they end tells nothing of the rest of their run."""
        signalled = {key for key, one in self.strays.items() if one.session and one.session.signalled}
        seen = frame.snapshot
        processes = tuple(one for one in seen.processes if one.key not in signalled)
        unlisted = tuple(one for one in seen.unlisted if one.process.key not in signalled)
        return replace(frame, snapshot=msgspec.structs.replace(seen, processes=processes, unlisted=unlisted))

    # -- both ------------------------------------------------------------------------------------------------------

    def observe(self, frame: Frame) -> None:
        """Add a new frame, also behind other screens and while paused, since freed memory is judged by it.

        A stray that is none any more, and was not signalled yet, is left alone.
        """
        self._frame = frame
        for session in self._sessions():
            session.observe(frame.snapshot)
        if self.busy and self._judge is not None:
            found = self._judge(self._without_signalled(frame))
            if not found.unjudged:
                self._call_off_strays(NO_STRAY, but={one.key for one in found.strays})

    def abandon(self) -> None:
        """Give up what is under way, since the program ends; what was signalled is left as it is, and recorded so."""
        self._timer.stop()
        self._call_off_strays()
        for session in self._sessions():
            session.abandon()

    def close(self, deadline: float) -> None:
        """Wait for what was abandoned to be on record, until `deadline` on the monotonic clock."""
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
            if dialog.screen.closed:
                self._go_on_hidden(dialog)
            else:
                dialog.screen.call_later(dialog.screen.refresh_view)
        if self.busy:
            self._tick_strays()
        if not self._dialogs and not self.busy:
            self._timer.pause()

    def _notify(self, pid: int, words: str, severity: Any = "information") -> None:
        # markup=False: the words may name a parent process, whose name is another's to choose.
        title = f"process {pid}{' (demo)' * bool(self._ender.notice)}"
        self._app.notify(words, title=title, severity=severity, markup=False, timeout=10)
