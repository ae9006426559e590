"""Rules about a GPU's free memory: how much is left, and how soon it is full."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import (
    NAMED,
    Observation,
    Rule,
    RuleContext,
    hold,
    holder_name,
    joined,
    largest_first,
    named_owners,
    owners_of,
    severity_of,
)
from gpuwatch.base import units
from gpuwatch.base.units import Unit
from gpuwatch.history.history import HistoryView, Trend
from gpuwatch.model.holdings import GpuOwner, GpuProcess
from gpuwatch.model.snapshot import Gpu, Memory, known, number

MEMORY: Final = "nearly full"
FULL: Final = "time to full"

CLEAR_MARGIN: Final = 2.0
"""Percentage points that must be free beyond a limit before an alert steps down or is cleared."""
GROWN: Final = 64 * units.MIB
"""Growth in bytes per minute below which no user is named: about the size of a new stream or cuBLAS workspace."""

_FULL: Final = 1.0
"""Percent free below which a GPU is called full."""
_LATER: Final = 1.5
"""An alert steps down or is cleared once the time to full is longer than the limit times this."""
_UNKNOWN: Final = "unknown processes"


def room_of(memory: Memory) -> tuple[float, float] | None:
    """Return (bytes free, bytes that programs can have), or None where they cannot be judged.

    Where the driver does not say what is reserved, programs can have the total.
    """
    free, total, reserved = number(memory.free), number(memory.total), number(memory.reserved)
    if free is None or total is None:
        return None
    usable = total - (reserved or 0.0)
    return (free, usable) if usable > 0 else None


# -- nearly full ----------------------------------------------------------------------------------------------------


def find_nearly_full(context: RuleContext) -> Iterator[Observation]:
    """Compare the free memory of each GPU with the limits in percent."""
    for gpu in context.gpus:
        room = room_of(gpu.memory)
        if room is None:
            continue
        free, usable = room
        percent = 100.0 * free / usable
        level = keeps = None
        # The figures of a GPU that no program uses mean nothing.
        if gpu.holdings or gpu.holdings_note or not (gpu.memory.unified or gpu.memory.used == 0):
            level, keeps = (_memory_severity(percent - margin, context.limits) for margin in (0.0, CLEAR_MARGIN))
        if level is None and context.ignores(MEMORY, gpu):
            continue
        word = " full" if percent < _FULL else " nearly full" if level else ""
        trend = context.history.gpu(gpu.key).trend if keeps is not None and percent >= _FULL else None
        seconds = time_to_full(gpu, trend) if trend is not None and trend.steady else None
        soon = format_prediction(seconds) if seconds is not None else ""
        seen = Observation(
            gpu=gpu,
            level=level,
            keeps=keeps,
            raise_for=context.limits.memory_for,
            clear_for=context.limits.memory_for,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index}{word}: {units.gib(free)} GiB of {units.gib(usable)} free"
            + (f", full in about {soon}" if soon else ""),
            short="full" if percent < _FULL else "nearly full",
            forecast=f"full in {soon}" if soon else "",
            how="" if keeps is not None else f"{units.gib(free)} of {units.gib(usable)} GiB free again",
            value=free,
            unit=Unit.FREE,
            least_is_worst=True,
        )
        if keeps is not None:  # most GPUs have room most of the time: nobody reads who holds it
            found = holders(gpu, context.holdings.owners(gpu), context.history)
            pids = largest_first(context.holdings.on(gpu))
            users = owners_of(pids, context.processes)
            owners = named_owners((one.name for one in found), users)
            seen = msgspec.structs.replace(seen, evidence=_memory_evidence(gpu, found), pids=pids, owners=owners)
        yield seen


def _memory_severity(percent: float, limits: Limits) -> Severity | None:
    if percent < limits.memory_critical:
        return Severity.CRITICAL
    return Severity.WARNING if percent < limits.memory_warning else None


class Holder(NamedTuple):
    """One user's memory on one GPU, in bytes."""

    name: str
    memory: int
    growth: int
    """Growth in the last minute, as far as it is known."""
    partial: bool = False
    """The memory of one of the user's processes is not known, and missing in `memory`."""


def holders(gpu: Gpu, owners: Iterable[GpuOwner], history: HistoryView) -> list[Holder]:
    """Return the holders of a GPU's memory, the largest first: users, nameless and unknown processes."""
    held: defaultdict[str, list[GpuProcess]] = defaultdict(list)
    for owner in owners:
        for one in owner.processes:
            held[owner.name if owner.uid is not None else holder_name(one.process.pid, one.process)].append(one)
    found = []
    for name, theirs in held.items():
        if size := sum(one.memory for one in theirs):
            growth = sum(history.growth(gpu.key, one.process.pid, one.start) or 0 for one in theirs if one.sized)
            found.append(Holder(name, size, growth, partial=not all(one.complete for one in theirs)))
    if known(gpu.unattributed) and gpu.unattributed >= GROWN:
        found.append(Holder(_UNKNOWN, int(gpu.unattributed), 0))
    return sorted(found, key=lambda holder: -holder.memory)


def _memory_evidence(gpu: Gpu, found: Sequence[Holder]) -> str:
    parts: list[str] = []
    for one in found[:NAMED]:
        size = f"at least {units.gib(one.memory)}" if one.partial else units.gib(one.memory)
        verb = hold(one.name, several=one.name == _UNKNOWN)
        parts.append(f"{one.name} {size}" if parts else f"{one.name} {verb} {size} GiB")
    grower = max(found, key=lambda holder: holder.growth, default=None)
    if grower is not None and grower.growth >= GROWN:
        parts.append(f"{grower.name} grew {units.gib(grower.growth)} GiB in the last minute")
    return joined(*parts, "memory is shared with the whole machine" if gpu.memory.unified else "")


# -- time to full -------------------------------------------------------------------------------------------------


def time_to_full(gpu: Gpu, trend: Trend) -> float | None:
    """Return the seconds until a GPU is full at the speed of a trend; None where it does not fill or is not judged."""
    room = room_of(gpu.memory)
    if room is None or not _is_judged(gpu) or trend.speed <= 0:
        return None
    return room[0] / trend.speed


def _is_judged(gpu: Gpu) -> bool:
    return not gpu.memory.unified and gpu.mig is not True


def find_time_to_full(context: RuleContext) -> Iterator[Observation]:
    """Predict in how many seconds each GPU's memory is full, where it grows steadily (`history.Trend`).

    Nothing is raised where memory is near its limit already. GPUs with unified memory, with MIG, or with less than a
    minute of samples are not judged.
    """
    for gpu in context.gpus:
        room, trend = room_of(gpu.memory), context.history.gpu(gpu.key).trend
        if room is None or trend is None or not _is_judged(gpu):
            continue
        free, usable = room
        seconds = time_to_full(gpu, trend)
        level = keeps = None
        if seconds is not None:
            near = 100.0 * free / usable < context.limits.memory_critical
            limits = (-context.limits.full_warning, -context.limits.full_critical)
            level = severity_of(-seconds, *limits) if trend.steady and not near else None
            # A pause in its growth decides nothing yet.
            keeps = Severity.CRITICAL if near or not trend.steady else severity_of(-seconds / _LATER, *limits)
        seen = Observation(
            gpu=gpu,
            level=level,
            keeps=keeps,
            raise_for=context.limits.full_for,
            clear_for=context.limits.full_for if seconds is not None else 0.0,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index} does not fill up",
            short="was filling",
            value=seconds,
            unit=Unit.SECONDS,
            least_is_worst=True,
            how="its memory grows more slowly now",
        )
        if keeps is not None and seconds is not None:
            growers = _growers(context.holdings.on(gpu), context.history)
            by_name: Counter[str] = Counter()
            for pid, grown in growers.items():
                by_name[holder_name(pid, context.processes.get(pid))] += grown
            users = owners_of(growers, context.processes)
            # Where none stands out, the speed of all growth.
            grown_by = [f"{name} grew {units.gib(grown)} GiB/min" for name, grown in by_name.most_common(NAMED)]
            grown_by = grown_by or [f"grows {units.gib(60 * trend.speed)} GiB/min"]
            seen = msgspec.structs.replace(
                seen,
                title=f"GPU {gpu.index} full in about {format_prediction(seconds)}",
                forecast=f"full in {format_prediction(seconds)}",
                evidence=joined(*grown_by, f"{units.gib(free)} of {units.gib(usable)} GiB free"),
                pids=tuple(growers),
                owners=named_owners((name for name, _ in by_name.most_common()), users),
            )
        yield seen


def format_prediction(seconds: float) -> str:
    """Format a predicted time coarsely: in minutes, below one minute in steps of five seconds."""
    if seconds > 55:
        return units.long_duration(60 * max(1, round(seconds / 60)))
    return units.long_duration(5 * max(1, round(seconds / 5)))


def _growers(held: Iterable[GpuProcess], history: HistoryView) -> dict[int, int]:
    """Return the bytes by which each process grew in the last minute, largest first, without new processes."""
    found: dict[int, int] = {}
    for one in held:
        grown = history.growth(one.gpu.key, one.process.pid, one.start)
        if grown is not None and GROWN <= grown < one.memory:
            found[one.process.pid] = grown
    return dict(sorted(found.items(), key=lambda item: -item[1]))


RULES: Final = (
    Rule(MEMORY, find_nearly_full),
    Rule(FULL, find_time_to_full),
)
