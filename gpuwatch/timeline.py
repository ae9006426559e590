"""Timeline: values of GPUs, users and processes over the last 24 hours, for graphs.

The times of `Timeline` are wall-clock times, as the frame on screen has them: if the clock is set, what was measured 10
minutes ago stays 10 minutes old. A time for which nothing was measured is a gap, not a 0.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import pairwise, repeat
from math import ceil, floor, inf, nan
from operator import attrgetter
from typing import Final, NamedTuple, Protocol, TypeAlias

from gpuwatch.model import Gpu, Holding, Reading, Reason, Snapshot, known

LEVELS: Final = ((1, 600), (10, 360), (60, 1440))
"""Resolutions of a series: seconds in a slot, and the number of slots that are kept."""
DAY: Final = 24 * 3600
PROCESS_ENDED: Final = 600
"""Seconds without a value after which the series of a process are removed; those of users stay for a day."""
MOST: Final = 4096
"""Series in memory, at most: about 10 KiB each after a day. Beyond that new processes and users have none."""

_SLACK: Final = 60
"""Slots that a resolution may have too many, so that old slots are not deleted one by one."""
_LEAST_STEP: Final = 2.0
"""Seconds from which a difference between the clocks counts as a clock that was set."""

Owner: TypeAlias = tuple[int, int]
"""A process: PID and start time."""


class Metric(StrEnum):
    """What a series measures, in the units of `gpuwatch.model`."""

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
    """Memory of a user or a process on a GPU. Of a user: without processes whose memory is not known."""
    SM = "sm"
    CPU = "cpu"
    RSS = "rss"


class Key(NamedTuple):
    """Name of one series."""

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


def parse_key(words: str) -> Key | None:
    """Return the key of `gpu/owner/metric`; None where it is none."""
    parts = words.rsplit("/", 2)
    if len(parts) != 3 or parts[2] not in _METRICS:
        return None
    return Key(parts[0], parts[1], Metric(parts[2]))


_METRICS: Final = frozenset(Metric)
_PEAKS: Final = frozenset({Metric.USED, Metric.MEMORY})
_OF_GPU: Final = {
    Metric.USED: attrgetter("memory.used"),
    Metric.UTILIZATION: attrgetter("utilization"),
    Metric.POWER: attrgetter("power"),
    Metric.TEMPERATURE: attrgetter("temperature"),
    Metric.SM_CLOCK: attrgetter("sm_clock"),
    Metric.MEMORY_CLOCK: attrgetter("memory_clock"),
}


class Means(Protocol):
    """Means of one minute, as `gpuwatch.minute.Minute` has them."""

    @property
    def at(self) -> float:
        """Wall-clock time at which the minute began."""

    @property
    def values(self) -> Mapping[str, float]:
        """Means by `str(Key)`."""


# -- one series ---------------------------------------------------------------------------------------------------


class Series:
    """Values of one thing over time, at the resolutions of `LEVELS`.

    A slot has the mean of its values; a slot of one second may have the peak instead. The last value counts until the
    next one, and at most until the time that came with it: after that there is a gap. NaN stands for a gap.
    """

    __slots__ = ("_arrays", "_count", "_ends", "_last", "_peak", "_until", "_value")

    def __init__(self, second: int, *, peak: bool = False) -> None:
        """`second` is the earliest one that a value will be put in."""
        self._peak = peak
        self._arrays: list[array[float]] = [array("f") for _ in LEVELS]
        self._ends = [second // width for width, _ in LEVELS]
        """Number of the first slot after each array; the number of a slot is its time divided by its width."""
        self._last = second - 1
        """Second of the last value, or the one before the first value."""
        self._count = 0
        """Number of values in that second."""
        self._value = nan
        self._until = -inf

    @property
    def last(self) -> float:
        """Time until which the series has values."""
        return max(self._last, min(self._until, self._last + DAY))

    def put(self, value: float, time: float, until: float) -> None:
        """Add a value, or NaN where there is none; it counts until `until`, or until the next one."""
        second, fine = floor(time), self._arrays[0]
        if second == self._last and fine:
            if value == value:
                self._count += 1
                if self._count == 1:
                    fine[-1] = value
                elif self._peak:
                    fine[-1] = max(fine[-1], value)
                else:
                    fine[-1] += (value - fine[-1]) / self._count
        else:
            if second <= self._last:
                self._cut(second)  # the clock of the frames went back: nothing is known of a time to come
            elif second > self._last + 1:
                self._fill(self._value, min(second, max(self._last + 1, ceil(min(self._until, second)))))
                self._fill(nan, second)
            fine.append(value)
            self._ends[0] = second + 1
            self._last = second
            self._count = int(value == value)
            if second % LEVELS[1][0] == LEVELS[1][0] - 1:
                self._roll()
        self._value, self._until = value, until

    def stop(self, time: float) -> None:
        """Begin a gap at a time."""
        self._until = min(self._until, time)

    def load(self, minutes: Mapping[int, float]) -> None:
        """Add older means, by the number of the minute, where the series has none."""
        mine, end = self._arrays[-1], self._ends[-1]
        count = max(len(mine), min(end - min(minutes), LEVELS[-1][1]))
        mine[:0] = array("f", repeat(nan, count - len(mine)))
        begin = end - count
        for minute, value in minutes.items():
            if begin <= minute < end and mine[minute - begin] != mine[minute - begin]:
                mine[minute - begin] = value

    def slots(self, level: int, begin: int, end: int, now: int) -> list[float]:
        """Return the slots of a resolution from number `begin` up to `end`; seconds after `now` are gaps.

        Where the resolution does not reach back so far, the next coarser one is repeated.
        """
        mine, after = self._arrays[level], self._ends[level]
        first = after - len(mine)
        found = self._older(level, begin, min(end, first), first, now) if begin < first else []
        low, high = max(begin, first), min(end, after)
        if low < high:
            found += mine[low - first : high - first]
        width = LEVELS[level][0]
        for slot in range(max(begin, after), min(end, floor(self.last) // width + 1)):
            found.append(_mean(self._seconds(slot * width, (slot + 1) * width, now)))
        found.extend(repeat(nan, end - begin - len(found)))
        return found

    def _older(self, level: int, begin: int, end: int, first: int, now: int) -> list[float]:
        """Return slots before the `first` one of a resolution."""
        if level + 1 == len(LEVELS):
            return [nan] * (end - begin)
        ratio = LEVELS[level + 1][0] // LEVELS[level][0]
        # Of a slot that lies only partly before the first value, the mean is that of later values.
        whole = min(first // ratio, self._ends[level + 1])
        coarse = self.slots(level + 1, begin // ratio, max(begin // ratio, min((end - 1) // ratio + 1, whole)), now)
        coarse.append(nan)
        return [coarse[min(slot // ratio - begin // ratio, len(coarse) - 1)] for slot in range(begin, end)]

    def _seconds(self, begin: int, end: int, now: int) -> list[float]:
        """Return the values of some seconds, with the last value as long as it counts."""
        fine, after = self._arrays[0], self._ends[0]
        first = after - len(fine)
        found = list(fine[max(0, begin - first) : max(0, end - first)])
        if end > after and self._value == self._value:
            until = min(end, ceil(min(self._until, end)), now + 1)
            found.extend(repeat(self._value, max(0, until - max(after, begin))))
        return found

    def _fill(self, value: float, end: int) -> None:
        """Fill the seconds before `end`."""
        fine = self._arrays[0]
        while self._last + 1 < end:
            # Whole minutes at once, but for the first: it may contain values.
            stop = min(end, (self._last + 1) // 60 * 60 + 60)
            if stop < end and value != value and not stop % 60 and self._ends[0] % 60 == 0:
                stop = end
            count = stop - self._last - 1
            if count > LEVELS[0][1]:
                del fine[:]
                count = LEVELS[0][1]
            fine.extend(repeat(value, count))
            self._last, self._ends[0] = stop - 1, stop
            self._roll()

    def _roll(self) -> None:
        """Complete the slots of the coarser resolutions, and delete slots that are too old."""
        fine, after = self._arrays[0], self._ends[0]
        first = after - len(fine)
        for level, (width, size) in enumerate(LEVELS):
            mine = self._arrays[level]
            if level:
                slot, end = self._ends[level], after // width
                if slot < end:
                    empty = min(end, first // width) - slot
                    if empty > 0:
                        mine.extend(repeat(nan, min(empty, size)))
                        slot += empty
                    for each in range(slot, end):
                        mine.append(_mean(fine[max(0, each * width - first) : (each + 1) * width - first]))
                    self._ends[level] = end
            if len(mine) > size + _SLACK:
                del mine[: len(mine) - size]

    def _cut(self, second: int) -> None:
        """Delete all values from a second on."""
        for level, (width, _) in enumerate(LEVELS):
            mine, slot = self._arrays[level], second // width
            if slot < self._ends[level]:
                del mine[max(0, len(mine) - (self._ends[level] - slot)) :]
                self._ends[level] = slot
        self._last, self._value, self._until = second - 1, nan, -inf


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

    def owners(self, gpu: str, until: float, span: float) -> list[str]:
        """Return the users (`user:1001`) with memory on a GPU in `span` seconds that end at `until`."""
        with self._lock:
            end = ceil(until - self._shift)
            return sorted(
                key.owner
                for key, series in self._series.items()
                if key.gpu == gpu
                and key.metric is Metric.MEMORY
                and key.owner.startswith("user:")
                and any(value is not None for value in self._read(series, end - span, end, ceil(span / 60)))
            )

    def means(self, since: float, seconds: float) -> dict[Key, float]:
        """Return the means of all series that have any value in `seconds` from the wall-clock time `since` on."""
        with self._lock:
            begin = floor(since - self._shift)
            found = {key: self._read(one, begin, begin + seconds, 1)[0] for key, one in self._series.items()}
        return {key: value for key, value in found.items() if value is not None}

    def _read(self, series: Series, begin: float, end: float, points: int) -> list[float | None]:
        level = 0
        while level + 1 < len(LEVELS) and self._now - begin > LEVELS[level][0] * LEVELS[level][1]:
            level += 1
        width = LEVELS[level][0]
        step = (end - begin) / points / width
        start = begin / width
        bounds = [floor(start + place * step + 1e-6) for place in range(points + 1)]
        slots = series.slots(level, bounds[0], max(bounds[-1], bounds[0]) + 1, self._now)
        means = [_mean(slots[low - bounds[0] : max(low + 1, high) - bounds[0]]) for low, high in pairwise(bounds)]
        return [None if value != value else value for value in means]

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

    def load(self, minutes: Iterable[Means]) -> None:
        """Add older minutes where no values are; they are foreign data, so keys and values that are none are left out.

        Processes that had ended at the last minute are left out.
        """
        found: dict[Key, dict[int, float]] = {}
        for one in minutes:
            minute = floor((one.at - self._shift) / 60 + 0.5)
            for words, value in one.values.items():
                key = parse_key(words)
                if key is not None and 0 <= value < inf:
                    found.setdefault(key, {})[minute] = value
        with self._lock:
            newest = max((max(one) for one in found.values()), default=0)
            for key, values in found.items():
                last = max(values)
                is_process = key.owner.startswith("process:")
                if is_process and (newest - last) * 60 > PROCESS_ENDED and key not in self._series:
                    continue
                series = self._series.get(key)
                if series is None:
                    if len(self._series) >= MOST:
                        continue
                    series = self._series[key] = Series((last + 1) * 60, peak=key.metric in _PEAKS)
                series.load(values)

    def add(self, snapshot: Snapshot, now: float) -> None:
        """Add a snapshot that came at `now`, on a clock that is not set and counts the time of a suspend."""
        with self._lock:
            if self._base is None:
                self._base = round(snapshot.taken - now)
            if abs(snapshot.taken - now - self._base - self._shift) >= _LEAST_STEP:
                self._shift = round(snapshot.taken - now - self._base)
            now += self._base
            self._now = floor(now)
            uids = {one.pid: one.uid for one in snapshot.processes}
            is_new = False
            for gpu in snapshot.gpus:
                if gpu.sampled in (0.0, self._stamps.get(gpu.key, 0.0)):
                    self._repeat(gpu, now)
                else:
                    is_new = True
                    self._stamps[gpu.key] = gpu.sampled
                    self._add_gpu(gpu, snapshot, now, uids)
            if is_new:
                self._add_processes(snapshot, now)
            if self._now - self._cleaned >= 60 or len(self._series) >= MOST or self._now < self._cleaned:
                self._remove_ended()

    def _add_gpu(self, gpu: Gpu, snapshot: Snapshot, now: float, uids: Mapping[int, int | None]) -> None:
        time = now - max(0.0, snapshot.monotonic - gpu.sampled)
        until = time + max(2 * snapshot.interval, 1.0)
        for metric, read in _OF_GPU.items():
            self._put(Key(gpu.key, "", metric), read(gpu), time, until)
        before = self._owners.get(gpu.key, {})
        owners: _Owners = {}
        sums: dict[int | None, float] = {}
        for process, (size, sm) in merge_holdings(gpu.holdings).items():
            keys = before.get(process)
            if keys is None:
                name = process_owner(*process)
                keys = (Key(gpu.key, name, Metric.MEMORY), Key(gpu.key, name, Metric.SM))
            owners[process] = keys
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
            process = one.key
            keys = before.get(process)
            if keys is None:
                name = process_owner(*process)
                keys = (Key("", name, Metric.CPU), Key("", name, Metric.RSS))
            owners[process] = keys
            self._put(keys[0], one.cpu, now, until)
            self._put(keys[1], one.rss, now, until)
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
            series = self._series[key] = Series(floor(time), peak=key.metric in _PEAKS)
        series.put(nan if isinstance(reading, Reason) else reading, time, until)

    def _repeat(self, gpu: Gpu, now: float) -> None:
        """Add a sample that came again, so that its age shows: a figure that was taken back is a gap from now on."""
        for metric, read in _OF_GPU.items():
            series = self._series.get(Key(gpu.key, "", metric))
            if series is not None and not known(read(gpu)):
                series.stop(floor(now) + 1)

    def _remove_ended(self) -> None:
        """Remove series without a value for long; where there are too many, those of all processes that have ended."""
        self._cleaned = self._now
        longest = 0 if len(self._series) >= MOST else PROCESS_ENDED
        self._series = {
            key: one
            for key, one in self._series.items()
            if self._now - one.last <= (longest + 10 if key.owner.startswith("process:") else DAY)
        }
        self._stamps = {key: one for key, one in self._stamps.items() if Key(key, "", Metric.USED) in self._series}
