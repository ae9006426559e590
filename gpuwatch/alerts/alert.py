"""Alert types: an alert from raised to ended, and what is acknowledged or muted."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

TROUBLE: Final = "gpuwatch"
"""The rule of alerts about gpuwatch itself: a log that cannot be written, a rule that failed. It is never restored."""


class Severity(IntEnum):
    """How much an alert matters; a greater number is worse."""

    NOTE = 1
    """For information: shown and logged. It rings no bell, and is a message only where `notify.least` says so."""
    WARNING = 2
    CRITICAL = 3


MARKS: Final[Mapping[Severity, str]] = {Severity.NOTE: "·", Severity.WARNING: "▲", Severity.CRITICAL: "●"}
"""How a severity is marked in a line of text; the dashboard has signs for terminals without these, too."""


class Unit(StrEnum):
    """What a rule's value counts."""

    NONE = ""
    FREE = "bytes free"
    BYTES = "bytes"
    SECONDS = "s"
    CELSIUS = "°C"
    WATTS = "W"
    PERCENT = "%"
    COUNT = "count"
    MHZ = "MHz"


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One condition, from when it was raised until it ended: the same object on screen, in the log and in a message."""

    id: str = ""
    """Ten hexadecimal digits, made when it was raised; the same for as long as it lasts, whoever watches."""
    rule: str
    """Name of its rule in `alerts.rules`, or of a `[[rule]]` that the user wrote."""
    host: str = ""
    gpu: str = ""
    """Key of the GPU it is about; empty for the whole machine."""
    index: int | None = None
    """That GPU's index, for display."""
    subject: str = ""
    """What tells alerts of one rule on one GPU apart: the process or scope it is about; empty for the GPU itself."""
    severity: Severity
    """What it is worth now; of one that has ended, what it was worth last."""
    most: Severity = Severity.NOTE
    """The worst that it was."""
    title: str
    """A few words for a narrow line: `GPU 1 full: 0.1 GiB of 79.0 free`."""
    evidence: str = ""
    """Who and why, for a wide line: `cyn holds 77.6 · ben grew 2.1 GiB in the last minute`."""
    raised: float
    """Wall-clock time at which it was raised."""
    raised_monotonic: float = 0.0
    """The same on the reader's monotonic clock; means nothing to another process."""
    seen: float = 0.0
    """Wall-clock time of the last sample that judged it."""
    ended: float | None = None
    """Wall-clock time at which it ended; None while it holds."""
    lasted: float = 0.0
    """Seconds on the monotonic clock from raised to the last sample that judged it, or to its end."""
    how: str = ""
    """How it ended: `back within the limit`, `process 123 has ended`, `nobody watched`; empty while it holds."""
    unit: Unit = Unit.NONE
    peak: float | None = None
    """The worst value seen since, in `unit`; of bytes free the least."""
    mean: float | None = None
    """Over the samples that were not fine."""
    last: float | None = None
    owners: tuple[str, ...] = ()
    """Users whose doing it is, the largest holder first."""
    pids: tuple[int, ...] = ()
    """Processes it names, the largest first."""
    acknowledged: bool = False
    """Somebody has seen it: it stays on screen, and says nothing more."""
    muted: bool = False
    """It, or its rule, is to say nothing for now."""

    @property
    def key(self) -> str:
        """What identifies the condition, whoever watches it: rule, host, and the subject or the GPU."""
        return f"{self.rule}|{self.host}|{self.subject or self.gpu}"

    @property
    def weight(self) -> tuple[int, float, int, str, str]:
        """What to sort by: the worst first, then the oldest."""
        index = -1 if self.index is None else self.index
        return (-self.severity, self.raised_monotonic, index, self.rule, self.subject)

    @property
    def quiet(self) -> bool:
        """Whether nobody is to be told of it."""
        return self.acknowledged or self.muted


HOUR: Final = 3600.0
KEPT: Final = 30 * 24 * HOUR
"""Seconds for which an acknowledgement is kept where nobody sees its alert end."""


class Acknowledgement(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that somebody has seen, and what it was worth then: once it is worth more, it speaks again."""

    key: str
    """`Alert.key`."""
    at: float
    """Wall-clock time; it counts for an alert that was raised before."""
    severity: Severity = Severity.CRITICAL

    def covers(self, alert: Alert) -> bool:
        """Return whether this is what somebody has seen of an alert, and no less than it is worth now."""
        return self.key == alert.key and alert.raised <= self.at and alert.severity <= self.severity


class Mute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule, or one alert of it, that is to say nothing."""

    rule: str
    key: str = ""
    """`Alert.key`; empty for all alerts of the rule."""
    until: float | None = None
    """Wall-clock time at which it ends; None for when the user says so."""


class Attention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All of these."""

    acks: tuple[Acknowledgement, ...] = ()
    mutes: tuple[Mute, ...] = ()

    def acknowledged(self, alert: Alert, now: float) -> Attention:
        """Return what it is once an alert has been seen."""
        others = tuple(one for one in self.acks if one.key != alert.key)
        ack = Acknowledgement(key=alert.key, at=max(now, alert.raised), severity=alert.severity)
        return msgspec.structs.replace(self, acks=(*others, ack))

    def unacknowledged(self, alert: Alert) -> Attention:
        """Return it without the acknowledgement of an alert."""
        return msgspec.structs.replace(self, acks=tuple(one for one in self.acks if one.key != alert.key))

    def muted(self, mute: Mute) -> Attention:
        """Return what it is with one more mute, in place of an older one of the same rule and key."""
        return msgspec.structs.replace(self, mutes=(*self.unmuted(mute.rule, mute.key).mutes, mute))

    def unmuted(self, rule: str, key: str = "") -> Attention:
        """Return what it is without the mute of a rule, or of one alert of it."""
        others = tuple(one for one in self.mutes if (one.rule, one.key) != (rule, key))
        return msgspec.structs.replace(self, mutes=others)

    def is_muted(self, alert: Alert, now: float) -> bool:
        """Return whether an alert is to say nothing."""
        return any(
            one.rule == alert.rule and one.key in ("", alert.key) and (one.until is None or now < one.until)
            for one in self.mutes
        )

    def mark(self, alert: Alert, now: float) -> Alert:
        """Return an alert with its marks."""
        seen = any(one.covers(alert) for one in self.acks)
        muted = self.is_muted(alert, now)
        if (seen, muted) == (alert.acknowledged, alert.muted):
            return alert
        return msgspec.structs.replace(alert, acknowledged=seen, muted=muted)

    def pruned(self, ended: Iterable[Alert], now: float) -> Attention:
        """Return what is left once alerts have ended and time has passed; the same object where that is all of it."""
        gone = {alert.key for alert in ended}
        acks = tuple(one for one in self.acks if one.key not in gone and now - one.at <= KEPT)
        mutes = tuple(one for one in self.mutes if one.until is None or now < one.until)
        if len(acks) == len(self.acks) and len(mutes) == len(self.mutes):
            return self
        return Attention(acks=acks, mutes=mutes)


NO_ATTENTION: Final = Attention()
