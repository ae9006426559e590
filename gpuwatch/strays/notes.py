"""What the rows of a list of strays do not say, in words: that there is none, and of whom or what it cannot be told."""

from __future__ import annotations

from gpuwatch.model import Gpu, Health, Snapshot
from gpuwatch.strays.cases import has_unsure
from gpuwatch.strays.finding import Judged
from gpuwatch.strays.stray import USUAL, Tending
from gpuwatch.units import long_duration

NONE = "none of your processes is a stray"
_BY = "by `gpuwatch watch` or in the dashboard"


def notes(judged: Judged, snapshot: Snapshot, watched: float | None, tending: Tending = USUAL) -> list[str]:
    """Say it in a sentence each, the same wherever the list is shown.

    `watched` is for how many seconds idle times have been counted, None where a `gpuwatch watch` counts them.
    """
    strays, possible, blind = judged
    said = [] if strays else ["none found" if possible or blind else NONE]
    said += [f"GPU {gpu.index} could not be judged: {_why(gpu, snapshot)}" for gpu in blind]
    if possible:
        pids = ", ".join(str(one.process.pid) for one in possible)
        one = len(possible) == 1
        who = "1 of your processes may be a stray" if one else f"{len(possible)} of your processes may be strays"
        idle = "whether it is idle" if one else "whether they are idle"
        takes = long_duration(tending.quiet_after)
        said.append(f"{who} ({pids}): {idle} is not known yet; that takes {takes} of watching, {_BY}")
    elif not strays and watched is not None and watched < tending.idle_after:
        takes = long_duration(tending.idle_after)
        said.append(f"who has been idle for {takes} is not known yet: that takes as long of watching, {_BY}")
    if not snapshot.searched:
        said.append("not all processes were looked into: one that NVML does not list may be missing here")
    return said


def _why(gpu: Gpu, snapshot: Snapshot) -> str:
    """Say why nothing can be said of who is idle on a GPU."""
    if gpu.health is not Health.OK:
        return ", ".join(filter(None, (gpu.health.value, gpu.words)))
    if gpu.unreliable:
        return "its list of processes makes no sense"
    if has_unsure(gpu, snapshot):
        return "the driver may mean processes outside of this container"
    return gpu.holdings_note or "its figures are old"
