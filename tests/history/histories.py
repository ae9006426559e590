"""A history that is fed by hand: one GPU, sampled at 1000 by its own clock when the reader's is at 5000."""

from __future__ import annotations

from typing import Any

from gpuwatch.history.history import History, HistoryView
from gpuwatch.model.snapshot import Health, Holding, Reason, Snapshot
from tests.support.builders import at, gpu, snapshot

KEY = gpu(0).key


def machine(*held: Holding, **changes: Any) -> Snapshot:
    return snapshot([gpu(0, holdings=held, **changes)])


def watched(history: History, base: Snapshot, seconds: float, late: float = 0.0) -> HistoryView:
    """Add `base` as sampled at 1000 + seconds and received `late` seconds after."""
    sampled = at(base, seconds)
    moved = at(base, seconds + late)
    again = Snapshot(**{name: getattr(moved, name) for name in moved.__struct_fields__} | {"gpus": sampled.gpus})
    return history.add(again, 5000.0 + seconds + late)


def lost(history: History, since: int, until: int) -> None:
    """Let the GPU, last sampled at `since`, be lost until then."""
    silent = snapshot([gpu(0, health=Health.LOST, utilization=Reason.NO_SAMPLE)])
    for late in range(10, until - since, 10):
        watched(history, silent, since, late=late)
