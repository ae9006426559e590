"""What is held against what was declared: overshoots, GPUs that are promised twice, start sizes that were outgrown.

Pure functions, as in `rules`. Only what holds a process to a number is a limit: a default, a cache, a reserve or growth
without a number never is, and a start size may be exceeded by design.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuwatch import units
from gpuwatch.alerts.alert import Severity, Unit
from gpuwatch.alerts.rules.memory import GROWN, NAMED, Allowances, Limits, Observation, holder_name, owners_of, room_of
from gpuwatch.history import HistoryView
from gpuwatch.model import (
    Basis,
    Confidence,
    Declaration,
    Gpu,
    Health,
    Kind,
    Limit,
    Margin,
    Memory,
    Process,
    Snapshot,
    known,
    number,
)
from gpuwatch.shares import LimitUsage, additive_limits, limit_usages

OVERSHOOT: Final = "uses more than declared"
OVERCOMMITTED: Final = "overbooked"
OUTGROWN: Final = "past start size"

_SURE: Final = {Confidence.GUESS: Severity.NOTE, Confidence.STALE: Severity.WARNING}
"""The most that an overshoot is worth by how sure its limit is."""
_DOUBT: Final = {
    Confidence.GUESS: "a guess",
    Confidence.STALE: "the file was edited after the process started",
}


@dataclass(frozen=True, slots=True)
class _Scene:
    """What the rules are given, looked up once."""

    gpus: Mapping[str, Gpu]
    """Those whose figures can be judged, by UUID."""
    people: Mapping[int, Process]
    history: HistoryView
    limits: Limits


def declared_shares(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Apply the rules about amounts. GPUs in trouble, and lists that make no sense, are not judged."""
    people = {one.pid: one for one in snapshot.processes}
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus if gpu.uuid and gpu.health is Health.OK and not gpu.unreliable}
    scene = _Scene(gpus, people, history, limits)
    found = [one for one in limit_usages(snapshot) if one.gpu in gpus]
    yield from overshoot(scene, found)
    yield from overcommitted(scene, found)
    yield from outgrown(scene)


# ---------------------------------------------------------------------------------------------------------------
# Overshoot


def allowance(
    limit: Limit, total: float | None, *, collective: bool = False, allowances: Allowances | None = None
) -> int:
    """Return how many bytes may be held over a limit, on a GPU of `total` bytes, before that is an overshoot.

    What is enforced, or agreed in bytes, has none for a `collective` process: its buffers are inside.
    """
    by = allowances or Allowances()
    if limit.margin is Margin.EXACT:
        return by.exact
    if limit.margin is Margin.BUDGET:
        room = max(by.budget, int((total or 0) * by.budget_percent / 100))
    else:
        room = by.eager if limit.margin is Margin.EAGER else by.framework
    return room + (by.collective if collective else 0)


def overshoot(scene: _Scene, found: Iterable[LimitUsage]) -> Iterator[Observation]:
    """Judge every limit: a warning over limit and allowance, critical a second step beyond.

    A sum of which a part is not known is the least that is held: it may raise, and never clears.
    """
    for standing in found:
        gpu = scene.gpus[standing.gpu]
        members = [scene.people[pid] for pid in standing.pids]
        level, keeps = _overshoot_levels(standing, gpu, members, scene.limits.allowances)
        if keeps is not None:
            title = _overshoot_title(standing, gpu, members)
            evidence = f"{units.gib(standing.held - standing.limit.bytes)} GiB over {units.gib(standing.limit.bytes)}"
            detail = _overshoot_detail(standing, gpu, members, scene.history)
        else:  # Most are: more is not worked out for those, and one that is clearing says no more.
            title = f"GPU {gpu.index}: {holder_name(members[0].pid, members[0])} is back within the declared share"
            evidence, detail = f"pid {members[0].pid}", ""
        yield Observation(
            rule=OVERSHOOT,
            gpu=gpu.key,
            index=gpu.index,
            subject=f"{standing.scope or _identity(members[0])} {gpu.key}",
            rests_on=tuple([one.key for one in members]),
            level=level,
            keeps=keeps,
            partial=not standing.complete or bool(standing.scope and gpu.holdings_note),
            raise_after=scene.limits.samples,
            raise_for=scene.limits.allowances.after,
            clear_after=scene.limits.samples,
            stamp=gpu.sampled,
            title=title,
            evidence=evidence,
            detail=detail,
            value=standing.held,
            unit=Unit.BYTES,
            pids=standing.pids,
            owners=owners_of(standing.pids, scene.people) if keeps is not None else (),
        )


def _overshoot_levels(
    standing: LimitUsage, gpu: Gpu, members: Sequence[Process], by: Allowances
) -> tuple[Severity | None, Severity | None]:
    """Return what a holding is worth by the limits that raise, and by those that clear."""
    limit, total = standing.limit, number(gpu.memory.total)
    collective = any(one.declared is not None and one.declared.collective for one in members)
    room = allowance(limit, total, collective=collective, allowances=by)
    first = limit.bytes + room
    second = first + max(by.second_step, int(limit.bytes * by.second_step_percent / 100))
    margin = min(by.clear_margin, room)
    if standing.held <= first - margin:
        return None, None
    most = _SURE.get(standing.declaration.confidence, Severity.CRITICAL)
    return (
        _level(standing.held, first, second, most),
        _level(standing.held, first - margin, second - margin, most),
    )


def _level(held: int, first: int, second: int, most: Severity) -> Severity | None:
    if held <= first:
        return None
    return min(most, Severity.CRITICAL if held > second else Severity.WARNING)


def _overshoot_title(standing: LimitUsage, gpu: Gpu, members: Sequence[Process]) -> str:
    """Return who holds how much: in percent of the GPU where that is how it was declared, else in GiB."""
    names = list(dict.fromkeys(holder_name(one.pid, one) for one in members))
    who = ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")
    verb = "holds" if len(names) == 1 else "hold"
    least = "" if standing.complete else "at least "
    total = number(gpu.memory.total)
    if total and _fraction(standing, gpu.memory) is not None:
        held, declared = (units.percent(amount, total) for amount in (standing.held, standing.limit.bytes))
        if held != declared:
            return f"{who} {verb} {least}{held} % of GPU {gpu.index}, declared {declared} %"
    held, declared = units.gib(standing.held), units.gib(standing.limit.bytes)
    return f"{who} {verb} {least}{held} GiB of GPU {gpu.index}, declared {declared}"


def _overshoot_detail(standing: LimitUsage, gpu: Gpu, members: Sequence[Process], history: HistoryView) -> str:
    parts: list[str] = []
    grown = sum(history.growth(gpu.key, *one.key) or 0 for one in members)
    if grown >= GROWN:
        parts.append(f"+{units.gib(grown)} last minute")
    named = ", ".join(f"{one.pid} {one.name}".rstrip() for one in members[:NAMED])
    more = len(members) - NAMED
    parts.append(f"pid {named}" + (f" and {more} more" if more > 0 else ""))
    if standing.scope:
        parts.append(standing.scope)
    parts.append(source(standing.declaration))
    doubt = _DOUBT.get(standing.declaration.confidence)
    return " · ".join([*parts, doubt] if doubt else parts)


def source(declaration: Declaration) -> str:
    """Return where a declaration stands, and what it says: `train.py:12 per_process_gpu_memory_fraction = 0.4`."""
    where = f"{declaration.where}:{declaration.line}" if declaration.line else declaration.where
    return f"{where} {declaration.text or declaration.channel}".strip()


# ---------------------------------------------------------------------------------------------------------------
# Over-committed GPUs


def overcommitted(scene: _Scene, found: Iterable[LimitUsage]) -> Iterator[Observation]:
    """Judge whether more is declared on a GPU than it has, reserved memory included: two halves are not too much.

    A note, for it need not come to that; a warning once so little is free that memory is near its limit, too.
    """
    on: defaultdict[str, list[LimitUsage]] = defaultdict(list)
    for standing in found:
        on[standing.gpu].append(standing)
    for gpu in scene.gpus.values():
        room, total = room_of(gpu.memory), number(gpu.memory.total)
        if room is None or total is None:
            continue
        free, usable = room
        level = keeps = None
        title, evidence = f"GPU {gpu.index} no longer overbooked", ""
        promises = additive_limits(on[gpu.uuid])
        declared = sum(one.limit.bytes for one in promises)
        pids: tuple[int, ...] = ()
        if declared > total + units.MIB:
            pids = tuple(dict.fromkeys(pid for one in promises for pid in one.pids))
            percent, limits = 100 * free / usable, scene.limits
            level = Severity.WARNING if percent < limits.memory_warning else Severity.NOTE
            keeps = Severity.WARNING if percent < limits.memory_warning + limits.clear_margin else Severity.NOTE
            title = f"GPU {gpu.index} overbooked: {100 * declared / total:.0f} % declared"
            evidence = f"{_promises(promises, scene.people)} · {units.gib(free)} of {units.gib(usable)} free"
        yield Observation(
            rule=OVERCOMMITTED,
            gpu=gpu.key,
            index=gpu.index,
            level=level,
            keeps=keeps,
            partial=bool(gpu.holdings_note),
            raise_after=scene.limits.samples,
            clear_after=scene.limits.samples,
            stamp=gpu.sampled,
            title=title,
            evidence=evidence,
            value=declared,
            unit=Unit.BYTES,
            pids=pids,
            owners=_promisers(promises, scene.people) if pids else (),
        )


def _promises(promises: Sequence[LimitUsage], people: Mapping[int, Process]) -> str:
    """Name who declared how much, the most first."""
    sizes = _promised_by(promises, people)
    (first, largest), *others = sizes.most_common(NAMED)
    named = [f"{first} declared {units.gib(largest)} GiB", *(f"{name} {units.gib(size)}" for name, size in others)]
    more = len(sizes) - NAMED
    return " · ".join(named) + (f" and {more} more" if more > 0 else "")


def _promisers(promises: Sequence[LimitUsage], people: Mapping[int, Process]) -> tuple[str, ...]:
    """Return the users who declared, the most first."""
    users = owners_of((one.pids[0] for one in promises), people)
    return tuple(name for name, _ in _promised_by(promises, people).most_common() if name in users)


def _promised_by(promises: Sequence[LimitUsage], people: Mapping[int, Process]) -> Counter[str]:
    sizes: Counter[str] = Counter()
    for one in promises:
        sizes[holder_name(one.pids[0], people.get(one.pids[0]))] += one.limit.bytes
    return sizes


def _fraction(standing: LimitUsage, memory: Memory) -> float | None:
    """Return the declared fraction of the whole GPU, or None where it was no fraction, or one of a MIG instance."""
    declaration, total = standing.declaration, number(memory.total)
    if declaration.basis is not Basis.TOTAL or declaration.value is None or total is None:
        return None
    whole = abs(standing.limit.bytes - declaration.value * total) < units.MIB
    return declaration.value if whole else None


# ---------------------------------------------------------------------------------------------------------------
# Start sizes


def outgrown(scene: _Scene) -> Iterator[Observation]:
    """Note processes that hold more than the start size they declared. That is allowed, and never a warning."""
    for gpu in scene.gpus.values():
        held: Counter[int] = Counter()
        for one in gpu.holdings:
            process = scene.people.get(one.pid)
            declared = process.declared if process is not None else None
            if declared is not None and known(one.memory) and _has_start(declared.declarations):
                held[one.pid] += int(one.memory)
        for pid, size in held.items():
            process = scene.people[pid]
            yield from _outgrown(scene, gpu, process, size)


def _has_start(declarations: Iterable[Declaration]) -> bool:
    return any(one.kind is Kind.START and one.effective for one in declarations)


def _outgrown(scene: _Scene, gpu: Gpu, process: Process, held: int) -> Iterator[Observation]:
    declarations = process.declared.declarations if process.declared is not None else ()
    start = max((size for one in declarations if (size := _start_size(one, gpu.memory)) is not None), default=None)
    if start is None or held <= start + scene.limits.allowances.framework:
        return
    yield Observation(
        rule=OUTGROWN,
        gpu=gpu.key,
        index=gpu.index,
        subject=f"{_identity(process)} {gpu.key}",
        rests_on=(process.key,),
        level=Severity.NOTE,
        keeps=Severity.NOTE,
        raise_after=scene.limits.samples,
        raise_for=scene.limits.allowances.after,
        stamp=gpu.sampled,
        title=(
            f"{holder_name(process.pid, process)} grew past the start size on GPU {gpu.index}: "
            f"{units.gib(held)} GiB, started with {units.gib(start)}"
        ),
        evidence=f"pid {process.pid} {process.name} · more is allowed",
        value=held,
        unit=Unit.BYTES,
        pids=(process.pid,),
        owners=owners_of((process.pid,), scene.people),
    )


def _start_size(declaration: Declaration, memory: Memory) -> float | None:
    if declaration.kind is not Kind.START or not declaration.effective or declaration.value is None:
        return None
    if declaration.basis is Basis.BYTES:
        return declaration.value
    total = number(memory.total)
    return declaration.value * total if declaration.basis is Basis.TOTAL and total is not None else None


def _identity(process: Process) -> str:
    return f"{process.pid}:{process.start}"
