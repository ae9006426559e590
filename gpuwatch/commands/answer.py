"""What a command gives back, and what all of them need of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from gpuwatch.declared.facts import Card, card
from gpuwatch.model import Snapshot


class Answer(NamedTuple):
    """What is to be printed, and what the program is to end with."""

    lines: Sequence[str] = ()
    """For stdout."""
    words: Sequence[str] = ()
    """For stderr, one line each."""
    code: int = 0
    then: Callable[[], int] | None = None
    """What is to be done when all is printed, in place of ending with the code."""


Ask: TypeAlias = Callable[[Snapshot], Answer]
"""A command whose arguments were understood, and that waits for its snapshot."""


def cards(snapshot: Snapshot) -> tuple[Card, ...]:
    """Give the GPUs of a snapshot as the resolver takes them; each counts, also one without a handle."""
    return tuple(card(gpu) for gpu in snapshot.gpus)
