"""Outcome of ending processes: refusals of a signal, and the states of processes after it, in sentences."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from enum import Enum, StrEnum

import msgspec

from gpuwatch.base.units import long_duration


class Refusal(Enum):
    """Reason for sending no signal, as a sentence for the user."""

    READ_ONLY = "gpuwatch was started with --read-only"
    ROOT = "gpuwatch runs as root: ending a process needs --allow-root-kill"
    UNRELIABLE = "the driver's process list is unreliable now, so gpuwatch trusts no PID in it"
    STALE = "the data on screen is too old to act on"
    NO_IDENTITY = "its owner or start time is not known, so gpuwatch could not detect a reused PID"
    NO_PIDFD = "the kernel provides no pidfd for it (Linux 5.3 does), so gpuwatch could not detect a reused PID"
    SYSTEM_PID = "PID 1 and below belong to the system"
    ITSELF = "this is gpuwatch itself"
    HELPER = "this is a part of gpuwatch"
    ANCESTOR = "gpuwatch runs inside it (a shell, tmux, a login): ending it would end this session"
    CHANGED = "process changed: this PID is no longer the process on screen"
    GONE = "it has already exited"
    ABSENT = "there is no such process"
    NOT_YOURS = "it is not yours"
    NO_DEVICE = "it has no GPU device file open, so it may not be the process on the GPU"
    NOT_ON_GPU = "it is on no GPU: the driver does not list it, and it has no GPU device file open"
    TOO_MANY = "gpuwatch cannot end so many processes at once"
    FILES_UNREADABLE = "its open files cannot be read, so it may not be the process on the GPU"
    UNREADABLE = "no permission to read which process it is"
    OTHER_NAMESPACE = "gpuwatch runs in a container with its own PIDs, and this PID may not be the process on the GPU"
    IGNORED = "it ignores this signal"
    RUN_UNKNOWN = "its run could not be read, so gpuwatch does not know which processes belong to it"
    UNDER_WAY = "one of its processes is being ended already, and a second signal may interrupt its clean-up"

    @property
    def word(self) -> str:
        """The reason in the audit file: `read only`."""
        return self.name.lower().replace("_", " ")


class Refused(msgspec.Struct, frozen=True):
    """Refusal to signal a process, with its reason."""

    reason: Refusal
    pid: int
    detail: str = ""

    @property
    def sentence(self) -> str:
        """Reason as a sentence for the user, without a capital and a full stop."""
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


class End(StrEnum):
    """State of a process some time after the signal, from worst to best."""

    DENIED = "denied"
    CHANGED = "changed"
    """The process was no longer the one on screen, so that no signal was sent."""
    STUCK = "stuck"
    """The process sleeps inside the kernel (state D), where no signal reaches it."""
    STOPPED = "stopped"
    """The process is stopped by job control or a debugger: SIGTERM waits until it continues."""
    RUNNING = "running"
    ZOMBIE = "zombie"
    """The process has ended, but its parent has not read its exit status, so that its PID remains."""
    EXITED = "exited"
    GONE = "gone"
    """The process had ended before the signal, so that no signal was sent."""


class Outcome(msgspec.Struct, frozen=True):
    """Outcome for one process or several; `seconds` count from the first signal."""

    end: End
    seconds: float = 0.0
    sent: signal.Signals = signal.SIGTERM
    """The last signal."""
    parent: tuple[int, str] | None = None
    """PID and name of the parent that has not reaped a zombie."""
    detail: str = ""
    """Why the signal was not permitted, or what has changed."""
    each: tuple[tuple[int, Outcome], ...] = ()
    """PID and outcome of each of several processes, in the order of their signals; empty for one process."""
    started: tuple[int, ...] = ()
    """PIDs of the same run that were started meanwhile, still run, and got no signal."""

    @property
    def over(self) -> bool:
        """Whether the process has ended."""
        return self.end in (End.EXITED, End.ZOMBIE, End.GONE)

    @property
    def sentence(self) -> str:
        """Outcome as a sentence for the user, without a capital and a full stop."""
        if self.each:
            return _sentence_of_several(self)
        after, killed = f"after {long_duration(self.seconds)}", self.sent is signal.SIGKILL
        match self.end:
            case End.EXITED:
                return f"exited {after}"
            case End.ZOMBIE:
                return f"exited {after}, zombie: {format_parent(self.parent)}"
            case End.RUNNING if killed:
                return f"still running {after}, although SIGKILL was sent"
            case End.RUNNING:
                return f"still running {after}: it ignores {self.sent.name} or needs more time"
            case End.STOPPED:
                return f"stopped (Ctrl-Z or a debugger) {after}: {self.sent.name} takes effect when it continues"
            case End.STUCK if killed:
                return f"stuck in the kernel (state D) {after}: only a driver reset or a reboot will clear it"
            case End.STUCK:
                return f"waiting in the kernel (state D) {after}: no signal reaches it there"
            case End.DENIED:
                return f"not permitted: {self.detail}" if self.detail else "not permitted"
            case End.CHANGED:
                return self.detail
            case End.GONE:
                return "had already exited; nothing was sent"


def merge_outcomes(each: Sequence[tuple[int, Outcome]], started: Sequence[int] = ()) -> Outcome:
    """Merge the outcomes of several processes (PID, outcome): the worst end counts for all.

    The outcome of a single process stays unchanged. `seconds` are those of the last process.
    """
    outcomes = [outcome for _, outcome in each]
    if len(outcomes) == 1 and not started:
        return outcomes[0]
    return Outcome(
        next(end for end in End if any(one.end is end for one in outcomes)),
        max(one.seconds for one in outcomes),
        outcomes[0].sent,
        each=tuple(each),
        started=tuple(started),
    )


def _sentence_of_several(whole: Outcome) -> str:
    count, after = len(whole.each), f"after {long_duration(whole.seconds)}"
    exited = sum(one.over for _, one in whole.each)
    parts = [f"all {count} exited {after}" if exited == count else f"{exited} of {count} exited {after}"]
    if all(one.end is End.GONE for _, one in whole.each):
        parts = [f"all {count} had already exited; nothing was sent"]
    killed = any(one.sent is signal.SIGKILL for _, one in whole.each)
    words = {
        End.RUNNING: "still running although SIGKILL was sent" if killed else "still running",
        End.STOPPED: "stopped (Ctrl-Z or a debugger)",
        End.STUCK: "in the kernel (state D), where no signal reaches",
        End.DENIED: "not permitted",
        End.CHANGED: "no longer the process on screen, not signalled",
        End.ZOMBIE: "zombie until reaped by its parent",
    }
    for end, text in words.items():
        pids = [pid for pid, one in whole.each if one.end is end]
        if pids:
            parts.append(f"{len(pids)} {text}: {format_pids(pids)}")
    if whole.started:
        parts.append(f"started by the run in the meantime, not signalled: {format_pids(whole.started)}")
    return ", ".join(parts)


def format_parent(parent: tuple[int, str] | None) -> str:
    """Format which parent has not reaped a zombie."""
    if parent is None:
        return "its parent has not reaped it"
    pid, name = parent
    return f"parent {pid} ({name}) has not reaped it"


def format_pids(pids: Sequence[int]) -> str:
    """Format PIDs, only the first of many: `PIDs 71, 72, 73, 74, 75 and 121 more`."""
    more = f" and {len(pids) - 5} more" if len(pids) > 5 else ""
    return f"{'PID' if len(pids) == 1 else 'PIDs'} {', '.join(map(str, pids[:5]))}{more}"
