"""What the user has seen and does not want to hear of: acknowledged alerts, and what is muted. Pure; sinks keep it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from gpuwatch.alerts import Alert, Severity

HOUR: Final = 3600.0
KEPT: Final = 30 * 24 * HOUR
"""Seconds for which an acknowledgement is kept where nobody sees its alert end."""


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """An alert that somebody has seen, and what it was worth then: once it is worth more, it speaks again."""

    key: str
    """`Alert.key`."""
    at: float
    """Wall-clock time; it counts for an alert that was raised before."""
    severity: Severity = Severity.CRITICAL

    def covers(self, alert: Alert) -> bool:
        """Say whether this is what somebody has seen of an alert, and no less than it is worth now."""
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

    acks: tuple[Ack, ...] = ()
    mutes: tuple[Mute, ...] = ()

    def acknowledged(self, alert: Alert, now: float) -> Attention:
        """Give what it is once an alert has been seen."""
        others = tuple(one for one in self.acks if one.key != alert.key)
        ack = Ack(key=alert.key, at=max(now, alert.raised), severity=alert.severity)
        return msgspec.structs.replace(self, acks=(*others, ack))

    def unacknowledged(self, alert: Alert) -> Attention:
        """Return it without the acknowledgement of an alert."""
        return msgspec.structs.replace(self, acks=tuple(one for one in self.acks if one.key != alert.key))

    def muted(self, mute: Mute) -> Attention:
        """Give what it is with one more mute, in place of an older one of the same rule and key."""
        return msgspec.structs.replace(self, mutes=(*self.unmuted(mute.rule, mute.key).mutes, mute))

    def unmuted(self, rule: str, key: str = "") -> Attention:
        """Give what it is without the mute of a rule, or of one alert of it."""
        others = tuple(one for one in self.mutes if (one.rule, one.key) != (rule, key))
        return msgspec.structs.replace(self, mutes=others)

    def is_muted(self, alert: Alert, now: float) -> bool:
        """Say whether an alert is to say nothing."""
        return any(
            one.rule == alert.rule and one.key in ("", alert.key) and (one.until is None or now < one.until)
            for one in self.mutes
        )

    def mark(self, alert: Alert, now: float) -> Alert:
        """Give an alert with its marks."""
        seen = any(one.covers(alert) for one in self.acks)
        muted = self.is_muted(alert, now)
        if (seen, muted) == (alert.acknowledged, alert.muted):
            return alert
        return msgspec.structs.replace(alert, acknowledged=seen, muted=muted)

    def pruned(self, ended: Iterable[Alert], now: float) -> Attention:
        """Give what is left once alerts have ended and time has passed; the same object where that is all of it."""
        gone = {alert.key for alert in ended}
        acks = tuple(one for one in self.acks if one.key not in gone and now - one.at <= KEPT)
        mutes = tuple(one for one in self.mutes if one.until is None or now < one.until)
        if len(acks) == len(self.acks) and len(mutes) == len(self.mutes):
            return self
        return Attention(acks=acks, mutes=mutes)


NO_ATTENTION: Final = Attention()
