"""How fast the processes on a GPU take more of its memory, as far as that goes on and on."""

from __future__ import annotations

from itertools import pairwise
from math import ceil
from typing import Final, NamedTuple, TypeAlias

from gpuwatch.units import MIB

SLOT: Final = 5.0
"""Seconds for which one point stands."""
SPAN: Final = 60
"""Slots that are looked at: five minutes."""
LEAST: Final = 12
"""Slots that the points must span before anything is said: a minute."""
BLOCK: Final = 4
"""Slots (20 s) of which the peaks are compared, and that two points must be apart to make a slope."""
GAP: Final = 20.0
"""Seconds without a sample after which all starts anew; two and a half intervals where that is more."""
GROWN: Final = 256 * MIB
"""Bytes by which the memory must have grown over the points for a speed to be worked out."""
QUANTILE: Final = 0.3
"""Which of all slopes is the speed. With a single step (a model that is loaded) at least half of them are 0."""

_Point: TypeAlias = tuple[int, int]
"""A slot's number and bytes."""


class Trend(NamedTuple):
    """How a GPU's memory grows."""

    speed: float = 0.0
    """Bytes a second that it surely grew by over the last minutes; 0 where it does not grow, or no longer."""
    steady: bool = False
    """It grew in each 20 s of the last minute without coming to rest, and is as high as it was in these minutes."""


FLAT: Final = Trend()


class Course:
    """The growth of one GPU's memory over the last minutes, a point every five seconds.

    It adds up what processes that are there took and gave back. One that comes, or goes, is no growth: a job that is
    started again is a drop and a rise, and comes to nothing. A point is the peak of its slot, not the last value, for
    the peak is what does not fit one day: an allocator that frees and takes the same again stays level.
    """

    def __init__(self) -> None:
        self.trend: Trend | None = None
        """None while there are too few points."""
        self._points: list[_Point] = []
        self._level = 0
        self._slot: int | None = None
        self._peak = 0
        self._last = 0.0

    def add(self, grown: int, time: float, interval: float) -> None:
        """Enter a sample: bytes by which its processes grew since the last one."""
        if self._slot is None or not 0.0 <= time - self._last <= max(GAP, 2.5 * interval):
            self._points, self._slot, self._level, self._peak, self.trend = [], int(time // SLOT), 0, 0, None
            grown = 0
        self._last = time
        self._level += grown
        slot = int(time // SLOT)
        if slot == self._slot:
            self._peak = max(self._peak, self._level)
            return
        self._points.append((self._slot, self._peak))
        while self._points[0][0] < self._slot - SPAN:
            del self._points[0]
        # Worked out once a slot, from those that are complete.
        self.trend = trend_of(self._points, max(BLOCK, ceil(interval / SLOT)))
        self._slot, self._peak = slot, self._level


def trend_of(points: list[_Point], block: int = BLOCK) -> Trend | None:
    """Give the trend of (slot, bytes), oldest first; None where they span too little time.

    The speed is a low quantile of the slopes between all pairs of points (Theil and Sen take the median), so that no
    step, however high, is taken for a trend; and no more than that of the last minute.
    """
    first, last = points[0], points[-1]
    if last[0] - first[0] < max(LEAST, 3 * block):
        return None
    if last[1] - first[1] <= GROWN:
        return FLAT
    # Every other point is enough where there are many: a quarter of the pairs, 60 µs for five minutes.
    some = points[::-2] if len(points) > SPAN // 2 else points[::-1]
    slopes = sorted(
        [
            (size - before) / (slot - past)
            for place, (slot, size) in enumerate(some, 1)
            for past, before in some[place:]
            if slot - past >= block
        ]
    )
    slope = slopes[int(QUANTILE * len(slopes))]
    peaks = _peaks(points, block)
    least, lately = slope * block / 4, peaks[3] - peaks[0]
    if slope <= 0 or lately < 3 * least:
        return FLAT
    top = max(size for _, size in points)
    high = last[1] >= top - max(GROWN, (last[1] - first[1]) / 10)
    grew = all(after - before >= least for before, after in pairwise(peaks))
    # An allocator that warms up comes to rest: it is as slow as in the last minute, and in the last 20 s slower still.
    slows = peaks[3] - peaks[2] < lately / 6
    return Trend(min(slope, lately / (3 * block)) / SLOT, high and grew and not slows)


def _peaks(points: list[_Point], block: int) -> list[int]:
    """Give the peaks of the last four blocks of slots, oldest first; of one without a point, that of the one before."""
    newest = points[-1][0]
    peaks: list[int] = []
    for blocks in (3, 2, 1, 0):
        until = newest - blocks * block
        inside = [size for slot, size in points if until - block < slot <= until]
        peaks.append(max(inside) if inside else peaks[-1] if peaks else points[0][1])
    return peaks
