"""Sheet with graphs over time: spans, a cursor for keys and mouse, and values that are read only when they are due."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from math import ceil
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from msgspec.structs import replace
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.unattributed import missing
from gpuwatch.analysis.events import fold_repeats, lasted_words, moment, repeat_words, state_words, without_known
from gpuwatch.base.text import clean
from gpuwatch.base.units import GIB, gib
from gpuwatch.history.timeline import Extent, Key, Metric, user_owner
from gpuwatch.model.shares import declared_memory, usable
from gpuwatch.model.snapshot import Gpu, Reading, known, number
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.gpus import parts
from gpuwatch.ui.draw.graph import (
    SPANS,
    Curve,
    Graph,
    GraphLimit,
    Mark,
    Values,
    axis_end,
    axis_top,
    draw_legend,
    draw_plot,
    plot_cells,
    points,
    time_at,
)
from gpuwatch.ui.draw.lines import Line, blank
from gpuwatch.ui.draw.theme import StyleSet
from gpuwatch.ui.draw.view import day_time, mark_of, replay_words
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.sheet import Block, Fact, Placed, Section, Sheet, reason_words

if TYPE_CHECKING:
    from gpuwatch.analysis.events import Events
    from gpuwatch.monitor import Frame

MOST_EVENTS: Final = 12
"""Events that a sheet lists, at most."""
HIGH_GRAPH: Final = 10
"""Lines of a graph from which on its legend may have two."""
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
        """Lines; with one line there is the legend alone."""
        self.cursor: float | None = None
        """Wall-clock time whose values the legend shows; None for the newest."""
        self.legend_lines: int | None = None
        """Lines of the legend, so that plots beside each other begin at one height; None for as many as it needs."""
        self._key: object = None
        self._plot: list[Line] = []

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        graph = self.graph
        if graph is None or self.height <= 0:
            return []
        curves = [(one.values, one.style, one.mark) for one in graph.curves]
        key = (id(styles), width, self.height, self.cursor, graph.until, graph.span, graph.top, graph.low)
        lines = self.legend_lines or 1 + (self.height >= HIGH_GRAPH)
        legend = draw_legend(graph, styles, width, lines=lines, cursor=self.cursor)
        legend += [blank(styles, width)] * ((self.legend_lines or 0) - len(legend))
        whole = (*key, curves, graph.limits, graph.marks, graph.empty, len(legend))
        if whole != self._key:
            self._key = whole
            self._plot = draw_plot(graph, styles, width, self.height - len(legend), cursor=self.cursor)
        return [*legend, *self._plot]


class TimeSheet(Sheet):
    """Sheet with graphs over a span of time, wherever their values come from."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(
                str(number),
                f"span({span:.0f})",
                "span",
                id=f"graph.span.{number}",
                key_display="1-5" if number == 1 else None,
                show=number == 1,
                tooltip=f"Graphs of the last {name}",
            )
            for number, (span, name) in enumerate(SPANS.items(), 1)
        ),
        Binding("left", "read(-1)", "read", id="graph.left", tooltip="Read the values before"),
        Binding("right", "read(1)", "read", id="graph.right", tooltip="Read the values after"),
    ]

    def __init__(self, styles: StyleSet | None = None) -> None:
        super().__init__(styles)
        self.span = 600.0
        """Seconds that the graphs show."""
        self.cursor: float | None = None
        """Wall-clock time whose values the legends show; None for the newest."""
        self.blocks: dict[str, GraphBlock] = {}

    @property
    @abstractmethod
    def now(self) -> float:
        """Wall-clock time of the newest values."""

    @abstractmethod
    def graphs(self) -> Sequence[Graph]:
        """Return the graphs, each with its own title."""

    @abstractmethod
    def rebuild(self) -> None:
        """Show the newest frame."""

    def redraw(self) -> None:
        if self.ready:
            self.rebuild()

    @property
    def until(self) -> float:
        """End of the time axes."""
        return axis_end(self.now, self.span)

    @property
    def graph_width(self) -> int:
        """Cells of each graph."""
        return self.widths()[0]

    def place_graphs(self, heights: Callable[[int], int]) -> list[GraphBlock]:
        """Return the blocks of the graphs; `heights` returns the lines of each by its place."""
        found: list[GraphBlock] = []
        if self.cursor is not None and self.cursor < self.until - self.span:
            self.cursor = None  # the graphs have moved on
        for place, graph in enumerate(self.graphs()):
            block = self.blocks.setdefault(graph.title, GraphBlock())
            block.graph, block.height, block.cursor = graph, heights(place), self.cursor
            found.append(block)
        return found

    def graph(
        self, title: str, unit: str, curves: Sequence[Curve], top: float, *, empty: str = "", **other: Any
    ) -> Graph:
        """Return a graph over the span; `empty` is the reason where no curve has any value, `other` as in `Graph`."""
        empty = empty or "no values in this time"
        return Graph(title, self.until, self.span, curves, top, unit, empty=empty, **other)

    # -- what the user does ----------------------------------------------------------------------------------------

    def action_span(self, seconds: float) -> None:
        """Show another span."""
        self.span = float(seconds)
        self.cursor = None
        self.rebuild()

    def action_read(self, by: int) -> None:
        """Move the cursor by a column; the first time it stands on the newest values."""
        cells = max(1, plot_cells(self.graph_width))
        each = self.span / cells
        start = self.until - self.span
        at = self.now if self.cursor is None else self.cursor + by * each
        place = min(max(int((at - start) / each), 0), ceil((self.now - start) / each) - 1)
        self.cursor = start + (place + 0.5) * each
        self.rebuild()

    def action_close(self) -> None:
        """Remove the cursor; without one go back."""
        if self.cursor is not None:
            self.cursor = None
            self.rebuild()
        else:
            self.dismiss(None)

    def point(self, placed: Placed, x: int, y: int, clicks: int) -> None:
        """Put the cursor where the mouse is over a graph."""
        block = placed.part
        if isinstance(block, GraphBlock) and block.graph is not None and y > 0:
            at = time_at(block.graph, x, placed.width)
            if at is not None and at != self.cursor and at <= self.now + self.span / 50:
                self.cursor = at
                self.rebuild()


class GraphSheet(TimeSheet):
    """Sheet of graphs and facts about a frame, from the timeline and the stores."""

    class OlderRead(Message):
        """Message: what was recorded before has been read."""

    class EventsRead(Message):
        """Message: the events log has been read."""

    def __init__(self, frame: Frame, styles: StyleSet | None = None, helpers: Helpers | None = None) -> None:
        super().__init__(styles)
        self.frame = frame
        self.helpers = helpers or Helpers()
        self.recorded: Sequence[Alert] = ()
        """Events of the log."""
        self._series: dict[Key, GraphSeries] = {}
        self._older: Future[None] | None = None
        self._log: Future[Events] | None = None

    def on_mount(self) -> None:
        super().on_mount()
        if self.helpers.events is not None:
            self._log = actions_of(self).background("gpuwatch-graphs")(self.helpers.events)
            self._log.add_done_callback(lambda _: self.post_message(self.EventsRead()))
        self.refresh_frame(self.frame)

    def on_graph_sheet_events_read(self) -> None:
        """Show the events of the log; where it cannot be read, those of this run are shown alone."""
        if self._log is not None and self._log.exception() is None:
            self.recorded = self._log.result().finished
        self._log = None
        self.rebuild()

    @property
    def reading(self) -> bool:
        """Whether the events log is being read."""
        return self._log is not None

    def on_graph_sheet_older_read(self) -> None:
        error = self._older.exception() if self._older is not None else None
        if error is not None:
            self.app.notify(clean(f"older values cannot be read: {error}"), severity="warning", markup=False)
        self._series = {}
        self.rebuild()

    def show(
        self, title: str, left: Sequence[Section | Block], right: Sequence[Section | Block], *, title_end: str = ""
    ) -> None:
        title = " · ".join(filter(None, (replay_words(self.frame), title)))
        super().show(title, left, right, title_end=title_end)

    def refresh_frame(self, frame: Frame) -> None:
        if frame.history.timeline is not self.frame.history.timeline:  # a replay has gone to another time
            self._series, self._older, self.cursor = {}, None, None
        self.frame = frame
        if self.ready:
            self.rebuild()

    # -- values ----------------------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Wall-clock time of the newest values."""
        return self.frame.snapshot.taken

    def read(self, gpu: str, owner: str, metric: Metric, *, stacked: bool = False) -> list[float | None]:
        """Return the values of a series; they are read again when the next point is due."""
        key = Key(gpu, owner, metric)
        count = points(self.graph_width, self.span, stacked=stacked)
        each = self.span / count
        due = (self.until, self.span, count, int(self.now // each))
        found = self._series.get(key)
        if found is None or found.due != due:
            timeline = self.frame.history.timeline
            values = timeline.read(key, self.until, self.span, count)
            found = GraphSeries(due, values, timeline.extent(key, self.until, self.span))
            self._series[key] = found
        return found.values

    def curve(
        self, gpu: str, owner: str, metric: Metric, now: Reading, label: str = "", *, other: bool = False
    ) -> Curve:
        """Return the line of a series with its extent; the `other` of two has another colour."""
        values, style = self.read(gpu, owner, metric), self.style_set("text" if other else "note")
        extent = self._series[Key(gpu, owner, metric)].extent
        if extent is not None and known(now):
            extent = extent._replace(low=min(extent.low, now), high=max(extent.high, now))
        return Curve(label, values, style, label[:1].lower() or "*", number(now), extent=extent)

    def place_graphs(self, heights: Callable[[int], int]) -> list[GraphBlock]:
        found = super().place_graphs(heights)
        self.read_older()
        return found

    def read_older(self) -> None:
        """Read the values of before from the stores where those that were read begin later than the span; once."""
        if self._lacks_values and self._older is None and self.helpers.older is not None:  # what was before, once
            older, timeline, now = self.helpers.older, self.frame.history.timeline, self.now
            self._older = actions_of(self).background("gpuwatch-graphs")(lambda: older(timeline, now))
            self._older.add_done_callback(lambda _: self.post_message(self.OlderRead()))

    @property
    def _since(self) -> float | None:
        """Earliest wall-clock time of a value in the graphs."""
        drawn = [one.extent for one in self._series.values() if one.due[:2] == (self.until, self.span)]
        return min((one.first for one in drawn if one is not None), default=None)

    @property
    def _lacks_values(self) -> bool:
        """Whether the graphs begin later than their span."""
        since, start = self._since, self.until - self.span
        return since is None or since - start > max(self.span / 30, 2.0)

    def title_words(self) -> str:
        """Return the span of the graphs, and from when on values are known where that is later."""
        words = f"last {SPANS[self.span]}"
        if not self._lacks_values:
            return words
        reading = ", reading older ones" if self._older is not None and not self._older.done() else ""
        since = self._since or 0.0
        form = "%H:%M:%S" if self.span <= 600 and since % 60 else "%H:%M"  # of a longer time the minutes are kept
        known = f"known since {day_time(since, self.now, form)}" if since else "no values yet"
        return f"{words}, {known}{reading}"

    def memory_graph(self, gpu: Gpu, marks: Sequence[Mark]) -> Graph:
        """Return the graph of the memory by owner, with the declared limits of those who have any."""
        timeline, key = self.frame.history.timeline, gpu.key
        styles = self.style_set
        used = self.read(key, "", Metric.USED, stacked=True)
        people = {process.pid: process for process in self.frame.snapshot.processes}
        held = {part.uid: part for part in parts(gpu.holdings, people, gpu.uuid)}
        owners = {user_owner(uid) for uid in held} | set(timeline.owners(key, self.until, self.span))
        curves: list[Curve] = []
        limits: list[GraphLimit] = []
        below: list[float | None] = [None if one is None else 0.0 for one in used]
        for owner in sorted(owners, key=lambda one: (one == user_owner(None), len(one), one)):
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
                mine = tuple(one for one in gpu.holdings if one.pid in people and people[one.pid].uid == uid)
                sums = declared_memory(replace(gpu, holdings=mine), people)
                if not sums.unread and not sums.undeclared:
                    limit = gib(part.declared)
                label_once = "" if limits else "as declared"
                since = max((people[one.pid].started or 0.0 for one in mine), default=0.0)
                limits.append(GraphLimit(label_once, self._above(below, part.declared, since), styles("strong")))
            below = [
                None if base is None and value is None else (base or 0.0) + (value or 0.0)
                for base, value in zip(below, values, strict=True)
            ]
            now = float(part.bytes) if part is not None else None
            curves.append(Curve(label, values, styles.owner(uid), styles.initial(uid), now, limit=limit))
        memory = gpu.memory
        rest: Values = [
            None if one is None else max(0.0, one - (held_then or 0.0))
            for one, held_then in zip(used, below, strict=True)
        ]
        # A store of the machine's service has the used memory alone: that does not make its processes unknown ones.
        unowned = self._unowned(key, rest, below, curves)
        if largest(unowned) >= _LEAST_SEEN and not gpu.holdings_note:
            curves.append(Curve("owner not recorded", unowned, styles.owner(None), styles.initial(None)))
            rest = [None if one is None else one - (more or 0.0) for one, more in zip(rest, unowned, strict=True)]
        unknown = missing(gpu)
        if not curves or unknown is None or largest(rest, [unknown]) >= _LEAST_SEEN:
            # Where the driver does not tell its own memory from that of unknown processes, it is both.
            label = "rest" if known(memory.used) and not known(gpu.unattributed) else "unknown"
            curves.append(Curve(label, rest, styles("muted"), styles.glyphs.hatch, unknown, hatched=True))
        whole = usable(gpu)
        return self.graph(
            "Memory",
            "GiB" if whole is None else f"GiB of {gib(whole)}",
            curves,
            axis_top(reach(whole, largest(below, used, least=0.1 * GIB)), GIB),
            limits=limits,
            marks=marks,
            show=gib,
            scale=GIB,
            stacked=True,
            empty=reason_words(memory.used),
            extent=self._series[Key(key, "", Metric.USED)].extent,
        )

    def _unowned(self, gpu: str, rest: Values, below: Values, curves: Sequence[Curve]) -> Values:
        """Return the part of the rest that listed processes held then, whose owners are not known for that time."""
        found: list[float | None] = []
        for place, listed in enumerate(self.read(gpu, "", Metric.MEMORY, stacked=True)):
            left = rest[place] or 0.0
            if listed is not None:
                left = min(left, max(0.0, listed - (below[place] or 0.0)))
            elif any(one.values[place] is not None for one in curves):
                left = 0.0
            found.append(None if rest[place] is None else left)
        return found

    def _above(self, below: Values, declared: int, since: float) -> list[float | None]:
        """Return a line as far above the owners below as the limit is; none before the last of the processes came."""
        start = self.until - self.span
        each = self.span / len(below)
        return [
            base + declared if base is not None and start + (place + 1) * each >= since else None
            for place, base in enumerate(below)
        ]

    # -- events ----------------------------------------------------------------------------------------------------

    def events(self, is_meant: Callable[[Alert], bool], ended: Iterable[Alert]) -> list[Alert]:
        """Return the events that `is_meant` accepts, the newest first: those that hold, that ended, and of the log."""
        found: dict[str, Alert] = {}
        ours = (*self.frame.alerts, *ended)
        for alert in (*ours, *without_known(self.recorded, ours)):
            if is_meant(alert):
                found.setdefault(alert.id or f"{alert.key} {alert.raised}", alert)
        return sorted(found.values(), key=lambda one: -one.raised)

    def event_section(self, found: Sequence[Alert]) -> Section:
        facts = []
        folded = fold_repeats(found, newest=True)
        for one in folded[:MOST_EVENTS]:
            alert = one.alert
            mark, _ = mark_of(alert.severity if alert.ended is None else alert.most, self.style_set.glyphs)
            how = state_words(alert) or "ongoing"
            aside = repeat_words(one, self.now) or f"{how}, {lasted_words(alert, self.now)}"
            facts.append(Fact(moment(alert.raised, self.now), f"{mark} {alert.title}", aside=aside))
        more = len(folded) - len(facts)
        facts += [Fact("", f"+{more}: e lists all events", missing=True)] * (more > 0)
        return Section("Events", tuple(facts) or (Fact("none", "nothing was raised", missing=True),))

    def event_marks(self, found: Sequence[Alert]) -> list[Mark]:
        marks = []
        for alert in sorted(found, key=lambda one: one.most):  # of several at one place the worst is drawn last
            text, role = mark_of(alert.most if alert.ended is not None else alert.severity, self.style_set.glyphs)
            marks.append(Mark(alert.raised, text, self.style_set(role)))
        return marks


def reach(limit: float | None, most: float) -> float:
    """Return how far an axis goes up for values of up to `most`: to a limit that is near, to the values otherwise."""
    return limit if limit is not None and most <= limit <= 1.25 * most else 1.05 * most


def largest(*series: Sequence[float | None], least: float = 0.0) -> float:
    """Return the largest value of some series, and at least `least`."""
    return max((one for values in series for one in values if one is not None and one > least), default=least)
