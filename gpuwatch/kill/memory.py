"""Memory that ended processes held: freed, partly freed, not yet freed, or still held by other processes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from gpuwatch.base.units import size
from gpuwatch.kill.outcome import End, Outcome, format_pids
from gpuwatch.model.snapshot import Gpu, Snapshot, known

FRESH_SAMPLES: Final = 2
"""Samples of each GPU after the exit before its memory is compared: the first may have begun before the exit."""

MEMORY_SECONDS: Final = 5.0
"""Seconds in which memory may still become free."""

_ENOUGH: Final = 0.95
"""Part of a holding that counts as all of it when freed: the driver rounds, and others allocate meanwhile."""

_SHARED_MEMORY: Final = ("GH200", "GB200", "GB300", "GB10", "Thor", "Orin", "Jetson")
"""Machines whose GPU and CPU share memory: the driver's value may not change."""


class _GpuMemory(msgspec.Struct):
    """Memory of one GPU in bytes, None where not known: held by the processes, used before their end and after it."""

    before: Gpu
    held: int | None
    after: Gpu
    samples: int = 0
    """Samples since the end."""

    @property
    def freed(self) -> int | None:
        """Bytes that became free: at most those that were held, since others allocate and free at the same time."""
        before, after = self.before.memory.used, self.after.memory.used
        if not known(before) or not known(after):
            return None
        drop = max(0, int(before) - int(after))
        return drop if self.held is None else min(drop, self.held)


class FreedMemory:
    """Memory on the GPUs of some processes, from their first signal to the samples after their end."""

    def __init__(self, snapshot: Snapshot, pids: Collection[int], gpus: Collection[str]) -> None:
        """Read the memory that these processes hold, and the used memory of their GPUs (by key)."""
        self._gpus: dict[str, _GpuMemory] = {}
        for gpu in snapshot.gpus:
            mine = [one.memory for one in gpu.holdings if one.pid in pids]
            if mine or gpu.key in gpus:
                held = sum(int(one) for one in mine if known(one)) if mine and all(map(known, mine)) else None
                self._gpus[gpu.key] = _GpuMemory(gpu, held, gpu)

    def begin(self, snapshot: Snapshot) -> None:
        """Count samples from this snapshot on, the last one before the end."""
        self.observe(snapshot)
        for memory in self._gpus.values():
            memory.samples = 0

    def observe(self, snapshot: Snapshot) -> None:
        for gpu in snapshot.gpus:
            if memory := self._gpus.get(gpu.key):
                memory.samples += gpu.sampled > memory.after.sampled
                memory.after = gpu

    @property
    def must_fall(self) -> bool:
        """Whether freed memory must show in the driver's values: not where CPU and GPU share memory."""
        gpus = [memory.before for memory in self._gpus.values()]
        return not any(gpu.memory.unified or any(name in gpu.name for name in _SHARED_MEMORY) for gpu in gpus)

    @property
    def is_fresh(self) -> bool:
        """Whether there are enough samples since the end."""
        return bool(self._gpus) and all(one.samples >= FRESH_SAMPLES for one in self._gpus.values())

    @property
    def is_free(self) -> bool:
        """Whether all memory that the processes held is known to be free now."""
        free = [one.freed is not None and one.freed >= _ENOUGH * (one.held or 0) for one in self._gpus.values()]
        return self.is_fresh and self.must_fall and all(free)

    @property
    def listed(self) -> frozenset[int]:
        """PIDs that the driver lists on these GPUs now."""
        return frozenset(holding.pid for one in self._gpus.values() for holding in one.after.holdings)

    def sentence(self, outcome: Outcome, holders: Sequence[int] = ()) -> str:
        """Return an outcome and the freed memory in one sentence; `holders` are PIDs that still hold memory.

        The memory is left out where CPU and GPU share memory, and where a figure is missing.
        """
        if outcome.end not in (End.EXITED, End.ZOMBIE):
            return outcome.sentence
        if holders:
            return f"{outcome.sentence}; still held by {format_pids(holders)}"
        gpus = [one for one in self._gpus.values() if one.held != 0]
        if not (gpus and self.is_fresh and self.must_fall) or any(one.freed is None for one in gpus):
            return outcome.sentence
        freed = sum(one.freed or 0 for one in gpus)
        held = sum((one.freed or 0) if one.held is None else one.held for one in gpus)
        if freed == 0:
            return f"{outcome.sentence}, memory not yet freed"
        amount = size(freed) if freed >= _ENOUGH * held else f"{size(freed)} of {size(held)}"
        indices = ", ".join(map(str, sorted(one.before.index for one in gpus)))
        return f"{outcome.sentence}, {amount} freed on {'GPU' if len(gpus) == 1 else 'GPUs'} {indices}"
