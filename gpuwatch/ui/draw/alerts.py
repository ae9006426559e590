"""Lines of the active alerts, worst first; no line without alerts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rich.cells import cell_len

from gpuwatch.alerts.alert import Alert, Mute, Severity
from gpuwatch.alerts.rules.health import STALE
from gpuwatch.model.snapshot import SourceState
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.theme import Role, StyleSet
from gpuwatch.ui.draw.view import clock, mark_of

_OLD: Final = 15.0
"""Age of an alert's figures in seconds after which its line names their time; some are read every 10 s."""


def alerts_of(frame: Frame) -> tuple[Alert, ...]:
    """Return the alerts to list: muted and standing ones are left out, acknowledged ones are last.

    A stream in trouble counts as an alert even before a rule raises one.
    """
    seen = frame.snapshot
    heard = [alert for alert in frame.alerts if not alert.muted and not alert.is_standing(seen.taken, seen.viewer)]
    shown = tuple(sorted(heard, key=lambda alert: alert.acknowledged))
    if seen.state in (SourceState.OK, SourceState.STARTING) or any(alert.rule == STALE for alert in shown):
        return shown
    trouble = Alert(
        rule="stream",
        severity=Severity.CRITICAL,
        title=seen.state.value,
        evidence=seen.words,
        raised=seen.since or seen.taken,
        raised_monotonic=frame.received,
    )
    return (trouble, *shown)


def count_standing(frame: Frame) -> int:
    """Return the number of standing alerts, which are only counted: they are old and did not get worse."""
    seen = frame.snapshot
    return sum(not alert.muted and alert.is_standing(seen.taken, seen.viewer) for alert in frame.alerts)


def silent_mutes(frame: Frame) -> list[Mute]:
    """Return the mutes that match no alert of a frame."""
    return [
        mute
        for mute in frame.attention.mutes
        if not any(mute.rule == alert.rule and mute.key in ("", alert.key) for alert in frame.alerts)
    ]


class AlertLines(NamedTuple):
    """Lines of alerts."""

    lines: Sequence[Line] = ()
    alerts: Sequence[Alert] = ()
    """The alert of each line."""
    more: int = 0
    """First cell of the number of further alerts in the last line."""


def draw_alerts(frame: Frame, styles: StyleSet, width: int, height: int) -> AlertLines:
    """Draw alerts in `height` lines; the last line counts those that do not fit, and the standing ones."""
    if height <= 0:
        return AlertLines()
    alerts, standing = alerts_of(frame), count_standing(frame)
    shown, wide = alerts[:height], width >= 100
    drawn = [_line(alert, frame, styles, width, wide) for alert in shown]
    counts = [f"+{len(alerts) - height}"] * (len(alerts) > height) + [f"{standing} older: press e"] * bool(standing)
    more = f" {styles.glyphs.dot} ".join(counts)
    if more:
        builder = LineBuilder(styles)
        if shown:
            builder.write_spans(_line(shown[-1], frame, styles, width - cell_len(more) - 2, wide)).gap(2)
        drawn[max(0, len(drawn) - 1) :] = [builder.write(more, "muted").build(width)]
    return AlertLines(drawn, shown, (width - cell_len(more)) * bool(shown))


def _line(alert: Alert, frame: Frame, styles: StyleSet, width: int, wide: bool) -> Line:
    mark, role = mark_of(alert.severity, styles.glyphs)
    seen = alert.acknowledged
    builder = LineBuilder(styles).write(mark, "muted" if seen else role, 2)
    if width >= 70:
        builder.write(clock(alert.raised) if wide else clock(alert.raised)[:5], "muted").gap(2)
    room = max(0, width - builder.cells)
    weight: Role = "muted" if seen else "text" if alert.severity is Severity.NOTE else "strong"
    builder.write(alert.title, weight, min(cell_len(alert.title), room))
    room = width - builder.cells
    # Its sources cannot be read any more, and the alert is kept for a while: its figures are old.
    is_old = alert.unjudged or frame.received - alert.raised_monotonic - alert.lasted > _OLD
    evidence = f"at {clock(alert.seen)}: {alert.evidence}" if is_old and alert.seen else alert.evidence
    if evidence and room > 12:
        builder.gap(2).write(evidence, "muted", room - 2)
    return builder.build(width)
