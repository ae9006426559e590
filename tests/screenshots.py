"""Draw the pictures of README and pages from the demo: `python -m tests.screenshots [FOLDER]`.

Seed, clock and time zone are fixed, so a second run draws the same bytes. PNG needs the system's cairo library and the
font DejaVu Sans Mono; without cairo only the SVG files are drawn, and it says so. The page of a report is drawn where a
Chromium is installed.
"""

from __future__ import annotations

import asyncio
import html
import os
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, cast

from msgspec.structs import replace
from textual.pilot import Pilot

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.analysis.events import Events
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.fleet.reader import FleetReader
from gpuwatch.fleet.ui.fleet_app import FleetApp
from gpuwatch.fleet.ui.hosts_app import HostsApp
from gpuwatch.history.history import History
from gpuwatch.kill.demo import DemoEnder
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.recorder.replay import Replay
from gpuwatch.sources.demo import DemoSource
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.options import Helpers, Options
from gpuwatch.ui.replay import ReplayApp
from gpuwatch.ui.screens.events import EventsScreen
from gpuwatch.ui.screens.sheet import FrameSheet
from gpuwatch.ui.terminal_app import TerminalApp
from tests import browser
from tests.support.demo import VIEWER_UID, WALL, save_demo, write_page
from tests.support.fleet import DemoHosts, DemoReader
from tests.support.screen import Clockwork
from tests.support.store import MemoryRecording


@dataclass(frozen=True)
class Picture:
    """One screen of the demo."""

    name: str
    columns: int
    rows: int
    at: float = 42.0
    """Seconds into the demo's script."""
    keys: tuple[str, ...] = ()
    watched: float = 60.0
    """Seconds for which the demo was watched before."""
    focus: int | None = None
    """GPU in focus, whose PCIe and NVLink are measured."""
    gpus: int = 8
    app: Literal["dashboard", "replay", "hosts", "fleet"] = "dashboard"


PICTURES = (
    Picture("dashboard-160x50", 160, 50),
    Picture("dashboard-80x24", 80, 24),
    Picture("process-120x40", 120, 40, keys=("j", "enter")),
    Picture("gpu-160x50", 160, 50, at=700.0, keys=("tab", "j", "enter"), watched=650.0, focus=1),
    Picture("strays-120x36", 120, 36, at=345.0, keys=("S", "space"), watched=305.0),
)


REPORT = "report-light-1280x1250.png"
"""Picture of a report's page."""


def with_gpus(source: DemoSource, second: float, count: int) -> Snapshot:
    """Return the demo's snapshot with a multiple of its GPUs: the others are as they were at other times."""
    seen = source.at(second)
    gpus, processes = list(seen.gpus), list(seen.processes)
    for copy in range(1, count // len(seen.gpus)):
        pids, first = 10_000 * copy, len(seen.gpus) * copy
        other = source.at(second - 37.0 * copy)
        for gpu in other.gpus:
            held = tuple(replace(one, pid=one.pid + pids) for one in gpu.holdings)
            index, uuid = gpu.index + first, f"GPU-{copy:08x}{gpu.uuid[12:]}"
            gpus.append(replace(gpu, index=index, uuid=uuid, sampled=seen.monotonic, holdings=held))
        processes += [replace(one, pid=one.pid + pids, declared=None) for one in other.processes]
    return replace(seen, gpus=tuple(gpus), processes=tuple(processes), listed=len(gpus))


@cache
def last_frame(
    until: float, seconds: float, gpus: int = 8, focus: int | None = None
) -> tuple[Frame, tuple[Alert, ...]]:
    """Return the last frame of so many seconds of the demo, and the alerts that ended in that time."""
    source = DemoSource(clock=lambda: 0.0, wall=lambda: WALL)
    if focus is not None:
        source.set_focus(source.at(0.0).gpus[focus].key)
    engine, history = Engine(), History()
    over: list[Alert] = []
    for second in map(float, range(int(until - seconds), int(until) + 1)):
        snapshot = with_gpus(source, second, gpus)
        if second == int(until - seconds):
            history.restore_idle(idle_times(snapshot) or {}, second)
        view = history.add(snapshot, second)
        changes = engine.update(snapshot, view, second, snapshot.taken)
        over += changes.cleared
        frame = Frame(snapshot, second, view, changes.active)
    return frame, tuple(over)


@asynccontextmanager
async def showing(picture: Picture, frame: Frame | None = None) -> AsyncIterator[tuple[TerminalApp, Pilot[int]]]:
    """Show the screen of a picture; `frame` replaces the frame of the demo."""
    over: tuple[Alert, ...] = ()
    if frame is None:
        frame, over = last_frame(picture.at, picture.watched, picture.gpus, picture.focus)
    source = DemoSource(clock=lambda: 0.0, wall=lambda: WALL)
    log = Events(alerts=over, watched=True, exists=True)
    helpers = Helpers(events=lambda: log, ender=lambda: DemoEnder(source.end, VIEWER_UID))
    app: TerminalApp
    if picture.app == "replay":
        hour = MemoryRecording(source.at(second) for second in (0.0, picture.at, 3599.0))
        app = ReplayApp(Replay(hour, at=frame.snapshot.taken), options=Options())
        frame = replace(frame, restarts=1)
    elif picture.app == "hosts":
        app = HostsApp(DemoHosts(), options=Options(), clock=lambda: picture.at)
    elif picture.app == "fleet":
        app = FleetApp(reader=cast(FleetReader, DemoReader()), clock=lambda: 6.0)
    else:
        app = GpuwatchApp(watch=Clockwork(), helpers=helpers, clock=lambda: picture.at)
    async with app.run_test(size=(picture.columns, picture.rows)) as pilot:
        if isinstance(app, GpuwatchApp) and picture.app != "hosts":
            app.publish(frame)
        await pilot.pause()
        await pilot.press(*picture.keys)
        await pilot.pause()
        while isinstance(app.screen, EventsScreen | FrameSheet) and app.screen.reading:
            await pilot.pause(0.01)
        yield app, pilot


async def draw(picture: Picture) -> str:
    """Return a picture as SVG."""
    async with showing(picture) as (app, _):
        svg = app.export_screenshot(title="gpuwatch")
    return draw_dots(re.sub(r"terminal-\d+-", "terminal-", svg))


_TEXT = re.compile(r'<text class="([^"]*)" x="([0-9.]+)" y="([0-9.]+)" [^>]*>([^<]*[\u2801-\u28ff][^<]*)</text>')
_CELL, _LINE, _DOT = 12.2, 24.4, 2.6
_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))
"""Column and row of the dot of each bit of a braille character."""


def draw_dots(svg: str) -> str:
    """Draw braille characters as dots: few fonts with cells of one width have them."""

    def drawn(found: re.Match[str]) -> str:
        style, x, y, text = found[1], float(found[2]), float(found[3]), html.unescape(found[4])
        marks = []
        for place, char in enumerate(text):
            if "\u2801" <= char <= "\u28ff":
                for bit, (across, down) in enumerate(_DOTS):
                    if (ord(char) - 0x2800) >> bit & 1:
                        left = x + (place + 0.25 + across / 2) * _CELL - _DOT / 2
                        top = y - 18.5 + (down + 0.5) * _LINE / 4 - _DOT / 2
                        marks.append(f"M{left:.1f} {top:.1f}h{_DOT}v{_DOT}h-{_DOT}z")
        rest = re.sub(r"[\u2801-\u28ff]", "\u00a0", found[4])
        return f'{found[0].replace(found[4], rest)}<path class="{style}" d="{"".join(marks)}"/>'

    return _TEXT.sub(drawn, svg)


def save_png(svg: str, file: Path) -> None:
    """Save a picture as PNG; raises OSError where the cairo library is missing."""
    import cairosvg

    plain = svg.replace("Fira Code", "DejaVu Sans Mono")  # cairo takes no font from the network
    cairosvg.svg2png(bytestring=plain.encode(), write_to=str(file), scale=1.0)


def draw_report(folder: Path) -> None:
    """Draw the top of the page of `gpuwatch report --html`, of 6 hours of the demo."""
    if not browser.CHROMIUM:
        print(f"{REPORT} not drawn: no Chromium is installed", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as temporary:
        store, page = Path(temporary, "store.sqlite"), Path(temporary, "page.html")
        save_demo(store, WALL)
        write_page(store, page, WALL, "6h")
        browser.screenshot(page, (folder / REPORT).absolute(), 1280, 1250)


def main(folder: Path) -> None:
    """Draw all pictures into a folder."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    folder.mkdir(parents=True, exist_ok=True)
    for picture in PICTURES:
        svg = asyncio.run(draw(picture))
        (folder / f"{picture.name}.svg").write_text(svg)
        try:
            save_png(svg, folder / f"{picture.name}.png")
        except OSError as error:
            print(f"{picture.name}.png not drawn: {error}", file=sys.stderr)
    draw_report(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "screenshots")
