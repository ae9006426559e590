"""Graphs over one span of time as parts of a page, with a cursor; those of a frame are read from its timeline."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import ceil
from typing import Any, Final, NamedTuple

from rich.cells import cell_len

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.unattributed import missing
from gpuwatch.analysis.events import fold_repeats, lasted_words, moment, repeat_words, state_words, without_known
from gpuwatch.base.units import GIB, gib
from gpuwatch.history.timeline import DAY, READ_GPU, Extent, Key, Metric, user_owner
from gpuwatch.model.holdings import declared_by
from gpuwatch.model.shares import usable
from gpuwatch.model.snapshot import Gpu, Reading, known, number
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.gpus import bar_parts
from gpuwatch.ui.draw.graph import (
    Curve,
    Graph,
    GraphLimit,
    Values,
    at_column,
    axis_top,
    draw_legend,
    draw_plot,
)
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.sheet import Fact, Section, reason_words
from gpuwatch.ui.draw.theme import Role, StyleSet
from gpuwatch.ui.draw.time_axis import AXIS, SPANS, Mark, axis_end, column_of, draw_axis, draw_strip, plot_cells
from gpuwatch.ui.draw.view import day_time, mark_of, replay_words

MOST_EVENTS: Final = 12
"""Events that a page lists, at most."""
_LEAST_EVENT: Final = 40
"""Least width in cells of a further event in the line."""
_LEAST_SEEN: Final = 0.05 * GIB
"""Bytes of an area that can be seen."""
SMALL: Final = 16
"""Lines of a sheet below which graphs are left out, or a line each."""


class GraphSeries(NamedTuple):
    """Series as it was read for a graph."""

    due: tuple[float, float, int, int]
    """End and length of the span, number of points, and number of the newest point: it changes when one is due."""
    values: list[float | None]
    extent: Extent | None


class GraphBlock:
    """Graph in a sheet: the plot is drawn again only when its values changed, the legend each time."""

    gap = 0
    """Blank lines below it: its time axis is enough."""

    def __init__(self) -> None:
        self.graph: Graph | None = None
        self.height = 1
        """Lines; a graph of one line has only its legend."""
        self.titled = True
        """Whether the legend is drawn."""
        self.axis = True
        """Whether the time axis is drawn."""
        self.cursor: float | None = None
        """Wall-clock time whose values the legend shows; None for the newest."""
        self._key: object = None
        self._plot: list[Line] = []

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        graph = self.graph
        if graph is None or self.height <= 0:
            return []
        key = (id(styles), width, self.height, self.titled, self.axis, self.cursor, graph.drawn_from)
        if key != self._key:
            self._key = key
            height = self.height - self.titled
            self._plot = draw_plot(graph, styles, width, height, axis=self.axis, cursor=self.cursor)
        return [*[draw_legend(graph, styles, width, cursor=self.cursor)] * self.titled, *self._plot]


class TimeGraphs:
    """Graphs over one span, wherever their values come from."""

    def __init__(self, styles: StyleSet, span: float = 600.0) -> None:
        self.styles = styles
        self.span = span
        """Seconds that the graphs show."""
        self.cursor: float | None = None
        """Wall-clock time whose values are read; None for the newest."""
        self.end: float | None = None
        """End of the time axes where they were moved to an earlier time; None where they follow the newest values."""
        self.now = 0.0
        """Wall-clock time of the newest values."""
        self.width = 1
        """Cells of each graph."""
        self.blocks: dict[str, GraphBlock] = {}
        """By the title of the graph."""

    @property
    def until(self) -> float:
        """End of the time axes."""
        return axis_end(self.now, self.span) if self.end is None else self.end

    @property
    def start(self) -> float:
        return self.until - self.span

    @property
    def shown_at(self) -> float | None:
        """Time whose values are shown: the cursor's, or the last one of an earlier window; None for the newest."""
        return self.cursor if self.cursor is not None or self.end is None else self.until - 0.5

    @property
    def column(self) -> int | None:
        """Column of the plots whose values are shown; None for the newest values."""
        at = self.shown_at
        return column_of(at, self.until, self.span, plot_cells(self.width)) if at is not None else None

    def fit(self, styles: StyleSet, width: int) -> None:
        """Make graphs of `width` cells from now on; a cursor that the graphs have left behind goes."""
        self.styles, self.width = styles, width
        if self.cursor is not None and not self.start <= self.cursor < self.until:
            self.cursor = None

    def graph(self, title: str, unit: str, curves: Sequence[Curve], top: float, empty: str = "", **other: Any) -> Graph:
        """Return a graph over the span; `empty` is the reason where no curve has any value, `other` as in `Graph`."""
        return Graph(title, self.until, self.span, curves, top, unit, empty=empty or "no data in this period", **other)

    def place(
        self, graphs: Sequence[Graph], heights: Sequence[int], gap: int = 0, *, titled: bool = True, axis: bool = True
    ) -> list[GraphBlock]:
        """Return the blocks of graphs, with the lines of each and of the gap below it."""
        placed = []
        for graph, height in zip(graphs, heights, strict=True):
            block = self.blocks.setdefault(graph.title, GraphBlock())
            block.graph, block.height, block.titled, block.axis = graph, height, titled, axis
            block.cursor, block.gap = self.shown_at, gap
            placed.append(block)
        return placed

    def set_span(self, seconds: float) -> None:
        """Show another span of time, which ends where the one before ended."""
        end = self.end and axis_end(self.end - 1, seconds)
        self.span, self.cursor, self.end = seconds, None, None
        if end is not None and end < self.until:
            self.end = end

    def move_window(self, by: int) -> None:
        """Move the time axes by halves of their span, within the last day; at the end they follow the newest values."""
        newest = axis_end(self.now, self.span)
        end = max(self.until + by * self.span / 2, newest - DAY + self.span)
        self.end = end if end < newest else None

    def reset(self) -> bool:
        """Remove the cursor, or without one show the newest values again; return whether anything changed."""
        changes = self.cursor is not None or self.end is not None
        if self.cursor is None:
            self.end = None
        self.cursor = None
        return changes

    def move_cursor(self, by: int) -> None:
        """Move the cursor by columns; it starts on the newest values."""
        each = self.span / max(1, plot_cells(self.width))
        newest = min(self.now, self.until - 0.5)
        at = newest if self.cursor is None else self.cursor + by * each
        place = min(max(int((at - self.start) / each), 0), ceil((newest - self.start) / each) - 1)
        self.cursor = self.start + (place + 0.5) * each

    def point(self, x: int) -> bool:
        """Put the cursor on a cell of the graphs; return whether it moved."""
        cells, place = plot_cells(self.width), x - AXIS
        at = self.start + (place + 0.5) * self.span / max(1, cells)
        if not 0 <= place < cells or at == self.cursor or at > self.now + self.span / 50:
            return False
        self.cursor = at
        return True


class FrameGraphs(TimeGraphs):
    """Graphs of a frame: their values are read from its timeline, and only when a new point is due."""

    def __init__(self, frame: Frame, styles: StyleSet, ended: Collection[Alert] = ()) -> None:
        """`ended` are the alerts that ended in this run."""
        super().__init__(styles)
        self.frame = frame
        self.now = frame.snapshot.taken
        self.ended = ended
        self.recorded: Sequence[Alert] = ()
        """Events of the log."""
        self.reads_older = False
        """Whether what was recorded before is being read."""
        self._series: dict[Key, GraphSeries] = {}
        self._day: tuple[object, list[float | None]] | None = None
        """Part of the memory that was in use over the last day, and what it was read for."""

    def update(self, frame: Frame) -> bool:
        """Show a newer frame; return whether it has another timeline, as where a replay goes to another time."""
        is_other = frame.history.timeline is not self.frame.history.timeline
        if is_other:
            self.forget()
            self.cursor = self.end = None
        self.frame, self.now = frame, frame.snapshot.taken
        return is_other

    def forget(self) -> None:
        """Read all values again."""
        self._series = {}
        self._day = None

    # -- values ----------------------------------------------------------------------------------------------------

    def read(self, gpu: str, owner: str, metric: Metric, *, stacked: bool = False) -> list[float | None]:
        """Return the values of a series; they are read again when the next point is due."""
        key = Key(gpu, owner, metric)
        cells = plot_cells(self.width) * (1 if stacked else 2)
        count = max(1, min(cells, int(self.span)))  # not more than one a second
        due = (self.until, self.span, count, int(self.now // (self.span / count)))
        series = self._series.get(key)
        if series is None or series.due != due:
            timeline = self.frame.history.timeline
            values = timeline.read(key, self.until, self.span, count)
            series = GraphSeries(due, values, timeline.extent(key, self.until, self.span))
            self._series[key] = series
        return series.values

    def curve(self, gpu: str, owner: str, metric: Metric, now: Reading, role: Role | None = None) -> Curve:
        """Return the curve of a series with its extent; without a role in the colour of filled curves."""
        values, style = self.read(gpu, owner, metric), self.styles(role) if role else self.styles.filled
        extent = self._series[Key(gpu, owner, metric)].extent
        if extent is not None and known(now) and self.end is None:
            extent = extent._replace(low=min(extent.low, now), high=max(extent.high, now))
        return Curve("", values, style, now=number(now), extent=extent)

    def figure(self, gpu: Gpu, metric: Metric) -> float | None:
        """Return a figure of a GPU at the time that is shown; None where it is not known."""
        if self.shown_at is None:
            return number(READ_GPU[metric](gpu))
        values = self.read(gpu.key, "", metric, stacked=metric is Metric.USED)
        return at_column(values, self.column or 0, max(1, plot_cells(self.width)))

    @property
    def _since(self) -> float | None:
        """Earliest wall-clock time of a value in the graphs."""
        drawn = [series.extent for series in self._series.values() if series.due[:2] == (self.until, self.span)]
        return min((extent.first for extent in drawn if extent is not None), default=None)

    @property
    def lacks_values(self) -> bool:
        """Whether the graphs begin later than their span."""
        since = self._since
        return since is None or since - self.start > max(self.span / 30, 2.0)

    @property
    def lacks_older(self) -> bool:
        """Whether the graphs or the last day begin later than they could."""
        return self.lacks_values or (self._day is not None and self._day[1][0] is None)

    def title(self, subject: str) -> str:
        """Return the title of a page: the time of a replay, and the subject."""
        return " · ".join(filter(None, (replay_words(self.frame), subject)))

    def span_words(self) -> str:
        """Return the spans to choose from: `data since 13:58  1m [10m] 1h 6h 24h`, or `until` an earlier end."""
        names = {seconds: name.replace(" min", "m").replace(" h", "h") for seconds, name in SPANS.items()}
        words = " ".join(f"[{name}]" if seconds == self.span else name for seconds, name in names.items())
        if self.end is not None:
            words = f"until {day_time(self.end, self.now)}  {words}"
        if not self.lacks_values:
            return words
        reading = ", reading older data" if self.reads_older else ""
        since = self._since or 0.0
        form = "%H:%M:%S" if self.span <= 600 and since % 60 else "%H:%M"  # of a longer time the minutes are kept
        known = f"data since {day_time(since, self.now, form)}" if since else "no data yet"
        return f"{known}{reading}  {words}"

    # -- memory ----------------------------------------------------------------------------------------------------

    def memory_graph(self, gpu: Gpu) -> Graph:
        """Return the graph of the memory by owner, with the declared limits of those who have any."""
        timeline, key = self.frame.history.timeline, gpu.key
        styles = self.styles
        used = self.read(key, "", Metric.USED, stacked=True)
        holders = {one.uid: one for one in self.frame.holdings.owners(gpu)}
        held = {part.uid: part for part in bar_parts(holders.values())}
        owners = {user_owner(uid) for uid in held} | set(timeline.owners(key, self.until, self.span))
        curves: list[Curve] = []
        limits: list[GraphLimit] = []
        below: list[float | None] = [None if value is None else 0.0 for value in used]
        for owner in sorted(owners, key=lambda owner: (owner == user_owner(None), len(owner), owner)):
            number_or_sign = owner.removeprefix("user:")
            uid = int(number_or_sign) if number_or_sign.isdigit() else None
            label = "owner unknown"
            if uid is not None:
                label = timeline.user_name(owner) or str(uid)
                styles.add_people({uid: label})
            values = self.read(key, owner, Metric.MEMORY, stacked=True)
            part = held.get(uid)
            limit = ""
            if part is not None and part.declared is not None:
                sums = declared_by(holders[uid].gpu, holders[uid].processes, self.frame.holdings.processes)
                if not sums.unread and not sums.undeclared:
                    limit = gib(part.declared)
                since = max(one.process.started or 0.0 for one in holders[uid].processes)
                limits.append(GraphLimit("", self._above(below, part.declared, since), styles("strong")))
            below = [
                None if base is None and value is None else (base or 0.0) + (value or 0.0)
                for base, value in zip(below, values, strict=True)
            ]
            now = float(part.bytes) if part is not None else None
            curves.append(Curve(label, values, styles.owner(uid).fill, styles.initial(uid), now, limit=limit))
        memory = gpu.memory
        rest: Values = [
            None if value is None else max(0.0, value - (held_then or 0.0))
            for value, held_then in zip(used, below, strict=True)
        ]
        # A store of the machine's service has only the used memory: its processes do not count as unknown.
        unowned = self._unowned(key, rest, below, curves)
        if largest(unowned) >= _LEAST_SEEN and not gpu.holdings_note:
            curves.append(Curve("owner not recorded", unowned, styles.owner(None).fill, styles.initial(None)))
            rest = [None if value is None else value - (more or 0.0) for value, more in zip(rest, unowned, strict=True)]
        unknown = missing(gpu)
        if not curves or unknown is None or largest(rest, [unknown]) >= _LEAST_SEEN:
            # Where the driver does not tell its own memory from that of unknown processes, it is both.
            label = "rest" if known(memory.used) and not known(gpu.unattributed) else "unknown"
            curves.append(Curve(label, rest, styles("muted"), styles.glyphs.hatch, unknown, hatched=True))
        whole = usable(gpu)
        return self.graph(
            "memory, GiB by owner",
            "GiB",
            curves,
            axis_top(reach(whole, largest(below, used, least=0.1 * GIB)), GIB),
            limits=limits,
            show=gib,
            scale=GIB,
            stacked=True,
            empty=reason_words(memory.used),
            extent=self._series[Key(key, "", Metric.USED)].extent,
            whole=whole,
        )

    def _unowned(self, gpu: str, rest: Values, below: Values, curves: Sequence[Curve]) -> Values:
        """Return the part of the rest that listed processes held then, whose owners are not known for that time."""
        unowned: list[float | None] = []
        for place, listed in enumerate(self.read(gpu, "", Metric.MEMORY, stacked=True)):
            left = rest[place] or 0.0
            if listed is not None:
                left = min(left, max(0.0, listed - (below[place] or 0.0)))
            elif any(curve.values[place] is not None for curve in curves):
                left = 0.0
            unowned.append(None if rest[place] is None else left)
        return unowned

    def _above(self, below: Values, declared: int, since: float) -> list[float | None]:
        """Return a line as far above the owners below as the limit is; none before the last of the processes came."""
        start, each = self.start, self.span / len(below)
        return [
            base + declared if base is not None and start + (place + 1) * each >= since else None
            for place, base in enumerate(below)
        ]

    # -- the last day -----------------------------------------------------------------------------------------------

    def strip_lines(self, gpus: Sequence[Gpu], *, times: bool = False) -> list[Line]:
        """Draw the part of some GPUs' memory that was in use over the last day; no line where no more is known.

        The window of the graphs is marked in it, and `times` adds a line of clock times.
        """
        cells = plot_cells(self.width) - 1
        if cells < 1:
            return []
        until = ceil((self.now + 1) * cells / DAY) * DAY / cells
        due = (until, cells, int(self.now // 60), [gpu.key for gpu in gpus])
        if self._day is None or self._day[0] != due:
            self._day = due, self._used_parts(gpus, until, cells)
        before = max(0, int((self.start - until + DAY) / DAY * cells))
        known = self._day[1][:before] if self.end is None else self._day[1]
        if all(value is None for value in known):
            return []
        return draw_strip(self._day[1], until, (self.start, min(self.until, self.now)), self.styles, times=times)

    def _used_parts(self, gpus: Sequence[Gpu], until: float, cells: int) -> list[float | None]:
        """Return the part of the memory of all GPUs with values that was in use, in equal parts of the last day."""
        used, whole = [0.0] * cells, [0.0] * cells
        for gpu in gpus:
            total = usable(gpu)
            values = self.frame.history.timeline.read(Key(gpu.key, "", Metric.USED), until, DAY, cells)
            for place, value in enumerate(values if total else ()):
                if value is not None and total:
                    used[place] += value
                    whole[place] += total
        return [one / total if total else None for one, total in zip(used, whole, strict=True)]

    # -- events ----------------------------------------------------------------------------------------------------

    def events(self, is_meant: Callable[[Alert], bool]) -> list[Alert]:
        """Return the events that `is_meant` accepts, the newest first: those that hold, that ended, and of the log."""
        meant: dict[str, Alert] = {}
        ours = (*self.frame.alerts, *self.ended)
        for alert in (*ours, *without_known(self.recorded, ours)):
            if is_meant(alert):
                meant.setdefault(alert.id or f"{alert.key} {alert.raised}", alert)
        return sorted(meant.values(), key=lambda alert: -alert.raised)

    def axis_line(self, events: Sequence[Alert]) -> Line:
        """Draw the time axis of all graphs, with the marks of events and the cursor on it."""
        marks = self.event_marks(events)
        return draw_axis(self.until, self.span, self.styles, self.width, marks, self.column)

    def event_line(self, events: Sequence[Alert], width: int) -> Line:
        """Draw the newest events in one line, as far as there is room; the last one may be cut."""
        builder = LineBuilder(self.styles).write("" if events else "no event in this period", "faint")
        for alert, *_ in fold_repeats(events, newest=True):
            if builder.cells and width - builder.cells < _LEAST_EVENT:
                break
            mark, role = self._mark(alert)
            builder.gap(2 * bool(builder.cells)).write(mark, role).write(f" {moment(alert.raised, self.now)} ", "muted")
            room = max(0, width - builder.cells)
            builder.write(alert.title, "text" if alert.ended is None else "muted", min(cell_len(alert.title), room))
        return builder.build(width)

    def event_section(self, events: Sequence[Alert]) -> Section:
        facts = []
        folded = fold_repeats(events, newest=True)
        for repeated in folded[:MOST_EVENTS]:
            alert = repeated.alert
            mark, _ = self._mark(alert)
            how = state_words(alert) or "ongoing"
            aside = repeat_words(repeated, self.now) or f"{how}, {lasted_words(alert, self.now)}"
            facts.append(Fact(moment(alert.raised, self.now), f"{mark} {alert.title}", aside=aside))
        more = len(folded) - len(facts)
        facts += [Fact("", f"+{more}: e lists all events", missing=True)] * (more > 0)
        return Section("Events", tuple(facts) or (Fact("none", "no alert so far", missing=True),))

    def event_marks(self, events: Sequence[Alert]) -> list[Mark]:
        marked = [(alert.raised, *self._mark(alert)) for alert in sorted(events, key=lambda alert: alert.most)]
        return [Mark(at, text, self.styles(role)) for at, text, role in marked]  # of one place the worst is drawn last

    def _mark(self, alert: Alert) -> tuple[str, Role]:
        """Return the mark of what an alert is, or of the worst that it was."""
        return mark_of(alert.severity if alert.ended is None else alert.most, self.styles.glyphs)


def reach(limit: float | None, most: float) -> float:
    """Return the upper end of an axis for values of up to `most`: a limit if it is near, otherwise the values."""
    return limit if limit is not None and most <= limit <= 1.25 * most else 1.05 * most


def largest(*series: Sequence[float | None], least: float = 0.0) -> float:
    """Return the largest value of some series, and at least `least`."""
    return max((value for values in series for value in values if value is not None and value > least), default=least)
