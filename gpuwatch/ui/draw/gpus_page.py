"""Page of all GPUs: memory by owner and utilization of each over time, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuwatch.analysis.strays import Stray
from gpuwatch.history.timeline import Metric
from gpuwatch.model.fields import GPU
from gpuwatch.model.shares import usable
from gpuwatch.model.snapshot import Gpu
from gpuwatch.ui.draw.gpus import state_of
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank
from gpuwatch.ui.draw.sheet import Canvas, Page, reason_words
from gpuwatch.ui.draw.theme import Background, StyleSet
from gpuwatch.ui.draw.time_graphs import HIGH_GRAPH, FrameGraphs, GraphBlock
from gpuwatch.ui.draw.view import View

_LEAST_WIDTH: Final = 26
"""Cells of a GPU, at least; where there is room for more GPUs in a row, there are more."""
_LEAST_HEIGHT: Final = 9
"""Lines of a GPU, at least, where the terminal has as many."""
_BETWEEN: Final = 2
"""Cells between two GPUs."""


class GpuGrid(NamedTuple):
    """Places of the GPUs: how many stand side by side, and the cells and lines of each."""

    per_row: int
    width: int
    height: int

    def place_at(self, x: int, y: int) -> int:
        """Return the place of the GPU at a cell of the grid; there may be none."""
        return y // self.height * self.per_row + min(x // (self.width + _BETWEEN), self.per_row - 1)


def make_grid(count: int, width: int, room: int) -> GpuGrid:
    """Return the grid of `count` GPUs: all of them where they fit, else whole rows."""
    fitting = max(1, (width + _BETWEEN) // (_LEAST_WIDTH + _BETWEEN))
    rows = max(1, ceil(count / fitting))
    per_row = max(1, ceil(count / rows))
    shown = max(1, min(rows, room // _LEAST_HEIGHT))
    return GpuGrid(per_row, (width + _BETWEEN) // per_row - _BETWEEN, max(1, room // shown))


class GpuCell:
    """Graphs of one GPU, each drawn again only when it has changed."""

    def __init__(self) -> None:
        self.title: Line = ()
        self.memory, self.use = GraphBlock(), GraphBlock()

    def draw(self, styles: StyleSet, width: int, height: int) -> list[Line]:
        """Draw the title, the memory with its legend, and the utilization above the time axis that both share."""
        room = height - 1 - (height >= 12)  # a blank line below it
        low = max(2, room // 3)
        legend = int(room >= 12)  # of the utilization
        self.memory.height, self.use.height = room - low - legend + 1, low + 1
        self.memory.legend_lines = 1 + (self.memory.height >= HIGH_GRAPH)
        drawn = [*self.memory.draw(styles, width)[:-1], *self.use.draw(styles, width)[1 - legend :]]
        lines = [self.title, *drawn, *[blank(styles, width)] * height]
        return lines[:height]


class GridBlock:
    """All GPUs as one part of the sheet."""

    gap = 0

    def __init__(self) -> None:
        self.cells: dict[str, GpuCell] = {}
        """By the key of the GPU."""
        self.grid = GpuGrid(1, 1, 1)

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        per_row, cells, height = self.grid
        lines = []
        every = [*self.cells.values()]
        for first in range(0, len(every), per_row):
            row = [one.draw(styles, cells, height) for one in every[first : first + per_row]]
            for parts in zip(*row, strict=True):
                builder = LineBuilder(styles)
                for part in parts:
                    builder.gap(_BETWEEN * bool(builder.cells)).write_spans(part)
                lines.append(builder.build(width))
        return lines


def gpus_page(
    chosen: str,
    top: int,
    graphs: FrameGraphs,
    block: GridBlock,
    canvas: Canvas,
    strays: Mapping[tuple[int, int], Stray],
) -> Page:
    """Return the page of all GPUs; `chosen` has the cursor, and what is not on screen from line `top` is not drawn."""
    gpus = graphs.frame.snapshot.gpus
    notice = "" if gpus else "No GPU is listed."
    room, margin = canvas.room(notice), canvas.margin
    grid = block.grid = make_grid(len(gpus), canvas.widths[0], room - margin)
    block.cells = {gpu.key: block.cells.get(gpu.key) or GpuCell() for gpu in gpus}
    graphs.fit(canvas.styles, grid.width)
    top = max(0, min(top, margin + ceil(len(gpus) / grid.per_row) * grid.height - room))
    first = max(0, top - margin) // grid.height * grid.per_row
    shown = gpus[first : ceil((top + room - margin) / grid.height) * grid.per_row]
    recent = graphs.events(lambda alert: alert.raised >= graphs.until - graphs.span)
    for cell in block.cells.values():
        cell.title, cell.memory.graph, cell.use.graph = blank(canvas.styles, grid.width), None, None
    for gpu in shown:
        cell = block.cells[gpu.key]
        memory = graphs.memory_graph(gpu, ())
        # Side by side all GPUs have the same axis, so that the fuller one looks fuller.
        cell.memory.graph = replace(memory, title="", unit="", top=float(usable(gpu) or memory.top))
        curve = graphs.curve(gpu.key, "", Metric.UTILIZATION, gpu.utilization)
        marks = graphs.event_marks([alert for alert in recent if alert.gpu == gpu.key])
        cell.use.graph = graphs.graph("util", "%", [curve], 100.0, empty=reason_words(gpu.utilization), marks=marks)
        cell.title = _title_of(gpu, graphs, strays, is_chosen=gpu.key == chosen)
    title = graphs.title(f"GPUs · {graphs.span_words()}")
    return Page(title, [block], title_end="memory by owner in GiB, utilization in % below", notice=notice)


def _title_of(gpu: Gpu, graphs: FrameGraphs, strays: Mapping[tuple[int, int], Stray], *, is_chosen: bool) -> Line:
    styles, frame, width = graphs.styles, graphs.frame, graphs.width
    background: Background = "cursor" if is_chosen else "base"
    view = View(frame, frame.received, styles, frame.snapshot.interval, strays=strays)
    builder = LineBuilder(styles, background)
    used, total = (GPU[key].cell(gpu, styles.glyphs.missing, "") for key in ("memory", "total"))
    head = f"{gpu.index}  {used}/{total}"
    mark, role, state = state_of(view, gpu, max(0, width - len(head) - 5))
    builder.write(styles.glyphs.cursor if is_chosen else " ", "strong").write(mark, role, 1).gap()
    builder.write(head, "strong").gap(2)
    for words, words_role in state:
        builder.write(words, words_role)
    return builder.build(width)
