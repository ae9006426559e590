"""The dashboard of a replay: its keys, its header, and what it refuses, by Pilot with a replay of a recording."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

import pytest
from textual.pilot import Pilot

from gpuwatch.alerts.alert import Severity
from gpuwatch.base.units import format_moment
from gpuwatch.history.timeline import Key, Metric, Minute
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.replay import Replay
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.draw.keys import KEYS, commands, replay_keys
from gpuwatch.ui.options import Options
from gpuwatch.ui.replay import ReplayApp
from tests.support.builders import EPOCH, GIB, gpu
from tests.support.screen import press, screen, text, top, until
from tests.support.store import MemoryRecording, alert, ended, machine, seconds


def recording() -> MemoryRecording:
    """Return ten minutes with an event from 100 s to 160 s, and one that begins at 300 s."""
    first = ended(alert("a", raised=EPOCH + 100.0, gpu=gpu(0).key, title="GPU 0 nearly full"))
    second = alert("b", raised=EPOCH + 300.0, gpu=gpu(0).key, title="GPU 0 hot", severity=Severity.CRITICAL)
    return MemoryRecording((machine(float(second)) for second in range(600)), [first, second])


@asynccontextmanager
async def replaying(
    of: MemoryRecording, second: float = 0.0, size: tuple[int, int] = (160, 50)
) -> AsyncIterator[tuple[ReplayApp, Pilot[int]]]:
    """Show a replay that is paused at a second."""
    replay = Replay(of, at=EPOCH + second)
    replay.play(False)
    app: ReplayApp
    watch = Monitor(
        replay,
        lambda frame: app.publish(frame),
        clock=replay.now,
        wall=replay.now,
        slept=lambda: 0.0,
        patience=0.05,
    )
    replay.restart = watch.restart
    app = ReplayApp(replay, watch=watch, options=Options())
    async with app.run_test(size=size, notifications=True) as pilot:
        watch.start()
        await shows(app, pilot, second)
        yield app, pilot
        watch.stop()
        watch.join()


async def shows(app: GpuwatchApp, pilot: Pilot[int], second: float) -> None:
    """Wait until the snapshot of a second is on the dashboard."""
    await until(pilot, lambda: app.frame is not None and app.frame.snapshot.taken == EPOCH + second)
    await pilot.pause()


async def test_keys_move_through_the_recording() -> None:
    async with replaying(recording(), 200) as (app, pilot):
        for keys, second in (
            (["left"], 190),
            (["right", "right"], 210),
            (["left_square_bracket"], 150),
            (["right_square_bracket"], 210),
            (["comma", "comma"], 208),
            (["full_stop"], 209),
            (["right_curly_bracket"], 300),
            (["left_curly_bracket"], 100),
        ):
            for key in keys:
                await press(pilot, key)
            await shows(app, pilot, second)


async def test_space_plays_and_pauses_and_plus_and_minus_change_the_speed() -> None:
    async with replaying(recording(), 200) as (app, pilot):
        assert "REPLAY  PAUSED  1×" in screen(app)[0]
        assert "Space play" in screen(app)[-1]
        await press(pilot, *["plus"] * 20, "space")
        assert "Space pause" in screen(app)[-1]
        assert app.replay.playback.speed == 120.0
        await until(pilot, lambda: app.replay.playback.at > EPOCH + 200)
        await press(pilot, "space", *["minus"] * 20)
        assert "PAUSED  0.25×" in screen(app)[0]


async def test_at_goes_to_a_clock_time_and_refuses_others_in_words() -> None:
    at = datetime.fromtimestamp(EPOCH + 410.0)
    async with replaying(recording(), 200) as (app, pilot):
        for typed, words in (("25:99", "is not understood"), ("2020-01-01 03:10", "is not in the recording")):
            await press(pilot, "at", *typed, "enter")
            assert words in text(app)
            await press(pilot, "escape")
            assert top(app) is app.dashboard
            await shows(app, pilot, 200)
        await press(pilot, "at", *f"{at:%H:%M:%S}", "enter")
        await shows(app, pilot, 410)


@pytest.mark.uncounted
@pytest.mark.parametrize(
    ("at", "keys", "words"),
    [
        (0, ["left", "comma"], f"start of the recording: {format_moment(EPOCH)}"),
        (599, ["right", "space", "full_stop"], f"end of the recording: {format_moment(EPOCH + 599)}"),
        (400, ["right_curly_bracket"], f"no event starts after {format_moment(EPOCH + 400)}"),
        (50, ["left_curly_bracket"], f"no event starts before {format_moment(EPOCH + 50)}"),
    ],
)
async def test_start_end_and_no_more_events_are_said_in_words(at: int, keys: list[str], words: str) -> None:
    async with replaying(recording(), at) as (app, pilot):
        for key in keys:
            app.clear_notifications()
            await pilot.pause()
            assert words not in " ".join(text(app).split())
            await press(pilot, key)
            assert words in " ".join(text(app).split())
            assert ("END OF THE RECORDING" in screen(app)[0]) == (at == 599)


async def test_a_gap_is_said_in_words() -> None:
    async with replaying(seconds((0, 10), (5000, 5010)), 9) as (app, pilot):
        await press(pilot, "full_stop")
        await shows(app, pilot, 5000)
        assert "nothing was recorded for 1 h 23 min" in " ".join(text(app).split())


async def test_what_cannot_be_read_is_said_once() -> None:
    of = recording()
    async with replaying(of, 9) as (app, pilot):
        of.notes.append("day.gz: a damaged line")
        for second in (10, 11, 12):
            await press(pilot, "full_stop")
            await shows(app, pilot, second)
        assert [one.message for one in app._notifications] == ["a part cannot be read: day.gz: a damaged line"]


async def test_graphs_of_six_hours_read_the_minutes_of_the_recording() -> None:
    key = Key(gpu(0).key, "", Metric.USED)
    minutes = [Minute(at=EPOCH // 60 * 60 + 60.0 * number, values={str(key): 7.0 * GIB}) for number in range(-300, 0)]
    of = MemoryRecording((machine(float(second)) for second in range(600)), minutes=minutes)
    async with replaying(of, 300) as (app, pilot):
        await press(pilot, "tab", "enter", "4")
        assert app.frame is not None
        timeline = app.frame.history.timeline
        await until(pilot, lambda: 7.0 * GIB in timeline.read(key, EPOCH + 300, 6 * 3600, 60))


async def test_nothing_can_be_ended_acknowledged_or_sent() -> None:
    async with replaying(recording(), 400) as (app, pilot):
        await press(pilot, "K", "f9", "a", "y", "L", "R")
        assert top(app) is app.dashboard
        assert not app.may_end()
        app.action_acknowledge()
        app.write_to_owner(app.frame, lambda row: True)
        await until(pilot, lambda: len(app._notifications) == 3)
        said = [one.message for one in app._notifications]
        things = (
            "processes cannot be ended",
            "alerts cannot be acknowledged or muted",
            "there are no messages to owners",
        )
        assert said == [f"this is a replay: {words}" for words in things]
        assert app.end_dialogs is None
        assert app.frame is not None
        assert not app.frame.attention.acks


async def test_events_are_those_up_to_the_time_that_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuwatch.ui.screens.events.READ_EVERY", 0.05)
    async with replaying(recording(), 120) as (app, pilot):
        await press(pilot, "e")
        await until(pilot, lambda: "1 event · 1 ongoing" in text(app))
        for second, words in ((200, "1 event · 0 ongoing"), (310, "2 events · 1 ongoing"), (50, "0 events")):
            app.replay.seek(EPOCH + second)
            await until(pilot, lambda words=words: words in text(app))  # type: ignore[misc]


async def test_help_and_palette_have_the_keys_of_the_replay_alone() -> None:
    async with replaying(recording(), 120, (160, 100)) as (app, pilot):
        await press(pilot, "question_mark")
        words = text(app)
        assert "Go to a clock time" in words
        assert "Freeze the screen" not in words
        assert "End this process" not in words
        assert "judged by your own settings" in words
    live, then = ({one.name for one in commands(keys)} for keys in (KEYS, replay_keys()))
    assert not {"End the selected process", "Acknowledge or mute an alert"} & then
    assert {"Play the recording, or pause it", "Go to a clock time"} <= then - live
