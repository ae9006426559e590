"""One value a second for the last minute."""

from __future__ import annotations

from math import floor
from typing import Final, TypeAlias

SLOTS: Final = 60
"""Points in a series, one a second."""

Points: TypeAlias = tuple[float | None, ...]

EMPTY: Final[Points] = (None,) * SLOTS


class Series:
    """One value a second for a minute."""

    def __init__(self, now: float, *, peak: bool) -> None:
        self._peak = peak
        self._slots: list[float | None] = [None] * SLOTS
        self._head = floor(now)
        """The second that the last slot stands for."""
        self._value: float | None = None
        self._until = now
        """When the value is too old to go on filling slots."""
        self._second = self._head - SLOTS
        """The second of the last sample; how many values fell into it, and what they come to."""
        self._count = 0
        self._mixed = 0.0

    def put(self, value: float | None, time: float, until: float) -> None:
        """Enter a sample; it fills the slots after its own until `until`."""
        second = floor(time)
        self._advance(second)
        if second != self._second:
            self._second, self._count = second, 0
        if value is not None:
            self._mix(value)
        first = SLOTS - 1 - (self._head - second)
        if self._count and first >= 0:
            self._slots[first] = self._mixed
            first += 1
        oldest = self._head - SLOTS + 1
        for slot in range(max(first, 0), SLOTS):
            self._slots[slot] = value if oldest + slot < until else None
        self._value, self._until = value, until

    def stop(self, now: float) -> None:
        """Let the series be a gap from `now` on."""
        self._advance(floor(now))
        self._value = None

    def points(self, now: float) -> Points:
        """Give the slots, the last one being the second of `now`."""
        self._advance(floor(now))
        return tuple(self._slots)

    def _mix(self, value: float) -> None:
        self._count += 1
        if self._count == 1:
            self._mixed = value
        elif self._peak:
            self._mixed = max(self._mixed, value)
        else:
            self._mixed += (value - self._mixed) / self._count

    def _advance(self, second: int) -> None:
        steps = second - self._head
        if steps <= 0:
            return
        first = max(self._head + 1, second - SLOTS + 1)
        fill = [self._value if each < self._until else None for each in range(first, second + 1)]
        self._slots = (self._slots + fill)[-SLOTS:] if steps < SLOTS else fill
        self._head = second
