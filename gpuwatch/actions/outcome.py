"""What became of a process that was asked to end, and of the GPU memory that it held, in plain words."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpuwatch.units import long_duration, size


class End(StrEnum):
    """What a process turned out to be, some time after the signal."""

    EXITED = "exited"
    ZOMBIE = "zombie"
    """It runs no more; its parent has not asked for its exit status, so its PID stays."""
    RUNNING = "running"
    STOPPED = "stopped"
    """By job control or a debugger: SIGTERM waits until it is continued."""
    STUCK = "stuck"
    """It sleeps inside the kernel (state D), where a signal does not reach it."""
    DENIED = "denied"
    CHANGED = "changed"
    """It was no longer what the person had been shown, so no signal was sent."""
    GONE = "gone"
    """It had ended before the signal, so nothing was sent."""


@dataclass(frozen=True)
class Outcome:
    """What became of one process; `seconds` count from the first signal, `killed` is whether SIGKILL was sent."""

    end: End
    seconds: float = 0.0
    killed: bool = False
    parent: tuple[int, str] | None = None
    """PID and name of the parent that has not reaped a zombie."""
    detail: str = ""
    """Why it was not permitted, or what of it has changed."""
    asked: signal.Signals = signal.SIGTERM
    """The last signal before SIGKILL: the one that it did not answer."""
    each: tuple[tuple[int, Outcome], ...] = ()
    """Where it stands for several processes: PID and outcome of each, in the order in which they were signalled."""
    left: tuple[int, ...] = ()
    """PIDs that belong to them, still run and were not signalled: they were started meanwhile."""

    @property
    def over(self) -> bool:
        """Whether the process runs no more."""
        return self.end in (End.EXITED, End.ZOMBIE, End.GONE)

    @property
    def sentence(self) -> str:
        """The outcome for a person, without a capital and a full stop."""
        if self.each:
            return _of_several(self)
        after = f"after {long_duration(self.seconds)}"
        match self.end:
            case End.EXITED:
                return f"exited {after}"
            case End.ZOMBIE:
                return f"exited {after}, zombie: {unreaped(self.parent)}"
            case End.RUNNING if self.killed:
                return f"still running {after}, and SIGKILL was sent"
            case End.RUNNING:
                return f"still running {after}: it ignores {self.asked.name} or takes its time"
            case End.STOPPED:
                return f"stopped (Ctrl-Z or a debugger) {after}: {self.asked.name} waits until it is continued"
            case End.STUCK if self.killed:
                return f"stuck in the kernel (state D) {after}: only a driver reset or a reboot will clear it"
            case End.STUCK:
                return f"waiting in the kernel (state D) {after}: no signal reaches it there"
            case End.DENIED:
                return f"not permitted: {self.detail}" if self.detail else "not permitted"
            case End.CHANGED:
                return self.detail
            case End.GONE:
                return "had already exited; nothing was sent"


_WORST = (End.DENIED, End.CHANGED, End.STUCK, End.STOPPED, End.RUNNING, End.ZOMBIE, End.EXITED, End.GONE)
"""Which end of several stands for all of them: the first of these that one of them has."""


def of_several(each: Sequence[tuple[int, Outcome]], left: Sequence[int] = ()) -> Outcome:
    """Join the outcomes of several processes, by PID, to one; `left` are PIDs that were not signalled.

    One process alone stays as it is. `seconds` are those of the last.
    """
    if len(each) == 1 and not left:
        return each[0][1]
    outcomes = [outcome for _, outcome in each]
    return Outcome(
        next(end for end in _WORST if any(one.end is end for one in outcomes)),
        max(one.seconds for one in outcomes),
        killed=any(one.killed for one in outcomes),
        asked=outcomes[0].asked,
        each=tuple(each),
        left=tuple(left),
    )


def _of_several(whole: Outcome) -> str:
    count, after = len(whole.each), f"after {long_duration(whole.seconds)}"
    exited = sum(one.over for _, one in whole.each)
    parts = [f"all {count} exited {after}" if exited == count else f"{exited} of {count} exited {after}"]
    if all(one.end is End.GONE for _, one in whole.each):
        parts = [f"all {count} had already exited; nothing was sent"]
    words = {
        End.RUNNING: "still running and SIGKILL was sent" if whole.killed else "still running",
        End.STOPPED: "stopped (Ctrl-Z or a debugger)",
        End.STUCK: "in the kernel (state D), where no signal reaches",
        End.DENIED: "not permitted",
        End.CHANGED: "no longer what was shown, and not signalled",
        End.ZOMBIE: "zombie until reaped by its parent",
    }
    for end, said in words.items():
        pids = [pid for pid, one in whole.each if one.end is end]
        if pids:
            parts.append(f"{len(pids)} {said}: {named(pids)}")
    if whole.left:
        parts.append(f"left of the run, started meanwhile and not signalled: {named(whole.left)}")
    return ", ".join(parts)


@dataclass(frozen=True)
class GpuMemory:
    """One GPU around the end of a process, in bytes: what the process held, and what was used before and after."""

    gpu: int
    held: int | None
    before: int | None
    after: int | None

    @property
    def freed(self) -> int | None:
        """Bytes that came free, at most what the process held; None where a figure is not known.

        Others allocate and free at the same time, so a drop beyond the holding is not this process's.
        """
        if self.before is None or self.after is None:
            return None
        drop = max(0, self.before - self.after)
        return drop if self.held is None else min(drop, self.held)


_ALL_OF_IT = 0.95
"""A holding counts as freed from here on; the driver rounds its figures, and others allocate meanwhile."""

_PIDS_NAMED = 5


def memory_after(
    outcome: Outcome, gpus: Sequence[GpuMemory], holders: Sequence[int] = (), *, promised: bool = True
) -> str:
    """The whole ending in one sentence: what became of the process, then of its memory.

    `holders` are PIDs that still hold the memory. `promised=False` is for machines whose GPU shares memory with
    the CPU (GH200, GB200, integrated): there the figure may stay, and nothing is claimed about it.
    """
    if outcome.end not in (End.EXITED, End.ZOMBIE):
        return outcome.sentence
    if holders:
        return f"{outcome.sentence}; still held by {named(holders)}"
    known = [g for g in gpus if g.freed is not None and (g.held is None or g.held > 0)]
    if not promised or not known or len(known) < len([g for g in gpus if g.held != 0]):
        return outcome.sentence
    freed = sum(g.freed or 0 for g in known)
    held = sum(g.held if g.held is not None else (g.freed or 0) for g in known)
    if freed == 0:
        return f"{outcome.sentence}, memory not yet freed"
    amount = size(freed) if freed >= _ALL_OF_IT * held else f"{size(freed)} of {size(held)}"
    return f"{outcome.sentence}, {amount} freed on {_gpus([g.gpu for g in known])}"


def unreaped(parent: tuple[int, str] | None) -> str:
    """Who has not reaped a zombie."""
    if parent is None:
        return "its parent has not reaped it"
    pid, name = parent
    return f"parent {pid} ({name}) has not reaped it"


def named(pids: Sequence[int]) -> str:
    """Name PIDs, the first of them where they are many: `PIDs 71, 72, 73, 74, 75 and 121 more`."""
    listed = ", ".join(map(str, pids[:_PIDS_NAMED]))
    more = f" and {len(pids) - _PIDS_NAMED} more" if len(pids) > _PIDS_NAMED else ""
    return f"{'PID' if len(pids) == 1 else 'PIDs'} {listed}{more}"


def _gpus(indices: Sequence[int]) -> str:
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {', '.join(map(str, sorted(indices)))}"
