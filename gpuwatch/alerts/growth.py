"""When a GPU will be full, at the speed at which its processes took memory in the last minutes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from math import ceil
from typing import Final

import msgspec

from gpuwatch import units
from gpuwatch.alerts import Severity, Unit
from gpuwatch.alerts.rules import GROWN, NAMED, Limits, Observation, holder_name, room_of
from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Process, Snapshot, known

FULL: Final = "time to full"

_LATER: Final = 1.5
"""How many times a limit the time must be before an alert steps down or is cleared."""


def time_to_full(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Judge in how many seconds each GPU's memory is full, where it grows and grows (`history.Trend`).

    Nothing is raised where memory is near its limit already: another rule says so. Not judged are GPUs whose memory is
    not theirs alone (unified), or is divided (MIG), and those of which there is no minute of samples yet.
    """
    people: dict[int, Process] | None = None
    for gpu in snapshot.gpus:
        room, trend = room_of(gpu.memory), history.trend(gpu.key)
        if room is None or trend is None or gpu.health is not Health.OK or gpu.memory.unified or gpu.mig is True:
            continue
        free, usable = room
        seconds = free / trend.speed if trend.speed > 0 else None
        near = 100.0 * free / usable < limits.memory_critical
        keeps = None if seconds is None else Severity.CRITICAL if near else _severity(seconds, limits, _LATER)
        seen = Observation(
            rule=FULL,
            gpu=gpu.key,
            index=gpu.index,
            level=None if seconds is None or near or not trend.steady else _severity(seconds, limits, 1.0),
            keeps=keeps,
            raise_after=limits.samples,
            raise_for=limits.full_for,
            clear_after=limits.samples,
            clear_for=limits.full_for,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index} does not fill up",
            value=seconds,
            unit=Unit.SECONDS,
            least_is_worst=True,
            how="its memory no longer grows that fast",
        )
        if keeps is not None and seconds is not None:
            people = people if people is not None else {one.pid: one for one in snapshot.processes}
            growers = _growers(gpu, history)
            seen = msgspec.structs.replace(
                seen,
                title=f"GPU {gpu.index} full in about {_about(seconds)}",
                evidence=_evidence(growers, people, trend.speed, room),
                pids=tuple(growers),
                owners=_users(growers, people),
            )
        yield seen


def _severity(seconds: float, limits: Limits, times: float) -> Severity | None:
    if seconds <= limits.full_critical * times:
        return Severity.CRITICAL
    return Severity.WARNING if seconds <= limits.full_warning * times else None


def _about(seconds: float) -> str:
    """Say a predicted time no more exactly than it is known: in minutes, below one in tens of seconds."""
    if seconds > 55:
        return units.long_duration(60 * max(1, round(seconds / 60)))
    return units.long_duration(10 * max(1, ceil(seconds / 10)))


def _growers(gpu: Gpu, history: HistoryView) -> dict[int, int]:
    """Give the bytes that processes took in the last minute, the most first; not those that came in that minute."""
    found: dict[int, int] = {}
    for one in gpu.holdings:
        grown = history.growth(gpu.key, one.pid, one.start)
        if grown is not None and grown >= GROWN and known(one.memory) and grown < one.memory:
            found[one.pid] = grown
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _evidence(
    growers: Mapping[int, int], people: Mapping[int, Process], speed: float, room: tuple[float, float]
) -> str:
    """Say who grew by how much in the last minute; where nobody stands out, how fast the whole grows."""
    by_name: Counter[str] = Counter()
    for pid, grown in growers.items():
        by_name[holder_name(pid, people.get(pid))] += grown
    parts = [f"{name} grew {units.gib(grown)} GiB/min" for name, grown in by_name.most_common(NAMED)]
    parts = parts or [f"grows {units.gib(60 * speed)} GiB/min"]
    free, usable = room
    return " · ".join([*parts, f"{units.gib(free)} of {units.gib(usable)} GiB free"])


def _users(growers: Mapping[int, int], people: Mapping[int, Process]) -> tuple[str, ...]:
    by_user: Counter[str] = Counter()
    for pid, grown in growers.items():
        process = people.get(pid)
        if process is not None and process.user:
            by_user[process.user] += grown
    return tuple([user for user, _ in by_user.most_common()])
