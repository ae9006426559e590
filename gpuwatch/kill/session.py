"""Session that ends one process or its run: from the check of its identity to the report about its memory.

CHECKING ─► REFUSED
    └────► ASKING ─► SENDING ─► STOPPING ⇄ STILL_THERE ─► SENDING ─► STOPPING (after SIGINT), KILLING
                                   └────────────┴──────────────────────┴──► FREEING ─► OVER

The dialog, the screen of strays and `gpuwatch kill` drive a `Session` from outside, and it never blocks: `tick`
advances it, `observe` receives each new snapshot, `choose` presses a button. A call that may block (the audit file may
be on a file system that does not answer, /proc may be long) runs in a worker, one call at a time; the next tick reads
its result.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from gpuwatch.kill.outcome import End, MemoryComparison, Outcome, Refusal, Refused, memory_after, of_several
from gpuwatch.kill.run import Member, Run
from gpuwatch.model import Snapshot
from gpuwatch.units import long_duration

if TYPE_CHECKING:
    from gpuwatch.kill.demo import DemoEnder, DemoProcess
    from gpuwatch.kill.target import Killer, Pinned, Target

LOOK_EVERY: Final = 0.1
"""Seconds between two checks of the process."""

GRACE_SECONDS: Final = 10.0
"""Seconds between the first signal and the question: enough for most trainers, not always for a checkpoint."""

KILL_SECONDS: Final = 10.0
"""Seconds between SIGKILL and the final outcome. The driver frees a context of many GiB within seconds."""

REAP_SECONDS: Final = 1.0
"""Seconds that a parent may take to reap its child before the child counts as a zombie; shells need milliseconds."""

PASS_ON_SECONDS: Final = 3.0
"""Seconds that a process of a run may take to end before its children are signalled too."""

AGAIN_SECONDS: Final = 0.3
"""Seconds after the first signal to a run until newly started processes are searched again."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""Signals that may be sent; after one of them only a later one in this list may follow."""

DEMO_NOTICE: Final = "demo: nothing is signalled, these processes are made up"
"""Notice at each step where the processes are those of the demo."""

IGNORES_INTERRUPT: Final = "it ignores SIGINT, as what a script starts in the background does"


class Phase(StrEnum):
    """State of a session."""

    CHECKING = "checking"
    REFUSED = "refused"
    ASKING = "asking"
    SENDING = "sending"
    STOPPING = "stopping"
    """SIGINT or SIGTERM was sent, and the countdown runs."""
    STILL_THERE = "still there"
    """The countdown is over. The user chooses to wait or to send a harder signal; an exit is still noticed."""
    KILLING = "killing"
    """SIGKILL was sent."""
    FREEING = "freeing"
    """The process has exited; its memory is compared."""
    OVER = "over"


class Choice(StrEnum):
    """Button of a dialog, by its label for one process."""

    CANCEL = "Cancel"
    INTERRUPT = "Interrupt (SIGINT)"
    TERMINATE = "Terminate (SIGTERM)"
    HIDE = "Hide"
    WAIT = "Wait more"
    KILL = "Kill (SIGKILL)"
    LEAVE = "Leave it"
    CLOSE = "Close"

    @property
    def signal(self) -> signal.Signals | None:
        """The signal that the button sends; None for no signal."""
        return _SIGNALS.get(self)

    def label(self, count: int = 1) -> str:
        """Return the label for `count` processes: `Terminate 9 (SIGTERM)`."""
        return self.value if count == 1 or self not in _SIGNALS else self.value.replace(" (", f" {count} (")


_SIGNALS = {
    Choice.INTERRUPT: signal.SIGINT,
    Choice.TERMINATE: signal.SIGTERM,
    Choice.KILL: signal.SIGKILL,
}

CHOICES: Final[dict[Phase, tuple[Choice, ...]]] = {
    Phase.CHECKING: (Choice.CANCEL,),
    Phase.REFUSED: (Choice.CLOSE,),
    Phase.ASKING: (Choice.CANCEL, Choice.INTERRUPT, Choice.TERMINATE),
    Phase.SENDING: (Choice.HIDE,),
    Phase.STOPPING: (Choice.HIDE,),
    Phase.STILL_THERE: (Choice.WAIT, Choice.TERMINATE, Choice.KILL, Choice.LEAVE),
    Phase.KILLING: (Choice.HIDE,),
    Phase.FREEING: (Choice.HIDE,),
    Phase.OVER: (Choice.CLOSE,),
}
"""Choices of each phase; the first is the default, and it never sends a signal.

In STILL_THERE only the next harder signal is offered, and SIGINT only where no process ignores it: see
`Session.choices`.
"""

DISMISS: Final = frozenset({Choice.CANCEL, Choice.HIDE, Choice.LEAVE, Choice.CLOSE})
"""Choices that close the dialog."""


class DialogView(msgspec.Struct, frozen=True):
    """Text and buttons of the dialog."""

    phase: Phase
    message: str
    """Sentence about the present state; empty while the dialog asks."""
    warnings: tuple[str, ...]
    choices: tuple[Choice, ...]
    labels: tuple[str, ...] = ()
    """Labels of the choices."""
    notes: tuple[str, ...] = ()
    """Further facts that the user should know before a choice."""
    scope: str = ""
    """Process or run, and how to switch; empty where there is no choice."""
    members: tuple[Target, ...] = ()
    """Processes that would be signalled; empty unless that is a whole run."""


PinnedProcess: TypeAlias = "Pinned | DemoProcess"
"""Process that is proven to be the target, on this machine or in a demo."""

ProcessEnder: TypeAlias = "Killer | DemoEnder"
"""Access to processes that may be ended, on this machine or in a demo."""

Submit = Callable[[Callable[[], Any]], "Future[Any]"]
"""Function that starts a call that may block, such as `threads.Worker`; calls run one after another, in order."""


def call_now(call: Callable[[], Any]) -> Future[Any]:
    """Make a call at once; its result or its exception is in the future, as with a worker."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - it is handed to the one who asked
        future.set_exception(error)
    return future


def _wrong_machine(snapshot: Snapshot, ender: ProcessEnder) -> str:
    """Return why no process of a snapshot may be ended through `ender`; empty where it may.

    A real process on this machine may have a PID of the demo, so a demo's snapshots need the demo's ender.
    """
    if snapshot.demo and not ender.notice:
        return "demo: its processes are not real"
    return "a demo can end no real process" if ender.notice and not snapshot.demo else ""


class _ProcessState(msgspec.Struct):
    """State of one process that is being ended."""

    member: Member
    signalled: float | None = None
    """Time of this round's signal; None where it was not sent yet."""
    ever_signalled: bool = False
    ended: float | None = None
    outcome: Outcome | None = None
    """Its final outcome."""
    open_intent: bool = False
    """Whether its line of intent has no line of outcome yet."""

    @property
    def pinned(self) -> PinnedProcess:
        return self.member.pinned

    @property
    def exited(self) -> bool:
        return self.ended is not None or (self.outcome is not None and self.outcome.over)


class _Progress(msgspec.Struct, frozen=True):
    """Result of one check of all processes; times in seconds."""

    phase: Phase = Phase.ASKING
    left: float = 0.0
    elapsed: float = 0.0
    outcome: Outcome | None = None
    """Outcome so far; None where there is nothing to report."""
    exited: int = 0
    total: int = 1
    last: signal.Signals | None = None
    """The last signal sent; None where none was."""

    @property
    def sentence(self) -> str:
        """Outcome, or the countdown after SIGKILL, as text without a capital and a full stop."""
        return self.outcome.sentence if self.outcome else f"SIGKILL sent, {math.ceil(self.left)} s{self.count}"

    @property
    def count(self) -> str:
        """Text about how many of several processes have ended; empty for one process."""
        if self.total == 1:
            return ""
        return f"; {self.exited} of {self.total} exited, {self.total - self.exited} still running"


class Session:
    """State machine that ends a process or its run: refused, cancelled, or followed to the end.

    The audit file gets a line of intent before each signal, and a line of outcome after it. In a run the head is
    signalled first: launchers forward a signal, and a second signal may interrupt saving. A process below another is
    signalled when the upper one has ended; a rank whose launcher is not known to forward signals, at the latest
    PASS_ON_SECONDS after it. A helper (a data loader's worker) is signalled only when the process above has ended: a
    trainer that loses its workers fails before it has saved. SIGKILL goes to all at once, the head first.
    """

    def __init__(
        self,
        ender: ProcessEnder,
        target: Target,
        snapshot: Snapshot,
        *,
        submit: Submit,
        find_run: bool = False,
        whole_run: bool = False,
        is_under_way: Callable[[tuple[int, int]], bool] = lambda process: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Pin `target`, seen in `snapshot`.

        With `find_run` the run of the process is searched, too; with `whole_run` the whole run is to be ended.
        `is_under_way` returns whether another session is ending a process (PID, start time).
        """
        self.target = target
        self.notice = ender.notice
        self.phase = Phase.CHECKING
        self.message = ""
        self.warnings: tuple[str, ...] = ()
        self.notes: tuple[str, ...] = ()
        self.whole_run = whole_run
        """Whether the whole run is to be ended."""
        self.pinned_run: Run | None = None
        """Run of the process; None where it has no other process."""
        self.ignores_interrupt = False
        """Whether the process ignores SIGINT."""
        self.unrecorded = ""
        """Why actions cannot be recorded; shown as a warning."""
        self.abandoned = False
        """Whether no more signals are to be sent."""
        self._ender = ender
        self._submit = submit
        self._find_run = find_run or whole_run
        self._is_under_way = is_under_way
        self._clock = clock
        self._latest = snapshot
        self._freeing = MemoryComparison()
        self._pinned: PinnedProcess | None = None
        self._job: tuple[Future[Any], Callable[[Any], None]] | None = None
        self._progress = _Progress()
        self._looked = self._wait_until = 0.0
        # The rest is changed by calls of the worker alone, of which there is one at a time.
        self._states: list[_ProcessState] = []
        self._first = self._latest_signal = 0.0
        self._first_ticks = 0
        self._last_signal: signal.Signals | None = None
        self._unanswered: Outcome | None = None
        """Outcome when the countdown was over."""
        self._look_again = False
        if refused := _wrong_machine(snapshot, ender):
            self._refuse(refused)
        else:
            self._start(self._check, self._checked)

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.phase in (Phase.REFUSED, Phase.OVER)

    @property
    def signalled(self) -> bool:
        """Whether any signal was sent."""
        return self._progress.phase is not Phase.ASKING

    @property
    def outcome(self) -> Outcome | None:
        """Outcome, as far as known."""
        return self._progress.outcome

    @property
    def ended(self) -> bool:
        """Whether all processes of the session have ended."""
        outcome = self._progress.outcome
        return self._progress.phase is Phase.FREEING and outcome is not None and outcome.over

    @property
    def run(self) -> Run | None:
        """The run, where the whole run is to be ended; None for one process."""
        return self.pinned_run if self.whole_run else None

    @property
    def members(self) -> tuple[Target, ...]:
        """Processes that would be signalled, in their order; empty until they have been checked."""
        return () if self.phase in (Phase.CHECKING, Phase.REFUSED) else self._targets()

    def follows(self, process: tuple[int, int]) -> bool:
        """Return whether the session is ending a process (PID, start time) now."""
        return process in [one.key for one in self._targets()] and not (self.over or self.abandoned)

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Choices in the present phase; the first is the default."""
        last = self._progress.last or signal.SIGINT

        def is_offered(choice: Choice) -> bool:
            if self.phase is Phase.STILL_THERE and choice.signal is not None:
                return choice is (Choice.TERMINATE if last is signal.SIGINT else Choice.KILL)
            return not (choice is Choice.INTERRUPT and self.ignores_interrupt)

        return tuple(choice for choice in CHOICES[self.phase] if is_offered(choice))

    @property
    def view(self) -> DialogView:
        """Text and buttons in the present phase."""
        choices = self.choices
        count = len(self.members) - self._progress.exited if self.run else 1
        labels = tuple(choice.label(max(count, 1)) for choice in choices)
        shown = self.members if self.run and self.phase is Phase.ASKING else ()
        return DialogView(
            self.phase, self._sentence(), self.warnings, choices, labels, self.notes, self._scope(), shown
        )

    # -- what drives it --------------------------------------------------------------------------------------------

    def choose(self, choice: Choice) -> bool:
        """Press a button; return whether the dialog is to close. A button that is not offered does nothing."""
        if choice not in self.choices:
            return False
        if choice.signal is not None:
            self.send(choice.signal)
        elif choice is Choice.WAIT:
            self._wait_until = self._clock() + GRACE_SECONDS
            self.phase = Phase.STOPPING
        elif choice in (Choice.CANCEL, Choice.LEAVE):
            self.abandon()
        return choice in DISMISS

    def toggle(self) -> None:
        """Switch between the process and its run; do nothing where that is not offered."""
        if self.phase is Phase.ASKING and self.pinned_run is not None:
            self.whole_run = not self.whole_run
            self._find_notes()

    def send(self, sig: signal.Signals) -> None:
        """Send the first signal, or a harder one than before; raises `ValueError` for any other.

        SIGKILL may be the first signal. While a signal is being sent this does nothing.
        """
        if self.phase not in (Phase.ASKING, Phase.STILL_THERE):
            return
        last, back, shown = self._progress.last, self.phase, self.warnings
        if last is not None and SIGNALS.index(sig) <= SIGNALS.index(last):
            raise ValueError(f"{sig.name} is no harder than {last.name}")
        if not self.signalled:
            self._prepare()

        def call() -> _Progress | str:
            # What cannot be recorded is only done if the person had been warned of that when they confirmed.
            problem = self._ender.problem()
            return problem if problem and problem not in shown else self._signal(sig, shown)

        def then(answer: _Progress | str) -> None:
            if isinstance(answer, str):
                self.unrecorded = answer
                self.warnings = (*shown, answer)
                self.phase = back
            else:
                self._polled(answer)

        self._wait_until = 0.0
        self.phase = Phase.SENDING
        self._start(call, then)

    def abandon(self) -> None:
        """Send no more signals; the handles are closed when the running call has returned."""
        self.abandoned = True
        if self.phase is Phase.FREEING:  # it has exited meanwhile: what became of its memory is still told
            return
        if self._job is None and not self.over:
            self._finish("left running" if self.signalled else "")

    def tick(self) -> None:
        """Read the result of the last call, check the processes and the time, and change the phase where needed."""
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
            self._start(self._poll, self._polled)
        elif self.phase is Phase.FREEING:
            self._judge_memory(now)

    def observe(self, snapshot: Snapshot) -> None:
        """Add a new snapshot."""
        self._latest = snapshot
        if self.phase is Phase.FREEING:
            self._freeing.observe(snapshot)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _start(self, call: Callable[[], Any], then: Callable[[Any], None]) -> None:
        self._job = (self._submit(call), then)

    def _checked(self, found: tuple[PinnedProcess | Refused, Run | Refused | None, str | None]) -> None:
        pinned, run, problem = found
        if isinstance(pinned, Refused):
            self._refuse(self._not_yours() or pinned.sentence)
            return
        self._pinned = pinned
        if isinstance(run, Run) and len(run.members) > 1:
            self.pinned_run = run
        elif isinstance(run, Refused) and self.whole_run:
            self._close()
            self._refuse(f"its run: {run.sentence}")
            return
        weaker = run.weaker if isinstance(run, Run) else ""
        self.warnings = tuple(words for words in (weaker or pinned.weaker, problem) if words)
        self.unrecorded = problem or ""
        self._find_notes()
        self.phase = Phase.ASKING

    def _not_yours(self) -> str:
        """Return a refusal that names the owner; empty where the user owns the process."""
        policy, target = self._ender.policy, self.target
        if policy.read_only or not target.user or target.uid in (None, policy.may_end):
            return ""
        return f"it belongs to {target.user}, and gpuwatch signals only your own processes"

    def _refuse(self, sentence: str) -> None:
        self.message = sentence
        self.phase = Phase.REFUSED

    def _find_notes(self) -> None:
        """Read the facts that a user should know before choosing, from one short file."""
        left_out = self.run.left_out if self.run else ()
        self.ignores_interrupt = self._chosen()[0].pinned.ignores(signal.SIGINT)
        notes = [IGNORES_INTERRUPT] if self.ignores_interrupt else []
        self.notes = (*notes, *(f"not touched: PID {pid}, {why}" for pid, why in left_out))

    def _chosen(self) -> tuple[Member, ...]:
        if self.run is not None:
            return self.run.members
        if self._pinned is None:
            raise RuntimeError(f"PID {self.target.pid} is not pinned in phase {self.phase}")
        return (Member(self._pinned),)

    def _targets(self) -> tuple[Target, ...]:
        return tuple(member.pinned.target for member in self.run.members) if self.run else (self.target,)

    def _prepare(self) -> None:
        """Choose the processes to signal, and store the memory that they hold."""
        self._states = [_ProcessState(member) for member in self._chosen()]
        for state in self._states:
            state.pinned.run = self.run.key if self.run else ""
        targets = self._targets()
        gpus = {gpu for one in targets for gpu in one.gpus}
        self._freeing.remember(self._latest, {one.pid for one in targets}, gpus)

    def _polled(self, progress: _Progress) -> None:
        self._progress = progress
        outcome = progress.outcome
        if progress.phase is Phase.FREEING and outcome is not None and outcome.end not in (End.EXITED, End.ZOMBIE):
            self._finish(outcome.sentence)
            return
        self.phase = progress.phase
        if self.phase is Phase.FREEING:
            self._freeing.begin(self._latest, self._clock())
        elif self.phase is Phase.STILL_THERE and self._clock() < self._wait_until:
            self.phase = Phase.STOPPING

    def _judge_memory(self, now: float) -> None:
        """Report the freed memory, when there are enough samples or the time for it has passed."""
        late = self._freeing.late(now)
        if not (self._freeing.fresh() or late):
            return
        outcome, must_fall = self._progress.outcome or Outcome(End.EXITED), self._freeing.must_fall
        if must_fall and self._freeing.all_free:
            self._finish(memory_after(outcome, self._freeing.gpus()))
        elif late or not must_fall:
            gpus, listed = self._freeing.gpus(), self._freeing.listed()
            self._start(
                lambda: sorted({pid for state in self._states for pid in state.pinned.leftovers(listed)}),
                lambda pids: self._finish(memory_after(outcome, gpus, pids, must_fall=must_fall)),
            )

    def _finish(self, sentence: str) -> None:
        self.message = sentence
        self.phase = Phase.OVER
        self._close()

    def _close(self) -> None:
        """Close all handles in the worker; a signal without a line of outcome gets one before."""
        held = self.pinned_run or self._pinned
        if self._pinned is None or held is None:
            return
        self._pinned = None

        def close() -> None:
            for state in self._states:
                if state.open_intent:
                    self._record(state, self._look(state))
            held.close()

        self._submit(close)

    # -- calls of the worker ---------------------------------------------------------------------------------------

    def _check(self) -> tuple[PinnedProcess | Refused, Run | Refused | None, str | None]:
        pinned = self._ender.pin(self.target)
        if isinstance(pinned, Refused):
            return pinned, None, None
        run: Run | Refused | None = None
        try:
            if self._find_run:
                run = self._pin_run(pinned)
            return pinned, run, self._ender.problem()
        except BaseException:
            (run if isinstance(run, Run) else pinned).close()
            raise

    def _pin_run(self, pinned: PinnedProcess) -> Run | Refused:
        """Pin the run, unless another session is ending a part of it: that part would get a second signal."""
        run = self._ender.pin_run(pinned, self._latest, asked=self.whole_run)
        if isinstance(run, Refused):
            return run
        others = [one.pinned.target for one in run.members if one.pinned is not pinned]
        taken = next((one.pid for one in others if self._is_under_way(one.key)), None)
        if taken is None:
            return run
        run.close(but=pinned)
        refused = Refused(Refusal.UNDER_WAY, taken)
        if self.whole_run:
            self._ender.refuse(pinned.target, refused, run=run.key)
        return refused

    def _signal(self, sig: signal.Signals, warned: Collection[str]) -> _Progress | str:
        """Send a signal to all running processes, unless recording it fails by an error that is not in `warned`."""
        if self._last_signal is None:
            self._first = self._clock()
            self._first_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        elif (progress := self._poll()).phase is Phase.FREEING:
            return progress
        now = self._clock() if self._last_signal is not None else self._first
        problem = self._record_intent(sig, warned)
        if problem is not None:
            return problem
        self._last_signal, self._latest_signal, self._unanswered = sig, now, None
        for state in self._open():
            state.signalled = None
        self._look_again = len(self._states) > 1
        for state in self._states:
            if not state.member.above:
                state.pinned.find_family()
        self._pass_on(now)
        return self._measure()

    def _poll(self) -> _Progress:
        """Check all processes, and signal those that are due."""
        now = self._clock()
        for state in self._open():
            if state.pinned.exited():
                self._after_exit(state, now)
        self._pass_on(now)
        if self._look_again and now >= self._first + AGAIN_SECONDS:
            self._look_again = False
            for state in self._open():
                state.pinned.find_family()
        if self._unanswered is None and self._left() <= 0 and any(state.ended is None for state in self._open()):
            self._after_countdown()
        return self._measure()

    def _record_intent(self, sig: signal.Signals, warned: Collection[str]) -> str | None:
        """Record the signal for all processes before it is sent to any; return an error that is not in `warned`."""
        done: list[_ProcessState] = []
        for state in self._open():
            if state.ended is not None:
                continue
            words = state.pinned.record("intent", signal=sig.name)
            if words is not None and words not in warned:
                for other in done:  # their lines promise what does not come
                    other.pinned.record("outcome", result="not sent", detail=words)
                return words
            done.append(state)
        for state in done:
            state.open_intent = True
        return None

    def _pass_on(self, now: float) -> None:
        """Signal the processes that are due, in their order."""
        for state in self._open():
            if state.signalled is None and state.ended is None and self._is_due(state, now):
                self._send(state, now)
                if self._last_signal is not signal.SIGKILL and self._unanswered is None:
                    self._latest_signal = now  # the last one signalled has its ten seconds too

    def _is_due(self, state: _ProcessState, now: float) -> bool:
        above = next((other for other in self._states if other.pinned.target.pid == state.member.above), None)
        ended = above is None or above is state or above.exited or above.pinned.exited()
        if self._last_signal is signal.SIGKILL or above is None or ended:
            return True
        return not state.member.waits and above.signalled is not None and now >= above.signalled + PASS_ON_SECONDS

    def _send(self, state: _ProcessState, now: float) -> None:
        assert self._last_signal is not None
        is_first = not state.ever_signalled and now == self._first
        state.signalled, state.ever_signalled = now, True
        failed = state.pinned.send(self._last_signal)
        if failed is not None and failed.end is End.GONE and not is_first:
            self._after_exit(state, now)  # what came before did it, in the moment in which this signal was asked for
        elif failed is not None:
            self._complete(state, failed)

    def _after_exit(self, state: _ProcessState, now: float) -> None:
        if state.ended is None:
            state.ended = now
        outcome = self._look(state)
        if outcome.end is End.ZOMBIE:
            parent = outcome.parent[0] if outcome.parent else 0
            # A parent that is being ended too leaves its children to who reaps them all.
            is_ending = any(other.pinned.target.pid == parent and other.ended is None for other in self._open())
            if is_ending or now - state.ended < REAP_SECONDS:
                return
        self._complete(state, outcome)

    def _after_countdown(self) -> None:
        """Record the state of each process when the countdown is over; after SIGKILL this is final."""
        outcomes = []
        for state in self._states:
            outcome = state.outcome or self._look(state)
            if self._last_signal is signal.SIGKILL and state.outcome is None and state.ended is None:
                self._complete(state, outcome)
            elif state.open_intent and state.outcome is None and state.ended is None:
                self._record(state, outcome)
            outcomes.append((state.pinned.target.pid, outcome))
        if self._last_signal is not signal.SIGKILL:
            self._unanswered = of_several(outcomes)

    def _look(self, state: _ProcessState) -> Outcome:
        killed = self._last_signal is signal.SIGKILL
        outcome = state.pinned.look(seconds=self._elapsed(state), killed=killed)
        return replace(outcome, asked=signal.SIGINT) if self._last_signal is signal.SIGINT else outcome

    def _complete(self, state: _ProcessState, outcome: Outcome) -> None:
        state.outcome = outcome
        self._record(state, outcome)

    def _record(self, state: _ProcessState, outcome: Outcome) -> None:
        state.open_intent = False
        detail = outcome.detail
        if outcome.end in (End.EXITED, End.ZOMBIE) and not state.ever_signalled:
            detail = "it ended with its run, without a signal of its own"
        state.pinned.record("outcome", result=outcome.end.value, seconds=round(outcome.seconds, 3), detail=detail)

    def _open(self) -> list[_ProcessState]:
        return [state for state in self._states if state.outcome is None]

    def _measure(self) -> _Progress:
        outcome, phase = self._unanswered, Phase.STOPPING
        if not self._open():
            phase = Phase.FREEING
            left = self.run.left(self._first_ticks) if self.run else ()
            outcome = of_several([(one.pinned.target.pid, one.outcome) for one in self._states if one.outcome], left)
        elif self._last_signal is signal.SIGKILL:
            phase = Phase.KILLING
        elif self._unanswered is not None:
            phase = Phase.STILL_THERE
        exited = sum(state.exited for state in self._states)
        elapsed = max((self._elapsed(state) for state in self._states), default=0.0)
        return _Progress(phase, self._left(), elapsed, outcome, exited, len(self._states), self._last_signal)

    def _elapsed(self, state: _ProcessState) -> float:
        return (self._clock() if state.ended is None else state.ended) - self._first

    def _left(self) -> float:
        total = KILL_SECONDS if self._last_signal is signal.SIGKILL else GRACE_SECONDS
        return max(0.0, total - (self._clock() - self._latest_signal))

    # -- words -----------------------------------------------------------------------------------------------------

    def _sentence(self) -> str:
        match self.phase:
            case Phase.CHECKING:
                return "making sure that it is still this process …"
            case Phase.SENDING:
                return "writing the record …"
            case Phase.STOPPING:
                waiting = self._wait_until - self._clock()
                left = waiting if self._progress.phase is Phase.STILL_THERE else self._progress.left
                return f"asked to stop, {math.ceil(max(left, 0))} s …{self._progress.count}"
            case Phase.STILL_THERE:
                outcome = self._progress.outcome
                if outcome is not None and (outcome.end is not End.RUNNING or outcome.each):
                    return outcome.sentence
                last = self._progress.last or signal.SIGTERM
                return f"ignored {last.name} for {long_duration(round(self._progress.elapsed))}"
            case Phase.KILLING:
                return f"{self._progress.sentence} …"
            case Phase.FREEING:
                return f"{self._progress.sentence}; looking at its memory …"
        return self.message

    def _scope(self) -> str:
        if self.pinned_run is None or self.phase is not Phase.ASKING:
            return ""
        count = len(self.pinned_run.members)
        return f"its run: {count} processes" if self.whole_run else f"this process; its run has {count}"
