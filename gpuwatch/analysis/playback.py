"""State of a replay at one moment, its speeds, and the events that had begun by then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from gpuwatch.alerts.alert import Alert

SPEEDS: Final = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0)


class Playback(NamedTuple):
    """State of a replay at one moment."""

    at: float
    """Wall-clock time of the snapshot that is shown, or that the replay is moving to."""
    playing: bool
    speed: float
    first: float
    """Wall-clock time of the first snapshot of the recording."""
    last: float
    gap: tuple[float, float] | None = None
    """Last gap that was reached: the time of the snapshot before it, and of the one after it."""

    @property
    def is_over(self) -> bool:
        """Whether the last snapshot is shown."""
        return self.at >= self.last


def events_until(events: Iterable[Alert], at: float) -> tuple[Alert, ...]:
    """Return the events that had begun at a wall-clock time; those that ended later are ongoing."""
    return tuple(
        alert
        if alert.ended is not None and alert.ended <= at
        else replace(alert, ended=None, how="", lasted=min(alert.lasted, at - alert.raised))
        for alert in events
        if alert.raised <= at
    )
