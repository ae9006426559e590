"""Endings of strays: ticked strays ended one after the other, whether their screen is open or not."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

import msgspec

from gpuwatch.analysis.rows import rows
from gpuwatch.analysis.strays import Stray
from gpuwatch.kill.session import LOOK_EVERY, Request
from gpuwatch.kill.steps import Choice, Phase
from gpuwatch.kill.target import Target, target_of, target_of_unlisted, wrong_machine
from gpuwatch.model import Snapshot
from gpuwatch.ui.screens.end import finish
from gpuwatch.ui.view import judged

if TYPE_CHECKING:
    from gpuwatch.kill.interfaces import ProcessEnder
    from gpuwatch.monitor import Frame
    from gpuwatch.ui.actions import Actions


Key = tuple[int, int]
"""PID and start time."""

WAITING: Final = "waits for its turn"
LEFT_ALONE: Final = "left alone"
NO_STRAY: Final = f"{LEFT_ALONE}: no longer seen as a stray"


_UNTOUCHED: Final = (Phase.CHECKING, Phase.ASKING)
"""Nothing was sent yet."""


class Stage(StrEnum):
    """How far one of them is."""

    WAITING = "waiting"
    ENDING = "ending"
    ENDED = "ended"
    LEFT = "left"
    """Refused, or still running."""


@dataclass(slots=True)
class Staged:
    """One process that was ticked off."""

    stray: Stray
    choice: Choice
    """The signal that the person confirmed."""
    stage: Stage = Stage.WAITING
    said: str = WAITING
    request: Request | None = None


class Staging:
    """Ends processes one by one: the next begins when the one before is over, or does not end by itself."""

    def __init__(self, begin: Callable[[Stray], Request]) -> None:
        """`begin` makes the request for one."""
        self._begin = begin
        self.staged: dict[Key, Staged] = {}

    def add(self, strays: Iterable[Stray], choice: Choice) -> None:
        """Put these at the end of the line; `choice` is the signal that the person confirmed for all of them."""
        for stray in strays:
            before = self.staged.get(stray.key)
            if before is None or before.stage is Stage.LEFT:
                self.staged[stray.key] = Staged(stray, choice)

    @property
    def busy(self) -> bool:
        """Whether one of them is still to be ended."""
        return any(map(self.follows, self.staged))

    def follows(self, key: Key) -> bool:
        """Whether this one is still to be ended."""
        return key in self.staged and self.staged[key].stage in (Stage.WAITING, Stage.ENDING)

    def observe(self, snapshot: Snapshot) -> None:
        """Take a new snapshot, by which freed memory is judged."""
        for one in self.staged.values():
            if one.request is not None:
                one.request.observe(snapshot)

    def spare(self, strays: Container[Key]) -> None:
        """Leave alone what was not signalled yet and is none of these any more."""
        self._call_off([one for key, one in self.staged.items() if key not in strays], NO_STRAY)

    def forget(self, key: Key) -> None:
        """Say no more of one that was left, since its own dialog does."""
        del self.staged[key]

    def tick(self) -> None:
        """Move on by what has happened meanwhile."""
        current = next((one for one in self.staged.values() if one.stage is Stage.ENDING), None)
        if current is None:
            current = next((one for one in self.staged.values() if one.stage is Stage.WAITING), None)
            if current is None:
                return
            current.stage, current.request = Stage.ENDING, self._begin(current.stray)
        request = current.request
        assert request is not None
        request.tick()
        if request.phase is Phase.ASKING:  # the person has been asked, for all of them at once
            if request.unrecorded:  # of which nobody was told
                request.choose(Choice.CANCEL)
                self._leave(current, f"not ended: {request.unrecorded}; K asks whether to do it unrecorded")
                return
            if current.choice not in request.view.choices:
                request.choose(Choice.CANCEL)
                self._leave(current, f"it ignores that signal: {current.choice.value} would do nothing")
                return
            request.choose(current.choice)
        current.said = request.view.said or current.said
        if request.phase is Phase.STILL_THERE:
            words = f"{request.view.said}; K asks what to do"
            request.choose(Choice.LEAVE)
            self._leave(current, words)
        elif request.over:
            refused = request.phase is Phase.REFUSED
            current.said = f"not ended: {request.said}" if refused else request.said or LEFT_ALONE
            current.stage = Stage.LEFT if refused or not request.ended else Stage.ENDED

    def stop(self) -> None:
        """Begin with no more of them; the one that was signalled already still wants `tick`, until it is over."""
        self._call_off(self.staged.values(), LEFT_ALONE)

    def _call_off(self, several: Iterable[Staged], words: str) -> None:
        for one in several:
            if one.stage is Stage.WAITING:
                self._leave(one, words)
            elif one.stage is Stage.ENDING and one.request is not None and one.request.phase in _UNTOUCHED:
                one.request.abandon()

    @staticmethod
    def _leave(one: Staged, words: str) -> None:
        one.stage, one.said = Stage.LEFT, words


OLD: Final = 90.0
"""Seconds after which the search for open device files is too old to act on what it found."""


class StrayEndings:
    """Ends strays one by one, by itself: the app has one of these, and its screen may be closed and opened again.

    Call `observe` for each frame, and `abandon` and `close` when the program ends.
    """

    def __init__(self, app: Actions, killer: ProcessEnder) -> None:
        self._app = app
        self._killer = killer
        self._run = app.background("gpuwatch-strays")
        self.staging = Staging(self._request)
        self._shown: Callable[[], None] | None = None
        """Draws the screen, while it is open."""
        self._timer = app.set_interval(LOOK_EVERY, self._tick, pause=True)

    def show(self, paint: Callable[[], None]) -> None:
        """Take what draws the screen, which has just been opened; what was over before is no more to be told."""
        if not self.staging.busy:
            self.staging.staged.clear()
        self._shown = paint

    def begin(self, strays: Iterable[Stray], choice: Choice) -> None:
        """End these by a signal, after those that are under way."""
        self.staging.add(strays, choice)
        self._timer.resume()

    def observe(self, frame: Frame) -> None:
        """Take a new frame; also behind other screens and while paused, since freed memory is judged by it."""
        self.staging.observe(frame.snapshot)
        if self.staging.busy:
            found = judged(self._without_ending(frame), self._app.options)
            if not found.unjudged:
                self.staging.spare({one.key for one in found.strays})

    def _without_ending(self, frame: Frame) -> Frame:
        """Leave out those that were signalled: what they do on their way out says nothing of the rest of their run."""
        signalled = {key for key, one in self.staging.staged.items() if one.request and one.request.signalled}
        seen = frame.snapshot
        processes = tuple(one for one in seen.processes if one.key not in signalled)
        unlisted = tuple(one for one in seen.unlisted if one.process.key not in signalled)
        return replace(frame, snapshot=msgspec.structs.replace(seen, processes=processes, unlisted=unlisted))

    def leave(self) -> None:
        """Begin with no more of them, since the screen was closed; the one that was signalled is followed up."""
        self._shown = None
        waiting = sum(one.stage is Stage.WAITING for one in self.staging.staged.values())
        self.staging.stop()
        if waiting:
            strays = "1 stray that waited for its turn is" if waiting == 1 else f"{waiting} strays that waited are"
            self._app.notify(f"{strays} left alone", markup=False, timeout=6)

    def abandon(self) -> None:
        """Give up what is under way, since the program ends; what was signalled is left as it is, and recorded so."""
        self._timer.stop()
        self.staging.stop()
        for request in self._requests():
            request.abandon()

    def close(self, deadline: float) -> None:
        """Wait for what was abandoned to be on record, until `deadline` on the monotonic clock."""
        finish(self._requests(), self._run, deadline)

    def _requests(self) -> list[Request]:
        return [one.request for one in self.staging.staged.values() if one.request is not None]

    def _tick(self) -> None:
        under_way = [one for one in self.staging.staged.values() if one.stage is Stage.ENDING]
        self.staging.tick()
        if self._shown is not None:
            self._shown()
        else:
            for one in under_way:
                if one.stage in (Stage.ENDED, Stage.LEFT):
                    title = f"process {one.stray.process.pid}{' (demo)' * bool(self._killer.notice)}"
                    self._app.notify(one.said, title=title, markup=False, timeout=10)
        if not self.staging.busy:
            self._timer.pause()

    def _request(self, stray: Stray) -> Request:
        frame = self._app.newest
        assert frame is not None  # it is a frame that showed the stray
        killer = self._killer
        return Request(
            target_in(stray, frame),
            frame.snapshot,
            killer.pin,
            run=self._run,
            problem=killer.problem,
            refuse=wrong_machine(frame.snapshot, killer),
            notice=killer.notice,
        )


def target_in(stray: Stray, frame: Frame) -> Target:
    """Give what is to be ended as the newest frame has it, with the program that the user was shown."""
    age = max(0.0, time.monotonic() - frame.received)
    held = [row for row in rows(frame.snapshot, frame.history) if row.process.key == stray.key]
    if held:
        shown = stray.process
        return replace(target_of(held, frame.snapshot, age), command=shown.command, program=shown.program)
    stale = frame.snapshot.taken - frame.snapshot.searched + age > OLD
    return replace(target_of_unlisted(stray.process, stray.gpus), stale=stale)
