"""The thread between a source and its readers."""

from __future__ import annotations

import dataclasses
import threading
import time
from queue import SimpleQueue

import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.model import Snapshot, SourceState, encode
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.ui.theme import UNICODE
from gpuwatch.ui.widgets.gpus import level, sparkline
from tests.support.builders import EPOCH, gpu
from tests.support.watches import LONG, PATIENCE, Reader, Script, ended, full, watching


def test_each_snapshot_becomes_one_numbered_frame_with_history_and_alerts() -> None:
    source, reader = Script(full(second) for second in range(4)), Reader()
    watch = watching(source, reader)
    frames = reader.take(4)
    watch.stop()
    assert [frame.number for frame in frames] == [0, 1, 2, 3]
    assert [frame.received for frame in frames] == [5000.0, 5001.0, 5002.0, 5003.0]
    assert frames[3].history.utilization(gpu(0).key)[-4:] == (50, 50, 50, 50)
    assert [len(frame.alerts) for frame in frames] == [0, 0, 1, 1]
    assert [len(frame.raised) for frame in frames] == [0, 0, 1, 0]
    assert frames[2].raised[0].severity is Severity.CRITICAL
    assert watch.newest is frames[3]
    assert ended(watch)
    assert watch.failure is None
    assert source.closed.is_set()


def test_a_suspend_of_the_machine_is_a_gap_in_the_graph() -> None:
    """The monotonic clock stands still meanwhile; only the one that counts suspends tells."""
    moments, slept, reader = iter(range(5000, 10_000)), iter([0.0, 0.0, 3600.0, 3600.0]), Reader()
    source = Script(full(second) for second in range(4))
    watch = Monitor(
        source, reader, clock=lambda: float(next(moments)), slept=lambda: next(slept), wall=lambda: EPOCH, patience=0.01
    )
    watch.start()
    frames = reader.take(4)
    watch.stop()
    assert ended(watch)
    graphs = [sparkline(one.history.utilization(gpu(0).key), 60, 59, UNICODE) for one in frames]
    block, gap = level(50, UNICODE), UNICODE.gap
    assert graphs[1] == gap * 58 + block * 2
    assert graphs[3] == gap * 58 + block * 2, "of the time before, an hour ago, nothing is in the last minute"
    assert [one.received for one in frames] == [5000.0, 5001.0, 5002.0, 5003.0]


def test_a_frame_does_not_change() -> None:
    reader = Reader()
    watch = watching(Script([full(0)]), reader)
    (frame,) = reader.take(1)
    watch.stop()
    with pytest.raises(dataclasses.FrozenInstanceError):
        frame.number = 5  # type: ignore[misc]


def test_a_source_that_has_ended_is_asked_again_and_does_not_spin() -> None:
    class Ended(Script):
        def __init__(self) -> None:
            super().__init__()
            self.asks: list[float] = []

        def next(self, timeout: float) -> Snapshot | None:
            self.asks.append(time.monotonic())
            if len(self.asks) == 20:
                self.asked.set()
            return None

    source = Ended()
    watch = watching(source, Reader())
    assert source.asked.wait(LONG)
    watch.stop()
    assert ended(watch)
    assert source.asks[19] - source.asks[0] > 19 * PATIENCE / 2


def test_requests_reach_the_source_in_its_own_thread() -> None:
    source = Script()
    watch = watching(source, Reader())
    watch.set_interval(2.5)
    watch.poke()
    assert source.poked.wait(LONG)
    watch.stop()
    assert source.intervals == [2.5]
    assert source.threads == {watch.ident}


def test_a_slow_reader_misses_nothing_and_alerts_go_on() -> None:
    gate = threading.Event()
    frames: SimpleQueue[Frame] = SimpleQueue()

    def slow(frame: Frame) -> None:
        assert gate.wait(LONG)
        frames.put(frame)

    watch = watching(Script(full(second) for second in range(5)), slow)
    gate.set()
    got = [frames.get(timeout=LONG) for _ in range(5)]
    watch.stop()
    assert [len(frame.raised) for frame in got] == [0, 0, 1, 0, 0]


def test_a_closing_reader_ends_the_watch_quietly() -> None:
    def closing(_frame: Frame) -> None:
        raise RuntimeError("event loop is closed")

    source = Script(full(second) for second in range(3))
    watch = watching(source, closing)
    assert ended(watch)
    assert watch.failure is None
    assert source.closed.is_set()
    assert watch.newest is not None
    assert watch.newest.number == 0


@pytest.mark.parametrize("error", [ValueError("no \x1b[31mway"), RuntimeError("broken")])
def test_a_failing_source_is_told_in_a_last_frame(error: Exception) -> None:
    source, reader = Script([*(full(second) for second in range(3)), error]), Reader()
    watch = watching(source, reader)
    *_, last = reader.take(4)
    assert ended(watch)
    assert watch.failure is error
    assert source.closed.is_set()
    assert last.snapshot.state is SourceState.ENDED
    assert last.snapshot.gpus == full(2).gpus
    assert type(error).__name__ in last.snapshot.words
    assert last.snapshot.words.isprintable()
    assert len(last.alerts) == 1
    assert last.number == 3
    assert watch.newest is last
    assert encode(last.snapshot)


def test_a_source_that_fails_at_once_is_told_too() -> None:
    reader = Reader()
    watch = watching(Script([OSError("no sampler")]), reader)
    (last,) = reader.take(1)
    assert ended(watch)
    assert last.snapshot.state is SourceState.ENDED
    assert (last.number, last.alerts) == (0, ())


def test_a_failing_request_is_told_too() -> None:
    class Broken(Script):
        def poke(self) -> None:
            raise OSError("broken pipe")

    reader = Reader()
    watch = watching(Broken(), reader)
    watch.poke()
    (last,) = reader.take(1)
    assert "broken pipe" in last.snapshot.words
    assert ended(watch)


def test_a_reader_that_always_fails_does_not_hide_why() -> None:
    def failing(_frame: Frame) -> None:
        raise KeyError("nobody")

    watch = watching(Script([full(0)]), failing)
    assert ended(watch)
    assert isinstance(watch.failure, KeyError)
    assert watch.newest is not None
    assert watch.newest.snapshot.state is SourceState.ENDED


def test_what_fails_because_of_stop_is_no_failure() -> None:
    source, reader = Script(), Reader()
    watch = watching(source, reader)

    def fail_after_stop() -> None:
        watch.stop()
        raise OSError("closed")

    source.steps.put(fail_after_stop)
    assert ended(watch)
    assert watch.failure is None
    assert watch.newest is None


def test_stop_does_not_wait_for_a_source_that_hangs() -> None:
    release = threading.Event()

    def hang() -> None:
        assert release.wait(LONG)

    source = Script([hang])
    watch = watching(source, Reader())
    assert source.asked.wait(LONG)
    watch.stop()
    assert source.closed.is_set()
    assert watch.daemon
    release.set()
    assert ended(watch)
