"""All that is known about one process and its GPUs, as labelled facts in words; no widget, no colour, no markup."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpuwatch import shares
from gpuwatch.alerts.rules.memory import Allowances
from gpuwatch.alerts.unattributed import causes
from gpuwatch.analysis.explanation import points
from gpuwatch.analysis.rows import Row
from gpuwatch.model import Gpu, Health, Holding, Presence, Process, Reading, Reason, Snapshot, known
from gpuwatch.units import long_duration, percent, size

REASONS = {
    Reason.UNSUPPORTED: "not supported by this GPU or driver",
    Reason.DENIED: "no permission",
    Reason.NO_SAMPLE: "no sample yet",
    Reason.ERROR: "the call failed",
}
"""Words in the place of a number that is missing."""

PRESENCE = {
    Presence.SEEN: "",
    Presence.GONE: "The driver lists it and the kernel has no such process: it ended, and its memory is not freed yet.",
    Presence.HIDDEN: "It is hidden from you: /proc is mounted so that you see only your own processes (hidepid).",
    Presence.ELSEWHERE: "It is in another PID namespace: from inside this container it cannot be told who it is.",
    Presence.UNREADABLE: "It cannot be read just now (too many open files, no memory). What is shown was read before.",
    Presence.UNSURE: (
        "It has the PID that the driver lists, but the driver may mean another process, outside of this container."
    ),
}
"""Why a process shows no more than its PID, or is not certainly the one that holds the memory."""

_KINDS = {"C": "compute", "G": "graphics", "M": "client of the MPS server"}


@dataclass(frozen=True, slots=True)
class Fact:
    """One line: a label and what is known, or why it is not."""

    label: str
    value: str
    missing: bool = False
    aside: str = ""
    """Words that belong to it and matter less: where it stands, how sure it is."""


@dataclass(frozen=True, slots=True)
class Section:
    """Facts under a heading."""

    title: str
    facts: tuple[Fact, ...]


def fact(label: str, reading: Reading, show: Callable[[float], str]) -> Fact:
    """Return a fact of a reading: the number as `show` prints it, or the reason in words."""
    if isinstance(reading, Reason):
        return Fact(label, REASONS[reading], missing=True)
    return Fact(label, show(reading))


def text_fact(label: str, text: str, otherwise: str) -> Fact:
    """Return a fact of a text, or of why it is empty."""
    return Fact(label, text) if text else Fact(label, otherwise, missing=True)


def process_section(process: Process, now: float) -> Section:
    """Describe what /proc shows of a process; `now` is the wall-clock time of the snapshot."""
    unseen = process.presence is not Presence.SEEN
    unreadable = "not visible" if unseen else "cannot be read"
    facts = [Fact("PID", str(process.pid))]
    if unseen:
        facts.append(Fact("presence", PRESENCE[process.presence]))
    user = process.user if process.uid is None else f"{process.user or '?'} (uid {process.uid})"
    facts += [
        text_fact("command", process.command or (f"[{process.name}]" if process.name else ""), unreadable),
        text_fact("user", user, unreadable),
        text_fact("state", process.state, unreadable),
        text_fact("parent", parent_words(process), unreadable),
        text_fact("terminal", process.terminal or ("" if unseen else "none"), unreadable),
        text_fact("started", _started(process, now), unreadable),
        fact("CPU", process.cpu, lambda value: f"{value:.0f} % of a core{_below(process)}"),
        fact("host memory", process.rss, size),
    ]
    return Section("Process", tuple(facts))


def _below(process: Process) -> str:
    """Return what all that a process has started uses of the CPU; empty for nothing, and where it is not known."""
    return f", what it started {process.below:.0f} %" if known(process.below) and process.below >= 0.5 else ""


def parent_words(process: Process) -> str:
    """Name the parent; a parent of 1 means that the one which started it has ended."""
    if process.ppid is None:
        return ""
    if process.ppid == 1:
        return f"its parent ended; now a child of {process.parent or 'PID 1'}"
    return f"{process.parent} {process.ppid}" if process.parent else str(process.ppid)


def _started(process: Process, now: float) -> str:
    if process.started is None:
        return ""
    return f"{moment(process.started, now)}, {long_duration(now - process.started)} ago"


def moment(when: float, now: float) -> str:
    """Print a wall-clock time as `14:03:12`, with the date where it is not of the same day as `now`."""
    then, today = time.localtime(when), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)


def holding_section(row: Row) -> Section:
    """Describe what a process holds and does on one GPU."""
    holding, gpu = row.holding, row.gpu
    facts = [
        fact("memory", holding.memory, size),
        _share(row),
        _growth(row),
        fact("SM busy", holding.sm, _percent),
        fact("memory busy", holding.memory_utilization, _percent),
        fact("encoder", holding.encoder, _percent),
        fact("decoder", holding.decoder, _percent),
        Fact("idle", idle_words(row)) if row.idle else Fact("idle", "not known", missing=True),
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
        return Fact("share", "not known: memory has no figure", missing=True)
    said = ""
    if row.limit is not None and row.declared is not None:
        together = f", counted together as {row.limit.scope}" if row.limit.scope else ""
        said = f", declared {percent(row.declared, 100)} %{together}"
    return Fact("share", f"{percent(row.share, 100)} % of the GPU's memory{said}")


def declared_section(process: Process, snapshot: Snapshot, allowances: Allowances | None) -> Section:
    """Describe what a process declared, what of it holds and why, which GPUs it sees, and what could not be read."""
    found = points(process, snapshot, allowances)
    return Section("Declared", tuple(Fact(one.label, one.value, aside=one.aside) for one in found))


def _growth(row: Row) -> Fact:
    if row.growth is None:
        return Fact("last minute", REASONS[Reason.NO_SAMPLE], missing=True)
    if row.growth == 0:
        return Fact("last minute", "unchanged")
    return Fact("last minute", f"{'+' if row.growth > 0 else '−'}{size(abs(row.growth))}")


def kind_words(holding: Holding) -> str:
    """Spell out the kind: `C+G` is compute and graphics."""
    return " and ".join(_KINDS.get(kind, kind) for kind in holding.kind.split("+"))


def idle_words(row: Row) -> str:
    """Print how long a process has been idle, with `≥` where it was idle before we looked; empty when not known."""
    if row.idle is None:
        return ""
    if row.idle.seconds <= 0:
        return "not idle"
    return f"{'≥ ' if row.idle.at_least else ''}{long_duration(row.idle.seconds)}"


def gpu_section(gpu: Gpu, snapshot: Snapshot) -> Section:
    """Describe all that is known of a GPU itself."""
    now = snapshot.taken
    facts = [
        text_fact("name", gpu.name, "not known"),
        text_fact("UUID", gpu.uuid, "not known: the driver has given no handle"),
        text_fact("bus id", gpu.bus_id, "not known"),
    ]
    if gpu.health is not Health.OK:
        since = f", since {moment(gpu.since, now)}" if gpu.since else ""
        facts.append(Fact("health", f"{gpu.health.value}{since}"))
    if gpu.words:
        facts.append(Fact("trouble", gpu.words))
    facts += [*_memory_facts(gpu), *_gap(gpu, snapshot), *_promises(gpu, snapshot)]
    facts += [
        fact("utilization", gpu.utilization, _percent),
        fact("memory busy", gpu.memory_utilization, _percent),
        fact("encoder", gpu.encoder, _percent),
        fact("decoder", gpu.decoder, _percent),
        _of("temperature", gpu.temperature, gpu.slowdown_temperature, "°C", "slows down at"),
        _of("power", gpu.power, gpu.power_limit, "W", "limit"),
        fact("fan", gpu.fan, lambda value: f"{value:.0f} % of top speed"),
        fact("SM clock", gpu.sm_clock, lambda value: f"{value:.0f} MHz"),
        fact("memory clock", gpu.memory_clock, lambda value: f"{value:.0f} MHz"),
        fact("P-state", gpu.pstate, lambda value: f"P{value:.0f}"),
        _throttle(gpu),
        fact("ECC", gpu.ecc_uncorrected, lambda value: f"{value:.0f} uncorrected errors since the driver was loaded"),
        _switch("persistence", gpu.persistence),
        _mode(gpu.compute_mode),
        _switch("display", gpu.display_active),
        _switch("MIG", gpu.mig),
        Fact("read", _ages(gpu, snapshot.monotonic)),
    ]
    return Section(f"GPU {gpu.index}", tuple(facts))


def _ages(gpu: Gpu, now: float) -> str:
    if not gpu.sampled:
        return "never yet"
    slow = f"; fan, clocks and the like {long_duration(now - gpu.slow_sampled)} ago" if gpu.slow_sampled else ""
    return f"{long_duration(now - gpu.sampled)} ago{slow}"


def _memory_facts(gpu: Gpu) -> list[Fact]:
    memory = gpu.memory
    facts = [
        fact("memory", memory.total, lambda value: f"{size(value)} in all"),
        fact("used", memory.used, size),
        fact("free", memory.free, size),
        fact("promised", gpu.promised, lambda value: f"{size(value)} declared or reserved, and not taken yet"),
        fact("reserved", memory.reserved, lambda value: f"{size(value)} by driver and firmware"),
        fact("unattributed", gpu.unattributed, lambda value: f"{size(value)} used by no listed process"),
    ]
    if memory.unified:
        facts.append(Fact("unified", "the GPU shares the machine's memory; these are the machine's figures"))
    return facts


def _gap(gpu: Gpu, snapshot: Snapshot) -> list[Fact]:
    """Describe why memory may be held by no listed process, the likeliest cause first, and what would settle it."""
    found = causes(gpu, snapshot)
    return [Fact("" if place else "perhaps", one.words, aside=one.settle) for place, one in enumerate(found)]


def _promises(gpu: Gpu, snapshot: Snapshot) -> list[Fact]:
    """Describe what is declared on a GPU beside what is held, and of how many processes nothing is known."""
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


def _percent(value: float) -> str:
    return f"{value:.0f} %"


def _of(label: str, reading: Reading, limit: Reading, unit: str, words: str) -> Fact:
    if isinstance(reading, Reason):
        return Fact(label, REASONS[reading], missing=True)
    end = f"{words}: {REASONS[limit]}" if isinstance(limit, Reason) else f"{words} {limit:.0f} {unit}"
    return Fact(label, f"{reading:.0f} {unit}, {end}")


def _throttle(gpu: Gpu) -> Fact:
    if isinstance(gpu.throttle, Reason):
        return Fact("held back by", REASONS[gpu.throttle], missing=True)
    return Fact("held back by", ", ".join(gpu.throttle) or "nothing")


def _switch(label: str, value: bool | Reason) -> Fact:
    if isinstance(value, Reason):
        return Fact(label, REASONS[value], missing=True)
    return Fact(label, "on" if value else "off")


def _mode(mode: str) -> Fact:
    for reason, words in REASONS.items():
        if mode == reason.value:
            return Fact("compute mode", words, missing=True)
    return Fact("compute mode", mode)


def sections(
    held: Sequence[Row], snapshot: Snapshot, allowances: Allowances | None = None
) -> tuple[list[Section], list[Section]]:
    """Describe all of one process: on the left itself and each of its holdings, on the right the GPU of the first row.

    `held` are the rows of one process, at least one, that of the GPU in focus first.
    """
    first = held[0]
    left = [process_section(first.process, snapshot.taken), declared_section(first.process, snapshot, allowances)]
    left += [holding_section(row) for row in held]
    return left, [gpu_section(first.gpu, snapshot)]


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
        lines.append(" · ".join(_one_gpu(row) for row in sorted(held, key=lambda row: row.gpu.index)))
    return lines


def _one_gpu(row: Row) -> str:
    memory = row.holding.memory
    return f"GPU {row.gpu.index} {REASONS[memory] if isinstance(memory, Reason) else size(memory)}"
