"""Minute: summary of one minute, from which graphs, events and reports of a whole day are made.

The recorder keeps 25 hours of minutes in the store, and a recording has one at the start of each block.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import floor
from typing import Final, NamedTuple

import msgspec

from gpuwatch.alerts.alert import TROUBLE, Alert
from gpuwatch.history import NO_USE, ChargeTimer, HistoryView, IdleTimes, Use, charged
from gpuwatch.model import Snapshot, number
from gpuwatch.timeline import user_owner

MINUTE: Final = 60.0
MOST_ALERTS: Final = 1000
"""Alerts in a minute, at most, of those that hold and of those that ended."""


class GpuName(NamedTuple):
    """Name of a GPU."""

    number: int
    """NVML's index, as last seen."""
    name: str
    total: float | None
    """Bytes of memory; None where they are not known."""


class IdleTime(NamedTuple):
    """Time for which a process has not run a kernel on a GPU: an entry of `history.IdleTimes`."""

    gpu: str
    """`Gpu.key`."""
    pid: int
    start: int
    seconds: float
    at_least: bool


class Minute(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Summary of one minute."""

    at: float
    """Wall-clock time at which it began: a multiple of 60."""
    watched: dict[str, float] = {}
    """Seconds in which each GPU was watched, by `Gpu.key`."""
    values: dict[str, float] = {}
    """Mean of each series that has values, by `str(timeline.Key)`: `GPU-…/user:1001/memory`."""
    use: dict[str, dict[str, Use]] = {}
    """Use by `Gpu.key` and owner: `user:1001`, `user:?` for owners who are not visible, and empty for all together."""
    gpus: dict[str, GpuName] = {}
    """Names of the GPUs by `Gpu.key`."""
    users: dict[str, str] = {}
    """Names of the users by owner: `user:1001`."""
    alerts: tuple[Alert, ...] = ()
    """Alerts that hold at its end."""
    ended: tuple[Alert, ...] = ()
    """Alerts that ended in it."""
    idle: tuple[IdleTime, ...] = ()
    """Idle times at its end."""

    @property
    def seconds(self) -> float:
        """Seconds in which any GPU was watched."""
        return max(self.watched.values(), default=0.0)


class MinuteMaker:
    """Maker of minutes from frames; used from one thread."""

    def __init__(self) -> None:
        self._timer = ChargeTimer()
        self._at: float | None = None
        """Start of the present minute."""
        self._last: tuple[Snapshot, HistoryView, tuple[Alert, ...], IdleTimes | None] | None = None
        """Facts of the last frame of the present minute."""
        self._watched: dict[str, float] = {}
        self._use: dict[str, dict[str, Use]] = {}
        self._ended: list[Alert] = []

    def add(
        self,
        snapshot: Snapshot,
        history: HistoryView,
        alerts: tuple[Alert, ...] = (),
        cleared: Iterable[Alert] = (),
        kept: IdleTimes | None = None,
    ) -> Minute | None:
        """Add the facts of a new frame; return the minute before, where the frame is the first one after it.

        `alerts`, `cleared` and `kept` are as in `monitor.Frame`. A minute without frames is not made.
        """
        at = floor(snapshot.taken / MINUTE) * MINUTE
        made = None
        if at != self._at:
            # Before this frame's own time is charged: nearly all of it belongs to its minute.
            made = self.finish()
            self._at, self._watched, self._use, self._ended = at, {}, {}, []
        self._charge(snapshot)
        self._ended += [one for one in cleared if one.rule != TROUBLE][: max(0, MOST_ALERTS - len(self._ended))]
        self._last = (snapshot, history, alerts, kept)
        return made

    def _charge(self, snapshot: Snapshot) -> None:
        uids = {one.pid: one.uid for one in snapshot.processes}
        for gpu in snapshot.gpus:
            seconds = self._timer.seconds(gpu, snapshot.interval)
            if not seconds:
                continue
            self._watched[gpu.key] = self._watched.get(gpu.key, 0.0) + seconds
            if not gpu.holdings:
                continue
            sums = self._use.setdefault(gpu.key, {})
            uses = charged(gpu.holdings, seconds, lambda one: user_owner(uids.get(one.pid)))
            for owner, use in {**uses, "": charged(gpu.holdings, seconds, lambda _: "")[""]}.items():
                sums[owner] = sums.get(owner, NO_USE).plus(use)

    def finish(self) -> Minute | None:
        """Return the present minute, as far as it was added; None where there is none."""
        if self._at is None or self._last is None:
            return None
        snapshot, history, alerts, kept = self._last
        values = history.timeline.means(self._at, MINUTE)
        gpus = {one.key: GpuName(one.index, one.name, number(one.memory.total)) for one in snapshot.gpus}
        users = {user_owner(one.uid): one.user for one in snapshot.processes if one.uid is not None and one.user}
        return Minute(
            at=self._at,
            watched=self._watched,
            values={str(key): float(f"{value:.4g}") for key, value in values.items()},
            use=self._use,
            gpus=gpus,
            users=users,
            alerts=tuple([one for one in alerts if one.rule != TROUBLE][:MOST_ALERTS]),
            ended=tuple(self._ended),
            idle=tuple(_idle_times(snapshot, history, kept or {})),
        )


def _idle_times(snapshot: Snapshot, history: HistoryView, kept: IdleTimes) -> Iterator[IdleTime]:
    for gpu in snapshot.gpus:
        for one in gpu.holdings:
            found = [history.idle(gpu.key, one.pid, one.start), kept.get((gpu.key, one.pid, one.start))]
            times = [idle for idle in found if idle is not None]
            if times:
                yield IdleTime(gpu.key, one.pid, one.start, *max(times))
