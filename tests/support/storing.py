"""Batches of usage for a store, and frames that come to some. As a program: one that writes again and again."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from gpuwatch.alerts.alert import Alert
from gpuwatch.history import History, Use
from gpuwatch.model import Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.recorder.store import Store, write_events
from gpuwatch.recorder.usage import Batch, GpuFacts, JobFacts, JobId, Owned, write_usage
from tests.support.builders import EPOCH, GIB, TOTAL, at

HOUR = int(EPOCH // 3600) * 3600
BOOT = "b007"
ONE = Use(1.0, 0.5, 0.25, 10.0, 5.0, 0.0)


def batch(
    hour: int = HOUR,
    gpu: int = 0,
    user: str = "ada",
    job: str = "1:1",
    use: Use = ONE,
    *,
    uid: int = 1000,
    name: str = "train.py",
    launcher: str = "",
    watched: float | None = None,
    events: Iterable[Alert] = (),
) -> Batch:
    """Return a batch of one run on one GPU in one hour."""
    uuid, run = f"GPU-{gpu}", JobId(uid, job)
    return Batch(
        host="box3",
        watched={(hour, uuid): use.held if watched is None else watched},
        by_gpu={(hour, uuid): use},
        by_user={(hour, uuid, uid): use},
        by_job={(hour, uuid, run): use},
        gpus={uuid: GpuFacts(gpu, "NVIDIA H100", TOTAL)},
        users={uid: user},
        jobs={run: JobFacts(name, launcher, float(hour), hour + 60.0)},
        events={one.id: Owned(one, frozenset((uid,)), frozenset((run,))) for one in events},
    )


def hours(count: float, busy: float = 0.5, gib: float = 10.0, idle: float = 0.25, unknown: float = 0.0) -> Use:
    """Return so many GPU-hours, with the parts of them that were busy, unknown, and held idle."""
    seconds = count * 3600
    return Use(seconds, busy * seconds, unknown * seconds, gib * GIB * seconds, idle * gib * GIB * seconds)


def save(path: Path, *batches: Batch, boot: str = BOOT, **options: Any) -> None:
    """Write batches to a store, with the events that they name."""
    store = Store(path, **options)
    for one in batches:
        events = [owned.alert for owned in one.events.values()]
        if events:
            store.write(lambda connection, events=events: write_events(connection, events, (), EPOCH))  # type: ignore[misc]
        store.write(lambda connection, one=one: write_usage(connection, one, boot))  # type: ignore[misc]


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


def main(path: str, rounds: str) -> None:
    """Write so many rounds, and print after each that it is written."""
    for _ in range(int(rounds)):
        save(Path(path), batch())
        sys.stdout.write("written\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
