"""Condition: one rule on one GPU, process or scope over time, from its first bad sample to the end of its alert."""

from __future__ import annotations

from _blake2 import blake2s  # hashlib would load OpenSSL
from enum import Enum, auto
from math import inf
from typing import Final, NamedTuple

import msgspec

from gpuwatch.alerts.alert import Alert, AlertCause, AlertGpu, AlertUser, Severity
from gpuwatch.alerts.rule import Observation, RuleContext
from gpuwatch.base import units

LASTED: Final = "{lasted}"
"""Placeholder in `Observation.how` for how long the alert held."""
CALM: Final = 20.0
"""A condition that gets worse again within these seconds swings: before it steps down or ends, it must then be better
for as long.

Without this, an allocator that frees 14 GiB every 12 s and takes them again made 39 events in 8 min; with it, two. A
GPU that comes and goes swings, too, and so does a sampler that ends as soon as it is started.
"""
UNSEEN: Final = 60.0
"""Seconds without a sample after which the samples that raise are counted from 0 again."""
UNSEEN_INTERVALS: Final = 2.5
"""The same in intervals, where that is more."""


class Tick(NamedTuple):
    """Time, host and state of one update of the engine."""

    now: float
    """Reader's monotonic clock."""
    wall: float
    host: str
    quiet: bool
    """Nothing is raised yet, and nothing ends."""
    gap: float = UNSEEN
    """Seconds without a sample after which samples that raise are counted from 0 again."""


class Transition(Enum):
    """Change that an observation made to an alert."""

    RAISED = auto()
    """It is new, or got worse."""
    EASED = auto()
    """It stepped down."""
    ENDED = auto()


class _Streak(NamedTuple):
    """Samples in a row that reached one severity."""

    samples: int
    since: float
    """Time of the first of these samples."""
    missed: int = 0
    """Fine samples since the last of these samples: at most as many as the rule forgives."""


class _Words(NamedTuple):
    """Words of a sample, which an alert has beyond that sample."""

    title: str = ""
    evidence: str = ""
    short: str = ""


class Condition(msgspec.Struct):
    """State of one rule for one GPU, process or scope, with its alert where it is raised."""

    rule: str
    alert: Alert | None = None
    gpu: str = ""
    subject: str = ""
    early: bool = False
    """Whether it was so in the first seconds, and has been since, without an alert."""
    rests_on: tuple[tuple[int, int], ...] = ()
    seen: float = 0.0
    """When its rule last observed it; where it is about a GPU, when a snapshot last listed that."""
    _stamp: float | None = None
    _judged: float = -inf
    """Time of the last sample."""
    _rising: dict[Severity, _Streak] = msgspec.field(default_factory=dict)
    _falling: int = 0
    """Samples in a row whose `keeps` was below the alert's severity."""
    _fell: float = 0.0
    """Time of the first sample that `_falling` counts."""
    _kept: Severity | None = None
    """Highest `keeps` of these samples."""
    _eased: float = -inf
    """Time at which the alert last stepped down or ended."""
    _swings: bool = False
    """Whether the alert was raised, or got worse, soon after `_eased`."""
    _sum: float = 0.0
    """Sum of the values since the alert was raised."""
    _count: int = 0
    """Number of values in `_sum`."""
    _words: _Words = _Words()
    """Words of the last sample that was not fine: the alert has them until it has ended."""
    _worst_words: _Words = _Words()
    """Words of the worst sample: the alert has them once it has ended."""
    _least: bool = False
    """Whether the smallest value is the worst."""

    def is_idle(self, now: float) -> bool:
        """Return whether the engine may remove the condition: no alert, no counted samples, and no recent end."""
        return self.alert is None and not self._rising and now - self._eased >= CALM

    @property
    def unjudged(self) -> bool:
        """Whether its alert was restored, and no sample has judged it since."""
        return self.alert is not None and self.alert.unjudged

    def rename(self, gpu: str, host: str) -> None:
        """Set another key of the same GPU, and the name of the host where that was not known before."""
        self.gpu = gpu
        if self.alert is not None:
            self.alert = msgspec.structs.replace(self.alert, gpu=self.gpu, host=host)

    def restore(self, alert: Alert, now: float, raised: float) -> None:
        """Continue an alert that another gpuwatch raised at `raised`, by our monotonic clock.

        Where this condition has an alert already, both are the same event, which began when the older alert did.
        """
        self.seen = max(self.seen, now)
        if self.alert is None:
            self.gpu, self.subject = alert.gpu, alert.subject
            self.alert = msgspec.structs.replace(
                alert,
                raised_monotonic=raised,
                most=max(alert.most, alert.severity),
                acknowledged=False,
                muted=False,
                unjudged=True,
                sent=False,
                forecast="",
            )
            self._words = self._worst_words = _Words(alert.title, alert.evidence, alert.short)
            self._sum, self._count = (alert.mean, 1) if alert.mean is not None else (0.0, 0)
            return
        if alert.id != self.alert.id and alert.raised < self.alert.raised:
            self.alert = msgspec.structs.replace(
                self.alert,
                id=alert.id,
                raised=alert.raised,
                raised_monotonic=raised,
                peak=_worse(alert.peak, self.alert.peak, least=self._least),
                most=max(alert.most, alert.severity, self.alert.most),
            )

    def update(self, seen: Observation, tick: Tick, context: RuleContext) -> tuple[Transition, Alert] | None:
        """Add an observation, made in a context; return the transition it made, if any, and the alert after it."""
        self.seen = tick.now
        self.gpu, self.subject, self.rests_on = seen.gpu.key if seen.gpu else "", seen.subject, seen.rests_on
        if seen.stamp is not None and seen.stamp == self._stamp:
            return None
        self._stamp, self._least = seen.stamp, seen.least_is_worst
        taken = tick.now if seen.stamp is None else seen.stamp
        transition = self._rise(seen, tick, taken)
        if not seen.partial:
            if self.alert is not None and self.alert.unjudged:
                self.alert = msgspec.structs.replace(self.alert, unjudged=False)
            transition = transition or self._fall(seen, tick, taken)
        if self.alert is None or (seen.partial and seen.level is None):
            return None
        if transition is Transition.ENDED:
            ended = self.end(seen.how or seen.title, tick)
            assert ended is not None
            last = ended.last if seen.value is None else seen.value
            return transition, msgspec.structs.replace(ended, seen=tick.wall, last=last)
        self._refresh(self.alert, seen, tick, context)
        return (transition, self.alert) if transition is not None else None

    def end(self, how: str, tick: Tick) -> Alert | None:
        """End the alert and return its last state; None where there is no alert."""
        alert, self.alert = self.alert, None
        if alert is None:
            return None
        words = self._worst_words if self._worst_words.title else self._words
        lasted = max(0.0, tick.now - alert.raised_monotonic)
        how = how.replace(LASTED, units.long_duration(lasted))
        return msgspec.structs.replace(alert, **words._asdict(), forecast="", ended=tick.wall, lasted=lasted, how=how)

    def _rise(self, seen: Observation, tick: Tick, taken: float) -> Transition | None:
        if taken - self._judged > tick.gap:
            self._rising.clear()
        self._judged = taken
        self._count_rise(seen, taken)
        if tick.quiet or seen.level is None:
            return None
        severity = max(
            (
                each
                for each, streak in self._rising.items()
                if seen.level >= each and streak.samples >= seen.raise_after and taken - streak.since >= seen.raise_for
            ),
            default=None,
        )
        if severity is None or (self.alert is not None and severity <= self.alert.severity):
            return None
        self._falling, self._kept = 0, None
        began = tick.now - (taken - self._rising[severity].since)
        self._swings = began - self._eased < CALM or (self._swings and self.alert is not None)
        if self.alert is not None:
            most = max(severity, self.alert.most)
            self.alert = msgspec.structs.replace(self.alert, severity=severity, most=most, worse=tick.wall)
        else:
            self._sum, self._count = 0.0, 0
            self.alert = new_alert(self.rule, tick, gpu=self.gpu, subject=seen.subject, severity=severity)
        return Transition.RAISED

    def _count_rise(self, seen: Observation, taken: float) -> None:
        rising = self._rising
        for each in Severity if seen.level is not None else tuple(rising):
            streak = rising.get(each)
            if seen.level is not None and seen.level >= each:
                # A sampler whose clock starts again: the time before is of unknown length.
                rising[each] = _Streak(streak.samples + 1, min(streak.since, taken)) if streak else _Streak(1, taken)
            elif streak is None or seen.partial:
                continue
            elif streak.missed < seen.forgives:
                rising[each] = streak._replace(missed=streak.missed + 1)
            else:
                del rising[each]

    def _fall(self, seen: Observation, tick: Tick, taken: float) -> Transition | None:
        if self.alert is None:
            return None
        if seen.keeps is not None and seen.keeps >= self.alert.severity:
            self._falling, self._kept = 0, None
            return None
        self._fell = min(self._fell, taken) if self._falling else taken
        self._falling += 1
        self._kept = max(filter(None, (self._kept, seen.keeps)), default=None)
        patience = max(seen.clear_for, CALM) if self._swings else seen.clear_for
        if tick.quiet or self._falling < seen.clear_after or taken - self._fell < patience:
            return None
        kept, self._falling, self._kept, self._eased = self._kept, 0, None, tick.now
        if kept is None:
            return Transition.ENDED
        self.alert = msgspec.structs.replace(self.alert, severity=kept)
        return Transition.EASED

    def _refresh(self, alert: Alert, seen: Observation, tick: Tick, context: RuleContext) -> None:
        fine = seen.keeps is None and seen.level is None
        if seen.value is not None and not fine:  # fine samples only show for how long it has been so
            self._sum += seen.value
            self._count += 1
        peak = _worse(alert.peak, seen.value, least=seen.least_is_worst)
        lasted = max(0.0, tick.now - alert.raised_monotonic)
        if not fine or not self._words.title:
            evidence = seen.evidence or alert.evidence
            if seen.evidence and seen.detail and peak is not None:
                evidence = f"{seen.evidence} · peak {units.gib(peak)} · {seen.detail}"
            self._words = _Words(seen.title, evidence, seen.short)
            if seen.value is None or seen.value == peak:
                self._worst_words = self._words
        else:  # it holds until it has been fine for long enough: its title is still the one it was raised with
            now = (seen.how or seen.title).replace(LASTED, units.long_duration(lasted))
            evidence = f"now: {now}"
        causes = _find_causes(seen, context) or alert.causes
        owners = [AlertUser(context.uids[name], name) for name in seen.owners if name in context.uids]
        users = dict.fromkeys([*owners, *(AlertUser(one.uid, one.user) for one in causes if one.uid is not None)])
        self.alert = msgspec.structs.replace(
            alert,
            gpu=self.gpu,
            index=seen.gpu.index if seen.gpu else None,
            title=self._words.title,
            short=self._words.short,
            forecast="" if fine else seen.forecast,
            evidence=evidence,
            seen=tick.wall,
            lasted=lasted,
            unit=seen.unit,
            peak=peak,
            mean=self._sum / self._count if self._count else None,
            last=alert.last if seen.value is None else seen.value,
            owners=seen.owners or alert.owners,
            pids=seen.pids or alert.pids,
            gpus=_find_gpus(seen, context) or alert.gpus,
            users=tuple(users) or alert.users,
            causes=causes,
        )


def new_alert(rule: str, tick: Tick, *, severity: Severity, gpu: str = "", subject: str = "") -> Alert:
    """Return an alert that is raised now, with an id made of the condition's key and the time."""
    alert = Alert(
        rule=rule,
        host=tick.host,
        gpu=gpu,
        subject=subject,
        severity=severity,
        most=severity,
        title="",
        raised=tick.wall,
        raised_monotonic=tick.now,
        seen=tick.wall,
    )
    name = blake2s(f"{alert.key}|{tick.wall!r}".encode("utf-8", "replace"), digest_size=5).hexdigest()
    return msgspec.structs.replace(alert, id=name)


def _find_causes(seen: Observation, context: RuleContext) -> tuple[AlertCause, ...]:
    found = [context.processes[pid] for pid in seen.pids if pid in context.processes]
    return tuple(
        AlertCause(uid=one.uid, user=one.user, pid=one.pid, start=one.start, run="" if one.uid is None else one.run_key)
        for one in found
    )


def _find_gpus(seen: Observation, context: RuleContext) -> tuple[AlertGpu, ...]:
    """Return the GPUs of an observation; where it is about processes on any GPU, those on which they hold memory."""
    pids = set(seen.pids)
    if seen.gpus:
        return tuple(AlertGpu(gpu.key, gpu.index) for gpu in seen.gpus)
    of_one = seen.gpu is not None and (not seen.subject or seen.gpu.key in seen.subject)
    found = [gpu for gpu in context.gpus if not of_one and any(one.pid in pids for one in gpu.holdings)]
    return tuple(AlertGpu(gpu.key, gpu.index) for gpu in found or filter(None, [seen.gpu]))


def _worse(one: float | None, other: float | None, *, least: bool) -> float | None:
    """Return the worse of two values, the smaller one where `least`; None is no value."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other) if least else max(one, other)
