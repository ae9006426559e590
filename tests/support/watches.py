"""A source that follows a script, a reader that collects frames, and a watch between them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from queue import Empty, SimpleQueue

from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.declared.facts import Share
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.monitor import Frame, Monitor, Sink
from tests.support.builders import EPOCH, at, gpu, holding, snapshot

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
