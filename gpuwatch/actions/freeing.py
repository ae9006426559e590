"""Whether the memory of processes that have ended came free: what the driver said before, and what it says after."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from gpuwatch.actions.outcome import GpuMemory
from gpuwatch.model import Gpu, Snapshot, known

FRESH: Final = 2
"""Samples of each GPU taken after the exit before its memory is judged: the first may have begun before it."""

MEMORY_PATIENCE: Final = 5.0
"""Seconds in which memory that is not free yet may still become free."""

ENOUGH_FREED: Final = 0.95
"""Of the holding: the driver rounds its figures, and others allocate meanwhile."""

_NO_PROMISE: Final = ("GH200", "GB200", "GB300", "GB10", "Thor", "Orin", "Jetson")
"""Machines whose GPU and CPU share memory: the driver's figure may stay as it was."""


class Freeing:
    """Judges by snapshots, which are handed to it, what came free on the GPUs that some processes held."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[Gpu, int | None]] = {}
        self._fresh: dict[str, tuple[float, int]] = {}
        self._latest: Snapshot | None = None
        self._exited = 0.0

    def remember(self, snapshot: Snapshot, pids: Collection[int], gpus: Collection[str]) -> None:
        """Keep what these processes hold, and what is used on each of their GPUs (by key), before a signal."""
        self._latest = snapshot
        for gpu in snapshot.gpus:
            mine = [one.memory for one in gpu.holdings if one.pid in pids]
            if mine or gpu.key in gpus:
                held = sum(int(memory) for memory in mine if known(memory))
                self._before[gpu.key] = (gpu, held if mine and all(map(known, mine)) else None)

    def begin(self, snapshot: Snapshot, now: float) -> None:
        """Begin to judge: they have exited by `now`, and `snapshot` is the last from before that was known."""
        self._latest, self._exited = snapshot, now
        self._fresh = {gpu.key: (gpu.sampled, 0) for gpu in snapshot.gpus if gpu.key in self._before}

    def observe(self, snapshot: Snapshot) -> None:
        """Take a snapshot from after the exit."""
        self._latest = snapshot
        for gpu in snapshot.gpus:
            sampled, count = self._fresh.get(gpu.key, (gpu.sampled, 0))
            if gpu.sampled > sampled and gpu.key in self._before:
                self._fresh[gpu.key] = (gpu.sampled, count + 1)

    def fresh(self) -> bool:
        """Whether there are samples enough to judge by."""
        return bool(self._fresh) and all(count >= FRESH for _, count in self._fresh.values())

    def late(self, now: float) -> bool:
        """Whether the memory had time enough to come free, or its samples to come."""
        return now >= self._exited + MEMORY_PATIENCE

    @property
    def promised(self) -> bool:
        """Whether the figure of the driver is bound to fall."""
        return _promised(gpu for gpu, _ in self._before.values())

    @property
    def all_free(self) -> bool:
        """Whether all that was held is free now."""
        return self.fresh() and all(
            gpu.freed is not None and gpu.freed >= ENOUGH_FREED * (gpu.held or 0) for gpu in self.gpus()
        )

    def gpus(self) -> list[GpuMemory]:
        """Each GPU before and after, as far as it is known by now; none without samples enough."""
        if not self.fresh() or self._latest is None:
            return []
        now = {gpu.key: gpu for gpu in self._latest.gpus}
        return [
            GpuMemory(gpu.index, held, _used(gpu), _used(now[key]) if key in now else None)
            for key, (gpu, held) in self._before.items()
        ]

    def listed(self) -> frozenset[int]:
        """PIDs that the driver lists on these GPUs now."""
        gpus = self._latest.gpus if self._latest else ()
        return frozenset(one.pid for gpu in gpus if gpu.key in self._before for one in gpu.holdings)


def _used(gpu: Gpu) -> int | None:
    return int(gpu.memory.used) if known(gpu.memory.used) else None


def _promised(gpus: Iterable[Gpu]) -> bool:
    return not any(gpu.memory.unified or any(name in gpu.name for name in _NO_PROMISE) for gpu in gpus)
