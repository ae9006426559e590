"""From `End process 15260?` to what became of it and of its memory: the steps of the dialog, without a widget.

CHECKING ─► REFUSED
    └────► ASKING ─► SENDING ─► STOPPING ⇄ STILL_THERE ─► SENDING ─► KILLING
                                   └────────────┴──────────────────────┴──► FREEING ─► OVER

A `Request` is driven from outside and never blocks: `tick` moves it on in time, `observe` hands it each new snapshot,
`choose` is a button. What may wait (the record may lie on a file system that does not answer, /proc may be long) is
handed to `run`, one call at a time and in order; the next tick picks its result up. `actions.ending` sends the signals.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpuwatch.actions import ending
from gpuwatch.actions.ending import Ending, Progress
from gpuwatch.actions.kill import Pinned, Target
from gpuwatch.actions.outcome import End, GpuMemory, Outcome, memory_after
from gpuwatch.actions.refusal import Refused
from gpuwatch.model import Gpu, Snapshot, known
from gpuwatch.rows import Row
from gpuwatch.units import long_duration

LOOK_EVERY = 0.1
"""Seconds between two looks at the process."""

FRESH = 2
"""Samples of each GPU taken after the exit before its memory is judged: the first may have begun before it."""

MEMORY_PATIENCE = 5.0
"""Seconds in which memory that is not free yet may still become free."""

ENOUGH_FREED = 0.95
"""Of the holding: the driver rounds its figures, and others allocate meanwhile."""

_NO_PROMISE = ("GH200", "GB200", "GB300", "GB10")
"""Machines whose GPU and CPU share memory: the driver's figure may stay as it was."""


class Phase(StrEnum):
    """How far a request is."""

    CHECKING = "checking"
    REFUSED = "refused"
    ASKING = "asking"
    SENDING = "sending"
    STOPPING = "stopping"
    STILL_THERE = "still there"
    KILLING = "killing"
    FREEING = "freeing"
    OVER = "over"


class Choice(StrEnum):
    """A button, by what it says."""

    CANCEL = "Cancel"
    TERMINATE = "Terminate (SIGTERM)"
    HIDE = "Hide"
    WAIT = "Wait more"
    KILL = "Kill (SIGKILL)"
    LEAVE = "Leave it"
    CLOSE = "Close"


CHOICES: dict[Phase, tuple[Choice, ...]] = {
    Phase.CHECKING: (Choice.CANCEL,),
    Phase.REFUSED: (Choice.CLOSE,),
    Phase.ASKING: (Choice.CANCEL, Choice.TERMINATE),
    Phase.SENDING: (Choice.HIDE,),
    Phase.STOPPING: (Choice.HIDE,),
    Phase.STILL_THERE: (Choice.WAIT, Choice.KILL, Choice.LEAVE),
    Phase.KILLING: (Choice.HIDE,),
    Phase.FREEING: (Choice.HIDE,),
    Phase.OVER: (Choice.CLOSE,),
}
"""What may be chosen in each phase; the first is the default, and it never sends a signal."""

_DISMISS = frozenset({Choice.CANCEL, Choice.HIDE, Choice.LEAVE, Choice.CLOSE})

_SHOWN = {ending.Phase.ASKED: Phase.STOPPING, ending.Phase.UNANSWERED: Phase.STILL_THERE}

Run = Callable[[Callable[[], Any]], "Future[Any]"]
"""Starts a call that may wait; calls are made one after another, in the order given."""


@dataclass(frozen=True, slots=True)
class View:
    """What a dialog shows of a request."""

    phase: Phase
    said: str
    """The sentence of the moment; empty while it asks."""
    warnings: tuple[str, ...]
    choices: tuple[Choice, ...]


class Request:
    """One person's wish to end one process: refused, called off, or followed to its outcome."""

    def __init__(
        self,
        target: Target,
        snapshot: Snapshot,
        pin: Callable[[Target], Pinned | Refused],
        *,
        run: Run,
        problem: Callable[[], str | None],
        refuse: str = "",
        not_yours: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Begin with pinning `target`, seen in `snapshot`.

        `problem` says why actions could not be recorded now. `refuse` is a reason to refuse without looking at the
        machine at all; `not_yours` is a better sentence than the pin's, where it refuses.
        """
        self.target = target
        self.phase = Phase.CHECKING
        self.said = ""
        self.warnings: tuple[str, ...] = ()
        self._pin = pin
        self._run = run
        self._problem = problem
        self._not_yours = not_yours
        self._clock = clock
        self._ending: Ending | None = None
        self._job: tuple[Future[Any], Callable[[Any], None]] | None = None
        self._latest = snapshot
        self._before: dict[str, tuple[Gpu, int | None]] = {}
        self._fresh: dict[str, tuple[float, int]] = {}
        self._progress = Progress(ending.Phase.PINNED)
        self._looked = self._wait_until = self._exited = 0.0
        self._abandoned = False
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
    def view(self) -> View:
        """What to show now."""
        return View(self.phase, self._words(), self.warnings, CHOICES[self.phase])

    def choose(self, choice: Choice) -> bool:
        """Do what a button says; whether the dialog is to close. A button of another phase does nothing."""
        if choice not in CHOICES[self.phase]:
            return False
        if choice is Choice.TERMINATE:
            self._signal(self._must().terminate)
        elif choice is Choice.KILL:
            self._signal(self._must().kill)
        elif choice is Choice.WAIT:
            self._wait_until = self._clock() + ending.GRACE_SECONDS
            self.phase = Phase.STOPPING
        elif choice in (Choice.CANCEL, Choice.LEAVE):
            self.abandon()
        return choice in _DISMISS

    def abandon(self) -> None:
        """Send nothing more; the handle is given back once the call under way has returned."""
        self._abandoned = True
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
            if self._abandoned:
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
        if self.phase is not Phase.FREEING:
            return
        for gpu in snapshot.gpus:
            sampled, count = self._fresh.get(gpu.key, (gpu.sampled, 0))
            if gpu.sampled > sampled and gpu.key in self._before:
                self._fresh[gpu.key] = (gpu.sampled, count + 1)

    # What is done in the background, and what follows from it

    def _start(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._job = (self._run(call), then)

    def _check(self) -> tuple[Pinned | Refused, str | None]:
        pinned = self._pin(self.target)
        return pinned, None if isinstance(pinned, Refused) else self._problem()

    def _checked(self, found: tuple[Pinned | Refused, str | None]) -> None:
        pinned, problem = found
        if isinstance(pinned, Refused):
            self._refuse(self._not_yours or pinned.sentence)
            return
        self._ending = Ending(pinned, clock=self._clock)
        self.warnings = tuple(words for words in (pinned.weaker, problem) if words)
        self.phase = Phase.ASKING

    def _refuse(self, sentence: str) -> None:
        self.said = sentence
        self.phase = Phase.REFUSED

    def _signal(self, send: Callable[[], Progress]) -> None:
        shown, back = self.warnings, self.phase

        def call() -> tuple[str | None, Progress | None]:
            # What cannot be recorded is only done if the person had been told so when they confirmed.
            problem = self._problem()
            return (problem, None) if problem and problem not in shown else (None, send())

        def then(answer: tuple[str | None, Progress | None]) -> None:
            problem, progress = answer
            if progress is None:
                self.warnings = (*shown, problem or "")
                self.phase = back
            else:
                self._polled(progress)

        if not self.signalled:
            self._remember()
        self.phase = Phase.SENDING
        self._start(call, then)

    def _remember(self) -> None:
        """Keep what the process held, and what was used on each of its GPUs, before the signal has an effect."""
        for gpu in self._latest.gpus:
            if gpu.key in self.target.gpus:
                mine = [one.memory for one in gpu.holdings if one.pid == self.target.pid]
                held = sum(int(memory) for memory in mine if known(memory))
                self._before[gpu.key] = (gpu, held if mine and all(map(known, mine)) else None)

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
        self._exited = self._clock()
        self._fresh = {gpu.key: (gpu.sampled, 0) for gpu in self._latest.gpus if gpu.key in self._before}
        self.phase = Phase.FREEING

    def _judge(self, now: float) -> None:
        """Say what came free, once there are samples to say it from, or there was time enough for them."""
        fresh = bool(self._fresh) and all(count >= FRESH for _, count in self._fresh.values())
        late = now >= self._exited + MEMORY_PATIENCE
        if not (fresh or late):
            return
        outcome = self._progress.outcome or Outcome(End.EXITED)
        gpus = self._memory() if fresh else []
        promised = _promised(gpu for gpu, _ in self._before.values())
        if not promised or (fresh and all(_freed(gpu) for gpu in gpus)):
            self._finish(memory_after(outcome, gpus, promised=promised))
        elif late:
            left_behind = self._must().pinned.left_behind
            self._start(left_behind, lambda pids: self._finish(memory_after(outcome, gpus, pids)))

    def _memory(self) -> list[GpuMemory]:
        now = {gpu.key: gpu for gpu in self._latest.gpus}
        return [
            GpuMemory(gpu.index, held, _used(gpu), _used(now[key]) if key in now else None)
            for key, (gpu, held) in self._before.items()
        ]

    def _finish(self, sentence: str) -> None:
        self.said = sentence
        self.phase = Phase.OVER
        if self._ending is not None:
            self._run(self._ending.close)
            self._ending = None

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
                return f"asked to stop, {math.ceil(max(left, 0))} s …"
            case Phase.STILL_THERE:
                return self._still_there()
            case Phase.KILLING:
                return f"{self._progress.sentence} …"
            case Phase.FREEING:
                return f"{self._progress.sentence}; looking at its memory …"
        return self.said

    def _still_there(self) -> str:
        outcome = self._progress.outcome
        if outcome is not None and outcome.end is not End.RUNNING:
            return outcome.sentence
        return f"ignored SIGTERM for {long_duration(round(self._progress.elapsed))}"


def target_of(held: Sequence[Row], snapshot: Snapshot, age: float = 0.0) -> Target:
    """Give what `actions.kill` must find: the process of `held`, its rows on all GPUs, as the screen shows it.

    `age` is how many seconds ago the snapshot came.
    """
    first = held[0]
    # A tenth of an interval more, since a sample that is due has not always been taken yet.
    oldest = 2.1 * max(snapshot.interval, 0.5) - age
    return Target(
        pid=first.holding.pid,
        start_ticks=first.process.start or first.holding.start,
        uid=first.process.uid,
        command=first.process.command,
        gpus=tuple(row.gpu.key for row in held),
        held=sum(int(row.holding.memory) for row in held if known(row.holding.memory)),
        stale=any(snapshot.monotonic - row.gpu.sampled > oldest for row in held),
        unreliable=any(row.gpu.unreliable for row in held),
    )


def _freed(gpu: GpuMemory) -> bool:
    return gpu.freed is not None and gpu.freed >= ENOUGH_FREED * (gpu.held or 0)


def _used(gpu: Gpu) -> int | None:
    return int(gpu.memory.used) if known(gpu.memory.used) else None


def _promised(gpus: Iterable[Gpu]) -> bool:
    return not any(gpu.memory.unified or any(name in gpu.name for name in _NO_PROMISE) for gpu in gpus)
