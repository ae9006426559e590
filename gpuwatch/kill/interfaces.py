"""Interfaces between the dialogs that end a process and what does it: this machine, or a demo that signals nothing."""

from __future__ import annotations

import signal
from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from gpuwatch.kill.outcome import Outcome
    from gpuwatch.kill.pinned import Refused, Target
    from gpuwatch.kill.run import Run
    from gpuwatch.kill.target import Policy
    from gpuwatch.model import Snapshot


class HeldProcess(Protocol):
    """Process that is certainly the one on screen; `actions.pinned.Pinned` on this machine. Close it."""

    target: Target
    weaker: str
    """Why the check is weaker than usual; empty where it is not."""
    run: str
    """Key of the run that it is ended with; empty where it is ended alone."""

    def send(self, sig: signal.Signals, *, recorded: bool = False) -> Outcome | None:
        """Signal the process; None when it was sent, else why not."""

    def exited(self) -> bool:
        """Return whether the process has ended; does not block."""
        ...

    def look(self, *, seconds: float = 0.0, killed: bool = False) -> Outcome:
        """Return what has become of the process `seconds` after the first signal."""
        ...

    def find_family(self) -> None:
        """Note what the process has started so far."""

    def family(self) -> tuple[int, ...]:
        """Return PIDs of what it was seen to have started, and that still run."""
        ...

    def left_behind(self, listed: Collection[int] = ()) -> tuple[int, ...]:
        """Return those PIDs of its family that still hold a GPU; `listed` are those that the driver lists."""
        ...

    def on_gpu(self) -> bool:
        """Return whether it still runs and has a GPU device open."""
        ...

    def ignores(self, sig: signal.Signals) -> bool:
        """Return whether the process ignores a signal."""
        ...

    def record(self, event: str, **fields: object) -> str | None:
        """Write a line about this process to the record; returns why that failed."""

    def close(self) -> None:
        """Release it; the process is left as it is."""


class ProcessEnder(Protocol):
    """What the dialogs end processes through; `actions.kill.Killer` on this machine, `actions.demo.DemoEnder` else."""

    policy: Policy
    notice: str
    """Shown at each step; empty on this machine, `demo: nothing is signalled` in a demo."""

    def problem(self) -> str | None:
        """Return why actions could not be recorded now; None where they could."""

    def pin(self, target: Target) -> HeldProcess | Refused:
        """Hold a process, once it is proven to be the one on screen."""
        ...

    def pin_run(self, held: HeldProcess, snapshot: Snapshot, *, asked: bool = True) -> Run | Refused:
        """Hold all of the run of a held process; a refusal is recorded where the run was asked for."""
        ...

    def refuse(self, target: Target, refused: Refused, **more: object) -> None:
        """Record a refusal."""
