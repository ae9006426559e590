"""From `End process 15260?` to what became of it and of its memory: the steps of the dialog, without a widget.

CHECKING ─► REFUSED
    └────► ASKING ─► SENDING ─► STOPPING ⇄ STILL_THERE ─► SENDING ─► STOPPING (after SIGINT), KILLING
                                   └────────────┴──────────────────────┴──► FREEING ─► OVER

A `Request` is driven from outside and never blocks: `tick` moves it on in time, `observe` hands it each new snapshot,
`choose` is a button. What may wait (the record may lie on a file system that does not answer, /proc may be long) is
handed to `run`, one call at a time and in order; the next tick picks its result up. `actions.ending` sends the signals.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final

from gpuwatch.kill import ending
from gpuwatch.kill.ending import Ending, NotRecordedError, Progress
from gpuwatch.kill.outcome import MEMORY_PATIENCE as MEMORY_PATIENCE
from gpuwatch.kill.outcome import End, Freeing, Outcome, memory_after
from gpuwatch.kill.pinned import Refused
from gpuwatch.kill.run import Run
from gpuwatch.kill.steps import CHOICES as CHOICES
from gpuwatch.kill.steps import DISMISS, IGNORES_INTERRUPT
from gpuwatch.kill.steps import Choice as Choice
from gpuwatch.kill.steps import Listed as Listed
from gpuwatch.kill.steps import Phase as Phase
from gpuwatch.kill.steps import View as View
from gpuwatch.kill.target import Target
from gpuwatch.model import Snapshot
from gpuwatch.units import long_duration

if TYPE_CHECKING:
    from gpuwatch.kill.interfaces import HeldProcess

LOOK_EVERY: Final = 0.1
"""Seconds between two looks at the process."""

_SHOWN = {ending.Phase.ASKED: Phase.STOPPING, ending.Phase.UNANSWERED: Phase.STILL_THERE}

Call = Callable[[], Any]
RunCall = Callable[[Call], "Future[Any]"]
"""Starts a call that may wait; calls are made one after another, in the order given."""

PinRun = Callable[["HeldProcess", Snapshot, bool], Run | Refused]
"""`actions.run_scope.pin_run` with its killer; the last says whether the run was asked for."""


class Request:
    """One person's wish to end a process, or its run: refused, called off, or followed to the outcome."""

    def __init__(
        self,
        target: Target,
        snapshot: Snapshot,
        pin: Callable[[Target], HeldProcess | Refused],
        *,
        run: RunCall,
        problem: Callable[[], str | None],
        pin_run: PinRun | None = None,
        whole_run: bool = False,
        refuse: str = "",
        not_yours: str = "",
        notice: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with pinning `target`, seen in `snapshot`; with `whole_run` all of its run is meant from the start.

        `problem` says why actions could not be recorded now. `refuse` is a reason to refuse without looking at the
        machine at all; `not_yours` is a better sentence than the pin's, where it refuses. `notice` is to be shown at
        each step.
        """
        self.target = target
        self.notice = notice
        self.phase = Phase.CHECKING
        self.said = ""
        self.warnings: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.whole_run = whole_run
        """Whether all of its run is meant."""
        self.pinned_run: Run | None = None
        """Its run, where that has more than this process."""
        self.ignores_interrupt = False
        """Whether SIGINT would do nothing."""
        self.unrecorded = ""
        """Why what is done cannot be put on record; one of the warnings."""
        self.abandoned = False
        """Whether nothing more is to be sent."""
        self._pin = pin
        self._pin_run = pin_run
        self._run = run
        self._problem = problem
        self._not_yours = not_yours
        self._clock = clock
        self._pinned: HeldProcess | None = None
        self._ending: Ending | None = None
        self._job: tuple[Future[Any], Callable[[Any], None]] | None = None
        self._latest = snapshot
        self._freeing = Freeing()
        self._progress = Progress(ending.Phase.PINNED)
        self._looked = self._wait_until = 0.0
        if refuse:
            self._refuse(refuse)
        else:
            self._start(self._check, self._checked)

    @property
    def over(self) -> bool:
        """Whether nothing more will happen by itself."""
        return self.phase in (Phase.REFUSED, Phase.OVER)

    @property
    def signalled(self) -> bool:
        """Whether it came to a signal."""
        return self._progress.phase is not ending.Phase.PINNED

    @property
    def outcome(self) -> Outcome | None:
        """What became of it, as far as that is known."""
        return self._progress.outcome

    @property
    def ended(self) -> bool:
        """Whether all that was to be ended runs no more."""
        done = self._progress.phase is ending.Phase.DONE
        return done and self._progress.outcome is not None and self._progress.outcome.over

    @property
    def members(self) -> tuple[Listed, ...]:
        """What would be signalled, in that order; empty until it was made sure of."""
        made_sure = self.phase not in (Phase.CHECKING, Phase.REFUSED)
        return tuple(Listed(one.pid, one.command, one.held) for one in self._targets()) if made_sure else ()

    def follows(self, process: tuple[int, int]) -> bool:
        """Whether it is about that process (PID, start time), and more may become of it."""
        return process in [(one.pid, one.start_ticks) for one in self._targets()] and not (self.over or self.abandoned)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """What may be chosen now; the first is the default."""
        asked = self._progress.asked or signal.SIGINT

        def is_offered(choice: Choice) -> bool:
            if self.phase is Phase.STILL_THERE and choice.signal is not None:
                return choice is (Choice.TERMINATE if asked is signal.SIGINT else Choice.KILL)
            return not (choice is Choice.INTERRUPT and self.ignores_interrupt)

        return tuple(choice for choice in CHOICES[self.phase] if is_offered(choice))

    @property
    def view(self) -> View:
        """What to show now."""
        choices, several = self.choices, self.whole_run and self.pinned_run is not None
        count = len(self.members) - self._progress.exited if several else 1
        labels = tuple(choice.label(max(count, 1)) for choice in choices)
        shown = self.members if several and self.phase is Phase.ASKING else ()
        return View(self.phase, self._words(), self.warnings, choices, labels, self.notes, self._scope(), shown)

    def choose(self, choice: Choice) -> bool:
        """Do what a button says; whether the dialog is to close. A button that is not offered does nothing."""
        if choice not in self.choices:
            return False
        if choice.signal is not None:
            self.send(choice.signal)
        elif choice is Choice.WAIT:
            self._wait_until = self._clock() + ending.GRACE_SECONDS
            self.phase = Phase.STOPPING
        elif choice in (Choice.CANCEL, Choice.LEAVE):
            self.abandon()
        return choice in DISMISS

    def toggle(self) -> None:
        """Mean its run in place of the process, or the process again; nothing where there is no choice any more."""
        if self.phase is Phase.ASKING and self.pinned_run is not None:
            self.whole_run = not self.whole_run
            self._find_notes()

    def send(self, sig: signal.Signals) -> None:
        """Send a signal: the first (also SIGKILL, where the person said so by name), or a harder one than before."""
        if self.phase not in (Phase.ASKING, Phase.STILL_THERE):
            return
        shown, back, first = self.warnings, self.phase, not self.signalled
        if self._ending is None:
            self._ending = Ending(self._meant(), clock=self._clock)
        driver = self._ending

        def call() -> tuple[str | None, Progress | None]:
            # What cannot be recorded is only done if the person had been told so when they confirmed.
            problem = self._problem()
            if problem and problem not in shown:
                return problem, None
            try:
                return None, driver.begin(sig, told=shown) if first else driver.go_on(sig, told=shown)
            except NotRecordedError as error:
                return str(error), None

        def then(answer: tuple[str | None, Progress | None]) -> None:
            problem, progress = answer
            if progress is None:
                self.unrecorded = problem or ""
                self.warnings = (*shown, self.unrecorded)
                self.phase = back
                self._ending = driver if self.signalled else None  # what is meant may be chosen once more
            else:
                self._polled(progress)

        if first:
            self._remember()
        self._wait_until = 0.0
        self.phase = Phase.SENDING
        self._start(call, then)

    def abandon(self) -> None:
        """Send nothing more; the handle is given back once the call under way has returned."""
        self.abandoned = True
        if self.phase is Phase.FREEING:  # it has exited meanwhile: what became of its memory is still told
            return
        if self._job is None and not self.over:
            self._finish("left running" if self.signalled else "")

    def tick(self) -> None:
        """Move on: pick up what has been done meanwhile, and look at the process and at the clock."""
        if self._job is not None:
            future, then = self._job
            if not future.done():
                return
            self._job = None
            error = future.exception()
            if error is None:
                then(future.result())
            else:
                self._finish(f"gpuwatch failed at it: {error}")
            if self.abandoned:
                self.abandon()
            return
        now = self._clock()
        looking = (Phase.STOPPING, Phase.STILL_THERE, Phase.KILLING)
        if self.phase in looking and now >= self._looked + LOOK_EVERY:
            self._looked = now
            self._start(self._must().poll, self._polled)
        elif self.phase is Phase.FREEING:
            self._judge(now)

    def observe(self, snapshot: Snapshot) -> None:
        """Take a new snapshot: before the signal for what was held, after the exit for what came free."""
        self._latest = snapshot
        if self.phase is Phase.FREEING:
            self._freeing.observe(snapshot)

    # What is done in the background, and what follows from it

    def _start(self, call: Call, then: Callable[[Any], None]) -> None:
        self._job = (self._run(call), then)

    def _check(self) -> tuple[HeldProcess | Refused, Run | Refused | None, str | None]:
        pinned = self._pin(self.target)
        if isinstance(pinned, Refused):
            return pinned, None, None
        run: Run | Refused | None = None
        try:
            if self._pin_run is not None:
                run = self._pin_run(pinned, self._latest, self.whole_run)
            return pinned, run, self._problem()
        except BaseException:
            (run if isinstance(run, Run) else pinned).close()
            raise

    def _checked(self, found: tuple[HeldProcess | Refused, Run | Refused | None, str | None]) -> None:
        pinned, run, problem = found
        if isinstance(pinned, Refused):
            self._refuse(self._not_yours or pinned.sentence)
            return
        self._pinned = pinned
        if isinstance(run, Run) and len(run.members) > 1:
            self.pinned_run = run
        elif isinstance(run, Refused) and self.whole_run:
            self._close()
            self._refuse(f"its run: {run.sentence}")
            return
        weaker = run.weaker if isinstance(run, Run) else pinned.weaker
        self.warnings = tuple(words for words in (weaker or pinned.weaker, problem) if words)
        self.unrecorded = problem or ""
        self._find_notes()
        self.phase = Phase.ASKING

    def _find_notes(self) -> None:
        """Read what a person is to know of those that are meant: one short file."""
        left_out = self.pinned_run.left_out if self.whole_run and self.pinned_run is not None else ()
        meant = self._meant()
        head = meant.members[0].pinned if isinstance(meant, Run) else meant
        self.ignores_interrupt = head.ignores(signal.SIGINT)
        notes = [IGNORES_INTERRUPT] if self.ignores_interrupt else []
        self.notes = (*notes, *(f"not touched: PID {pid}, {why}" for pid, why in left_out))

    def _meant(self) -> HeldProcess | Run:
        if self.whole_run and self.pinned_run is not None:
            return self.pinned_run
        if self._pinned is None:
            raise RuntimeError(f"PID {self.target.pid} is not pinned in phase {self.phase}")
        return self._pinned

    def _targets(self) -> list[Target]:
        run = self.pinned_run if self.whole_run else None
        return [self.target] if run is None else [member.pinned.target for member in run.members]

    def _refuse(self, sentence: str) -> None:
        self.said = sentence
        self.phase = Phase.REFUSED

    def _remember(self) -> None:
        """Keep what they hold, and what is used on each of their GPUs, before the signal has an effect."""
        targets = self._targets()
        gpus = {gpu for one in targets for gpu in one.gpus}
        self._freeing.remember(self._latest, {one.pid for one in targets}, gpus)

    def _polled(self, progress: Progress) -> None:
        self._progress = progress
        if progress.phase is ending.Phase.DONE:
            self._done(progress.outcome or Outcome(End.GONE))
        elif progress.phase is ending.Phase.UNANSWERED and self._clock() < self._wait_until:
            self.phase = Phase.STOPPING
        else:
            self.phase = _SHOWN.get(progress.phase, Phase.KILLING)

    def _done(self, outcome: Outcome) -> None:
        if outcome.end not in (End.EXITED, End.ZOMBIE):
            self._finish(outcome.sentence)
            return
        self._freeing.begin(self._latest, self._clock())
        self.phase = Phase.FREEING

    def _judge(self, now: float) -> None:
        """Say what came free, once there are samples to say it from, or there was time enough for them."""
        late = self._freeing.late(now)
        if not (self._freeing.fresh() or late):
            return
        outcome, promised = self._progress.outcome or Outcome(End.EXITED), self._freeing.promised
        if promised and self._freeing.all_free:
            self._finish(memory_after(outcome, self._freeing.gpus()))
        elif late or not promised:
            gpus, listed, driver = self._freeing.gpus(), self._freeing.listed(), self._must()
            self._start(
                lambda: driver.left_behind(listed),
                lambda pids: self._finish(memory_after(outcome, gpus, pids, promised=promised)),
            )

    def _finish(self, sentence: str) -> None:
        self.said = sentence
        self.phase = Phase.OVER
        self._close()

    def _close(self) -> None:
        """Give all handles back, in the background: what is open is put on record before."""
        held = (self._ending, self.pinned_run or (None if self._ending else self._pinned))
        self._ending = self._pinned = None

        def close() -> None:
            for one in held:
                if one is not None:
                    one.close()

        if any(one is not None for one in held):
            self._run(close)

    def _must(self) -> Ending:
        if self._ending is None:
            raise RuntimeError(f"PID {self.target.pid} is not pinned in phase {self.phase}")
        return self._ending

    # Words

    def _words(self) -> str:
        match self.phase:
            case Phase.CHECKING:
                return "making sure that it is still this process …"
            case Phase.SENDING:
                return "putting it on record …"
            case Phase.STOPPING:
                waiting = self._wait_until - self._clock()
                left = waiting if self._progress.phase is ending.Phase.UNANSWERED else self._progress.left
                return f"asked to stop, {math.ceil(max(left, 0))} s …{self._progress.count}"
            case Phase.STILL_THERE:
                return self._still_there()
            case Phase.KILLING:
                return f"{self._progress.sentence} …"
            case Phase.FREEING:
                return f"{self._progress.sentence}; looking at its memory …"
        return self.said

    def _still_there(self) -> str:
        outcome = self._progress.outcome
        if outcome is not None and (outcome.end is not End.RUNNING or outcome.each):
            return outcome.sentence
        asked = self._progress.asked or signal.SIGTERM
        return f"ignored {asked.name} for {long_duration(round(self._progress.elapsed))}"

    def _scope(self) -> str:
        if self.pinned_run is None or self.phase is not Phase.ASKING:
            return ""
        count = len(self.pinned_run.members)
        return f"its run: {count} processes" if self.whole_run else f"this process; its run has {count}"
