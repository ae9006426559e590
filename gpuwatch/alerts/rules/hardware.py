"""Rules about hardware: heat, throttling, power, unknown work, sensors, memory errors and the driver's errors (XID).

The figures of a GPU in trouble are unreliable and not judged; but an XID often explains why it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import attrgetter
from typing import Final

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import NAMED, Observation, Rule, RuleContext, and_more, holder_name, joined, severity_of
from gpuwatch.alerts.unattributed import fuser
from gpuwatch.base import units
from gpuwatch.base.units import Unit
from gpuwatch.history.history import SENSORS
from gpuwatch.model.fields import GPU
from gpuwatch.model.snapshot import Gpu, Presence, Reason, known, number

TEMPERATURE: Final = "temperature near slowdown"
THROTTLED: Final = "throttled"
POWER: Final = "power limit"
BUSY: Final = "busy without a process"
BUSY_SHORT: Final = "busy, no process"
SENSOR: Final = "sensor failed"
ECC: Final = "uncorrected ECC"
REMAP: Final = "row remap"
XID: Final = "XID"

RECENT: Final = 3600.0
"""Seconds for which new memory errors are critical."""
_COOLER: Final = 3.0
"""Degrees Celsius below its limit at which a temperature steps down or clears."""
_SLOW_LONGER: Final = 5
"""Factor on `throttled_for` where only the driver slows a GPU down by heat: it does so to keep the GPU well."""
_FREE_FOR: Final = 10.0
"""Seconds without throttling that end it."""
_BELOW_FOR: Final = 60.0
"""Seconds below the power limit that end it."""
_FLICKER: Final = 3
"""Fine samples that end neither throttling nor power at its limit: a GPU changes between both states often."""
_COLDEST: Final = 50.0
"""Degrees Celsius. No GPU slows down below that: such a figure of a driver is wrong."""
_BY: Final = {"hw thermal": "heat", "power brake": "its power brake", "hw slowdown": "its hardware"}
"""Words for throttle reasons of the hardware, which the driver does not choose."""

MEANINGS: Final[Mapping[int, str]] = {
    13: "a program's kernel failed",
    31: "a program used memory that is not its own",
    43: "a program's work was stopped",
    45: "a program's work was taken off the GPU",
    48: "a double-bit memory error",
    62: "its internal controller has halted",
    63: "a broken row of memory will be replaced",
    64: "broken memory could not be replaced",
    74: "an NVLink error",
    79: "the driver no longer reaches the GPU (fell off the bus)",
    92: "many single-bit memory errors",
    94: "a memory error, only one program affected",
    95: "a memory error that may affect every program",
    119: "its GSP firmware did not answer in time",
    120: "an error in its GSP firmware",
}
"""XID codes in plain words, after NVIDIA's catalogue.

docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, and nverror.h of the open kernel modules.
"""


# -- heat and power -----------------------------------------------------------------------------------------------


def find_hot(context: RuleContext) -> Iterator[Observation]:
    """Judge how near a GPU is to the temperature at which it slows itself down, where that is known."""
    limits = context.limits
    for gpu in context.gpus:
        now, slowdown = number(gpu.temperature), number(gpu.slowdown_temperature)
        if now is None or slowdown is None or slowdown < _COLDEST:
            continue
        warning = slowdown - limits.temperature_margin
        level, keeps = (severity_of(degrees, warning, slowdown) for degrees in (now, now + _COOLER))
        fan = f"fan {gpu.fan:.0f} %" if known(gpu.fan) else ""
        yield Observation(
            gpu=gpu,
            level=level,
            keeps=keeps,
            raise_for=limits.temperature_for,
            clear_for=limits.temperature_for,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index} at {now:.0f} °C, slows down at {slowdown:.0f}",
            short="near slowdown",
            evidence="" if keeps is None else joined(_watts(gpu), _clock(gpu), fan, _computing(gpu, context)),
            value=now,
            unit=Unit.CELSIUS,
            how="" if keeps else f"back to {now:.0f} °C",
        )


def find_throttled(context: RuleContext) -> Iterator[Observation]:
    """Judge whether a GPU's clocks are held down by heat or by the power brake; the lowest SM clock is the worst.

    A warning where the hardware throttles; a note where the driver has throttled for its heat for minutes.
    """
    for gpu in context.gpus:
        if isinstance(gpu.throttle, Reason):
            continue
        level, by = None, [words for reason, words in _BY.items() if reason in gpu.throttle]
        if by:
            level = Severity.WARNING
        elif "sw thermal" in gpu.throttle:
            level, by = Severity.NOTE, ["heat"]
        slow = f"slowed down by {' and '.join(by)}" if by else "not slowed down"
        yield Observation(
            gpu=gpu,
            level=level,
            raise_for=context.limits.throttled_for * (_SLOW_LONGER if level is Severity.NOTE else 1),
            forgives=_FLICKER,
            clear_for=_FREE_FOR,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index} {slow}",
            short=slow,
            evidence=joined(_degrees(gpu), _clock(gpu), _watts(gpu), _computing(gpu, context)) if by else "",
            value=number(gpu.sm_clock) if by else None,
            unit=Unit.MHZ,
            least_is_worst=True,
            how="" if by else "no longer slowed down",
        )


def find_at_power_limit(context: RuleContext) -> Iterator[Observation]:
    """Find GPUs at their power limit for minutes: a note, since that is allowed and explains why they are no faster."""
    for gpu in context.gpus:
        if isinstance(gpu.throttle, Reason) or ("power cap" not in gpu.throttle and context.ignores(POWER, gpu)):
            continue
        level = Severity.NOTE if "power cap" in gpu.throttle else None
        limit = f" of {gpu.power_limit:.0f} W" if known(gpu.power_limit) else ""
        state = f"{'at' if level else 'below'} its power limit{limit}"
        yield Observation(
            gpu=gpu,
            level=level,
            raise_for=context.limits.power_for,
            forgives=_FLICKER,
            clear_for=_BELOW_FOR,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index} {state}",
            short=state,
            evidence=joined(_watts(gpu), _clock(gpu), _degrees(gpu)) if level else "",
            value=number(gpu.power),
            unit=Unit.WATTS,
            how="" if level else "below its power limit again",
        )


# -- work without a process, figures without a value ------------------------------------------------------------------


def find_busy_unlisted(context: RuleContext) -> Iterator[Observation]:
    """Find GPUs that compute although no process is listed on them.

    In a container that is so whenever somebody outside computes. What draws a display need not be listed.
    """
    snapshot = context.snapshot
    if snapshot.confined or any(one.presence is Presence.ELSEWHERE for one in snapshot.processes):
        return
    for gpu in context.listed:
        is_fine = gpu.display_active is True or (not gpu.is_busy_unlisted and context.ignores(BUSY, gpu))
        if not known(gpu.utilization) or is_fine:
            continue
        level = Severity.WARNING if gpu.is_busy_unlisted else None
        causes = "a process that this system does not see (container, vGPU, WSL), hung work, or a driver fault"
        look = f"{fuser(gpu, snapshot.viewer)} shows who has it open"
        yield Observation(
            gpu=gpu,
            level=level,
            raise_for=context.limits.busy_unlisted_for,
            forgives=_FLICKER,
            clear_for=_FREE_FOR,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index} busy, but no process is listed",
            short=BUSY_SHORT,
            evidence=joined(f"{gpu.utilization:.0f} %", _watts(gpu), causes, look) if level else "",
            value=gpu.utilization,
            unit=Unit.PERCENT,
            how="" if level else "a process is listed" if gpu.holdings else "no longer busy",
        )


def find_failed_sensors(context: RuleContext) -> Iterator[Observation]:
    """Find figures that had a value since gpuwatch started, and now give an error: a GPU that fails may begin so."""
    for gpu in context.gpus:
        failing = [path for path in SENSORS if attrgetter(path)(gpu) is Reason.ERROR]
        failed = [path for path in failing if path in context.history.gpu(gpu.key).answered]
        level = Severity.WARNING if failed else None
        names = [GPU[path.partition(".")[0]].name for path in failed]
        words = "the driver gave a value before, and now gives an error: the GPU may be about to fail"
        yield Observation(
            gpu=gpu,
            level=level,
            partial=bool(failing),  # one that failed before gpuwatch started
            raise_for=context.limits.sensor_failed_for,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index}: {' and '.join(filter(None, (', '.join(names[:-1]), *names[-1:])))} cannot be read",
            evidence=joined(words, _users("used by", [one.pid for one in gpu.holdings], context)) if failed else "",
            how="" if failed else "all values can be read again",
        )


# -- memory errors ------------------------------------------------------------------------------------------------


def find_uncorrected(context: RuleContext) -> Iterator[Observation]:
    """Judge the uncorrected memory errors since the driver was loaded: critical while there are new ones.

    Until gpuwatch has run for `RECENT` seconds, it is not known that there were no new ones.
    """
    history = context.history
    for gpu in context.gpus:
        count = number(gpu.ecc_uncorrected)
        if count is None or (count == 0 and context.ignores(ECC, gpu)):
            continue
        seen = history.gpu(gpu.key).ecc
        age = history.now - seen[1] if seen is not None and seen[1] is not None else None
        recent = age is not None and age < RECENT
        level = None if count == 0 else Severity.CRITICAL if recent else Severity.WARNING
        errors = f"{count:.0f} uncorrected memory error{'s' * (count != 1)} since the driver was loaded"
        newest = f"latest {units.long_duration(age)} ago" if age is not None else "none since gpuwatch started"
        yield Observation(
            gpu=gpu,
            level=level,
            partial=level is Severity.WARNING and history.watched < RECENT,
            raise_after=1,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index}: {errors if count else 'no uncorrected memory errors'}",
            short="ECC errors",
            evidence=newest if level else "",
            value=count,
            unit=Unit.COUNT,
            how="" if level else "the count is 0 again",
        )


def find_remapped(context: RuleContext) -> Iterator[Observation]:
    """Judge whether broken rows of memory wait to be replaced, or could not be replaced."""
    for gpu in context.gpus:
        failed, pending = gpu.remap_failed, gpu.remap_pending
        if failed is True:
            level: Severity | None = Severity.CRITICAL
            title = f"GPU {gpu.index}: a broken row of memory could not be replaced"
            evidence = "this is permanent: the GPU must be replaced"
        elif pending is True:
            level = Severity.WARNING
            title = f"GPU {gpu.index} waits for a reset to replace broken memory"
            evidence = "until then, it works without that memory"
        elif isinstance(failed, Reason) or isinstance(pending, Reason) or context.ignores(REMAP, gpu):
            continue
        else:
            level, title, evidence = None, f"GPU {gpu.index}: no broken memory is left to replace", ""
        yield Observation(
            gpu=gpu,
            level=level,
            partial=isinstance(failed, Reason),
            raise_after=1,
            stamp=gpu.sampled,
            title=title,
            short="broken memory",
            evidence=evidence,
            how="" if level else "no broken memory is left to replace",
        )


# -- XIDs ---------------------------------------------------------------------------------------------------------


def find_xids(context: RuleContext) -> Iterator[Observation]:
    """Judge the XIDs of each GPU, whatever its health: each code has its own alert, for `xid_for` after the newest.

    A code that gpuwatch has not seen may have come before gpuwatch started: an alert about this code that an earlier
    gpuwatch raised holds until this gpuwatch has run for `xid_for`.
    """
    limits, watched = context.limits, context.history.watched
    judged = limits.xid_critical | limits.xid_warning
    for gpu in context.snapshot.gpus:
        seen = context.history.gpu(gpu.key).xids
        for code in sorted(judged.intersection(seen)):
            yield _xid(gpu, code, seen[code], context)
        if watched < limits.xid_for + RECENT and not isinstance(gpu.xids, Reason):
            young = watched < limits.xid_for
            for code in sorted(judged.difference(seen)):
                if (XID, _subject(code, gpu)) not in (context.watched or ()):
                    continue
                yield Observation(
                    gpu=gpu,
                    subject=_subject(code, gpu),
                    partial=young,
                    clear_after=1,
                    title=f"GPU {gpu.index}: no XID {code}",
                    how="" if young else _over(limits),
                )


def _xid(gpu: Gpu, code: int, seen: tuple[int, float], context: RuleContext) -> Observation:
    """Judge one code; `seen` is the number of these XIDs, and the time of the newest on the reader's clock."""
    limits, count, age = context.limits, seen[0], max(0.0, context.history.now - seen[1])
    level, evidence = None, ""
    if age < limits.xid_for:
        level = Severity.CRITICAL if code in limits.xid_critical else Severity.WARNING
        ago = f"{units.long_duration(age)} ago"
        newest = f"{count} times, latest {ago}" if count > 1 else ago
        held = _users("used by", [one.pid for one in gpu.holdings], context)
        evidence = joined(newest, held, "the kernel's log says more")
    return Observation(
        gpu=gpu,
        subject=_subject(code, gpu),
        level=level,
        raise_after=1,
        clear_after=1,
        title=f"GPU {gpu.index}: XID {code}" + (f", {MEANINGS[code]}" if code in MEANINGS else ""),
        short=f"XID {code}",
        evidence=evidence,
        value=count,
        unit=Unit.COUNT,
        how="" if level else _over(limits),
    )


def _subject(code: int, gpu: Gpu) -> str:
    return f"xid {code} {gpu.key}"


def _over(limits: Limits) -> str:
    return f"no more for {units.long_duration(limits.xid_for)}"


# -- evidence -----------------------------------------------------------------------------------------------------


def _degrees(gpu: Gpu) -> str:
    return f"{gpu.temperature:.0f} °C" if known(gpu.temperature) else ""


def _watts(gpu: Gpu) -> str:
    if not known(gpu.power):
        return ""
    return f"{gpu.power:.0f} of {gpu.power_limit:.0f} W" if known(gpu.power_limit) else f"{gpu.power:.0f} W"


def _clock(gpu: Gpu) -> str:
    return f"SM clock {gpu.sm_clock:.0f} MHz" if known(gpu.sm_clock) else ""


def _computing(gpu: Gpu, context: RuleContext) -> str:
    """Return the users who are known to compute on a GPU, the busiest first."""
    busy = {one.process.pid: one.sm for one in context.holdings.on(gpu) if one.sm}
    return _users("computing:", sorted(busy, key=lambda pid: -busy[pid]), context)


def _users(word: str, pids: Iterable[int], context: RuleContext) -> str:
    """Name the users of processes, in their order; empty where there are none."""
    names = list(dict.fromkeys(holder_name(pid, context.processes.get(pid)) for pid in pids))
    return f"{word} {and_more(names[:NAMED], len(names))}" if names else ""


# -- the rules ----------------------------------------------------------------------------------------------------

RULES: Final = (
    Rule(TEMPERATURE, find_hot),
    Rule(THROTTLED, find_throttled),
    Rule(POWER, find_at_power_limit),
    Rule(BUSY, find_busy_unlisted),
    Rule(SENSOR, find_failed_sensors),
    Rule(ECC, find_uncorrected),
    Rule(REMAP, find_remapped),
    Rule(XID, find_xids),
)
