"""Alert, from raised to ended, and the acknowledgements and mutes of the user."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Final

import msgspec

from gpuwatch.base.units import Unit

TROUBLE: Final = "gpuwatch"
"""Rule of alerts about gpuwatch itself: a log that cannot be written, a rule that failed. It is never restored."""


class Severity(IntEnum):
    """Severity of an alert; a greater number is worse."""

    NOTE = 1
    """For information: shown and logged. It rings no bell, and is a message only where `notify.least` says so."""
    WARNING = 2
    CRITICAL = 3


MARKS: Final[Mapping[Severity, str]] = {Severity.NOTE: "·", Severity.WARNING: "▲", Severity.CRITICAL: "●"}
"""Mark of each severity in a line of text; the dashboard replaces marks that its terminal cannot show."""


_URGENT_WARNINGS: Final = ("time to full", "over declared")
URGENT: Final = ("data stale", "nearly full", *_URGENT_WARNINGS, "gpu health")
"""Rules whose critical alerts are urgent, the most urgent first: they come before all other alerts. So do warnings that
a GPU will be full, and that somebody is over declared."""
RENAMED: Final[Mapping[str, str]] = {"memory near limit": "nearly full", "uses more than declared": "over declared"}
"""Present names of rules, by the names that earlier versions wrote and that users may still write."""
STANDING: Final = 600.0
"""Seconds after which a warning that has not got worse is only counted."""


class AlertGpu(msgspec.Struct, frozen=True, array_like=True):
    """GPU that an alert is about."""

    key: str
    """`Gpu.key`."""
    index: int
    """Index at the last sample, for display."""


class AlertUser(msgspec.Struct, frozen=True, array_like=True):
    """User whom an alert is about."""

    uid: int
    name: str


class AlertCause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Process that causes an alert."""

    uid: int | None = None
    """None if its owner is not visible."""
    user: str = ""
    pid: int
    start: int = 0
    """Start time in clock ticks since boot; 0 if not known."""
    run: str = ""
    """Key of its run; empty if not known."""


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Alert of one rule, from raised to ended; the same object on screen, in the log and in a message."""

    id: str = ""
    """Ten hexadecimal digits, made when the alert is raised; the same in every gpuwatch until the alert ends."""
    rule: str
    """Name of its rule in `alerts.rules`, or of a `[[rule]]` that the user wrote."""
    host: str = ""
    gpu: str = ""
    """Key of the GPU it is about; empty for the whole machine."""
    index: int | None = None
    """That GPU's index, for display."""
    subject: str = ""
    """Process or scope that it is about, where one rule may raise several alerts on a GPU; empty for the GPU itself."""
    severity: Severity
    """Current severity; after the end of the alert, its last severity."""
    most: Severity = Severity.NOTE
    """Highest severity that it had."""
    title: str
    """A few words for a narrow line: `GPU 1 full: 0.1 GiB of 79.0 free`."""
    short: str = ""
    """The same, for the row of its GPU: `nearly full`, `ada over declared`; empty for the rule's name."""
    forecast: str = ""
    """Prediction of the last sample, instead of `short`: `full in 4 min`; empty if there is none."""
    evidence: str = ""
    """Users and reason, for a wide line: `cyn holds 77.6 · ben grew 2.1 GiB in the last minute`."""
    raised: float
    """Wall-clock time at which it was raised."""
    worse: float = 0.0
    """Wall-clock time at which it last became more severe; 0 if it never did."""
    raised_monotonic: float = 0.0
    """`raised` on the reader's monotonic clock; it has no meaning in another process."""
    seen: float = 0.0
    """Wall-clock time of the last sample that judged it."""
    ended: float | None = None
    """Wall-clock time at which it ended; None while it is active."""
    lasted: float = 0.0
    """Seconds on the monotonic clock from raised to the last sample that judged it, or to its end."""
    how: str = ""
    """How it ended: `back within the limit`, `process 123 has ended`; empty while it is active."""
    unit: Unit = Unit.NONE
    peak: float | None = None
    """The worst value since the alert was raised, in `unit`; for free bytes the smallest."""
    mean: float | None = None
    """Mean value of the samples in which the rule's condition was true."""
    last: float | None = None
    """The newest value, in `unit`."""
    owners: tuple[str, ...] = ()
    """Users who cause it, the largest holder first."""
    pids: tuple[int, ...] = ()
    """Processes that it names, the largest first."""
    gpus: tuple[AlertGpu, ...] = ()
    """GPUs that it is about: that of `gpu`, or those on which the processes hold memory."""
    users: tuple[AlertUser, ...] = ()
    """Users whom it is about: the visible owners, and those of the processes."""
    causes: tuple[AlertCause, ...] = ()
    """The processes of `pids` that were visible."""
    acknowledged: bool = False
    """Quiet until it gets worse: it stays on screen, without bell or message."""
    muted: bool = False
    """It, or its rule, is muted."""
    unjudged: bool = False
    """Whether another gpuwatch raised it, and no sample has judged it since: its words are as of `seen`."""
    sent: bool = False
    """Whether its message was sent; only in the store, so that the next gpuwatch does not send it again."""

    @property
    def key(self) -> str:
        """Identity of the condition, the same in every gpuwatch: rule, host, and the subject or the GPU."""
        return f"{self.rule}|{self.host}|{self.subject or self.gpu}"

    @property
    def weight(self) -> tuple[int, int, float, int, str, str]:
        """Sort key: urgent alerts first, then the worst, then the oldest."""
        index = -1 if self.index is None else self.index
        least = Severity.WARNING if self.rule in _URGENT_WARNINGS else Severity.CRITICAL
        urgency = URGENT.index(self.rule) if self.rule in URGENT and self.severity >= least else len(URGENT)
        return (urgency, -self.severity, self.raised_monotonic, index, self.rule, self.subject)

    def is_standing(self, now: float, viewer: int) -> bool:
        """Return whether it has lasted long, and is not critical, not about the viewer, and predicts no time."""
        if self.severity is Severity.CRITICAL or self.rule == "time to full":
            return False
        return not self.is_about(viewer) and now - max(self.raised, self.worse) >= STANDING

    def is_about(self, uid: int) -> bool:
        """Return whether a user is among those whom it is about, or who cause it."""
        return uid in {one.uid for one in self.users} | {one.uid for one in self.causes}

    @property
    def indices(self) -> frozenset[int]:
        """Indices of the GPUs that it is about."""
        return frozenset({one.index for one in self.gpus} | ({self.index} if self.index is not None else set()))

    @property
    def people(self) -> frozenset[str]:
        """Names of the users whom it is about."""
        return frozenset({one.name for one in self.users} | set(self.owners))

    @property
    def quiet(self) -> bool:
        """Whether it gets neither bell nor message."""
        return self.acknowledged or self.muted


HOUR: Final = 3600.0
KEPT: Final = 30 * 24 * HOUR
"""Seconds for which an acknowledgement is kept where no gpuwatch sees the end of its alert."""


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """Alert that the user has acknowledged, at a severity: quiet until it gets worse."""

    key: str
    """`Alert.key`."""
    at: float
    """Wall-clock time of the acknowledgement; it applies to alerts that were raised before."""
    severity: Severity = Severity.CRITICAL

    def covers(self, alert: Alert) -> bool:
        """Return whether an alert was acknowledged, and is no worse now."""
        return self.key == alert.key and alert.raised <= self.at and alert.severity <= self.severity


class Mute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Mute of a rule, or of one alert of it."""

    rule: str
    key: str = ""
    """`Alert.key`; empty for all alerts of the rule."""
    until: float | None = None
    """Wall-clock time at which it ends; None until the user unmutes it."""


class Attention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All acknowledgements and mutes."""

    acks: tuple[Acknowledgement, ...] = ()
    mutes: tuple[Mute, ...] = ()

    def acknowledged(self, alert: Alert, now: float) -> Attention:
        """Return a copy in which an alert is acknowledged."""
        ack = Acknowledgement(key=alert.key, at=max(now, alert.raised), severity=alert.severity)
        return msgspec.structs.replace(self, acks=(*self.unacknowledged(alert).acks, ack))

    def unacknowledged(self, alert: Alert) -> Attention:
        """Return a copy without the acknowledgement of an alert."""
        return msgspec.structs.replace(self, acks=tuple(one for one in self.acks if one.key != alert.key))

    def muted(self, mute: Mute) -> Attention:
        """Return a copy with a mute, in place of an older one of the same rule and key."""
        return msgspec.structs.replace(self, mutes=(*self.unmuted(mute.rule, mute.key).mutes, mute))

    def unmuted(self, rule: str, key: str = "") -> Attention:
        """Return a copy without the mute of a rule, or of one alert of it."""
        others = tuple(one for one in self.mutes if (one.rule, one.key) != (rule, key))
        return msgspec.structs.replace(self, mutes=others)

    def is_muted(self, alert: Alert, now: float) -> bool:
        """Return whether an alert, or its rule, is muted."""
        return any(
            one.rule == alert.rule and one.key in ("", alert.key) and (one.until is None or now < one.until)
            for one in self.mutes
        )

    def mark(self, alert: Alert, now: float) -> Alert:
        """Return an alert with `acknowledged` and `muted` set."""
        seen = any(one.covers(alert) for one in self.acks)
        muted = self.is_muted(alert, now)
        if (seen, muted) == (alert.acknowledged, alert.muted):
            return alert
        return msgspec.structs.replace(alert, acknowledged=seen, muted=muted)

    def pruned(self, ended: Iterable[Alert], now: float) -> Attention:
        """Return a copy without marks that expired or whose alert has ended; the same object if nothing changes."""
        over = {alert.key for alert in ended}
        acks = tuple(one for one in self.acks if one.key not in over and now - one.at <= KEPT)
        mutes = tuple(one for one in self.mutes if one.until is None or now < one.until)
        if len(acks) == len(self.acks) and len(mutes) == len(self.mutes):
            return self
        return Attention(acks=acks, mutes=mutes)


NO_ATTENTION: Final = Attention()
