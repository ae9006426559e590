"""Rule about runs of the viewer's own: it follows them, and notes once that one has ended.

A run that the driver lists no more may compute on without a GPU, be restarted by its launcher, or be hidden by a fault
of the driver: so each process is looked up by PID and start time, and the run has ended once none was alive for `SURE`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import msgspec

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rule import Observation, Rule, RuleContext, joined
from gpuwatch.base import procfs, units
from gpuwatch.base.units import Unit
from gpuwatch.history.history import NO_USE, Use, charged
from gpuwatch.model.snapshot import Process, number

RUN_ENDED: Final = "run ended"
LEAST: Final = 600.0
"""Seconds for which a run must have held a GPU."""
SURE: Final = 10.0
"""Seconds without a living process after which a run has ended."""


class _Run(msgspec.Struct, kw_only=True):
    """Run, as far as it was watched; times are by the clock of the history."""

    key: str
    """`Process.run_key`."""
    name: str
    user: str
    began: float
    """Start of its oldest process."""
    since: float
    """Time from which on it held a GPU, its start where that was not seen; `last` is until when."""
    last: float
    peak: float = 0.0
    """Most bytes that it held at once on all GPUs; 0 where no size is known."""
    use: Use = NO_USE
    gpus: frozenset[int] = frozenset()
    """Indices of the GPUs that it held."""
    living: frozenset[tuple[int, int]] = frozenset()
    """PID and start time of its processes that live, and of its launcher."""
    gone: float | None = None
    """Time at which none of them was alive any more."""


class RunFollower:
    """Follower of the viewer's runs from one snapshot to the next; used from one thread."""

    def __init__(self, is_alive: Callable[[int, int], bool] = procfs.is_living) -> None:
        """`is_alive` returns whether a process of this machine lives, by PID and start time."""
        self.rule = Rule(RUN_ENDED, self._find_ended)
        self._is_alive = is_alive
        self._runs: list[_Run] = []
        self._first: frozenset[tuple[int, int]] | None = None
        """Processes of the first snapshot with GPUs; None before it."""

    def _find_ended(self, context: RuleContext) -> Iterator[Observation]:
        """Add a snapshot, and find the runs that have ended with it."""
        self._add(context)
        now = context.history.now
        for run in self._runs:
            run.living = frozenset(one for one in run.living if self._is_alive(*one))
            run.gone = None if run.living else now if run.gone is None else run.gone
        ended = [run for run in self._runs if run.gone is not None and now - run.gone >= SURE]
        self._runs = [run for run in self._runs if run not in ended]
        yield from (_ended(context, run) for run in ended if run.last - run.since >= LEAST)

    def _add(self, context: RuleContext) -> None:
        snapshot, history = context.snapshot, context.history
        if snapshot.gpus and self._first is None:
            self._first = frozenset(one.key for one in snapshot.processes)
        runs = {
            one.pid: self._run_of(one, snapshot.taken, history.now)
            for one in snapshot.processes
            if one.uid == snapshot.viewer and one.start and one.context is not None and not one.has_ended
        }
        sizes: Counter[str] = Counter()
        for gpu in snapshot.gpus:
            held = [one for one in gpu.holdings if one.pid in runs and one.kind != "G"]
            for one in held:
                run = runs[one.pid]
                sizes[run.key] += int(number(one.memory) or 0)
                run.peak, run.last, run.gpus = max(run.peak, sizes[run.key]), history.now, run.gpus | {gpu.index}
            uses = charged(held, history.charged.get(gpu.key, 0.0), lambda one: runs[one.pid].key)
            for run in self._runs:
                run.use = run.use.plus(uses.get(run.key, NO_USE))

    def _run_of(self, process: Process, taken: float, now: float) -> _Run:
        """Return the run of a process, which goes on where its key has changed: its launcher may have ended."""
        began, run = now - max(0.0, taken - (process.started or taken)), process.run
        same = [one for one in self._runs if process.key in one.living]
        same += [one for one in self._runs if process.run_key == one.key]
        if not same:
            since = began if process.key in (self._first or ()) else now
            name = (run.name if run else "") or process.name
            same = [_Run(key=process.run_key, name=name, user=process.user, began=began, since=since, last=since)]
            self._runs += same
        found = same[0]
        found.key, found.began = process.run_key, min(found.began, began)
        found.living |= {process.key} | ({(run.head, run.head_start)} if run and run.head_start else set())
        return found


def _ended(context: RuleContext, run: _Run) -> Observation:
    gpus = [gpu for gpu in context.snapshot.gpus if gpu.index in run.gpus]
    peak = f"peak {units.gib(run.peak)} GiB" if run.peak else "its memory is not known"
    known = run.use.held - run.use.unknown
    part = f"{100 * run.use.idle / (known or 1.0):.0f} % of {units.long_duration(known)} of GPU time"
    rest = [
        f"pid {one.process.pid} has ended and still holds {units.gib(one.memory)} GiB on GPU {gpu.index}"
        for gpu in context.snapshot.gpus
        for one in context.on(gpu)
        if (one.process.uid, one.process.run_key) == (context.snapshot.viewer, run.key) and one.process.has_ended
    ]
    return Observation(
        gpu=gpus[0] if len(gpus) == 1 else None,
        subject=f"run {run.key}",
        level=Severity.NOTE,
        momentary=True,
        raise_after=1,
        title=f"run {run.name} has ended after {units.steady_duration((run.gone or run.last) - run.began)}",
        evidence=joined(f"{peak} on GPU {units.ranges(run.gpus)}", f"idle {part}" if known else "", *rest),
        value=run.peak or None,
        unit=Unit.BYTES,
        owners=(run.user,),
    )
