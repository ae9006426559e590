"""The steps of ending a process, what may be chosen at each, and what there is to show of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuwatch.units import size


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
    """A button, by what it says for one process."""

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
        """What it sends; None for nothing."""
        return _SIGNALS.get(self)

    def label(self, count: int = 1) -> str:
        """What it says for so many processes: `Terminate 9 (SIGTERM)`."""
        return self.value if count == 1 or self not in _SIGNALS else self.value.replace(" (", f" {count} (")


_SIGNALS = {
    Choice.INTERRUPT: signal.SIGINT,
    Choice.TERMINATE: signal.SIGTERM,
    Choice.KILL: signal.SIGKILL,
}

CHOICES: dict[Phase, tuple[Choice, ...]] = {
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
"""What may be chosen in each phase; the first is the default, and it never sends a signal.

Of STILL_THERE only the next harder signal is offered, and SIGINT to nobody who ignores it: see `Request.choices`.
"""

DISMISS: Final = frozenset({Choice.CANCEL, Choice.HIDE, Choice.LEAVE, Choice.CLOSE})
"""Those that close the dialog."""

DEMO_NOTICE: Final = "demo: nothing is signalled, these processes are made up"
"""Shown at each step where the processes are those of the demo."""

IGNORES_INTERRUPT: Final = "it ignores SIGINT, as what a script starts in the background does"


@dataclass(frozen=True, slots=True)
class Listed:
    """One process of those that are to be ended."""

    pid: int
    command: str
    held: int
    """Bytes on all GPUs; 0 also where it is not known to hold any."""

    @property
    def line(self) -> str:
        """It on one line: PID, what it holds, command."""
        return f"{self.pid:>8} {size(self.held) if self.held else '':>9}  {self.command}"


@dataclass(frozen=True, slots=True)
class View:
    """What a dialog shows of a request."""

    phase: Phase
    said: str
    """The sentence of the moment; empty while it asks."""
    warnings: tuple[str, ...]
    choices: tuple[Choice, ...]
    labels: tuple[str, ...] = ()
    """What each choice says now."""
    notes: tuple[str, ...] = ()
    """What else is to be known before one chooses."""
    scope: str = ""
    """What is to be ended, and how to choose the other; empty where there is no choice."""
    members: tuple[Listed, ...] = ()
    """All that would be signalled, where that is a whole run."""
