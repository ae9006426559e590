"""Page of a process: everything that is known about it and its first GPU, with graphs of its use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.limits import Allowances
from gpuwatch.alerts.rule import pid_and_user
from gpuwatch.alerts.rules.shares import DOUBT, OVERSHOOT, overshoot_levels, place_of, usage_words
from gpuwatch.analysis.events import moment
from gpuwatch.analysis.explanation import Point, context_points, explain_process
from gpuwatch.analysis.rows import rows
from gpuwatch.analysis.strays import Stray
from gpuwatch.base.units import GIB, gib, long_duration, percent, ranges, size
from gpuwatch.history.timeline import Metric, merge_holdings, process_owner
from gpuwatch.model.fields import GPU, PROCESS, Row, RowKey, reading
from gpuwatch.model.shares import LimitUsage, is_conclusive, is_pending, limit_usages, was_read
from gpuwatch.model.snapshot import Gpu, Health, Idle, Kind, Presence, Process, Reason, Snapshot, known
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.gpu_pages import gpu_section, is_used
from gpuwatch.ui.draw.graph import Curve, Graph, GraphLimit, axis_top
from gpuwatch.ui.draw.sheet import REASONS, Canvas, Fact, Part, Section, SheetPage, field_fact, reason_words, text_fact
from gpuwatch.ui.draw.theme import Role
from gpuwatch.ui.draw.time_graphs import SMALL, FrameGraphs, largest, reach
from gpuwatch.ui.draw.view import mark_of, strays_of
from gpuwatch.ui.options import Options

PRESENCE: Final = {
    Presence.SEEN: "",
    Presence.GONE: "Ended, but the driver still lists its memory.",
    Presence.HIDDEN: "Hidden from you: /proc shows only your own processes (hidepid).",
    Presence.ELSEWHERE: "In another PID namespace: not visible from this container.",
    Presence.UNREADABLE: "Cannot be read now (too many open files, or no memory). The values are old.",
    Presence.UNSURE: "The PID matches, but the driver may mean a process outside this container.",
}
"""Why a process shows no more than its PID, or may not be the process that holds the memory."""

_KINDS: Final = {"C": "compute", "G": "graphics", "M": "client of the MPS server"}

MOST_GPUS: Final = 4
"""GPUs of a process that have graphs, at most."""

_OF_HOLDING: Final = [GPU[key].of(reading(f"holding.{key}")) for key in ("memory_utilization", "encoder", "decoder")]
"""Fields of a process on a GPU that are no columns of the process list."""
_CPU: Final = PROCESS["cpu"].of(reading("cpu"))
_HOST_MEMORY: Final = PROCESS["rss"].of(reading("rss"))


def _facts(points: Iterable[Point]) -> tuple[Fact, ...]:
    return tuple(
        Fact(point.label, point.value, missing=point.label == "not read", aside=point.aside) for point in points
    )


def stray_section(stray: Stray) -> Section:
    """Describe why a process is called a stray, and how sure that is."""
    first, *rest = stray.why or (stray.cause.value,)
    facts = [Fact("why", first, aside=stray.sure.value), *(Fact("", words) for words in rest)]
    facts.append(Fact("to end it", "K (asks first)" if stray.ends else "not possible: it has already ended"))
    return Section("Stray: an abandoned process", tuple(facts))


def process_section(process: Process, now: float) -> Section:
    """Describe what /proc shows of a process; `now` is the wall-clock time of the snapshot."""
    unseen = process.presence is not Presence.SEEN
    unreadable = "not known" if unseen else "cannot be read"
    user = process.user if process.uid is None else f"{process.user or '?'} (uid {process.uid})"
    cpu = field_fact(_CPU, process)
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
            text_fact("command", process.command or (f"[{process.name}]" if process.name else ""), unreadable),
            text_fact("user", user, unreadable),
            text_fact("state", process.state, unreadable),
            text_fact("parent", parent_words(process), unreadable),
            *[text_fact("terminal", process.terminal, unreadable)] * bool(process.terminal or unseen),
            text_fact("started", started, unreadable),
            cpu,
            field_fact(_HOST_MEMORY, process),
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


def holding_section(row: Row) -> Section:
    """Describe what a process holds and does on one GPU."""
    holding, gpu = row.holding, row.gpu
    growth = Fact("last minute", REASONS[Reason.NO_SAMPLE], missing=True)
    if row.growth is not None:
        change = f"{'+' if row.growth > 0 else '−'}{size(abs(row.growth))}"
        growth = Fact("last minute", change if row.growth else "unchanged")
    idle = [Fact("idle", idle_words(row.idle))] if row.idle and row.idle.seconds > 0 else []
    facts = [
        field_fact(PROCESS["memory"], row),
        _share(row),
        growth,
        field_fact(PROCESS["sm"], row),
        *(field_fact(field, row) for field in _OF_HOLDING if is_used(field, row)),
        *idle,
        Fact("kind", " and ".join(_KINDS.get(kind, kind) for kind in holding.kind.split("+"))),
    ]
    if gpu.mig is True and holding.gpu_instance is not None:
        compute = "" if holding.compute_instance is None else f", compute instance {holding.compute_instance}"
        facts.append(Fact("MIG", f"GPU instance {holding.gpu_instance}{compute}"))
    if gpu.holdings_note:
        facts.append(Fact("note", gpu.holdings_note))
    return Section(f"On GPU {gpu.index}", tuple(facts))


def _share(row: Row) -> Fact:
    if row.share is None:
        return Fact("used", "not known, because its memory is not known", missing=True)
    declared = ""
    if row.limit is not None and row.declared is not None:
        together = f", in total for {row.limit.scope}" if row.limit.scope else ""
        declared = f", declared {percent(row.declared, 100)} %{together}"
    return Fact("used", f"{percent(row.share, 100)} % of the GPU's memory{declared}")


def idle_words(idle: Idle) -> str:
    """Format how long a process has been idle, `≥` where it was idle before gpuwatch started."""
    return f"{'≥ ' if idle.at_least else ''}{long_duration(idle.seconds)}"


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
    idle = [row.idle for row in held if row.idle and row.idle.seconds > 0]
    if len(idle) == len(held):
        parts.append(f"idle {idle_words(min(idle, key=lambda one: one.seconds))}")
    lines = [first.command, " · ".join(parts)]
    if process.ppid is not None:
        lines.append("its parent ended" if process.ppid == 1 else f"child of {parent_words(process)}")
    if len(held) > 1:
        by_gpu = sorted(held, key=lambda row: row.gpu.index)
        lines.append(" · ".join(f"GPU {row.gpu.index} {field_fact(PROCESS['memory'], row).value}" for row in by_gpu))
    return lines


# -- the verdict ---------------------------------------------------------------------------------------------------


def find_verdict(held: Sequence[Row], frame: Frame, strays: Sequence[Stray], options: Options) -> tuple[int, str]:
    """Return the worst problem of a process in one line, with its severity; 0 for no problem.

    Problems are active alerts about only this process, and an overshoot as soon as it reaches the rule's levels.
    """
    process = held[0].process
    subject = f"{process.pid}:{process.start} "
    sizes = [row.holding.memory for row in held if known(row.holding.memory)]
    least = "at least " * (len(sizes) < len(held))
    what = f"{least}{size(sum(sizes))}" if sizes else "memory"
    holds = f"holds {what} on GPU {ranges(row.gpu.index for row in held)}"
    about = [one for one in frame.alerts if one.severity > Severity.NOTE and f"{one.subject} ".startswith(subject)]
    if process.has_ended:
        found = [(int(one.severity), _about(one, process)) for one in about]
        return max(found, default=(0, f"has ended and still {holds}"))
    usages = [one for one in limit_usages(frame.snapshot) if process.pid in one.pids]
    found = [_judge(one, row.gpu, frame, options) for row in held for one in usages if one.gpu == row.gpu.uuid]
    found += [(one.severity, _about(one, process)) for one in about if one.rule != OVERSHOOT]
    for stray in strays:
        held_by_it = f" with {size(stray.held)}" if stray.held is not None else ""
        why = (stray.why or (stray.cause.value,))[0] + "; K ends it" * stray.ends
        found.append((Severity.WARNING, f"stray of yours{held_by_it}: {why}"))
    return max(found, key=lambda one: one[0], default=(0, f"{holds}; {_undeclared(process)}"))


def _about(alert: Alert, process: Process) -> str:
    return alert.title.removeprefix(pid_and_user(process)).lstrip(": ")


def _judge(usage: LimitUsage, gpu: Gpu, frame: Frame, options: Options) -> tuple[int, str]:
    """Compare the memory under a limit with it; return the severity of an alert about it, and the words."""
    declaration, others = usage.declaration, len(usage.pids) - 1
    members = [frame.holdings.processes[pid] for pid in usage.pids]
    is_judged = gpu.health is Health.OK and not gpu.unreliable
    level, _ = overshoot_levels(usage, gpu, members, options.allowances or Allowances())
    is_over = usage.held > usage.limit.bytes
    verb = f"it and {others} more hold" if others else "holds"
    relation = "declared" if is_over or not usage.complete else "within the declared"
    place = f" at {place_of(declaration)}" if declaration.line else f" ({declaration.where})" * bool(declaration.where)
    doubt = DOUBT.get(declaration.confidence, "within the allowance" if is_over and level is None else "")
    words = f"{usage_words(usage, gpu, verb, relation)}{place}{', ' * bool(doubt)}{doubt}"
    return (level or 0) if is_judged else 0, words


def _undeclared(process: Process) -> str:
    """Return that a process declared no limit (only if everything was read), or why that is not known."""
    declared = process.declared
    if process.presence is not Presence.SEEN:
        words = PRESENCE[process.presence].rstrip(".")
        return words[0].lower() + words[1:]
    if is_pending(declared):
        return "its declared share is not read yet"
    if declared is None or not was_read(declared):
        return "its declared share is not readable"
    if not is_conclusive(declared):
        return "whether it declared a limit is not known"
    is_said = any(one.kind is not Kind.DEFAULT for one in declared.declarations)
    return "declared no limit" if is_said else "declared nothing"


# -- the page ------------------------------------------------------------------------------------------------------


def process_page(
    key: RowKey, held: Sequence[Row], seen: Snapshot, graphs: FrameGraphs, canvas: Canvas, options: Options
) -> SheetPage:
    """Return the page of a process with the rows that a snapshot has of it: the newest, or the last that had any."""
    frame = graphs.frame
    if not held:
        title = graphs.title(f"process {key[1]}")
        return SheetPage(title, (), notice="This process is no longer on a GPU.", over=True)
    is_there = seen is frame.snapshot
    strays = [stray for stray in strays_of(frame, options).strays if stray.key == held[0].process.key]
    role: Role = "warning"
    notice = missing_words(held, seen, frame.snapshot) if not is_there else ""
    if is_there:
        severity, notice = find_verdict(held, frame, strays, options)
        mark, role = mark_of(Severity(severity), canvas.styles.glyphs) if severity else ("", "strong")
        notice = f"{mark} {notice}".lstrip()
    is_small = canvas.room(notice) < SMALL
    graphs.fit(canvas.styles, canvas.widths[0])
    _, pid, start = held[0].key
    events = graphs.events(
        lambda alert: (
            f"{alert.subject} ".startswith(f"{pid}:{start} ")
            or (pid in alert.pids and alert.seen >= (held[0].process.started or 0.0))
        )
    )
    drawn = process_graphs(held, graphs, events)
    blocks = graphs.place(drawn, [1 if is_small else 6] * len(drawn), int(not is_small and not canvas.two_columns))
    blocks[-1].gap = 1
    sections = process_sections(held, frame, strays, options)
    gpu = gpu_section(held[0].gpu, seen, frame.history)
    listed = graphs.event_section(events)
    left: list[Part] = [*sections, listed] if canvas.two_columns else [*sections, *blocks, listed]
    right: list[Part] = [*blocks, gpu] if canvas.two_columns else [gpu]
    gpus = ", ".join(str(index) for index in sorted({row.gpu.index for row in held}))
    title = f"{held[0].holding.pid} {held[0].process.name or '?'} · {held[0].owner} · GPU {gpus}"
    return SheetPage(graphs.title(title), left, right, graphs.span_words(), notice, role, over=not is_there)


def process_sections(held: Sequence[Row], frame: Frame, strays: Sequence[Stray], options: Options) -> list[Section]:
    """Describe a process: whether it is a stray, what it is and runs in, what it declared, and what it holds."""
    process = held[0].process
    return [
        *map(stray_section, strays),
        process_section(process, frame.snapshot.taken),
        place_section(process),
        Section("Declared", _facts(explain_process(process, frame.snapshot, options.allowances))),
        *(holding_section(row) for row in held),
    ]


def process_graphs(held: Sequence[Row], graphs: FrameGraphs, events: Sequence[Alert]) -> list[Graph]:
    """Return the memory and the SM use on each of its first GPUs, its use of the CPU, and its host memory."""

    def gib_graph(title: str, curve: Curve, top: float, empty: str, **other: Any) -> Graph:
        return graphs.graph(title, "GiB", [curve], top, empty, show=gib, scale=GIB, **other)

    dashed = graphs.styles("warning")
    process = held[0].process
    owner = process_owner(process.pid, process.start)
    drawn = []
    marks = graphs.event_marks(events)
    by_gpu = list({row.gpu.key: row for row in held}.values())  # one a GPU, also with several MIG instances
    for row in by_gpu[:MOST_GPUS]:
        name = f" on GPU {row.gpu.index}" * (len(by_gpu) > 1)
        on_gpu = (other.holding for other in held if other.gpu is row.gpu)
        size_now, sm_now = merge_holdings(on_gpu)[row.key[1:]]
        memory = graphs.curve(row.gpu.key, owner, Metric.MEMORY, size_now)
        limits, limit = [], None
        if row.limit is not None:
            words, limit = "declared together with others" if row.limit.scope else "declared", float(row.limit.bytes)
            limits = [GraphLimit(words, limit, dashed)]
        top = axis_top(reach(limit, largest(memory.values, least=0.1 * GIB)), GIB)
        drawn.append(gib_graph(f"Memory{name}", memory, top, reason_words(size_now), limits=limits, marks=marks))
        marks = []
        curve = graphs.curve(row.gpu.key, owner, Metric.SM, sm_now)
        drawn.append(graphs.graph(f"SM busy{name}", "%", [curve], 100.0, reason_words(sm_now)))
    cpu = graphs.curve("", owner, Metric.CPU, process.cpu)
    rss = graphs.curve("", owner, Metric.RSS, process.rss)
    most = largest(cpu.values, least=10.0)
    drawn.append(graphs.graph("CPU", "% of a core", [cpu], axis_top(most), reason_words(process.cpu)))
    top = axis_top(largest(rss.values, least=0.1 * GIB), GIB)
    drawn.append(gib_graph("Host memory", rss, top, reason_words(process.rss)))
    return drawn


def missing_words(held: Sequence[Row], seen: Snapshot, now: Snapshot) -> str:
    """Return why a process is not in a snapshot; the driver lists only processes that hold memory."""
    ago = long_duration(now.monotonic - seen.monotonic)
    listing = {gpu.key for gpu in now.gpus if gpu.health is Health.OK or gpu.holdings}
    if listing.isdisjoint(row.gpu.key for row in held):
        return f"Last seen {ago} ago: its GPU reports no processes now."
    return f"Ended, or released its GPU memory, {ago} ago. Last known values:"
