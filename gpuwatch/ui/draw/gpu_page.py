"""GPU detail screen: a GPU over time, its processes, its events, and everything that is known of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar, Final

from msgspec.structs import replace
from textual.binding import Binding, BindingType

from gpuwatch.alerts.alert import Alert
from gpuwatch.analysis.events import moment
from gpuwatch.analysis.rows import rows
from gpuwatch.base.units import GIB, MIB, gib, long_duration
from gpuwatch.history.history import HistoryView
from gpuwatch.history.timeline import Metric
from gpuwatch.model.fields import GPU, PROCESS, Row, RowKey, reading, share_words, throttle_words
from gpuwatch.model.snapshot import Gpu, Health, Reading, Reason, known, number
from gpuwatch.monitor import Frame
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.gpus import FAULTS, short_name
from gpuwatch.ui.draw.graph import Curve, Graph, GraphLimit, Mark, axis_low, axis_top
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.process_page import fact, gpu_section, promise_words, value_fact
from gpuwatch.ui.draw.row_list import ItemCursor
from gpuwatch.ui.draw.table import Cell, Column, Table, TableRow, field_column, title_line
from gpuwatch.ui.draw.theme import Background, Role, StyleSet
from gpuwatch.ui.draw.time_graphs import SMALL, GraphSheet, largest, reach
from gpuwatch.ui.draw.view import replay_words
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.sheet import REASONS, Block, Fact, Placed, Section, reason_words

_UNREAD_LINKS: Final = "not recorded: it is read only while the details of this GPU are shown"
_ECC: Final = replace(GPU["ecc"], fact="{} uncorrected errors")
_OF_INSTANCE: Final = [GPU["memory"].of(reading("memory.used")), GPU["total"].of(reading("memory.total"), fact="{}")]


class ProcessBlock(ItemCursor[Row]):
    """List of a GPU's processes with a cursor."""

    gap = 1
    _COLUMNS = (
        Column("cursor", "", 2, right=False),
        Column("initial", "", 1, right=False),
        field_column(PROCESS["user"], 8, gap=1),
        field_column(PROCESS["pid"], 7, role="muted"),
        field_column(PROCESS["memory"], 6, role="strong"),
        Column("limit", "used/limit %", 10, gap=2),
        field_column(PROCESS["sm"], 6),
        field_column(PROCESS["idle"], 7, role="muted", gap=1),
        field_column(PROCESS["command"], 0, gap=2),
    )

    def __init__(self) -> None:
        super().__init__()
        self._table = Table()

    def identity(self, row: Row) -> RowKey:
        return row.key

    reserved: Sequence[str] = ()
    """Lines about the reservations of the GPU: memory that its programs have not taken yet."""

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        """Draw the processes, and below them the reservations."""
        reserved = [LineBuilder(styles).gap(2).write(one, "muted", width - 2).build(width) for one in self.reserved]
        return [*self._draw_processes(styles, width), *reserved]

    def _draw_processes(self, styles: StyleSet, width: int) -> list[Line]:
        people = len({row.process.uid for row in self.found})
        title = LineBuilder(styles).write("Processes", "strong").gap().write(str(len(self.found)), "muted")
        if people > 1:
            title.write(f", {people} people", "muted")
        hidden = {"idle"} if 56 <= width < 70 else {"idle", "pid"} if width < 56 else set()
        kept = [one for one in self._COLUMNS if one.id not in hidden]
        if not self.found:
            title.write("  none is listed", "muted")
            return [title.build(width)]
        drawn = self._table.lines(
            styles, width, kept, [self._row(row, place, kept, styles) for place, row in enumerate(self.found)]
        )
        return [title.build(width), title_line(kept, styles, width), *drawn]

    def _row(self, row: Row, place: int, columns: Sequence[Column], styles: StyleSet) -> TableRow:
        background: Background = "cursor" if place == self.cursor else "base"
        glyphs = styles.glyphs
        cells: dict[str, Cell] = {
            "cursor": ((styles.glyphs.cursor if place == self.cursor else "", "strong"),),
            "initial": ((styles.initial(row.process.uid), styles.badge(row.process.uid, background)),),
            "limit": (("/".join(filter(None, share_words(row))), "text"),),
            "command": ((row.brief, "text"),),
        }
        for column in columns:
            if column.id not in cells:
                cells[column.id] = ((PROCESS[column.id].cell(row, glyphs.missing, glyphs.least), column.role),)
        return TableRow((row.key, background), tuple(cells[column.id] for column in columns), background)


class GpuScreen(GraphSheet):
    """The detail of a GPU."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", "process", id="gpu.choose", tooltip="Detail of the process"),
        Binding("down,j", "move(1)", "down", show=False, id="gpu.down", tooltip="The process below"),
        Binding("up,k", "move(-1)", "up", show=False, id="gpu.up", tooltip="The process above"),
    ]
    LEFT = 0.55

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
        """Show the GPU of `key` (`Gpu.key`); `focus` is told while PCIe and NVLink of this GPU are to be read."""
        super().__init__(frame, styles, helpers)
        self._gpu_key = key
        self._ended = ended
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

    def rebuild(self) -> None:
        if not self.ready:
            return
        frame = self.frame
        gpu = next((one for one in frame.snapshot.gpus if one.key == self._gpu_key), None)
        self._gpu = gpu or self._gpu
        if self._gpu is None:
            self.show("GPU", [], [])
            self.notice("The driver does not list this GPU.", over=True)
            return
        if gpu is None:
            self.notice("The driver does not list this GPU any more. Last known values:", over=True)
        else:
            faulty = gpu.health is not Health.OK
            self.notice(gpu.words or gpu.health.value if faulty else "", over=False)
        held = [row for row in rows(frame.snapshot, frame.history) if row.gpu.key == self._gpu_key]
        self.processes.update_rows(sorted(held, key=lambda row: -(number(row.holding.memory) or 0.0)))
        self.processes.reserved = [
            f"{one.user} {promise_words(one, frame.snapshot.taken)}: {gib(one.bytes)} GiB not taken yet"
            for one in self._gpu.promises
            if one.reserved
        ]
        self._show(self._gpu)

    def _show(self, gpu: Gpu) -> None:
        events = self.events(self._is_about, self._ended)
        graphs = self.place_graphs(self._graph_lines)
        lists: list[Section | Block] = [self.processes, self.event_section(events)]
        section = gpu_section(gpu, self.frame.snapshot, self.frame.history)
        facts = [self._links(gpu), *instance_sections(gpu), self._errors(gpu), section]
        left: list[Section | Block]
        right: list[Section | Block]
        if self.two_columns:
            left, right = [*graphs], [*lists, *facts]
        else:
            left, right = [graphs[0], *([] if self.room >= SMALL else graphs[1:]), *lists], []
            right = [*(graphs[1:] if self.room >= SMALL else []), *facts]
        for block in graphs:
            block.gap = int(not self.two_columns and self.room >= SMALL)
        if self.room < SMALL:
            graphs[-1].gap = 1
        self.show(f"GPU {gpu.index} · {short_name(gpu.name) or '?'}", left, right, title_end=self.title_words())

    def _graph_lines(self, place: int) -> int:
        """Return the lines of a graph: the memory has most, and the others are alike."""
        room = self.room - 1
        if self.room < SMALL:
            return 4 if place == 0 else 1
        if not self.two_columns:
            return max(8, min(12, room // 2)) if place == 0 else 6
        others = 5
        each = next((lines for lines in (7, 6, 5) if room - others * lines >= 2 * lines), 5)
        return each if place else max(10, room - others * each)

    def _is_about(self, alert: Alert) -> bool:
        return self._gpu_key in (alert.gpu, *(one.key for one in alert.gpus))

    # -- graphs ----------------------------------------------------------------------------------------------------

    def graphs(self) -> list[Graph]:
        gpu = self._gpu
        assert gpu is not None
        history, key = self.frame.history, self._gpu_key
        events = self.events(self._is_about, self._ended)
        dashed = self.style_set("warning")

        def curve(metric: Metric, reading: Reading, label: str = "", *, other: bool = False) -> Curve:
            return self.curve(key, "", metric, reading, label, other=other)

        def limit(label: str, reading: Reading) -> tuple[GraphLimit, ...]:
            return (GraphLimit(label, float(reading), dashed),) if known(reading) else ()

        power = curve(Metric.POWER, gpu.power)
        temperature = curve(Metric.TEMPERATURE, gpu.temperature)
        clocks = (
            curve(Metric.SM_CLOCK, gpu.sm_clock, "SM"),
            curve(Metric.MEMORY_CLOCK, gpu.memory_clock, "memory", other=True),
        )
        pcie = (curve(Metric.PCIE_RX, gpu.pcie_rx, "received"), curve(Metric.PCIE_TX, gpu.pcie_tx, "sent", other=True))
        degrees = [one for one in temperature.values if one is not None] or [20.0]
        speeds = [one for curve in clocks for one in curve.values if one is not None] or [1000.0]
        most = largest(pcie[0].values, pcie[1].values, least=10.0 * MIB)
        unit = GIB if most >= GIB else MIB
        return [
            self.memory_graph(gpu, self.event_marks(events)),
            self.graph(
                "Utilization",
                "%",
                [curve(Metric.UTILIZATION, gpu.utilization)],
                100.0,
                empty=reason_words(gpu.utilization),
            ),
            self.graph(
                "Power",
                "W",
                [power],
                axis_top(reach(number(gpu.power_limit), largest(power.values, least=20.0))),
                limits=limit("limit", gpu.power_limit),
                empty=reason_words(gpu.power),
            ),
            self.graph(
                "Temperature",
                "C" if self.style_set.glyphs.ascii else "°C",
                [temperature],
                axis_top(max(reach(number(gpu.slowdown_temperature), max(degrees)), min(degrees) + 10.0)),
                low=axis_low(min(degrees)),
                limits=limit("slows down at", gpu.slowdown_temperature),
                empty=reason_words(gpu.temperature),
            ),
            self.graph(
                "Clocks",
                "MHz",
                clocks,
                axis_top(max(speeds)),
                low=axis_low(min(speeds)),
                marks=self._throttles(history),
                empty=reason_words(gpu.sm_clock),
            ),
            self.graph(
                "PCIe",
                "GiB/s" if unit == GIB else "MiB/s",
                pcie,
                axis_top(most, unit),
                show=(lambda value: f"{value / GIB:.1f}") if unit == GIB else (lambda value: f"{value / MIB:.0f}"),
                scale=unit,
                empty=_UNREAD_LINKS if self._lacks_links(gpu) else reason_words(gpu.pcie_rx),
            ),
        ]

    def _lacks_links(self, gpu: Gpu) -> bool:
        """Return whether this is a recording in which PCIe and NVLink of the GPU were not read at this time."""
        return bool(replay_words(self.frame)) and gpu.pcie_link == Reason.NO_SAMPLE

    def _links(self, gpu: Gpu) -> Section:
        """Describe PCIe and NVLink; NVLink only where a GPU has it."""
        if self._lacks_links(gpu):
            return Section("Links", (Fact("PCIe", _UNREAD_LINKS, missing=True),))

        facts = [value_fact("PCIe", gpu.pcie_link)]
        if not facts[0].missing or number(gpu.pcie_rx) or number(gpu.pcie_tx):
            facts += [fact(GPU["pcie_rx"], gpu), fact(GPU["pcie_tx"], gpu)]
        if known(gpu.nvlinks) and gpu.nvlinks > 0:
            facts += [
                Fact("NVLink", f"{gpu.nvlinks:.0f} active"),
                fact(GPU["nvlink_rx"], gpu),
                fact(GPU["nvlink_tx"], gpu),
            ]
        return Section("Links", tuple(facts))

    def _throttles(self, history: HistoryView) -> list[Mark]:
        """Return marks where the clocks began to be limited."""
        glyphs, styles = self.style_set.glyphs, self.style_set
        marks = []
        for at, reasons in history.gpu(self._gpu_key).throttles:
            if reasons:
                fault = reasons[0] in FAULTS
                role: Role = "warning" if fault else "note"
                marks.append(Mark(at, glyphs.warning if fault else glyphs.note, styles(role)))
        return marks

    def _errors(self, gpu: Gpu) -> Section:
        """Describe XIDs, broken memory, and when the clocks were limited."""
        history, now = self.frame.history, self.now
        facts = []
        for code, (count, last) in sorted(history.gpu(gpu.key).xids.items(), key=lambda one: -one[1][1]):
            ago = long_duration(max(0.0, history.now - last))
            facts.append(Fact(f"XID {code}", f"{count} time{'s' * (count != 1)}, the last {ago} ago"))
        if not facts:
            reason = REASONS[gpu.xids] if isinstance(gpu.xids, Reason) else ""
            facts.append(Fact("XID", reason or "none", missing=bool(reason)))
        facts.append(fact(_ECC, gpu))
        facts += [Fact("broken rows", "wait for a reset of the GPU to be replaced")] * (gpu.remap_pending is True)
        facts += [Fact("broken rows", "could not be replaced: the GPU has to be exchanged")] * (
            gpu.remap_failed is True
        )
        changes = [one for one in history.gpu(gpu.key).throttles if one.reasons][-3:]
        facts += [
            Fact("" if place else "slowed down", f"{moment(at, now)} {', '.join(throttle_words(reasons))}")
            for place, (at, reasons) in enumerate(reversed(changes))
        ]
        return Section("Errors and limits", tuple(facts))

    # -- what the user does ----------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor to another process; beyond the last one, scroll."""
        block = self.processes
        place = block.cursor + by
        if not 0 <= place < len(block.found):
            self.action_line(by)
            return
        block.point(place)
        at = next((one for one in self.placed if one.part is block), None)
        if at is not None:
            self.reveal(at.y + 2 + place)
        self.paint()

    def action_choose(self) -> None:
        row = self.processes.selected
        if row is not None:
            actions_of(self).show_detail(row.key)

    def point(self, placed: Placed, x: int, y: int, clicks: int) -> None:
        """Select the process that is clicked; the second click opens its detail."""
        if placed.part is not self.processes:
            super().point(placed, x, y, clicks)
        elif clicks and 0 <= y - 2 < len(self.processes.found):
            again = y - 2 == self.processes.cursor and clicks > 1
            self.processes.point(y - 2)
            self.paint()
            if again:
                self.action_choose()


def instance_sections(gpu: Gpu) -> list[Section]:
    """Describe the MIG instances of a GPU; nothing without any."""
    facts = []
    for one in gpu.instances:
        used, total = (fact(field, one).value for field in _OF_INSTANCE)
        label = f"{one.gpu_instance}/{one.compute_instance}"
        facts.append(Fact(label, f"{one.profile}: {used} of {total} used", aside=one.uuid))
    return [Section("MIG instances", tuple(facts))] * bool(facts)
