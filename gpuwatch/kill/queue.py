"""Queue of processes that are being ended: those that dialogs ask about, and strays that are ended one by one.

An ending goes on after its dialog was closed. Notices then replace the questions and reports of the dialog.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from gpuwatch.analysis.strays import Stray, StrayCertainty, StrayReport
from gpuwatch.base.threads import Worker
from gpuwatch.kill.demo import DemoEnder
from gpuwatch.kill.ending import Ending, KillChoice, KillState
from gpuwatch.kill.pinned import KillTarget, Pinner, find_targets
from gpuwatch.monitor import Frame

Key = tuple[int, int]
"""PID and start time."""

LEFT_ALONE: Final = "left alone"


class KillNotice(NamedTuple):
    """Sentence for the user about a process that no dialog shows; without a PID it is about all of them."""

    pid: int | None
    text: str
    warning: bool = False


class AskedEnding(msgspec.Struct, eq=False):
    """Group that a dialog asks about; it may outlive the dialog."""

    ending: Ending
    facts: Sequence[str] = ()
    """Lines about the process for the dialog; the first is its command."""
    hidden: bool = False
    """Whether the dialog was closed."""
    shows_end: bool = False
    """Whether the dialog has shown the outcome."""


class QueuedStray(msgspec.Struct):
    """Stray process in a queue of strays that are ended one by one."""

    stray: Stray
    choice: KillChoice
    """The signal that the user confirmed."""
    ending: Ending | None = None
    """Group that is ended; None until it is the stray's turn."""
    message: str = "waits for its turn"
    open: bool = True
    """Whether the stray is still to be ended."""

    @property
    def waiting(self) -> bool:
        """Whether it is not the stray's turn yet."""
        return self.open and self.ending is None

    @property
    def left(self) -> bool:
        """Whether the stray was refused or called off, or its process still runs."""
        return not self.open and not (self.ending is not None and self.ending.exited)

    def leave(self, message: str) -> None:
        """Do nothing more about the stray; `message` is its outcome, or why it was not ended."""
        self.open, self.message = False, message
        if self.ending is not None:
            self.ending.abandon()

    def tick(self, ending: Ending) -> None:
        """Advance the ending without a question: the user has confirmed all strays together."""
        ending.tick()
        asks = ending.state is KillState.ASKING
        if ending.asks_again:
            self.leave(f"{ending.sentence}; press K to decide")
        elif asks and ending.warnings:
            self.leave(f"not ended: {ending.warnings[0]}; press K to end it unrecorded")
        elif asks and self.choice not in ending.choices:
            self.leave(f"it ignores this signal: {self.choice.value} would have no effect")
        elif asks:
            ending.choose(self.choice)
        elif ending.over:
            self.leave(f"not ended: {ending.message}" if ending.refused else ending.message or LEFT_ALONE)
        if self.open:
            self.message = ending.sentence


class KillQueue:
    """All processes that are being ended; a program has one of these.

    Call `ask` for one process, `begin` for selected strays, `observe` for each frame, `tick` every POLL_SECONDS while
    it is `busy`, and `close` when the program ends.
    """

    def __init__(
        self,
        ender: Pinner | DemoEnder,
        *,
        find_strays: Callable[[Frame], StrayReport] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find_strays` returns the strays of a frame."""
        self.strays: dict[Key, QueuedStray] = {}
        """Strays, with the finished ones: the next stray begins when the one before is finished or left."""
        self._asked: list[AskedEnding] = []
        """Groups of dialogs that are under way."""
        self._ender = ender
        self._find_strays = find_strays
        self._clock = clock
        self._worker = Worker("gpuwatch-kill")
        self._show_strays: Callable[[], None] | None = None
        """Function that shows the states of the strays, while a list of them is on screen."""
        self._frame: Frame | None = None

    @property
    def is_demo(self) -> bool:
        """Whether nothing is signalled."""
        return isinstance(self._ender, DemoEnder)

    @property
    def busy(self) -> bool:
        """Whether an ending is under way, or a stray is still to be ended."""
        return bool(self._asked) or self.ends_strays

    # -- endings of dialogs ----------------------------------------------------------------------------------------

    def ask(self, process: Key, frame: Frame, *, whole_run: bool = False) -> AskedEnding | KillNotice:
        """Return the ending to ask about for a process of a frame; a notice where there is nothing to ask.

        The process may also be one that the driver does not list. With `whole_run` its run is chosen from the start.
        Where a hidden ending has already sent the process a signal, that ending is returned again.
        """
        if hidden := self.find_asked(process):  # a second signal may interrupt the clean-up after the first
            self._asked.remove(hidden)
            return self._add(AskedEnding(hidden.ending, hidden.facts))
        targets = find_targets(frame.snapshot, max(0.0, self._clock() - frame.received))
        target = targets.get(process)
        if target is None:
            return KillNotice(None, f"process {process[0]} is no longer on a GPU")
        if isinstance(self._ender, DemoEnder):
            run = [other for other in targets.values() if other.process.run_key == target.process.run_key]
            return KillNotice(target.pid, self._ender.end(run if whole_run and run else [target]))
        ending = Ending(
            self._ender,
            target,
            frame.snapshot,
            submit=self._worker,
            has_run=True,
            whole_run=whole_run,
            is_under_way=lambda process: self.find_asked(process) is not None or self.has_stray(process),
            clock=self._clock,
        )
        if ending.over:  # the data on screen already forbids it
            hint = "; y copies a message to its owner" * (target.process.uid not in (None, self._ender.policy.may_end))
            return KillNotice(target.pid, f"not ended: {ending.message}{hint}", warning=True)
        return self._add(AskedEnding(ending))

    def _add(self, asked: AskedEnding) -> AskedEnding:
        self._asked.append(asked)
        return asked

    def find_asked(self, process: Key) -> AskedEnding | None:
        """Return the ending of a dialog, under way, that has that process."""
        return next((asked for asked in self._asked if asked.ending.has(process)), None)

    def _follow_hidden(self, asked: AskedEnding) -> Iterable[KillNotice]:
        ending = asked.ending
        if ending.asks_again and not ending.abandoned:
            yield KillNotice(ending.target.pid, f"{ending.sentence}; press K on it to decide", warning=True)
            ending.abandon()
        elif ending.over:
            if ending.sent is not None and ending.message != "left running" and not asked.shows_end:
                yield KillNotice(ending.target.pid, ending.message)
            self._asked.remove(asked)

    # -- strays ----------------------------------------------------------------------------------------------------

    @property
    def ends_strays(self) -> bool:
        """Whether a stray is still to be ended."""
        return any(queued.open for queued in self.strays.values())

    def has_stray(self, process: Key) -> bool:
        queued = self.strays.get(process)  # the worker asks, too
        return queued is not None and queued.open

    def follow_strays(self, show: Callable[[], None]) -> None:
        """Call `show` at each step from now on; where no stray is still to be ended, drop the finished ones."""
        if not self.ends_strays:
            self.strays.clear()
        self._show_strays = show

    def begin(self, strays: Sequence[Stray], choice: KillChoice, frame: Frame) -> KillNotice | None:
        """End strays of a frame by the signal that the user confirmed, after those that are under way."""
        self._frame = frame
        if isinstance(self._ender, DemoEnder):
            return KillNotice(strays[0].process.pid, self._ender.end([KillTarget(stray.process) for stray in strays]))
        for stray in strays:
            before = self.strays.get(stray.key)
            if before is None or before.left:
                self.strays[stray.key] = QueuedStray(stray, choice)
        return None

    def drop_waiting(self) -> int:
        """Drop waiting strays, since their list was closed, and return how many; a signalled one continues."""
        self._show_strays = None
        waiting = sum(queued.waiting for queued in self.strays.values())
        self._call_off_strays()
        return waiting

    def _call_off_strays(self, message: str = LEFT_ALONE, but: Collection[Key] = ()) -> None:
        """Drop strays, unless they were signalled: then their endings continue."""
        for key, queued in self.strays.items():
            if key not in but and queued.open and (queued.ending is None or queued.ending.sent is None):
                queued.leave(message)

    def _tick_strays(self, ender: Pinner, frame: Frame) -> Iterable[KillNotice]:
        current = min((queued for queued in self.strays.values() if queued.open), key=lambda queued: queued.waiting)
        if current.ending is None:
            target = self._target_of(current.stray, frame)
            current.ending = Ending(ender, target, frame.snapshot, submit=self._worker)
        current.tick(current.ending)
        if self._show_strays is not None:
            self._show_strays()
        elif not current.open:
            yield KillNotice(current.stray.process.pid, current.message)

    def _target_of(self, stray: Stray, frame: Frame) -> KillTarget:
        """Return the target as the newest frame has it, with the program that the user was shown."""
        age, shown = max(0.0, time.monotonic() - frame.received), stray.process
        target = find_targets(frame.snapshot, age).get(stray.key, KillTarget(shown, stray.gpus))
        process = replace(target.process, command=shown.command, program=shown.program)
        return replace(target, process=process)

    def _without_signalled(self, frame: Frame) -> Frame:
        """Return a frame without signalled strays: their end must not change how others of the run are judged."""
        signalled = {key for key, queued in self.strays.items() if queued.ending and queued.ending.sent is not None}
        seen = frame.snapshot
        processes = tuple(process for process in seen.processes if process.key not in signalled)
        unlisted = tuple(other for other in seen.unlisted if other.process.key not in signalled)
        return replace(frame, snapshot=replace(seen, processes=processes, unlisted=unlisted))

    # -- both ------------------------------------------------------------------------------------------------------

    def observe(self, frame: Frame) -> None:
        """Add a new frame, also behind other screens and while paused, since freed memory is judged by it.

        While all GPUs can be judged, a process that is no longer a stray, and was not signalled yet, is dropped.
        """
        self._frame = frame
        for ending in self._endings():
            ending.observe(frame.snapshot)
        if self.ends_strays and self._find_strays is not None:
            report = self._find_strays(self._without_signalled(frame))
            if not report.unjudged:
                doubtful = {one.key for one in report.possible}
                doubtful &= {key for key, one in self.strays.items() if one.stray.sure is StrayCertainty.POSSIBLE}
                still = {one.key for one in report.strays} | doubtful
                self._call_off_strays(f"{LEFT_ALONE}: no longer a stray", but=still)

    def tick(self) -> list[KillNotice]:
        """Advance the endings of all dialogs and the present stray, and return the notices for the user."""
        assert isinstance(self._ender, Pinner)
        notices: list[KillNotice] = []
        for asked in list(self._asked):
            asked.ending.tick()
            if asked.hidden:
                notices += self._follow_hidden(asked)
        if self.ends_strays and self._frame is not None:
            notices += self._tick_strays(self._ender, self._frame)
        if problem := self._ender.audit.flush(0.0):
            notices.append(KillNotice(None, problem, warning=True))
        return notices

    def close(self, deadline: float) -> None:
        """Leave all processes running, and wait until `deadline` (monotonic clock) for the lines of the audit file."""
        self._call_off_strays()
        for ending in self._endings():
            ending.abandon()
        if isinstance(self._ender, Pinner):
            self._ender.audit.flush(max(0.0, deadline - time.monotonic()))
        self._asked.clear()

    def _endings(self) -> list[Ending]:
        strays = [queued.ending for queued in self.strays.values() if queued.ending is not None]
        return [*(asked.ending for asked in self._asked), *strays]
