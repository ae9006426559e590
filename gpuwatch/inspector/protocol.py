"""Messages between the sampler and the inspector: a JSON object a line, one answer a question.

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
    """Its owner's name."""
    cards: tuple[GpuFacts, ...] | None = None
    """The machine's GPUs; None for no change."""
    driver: str | None = None
    """The version of their driver; None as above."""
    shares: tuple[Share, ...] | None = None
    """The shares that people agreed on; None as above."""
    proc: str | None = None
    """The root of /proc; None as above."""
    tmux: float | None = None
    """Seconds that our own tmux may take to name its panes; 0 for not asking it; None as above."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer about one process."""

    pid: int
    start: int
    declared: Declared
    surroundings: Surroundings | None = None
    """Its terminal, container, job and the like; None where nothing could be read."""
    took: float = 0.0
    """Seconds that it took to read."""
