"""Fixed-size series of what was seen, keyed by identity: a GPU by its key, a holding by GPU, pid and start time.

`History` belongs to the watch thread. What it hands out is a `HistoryView`, which never changes again, so that any
thread may read it. All times are on the reader's monotonic clock, with the time that the machine was suspended added:
seconds in which nothing was sampled are a gap. A sample's own time is `now` less its age.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeAlias

from gpuwatch.history.faults import NO_XIDS, Faults
from gpuwatch.history.series import EMPTY, SLOTS, Points, Series
from gpuwatch.history.tracks import HOLDING_GONE, Idle, Owner, Track, Tracks
from gpuwatch.history.trend import Course, Trend
from gpuwatch.history.usage import NO_USE, Usage, Use
from gpuwatch.model import Gpu, Health, Snapshot, number

__all__ = ["GPU_GONE", "HOLDING_GONE", "SLOTS", "History", "HistoryView", "Idle", "IdleTimes", "Points", "Trend", "Use"]

GPU_GONE: Final = 600.0
"""Seconds after which a GPU that no snapshot lists is forgotten."""
LEAST_SLEEP: Final = 1.0
"""Seconds from which on a suspend counts: it is the difference of two clocks that are read one after the other."""

IdleTimes: TypeAlias = Mapping[tuple[str, int, int], Idle]
"""Idle times by GPU key, pid and start time."""


class Card(NamedTuple):
    """What is kept of one GPU, as handed out."""

    utilization: Points
    memory: Points
    tracks: Mapping[Owner, Track]
    trend: Trend | None
    xids: Mapping[int, tuple[int, float]]
    ecc: tuple[int, float | None] | None
    listed: tuple[Gpu, Snapshot] | None


class HistoryView:
    """What was seen up to one moment; it never changes."""

    __slots__ = ("_cards", "_use", "now", "watched")

    def __init__(
        self,
        cards: Mapping[str, Card] | None = None,
        now: float = 0.0,
        watched: float = 0.0,
        use: Mapping[int, Use] | None = None,
    ) -> None:
        self._cards: Mapping[str, Card] = cards or {}
        self._use: Mapping[int, Use] = use or {}
        self.now = now
        self.watched = watched
        """Seconds since the first snapshot, without those in which the machine was suspended."""

    def utilization(self, gpu_key: str) -> Points:
        """Give the last minute of utilization: 60 values in percent, oldest first, one a second; None is a gap.

        Where several samples fell into one second it is their mean; where samples are further apart, each holds until
        the next, for two intervals at most.
        """
        card = self._cards.get(gpu_key)
        return card.utilization if card else EMPTY

    def memory(self, gpu_key: str) -> Points:
        """Give the last minute of used memory in bytes, like `utilization`; of several in a second, the greatest."""
        card = self._cards.get(gpu_key)
        return card.memory if card else EMPTY

    def idle(self, gpu_key: str, pid: int, start: int) -> Idle | None:
        """Give for how long a process has not run on a GPU, or None where nothing says so.

        It counts to the last sample that measured it, so that samples that are missing add nothing; after a minute
        without one (a GPU that was lost) it starts anew.
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

    def trend(self, gpu_key: str) -> Trend | None:
        """Give how fast the processes that are on a GPU take more of its memory, or None where that is not known yet.

        It takes a minute of samples without a gap of 20 s; it changes every five seconds.
        """
        card = self._cards.get(gpu_key)
        return card.trend if card else None

    def last_listed(self, gpu_key: str) -> tuple[Gpu, Snapshot] | None:
        """Return a GPU as it last was with a complete list of its processes, and that snapshot; None where never."""
        card = self._cards.get(gpu_key)
        return card.listed if card else None

    def xids(self, gpu_key: str) -> Mapping[int, tuple[int, float]]:
        """Give the XIDs of a GPU: by code, how many there were, and the reader's monotonic time of the newest.

        Those that the sampler had counted before our first look are among them, with their time by the wall clock.
        """
        card = self._cards.get(gpu_key)
        return card.xids if card else NO_XIDS

    def ecc(self, gpu_key: str) -> tuple[int, float | None] | None:
        """Give a GPU's uncorrected memory errors now, and the reader's time at which we last saw more of them.

        That time is None where they have not grown since we watch; all is None while the count is not known.
        """
        card = self._cards.get(gpu_key)
        return card.ecc if card else None

    def use(self, uid: int) -> Use:
        """Give what a person held and used since the first snapshot; nothing of one who was never seen."""
        return self._use.get(uid, NO_USE)

    def _track(self, gpu_key: str, pid: int, start: int) -> Track | None:
        card = self._cards.get(gpu_key)
        return card.tracks.get((pid, start)) if card else None


class History:
    """Collects snapshots; used from one thread. Its memory is bounded by the GPUs and holdings of the last minutes."""

    def __init__(self) -> None:
        self._gpus: dict[str, _GpuHistory] = {}
        self._began: float | None = None
        self._slept = 0.0
        self._usage = Usage()
        self.view = HistoryView()
        """What was seen up to the last `add`."""

    def add(self, snapshot: Snapshot, now: float, slept: float = 0.0) -> HistoryView:
        """Take in a snapshot that was received at `now`, forget what is gone, and give the new view.

        `slept` is for how many seconds the machine has been suspended so far, which `now` does not count.
        """
        if self._began is None:
            self._began = now
        watched = now - self._began
        if abs(slept - self._slept) >= LEAST_SLEEP:
            self._slept = slept
        now += self._slept
        for gpu in snapshot.gpus:
            one = self._gpus.get(gpu.key)
            if one is None:
                one = self._gpus[gpu.key] = _GpuHistory(now)
            age = max(0.0, snapshot.monotonic - gpu.sampled)
            one.add(gpu, now, age=age, snapshot=snapshot)
        self._gpus = {key: one for key, one in self._gpus.items() if now - one.listed <= GPU_GONE}
        cards = {key: one.card(now) for key, one in self._gpus.items()}
        self._usage.add(snapshot)
        self.view = HistoryView(cards, now, watched, self._usage.totals)
        return self.view


class _GpuHistory:
    """The series and tracks of one GPU."""

    def __init__(self, now: float) -> None:
        self.listed = now
        """When a snapshot last listed this GPU, whatever its health."""
        self._stamp = 0.0
        self._utilization = Series(now, peak=False)
        self._memory = Series(now, peak=True)
        self._tracks = Tracks()
        self._course = Course()
        self._faults = Faults()
        self._complete: tuple[Gpu, Snapshot] | None = None
        """The last sample whose list of processes was complete; snapshots never change, so a reference will do."""

    def add(self, gpu: Gpu, now: float, *, age: float, snapshot: Snapshot) -> None:
        interval = snapshot.interval
        self.listed = now
        self._faults.add(gpu, now, snapshot.taken)
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
        complete = not gpu.holdings_note
        grown = self._tracks.add(gpu.holdings, time, complete=complete, interval=interval)
        if complete and gpu.health is Health.OK:
            self._complete = (gpu, snapshot)
        if complete:
            self._course.add(grown, time, interval)

    def card(self, now: float) -> Card:
        faults = self._faults
        series = (self._utilization.points(now), self._memory.points(now))
        return Card(*series, self._tracks.tracks, self._course.trend, faults.xids, faults.ecc, self._complete)
