"""How the dashboard tells of an alert besides its line: a toast, the terminal's bell, a notification of the desktop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, cast

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.monitor import Frame
from gpuwatch.ui.layout import room_for_toasts
from gpuwatch.ui.widgets.gpus import mark_of

if TYPE_CHECKING:
    from gpuwatch.ui.app import GpuwatchApp

MOST_TOASTS: Final = 3
"""Toasts that one frame may raise; more are told in one."""
_KINDS: Final[dict[Severity, Literal["information", "warning", "error"]]] = {
    Severity.NOTE: "information",
    Severity.WARNING: "warning",
    Severity.CRITICAL: "error",
}


def news(before: Frame, frame: Frame) -> list[Alert]:
    """Give the alerts that were raised, or got worse, between two frames, and that somebody is to be told of.

    One that was taken over from an earlier gpuwatch was raised before both, and is no news.
    """
    known = {alert.key: alert.severity for alert in before.alerts}
    return [
        alert
        for alert in frame.alerts
        if not alert.quiet and alert.severity > known.get(alert.key, 0) and _is_new(alert, known, before)
    ]


def _is_new(alert: Alert, known: dict[str, Severity], before: Frame) -> bool:
    return alert.key in known or alert.raised_monotonic >= before.received


def announce(app: GpuwatchApp, before: Frame, frame: Frame) -> None:
    """Tell once of each alert that was raised, or got worse, since the frame before."""
    raised = news(before, frame)
    loud = [alert for alert in raised if alert.severity > Severity.NOTE and alert.rule != TROUBLE]
    if loud and app.options.bell:
        app.bell()
    if loud:
        _notify_desktop(app, loud, frame)
    if app.screen is app.dashboard and not app.paused:  # where most alerts' own lines are in sight
        raised = app.dashboard.out_of_sight(raised, frame) if room_for_toasts(*app.size) else []
    if app.options.toast:
        _toast(app, raised)


def _toast(app: GpuwatchApp, raised: Sequence[Alert]) -> None:
    for alert in raised[:MOST_TOASTS]:
        mark, _ = mark_of(alert.severity, app.kit.glyphs)
        app.notify(f"{mark} {alert.title}", severity=_KINDS[alert.severity], markup=False)
    more = len(raised) - MOST_TOASTS
    if more > 0:
        app.notify(f"and {more} more alert{'s' * (more > 1)}", severity="warning", markup=False)


def _notify_desktop(app: GpuwatchApp, raised: Sequence[Alert], frame: Frame) -> None:
    """Ask the terminal for one notification, of the worst alert and how many more there are."""
    if app.options.desktop == "off":
        return
    import os

    from gpuwatch.recorder.desktop import Osc, notification

    more = f" (+{len(raised) - 1} more)" if len(raised) > 1 else ""
    host = frame.snapshot.host or "gpuwatch"
    kind = cast(Osc, app.options.desktop)
    plain = app.kit.glyphs.ascii
    words = notification(kind, host, raised[0].title + more, tmux="TMUX" in os.environ, ascii_only=plain)
    app.write_to_terminal(words)
