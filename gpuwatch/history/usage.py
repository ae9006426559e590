"""What each person held and used since gpuwatch began: memory times time, and the part of it that was idle.

Each new sample of a GPU charges the time since its last one to whoever it lists: a sample says what was used since the
one before. Where samples are missing nothing is made up: one charges two and a half intervals at most.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Final, NamedTuple, TypeVar

from gpuwatch.model import Gpu, Holding, Reason, Snapshot

K = TypeVar("K", bound=Hashable)

MOST_PEOPLE: Final = 1000
"""People whose use is kept; of more, those who were seen longest ago are forgotten."""
PATIENCE: Final = 2.5
"""Intervals that one sample charges at most."""


class Use(NamedTuple):
    """What was held over some time, of one person or one run. It adds up over GPUs: two for an hour are 2 GPU-hours."""

    held: float = 0.0
    """GPU-seconds in which it had memory on a GPU."""
    busy: float = 0.0
    """GPU-seconds of these in which one of its processes there was seen to run a kernel (SM over 0)."""
    unknown: float = 0.0
    """GPU-seconds of these in which nothing says whether it ran one."""
    memory: float = 0.0
    """Byte-seconds."""
    idle: float = 0.0
    """Byte-seconds of these held by processes that were seen to run nothing (SM 0)."""
    unsized: float = 0.0
    """GPU-seconds in which one of its processes had no figure of its memory: the byte-seconds are too few by that."""

    def plus(self, other: Use) -> Use:
        """Give both together."""
        return Use(
            self.held + other.held,
            self.busy + other.busy,
            self.unknown + other.unknown,
            self.memory + other.memory,
            self.idle + other.idle,
            self.unsized + other.unsized,
        )


NO_USE = Use()


class Meter:
    """Says how much time a sample of a GPU charges."""

    def __init__(self) -> None:
        self._stamps: dict[str, float] = {}

    def seconds(self, gpu: Gpu, interval: float) -> float:
        """Give the seconds since the last sample; 0 for the first, and for one that is given again."""
        if not gpu.sampled:
            return 0.0
        before = self._stamps.get(gpu.key)
        self._stamps[gpu.key] = gpu.sampled
        return 0.0 if before is None else min(max(0.0, gpu.sampled - before), PATIENCE * interval)


def charged(holdings: Iterable[Holding], seconds: float, whose: Callable[[Holding], K]) -> dict[K, Use]:
    """Give what so many seconds of the holdings on one GPU come to, by whom each one belongs to.

    Of several holdings of one owner the time counts once: it is busy where one of them is, and unknown where none is
    and one of them has no figure. The memory adds up.
    """
    sums: dict[K, tuple[int, float, float, bool]] = {}
    for one in holdings:
        size, sm = one.memory, one.sm
        # The greatest of these is what the owner did: 0 is idle, 1 is not known, 2 is busy.
        did = 1 if isinstance(sm, Reason) else 2 if sm > 0 else 0
        unsized = isinstance(size, Reason)
        held = 0.0 if isinstance(size, Reason) else size
        idle = 0.0 if did else held
        owner = whose(one)
        before = sums.get(owner)
        if before is not None:
            did, held, idle = max(did, before[0]), held + before[1], idle + before[2]
            unsized = unsized or before[3]
        sums[owner] = (did, held, idle, unsized)
    return {
        owner: Use(
            seconds,
            seconds if did == 2 else 0.0,
            seconds if did == 1 else 0.0,
            held * seconds,
            idle * seconds,
            seconds if unsized else 0.0,
        )
        for owner, (did, held, idle, unsized) in sums.items()
    }


class Usage:
    """Adds up what people hold and use; used from one thread."""

    def __init__(self, most: int = MOST_PEOPLE) -> None:
        self.totals: Mapping[int, Use] = {}
        """By uid, since the first snapshot; replaced, never changed."""
        self._most = most
        self._meter = Meter()

    def add(self, snapshot: Snapshot) -> None:
        """Take in a snapshot. What nobody visible owns is nobody's use."""
        times = [(gpu, self._meter.seconds(gpu, snapshot.interval)) for gpu in snapshot.gpus]
        times = [(gpu, seconds) for gpu, seconds in times if seconds and gpu.holdings]
        if not times:
            return
        owners = {one.pid: one.uid for one in snapshot.processes}
        news: dict[int, Use] = {}
        for gpu, seconds in times:
            for uid, use in charged(gpu.holdings, seconds, lambda one: owners.get(one.pid)).items():
                if uid is not None:
                    news[uid] = news[uid].plus(use) if uid in news else use
        if not news:
            return
        # Those who are here go to the end: what stands first was seen longest ago.
        totals = {uid: use for uid, use in self.totals.items() if uid not in news}
        totals |= {uid: self.totals[uid].plus(use) if uid in self.totals else use for uid, use in news.items()}
        for uid in list(totals)[: max(0, len(totals) - self._most)]:
            del totals[uid]
        self.totals = totals
