"""Screens of a GPU, of all GPUs, and of a process: the keys and the mouse on their pages."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from gpuwatch.alerts.alert import Alert
from gpuwatch.model.fields import Row, RowKey
from gpuwatch.model.snapshot import Gpu
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.footer import Hint
from gpuwatch.ui.draw.gpu_pages import METERS, ProcessBlock, gpu_page
from gpuwatch.ui.draw.gpus_page import GpuBands, gpus_page
from gpuwatch.ui.draw.process_page import held_by, process_page
from gpuwatch.ui.draw.sheet import Canvas, Placed, SheetPage
from gpuwatch.ui.draw.theme import StyleSet
from gpuwatch.ui.options import Helpers, Options
from gpuwatch.ui.screens.sheet import FrameSheet

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame


class GpuScreen(FrameSheet):
    """The detail of a GPU."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "process", id="gpu.choose", tooltip="Show everything about the process"),
        Binding("down,j", "move(1)", "down", show=False, id="gpu.down", tooltip="Move to the process below"),
        Binding("up,k", "move(-1)", "up", show=False, id="gpu.up", tooltip="Move to the process above"),
        Binding("g", "next_gpu", "next GPU", id="gpu.next", tooltip="Show the next GPU"),
    ]

    def __init__(
        self,
        key: str,
        frame: Frame,
        styles: StyleSet | None = None,
        *,
        helpers: Helpers | None = None,
        ended: Collection[Alert] = (),
        focus: Callable[[str | None], None] | None = None,
    ) -> None:
        """Show the GPU of `key` (`Gpu.key`); `focus` requests its PCIe and NVLink while the page is open."""
        super().__init__(frame, styles, helpers, ended)
        self._gpu_key = key
        self._focus = focus
        self._gpu: Gpu | None = None
        """The GPU as it was last listed."""
        self.processes = ProcessBlock()

    def on_mount(self) -> None:
        if self._focus is not None:
            self._focus(self._gpu_key)
        super().on_mount()

    def on_unmount(self) -> None:
        """Stop reading PCIe and NVLink."""
        if self._focus is not None:
            self._focus(None)

    def observe(self) -> None:
        self._gpu = next((gpu for gpu in self.frame.snapshot.gpus if gpu.key == self._gpu_key), self._gpu)

    @property
    def canvas(self) -> Canvas:
        return super().canvas._replace(left=0.63 if self.app.size.width >= METERS else 0.55)

    def make_page(self, canvas: Canvas) -> SheetPage:
        strays = {stray.key: stray for stray in actions_of(self).strays_of(self.frame).strays}
        return gpu_page(self._gpu, self.graphs, self.processes, canvas, strays)

    def action_move(self, by: int) -> None:
        """Move the cursor to another process; beyond the last one, scroll."""
        block = self.processes
        place = block.cursor + by
        if not 0 <= place < len(block.found):
            self.action_line(by)
            return
        block.move(by)
        for placed in self.drawing.placed:
            if placed.part is block:
                self.drawing.reveal(placed.y + block.HEAD + min(place, block.page_rows), self.room)
        self.paint()

    def action_next_gpu(self) -> None:
        """Show the GPU after this one; after the last the first."""
        keys = [gpu.key for gpu in self.frame.snapshot.gpus]
        if keys:
            place = keys.index(self._gpu_key) + 1 if self._gpu_key in keys else 0
            self._gpu_key = keys[place % len(keys)]
            if self._focus is not None:
                self._focus(self._gpu_key)
            self.drawing.top = 0
            self.observe()
            self.redraw()

    def action_choose(self) -> None:
        row = self.processes.selected
        if row is not None:
            actions_of(self).show_detail(row.key)

    def point(self, placed: Placed, x: int, y: int, clicks: int) -> None:
        """Select the process that is clicked; the second click opens its detail."""
        if placed.part is not self.processes:
            super().point(placed, x, y, clicks)
        elif clicks:
            effect = self.processes.click(x, y - self.processes.HEAD + 1, again=clicks > 1)
            self.paint()
            if effect == "chosen":
                self.action_choose()


class GpusScreen(FrameSheet):
    """All GPUs over time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "detail", id="gpus.choose", tooltip="Show everything about the GPU"),
        Binding("up,k", "line(-1)", "choose", id="gpus.up", key_display="↑ ↓", tooltip="Move to the GPU above"),
        Binding("down,j", "line(1)", "down", show=False, id="gpus.down", tooltip="Move to the GPU below"),
        Binding("o", "close", "back", show=False, id="gpus.close", tooltip="Back to the dashboard"),
    ]
    LEFT = 1.0

    def on_mount(self) -> None:
        self.bands = GpuBands()
        super().on_mount()

    def make_page(self, canvas: Canvas) -> SheetPage:
        strays = {stray.key: stray for stray in actions_of(self).strays_of(self.frame).strays}
        return gpus_page(self.bands, self.graphs, canvas, strays)

    def action_line(self, lines: int) -> None:
        """Move the cursor to another GPU."""
        self.bands.point(self.bands.cursor + lines)
        self.redraw()

    def action_page(self, pages: int) -> None:
        self.action_line(pages * self.bands.layout.shown)

    def action_end(self, bottom: int) -> None:
        self.action_line(len(self.bands.found) * (1 if bottom else -1))

    def action_choose(self) -> None:
        if self.bands.selected is not None:
            actions_of(self).show_gpu(self.bands.selected.key)

    def point(self, placed: Placed, x: int, y: int, clicks: int) -> None:
        """Read the values under the mouse; a click chooses the GPU there, and the second opens its detail."""
        place = self.bands.place_at(y)
        if place is not None and clicks:
            self.action_line(place - self.bands.cursor)
            if clicks > 1:
                self.action_choose()
        elif place is not None and self.graphs.point(x):
            self.redraw()


class DetailScreen(FrameSheet):
    """The detail of a process: what it is, what it holds on each GPU, its use over time, and its first GPU."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "close", "back", show=False, id="detail.close", tooltip="Back to the dashboard"),
        Binding("K,f9", "end_process", "end", id="detail.end", tooltip="End this process (asks first)"),
        Binding("y", "message", "message", id="detail.message", tooltip="Copy a message for the owner"),
    ]

    def __init__(
        self,
        row_key: RowKey,
        frame: Frame,
        styles: StyleSet | None = None,
        options: Options | None = None,
        *,
        helpers: Helpers | None = None,
        ended: Collection[Alert] = (),
    ) -> None:
        """Show the process of `row_key` as `frame` has it, and from then on as `refresh_frame` is called."""
        super().__init__(frame, styles, helpers, ended)
        self._options = options or Options()
        self._key = row_key
        self._held: list[Row] = []
        self._seen = frame.snapshot
        """Snapshot that had it last."""

    def set_options(self, options: Options) -> None:
        self._options = options
        self.redraw()

    def observe(self) -> None:
        if held := held_by(self._key[1:], self.frame, self._key[0]):
            self._held, self._seen = held, self.frame.snapshot

    def make_page(self, canvas: Canvas) -> SheetPage:
        return process_page(self._key, self._held, self._seen, self.graphs, canvas, self._options)

    def hints(self) -> list[Hint]:
        """Return the keys for the footer: a process is ended by its owner, and others write to them."""
        unfit = "message" if self._held and self._held[0].mine else "end_process"
        return [hint for hint in super().hints() if hint[2] != unfit]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to end only a process that is still there."""
        return bool(self._held) and not self.page.over if action == "end_process" else True

    def action_end_process(self) -> None:
        if self._held:
            actions_of(self).ask_to_end(self._held[0].key)

    def action_message(self) -> None:
        actions_of(self).write_to_owner(self.frame, lambda row: row.process.key == self._key[1:])
