"""The engine raises, holds and clears alerts as observations come in; time is handed to it.

    fine ──raise_after samples at a level──► raised ──clear_after samples that keep less──► stepped down or fine
                                             raised ──raise_after samples at a worse level──► raised again

A sample that gives no observation changes nothing: neither a missing reading nor a GPU left out clears an alert.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch.alerts import Alert, Severity
from gpuwatch.alerts.rules import Limits, Observation, observe, worse
from gpuwatch.history import HistoryView
from gpuwatch.model import Snapshot

FORGOTTEN: Final = 600.0
"""Seconds without an observation or the GPU in any snapshot after which an alert is cleared."""

_Key: TypeAlias = tuple[str, str]


class Changes(NamedTuple):
    """What an update came to."""

    active: tuple[Alert, ...] = ()
    """All alerts that hold now: the worst first, then the oldest."""
    raised: tuple[Alert, ...] = ()
    """Those of them that are new, or got worse."""
    cleared: tuple[Alert, ...] = ()
    """Those that hold no longer, as they last were."""


class Engine:
    """Keeps one condition for each rule and GPU; used from one thread."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self._conditions: dict[_Key, _Condition] = {}

    def update(self, snapshot: Snapshot, history: HistoryView, now_monotonic: float, now_wall: float) -> Changes:
        """Take in a snapshot that was received at `now_monotonic` (reader's clock) and `now_wall`."""
        raised: list[Alert] = []
        cleared = self._adopt(snapshot)
        for seen in observe(snapshot, history, self.limits):
            key = (seen.rule, seen.gpu)
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
        listed = {gpu.key for gpu in snapshot.gpus} | {""}
        cleared: list[Alert] = []
        for key, condition in list(self._conditions.items()):
            if key[1] in listed:
                condition.listed = now
            elif now - condition.listed > FORGOTTEN:
                del self._conditions[key]
                if condition.alert is not None:
                    cleared.append(condition.alert)
        return cleared


@dataclass(slots=True)
class _Condition:
    """How one rule stands for one GPU."""

    alert: Alert | None = None
    listed: float = 0.0
    """When a snapshot last listed the GPU."""
    _stamp: float | None = None
    _rising: dict[Severity, int] = field(default_factory=dict)
    """By severity, the samples in a row that were at least that bad."""
    _falling: int = 0
    """Samples in a row that keep less than the alert's severity."""
    _kept: Severity | None = None
    """The most that one of those kept."""

    @property
    def is_idle(self) -> bool:
        """Whether nothing would be lost without it."""
        return self.alert is None and not any(self._rising.values())

    def rename(self, gpu_key: str) -> None:
        """Let it be about the same GPU under another key."""
        if self.alert is not None:
            self.alert = msgspec.structs.replace(self.alert, gpu=gpu_key)

    def take(self, seen: Observation, now: float, wall: float) -> bool:
        """Take in an observation; say whether it raised the alert, anew or to a worse severity."""
        self.listed = now
        raised = False
        if seen.stamp is None or seen.stamp != self._stamp:
            self._stamp = seen.stamp
            raised = self._rise(seen, now, wall)
            if not raised:
                self._fall(seen)
        if self.alert is not None:
            self.alert = msgspec.structs.replace(
                self.alert,
                index=seen.index,
                title=seen.title,
                evidence=seen.evidence or self.alert.evidence,
                worst=worse(self.alert.worst, seen.value, seen),
                pids=seen.pids or self.alert.pids,
            )
        return raised

    def _rise(self, seen: Observation, now: float, wall: float) -> bool:
        for each in Severity:
            reached = seen.level is not None and seen.level >= each
            self._rising[each] = self._rising.get(each, 0) + 1 if reached else 0
        reached_long = [each for each, samples in self._rising.items() if samples >= seen.raise_after]
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


def _order(alert: Alert) -> tuple[int, float, int, str]:
    return (-alert.severity, alert.raised_monotonic, -1 if alert.index is None else alert.index, alert.rule)
