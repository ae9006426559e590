"""What the sampler and the child that reads for it say to each other: a JSON object a line, one answer a question.

Before its first answer the child says by an empty line that it is ready.
"""

from __future__ import annotations

import msgspec

from gpuwatch.declared.facts import GpuFacts, Share
from gpuwatch.model import Declared, Surroundings


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What did this process declare?"""

    pid: int
    start: int
    """Start time in clock ticks since boot, as in `model.Process`."""
    user: str = ""
    """Its owner's name."""
    cards: tuple[GpuFacts, ...] | None = None
    """The machine's GPUs; None for those that were told before."""
    driver: str | None = None
    """The version of their driver; None as above."""
    shares: tuple[Share, ...] | None = None
    """What people agreed on; None as above."""
    proc: str | None = None
    """The root of /proc; None as above."""
    tmux: float | None = None
    """Seconds that our own tmux may take to name its panes; 0 for not to be asked; None as above."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What it declared."""

    pid: int
    start: int
    declared: Declared
    surroundings: Surroundings | None = None
    """What it runs in and belongs to; None where that could not be read at all."""
    took: float = 0.0
    """Seconds that it took to read."""
