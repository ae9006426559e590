"""Past of the demo: events, use and means of the day before it began, made from its script and kept in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import floor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.analysis.events import Events
from gpuwatch.history.history import History
from gpuwatch.history.timeline import Minute, Timeline, user_owner
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.recorder.events import write_events
from gpuwatch.recorder.schema import HOUR, MINUTE
from gpuwatch.recorder.store import Store
from gpuwatch.recorder.use import Sums, UseCounter, write_use
from gpuwatch.sources.demo import DAY, DemoSource

_STEP: Final = 600
"""Seconds between two snapshots of the past; the last hour has one a minute."""


class Past(NamedTuple):
    """Records of the day before the demo began, as a gpuwatch would have made them."""

    events: Events
    """Events that had ended by then; the demo raises the others itself."""
    sums: Sums
    """Use and means of each minute."""


class _NoTimeline(Timeline):
    """Timeline that keeps nothing: to fill each second of a day would take 3 s of CPU."""

    def add(self, snapshot: Snapshot, now: float) -> None:
        """Do nothing."""


def make_past(source: DemoSource) -> Past:
    """Play the day before the demo began; takes about a second."""
    history, engine, counter = History(_NoTimeline()), Engine(), UseCounter()
    means: list[Minute] = []
    alerts: dict[str, Alert] = {}
    for second in (*range(-DAY, -HOUR, _STEP), *range(-HOUR, 0, MINUTE)):
        step = _STEP if second < -HOUR else MINUTE
        snapshot = replace(source.at(second), interval=float(step))
        view = history.add(snapshot, snapshot.monotonic)
        changes = engine.update(snapshot, view, snapshot.monotonic, snapshot.taken)
        counter.add(snapshot, view)
        means += _means(snapshot, step)
        alerts |= {alert.id: alert for alert in changes.cleared}
    sums = counter.pop(last=True)
    sums.means = means
    events = tuple(sorted(alerts.values(), key=lambda alert: alert.raised))
    return Past(Events(alerts=events, watched=True, exists=True), sums)


def _means(snapshot: Snapshot, step: int) -> Iterator[Minute]:
    """Yield the means of a snapshot for each minute of `step` seconds."""
    timeline = Timeline()
    timeline.add(replace(snapshot, interval=60.0), snapshot.monotonic)
    means = timeline.means(floor(snapshot.taken) - 1, 3)  # its times are whole seconds, of a clock that is rounded
    values = {str(key): mean for key, mean in means.items()}
    users = {user_owner(process.uid): process.user for process in snapshot.processes if process.uid is not None}
    first = floor(snapshot.taken / MINUTE) * MINUTE
    for at in range(first, first + step, MINUTE):
        yield Minute(at=float(at), values=values, users=users)


@contextmanager
def demo_store() -> Iterator[Path]:
    """Write the past of a demo that begins now to a store in a temporary folder, which is removed afterwards."""
    past = make_past(DemoSource())
    with TemporaryDirectory(prefix="gpuwatch-demo-") as folder:
        store = Store(Path(folder, "demo.sqlite"))
        store.write(lambda connection: write_events(connection, past.events.alerts, (), time.time()))
        store.write(lambda connection: write_use(connection, past.sums))
        yield store.path
