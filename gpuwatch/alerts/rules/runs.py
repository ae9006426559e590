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
"""Seconds from the start of a run to the last time it held a GPU: what was shorter is not noted."""
SURE: Final = 10.0
"""Seconds without a living process after which a run has ended."""


class _Run(msgspec.Struct, kw_only=True, eq=False):
    """Run, as far as it was watched; times are by the clock of the history."""

    key: str
    """`Process.run_key`."""
    name: str
    user: str
    began: float
    """Start of its oldest process."""
    last: float
    """Time at which it held a GPU the last time."""
    peak: float = 0.0
    """Most bytes that it held at once on all GPUs; 0 where no size is known."""
    use: Use = NO_USE
    gpus: frozenset[int] = frozenset()
    """Indices of the GPUs that it held."""
    gone: float | None = None
    """Time at which none of its processes was alive any more."""


class RunFollower:
    """Follower of the viewer's runs from one snapshot to the next; used from one thread."""

    def __init__(self, is_alive: Callable[[int, int], bool] = procfs.is_living) -> None:
        """`is_alive` returns whether a process of this machine lives, by PID and start time."""
        self.rule = Rule(RUN_ENDED, self._find_ended)
        self._is_alive = is_alive
        self._runs: list[_Run] = []
        self._living: dict[tuple[int, int], _Run] = {}
        """Runs by PID and start time of their processes that live, and of their launchers."""

    def _find_ended(self, context: RuleContext) -> Iterator[Observation]:
        """Add a snapshot, and find the runs that have ended with it."""
        seen, now = self._add(context), context.history.now
        self._living = {one: run for one, run in self._living.items() if one in seen or self._is_alive(*one)}
        living, ended = {*self._living.values()}, []
        for run in self._runs:
            run.gone = None if run in living else now if run.gone is None else run.gone
            if run.gone is not None and now - run.gone >= SURE:
                ended.append(run)
        self._runs = [run for run in self._runs if run not in ended]
        yield from (_ended(context, run) for run in ended if run.last - run.began >= LEAST)

    def _add(self, context: RuleContext) -> set[tuple[int, int]]:
        """Add what runs hold; return the processes that the driver has just listed: these live."""
        snapshot, history, seen = context.snapshot, context.history, set[tuple[int, int]]()
        runs = {
            one.pid: self._run_of(one, snapshot.taken, history.now)
            for one in snapshot.processes
            if one.uid == snapshot.viewer and one.start and one.context is not None and not one.has_ended
        }
        sizes: Counter[_Run] = Counter()
        for gpu in snapshot.gpus:
            held = [one for one in gpu.holdings if one.pid in runs and one.kind != "G"]
            for one in held:
                run = runs[one.pid]
                sizes[run] += int(number(one.memory) or 0)
                run.peak, run.last = max(run.peak, sizes[run]), history.now
            seconds = history.charged.get(gpu.key, 0.0)
            for run, use in charged(held, seconds, lambda one: runs[one.pid]).items():
                run.use, run.gpus = run.use.plus(use), run.gpus | {gpu.index}
            seen |= {(one.pid, one.start) for one in held if seconds}
        return seen

    def _run_of(self, process: Process, taken: float, now: float) -> _Run:
        """Return the run of a process, which goes on where its key has changed: its launcher may have ended."""
        found, run = self._living.get(process.key), process.run
        if found is None:
            began = now - max(0.0, taken - (process.started or taken))
            found = next((one for one in self._runs if one.key == process.run_key), None)
            if found is None:
                name = (run.name if run else "") or process.name
                found = _Run(key=process.run_key, name=name, user=process.user, began=began, last=began)
                self._runs.append(found)
            found.began = min(found.began, began)
            self._living[process.key] = found
        found.key = process.run_key
        if run is not None and run.head_start:
            self._living.setdefault((run.head, run.head_start), found)
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
