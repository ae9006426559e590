"""Acknowledging and muting: the dialog, what the dashboard then shows, and who is told of what."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from textual.app import App
from textual.events import Key
from textual.pilot import Pilot
from textual.widgets import OptionList

from gpuwatch.alerts.alert import HOUR, TROUBLE, Alert, Attention, Mute, Severity
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.draw import theme
from gpuwatch.ui.screens.acknowledge import AcknowledgeDialog, alerts_and_mutes
from tests.support.builders import EPOCH
from tests.support.screen import (
    HOSTILE,
    Clockwork,
    Host,
    alert,
    fits,
    frame,
    hand,
    machine,
    press,
    running,
    text,
    until,
)

HELD = "nearly full"


def asked(app: GpuwatchApp) -> list[object]:
    assert isinstance(app.watching, Clockwork)
    return app.watching.asked


async def test_a_acknowledges_the_worst_alert_that_nobody_has_seen() -> None:
    seen = alert(0, acknowledged=True)
    async with running(frame(machine(4), seen, alert(2, Severity.WARNING))) as (app, pilot):
        await press(pilot, "a")
        assert "GPU 2 nearly full" in text(app)
        assert "1 of 2" in text(app)
        for _ in range(3):  # of quick presses the second means nothing
            app.post_message(Key("enter", None))
        await until(pilot, lambda: app.screen is app.dashboard)
        await pilot.pause()
        assert asked(app) == [("acknowledge", alert(2).key)]
        assert app.screen is app.dashboard


def listed(app: App[Any]) -> list[str | None]:
    """Return all choices, from top to bottom."""
    return [one.id for one in app.screen.query_one(OptionList).options]


def offered(app: App[Any]) -> list[str | None]:
    """Return those that can be chosen."""
    return [one.id for one in app.screen.query_one(OptionList).options if not one.disabled]


def marked(app: App[Any]) -> str | None:
    """Return the one that Enter chooses."""
    options = app.screen.query_one(OptionList)
    return None if options.highlighted is None else options.options[options.highlighted].id


async def choose(app: App[Any], pilot: Pilot[Any], choice: str) -> None:
    """Go down to a choice and press Enter on it."""
    for _ in listed(app):
        if marked(app) == choice:
            break
        await pilot.press("down")
    assert marked(app) == choice
    await press(pilot, "enter")


@asynccontextmanager
async def shown(*alerts: Alert) -> AsyncIterator[tuple[Host, Pilot[Any], AcknowledgeDialog, Clockwork]]:
    """Show the dialog on these alerts, in an app of its own."""
    app, watch = Host(), Clockwork()
    screen = AcknowledgeDialog(alerts, watch, wall=lambda: 5000.0)
    async with app.run_test() as pilot:
        await app.push_screen(screen)
        await pilot.pause()
        yield app, pilot, screen, watch


def morning(days: int) -> float:
    """Return 8:00 of the day that has the dialog's clock, or of a later one."""
    return time.mktime((*time.localtime(5000.0)[:2], time.localtime(5000.0)[2] + days, 8, 0, 0, 0, 0, -1))


MUTED = alert(0, acknowledged=True, muted=True)


@pytest.mark.uncounted
@pytest.mark.parametrize(
    ("alerts", "choice", "calls"),
    [
        ([alert(0)], "hour", [Mute(rule=HELD, key=alert(0).key, until=5000.0 + HOUR)]),
        ([alert(0)], "rule", [Mute(rule=HELD)]),
        ([MUTED], "unmute", [("unmute", HELD, MUTED.key), ("unmute", HELD, "")]),
        ([alert(1, acknowledged=True)], "undo", [("unacknowledge", alert(1).key)]),
        (
            [alert(0), alert(1), alert(3, acknowledged=True), alert(4, muted=True)],
            "all",
            [("acknowledge", alert(0).key), ("acknowledge", alert(1).key)],
        ),
        ([alert(0)], "cancel", []),
    ],
)
async def test_each_choice_does_what_it_says_and_closes(alerts: list[Alert], choice: str, calls: list[object]) -> None:
    async with shown(*alerts) as (app, pilot, _, watch):
        assert choice != "all" or "Acknowledge all 2" in text(app)
        await choose(app, pilot, choice)
        assert watch.asked == calls
        assert not isinstance(app.screen, AcknowledgeDialog)


@pytest.mark.parametrize(("hour", "words"), [(2, "Mute until 8:00"), (9, "Mute until tomorrow 8:00")])
async def test_until_the_next_morning(hour: int, words: str) -> None:
    app, watch = Host(), Clockwork()
    screen = AcknowledgeDialog([alert(0)], watch, wall=lambda: morning(0) + (hour - 8) * HOUR)
    async with app.run_test() as pilot:
        await app.push_screen(screen)
        await until(pilot, lambda: words in text(app))
        await choose(app, pilot, "morning")
        assert watch.asked == [Mute(rule=HELD, key=alert(0).key, until=morning(hour > 8))]


async def test_what_can_be_done_comes_first() -> None:
    async with shown(MUTED) as (app, *_):
        assert listed(app)[:2] == ["unmute", "undo"]
        assert listed(app)[-1] == "cancel"
        assert marked(app) == "unmute"


@pytest.mark.parametrize(
    ("mute", "words"),
    [
        (Mute(rule=HELD, key=alert(0).key, until=EPOCH), "muted until"),
        (Mute(rule=HELD), "its rule is muted until you unmute it"),
    ],
)
async def test_a_muted_alert_says_until_when(mute: Mute, words: str) -> None:
    seen = replace(frame(machine(2), alert(0, muted=True)), attention=Attention(mutes=(mute,)))
    async with running(seen) as (app, pilot):
        await press(pilot, "a")
        assert words in text(app)


async def test_the_alert_of_what_is_under_the_cursor_comes_first() -> None:
    async with running(frame(machine(3), alert(0), alert(2)), (120, 36)) as (app, pilot):
        await press(pilot, "tab", "down", "down", "a")
        assert "GPU 2 nearly full" in text(app)


async def test_of_an_alert_that_has_ended_meanwhile_nothing_is_offered() -> None:
    async with running(frame(machine(2), alert(1))) as (app, pilot):
        await press(pilot, "a")
        assert offered(app) == ["acknowledge", "hour", "morning", "rule", "show", "cancel"]
        await hand(app, pilot, replace(frame(machine(2)), cleared=(alert(1, ended=EPOCH + 1),)))
        assert "ended: GPU 1 nearly full" in text(app)
        assert offered(app) == ["cancel"]
        await press(pilot, "enter")
        assert asked(app) == []
        assert app.screen is app.dashboard


async def test_the_dialog_follows_the_frames_and_the_mark_stays_on_its_choice() -> None:
    async with running(frame(machine(4), alert(0), alert(1), alert(2))) as (app, pilot):
        await pilot.press("a", "up", "up", "up")
        assert marked(app) == "all"
        await hand(app, pilot, frame(machine(4), alert(0, title="it got worse"), alert(1)))
        assert "it got worse" in text(app)
        assert "Acknowledge all 2" in text(app)
        assert marked(app) == "all"
        await hand(app, pilot, frame(machine(4), alert(0, acknowledged=True), alert(1)))
        assert offered(app) == ["hour", "morning", "rule", "show", "undo", "cancel"], "no choice moves"
        await pilot.press("enter")  # what was marked is no more: the mark is on Cancel
        await pilot.pause()
        assert asked(app) == []


def silenced(*mutes: Mute, alerts: tuple[Alert, ...] = ()) -> Frame:
    return replace(frame(machine(2), *alerts), attention=Attention(mutes=mutes))


async def test_what_is_muted_can_speak_again_when_nothing_of_it_holds() -> None:
    one = Mute(rule=HELD, key=alert(0).key, until=EPOCH)
    async with running(silenced(Mute(rule="XID"), one)) as (app, pilot):
        assert "2 muted" in text(app)
        await press(pilot, "a")
        assert "the rule “XID” is muted until you unmute it" in text(app)
        await press(pilot, "right")
        assert "an alert of “nearly full” is muted until " in text(app)
        await press(pilot, "left", "enter")
        assert asked(app) == [("unmute", "XID", "")]
        assert app.screen is app.dashboard


def test_an_event_of_the_log_is_asked_about_with_the_marks_of_now() -> None:
    logged = alert(0, ended=EPOCH + 30, muted=True)
    assert alerts_and_mutes(silenced(), logged, EPOCH)[0] == [alert(0, ended=EPOCH + 30)]
    assert alerts_and_mutes(silenced(Mute(rule=HELD)), alert(0, ended=EPOCH + 30), EPOCH)[0] == [logged]


async def test_gpuwatchs_own_trouble_cannot_be_silenced() -> None:
    assert alerts_and_mutes(silenced(), alert(rule=TROUBLE), EPOCH) == ([], [])
    assert alerts_and_mutes(silenced(alerts=(alert(rule=TROUBLE), alert(0))), None)[0] == [alert(0)]
    async with running(frame(machine(2), alert(rule=TROUBLE, gpu=""))) as (app, pilot):
        await press(pilot, "a")
        assert app.screen is app.dashboard
        assert any("no alert to acknowledge" in one.message for one in app._notifications)


@pytest.mark.uncounted
async def test_the_dialog_fits_a_tiny_terminal_and_takes_any_text() -> None:
    app = Host()
    async with app.run_test(size=(40, 6)) as pilot:
        for hostile in HOSTILE:
            named = alert(0, title=hostile, evidence=hostile, rule=hostile)
            mute = Mute(rule=hostile, key=hostile)
            await app.push_screen(AcknowledgeDialog([named, named], Clockwork(), theme.ASCII, mutes=[mute]))
            await press(pilot, "left")
            assert fits(app)
            assert app.screen.query_one(OptionList).region.bottom <= 6
            app.pop_screen()


async def test_acknowledged_alerts_come_last_and_muted_ones_are_only_counted() -> None:
    seen = alert(0, acknowledged=True, title="seen")
    muted = alert(1, muted=True, title="silenced")
    fresh = alert(2, Severity.WARNING, title="fresh")
    async with running(frame(machine(4), seen, muted, fresh)) as (app, _):
        first, second = app.dashboard.alerts.text
        assert "fresh" in first
        assert "seen" in second
        assert "1 muted" in text(app)


async def test_bell_and_desktop_are_for_warnings_and_worse() -> None:
    rung: list[str] = []
    async with running(frame(machine(4)), bell=True, desktop="osc9") as (app, pilot):
        app.bell = lambda: rung.append("bell")  # type: ignore[method-assign]
        app.write_to_terminal = rung.append  # type: ignore[method-assign,assignment]
        await hand(app, pilot, frame(machine(4), alert(0, Severity.NOTE)))
        assert rung == []
        await hand(app, pilot, frame(machine(4), alert(0, Severity.NOTE), alert(1), alert(2)))
        assert rung[0] == "bell"
        assert "GPU 1 nearly full" in rung[1]
        assert " +1" in rung[1]
        assert len(rung) == 2
