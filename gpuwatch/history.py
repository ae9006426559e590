"""Fixed-size series of what was seen, keyed by identity: a GPU by its key, a holding by GPU, pid and start time.

`History` belongs to the watch thread. What it hands out is a `HistoryView`, which never changes again, so that any
thread may read it. All times are on the reader's monotonic clock: a sample's own time is `now` less its age.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import floor
from typing import Final, NamedTuple, TypeAlias

from gpuwatch.model import Gpu, Holding, Reading, Reason, Snapshot, known, number

SLOTS: Final = 60
"""Points in a series, one a second."""
GPU_GONE: Final = 600.0
"""Seconds after which a GPU that no snapshot lists is forgotten."""
HOLDING_GONE: Final = 60.0
"""Seconds of samples of its GPU after which a holding that none of them lists is forgotten."""

Points: TypeAlias = tuple[float | None, ...]
_Owner: TypeAlias = tuple[int, int]

_EMPTY: Final[Points] = (None,) * SLOTS


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
    """Time of the first sample with an SM figure."""
    judged: float | None = None
    """Time of the last sample with an SM figure."""
    busy: float | None = None
    """Time of the last sample with SM over 0."""
    silent: bool = False
    """The device has no SM figure for this process, or keeps it from us."""


class Card(NamedTuple):
    """What is kept of one GPU, as handed out."""

    utilization: Points
    memory: Points
    tracks: Mapping[_Owner, Track]


class HistoryView:
    """What was seen up to one moment; it never changes."""

    __slots__ = ("_cards", "now", "watched")

    def __init__(self, cards: Mapping[str, Card] | None = None, now: float = 0.0, watched: float = 0.0) -> None:
        self._cards: Mapping[str, Card] = cards or {}
        self.now = now
        self.watched = watched
        """Seconds since the first snapshot."""

    def utilization(self, gpu_key: str) -> Points:
        """Give the last minute of utilization: 60 values in percent, oldest first, one a second; None is a gap.

        Where several samples fell into one second it is their mean; where samples are further apart, each holds until
        the next, for two intervals at most.
        """
        card = self._cards.get(gpu_key)
        return card.utilization if card else _EMPTY

    def memory(self, gpu_key: str) -> Points:
        """Give the last minute of used memory in bytes, like `utilization`; of several in a second, the greatest."""
        card = self._cards.get(gpu_key)
        return card.memory if card else _EMPTY

    def idle(self, gpu_key: str, pid: int, start: int) -> Idle | None:
        """Give for how long a process has not run on a GPU, or None where nothing says so.

        It counts to the last sample that measured it, so that samples that are missing add nothing.
        """
        track = self._track(gpu_key, pid, start)
        if track is None or track.silent or track.judged is None or track.watched is None:
            return None
        began = track.watched if track.busy is None else track.busy
        return Idle(max(0.0, track.judged - began), at_least=track.busy is None)

    def growth(self, gpu_key: str, pid: int, start: int, seconds: float = 60.0) -> int | None:
        """Give the bytes by which a holding grew in the last `seconds` (up to 60); negative where it shrank.

        One that we saw appear grew from 0. Of one that was there before us it is what it grew since the first look, and
        None after a single look.
        """
        track = self._track(gpu_key, pid, start)
        if track is None or track.measured is None:
            return None
        points = track.points
        if points[0][0] == track.measured:
            return None
        past = track.measured - seconds
        before = points[0][1]
        for time, size in points:
            if time > past:
                break
            before = size
        return points[-1][1] - before

    def _track(self, gpu_key: str, pid: int, start: int) -> Track | None:
        card = self._cards.get(gpu_key)
        return card.tracks.get((pid, start)) if card else None


class History:
    """Collects snapshots; used from one thread. Its memory is bounded by the GPUs and holdings of the last minutes."""

    def __init__(self) -> None:
        self._gpus: dict[str, _GpuHistory] = {}
        self._began: float | None = None
        self.view = HistoryView()
        """What was seen up to the last `add`."""

    def add(self, snapshot: Snapshot, now: float) -> HistoryView:
        """Take in a snapshot that was received at `now`, forget what is gone, and give the new view."""
        if self._began is None:
            self._began = now
        for gpu in snapshot.gpus:
            one = self._gpus.get(gpu.key)
            if one is None:
                one = self._gpus[gpu.key] = _GpuHistory(now)
            one.add(gpu, now, age=max(0.0, snapshot.monotonic - gpu.sampled), interval=snapshot.interval)
        self._gpus = {key: one for key, one in self._gpus.items() if now - one.listed <= GPU_GONE}
        cards = {key: one.card(now) for key, one in self._gpus.items()}
        self.view = HistoryView(cards, now, now - self._began)
        return self.view


class _GpuHistory:
    """The series and tracks of one GPU."""

    def __init__(self, now: float) -> None:
        self.listed = now
        """When a snapshot last listed this GPU, whatever its health."""
        self._stamp = 0.0
        self._trusted: float | None = None
        """Time of the last sample whose list of holdings was complete."""
        self._utilization = _Series(now, peak=False)
        self._memory = _Series(now, peak=True)
        self._tracks: dict[_Owner, Track] = {}

    def add(self, gpu: Gpu, now: float, *, age: float, interval: float) -> None:
        self.listed = now
        utilization, used = number(gpu.utilization), number(gpu.memory.used)
        fresh = gpu.sampled not in (0.0, self._stamp)
        if not fresh:
            # The same sample given again, so that its age shows; but a figure that was taken back is a gap from now on.
            if utilization is None:
                self._utilization.stop(now)
            if used is None:
                self._memory.stop(now)
            return
        self._stamp = gpu.sampled
        time = now - age
        until = time + max(2 * interval, 1.0)
        self._utilization.put(utilization, time, until)
        self._memory.put(used, time, until)
        self._tracks = self._follow(gpu.holdings, time)
        self._trusted = None if gpu.holdings_note else time

    def card(self, now: float) -> Card:
        return Card(self._utilization.points(now), self._memory.points(now), self._tracks)

    def _follow(self, holdings: tuple[Holding, ...], time: float) -> dict[_Owner, Track]:
        # A new dict, for the old one belongs to views that were handed out.
        tracks: dict[_Owner, Track] = {}
        for owner, (size, sm) in _merged(holdings).items():
            tracks[owner] = _followed(self._tracks.get(owner), size, sm, time, self._trusted)
        for owner, track in self._tracks.items():
            if owner not in tracks and time - track.seen <= HOLDING_GONE:
                tracks[owner] = track
        return tracks


class _Series:
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


def _merged(holdings: tuple[Holding, ...]) -> dict[_Owner, tuple[Reading, Reading]]:
    """Give bytes and SM by process: one that holds several MIG instances of a GPU is listed once for each."""
    merged: dict[_Owner, tuple[Reading, Reading]] = {}
    for one in holdings:
        owner = (one.pid, one.start)
        size, sm = one.memory, one.sm
        other = merged.get(owner)
        if other is not None:
            size = size + other[0] if known(size) and known(other[0]) else Reason.NO_SAMPLE
            sm = max(sm, other[1]) if known(sm) and known(other[1]) else Reason.NO_SAMPLE
        merged[owner] = (size, sm)
    return merged


def _followed(old: Track | None, size: Reading, sm: Reading, time: float, trusted: float | None) -> Track:
    """Give the track of a holding after one more sample; `trusted` is when the list before was known to be complete."""
    points, _, measured, watched, judged, busy, _ = old if old is not None else Track()
    if known(size):
        if old is None and trusted is not None and time - trusted <= HOLDING_GONE:
            points = ((trusted, 0),)
        points = _grown(points, time, int(size))
        measured = time
    else:
        measured = None
    if known(sm):
        watched, judged = time if watched is None else watched, time
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
