"""Strays that were ticked off, ended one after the other by the same steps as the dialog's; without a widget."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuwatch.analysis.strays import Stray
from gpuwatch.kill.session import Request
from gpuwatch.kill.steps import Choice, Phase
from gpuwatch.model import Snapshot

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
