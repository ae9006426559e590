"""What became of a process that was asked to end, and of the GPU memory that it held, in plain words."""

from __future__ import annotations

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
    """Why it was not permitted."""

    @property
    def over(self) -> bool:
        """Whether the process runs no more."""
        return self.end in (End.EXITED, End.ZOMBIE, End.GONE)

    @property
    def sentence(self) -> str:
        """The outcome for a person, without a capital and a full stop."""
        after = f"after {long_duration(self.seconds)}"
        match self.end:
            case End.EXITED:
                return f"exited {after}"
            case End.ZOMBIE:
                return f"exited {after}, zombie: {unreaped(self.parent)}"
            case End.RUNNING if self.killed:
                return f"still running {after}, and SIGKILL was sent"
            case End.RUNNING:
                return f"still running {after}: it ignores SIGTERM or takes its time"
            case End.STOPPED:
                return f"stopped (Ctrl-Z or a debugger) {after}: SIGTERM waits until it is continued"
            case End.STUCK if self.killed:
                return f"stuck in the kernel (state D) {after}: only a driver reset or a reboot will clear it"
            case End.STUCK:
                return f"waiting in the kernel (state D) {after}: no signal reaches it there"
            case End.DENIED:
                return f"not permitted: {self.detail}" if self.detail else "not permitted"
            case End.GONE:
                return "had already exited; nothing was sent"


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
        return f"{outcome.sentence}; still held by {_pids(holders)}"
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


def _pids(pids: Sequence[int]) -> str:
    named = ", ".join(map(str, pids[:_PIDS_NAMED]))
    more = f" and {len(pids) - _PIDS_NAMED} more" if len(pids) > _PIDS_NAMED else ""
    return f"{'PID' if len(pids) == 1 else 'PIDs'} {named}{more}"


def _gpus(indices: Sequence[int]) -> str:
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {', '.join(map(str, sorted(indices)))}"
