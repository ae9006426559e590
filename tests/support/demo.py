"""The demo as tests use it: a store with some hours of it, the page of a report, and the PIDs of its script."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from gpuwatch import cli
from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.analysis.events import Gap
from gpuwatch.commands import report
from gpuwatch.history.history import History
from gpuwatch.recorder.events import write_events
from gpuwatch.recorder.store import Store
from gpuwatch.recorder.use import UseCounter, write_use
from gpuwatch.sources.demo import DemoSource, script

WALL = 1_795_269_780.0
"""Saturday 21 November 2026, 14:03 UTC."""


def save_demo(
    path: Path, until: float, hours: float = 6.0, step: float = 60.0, gap: tuple[float, float] = (0.4, 0.5)
) -> None:
    """Write a store in which the demo was recorded up to a wall-clock time, a snapshot each `step` seconds.

    The script of the demo, 10 minutes, is stretched over all the time. `gap` is the part of the time in which no
    gpuwatch was running.
    """
    seconds = hours * 3600
    start = until - seconds
    source = DemoSource(clock=lambda: 0.0, wall=lambda: start)
    slower = seconds / 600.0
    history, engine, counter = History(), Engine(), UseCounter()
    events: dict[str, Alert] = {}
    for number in range(int(seconds / step) + 1):
        second = number * step
        if gap[0] <= second / seconds < gap[1]:
            continue
        seen = source.at(second / slower)
        gpus = tuple(replace(one, sampled=one.sampled * slower) for one in seen.gpus)
        snapshot = replace(seen, taken=start + second, monotonic=second, interval=step, gpus=gpus)
        view = history.add(snapshot, second)
        changes = engine.update(snapshot, view, second, snapshot.taken)
        counter.add(snapshot, view)
        events |= {one.id: one for one in (*changes.active, *changes.cleared)}
    gaps = [Gap(start + gap[0] * seconds, start + gap[1] * seconds)] if gap[0] < gap[1] else []
    store = Store(path)
    store.write(lambda connection: write_events(connection, events.values(), gaps, until))
    store.write(lambda connection: write_use(connection, counter.pop()))


def write_page(store: Path, target: Path, until: float, since: str) -> None:
    """Write the page of a store, as the command does at a wall-clock time."""
    args = cli.parse(["report", "--file", str(store), "--html", str(target), "--since", since])
    assert report.main(args, wall=lambda: until) == 0


VIEWER_UID = script().machine.viewer

RANKS = {15226: 0, 15227: 2, 15228: 5, 15229: 6}
"""GPU of each rank of ada's run, by PID."""
STRAY_PID = 15260
LEFTOVER_PID = 15391
RUN_PID = 22871
RUN_WORKER_PIDS = range(RUN_PID + 9, RUN_PID + 13)
HOSTILE_PID = 23117
GONE_PID = 19552
SECRET_PID = 18233

FILLING_GPU, UNATTRIBUTED_GPU, LEAKING_GPU, XID_GPU, LOST_GPU, CAPPED_GPU, HOT_GPU, FREE_GPU = 1, 2, 2, 2, 5, 6, 6, 7
CYCLE, LONG_CYCLE = 120.0, 900.0
"""Seconds after which the troubles come again."""
