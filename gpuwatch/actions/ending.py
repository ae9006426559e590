"""The course of an ending: SIGTERM, a countdown, a question, SIGKILL only when asked, and what became of it.

Nothing here blocks or owns a timer: whoever drives it calls `poll` from its own.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from gpuwatch.actions.kill import Pinned
from gpuwatch.actions.outcome import End, Outcome

GRACE_SECONDS = 10.0
"""Between SIGTERM and the question. Most trainers stop within it; a checkpoint may need longer, so it only asks."""

KILL_SECONDS = 10.0
"""Between SIGKILL and the verdict. The driver tears down a context of many GiB in seconds, not more."""

REAP_SECONDS = 1.0
"""What a parent is given to reap its child before the child is called a zombie; shells need milliseconds."""


class Phase(StrEnum):
    """Where an ending stands."""

    PINNED = "pinned"
    """Nothing was sent."""
    ASKED = "asked"
    """SIGTERM was sent and the countdown runs."""
    UNANSWERED = "unanswered"
    """The countdown ran out. Ask whether to wait or to send SIGKILL; the end is still noticed."""
    KILLED = "killed"
    """SIGKILL was sent."""
    DONE = "done"
    """The outcome is final."""


@dataclass(frozen=True)
class Progress:
    """An ending at one moment: `left` and `elapsed` in seconds; the outcome is set once there is something to say."""

    phase: Phase
    left: float = 0.0
    elapsed: float = 0.0
    outcome: Outcome | None = None

    @property
    def sentence(self) -> str:
        """The moment for a person, without a capital and a full stop."""
        if self.outcome is not None:
            return self.outcome.sentence
        if self.phase is Phase.PINNED:
            return "nothing was sent"
        asked = "asked to stop" if self.phase is Phase.ASKED else "SIGKILL sent"
        return f"{asked}, {math.ceil(self.left)} s"


class Ending:
    """Drives one pinned process to its end, and records what became of it after each signal.

    Use it as `with killer.pin(target) as pinned: ending = Ending(pinned)`, or close it; both give the handle back.
    """

    def __init__(self, pinned: Pinned, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds."""
        self.pinned = pinned
        self._clock = clock
        self._phase = Phase.PINNED
        self._first = 0.0
        self._signalled = 0.0
        self._ended: float | None = None
        self._outcome: Outcome | None = None
        self._open_intent = False

    def terminate(self) -> Progress:
        """Send SIGTERM and start the countdown. Raises `RuntimeError` when a signal was sent before."""
        self._require(Phase.PINNED)
        self._first = self._clock()
        return self._send(signal.SIGTERM, Phase.ASKED)

    def kill(self) -> Progress:
        """Send SIGKILL, because a person asked for it. Raises `RuntimeError` unless SIGTERM went before."""
        progress = self.poll()
        if progress.phase is Phase.DONE:
            return progress
        self._require(Phase.ASKED, Phase.UNANSWERED)
        self._outcome = None
        return self._send(signal.SIGKILL, Phase.KILLED)

    def poll(self) -> Progress:
        """Look without waiting, and move on to the next phase when its time has come."""
        if self._phase not in (Phase.PINNED, Phase.DONE):
            if self.pinned.exited():
                self._after_exit()
            elif self._left() <= 0:
                self._after_countdown()
        return Progress(self._phase, self._left(), self._elapsed(), self._outcome)

    def close(self) -> None:
        """Give the handle back; an ending left half-way is put on record as it stands."""
        if self._open_intent:
            self._record(self._look())
        self.pinned.close()

    def _send(self, sig: signal.Signals, phase: Phase) -> Progress:
        self._signalled = self._clock()
        self._open_intent = True
        failed = self.pinned.send(sig)
        self._phase = phase
        if failed is not None and failed.end is End.GONE and sig is signal.SIGKILL:
            self._after_exit()  # SIGTERM did it, in the moment in which SIGKILL was asked for
        elif failed is not None:
            self._finish(failed)
        return Progress(self._phase, self._left(), self._elapsed(), self._outcome)

    def _after_exit(self) -> None:
        now = self._clock()
        if self._ended is None:
            self._ended = now
        outcome = self._look()
        if outcome.end is not End.ZOMBIE or now - self._ended >= REAP_SECONDS:
            self._finish(outcome)

    def _after_countdown(self) -> None:
        outcome = self._look()
        if self._phase is Phase.KILLED:
            self._finish(outcome)
            return
        self._phase = Phase.UNANSWERED
        self._outcome = outcome
        if self._open_intent:
            self._record(outcome)

    def _look(self) -> Outcome:
        return self.pinned.look(seconds=self._elapsed(), killed=self._phase is Phase.KILLED)

    def _finish(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._phase = Phase.DONE
        self._record(outcome)

    def _record(self, outcome: Outcome) -> None:
        self._open_intent = False
        self.pinned.record(
            "outcome", result=outcome.end.value, seconds=round(outcome.seconds, 3), detail=outcome.detail
        )

    def _elapsed(self) -> float:
        if self._phase is Phase.PINNED:
            return 0.0
        return (self._clock() if self._ended is None else self._ended) - self._first

    def _left(self) -> float:
        total = {Phase.ASKED: GRACE_SECONDS, Phase.KILLED: KILL_SECONDS}.get(self._phase)
        return 0.0 if total is None else max(0.0, total - (self._clock() - self._signalled))

    def _require(self, *phases: Phase) -> None:
        if self._phase not in phases:
            raise RuntimeError(f"an ending that is {self._phase.value} cannot send this signal")
