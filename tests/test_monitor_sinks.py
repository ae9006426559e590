"""Sinks that are told of every frame, what keeps them from it, and what people ask of a watch meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable

from gpuwatch.alerts.alert import TROUBLE, Alert, Attention, Mute, Severity
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.declared.facts import Share
from gpuwatch.monitor import Frame, Monitor
from tests.support.builders import EPOCH
from tests.support.watches import LONG, Reader, Script, ended, full, watching


class XidCounter:
    """A sink that keeps what it is told, and fails as it is asked to."""

    def __init__(self, name: str = "ear") -> None:
        self.name = name
        self.words = ""
        self.error: Exception | None = None
        self.frames: list[Frame] = []
        self.threads: set[int] = set()
        self.closed = False

    @property
    def trouble(self) -> str:
        return self.words

    def take(self, frame: Frame) -> None:
        self.threads.add(threading.get_ident())
        self.frames.append(frame)
        if self.error is not None:
            raise self.error

    def close(self, seconds: float) -> None:
        self.closed = True


def titles(frame: Frame, rule: str = TROUBLE) -> list[str]:
    return [alert.title for alert in frame.alerts if alert.rule == rule]


def stepping(*sinks: XidCounter, engine: Engine | None = None) -> tuple[Monitor, Callable[[float], Frame], Reader]:
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


# Sinks


def test_each_sink_is_told_of_each_frame_and_is_not_closed() -> None:
    ears = [XidCounter("one"), XidCounter("two")]
    watch, step, _ = stepping(*ears)
    frames = [step(second) for second in range(3)]
    assert stopped(watch)
    assert [ear.frames for ear in ears] == [frames, frames]
    assert ears[0].threads == {watch.ident}
    assert not any(ear.closed for ear in ears)


def test_what_troubles_a_sink_is_an_alert_until_it_goes() -> None:
    ear = XidCounter("events log")
    watch, step, _ = stepping(ear)
    assert step(0).alerts == ()
    ear.words = "events log: no space left on device"
    frame = step(1)
    (alert,) = frame.alerts
    assert (alert.rule, alert.subject, alert.host, alert.title) == (TROUBLE, "events log", "box3", ear.words)
    assert (alert.severity, alert.raised, len(alert.id)) == (Severity.WARNING, EPOCH, 10)
    assert frame.raised == ()
    ear.words = "events log: no space left on device; 3 events wait"
    frame = step(2)
    # The critical alert that came later stands above it.
    assert [one.rule for one in frame.alerts] == [MEMORY, TROUBLE]
    assert (frame.alerts[1].id, frame.alerts[1].title, frame.alerts[1].lasted) == (alert.id, ear.words, 1.0)
    ear.words = ""
    frame = step(3)
    assert (titles(frame), frame.cleared) == ([], ())
    assert stopped(watch)


def test_a_sink_that_raises_does_not_end_the_watch() -> None:
    broken, fine = XidCounter("messages"), XidCounter()
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
    class Mute(XidCounter):
        @property
        def trouble(self) -> str:
            raise ValueError("do not ask")

    watch, step, _ = stepping(Mute("mute"))
    assert titles(step(0)) == ["mute: ValueError: do not ask"]
    assert stopped(watch)


def test_a_sink_that_comes_later_is_told_from_then_on() -> None:
    ear = XidCounter()
    watch, step, reader = stepping()
    first = step(0)
    watch.add(ear)
    watch.mute(Mute(rule="XID"))
    assert reader.take(1) == ear.frames
    second = step(1)
    assert stopped(watch)
    assert first not in ear.frames
    assert ear.frames[-1] is second


def test_the_last_frame_of_a_watch_that_failed_keeps_what_was_muted() -> None:
    source, reader, ear = Script([full(0)]), Reader(), XidCounter()
    watch = watching(source, reader, ear)
    reader.take(1)
    watch.mute(Mute(rule="XID"))
    reader.take(1)
    source.steps.put(OSError("gone"))
    (last,) = reader.take(1)
    assert ended(watch)
    assert last.attention.mutes == (Mute(rule="XID"),)
    assert ear.frames[-1] is last


# What people ask


def raised(step: Callable[[float], Frame]) -> Alert:
    """Let memory be near its limit, and give the alert."""
    *_, last = [step(second) for second in range(3)]
    (alert,) = last.alerts
    return alert


def test_what_is_acknowledged_shows_at_once_in_a_frame_of_its_own() -> None:
    ear = XidCounter()
    watch, step, reader = stepping(ear)
    alert = raised(step)
    before = watch.newest
    assert before is not None
    watch.acknowledge(alert)
    (frame,) = reader.take(1)
    assert [one.acknowledged for one in frame.alerts] == [True]
    assert (frame.raised, frame.cleared, frame.eased) == ((), (), ())
    assert (frame.snapshot, frame.history, frame.received) == (before.snapshot, before.history, before.received)
    assert (frame.number, ear.frames[-1], len(frame.attention.acks)) == (3, frame, 1)
    assert [one.acknowledged for one in step(3).alerts] == [True]
    assert stopped(watch)


def test_an_acknowledgement_is_taken_back_at_once_too() -> None:
    watch, step, reader = stepping()
    alert = raised(step)
    watch.acknowledge(alert)
    (frame,) = reader.take(1)
    assert [one.acknowledged for one in frame.alerts] == [True]
    watch.unacknowledge(frame.alerts[0])
    (frame,) = reader.take(1)
    assert [one.acknowledged for one in frame.alerts] == [False]
    assert frame.attention.acks == ()
    assert [one.acknowledged for one in step(3).alerts] == [False]
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


def test_other_shares_reach_the_source_in_its_own_thread() -> None:
    source = Script()
    watch = watching(source, Reader())
    watch.set_shares([Share(user="ada", share=0.5)])
    assert source.poked.wait(LONG)
    assert stopped(watch)
    assert [one.user for one in source.shares] == ["ada"]
    assert source.threads == {watch.ident}


def test_many_threads_may_ask_at_once() -> None:
    watch, step, reader = stepping()
    step(0)
    askers = [threading.Thread(target=watch.mute, args=(Mute(rule=f"rule {n}"),)) for n in range(20)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join(LONG)
    while len(reader.take(1)[0].attention.mutes) < 20:
        pass
    assert stopped(watch)
