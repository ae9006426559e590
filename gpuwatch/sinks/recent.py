"""What was raised since we watch, in memory alone: the demo's events are nobody's history."""

from __future__ import annotations

import threading
from typing import Final

from gpuwatch.alerts import Alert
from gpuwatch.sinks.log import Events
from gpuwatch.watch import TROUBLE, Frame

MOST: Final = 500
"""Events that are remembered; the oldest go first."""


class Recent:
    """A sink that remembers the newest events."""

    name = "recent events"
    trouble = ""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._alerts: dict[str, Alert] = {}

    def take(self, frame: Frame) -> None:
        """Remember what a frame raised and ended."""
        with self._lock:
            for alert in (*frame.raised, *frame.cleared):
                if alert.rule != TROUBLE:
                    self._alerts.pop(alert.id, None)
                    self._alerts[alert.id] = alert
            for oldest in list(self._alerts)[: max(0, len(self._alerts) - MOST)]:
                del self._alerts[oldest]

    def close(self, seconds: float) -> None:
        """There is nothing to finish."""

    def events(self) -> Events:
        """Give what is remembered, as a log would tell it; from any thread."""
        with self._lock:
            return Events(alerts=tuple(self._alerts.values()), watched=True, exists=True)
