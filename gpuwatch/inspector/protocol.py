"""Messages between sampler and inspector: a JSON object per line, and one answer for each question.

The inspector writes an empty line when it is ready.
"""

from __future__ import annotations

import msgspec

from gpuwatch.declared.facts import GpuFacts, Share
from gpuwatch.model import Declared, Surroundings


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Question about one process."""

    pid: int
    start: int
    """Start time in clock ticks since boot, as in `model.Process`."""
    user: str = ""
    """Name of the process's owner."""
    cards: tuple[GpuFacts, ...] | None = None
    """The machine's GPUs; None for no change since the last question."""
    driver: str | None = None
    """Version of the driver; None for no change."""
    shares: tuple[Share, ...] | None = None
    """Agreed shares; None for no change."""
    proc: str | None = None
    """Root of /proc; None for no change."""
    tmux: float | None = None
    """Seconds that the user's tmux may take to name its panes; 0 for not asking tmux; None for no change."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer about one process."""

    pid: int
    start: int
    declared: Declared
    surroundings: Surroundings | None = None
    """Terminal, container, job and other context of the process; None where nothing could be read."""
    took: float = 0.0
    """Seconds that reading the process took."""
