"""Past of the demo: events, use and means of the day before it began, made from its script and kept in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from math import floor
from pathlib import Path
from sqlite3 import Connection
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.analysis.events import Events
from gpuwatch.history.history import History
from gpuwatch.history.timeline import Minute, Timeline, user_owner
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.recorder.store import Store, write_events
from gpuwatch.recorder.use import Sums, UseCounter, write_use
from gpuwatch.sources.demo import DAY, DemoSource

_STEP: Final = 600.0
"""Seconds between two snapshots of the past; the last hour has one a minute."""
_HOUR: Final = 3600.0


class Past(NamedTuple):
    """What a gpuwatch would have recorded in the day before the demo began."""

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
    for second, step in _moments():
        snapshot = replace(source.at(second), interval=step)
        view = history.add(snapshot, snapshot.monotonic)
        changes = engine.update(snapshot, view, snapshot.monotonic, snapshot.taken)
        counter.add(snapshot, view)
        means.append(_means(snapshot))
        alerts |= {one.id: one for one in changes.cleared}
    sums = counter.pop(last=True)
    sums.means = [*_fill(means)]
    ordered = sorted(alerts.values(), key=lambda one: one.raised)
    events = Events(alerts=tuple(ordered), watched=True, exists=True)
    return Past(events, sums)


@contextmanager
def demo_store() -> Iterator[Path]:
    """Write the past of a demo that begins now to a store in a temporary folder, which is removed afterwards."""
    past = make_past(DemoSource())
    with TemporaryDirectory(prefix="gpuwatch-demo-") as folder:
        path = Path(folder, "demo.sqlite")
        Store(path).write(lambda connection: _write(connection, past))
        yield path


def _write(connection: Connection, past: Past) -> None:
    write_events(connection, past.events.alerts, (), time.time())
    write_use(connection, past.sums)


def _means(snapshot: Snapshot) -> Minute:
    timeline = Timeline()
    timeline.add(replace(snapshot, interval=60.0), snapshot.monotonic)
    values = timeline.means(floor(snapshot.taken) - 1, 3)  # its times are whole seconds, of a clock that is rounded
    users = {user_owner(one.uid): one.user for one in snapshot.processes if one.uid is not None}
    at = floor(snapshot.taken / 60) * 60.0
    return Minute(at=at, values={str(key): one for key, one in values.items()}, users=users)


def _moments() -> Iterator[tuple[float, float]]:
    """Yield the times of the snapshots, in seconds of the script, and the seconds to the next."""
    second = -DAY
    while second < 0:
        step = _STEP if second < -_HOUR else 60.0
        yield second, step
        second += step


def _fill(means: list[Minute]) -> Iterator[Minute]:
    """Yield means for each minute: those of a snapshot hold until the next one."""
    for one, following in zip(means, [*means[1:], None], strict=True):
        minutes = 1 if following is None else max(1, floor((following.at - one.at) / 60))
        for number in range(min(minutes, floor(_STEP / 60))):
            yield replace(one, at=one.at + 60 * number)
