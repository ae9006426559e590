"""Rules about declared shares: processes over declared or past their start size, and overbooked GPUs.

Only a number that restricts a process is a limit: a default, a cache, a reserve or growth without a number never is,
and a start size may be exceeded by design.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Allowances
from gpuwatch.alerts.rule import (
    NAMED,
    Observation,
    Rule,
    RuleContext,
    hold,
    holder_name,
    identity,
    joined,
    named_pids,
    owners_of,
)
from gpuwatch.alerts.rules.memory import CLEAR_MARGIN, GROWN, MEMORY, find_nearly_full, room_of
from gpuwatch.base import units
from gpuwatch.base.units import Unit
from gpuwatch.history.history import HistoryView
from gpuwatch.model.shares import STEADY, LimitUsage, additive_limits, limit_usages
from gpuwatch.model.snapshot import (
    Basis,
    Confidence,
    Declaration,
    Gpu,
    Kind,
    Limit,
    Margin,
    Memory,
    Process,
    Snapshot,
    number,
)

OVERSHOOT: Final = "over declared"
OVERBOOKED: Final = "overbooked"
OUTGROWN: Final = "past start size"

_BUDGET_PERCENT: Final = 2.0
"""Least allowance `budget`, in percent of the GPU."""
_SECOND_STEP_PERCENT: Final = 10.0
"""Least allowance `second_step`, in percent of the limit."""
_CLEAR_BYTES: Final = 128 * units.MIB
"""Bytes by which memory must fall below limit plus allowance to clear an alert; at most the allowance."""

_SURE: Final = {Confidence.GUESS: Severity.NOTE, Confidence.STALE: Severity.WARNING}
"""Highest severity of an overshoot by how sure its limit is."""
DOUBT: Final = {Confidence.GUESS: "a guess", Confidence.STALE: "the file was changed after the process started"}


# -- over declared --------------------------------------------------------------------------------------------------


def allowance(
    limit: Limit, total: float | None, *, collective: bool = False, allowances: Allowances | None = None
) -> int:
    """Return the bytes by which processes may exceed a limit before that is an overshoot.

    `total` is the GPU's memory in bytes. `collective` adds room for buffers to exchange data between GPUs, except for
    a limit that is enforced or agreed in bytes: it includes them.
    """
    by = allowances or Allowances()
    if limit.margin is Margin.EXACT:
        return by.exact
    if limit.margin is Margin.BUDGET:
        room = max(by.budget, int((total or 0) * _BUDGET_PERCENT / 100))
    else:
        room = by.eager if limit.margin is Margin.EAGER else by.framework
    return room + (by.collective if collective else 0)


class Overshoot(msgspec.Struct, frozen=True, kw_only=True):
    """Processes that are over declared, by more than the allowance, on one GPU at one moment."""

    gpu: int
    """Index of the GPU."""
    user: str
    pids: tuple[int, ...]
    """PIDs, the largest holder first: one, or all that share the limit."""
    held: int
    """Bytes that they hold together; at least, where the memory of one is not known."""
    declared: int
    """Bytes that were declared."""
    where: str
    """Place of the declaration: `train.py:12`, `environment`."""
    text: str
    """The declaration."""


def overshoots(snapshot: Snapshot, allowances: Allowances | None = None) -> tuple[Overshoot, ...]:
    """Return the processes over declared in a snapshot, the farthest first; the rule also requires that it lasts."""
    gpus = {gpu.uuid: gpu for gpu in snapshot.gpus}
    processes = {one.pid: one for one in snapshot.processes}
    found = []
    for usage in limit_usages(snapshot):
        gpu, members = gpus[usage.gpu], [processes[pid] for pid in usage.pids]
        if usage.held > usage.limit.bytes + _room(usage, gpu, members, allowances or Allowances()):
            found.append(
                Overshoot(
                    gpu=gpu.index,
                    user=members[0].user,
                    pids=usage.pids,
                    held=usage.held,
                    declared=usage.limit.bytes,
                    where=place_of(usage.declaration),
                    text=usage.declaration.text or usage.declaration.channel,
                )
            )
    return tuple(sorted(found, key=lambda one: one.declared - one.held))


def _room(usage: LimitUsage, gpu: Gpu, members: Sequence[Process], by: Allowances) -> int:
    collective = any(one.declared is not None and one.declared.collective for one in members)
    return allowance(usage.limit, number(gpu.memory.total), collective=collective, allowances=by)


def place_of(declaration: Declaration) -> str:
    return f"{declaration.where}:{declaration.line}" if declaration.line else declaration.where


def find_overshoots(context: RuleContext) -> Iterator[Observation]:
    """Compare the memory under each limit with limit and allowance; critical a second step above them.

    Where a part of a sum is not known, the sum is a minimum: it may raise, and never clears.
    """
    gpus = {gpu.uuid: gpu for gpu in context.gpus}
    for usage in (one for found in context.limit_usages.values() for one in found):
        gpu = gpus[usage.gpu]
        members = [context.processes[pid] for pid in usage.pids]
        level, keeps = overshoot_levels(usage, gpu, members, context.limits.allowances)
        whose = f"{usage.scope} of uid {members[0].uid}" if usage.scope else identity(members[0])
        subject = f"{whose} {gpu.key}"
        if keeps is None and context.ignores(OVERSHOOT, subject):
            continue  # most of them
        if keeps is not None:
            who = _holder_names(members)
            several = len({holder_name(one.pid, one) for one in members}) > 1
            title = f"{who} {usage_words(usage, gpu, hold(who, several=several))}"
            short = f"{who} over declared"
            evidence = f"{units.gib(usage.held - usage.limit.bytes)} GiB over {units.gib(usage.limit.bytes)}"
            detail = _overshoot_detail(usage, gpu, members, context.history)
        else:
            title = f"GPU {gpu.index}: {holder_name(members[0].pid, members[0])} no longer over declared"
            short, evidence, detail = "", f"pid {members[0].pid}", ""
        yield Observation(
            gpu=gpu,
            subject=subject,
            rests_on=tuple([one.key for one in members]),
            level=level,
            keeps=keeps,
            partial=not usage.complete or bool(usage.scope and gpu.holdings_note),
            raise_for=context.limits.allowances.after,
            stamp=gpu.sampled,
            title=title,
            short=short,
            evidence=evidence,
            detail=detail,
            value=usage.held,
            unit=Unit.BYTES,
            pids=usage.pids,
            owners=owners_of(usage.pids, context.processes) if keeps is not None else (),
            how="no longer over declared",
        )


def overshoot_levels(
    usage: LimitUsage, gpu: Gpu, members: Sequence[Process], by: Allowances
) -> tuple[Severity | None, Severity | None]:
    """Return the severity by the limits that raise, and by those that clear."""
    limit = usage.limit
    room = _room(usage, gpu, members, by)
    first = limit.bytes + room
    margin = min(_CLEAR_BYTES, room)
    if usage.held <= first - margin:
        return None, None
    second = first + max(by.second_step, int(limit.bytes * _SECOND_STEP_PERCENT / 100))
    most = _SURE.get(usage.declaration.confidence, Severity.CRITICAL)
    keeps = min(most, Severity.CRITICAL if usage.held > second - margin else Severity.WARNING)
    if usage.held <= first:
        return None, keeps
    return min(most, Severity.CRITICAL if usage.held > second else Severity.WARNING), keeps


def _holder_names(members: Sequence[Process]) -> str:
    names = list(dict.fromkeys(holder_name(one.pid, one) for one in members))
    return ", ".join(names[:NAMED]) + (" and others" if len(names) > NAMED else "")


def usage_words(usage: LimitUsage, gpu: Gpu, verb: str = "holds", declared: str = "declared") -> str:
    """Return what is held and declared: in percent of the GPU where the limit was declared so, else in GiB."""
    verb = verb if usage.complete else f"{verb} at least"
    total = gpu.memory.usable
    share = usage.declaration.value if usage.declaration.basis is Basis.TOTAL else None
    # A fraction of a MIG instance is none of the GPU.
    if total and share is not None and abs(usage.limit.bytes - share * total) <= STEADY:
        held, limit = (units.percent(amount, total) for amount in (usage.held, usage.limit.bytes))
        if held != limit:
            return f"{verb} {held} % of GPU {gpu.index}, {declared} {limit} %"
    return f"{verb} {units.gib(usage.held)} GiB of GPU {gpu.index}, {declared} {units.gib(usage.limit.bytes)}"


def _overshoot_detail(usage: LimitUsage, gpu: Gpu, members: Sequence[Process], history: HistoryView) -> str:
    grown = sum(history.growth(gpu.key, *one.key) or 0 for one in members)
    declaration = usage.declaration
    return joined(
        f"+{units.gib(grown)} last minute" if grown >= GROWN else "",
        named_pids(members),
        usage.scope,
        f"{place_of(declaration)} {declaration.text or declaration.channel}".strip(),
        DOUBT.get(declaration.confidence, ""),
    )


# -- overbooked ---------------------------------------------------------------------------------------------------


def find_overbooked(context: RuleContext) -> Iterator[Observation]:
    """Judge whether the declared limits add up to more than a GPU can give; two halves are not more.

    It is a note, since processes may hold less than they declare, and a warning where little memory is free.
    """
    for gpu in context.gpus:
        room = room_of(gpu.memory)
        if room is None or gpu.uuid not in context.limit_usages:
            continue
        free, usable = room
        level = keeps = None
        title, short, evidence = f"GPU {gpu.index} no longer overbooked", "", ""
        usages = additive_limits(gpu, context.processes)
        declared = sum(one.limit.bytes for one in usages)
        if declared <= usable + STEADY and context.ignores(OVERBOOKED, gpu):
            continue
        pids: tuple[int, ...] = ()
        owners: tuple[str, ...] = ()
        if declared > usable + STEADY:
            pids = tuple(dict.fromkeys(pid for one in usages for pid in one.pids))
            percent, warning = 100 * free / usable, context.limits.memory_warning
            level = Severity.WARNING if percent < warning else Severity.NOTE
            keeps = Severity.WARNING if percent < warning + CLEAR_MARGIN else Severity.NOTE
            title = f"GPU {gpu.index} overbooked: {100 * declared / usable:.0f} % declared"
            short = f"overbooked {100 * declared / usable:.0f} %"
            sizes: Counter[str] = Counter()
            for one in usages:
                sizes[holder_name(one.pids[0], context.processes.get(one.pids[0]))] += one.limit.bytes
            evidence = f"{_format_sizes(sizes)} · {units.gib(free)} of {units.gib(usable)} free"
            users = owners_of(pids, context.processes)
            owners = tuple(name for name, _ in sizes.most_common() if name in users)
        yield Observation(
            gpu=gpu,
            level=level,
            keeps=keeps,
            partial=bool(gpu.holdings_note),
            stamp=gpu.sampled,
            title=title,
            short=short,
            evidence=evidence,
            value=declared,
            unit=Unit.BYTES,
            pids=pids,
            owners=owners,
            how="no longer overbooked",
        )


def _format_sizes(sizes: Counter[str]) -> str:
    """Return each user with the declared bytes in words, largest first."""
    (first, largest), *others = sizes.most_common(NAMED)
    named = joined(
        f"{first} declared {units.gib(largest)} GiB", *(f"{name} {units.gib(size)}" for name, size in others)
    )
    more = len(sizes) - NAMED
    return named + (f" and {more} more" if more > 0 else "")


# -- past start size ----------------------------------------------------------------------------------------------


def find_outgrown(context: RuleContext) -> Iterator[Observation]:
    """Find processes that hold more than their declared start size: allowed, and never a warning."""
    for one in (each for gpu in context.gpus for each in context.on(gpu)):
        process, gpu = one.process, one.gpu
        declarations = process.declared.declarations if process.declared is not None else ()
        start = max(
            (size for each in declarations if (size := _start_size(each, gpu.memory)) is not None), default=None
        )
        if start is None or not gpu.uuid or one.memory <= start + context.limits.allowances.framework:
            continue
        who, held = holder_name(process.pid, process), units.gib(one.memory)
        yield Observation(
            gpu=gpu,
            subject=f"{identity(process)} {gpu.key}",
            rests_on=(process.key,),
            level=Severity.NOTE,
            raise_for=context.limits.allowances.after,
            stamp=gpu.sampled,
            title=f"{who} {hold(who)} {held} GiB of GPU {gpu.index}, declared {units.gib(start)} to start with",
            short=f"{who} grew (allowed)",
            evidence=f"pid {process.pid} {process.name} · it may take more than it starts with",
            value=one.memory,
            unit=Unit.BYTES,
            pids=(process.pid,),
            owners=owners_of((process.pid,), context.processes),
        )


def _start_size(declaration: Declaration, memory: Memory) -> float | None:
    if declaration.kind is not Kind.START or not declaration.effective or declaration.value is None:
        return None
    if declaration.basis is Basis.BYTES:
        return declaration.value
    total = memory.usable
    return declaration.value * total if declaration.basis is Basis.TOTAL and total is not None else None


AT_ONCE: Final = (Rule(MEMORY, find_nearly_full), Rule(OVERSHOOT, find_overshoots))
"""Rules whose observations are shown from the first snapshot, before they have lasted."""

RULES: Final = (
    AT_ONCE[1],
    Rule(OVERBOOKED, find_overbooked),
    Rule(OUTGROWN, find_outgrown),
)
