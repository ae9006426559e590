"""Charts of `gpuwatch report --html`: memory by owner, utilization and alerts of one GPU over time, as SVG.

matplotlib draws them; only this module imports it. The SVG contains no foreign text: names stand in the page around it.
Colours are CSS variables of the page, so that one chart reads well on a light and on a dark ground.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from gpuwatch.units import GIB, gib

WIDTH: Final = 480.0
"""Width of a chart in units of SVG: a phone draws it at 0.75, a screen with two columns at 1.2 of its size."""
SLOTS: Final = 10
"""Colours of users; all beyond these share the colour `OTHERS`."""
UNSEEN: Final = SLOTS
"""Number of the colour of owners who are not visible."""
OTHERS: Final = SLOTS + 1

SIGNS: Final = (*map(str, range(SLOTS)), "?", "+")
"""Signs of the colours, in charts and legends: colours alone say nothing on grey paper, or to whom they look alike."""

_SEVERITIES: Final = ("note", "warning", "critical")
_ROLES: Final = ("text", "grid", "used", "line", "sign", *_SEVERITIES, *(f"owner{slot}" for slot in range(OTHERS + 1)))
"""Names of the CSS variables."""
_LEFT: Final = 30.0
_RIGHT: Final = 18.0
_MEMORY: Final = 118.0
"""Height of the panel for memory; below it come those for the utilization and for alerts."""
_BUSY: Final = 46.0
_LANE: Final = 9.0
_TITLE: Final = 22.0
"""Height of the line of text above a panel."""
_TIMES: Final = 20.0
"""Height of the clock times below the last panel."""
_FONT: Final = 10.5
_SIGN: Final = 12.0
"""Least height and width of a layer in which the sign of its owner is written."""
_LEAST: Final = 3.0
"""Least width of an alert, so that a short one is seen."""
_MINUTE: Final = 60
_HOUR: Final = 3600
_DAY: Final = 24 * _HOUR
_STEPS: Final = (
    *(minutes * _MINUTE for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR for hours in (1, 2, 3, 6, 12)),
    *(days * _DAY for days in (1, 2, 7, 14, 28)),
)
"""Seconds between two clock times below a chart."""
_MOST_TICKS: Final = 8.5


class Bar(msgspec.Struct, frozen=True):
    """Alert on the time line, which links to its line in the page's table."""

    since: float
    until: float
    severity: str
    """`note`, `warning` or `critical`."""
    is_overshoot: bool
    target: str
    """Id of the element that it links to."""


class Chart(msgspec.Struct, frozen=True):
    """Values of one GPU over time; NaN stands for a gap."""

    edges: Sequence[float]
    """Wall-clock times between which the values lie: one more than there are values."""
    owners: Sequence[tuple[int, Sequence[float]]] = ()
    """Memory in bytes by owner, the lowest first: the number of the colour, and the values."""
    used: Sequence[float] = ()
    """Memory in bytes of all, also of what no process is known for."""
    total: float | None = None
    """Memory of the GPU in bytes."""
    busy: Sequence[float] = ()
    """Utilization in percent; without values there is no panel for it, as with the memory."""
    busy_title: str = "utilization, %"
    bars: Sequence[Bar] = ()


def render_chart(chart: Chart, name: str, label: str) -> str:
    """Return a chart as an SVG element; `name` begins all its ids, and `label` (plain text of our own) describes it."""
    panels: list[tuple[float, Callable[[Axes], None]]] = []
    if chart.used or chart.owners:
        panels.append((_MEMORY, partial(_draw_memory, chart)))
    if chart.busy:
        panels.append((_BUSY, partial(_draw_busy, chart)))
    for title, is_overshoot in (("overshoots", True), ("other alerts", False)):
        lane = [bar for bar in chart.bars if bar.is_overshoot is is_overshoot]
        if lane:
            panels.append((_LANE, partial(_draw_lane, chart, title, lane)))
    height = sum(one for one, _ in panels) + _TITLE * len(panels) + _TIMES
    metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "font.size": _FONT}):
        figure = Figure(figsize=(WIDTH / 72, height / 72), dpi=72)
        FigureCanvasSVG(figure)
        drawn = list(_axes(figure, chart, [one for one, _ in panels], height))
        for axes, (_, draw) in zip(drawn, panels, strict=True):
            draw(axes)
        _draw_times(drawn, chart.edges[0], chart.edges[-1])
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    return _inlined(file.getvalue(), name, label, height)


def _axes(figure: Figure, chart: Chart, panels: Sequence[float], height: float) -> Iterator[Axes]:
    top = height
    for panel in panels:
        top -= _TITLE + panel
        axes = figure.add_axes((_LEFT / WIDTH, top / height, 1 - (_LEFT + _RIGHT) / WIDTH, panel / height))
        axes.set_xlim(chart.edges[0], chart.edges[-1])
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(_color("grid"))
        axes.tick_params(length=0, labelsize=_FONT, labelcolor=_color("text"), pad=3)
        axes.set_axisbelow(True)
        yield axes


def _draw_memory(chart: Chart, axes: Axes) -> None:
    used = [value / GIB for value in chart.used]
    floor = [0.0] * (len(chart.edges) - 1)
    layers: list[tuple[int, list[float], list[float]]] = []
    if used:
        axes.stairs(used, chart.edges, fill=True, color=_color("used"), linewidth=0)
    highest = max((value for value in used if value == value), default=0.0)
    for slot, values in chart.owners:
        top = [below + value / GIB for below, value in zip(floor, values, strict=True)]
        axes.stairs(top, chart.edges, baseline=floor, fill=True, color=_color(f"owner{slot}"), linewidth=0)
        layers.append((slot, floor, top))
        floor = [0.0 if value != value else value for value in top]
    if used:
        axes.stairs(used, chart.edges, baseline=None, color=_color("line"), linewidth=1.1)
    capacity = max(chart.total / GIB if chart.total else 0.0, highest, *floor) or 1.0
    axes.set_ylim(0, capacity)
    for slot, below, above in layers:
        _draw_sign(axes, chart.edges, SIGNS[slot], below, above, capacity * _SIGN / _MEMORY)
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.grid(axis="y", color=_color("grid"), linewidth=0.6)
    _title(axes, f"memory, GiB of {gib(chart.total)}" if chart.total else "memory, GiB")


def _draw_sign(
    axes: Axes, edges: Sequence[float], sign: str, below: Sequence[float], above: Sequence[float], least: float
) -> None:
    """Write the sign of an owner where the layer is at least `least` high for the longest time."""
    at, longest, begun = 0, 0, 0
    for number, (low, high) in enumerate(zip(below, above, strict=True)):
        if not high - low >= least:  # also a gap
            begun = number + 1
        elif number + 1 - begun > longest:
            at, longest = begun, number + 1 - begun
    width = (edges[at + longest] - edges[at]) / (edges[-1] - edges[0]) * (WIDTH - _LEFT - _RIGHT)
    if width < _SIGN:
        return
    middle = at + longest // 2
    place = ((edges[at] + edges[at + longest]) / 2, (below[middle] + above[middle]) / 2)
    axes.text(*place, sign, color=_color("sign"), fontsize=9, ha="center", va="center_baseline", parse_math=False)


def _draw_busy(chart: Chart, axes: Axes) -> None:
    axes.set_ylim(0, 103)  # a line at 100 is seen
    axes.set_yticks((0, 50, 100))
    axes.grid(axis="y", color=_color("grid"), linewidth=0.6)
    _title(axes, chart.busy_title)
    axes.stairs(chart.busy, chart.edges, fill=True, color=_color("used"), linewidth=0)
    axes.stairs(chart.busy, chart.edges, baseline=None, color=_color("line"), linewidth=1.1)


def _draw_lane(chart: Chart, title: str, bars: Sequence[Bar], axes: Axes) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks(())
    _title(axes, title)
    least = (chart.edges[-1] - chart.edges[0]) * _LEAST / (WIDTH - _LEFT - _RIGHT)
    for bar in sorted(bars, key=lambda one: (_SEVERITIES.index(one.severity), one.since)):
        width = max(bar.until - bar.since, least)
        mark = Rectangle((bar.since, 0.12), width, 0.88, facecolor=_color(bar.severity), linewidth=0)
        mark.set_url(f"{_TARGET}{bar.target}")
        axes.add_patch(mark)


def _title(axes: Axes, words: str) -> None:
    axes.set_title(words, loc="left", x=0, pad=5, fontsize=_FONT, color=_color("text"))


def _draw_times(axes: Sequence[Axes], since: float, until: float) -> None:
    times, step = clock_times(since, until)
    for panel in axes:
        panel.set_xticks(times, ())
        panel.grid(axis="x", color=_color("grid"), linewidth=0.6)
    axes[-1].set_xticks(times, [_clock(one, step) for one in times])


def clock_times(since: float, until: float) -> tuple[list[float], int]:
    """Return the round local times between two wall-clock times, at most `_MOST_TICKS`, and the seconds between two."""
    span = until - since
    step = next((one for one in _STEPS if span / one <= _MOST_TICKS), _DAY * ceil(span / (_DAY * _MOST_TICKS)))
    if step >= _DAY:
        year, month, day, *_ = time.localtime(since)
        days = [day + step // _DAY * count for count in range(_MOST_TICKS + 2)]
        midnights = [time.mktime((year, month, one, 0, 0, 0, 0, 0, -1)) for one in days]
        return [at for at in midnights if since <= at <= until], step
    stride = min(step, 15 * _MINUTE)  # all time zones differ by a multiple of 15 minutes
    times, at = [], since // stride * stride
    while at <= until:
        local = time.localtime(at)
        if at >= since and (int(at) + local.tm_gmtoff) % step == 0:
            times.append(float(at))
        at += stride
    return times, step


def _clock(at: float, step: int) -> str:
    local = time.localtime(at)
    is_date = step >= _DAY or local.tm_hour == local.tm_min == 0
    return time.strftime("%m-%d" if is_date else "%H:%M", local)


# ---------------------------------------------------------------------------------------------------------------
# From matplotlib's file to an element of the page

_TARGET: Final = "gpuwatch:"
"""Stands for `#` in links to the page, so that they differ from matplotlib's own references."""


def _color(role: str) -> str:
    """Return a colour that stands for a CSS variable of the page."""
    return f"#00fe{_ROLES.index(role):02x}"


def _inlined(svg: str, name: str, label: str, height: float) -> str:
    """Return matplotlib's file as an element of a page that has more than one, without fonts, links and colours."""
    svg = re.sub(r"<svg[^>]*>", "", svg[svg.index("<svg") :], count=1)
    svg = re.sub(r"<metadata>.*?</metadata>|<defs>\s*<style.*?</style>\s*</defs>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = svg.replace('xlink:href="#', f'href="#{name}-').replace("url(#", f"url(#{name}-")
    svg = svg.replace(f'xlink:href="{_TARGET}', 'href="#').replace(' target="_blank"', "")
    svg = re.sub(r"#00fe([0-9a-f]{2})", lambda found: f"var(--{_ROLES[int(found[1], 16)]})", svg)
    svg = re.sub(r" font-family: [^;\"]*;", "", svg)
    svg = re.sub(r"(\.[0-9]{2})[0-9]+", r"\1", svg)
    return f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{label}">{svg.strip()}\n'
