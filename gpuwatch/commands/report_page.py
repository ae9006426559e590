"""Page of `gpuwatch report --html`: one HTML file with charts and tables that needs neither a network nor a script.

Names, titles and hosts are other people's: each is escaped where it enters the page, and none enters a chart.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape
from math import ceil, nan
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from gpuwatch import __version__, files
from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.commands.console import Column
from gpuwatch.commands.events import EventRow, events_rows
from gpuwatch.commands.report_charts import OTHERS, SIGNS, SLOTS, UNSEEN, Bar, Chart, render_chart
from gpuwatch.commands.report_formats import MOST, SUMS, WHO, format_hours, total_cells, usage_notes
from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.minute import Minute
from gpuwatch.recorder.minutes import read_minutes
from gpuwatch.recorder.store import Events, read_events, reading
from gpuwatch.recorder.usage import UsageLine, UsageReport, read_hours, read_totals
from gpuwatch.text import cell_width, clean, fit
from gpuwatch.timeline import NO_USER, Metric, parse_key
from gpuwatch.units import UNKNOWN, long_duration

T = TypeVar("T")

DAY: Final = 24 * 3600
MOST_POINTS: Final = 360
"""Values of a chart in its width of 442 pixels, at most."""
MOST_EVENTS: Final = 300
"""Events in the table and on the time lines, at most: the worst, then the newest."""
MOST_GAPS: Final = 4
"""Times without gpuwatch that are listed, at most."""
_WIDEST: Final = 64
"""Cells of a name."""
_HOUR: Final = 3600.0

START: Final = (
    '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<meta name="generator" content="gpuwatch '
)
"""First characters of every page, by which an older one is known."""


# ---------------------------------------------------------------------------------------------------------------
# What the page is made from


class Series(msgspec.Struct, frozen=True):
    """Means over time, events and sizes, as a store or a recording has them."""

    means: Sequence[Minute] = ()
    """Means of minutes or hours, oldest first."""
    step: int = 60
    """Seconds of each."""
    totals: dict[str, float] = msgspec.field(default_factory=dict)
    """Bytes of memory by `Gpu.key`."""
    events: Events = msgspec.field(default_factory=Events)


def read_series(path: Path, since: float, until: float, *, minutes: Iterable[Minute] | None = None) -> Series:
    """Read means and events of a span of wall-clock time; raises FileNotFoundError and StoreError.

    `minutes` are those of a recording. Of a store the minutes are read for up to a day, else the hours; also where a
    recorder without minutes wrote it.
    """
    with reading(path, named=True) as connection:
        totals = read_totals(connection)
        step, means = 60, [one for one in minutes or () if since - 60 < one.at < until]
        if minutes is None and until - since <= DAY + _HOUR:
            means = [*read_minutes(connection, since, until)]
        if minutes is None and not means:
            step, means = 3600, [*read_hours(connection, since)]
    return Series(means, step, totals, read_events(path, since, named=True))


class Page(msgspec.Struct, frozen=True):
    """Contents of a page. Times are wall-clock times."""

    since: float
    until: float
    made: float
    parts: tuple[UsageReport, ...]
    """Use by user and by GPU, and by run where it is known."""
    series: Series
    source: str = "what gpuwatch recorded"


class GpuValues(msgspec.Struct):
    """Values of one GPU in the points of time of a chart; NaN is a gap."""

    count: list[int]
    """Means in each point."""
    used: list[float]
    busy: list[float]
    owners: dict[str, list[float]]


def resampled(series: Series, since: float, until: float) -> tuple[list[float], dict[str, GpuValues]]:
    """Return the edges of at most `MOST_POINTS` points of time, and the mean values of each GPU in them, by its key.

    A user who holds nothing on a GPU has 0 there while the GPU was watched.
    """
    step = series.step
    first = int(since // step) * step
    width = step * max(1, ceil((until - first) / step / MOST_POINTS))
    count = max(1, ceil((until - first) / width))
    edges = [float(first + width * at) for at in range(count + 1)]
    found: dict[str, GpuValues] = {}
    known: dict[str, list[list[int]]] = {}
    keys: dict[str, tuple[str, str, Metric] | None] = {}
    for one in series.means:
        at = int((one.at - first) // width)
        if not 0 <= at < count:
            continue
        seen = set()
        for words, value in one.values.items():
            if words not in keys:
                keys[words] = parse_key(words)
            key = keys[words]
            if key is None or key[1].startswith("process:"):
                continue
            gpu, owner, metric = key
            if gpu not in found:
                found[gpu] = GpuValues([0] * count, [0.0] * count, [0.0] * count, {})
                known[gpu] = [[0] * count, [0] * count]
            values = found[gpu]
            if metric is Metric.USED and not owner:
                values.used[at] += value
                known[gpu][0][at] += 1
            elif metric is Metric.UTILIZATION and not owner:
                values.busy[at] += value
                known[gpu][1][at] += 1
            elif metric is Metric.MEMORY and owner:
                values.owners.setdefault(owner, [0.0] * count)[at] += value
            else:
                continue
            seen.add(gpu)
        for gpu in seen:
            found[gpu].count[at] += 1
    for gpu, values in found.items():
        values.used = _means(values.used, known[gpu][0])
        values.busy = _means(values.busy, known[gpu][1])
        values.owners = {owner: _means(sums, values.count) for owner, sums in values.owners.items()}
    return edges, found


def _means(sums: Sequence[float], counts: Sequence[int]) -> list[float]:
    return [total / count if count else nan for total, count in zip(sums, counts, strict=True)]


def owner_colors(found: dict[str, GpuValues]) -> dict[str, int]:
    """Return the number of the colour of each owner in the charts.

    The last digit of the uid gives it, as on the dashboard, unless a user with more memory has it. The users with the
    most memory get a colour of their own, the others share one.
    """
    sums: dict[str, float] = {}
    for values in found.values():
        for owner, line in values.owners.items():
            sums[owner] = sums.get(owner, 0.0) + sum(value for value in line if value == value)
    colors = {owner: UNSEEN if owner == NO_USER else OTHERS for owner in sums}
    free = set(range(SLOTS))
    users = sorted((owner for owner in sums if owner != NO_USER), key=lambda owner: (-sums[owner], owner))
    for own_digit in (True, False):
        for owner in users[:SLOTS]:
            uid = int(owner.removeprefix("user:"))
            if colors[owner] == OTHERS and free and (not own_digit or uid % SLOTS in free):
                colors[owner] = min(free, key=lambda slot: (slot - uid) % SLOTS)
                free.remove(colors[owner])
    return colors


# ---------------------------------------------------------------------------------------------------------------
# The page


def render_page(page: Page) -> str:
    """Return the page."""
    users, gpus, *rest = page.parts
    gpus = replace(gpus, lines=tuple(sorted(gpus.lines, key=lambda line: line.gpus)))
    edges, found = resampled(page.series, page.since, page.until)
    colors = owner_colors(found)
    names = {owner: name for one in page.series.means for owner, name in one.users.items()}
    names |= {f"user:{line.uid}": line.name for line in users.lines if line.uid is not None}
    chosen = _chosen_events(page.series.events)
    swatches = {line.uid: colors.get(NO_USER if line.uid is None else f"user:{line.uid}") for line in users.lines}
    body = [
        _head(page),
        _facts(page),
        *(f"<p>{escape(words)}</p>" for words in _unknown(page)),
        "<section>\n<h2>GPUs over time</h2>",
        _explanation(page),
        '<div class="cards">',
        *_cards(page, edges, found, colors, names, chosen),
        "</div>\n</section>",
        _usage_section("Users", users, lambda line: swatches.get(line.uid)),
        _usage_section("GPUs", gpus),
        *(_usage_section("Runs", one) for one in rest if one.lines),
        _events_section(page, chosen),
    ]
    title = f"GPUs of {_short(users.host) or 'this machine'}, {_span(page.since, page.until)}"
    return f'{START}{escape(__version__)}">\n{_HEAD.format(title=escape(title), style=_STYLE)}' + "\n".join(
        [*body, "</main>\n</body>\n</html>\n"]
    )


def _head(page: Page) -> str:
    host = _name(page.parts[0].host or "this machine")
    span = f"{_span(page.since, page.until)} · {long_duration(page.until - page.since)}"
    made = time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(page.made))
    made = f"made {made} by gpuwatch {__version__} from {page.source}"
    return f"""<header>
<h1>GPUs of {host}</h1>
<p>{escape(span)}</p>
<p class="quiet">{escape(made)}</p>
</header>"""


def _facts(page: Page) -> str:
    users, gpus = page.parts[:2]
    total, watched = users.total, sum(line.watched or 0.0 for line in gpus.lines)
    idle = next(column.cell(UsageLine("", total)) for column in SUMS if column.header == "idle %")
    facts = [
        ("GPU·h watched", format_hours(watched)),
        ("GPU·h held", format_hours(sum(line.use.held for line in gpus.lines))),
        ("of the memory held was idle", f"{idle} %" if total.memory else UNKNOWN),
        ("overshoots", str(users.events.overshoots)),
        ("warnings and worse", str(users.events.warnings)),
    ]
    tiles = "".join(f"<div><dt>{escape(words)}</dt><dd>{escape(value)}</dd></div>" for words, value in facts)
    return f'<dl class="facts">{tiles}</dl>'


def _unknown(page: Page) -> Iterator[str]:
    """Yield a sentence for each thing that is not known."""
    span, watched = page.until - page.since, page.parts[0].watched
    lost = span - watched
    if not watched:
        yield "Nothing is known of this time: gpuwatch was not running, or no GPU listed its processes."
    elif lost > max(120.0, 0.005 * span):
        gaps = _gaps(page)
        listed = ", ".join(_span(*gap) for gap in gaps[:MOST_GAPS])
        more = f", and {len(gaps) - MOST_GAPS} more" if len(gaps) > MOST_GAPS else ""
        when = f" ({listed}{more})" if listed else ""
        yield (
            f"{long_duration(lost)} of {long_duration(span)} are not known: gpuwatch was not running, or no GPU "
            f"listed its processes{when}. The charts have gaps there, and the tables leave it out."
        )
    for words in usage_notes(page.parts[0].total):
        yield f"{words[0].upper()}{words[1:]}."
    if note := page.series.events.note:
        yield f"Of the events {note}."


def _gaps(page: Page) -> list[tuple[float, float]]:
    """Return the times of which there is no mean, from two steps on."""
    step, before, gaps = page.series.step, page.since, []
    for at in [*(one.at for one in page.series.means), page.until]:
        if at - before >= 2 * step:
            gaps.append((before, at))
        before = max(before, at + step)
    return gaps


def _explanation(page: Page) -> str:
    if not page.series.means:
        return "<p>There are no values of this time.</p>"
    words = (
        "Memory is stacked by owner. The line is all used memory; what is grey below it belongs to no listed process."
    )
    if page.series.step >= _HOUR:
        words = (
            "Means of what was watched of each hour: memory of the listed processes, stacked by owner, and the part of "
            "the time in which a process ran a kernel."
        )
    words += " Gaps are times without values."
    if page.series.events.alerts:
        words += " A bar of an alert leads to its line in the table of events."
    return f'<p class="quiet">{words}</p>'


def _cards(
    page: Page,
    edges: Sequence[float],
    found: dict[str, GpuValues],
    colors: dict[str, int],
    names: dict[str, str],
    chosen: Sequence[Alert],
) -> Iterator[str]:
    lines = {line.uuid: line for line in page.parts[1].lines}
    order = sorted({*lines, *found}, key=lambda gpu: (lines[gpu].gpus if gpu in lines else (1 << 30,), gpu))
    bars: dict[str, list[Bar]] = {}
    for number, alert in enumerate(chosen, 1):
        bars.setdefault(alert.gpu if alert.gpu in order else "", []).extend(alert_bars(alert, number, page))
    hourly = page.series.step >= _HOUR
    for number, gpu in enumerate(order):
        line = lines.get(gpu, UsageLine(""))
        title = f"GPU {line.gpus[0] if line.gpus else '?'}"
        name = f" <small>{_name(line.name.removeprefix('NVIDIA '))}</small>" if line.name else ""
        values = found.get(gpu)
        if values is None:
            yield f'<article class="card"><h3>{title}{name}</h3><p class="quiet">no values of this time</p></article>'
            continue
        stack = _stack(values, colors)
        chart = Chart(
            edges,
            owners=stack,
            used=values.used if any(value == value for value in values.used) else (),
            total=page.series.totals.get(gpu),
            busy=values.busy if any(value == value for value in values.busy) else (),
            busy_title="busy, % of the time" if hourly else "utilization, %",
            bars=bars.get(gpu, ()),
        )
        label = f"{title}: memory by owner, utilization and alerts over time"
        svg = render_chart(chart, f"gpu{number}", label)
        yield f'<article class="card"><h3>{title}{name}</h3>\n{_legend(values, colors, names)}\n{svg}</article>'
    if bars.get(""):
        svg = render_chart(Chart(edges, bars=bars[""]), "machine", "Alerts of the whole machine over time")
        yield f'<article class="card"><h3>Whole machine</h3>\n{svg}</article>'


def _stack(values: GpuValues, colors: dict[str, int]) -> list[tuple[int, list[float]]]:
    """Return the memory by colour; owners who share a colour are one layer."""
    stack: dict[int, list[float]] = {}
    for owner in sorted(values.owners, key=lambda one: colors[one]):
        slot, line = colors[owner], values.owners[owner]
        stack[slot] = [one + two for one, two in zip(stack[slot], line, strict=True)] if slot in stack else line
    return list(stack.items())


def _legend(values: GpuValues, colors: dict[str, int], names: dict[str, str]) -> str:
    owners = sorted(values.owners, key=lambda one: colors[one])
    parts = [
        f"<li>{_swatch(colors[owner])}{_name(names.get(owner) or owner.removeprefix('user:'))}</li>"
        for owner in owners
        if colors[owner] < SLOTS
    ]
    parts += [f"<li>{_swatch(UNSEEN)}owner not visible</li>"] * (NO_USER in owners)
    others = sum(colors[owner] == OTHERS for owner in owners)
    if others:
        parts.append(f"<li>{_swatch(OTHERS)}{'1 other' if others == 1 else f'{others} others'}</li>")
    return f'<ul class="legend">{"".join(parts) or "<li>nobody held memory</li>"}</ul>'


def _swatch(slot: int | None) -> str:
    return "" if slot is None else f'<i class="swatch o{slot}">{SIGNS[slot]}</i>'


def alert_bars(alert: Alert, number: int, page: Page) -> Iterator[Bar]:
    """Yield the times in which an alert was seen to hold: all of it but those in which gpuwatch was not running."""
    events, severity = page.series.events, max(alert.most, alert.severity).name.lower()
    end = alert.ended if alert.ended is not None else page.until if events.watched else events.watched_until
    begin = min(max(alert.raised, page.since), page.until)
    end = min(max(end or alert.seen, begin), page.until)
    for gap in sorted(gap for gap in events.gaps if not gap.lost and begin < gap.until and gap.since < end):
        if begin < gap.since:
            yield Bar(begin, gap.since, severity, alert.rule == OVERSHOOT, f"event-{number}")
        begin = gap.until
    if begin <= end:
        yield Bar(begin, end, severity, alert.rule == OVERSHOOT, f"event-{number}")


def _chosen_events(events: Events) -> list[Alert]:
    worst = sorted(events.alerts, key=lambda one: (-max(one.most, one.severity), -one.raised, one.key))[:MOST_EVENTS]
    return sorted(worst, key=lambda one: (one.raised, one.key))


# ---------------------------------------------------------------------------------------------------------------
# Tables


def _usage_section(title: str, kept: UsageReport, color: Callable[[UsageLine], int | None] = lambda _: None) -> str:
    if not kept.lines:
        return ""
    columns = [*WHO[kept.by], *SUMS]
    rows = []
    for line in kept.lines[:MOST]:
        first, *cells = [escape(column.cell(line)) for column in columns]
        rows.append(("", [f"{_swatch(color(line))}<bdi>{first}</bdi>", *cells]))
    more = kept.more + len(kept.lines) - MOST
    if len(kept.lines) > 1:
        rows.append(('class="sum"', [escape(cell) for cell in total_cells(kept)]))
    note = f'<p class="quiet">{more} more with less</p>' if more > 0 else ""
    return f"<section>\n<h2>{title}</h2>\n{_table(columns, rows)}{note}\n</section>"


_EVENT_COLUMNS: Final[tuple[Column[EventRow], ...]] = (
    Column("start", lambda row: row.start, right=False),
    Column("for", lambda row: row.lasted),
    Column("severity", lambda row: f"{row.mark} {row.severity}".strip(), right=False),
    Column("GPU", lambda row: row.gpu),
    Column("who", lambda row: row.owners, right=False),
    Column("what", lambda row: row.title, right=False),
    Column("worst", lambda row: row.worst, right=False),
    Column("how it ended", lambda row: row.how, right=False),
)


def _events_section(page: Page, chosen: Sequence[Alert]) -> str:
    events = page.series.events
    numbers = {alert.id: number for number, alert in enumerate(chosen, 1)}
    gaps = [gap for gap in events.gaps if gap.until > page.since and gap.since < page.until]
    found = events_rows(chosen, page.made, watched=events.watched, until=events.watched_until, gaps=gaps)
    if not found:
        return "<section>\n<h2>Events</h2>\n<p>No alert was recorded in this time.</p>\n</section>"
    rows = []
    for row in found:
        name = "" if row.alert is None else f'id="event-{numbers[row.alert.id]}"'
        cells = [f"<bdi>{escape(_short(column.cell(row), 400))}</bdi>" for column in _EVENT_COLUMNS]
        cells[2] = f'<span class="{row.severity if row.alert is not None else "quiet"}">{cells[2]}</span>'
        rows.append((name, cells))
    more = len(events.alerts) - len(chosen)
    note = f'<p class="quiet">{more} more that were less severe or older: `gpuwatch events`</p>' if more > 0 else ""
    return f"<section>\n<h2>Events</h2>\n{_table(_EVENT_COLUMNS, rows)}{note}\n</section>"


_SHORT_COLUMNS: Final = frozenset({"start", "severity"})
"""Headers of columns that are not broken into lines."""


def _table(columns: Sequence[Column[T]], rows: Iterable[tuple[str, Sequence[str]]]) -> str:
    """Return a table of columns and of rows: the attribute of the row, and its cells, which are escaped already."""
    sides = ["number" if one.right else "short" if one.header in _SHORT_COLUMNS else "words" for one in columns]
    heads = "".join(f'<th class="{side}">{escape(one.header)}</th>' for side, one in zip(sides, columns, strict=True))
    lines = []
    for attribute, cells in rows:
        drawn = "".join(
            f'<td class="{side}" data-label="{escape(column.header)}"><span>{cell}</span></td>'
            for side, column, cell in zip(sides, columns, cells, strict=True)
        )
        lines.append(f"<tr{f' {attribute}' if attribute else ''}>{drawn}</tr>")
    return f"<table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>\n</table>"


# ---------------------------------------------------------------------------------------------------------------
# Words


def _short(text: str, cells: int = _WIDEST) -> str:
    text = clean(text)
    return fit(text, cells) if cell_width(text) > cells else text


def _name(text: str) -> str:
    """Return a foreign name as an element; its direction of writing does not reach beyond it."""
    return f"<bdi>{escape(_short(text))}</bdi>"


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))


def _span(since: float, until: float) -> str:
    """Format a time span: `2026-11-21 08:00 to 14:03`, with both dates where they differ."""
    same = time.localtime(since)[:3] == time.localtime(until)[:3]
    return f"{_date(since)} to {time.strftime('%H:%M', time.localtime(until)) if same else _date(until)}"


# ---------------------------------------------------------------------------------------------------------------
# The file


def check_target(path: Path) -> None:
    """Raise UsageError where a file may not be replaced: only a page of gpuwatch and an empty file may."""
    try:
        with files.opened_folder(path.parent, private=False) as folder:
            _check(folder, path.name)
    except OSError as error:
        raise UsageError(f"--html: {files.words(error, path)}") from None


def save_page(path: Path, page: str) -> None:
    """Write a page in one step, with the permissions of the page that it replaces; raises UsageError, GpuwatchError."""
    try:
        with files.opened_folder(path.parent, private=False) as folder:
            mode = _check(folder, path.name)
            files.replace_file(folder, path.name, page.encode("utf-8", "replace"), mode=mode)
    except OSError as error:
        kind = GpuwatchError if error.errno in files.FULL else UsageError
        raise kind(f"--html: {files.words(error, path)}") from None


def _check(folder: int, name: str) -> int:
    """Return the permissions for a file of this name; raises OSError where something else is there."""
    if not name:
        raise files.UnsafePathError("it is no name of a file")
    with contextlib.suppress(FileNotFoundError):
        facts = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if not stat.S_ISREG(facts.st_mode):
            raise files.UnsafePathError("it is not a regular file")
        if facts.st_uid != os.geteuid():
            raise files.UnsafePathError(f"it belongs to uid {facts.st_uid}")
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        with open(file, "rb") as content:
            begun = content.read(len(START))
        if begun and begun != START.encode():
            raise files.UnsafePathError("it is there, and is no page of `gpuwatch report`; choose another name")
        return stat.S_IMODE(facts.st_mode) & 0o644 | 0o600
    return 0o600


_HEAD: Final = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; \
base-uri 'none'; form-action 'none'">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<main>
"""

LIGHT_OWNERS: Final = "#3d67b2 #1f653f #9f5530 #914590 #c2365d #298ba3 #349029 #3b44c2 #7f7c22 #c034ca #808080 #b3b8c2"
DARK_OWNERS: Final = "#86a7df #4cb080 #cb6a34 #c554d3 #cd6272 #33aebf #4bbd3b #7a79dd #a29c45 #d889cb #838383 #565d69"
"""The dashboard's colours of owners, its grey for those who are not visible, and one for all others."""


def _variables(owners: str, **others: str) -> str:
    colors = {f"owner{slot}": color for slot, color in enumerate(owners.split())} | others
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


LIGHT: Final = _variables(
    LIGHT_OWNERS, base="#fcfcfa", card="#ffffff", strong="#000000", text="#30353d", quiet="#5f6672", grid="#dfe2e6",
    used="#d9dde3", line="#30353d", note="#0b5cba", warning="#9a6200", critical="#c01f2c", mark="#fff3c9",
    sign="#ffffff",
)  # fmt: skip
DARK: Final = _variables(
    DARK_OWNERS, base="#14161b", card="#1a1d23", strong="#f2f4f7", text="#c5cad3", quiet="#98a0ae", grid="#31363f",
    used="#3a404b", line="#e4e7ec", note="#74b4f5", warning="#e8b650", critical="#ff7070", mark="#3b3a20",
    sign="#14161b",
)  # fmt: skip

_STYLE: Final = f""":root {{ color-scheme: light dark; {LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {DARK} }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0; background: var(--base); color: var(--text); font: 15px/1.45 system-ui, "DejaVu Sans", sans-serif; }}
main {{ max-width: 1240px; margin: 0 auto; padding: 20px 16px 40px; overflow-wrap: anywhere; }}
h1, h2, h3 {{ color: var(--strong); line-height: 1.2; margin: 0; }}
h1 {{ font-size: 26px; }}
h2 {{ font-size: 19px; margin: 28px 0 8px; break-after: avoid; }}
h3 {{ font-size: 15px; }}
h3 small {{ font-weight: normal; color: var(--quiet); }}
p {{ margin: 6px 0; max-width: 90ch; }}
header p {{ margin: 2px 0; }}
.quiet {{ color: var(--quiet); }}
.facts {{ display: flex; flex-wrap: wrap; gap: 8px 28px; margin: 16px 0; }}
.facts div {{ display: flex; flex-direction: column-reverse; }}
.facts dt {{ color: var(--quiet); font-size: 13px; }}
.facts dd {{ margin: 0; color: var(--strong); font-size: 22px; font-variant-numeric: tabular-nums; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 480px), 1fr)); gap: 14px; }}
.card {{ background: var(--card); border: 1px solid var(--grid); border-radius: 6px; padding: 10px 12px; }}
.card {{ min-width: 0; }}
.card, tr {{ break-inside: avoid; }}
.card svg {{ display: block; width: 100%; height: auto; margin-top: 4px; overflow: hidden; }}
.card svg * {{ stroke-linejoin: round; stroke-linecap: butt; }}
.legend {{ list-style: none; display: flex; flex-wrap: wrap; gap: 0 14px; margin: 2px 0 0; padding: 0; }}
.legend {{ font-size: 13px; }}
.legend li {{ min-width: 0; max-width: 100%; }}
.swatch {{ display: inline-block; width: 15px; border-radius: 3px; margin-right: 6px; color: var(--sign); }}
.swatch {{ font: 11px/15px system-ui, "DejaVu Sans", sans-serif; text-align: center; vertical-align: 1px; }}
{" ".join(f".o{slot} {{ background: var(--owner{slot}); }}" for slot in range(OTHERS + 1))}
table {{ border-collapse: collapse; width: 100%; font-size: 13.5px; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--grid); }}
th {{ color: var(--quiet); font-weight: normal; overflow-wrap: normal; }}
.number, .short {{ white-space: nowrap; }}
.number {{ text-align: right; }}
tr.sum td {{ color: var(--strong); font-weight: 600; }}
tr:target td {{ background: var(--mark); }}
.note {{ color: var(--note); }} .warning {{ color: var(--warning); }} .critical {{ color: var(--critical); }}
@media screen and (max-width: 760px) {{
  thead {{ display: none; }}
  table, tbody {{ display: block; }}
  tr {{ display: grid; grid-template-columns: 1fr 1fr; gap: 1px 16px; border-bottom: 1px solid var(--grid); }}
  tr {{ padding: 8px 0; }}
  td {{ display: grid; grid-template-columns: 6.4em minmax(0, 1fr); border: 0; padding: 0; white-space: normal; }}
  td::before {{ content: attr(data-label); color: var(--quiet); font-weight: normal; }}
  td.words, td.short {{ grid-column: 1 / -1; }}
  .number {{ text-align: left; }}
  }}
@media print {{
  body {{ background: none; font-size: 10pt; }}
  main {{ max-width: none; padding: 0; }}
  .cards {{ grid-template-columns: 1fr 1fr; gap: 8px; }}
  .card, .card *, .swatch {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
  table {{ font-size: 8pt; }}
  th, td {{ padding-right: 6px; }}
  @page {{ size: A4; margin: 12mm; }}
}}"""
