"""What is kept of one process on one GPU, and of all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from gpuwatch.history.series import SLOTS
from gpuwatch.model import Holding, Reading, Reason, known

HOLDING_GONE: Final = 60.0
"""Seconds of samples of its GPU after which a holding that none of them lists is forgotten."""
UNJUDGED: Final = 60.0
"""Seconds without an SM figure after which idleness is counted anew; two and a half intervals where that is more."""
SETTLED: Final = 60.0
"""Seconds after which what a process takes is growth: until then it is loading."""

Owner: TypeAlias = tuple[int, int]
"""A process: pid and start time."""


class Idle(NamedTuple):
    """How long a process has not run a kernel on a GPU."""

    seconds: float
    at_least: bool
    """It was never seen busy since we watch: it may have been idle for longer."""


class Track(NamedTuple):
    """What is kept of one holding; replaced, never changed."""

    points: tuple[tuple[float, int], ...] = ()
    """(time, bytes) whenever the bytes changed, oldest first; at most one a second, over one minute."""
    seen: float = 0.0
    measured: float | None = None
    """Time of the last sample that had bytes."""
    watched: float | None = None
    """Time of the first sample with an SM figure, since the last gap."""
    judged: float | None = None
    """Time of the last sample with an SM figure."""
    busy: float | None = None
    """Time of the last sample with SM over 0."""
    silent: bool = False
    """The device has no SM figure for this process, or keeps it from us."""


_NEW: Final = Track()


class Tracks:
    """All that is kept of the processes on one GPU."""

    def __init__(self) -> None:
        self.tracks: dict[Owner, Track] = {}
        self._trusted: float | None = None
        """Time of the last sample whose list of holdings was complete."""
        self._loading: dict[Owner, float] = {}
        """Processes that we saw come, and when, for as long as they are not settled."""

    def add(self, holdings: tuple[Holding, ...], time: float, *, complete: bool, interval: float) -> int:
        """Take in a sample; give the bytes by which the processes that are there for a while grew since the last."""
        # A new dict, for the old one belongs to views that were handed out.
        tracks: dict[Owner, Track] = {}
        before, loading, patience = self.tracks, self._loading, max(UNJUDGED, 2.5 * interval)
        trusted = self._trusted if self._trusted is not None and time - self._trusted <= HOLDING_GONE else None
        grown = 0
        for owner, (size, sm) in _merged(holdings).items():
            old = before.get(owner) or _ended(before, owner)
            track = tracks[owner] = _followed(old, size, sm, time, trusted, patience)
            if old is None:
                if trusted is not None:
                    loading[owner] = time
            elif track.points is not old.points and old.points and owner not in loading:
                grown += track.points[-1][1] - old.points[-1][1]
        for owner, track in before.items():
            if owner not in tracks and time - track.seen <= HOLDING_GONE:
                tracks[owner] = track
        if loading:
            self._loading = {owner: since for owner, since in loading.items() if 0 <= time - since < SETTLED}
        self.tracks = tracks
        self._trusted = time if complete else None
        return grown


def _ended(before: Mapping[Owner, Track], owner: Owner) -> Track | None:
    """Give the track of a process of which only the PID is left: it has ended, and took no memory by that."""
    pid, start = owner
    return next((track for (other, _), track in before.items() if other == pid), None) if not start else None


def _merged(holdings: tuple[Holding, ...]) -> dict[Owner, tuple[Reading, Reading]]:
    """Give bytes and SM by process: one that holds several MIG instances of a GPU is listed once for each."""
    merged: dict[Owner, tuple[Reading, Reading]] = {}
    for one in holdings:
        owner = (one.pid, one.start)
        size, sm = one.memory, one.sm
        other = merged.get(owner)
        if other is not None:
            size = size + other[0] if known(size) and known(other[0]) else Reason.NO_SAMPLE
            sm = max(sm, other[1]) if known(sm) and known(other[1]) else Reason.NO_SAMPLE
        merged[owner] = (size, sm)
    return merged


def _followed(
    old: Track | None, size: Reading, sm: Reading, time: float, trusted: float | None, patience: float
) -> Track:
    """Give the track of a holding after one more sample; `trusted` is when the list was complete without it.

    After more than `patience` seconds without an SM figure what was known of its idleness is void.
    """
    points, _, measured, watched, judged, busy, _ = _NEW if old is None else old
    if known(size):
        if old is None and trusted is not None:
            points = ((trusted, 0),)
        points = _grown(points, time, int(size))
        measured = time
    else:
        measured = None
    if known(sm):
        if watched is None or judged is None or time - judged > patience:
            watched, busy = time, None
        judged = time
        busy = time if sm > 0 else busy
    silent = sm is Reason.UNSUPPORTED or sm is Reason.DENIED
    return Track(points, time, measured, watched, judged, busy, silent)


def _grown(points: tuple[tuple[float, int], ...], time: float, size: int) -> tuple[tuple[float, int], ...]:
    """Give the points with one more: only where the bytes changed, at most one a second, none that is not needed."""
    if points and points[-1][1] == size:
        return points
    kept = points
    if len(points) > 1 and time - points[-1][0] < 1.0:
        time, kept = points[-1][0], points[:-1]
    first = 0
    while first + 1 < len(kept) and kept[first + 1][0] <= time - SLOTS:
        first += 1
    return (*kept[first:], (time, size))
