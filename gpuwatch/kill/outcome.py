"""Outcome of ending a process: why it was refused, and what happened to the process and its GPU memory."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from enum import StrEnum
from typing import Final, Self

import msgspec

from gpuwatch.model import Gpu, Snapshot, known
from gpuwatch.units import long_duration, size


class Refusal(StrEnum):
    """Reason for sending no signal: its word in the audit file, and its sentence for the user."""

    sentence: str

    def __new__(cls, value: str, sentence: str) -> Self:
        """Make a reason with its word and its sentence."""
        reason = str.__new__(cls, value)
        reason._value_ = value
        reason.sentence = sentence
        return reason

    READ_ONLY = "read-only", "gpuwatch was started with --read-only"
    ROOT = "root", "gpuwatch runs as root: ending a process needs --allow-root-kill"
    UNRELIABLE = (
        "unreliable list",
        "the driver's list of processes makes no sense at the moment, so no PID on it is trusted",
    )
    STALE = "stale row", "what is on screen is too old to act on"
    NO_IDENTITY = "no identity", "its owner or start time is not known, so a reused PID could not be told apart"
    SYSTEM_PID = "system pid", "PID 1 and below belong to the system"
    ITSELF = "gpuwatch itself", "this is gpuwatch itself"
    HELPER = "part of gpuwatch", "this is a part of gpuwatch"
    ANCESTOR = "ancestor", "gpuwatch runs inside it (a shell, tmux, a login): ending it would end this session"
    KERNEL_THREAD = "kernel thread", "this is a kernel thread, which no signal ends"
    CHANGED = "process changed", "process changed: this PID is no longer the process on screen"
    GONE = "gone", "it has already exited"
    ZOMBIE = "zombie", "it has already exited"
    NOT_YOURS = "not yours", "it is not yours"
    NO_DEVICE = "no gpu device", "it holds no GPU device open, so nothing shows that it is the process on the GPU"
    NOT_ON_GPU = "not on a gpu", "it is on no GPU: the driver does not list it, and it holds no GPU's device file open"
    TOO_MANY = "too many", "that is more processes than gpuwatch can hold on to at once"
    FILES_UNREADABLE = (
        "open files unreadable",
        "its open files cannot be read, so nothing shows that it is the process on the GPU",
    )
    UNREADABLE = "process unreadable", "the kernel does not let gpuwatch read what it is"
    OTHER_NAMESPACE = (
        "other pid namespace",
        "gpuwatch runs in a container with PIDs of its own, and nothing shows that this PID is the process on the GPU",
    )
    IGNORED = "signal ignored", "it ignores this signal"
    RUN_UNKNOWN = "run unknown", "what it belongs to could not be read, so nothing tells which processes are its run"
    UNDER_WAY = (
        "under way",
        "one of its processes is being ended already, and a second signal may break off how it ends",
    )


class Refused(msgspec.Struct, frozen=True):
    """Refusal to signal a process, with its reason."""

    reason: Refusal
    pid: int
    detail: str = ""

    @property
    def sentence(self) -> str:
        """Reason as a sentence for the user, without a capital and a full stop."""
        return f"{self.reason.sentence}: {self.detail}" if self.detail else self.reason.sentence


class End(StrEnum):
    """State of a process some time after the signal."""

    EXITED = "exited"
    ZOMBIE = "zombie"
    """The process has ended, but its parent has not read its exit status, so that its PID remains."""
    RUNNING = "running"
    STOPPED = "stopped"
    """The process is stopped by job control or a debugger: SIGTERM waits until it continues."""
    STUCK = "stuck"
    """The process sleeps inside the kernel (state D), where no signal reaches it."""
    DENIED = "denied"
    CHANGED = "changed"
    """The process was no longer the one on screen, so that no signal was sent."""
    GONE = "gone"
    """The process had ended before the signal, so that no signal was sent."""


class Outcome(msgspec.Struct, frozen=True):
    """Outcome for one process or several; `seconds` count from the first signal."""

    end: End
    seconds: float = 0.0
    killed: bool = False
    parent: tuple[int, str] | None = None
    """PID and name of the parent that has not reaped a zombie."""
    detail: str = ""
    """Why the signal was not permitted, or what has changed."""
    asked: signal.Signals = signal.SIGTERM
    """The last signal before SIGKILL, which the process did not react to."""
    each: tuple[tuple[int, Outcome], ...] = ()
    """PID and outcome of each of several processes, in the order of their signals; empty for one process."""
    left: tuple[int, ...] = ()
    """PIDs of the same run that still run and got no signal: they were started meanwhile."""

    @property
    def over(self) -> bool:
        """Whether the process has ended."""
        return self.end in (End.EXITED, End.ZOMBIE, End.GONE)

    @property
    def sentence(self) -> str:
        """Outcome as a sentence for the user, without a capital and a full stop."""
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
"""Ends from worst to best: of several processes the worst end stands for all."""


def of_several(each: Sequence[tuple[int, Outcome]], left: Sequence[int] = ()) -> Outcome:
    """Merge the outcomes of several processes (PID, outcome) into one; `left` are PIDs that got no signal.

    The outcome of a single process stays unchanged. `seconds` are those of the last process.
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


class GpuMemory(msgspec.Struct, frozen=True):
    """Memory of one GPU in bytes: held by the process, used before its end, used after its end."""

    gpu: int
    held: int | None
    before: int | None
    after: int | None

    @property
    def freed(self) -> int | None:
        """Bytes that became free, at most the bytes that the process held; None where a value is not known.

        Other processes allocate and free at the same time: a larger drop is not caused by this process.
        """
        if self.before is None or self.after is None:
            return None
        drop = max(0, self.before - self.after)
        return drop if self.held is None else min(drop, self.held)


ENOUGH_FREED: Final = 0.95
"""Part of a holding that counts as all of it when freed: the driver rounds, and others allocate meanwhile."""

_PIDS_NAMED = 5


def memory_after(
    outcome: Outcome, gpus: Sequence[GpuMemory], holders: Sequence[int] = (), *, must_fall: bool = True
) -> str:
    """Return the outcome in one sentence: of the process, then of its memory.

    `holders` are PIDs that still hold the memory. `must_fall=False` is for machines whose GPU shares memory with
    the CPU (GH200, GB200, integrated): there the value may stay, and the sentence says nothing about it.
    """
    if outcome.end not in (End.EXITED, End.ZOMBIE):
        return outcome.sentence
    if holders:
        return f"{outcome.sentence}; still held by {named(holders)}"
    known = [g for g in gpus if g.freed is not None and (g.held is None or g.held > 0)]
    if not must_fall or not known or len(known) < len([g for g in gpus if g.held != 0]):
        return outcome.sentence
    freed = sum(g.freed or 0 for g in known)
    held = sum(g.held if g.held is not None else (g.freed or 0) for g in known)
    if freed == 0:
        return f"{outcome.sentence}, memory not yet freed"
    amount = size(freed) if freed >= ENOUGH_FREED * held else f"{size(freed)} of {size(held)}"
    return f"{outcome.sentence}, {amount} freed on {_gpus([g.gpu for g in known])}"


def unreaped(parent: tuple[int, str] | None) -> str:
    """Return the text about a zombie: which parent has not reaped it."""
    if parent is None:
        return "its parent has not reaped it"
    pid, name = parent
    return f"parent {pid} ({name}) has not reaped it"


def named(pids: Sequence[int]) -> str:
    """Return PIDs as text, only the first of many: `PIDs 71, 72, 73, 74, 75 and 121 more`."""
    listed = ", ".join(map(str, pids[:_PIDS_NAMED]))
    more = f" and {len(pids) - _PIDS_NAMED} more" if len(pids) > _PIDS_NAMED else ""
    return f"{'PID' if len(pids) == 1 else 'PIDs'} {listed}{more}"


def _gpus(indices: Sequence[int]) -> str:
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {', '.join(map(str, sorted(indices)))}"


FRESH: Final = 2
"""Samples of each GPU after the exit before its memory is judged: the first may have begun before the exit."""

MEMORY_PATIENCE: Final = 5.0
"""Seconds in which memory may still become free."""

_SHARED_MEMORY: Final = ("GH200", "GB200", "GB300", "GB10", "Thor", "Orin", "Jetson")
"""Machines whose GPU and CPU share memory: the driver's value may not change."""


class MemoryComparison:
    """Comparison of GPU memory before and after the end of some processes."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[Gpu, int | None]] = {}
        self._fresh: dict[str, tuple[float, int]] = {}
        self._latest: Snapshot | None = None
        self._exited = 0.0

    def remember(self, snapshot: Snapshot, pids: Collection[int], gpus: Collection[str]) -> None:
        """Store what these processes hold, and what is used on their GPUs (by key), before a signal."""
        self._latest = snapshot
        for gpu in snapshot.gpus:
            mine = [one.memory for one in gpu.holdings if one.pid in pids]
            if mine or gpu.key in gpus:
                held = sum(int(memory) for memory in mine if known(memory))
                self._before[gpu.key] = (gpu, held if mine and all(map(known, mine)) else None)

    def begin(self, snapshot: Snapshot, now: float) -> None:
        """Start the comparison: the processes ended at `now`; `snapshot` is the last one before that."""
        self._latest, self._exited = snapshot, now
        self._fresh = {gpu.key: (gpu.sampled, 0) for gpu in snapshot.gpus if gpu.key in self._before}

    def observe(self, snapshot: Snapshot) -> None:
        """Add a snapshot that was taken after the end."""
        self._latest = snapshot
        for gpu in snapshot.gpus:
            sampled, count = self._fresh.get(gpu.key, (gpu.sampled, 0))
            if gpu.sampled > sampled and gpu.key in self._before:
                self._fresh[gpu.key] = (gpu.sampled, count + 1)

    def fresh(self) -> bool:
        """Return whether there are enough samples since the end."""
        return bool(self._fresh) and all(count >= FRESH for _, count in self._fresh.values())

    def late(self, now: float) -> bool:
        """Return whether the time for freeing and sampling the memory has passed."""
        return now >= self._exited + MEMORY_PATIENCE

    @property
    def must_fall(self) -> bool:
        """Whether freed memory must show in the driver's values: not where CPU and GPU share memory."""
        gpus = [gpu for gpu, _ in self._before.values()]
        return not any(gpu.memory.unified or any(name in gpu.name for name in _SHARED_MEMORY) for gpu in gpus)

    @property
    def all_free(self) -> bool:
        """Whether all memory that the processes held is free now."""
        return self.fresh() and all(
            gpu.freed is not None and gpu.freed >= ENOUGH_FREED * (gpu.held or 0) for gpu in self.gpus()
        )

    def gpus(self) -> list[GpuMemory]:
        """Return the memory of each GPU before and after; empty without enough samples."""
        if not self.fresh() or self._latest is None:
            return []
        now = {gpu.key: gpu for gpu in self._latest.gpus}
        return [
            GpuMemory(gpu.index, held, _used(gpu), _used(now[key]) if key in now else None)
            for key, (gpu, held) in self._before.items()
        ]

    def listed(self) -> frozenset[int]:
        """Return the PIDs that the driver now lists on these GPUs."""
        gpus = self._latest.gpus if self._latest else ()
        return frozenset(one.pid for gpu in gpus if gpu.key in self._before for one in gpu.holdings)


def _used(gpu: Gpu) -> int | None:
    return int(gpu.memory.used) if known(gpu.memory.used) else None
