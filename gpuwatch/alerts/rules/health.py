"""Rules about GPUs that cannot be read, and about gpuwatch itself getting no data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rule import NAMED, Observation, Rule, RuleContext, joined
from gpuwatch.alerts.rules.memory import holders
from gpuwatch.base import units
from gpuwatch.base.units import Unit
from gpuwatch.history.history import HistoryView
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.snapshot import Gpu, Health, SourceState

HEALTH: Final = "gpu health"
STALE: Final = "data stale"

STALE_INTERVALS: Final = 5.0
"""Age of the newest data, in intervals, from which on it is stale."""
_LATE: Final = 5.0
"""Seconds that data may be old at any interval: a hanging call and the start of another sampler take 3 s."""
_STARTING: Final = 10.0
"""Seconds that a source may take to start."""
_WORDS: Final = {Health.LOST: f"{Health.LOST.value}: it needs a reset or a reboot"}
"""Words for states of health whose name does not say what to do."""
_CRITICAL: Final = frozenset({Health.LOST, Health.SILENT, Health.QUARANTINED, Health.RESET, Health.MISSING})


def find_unhealthy(context: RuleContext) -> Iterator[Observation]:
    """Judge each GPU's health: one bad sample raises the alert, several good ones end it."""
    for gpu in context.snapshot.gpus:
        fine = gpu.health is Health.OK
        level = None if fine else Severity.CRITICAL if gpu.health in _CRITICAL else Severity.WARNING
        state = "answers again" if fine else _WORDS.get(gpu.health, gpu.health.value)
        yield Observation(
            gpu=gpu,
            level=level,
            raise_after=1,
            # A GPU in trouble has no new samples to tell apart: there, each look counts.
            stamp=gpu.sampled if fine else None,
            title=f"GPU {gpu.index} {state}",
            short=state,
            evidence=gpu.words if fine else joined(_last_on(gpu, context.history), gpu.words),
            how="answers again after {lasted}",
        )


def _last_on(gpu: Gpu, history: HistoryView) -> str:
    """Name the users on a GPU when its processes were last listed; empty where they never were listed."""
    last = history.gpu(gpu.key).listed
    if last is None:
        return ""
    then, snapshot = last
    found = holders(then, Holdings(snapshot).owners(then), history)
    if not found:
        return "no process used it"
    named = [f"{one.name} {units.gib(one.memory)}" for one in found[:NAMED]]
    named[0] += " GiB"
    more = len(found) - NAMED
    others = f"{more} other{'s' * (more > 1)}" if more > 0 else ""
    return f"last used by {joined(*named, others)}"


def find_stale(context: RuleContext) -> Iterator[Observation]:
    """Judge whether the stream is alive: its state, and the age of its newest data, in seconds.

    A GPU in trouble does not count for the age: another rule raises an alert about it. While a source starts, alerts
    that were raised before stay raised.
    """
    snapshot, watched = context.snapshot, context.history.watched
    raise_for, how = 0.0, "data again after {lasted}"
    if snapshot.state is SourceState.OK:
        stamps = [gpu.sampled for gpu in context.gpus if gpu.sampled]
        age = max(0.0, snapshot.monotonic - max(stamps)) if stamps else 0.0
        stale = age > max(_LATE, STALE_INTERVALS * snapshot.interval)
        if snapshot.gpus and not stamps:
            how = "no GPU gives data now; each has an alert of its own"
        title = f"no new data for {units.long_duration(age)}" if stale else "data again"
    else:
        # By the wall clock, which may have been set meanwhile: never longer than we watch.
        age = min(max(0.0, snapshot.taken - snapshot.since), watched) if snapshot.since else watched
        stale = True
        # A sampler that crashed is replaced within 3 s, and the screen explains it meanwhile.
        raise_for = _STARTING if snapshot.state is SourceState.STARTING else _LATE
        title = snapshot.state.value + (f" for {units.long_duration(age)}" if age >= 1 else "")
    level = Severity.CRITICAL if stale else None
    yield Observation(
        level=level,
        raise_after=1,
        raise_for=raise_for,
        clear_after=1,
        title=title,
        evidence=snapshot.words,
        value=age,
        unit=Unit.SECONDS,
        how=how,
    )


RULES: Final = (
    Rule(HEALTH, find_unhealthy),
    Rule(STALE, find_stale),
)
