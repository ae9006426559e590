"""Ending of one process or a run, from the check of its identity to the report about its memory.

CHECKING ─► ASKING ─► WAITING ─► OVER, from WAITING back to ASKING where the countdown is over and a process still runs,
and from each state to OVER: refused, cancelled, left running.

The dialog, the screen of strays and `gpuwatch kill` drive an ending from outside: `tick` advances it, `observe`
receives each new snapshot, `choose` presses a button. Only the check, which reads much of /proc, runs in a worker.

In a run the head is signalled first: launchers forward a signal, and a second signal may interrupt saving. A process
below another is signalled when the upper one has ended; a rank whose launcher is not known to forward signals, at the
latest PASS_ON_SECONDS after it; a helper (a data loader's worker) never before, since a trainer that loses its workers
fails before it has saved. SIGKILL goes to all at once.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import Any, Final

import msgspec

from gpuwatch.base import procfs
from gpuwatch.base.units import long_duration, size
from gpuwatch.kill.outcome import End, Outcome, Refused, format_pids, merge_outcomes
from gpuwatch.kill.pinned import KillTarget, PinnedProcess, Pinner, refuse_owner
from gpuwatch.kill.run import Member, PinnedRun, find_run
from gpuwatch.model.snapshot import Gpu, Snapshot, known

POLL_SECONDS: Final = 0.1
"""Seconds between two checks of the processes."""

ASKING_SECONDS: Final = 1.0
"""The same while it asks again: the state of each process of a run is read then, and a run may have hundreds."""

GRACE_SECONDS: Final = 10.0
"""Seconds between the first signal and the question: enough for most trainers, not always for a checkpoint."""

KILL_SECONDS: Final = 10.0
"""Seconds between SIGKILL and the final outcome. The driver frees a context of many GiB within seconds."""

REAP_SECONDS: Final = 1.0
"""Seconds that a parent may take to reap its child before the child counts as a zombie; shells need milliseconds."""

PASS_ON_SECONDS: Final = 3.0
"""Seconds that a process of a run may take to end before its children are signalled too."""

FRESH_SAMPLES: Final = 2
"""Samples of each GPU after the exit before its memory is compared: the first may have begun before the exit."""

MEMORY_SECONDS: Final = 5.0
"""Seconds in which memory may still become free."""

_ENOUGH: Final = 0.95
"""Part of a holding that counts as all of it when freed: the driver rounds, and others allocate meanwhile."""

_SHARED_MEMORY: Final = ("GH200", "GB200", "GB300", "GB10", "Thor", "Orin", "Jetson")
"""Machines whose GPU and CPU share memory: the driver's value may not change."""

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
"""Signals that may be sent; after one of them only a later one in this list may follow."""

IGNORES_INTERRUPT: Final = "it ignores SIGINT, as a script's background processes do"

Submit = Callable[[Callable[[], Any]], "Future[Any]"]
"""Function that starts a call that may block, such as `threads.Worker`."""


class KillState(StrEnum):
    CHECKING = "checking"
    ASKING = "asking"
    WAITING = "waiting"
    """A signal was sent, and the countdown runs; or all have ended, and their memory is compared."""
    OVER = "over"


class KillChoice(StrEnum):
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
        return next((sig for sig in SIGNALS if f"({sig.name})" in self.value), None)

    def label(self, count: int = 1) -> str:
        """Return the label for `count` processes: `Terminate 9 (SIGTERM)`."""
        return self.value if count == 1 else self.value.replace(" (", f" {count} (")


def call_now(call: Callable[[], Any]) -> Future[Any]:
    """Make a call at once, and return its result or exception in a future, as a worker does."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - it is returned to the caller
        future.set_exception(error)
    return future


class Ending:
    """Ending of processes that are pinned together, the head first: a run, or a single process."""

    def __init__(
        self,
        pinner: Pinner,
        target: KillTarget,
        snapshot: Snapshot,
        *,
        submit: Submit = call_now,
        has_run: bool = False,
        whole_run: bool = False,
        is_under_way: Callable[[tuple[int, int]], bool] = lambda process: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Check and pin `target`, seen in `snapshot`; `submit` starts a call in a worker.

        With `has_run` its run may be ended as well, and with `whole_run` it is chosen. `is_under_way` returns whether
        another ending has a process (PID, start time).
        """
        self.target = target
        self.state = KillState.CHECKING
        self.message = ""
        """How it ended; empty before."""
        self.refused = False
        self.warnings: tuple[str, ...] = ()
        self.whole_run = whole_run
        self.single = self.chosen = PinnedRun()
        """The single process, and the chosen processes; empty until they were checked."""
        self.run: PinnedRun | None = None
        """Run of the process; None where it has no other process."""
        self.ignores_interrupt = False
        """Whether the process ignores SIGINT."""
        self.sent: signal.Signals | None = None
        """The last signal."""
        self.outcome: Outcome | None = None
        """Outcome, once the countdown is over or all have ended."""
        self.abandoned = False
        """Whether no more signals are to be sent."""
        self._pinner = pinner
        self._clock = clock
        self._latest = snapshot
        self._memory: FreedMemory | None = None
        self._memory_until = 0.0
        self._first = self._deadline = self._polled = 0.0
        self._first_ticks = 0
        self._descendants: dict[int, int] = {}
        """Start ticks by PID of all below its processes at the first signal: without a parent none is found."""
        self._sessions: set[int] = set()
        self._by_pid: dict[int, Member] = {}
        self._checked: Future[Any] | None = None
        if snapshot.demo:  # a real process on this machine may have a PID of the demo
            self._refuse("the demo's processes are not real")
        elif refused := pinner.refuse_shown(target):
            pinner.record_refusal(target, refused)
            self._refuse_by(refused)
        else:
            self._checked = submit(lambda: self._check(has_run or whole_run, is_under_way))

    # -- state -----------------------------------------------------------------------------------------------------

    @property
    def over(self) -> bool:
        return self.state is KillState.OVER

    @property
    def asks_again(self) -> bool:
        """Whether the countdown is over and a process still runs."""
        return self.state is KillState.ASKING and self.sent is not None

    @property
    def exited(self) -> bool:
        """Whether all processes have ended."""
        return self.outcome is not None and self.outcome.over and not self._open()

    @property
    def targets(self) -> tuple[KillTarget, ...]:
        """Processes that are ended, as they were on screen, in the order of their signals."""
        return tuple(member.pinned.target for member in self.chosen.members)

    def has(self, process: tuple[int, int]) -> bool:
        """Return whether a process (PID, start time) is being ended by this now."""
        return process in [one.key for one in self.targets or (self.target,)] and not (self.over or self.abandoned)

    @property
    def left(self) -> int:
        """Number of processes that have not ended."""
        return sum(not member.exited for member in self.chosen.members)

    @property
    def choices(self) -> tuple[KillChoice, ...]:
        """Choices in the present state; the first is the default, and it never sends a signal."""
        if self.state is KillState.CHECKING:
            return (KillChoice.CANCEL,)
        if self.asks_again:
            harder = KillChoice.TERMINATE if self.sent is signal.SIGINT else KillChoice.KILL
            return (KillChoice.WAIT, harder, KillChoice.LEAVE)
        if self.state is KillState.ASKING:
            interrupt = () if self.ignores_interrupt else (KillChoice.INTERRUPT,)
            return (KillChoice.CANCEL, *interrupt, KillChoice.TERMINATE)
        return (KillChoice.HIDE if self.state is KillState.WAITING else KillChoice.CLOSE,)

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts that the user should know before a choice."""
        ignored = [IGNORES_INTERRUPT] if self.ignores_interrupt else []
        return (*ignored, *(f"not signalled: PID {pid}, {why}" for pid, why in self.chosen.left_out))

    @property
    def sentence(self) -> str:
        """Sentence about the present state; empty while it asks for the first time."""
        total, seconds = len(self.chosen.members), max(0, math.ceil(self._deadline - self._clock()))
        count = f"; {total - self.left} of {total} exited, {self.left} still running" if total > 1 else ""
        if self.state is KillState.CHECKING:
            return "checking that it is still the same process …"
        if self.asks_again and self.outcome and self.sent:
            if self.outcome.end is End.RUNNING and not self.outcome.each:
                return f"ignored {self.sent.name} for {long_duration(round(self.outcome.seconds))}"
            return self.outcome.sentence
        if self.state is not KillState.WAITING:
            return self.message
        if self.exited and self.outcome:
            return f"{self.outcome.sentence}; checking its memory …"
        if self.sent is signal.SIGKILL:
            return f"SIGKILL sent, {seconds} s{count} …"
        return f"asked to stop, {seconds} s …{count}"

    # -- input from outside ----------------------------------------------------------------------------------------

    def choose(self, choice: KillChoice) -> bool:
        """Press a button; return whether the dialog is to close. A button that is not offered does nothing."""
        if choice not in self.choices:
            return False
        if choice.signal is not None:
            self.send(choice.signal)
        elif choice is KillChoice.WAIT:
            self._deadline = self._clock() + GRACE_SECONDS
            self.state = KillState.WAITING
        elif choice in (KillChoice.CANCEL, KillChoice.LEAVE):
            self.abandon()
        return choice.signal is None and choice is not KillChoice.WAIT

    def toggle(self) -> None:
        """Switch between the process and its run; do nothing where that is not offered."""
        if self.state is KillState.ASKING and self.sent is None and self.run is not None:
            self._take(whole_run=not self.whole_run)

    def send(self, sig: signal.Signals) -> None:
        """Send the first signal, or a stronger one than before; raises `ValueError` for any other.

        SIGKILL may be the first signal. While a signal is under way this does nothing.
        """
        if self.state is not KillState.ASKING:
            return
        if self.sent is not None and SIGNALS.index(sig) <= SIGNALS.index(self.sent):
            raise ValueError(f"{sig.name} is not stronger than {self.sent.name}")
        now = self._clock()
        if self.sent is None:
            self._begin(now)
        else:
            self._poll(now)  # one that has ended by itself needs no stronger signal
            if not self.asks_again:
                return
        self.sent, self.state = sig, KillState.WAITING
        self._deadline = now + (KILL_SECONDS if sig is signal.SIGKILL else GRACE_SECONDS)
        for member in self._open():
            member.signalled = None
        self._poll(now)

    def abandon(self) -> None:
        """Send no more signals, and end; the freed memory of ended processes is still reported."""
        self.abandoned = True
        if self._checked is None and not self.over and not self.exited:
            self._finish("left running" if self.sent is not None else "")

    def tick(self) -> None:
        """Read the result of the check, look at the processes and the time, and change the state where needed."""
        now, every = self._clock(), ASKING_SECONDS if self.asks_again else POLL_SECONDS
        if self._checked is not None:
            if self._checked.done():
                self._end_check(self._checked)
        elif self.exited and not self.over:
            self._compare_memory(now)
        elif self.sent is not None and not self.over and now >= self._polled + every:
            self._poll(now)

    def observe(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        if self.exited and self._memory is not None:
            self._memory.observe(snapshot)

    def on_gpu(self) -> tuple[int, ...]:
        """Return the PIDs of running members that have a GPU open, those with known memory first."""
        members = sorted(self.chosen.members, key=lambda member: not member.pinned.target.gpus)
        running = [member.pid for member in members if not member.pinned.has_exited()]
        return tuple(pid for pid in running if self._pinner.is_on_gpu(pid))

    # -- check -----------------------------------------------------------------------------------------------------

    def _check(
        self, has_run: bool, is_under_way: Callable[[tuple[int, int]], bool]
    ) -> tuple[PinnedProcess | Refused, PinnedRun | Refused | None, str | None]:
        pinned = self._pinner.pin(self.target)
        if isinstance(pinned, Refused):
            return pinned, None, None
        run = find_run(self._pinner, pinned, self._latest, is_under_way) if has_run else None
        return pinned, run, self._pinner.audit.problem()

    def _end_check(self, checked: Future[Any]) -> None:
        self._checked = None
        if error := checked.exception():
            self._refuse(f"gpuwatch failed: {error}")
            return
        pinned, run, problem = checked.result()
        if isinstance(pinned, Refused):
            self._refuse_by(pinned)
            return
        self.single = PinnedRun((Member(pinned),))
        self.run = run if isinstance(run, PinnedRun) and len(run.members) > 1 else None
        self._take(whole_run=self.whole_run)
        if isinstance(run, Refused) and self.whole_run:
            self._pinner.record_refusal(self.target, run)
            self._refuse(f"its run: {run.sentence}")
        elif self.abandoned:
            self._finish("")
        else:
            self.warnings = (problem,) if problem else ()
            self.state = KillState.ASKING

    def _take(self, *, whole_run: bool) -> None:
        """Choose only the process, or its whole run."""
        self.whole_run = whole_run
        self.chosen = self.run if self.run and whole_run else self.single
        self._by_pid = {member.pid: member for member in self.chosen.members}
        self.ignores_interrupt = self.chosen.members[0].pinned.ignores(signal.SIGINT)

    def _refuse_by(self, refused: Refused) -> None:
        policy = self._pinner.policy
        owner = "" if policy.read_only else refuse_owner(self.target, policy.may_end)
        self._refuse(owner or refused.sentence)

    def _refuse(self, sentence: str) -> None:
        self.refused = True
        self._finish(sentence)

    def _finish(self, message: str) -> None:
        """Record processes without an outcome, and close all handles; the processes keep running."""
        for member in self._open() if self.sent is not None else ():
            self._complete(member, self._read_outcome(member, self._clock()))
        for member in (*self.single.members, *(self.run.members if self.run else ())):
            member.pinned.close()
        self.message, self.state = message, KillState.OVER

    # -- signals ---------------------------------------------------------------------------------------------------

    def _begin(self, now: float) -> None:
        """Store facts that can only be read before the first signal."""
        gpus = {gpu for target in self.targets for gpu in target.gpus}
        self._memory = FreedMemory(self._latest, {target.pid for target in self.targets}, gpus)
        self._first = now
        self._first_ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        for member in self.chosen.members:
            if not member.above:
                self._descendants |= procfs.find_descendants(member.pid, self._pinner.proc)
            stat = procfs.find_stat(member.pid, self._pinner.proc)
            self._sessions |= {stat.session} if stat and stat.session else set()

    def _poll(self, now: float) -> None:
        """Check each process, signal those that are due, and change the state where the countdown or all is over."""
        self._polled = now
        for member in self._open():
            if now > self._first and member.pinned.has_exited():  # before, sending the signal notes it
                self._note_exit(member, now)
        for member in self._open():
            if member.signalled is None and member.ended is None and self._is_due(member, now):
                self._signal(member, now)
        running = [member for member in self._open() if member.ended is None]
        if running and now >= self._deadline:
            if self.sent is signal.SIGKILL:
                for member in running:
                    self._complete(member, self._read_outcome(member, now))
            else:
                self.outcome, self.state = self._merge_outcomes(now), KillState.ASKING
        if not self._open():
            self.outcome, self.state = self._merge_outcomes(now), KillState.WAITING
            if self.outcome.end not in (End.EXITED, End.ZOMBIE):
                self._finish(self.outcome.sentence)
            elif self._memory is not None:
                self._memory.begin(self._latest)
                self._memory_until = now + MEMORY_SECONDS

    def _open(self) -> list[Member]:
        return [member for member in self.chosen.members if member.outcome is None]

    def _is_due(self, member: Member, now: float) -> bool:
        above = self._by_pid.get(member.above)
        if self.sent is signal.SIGKILL or above is None or above.exited:
            return True
        return not member.waits and above.signalled is not None and now >= above.signalled + PASS_ON_SECONDS

    def _signal(self, member: Member, now: float) -> None:
        assert self.sent is not None
        member.signalled = now
        failed = member.pinned.send(self.sent)
        if failed is not None and failed.end is End.GONE and now > self._first:
            self._note_exit(member, now)  # an earlier signal ended it, just before this one
        elif failed is not None:
            self._complete(member, failed)
        if self.sent is not signal.SIGKILL and now < self._deadline:
            self._deadline = now + GRACE_SECONDS  # the last one signalled also gets its ten seconds

    def _note_exit(self, member: Member, now: float) -> None:
        member.ended = now if member.ended is None else member.ended
        outcome = self._read_outcome(member, now)
        if outcome.parent is not None:
            # A parent needs a moment to reap it. One that is being ended too leaves that to a process above.
            is_ending = any(one.pid == outcome.parent[0] and one.ended is None for one in self._open())
            if is_ending or now - member.ended < REAP_SECONDS:
                return
        self._complete(member, outcome)

    def _complete(self, member: Member, outcome: Outcome) -> None:
        """Store the final outcome of a process, and write it to the audit file."""
        member.outcome = outcome
        signals, detail = [sig.name for sig in member.pinned.signals], outcome.detail
        if outcome.end in (End.EXITED, End.ZOMBIE) and not signals:
            detail = "it ended with its run; gpuwatch sent it no signal"
        run = {"run": self.chosen.key} if self.chosen.key else {}
        fields = {"signals": signals, "result": outcome.end.value, "seconds": round(outcome.seconds, 3)}
        self._pinner.record("outcome", member.pinned.target, {**run, **fields, "detail": detail})

    def _read_outcome(self, member: Member, now: float) -> Outcome:
        seconds = (now if member.ended is None else member.ended) - self._first
        return member.pinned.read_outcome(seconds, self.sent or signal.SIGTERM)

    def _merge_outcomes(self, now: float) -> Outcome:
        each = [(member.pid, member.outcome or self._read_outcome(member, now)) for member in self.chosen.members]
        return merge_outcomes(each, self._find_started() if self.chosen.key and not self._open() else ())

    # -- after the end ---------------------------------------------------------------------------------------------

    def _compare_memory(self, now: float) -> None:
        """Report the freed memory, when there are enough samples or the time for it has passed."""
        memory, outcome = self._memory, self.outcome
        assert memory is not None
        assert outcome is not None
        if memory.is_free:
            self._finish(memory.sentence(outcome))
        elif now >= self._memory_until or (memory.is_fresh and not memory.must_fall):
            running = self._find_running()
            holders = [pid for pid in running if pid in memory.listed or self._pinner.is_on_gpu(pid)]
            self._finish(memory.sentence(outcome, holders))

    def _find_running(self) -> list[int]:
        """Return the PIDs of descendants at the first signal that still run."""
        return [pid for pid, start in sorted(self._descendants.items()) if self._pinner.is_running(pid, start)]

    def _find_started(self) -> tuple[int, ...]:
        """Return the PIDs of running processes of the run that are no members: they were started meanwhile.

        They were below a member at the first signal, or were started after it in a session of the run, without a parent
        in the run.
        """
        proc, started = self._pinner.proc, set(self._find_running())
        for pid in (int(folder.name) for folder in proc.iterdir() if folder.name.isdecimal()):
            stat = procfs.find_stat(pid, proc)
            if stat is None or stat.start_ticks < self._first_ticks or stat.state in procfs.DEAD:
                continue
            parent = procfs.find_stat(stat.ppid, proc)
            if stat.session in self._sessions and (parent is None or parent.session not in self._sessions):
                started.add(pid)
        started -= {*(member.pid for member in self.chosen.members), *dict(self.chosen.left_out)}
        return tuple(pid for pid in sorted(started) if self._pinner.find_uids(pid) == {self._pinner.policy.may_end})


# ---------------------------------------------------------------------------------------------------------------
# Memory that ended processes held: freed, partly freed, not yet freed, or still held by other processes


class _GpuMemory(msgspec.Struct):
    """Memory of one GPU in bytes, None where not known: held by the processes, used before their end and after it."""

    before: Gpu
    held: int | None
    after: Gpu
    samples: int = 0
    """Samples since the end."""

    @property
    def freed(self) -> int | None:
        """Bytes that became free: at most those that were held, since others allocate and free at the same time."""
        before, after = self.before.memory.used, self.after.memory.used
        if not known(before) or not known(after):
            return None
        drop = max(0, int(before) - int(after))
        return drop if self.held is None else min(drop, self.held)


class FreedMemory:
    """Memory on the GPUs of some processes, from their first signal to the samples after their end."""

    def __init__(self, snapshot: Snapshot, pids: Collection[int], gpus: Collection[str]) -> None:
        """Read the memory that these processes hold, and the used memory of their GPUs (by key)."""
        self._gpus: dict[str, _GpuMemory] = {}
        for gpu in snapshot.gpus:
            mine = [one.memory for one in gpu.holdings if one.pid in pids]
            if mine or gpu.key in gpus:
                held = sum(int(one) for one in mine if known(one)) if mine and all(map(known, mine)) else None
                self._gpus[gpu.key] = _GpuMemory(gpu, held, gpu)

    def begin(self, snapshot: Snapshot) -> None:
        """Count samples from this snapshot on, the last one before the end."""
        self.observe(snapshot)
        for memory in self._gpus.values():
            memory.samples = 0

    def observe(self, snapshot: Snapshot) -> None:
        for gpu in snapshot.gpus:
            if memory := self._gpus.get(gpu.key):
                memory.samples += gpu.sampled > memory.after.sampled
                memory.after = gpu

    @property
    def must_fall(self) -> bool:
        """Whether freed memory must show in the driver's values: not where CPU and GPU share memory."""
        gpus = [memory.before for memory in self._gpus.values()]
        return not any(gpu.memory.unified or any(name in gpu.name for name in _SHARED_MEMORY) for gpu in gpus)

    @property
    def is_fresh(self) -> bool:
        """Whether there are enough samples since the end."""
        return bool(self._gpus) and all(one.samples >= FRESH_SAMPLES for one in self._gpus.values())

    @property
    def is_free(self) -> bool:
        """Whether all memory that the processes held is known to be free now."""
        free = [one.freed is not None and one.freed >= _ENOUGH * (one.held or 0) for one in self._gpus.values()]
        return self.is_fresh and self.must_fall and all(free)

    @property
    def listed(self) -> frozenset[int]:
        """PIDs that the driver lists on these GPUs now."""
        return frozenset(holding.pid for one in self._gpus.values() for holding in one.after.holdings)

    def sentence(self, outcome: Outcome, holders: Sequence[int] = ()) -> str:
        """Return an outcome and the freed memory in one sentence; `holders` are PIDs that still hold memory.

        The memory is left out where CPU and GPU share memory, and where a figure is missing.
        """
        if outcome.end not in (End.EXITED, End.ZOMBIE):
            return outcome.sentence
        if holders:
            return f"{outcome.sentence}; still held by {format_pids(holders)}"
        gpus = [one for one in self._gpus.values() if one.held != 0]
        if not (gpus and self.is_fresh and self.must_fall) or any(one.freed is None for one in gpus):
            return outcome.sentence
        freed = sum(one.freed or 0 for one in gpus)
        held = sum((one.freed or 0) if one.held is None else one.held for one in gpus)
        if freed == 0:
            return f"{outcome.sentence}, memory not yet freed"
        amount = size(freed) if freed >= _ENOUGH * held else f"{size(freed)} of {size(held)}"
        indices = ", ".join(map(str, sorted(one.before.index for one in gpus)))
        return f"{outcome.sentence}, {amount} freed on {'GPU' if len(gpus) == 1 else 'GPUs'} {indices}"
