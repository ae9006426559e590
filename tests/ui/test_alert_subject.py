"""From an alert, or an event, to the process or the GPU that it is about: by Enter, by click, from the dialog."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList

from gpuwatch.alerts.alert import Alert
from gpuwatch.recorder.store import Events
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.detail import DetailScreen
from gpuwatch.ui.screens.events import EventList, EventsScreen
from tests.support.builders import EPOCH, gpu
from tests.support.dashboards import alert, frame, machine, running, screen, text, top
from tests.support.screens import press, text_of, until

ABOUT_GPU = alert(1)
ABOUT_PROCESS = alert(
    2,
    rule="uses more than declared",
    subject=f"1021:1021 {gpu(2).key}",
    pids=(1021,),
    title="ben holds 62 % of GPU 2, declared 40 %",
)
ABOUT_NOTHING = alert(3, gpu="", rule="data stale", title="no new data for 9 s")

Way = Callable[[GpuwatchApp, Pilot[int], Alert], Awaitable[None]]


async def by_enter(app: GpuwatchApp, pilot: Pilot[int], about: Alert) -> None:
    await press(pilot, "e")
    events = app.screen.query_one(EventList)
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
        events, seen = app.screen.query_one(EventList), {}
        for _ in events.found:
            assert events.selected is not None
            seen[events.selected.id] = text(app).splitlines()[-1]
            await press(pilot, "down")
        assert "Enter process 1021" in seen[ABOUT_PROCESS.id]
        assert "Enter GPU 1" in seen[ABOUT_GPU.id]
        assert "Enter" not in seen[ABOUT_NOTHING.id]
        await press(pilot, "enter")
        assert any("about no process or GPU" in one.message for one in app._notifications)


async def test_an_ended_events_pid_that_another_process_has_by_now_is_not_shown() -> None:
    past = alert(2, id="past", subject=f"1021:7 {gpu(2).key}", pids=(1021,), ended=EPOCH + 30, title="it was another")
    helpers = Helpers(events=lambda: Events(alerts=(past,), watched=True, exists=True))
    async with running(frame(machine(4)), helpers=helpers) as (app, pilot):
        await pilot.press("e")
        await until(pilot, lambda: "it was another" in text_of(app))
        await pilot.press("enter")
        await until(pilot, lambda: app.screen is app.dashboard)
        assert app.dashboard.processes.filter.text == "gpu:2"


@pytest.mark.parametrize("way", [by_enter, by_click, by_dialog])
async def test_a_process_is_shown_in_full_and_of_a_gpu_its_processes(way: Way) -> None:
    async with running(frame(machine(4), ABOUT_PROCESS, ABOUT_GPU)) as (app, pilot):
        await way(app, pilot, ABOUT_PROCESS)
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))
        assert "1021" in text_of(app)
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
