"""How one rule stands for one GPU, process or scope over time: counted, raised, stepped down, ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto
from math import inf
from typing import Final, NamedTuple

import msgspec

from gpuwatch import units
from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.memory import Observation, worse

LASTED: Final = "{lasted}"
"""What stands in `Observation.how` for how long the alert held."""
CALM: Final = 20.0
"""Seconds within which what got better gets worse again if it swings: from then on it must be better for as long.

An allocator that frees 14 GiB every 12 s and takes them again, on a nearly full GPU, was 39 events in 8 min; so it is
two. It is the same with a GPU that is lost and found, and with a sampler that ends as soon as it is started.
"""
UNSEEN: Final = 60.0
"""Seconds without a sample after which those that raise are counted anew: nobody knows what was in between."""
SLOW: Final = 2.5
"""The same in intervals, where that is more."""


class Moment(NamedTuple):
    """When an update happens, and on which host."""

    now: float
    """Reader's monotonic clock."""
    wall: float
    host: str
    quiet: bool
    """Nothing is raised yet, and nothing ends."""
    gap: float = UNSEEN
    """Seconds without a sample after which those that raise are counted anew."""


class Turn(Enum):
    """What an observation did to an alert."""

    RAISED = auto()
    """It is new, or got worse."""
    EASED = auto()
    """It stepped down."""
    ENDED = auto()


class _Rise(NamedTuple):
    """The samples in a row that were at least so bad."""

    samples: int
    since: float
    """When the first of them was taken."""
    missed: int = 0
    """Fine samples since the last of them: as many as the rule forgives."""


@dataclass(slots=True)
class Condition:
    """One condition; its alert where it is raised."""

    alert: Alert | None = None
    gpu: str = ""
    subject: str = ""
    rests_on: tuple[tuple[int, int], ...] = ()
    seen: float = 0.0
    """When a rule last spoke of it; where it is about a GPU, when a snapshot last listed that."""
    maker: str = ""
    """The function that speaks of it; empty where none has yet."""
    unjudged: bool = False
    """Its alert was restored, and no sample has judged it since."""
    _stamp: float | None = None
    _judged: float = -inf
    """When the last sample was taken."""
    _rising: dict[Severity, _Rise] = field(default_factory=dict)
    _falling: int = 0
    """Samples in a row that keep less than the alert's severity."""
    _fell: float = 0.0
    """When the first of those was taken."""
    _kept: Severity | None = None
    """The most that one of those kept."""
    _eased: float = -inf
    """When its alert last stepped down or ended."""
    _swings: bool = False
    """What raised its alert, or made it worse, began soon after that."""
    _sum: float = 0.0
    """Of the values since it was raised, and how many they are."""
    _count: int = 0
    _said: tuple[str, str] = ("", "")
    """Title and evidence of the last sample that was not fine: what the alert says until it has ended."""
    _at_worst: tuple[str, str] = ("", "")
    """Those of the worst sample: what it says from then on."""
    _least: bool = False
    """Whether the smallest value is the worst."""

    def is_idle(self, now: float) -> bool:
        """Return whether nothing would be lost without it."""
        return self.alert is None and not self._rising and now - self._eased >= CALM

    def rename(self, gpu: str, host: str) -> None:
        """Let it be about the same GPU under another key, on a host whose name was not known before."""
        self.gpu = gpu
        if self.alert is not None:
            self.alert = msgspec.structs.replace(self.alert, gpu=self.gpu, host=host)

    def restore(self, alert: Alert, now: float, raised: float) -> None:
        """Go on with an alert that another gpuwatch raised at `raised`, by our monotonic clock.

        Where one is raised here already, they are the same event: it began when the older of them did.
        """
        self.seen = max(self.seen, now)
        if self.alert is None:
            self.gpu, self.subject, self.unjudged = alert.gpu, alert.subject, True
            self.alert = msgspec.structs.replace(
                alert, raised_monotonic=raised, most=max(alert.most, alert.severity), acknowledged=False, muted=False
            )
            self._said = self._at_worst = (alert.title, alert.evidence)
            self._sum, self._count = (alert.mean, 1) if alert.mean is not None else (0.0, 0)
        elif alert.id != self.alert.id and alert.raised < self.alert.raised:
            self.alert = msgspec.structs.replace(
                self.alert,
                id=alert.id,
                raised=alert.raised,
                raised_monotonic=raised,
                peak=worse(alert.peak, self.alert.peak, least=self._least),
                most=max(alert.most, alert.severity, self.alert.most),
            )

    def take(self, seen: Observation, at: Moment) -> tuple[Turn, Alert] | None:
        """Take in an observation; give what it did to the alert, if it did more than go on, and the alert after it."""
        self.seen = at.now
        self.gpu, self.subject, self.rests_on = seen.gpu, seen.subject, seen.rests_on
        if seen.stamp is not None and seen.stamp == self._stamp:
            return None
        self._stamp, self._least = seen.stamp, seen.least_is_worst
        turn = self._rise(seen, at)
        if not seen.partial:
            self.unjudged = False
            turn = turn or self._fall(seen, at)
        if self.alert is None or (seen.partial and seen.level is None):
            return None
        if turn is Turn.ENDED:
            return turn, self._ended_by(seen, at)
        self._go_on(self.alert, seen, at)
        return (turn, self.alert) if turn is not None else None

    def end(self, how: str, at: Moment) -> Alert | None:
        """End the alert, if there is one, and give it as it last was."""
        alert, self.alert = self.alert, None
        if alert is None:
            return None
        title, evidence = self._at_worst if self._at_worst[0] else self._said
        lasted = max(0.0, at.now - alert.raised_monotonic)
        how = how.replace(LASTED, units.long_duration(lasted))
        return msgspec.structs.replace(alert, title=title, evidence=evidence, ended=at.wall, lasted=lasted, how=how)

    def _ended_by(self, seen: Observation, at: Moment) -> Alert:
        alert = self.end(seen.how or seen.title, at)
        assert alert is not None
        return msgspec.structs.replace(alert, seen=at.wall, last=alert.last if seen.value is None else seen.value)

    def _rise(self, seen: Observation, at: Moment) -> Turn | None:
        moment = at.now if seen.stamp is None else seen.stamp
        if moment - self._judged > at.gap:
            self._rising.clear()
        self._judged = moment
        self._count_rise(seen, moment)
        if at.quiet or seen.level is None:
            return None
        severity = max(
            (
                each
                for each, rise in self._rising.items()
                if seen.level >= each and rise.samples >= seen.raise_after and moment - rise.since >= seen.raise_for
            ),
            default=None,
        )
        if severity is None or (self.alert is not None and severity <= self.alert.severity):
            return None
        self._falling, self._kept = 0, None
        began = at.now - (moment - self._rising[severity].since)
        self._swings = began - self._eased < CALM or (self._swings and self.alert is not None)
        if self.alert is not None:
            most = max(severity, self.alert.most)
            self.alert = msgspec.structs.replace(self.alert, severity=severity, most=most)
        else:
            self._sum, self._count = 0.0, 0
            self.alert = new_alert(seen.rule, at, gpu=seen.gpu, subject=seen.subject, severity=severity)
        return Turn.RAISED

    def _count_rise(self, seen: Observation, moment: float) -> None:
        rising = self._rising
        for each in Severity if seen.level is not None else tuple(rising):
            rise = rising.get(each)
            if seen.level is not None and seen.level >= each:
                # A sampler whose clock starts anew: what was before is of unknown length.
                rising[each] = _Rise(rise.samples + 1, min(rise.since, moment)) if rise else _Rise(1, moment)
            elif rise is None or seen.partial:
                continue
            elif rise.missed < seen.forgives:
                rising[each] = rise._replace(missed=rise.missed + 1)
            else:
                del rising[each]

    def _fall(self, seen: Observation, at: Moment) -> Turn | None:
        if self.alert is None:
            return None
        if seen.keeps is not None and seen.keeps >= self.alert.severity:
            self._falling, self._kept = 0, None
            return None
        moment = at.now if seen.stamp is None else seen.stamp
        self._fell = min(self._fell, moment) if self._falling else moment
        self._falling += 1
        self._kept = max(filter(None, (self._kept, seen.keeps)), default=None)
        patience = max(seen.clear_for, CALM) if self._swings else seen.clear_for
        if at.quiet or self._falling < seen.clear_after or moment - self._fell < patience:
            return None
        kept, self._falling, self._kept, self._eased = self._kept, 0, None, at.now
        if kept is None:
            return Turn.ENDED
        self.alert = msgspec.structs.replace(self.alert, severity=kept)
        return Turn.EASED

    def _go_on(self, alert: Alert, seen: Observation, at: Moment) -> None:
        """Let the alert say what a sample found; each sample comes here once."""
        fine = seen.keeps is None and seen.level is None
        if seen.value is not None and not fine:  # those that are fine only show for how long it has been so
            self._sum += seen.value
            self._count += 1
        peak = worse(alert.peak, seen.value, least=seen.least_is_worst)
        lasted = max(0.0, at.now - alert.raised_monotonic)
        if not fine or not self._said[0]:
            self._said = (seen.title, _evidence(seen, peak) or alert.evidence)
            evidence = self._said[1]
            if seen.value is None or seen.value == peak:
                self._at_worst = self._said
        else:  # it holds until it has been fine for long enough: its title is still what it was raised for
            now = (seen.how or seen.title).replace(LASTED, units.long_duration(lasted))
            evidence = f"now: {now}"
        self.alert = msgspec.structs.replace(
            alert,
            gpu=seen.gpu,
            index=seen.index,
            title=self._said[0],
            evidence=evidence,
            seen=at.wall,
            lasted=lasted,
            unit=seen.unit,
            peak=peak,
            mean=self._sum / self._count if self._count else None,
            last=alert.last if seen.value is None else seen.value,
            owners=seen.owners or alert.owners,
            pids=seen.pids or alert.pids,
        )


def new_alert(rule: str, at: Moment, *, severity: Severity, gpu: str = "", subject: str = "", title: str = "") -> Alert:
    """Return an alert that is raised at this moment, with its id: of the condition's key and the time."""
    # Most runs raise nothing.
    from hashlib import blake2s

    alert = Alert(
        rule=rule,
        host=at.host,
        gpu=gpu,
        subject=subject,
        severity=severity,
        most=severity,
        title=title,
        raised=at.wall,
        raised_monotonic=at.now,
        seen=at.wall,
    )
    name = blake2s(f"{alert.key}|{at.wall!r}".encode("utf-8", "replace"), digest_size=5).hexdigest()
    return msgspec.structs.replace(alert, id=name)


def _evidence(seen: Observation, peak: float | None) -> str:
    if not (seen.evidence and seen.detail) or peak is None:
        return seen.evidence
    return f"{seen.evidence} · peak {units.gib(peak)} · {seen.detail}"
