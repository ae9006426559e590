"""Finding processes and events: comparisons, a mistake where it is, saved filters, and jumps that hide nothing."""

from __future__ import annotations

import pytest
from textual.events import Key

from gpuwatch.analysis.events import Events
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.events import EventsScreen
from gpuwatch.ui.widgets.prompt import FilterInput, Prompt
from tests.support.screen import alert, frame, machine, press, running, screen, text, until

SAVED = {"big": "mem>4GiB", "ada": "user:ada", "bens": "user:ben"}


def pids(app: GpuwatchApp) -> list[int]:
    """Return the PIDs in the list."""
    return sorted(row.holding.pid for row in app.dashboard.processes.found)


def selected(app: GpuwatchApp) -> int:
    """Return the PID under the cursor."""
    row = app.dashboard.processes.selected
    assert row is not None
    return row.holding.pid


def marked(app: GpuwatchApp) -> str:
    """Return the part of the filter that is marked as wrong."""
    shown = app.screen.query_one(FilterInput)._value
    return "".join(shown.plain[span.start : span.end] for span in shown.spans)


async def test_a_mistake_is_marked_and_hides_nothing() -> None:
    async with running(frame(machine(2)), (60, 10)) as (app, pilot):
        await press(pilot, "slash", *"gpu:1 mem>3")
        assert pids(app) == [1010, 1011, 1012, 1013, 1014]
        assert marked(app) == "mem>3"
        assert "size '3' has no unit; write 3GiB" in screen(app)[-1]
        await press(pilot, *"GiB")
        assert pids(app) == [1012, 1013, 1014]
        assert marked(app) == ""
        await press(pilot, *" sm>x")
        assert (pids(app), marked(app)) == ([1012, 1013, 1014], "sm>x")
        await press(pilot, "enter")
        assert pids(app) == [1012, 1013, 1014]


async def test_saved_filters_are_offered_one_after_the_other() -> None:
    async with running(frame(machine(2)), filters=SAVED) as (app, pilot):
        entry = app.screen.query_one(FilterInput)
        await press(pilot, "slash")
        assert "Tab: @big @ada @bens" in app.dashboard.prompt.note
        for key, name in (("tab", "big"), ("down", "ada"), ("down", "bens"), ("tab", "big"), ("up", "bens")):
            await press(pilot, key)
            assert entry.value == f"@{name}"
            assert app.dashboard.prompt.note == f"@{name}: {SAVED[name]}"
        assert {row.owner for row in app.dashboard.processes.found} == {"ben"}
        entry.value = "gpu:1"
        await press(pilot, "shift+tab")
        assert entry.value == "gpu:1 @bens"
        entry.value = "gpu:1 @B"
        await pilot.pause()
        assert "no saved filter is called b; @big, @ada, @bens" in app.dashboard.prompt.note
        await press(pilot, "tab", "enter")
        assert entry.value == "gpu:1 @big"
        assert pids(app) == [1013, 1014]
        assert app.dashboard.state.active is app.dashboard.processes


async def test_n_jumps_by_the_last_filter_round_the_end_and_hides_nothing() -> None:
    async with running(frame(machine(2))) as (app, pilot):
        await press(pilot, "slash", *"user:ben", "enter", "escape")
        assert len(pids(app)) == 10
        for key, pid in (("n", 1001), ("n", 1011), ("N", 1001), ("N", 1011)):
            await press(pilot, key)
            assert selected(app) == pid
        assert len(pids(app)) == 10


@pytest.mark.parametrize("keys", [[], ["e"]])
async def test_escape_clears_what_was_typed_in_the_same_moment(keys: list[str]) -> None:
    async with running(frame(machine(2)), helpers=Helpers(events=Events)) as (app, pilot):
        await press(pilot, *keys)
        for key in ("slash", "a", "b", "escape"):
            app.post_message(Key(key, "/" if key == "slash" else key if len(key) == 1 else None))
        await until(pilot, lambda: not app.screen.query_one(Prompt).display)
        await pilot.pause()
        shown = app.screen.filter if isinstance(app.screen, EventsScreen) else app.dashboard.processes.filter
        assert shown.text == ""


async def test_events_have_the_same_marks_offers_and_jumps() -> None:
    held = [alert(index, id=str(index), title=f"event {index}", raised=1.0 + index) for index in range(4)]
    async with running(frame(machine(4), *held), filters={"one": "gpu:1"}) as (app, pilot):
        await press(pilot, "e")
        events = app.screen
        assert isinstance(events, EventsScreen)
        await press(pilot, "n", *"@o", "tab", "enter")
        assert [one.title for one in events.rows.found] == ["event 3", "event 2", "event 1", "event 0"]
        assert (events.rows.cursor, events.prompt.display) == (2, False)
        await press(pilot, "slash", *"gpu:2-3 mem>3GiB")
        assert marked(app) == "mem>3GiB"
        assert "mem is not a figure of this list" in text(app)
        assert len(events.rows.found) == 2
        await press(pilot, "escape", "n")
        first = events.rows.cursor
        await press(pilot, "N")
        assert {first, events.rows.cursor} == {0, 1}
        assert len(events.rows.found) == 4
        await press(pilot, "slash", *"age<1s")
        assert "no event matches" in text(app)
        await press(pilot, "escape", "escape")
        assert app.screen is app.dashboard
