"""What the tests of help, detail and the dialog share: an app around them, frames, and hostile text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from textual.app import App, ComposeResult
from textual.pilot import Pilot
from textual.widget import Widget
from textual.widgets import Static

from gpuwatch.alerts.alert import Alert
from gpuwatch.analysis.rows import rows
from gpuwatch.history.history import History
from gpuwatch.kill.pinned import Pinner
from gpuwatch.kill.queue import KillQueue
from gpuwatch.model.fields import Row, RowKey
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw import theme
from gpuwatch.ui.options import Options
from gpuwatch.ui.screens.end_dialog import EndDialogs
from tests.support import builders

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
        for one in theme.themes():
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


def text_of(app: App[Any]) -> str:
    """What is on the screen, line by line."""
    return "\n".join(strip.text for strip in app.screen._compositor.render_strips())


async def until(pilot: Pilot[Any], condition: Callable[[], bool]) -> None:
    """Let the app run until something is so."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, text_of(pilot.app)
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
