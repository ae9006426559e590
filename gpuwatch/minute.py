"""Minute: means of one minute, from which graphs of a whole day are drawn; the store keeps 25 hours of them."""

from __future__ import annotations

from math import floor
from typing import Final

import msgspec

from gpuwatch.history import HistoryView
from gpuwatch.model import Snapshot
from gpuwatch.timeline import user_owner

MINUTE: Final = 60.0


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """Means of one minute."""

    at: float
    """Wall-clock time at which it began: a multiple of 60."""
    values: dict[str, float] = {}
    """Mean of each series that has values, by `str(timeline.Key)`: `GPU-…/user:1001/memory`."""
    users: dict[str, str] = {}
    """Names of the users by owner: `user:1001`."""


class MinuteMaker:
    """Maker of minutes from frames; used from one thread."""

    def __init__(self) -> None:
        self._at: float | None = None
        """Start of the present minute."""
        self._last: tuple[Snapshot, HistoryView] | None = None

    def add(self, snapshot: Snapshot, history: HistoryView) -> Minute | None:
        """Add a snapshot; return the minute before, where the snapshot is the first one after it.

        A minute without snapshots is not made.
        """
        at = floor(snapshot.taken / MINUTE) * MINUTE
        made = self.finish() if at != self._at else None
        self._at, self._last = at, (snapshot, history)
        return made

    def finish(self) -> Minute | None:
        """Return the present minute, as far as it was added; None where there is none."""
        if self._at is None or self._last is None:
            return None
        snapshot, history = self._last
        values = history.timeline.means(self._at, MINUTE)
        return Minute(
            at=self._at,
            values={str(key): float(f"{value:.4g}") for key, value in values.items()},
            users={user_owner(one.uid): one.user for one in snapshot.processes if one.uid is not None and one.user},
        )
