"""Page of a GPU: everything that is known about it, with graphs over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from msgspec.structs import replace

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.unattributed import GapEvidence
from gpuwatch.analysis.events import moment
from gpuwatch.analysis.rows import rows
from gpuwatch.analysis.strays import Stray
from gpuwatch.base.units import GIB, MIB, gib, long_duration, ranges, size
from gpuwatch.history.history import HistoryView
from gpuwatch.history.timeline import Metric
from gpuwatch.model import shares
from gpuwatch.model.fields import GPU, PROCESS, Amount, Field, Row, RowKey, reading, share_words, throttle_words
from gpuwatch.model.shares import usable
from gpuwatch.model.snapshot import Gpu, Health, Promise, Reading, Reason, Snapshot, known, number
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.gpus import alerts_by_gpu, short_name, state_of
from gpuwatch.ui.draw.graph import Curve, Graph, GraphLimit, axis_low, axis_top
from gpuwatch.ui.draw.lines import Line, LineBuilder, Span, draw_rule
from gpuwatch.ui.draw.processes import overshoots
from gpuwatch.ui.draw.row_list import RowList
from gpuwatch.ui.draw.run_rows import draw_runs, find_runs
from gpuwatch.ui.draw.sheet import (
    REASONS,
    Canvas,
    Fact,
    LinesBlock,
    Part,
    Section,
    SheetPage,
    field_fact,
    reason_words,
    text_fact,
)
from gpuwatch.ui.draw.table import Cell, Column, field_column
from gpuwatch.ui.draw.theme import Background, Glyphs, Role, StyleSet
from gpuwatch.ui.draw.time_graphs import SMALL, FrameGraphs, largest, reach
from gpuwatch.ui.draw.view import View, day_time, mark_of, replay_words

T = TypeVar("T")

_UNREAD_LINKS: Final = "not recorded: gpuwatch reads it only while this GPU's page is open"
_ECC: Final = replace(GPU["ecc"], fact="{} uncorrected errors")
MEMORY: Final = "memory, GiB by owner"
WORK: Final = "work: utilization up, power down"
HEAT: Final = "heat"
LINKS: Final = "links: received up, sent down"
RUNS: Final = "runs over time"
"""Titles of the graphs."""
METERS: Final = 140
"""Least width of a line in cells for figures with meters."""
_OF_INSTANCE: Final = [GPU["memory"].of(reading("memory.used")), GPU["total"].of(reading("memory.total"), fact="{}")]
_RATES: Final = ("memory_utilization", "encoder", "decoder")


class ProcessBlock(RowList[Row]):
    """List of a GPU's processes."""

    gap = 1
    HEAD: Final = 2
    """Lines above the first process."""
    _COLUMNS = (
        Column("initial", "", 1, right=False),
        field_column(PROCESS["user"], 8, gap=1),
        field_column(PROCESS["pid"], 7, role="muted"),
        field_column(PROCESS["memory"], 6, role="strong"),
        Column("limit", "used/decl.", 10, gap=2),
        field_column(PROCESS["sm"], 6),
        field_column(PROCESS["idle"], 7, role="muted", gap=1),
        field_column(PROCESS["command"], 0, gap=2),
    )

    def __init__(self) -> None:
        super().__init__()
        self.most: int | None = None
        """Processes on screen, at most: those around the cursor; None for all."""
        self.reserved: Sequence[str] = ()
        """Lines about the reservations of the GPU: memory that is not used yet."""
        self.over: Mapping[tuple[str, int], Severity] = {}
        """Severity of the worst overshoot, by GPU key and PID."""

    def identity(self, row: Row) -> RowKey:
        return row.key

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        """Draw the processes, and below them the reservations."""
        count = len(self.found)
        listed = self.lines(styles, width, min(count, self.most or count) + 1) if count else []
        people = len({row.process.uid for row in self.found})
        title = f"{_processes(count)}{f', {people} people' * (people > 1)}" if count else "no process is listed"
        words = [self.part(" to ").partition(" of")[0] or "by memory"] if count > 1 else []
        reserved = [LineBuilder(styles).gap(2).write(line, "muted", width - 2).build(width) for line in self.reserved]
        return [draw_rule(title, words, styles, width), *listed, *reserved]

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        hidden = {"idle"} if 56 <= width < 70 else {"idle", "pid"} if width < 56 else set()
        return [column for column in self._COLUMNS if column.id not in hidden]

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        row, glyphs = self.found[place], styles.glyphs
        cells: dict[str, Cell] = {
            "initial": ((styles.initial(row.process.uid), styles.badge(row.process.uid, background)),),
            "limit": self._limit(row, glyphs),
            "command": ((row.brief, "text"),),
        }
        return tuple(
            cells.get(column.id) or ((PROCESS[column.id].cell(row, glyphs.missing, glyphs.least), column.role),)
            for column in self._columns
        )

    def _limit(self, row: Row, glyphs: Glyphs) -> Cell:
        words, over = "/".join(filter(None, share_words(row))), self.over.get((row.gpu.key, row.holding.pid))
        if over is None:
            return ((f"{words}  ", "text"),)
        mark, role = mark_of(over, glyphs)
        return ((f"{words:>8}", "strong"), (f" {mark}", role))


# -- one GPU -------------------------------------------------------------------------------------------------------


def gpu_page(
    gpu: Gpu | None,
    graphs: FrameGraphs,
    processes: ProcessBlock,
    canvas: Canvas,
    strays: Mapping[tuple[int, int], Stray] | None = None,
) -> SheetPage:
    """Return the page of a GPU as it was last listed, which may be before the newest frame; None for never."""
    frame, styles = graphs.frame, canvas.styles
    if gpu is None:
        return SheetPage(graphs.title("GPU"), (), notice="The driver does not list this GPU.", over=True)
    over = not any(gpu is listed for listed in frame.snapshot.gpus)
    notice = "The driver no longer lists this GPU. Last known values:"
    if not over:
        notice = gpu.words or gpu.health.value if gpu.health is not Health.OK else ""
    room, two_columns = canvas.room(notice), canvas.two_columns
    held = [row for row in rows(frame.snapshot, frame.history) if row.gpu.key == gpu.key]
    processes.update_rows(sorted(held, key=lambda row: -(number(row.holding.memory) or 0.0)))
    processes.over = overshoots((*frame.alerts, *frame.early))
    processes.reserved = [
        f"{promise.user} {promise_words(promise, frame.snapshot.taken)}: {gib(promise.bytes)} GiB not used yet"
        for promise in gpu.promises
        if promise.reserved
    ]
    width = canvas.widths[0]
    graphs.fit(styles, width)
    events = graphs.events(lambda alert: gpu.key in (alert.gpu, *(other.key for other in alert.gpus)))
    plan = plan_page(room, len(held), two_columns=two_columns)
    drawn = [one for one in gpu_graphs(gpu, graphs, titled=plan.titled) if plan.heights[one.title]]
    heights = [plan.heights[one.title] + plan.titled for one in drawn]
    blocks = graphs.place(drawn, heights, titled=plan.titled, axis=False)
    runs, count = find_runs(gpu, graphs, plan.runs) if plan.runs else ([], 0)
    below = [draw_rule(RUNS, [f"SM % of each: {' '.join(styles.glyphs.shades)}"], styles, width)] * plan.titled
    below = [*below * bool(runs), *draw_runs(runs, count, graphs)]
    strip = graphs.strip_lines([gpu], times=two_columns)
    if plan.axis:
        below.append(graphs.axis_line(events))
    section = gpu_section(gpu, frame.snapshot, frame.history, room=False)
    listed = replace(graphs.event_section(events), title="events")
    facts: list[Part] = [room_section(gpu, frame), listed, _health(gpu, graphs)]
    facts += [*instance_sections(gpu), section]
    processes.most = None if two_columns else max(1, plan.processes)
    left: list[Part]
    if two_columns:
        left, right = [*blocks, LinesBlock([*below, *strip])], [processes, *facts]
    else:
        foot = [graphs.event_line(events, width)] * bool(plan.axis and events) + strip * plan.axis
        processes.gap = int(not foot)
        left, right = [*blocks, LinesBlock(below), processes, LinesBlock(foot, 1)], facts
    view = View(frame, frame.received, styles, frame.snapshot.interval, strays=strays or {})
    title = graphs.title(f"GPU {gpu.index} · {short_name(gpu.name) or '?'}")
    alerts = alerts_by_gpu(frame)[gpu.key]
    mark, role, words = state_of(view, gpu, alerts, max(0, canvas.width - len(title) - 26))
    state = (("  ", role), (f"{mark} " * (mark != " "), role), *words) if any(text for text, _ in words) else ()
    head = [headline(gpu, graphs, canvas.width)]
    return SheetPage(title, left, right, graphs.span_words(), notice, over=over, state=state, head=head, ruled=True)


class PagePlan(NamedTuple):
    """Lines of the parts of a page."""

    heights: Mapping[str, int]
    """Lines of each plot by the title of its graph; 0 for none."""
    runs: int
    processes: int
    titled: bool
    """Whether graphs have titles."""
    axis: bool


def plan_page(room: int, held: int, *, two_columns: bool) -> PagePlan:
    """Divide the lines of a page: memory has the most; heat and links have none if there are few."""
    if room < SMALL:
        listed = min(max(1, held), max(1, (room - 3) // 2))
        return PagePlan({MEMORY: max(2, room - 3 - listed), WORK: 0, HEAT: 0, LINKS: 0}, 0, listed, False, False)
    titled = two_columns or room >= 34
    listed = min(max(1, held), max(3, (room - 12) // 4))
    left = room - 2 - (2 if two_columns else 2 + ProcessBlock.HEAD + listed)
    runs = min(max(1, held), max(2, left // 9))
    left -= runs + titled
    small = (left // 10 if left >= 24 else 0, left // 20 * 2 if left >= 24 else 0)
    left -= sum(small) + titled * (2 + sum(1 for one in small if one))
    work = max(4, left * 2 // 5)
    heights = {MEMORY: max(3, left - work), WORK: work, HEAT: small[0], LINKS: small[1]}
    return PagePlan(heights, runs, listed, titled, True)


def headline(gpu: Gpu, graphs: FrameGraphs, width: int) -> Line:
    """Draw the present figures, as meters if there is room, or the figures of the cursor's time."""
    styles, at, wide = graphs.styles, graphs.shown_at, width >= METERS
    builder = LineBuilder(styles).gap()
    between = f" {styles.glyphs.dot} "
    metrics = (Metric.USED, Metric.UTILIZATION, Metric.POWER, Metric.TEMPERATURE)
    readings = [graphs.figure(gpu, metric) for metric in metrics]
    if at is not None:
        builder.write(f"{day_time(at, graphs.now, '%H:%M:%S')}  ", "note")
    limits = [usable(gpu), 100.0, number(gpu.power_limit), number(gpu.slowdown_temperature)]
    names, units = ("memory", "util", "power", "heat"), (" GiB", " %", " W", f" {styles.glyphs.celsius}")
    shown: list[tuple[str, str, float | None]] = []
    for name, value, most, unit in zip(names, readings, limits, units, strict=True):
        if value is not None:
            show = gib if name == "memory" else "{:.0f}".format
            of = f"/{show(most)}" if most and name != "util" and (wide or name != "heat") else ""
            shown.append((name, f"{show(value)}{of}{unit}", value / most if most else None))
    if wide and at is None:
        cells = max(6, (width - 2) // max(1, len(shown)) - 24)
        for name, words, part in shown:
            builder.write(f"{name} ", "muted").write_spans(_meter(part, cells, styles) if part is not None else ())
            builder.write(f" {words}", "strong", 14)
            builder.gap(3)
        return builder.build(width)
    texts = [words if name != "util" else f"{name} {words}" for name, words, _ in shown]
    if at is None:
        left = GPU["left"].read(gpu)
        texts[1:1] = [f"left {gib(left.number)}"] if isinstance(left, Amount) and texts else []
        texts += [alert.forecast for alert in graphs.frame.alerts if alert.gpu == gpu.key and alert.forecast][:1]
    for place, text in enumerate(texts):
        if builder.cells + len(between) * bool(place) + len(text) > width:
            break
        builder.write(between if place else "", "faint").write(text, "text" if place else "strong")
    return builder.build(width)


def _meter(part: float, cells: int, styles: StyleSet) -> list[Span]:
    """Draw a part of 1 as a bar of `cells` cells between two edges."""
    glyphs = styles.glyphs
    filled = styles.filled._replace(background=styles("text", "track").background)
    edges = ("[", "]") if glyphs.ascii else ("▕", "▏")
    eighths = round(min(1.0, part) * cells * 8)
    whole = eighths // 8
    bar = ("█" if glyphs.eighths else glyphs.fill) * whole
    bar += glyphs.eighths[eighths % 8 - 1] if glyphs.eighths and eighths % 8 else ""
    builder = LineBuilder(styles).write(edges[0], "faint").write(bar, filled)
    return builder.write(" " * (cells - len(bar)), styles("faint", "track")).write(edges[1], "faint").spans


def gpu_graphs(gpu: Gpu, graphs: FrameGraphs, *, titled: bool) -> list[Graph]:
    """Return the graphs of a GPU's measured figures. Without titles, the axes name what goes up and what goes down."""
    dashed, get = graphs.styles("muted"), graphs.graph

    def curve(metric: Metric, reading: Reading, role: Role | None = None) -> Curve:
        return graphs.curve(gpu.key, "", metric, reading, role)

    def limit(label: str, reading: Reading) -> tuple[GraphLimit, ...]:
        return (GraphLimit(label, float(reading), dashed),) if known(reading) else ()

    utilization, power = curve(Metric.UTILIZATION, gpu.utilization), curve(Metric.POWER, gpu.power, "faint")
    watts = axis_top(reach(number(gpu.power_limit), largest(power.values, least=20.0)))
    temperature = curve(Metric.TEMPERATURE, gpu.temperature, "note")
    degrees = [value for value in temperature.values if value is not None] or [20.0]
    hot = axis_top(max(reach(number(gpu.slowdown_temperature), max(degrees)), min(degrees) + 10.0))
    received, sent = curve(Metric.PCIE_RX, gpu.pcie_rx), curve(Metric.PCIE_TX, gpu.pcie_tx, "faint")
    most = largest(received.values, sent.values, least=10.0 * MIB)
    unit, rate, form = (GIB, "GiB/s", "{:.1f}") if most >= GIB else (MIB, "MiB/s", "{:.0f}")
    speeds: dict[str, Any] = {"show": lambda at: form.format(at / unit), "scale": unit}
    unread = reason_words(gpu.pcie_rx)
    celsius = graphs.styles.glyphs.celsius
    hangs = get("power", "W", [power], watts, limits=limit("limit", gpu.power_limit))
    down = get("sent", rate, [sent], axis_top(most, unit), **speeds)
    ends = None if titled else ("util", "power")
    heat: dict[str, Any] = {"low": axis_low(min(degrees)), "limits": limit("slows down at", gpu.slowdown_temperature)}
    found = [graphs.memory_graph(gpu)]
    if _is_measured(gpu.utilization, utilization) or _is_measured(gpu.power, power):
        found.append(get(WORK, "%", [utilization], 100.0, reason_words(gpu.utilization), down=hangs, ends=ends))
    if _is_measured(gpu.temperature, temperature):
        found.append(get(HEAT, celsius, [temperature], hot, reason_words(gpu.temperature), filled=False, **heat))
    if _is_measured(gpu.pcie_rx, received) and not _lacks_links(gpu, graphs):
        found.append(get(LINKS, rate, [received], axis_top(most, unit), unread, down=down, **speeds))
    return found


def _is_measured(now: Reading, curve: Curve) -> bool:
    return now is not Reason.UNSUPPORTED or any(value is not None for value in curve.values)


# -- facts ---------------------------------------------------------------------------------------------------------


def room_section(gpu: Gpu, frame: Frame) -> Section:
    """Describe the free memory, the memory left, its growth, and the GPUs where the largest process would fit."""
    snapshot, history = frame.snapshot, frame.history
    kinds = {"free": "", "left": "left ", "reserved": "driver's own "}
    known_kinds = [(words, one) for key, words in kinds.items() if isinstance(one := GPU[key].read(gpu), Amount)]
    sizes = [f"{words}{size(one.number) if not words else gib(one.number)}" for words, one in known_kinds]
    facts = [Fact("free", ", ".join(sizes))]
    facts += _memory_facts(gpu, snapshot, history)
    trend = history.gpu(gpu.key).trend
    if trend is not None and trend.speed > 0:
        soon = next((alert.forecast for alert in frame.alerts if alert.gpu == gpu.key and alert.forecast), "")
        facts.append(Fact("grows", ", ".join(filter(None, (f"by {size(60 * trend.speed)} a minute", soon)))))
    most = max((one.memory for one in gpu.holdings if known(one.memory)), default=0)
    others = [(other.index, GPU["left"].read(other)) for other in snapshot.gpus if other.key != gpu.key]
    if most and others:
        fitting = [index for index, one in others if isinstance(one, Amount) and one.number >= most]
        where = f"GPU {ranges(fitting)}" if fitting else "no other GPU"
        facts.append(Fact("largest", f"process of {size(most)} fits on {where}"))
    return Section("room", tuple(one for one in facts if one.value))


def gpu_section(gpu: Gpu, snapshot: Snapshot, history: HistoryView | None = None, *, room: bool = True) -> Section:
    """Describe everything about a GPU; without `room`, leave out its memory and the figures of the headline."""
    facts = [
        text_fact("name", gpu.name, "not known"),
        text_fact("UUID", gpu.uuid, "not known: the driver returned no handle"),
        text_fact("bus id", gpu.bus_id, "not known"),
    ]
    if gpu.health is not Health.OK:
        since = f", since {moment(gpu.since, snapshot.taken)}" if gpu.since else ""
        facts.append(Fact("health", f"{gpu.health.value}{since}"))
    if gpu.words:
        facts.append(Fact("problem", gpu.words))
    now = snapshot.monotonic
    slow = f"; fan, clocks and others {long_duration(now - gpu.slow_sampled)} ago" if gpu.slow_sampled else ""
    limits = {"temperature": "slowdown_temperature", "power": "power_limit"}
    shown = [field_fact(GPU["utilization"], gpu), *(_with_limit(key, limit, gpu) for key, limit in limits.items())]
    throttle = gpu.throttle if isinstance(gpu.throttle, Reason) else ", ".join(throttle_words(gpu.throttle))
    facts += [
        *(field_fact(GPU[key], gpu) for key in ("total", "memory", "free", "left", "reserved") if room),
        *(_memory_facts(gpu, snapshot, history) if room else ()),
        *(one for one in shown if room or one.missing),
        *(field_fact(GPU[key], gpu) for key in _RATES if is_used(GPU[key], gpu)),
        *(field_fact(GPU[key], gpu) for key in ("fan", "sm_clock", "memory_clock", "pstate")),
        *[value_fact("slowed down by", throttle)] * bool(throttle),
        *[field_fact(GPU["ecc"], gpu)] * is_used(GPU["ecc"], gpu),
        value_fact("persistence", gpu.persistence),
        value_fact("compute mode", gpu.compute_mode),
        value_fact("display", gpu.display_active),
        value_fact("MIG", gpu.mig),
        text_fact("driver", f"{snapshot.driver}, CUDA {snapshot.cuda or '?'}" * bool(snapshot.driver), "not known"),
        Fact("last read", f"{long_duration(now - gpu.sampled)} ago{slow}" if gpu.sampled else "never"),
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


def _memory_facts(gpu: Gpu, snapshot: Snapshot, history: HistoryView | None) -> list[Fact]:
    """Describe what is promised and declared of the memory, and why no listed process may hold a part of it."""
    starts = history.unknown_memory_starts(snapshot) if history is not None else {}
    unified = [Fact("unified", "the GPU shares the machine's memory; these are the machine's figures")]
    likely = [
        Fact("" if place else "likely cause", one.reason, aside=one.step)
        for place, one in enumerate(one for one in GapEvidence(snapshot, starts).causes(gpu) if not one.harmless)
    ]
    return [
        *(
            Fact("" if place else "promised", f"{size(one.bytes)} to {one.user}, {promise_words(one, snapshot.taken)}")
            for place, one in enumerate(gpu.promises)
        ),
        *[field_fact(GPU["unknown"], gpu)] * (not known(gpu.unattributed) or gpu.unattributed >= 0.05 * GIB),
        *unified * gpu.memory.unified,
        *likely,
        *_declared_facts(gpu, snapshot),
    ]


def promise_words(promise: Promise, now: float) -> str:
    """Return why memory is promised: `declared, not used yet`, `reserved 12 min ago`."""
    if not promise.reserved:
        return "declared, not used yet"
    return f"reserved {long_duration(max(0.0, now - promise.reserved))} ago"


def _declared_facts(gpu: Gpu, snapshot: Snapshot) -> list[Fact]:
    """Describe the declared and the held memory of a GPU, and count the processes without known declarations."""
    sums = shares.declared_memory(gpu, {process.pid: process for process in snapshot.processes})
    facts = []
    if sums.limits:
        by = f"in {sums.limits} {'shares' if sums.limits > 1 else 'share'}"
        over = f", overbooked: the GPU has {size(sums.total)}" if sums.overbooked and sums.total else ""
        facts.append(Fact("declared", f"{size(sums.declared)} {by}{over}"))
    elif gpu.holdings and not sums.unread:
        facts.append(Fact("declared", "nothing"))
    if gpu.holdings:
        least = "" if all(known(one.memory) for one in gpu.holdings) else "at least "
        facts.append(Fact("held", f"{least}{size(sums.held)} by all processes"))
    if sums.undeclared:
        facts.append(Fact("undeclared", _processes(sums.undeclared)))
    if sums.unread:
        facts.append(Fact("unread", f"declared share of {_processes(sums.unread)}", missing=True))
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


def _links(gpu: Gpu, graphs: FrameGraphs) -> list[Fact]:
    """Describe PCIe and NVLink; NVLink only where a GPU has it."""
    if _lacks_links(gpu, graphs):
        return [Fact("PCIe", _UNREAD_LINKS, missing=True)]

    links = [("pcie", value_fact("PCIe", gpu.pcie_link))]
    if known(gpu.nvlinks) and gpu.nvlinks > 0:
        links.append(("nvlink", Fact("NVLink", f"{gpu.nvlinks:.0f} active")))
    facts = []
    for link, named in links:
        read = [(words, GPU[f"{link}_{way}"].describe(gpu)) for way, words in (("rx", "received"), ("tx", "sent"))]
        rates = [f"{words} {value}" for words, value in read if value and not isinstance(value, Reason)]
        facts.append(replace(named, value=", ".join([named.value, *rates])))
    return facts


def _health(gpu: Gpu, graphs: FrameGraphs) -> Section:
    """Describe XIDs, broken memory, when the clocks were limited, and the links."""
    history, now = graphs.frame.history, graphs.now
    facts = []
    for code, (count, last) in sorted(history.gpu(gpu.key).xids.items(), key=lambda one: -one[1][1]):
        ago = long_duration(max(0.0, history.now - last))
        facts.append(Fact(f"XID {code}", f"{count} time{'s' * (count != 1)}, last {ago} ago"))
    if not facts:
        reason = REASONS[gpu.xids] if isinstance(gpu.xids, Reason) else ""
        facts.append(Fact("XID", reason or "none", missing=bool(reason)))
    facts.append(field_fact(_ECC, gpu))
    facts += [Fact("broken rows", "will be replaced when the GPU is reset")] * (gpu.remap_pending is True)
    facts += [Fact("broken rows", "could not be replaced: the GPU must be replaced")] * (gpu.remap_failed is True)
    changes = [one for one in history.gpu(gpu.key).throttles if one.reasons][-3:]
    facts += [
        Fact("" if place else "slowed down", f"{moment(at, now)} {', '.join(throttle_words(reasons))}")
        for place, (at, reasons) in enumerate(reversed(changes))
    ]
    return Section("health", (*facts, *_links(gpu, graphs)))


def instance_sections(gpu: Gpu) -> list[Section]:
    """Describe the MIG instances of a GPU; nothing without any."""
    facts = []
    for one in gpu.instances:
        used, total = (field_fact(field, one).value for field in _OF_INSTANCE)
        label = f"{one.gpu_instance}/{one.compute_instance}"
        facts.append(Fact(label, f"{one.profile}: {used} of {total} used", aside=one.uuid))
    return [Section("MIG instances", tuple(facts))] * bool(facts)
