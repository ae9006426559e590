"""Page of all GPUs: a band for each, its memory by owner above its utilization, all over one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace
from rich.cells import cell_len

from gpuwatch.alerts.alert import Severity
from gpuwatch.analysis.strays import Stray
from gpuwatch.base.text import fit
from gpuwatch.base.units import GIB, gib
from gpuwatch.history.timeline import Metric
from gpuwatch.model import shares
from gpuwatch.model.fields import GPU
from gpuwatch.model.snapshot import Gpu, Health, Reason, known
from gpuwatch.ui.draw.gpus import bar_parts, state_of
from gpuwatch.ui.draw.graph import Graph, at_column, plot_rows
from gpuwatch.ui.draw.lines import Line, LineBuilder, Span, blank
from gpuwatch.ui.draw.processes import overshoots
from gpuwatch.ui.draw.sheet import Canvas, SheetPage, reason_words
from gpuwatch.ui.draw.theme import Background, Style, StyleSet
from gpuwatch.ui.draw.time_axis import AXIS, draw_axis, plot_cells
from gpuwatch.ui.draw.time_graphs import SMALL, FrameGraphs
from gpuwatch.ui.draw.view import View, day_time, mark_of

_MOST_ROWS: Final = 10
"""Rows of a band, at most; in as many the last one is blank."""
_FOOT: Final = 4
"""Lines below the bands: time axis, events, and the strip of the day with its clock times."""
_LEAST_PLOT: Final = 12
"""Cells of a plot, at least; where there is less room, there are figures alone."""
_NAME: Final = 12
"""Cells of an owner's name, at most."""


Plot: TypeAlias = list[list[Span]]
"""Rows of a plot."""


class BandLayout(NamedTuple):
    """Rows of each band, the number of bands on screen, and the lines below them."""

    rows: int
    shown: int
    foot: int


def place_bands(count: int, room: int) -> BandLayout:
    """Return the layout of the bands of `count` GPUs in `room` lines: two rows each at least, in low terminals one."""
    foot = _FOOT if room >= SMALL else max(0, min(1, room - count))
    rows = max(1 + (room >= SMALL), min(_MOST_ROWS, (room - foot) // max(1, count)))
    return BandLayout(rows, max(1, min(count, (room - foot) // rows)), foot)


class _Owned(NamedTuple):
    """What an owner holds on a GPU, or held at the time of the cursor."""

    name: str
    sign: str
    style: Style
    """Of the sign."""
    bytes: float
    declared: int | None = None
    over: Severity | None = None
    """Severity of the worst overshoot."""
    is_rest: bool = False
    """Whether it is the memory of unknown processes."""


class GpuBands:
    """Bands of all GPUs, of which only those on screen are drawn, each plot only when it has changed."""

    gap = 0

    def __init__(self) -> None:
        self.layout = BandLayout(1, 1, 0)
        self.first = 0
        """Place of the first GPU on screen."""
        self.lines: list[Line] = []
        self._plots: dict[tuple[str, str], tuple[object, Plot]] = {}
        """Rows of the plots by the key of the GPU and their titles, and what they were drawn from."""

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        """Return the lines that `gpus_page` has drawn."""
        return self.lines

    def place_at(self, y: int) -> int | None:
        """Return the place of the GPU on a line; None below the bands."""
        place = y // self.layout.rows
        return self.first + place if 0 <= place < self.layout.shown else None

    def plot(self, gpu: Gpu, graph: Graph, styles: StyleSet, cells: int, rows: int, column: int | None) -> Plot:
        """Return the rows of one of a GPU's plots."""
        if not rows or cells < _LEAST_PLOT:
            return [[]] * rows
        curves = [(one.values, one.style) for one in graph.curves]
        key = (id(styles), cells, rows, column, curves, graph.until, graph.span, graph.top, graph.empty, graph.limits)
        place = (gpu.key, graph.title)
        if self._plots.get(place, ("", []))[0] != key:
            self._plots[place] = key, plot_rows(graph, styles, cells, rows, column)
        return self._plots[place][1]


def gpus_page(
    chosen: str, graphs: FrameGraphs, bands: GpuBands, canvas: Canvas, strays: Mapping[tuple[int, int], Stray]
) -> SheetPage:
    """Return the page of all GPUs; the one with the key `chosen` has the cursor, and is on screen."""
    frame, styles = graphs.frame, canvas.styles
    gpus = frame.snapshot.gpus
    notice = "" if gpus else "No GPU is listed."
    width, room = canvas.widths[0], canvas.room(notice) - canvas.margin
    right = min(48, max(width * 35 // 100, min(24, width // 2 - 4)))
    if width - right - AXIS < _LEAST_PLOT:
        right = width - AXIS
    graphs.fit(styles, width - right)
    layout = bands.layout = place_bands(len(gpus), room)
    place = next((place for place, gpu in enumerate(gpus) if gpu.key == chosen), 0)
    bands.first = max(0, min(max(bands.first, place - layout.shown + 1), place, len(gpus) - layout.shown))
    shown = gpus[bands.first : bands.first + layout.shown]
    view = View(frame, frame.received, styles, frame.snapshot.interval, strays=strays)
    bands.lines = [
        line for gpu in shown for line in _draw_band(gpu, graphs, bands, view, right, is_chosen=gpu.key == chosen)
    ]
    bands.lines += _draw_foot(graphs, right, layout.foot)
    return SheetPage(graphs.title(_title(graphs, shown)), [bands], title_end=graphs.span_words(), notice=notice)


def _title(graphs: FrameGraphs, shown: Sequence[Gpu]) -> str:
    gpus, at = graphs.frame.snapshot.gpus, graphs.shown_at
    words = ["GPUs" if len(shown) == len(gpus) else f"GPUs {shown[0].index} to {shown[-1].index} of {len(gpus)}"]
    if at is not None:
        return " · ".join([*words, day_time(at, graphs.now, "%H:%M:%S")])
    used = sum(gpu.memory.used for gpu in gpus if known(gpu.memory.used))
    whole = sum(total for gpu in gpus if (total := shares.usable(gpu)) and known(gpu.memory.used))
    people = {one.uid for gpu in gpus for one in graphs.frame.holdings.owners(gpu) if one.uid is not None}
    words += [f"{gib(used)} of {gib(whole)} GiB"] * bool(whole)
    return " · ".join([*words, *[f"{len(people)} {'person' if len(people) == 1 else 'people'}"] * bool(people)])


def _draw_band(
    gpu: Gpu, graphs: FrameGraphs, bands: GpuBands, view: View, right: int, *, is_chosen: bool
) -> list[Line]:
    """Draw a GPU: its index and mark, its plots, and the figures of now or of the cursor's time."""
    styles, cells = view.styles, plot_cells(graphs.width)
    rows = bands.layout.rows - (bands.layout.rows == _MOST_ROWS)
    low = 0 if rows == 1 else max(1, rows * 2 // 5)
    if all(one.utilization is Reason.UNSUPPORTED for one in view.frame.snapshot.gpus):
        low = 0
    column = graphs.column
    memory = graphs.memory_graph(gpu, ())
    # All GPUs have the same axis, so that the fuller one looks fuller.
    memory = replace(memory, top=float(shares.usable(gpu) or memory.top), named=False)
    curve = graphs.curve(gpu.key, "", Metric.UTILIZATION, gpu.utilization)
    use = graphs.graph("util", "%", [curve], 100.0, reason_words(gpu.utilization))
    plot = bands.plot(gpu, memory, styles, cells, rows - low, column) + bands.plot(gpu, use, styles, cells, low, column)
    mark, role, _ = state_of(view, gpu, right)
    figures = _Figures(gpu, graphs, view, memory, right, is_chosen=is_chosen).draw(rows)
    bar = ("|", "|") if styles.glyphs.ascii else ("│", "┃")
    lines = []
    for row in range(rows):
        builder = LineBuilder(styles)
        if row == 0:
            builder = LineBuilder(styles, "cursor" if is_chosen else "base")
            builder.write(styles.glyphs.cursor if is_chosen else " ", "strong").write(mark, role, 1)
            builder.write(str(gpu.index), "strong", AXIS - 4, right=True).gap()
        else:
            builder.write("util" if row == rows - low and rows > 2 else "", "faint", AXIS - 1)
        builder.background = "base"
        builder.write(bar[is_chosen], "strong" if is_chosen else "faint").write_spans(plot[row])
        builder.gap(graphs.width - builder.cells)
        lines.append(builder.write_spans(figures[row]).build(graphs.width + right))
    return [*lines, *[blank(styles, graphs.width + right)] * (bands.layout.rows - rows)]


class _Figures:
    """Figures at the right of a band: those of now, or of the time under the cursor."""

    def __init__(
        self, gpu: Gpu, graphs: FrameGraphs, view: View, memory: Graph, width: int, *, is_chosen: bool
    ) -> None:
        self._gpu, self._graphs, self._view, self._memory, self._width = gpu, graphs, view, memory, width
        self._column, self._cells = graphs.column, plot_cells(graphs.width)
        self._background: Background = "cursor" if is_chosen else "base"
        self._is_old = view.dimmed(gpu) and self._column is None

    def draw(self, rows: int) -> list[Line]:
        """Return a line for each row of the band."""
        styles, width, gpu = self._view.styles, self._width, self._gpu
        first, last = LineBuilder(styles, self._background).gap(), LineBuilder(styles).gap()
        first.write(f"{self._figure('memory', Metric.USED):>4}", "faint" if self._is_old else "strong")
        owners = self._owners()
        if rows == 1:
            self._write_use(first.gap(), brief=True)
            self._write_state(first)
            return [first.build(width)]
        if rows == 2:
            self._write_owners(first.gap(), owners, compact=True)
            self._write_use(last, brief=True)
            self._write_state(last)
            return [first.build(width), last.build(width)]
        whole = shares.usable(gpu)
        first.write(f"/{gib(whole)}" if whole is not None else "", "muted").gap()
        self._write_state(first)
        between = [LineBuilder(styles).gap(2) for _ in range(rows - 2)]
        for row, builder in enumerate(between):
            self._write_owners(builder, owners[row : row + 1] if row < rows - 3 else owners[row:])
        if gpu.health is not Health.OK and not owners:
            between[0].write(gpu.words, "muted", width - 2)
        self._write_use(last, brief=False)
        return [one.build(width) for one in (first, *between, last)]

    def _figure(self, key: str, metric: Metric) -> str:
        """Return a figure of now or of the cursor's time, without its unit."""
        glyphs = self._view.styles.glyphs
        if self._column is None:
            return GPU[key].cell(self._gpu, glyphs.missing, glyphs.least)
        values = self._graphs.read(self._gpu.key, "", metric, stacked=metric is Metric.USED)
        value = at_column(values, self._column, self._cells)
        return glyphs.missing if value is None else gib(value) if metric is Metric.USED else f"{value:.0f}"

    def _write_use(self, builder: LineBuilder, *, brief: bool) -> None:
        """Write utilization, and power and temperature where there is room; what is not measured is left out."""
        degree = "C" if self._view.styles.glyphs.ascii else "°C"
        missing = self._view.styles.glyphs.missing
        units = (
            ("utilization", Metric.UTILIZATION, "%", 3),
            ("power", Metric.POWER, "W", 4),
            ("temperature", Metric.TEMPERATURE, degree, 3),
        )
        for key, metric, unit, cells in units[: 1 if brief else 3]:
            words = self._figure(key, metric)
            if words != missing:
                # In one style, since a change of style takes more bytes than these figures, which change each second.
                words = f"{words:>{cells}}{'' if brief else ' '}{unit} "
                builder.write(words, "faint" if self._is_old else "text")
            elif brief:
                builder.gap(cells + 2)

    def _write_state(self, builder: LineBuilder) -> None:
        """Write the state of now; there is none of the cursor's time."""
        if self._column is None:
            for words, style in state_of(self._view, self._gpu, self._width - builder.cells)[2]:
                builder.write(words, style)

    def _owners(self) -> list[_Owned]:
        """Return the owners with memory that can be seen, the largest first, then the memory of unknown processes."""
        styles, frame, key = self._view.styles, self._graphs.frame, self._gpu.key
        found = []
        if self._column is None:
            over = overshoots(frame.alerts)
            for owner in frame.holdings.owners(self._gpu):
                for part in bar_parts((owner,)):
                    pids = [one.process.pid for one in owner.processes]
                    worst = max((over[key, pid] for pid in pids if (key, pid) in over), default=None)
                    is_told = part.declared is not None and self._graphs.declares_all(owner)
                    declared = part.declared if is_told else None
                    sign, style = styles.initial(part.uid), styles.owner(part.uid).fill
                    found.append(_Owned(part.name, sign, style, part.bytes, declared, worst))
        for curve in self._memory.curves:
            value = curve.now if self._column is None else at_column(curve.values, self._column, self._cells)
            if value is not None and (curve.hatched or self._column is not None):
                found.append(_Owned(curve.label, curve.mark, curve.style, value, is_rest=curve.hatched))
        seen = [one for one in found if one.bytes >= 0.05 * GIB]
        return sorted(seen, key=lambda one: (one.is_rest, -one.bytes))

    def _write_owners(self, builder: LineBuilder, owners: Sequence[_Owned], *, compact: bool = False) -> None:
        """Write owners beside each other, and the number of those for which there is no room."""
        glyphs, gap = self._view.styles.glyphs, 1 if compact else 2
        for place, one in enumerate(owners):
            name = fit(one.name, min(_NAME, cell_len(one.name)), ellipsis=glyphs.ellipsis)
            # In a narrow column the declared memory of those who hold more of it stands alone.
            is_shown = one.declared is not None and (one.over is not None or not compact)
            limit = f"/{gib(one.declared or 0)}" if is_shown else ""
            mark, role = mark_of(one.over, glyphs) if one.over is not None else ("", "text")
            more = len(owners) - place - 1
            needed = 2 * (not compact) + cell_len(name) + 1 + len(gib(one.bytes)) + len(limit) + 2 * bool(mark)
            if builder.cells + needed + (gap + len(f"+{more}")) * bool(more) > self._width and place:
                builder.write(f"+{more + 1}", "muted")
                return
            if not compact:
                builder.write(one.sign, one.style).gap()
            builder.write(f"{name} " if one.name != one.sign or compact else "").write(gib(one.bytes), "strong")
            builder.write(limit, "muted").write(f" {mark}" if mark else "", role).gap(gap)


def _draw_foot(graphs: FrameGraphs, right: int, lines: int) -> list[Line]:
    """Draw the time axis with the events on it, the newest of them, and the strip of the last day."""
    styles, width, cells = graphs.styles, graphs.width + right, plot_cells(graphs.width)
    if not lines or cells < _LEAST_PLOT:
        return []
    recent = graphs.events(lambda alert: graphs.start <= alert.raised < graphs.until)
    axis = draw_axis(graphs.until, graphs.span, styles, graphs.width, graphs.event_marks(recent), graphs.column)
    legend = ("memory by owner over utilization", "memory over utilization", "")
    words = next(one for one in legend if len(one) < right)
    drawn = [LineBuilder(styles).write_spans(axis).gap().write(words, "faint").build(width)]
    events = graphs.event_line(recent, width - AXIS + 1)
    drawn.append(LineBuilder(styles).gap(AXIS - 1).write_spans(events).build(width))
    strip = graphs.strip_lines(graphs.frame.snapshot.gpus, times=True)
    for place, line in enumerate(strip):
        builder = LineBuilder(styles).write_spans(line)
        drawn.append(builder.gap().write("" if place else "memory of all GPUs", "faint").build(width))
    return drawn[:lines]
