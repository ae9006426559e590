"""Page of `gpuwatch report --html`: one HTML file with charts and tables that needs neither a network nor a script.

What was recorded (`Page`) becomes what the page says (`PageContent`) by pure functions; the template,
`report_page.html.j2`, shows that. Names, titles and hosts are other people's: the template escapes every value.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from math import ceil
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
import numpy as np
from dateutil.tz import tzlocal
from jinja2 import Environment, StrictUndefined
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.analysis.events import Events
from gpuwatch.base import files
from gpuwatch.base.errors import GpuwatchError, UsageError
from gpuwatch.base.text import cell_width, clean, fit
from gpuwatch.base.units import GIB, gib, long_duration
from gpuwatch.commands.events import EventRow, events_rows
from gpuwatch.commands.report_formats import MOST, SUMS, WHO, format_hours, total_cells, use_notes, whole_line
from gpuwatch.history.timeline import NO_USER, Metric, Minute, parse_key
from gpuwatch.model.values import DAY, HOUR
from gpuwatch.recorder.events import read_all_events
from gpuwatch.recorder.opening import reading
from gpuwatch.recorder.use import UseLine, UseReport, read_hours, read_means, read_totals
from gpuwatch.version import __version__

Values: TypeAlias = NDArray[np.float64]
"""Values of a series over time; NaN is a gap."""

SLOTS: Final = 10
"""Colours of users; then one for hidden owners, and one that all other users share."""
UNSEEN: Final = SLOTS
OTHERS: Final = SLOTS + 1
SIGNS: Final = (*map(str, range(SLOTS)), "?", "+")
"""Signs of the colours, in charts and legends, for grey paper and for the colour-blind."""

_MOST_POINTS: Final = 360
"""Values of a chart in its width of 442 pixels, at most."""
_MOST_EVENTS: Final = 300
"""Events in the table and on the time lines, at most: the worst, then the newest."""
_MOST_GAPS: Final = 4
"""Times without gpuwatch that are listed, at most."""
_TEMPLATE: Final = Path(__file__).with_suffix(".html.j2").read_text("utf-8")
START: Final = _TEMPLATE.partition("{{")[0]
"""First characters of every page, by which an older one is known."""


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


class PageSeries(msgspec.Struct, frozen=True):
    """Means over time, events and sizes, as a store or a recording has them."""

    means: Sequence[Minute] = ()
    """Means of minutes or hours, oldest first."""
    step: int = 60
    """Seconds of each."""
    totals: dict[str, float] = msgspec.field(default_factory=dict)
    """Bytes of memory by `Gpu.key`."""
    events: Events = msgspec.field(default_factory=Events)


class Page(msgspec.Struct, frozen=True):
    """Records that a page is made from. Times are wall-clock times."""

    since: float
    until: float
    made: float
    parts: tuple[UseReport, ...]
    """Use by user and by GPU, and by run if it is known."""
    series: PageSeries
    source: str = "what gpuwatch recorded"


class GpuMeans(msgspec.Struct, frozen=True):
    """Means of one GPU at the points of a chart; None for a series without any value."""

    used: Values | None
    """Bytes."""
    busy: Values | None
    """Percent."""
    owners: dict[str, Values]
    """Bytes by owner (`user:UID`); 0 where something else of the GPU is known."""


class Card(msgspec.Struct, frozen=True):
    """Chart of one GPU, or of the alerts of the whole machine, with its title and legend."""

    id: str
    """Beginning of the ids in the chart."""
    title: str
    label: str
    """Description of the chart, in words of our own."""
    chart: Chart | None
    """None without any value."""
    name: str = ""
    legend: dict[int, list[str]] | None = None
    """Names of owners by number of their colour; None for the machine."""


class PageContent(msgspec.Struct, frozen=True):
    """Values that the template shows."""

    page: Page
    users: UseReport
    whole: UseLine
    """Sum of all GPUs."""
    host: str
    span: str
    made: str
    idle: str
    notes: list[str]
    """What is not known, a sentence each."""
    colors: dict[str, int]
    """Number of the colour by owner."""
    cards: list[Card]
    events: list[EventRow]
    targets: dict[str, str]
    """Id of the line in the table of events by `Alert.id`."""


# -- what was recorded ---------------------------------------------------------------------------------------------


def read_series(paths: Sequence[Path], since: float, until: float) -> PageSeries:
    """Read means and events of a span of wall-clock time; raises FileNotFoundError and StoreError.

    The minutes are read for up to a day, else the hours; also where a recorder without minutes wrote the store. Where
    several stores have a value the first counts.
    """
    totals: dict[str, float] = {}
    minutes: dict[float, Minute] = {}
    hours: dict[float, Minute] = {}
    for path in paths:
        with contextlib.suppress(*[FileNotFoundError] if path != paths[0] else []), reading(path, named=True) as found:
            totals |= read_totals(found)
            if until - since <= DAY + HOUR:
                _add(minutes, read_means(found, since, until))
            if not minutes:
                _add(hours, read_hours(found, since))
    events = read_all_events(paths, since, named=True)
    events = msgspec.structs.replace(events, alerts=tuple(one for one in events.alerts if one.raised < until))
    return PageSeries([*(minutes or hours).values()], 60 if minutes else int(HOUR), totals, events)


def _add(means: dict[float, Minute], more: Iterable[Minute]) -> None:
    """Add means to those that are there, by their time."""
    for one in more:
        same = means.get(one.at)
        means[one.at] = one if same is None else msgspec.structs.replace(one, values=one.values | same.values)


# -- what the page says --------------------------------------------------------------------------------------------


def render_page(page: Page) -> str:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"short": _short, "hours": format_hours, "duration": long_duration, "chart": _draw}
    tables = {"who": WHO, "sums": SUMS, "most": MOST, "total_cells": total_cells}
    content = msgspec.structs.asdict(page_content(page))
    return environment.from_string(_TEMPLATE).render(content, signs=SIGNS, version=__version__, **tables)


def page_content(page: Page) -> PageContent:
    """Return the values that the template shows of a page."""
    users, gpus, *_ = page.parts
    events = page.series.events
    worst = sorted(events.alerts, key=lambda one: (-max(one.most, one.severity), -one.raised, one.key))[:_MOST_EVENTS]
    alerts = sorted(worst, key=lambda one: (one.raised, one.key))
    gaps = [gap for gap in events.gaps if gap.until > page.since and gap.since < page.until]
    rows = events_rows(alerts, events, page.made, gaps=gaps)
    targets = {id: f"event-{number}" for number, row in enumerate(rows, 1) for id in row.ids}
    edges, means = resampled(page.series, page.since, page.until)
    colors = owner_colors(means.values())
    return PageContent(
        page=page,
        users=users,
        whole=whole_line(gpus),
        host=users.host or "this machine",
        span=_span(page.since, page.until),
        made=time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(page.made)),
        idle=next(column.cell(UseLine("", users.total)) for column in SUMS if column.header == "idle h"),
        notes=[*_notes(page)],
        colors=colors,
        cards=[*_cards(page, edges, means, colors, alerts, targets)],
        events=rows,
        targets=targets,
    )


def resampled(series: PageSeries, since: float, until: float) -> tuple[Values, dict[str, GpuMeans]]:
    """Return the edges of at most `_MOST_POINTS` points of time, and the means at them by GPU."""
    first = since // series.step * series.step
    width = series.step * ceil(max(1.0, (until - first) / series.step) / _MOST_POINTS)
    points = max(1, ceil((until - first) / width))
    sums: dict[tuple[str, str], Values] = defaultdict(lambda: np.zeros(points))
    """Sums at each point, by GPU and by metric or owner."""
    counts: dict[tuple[str, str], Values] = defaultdict(lambda: np.zeros(points))
    """Number of means at each point; under no name, of those with anything of the GPU."""
    key_of = cache(parse_key)
    for mean in series.means:
        at = int((mean.at - first) // width)
        seen = set()
        for key in filter(None, map(key_of, mean.values)) if 0 <= at < points else ():
            name = key.owner if key.metric is Metric.MEMORY else "" if key.owner else key.metric
            if name in (Metric.USED, Metric.UTILIZATION) or name.startswith("user:"):
                sums[key.gpu, name][at] += mean.values[str(key)]
                seen |= {(key.gpu, name), (key.gpu, "")}
        for place in seen:
            counts[place][at] += 1
    lines: dict[str, dict[str, Values]] = defaultdict(dict)
    with np.errstate(invalid="ignore"):  # 0 / 0 is a gap
        for (gpu, name), line in sums.items():
            lines[gpu][name] = line / counts[gpu, "" if name.startswith("user:") else name]
    found = {
        gpu: GpuMeans(named.pop(Metric.USED, None), named.pop(Metric.UTILIZATION, None), named)
        for gpu, named in lines.items()
    }
    return np.arange(points + 1, dtype=np.float64) * width + first, found


def owner_colors(gpus: Iterable[GpuMeans]) -> dict[str, int]:
    """Return the number of the colour of each owner in the charts.

    The last digit of the uid gives it, as on the dashboard, unless a user with more memory has that colour: then it is
    the next free one. The users with the most memory get a colour of their own, the others share one.
    """
    sums: dict[str, float] = defaultdict(float)
    for means in gpus:
        for owner, line in means.owners.items():
            sums[owner] += float(np.nansum(line))
    colors = {owner: UNSEEN if owner == NO_USER else OTHERS for owner in sums}
    free = [*range(SLOTS)]
    for owner in sorted(sums.keys() - {NO_USER}, key=lambda owner: (-sums[owner], owner))[:SLOTS]:
        uid = int(owner.removeprefix("user:"))
        colors[owner] = min(free, key=lambda slot: (slot - uid) % SLOTS)
        free.remove(colors[owner])
    return colors


def _notes(page: Page) -> Iterator[str]:
    """Yield a sentence for each thing that is not known."""
    span, step, use, means = page.until - page.since, page.series.step, page.parts[0], page.series.means
    if not use.watched:
        yield "There is no data for this time: gpuwatch was not running, or no GPU listed its processes."
    elif (lost := span - use.watched) > max(120.0, 0.005 * span):
        ends, starts = [page.since, *(one.at + step for one in means)], [*(one.at for one in means), page.until]
        gaps = [_span(end, start) for end, start in zip(ends, starts, strict=True) if start - end >= 2 * step]
        more = [f"and {len(gaps) - _MOST_GAPS} more"] if len(gaps) > _MOST_GAPS else []
        when = f" ({', '.join(gaps[:_MOST_GAPS] + more)})" if gaps else ""
        yield (
            f"There is no data for {long_duration(lost)} of {long_duration(span)}: gpuwatch was not running, or no GPU "
            f"listed its processes{when}. The charts have gaps there, and the tables leave it out."
        )
    yield from (f"{words[0].upper()}{words[1:]}." for words in use_notes(use.total))
    if note := page.series.events.note:
        yield f"Of the events {note}."


def _cards(
    page: Page,
    edges: Values,
    means: Mapping[str, GpuMeans],
    colors: Mapping[str, int],
    alerts: Iterable[Alert],
    targets: Mapping[str, str],
) -> Iterator[Card]:
    """Yield the card of each GPU, and one of the whole machine if it has an alert."""
    names = {owner: name for one in page.series.means for owner, name in one.users.items()}
    names |= {f"user:{line.uid}": line.name for line in page.parts[0].lines if line.uid is not None}
    lines = {line.uuid: line for line in page.parts[1].lines}
    order = sorted({*lines, *means}, key=lambda gpu: (lines[gpu].gpus if gpu in lines else (1 << 30,), gpu))
    bars: dict[str, list[Bar]] = defaultdict(list)
    for alert in alerts:
        bars[alert.gpu if alert.gpu in order else ""] += alert_bars(alert, targets[alert.id], page)
    for number, gpu in enumerate(order):
        line = lines.get(gpu, UseLine(""))
        title = f"GPU {line.gpus[0] if line.gpus else '?'}"
        legend = _legend(means[gpu].owners, colors, names) if gpu in means else {}
        yield Card(
            id=f"gpu{number}",
            title=title,
            label=f"{title}: memory by owner, utilization and alerts over time",
            chart=_gpu_chart(page.series, edges, gpu, means[gpu], colors, bars[gpu]) if gpu in means else None,
            name=line.name.removeprefix("NVIDIA "),
            legend=legend,
        )
    if bars[""]:
        chart = Chart(edges, bars=bars[""])
        yield Card("machine", "Whole machine", "Alerts of the whole machine over time", chart)


def _legend(owners: Iterable[str], colors: Mapping[str, int], names: Mapping[str, str]) -> dict[int, list[str]]:
    """Return the names of owners by number of their colour, in its order."""
    legend: dict[int, list[str]] = defaultdict(list)
    for owner in sorted(owners, key=lambda owner: (colors[owner], owner)):
        legend[colors[owner]].append(names.get(owner) or owner.removeprefix("user:"))
    return legend


def _gpu_chart(
    series: PageSeries, edges: Values, gpu: str, means: GpuMeans, colors: Mapping[str, int], bars: Sequence[Bar]
) -> Chart:
    stack: dict[int, Values] = {}
    for owner in sorted(means.owners, key=lambda owner: (colors[owner], owner)):
        slot, line = colors[owner], means.owners[owner]
        stack[slot] = stack[slot] + line if slot in stack else line
    title = "busy, % of the time" if series.step >= HOUR else "utilization, %"
    return Chart(edges, stack, means.used, series.totals.get(gpu), means.busy, title, bars)


def alert_bars(alert: Alert, target: str, page: Page) -> Iterator[Bar]:
    """Yield the times in which an alert was seen to hold: all of it but those in which gpuwatch was not running."""
    events, severity = page.series.events, max(alert.most, alert.severity).name.lower()
    end = alert.ended if alert.ended is not None else page.until if events.watched else events.watched_until
    begin = min(max(alert.raised, page.since), page.until)
    end = min(max(end or alert.seen, begin), page.until)
    for gap in sorted(gap for gap in events.gaps if not gap.lost and begin < gap.until and gap.since < end):
        if begin < gap.since:
            yield Bar(begin, gap.since, severity, alert.rule == OVERSHOOT, target)
        begin = gap.until
    if begin <= end:
        yield Bar(begin, end, severity, alert.rule == OVERSHOOT, target)


def _draw(card: Card) -> str:
    """Return the chart of a card as SVG; empty for none."""
    return render_chart(card.chart, card.id, card.label) if card.chart is not None else ""


def _short(text: object, cells: int = 64) -> str:
    """Return a foreign text cleaned, and cut to so many cells."""
    cleaned = clean(str(text))
    return fit(cleaned, cells) if cell_width(cleaned) > cells else cleaned


def _span(since: float, until: float) -> str:
    """Format a time span: `2026-11-21 08:00 to 14:03`, with both dates where they differ."""
    begin, end = time.localtime(since), time.localtime(until)
    form = "%H:%M" if begin[:3] == end[:3] else "%Y-%m-%d %H:%M"
    return f"{time.strftime('%Y-%m-%d %H:%M', begin)} to {time.strftime(form, end)}"


# -- the file ------------------------------------------------------------------------------------------------------


def check_target(path: Path) -> int:
    """Return the permissions for a page; raises UsageError if the file is not a page of gpuwatch."""
    try:
        found = path.lstat()
        begun = b"something else"
        if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid():
            with path.open("rb") as file:
                begun = file.read(len(START))
        if begun not in (b"", START.encode()):
            raise UsageError(
                f"--html: {clean(str(path))} exists, and is not a page of gpuwatch that you own; choose another name"
            )
    except FileNotFoundError:
        return 0o600
    except OSError as error:
        raise UsageError(f"--html: {files.words(error, path)}") from None
    return stat.S_IMODE(found.st_mode) & 0o644 | 0o600


def save_page(path: Path, page: str) -> None:
    """Write a page in one step, with the permissions of the page that it replaces; raises UsageError, GpuwatchError."""
    mode = check_target(path)
    try:
        with files.opened_folder(path.parent, private=False) as folder:
            files.replace_file(folder, path.name, page.encode("utf-8", "replace"), mode=mode)
    except OSError as error:
        kind = GpuwatchError if error.errno in files.FULL else UsageError
        raise kind(f"--html: {files.words(error, path)}") from None


# ---------------------------------------------------------------------------------------------------------------
# Charts: memory by owner, utilization and alerts over time, as SVG that matplotlib draws. No name of anybody is in
# them, and their colours are CSS variables of the page, for a light and a dark background.

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
