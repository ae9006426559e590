"""The dashboard and its screens without a terminal: the app, frames for it, keys and clicks, and the text it draws."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Static

from gpuwatch.alerts.alert import Alert, Mute, Severity
from gpuwatch.analysis.rows import rows
from gpuwatch.history.history import History
from gpuwatch.kill.pinned import Pinner
from gpuwatch.kill.queue import KillQueue
from gpuwatch.model.fields import Row, RowKey
from gpuwatch.model.snapshot import Gpu, Holding, Process, Snapshot
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.sources.source import Source
from gpuwatch.ui.app import GpuwatchApp, NewFrame
from gpuwatch.ui.options import Helpers, Options
from gpuwatch.ui.screens.end_dialog import EndDialogs
from gpuwatch.ui.terminal_app import themes
from tests.support import builders
from tests.support.builders import EPOCH, gpu, holding, process, snapshot
from tests.support.waiting import PATIENCE, describe

HOSTILE = [
    "[/x]",
    "[/",
    "[b",
    "[@click=app.quit]x",
    "[$x]y",
    "日本語のプロセス" * 20,
    "x" * 1000,
    "python " + "--flag=value " * 80,
]
PID = 15260


class Host(App[None]):
    """An app with no more in it than the screens need."""

    refused: frozenset[str] = frozenset()
    options = Options()

    def __init__(self, pinner: Pinner | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        for one in themes():
            self.register_theme(one)
        self.theme = "gpuwatch-dark"
        self.pinner = pinner
        self.clock = clock
        self.end_dialogs: EndDialogs | None = None
        self.asked: list[Any] = []
        """Calls of the methods below, which the app of the program has."""

    def compose(self) -> ComposeResult:
        yield Static("the dashboard")

    def on_mount(self) -> None:
        if self.pinner is not None:
            self.end_dialogs = EndDialogs(self, KillQueue(self.pinner, clock=self.clock))

    def show_detail(self, key: RowKey) -> None:
        self.asked.append(("detail", key))

    def ask_to_end(self, key: RowKey, *, whole_run: bool = False) -> None:
        self.asked.append(("end", key, whole_run))

    def show_subject(self, alert: Alert) -> None:
        self.asked.append(("subject", alert.id))

    def show_only_user(self, uid: int | None) -> None:
        self.asked.append(("user", uid))

    def write_to_owner(self, frame: Frame, is_meant: Callable[[Row], bool]) -> None:
        users = {row.process.uid for row in rows(frame.snapshot, frame.history) if is_meant(row)}
        self.asked.append(("message", *users))


def frame_of(snapshot: Snapshot) -> Frame:
    """A frame with half a minute of history."""
    history = History()
    for second in range(30):
        view = history.add(builders.at(snapshot, second - 30), 100.0 + second)
    return Frame(snapshot, time.monotonic(), view)


def a_snapshot(command: str = "python train.py", **changes: Any) -> Snapshot:
    """One GPU with one process of ours, and one of ada's."""
    held = [builders.holding(PID, 12.0, sm=0), builders.holding(99, 30.0)]
    ours = builders.process(PID, **{"user": "you", "command": command, **changes})
    return builders.snapshot([builders.gpu(4, holdings=held)], [ours])


def key_of(snapshot: Snapshot, pid: int = PID) -> tuple[str, int, int]:
    """The key of a row."""
    return next(row.key for row in rows(snapshot) if row.holding.pid == pid)


def screen(app: App[Any]) -> list[str]:
    """Return what is on screen, line by line."""
    return [strip.text for strip in app.screen._compositor.render_strips()]


def text(app: App[Any]) -> str:
    """Return what is on screen as one text."""
    return "\n".join(screen(app))


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Let the app run until a condition holds; where it does not, fail with the condition and the screen."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{describe(condition)}\nthe screen:\n{text(pilot.app)}"
        await pilot.pause(0.01)


async def press(pilot: Pilot[Any], *keys: str) -> None:
    """Press keys, and let the app do all that follows."""
    await pilot.press(*keys)
    await pilot.pause()


async def click(pilot: Pilot[Any], widget: Widget | type[Widget] | str, x: int, y: int, times: int = 1) -> None:
    """Click on a cell of a widget, and let the app do all that follows."""
    await pilot.click(widget, offset=(x, y), times=times)
    await pilot.pause()


async def set_size(pilot: Pilot[Any], size: tuple[int, int]) -> None:
    """Set the size of the terminal, and wait until the app and its screen have it."""
    await pilot.resize_terminal(*size)
    await until(pilot, lambda: pilot.app.size == size == pilot.app.screen.size)
    await pilot.pause()


def fits(app: App[Any]) -> bool:
    """Whether no widget that is drawn reaches over the right edge."""
    return all(widget.region.right <= app.size.width for widget in app.screen.walk_children(Widget))


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
        "rule": "nearly full",
        "gpu": gpu(index).key,
        "index": index,
        "severity": severity,
        "title": f"GPU {index} nearly full: 0.4 of 79.1 GiB free",
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


def table(app: GpuwatchApp) -> list[str]:
    return app.dashboard.process_panel.text[1:]
