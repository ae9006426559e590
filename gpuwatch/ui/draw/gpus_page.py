"""All GPUs at once: memory by owner and utilization of each over time, side by side."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import ceil
from typing import ClassVar, Final, NamedTuple

from msgspec.structs import replace
from textual.binding import Binding, BindingType

from gpuwatch.alerts.alert import Alert
from gpuwatch.history.timeline import Metric
from gpuwatch.model.fields import GPU
from gpuwatch.model.shares import usable
from gpuwatch.model.snapshot import Gpu
from gpuwatch.monitor import Frame
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.gpus import state_of
from gpuwatch.ui.draw.graph import Graph
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank
from gpuwatch.ui.draw.theme import Background, StyleSet
from gpuwatch.ui.draw.time_graphs import HIGH_GRAPH, GraphBlock, GraphSheet
from gpuwatch.ui.draw.view import View
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.sheet import HIGH, Placed, reason_words

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


class GpusScreen(GraphSheet):
    """All GPUs over time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "detail", id="gpus.choose", tooltip="Detail of the GPU"),
        Binding("left", "move(-1)", "choose", key_display="arrows", id="gpus.left", tooltip="The GPU to the left"),
        Binding("right", "move(1)", "right", show=False, id="gpus.right", tooltip="The GPU to the right"),
        Binding("up,k", "row(-1)", "up", show=False, id="gpus.up", tooltip="The GPU above"),
        Binding("down,j", "row(1)", "down", show=False, id="gpus.down", tooltip="The GPU below"),
        Binding("o", "close", "back", show=False, id="gpus.close", tooltip="Back to the dashboard"),
    ]
    two_columns = False

    def __init__(
        self, frame: Frame, styles: StyleSet, helpers: Helpers | None = None, ended: Collection[Alert] = ()
    ) -> None:
        super().__init__(frame, styles, helpers)
        self.block = GridBlock()
        self.chosen = ""
        """Key of the GPU under the cursor; the first one where it is not listed."""
        self._ended = ended
        self._shown = range(0)
        """Places of the GPUs on screen; the others are not drawn."""

    @property
    def gpus(self) -> Sequence[Gpu]:
        return self.frame.snapshot.gpus

    @property
    def graph_width(self) -> int:
        return self.block.grid.width

    def rebuild(self) -> None:
        if not self.ready:
            return
        margin = int(self.app.size.height >= HIGH)
        grid = self.block.grid = make_grid(len(self.gpus), self.widths()[0], self.room - margin)
        self.block.cells = {gpu.key: self.block.cells.get(gpu.key) or GpuCell() for gpu in self.gpus}
        lines = margin + ceil(len(self.gpus) / grid.per_row) * grid.height
        self.top = max(0, min(self.top, lines - self.room))
        self._shown = range(
            max(0, self.top - margin) // grid.height * grid.per_row,
            ceil((self.top + self.room - margin) / grid.height) * grid.per_row,
        )
        graphs = iter(self.graphs())
        for place, gpu in enumerate(self.gpus):
            cell, shown = self.block.cells[gpu.key], place in self._shown
            cell.title = self._title_of(gpu) if shown else blank(self.style_set, grid.width)
            cell.memory.graph, cell.use.graph = (next(graphs), next(graphs)) if shown else (None, None)
        self.read_older()
        self.notice("" if self.gpus else "No GPU is listed.")
        words = f"GPUs · {self.title_words()}"
        self.show(words, [self.block], [], title_end="memory by owner in GiB, utilization in % below")

    def graphs(self) -> list[Graph]:
        """Return memory and utilization of each GPU on screen in turn."""
        found = []
        recent = self.events(lambda alert: alert.raised >= self.until - self.span, self._ended)
        for gpu in self.gpus[self._shown.start : self._shown.stop]:
            marks = self.event_marks([one for one in recent if one.gpu == gpu.key])
            memory = self.memory_graph(gpu, ())
            # Side by side all GPUs have the same axis, so that the fuller one looks fuller.
            found.append(replace(memory, title="", unit="", top=float(usable(gpu) or memory.top)))
            curve = self.curve(gpu.key, "", Metric.UTILIZATION, gpu.utilization)
            why = reason_words(gpu.utilization)
            found.append(self.graph("util", "%", [curve], 100.0, empty=why, marks=marks))
        return found

    def _title_of(self, gpu: Gpu) -> Line:
        here = gpu.key == self._chosen.key
        background: Background = "cursor" if here else "base"
        strays = {one.key: one for one in actions_of(self).strays_of(self.frame).strays}
        view = View(self.frame, self.frame.received, self.style_set, self.frame.snapshot.interval, strays=strays)
        width = self.graph_width
        builder = LineBuilder(self.style_set, background)
        used, total = (GPU[key].cell(gpu, self.style_set.glyphs.missing, "") for key in ("memory", "total"))
        head = f"{gpu.index}  {used}/{total}"
        mark, role, state = state_of(view, gpu, max(0, width - len(head) - 5))
        builder.write(self.style_set.glyphs.cursor if here else " ", "strong").write(mark, role, 1).gap()
        builder.write(head, "strong").gap(2)
        for words, words_role in state:
            builder.write(words, words_role)
        return builder.build(width)

    # -- what the user does ----------------------------------------------------------------------------------------

    @property
    def _chosen(self) -> Gpu:
        return next((gpu for gpu in self.gpus if gpu.key == self.chosen), self.gpus[0])

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the arrows to the choice of a GPU."""
        return action != "read"

    def action_line(self, lines: int) -> None:
        self.top += lines
        self.rebuild()

    def action_row(self, by: int) -> None:
        """Move the cursor by rows of the grid."""
        self.action_move(by * self.block.grid.per_row)

    def action_move(self, by: int) -> None:
        """Move the cursor to another GPU, and scroll until it is on screen; beyond the last row it stays."""
        if not self.gpus:
            return
        place = self.gpus.index(self._chosen) + by
        if 0 <= place < len(self.gpus):
            self.choose(self.gpus[place])

    def choose(self, gpu: Gpu) -> None:
        """Put the cursor on a GPU."""
        self.chosen = gpu.key
        first = self.gpus.index(gpu) // self.block.grid.per_row * self.block.grid.height
        margin = int(self.app.size.height >= HIGH)
        self.reveal(margin + first + self.block.grid.height - 1)
        self.reveal(margin * bool(first) + first)
        self.rebuild()

    def action_choose(self) -> None:
        if self.gpus:
            actions_of(self).show_gpu(self._chosen.key)

    def point(self, placed: Placed, x: int, y: int, clicks: int) -> None:
        """Choose the GPU that is clicked; the second click opens its detail."""
        per_row, width, height = self.block.grid
        place = y // height * per_row + min(x // (width + _BETWEEN), per_row - 1)
        if clicks and place < len(self.gpus):
            self.choose(self.gpus[place])
            if clicks > 1:
                self.action_choose()
