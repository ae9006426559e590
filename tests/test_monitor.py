"""The monitor: the thread between a source and its readers, its sinks, and requests of people meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from gpuwatch.alerts.alert import TROUBLE, Alert, Attention, Mute, Severity
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.declared.facts import Share
from gpuwatch.model.snapshot import Idle, IdleTimes, Snapshot, SourceState, encode
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.ui.draw.gpus import level, sparkline
from gpuwatch.ui.draw.theme import UNICODE
from tests.support.alerts import LONG, PATIENCE, Reader, Script, ended, full, watching
from tests.support.builders import EPOCH, at, gpu, holding, snapshot


def test_each_snapshot_becomes_one_numbered_frame_with_history_and_alerts() -> None:
    source, reader = Script(full(second) for second in range(4)), Reader()
    watch = watching(source, reader)
    frames = reader.take(4)
    watch.stop()
    assert [frame.number for frame in frames] == [0, 1, 2, 3]
    assert [frame.received for frame in frames] == [5000.0, 5001.0, 5002.0, 5003.0]
    assert frames[3].history.gpu(gpu(0).key).utilization[-4:] == (50, 50, 50, 50)
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
    graphs = [sparkline(one.history.gpu(gpu(0).key).utilization, 60, 59, UNICODE) for one in frames]
    block, gap = level(50, UNICODE), " "
    assert graphs[1] == gap * 58 + block * 2
    assert graphs[3] == gap * 58 + block * 2, "of the time before, an hour ago, nothing is in the last minute"
    assert [one.received for one in frames] == [5000.0, 5001.0, 5002.0, 5003.0]


def test_idle_times_that_another_gpuwatch_counted_go_on() -> None:
    held = gpu(0, holdings=[holding(11, sm=0)])
    source = Script([Snapshot(), *(at(snapshot([held], []), second) for second in range(2))])
    moments, reader = iter(range(5000, 10_000)), Reader()
    known: list[Snapshot] = []

    def idle_times(first: Snapshot) -> IdleTimes:
        known.append(first)
        return {(held.key, 11, 11): Idle(2400.0, at_least=True)}

    watch = Monitor(source, reader, known_idle=idle_times, clock=lambda: float(next(moments)), slept=lambda: 3600.0)
    watch.start()
    frames = reader.take(3)
    watch.stop()
    assert ended(watch)
    assert [one.history.idle(held.key, 11, 11) for one in frames[1:]] == [
        Idle(2400.0, at_least=True),
        Idle(2401.0, at_least=True),
    ]
    assert [len(one.gpus) for one in known] == [1]


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
    watch.set_focus("GPU-1")
    watch.set_shares([Share(user="ada", share=0.5)])
    watch.poke()
    assert source.poked.wait(LONG)
    watch.stop()
    assert (source.intervals, source.focus, source.shares) == ([2.5], "GPU-1", [Share(user="ada", share=0.5)])
    assert source.threads == {watch.ident}


def test_a_request_wakes_a_source_that_waits() -> None:
    class Wakeable(Script):
        def __init__(self) -> None:
            super().__init__()
            self.asks = 0

        def next(self, timeout: float) -> Snapshot | None:
            self.asks += 1
            return super().next(timeout)

        def wake(self) -> None:
            self.steps.put(lambda: None)

    source = Wakeable()
    watch = Monitor(source, Reader())
    watch.start()
    assert source.asked.wait(LONG)
    watch.poke()
    assert source.poked.wait(LONG)
    watch.stop()
    watch.attend(Attention())  # ends the wait
    assert ended(watch)
    assert source.asks <= 4  # not four times a second


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


# -- sinks ---------------------------------------------------------------------------------------------------------


class Sink:
    """A sink that keeps what it is told, and fails as it is asked to."""

    def __init__(self, name: str = "sink") -> None:
        self.name = name
        self.words = ""
        self.error: Exception | None = None
        self.frames: list[Frame] = []

    @property
    def trouble(self) -> str:
        return self.words

    def take(self, frame: Frame) -> None:
        self.frames.append(frame)
        if self.error is not None:
            raise self.error

    def close(self, seconds: float) -> None:
        raise AssertionError("the monitor closes no sink")


def titles(frame: Frame, rule: str = TROUBLE) -> list[str]:
    return [alert.title for alert in frame.alerts if alert.rule == rule]


def stepping(*sinks: Sink, engine: Engine | None = None) -> tuple[Monitor, Callable[[float], Frame], Reader]:
    """Return a watch, and what gives it the snapshot of a second and waits for the frame."""
    source, reader = Script(), Reader()
    watch = watching(source, reader, *sinks, engine=engine)

    def step(second: float) -> Frame:
        source.steps.put(full(second))
        (frame,) = reader.take(1)
        return frame

    return watch, step, reader


def stopped(watch: Monitor) -> bool:
    watch.stop()
    return ended(watch) and watch.failure is None


def test_what_troubles_a_sink_is_an_alert_until_it_goes() -> None:
    sink = Sink("events log")
    watch, step, _ = stepping(sink)
    assert step(0).alerts == ()
    sink.words = "events log: no space left on device"
    frame = step(1)
    (alert,) = frame.alerts
    assert (alert.rule, alert.subject, alert.host, alert.title) == (TROUBLE, "events log", "box3", sink.words)
    assert (alert.severity, alert.raised, len(alert.id)) == (Severity.WARNING, EPOCH, 10)
    assert frame.raised == ()
    sink.words = "events log: no space left on device; 3 events wait"
    frame = step(2)
    # The critical alert that came later stands above it.
    assert [one.rule for one in frame.alerts] == [MEMORY, TROUBLE]
    assert (frame.alerts[1].id, frame.alerts[1].title, frame.alerts[1].lasted) == (alert.id, sink.words, 1.0)
    sink.words = ""
    frame = step(3)
    assert (titles(frame), frame.cleared) == ([], ())
    assert stopped(watch)


def test_a_sink_that_raises_does_not_end_the_watch() -> None:
    broken, fine = Sink("messages"), Sink()
    watch, step, _ = stepping(broken, fine)
    broken.error = KeyError("no \x1b[31mway")
    step(0)
    (title,) = titles(step(1))
    assert title.startswith("messages: KeyError: ")
    assert title.isprintable()
    broken.error = None
    step(2)
    assert titles(step(3)) == []
    assert stopped(watch)
    assert len(fine.frames) == 4


def test_a_sink_whose_trouble_cannot_be_asked_is_in_trouble() -> None:
    class Silent(Sink):
        @property
        def trouble(self) -> str:
            raise ValueError("do not ask")

    watch, step, _ = stepping(Silent("mute"))
    assert titles(step(0)) == ["mute: ValueError: do not ask"]
    assert stopped(watch)


def test_a_sink_that_comes_later_is_told_from_then_on() -> None:
    sink = Sink()
    watch, step, reader = stepping()
    first = step(0)
    watch.add(sink)
    watch.mute(Mute(rule="XID"))
    assert reader.take(1) == sink.frames
    second = step(1)
    assert stopped(watch)
    assert first not in sink.frames
    assert sink.frames[-1] is second


def test_the_last_frame_of_a_watch_that_failed_keeps_what_was_muted() -> None:
    source, reader, sink = Script([full(0)]), Reader(), Sink()
    watch = watching(source, reader, sink)
    reader.take(1)
    watch.mute(Mute(rule="XID"))
    reader.take(1)
    source.steps.put(OSError("gone"))
    (last,) = reader.take(1)
    assert ended(watch)
    assert last.attention.mutes == (Mute(rule="XID"),)
    assert sink.frames[-1] is last


# -- requests of people --------------------------------------------------------------------------------------------


def raised(step: Callable[[float], Frame]) -> Alert:
    """Let memory be near its limit, and give the alert."""
    *_, last = [step(second) for second in range(3)]
    (alert,) = last.alerts
    return alert


def test_what_is_acknowledged_shows_at_once_in_a_frame_of_its_own() -> None:
    sink = Sink()
    watch, step, reader = stepping(sink)
    alert = raised(step)
    before = watch.newest
    assert before is not None
    watch.acknowledge(alert)
    (frame,) = reader.take(1)
    assert [one.acknowledged for one in frame.alerts] == [True]
    assert (frame.raised, frame.cleared, frame.eased) == ((), (), ())
    assert (frame.snapshot, frame.history, frame.received) == (before.snapshot, before.history, before.received)
    assert (frame.number, sink.frames[-1], len(frame.attention.acks)) == (3, frame, 1)
    assert [one.acknowledged for one in step(3).alerts] == [True]
    watch.unacknowledge(frame.alerts[0])
    (frame,) = reader.take(1)
    assert ([one.acknowledged for one in frame.alerts], frame.attention.acks) == ([False], ())
    assert stopped(watch)


def test_mutes_come_and_go_at_once_too() -> None:
    watch, step, reader = stepping()
    alert = raised(step)
    watch.mute(Mute(rule=MEMORY, key=alert.key))
    watch.mute(Mute(rule=MEMORY, until=EPOCH + 60))
    frames = reader.take(1)
    if len(frames[-1].attention.mutes) < 2:  # the watch may have passed between the two
        frames = reader.take(1)
    assert [one.muted for one in frames[-1].alerts] == [True]
    watch.unmute(MEMORY)
    (frame,) = reader.take(1)
    assert frame.attention.mutes == (Mute(rule=MEMORY, key=alert.key),)
    watch.unmute(MEMORY, alert.key)
    (frame,) = reader.take(1)
    assert [one.muted for one in frame.alerts] == [False]
    assert stopped(watch)


def test_before_the_first_snapshot_there_is_nothing_to_show() -> None:
    watch, step, _ = stepping()
    watch.mute(Mute(rule=MEMORY))
    frame = step(0)
    assert (frame.number, frame.attention.mutes) == (0, (Mute(rule=MEMORY),))
    assert stopped(watch)


def test_what_others_acknowledged_shows_with_the_next_snapshot_and_ends_with_the_alert() -> None:
    engine = Engine(Limits(quiet=0))
    watch, step, _ = stepping(engine=engine)
    alert = raised(step)
    watch.attend(Attention().acknowledged(alert, EPOCH).muted(Mute(rule="XID")))
    frame = step(3)
    assert [one.acknowledged for one in frame.alerts] == [True]
    watch.set_limits(Limits(quiet=0, off=frozenset({MEMORY})))
    frame = step(4)
    assert [(one.how, one.acknowledged) for one in frame.cleared] == [("the rule was turned off", True)]
    assert (frame.attention.acks, len(frame.attention.mutes)) == ((), 1)
    assert stopped(watch)


def test_what_another_gpuwatch_raised_goes_on() -> None:
    watch, step, _ = stepping()
    before = raised(step)
    assert stopped(watch)
    watch, step, _ = stepping()
    watch.restore([before])
    frame = step(9)
    assert [(one.id, one.raised) for one in frame.alerts] == [(before.id, before.raised)]
    assert frame.raised == ()
    assert stopped(watch)
