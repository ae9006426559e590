"""Use for a store, and frames that come to some."""

from __future__ import annotations

import time
from collections.abc import Collection
from pathlib import Path
from sqlite3 import Connection
from typing import Any

from gpuwatch.alerts.alert import Alert
from gpuwatch.history.history import History, Use
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.recorder.store import Store, write_events
from gpuwatch.recorder.use import RunId, Sums, UsedGpu, UsedRun, write_use
from tests.support.builders import EPOCH, GIB, TOTAL, at

HOUR = int(EPOCH // 3600) * 3600
ONE = Use(1.0, 0.5, 0.25, 10.0, 5.0, 0.0, 1.0)


def batch(
    hour: int = HOUR,
    gpu: int = 0,
    user: str = "ada",
    run: str = "1:1",
    use: Use = ONE,
    *,
    uid: int = 1000,
    name: str = "train.py",
    launcher: str = "",
    watched: float | None = None,
) -> Sums:
    """Return the use by one run of one GPU in one hour; what is more than a minute is spread over its minutes."""
    uuid, id = f"GPU-{gpu}", RunId(uid, run)
    count = 60 if use.held > 60 else 1
    part = Use(*(value / count for value in use))
    free = 0.0 if watched is None else watched / count - part.held
    whole = Use(part.held, part.busy, part.unknown, gpu=free)
    rows = {(hour + 60 * each, uuid): each for each in range(count)}
    return Sums(
        host="box3",
        use={(*at, id): part for at in rows} | {(*at, None): whole for at in rows},
        gpus={uuid: UsedGpu(gpu, "NVIDIA H100", TOTAL)},
        users={uid: user},
        runs={id: UsedRun(name, launcher, float(hour), hour + 60.0)},
    )


def hours(count: float, busy: float = 0.5, gib: float = 10.0, idle: float = 0.25, unknown: float = 0.0) -> Use:
    """Return so many hours of a GPU of one's own, with the parts that were busy, unknown, and held idle."""
    seconds = count * 3600
    return Use(
        *(seconds, busy * seconds, unknown * seconds, gib * GIB * seconds, idle * gib * GIB * seconds), gpu=seconds
    )


def save(path: Path, *sums: Sums, events: Collection[Alert] = (), **options: Any) -> None:
    """Write use and events to a store."""

    def write(connection: Connection) -> None:
        write_events(connection, events, (), EPOCH)
        for one in sums:
            write_use(connection, one)

    Store(path, **options).write(write)


class Frames:
    """Makes the frames of a watch, a second apart."""

    def __init__(self) -> None:
        self._history = History()
        self._number = 0

    def __call__(
        self,
        base: Snapshot,
        *,
        step: float = 1.0,
        alerts: tuple[Alert, ...] = (),
        raised: tuple[Alert, ...] = (),
        cleared: tuple[Alert, ...] = (),
    ) -> Frame:
        """Return the next frame: `base`, sampled afresh."""
        self._number += 1
        seconds = self._number * step
        shown = at(base, seconds)
        view = self._history.add(shown, 5000.0 + seconds)
        return Frame(shown, time.monotonic(), view, alerts, raised, cleared, number=self._number)
