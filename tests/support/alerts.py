"""Engine, history and monitor that a test feeds one snapshot after another, and people with declared shares.

A source follows a script, and a reader collects the frames of the monitor between them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Empty, SimpleQueue
from typing import Any

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.engine import Changes, Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Observation, Rule, RuleContext
from gpuwatch.alerts.rules import RULES
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.declared.facts import Share
from gpuwatch.history.history import GpuView, History, HistoryView, XidCounts
from gpuwatch.model.snapshot import (
    Basis,
    Declaration,
    Declared,
    Gpu,
    Health,
    Idle,
    Kind,
    Limit,
    Margin,
    Process,
    Reason,
    Snapshot,
)
from gpuwatch.monitor import Frame, Monitor, Sink
from tests.support.builders import EPOCH, GIB, USABLE_GIB, at, filled, gpu, holding, process, snapshot


class Bench:
    """An engine with its history; the reader's clock is at 5000 when the sampler's is at 1000.

    It raises from the first sample on, unless it is given limits that say otherwise.
    """

    def __init__(self, limits: Limits | None = None, rules: Sequence[Rule] = RULES) -> None:
        self.history = History()
        self.watched: set[tuple[str, str]] = set()
        """(rule, subject) of the conditions that the engine had before the last snapshot."""
        self.engine = Engine(limits or Limits(quiet=0), rules=(Rule("probe", self._probe), *rules))
        self.moment = -1.0
        self.step = 0.0
        """How far the wall clock was set, in seconds."""
        self.last = Changes()

    def feed(
        self,
        *gpus: Gpu,
        people: Iterable[Process] = (),
        seconds: float = 1.0,
        fresh: bool = True,
        **changes: Any,
    ) -> Changes:
        """Return snapshot `seconds` after the last; GPUs in trouble keep their stamp, and all do where not `fresh`."""
        self.moment += seconds
        base = snapshot(gpus, people)
        if fresh:
            moved = at(base, self.moment).gpus
            gpus = tuple(new if new.health is Health.OK else old for new, old in zip(moved, gpus, strict=True))
        shown = at(base, self.moment, gpus=gpus, **changes)
        now = 5000.0 + self.moment
        self.last = self.engine.update(shown, self.history.add(shown, now), now, self.wall)
        return self.last

    def _probe(self, context: RuleContext) -> Iterable[Observation]:
        self.watched = set(context.watched or ())
        return ()

    @property
    def wall(self) -> float:
        """Return the wall-clock time."""
        return EPOCH + self.moment + self.step

    def restore(self, *alerts: Alert) -> None:
        """Let the engine go on with alerts, now."""
        self.engine.restore(alerts, 5000.0 + self.moment, self.wall)

    def feed_free(self, *percents: float) -> list[tuple[str, ...]]:
        """Return one GPU's free percent at each second; returns what changed at each."""
        return [words(self.feed(filled(percent))) for percent in percents]

    def of(self, rule: str) -> list[Alert]:
        """Return the alerts of a rule that hold."""
        return [alert for alert in self.last.active if alert.rule == rule]


def words(changes: Changes) -> tuple[str, ...]:
    """Return what was raised and cleared."""
    raised = tuple(f"+{alert.severity.name.lower()}" for alert in changes.raised)
    return raised + tuple("cleared" for _ in changes.cleared)


def observed(
    name: str, shown: Snapshot, history: HistoryView | None = None, limits: Limits | None = None
) -> list[Observation]:
    """Return what the rule of a name finds in one snapshot."""
    (rule,) = [one for one in RULES if one.name == name]
    return list(rule.find(RuleContext(shown, history or HistoryView(), limits or Limits())))


def uuid(index: int = 0) -> str:
    """Return the UUID of the GPU that `gpu(index)` builds."""
    return gpu(index).uuid


def cap(
    limit: float,
    *on: int,
    margin: Margin = Margin.FRAMEWORK,
    scope: str = "",
    collective: bool = False,
    **changes: Any,
) -> Declared:
    """Return a declaration of `limit` GiB on the GPUs, GPU 0 where none is given."""
    limits = {uuid(index): round(limit * GIB) for index in on or (0,)}
    fields: dict[str, Any] = {
        "channel": "per_process_gpu_memory_fraction",
        "where": "train.py",
        "line": 12,
        "text": "per_process_gpu_memory_fraction = 0.4",
        "kind": Kind.CAP,
        "basis": Basis.BYTES,
        "value": limit * GIB,
        "limits": limits,
        "scope": scope,
        "effective": True,
    }
    return Declared(
        declarations=(Declaration(**{**fields, **changes}),),
        limits=tuple(
            Limit(gpu=key, bytes=size, declaration=0, scope=scope, margin=margin) for key, size in limits.items()
        ),
        collective=collective,
    )


def part(fraction: float, *on: int, **changes: Any) -> Declared:
    """Return a declared fraction of the GPUs."""
    return cap(fraction * USABLE_GIB, *on, basis=Basis.TOTAL, value=fraction, **changes)


def feed(
    bench: Bench, declared: Declared | None, *sizes: float | Reason, pid: int = 100, **changes: Any
) -> list[tuple[str, ...]]:
    """Let one process of ada's on GPU 0 hold so many GiB at each second; returns what changed at each."""
    person = process(pid, declared=declared)
    return [words(bench.feed(card((pid, size)), people=[person], **changes)) for size in sizes]


def card(*held: tuple[int, float | Reason], index: int = 0, **changes: Any) -> Gpu:
    """Return a GPU with holdings of (pid, GiB)."""
    holdings = [
        holding(pid, memory=size) if isinstance(size, Reason) else holding(pid, size)  # as the list has it
        for pid, size in held
    ]
    return gpu(index, used_gib=changes.pop("used_gib", 40.0), holdings=holdings, **changes)


def overshooting(declared: Declared, size: float = 50.0) -> Bench:
    """Return a bench with one overshoot that was raised."""
    bench = Bench()
    feed(bench, declared, *[size] * 11)
    assert len(bench.of(OVERSHOOT)) == 1
    return bench


def only(bench: Bench, rule: str) -> Alert:
    """Return the one alert of a rule that holds."""
    (alert,) = bench.of(rule)
    return alert


class Past(HistoryView):
    """History that says what a test has set."""

    __slots__ = ("_answered", "_ecc", "_idle", "_xids")

    def __init__(
        self,
        idle: Mapping[tuple[int, int], Idle] | None = None,
        ecc: tuple[int, float | None] | None = None,
        xids: XidCounts | None = None,
        answered: Iterable[str] = (),
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        self._idle, self._ecc, self._xids, self._answered = idle or {}, ecc, xids or {}, frozenset(answered)

    def idle(self, gpu_key: str, pid: int, start: int) -> Idle | None:
        return next((one for (index, who), one in self._idle.items() if (uuid(index), who) == (gpu_key, pid)), None)

    def gpu(self, key: str) -> GpuView:
        return super().gpu(key)._replace(ecc=self._ecc, xids=self._xids, answered=self._answered)


def severities_of(rule: str, *gpus: Gpu, people: Iterable[Process] = (), **changes: Any) -> list[Severity | None]:
    """Return the severities that a rule finds in a snapshot."""
    return [one.level for one in observed(rule, snapshot(gpus, people, **changes))]


LONG = 30.0
"""Seconds after which a condition that does not come about fails its test."""
PATIENCE = 0.01


class Script:
    """A source that gives what it was handed, then None; an exception it raises, a callable it calls first."""

    def __init__(self, steps: Iterable[Snapshot | Exception | Callable[[], None]] = ()) -> None:
        self.steps: SimpleQueue[Snapshot | Exception | Callable[[], None]] = SimpleQueue()
        for step in steps:
            self.steps.put(step)
        self.intervals: list[float] = []
        self.shares: Sequence[Share] = ()
        self.focus: str | None = None
        self.asked = threading.Event()
        self.poked = threading.Event()
        self.closed = threading.Event()
        self.threads: set[int] = set()

    def next(self, timeout: float) -> Snapshot | None:
        self.threads.add(threading.get_ident())
        self.asked.set()
        try:
            step = self.steps.get(timeout=timeout)
        except Empty:
            return None
        if isinstance(step, Exception):
            raise step
        if isinstance(step, Snapshot):
            return step
        step()
        return None

    def set_interval(self, seconds: float) -> None:
        self.threads.add(threading.get_ident())
        self.intervals.append(seconds)

    def poke(self) -> None:
        self.threads.add(threading.get_ident())
        self.poked.set()

    def set_shares(self, shares: Sequence[Share]) -> None:
        self.threads.add(threading.get_ident())
        self.shares = shares
        self.poked.set()

    def set_focus(self, gpu: str | None) -> None:
        self.threads.add(threading.get_ident())
        self.focus = gpu

    def close(self) -> None:
        self.closed.set()


class Reader:
    """Collects frames; waits for as many as a test needs."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.queue: SimpleQueue[Frame] = SimpleQueue()

    def __call__(self, frame: Frame) -> None:
        self.queue.put(frame)

    def take(self, count: int) -> list[Frame]:
        """Wait for so many frames."""
        return [self.queue.get(timeout=LONG) for _ in range(count)]


def full(second: float) -> Snapshot:
    """Return one GPU with next to nothing free, so many seconds after the first."""
    return at(snapshot([gpu(0, holdings=[holding(7, 78)])]), second)


def watching(source: Script, publish: Callable[[Frame], object], *sinks: Sink, engine: Engine | None = None) -> Monitor:
    """Start a watch whose clock goes on by a second a frame, and which raises from the first snapshot on."""
    moments = iter(range(5000, 10_000))
    watch = Monitor(
        source,
        publish,
        engine=engine or Engine(Limits(quiet=0)),
        sinks=sinks,
        clock=lambda: float(next(moments)),
        wall=lambda: EPOCH,
        patience=PATIENCE,
    )
    watch.start()
    return watch


def ended(watch: Monitor) -> bool:
    """Wait for the end of a watch."""
    watch.join(LONG)
    return not watch.is_alive()
