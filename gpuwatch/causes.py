"""Why a GPU's memory may be held by no process that is listed: the likely causes in order, and what settles each."""

from __future__ import annotations

from typing import Final

from gpuwatch import units
from gpuwatch.alerts.gap import Cause, Suspicion, missing, suspicions
from gpuwatch.model import Gpu, Health, Snapshot, known

__all__ = ["Cause", "Suspicion", "causes", "matters"]

SMALL: Final = 64 * units.MIB
"""Bytes below which a gap says nothing: the list and the figure are read a moment apart, and pages are rounded."""

_SMALL_SHARE: Final = 0.01
_SMALL_OF_LARGE: Final = 256 * units.MIB
"""Of a large GPU, a hundredth of its memory, and no more than this: what a driver needs grows with it."""


def matters(gap: int, total: float | None) -> bool:
    """Say whether so many bytes that nobody is listed for are worth a word, on a GPU of so many."""
    return gap >= SMALL and not (total is not None and gap < _SMALL_SHARE * total and gap < _SMALL_OF_LARGE)


def causes(gpu: Gpu, snapshot: Snapshot) -> list[Suspicion]:
    """Give the likely causes of what is in use on a GPU and held by no listed process, the likeliest first.

    Empty where the gap is small or not known, and for a GPU in trouble. Words and `settle` have 110 cells at most.
    """
    if gpu.health is not Health.OK:
        return []
    if gpu.memory.unified:
        words = "this GPU shares the machine's memory: what programs use without it is theirs, and no gap can be told"
        return [Suspicion(Cause.UNIFIED, words, "nothing needs to be done", harmless=True)]
    gap = missing(gpu)
    if gap is None or not matters(gap, float(gpu.memory.total) if known(gpu.memory.total) else None):
        return []
    return suspicions(gpu, snapshot)
