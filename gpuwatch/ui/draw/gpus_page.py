"""Page of all GPUs: a band for each, its memory by owner above its utilization, all over one time axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace
from rich.cells import cell_len

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.analysis.strays import Stray
from gpuwatch.base.text import fit
from gpuwatch.base.units import GIB, gib
from gpuwatch.history.timeline import Metric
from gpuwatch.model import shares
from gpuwatch.model.fields import GPU
from gpuwatch.model.snapshot import Gpu, Health, Reason, known, number
from gpuwatch.ui.draw.gpus import alerts_by_gpu, state_of
from gpuwatch.ui.draw.graph import Curve, Graph, at_column, plot_rows
from gpuwatch.ui.draw.lines import Line, LineBuilder, Span, blank
from gpuwatch.ui.draw.processes import overshoots
from gpuwatch.ui.draw.row_list import ItemCursor
from gpuwatch.ui.draw.sheet import Canvas, LinesBlock, SheetPage, reason_words
from gpuwatch.ui.draw.theme import Background, StyleSet
from gpuwatch.ui.draw.time_axis import AXIS, plot_cells
from gpuwatch.ui.draw.time_graphs import SMALL, FrameGraphs
from gpuwatch.ui.draw.view import View, day_time, mark_of

_MOST_ROWS: Final = 10
"""Rows of a band, at most; in as many the last one is blank."""
_FOOT: Final = 4
"""Lines below the bands: time axis, events, and the strip of the day with its clock times."""
_NAME: Final = 13
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


class GpuBands(ItemCursor[Gpu]):
    """Bands of all GPUs, with a cursor on one of them; each plot is drawn again only when it has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.layout = BandLayout(1, 1, 0)
        self.first = 0
        """Place of the first GPU on screen."""
        self._plots: dict[tuple[str, str], tuple[object, Plot]] = {}
        """Rows of the plots and their inputs, by the key of the GPU and the title."""

    def identity(self, row: Gpu) -> str:
        return row.key

    def place_at(self, y: int) -> int | None:
        """Return the place of the GPU on a line; None below the bands."""
        place = y // self.layout.rows
        return self.first + place if 0 <= place < self.layout.shown else None

    def plot(self, gpu: Gpu, graph: Graph, styles: StyleSet, cells: int, rows: int, column: int | None) -> Plot:
        """Return the rows of one of a GPU's plots."""
        key = (id(styles), cells, rows, column, graph.drawn_from)
        place = (gpu.key, graph.title)
        if self._plots.get(place, ("", []))[0] != key:
            self._plots[place] = key, plot_rows(graph, styles, cells, rows, column)
        return self._plots[place][1]


def gpus_page(
    bands: GpuBands, graphs: FrameGraphs, canvas: Canvas, strays: Mapping[tuple[int, int], Stray]
) -> SheetPage:
    """Return the page of all GPUs; the one under the cursor is on screen."""
    frame, styles = graphs.frame, canvas.styles
    gpus = frame.snapshot.gpus
    bands.update_rows(gpus)
    notice = "" if gpus else "No GPU is listed."
    width = canvas.widths[0]
    right = min(48, max(width * 35 // 100, min(24, width // 2 - 4)))
    graphs.fit(styles, width - right)
    layout = bands.layout = place_bands(len(gpus), canvas.room(notice) - canvas.margin)
    first = max(bands.first, bands.cursor - layout.shown + 1)
    bands.first = max(0, min(first, bands.cursor, len(gpus) - layout.shown))
    shown = gpus[bands.first : bands.first + layout.shown]
    view = View(frame, frame.received, styles, frame.snapshot.interval, strays=strays)
    alerts = alerts_by_gpu(frame)
    lines = [line for gpu in shown for line in _Band(gpu, graphs, bands, view, alerts[gpu.key], right).draw()]
    lines += _draw_foot(graphs, right, layout.foot)
    words = ["GPUs" if len(shown) == len(gpus) else f"GPUs {shown[0].index} to {shown[-1].index} of {len(gpus)}"]
    if graphs.shown_at is not None:
        words.append(day_time(graphs.shown_at, graphs.now, "%H:%M:%S"))
    elif whole := sum(shares.usable(gpu) or 0 for gpu in gpus if known(gpu.memory.used)):
        words.append(f"{gib(sum(number(gpu.memory.used) or 0 for gpu in gpus))} of {gib(whole)} GiB")
    return SheetPage(graphs.title(" · ".join(words)), [LinesBlock(lines)], title_end=graphs.span_words(), notice=notice)


class _Band:
    """Band of a GPU: its plots, with the present figures or those of the cursor's time at the right."""

    def __init__(
        self, gpu: Gpu, graphs: FrameGraphs, bands: GpuBands, view: View, alerts: Sequence[Alert], width: int
    ) -> None:
        """`alerts` are those of the GPU's row, and `width` is that of the figures."""
        self._gpu, self._graphs, self._bands, self._view, self._width = gpu, graphs, bands, view, width
        self._alerts = alerts
        self._column, self._cells = graphs.column, plot_cells(graphs.width)
        memory = graphs.memory_graph(gpu)
        # All GPUs have the same axis, so that the fuller one looks fuller.
        self._memory = replace(memory, top=float(shares.usable(gpu) or memory.top), named=False)
        self._is_old = view.dimmed(gpu) and self._column is None
        self._is_chosen = gpu is bands.selected

    def draw(self) -> list[Line]:
        """Return the lines of the band."""
        styles, graphs, gpu, layout = self._view.styles, self._graphs, self._gpu, self._bands.layout
        rows = layout.rows - (layout.rows == _MOST_ROWS)
        low = 0 if rows == 1 else max(1, rows * 2 // 5)
        if all(one.utilization is Reason.UNSUPPORTED for one in self._bands.found):
            low = 0
        curve = graphs.curve(gpu.key, "", Metric.UTILIZATION, gpu.utilization)
        use = graphs.graph("util", "%", [curve], 100.0, reason_words(gpu.utilization))
        plot = [
            *self._bands.plot(gpu, self._memory, styles, self._cells, rows - low, self._column),
            *self._bands.plot(gpu, use, styles, self._cells, low, self._column),
        ]
        mark, role, _ = (
            state_of(self._view, gpu, self._alerts, self._width) if self._column is None else (" ", "text", ())
        )
        bar, figures, lines = "|" if styles.glyphs.ascii else "┃" if self._is_chosen else "│", self._figures(rows), []
        for row in range(rows):
            builder = LineBuilder(styles, self._background if row == 0 else "base")
            if row == 0:
                builder.write(styles.glyphs.cursor if self._is_chosen else " ", "strong").write(mark, role, 1)
                builder.write(str(gpu.index), "strong", AXIS - 4, right=True).gap()
            else:
                builder.write("util" if row == rows - low and rows > 2 else "", "faint", AXIS - 1)
            builder.background = "base"
            builder.write(bar, "strong" if self._is_chosen else "faint").write_spans(plot[row])
            lines.append(builder.gap(graphs.width - builder.cells).write_spans(figures[row]).spans)
        blanks = [blank(styles, graphs.width + self._width)] * (layout.rows - rows)
        return [*map(tuple, lines), *blanks]

    @property
    def _background(self) -> Background:
        return "cursor" if self._is_chosen else "base"

    def _figures(self, rows: int) -> list[Line]:
        styles, width, gpu = self._view.styles, self._width, self._gpu
        first, last = LineBuilder(styles, self._background).gap(), LineBuilder(styles).gap()
        between = [LineBuilder(styles).gap(2) for _ in range(rows - 2)]
        first.write(f"{self._figure('memory', Metric.USED):>4}", "faint" if self._is_old else "strong")
        owners = self._owners()
        if rows <= 2:
            if rows == 2:
                self._write_owners(first.gap(), owners, compact=True)
            use = first.gap() if rows == 1 else last
            self._write_use(use, brief=True)
            self._write_state(use)
        else:
            whole = shares.usable(gpu)
            first.write(f"/{gib(whole)}" if whole is not None else "", "muted").gap()
            self._write_state(first)
            for row, builder in enumerate(between):
                self._write_owners(builder, owners[row : row + 1] if row < rows - 3 else owners[row:])
            if gpu.health is not Health.OK and not owners:
                between[0].write(gpu.words, "muted", width - 2)
            self._write_use(last, brief=False)
        return [one.build(width) for one in (first, *between, last)[:rows]]

    def _figure(self, key: str, metric: Metric) -> str:
        """Return a figure of now or of the cursor's time, without its unit."""
        glyphs = self._view.styles.glyphs
        if self._column is None:
            return GPU[key].cell(self._gpu, glyphs.missing, glyphs.least)
        value = self._graphs.figure(self._gpu, metric)
        return glyphs.missing if value is None else gib(value) if metric is Metric.USED else f"{value:.0f}"

    def _write_use(self, builder: LineBuilder, *, brief: bool) -> None:
        """Write utilization, and power and temperature where there is room; what is not measured is left out."""
        missing = self._view.styles.glyphs.missing
        units = (
            ("utilization", Metric.UTILIZATION, "%", 3),
            ("power", Metric.POWER, "W", 4),
            ("temperature", Metric.TEMPERATURE, self._view.styles.glyphs.celsius, 3),
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
        """Write the present state; the cursor's time has none."""
        if self._column is None:
            for words, style in state_of(self._view, self._gpu, self._alerts, self._width - builder.cells)[2]:
                builder.write(words, style)

    def _owners(self) -> list[tuple[float, Curve]]:
        """Return the owners with memory that can be seen, the largest first, then the memory of unknown processes."""
        found = []
        for curve in self._memory.curves:
            value = curve.now if self._column is None else at_column(curve.values, self._column, self._cells)
            if value is not None and value >= 0.05 * GIB:
                found.append((value, curve))
        return sorted(found, key=lambda one: (one[1].hatched, -one[0]))

    def _write_owners(
        self, builder: LineBuilder, owners: Sequence[tuple[float, Curve]], *, compact: bool = False
    ) -> None:
        """Write owners in a row, and the number of those without room."""
        glyphs, now, gap = self._view.styles.glyphs, self._column is None, 1 if compact else 2
        over = self._over() if now else {}
        for place, (value, curve) in enumerate(owners):
            name = fit(curve.label, min(_NAME, cell_len(curve.label)), ellipsis=glyphs.ellipsis)
            mark, role = mark_of(over[curve.label], glyphs) if curve.label in over else ("", "text")
            # A narrow column has only the declared memory of owners who exceed it.
            limit = f"/{curve.limit}" if now and curve.limit and (mark or not compact) else ""
            more = len(owners) - place - 1
            needed = 2 * (not compact) + cell_len(name) + 1 + len(gib(value)) + len(limit) + 2 * bool(mark)
            if builder.cells + needed + (gap + len(f"+{more}")) * bool(more) > self._width and place:
                builder.write(f"+{more + 1}", "muted")
                return
            if not compact:
                builder.write(glyphs.hatch if curve.hatched else curve.mark, curve.style).gap()
            builder.write(f"{name} ").write(gib(value), "strong").write(limit, "muted")
            builder.write(f" {mark}" if mark else "", role).gap(gap)

    def _over(self) -> dict[str, Severity]:
        """Return the severity of the worst overshoot of owners who hold more than they declared."""
        frame, key = self._graphs.frame, self._gpu.key
        over, worst = overshoots((*frame.alerts, *frame.early)), dict[str, Severity]()
        for owner in frame.holdings.owners(self._gpu):
            for one in owner.processes:
                if (found := over.get((key, one.process.pid))) is not None:
                    worst[owner.name] = max(found, worst.get(owner.name, found))
        return worst


def _draw_foot(graphs: FrameGraphs, right: int, lines: int) -> list[Line]:
    """Draw the time axis with the events on it, the newest of them, and the strip of the last day."""
    width, words = graphs.width + right, ("memory by owner over utilization", "memory over utilization")
    recent = graphs.events(lambda alert: graphs.start <= alert.raised < graphs.until)
    found = [(graphs.axis_line(recent), next((one for one in words if len(one) < right), ""))]
    found.append(((*blank(graphs.styles, AXIS - 1), *graphs.event_line(recent, width - AXIS + 1)), ""))
    found += zip(graphs.strip_lines(graphs.frame.snapshot.gpus, times=True), ("memory of all GPUs", ""), strict=False)
    builders = [(LineBuilder(graphs.styles).write_spans(line).gap(), words) for line, words in found[:lines]]
    return [builder.write(words, "faint").build(width) for builder, words in builders]
