"""The engine raises, holds and clears alerts as observations come in; time is handed to it.

    fine ──raise_after samples at a level──► raised ──clear_after samples that keep less──► stepped down or fine
                                             raised ──raise_after samples at a worse level──► raised again

The samples that raise must also span `raise_for` seconds, by the sampler's clock. A sample that gives no observation
changes nothing: neither a missing reading nor a GPU left out clears an alert. What is about a process or a scope ends
with it, as soon as a list of its GPU's processes that can be trusted no longer has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch import units
from gpuwatch.alerts import Alert, Severity
from gpuwatch.alerts.devices import declared_devices
from gpuwatch.alerts.rules import Limits, Observation, data_stale, gpu_health, memory_near_limit, worse
from gpuwatch.alerts.shares import declared_shares
from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Snapshot, SourceState
from gpuwatch.shares import was_read

FORGOTTEN: Final = 600.0
"""Seconds without an observation or the GPU in any snapshot after which an alert is cleared."""

_Key: TypeAlias = tuple[str, str]
"""The rule, and the subject or the GPU."""

_RULES: Final = (data_stale, gpu_health, memory_near_limit, declared_shares, declared_devices)


class Changes(NamedTuple):
    """What an update came to."""

    active: tuple[Alert, ...] = ()
    """All alerts that hold now: the worst first, then the oldest."""
    raised: tuple[Alert, ...] = ()
    """Those of them that are new, or got worse."""
    cleared: tuple[Alert, ...] = ()
    """Those that hold no longer, as they last were."""


class Engine:
    """Keeps one condition for each rule and GPU, process or scope; used from one thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._conditions: dict[_Key, _Condition] = {}

    def update(self, snapshot: Snapshot, history: HistoryView, now_monotonic: float, now_wall: float) -> Changes:
        """Take in a snapshot that was received at `now_monotonic` (reader's clock) and `now_wall`."""
        raised: list[Alert] = []
        cleared = self._adopt(snapshot)
        for seen in self._observe(snapshot, history):
            key = (seen.rule, seen.subject or seen.gpu)
            condition = self._conditions.get(key)
            if condition is None:
                if seen.level is None:
                    continue
                condition = self._conditions[key] = _Condition()
            before = condition.alert
            if condition.take(seen, now_monotonic, now_wall) and condition.alert is not None:
                raised.append(condition.alert)
            elif before is not None and condition.alert is None:
                cleared.append(before)
            if condition.is_idle:
                del self._conditions[key]
        cleared += self._forget(snapshot, now_monotonic)
        active = [one.alert for one in self._conditions.values() if one.alert is not None]
        return Changes(tuple(sorted(active, key=_order)), tuple(sorted(raised, key=_order)), tuple(cleared))

    def restore(self, alerts: Iterable[Alert], now_monotonic: float, now_wall: float) -> None:
        """Go on with alerts that another gpuwatch raised: each is held until a sample says that it is over."""
        raise NotImplementedError

    def _observe(self, snapshot: Snapshot, history: HistoryView) -> Iterator[Observation]:
        for rule in _RULES:
            yield from rule(snapshot, history, self.limits)

    def _adopt(self, snapshot: Snapshot) -> list[Alert]:
        # A GPU that never answered is known by its index; once it does, its conditions go on under its UUID, where that
        # has none of its own.
        cleared: list[Alert] = []
        for gpu in snapshot.gpus:
            if not gpu.uuid:
                continue
            for rule, key in [each for each in self._conditions if each[1] == f"index-{gpu.index}"]:
                condition = self._conditions.pop((rule, key))
                if (rule, gpu.key) not in self._conditions:
                    self._conditions[rule, gpu.key] = condition
                    condition.rename(gpu.key)
                elif condition.alert is not None:
                    cleared.append(condition.alert)
        return cleared

    def _forget(self, snapshot: Snapshot, now: float) -> list[Alert]:
        gpus = {gpu.key: gpu for gpu in snapshot.gpus}
        cleared: list[Alert] = []
        for key, condition in list(self._conditions.items()):
            gpu = gpus.get(condition.gpu)
            if not condition.subject and (gpu is not None or not condition.gpu):
                condition.seen = now
            gone = condition.subject and condition.seen != now and _trusted(gpu, snapshot)
            if now - condition.seen > FORGOTTEN or (gone and not _unread(condition, snapshot)):
                del self._conditions[key]
                if condition.alert is not None:
                    cleared.append(condition.alert)
        return cleared


def _trusted(gpu: Gpu | None, snapshot: Snapshot) -> bool:
    """Say whether a process that a GPU does not list is not there."""
    if gpu is None or snapshot.state is not SourceState.OK:
        return False
    return gpu.health is Health.OK and gpu.sampled > 0 and not gpu.holdings_note and not gpu.unreliable


def _unread(condition: _Condition, snapshot: Snapshot) -> bool:
    """Say whether a process that a condition rests on is there, and what it declared cannot be read just now."""
    rests_on = set(condition.rests_on)
    return any(one.key in rests_on and not was_read(one.declared) for one in snapshot.processes)


@dataclass(slots=True)
class _Condition:
    """How one rule stands for one GPU, process or scope."""

    alert: Alert | None = None
    gpu: str = ""
    subject: str = ""
    rests_on: tuple[tuple[int, int], ...] = ()
    seen: float = 0.0
    """When a rule last spoke of it; where it is about a GPU, when a snapshot last listed that."""
    _stamp: float | None = None
    _rising: dict[Severity, tuple[int, float]] = field(default_factory=dict)
    """By severity, how many samples in a row were at least that bad, and when the first of them was taken."""
    _falling: int = 0
    """Samples in a row that keep less than the alert's severity."""
    _kept: Severity | None = None
    """The most that one of those kept."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost without it."""
        return self.alert is None and not self._rising

    def rename(self, gpu_key: str) -> None:
        """Let it be about the same GPU under another key."""
        self.gpu = gpu_key
        if self.alert is not None:
            self.alert = msgspec.structs.replace(self.alert, gpu=gpu_key)

    def take(self, seen: Observation, now: float, wall: float) -> bool:
        """Take in an observation; say whether it raised the alert, anew or to a worse severity."""
        self.seen = now
        self.gpu, self.subject, self.rests_on = seen.gpu, seen.subject, seen.rests_on
        raised = False
        if seen.stamp is None or seen.stamp != self._stamp:
            self._stamp = seen.stamp
            raised = self._rise(seen, now, wall)
            if not raised and not seen.partial:
                self._fall(seen)
        if self.alert is not None and not (seen.partial and seen.level is None):
            peak = worse(self.alert.peak, seen.value, seen)
            self.alert = msgspec.structs.replace(
                self.alert,
                gpu=seen.gpu,
                index=seen.index,
                title=seen.title,
                evidence=_evidence(seen, peak) or self.alert.evidence,
                peak=peak,
                pids=seen.pids or self.alert.pids,
            )
        return raised

    def _rise(self, seen: Observation, now: float, wall: float) -> bool:
        moment = now if seen.stamp is None else seen.stamp
        for each in Severity:
            if seen.level is not None and seen.level >= each:
                samples, since = self._rising.get(each, (0, moment))
                # A sampler whose clock starts anew: what was before is of unknown length.
                self._rising[each] = (samples + 1, min(since, moment))
            elif not seen.partial:
                self._rising.pop(each, None)
        reached_long = [
            each
            for each, (samples, since) in self._rising.items()
            if seen.level is not None
            and seen.level >= each
            and samples >= seen.raise_after
            and moment - since >= seen.raise_for
        ]
        if not reached_long or (self.alert is not None and max(reached_long) <= self.alert.severity):
            return False
        severity = max(reached_long)
        self._falling, self._kept = 0, None
        if self.alert is not None:
            self.alert = msgspec.structs.replace(self.alert, severity=severity)
        else:
            self.alert = Alert(
                rule=seen.rule,
                gpu=seen.gpu,
                index=seen.index,
                subject=seen.subject,
                severity=severity,
                title=seen.title,
                raised=wall,
                raised_monotonic=now,
            )
        return True

    def _fall(self, seen: Observation) -> None:
        if self.alert is None:
            return
        if seen.keeps is not None and seen.keeps >= self.alert.severity:
            self._falling, self._kept = 0, None
            return
        self._falling += 1
        self._kept = max(filter(None, (self._kept, seen.keeps)), default=None)
        if self._falling < seen.clear_after:
            return
        self.alert = msgspec.structs.replace(self.alert, severity=self._kept) if self._kept else None
        self._falling, self._kept = 0, None


def _evidence(seen: Observation, peak: float | None) -> str:
    if not (seen.evidence and seen.detail) or peak is None:
        return seen.evidence
    return f"{seen.evidence} · peak {units.gib(peak)} · {seen.detail}"


def _order(alert: Alert) -> tuple[int, float, int, str, str]:
    index = -1 if alert.index is None else alert.index
    return (-alert.severity, alert.raised_monotonic, index, alert.rule, alert.subject)
