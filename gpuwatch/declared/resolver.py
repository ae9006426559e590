"""From the facts of one process to what it declared: who says what, what of it holds, and on which GPU."""

from __future__ import annotations

from collections.abc import Sequence

from gpuwatch.declared.facts import Card, Facts
from gpuwatch.model import Declared


def resolve(facts: Facts, cards: Sequence[Card]) -> Declared:
    """Weigh all that one process said, on the GPUs of its machine. Never raises."""
    raise NotImplementedError((facts, cards))
