"""The replay of a recording: play, pause, step, speed and seek, and what the monitor knows after a move."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from gpuwatch.alerts.alert import Alert
from gpuwatch.history import History, HistoryView
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.recorder.recording import IdleTime
from gpuwatch.recorder.replay import SPEEDS, Playback, Replay, events_until
from gpuwatch.timeline import Key, Metric
from tests.support.builders import EPOCH, GIB, at, gpu, holding, snapshot
from tests.support.recording import alert, ended
from tests.support.replaying import MemoryRecording, Player, machine, seconds
from tests.support.watches import Reader, full
from tests.support.watches import ended as has_ended


def used(view: HistoryView, until: float, seconds: int = 60) -> list[float | None]:
    """Used memory of each second before a time."""
    return view.timeline.read(Key(gpu(0).key, "", Metric.USED), until, seconds, seconds)


def test_it_begins_at_the_start_and_plays_in_real_time() -> None:
    player = Player(seconds((0, 300)))
    assert [player.next(), player.next(), player.next(1.0), player.next(0.5), player.next(0.5)] == [0, None, 1, None, 2]


def test_it_begins_at_a_time() -> None:
    assert Player(seconds((0, 300)), at=200.4).next() == 200


def test_paused_it_stands_still_and_then_plays_on_from_there() -> None:
    player = Player(seconds((0, 300)))
    player.next()
    player.replay.play(False)
    assert player.next(100.0) is None
    player.replay.play(True)
    assert [player.next(0.5), player.next(0.5)] == [None, 1]


@pytest.mark.parametrize("speed", SPEEDS)
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


def test_steps_pause_and_go_to_the_snapshot_before_or_after() -> None:
    player = Player(seconds((0, 300)), at=200.0)
    player.next()
    player.replay.step(-1)
    assert player.next() == 199
    player.replay.step(1)
    player.replay.step(1)
    assert player.next() == 201
    assert player.next(60.0) is None
    assert not player.replay.playback.playing


@pytest.mark.parametrize(
    ("second", "shown"), [(200.0, 200), (200.9, 200), (-50.0, 0), (0.0, 0), (299.0, 299), (5000.0, 299)]
)
def test_a_seek_shows_the_last_snapshot_up_to_a_time(second: float, shown: int) -> None:
    player = Player(seconds((0, 300)), at=100.0)
    player.next()
    assert player.seek(second) == shown


def test_a_new_target_replaces_one_that_was_not_reached() -> None:
    player = Player(seconds((0, 300)))
    player.next()
    for second in (200.0, 100.0, 250.0):
        player.replay.seek(EPOCH + second)
    assert player.replay.playback.at == EPOCH + 250.0
    assert [player.next(), player.next()] == [250, None]


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


def test_at_the_end_it_stops_and_plays_on_after_a_seek_back() -> None:
    player = Player(seconds((0, 10)))
    assert player.seek(9.0) == 9
    assert player.replay.playback == Playback(EPOCH + 9, False, 1.0, EPOCH, EPOCH + 9)
    assert player.replay.playback.is_over
    assert player.next(100.0) is None
    assert player.seek(5.0) == 5
    player.replay.play(True)
    assert player.next(1.0) == 6


def test_a_gap_is_passed_in_a_second_and_named() -> None:
    player = Player(seconds((0, 10), (5000, 5010)))
    player.seek(8.0)
    assert player.next(1.0) == 9
    assert player.replay.playback.gap is None
    assert [player.next(0.5), player.next(0.5), player.next(1.0)] == [None, 5000, 5001]
    assert player.replay.playback.gap == (EPOCH + 9, EPOCH + 5000)


@pytest.mark.parametrize(("by", "shown"), [(10.0, 5000), (60.0, 5000), (-1.0, 8)])
def test_a_move_onwards_crosses_a_gap(by: float, shown: int) -> None:
    player = Player(seconds((0, 10), (5000, 5010)), at=9)
    player.next()
    player.replay.seek(EPOCH + 9 + by, onwards=by > 0)
    assert player.next() == shown
    player.replay.seek(EPOCH + shown + 1, onwards=True)
    assert player.next() == shown + 1


@pytest.mark.parametrize(
    "act",
    [
        lambda replay: replay.set_speed(120.0),
        lambda replay: (replay.play(False), replay.play(True)),
        lambda replay: replay.seek(EPOCH + 9),
        lambda replay: replay.seek(EPOCH + 3000),
    ],
)
def test_a_gap_is_passed_also_after_a_key(act: Callable[[Replay], object]) -> None:
    player = Player(seconds((0, 10), (5000, 5010)), at=8)
    assert [player.next(), player.next(1.0)] == [8, 9]
    act(player.replay)
    player.next()
    assert player.next(0.9) is None
    assert player.next(0.2) == 5000


def test_a_time_in_a_gap_shows_the_snapshot_before_it_and_names_the_gap() -> None:
    player = Player(seconds((0, 10), (5000, 5010)))
    player.next()
    assert player.seek(3000.0) == 9
    assert player.replay.playback.gap == (EPOCH + 9, EPOCH + 5000)


def test_a_closed_replay_waits_for_nothing() -> None:
    player = Player(seconds((0, 300)))
    player.replay.close()
    assert player.replay.next(3600.0) is None


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
    assert second.history.utilization(gpu(0).key) == (50,) * 60
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
    idle = (IdleTime(gpu(0).key, 100, 100, 3600.0, at_least), IdleTime("GPU-of-before", 7, 7, 60.0, False))
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
