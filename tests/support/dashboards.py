"""What the tests of the dashboard share: a machine, frames of it, and the app without a thread."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from textual.app import App
from textual.pilot import Pilot
from textual.screen import Screen

from gpuwatch.alerts.alert import Alert, Mute, Severity
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Gpu, Holding, Process, Snapshot
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.sources.source import Source
from gpuwatch.ui.app import GpuwatchApp, NewFrame
from gpuwatch.ui.options import Helpers, Options
from tests.support.builders import EPOCH, gpu, holding, process, snapshot
from tests.support.screen import set_size

SIZES = [(60, 10), (80, 24), (120, 36), (160, 50)]

Running = tuple[GpuwatchApp, Pilot[int]]


class Clockwork(Monitor):
    """Stands in for the monitor: remembers what it was asked; its thread is never started."""

    def __init__(self, newest: Frame | None = None) -> None:
        super().__init__(cast("Source", None), lambda frame: None)
        self.newest = newest
        self.asked: list[Any] = []

    def set_interval(self, seconds: float) -> None:
        self.asked.append(seconds)

    def poke(self) -> None:
        self.asked.append("poke")

    def set_focus(self, gpu: str | None) -> None:
        self.asked.append(("focus", gpu))

    def acknowledge(self, alert: Alert) -> None:
        self.asked.append(("acknowledge", alert.key))

    def unacknowledge(self, alert: Alert) -> None:
        self.asked.append(("unacknowledge", alert.key))

    def mute(self, mute: Mute) -> None:
        self.asked.append(mute)

    def unmute(self, rule: str, key: str = "") -> None:
        self.asked.append(("unmute", rule, key))

    def stop(self) -> None:
        self.asked.append("stop")


class FrameClock:
    """Monotonic clock that shows when the newest frame was made, and then stands still.

    Ages on screen are exact with it, however long a busy machine takes to draw.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()

    def __call__(self) -> float:
        return self.now

    def set(self, now: float | None = None) -> float:
        """Set it to `now`, or to the present, and return that."""
        self.now = time.monotonic() if now is None else now
        return self.now


frame_clock = FrameClock()


def frame(
    seen: Snapshot, *alerts: Alert, age: float = 0.0, history: History | None = None, now: float | None = None
) -> Frame:
    """Make a frame that was received `age` seconds before `now`, which `frame_clock` shows from then on."""
    received = frame_clock.set(now) - age
    return Frame(seen, received, (history or History()).add(seen, received), tuple(alerts))


def alert(index: int = 1, severity: Severity = Severity.CRITICAL, **changes: Any) -> Alert:
    fields: dict[str, Any] = {
        "id": f"{index:010x}",
        "rule": "memory near limit",
        "gpu": gpu(index).key,
        "index": index,
        "severity": severity,
        "title": f"GPU {index} near limit: 0.4 of 79.1 GiB free",
        "evidence": "ben holds 40.0",
        "raised": EPOCH,
        "raised_monotonic": 1e9,  # after every frame that came before
    }
    return Alert(**{**fields, **changes})


def machine(gpus: int, **changes: Any) -> Snapshot:
    """Return a machine whose GPU n is held by five processes of n+1 to n+5 GiB, each of another user."""
    people = ["ada", "ben", "cyn", "dov", "you"]
    cards: list[Gpu] = []
    processes: list[Process] = []
    for n in range(gpus):
        held: list[Holding] = []
        for k, user in enumerate(people):
            pid = 1000 + 10 * n + k
            held.append(holding(pid, n + k + 1))
            processes.append(process(pid, user, command=f"python {user}{n}.py"))
        cards.append(gpu(n, holdings=held))
    return snapshot(cards, processes, **changes)


@asynccontextmanager
async def running(
    first: Frame | None = None, size: tuple[int, int] = (120, 36), *, helpers: Helpers | None = None, **options: Any
) -> AsyncIterator[Running]:
    app = GpuwatchApp(watch=Clockwork(), options=Options(**options), helpers=helpers, clock=frame_clock)
    async with app.run_test(size=size, notifications=True) as pilot:
        if first is not None:
            await hand(app, pilot, first)
        yield app, pilot


def top(app: GpuwatchApp) -> Screen[Any]:
    """Return the screen on top; a checker does not take it for the one that was there before."""
    return app.screen


async def resize(app: GpuwatchApp, pilot: Pilot[int], size: tuple[int, int], new: Frame | None = None) -> None:
    """Set the size of the terminal, and pass the app a frame if there is one."""
    await set_size(pilot, size)
    if new is not None:
        await hand(app, pilot, new)


async def hand(app: GpuwatchApp, pilot: Pilot[int], new: Frame) -> None:
    """Hand a frame to the app; alerts that are new since its newest frame, or worse, were raised in it."""
    before = {alert.key: alert.severity for alert in app.newest.alerts} if app.newest else {}
    raised = tuple(one for one in new.alerts if one.severity > before.get(one.key, 0) and one.raised_monotonic > 0)
    new = msgspec.structs.replace(new, raised=new.raised or raised)
    app.post_message(NewFrame(new))
    await pilot.pause()


def screen(app: App[int]) -> list[str]:
    """Return what is on screen, line by line."""
    return ["".join(segment.text for segment in strip) for strip in app.screen._compositor.render_strips()]


def text(app: App[int]) -> str:
    return "\n".join(screen(app))


def table(app: GpuwatchApp) -> list[str]:
    return app.dashboard.processes.text[1:]
