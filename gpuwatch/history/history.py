"""History of what was sampled: fixed-size series per GPU and process, with growth, errors, idle time and usage.

Each new sample of a GPU charges the time since the last sample to the users whose processes it lists, at most two and
a half intervals: nothing is charged for missing samples. `History` belongs to the monitor thread; it returns a
`HistoryView`, which never changes, so that any thread may read it. All times are on the reader's monotonic clock, plus
the time that the machine was suspended: seconds without samples are a gap.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence, Set
from itertools import accumulate, pairwise
from math import inf
from operator import add, attrgetter
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias, TypeVar

from gpuwatch.base.units import MIB
from gpuwatch.history.timeline import Key, Metric, Owner, Timeline, merge_holdings
from gpuwatch.model.shares import UnknownMemoryStart
from gpuwatch.model.snapshot import (
    Gpu,
    Health,
    Holding,
    Idle,
    IdleHolding,
    IdleTimes,
    Reading,
    Reason,
    Snapshot,
    Xid,
    known,
)

K = TypeVar("K", bound=Hashable)

SLOTS: Final = 60
"""Points in a series, one per second."""
HOLDING_GONE: Final = 60.0
"""Seconds of samples of its GPU without a holding, after which the holding is removed."""
GPU_GONE: Final = 600.0
"""Seconds after which a GPU that no snapshot lists is removed."""
MOST_THROTTLES: Final = 200
"""Changes of the reasons that limit a GPU's clocks that are kept, at most."""
SENSORS: Final = (*("memory.used", "utilization", "temperature", "power", "fan", "sm_clock", "memory_clock", "pstate"),)
"""Figures of a GPU for which the history keeps whether they ever had a value: those read at least every 10 s."""
_GAP_STEP: Final = 256 * MIB
"""Step in bytes by which the memory of unknown processes is recorded."""
_READ: Final = tuple((path, attrgetter(path)) for path in SENSORS)
_UNJUDGED: Final = 60.0
"""Seconds without an SM value after which idle time is counted from 0; at least `_PATIENCE` intervals."""
_SETTLED: Final = 60.0
"""Seconds after the start of a process from which more memory counts as growth: before that it is loading."""
_PATIENCE: Final = 2.5
"""Intervals without a sample that are not a gap yet, and that one sample charges, at most."""
_LEAST_SLEEP: Final = 1.0
"""Seconds from which a suspend counts: it is the difference of two clocks that are not read at the same time."""

Points: TypeAlias = tuple[float | None, ...]
XidCounts: TypeAlias = Mapping[int, tuple[int, float]]
"""By XID code: its number since gpuwatch started, and the time of the newest."""

_GAP: Final[Points] = (None,) * SLOTS


# -- errors -------------------------------------------------------------------------------------------------------


class ErrorCounter:
    """Counter of one GPU's errors that continues when a new sampler counts from 0 again."""

    def __init__(self) -> None:
        self.xids: XidCounts = {}
        self.ecc: tuple[int, float | None] | None = None
        self._reported: tuple[Xid, ...] = ()
        self._looked = -inf
        """Time at which the sampler last reported XIDs, or reported that there are none."""
        self._errors: int | None = None
        self._risen: float | None = None

    def add(self, gpu: Gpu, now: float, taken: float) -> None:
        """Add a GPU's row; `taken` is the wall-clock time of its snapshot."""
        if not isinstance(gpu.xids, Reason):
            if gpu.xids != self._reported:
                self._count(gpu.xids, now, taken)
            self._looked = now
        if not known(gpu.ecc_uncorrected):
            self.ecc = None
            return
        count = int(gpu.ecc_uncorrected)
        # Fewer than before means that the driver was reloaded: all its errors are new.
        if self._errors is not None and count not in (0, self._errors):
            self._risen = now
        self._errors, self.ecc = count, (count, self._risen)

    def _count(self, xids: tuple[Xid, ...], now: float, taken: float) -> None:
        found = dict(self.xids)  # the old one belongs to views that were handed out
        before = {one.code: one for one in self._reported}
        for one in xids:
            old = before.get(one.code)
            if one == old:
                continue
            # A count that changed without growing comes from a restarted sampler.
            more = one.count - old.count if old is not None and one.count > old.count else one.count
            # By its age, but not before the last report: a clock that was set must not make it older.
            came = min(now, max(self._looked, now - (taken - one.last)))
            found[one.code] = (found.get(one.code, (0, 0.0))[0] + more, came)
        self.xids, self._reported = found, xids


# -- holdings -----------------------------------------------------------------------------------------------------


class HoldingRecord(NamedTuple):
    """History of one holding; replaced, never changed."""

    points: tuple[tuple[float, int], ...] = ()
    """(time, bytes) at each change of the bytes, oldest first; at most one per second, over one minute."""
    seen: float = 0.0
    measured: float | None = None
    """Time of the last sample with known bytes."""
    watched: float | None = None
    """Time of the first sample with an SM value since the last gap."""
    judged: float | None = None
    """Time of the last sample with an SM value."""
    busy: float | None = None
    """Time of the last sample with an SM value over 0."""
    silent: bool = False
    """Whether the device has no SM value for this process, or we may not read it."""


class HoldingHistory:
    """Records of all holdings on one GPU."""

    def __init__(self) -> None:
        self.records: dict[Owner, HoldingRecord] = {}
        self._trusted: float | None = None
        """Time of the last sample whose list of holdings was complete."""
        self._loading: dict[Owner, float] = {}
        """Processes that were seen to start, with the time, until `_SETTLED` seconds have passed."""

    def add(self, holdings: tuple[Holding, ...], time: float, *, complete: bool, interval: float) -> dict[Owner, int]:
        """Add a sample; return the bytes by which settled processes have grown since the last sample."""
        records: dict[Owner, HoldingRecord] = {}  # a new dict: the old one belongs to views that were handed out
        before, loading, patience = self.records, self._loading, max(_UNJUDGED, _PATIENCE * interval)
        trusted = self._trusted if self._trusted is not None and time - self._trusted <= HOLDING_GONE else None
        grown: dict[Owner, int] = {}
        for owner, (size, sm) in merge_holdings(holdings).items():
            old = before.get(owner)
            if old is None and not owner[1]:  # a process that has ended, and is now listed by its PID only
                old = next((record for (pid, _), record in before.items() if pid == owner[0]), None)
            record = records[owner] = _extend(old, size, sm, time, trusted, patience)
            if old is None:
                if trusted is not None:
                    loading[owner] = time
            elif record.points is not old.points and old.points and owner not in loading:
                grown[owner] = record.points[-1][1] - old.points[-1][1]
        for owner, record in before.items():
            if owner not in records and time - record.seen <= HOLDING_GONE:
                records[owner] = record
        if loading:
            self._loading = {owner: since for owner, since in loading.items() if 0 <= time - since < _SETTLED}
        self.records = records
        self._trusted = time if complete else None
        return grown


def _extend(
    old: HoldingRecord | None, size: Reading, sm: Reading, time: float, trusted: float | None, patience: float
) -> HoldingRecord:
    """Return the record after one more sample; `trusted` is the last time of a complete list without the holding.

    After more than `patience` seconds without an SM value the idle time is counted from 0.
    """
    points, _, _, watched, judged, busy, _ = old or HoldingRecord()
    measured = None
    if known(size):
        if old is None and trusted is not None:
            points = ((trusted, 0),)
        points = _add_point(points, time, int(size))
        measured = time
    if known(sm):
        if watched is None or judged is None or time - judged > patience:
            watched, busy = time, None
        judged = time
        busy = time if sm > 0 else busy
    silent = sm is Reason.UNSUPPORTED or sm is Reason.DENIED
    return HoldingRecord(points, time, measured, watched, judged, busy, silent)


def _add_point(points: tuple[tuple[float, int], ...], time: float, size: int) -> tuple[tuple[float, int], ...]:
    """Add a point where the bytes changed, at most one per second; drop points older than a minute."""
    if points and points[-1][1] == size:
        return points
    kept = points
    if len(points) > 1 and time - points[-1][0] < 1.0:
        time, kept = points[-1][0], points[:-1]
    first = 0
    while first + 1 < len(kept) and kept[first + 1][0] <= time - SLOTS:
        first += 1
    return (*kept[first:], (time, size))


# -- growth -------------------------------------------------------------------------------------------------------

SLOT: Final = 5.0
"""Seconds that one level covers."""
_SPAN: Final = 60
"""Slots that are examined: five minutes."""
_LEAST: Final = 13
"""Slots for which memory must have grown: more than a minute, so that loading a model does not count as growth."""
_BLOCK: Final = 4
"""Least number of slots (20 s) for the present speed; where it grows in steps, at least two rises."""
_SILENCE: Final = 20.0
"""Seconds without a sample after which the estimate starts again; at least `_PATIENCE` intervals."""
_FREED: Final = 6.0
"""Seconds for which the memory must be below its peak to count as freed: an allocator takes it again sooner."""
_GROWN: Final = 256 * MIB
"""Bytes by which the memory must have grown before a speed is computed."""


class Trend(NamedTuple):
    """Growth of a GPU's memory."""

    speed: float = 0.0
    """Bytes per second by which it grows; 0 where it does not grow, has stopped, or was freed."""
    steady: bool = False
    """Whether it has grown evenly for more than a minute, and still does."""


_FLAT: Final = Trend()


class TrendEstimator:
    """Estimator of the growth of one GPU's memory over the last minutes, with a level every five seconds.

    It adds up the changes of the memory of each running process. The start of a process does not count, and at its
    end all its growth is forgotten, so that a restarted job is not growth. A level is the peak of its
    slot, not the last value: memory runs out at a peak, and an allocator that frees and takes the same memory again
    shows no growth.
    """

    def __init__(self) -> None:
        self.trend: Trend | None = None
        """None while there are too few levels."""
        self._slots: list[dict[Owner, int]] = []
        """Peak of each process in each slot, oldest first."""
        self._peaks: dict[Owner, int] = {}
        self._levels: dict[Owner, int] = {}
        self._slot: int | None = None
        self._last = 0.0
        self._running: Set[Owner] = frozenset()
        self._floor = -inf
        """Level that means freed memory if the peaks fall below it."""
        self._high = 0.0
        """Time of the last sample above that."""
        self._steady, self._block = 0.0, _BLOCK
        """Speed of the last steady trend, and the number of slots of its present speed."""

    def add(self, grown: Mapping[Owner, int], running: Set[Owner], time: float, interval: float) -> None:
        """Add a sample: the growth of processes in bytes since the last sample, and all listed processes."""
        slot = int(time // SLOT)
        if self._slot is None or not 0.0 <= time - self._last <= max(_SILENCE, _PATIENCE * interval):
            self.trend, self._slots, self._peaks, self._levels, self._slot = None, [], {}, {}, slot
            self._floor, self._steady, grown = -inf, 0.0, {}
        self._last = time
        # A process that is missing in a single list has not ended.
        ended = self._levels.keys() - running - self._running
        self._running = running
        if ended:
            self._levels = {owner: level for owner, level in self._levels.items() if owner not in ended}
        if slot != self._slot:
            missed = [self._levels] * (slot - self._slot - 1)
            self._slots = [*self._slots, self._peaks, *missed][-_SPAN:]
            self._peaks = dict(self._levels)
        if self._slots and (slot != self._slot or ended):
            self._estimate()  # from the slots that are complete
        self._slot = slot
        if grown:
            self._levels = dict(self._levels)
        for owner, size in grown.items():
            level = self._levels[owner] = self._levels.get(owner, 0) + size
            self._peaks[owner] = max(level, self._peaks.get(owner, 0))
        if sum(self._levels.values()) >= self._floor:
            self._high = time
        elif time - self._high >= _FREED and self.trend is not None:
            self.trend, self._steady = _FLAT, 0.0

    def _estimate(self) -> None:
        levels = [*accumulate((sum(one.get(owner, 0) for owner in self._levels) for one in self._slots), max)]
        self._floor = levels[-1] - max(_GROWN, (levels[-1] - levels[0]) / 10)
        found = estimate_trend(levels)
        if found is None:
            self.trend = None
        elif found[0].steady:
            self.trend, self._block = found
            self._steady = self.trend.speed
        else:
            # A pause does not end it at once; then it is as slow as lately.
            lately = (levels[-1] - levels[max(0, len(levels) - 1 - self._block)]) / self._block / SLOT
            self._steady = self._steady if lately > self._steady / 4 else 0.0
            self.trend = Trend(min(self._steady, lately)) if self._steady else _FLAT


def estimate_trend(levels: Sequence[int]) -> tuple[Trend, int] | None:
    """Return the trend of the levels of successive slots, which never fall, and the slots that tell its speed lately.

    It is the trend of the longest recent time of even growth: what came before, such as a flat hour or the load of a
    model, does not count. Where they grow in steps, a pause lasts no longer than those before, and the more time is
    needed the longer these are. The result is None where the levels are too few.
    """
    newest = len(levels) - 1
    if newest < _LEAST:
        return None
    for first in range(newest - _LEAST + 1):
        rise = levels[-1] - levels[first]
        if rise <= _GROWN:
            break
        least = rise / (newest - first) / 2
        if levels[first + 1] - levels[first] < least:
            continue
        rises = [slot for slot in range(first + 1, newest + 1) if levels[slot] - levels[slot - 1] >= least]
        begin, last = rises[0], rises[-1]
        pause = max((after - before for before, after in pairwise(rises)), default=_SPAN)
        if newest - first < _LEAST + 3 * (pause - 1) or newest - last >= pause:
            continue
        speed = (levels[last] - levels[begin]) / (last - begin)
        block = max(_BLOCK, 2 * pause)
        lately = (levels[last] - levels[last - block]) / block
        # An allocator that warms up comes to rest, so that it is slower lately; after a slow growth it may be faster.
        if 0.8 <= lately / speed <= 1.25:
            return Trend(speed / SLOT, steady=True), block
    return _FLAT, _BLOCK


# -- usage --------------------------------------------------------------------------------------------------------


class Use(NamedTuple):
    """Use by one user or one run over some time. It adds up over GPUs: two GPUs for an hour are 2 GPU-hours.

    In a report `held` is `gpu`, and its parts are scaled to that, so that all users together have the machine once.
    """

    held: float = 0.0
    """GPU-seconds with memory on a GPU."""
    busy: float = 0.0
    """GPU-seconds of `held` in which one of its processes on the GPU was seen to run a kernel (SM over 0)."""
    unknown: float = 0.0
    """GPU-seconds of `held` in which it is not known whether a kernel ran."""
    memory: float = 0.0
    """Byte-seconds of memory."""
    idle_memory: float = 0.0
    """Byte-seconds of `memory` held by processes that were seen to run nothing (SM 0)."""
    unsized: float = 0.0
    """GPU-seconds of `held` in which the memory of one of its processes was not known, and is missing in `memory`."""
    gpu: float = 0.0
    """GPU-seconds, divided among the holders of each GPU by memory: all holders together have the GPU once."""

    @property
    def idle(self) -> float:
        """GPU-seconds of `held` in which all of its processes on the GPU were seen to run nothing."""
        rest = self.held - self.busy - self.unknown
        return rest if rest > 1e-9 * self.held else 0.0  # a smaller rest is a rounding error

    def plus(self, other: Use) -> Use:
        return Use(*map(add, self, other))


NO_USE = Use()


def charged(holdings: Sequence[Holding], seconds: float, owner_of: Callable[[Holding], K]) -> dict[K, Use]:
    """Return the use of one GPU over some seconds, by owner.

    The time of several holdings of one owner counts once: as busy where any is busy, as unknown where none is busy and
    any has no value. Their memory adds up, and so do their parts of the GPU's time. For these a holding of unknown size
    is as large as the mean of the others.
    """
    sizes = [one.memory for one in holdings if not isinstance(one.memory, Reason)]
    mean = sum(sizes) / len(sizes) if sizes else 0.0
    weights = [one.memory if not isinstance(one.memory, Reason) and mean else mean or 1.0 for one in holdings]
    each = seconds / (sum(weights) or 1.0)
    sums: dict[K, tuple[int, float, float, bool, float]] = {}
    for one, weight in zip(holdings, weights, strict=True):
        size, sm = one.memory, one.sm
        # The greatest of these counts: 0 is idle, 1 is not known, 2 is busy.
        did = 1 if isinstance(sm, Reason) else 2 if sm > 0 else 0
        unsized = isinstance(size, Reason)
        held = 0.0 if isinstance(size, Reason) else size
        idle = 0.0 if did else held
        owner = owner_of(one)
        before = sums.get(owner)
        if before is not None:
            did, held, idle = max(did, before[0]), held + before[1], idle + before[2]
            unsized, weight = unsized or before[3], weight + before[4]
        sums[owner] = (did, held, idle, unsized, weight)
    return {
        owner: Use(
            *(seconds, seconds * (did == 2), seconds * (did == 1), held * seconds, idle * seconds, seconds * unsized),
            gpu=weight * each,
        )
        for owner, (did, held, idle, unsized, weight) in sums.items()
    }


class Usage:
    """Seconds that each sample charges, and the sum of each user's use; used from one thread."""

    def __init__(self) -> None:
        self.totals: Mapping[int, Use] = {}
        """Use by uid since the first snapshot; replaced, never changed."""
        self.seconds: Mapping[str, float] = {}
        """Seconds since the previous sample, for each GPU with a new sample; replaced, never changed."""
        self._stamps: dict[str, float] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot. Processes without a visible owner are ignored."""
        self.seconds = {gpu.key: seconds for gpu in snapshot.gpus if (seconds := self._charge(gpu, snapshot.interval))}
        charging = [gpu for gpu in snapshot.gpus if gpu.holdings and gpu.key in self.seconds]
        if not charging:
            return
        owners = {one.pid: one.uid for one in snapshot.processes}
        totals = dict(self.totals)
        for gpu in charging:
            uses = charged(gpu.holdings, self.seconds[gpu.key], lambda one: owners.get(one.pid))
            for uid, use in uses.items():
                if uid is not None:
                    totals[uid] = totals.get(uid, NO_USE).plus(use)
        self.totals = totals

    def _charge(self, gpu: Gpu, interval: float) -> float:
        """Return the seconds since the last sample of a GPU; 0 for the first sample, and for a repeated one."""
        if not gpu.sampled:
            return 0.0
        before = self._stamps.get(gpu.key)
        self._stamps[gpu.key] = gpu.sampled
        return 0.0 if before is None else min(max(0.0, gpu.sampled - before), _PATIENCE * interval)


# -- the whole ----------------------------------------------------------------------------------------------------


class Throttle(NamedTuple):
    """Time at which the reasons that limit a GPU's clocks changed."""

    at: float
    """Wall-clock time."""
    reasons: tuple[str, ...]
    """Worst first; empty where nothing limits them any more."""


class GpuView(NamedTuple):
    """History of one GPU, for readers."""

    utilization: Points = _GAP
    """Utilization of the last minute: 60 values in percent, oldest first, one per second; None is a gap.

    Several samples in one second become their mean; where samples are further apart, each value is repeated until
    the next sample, for two intervals at most.
    """
    records: Mapping[Owner, HoldingRecord] = MappingProxyType({})
    trend: Trend | None = None
    """How fast the running processes take more memory; None until there were 70 s of samples without a gap of 20 s."""
    xids: XidCounts = MappingProxyType({})
    """XIDs by code; the time of those that the sampler counted before the first snapshot is by the wall clock."""
    ecc: tuple[int, float | None] | None = None
    """Number of uncorrected memory errors, and the time of its last increase, which is None where it has not increased
    since gpuwatch started; None while the number is not known."""
    listed: tuple[Gpu, Snapshot] | None = None
    """Last row with a complete list of processes, and its snapshot; None if none."""
    throttles: tuple[Throttle, ...] = ()
    """Last changes of the reasons that limit the clocks, oldest first; `MOST_THROTTLES` at most."""
    answered: frozenset[str] = frozenset()
    """Those of `SENSORS` that have had a value since gpuwatch started."""
    gaps: tuple[tuple[int, float], ...] = ()
    """(-1, time of the first sample), then the memory of unknown processes in steps, each with the last time at which
    it was no more: steps and times rise."""


_NO_GPU: Final = GpuView()


class HistoryView:
    """History up to one moment; it never changes, but for its timeline."""

    __slots__ = ("_gpus", "_use", "charged", "now", "timeline", "watched")

    def __init__(
        self,
        gpus: Mapping[str, GpuView] | None = None,
        now: float = 0.0,
        watched: float = 0.0,
        use: Mapping[int, Use] | None = None,
        timeline: Timeline | None = None,
        charged: Mapping[str, float] | None = None,
    ) -> None:
        self._gpus: Mapping[str, GpuView] = gpus or {}
        self._use: Mapping[int, Use] = use or {}
        self.now = now
        self.watched = watched
        """Seconds since the first snapshot, without the time that the machine was suspended."""
        self.timeline = timeline if timeline is not None else Timeline()
        """Values over the last 24 hours; it goes on with the next snapshot."""
        self.charged: Mapping[str, float] = charged or {}
        """Seconds that the newest snapshot charges to those who hold a GPU, by `Gpu.key`; none where it is repeated."""

    def gpu(self, key: str) -> GpuView:
        """Return the history of a GPU by `Gpu.key`; an empty one where it was not seen."""
        return self._gpus.get(key, _NO_GPU)

    def idle(self, gpu_key: str, pid: int, start: int) -> Idle | None:
        """Return how long a process has been idle on a GPU; None where that is not known.

        The time ends at the last sample with an SM value, so that missing samples add nothing; after a minute without
        one (a GPU that was lost) it starts from 0.
        """
        record = self.gpu(gpu_key).records.get((pid, start))
        if record is None or record.silent or record.judged is None or record.watched is None:
            return None
        began = record.watched if record.busy is None else record.busy
        return Idle(max(0.0, record.judged - began), at_least=record.busy is None)

    def idle_holdings(self, snapshot: Snapshot) -> Iterator[IdleHolding]:
        """Yield the idle times of the holdings in a snapshot, where they are known."""
        for gpu in snapshot.gpus:
            for pid, start in dict.fromkeys((one.pid, one.start) for one in gpu.holdings):
                idle = self.idle(gpu.key, pid, start)
                if idle is not None:
                    yield IdleHolding(gpu.key, pid, start, round(idle.seconds, 3), idle.at_least)

    def growth(self, gpu_key: str, pid: int, start: int) -> int | None:
        """Return the bytes by which a holding grew in the last minute; negative where it shrank.

        A holding that was seen to appear grew from 0. The growth of a holding older than gpuwatch starts at the first
        sample, and is None after a single sample.
        """
        record = self.gpu(gpu_key).records.get((pid, start))
        if record is None or record.measured is None or record.points[0][0] == record.measured:
            return None
        past, before = record.measured - SLOTS, record.points[0][1]
        for time, size in record.points:
            if time > past:
                break
            before = size
        return record.points[-1][1] - before

    def unknown_memory_starts(self, snapshot: Snapshot) -> dict[str, UnknownMemoryStart]:
        """Return when the memory of unknown processes rose above half of its size, by GPU key, as far as known."""
        starts: dict[str, UnknownMemoryStart] = {}
        for gpu in snapshot.gpus:
            gaps = self.gpu(gpu.key).gaps
            if gaps and known(gpu.unattributed):
                below = [at for step, at in gaps[1:] if 2 * (step + 1) * _GAP_STEP <= gpu.unattributed]
                starts[gpu.key] = UnknownMemoryStart(below[-1] if below else gaps[0][1], at_least=not below)
        return starts

    def use(self, uid: int) -> Use:
        """Return a user's use since the first snapshot; zero for a user who was never seen."""
        return self._use.get(uid, NO_USE)


class History:
    """History that grows by one snapshot at a time; used from one thread, bounded in memory."""

    def __init__(self, timeline: Timeline | None = None) -> None:
        """Start empty; `timeline` is where the values for graphs are kept."""
        self._gpus: dict[str, _GpuHistory] = {}
        self._began: float | None = None
        self._slept = 0.0
        self._usage = Usage()
        self._timeline = timeline or Timeline()
        self.view = HistoryView(timeline=self._timeline)
        """History up to the last `add`."""

    def restore_idle(self, times: IdleTimes, now: float) -> None:
        """Continue idle times that were known at `now`, before the first snapshot."""
        for (gpu, pid, start), idle in times.items():
            one = self._gpus.setdefault(gpu, _GpuHistory(now))
            one.restore_idle((pid, start), idle, now)

    def add(self, snapshot: Snapshot, now: float, slept: float = 0.0) -> HistoryView:
        """Add a snapshot that was received at `now`, remove what has disappeared, and return the new view.

        `slept` is the number of seconds that the machine has been suspended so far, which `now` does not include.
        """
        if self._began is None:
            self._began = now
        watched = now - self._began
        if abs(slept - self._slept) >= _LEAST_SLEEP:
            self._slept = slept
        now += self._slept
        for gpu in snapshot.gpus:
            one = self._gpus.get(gpu.key)
            if one is None:
                one = self._gpus[gpu.key] = _GpuHistory(now)
            one.add(gpu, now, snapshot)
        self._gpus = {key: one for key, one in self._gpus.items() if now - one.listed <= GPU_GONE}
        self._usage.add(snapshot)
        self._timeline.add(snapshot, now)
        gpus = {key: one.view(key, self._timeline) for key, one in self._gpus.items()}
        self.view = HistoryView(gpus, now, watched, self._usage.totals, self._timeline, self._usage.seconds)
        return self.view


class _GpuHistory:
    """Series and records of one GPU."""

    def __init__(self, now: float) -> None:
        self.listed = now
        """Time at which a snapshot last listed this GPU, whatever its health."""
        self._stamp = 0.0
        self._holdings = HoldingHistory()
        self._growth = TrendEstimator()
        self._errors = ErrorCounter()
        self._kept = _NO_GPU
        """What only new samples change: `listed`, `throttles`, `answered` and `gaps`."""

    def restore_idle(self, owner: Owner, idle: Idle, now: float) -> None:
        since = now - idle.seconds
        busy = None if idle.at_least else since
        self._holdings.records[owner] = HoldingRecord(seen=now, watched=since, judged=now, busy=busy)

    def add(self, gpu: Gpu, now: float, snapshot: Snapshot) -> None:
        self.listed = now
        self._errors.add(gpu, now, snapshot.taken)
        if gpu.sampled in (0.0, self._stamp):  # the same sample again, so that its age shows
            return
        self._stamp = gpu.sampled
        reasons = () if isinstance(gpu.throttle, Reason) else gpu.throttle
        listed, throttles, answered, gaps = self._kept[-4:]
        if reasons != (throttles[-1].reasons if throttles else ()):
            throttles = (*throttles[-MOST_THROTTLES + 1 :], Throttle(snapshot.taken, reasons))
        if new := [name for name, read in _READ if name not in answered and known(read(gpu))]:
            answered |= {*new}
        if known(gpu.unattributed):
            step, shown = int(gpu.unattributed // _GAP_STEP), snapshot.taken + 2 * snapshot.interval
            gaps = (*[one for one in gaps or ((-1, shown),) if one[0] < step], (step, shown))
        interval, complete = snapshot.interval, not gpu.holdings_note
        time = now - max(0.0, snapshot.monotonic - gpu.sampled)
        grown = self._holdings.add(gpu.holdings, time, complete=complete, interval=interval)
        if complete:
            self._growth.add(grown, {(one.pid, one.start) for one in gpu.holdings}, time, interval)
            if gpu.health is Health.OK:
                listed = (gpu, snapshot)
        self._kept = self._kept._replace(listed=listed, throttles=throttles, answered=answered, gaps=gaps)

    def view(self, key: str, timeline: Timeline) -> GpuView:
        utilization, errors = timeline.last_minute(Key(key, "", Metric.UTILIZATION)), self._errors
        records, trend = self._holdings.records, self._growth.trend
        return GpuView(utilization, records, trend, errors.xids, errors.ecc, *self._kept[-4:])
