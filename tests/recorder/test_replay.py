"""The replay of a recording: play, pause, step, speed and seek, and what the monitor knows after a move."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.alerts.alert import Alert
from gpuwatch.analysis.playback import SPEEDS, Playback, events_until
from gpuwatch.history.history import History, HistoryView
from gpuwatch.history.timeline import Key, Metric
from gpuwatch.model.snapshot import IdleHolding
from gpuwatch.monitor import Frame, Monitor
from tests.support.alerts import Reader, full
from tests.support.alerts import ended as has_ended
from tests.support.builders import EPOCH, GIB, at, gpu, holding, snapshot
from tests.support.store import MemoryRecording, Player, alert, ended, machine, seconds


def used(view: HistoryView, until: float, seconds: int = 60) -> list[float | None]:
    """Used memory of each second before a time."""
    return view.timeline.read(Key(gpu(0).key, "", Metric.USED), until, seconds, seconds)


LONG, GAP = ((0, 300),), ((0, 10), (5000, 5010))
"""Seconds of a recording: without a gap, and with one."""


@pytest.mark.parametrize(
    ("spans", "at", "steps"),
    [
        pytest.param(LONG, 0, "0=0 0=- 1=1 0.5=- 0.5=2", id="it begins at the start and plays in real time"),
        pytest.param(LONG, 200.4, "0=200", id="it begins at a time"),
        pytest.param(LONG, 0, "0=0 pause 100=- play 0.5=- 0.5=1", id="paused it stands still, and plays on from there"),
        pytest.param(LONG, 200, "0=200 step-1 0=199 step+1 step+1 0=201 60=-", id="steps pause"),
        pytest.param(LONG, 100, "0=100 seek200 0=200 seek200.9 0=200", id="a seek shows the last one up to a time"),
        pytest.param(LONG, 100, "0=100 seek-50 0=0 seek5000 0=299", id="a seek beyond an end"),
        pytest.param(LONG, 0, "0=0 seek200 seek100 seek250 0=250 0=-", id="a new target replaces one before"),
        pytest.param(((0, 10),), 0, "0=0 seek9 0=9 100=- seek5 0=5 play 1=6", id="at the end it stops"),
        pytest.param(GAP, 8, "0=8 1=9 0.5=- 0.5=5000 1=5001", id="a gap is passed in a second"),
        pytest.param(GAP, 8, "0=8 1=9 speed120 0=- 0.9=- 0.2=5000", id="also where the speed was changed"),
        pytest.param(GAP, 8, "0=8 1=9 pause play 0=- 0.9=- 0.2=5000", id="also after a pause"),
        pytest.param(GAP, 8, "0=8 1=9 seek9 0=9 0.9=- 0.2=5000", id="also after a seek before it"),
        pytest.param(GAP, 8, "0=8 1=9 seek3000 0=9 0.9=- 0.2=5000", id="also after a seek into it"),
        pytest.param(GAP, 9, "0=9 on19 0=5000 on5001 0=5001", id="a move onwards crosses it"),
        pytest.param(GAP, 9, "0=9 seek8 0=8 on9 0=9", id="a move back does not"),
        pytest.param(LONG, 0, "close 3600=-", id="one that is closed waits for nothing"),
    ],
)
def test_play(spans: tuple[tuple[int, int], ...], at: float, steps: str) -> None:
    """Each step is a key, such as `seek200`, or `0.5=1`: half a second later, second 1 is shown."""
    player = Player(seconds(*spans), at=at)
    replay = player.replay
    for step in steps.split():
        passed, is_shown, shown = step.partition("=")
        word = step.rstrip("+-.0123456789")
        number = float(step[len(word) :] or 0) if not is_shown else 0.0
        if is_shown:
            assert player.next(float(passed)) == (None if shown == "-" else int(shown)), step
        elif word in ("play", "pause"):
            replay.play(word == "play")
        elif word == "step":
            replay.step(int(number))
        elif word == "speed":
            replay.set_speed(number)
        elif word == "close":
            replay.close()
        else:
            replay.seek(EPOCH + number, onwards=word == "on")


def test_what_it_tells_of_its_place() -> None:
    player = Player(seconds(*GAP))
    player.seek(8.0)
    player.next(1.0)
    assert (player.replay.playback.gap, player.replay.playback.playing) == (None, True)
    for second, shown in ((3000.0, 9), (5000.0, 5000)):
        assert player.seek(second) == shown
        assert player.replay.playback.gap == (EPOCH + 9, EPOCH + 5000)
    player.replay.seek(EPOCH + 5005.0)
    assert player.replay.playback.at == EPOCH + 5005.0, "before it is shown"
    player.replay.step(-1)
    assert not player.replay.playback.playing
    last = Player(seconds((0, 10)))
    assert last.seek(9.0) == 9
    assert last.replay.playback == Playback(EPOCH + 9, False, 1.0, EPOCH, EPOCH + 9)
    assert last.replay.playback.is_over


@pytest.mark.parametrize("speed", [min(SPEEDS), 1.0, max(SPEEDS)])
def test_it_plays_at_each_speed(speed: float) -> None:
    player = Player(seconds((0, int(speed * 10) + 2)))
    player.next()
    player.replay.set_speed(speed)
    shown = [second for _ in range(100) if (second := player.next(0.1)) is not None]
    assert shown[-1] == int(speed * 10)
    assert len(shown) <= 100


def test_what_a_fast_replay_does_not_show_is_in_the_history_all_the_same() -> None:
    player = Player(seconds((0, 300)))
    history = History()
    for second in range(101):
        expected = history.add(machine(second), EPOCH + second)
    player.next()
    player.replay.set_speed(120.0)
    assert player.next(100 / 120) == 100
    player.replay._history.add(machine(100), EPOCH + 100)  # as the monitor does
    assert used(player.replay._history.view, EPOCH + 101) == used(expected, EPOCH + 101)


def test_a_seek_reads_at_least_a_minute_before_it_and_a_short_one_forward_reads_on() -> None:
    recording = seconds((0, 600))
    player = Player(recording)
    player.next()
    player.seek(300.0)
    assert EPOCH + 240 in recording.begun
    player.seek(330.0)
    assert player.restarts == 2
    player.seek(329.0)
    assert player.restarts == 3


def test_a_second_key_counts_from_where_the_first_one_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    player = Player(seconds(*LONG), at=100)
    player.next()
    told: list[float] = []
    monkeypatch.setattr(player.replay, "restart", lambda *_: told.append(player.replay.playback.at - EPOCH))
    player.seek(250.0)
    assert told == [250.0], "while the recording is read"


# -- what the monitor knows ------------------------------------------------------------------------------------------


def frames(recording: MemoryRecording, *times: float) -> list[Frame]:
    """Return the frame at each of some times, in a replay that is paused."""
    player, reader, found = Player(recording, at=times[0]), Reader(), []
    replay = player.replay
    replay.play(False)
    watch = Monitor(replay, reader, clock=replay.now, wall=replay.now, slept=lambda: 0.0, patience=0.01)
    replay.restart = watch.restart
    watch.start()
    found += reader.take(1)
    for time in times[1:]:
        replay.seek(EPOCH + time)
        found += reader.take(1)
    watch.stop()
    assert has_ended(watch)
    assert watch.failure is None
    return found


def test_after_a_move_the_last_minute_is_in_the_history_and_times_are_those_of_the_recording() -> None:
    first, second = frames(seconds((0, 600)), 30.0, 500.0)
    assert (first.received, second.received) == (EPOCH + 30, EPOCH + 500)
    assert second.restarts == first.restarts + 1 > 1
    assert second.history.gpu(gpu(0).key).utilization == (50,) * 60
    assert used(first.history, EPOCH + 31, 31) == [second * GIB for second in range(31)]


def test_an_alert_that_held_before_holds_after_a_move_and_ends_by_the_samples() -> None:
    held = alert("x", gpu=gpu(0).key, host="box3", raised=EPOCH + 100.0)
    snapshots = [full(second) if second < 500 else machine(second) for second in map(float, range(600))]
    before, after, over = frames(MemoryRecording(snapshots, [held]), 90.0, 420.0, 595.0)
    assert [one.id for one in before.alerts] != ["id-x"]
    assert [(one.id, one.raised) for one in after.alerts] == [("id-x", EPOCH + 100.0)]
    assert over.alerts == ()


@pytest.mark.parametrize(("at_least", "busy"), [(True, None), (False, None), (True, 1)])
def test_idle_times_go_on_after_a_move(*, at_least: bool, busy: int | None) -> None:
    snapshots = [at(snapshot([gpu(0, holdings=[holding(100, sm=0)])]), float(second)) for second in range(600)]
    idle = (IdleHolding(gpu(0).key, 100, 100, 3600.0, at_least), IdleHolding("GPU-of-before", 7, 7, 60.0, False))
    if busy is not None:
        snapshots[400] = at(snapshot([gpu(0, holdings=[holding(100, sm=busy)])]), 400.0)
    _, frame = frames(MemoryRecording(snapshots, idle=idle), 0.0, 420.0)
    found = frame.history.idle(gpu(0).key, 100, 100)
    assert found is not None
    assert found.at_least is (at_least and busy is None)
    assert 3660 <= found.seconds <= 3740 if busy is None else found.seconds == 20


@pytest.mark.parametrize(
    ("second", "known"),
    [
        (0.0, []),
        (50.0, [("id-b", None)]),
        (149.0, [("id-b", None)]),
        (150.0, [("id-b", 150.0)]),
        (900.0, [("id-b", 150.0)]),
    ],
)
def test_events_until_a_time_know_nothing_of_what_came_later(
    second: float, known: list[tuple[str, float | None]]
) -> None:
    over: Alert = ended(alert("b", raised=EPOCH + 50.0), after=100.0)
    found = events_until([over], EPOCH + second)
    assert [(one.id, one.ended and one.ended - EPOCH) for one in found] == known
    assert all(one.how == "" and one.lasted == EPOCH + second - one.raised for one in found if one.ended is None)


def test_events_that_hold_when_the_recording_ends_lasted_no_longer_than_to_that_time() -> None:
    holds = msgspec.structs.replace(alert("b", raised=EPOCH + 50.0), lasted=100.0)
    assert [one.lasted for one in events_until([holds], EPOCH + 70.0)] == [20.0]
    assert [one.lasted for one in events_until([holds], EPOCH + 900.0)] == [100.0]
