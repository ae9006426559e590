"""Alerts for messages, frames that carry them, and a route that remembers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.history.history import HistoryView
from gpuwatch.monitor import Frame
from gpuwatch.recorder.messages import Message, Route
from tests.support.builders import EPOCH, snapshot


def alert(subject: str = "", severity: Severity = Severity.WARNING, at: float = 0.0, **changes: Any) -> Alert:
    """Return an alert on box3's GPU 3 that was raised `at` seconds after EPOCH."""
    fields: dict[str, Any] = {
        "rule": "time to full",
        "host": "box3",
        "gpu": "GPU-3",
        "index": 3,
        "subject": subject,
        "severity": severity,
        "most": severity,
        "title": f"GPU 3 full in about 4 min{f' ({subject})' if subject else ''}",
        "evidence": "ada grew 9.0 GiB/min",
        "raised": EPOCH + at,
        "seen": EPOCH + at,
        "owners": ("ada",),
        "pids": (100,),
    }
    return Alert(**{**fields, **changes})


def ended(one: Alert, after: float, how: str = "back within the limit") -> Alert:
    """Return what it is once it has ended `after` seconds after it was raised."""
    return msgspec.structs.replace(one, ended=one.raised + after, lasted=after, how=how)


def frame(raised: Iterable[Alert] = (), cleared: Iterable[Alert] = (), active: Iterable[Alert] = ()) -> Frame:
    """Return a frame; what is raised is active too."""
    new = tuple(raised)
    return Frame(snapshot(), 5000.0, HistoryView(), (*active, *new), new, tuple(cleared))


class Outbox(Route):
    """Route that keeps its messages, and fails or waits as a test says."""

    def __init__(
        self, name: str = "outbox", why: str = "", gate: threading.Event | None = None, **options: Any
    ) -> None:
        """`why` is what each delivery fails with; each waits for `gate`, if there is one."""
        super().__init__(name, self._keep, **options)
        self.why = why
        self.sent: list[Message] = []
        self.gate = gate

    def _keep(self, message: Message, is_stopped: Callable[[], bool]) -> str:
        while self.gate is not None and not self.gate.wait(0.01) and not is_stopped():
            pass
        self.sent.append(message)
        return self.why
