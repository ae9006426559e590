"""Timeline: values of GPUs, users and processes over the last 24 hours, for graphs.

The times of `Timeline` are wall-clock times, as the frame on screen has them: if the clock is set, what was measured 10
minutes ago stays 10 minutes old. A time for which nothing was measured is a gap, not a 0.
"""

from __future__ import annotations

import re
import threading
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise, repeat
from math import ceil, floor, nan
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch.model.snapshot import Gpu, Holding, Process, Reading, Reason, Snapshot, known

LEVELS: Final = ((1, 600), (10, 360), (60, 1440))
"""Resolutions of a series: seconds in a slot, and the number of slots that are kept."""
DAY: Final = 24 * 3600
PROCESS_ENDED: Final = 600
"""Seconds without a value after which the series of a process are removed; those of users stay for a day."""
MOST: Final = 4096
"""Series in memory, at most: about 10 KiB each after a day. Beyond that new processes and users have none."""

_CROWDED: Final = MOST * 3 // 4
"""Number of series above which the series of a process are removed as soon as it has ended."""
_SLACK: Final = 60
"""Slots that a resolution may have too many, so that old slots are not deleted one by one."""
_FAR: Final = 1e11
"""Bound on loaded times and values: stored data is untrusted."""
_HUGE: Final = 1e30
_LEAST_STEP: Final = 2.0
"""Seconds from which a difference between the clocks counts as a clock that was set."""

Owner: TypeAlias = tuple[int, int]
"""A process: PID and start time."""


class Metric(StrEnum):
    """Metric of a series, in the units of `gpuwatch.model.snapshot`."""

    USED = "used"
    """Used memory of a GPU in bytes. Of several samples in a second the highest counts; here and in `MEMORY`."""
    UTILIZATION = "utilization"
    POWER = "power"
    TEMPERATURE = "temperature"
    SM_CLOCK = "sm_clock"
    MEMORY_CLOCK = "memory_clock"
    PCIE_RX = "pcie_rx"
    """Bytes per second that a GPU receives; known only for the GPU in focus, as is the next one."""
    PCIE_TX = "pcie_tx"
    MEMORY = "memory"
    """Memory of a user or a process on a GPU; of the GPU itself that of all listed processes.

    Processes whose memory is not known are left out.
    """
    SM = "sm"
    CPU = "cpu"
    RSS = "rss"


class Key(NamedTuple):
    """Identity of one series."""

    gpu: str
    """`Gpu.key`; empty for what a process uses of the host (`cpu`, `rss`)."""
    owner: str
    """Empty for the GPU itself, else `user_owner` or `process_owner`."""
    metric: Metric

    def __str__(self) -> str:
        return f"{self.gpu}/{self.owner}/{self.metric}"


NO_USER: Final = "user:?"
"""Owner of the memory of processes without a visible user."""


def user_owner(uid: int | None) -> str:
    """Return a user as the owner of a series: `user:1001`."""
    return NO_USER if uid is None else f"user:{uid}"


def process_owner(pid: int, start: int) -> str:
    """Return a process as the owner of a series: `process:4711:88211`."""
    return f"process:{pid}:{start}"


def _process_keys(gpu: str, process: Owner, *metrics: Metric) -> tuple[Key, ...]:
    return tuple([Key(gpu, process_owner(*process), metric) for metric in metrics])


def parse_key(words: str) -> Key | None:
    """Return the key of `gpu/owner/metric`; None for other text, such as that of a damaged file."""
    found = _KEY.fullmatch(words)
    return Key(found[1], found[2], Metric(found[3])) if found else None


_KEY: Final = re.compile(rf"([ -~]{{0,96}})/(|user:\?|user:[0-9]{{1,10}}|process:[0-9]+:[0-9]+)/({'|'.join(Metric)})")
_PEAKS: Final = frozenset({Metric.USED, Metric.MEMORY})


READ_GPU: Final[Mapping[Metric, Callable[[Gpu], Reading]]] = {
    Metric.USED: attrgetter("memory.used"),
    Metric.MEMORY: lambda gpu: (
        Reason.NO_SAMPLE if gpu.holdings_note else float(sum(one.memory for one in gpu.holdings if known(one.memory)))
    ),
    Metric.UTILIZATION: attrgetter("utilization"),
    Metric.POWER: attrgetter("power"),
    Metric.TEMPERATURE: attrgetter("temperature"),
    Metric.SM_CLOCK: attrgetter("sm_clock"),
    Metric.MEMORY_CLOCK: attrgetter("memory_clock"),
    Metric.PCIE_RX: attrgetter("pcie_rx"),
    Metric.PCIE_TX: attrgetter("pcie_tx"),
}
"""Reads the newest value of each series of a GPU itself."""


class Minute(msgspec.Struct, frozen=True, kw_only=True):
    """Means of one minute, or of an hour, from which graphs of a whole day are drawn."""

    at: float
    """Wall-clock time at which it began: a multiple of 60."""
    values: dict[str, float] = {}
    """Mean of each series that has values, by `str(Key)`: `GPU-…/user:1001/memory`."""
    users: dict[str, str] = {}
    """Names of the users by owner: `user:1001`."""
    seconds: float = 60.0
    """Seconds of it that were watched."""


class RecordedRun(NamedTuple):
    """Run that held memory of a GPU, as a store has it."""

    uid: int
    key: str
    name: str
    times: tuple[tuple[int, int], ...]
    """Minutes, or hours of older use, in which it held memory: wall-clock starts and seconds."""
    bytes: float
    """Most memory in one of them, as a mean."""


class Extent(NamedTuple):
    """First time of some values of a series, and the lowest, the mean and the highest of them."""

    first: float
    low: float
    mean: float
    high: float


# -- one series ---------------------------------------------------------------------------------------------------


class Series:
    """Values of one thing over time, at the resolutions of `LEVELS`.

    A slot has the mean of its values; a slot of one second may have the peak instead. The last value counts until the
    next one, and at most until the time that came with it: after that there is a gap. NaN is a gap.
    """

    __slots__ = ("_arrays", "_count", "_ends", "_peak", "_until", "_value", "_whole", "first")

    def __init__(self, second: int, *, peak: bool = False, whole: Series | None = None) -> None:
        """`second` is the one in which the first value will be put.

        `whole` is the series that this one is a part of: where only `whole` has values, this one counts as 0.
        """
        self.first: float = second
        """Time before which there is no value."""
        self._whole = whole
        self._peak = peak
        self._arrays: list[array[float]] = [array("f") for _ in LEVELS]
        self._ends = [second // width for width, _ in LEVELS]
        """Number of the first slot after each array; the number of a slot is its time divided by its width."""
        self._count = 0
        """Number of values in the last second."""
        self._value = nan
        self._until: float = second

    @property
    def end(self) -> float:
        """Time at which the last value ends, if no other comes."""
        return max(self._ends[0], self._until)

    def put(self, value: float, time: float, until: float) -> None:
        """Add a value, or NaN where there is none; it counts until `until`, or until the next one."""
        second, fine = floor(time), self._arrays[0]
        after = self._ends[0]
        if second == after - 1 and fine:
            if value == value:
                self._count += 1
                if self._count == 1:
                    fine[-1] = value
                elif self._peak:
                    fine[-1] = max(fine[-1], value)
                else:
                    fine[-1] += (value - fine[-1]) / self._count
        else:
            if second < after:
                self._cut(second)  # the clock of the snapshots went back: nothing is known of the future
            elif second > after:
                self._fill(self._value, ceil(min(self._until, second)))
                self._fill(nan, second)
            if second % LEVELS[1][0] == 0:
                self._roll()
            fine.append(value)
            self._ends[0] = second + 1
            self._count = int(value == value)
        self._value, self._until = value, until

    def stop(self, time: float) -> None:
        """Begin a gap at a time."""
        self._until = min(self._until, time)

    def load(self, minutes: Sequence[int], values: Sequence[float]) -> None:
        """Add means of minutes, by the numbers of these minutes, where the series has none."""
        mine, after = self._arrays[-1], self._ends[-1]
        count = max(len(mine), min(after - min(minutes), LEVELS[-1][1]))
        mine[:0] = array("f", repeat(nan, count - len(mine)))
        self.first = min(self.first, 60 * min(minutes))
        for minute, value in zip(minutes, values, strict=True):
            place = minute - after + count
            if 0 <= place < count and mine[place] != mine[place]:
                mine[place] = value

    def slots(self, level: int, begin: int, end: int, now: int) -> list[float]:
        """Return the slots of a resolution from number `begin` up to `end`; seconds after `now` are gaps.

        Where the resolution does not reach back so far, the slots of the next coarser one are repeated.
        """
        mine, after = self._arrays[level], self._ends[level]
        first = after - len(mine)
        found = self._older(level, begin, min(end, first), first, now) if begin < first else []
        low, high = max(begin, first), min(end, after)
        if low < high:
            found += mine[low - first : high - first]
        width = LEVELS[level][0]
        for slot in range(max(begin, after), min(end, ceil(self.end / width))):
            start, stop = slot * width, slot * width + width
            found.append(self.mean(self._seconds(start, stop, now), 0, start, stop, now))
        found.extend(repeat(nan, end - begin - len(found)))
        return found

    def mean(self, own: Sequence[float], level: int, begin: int, end: int, now: int) -> float:
        """Return the mean of values that were found in some slots of a resolution."""
        mean = _mean(own)
        if self._whole is None or mean != mean:
            return mean
        missing = end - begin - len(own) + _gaps(own)
        if not missing:
            return mean
        others = end - begin - _gaps(self._whole.slots(level, begin, end, now))
        known = end - begin - missing
        return mean * known / max(known, others)

    def extent(self, begin: int, end: int, now: int) -> Extent | None:
        """Return first time, lowest, mean and highest of the values of some seconds, at the finest resolutions."""
        found: list[tuple[float, float, int]] = []
        end = min(end, now + 1)
        for level, (width, _) in enumerate(LEVELS):
            start = max(begin // width, self._ends[level] - len(self._arrays[level]))
            if start < end // width:
                slots = self.slots(level, start, end // width, now)
                found += [(slot * width, one, width) for slot, one in enumerate(slots, start) if one == one]
                end = start * width
        if not found:
            return None
        values = [value for _, value, _ in found]
        mean = sum(value * width for _, value, width in found) / sum(width for *_, width in found)
        return Extent(max(begin, self.first, min(found)[0]), min(values), mean, max(values))

    def _older(self, level: int, begin: int, end: int, first: int, now: int) -> list[float]:
        """Return slots before the `first` one of a resolution, by the next coarser one."""
        found = [nan] * (end - begin)
        if level + 1 < len(LEVELS):
            ratio = LEVELS[level + 1][0] // LEVELS[level][0]
            # Without a coarser slot that ends later: its mean is that of values which came after these.
            whole = range(begin // ratio, min((end - 1) // ratio + 1, first // ratio))
            for number, value in zip(whole, self.slots(level + 1, whole.start, whole.stop, now), strict=False):
                for slot in range(max(begin, number * ratio), min(end, (number + 1) * ratio)):
                    found[slot - begin] = value
        return found

    def _seconds(self, begin: int, end: int, now: int) -> list[float]:
        """Return the values of some seconds, with the last value for as long as it counts."""
        fine, after = self._arrays[0], self._ends[0]
        first = after - len(fine)
        found = list(fine[max(0, begin - first) : max(0, end - first)])
        until = min(end, ceil(min(self._until, end)), now + 1)
        found.extend(repeat(self._value, until - max(after, begin)))
        return found

    def _fill(self, value: float, end: int) -> None:
        """Fill the seconds up to `end` with a value or with gaps."""
        fine = self._arrays[0]
        while (begin := self._ends[0]) < end:
            # A minute at a time: seconds are deleted only when their minute is complete. Gaps need no such care.
            whole = begin % 60 == 0 and value != value
            stop = end if whole else min(end, begin // 60 * 60 + 60)
            if stop - begin >= LEVELS[0][1]:
                del fine[:]
            fine.extend(repeat(value, min(stop - begin, LEVELS[0][1])))
            self._ends[0] = stop
            self._roll()

    def _roll(self) -> None:
        """Complete the slots of the coarser resolutions, and delete slots that are too old."""
        fine, after = self._arrays[0], self._ends[0]
        first = after - len(fine)
        for level, (width, size) in enumerate(LEVELS[1:], 1):
            mine, slot, end = self._arrays[level], self._ends[level], after // width
            if slot < end:
                empty = max(0, min(end, first // width) - slot)
                mine.extend(repeat(nan, min(empty, size)))
                for each in range(slot + empty, end):
                    start, stop = each * width, each * width + width
                    own = fine[max(0, start - first) : max(0, stop - first)]
                    mine.append(self.mean(own, 0, start, stop, stop))
                self._ends[level] = end
        for mine, (_, size) in zip(self._arrays, LEVELS, strict=True):
            if len(mine) > size + _SLACK:
                del mine[: len(mine) - size]

    def _cut(self, second: int) -> None:
        """Delete all values from a second on."""
        self.first = min(self.first, second)
        for level, (width, _) in enumerate(LEVELS):
            mine, end = self._arrays[level], second // width
            surplus = self._ends[level] - end
            if surplus > 0:
                del mine[max(0, len(mine) - surplus) :]
            self._ends[level] = end if surplus > 0 else self._ends[level]
        self._value, self._until = nan, second


def _gaps(values: Sequence[float]) -> int:
    return sum(1 for value in values if value != value)


def _mean(values: Sequence[float]) -> float:
    """Return the mean without gaps; NaN where all are gaps."""
    if not values:
        return nan
    total = sum(values)
    if total == total:
        return total / len(values)
    some = [value for value in values if value == value]
    return sum(some) / len(some) if some else nan


# -- all series ---------------------------------------------------------------------------------------------------


def merge_holdings(holdings: Iterable[Holding]) -> dict[Owner, tuple[Reading, Reading]]:
    """Return bytes and SM by process: a process on several MIG instances of a GPU is listed once for each."""
    merged: dict[Owner, tuple[Reading, Reading]] = {}
    for one in holdings:
        owner, size, sm = (one.pid, one.start), one.memory, one.sm
        other = merged.get(owner)
        if other is not None:
            size = size + other[0] if known(size) and known(other[0]) else Reason.NO_SAMPLE
            sm = max(sm, other[1]) if known(sm) and known(other[1]) else Reason.NO_SAMPLE
        merged[owner] = (size, sm)
    return merged


_Owners: TypeAlias = dict[Owner | int | None, tuple[Key, ...]]
"""Keys of the series of processes, and of users by their uid."""


class Timeline:
    """All series of a machine; `History` adds each snapshot, and any thread reads.

    A value counts until two intervals after it was sampled; then, and while the machine is suspended, there is a gap.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._series: dict[Key, Series] = {}
        self._stamps: dict[str, float] = {}
        """By GPU, the time at which its last sample was made, on the sampler's clock."""
        self._owners: dict[str, _Owners] = {}
        """By GPU (empty for the host), the keys of the processes and users that its last sample had."""
        self._names: dict[str, str] = {}
        """Names of users by owner."""
        self._processes: dict[str, Process] = {}
        """Processes by owner, as they were last seen."""
        self.recorded: Mapping[str, Sequence[RecordedRun]] = {}
        """Runs of the day before by GPU, as the stores have them; replaced, never changed."""
        self._base: float | None = None
        """Wall clock minus the clock of the history at the first snapshot. Times in the series have it added."""
        self._shift = 0
        """Seconds by which the wall clock was set since then."""
        self._now = 0
        """Second of the newest snapshot, as in the series."""
        self._cleaned = 0

    # -- reading ----------------------------------------------------------------------------------------------

    def read(self, key: Key, until: float, span: float, points: int) -> list[float | None]:
        """Return the means of a series over `span` seconds that end at the wall-clock time `until`; None is a gap.

        Point i covers the time from `until - span + i * span / points`. Points after the newest snapshot are None.
        """
        with self._lock:
            series = self._series.get(key)
            if series is None:
                return [None] * points
            end = ceil(until - self._shift)
            return self._read(series, end - span, end, points)

    def extent(self, key: Key, until: float, span: float) -> Extent | None:
        """Return the start and the range of a series' values in `span` seconds that end at `until`; None without any.

        The values are seconds, or minutes where only these are kept.
        """
        with self._lock:
            series = self._series.get(key)
            end = ceil(until - self._shift)
            found = series.extent(ceil(end - span), end, self._now) if series is not None else None
            return found and found._replace(first=found.first + self._shift)

    def owners(self, gpu: str, until: float, span: float) -> list[str]:
        """Return the users (`user:1001`) with memory on a GPU in `span` seconds that end at `until`."""
        with self._lock:
            end = ceil(until - self._shift)
            level = self._level(end - span)
            width = LEVELS[level][0]
            begin = floor((end - span) / width)
            return sorted(
                key.owner
                for key, series in self._series.items()
                if key.gpu == gpu
                and key.metric is Metric.MEMORY
                and key.owner.startswith("user:")
                and any(one == one for one in series.slots(level, begin, ceil(end / width), self._now))
            )

    def processes(self, gpu: str, until: float, span: float) -> list[Process]:
        """Return the processes with memory on a GPU in `span` seconds that end at `until`, as they were last seen.

        One that has ended is kept for `PROCESS_ENDED` seconds.
        """
        with self._lock:
            begin, end = until - self._shift - span, until - self._shift
            return [
                self._processes[key.owner]
                for key, series in self._series.items()
                if key.gpu == gpu
                and key.metric is Metric.MEMORY
                and key.owner in self._processes
                and series.first < end
                and series.end > begin
            ]

    def user_name(self, owner: str) -> str:
        """Return the name of a user (`user:1001`), who may have left; empty where it is not known."""
        return self._names.get(owner, "")

    def means(self, since: float, seconds: float) -> dict[Key, float]:
        """Return the means of all series that have any value in `seconds` from the wall-clock time `since` on."""
        with self._lock:
            begin = floor(since - self._shift)
            found = {key: self._read(one, begin, begin + seconds, 1)[0] for key, one in self._series.items()}
        return {key: value for key, value in found.items() if value is not None}

    def _read(self, series: Series, begin: float, end: float, points: int) -> list[float | None]:
        level = self._level(begin)
        width = LEVELS[level][0]
        start, step = begin / width, (end - begin) / points / width
        bounds = [floor(start + place * step + 1e-6) for place in range(points + 1)]
        first = bounds[0]
        slots = series.slots(level, first, bounds[-1] + 1, self._now)
        # Where a slot is longer than a point, its value is that of each point in it.
        means = [
            series.mean(slots[low - first : high - first], level, low, high, self._now)
            for low, high in ((low, max(low + 1, high)) for low, high in pairwise(bounds))
        ]
        return [None if value != value else value for value in means]

    def _level(self, begin: float) -> int:
        """Return the finest resolution that reaches back to a time."""
        age = self._now + 1 - begin
        return next((level for level, (width, size) in enumerate(LEVELS) if age <= width * size), len(LEVELS) - 1)

    def last_minute(self, key: Key) -> tuple[float | None, ...]:
        """Return the 60 seconds that end with the newest snapshot's."""
        with self._lock:
            series = self._series.get(key)
            if series is None:
                return (None,) * 60
            found = series.slots(0, self._now - 59, self._now + 1, self._now)
        total = sum(found)
        return tuple(found) if total == total else tuple([None if one != one else one for one in found])

    # -- writing ----------------------------------------------------------------------------------------------

    def load(self, minutes: Iterable[Minute]) -> None:
        """Add older minutes where there are no values yet; invalid times, keys and values are left out.

        Processes that had ended before the last minute are left out, unless they have a series.
        """
        keys: dict[str, Key | None] = {}
        found: dict[Key, tuple[array[int], array[float]]] = {}
        names: dict[str, str] = {}
        for one in minutes:
            if not 0 <= one.at < _FAR:
                continue
            minute = round((one.at - self._shift) / 60)
            for words, value in one.values.items():
                if words not in keys and len(keys) < 2 * MOST:
                    keys[words] = parse_key(words)
                key = keys.get(words)
                if key is not None and 0 <= value < _HUGE:
                    times, values = found.setdefault(key, (array("q"), array("d")))
                    times.append(minute)
                    values.append(value)
            names.update(one.users)
        newest = max((max(times) for times, _ in found.values()), default=0)
        with self._lock:
            owners = {key.owner for key in found}
            self._names = {owner: name for owner, name in names.items() if owner in owners} | self._names
        for key, (times, values) in sorted(found.items(), key=lambda one: one[0].owner):  # GPUs before their users
            with self._lock:  # one by one: all of a day take 0.1 s, and the dashboard reads meanwhile
                series = self._series.get(key)
                if series is None:
                    last = max(times)
                    ended = key.owner.startswith("process:") and (newest - last) * 60 > PROCESS_ENDED
                    if ended or len(self._series) >= MOST:
                        continue
                    series = self._new(key, (last + 1) * 60)
                series.load(times, values)

    def add(self, snapshot: Snapshot, now: float) -> None:
        """Add a snapshot that came at `now`, on a clock that is not set and counts the time of a suspend."""
        with self._lock:
            if self._base is None:
                self._base = round(snapshot.taken - now)
            if abs(snapshot.taken - now - self._base - self._shift) >= _LEAST_STEP:
                self._shift = round(snapshot.taken - now - self._base)
            now += self._base
            self._now = floor(now)
            if not 0 <= self._now - self._cleaned < 60 or len(self._series) > _CROWDED:
                self._remove_ended()
            uids = {one.pid: one.uid for one in snapshot.processes}
            is_new = False
            for gpu in snapshot.gpus:
                if gpu.sampled in (0.0, self._stamps.get(gpu.key, 0.0)):
                    for metric, read in READ_GPU.items():
                        series = self._series.get(Key(gpu.key, "", metric))
                        if series is not None and not known(read(gpu)):  # a figure that was taken back
                            series.stop(floor(now) + 1)
                else:
                    is_new = True
                    self._stamps[gpu.key] = gpu.sampled
                    self._add_gpu(gpu, snapshot, now, uids)
            if is_new:
                self._add_processes(snapshot, now)

    def _add_gpu(self, gpu: Gpu, snapshot: Snapshot, now: float, uids: Mapping[int, int | None]) -> None:
        time = now - max(0.0, snapshot.monotonic - gpu.sampled)
        until = time + max(2 * snapshot.interval, 1.0)
        for metric, read in READ_GPU.items():
            self._put(Key(gpu.key, "", metric), read(gpu), time, until)
        before = self._owners.get(gpu.key, {})
        owners: _Owners = {}
        sums: dict[int | None, float] = {}
        for process, (size, sm) in merge_holdings(gpu.holdings).items():
            keys = owners[process] = before.get(process) or _process_keys(gpu.key, process, Metric.MEMORY, Metric.SM)
            self._put(keys[0], size, time, until)
            self._put(keys[1], sm, time, until)
            if known(size):
                uid = uids.get(process[0])
                sums[uid] = sums.get(uid, 0.0) + size
        for uid, total in sums.items():
            keys = owners[uid] = before.get(uid) or (Key(gpu.key, user_owner(uid), Metric.MEMORY),)
            self._put(keys[0], total, time, until)
        self._note(gpu.key, owners, time, is_complete=not gpu.holdings_note)

    def _add_processes(self, snapshot: Snapshot, now: float) -> None:
        until = now + max(2 * snapshot.interval, 1.0)
        before = self._owners.get("", {})
        owners: _Owners = {}
        for one in snapshot.processes:
            keys = owners[one.key] = before.get(one.key) or _process_keys("", one.key, Metric.CPU, Metric.RSS)
            self._put(keys[0], one.cpu, now, until)
            self._put(keys[1], one.rss, now, until)
            self._processes[keys[0].owner] = one
            if one.uid is not None and one.user:
                self._names[user_owner(one.uid)] = one.user
        self._note("", owners, now, is_complete=True)

    def _note(self, gpu: str, owners: _Owners, time: float, *, is_complete: bool) -> None:
        """Remember the owners of a sample, and begin a gap for those that are not there any more."""
        if is_complete:
            before = self._owners.get(gpu, {})
            for owner in before.keys() - owners.keys():
                for key in before[owner]:
                    if key in self._series:
                        self._series[key].stop(floor(time))
        self._owners[gpu] = owners

    def _put(self, key: Key, reading: Reading, time: float, until: float) -> None:
        series = self._series.get(key)
        if series is None:
            if isinstance(reading, Reason) or len(self._series) >= MOST:
                return
            series = self._new(key, floor(time))
        series.put(nan if isinstance(reading, Reason) else reading, time, until)

    def _new(self, key: Key, second: int) -> Series:
        """Add a series; a user's memory is a part of the used memory."""
        whole = self._series.get(Key(key.gpu, "", Metric.USED)) if key.owner.startswith("user:") else None
        series = self._series[key] = Series(second, peak=key.metric in _PEAKS, whole=whole)
        return series

    def _remove_ended(self) -> None:
        """Remove series that ended long ago; if there are too many, remove those of all ended processes."""
        self._cleaned = self._now
        process = 0 if len(self._series) > _CROWDED else PROCESS_ENDED
        self._series = {
            key: one
            for key, one in self._series.items()
            if self._now - one.end <= (process if key.owner.startswith("process:") else DAY)
        }
        owners = {key.owner for key in self._series}
        self._names = {owner: name for owner, name in self._names.items() if owner in owners}
        self._processes = {owner: one for owner, one in self._processes.items() if owner in owners}
        gpus = {key.gpu for key in self._series}
        self._stamps = {gpu: stamp for gpu, stamp in self._stamps.items() if gpu in gpus}
        self._owners = {gpu: owners for gpu, owners in self._owners.items() if gpu in gpus}
