"""Charts of a report's page: memory by owner, utilization and alerts over time, as SVG.

matplotlib draws them. No name of anybody is in them, and their colours are CSS variables of the page, for a light and a
dark background.
"""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
from dateutil.tz import tzlocal
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from gpuwatch.base.units import GIB, gib
from gpuwatch.model.values import DAY

Values: TypeAlias = NDArray[np.float64]
"""Values of a series over time; NaN is a gap."""

SLOTS: Final = 10
"""Colours of users; then one for hidden owners, and one that all other users share."""
UNSEEN: Final = SLOTS
OTHERS: Final = SLOTS + 1
SIGNS: Final = (*map(str, range(SLOTS)), "?", "+")
"""Signs of the colours, in charts and legends, for grey paper and for the colour-blind."""


class Bar(NamedTuple):
    """Duration of an alert on the time line of a chart; it links to the alert's line in the table."""

    since: float
    until: float
    severity: str
    is_overshoot: bool
    target: str
    """Id of that line."""


class Chart(NamedTuple):
    """Values between the wall-clock times `edges`; what is not known has no panel."""

    edges: Values
    stack: Mapping[int, Values] = MappingProxyType({})
    """Bytes of memory by number of the colour, the lowest layer first."""
    used: Values | None = None
    """Bytes of all used memory."""
    total: float | None = None
    """Bytes of memory that the GPU has."""
    busy: Values | None = None
    """Percent."""
    busy_title: str = ""
    bars: Sequence[Bar] = ()


_SEVERITIES: Final = ("note", "warning", "critical")
_ROLES: Final = ("text", "grid", "used", "line", "sign", *_SEVERITIES, *(f"owner{slot}" for slot in range(OTHERS + 1)))
"""Names of the CSS variables."""
_COLORS: Final = {role: f"#00fe{number:02x}" for number, role in enumerate(_ROLES)}
"""Placeholders until the chart is in the page."""
# Sizes in units of the SVG, which a phone draws at 0.75, and a screen with two columns at 1.2 of its size. Each panel
# has a title above it, and the last one clock times below. What is smaller than a sign has none.
_WIDTH, _LEFT, _RIGHT, _TITLE, _TIMES, _FONT, _SIGN, _LEAST_BAR = 480.0, 30.0, 18.0, 22.0, 20.0, 10.5, 12.0, 3.0
_MEMORY, _BUSY, _LANE = 118.0, 46.0, 9.0
_TARGET: Final = "gpuwatch:"
"""Stands for `#` in links to the page, so that they differ from matplotlib's own references."""
_STYLE: Final[dict[Any, Any]] = {
    **{"svg.fonttype": "none", "font.family": "sans-serif"},
    **dict.fromkeys(("axes.spines.top", "axes.spines.left", "axes.spines.right"), False),
    **dict.fromkeys(("axes.axisbelow", "axes.grid"), True),
    **dict.fromkeys(("xtick.major.size", "xtick.minor.size", "ytick.major.size"), 0),
    **dict.fromkeys(("axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor"), _COLORS["text"]),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _COLORS["grid"]),
    **dict.fromkeys(("font.size", "axes.titlesize", "xtick.labelsize", "ytick.labelsize"), _FONT),
    **{"axes.titlelocation": "left", "axes.titlepad": 5, "grid.linewidth": 0.6},
    **dict.fromkeys(("xtick.major.pad", "ytick.major.pad"), 3),
}


def render_chart(chart: Chart, name: str, label: str) -> str:
    """Return a chart as an SVG element; `name` begins all its ids, and `label`, text of our own, describes it."""
    panels: list[tuple[float, Callable[[Axes], None]]] = []
    if chart.stack or chart.used is not None:
        panels.append((_MEMORY, partial(_draw_memory, chart)))
    if chart.busy is not None:
        panels.append((_BUSY, partial(_draw_busy, chart.busy, chart)))
    for title, is_overshoot in (("over declared", True), ("other alerts", False)):
        if lane := [bar for bar in chart.bars if bar.is_overshoot is is_overshoot]:
            panels.append((_LANE, partial(_draw_lane, chart, title, lane)))
    height = top = sum(panel + _TITLE for panel, _ in panels) + _TIMES
    file = io.StringIO()
    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72)
        FigureCanvasSVG(figure)
        for number, (panel, draw) in enumerate(panels, 1):
            top -= _TITLE + panel
            axes = figure.add_axes((_LEFT / _WIDTH, top / height, 1 - (_LEFT + _RIGHT) / _WIDTH, panel / height))
            axes.set_xlim(chart.edges[0] / DAY, chart.edges[-1] / DAY)
            axes.xaxis.set_major_locator(AutoDateLocator(tzlocal(), minticks=2, maxticks=8))  # type: ignore[no-untyped-call]
            axes.xaxis.set_major_formatter(_clock if number == len(panels) else "")
            draw(axes)
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=metadata)
    return _inlined(file.getvalue(), name, label, height)


def _draw_memory(chart: Chart, axes: Axes) -> None:
    times, floor, layers = chart.edges / DAY, np.zeros(len(chart.edges) - 1), []
    used = floor if chart.used is None else chart.used / GIB
    axes.stairs(used, times, fill=True, color=_COLORS["used"], linewidth=0)
    for slot, values in chart.stack.items():
        top = floor + values / GIB
        axes.stairs(top, times, baseline=floor, fill=True, color=_COLORS[f"owner{slot}"], linewidth=0)
        layers.append((SIGNS[slot], floor, top))
        floor = np.nan_to_num(top)
    if chart.used is not None:
        axes.stairs(used, times, baseline=None, color=_COLORS["line"], linewidth=1.1)
    capacity = max((chart.total or 0.0) / GIB, np.nan_to_num(used).max(), floor.max()) or 1.0
    axes.set_ylim(0, capacity)
    axes.locator_params(axis="y", nbins=4, integer=True)
    axes.set_title(f"memory, GiB of {gib(chart.total)}" if chart.total else "memory, GiB", x=0)
    for sign, below, above in layers:
        _draw_sign(axes, times, sign, below, above, capacity * _SIGN / _MEMORY)


def _draw_sign(axes: Axes, times: Values, sign: str, below: Values, above: Values, least: float) -> None:
    """Write the sign of an owner where the layer is at least `least` high for the longest time."""
    changes = np.diff(np.concatenate(([0], (above - below >= least).astype(int), [0])))
    runs = zip(np.flatnonzero(changes == 1), np.flatnonzero(changes == -1), strict=True)
    start, end = max(runs, key=lambda run: int(run[1] - run[0]), default=(0, 0))
    if (times[end] - times[start]) / (times[-1] - times[0]) * (_WIDTH - _LEFT - _RIGHT) >= _SIGN:
        middle = (start + end) // 2
        place = ((times[start] + times[end]) / 2, (below[middle] + above[middle]) / 2)
        axes.text(*place, sign, color=_COLORS["sign"], fontsize=9, ha="center", va="center_baseline")


def _draw_busy(busy: Values, chart: Chart, axes: Axes) -> None:
    axes.set_ylim(0, 103)  # a line at 100 is seen
    axes.set_yticks((0, 50, 100))
    axes.set_title(chart.busy_title, x=0)
    axes.stairs(busy, chart.edges / DAY, fill=True, color=_COLORS["used"], linewidth=0)
    axes.stairs(busy, chart.edges / DAY, baseline=None, color=_COLORS["line"], linewidth=1.1)


def _draw_lane(chart: Chart, title: str, bars: Sequence[Bar], axes: Axes) -> None:
    axes.set_ylim(0, 1)
    axes.set_yticks(())
    axes.set_title(title, x=0)
    least = (chart.edges[-1] - chart.edges[0]) * _LEAST_BAR / (_WIDTH - _LEFT - _RIGHT)
    for bar in sorted(bars, key=lambda one: (_SEVERITIES.index(one.severity), one.since)):
        width = max(bar.until - bar.since, least) / DAY
        mark = Rectangle((bar.since / DAY, 0.12), width, 0.88, facecolor=_COLORS[bar.severity], linewidth=0)
        mark.set_url(f"{_TARGET}{bar.target}")
        axes.add_patch(mark)


def _clock(days: float, _: object) -> str:
    local = time.localtime(round(days * DAY))
    is_midnight = local.tm_hour == local.tm_min == local.tm_sec == 0
    return time.strftime("%m-%d" if is_midnight else "%H:%M:%S" if local.tm_sec else "%H:%M", local)


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
    return f'<svg viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{label}">{svg.strip()}\n'
