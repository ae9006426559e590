"""Contents of pages of `gpuwatch report --html`, and a store with some hours of the demo to make one from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from msgspec.structs import replace as with_fields

from gpuwatch import cli
from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.commands import report
from gpuwatch.commands.report_page import Page, Series, render_page
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.history import History, Use
from gpuwatch.minute import Minute, MinuteMaker
from gpuwatch.monitor import Frame
from gpuwatch.recorder.minutes import write_minutes
from gpuwatch.recorder.store import Events, Gap, Store, write_events
from gpuwatch.recorder.usage import EventCounts, Tally, UsageLine, UsageReport, write_usage
from gpuwatch.sources.demo import DemoSource
from gpuwatch.units import GIB
from tests.support.recording import alert, ended
from tests.support.storing import HOUR

SINCE = float(HOUR)
UNTIL = SINCE + 6 * 3600.0
HOSTILE = (
    "<script>alert(1)</script>",
    '"]]><svg onload=alert(1)>',
    "</style><img src=//evil>",
    "' onmouseover='x",
    "$\\frac{1}{2}$ &lt; \u202egnp.exe",
    "x" * 300,
    "%s{title}{0}",
    "שלום",
)


def value_minute(at: float, **values: float) -> Minute:
    """Return a minute with values of GPU-0: `used`, `utilization`, and memory by name of the owner."""
    words = {"used": "GPU-0//used", "utilization": "GPU-0//utilization"}
    named = {words.get(name, f"GPU-0/user:{name.removeprefix('u')}/memory"): value for name, value in values.items()}
    return Minute(at=at, values=named)


def page_of(name: str = "ada", title: str = "", means: list[Minute] | None = None, **changes: Any) -> Page:
    """Return the contents of a page, in which all names are the same."""
    use = Use(3600.0, 1800.0, 0.0, 10.0 * GIB * 3600, 5.0 * GIB * 3600, 0.0)
    user = UsageLine(name, use, (0,), uid=1000)
    gpu = UsageLine(name, use, (0,), uuid="GPU-0", watched=3600.0)
    run = UsageLine(name, use, (0,), user=name, launcher=name, key="1:1")
    common: dict[str, Any] = {
        "host": name,
        "watched": 3600.0,
        "total": use,
        "gpus": (0,),
        "events": EventCounts(1, 1, 1),
    }
    parts = tuple(
        UsageReport(by, SINCE, lines=(line,), **common)  # type: ignore[arg-type]
        for by, line in (("user", user), ("gpu", gpu), ("job", run))
    )
    event = ended(alert(title=title or name, gpu="GPU-0", owners=(name,), evidence=name), how=name)
    found = [value_minute(SINCE + 60 * at, used=20.0 * GIB, utilization=50.0, u1000=10.0 * GIB) for at in range(60)]
    series = Series(found if means is None else means, 60, {"GPU-0": 80.0 * GIB}, Events(alerts=(event,), exists=True))
    return with_fields(Page(SINCE, UNTIL, UNTIL, parts, series), **changes)


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
    history, engine, maker, tally = History(), Engine(), MinuteMaker(), Tally()
    minutes: list[Minute] = []
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
        frame = Frame(
            snapshot, second, view, changes.active, raised=changes.raised, cleared=changes.cleared,
            kept=idle_times(snapshot),
        )  # fmt: skip
        tally.add(frame)
        events |= {one.id: one for one in (*changes.active, *changes.cleared)}
        made = maker.add(snapshot, view)
        minutes += [made] if made is not None else []
    batch = tally.pop()
    gaps = [Gap(start + gap[0] * seconds, start + gap[1] * seconds)] if gap[0] < gap[1] else []
    store = Store(path)
    store.write(lambda connection: write_events(connection, events.values(), gaps, until))
    store.write(lambda connection: write_usage(connection, batch, boot="b007"))
    store.write(lambda connection: write_minutes(connection, minutes))


def write_page(store: Path, target: Path, until: float, since: str) -> None:
    """Write the page of a store, as the command does at a wall-clock time."""
    args = cli.parse(["report", "--file", str(store), "--html", str(target), "--since", since])
    assert report.main(args, wall=lambda: until) == 0


def page_colors() -> tuple[dict[str, str], ...]:
    """Return the colours of a page by the names of their CSS variables: on a light and on a dark ground."""
    blocks = re.findall(r":root \{([^}]*)", render_page(page_of(means=[])))
    return tuple(dict(re.findall(r"--(\w+): (#\w+);", block)) for block in blocks)
