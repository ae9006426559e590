"""Why a process is not signalled, each reason with its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Refusal(StrEnum):
    """A reason for which nothing is signalled; the value is what the audit file says."""

    READ_ONLY = "read-only"
    ROOT = "root"
    UNRELIABLE = "unreliable list"
    STALE = "stale row"
    NO_IDENTITY = "no identity"
    SYSTEM_PID = "system pid"
    ITSELF = "gpuwatch itself"
    HELPER = "part of gpuwatch"
    ANCESTOR = "ancestor"
    KERNEL_THREAD = "kernel thread"
    CHANGED = "process changed"
    GONE = "gone"
    ZOMBIE = "zombie"
    NOT_YOURS = "not yours"
    NO_DEVICE = "no gpu device"
    NOT_ON_GPU = "not on a gpu"
    TOO_MANY = "too many"
    FILES_UNREADABLE = "open files unreadable"
    UNREADABLE = "process unreadable"
    OTHER_NAMESPACE = "other pid namespace"
    IGNORED = "signal ignored"
    RUN_UNKNOWN = "run unknown"
    UNDER_WAY = "under way"


_SENTENCES = {
    Refusal.READ_ONLY: "gpuwatch was started with --read-only",
    Refusal.ROOT: "gpuwatch runs as root: ending a process needs --allow-root-kill",
    Refusal.UNRELIABLE: "the driver's list of processes makes no sense at the moment, so no PID on it is trusted",
    Refusal.STALE: "what is on screen is too old to act on",
    Refusal.NO_IDENTITY: "its owner or start time is not known, so a reused PID could not be told apart",
    Refusal.SYSTEM_PID: "PID 1 and below belong to the system",
    Refusal.ITSELF: "this is gpuwatch itself",
    Refusal.HELPER: "this is a part of gpuwatch",
    Refusal.ANCESTOR: "gpuwatch runs inside it (a shell, tmux, a login): ending it would end this session",
    Refusal.KERNEL_THREAD: "this is a kernel thread, which no signal ends",
    Refusal.CHANGED: "process changed: this PID is no longer the process on screen",
    Refusal.GONE: "it has already exited",
    Refusal.ZOMBIE: "it has already exited",
    Refusal.NOT_YOURS: "it is not yours",
    Refusal.NO_DEVICE: "it holds no GPU device open, so nothing shows that it is the process on the GPU",
    Refusal.NOT_ON_GPU: "it is on no GPU: the driver does not list it, and it holds no GPU's device file open",
    Refusal.TOO_MANY: "that is more processes than gpuwatch can hold on to at once",
    Refusal.FILES_UNREADABLE: "its open files cannot be read, so nothing shows that it is the process on the GPU",
    Refusal.UNREADABLE: "the kernel does not let us read what it is",
    Refusal.IGNORED: "it ignores this signal",
    Refusal.RUN_UNKNOWN: "what it belongs to could not be read, so nothing tells which processes are its run",
    Refusal.UNDER_WAY: "one of its processes is being ended already, and a second signal may break off how it ends",
    Refusal.OTHER_NAMESPACE: (
        "gpuwatch runs in a container with PIDs of its own, and nothing shows that this PID is the process on the GPU"
    ),
}


@dataclass(frozen=True)
class Refused:
    """A process that is not signalled, and why."""

    reason: Refusal
    pid: int
    detail: str = ""

    @property
    def sentence(self) -> str:
        """The reason for a person, without a capital and a full stop."""
        return f"{_SENTENCES[self.reason]}: {self.detail}" if self.detail else _SENTENCES[self.reason]
