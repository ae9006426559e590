"""Inputs of the search for strays besides a snapshot: the viewer, the limits, and idle times from other processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from gpuwatch.analysis.stray_facts import StrayLimits
from gpuwatch.config.types import Config
from gpuwatch.kill.policy import Policy
from gpuwatch.model.live import LATE, SERVICE, read_status
from gpuwatch.model.snapshot import Idle, IdleTimes, Snapshot, merge_idle, to_idle_times

OLDEST: Final = 60.0
"""Age in seconds up to which idle times are used, at most; one interval and `LATE` where that is shorter."""
_DEMO_SECONDS: Final = 2400.0


def caller(environ: Mapping[str, str] = os.environ) -> int:
    """Return the uid whose strays are listed: under sudo the caller's."""
    return Policy.of_this_process(read_only=False, environ=environ).may_end


def stray_limits(config: Config) -> StrayLimits:
    return StrayLimits(idle_after=config.alerts.idle_after, idle_memory=config.alerts.idle_memory)


def idle_times(
    snapshot: Snapshot,
    environ: Mapping[str, str] = os.environ,
    warn: Callable[[str], None] = lambda words: None,
    service: Path = SERVICE,
) -> IdleTimes | None:
    """Return the idle times that a gpuwatch of the user and the machine's service know; None where none of them runs.

    Each counts from its own start. In the demo they are as if a watch had begun 40 minutes earlier. `warn` is
    called with one line about a damaged file.
    """
    if snapshot.demo:
        return _demo_idle_times(snapshot)
    uids = dict.fromkeys((os.geteuid(), caller(environ)))
    found = [one for uid in uids if (one := read_idle(uid=uid, warn=warn)) is not None]
    if (published := read_idle(service, uid=0, warn=warn)) is not None:
        found.append(published)
    merged: dict[tuple[str, int, int], Idle] = {}
    for times in found:
        for key, idle in times.items():
            merged[key] = merge_idle(merged[key], idle) if key in merged else idle
    return merged if found else None


def read_idle(
    folder: Path | None = None,
    *,
    uid: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    warn: Callable[[str], None] = lambda words: None,
) -> IdleTimes | None:
    """Return the idle times that a user's gpuwatch knew a moment ago (default: ours), by GPU key, PID and start time.

    None if no gpuwatch writes the file; empty if its last snapshot is too old. A process that has just begun to
    compute may still be called idle: for one interval and `LATE`, and about a minute at most.
    """
    found = read_status(folder, uid=uid, clock=clock, warn=warn)
    if found is None or found.pid == os.getpid():  # our own history has more
        return None
    if clock() - found.monotonic > min(found.interval, OLDEST) + LATE:
        return {}
    return to_idle_times(found.resting)


def _demo_idle_times(snapshot: Snapshot) -> IdleTimes:
    from gpuwatch.sources.demo import script

    seconds = _DEMO_SECONDS + snapshot.taken - snapshot.since
    resting = {actor.pid for actor in script().processes if actor.load.high == 0}
    mine = {one.key for one in snapshot.processes if one.uid == snapshot.viewer and one.pid in resting}
    held = [(gpu.key, one.pid, one.start) for gpu in snapshot.gpus for one in gpu.holdings]
    return {key: Idle(seconds, at_least=True) for key in held if key[1:] in mine}
