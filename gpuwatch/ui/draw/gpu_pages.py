"""Page of a GPU: all that is known of it, with graphs over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from gpuwatch.alerts.unattributed import GapEvidence
from gpuwatch.analysis.events import moment
from gpuwatch.analysis.rows import rows
from gpuwatch.base.units import GIB, MIB, gib, long_duration, size
from gpuwatch.history.history import HistoryView
from gpuwatch.history.timeline import Metric
from gpuwatch.model import shares
from gpuwatch.model.fields import GPU, PROCESS, Amount, Field, Row, RowKey, reading, share_words, throttle_words
from gpuwatch.model.snapshot import Gpu, Health, Promise, Reading, Reason, Snapshot, known, number
from gpuwatch.ui.draw.gpus import FAULTS, short_name
from gpuwatch.ui.draw.graph import Curve, Graph, GraphLimit, axis_low, axis_top
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.row_list import ItemCursor
from gpuwatch.ui.draw.sheet import REASONS, Canvas, Fact, Part, Section, SheetPage, field_fact, reason_words, text_fact
from gpuwatch.ui.draw.table import Cell, Column, Table, TableRow, field_column, write_titles
from gpuwatch.ui.draw.theme import Background, Role, StyleSet
from gpuwatch.ui.draw.time_axis import Mark
from gpuwatch.ui.draw.time_graphs import SMALL, FrameGraphs, largest, reach
from gpuwatch.ui.draw.view import replay_words

T = TypeVar("T")

_UNREAD_LINKS: Final = "not recorded: it is read only while the details of this GPU are shown"
_ECC: Final = replace(GPU["ecc"], fact="{} uncorrected errors")
_OF_INSTANCE: Final = [GPU["memory"].of(reading("memory.used")), GPU["total"].of(reading("memory.total"), fact="{}")]
_RATES: Final = ("memory_utilization", "encoder", "decoder")


class ProcessBlock(ItemCursor[Row]):
    """List of a GPU's processes with a cursor."""

    gap = 1
    _COLUMNS = (
        Column("cursor", "", 2, right=False),
        Column("initial", "", 1, right=False),
        field_column(PROCESS["user"], 8, gap=1),
        field_column(PROCESS["pid"], 7, role="muted"),
        field_column(PROCESS["memory"], 6, role="strong"),
        Column("limit", "used/decl. %", 10, gap=2),
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
        reserved = [LineBuilder(styles).gap(2).write(line, "muted", width - 2).build(width) for line in self.reserved]
        return [*self._draw_processes(styles, width), *reserved]

    def _draw_processes(self, styles: StyleSet, width: int) -> list[Line]:
        people = len({row.process.uid for row in self.found})
        title = LineBuilder(styles).write("Processes", "strong").gap().write(str(len(self.found)), "muted")
        if people > 1:
            title.write(f", {people} people", "muted")
        hidden = {"idle"} if 56 <= width < 70 else {"idle", "pid"} if width < 56 else set()
        kept = [column for column in self._COLUMNS if column.id not in hidden]
        if not self.found:
            title.write("  none is listed", "muted")
            return [title.build(width)]
        drawn = self._table.lines(
            styles, width, kept, [self._row(row, place, kept, styles) for place, row in enumerate(self.found)]
        )
        return [title.build(width), write_titles(kept, styles).build(width), *drawn]

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


# -- one GPU -------------------------------------------------------------------------------------------------------


def gpu_page(gpu: Gpu | None, graphs: FrameGraphs, processes: ProcessBlock, canvas: Canvas) -> SheetPage:
    """Return the page of a GPU as it was last listed, which may be before the newest frame; None for never."""
    frame = graphs.frame
    if gpu is None:
        return SheetPage(graphs.title("GPU"), (), notice="The driver does not list this GPU.", over=True)
    over = not any(gpu is listed for listed in frame.snapshot.gpus)
    notice = "The driver does not list this GPU any more. Last known values:"
    if not over:
        notice = gpu.words or gpu.health.value if gpu.health is not Health.OK else ""
    room, two_columns = canvas.room(notice), canvas.two_columns
    held = [row for row in rows(frame.snapshot, frame.history) if row.gpu.key == gpu.key]
    processes.update_rows(sorted(held, key=lambda row: -(number(row.holding.memory) or 0.0)))
    processes.reserved = [
        f"{promise.user} {promise_words(promise, frame.snapshot.taken)}: {gib(promise.bytes)} GiB not taken yet"
        for promise in gpu.promises
        if promise.reserved
    ]
    graphs.fit(canvas.styles, canvas.widths[0])
    events = graphs.events(lambda alert: gpu.key in (alert.gpu, *(other.key for other in alert.gpus)))
    drawn = gpu_graphs(gpu, graphs, graphs.event_marks(events))
    heights = graph_heights(room, two_columns=two_columns)
    blocks = graphs.place(drawn, lambda place: heights[min(place, 1)], int(not two_columns and room >= SMALL))
    if room < SMALL:
        blocks[-1].gap = 1
    lists: list[Part] = [processes, graphs.event_section(events)]
    section = gpu_section(gpu, frame.snapshot, frame.history)
    facts = [_links(gpu, graphs), *instance_sections(gpu), _errors(gpu, graphs), section]
    left, right = blocks, [*lists, *facts]
    if not two_columns and room >= SMALL:  # the processes stand below the memory
        left, right = blocks[:1], [*lists, *blocks[1:], *facts]
    title = graphs.title(f"GPU {gpu.index} · {short_name(gpu.name) or '?'}")
    return SheetPage(title, left, right, graphs.span_words(), notice, over=over)


def graph_heights(room: int, *, two_columns: bool) -> tuple[int, int]:
    """Return the lines of the memory, which has most, and of each other graph."""
    if room < SMALL:
        return 4, 1
    room -= 1
    if not two_columns:
        return max(8, min(12, room // 2)), 6
    others = 5
    each = next((lines for lines in (7, 6, 5) if room - others * lines >= 2 * lines), 5)
    return max(10, room - others * each), each


def gpu_graphs(gpu: Gpu, graphs: FrameGraphs, marks: Sequence[Mark]) -> list[Graph]:
    """Return the graphs of a GPU, with the marks of its events."""
    dashed, get = graphs.styles("warning"), graphs.graph

    def curve(metric: Metric, reading: Reading, role: Role = "note") -> Curve:
        return graphs.curve(gpu.key, "", metric, reading, role)

    def limit(label: str, reading: Reading) -> tuple[GraphLimit, ...]:
        return (GraphLimit(label, float(reading), dashed),) if known(reading) else ()

    utilization, power = curve(Metric.UTILIZATION, gpu.utilization), curve(Metric.POWER, gpu.power, "muted")
    watts = axis_top(reach(number(gpu.power_limit), largest(power.values, least=20.0)))
    temperature = curve(Metric.TEMPERATURE, gpu.temperature)
    degrees = [value for value in temperature.values if value is not None] or [20.0]
    hot = axis_top(max(reach(number(gpu.slowdown_temperature), max(degrees)), min(degrees) + 10.0))
    received, sent = curve(Metric.PCIE_RX, gpu.pcie_rx), curve(Metric.PCIE_TX, gpu.pcie_tx, "muted")
    most = largest(received.values, sent.values, least=10.0 * MIB)
    unit, rate, form = (GIB, "GiB/s", "{:.1f}") if most >= GIB else (MIB, "MiB/s", "{:.0f}")
    speeds: dict[str, Any] = {"show": lambda at: form.format(at / unit), "scale": unit, "axis": False}
    unread = _UNREAD_LINKS if _lacks_links(gpu, graphs) else reason_words(gpu.pcie_rx)
    celsius = "C" if graphs.styles.glyphs.ascii else "°C"
    hangs = get("power", "W", [power], watts, limits=limit("limit", gpu.power_limit))
    down = get("sent", rate, [sent], axis_top(most, unit), **speeds)
    heat = {"low": axis_low(min(degrees)), "limits": limit("slows down at", gpu.slowdown_temperature), "filled": False}
    unknown = reason_words(gpu.utilization)
    return [
        graphs.memory_graph(gpu, marks, axis=False),
        get(
            "work: utilization up, power down",
            "%",
            [utilization],
            100.0,
            unknown,
            down=hangs,
            axis=False,
        ),
        get("heat", celsius, [temperature], hot, reason_words(gpu.temperature), axis=False, **heat),
        get("links: received up, sent down", rate, [received], axis_top(most, unit), unread, down=down, **speeds),
    ]


# -- facts ---------------------------------------------------------------------------------------------------------


def gpu_section(gpu: Gpu, snapshot: Snapshot, history: HistoryView | None = None) -> Section:
    """Describe all that is known of a GPU itself."""
    facts = [
        text_fact("name", gpu.name, "not known"),
        text_fact("UUID", gpu.uuid, "not known: the driver has given no handle"),
        text_fact("bus id", gpu.bus_id, "not known"),
    ]
    if gpu.health is not Health.OK:
        since = f", since {moment(gpu.since, snapshot.taken)}" if gpu.since else ""
        facts.append(Fact("health", f"{gpu.health.value}{since}"))
    if gpu.words:
        facts.append(Fact("problem", gpu.words))
    now = snapshot.monotonic
    slow = f"; fan, clocks and others {long_duration(now - gpu.slow_sampled)} ago" if gpu.slow_sampled else ""
    throttle = gpu.throttle if isinstance(gpu.throttle, Reason) else ", ".join(throttle_words(gpu.throttle))
    facts += [
        *_memory_facts(gpu, snapshot, history.unknown_memory_starts(snapshot) if history is not None else {}),
        *_declared_facts(gpu, snapshot),
        field_fact(GPU["utilization"], gpu),
        *(field_fact(GPU[key], gpu) for key in _RATES if is_used(GPU[key], gpu)),
        _with_limit("temperature", "slowdown_temperature", gpu),
        _with_limit("power", "power_limit", gpu),
        *(field_fact(GPU[key], gpu) for key in ("fan", "sm_clock", "memory_clock", "pstate")),
        *[value_fact("slowed down by", throttle)] * bool(throttle),
        *[field_fact(GPU["ecc"], gpu)] * is_used(GPU["ecc"], gpu),
        value_fact("persistence", gpu.persistence),
        value_fact("compute mode", gpu.compute_mode),
        value_fact("display", gpu.display_active),
        value_fact("MIG", gpu.mig),
        text_fact("driver", f"{snapshot.driver}, CUDA {snapshot.cuda or '?'}" * bool(snapshot.driver), "not known"),
        Fact("last read", f"{long_duration(now - gpu.sampled)} ago{slow}" if gpu.sampled else "never yet"),
    ]
    kept = [one for one in facts if not (one.missing and one.value == REASONS[Reason.UNSUPPORTED])]
    lacking = ", ".join(one.label for one in facts if one not in kept)
    return Section(f"GPU {gpu.index}", (*kept, *[Fact("not supported", lacking, missing=True)] * bool(lacking)))


def value_fact(label: str, value: str | bool | Reason) -> Fact:
    reason = next((words for one, words in REASONS.items() if one == value), "")  # some are sent as plain texts
    return Fact(label, reason or (value if isinstance(value, str) else "on" if value else "off"), missing=bool(reason))


def _with_limit(key: str, limit_key: str, gpu: Gpu) -> Fact:
    found, limit = field_fact(GPU[key], gpu), field_fact(GPU[limit_key], gpu)
    words = f"{found.value}, {limit.label}{':' * limit.missing} {limit.value}"
    return found if found.missing else replace(found, value=words)


def _memory_facts(gpu: Gpu, snapshot: Snapshot, starts: Mapping[str, shares.UnknownMemoryStart]) -> list[Fact]:
    """Describe the memory, and the likely causes where no listed process holds a part of it."""
    unified = [Fact("unified", "the GPU shares the machine's memory; these are the machine's figures")]
    likely = [
        Fact("" if place else "likely cause", one.reason, aside=one.step)
        for place, one in enumerate(one for one in GapEvidence(snapshot, starts).causes(gpu) if not one.harmless)
    ]
    return [
        *(field_fact(GPU[key], gpu) for key in ("total", "memory", "free", "left")),
        *(
            Fact("" if place else "promised", f"{size(one.bytes)} to {one.user}, {promise_words(one, snapshot.taken)}")
            for place, one in enumerate(gpu.promises)
        ),
        field_fact(GPU["reserved"], gpu),
        *[field_fact(GPU["unknown"], gpu)] * (not known(gpu.unattributed) or gpu.unattributed >= 0.05 * GIB),
        *unified * gpu.memory.unified,
        *likely,
    ]


def promise_words(promise: Promise, now: float) -> str:
    """Return why memory is promised: `declared and not used`, `reserved 12 min ago`."""
    if not promise.reserved:
        return "declared and not used"
    return f"reserved {long_duration(max(0.0, now - promise.reserved))} ago"


def _declared_facts(gpu: Gpu, snapshot: Snapshot) -> list[Fact]:
    """Describe the declared and the held memory of a GPU, and count the processes without known declarations."""
    sums = shares.declared_memory(gpu, {process.pid: process for process in snapshot.processes})
    facts = []
    if sums.limits:
        by = f"in {sums.limits} {'shares' if sums.limits > 1 else 'share'}"
        over = f", overbooked: it has {size(sums.total)}" if sums.overbooked and sums.total else ""
        facts.append(Fact("declared", f"{size(sums.declared)} {by}{over}"))
    elif gpu.holdings and not sums.unread:
        facts.append(Fact("declared", "nothing"))
    if gpu.holdings:
        least = "" if all(known(one.memory) for one in gpu.holdings) else "at least "
        facts.append(Fact("held", f"{least}{size(sums.held)} by all processes"))
    if sums.undeclared:
        facts.append(Fact("not declared", f"by {_processes(sums.undeclared)}"))
    if sums.unread:
        facts.append(Fact("not read", f"what {_processes(sums.unread)} declared", missing=True))
    return facts


def _processes(number: int) -> str:
    return f"{number} {'process' if number == 1 else 'processes'}"


def is_used(field: Field[T], row: T) -> bool:
    """Return whether a rate is known and more than 0."""
    value = field.read(row)
    return isinstance(value, Amount) and value.number > 0


def _lacks_links(gpu: Gpu, graphs: FrameGraphs) -> bool:
    """Return whether this is a recording in which PCIe and NVLink of the GPU were not read at this time."""
    return bool(replay_words(graphs.frame)) and gpu.pcie_link == Reason.NO_SAMPLE


def _links(gpu: Gpu, graphs: FrameGraphs) -> Section:
    """Describe PCIe and NVLink; NVLink only where a GPU has it."""
    if _lacks_links(gpu, graphs):
        return Section("Links", (Fact("PCIe", _UNREAD_LINKS, missing=True),))

    facts = [value_fact("PCIe", gpu.pcie_link)]
    if not facts[0].missing or number(gpu.pcie_rx) or number(gpu.pcie_tx):
        facts += [field_fact(GPU["pcie_rx"], gpu), field_fact(GPU["pcie_tx"], gpu)]
    if known(gpu.nvlinks) and gpu.nvlinks > 0:
        facts += [
            Fact("NVLink", f"{gpu.nvlinks:.0f} active"),
            field_fact(GPU["nvlink_rx"], gpu),
            field_fact(GPU["nvlink_tx"], gpu),
        ]
    return Section("Links", tuple(facts))


def _throttles(gpu: Gpu, graphs: FrameGraphs) -> list[Mark]:
    """Return marks where the clocks began to be limited."""
    styles = graphs.styles
    marks = []
    for at, reasons in graphs.frame.history.gpu(gpu.key).throttles:
        if reasons:
            fault = reasons[0] in FAULTS
            role: Role = "warning" if fault else "note"
            marks.append(Mark(at, styles.glyphs.warning if fault else styles.glyphs.note, styles(role)))
    return marks


def _errors(gpu: Gpu, graphs: FrameGraphs) -> Section:
    """Describe XIDs, broken memory, and when the clocks were limited."""
    history, now = graphs.frame.history, graphs.now
    facts = []
    for code, (count, last) in sorted(history.gpu(gpu.key).xids.items(), key=lambda one: -one[1][1]):
        ago = long_duration(max(0.0, history.now - last))
        facts.append(Fact(f"XID {code}", f"{count} time{'s' * (count != 1)}, the last {ago} ago"))
    if not facts:
        reason = REASONS[gpu.xids] if isinstance(gpu.xids, Reason) else ""
        facts.append(Fact("XID", reason or "none", missing=bool(reason)))
    facts.append(field_fact(_ECC, gpu))
    facts += [Fact("broken rows", "wait for a reset of the GPU to be replaced")] * (gpu.remap_pending is True)
    facts += [Fact("broken rows", "could not be replaced: the GPU has to be exchanged")] * (gpu.remap_failed is True)
    changes = [one for one in history.gpu(gpu.key).throttles if one.reasons][-3:]
    facts += [
        Fact("" if place else "slowed down", f"{moment(at, now)} {', '.join(throttle_words(reasons))}")
        for place, (at, reasons) in enumerate(reversed(changes))
    ]
    return Section("Errors and limits", tuple(facts))


def instance_sections(gpu: Gpu) -> list[Section]:
    """Describe the MIG instances of a GPU; nothing without any."""
    facts = []
    for one in gpu.instances:
        used, total = (field_fact(field, one).value for field in _OF_INSTANCE)
        label = f"{one.gpu_instance}/{one.compute_instance}"
        facts.append(Fact(label, f"{one.profile}: {used} of {total} used", aside=one.uuid))
    return [Section("MIG instances", tuple(facts))] * bool(facts)
