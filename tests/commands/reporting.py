"""Contents of pages of `gpuwatch report --html`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace as with_fields

from gpuwatch.analysis.events import Events
from gpuwatch.base.units import GIB
from gpuwatch.commands.report_page import Page, PageSeries
from gpuwatch.history.history import Use
from gpuwatch.history.timeline import Minute
from gpuwatch.recorder.use import EventCounts, UseLine, UseReport
from tests.support.store import HOUR, alert, ended

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
    use = Use(held=3600.0, busy=1800.0, memory=10.0 * GIB * 3600, gpu=3600.0)
    user = UseLine(name, use, (0,), uid=1000)
    gpu = UseLine(name, use, (0,), uuid="GPU-0", watched=3600.0)
    run = UseLine(name, use, (0,), user=name, launcher=name, key="1:1")
    common: dict[str, Any] = {
        "host": name,
        "watched": 3600.0,
        "total": use,
        "gpus": (0,),
        "events": EventCounts(1, 1, 1),
    }
    parts = tuple(
        UseReport(by, SINCE, lines=[line], **common)  # type: ignore[arg-type]
        for by, line in (("user", user), ("gpu", gpu), ("run", run))
    )
    event = ended(alert(title=title or name, gpu="GPU-0", owners=(name,), evidence=name), how=name)
    found = [value_minute(SINCE + 60 * at, used=20.0 * GIB, utilization=50.0, u1000=10.0 * GIB) for at in range(60)]
    series = PageSeries(
        found if means is None else means, 60, {"GPU-0": 80.0 * GIB}, Events(alerts=(event,), exists=True)
    )
    return with_fields(Page(SINCE, UNTIL, UNTIL, parts, series), **changes)
