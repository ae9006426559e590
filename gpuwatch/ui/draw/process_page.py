"""Process detail screen: everything that is known of one process and its GPU, kept up to date."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Final, TypeVar

from msgspec.structs import replace
from textual.binding import Binding, BindingType

from gpuwatch.alerts.alert import Alert
from gpuwatch.alerts.limits import Allowances
from gpuwatch.alerts.unattributed import GapEvidence
from gpuwatch.analysis.events import moment
from gpuwatch.analysis.explanation import Point, context_points, explain_process
from gpuwatch.analysis.rows import rows
from gpuwatch.analysis.strays import Stray
from gpuwatch.base.units import GIB, gib, long_duration, percent, size
from gpuwatch.history.history import HistoryView
from gpuwatch.history.timeline import Metric, merge_holdings, process_owner
from gpuwatch.model import shares
from gpuwatch.model.fields import GPU, PROCESS, Amount, Field, Row, RowKey, reading, throttle_words
from gpuwatch.model.snapshot import Gpu, Health, Holding, Presence, Process, Promise, Reason, Snapshot, known
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.graph import Graph, GraphLimit, axis_top
from gpuwatch.ui.draw.theme import StyleSet
from gpuwatch.ui.draw.time_graphs import SMALL, GraphSheet, largest, reach
from gpuwatch.ui.draw.view import strays_of
from gpuwatch.ui.options import Helpers, Options
from gpuwatch.ui.screens.sheet import REASONS, Block, Fact, Section, reason_words

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

T = TypeVar("T")

PRESENCE: Final = {
    Presence.SEEN: "",
    Presence.GONE: "Ended, and the driver still lists its memory.",
    Presence.HIDDEN: "Hidden from you: /proc shows only your own processes (hidepid).",
    Presence.ELSEWHERE: "In another PID namespace: this container cannot see who it is.",
    Presence.UNREADABLE: "Cannot be read now (too many open files, no memory). The values are older.",
    Presence.UNSURE: "The PID matches, but the driver may mean another process, outside of this container.",
}
"""Why a process shows no more than its PID, or may not be the process that holds the memory."""

_KINDS: Final = {"C": "compute", "G": "graphics", "M": "client of the MPS server"}

MOST_GPUS: Final = 4
"""GPUs of a process that have graphs, at most."""

_RATES: Final = ("memory_utilization", "encoder", "decoder")
_OF_HOLDING: Final = [GPU[key].of(reading(f"holding.{key}")) for key in _RATES]
"""Fields of a process on a GPU that are no columns of the process list."""
_CPU: Final = PROCESS["cpu"].of(reading("cpu"))
_HOST_MEMORY: Final = PROCESS["rss"].of(reading("rss"))


def fact(field: Field[T], row: T) -> Fact:
    """Return the fact of a field: its value with the unit, or the reason in words."""
    value = field.describe(row) or Reason.NO_SAMPLE
    if isinstance(value, Reason):
        return Fact(field.label or field.name, REASONS[value], missing=True)
    return Fact(field.label or field.name, value)


def _is_used(field: Field[T], row: T) -> bool:
    """Return whether a rate is known and more than 0."""
    value = field.read(row)
    return isinstance(value, Amount) and value.number > 0


def _text(label: str, text: str, otherwise: str) -> Fact:
    return Fact(label, text) if text else Fact(label, otherwise, missing=True)


def _facts(found: Iterable[Point]) -> tuple[Fact, ...]:
    return tuple(Fact(one.label, one.value, missing=one.label == "not read", aside=one.aside) for one in found)


# -- the process ---------------------------------------------------------------------------------------------------


def stray_section(stray: Stray) -> Section:
    """Describe why a process is called a stray, and how sure that is."""
    first, *rest = stray.why or (stray.cause.value,)
    facts = [Fact("why", first, aside=stray.sure.value), *(Fact("", words) for words in rest)]
    facts.append(Fact("to end it", "S lists your strays" if stray.ends else "not possible: it has ended already"))
    return Section("Stray: nobody attends to it", tuple(facts))


def process_section(process: Process, now: float) -> Section:
    """Describe what /proc shows of a process; `now` is the wall-clock time of the snapshot."""
    unseen = process.presence is not Presence.SEEN
    unreadable = "not known" if unseen else "cannot be read"
    user = process.user if process.uid is None else f"{process.user or '?'} (uid {process.uid})"
    cpu = fact(_CPU, process)
    if not cpu.missing and known(process.below) and process.below >= 0.5:
        cpu = replace(cpu, value=f"{cpu.value}, its children {process.below:.0f} %")
    started = ""
    if process.started is not None:
        started = f"{moment(process.started, now)}, {long_duration(now - process.started)} ago"
    return Section(
        "Process",
        (
            Fact("PID", str(process.pid)),
            *[Fact("presence", PRESENCE[process.presence])] * unseen,
            _text("command", process.command or (f"[{process.name}]" if process.name else ""), unreadable),
            _text("user", user, unreadable),
            _text("state", process.state, unreadable),
            _text("parent", parent_words(process), unreadable),
            *[_text("terminal", process.terminal, unreadable)] * bool(process.terminal or unseen),
            _text("started", started, unreadable),
            cpu,
            fact(_HOST_MEMORY, process),
        ),
    )


def parent_words(process: Process) -> str:
    """Name the parent; it is PID 1 where the process that started this process has ended."""
    if process.ppid is None:
        return ""
    if process.ppid == 1:
        return f"its parent ended; now a child of {process.parent or 'PID 1'}"
    return f"{process.parent} {process.ppid}" if process.parent else str(process.ppid)


def place_section(process: Process) -> Section:
    """Describe what a process runs in; what does not apply has no line."""
    if process.context is None:
        unseen = process.presence is not Presence.SEEN
        return Section("Runs in", (Fact("place", "not known" if unseen else "not read yet", missing=True),))
    found = _facts(context_points(process))
    return Section("Runs in", found or (Fact("place", "no container, job, terminal or login found", missing=True),))


def declared_section(process: Process, snapshot: Snapshot, allowances: Allowances | None) -> Section:
    """Describe what a process declared, which part is in effect and why, and what could not be read."""
    return Section("Declared", _facts(explain_process(process, snapshot, allowances)))


def holding_section(row: Row) -> Section:
    """Describe what a process holds and does on one GPU."""
    holding, gpu = row.holding, row.gpu
    growth = Fact("last minute", REASONS[Reason.NO_SAMPLE], missing=True)
    if row.growth is not None:
        change = f"{'+' if row.growth > 0 else '−'}{size(abs(row.growth))}"
        growth = Fact("last minute", change if row.growth else "unchanged")
    facts = [
        fact(PROCESS["memory"], row),
        _share(row),
        growth,
        fact(PROCESS["sm"], row),
        *(fact(field, row) for field in _OF_HOLDING if _is_used(field, row)),
        *[Fact("idle", idle_words(row))] * (row.idle is not None and row.idle.seconds > 0),
        Fact("kind", kind_words(holding)),
    ]
    if holding.gpu_instance is not None:
        compute = "" if holding.compute_instance is None else f", compute instance {holding.compute_instance}"
        facts.append(Fact("MIG", f"GPU instance {holding.gpu_instance}{compute}"))
    if gpu.holdings_note:
        facts.append(Fact("note", gpu.holdings_note))
    return Section(f"On GPU {gpu.index}", tuple(facts))


def _share(row: Row) -> Fact:
    if row.share is None:
        return Fact("part", "not known, as its memory is not", missing=True)
    declared = ""
    if row.limit is not None and row.declared is not None:
        together = f", counted together as {row.limit.scope}" if row.limit.scope else ""
        declared = f", declared {percent(row.declared, 100)} %{together}"
    return Fact("part", f"{percent(row.share, 100)} % of the GPU's memory{declared}")


def kind_words(holding: Holding) -> str:
    """Spell out the kind: `C+G` is compute and graphics."""
    return " and ".join(_KINDS.get(kind, kind) for kind in holding.kind.split("+"))


def idle_words(row: Row) -> str:
    """Format how long a process has been idle, `≥` where it was idle before gpuwatch started; empty if not known."""
    if row.idle is None:
        return ""
    if row.idle.seconds <= 0:
        return "not idle"
    return f"{'≥ ' if row.idle.at_least else ''}{long_duration(row.idle.seconds)}"


# -- the GPU -------------------------------------------------------------------------------------------------------


def gpu_section(gpu: Gpu, snapshot: Snapshot, history: HistoryView | None = None) -> Section:
    """Describe all that is known of a GPU itself."""
    facts = [
        _text("name", gpu.name, "not known"),
        _text("UUID", gpu.uuid, "not known: the driver has given no handle"),
        _text("bus id", gpu.bus_id, "not known"),
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
        *_memory_facts(gpu, snapshot, history.gap_starts(snapshot) if history is not None else {}),
        *_declared_facts(gpu, snapshot),
        fact(GPU["utilization"], gpu),
        *(fact(GPU[key], gpu) for key in _RATES if _is_used(GPU[key], gpu)),
        _with_limit("temperature", "slowdown_temperature", gpu),
        _with_limit("power", "power_limit", gpu),
        *(fact(GPU[key], gpu) for key in ("fan", "sm_clock", "memory_clock", "pstate")),
        *[value_fact("slowed down by", throttle)] * bool(throttle),
        *[fact(GPU["ecc"], gpu)] * _is_used(GPU["ecc"], gpu),
        value_fact("persistence", gpu.persistence),
        value_fact("compute mode", gpu.compute_mode),
        value_fact("display", gpu.display_active),
        value_fact("MIG", gpu.mig),
        _text("driver", f"{snapshot.driver}, CUDA {snapshot.cuda or '?'}" * bool(snapshot.driver), "not known"),
        Fact("last read", f"{long_duration(now - gpu.sampled)} ago{slow}" if gpu.sampled else "never yet"),
    ]
    kept = [one for one in facts if not (one.missing and one.value == REASONS[Reason.UNSUPPORTED])]
    lacking = ", ".join(one.label for one in facts if one not in kept)
    return Section(f"GPU {gpu.index}", (*kept, *[Fact("not supported", lacking, missing=True)] * bool(lacking)))


def value_fact(label: str, value: str | bool | Reason) -> Fact:
    reason = next((words for one, words in REASONS.items() if one == value), "")  # some are sent as plain texts
    return Fact(label, reason or (value if isinstance(value, str) else "on" if value else "off"), missing=bool(reason))


def _with_limit(key: str, limit_key: str, gpu: Gpu) -> Fact:
    found, limit = fact(GPU[key], gpu), fact(GPU[limit_key], gpu)
    words = f"{found.value}, {limit.label}{':' * limit.missing} {limit.value}"
    return found if found.missing else replace(found, value=words)


def _memory_facts(gpu: Gpu, snapshot: Snapshot, starts: Mapping[str, shares.GapStart]) -> list[Fact]:
    """Describe the memory, and the likely causes where no listed process holds a part of it."""
    unified = [Fact("unified", "the GPU shares the machine's memory; these are the machine's figures")]
    likely = [
        Fact("" if place else "likely cause", one.reason, aside=one.step)
        for place, one in enumerate(one for one in GapEvidence(snapshot, starts).causes(gpu) if not one.harmless)
    ]
    return [
        *(fact(GPU[key], gpu) for key in ("total", "memory", "free", "left")),
        *(
            Fact("" if place else "promised", f"{size(one.bytes)} to {one.user}, {promise_words(one, snapshot.taken)}")
            for place, one in enumerate(gpu.promises)
        ),
        fact(GPU["reserved"], gpu),
        *[fact(GPU["unknown"], gpu)] * (not known(gpu.unattributed) or gpu.unattributed >= 0.05 * GIB),
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
        by = f"by {sums.limits} {'limits' if sums.limits > 1 else 'limit'}"
        over = f", overbooked: it has {size(sums.total)}" if sums.overcommitted and sums.total else ""
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


# -- both ----------------------------------------------------------------------------------------------------------


def held_by(process: tuple[int, int], frame: Frame, gpu: str) -> list[Row]:
    """Return the rows of a process (PID, start time), that on `gpu` first."""
    held = [row for row in rows(frame.snapshot, frame.history) if row.key[1:] == process]
    return sorted(held, key=lambda row: (row.key[0] != gpu, row.gpu.index))


def brief(held: Sequence[Row], snapshot: Snapshot) -> list[str]:
    """Describe a process before it is ended: its command, owner and memory, its parent."""
    first = held[0]
    process = first.process
    sizes = [row.holding.memory for row in held if known(row.holding.memory)]
    parts = ["yours" if first.mine else f"of {first.owner}"]
    if process.started is not None:
        parts.append(f"{long_duration(snapshot.taken - process.started)} old")
    parts.append(f"GPU {first.gpu.index}" if len(held) == 1 else f"{len(held)} GPUs")
    if sizes:
        parts.append(size(sum(sizes)))
    if all(row.idle and row.idle.seconds > 0 for row in held):
        parts.append(f"idle {idle_words(min(held, key=lambda row: row.idle.seconds if row.idle else 0.0))}")
    lines = [first.command, " · ".join(parts)]
    if process.ppid is not None:
        lines.append("its parent ended" if process.ppid == 1 else f"child of {parent_words(process)}")
    if len(held) > 1:
        by_gpu = sorted(held, key=lambda row: row.gpu.index)
        lines.append(" · ".join(f"GPU {row.gpu.index} {fact(PROCESS['memory'], row).value}" for row in by_gpu))
    return lines


class DetailScreen(GraphSheet):
    """The detail of a process: what it is, what it holds on each GPU, its use over time, and its first GPU."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "close", "back", show=False, id="detail.close", tooltip="Back to the dashboard"),
        Binding("K,f9", "end_process", "end", id="detail.end", tooltip="End this process, after asking"),
        Binding("y", "message", "message", id="detail.message", tooltip="Copy a message to the owner"),
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
        super().__init__(frame, styles, helpers)
        self._options = options or Options()
        self._key = row_key
        self._ended = ended
        self._held: list[Row] = []
        self._seen: Snapshot | None = None

    def set_options(self, options: Options) -> None:
        self._options = options
        self.rebuild()

    def rebuild(self) -> None:
        """Show the process as the newest frame has it; where the frame lacks it, keep the last values and say so."""
        if not self.ready:
            return
        frame = self.frame
        held = held_by(self._key[1:], frame, self._key[0])
        self.notice("" if held else _missing(self._held, self._seen, frame.snapshot), over=not held)
        if held:
            self._held, self._seen = held, frame.snapshot
        if not self._held:
            self.show(f"process {self._key[1]}", [], [])
        elif self._seen is not None:
            self._show(self._held, self._seen)

    def _show(self, held: Sequence[Row], seen: Snapshot) -> None:
        graphs = self.place_graphs(lambda _: 6 if self.room >= SMALL else 1)
        events = [self.event_section(self._events())]
        facts, gpu = self._sections(held), gpu_section(held[0].gpu, seen, self.frame.history)
        if self.two_columns:
            left: list[Section | Block] = [*facts, *events]
            right: list[Section | Block] = [*graphs, gpu]
        else:
            left, right = [*facts, *graphs, *events, gpu], []
        for block in graphs:
            block.gap = int(self.room >= SMALL and not self.two_columns)
        graphs[-1].gap = 1
        gpus = ", ".join(str(index) for index in sorted({row.gpu.index for row in held}))
        title = f"{held[0].holding.pid} {held[0].process.name or '?'} · {held[0].owner} · GPU {gpus}"
        self.show(title, left, right, title_end=self.title_words())

    def _sections(self, held: Sequence[Row]) -> list[Section]:
        process, frame = held[0].process, self.frame
        return [
            *(stray_section(one) for one in strays_of(frame, self._options).strays if one.key == process.key),
            process_section(process, frame.snapshot.taken),
            place_section(process),
            declared_section(process, frame.snapshot, self._options.allowances),
            *(holding_section(row) for row in held),
        ]

    def graphs(self) -> list[Graph]:
        """Return the memory and the SM use on each of its first GPUs, its use of the CPU, and its host memory."""
        dashed = self.style_set("warning")
        process = self._held[0].process
        owner = process_owner(process.pid, process.start)
        found = []
        marks = self.event_marks(self._events())
        held = list({row.gpu.key: row for row in self._held}.values())  # one a GPU, also with several MIG instances
        for row in held[:MOST_GPUS]:
            name = f" on GPU {row.gpu.index}" * (len(held) > 1)
            size_now, sm_now = merge_holdings(one.holding for one in self._held if one.gpu is row.gpu)[row.key[1:]]
            memory = self.curve(row.gpu.key, owner, Metric.MEMORY, size_now)
            limits, limit = [], None
            if row.limit is not None:
                words, limit = "limit shared with others" if row.limit.scope else "limit", float(row.limit.bytes)
                limits = [GraphLimit(words, limit, dashed)]
            found.append(
                self.graph(
                    f"Memory{name}",
                    "GiB",
                    [memory],
                    axis_top(reach(limit, largest(memory.values, least=0.1 * GIB)), GIB),
                    limits=limits,
                    marks=marks,
                    show=gib,
                    scale=GIB,
                    empty=reason_words(size_now),
                )
            )
            marks = []
            curve = self.curve(row.gpu.key, owner, Metric.SM, sm_now)
            found.append(self.graph(f"SM busy{name}", "%", [curve], 100.0, empty=reason_words(sm_now)))
        cpu = self.curve("", owner, Metric.CPU, process.cpu)
        rss = self.curve("", owner, Metric.RSS, process.rss)
        most = largest(cpu.values, least=10.0)
        found.append(self.graph("CPU", "% of a core", [cpu], axis_top(most), empty=reason_words(process.cpu)))
        top = axis_top(largest(rss.values, least=0.1 * GIB), GIB)
        found.append(self.graph("Host memory", "GiB", [rss], top, show=gib, scale=GIB, empty=reason_words(process.rss)))
        return found

    def _events(self) -> list[Alert]:
        pid, start = self._key[1:]
        began = self._held[0].process.started or 0.0
        return self.events(
            lambda one: f"{one.subject} ".startswith(f"{pid}:{start} ") or (pid in one.pids and one.seen >= began),
            self._ended,
        )

    def footer_keys(self) -> list[Binding]:
        """Return the keys that the footer shows: a process is ended by its owner, and others write to them."""
        unfit = "message" if self._held and self._held[0].mine else "end_process"
        return [one for one in super().footer_keys() if one.action != unfit]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Offer to end only a process that is still there."""
        return bool(self._held) and not self.over if action == "end_process" else True

    def action_end_process(self) -> None:
        if self._held:
            actions_of(self).ask_to_end(self._held[0].key)

    def action_message(self) -> None:
        """Copy a message to the owner."""
        actions_of(self).write_to_owner(self.frame, lambda row: row.process.key == self._key[1:])


def _missing(held: Sequence[Row], seen: Snapshot | None, now: Snapshot) -> str:
    """Return why a process is not in a snapshot; the driver lists only processes that hold memory."""
    if seen is None or not held:
        return "This process is on no GPU any more."
    ago = long_duration(now.monotonic - seen.monotonic)
    listing = {gpu.key for gpu in now.gpus if gpu.health is Health.OK or gpu.holdings}
    if listing.isdisjoint(row.gpu.key for row in held):
        return f"Last seen {ago} ago: its GPU does not report its processes now."
    return f"Ended, or released its GPU memory, {ago} ago. Last known values:"
