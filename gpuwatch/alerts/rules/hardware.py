"""What the GPU says of itself: heat, throttling, power, memory errors and the driver's own errors. Pure functions.

A GPU in trouble is not judged, for its figures cannot be believed; but an XID often says why it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

from gpuwatch import units
from gpuwatch.alerts.alert import Severity, Unit
from gpuwatch.alerts.rules.memory import NAMED, Limits, Observation, holder_name
from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Process, Reason, Snapshot, known, number

TEMPERATURE: Final = "temperature near slowdown"
THROTTLED: Final = "throttled"
POWER: Final = "power at limit"
ECC: Final = "uncorrected ECC"
REMAP: Final = "row remap"
XID: Final = "XID"

COOLER: Final = 3.0
"""Degrees Celsius below its limit at which a temperature steps down or clears."""
SLOW_LONGER: Final = 5
"""How many times longer the driver alone must slow a GPU down for its heat: it does so to keep the GPU well."""
FREE_FOR: Final = 10.0
"""Seconds without throttling that end it."""
BELOW_FOR: Final = 60.0
"""Seconds below the power limit that end it."""
FLICKER: Final = 3
"""Samples without it that break neither throttling nor power at its limit: both are what a GPU swings around."""
RECENT: Final = 3600.0
"""Seconds for which new memory errors are critical."""

_COLDEST: Final = 50.0
"""Degrees Celsius. No GPU slows down below that: a driver that says so does not know."""

_BY: Final = {"hw thermal": "heat", "power brake": "its power brake", "hw slowdown": "its hardware"}
"""What slows a GPU down by itself, not by its driver's choice."""

MEANINGS: Final[Mapping[int, str]] = {
    13: "a program's kernel failed",
    31: "a program used memory that is not its own",
    43: "a program's work was stopped",
    45: "a program's work was taken off the GPU",
    48: "a double-bit memory error",
    62: "its internal controller has halted",
    63: "a row of broken memory is to be replaced",
    64: "broken memory could not be replaced",
    74: "an NVLink error",
    79: "the driver no longer reaches the GPU (fell off the bus)",
    92: "many single-bit memory errors",
    94: "a memory error, only one program affected",
    95: "a memory error that may affect every program",
    119: "its GSP firmware did not answer in time",
    120: "an error in its GSP firmware",
}
"""What an XID says, in plain words, after NVIDIA's catalogue.

docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, and nverror.h of the open kernel modules.
"""


class _People:
    """The processes of a snapshot by PID; put in order only once somebody is to be named, for most GPUs are well."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @cached_property
    def by_pid(self) -> Mapping[int, Process]:
        return {one.pid: one for one in self._snapshot.processes}


def hardware_rules(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Apply the rules about hardware to every GPU."""
    people = _People(snapshot)
    for gpu in snapshot.gpus:
        if gpu.health is Health.OK:
            yield from temperature(gpu, people, limits)
            yield from throttled(gpu, people, limits)
            yield from power_at_limit(gpu, limits)
            yield from uncorrected(gpu, history, limits)
            yield from row_remap(gpu, limits)
        yield from xids(gpu, people, history, limits)


# ---------------------------------------------------------------------------------------------------------------
# Heat and power


def temperature(gpu: Gpu, people: _People, limits: Limits) -> Iterator[Observation]:
    """Judge how near a GPU is to the temperature at which it slows itself down; where that is not known, not at all."""
    now, slowdown = number(gpu.temperature), number(gpu.slowdown_temperature)
    if now is None or slowdown is None or slowdown < _COLDEST:
        return
    level = _heat(now, slowdown, limits.temperature_margin)
    keeps = _heat(now + COOLER, slowdown, limits.temperature_margin)
    yield Observation(
        rule=TEMPERATURE,
        gpu=gpu.key,
        index=gpu.index,
        level=level,
        keeps=keeps,
        raise_after=limits.samples,
        raise_for=limits.temperature_for,
        clear_after=limits.samples,
        clear_for=limits.temperature_for,
        stamp=gpu.sampled,
        title=f"GPU {gpu.index} at {now:.0f} °C, slows down at {slowdown:.0f}",
        evidence="" if keeps is None else _joined(_watts(gpu), _clock(gpu), _fan(gpu), _busy(gpu, people)),
        value=now,
        unit=Unit.CELSIUS,
        how="" if keeps else f"back to {now:.0f} °C",
    )


def _heat(now: float, slowdown: float, margin: float) -> Severity | None:
    if now >= slowdown:
        return Severity.CRITICAL
    return Severity.WARNING if now >= slowdown - margin else None


def throttled(gpu: Gpu, people: _People, limits: Limits) -> Iterator[Observation]:
    """Judge whether a GPU's clocks are held down by heat or by the power brake; the lowest SM clock is the worst.

    A warning where the hardware does it, a note where the driver does for the heat, and has for long.
    """
    if isinstance(gpu.throttle, Reason):
        return
    level = None
    by = [words for reason, words in _BY.items() if reason in gpu.throttle]
    if by:
        level = Severity.WARNING
    elif "sw thermal" in gpu.throttle:
        level, by = Severity.NOTE, ["heat"]
    slow = level is not None
    yield Observation(
        rule=THROTTLED,
        gpu=gpu.key,
        index=gpu.index,
        level=level,
        keeps=level,
        raise_after=limits.samples,
        raise_for=limits.throttled_for * (SLOW_LONGER if level is Severity.NOTE else 1),
        forgives=FLICKER,
        clear_after=limits.samples,
        clear_for=FREE_FOR,
        stamp=gpu.sampled,
        title=f"GPU {gpu.index} slowed down by {' and '.join(by)}" if slow else f"GPU {gpu.index} not slowed down",
        evidence=_joined(_degrees(gpu), _clock(gpu), _watts(gpu), _busy(gpu, people)) if slow else "",
        value=number(gpu.sm_clock) if slow else None,
        unit=Unit.MHZ,
        least_is_worst=True,
        how="" if slow else "no longer slowed down",
    )


def power_at_limit(gpu: Gpu, limits: Limits) -> Iterator[Observation]:
    """Note that a GPU has drawn all the power that it may for long: that is allowed, and says why it is no faster."""
    if isinstance(gpu.throttle, Reason):
        return
    level = Severity.NOTE if "power cap" in gpu.throttle else None
    limit = f" of {gpu.power_limit:.0f} W" if known(gpu.power_limit) else ""
    title = f"GPU {gpu.index} at its power limit{limit}" if level else f"GPU {gpu.index} below its power limit{limit}"
    yield Observation(
        rule=POWER,
        gpu=gpu.key,
        index=gpu.index,
        level=level,
        keeps=level,
        raise_after=limits.samples,
        raise_for=limits.power_for,
        forgives=FLICKER,
        clear_after=limits.samples,
        clear_for=BELOW_FOR,
        stamp=gpu.sampled,
        title=title,
        evidence=_joined(_watts(gpu), _clock(gpu), _degrees(gpu)) if level else "",
        value=number(gpu.power),
        unit=Unit.WATTS,
        how="" if level else "below its power limit again",
    )


# ---------------------------------------------------------------------------------------------------------------
# Memory errors


def uncorrected(gpu: Gpu, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Judge the uncorrected memory errors since the driver was loaded: critical while there are new ones.

    Until we have watched for as long as new ones count, it cannot be said that there were none.
    """
    count = number(gpu.ecc_uncorrected)
    if count is None:
        return
    seen = history.ecc(gpu.key)
    age = history.now - seen[1] if seen is not None and seen[1] is not None else None
    recent = age is not None and age < RECENT
    level = None if count == 0 else Severity.CRITICAL if recent else Severity.WARNING
    errors = "1 uncorrected memory error" if count == 1 else f"{count:.0f} uncorrected memory errors"
    newest = f"the newest {units.long_duration(age)} ago" if age is not None else "none since we watch"
    yield Observation(
        rule=ECC,
        gpu=gpu.key,
        index=gpu.index,
        level=level,
        keeps=level,
        partial=level is Severity.WARNING and history.watched < RECENT,
        clear_after=limits.samples,
        stamp=gpu.sampled,
        title=f"GPU {gpu.index}: {errors} since the driver was loaded"
        if count
        else f"GPU {gpu.index}: no uncorrected memory errors",
        evidence=newest if level else "",
        value=count,
        unit=Unit.COUNT,
        how="" if level else "the count is 0 again",
    )


def row_remap(gpu: Gpu, limits: Limits) -> Iterator[Observation]:
    """Judge whether broken rows of memory wait to be replaced, or could not be."""
    failed, pending = gpu.remap_failed, gpu.remap_pending
    if failed is True:
        level = Severity.CRITICAL
        title = f"GPU {gpu.index}: a broken row of memory could not be replaced"
        evidence = "that stays so: the GPU is to be exchanged"
    elif pending is True:
        level = Severity.WARNING
        title = f"GPU {gpu.index} waits for a reset to replace broken memory"
        evidence = "it works on until then, without that memory"
    elif isinstance(failed, Reason) or isinstance(pending, Reason):
        return
    else:
        level, title, evidence = None, f"GPU {gpu.index}: no broken memory waits to be replaced", ""
    yield Observation(
        rule=REMAP,
        gpu=gpu.key,
        index=gpu.index,
        level=level,
        keeps=level,
        partial=isinstance(failed, Reason),
        clear_after=limits.samples,
        stamp=gpu.sampled,
        title=title,
        evidence=evidence,
        how="" if level else "no broken memory waits to be replaced",
    )


# ---------------------------------------------------------------------------------------------------------------
# XIDs


def xids(gpu: Gpu, people: _People, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Judge the driver's errors of a GPU, of whatever health: each code on its own, for `xid_for` after the newest.

    A code that we have not seen may have come before we watched: until we have for as long as it counts, an alert of
    it that was raised before is held.
    """
    seen = history.xids(gpu.key)
    if not seen and isinstance(gpu.xids, Reason):
        return
    judged = limits.xid_critical | limits.xid_warning
    for code in sorted(judged.intersection(seen)):
        yield _xid(gpu, people, code, seen[code], history, limits)
    if history.watched < limits.xid_for + RECENT and not isinstance(gpu.xids, Reason):
        young = history.watched < limits.xid_for
        for code in sorted(judged.difference(seen)):
            yield Observation(
                rule=XID,
                gpu=gpu.key,
                index=gpu.index,
                subject=_subject(code, gpu),
                partial=young,
                title=f"GPU {gpu.index}: no XID {code}",
                how="" if young else _over(limits),
            )


def _xid(
    gpu: Gpu, people: _People, code: int, seen: tuple[int, float], history: HistoryView, limits: Limits
) -> Observation:
    """Judge one code; `seen` is how often it came, and when the newest did, by the reader's clock."""
    count, age = seen[0], max(0.0, history.now - seen[1])
    level = None
    if age < limits.xid_for:
        level = Severity.CRITICAL if code in limits.xid_critical else Severity.WARNING
    meaning = MEANINGS.get(code)
    evidence = ""
    if level is not None:
        ago = f"{units.long_duration(age)} ago"
        newest = f"{count} times, the newest {ago}" if count > 1 else ago
        held = _named("held by", [one.pid for one in gpu.holdings], people)
        evidence = _joined(newest, held, "the kernel's log says more")
    return Observation(
        rule=XID,
        gpu=gpu.key,
        index=gpu.index,
        subject=_subject(code, gpu),
        level=level,
        keeps=level,
        title=f"GPU {gpu.index}: XID {code}, {meaning}" if meaning else f"GPU {gpu.index}: XID {code}",
        evidence=evidence,
        value=count,
        unit=Unit.COUNT,
        how="" if level else _over(limits),
    )


def _subject(code: int, gpu: Gpu) -> str:
    return f"xid {code} {gpu.key}"


def _over(limits: Limits) -> str:
    return f"no more for {units.long_duration(limits.xid_for)}"


# ---------------------------------------------------------------------------------------------------------------
# Evidence


def _joined(*parts: str) -> str:
    return " · ".join(part for part in parts if part)


def _degrees(gpu: Gpu) -> str:
    return f"{gpu.temperature:.0f} °C" if known(gpu.temperature) else ""


def _watts(gpu: Gpu) -> str:
    if not known(gpu.power):
        return ""
    return f"{gpu.power:.0f} of {gpu.power_limit:.0f} W" if known(gpu.power_limit) else f"{gpu.power:.0f} W"


def _clock(gpu: Gpu) -> str:
    return f"SM clock {gpu.sm_clock:.0f} MHz" if known(gpu.sm_clock) else ""


def _fan(gpu: Gpu) -> str:
    return f"fan {gpu.fan:.0f} %" if known(gpu.fan) else ""


def _busy(gpu: Gpu, people: _People) -> str:
    """Name who computes there, the busiest first; those of whom that is not known are not named."""
    busy = {one.pid: one.sm for one in gpu.holdings if known(one.sm) and one.sm > 0}
    return _named("computing:", sorted(busy, key=lambda pid: -busy[pid]), people)


def _named(word: str, pids: Iterable[int], people: _People) -> str:
    """Name the users of processes, in their order; empty where there are none."""
    names = list(dict.fromkeys(holder_name(pid, people.by_pid.get(pid)) for pid in pids))
    more = len(names) - NAMED
    return f"{word} {', '.join(names[:NAMED])}" + (f" and {more} more" if more > 0 else "") if names else ""
