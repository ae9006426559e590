"""Rows of the process list, joined from a snapshot and its history, and their order.

Pure functions, shared by the dashboard and by `gpuwatch --once`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gpuwatch.model.fields import PROCESS, Field, Row, SortValue
from gpuwatch.model.shares import LimitUsage, limit_usages
from gpuwatch.model.snapshot import IdleTimes, Presence, Process, Snapshot

if TYPE_CHECKING:  # a single snapshot has no history, and need not wait for its import
    from gpuwatch.history.history import HistoryView

T = TypeVar("T")


def rows(
    snapshot: Snapshot,
    view: HistoryView | None = None,
    idle_times: IdleTimes | None = None,
    *,
    usages: Sequence[LimitUsage] | None = None,
) -> list[Row]:
    """Return a row for each holding, in the order of the GPUs and of the driver's lists.

    `idle_times` are for a snapshot without a history. `usages` are those of the snapshot's limits, where somebody has
    found them.
    """
    owners = {process.pid: process for process in snapshot.processes}
    together = {
        (usage.gpu, min(usage.pids, key=lambda pid: (owners[pid].start, pid))): usage.held
        for usage in (limit_usages(snapshot) if usages is None else usages)
        if usage.scope and usage.complete
    }
    joined = []
    for gpu in snapshot.gpus:
        for holding in gpu.holdings:
            process = owners.get(holding.pid) or Process(pid=holding.pid, start=holding.start, presence=Presence.GONE)
            key = (gpu.key, holding.pid, holding.start)
            idle = view.idle(*key) if view else (idle_times or {}).get(key)
            growth = view.growth(gpu.key, holding.pid, holding.start) if view else None
            mine = process.uid is not None and process.uid == snapshot.viewer
            age = None if process.started is None else max(0.0, snapshot.taken - process.started)
            joined.append(Row(gpu, holding, process, mine, idle, growth, age, together.get((gpu.uuid, holding.pid))))
    return joined


class StableOrder(Generic[T]):
    """Order of a list that is sorted every second: small changes of a figure move no item.

    An item moves only after its value has changed by more than a twentieth: nobody can read a list whose rows move
    each second.
    """

    TOLERANCE = 0.05

    def __init__(
        self,
        fields: Mapping[str, Field[T]],
        identity: Callable[[T], Hashable],
        tie: Callable[[T], Any],
        *,
        is_last: Callable[[T], bool] = lambda _: False,
    ) -> None:
        """Sort by one of `fields`; `identity` identifies an item over time, and `is_last` items stay last."""
        self._fields, self._identity, self._tie, self._is_last = fields, identity, tie, is_last
        self._by = ""
        self._values: dict[Hashable, float] = {}
        """Values of the last order, by which items are sorted until they change by more than the tolerance."""

    def sort(self, unsorted: Iterable[T], by: str, *, reverse: bool = False) -> list[T]:
        """Sort items; the order is stable for as long as the column stays the same.

        Items without a value stay last either way, and ties are in the order of `tie`.
        """
        before = self._values if by == self._by else {}
        self._by, self._values = by, {}

        def key(one: T) -> SortValue:
            missing, value = self._fields[by].order(one)
            if missing or isinstance(value, str) or self._is_last(one):
                return missing or self._is_last(one), value
            identity = self._identity(one)
            last = before.get(identity, value)
            self._values[identity] = value if abs(value - last) > self.TOLERANCE * abs(last) else last
            return missing, self._values[identity]

        keyed = [(key(one), one) for one in sorted(unsorted, key=self._tie)]
        present = [pair for pair in keyed if not pair[0][0]]
        present.sort(key=lambda pair: pair[0][1], reverse=reverse)
        return [one for _, one in present] + [one for (missing, _), one in keyed if missing]


def process_order() -> StableOrder[Row]:
    """Return an order of the process list; ties are in the order of GPU and PID."""
    return StableOrder(PROCESS, lambda row: row.key, lambda row: (row.gpu.index, row.holding.pid, row.holding.start))
