"""What the tests of strays share: the viewer's process on a GPU, what it runs in, and how long it has been idle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gpuwatch.analysis.stray_facts import DEFAULT_LIMITS, StrayLimits
from gpuwatch.analysis.strays import Stray, find_strays
from gpuwatch.history.history import HistoryView
from gpuwatch.model.snapshot import (
    Container,
    Holding,
    Idle,
    IdleTimes,
    Notebook,
    Pane,
    Process,
    ProcessContext,
    Snapshot,
)
from tests.support import builders
from tests.support.builders import EPOCH

PID = 100
HOUR = 3600.0
LEFT: dict[str, Any] = {"adopted": True, "leader_alive": False, "ppid": 1, "parent": "systemd", "terminal": ""}
"""What the kernel says of a process whose parent and login are gone."""


DOCKER = Container(runtime="docker", id="3f9a1c0b77d2")
TMUX = Pane(program="tmux", session="$1", window="%3", alive=True)
KERNEL = Notebook(kernel="8f2a", path="a.ipynb", left=True)


class Told(HistoryView):
    """A history that says what a test tells it."""

    __slots__ = ("_idles",)

    def __init__(self, idles: dict[tuple[str, int], Idle]) -> None:
        super().__init__()
        self._idles = idles

    def idle(self, gpu_key: str, pid: int, start: int) -> Idle | None:
        return self._idles.get((gpu_key, pid))


def mine(pid: int = PID, around: ProcessContext | None = None, **changes: Any) -> Process:
    """Return a process of the viewer's that started an hour ago, sleeps, and of whose context all was read."""
    fields: dict[str, Any] = {
        "context": around or ProcessContext(),
        "leader_alive": True,
        "state": "sleeping",
        "cpu": 0.0,
    }
    return builders.process(pid, "you", **{**fields, **changes})


def left(around: ProcessContext | None = None, **changes: Any) -> Process:
    """Return one whose parent and login are gone."""
    return mine(around=around, **{**LEFT, **changes})


def held(pid: int = PID, gib: float = 4.0, **changes: Any) -> Holding:
    """Return a holding that runs nothing."""
    return builders.holding(pid, gib, **{"sm": 0, **changes})


def machine(processes: Iterable[Process], *holdings: Iterable[Holding], **changes: Any) -> Snapshot:
    """Return a machine with a GPU for each list of holdings."""
    return builders.snapshot(
        [builders.gpu(index, holdings=each) for index, each in enumerate(holdings)], processes, **changes
    )


def told(*idles: tuple[int, int, float] | tuple[int, int, float, bool]) -> Told:
    """Return a history of (GPU, pid, seconds idle, whether that is a minimum)."""
    found = {}
    for index, pid, seconds, *least in idles:
        found[builders.gpu(index).key, pid] = Idle(seconds, at_least=bool(least and least[0]))
    return Told(found)


def find(
    snapshot: Snapshot,
    history: HistoryView | None,
    limits: StrayLimits = DEFAULT_LIMITS,
    *,
    known: IdleTimes | None = None,
) -> list[Stray]:
    """Return those that are strays."""
    return find_strays(snapshot, history, limits, idle_times=known).strays


def suspects(snapshot: Snapshot, history: HistoryView | None, limits: StrayLimits = DEFAULT_LIMITS) -> list[Process]:
    """Return those that may be strays."""
    return [each.process for each in find_strays(snapshot, history, limits).possible]


def started(seconds: float) -> float:
    """Return when something started that is so old."""
    return EPOCH - seconds
