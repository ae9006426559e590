"""What a stray is, why a process is called one, and the limits that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from gpuwatch.model import Process
from gpuwatch.units import GIB, MIB


class Cause(StrEnum):
    """Why a process is called a stray; the value is the word on screen."""

    ORPHANED = "orphaned"
    """Its parent, its login or its terminal is gone, it is no service, and it does nothing."""
    STOPPED = "stopped"
    """By Ctrl-Z: it holds its memory and cannot run."""
    ZOMBIE = "zombie"
    """It has ended, still holds memory, and its parent has not taken note."""
    IDLE = "idle"
    """It has run nothing on any GPU for longer than the limit."""
    WORKER = "worker"
    """A worker whose run has ended."""
    KERNEL = "kernel"
    """A notebook kernel whose server is gone."""


class Sureness(StrEnum):
    """How sure it is that nobody wants it."""

    CERTAIN = "certain"
    """What the kernel says leaves no other reading."""
    LIKELY = "likely"
    POSSIBLE = "possible"
    """It would be a stray if it was known to be idle, which is not known yet, or not for long enough."""


class Tending(msgspec.Struct, frozen=True, kw_only=True):
    """When a process counts as one that nobody tends. Times in seconds, sizes in bytes."""

    idle_after: float = 1800.0
    """Without SM use on any GPU, for being idle alone; the same as of the alert about memory that is held idle."""
    idle_memory: int = GIB
    """That it must hold to be called a stray for being idle alone."""
    least: int = 64 * MIB
    """That it must hold for any cause: less than a CUDA context takes on the smallest of GPUs."""
    quiet_after: float = 300.0
    """Without SM use, for one that was left behind: between two epochs a training may write its state for minutes."""
    sure_after: float = 86400.0
    """Without SM use, for one whose login is gone to be a stray for certain."""
    settled_after: float = 60.0
    """Since its start, and since it was last seen to compute: whatever is going on with it may be over by then."""
    at_work: float = 50.0
    """Percent of one core. A process that uses more prepares data, compiles or writes what it has learned."""


USUAL: Final = Tending()


@dataclass(frozen=True, slots=True)
class Stray:
    """One process that is called a stray, with the reasons."""

    process: Process
    gpus: tuple[str, ...]
    """Keys of the GPUs that it holds memory on, the most first; of one that NVML does not list, those it has open."""
    indices: tuple[int, ...]
    """NVML's indices of these."""
    held: int | None
    """Bytes on all of them; None where that is not known (NVML does not list it, or gives no figure)."""
    cause: Cause
    """The strongest of the reasons."""
    sure: Sureness
    why: tuple[str, ...]
    """Each reason in words, the strongest first: `its login has ended`, `no SM use for 3 h 2 min`."""
    idle: float | None = None
    """Seconds without SM use on any GPU, as far as it is known."""
    idle_at_least: bool = False
    listed: bool = True
    """Whether NVML lists it; else it only has device files open."""
    ends: bool = True
    """Whether a signal can end it: a zombie has ended already."""

    @property
    def key(self) -> tuple[int, int]:
        """Identity of the process: pid and start time."""
        return self.process.key
