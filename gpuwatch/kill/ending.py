"""The course of an ending: a signal, a countdown, a question, a harder signal only when asked, and what became of it.

Nothing here blocks or owns a timer: whoever drives it calls `poll` from its own. One process or a whole run take the
same course; of a run the head is told first, and the others in their turn (see `Ending`).
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from gpuwatch.kill.outcome import End, Outcome, of_several
from gpuwatch.kill.run import Member, Run

if TYPE_CHECKING:
    from gpuwatch.kill.interfaces import HeldProcess

GRACE_SECONDS: Final = 10.0
"""Between the first signal and the question. Most trainers stop within it; a checkpoint may need longer, so it asks."""

KILL_SECONDS: Final = 10.0
"""Between SIGKILL and the verdict. The driver tears down a context of many GiB in seconds, not more."""

REAP_SECONDS: Final = 1.0
"""What a parent is given to reap its child before the child is called a zombie; shells need milliseconds."""

PASS_ON_SECONDS: Final = 3.0
"""What a process of a run is given to end, before those that it started are signalled too."""

AGAIN_SECONDS: Final = 0.3
"""After the first signal to a run, the moment of the second look for what its processes have started."""

HARDNESS: Final = {signal.SIGINT: 1, signal.SIGTERM: 2, signal.SIGKILL: 3}
"""The signals that are ever sent; after one of them only a harder one follows."""


class Phase(StrEnum):
    """Where an ending stands."""

    PINNED = "pinned"
    """Nothing was sent."""
    ASKED = "asked"
    """SIGINT or SIGTERM was sent and the countdown runs."""
    UNANSWERED = "unanswered"
    """The countdown ran out. Ask whether to wait or to send a harder signal; the end is still noticed."""
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
    exited: int = 0
    """How many of them run no more."""
    total: int = 1
    asked: signal.Signals | None = None
    """The last signal sent; None for none."""

    @property
    def sentence(self) -> str:
        """The moment for a person, without a capital and a full stop."""
        if self.outcome is not None:
            return self.outcome.sentence
        if self.phase is Phase.PINNED:
            return "nothing was sent"
        asked = "asked to stop" if self.phase is Phase.ASKED else "SIGKILL sent"
        return f"{asked}, {math.ceil(self.left)} s{self.count}"

    @property
    def count(self) -> str:
        """How many of several have exited, to be put behind a sentence; empty for one."""
        if self.total == 1:
            return ""
        return f"; {self.exited} of {self.total} exited, {self.total - self.exited} still running"


class NotRecordedError(Exception):
    """What was asked for could not be put on record, which nobody had been told of; so no signal was sent."""


@dataclass(slots=True)
class _One:
    """One process of an ending."""

    member: Member
    told: float | None = None
    """When it got the signal of this round; None where its turn has not come."""
    ever_told: bool = False
    ended: float | None = None
    outcome: Outcome | None = None
    """What is final about it."""
    open_intent: bool = False
    """What it was signalled for has no outcome on record yet."""

    @property
    def pinned(self) -> HeldProcess:
        return self.member.pinned

    @property
    def exited(self) -> bool:
        return self.ended is not None or (self.outcome is not None and self.outcome.over)


class Ending:
    """Drives one pinned process, or those of a run, to the end, and records what became of each after each signal.

    Of a run the head is told first: launchers pass a signal on, and a second one may break off the saving that the
    first began. A process below another is told once that one has ended; a rank without a launcher that is known to
    pass signals on, also PASS_ON_SECONDS later. A helper (a data loader's worker) is told only then: a trainer that
    loses its workers fails before it has saved. SIGKILL goes to all at once, the head first.

    Use it as `with killer.pin(target) as pinned: ending = Ending(pinned)`, or close it; both give the handles back.
    """

    def __init__(self, what: HeldProcess | Run, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` counts seconds."""
        self._run = what if isinstance(what, Run) else None
        members = what.members if isinstance(what, Run) else (Member(what),)
        self.pinned = members[0].pinned
        """The process, or the head of the run."""
        self._ones = [_One(member) for member in members]
        if self._run is not None:
            for member in members:
                member.pinned.run = self._run.key
        self._clock = clock
        self._phase = Phase.PINNED
        self._asked: signal.Signals | None = None
        self._first = 0.0
        self._first_ticks = 0
        self._signalled = 0.0
        self._outcome: Outcome | None = None
        self._look_again = False

    def begin(self, sig: signal.Signals = signal.SIGTERM, *, told: Collection[str] = ()) -> Progress:
        """Send the first signal, any of `HARDNESS`, and start the countdown; `RuntimeError` where one was sent.

        `told` are the reasons, known to who asked, for which it cannot be put on record; `NotRecordedError` for others.
        """
        self._require(Phase.PINNED)
        self._first_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * _ticks_a_second())
        self._first = self._clock()
        return self._send(sig, self._first, told)

    def go_on(self, sig: signal.Signals, *, told: Collection[str] = ()) -> Progress:
        """Send a harder signal, because a person asked for it; `RuntimeError` where a softer one did not go before.

        `told` as for `begin`.
        """
        progress = self.poll()
        if progress.phase is Phase.DONE:
            return progress
        self._require(Phase.ASKED, Phase.UNANSWERED)
        if self._asked is None or HARDNESS[sig] <= HARDNESS[self._asked]:
            raise RuntimeError(f"{sig.name} is no harder than what was asked with")
        return self._send(sig, self._clock(), told)

    def poll(self) -> Progress:
        """Look without waiting, tell those whose turn has come, and move on to the next phase in its time."""
        if self._phase not in (Phase.PINNED, Phase.DONE):
            now = self._clock()
            for one in self._open():
                if one.pinned.exited():
                    self._after_exit(one, now)
            self._pass_on(now)
            if self._look_again and now >= self._first + AGAIN_SECONDS:
                self._look_again = False
                for one in self._open():
                    one.pinned.find_family()
            if self._left() <= 0 and any(one.ended is None for one in self._open()):
                self._after_countdown()
            self._finish_if_over()
        return self._progress()

    def left_behind(self, listed: Collection[int] = ()) -> tuple[int, ...]:
        """PIDs that they had started and that still hold a GPU; `listed` are those that the driver has on it."""
        return tuple(sorted({pid for one in self._ones for pid in one.pinned.left_behind(listed)}))

    def close(self) -> None:
        """Give the handles back; an ending left half-way is put on record as it stands."""
        for one in self._ones:
            if one.open_intent:
                self._record(one, self._look(one))
            one.pinned.close()

    # What is sent

    def _send(self, sig: signal.Signals, now: float, told: Collection[str]) -> Progress:
        self._announce(sig, told)
        self._outcome = None
        self._signalled = now
        self._asked = sig
        self._phase = Phase.KILLED if sig is signal.SIGKILL else Phase.ASKED
        for one in self._open():
            one.told = None
        if self._run is not None:
            self._run.find_family()
            self._look_again = True
        else:
            self.pinned.find_family()
        self._pass_on(now)
        self._finish_if_over()
        return self._progress()

    def _announce(self, sig: signal.Signals, told: Collection[str]) -> None:
        """Put on record what is about to be sent to whom; raises NotRecordedError."""
        done: list[_One] = []
        for one in self._open():
            if one.ended is not None:
                continue
            words = one.pinned.record("intent", signal=sig.name)
            if words is not None and words not in told:
                for other in done:  # their lines promise what does not come
                    other.pinned.record("outcome", result="not sent", detail=words)
                raise NotRecordedError(words)
            done.append(one)
        for one in done:
            one.open_intent = True

    def _pass_on(self, now: float) -> None:
        """Signal those whose turn has come, in their order."""
        for one in self._open():
            if one.told is None and one.ended is None and self._is_due(one, now):
                self._tell(one, now)
                if self._phase is Phase.ASKED:
                    self._signalled = now  # the last one told has its ten seconds too

    def _tell(self, one: _One, now: float) -> None:
        assert self._asked is not None
        one.told, is_first = now, not one.ever_told and now == self._first
        one.ever_told = True
        failed = one.pinned.send(self._asked, recorded=True)
        if failed is not None and failed.end is End.GONE and not is_first:
            self._after_exit(one, now)  # what came before did it, in the moment in which this signal was asked for
        elif failed is not None:
            self._finish(one, failed)

    def _is_due(self, one: _One, now: float) -> bool:
        above = next((other for other in self._ones if other.pinned.target.pid == one.member.above), None)
        if self._asked is signal.SIGKILL or above is None or above is one or above.exited or above.pinned.exited():
            return True
        if one.member.waits or above.told is None:
            return False
        return now >= above.told + PASS_ON_SECONDS

    # What became of it

    def _open(self) -> list[_One]:
        return [one for one in self._ones if one.outcome is None]

    def _after_exit(self, one: _One, now: float) -> None:
        if one.ended is None:
            one.ended = now
        outcome = self._look(one)
        if outcome.end is End.ZOMBIE:
            parent = outcome.parent[0] if outcome.parent else 0
            # A parent that is being ended too leaves its children to who reaps them all.
            is_ending = any(other.pinned.target.pid == parent and other.ended is None for other in self._open())
            if is_ending or now - one.ended < REAP_SECONDS:
                return
        self._finish(one, outcome)

    def _after_countdown(self) -> None:
        for one in self._open():
            if one.ended is None and self._phase is Phase.KILLED:
                self._finish(one, self._look(one))
        if self._phase is Phase.KILLED:
            return
        self._phase = Phase.UNANSWERED
        outcomes = [(one, one.outcome or self._look(one)) for one in self._ones]
        for one, outcome in outcomes:
            if one.open_intent and one.outcome is None and one.ended is None:
                self._record(one, outcome)
        self._outcome = of_several([(one.pinned.target.pid, outcome) for one, outcome in outcomes])

    def _look(self, one: _One) -> Outcome:
        killed = self._asked is signal.SIGKILL
        outcome = one.pinned.look(seconds=self._elapsed_of(one), killed=killed)
        return replace(outcome, asked=signal.SIGINT) if self._asked is signal.SIGINT else outcome

    def _finish(self, one: _One, outcome: Outcome) -> None:
        one.outcome = outcome
        self._record(one, outcome)

    def _finish_if_over(self) -> None:
        if self._phase is Phase.DONE or self._open():
            return
        left = self._run.left(self._first_ticks) if self._run is not None else ()
        each = [(one.pinned.target.pid, one.outcome) for one in self._ones if one.outcome is not None]
        self._phase = Phase.DONE
        self._outcome = of_several(each, left)

    def _record(self, one: _One, outcome: Outcome) -> None:
        one.open_intent = False
        detail = outcome.detail
        if outcome.end in (End.EXITED, End.ZOMBIE) and not one.ever_told:
            detail = "it ended with its run, without a signal of its own"
        one.pinned.record("outcome", result=outcome.end.value, seconds=round(outcome.seconds, 3), detail=detail)

    # Figures

    def _progress(self) -> Progress:
        exited = sum(one.exited for one in self._ones)
        total = len(self._ones)
        return Progress(self._phase, self._left(), self._elapsed(), self._outcome, exited, total, self._asked)

    def _elapsed(self) -> float:
        return max((self._elapsed_of(one) for one in self._ones), default=0.0)

    def _elapsed_of(self, one: _One) -> float:
        if self._phase is Phase.PINNED:
            return 0.0
        return (self._clock() if one.ended is None else one.ended) - self._first

    def _left(self) -> float:
        total = {Phase.ASKED: GRACE_SECONDS, Phase.KILLED: KILL_SECONDS}.get(self._phase)
        return 0.0 if total is None else max(0.0, total - (self._clock() - self._signalled))

    def _require(self, *phases: Phase) -> None:
        if self._phase not in phases:
            raise RuntimeError(f"an ending that is {self._phase.value} cannot send this signal")


def _ticks_a_second() -> int:
    import os

    return os.sysconf("SC_CLK_TCK")
