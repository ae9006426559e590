"""What a GPU's hardware reported: XIDs and uncorrected errors, with the reader's time at which they came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuwatch.model import Gpu, Reading, Reason, Xid, known

NO_XIDS: Final[Mapping[int, tuple[int, float]]] = {}


class Faults:
    """Counts on where a sampler that was started anew begins at 0 again."""

    def __init__(self) -> None:
        self.xids: Mapping[int, tuple[int, float]] = NO_XIDS
        """By code: how many since we watch, and when the newest came."""
        self.ecc: tuple[int, float | None] | None = None
        """Uncorrected errors now, and when we last saw them increase; None while the count is not known."""
        self._reported: tuple[Xid, ...] = ()
        self._looked = float("-inf")
        """When the sampler last told us of XIDs, be it that there are none."""
        self._errors: int | None = None
        self._risen: float | None = None

    def add(self, gpu: Gpu, now: float, taken: float) -> None:
        """Take in a GPU's row; `taken` is the wall-clock time of its snapshot."""
        if not isinstance(gpu.xids, Reason):
            if gpu.xids != self._reported:
                self._count(gpu.xids, now, taken)
            self._looked = now
        self._compare(gpu.ecc_uncorrected, now)

    def _count(self, xids: tuple[Xid, ...], now: float, taken: float) -> None:
        # A new dict, for the old one belongs to views that were handed out.
        found = dict(self.xids)
        before = {one.code: one for one in self._reported}
        for one in xids:
            old = before.get(one.code)
            if one == old:
                continue
            # A count that did not grow, and yet changed, is that of a sampler which was started anew.
            more = one.count - old.count if old is not None and one.count > old.count else one.count
            # By its age, but never before we last looked: a wall clock that is set must not make it older.
            came = min(now, max(self._looked, now - (taken - one.last)))
            found[one.code] = (found.get(one.code, (0, 0.0))[0] + more, came)
        self.xids, self._reported = found, xids

    def _compare(self, errors: Reading, now: float) -> None:
        if not known(errors):
            self.ecc = None
            return
        count = int(errors)
        # Fewer than before is a driver that was loaded anew: all that it counts is new.
        if self._errors is not None and count not in (0, self._errors):
            self._risen = now
        self._errors = count
        self.ecc = (count, self._risen)
