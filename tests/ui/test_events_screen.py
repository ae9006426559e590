"""The screen of events: the log and what holds now as one list, its filter, its detail, and what an event is about."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot
from textual.widgets import OptionList

from gpuwatch.alerts.alert import Alert, AlertGpu, Severity
from gpuwatch.analysis.events import Events
from gpuwatch.base.units import GIB, Unit
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.draw.lines import plain
from gpuwatch.ui.draw.theme import make_styles
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.acknowledge import AcknowledgeDialog
from gpuwatch.ui.screens.events import EventList, EventsScreen, event_facts, event_terms
from gpuwatch.ui.screens.list_screen import fact_lines
from gpuwatch.ui.screens.pages import DetailScreen
from tests.support.builders import EPOCH, gpu, holding, process, snapshot
from tests.support.screen import alert, frame, hand, machine, press, running, screen, text, top, until

NOW = time.time()
SKIN = make_styles("gpuwatch-dark")


def past(number: int, **changes: Any) -> Alert:
    """Return an event that began `number` minutes ago and lasted 30 s."""
    fields: dict[str, Any] = {
        "id": f"{number:010d}",
        "title": f"event {number}",
        "raised": NOW - 60 * number,
        "ended": NOW - 60 * number + 30,
        "lasted": 30.0,
        "most": Severity.CRITICAL,
        "how": "back within the limit",
        "owners": ("ada",),
    }
    return alert(1, **{**fields, **changes})


def log(*alerts: Alert, **changes: Any) -> Helpers:
    return Helpers(events=lambda: Events(alerts=alerts, watched=True, exists=True, **changes))


def shown(app: GpuwatchApp) -> list[str]:
    assert isinstance(app.screen, EventsScreen)
    return app.screen.list_panel.text


async def test_the_log_and_what_holds_now_are_one_list_the_newest_first() -> None:
    """Also an event that another gpuwatch logged under its own id is one line."""
    logged = [
        past(5, rule="throttled"),
        past(2),
        alert(0, id="live", raised=NOW - 600, title="as it was logged"),
        alert(1, id="theirs", raised=NOW - 599, title="as they saw it"),
        alert(1, id="before", raised=NOW - 5000, ended=NOW - 4000, title="an earlier one"),
    ]
    holds = [
        alert(0, id="live", raised=NOW - 600, title="as it is now"),
        alert(1, id="ours", raised=NOW - 601, title="as we see it"),
    ]
    async with running(frame(machine(4), *holds), (120, 36), helpers=log(*logged)) as (app, pilot):
        await pilot.press("e")
        await until(pilot, lambda: "event 5" in text(app))
        titles = ("as it is now", "as we see it", "event 2", "event 5", "an earlier one")
        assert [words in line for words, line in zip(titles, shown(app), strict=False)] == [True] * 5
        assert not any(words in text(app) for words in ("as it was logged", "as they saw it"))
        assert "5 events · 2 ongoing" in text(app)
        assert "back within the limit" in shown(app)[2]
        assert "ongoing" in shown(app)[0]
        await press(pilot, "o")
        assert "event 5" not in text(app)
        await press(pilot, "o", "j", "a")
        assert "event 5" in text(app)
        assert isinstance(app.screen, AcknowledgeDialog)
        assert isinstance(app.screen.page, Alert)
        assert app.screen.page.title == "as we see it"


async def test_repeats_are_one_line_until_a_filter_asks_for_them() -> None:
    flaps = [past(20 + number, rule="throttled", title="GPU 1 throttled") for number in range(12)]
    async with running(frame(machine(4)), (120, 36), helpers=log(*flaps, past(1))) as (app, pilot):
        await pilot.press("e")
        await until(pilot, lambda: "12 times, 6m total, first " in text(app))
        assert len([line for line in shown(app) if line.strip()]) == 2
        await press(pilot, "slash", *"throttled", "enter")
        assert len([line for line in shown(app) if line.strip()]) == 12


async def test_without_a_log_what_ends_stays_in_the_list() -> None:
    """One ends while the list is open, one before; another in the second of three frames that come at once."""
    over = alert(2, id="new", raised=NOW, title="is over", ended=NOW + 5, lasted=5.0, how="it was let go")
    short = alert(2, id="short", raised=NOW - 5, title="it was short", ended=NOW - 3, lasted=2.0, how="it was let go")
    async with running(frame(machine(4)), (120, 36)) as (app, pilot):
        for new in (frame(machine(4)), replace(frame(machine(4)), cleared=(short,)), frame(machine(4))):
            app.publish(new)
        await pilot.pause()
        await hand(app, pilot, frame(machine(4), alert(2, id="new", raised=NOW, title="just raised")))
        await press(pilot, "e")
        assert ["just raised" in shown(app)[0], "it was short" in shown(app)[1]] == [True, True]
        await hand(app, pilot, replace(frame(machine(4)), cleared=(over,)))
        await pilot.pause()
        assert ["is over" in shown(app)[0], "it was let go" in shown(app)[0]] == [True, True]
        assert "2 events · 0 ongoing · since gpuwatch started" in text(app)


def broken() -> Events:
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize(
    ("helpers", "words"),
    [
        (Helpers(events=broken), ["cannot be read", "Permission denied", "no alert yet"]),
        (log(past(1), damaged=3), ["3 events are damaged"]),
    ],
)
async def test_what_cannot_be_read_of_the_log_is_said(helpers: Helpers, words: list[str]) -> None:
    async with running(frame(machine(2)), (120, 36), helpers=helpers) as (app, pilot):
        await pilot.press("e")
        await until(pilot, lambda: all(word in text(app) for word in words))


def test_the_detail_tells_all_that_is_known() -> None:
    amounts = {"unit": Unit.FREE, "peak": 1.5 * GIB, "mean": 2.0 * GIB, "last": 3.0 * GIB}
    on = tuple(AlertGpu(f"GPU-{index}", index) for index in (0, 1, 3))
    one = past(3, pids=tuple(range(1, 10)), gpus=on, evidence="ada holds 70.0 GiB", **amounts)
    facts = event_facts(one, NOW)
    lines = "\n".join(plain(line) for line in fact_lines(facts, SKIN, 160, 6))
    for words in (
        "nearly full · GPU 0-1,3 · ada · pid 1, 2, 3, 4, 5, 6 and 3 more",
        "at worst 1.5 GiB free, mean 2.0, last 3.0",
        "ada holds 70.0 GiB",
        "back within the limit",
        "30s",
    ):
        assert words in lines
    assert fact_lines(facts, SKIN, 80, 0) == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("", True),
        ("rule:near", True),
        ("rule:over", False),
        ("gpu:0,1", True),
        ("gpu:2", False),
        ("user:AD", True),
        ("-event", False),
        ("-user:eve event", True),
        ("a:b", False),
        ("-", True),
        ("-gpu:", True),
        ("-rule: event", True),
        ("!rule:over GPU:1", True),
        ("pid:11", True),
        ("pid:12", False),
    ],
)
def test_a_filter(words: str, found: bool) -> None:
    assert all(term(past(1, pids=(11,))) for term in event_terms(words)) is found


async def test_a_process_that_is_on_several_gpus_is_found_by_each_of_them() -> None:
    held = [gpu(index, holdings=[holding(7, 1.0)] if index != 2 else []) for index in range(4)]
    seen = snapshot(held, [process(7, "hal")])
    about = alert(0, rule="misspelt variable", subject="7:7 GPU-0", pids=(7,), title="pid 7 (hal): no effect")
    async with running(frame(seen, about)) as (app, pilot):
        await pilot.press("e", "slash", *"gpu:")
        for index, found in enumerate((True, True, False, True)):
            await press(pilot, str(index))
            assert ("pid 7 (hal)" in text(app)) is found
            await pilot.press("backspace")


ABOUT_GPU = alert(1)
ABOUT_PROCESS = alert(
    2,
    rule="over declared",
    subject=f"1021:1021 {gpu(2).key}",
    pids=(1021,),
    title="ben holds 62 % of GPU 2, declared 40 %",
)
ABOUT_NOTHING = alert(3, gpu="", rule="data stale", title="no new data for 9 s")


def events_of(app: GpuwatchApp) -> EventList:
    assert isinstance(app.screen, EventsScreen)
    return app.screen.rows


Way = Callable[[GpuwatchApp, Pilot[int], Alert], Awaitable[None]]


async def by_enter(app: GpuwatchApp, pilot: Pilot[int], about: Alert) -> None:
    await press(pilot, "e")
    events = events_of(app)
    while events.selected is None or events.selected.id != about.id:
        await pilot.press("down")
    await press(pilot, "enter")


async def by_click(app: GpuwatchApp, pilot: Pilot[int], about: Alert) -> None:
    place = next(y for y, line in enumerate(screen(app)) if about.title[:20] in line)
    await pilot.click(offset=(20, place))
    await pilot.pause()


async def by_dialog(app: GpuwatchApp, pilot: Pilot[int], about: Alert) -> None:
    app.action_acknowledge(about)
    await pilot.pause()
    options = app.screen.query_one(OptionList)
    options.highlighted = next(place for place, one in enumerate(options.options) if one.id == "show")
    await press(pilot, "enter")


async def test_the_footer_says_what_enter_shows() -> None:
    async with running(frame(machine(4), ABOUT_PROCESS, ABOUT_GPU, ABOUT_NOTHING), (120, 36)) as (app, pilot):
        await press(pilot, "e")
        events, seen = events_of(app), {}
        for _ in events.found:
            assert events.selected is not None
            seen[events.selected.id] = text(app).splitlines()[-1]
            await press(pilot, "down")
        assert "Enter process 1021" in seen[ABOUT_PROCESS.id]
        assert "Enter GPU 1" in seen[ABOUT_GPU.id]
        assert "Enter" not in seen[ABOUT_NOTHING.id]
        await press(pilot, "enter")
        assert any("no longer here" in one.message for one in app._notifications)


async def test_an_ended_events_pid_that_another_process_has_by_now_is_not_shown() -> None:
    old = alert(2, id="past", subject=f"1021:7 {gpu(2).key}", pids=(1021,), ended=EPOCH + 30, title="it was another")
    async with running(frame(machine(4)), helpers=log(old)) as (app, pilot):
        await pilot.press("e")
        await until(pilot, lambda: "it was another" in text(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.dashboard)
        assert app.dashboard.processes.filter.text == "gpu:2"


@pytest.mark.uncounted
@pytest.mark.parametrize("way", [by_enter, by_click, by_dialog])
async def test_a_process_is_shown_in_full_and_of_a_gpu_its_processes(way: Way) -> None:
    async with running(frame(machine(4), ABOUT_PROCESS, ABOUT_GPU)) as (app, pilot):
        await way(app, pilot, ABOUT_PROCESS)
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        assert "1021" in text(app)
        await press(pilot, "escape")
        if way is by_enter:  # back where one came from
            assert isinstance(top(app), EventsScreen)
            await press(pilot, "escape")
        panel = app.dashboard.processes
        await press(pilot, "m", "end")
        await way(app, pilot, ABOUT_GPU)
        await until(pilot, lambda: app.screen is app.dashboard)
        assert panel.filter.text == "gpu:1"
        assert {row.gpu.index for row in panel.found} == {1}
        assert (len(panel.found), panel.cursor, panel.top) == (5, 0, 0)
