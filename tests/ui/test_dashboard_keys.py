"""What keys and mouse do to the dashboard, and what it tells, by Pilot with frames handed in."""

from __future__ import annotations

import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from gpuwatch.kill.audit import Audit
from gpuwatch.kill.pinned import Pinner
from gpuwatch.kill.policy import Policy
from gpuwatch.model.fields import PROCESS
from gpuwatch.model.snapshot import SourceState
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.options import Helpers, Options, Reloading
from gpuwatch.ui.screens.events import EventsScreen
from tests.support.builders import snapshot, uid
from tests.support.screen import (
    Clockwork,
    alert,
    click,
    frame,
    hand,
    machine,
    press,
    resize,
    running,
    screen,
    text,
    top,
    until,
)


@pytest.fixture
def killing(tmp_path: Path) -> Helpers:
    return Helpers(ender=lambda: Pinner(Policy(uid=uid("you"), euid=uid("you"), pid=os.getpid()), Audit(tmp_path)))


async def test_the_column_that_is_sorted_by_is_named_at_every_size() -> None:
    async with running(frame(machine(8)), filter="python -nobody") as (app, pilot):
        panel = app.dashboard.processes
        for size in [(40, 8), (80, 24), (160, 50)]:
            await resize(app, pilot, size)
            for by, reverse in product(PROCESS, (False, True)):
                app.action_sort_by(by)  # of the column that is sorted by already, it reverses the order
                await pilot.pause()
                title, words = app.dashboard.process_panel.text[0], PROCESS[by].name
                at = title.find("▴" if PROCESS[by].ascending != reverse else "▾")
                assert at >= 0, title
                near = title[max(0, at - len(words) - 1) : at + len(words) + 1]
                known = [column.title for column in panel._columns if column.id == by]
                named = [word.partition(" ")[0][:3] for word in (*known, words, by)]
                assert any(name in near for name in named), (by, title)
                assert len(title) == size[0]


async def test_sorting_by_keys_and_by_clicks() -> None:
    def pids(app: GpuwatchApp) -> list[int]:
        return [row.holding.pid for row in app.dashboard.processes.found]

    async with running(frame(machine(2))) as (app, pilot):
        assert "▾GiB" in app.dashboard.process_panel.text[0]
        assert pids(app)[0] == 1014
        await pilot.press("r")
        assert "▴GiB" in app.dashboard.process_panel.text[0]
        assert pids(app)[0] == 1000
        await pilot.press("less_than_sign")
        assert app.dashboard.processes.by == "user"
        assert pids(app)[0] == 1000
        title = app.dashboard.process_panel.text[0]
        await click(pilot, "#processes", title.index("PID") + 1, 0)
        assert app.dashboard.processes.by == "pid"
        assert pids(app) == sorted(pids(app))
        assert "▴PID" in app.dashboard.process_panel.text[0]
        await click(pilot, "#processes", title.index("command") + 1, 0)
        assert app.dashboard.processes.by == "command"


async def test_the_mouse_selects_scrolls_and_opens() -> None:
    async with running(frame(machine(16)), (80, 24)) as (app, pilot):
        panel = app.dashboard.processes
        await pilot.click("#processes", offset=(10, 3))
        assert panel.cursor == 2
        app.dashboard.process_panel.on_mouse_scroll_down(_Wheel())  # type: ignore[arg-type]
        assert (panel.top, panel.cursor) == (3, 2)
        app.dashboard.process_panel.on_mouse_scroll_up(_Wheel())  # type: ignore[arg-type]
        assert panel.top == 0
        await pilot.press("end")
        assert panel.selected is panel.found[-1]
        assert panel.top > 60
        await pilot.press("home", "pagedown")
        assert panel.cursor > 1
        await click(pilot, "#processes", 10, 2, times=3)
        assert len(app.screen_stack) == 2, "three clicks open one detail"


async def test_a_click_on_the_number_of_alerts_opens_the_rest() -> None:
    many = [alert(1, rule=f"rule {number}", title=f"trouble {number}") for number in range(9)]
    async with running(frame(machine(2), *many), (80, 24)) as (app, pilot):
        last = len(app.dashboard.alerts.text) - 1
        at = app.dashboard.alerts.text[last].index("+5")
        await click(pilot, "#alerts", at + 1, last)
        assert isinstance(app.screen, EventsScreen)
        assert "trouble 8" in text(app)
        await press(pilot, "escape")
        await click(pilot, "#alerts", at - 2, last)
        assert not isinstance(top(app), EventsScreen), "a click on the alert beside it is about that one"


class _Wheel:
    def stop(self) -> None: ...


async def test_pause_freezes_the_screen_and_the_watch_goes_on() -> None:
    async with running() as (app, pilot):
        await pilot.press("p")
        assert "no data to freeze yet" in [one.message for one in app._notifications]
        await hand(app, pilot, frame(machine(1)))
        assert "1 GPU ·" in text(app)
        await pilot.press("p")
        await hand(app, pilot, frame(machine(3)))
        assert "PAUSED" in text(app)
        assert "1 GPU ·" in text(app)
        assert app.newest is not app.frame
        await pilot.press("p")
        assert "3 GPUs ·" in text(app)


async def test_an_alert_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[int] = []
    monkeypatch.setattr(GpuwatchApp, "bell", lambda self: rung.append(1))
    async with running(frame(machine(2)), bell=True) as (app, pilot):
        await pilot.press("question_mark")
        for _ in range(3):
            await hand(app, pilot, frame(machine(2), alert(1)))
        assert [one.message for one in app._notifications] == ["● GPU 1 nearly full: 0.4 of 79.1 GiB free"]
        assert rung == [1]
        many = [alert(n, gpu=f"g{n}") for n in range(9)]
        await hand(app, pilot, frame(machine(2), *many))
        assert [*app._notifications][-1].message.endswith("GiB free +8: e lists all")
        await hand(app, pilot, frame(machine(2), *many, *[alert(n, gpu=f"h{n}") for n in range(4)]))
        assert [*app._notifications][-1].message.endswith("GiB free +3: e lists all")
        await press(pilot, "escape")
        assert "+9" in "\n".join(app.dashboard.alerts.text)


@pytest.mark.parametrize(
    ("options", "demo", "words"),
    [({"read_only": True}, False, "read-only"), ({}, True, "cannot be ended"), ({}, False, "cannot be ended")],
)
async def test_ending_is_refused_with_a_reason(options: dict[str, Any], demo: bool, words: str) -> None:
    async with running(frame(machine(1, demo=demo)), **options) as (app, pilot):
        await pilot.press("K")
        assert words in next(iter(app._notifications)).message
        assert app.screen is app.dashboard
        assert ("READ-ONLY" in text(app)) is bool(options)
        assert ("K end" in app.dashboard.footer.text[0]) is not bool(options)
        assert ("DEMO" in text(app)) is demo


async def test_the_interval_steps_and_the_retry_reach_the_watch() -> None:
    async with running(frame(machine(1))) as (app, pilot):
        for key in ("plus", "plus", "minus", *["minus"] * 5, "R"):
            await pilot.press(key)
        assert isinstance(app.watching, Clockwork)
        assert app.watching.asked == [2, 5, 2, 1, 0.5, 0.25, 0.25, 0.25, "poke"]
        # Slower is never faster, nor faster slower, whatever the interval was.
        for before, key, after in ((60.0, "plus", 60), (60.0, "minus", 30), (0.1, "minus", 0.1), (3.0, "plus", 5)):
            app.interval = before
            await pilot.press(key)
            assert app.interval == after


async def test_the_end_of_the_source_ends_the_program_with_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    app = GpuwatchApp()
    async with app.run_test() as pilot:
        await hand(app, pilot, frame(snapshot(state=SourceState.ENDED, words="--gpu 9: there is no GPU 9")))
        await pilot.pause()
    assert app.return_code == 2
    assert "there is no GPU 9" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["q", "ctrl+c", "ctrl+q"])
async def test_it_can_be_left(key: str) -> None:
    async with running(frame(machine(1))) as (app, pilot):
        await pilot.press("slash") if key != "q" else None
        await press(pilot, key)
        assert app._exit
    assert app.return_code == 0


async def test_two_quick_clicks_on_a_key_open_one_screen(killing: Helpers) -> None:
    async with running(frame(machine(1), alert(0)), (160, 36), helpers=killing) as (app, pilot):
        for hint in ("people", "ack", "end"):
            at = app.dashboard.footer.text[0].index(f" {hint} ")
            await click(pilot, "#footer", at, 0, times=2)
            assert len(app.screen_stack) == 2, hint
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is app.dashboard)


async def test_the_prompt_is_on_screen_also_where_there_is_room_for_nothing_else() -> None:
    async with running(frame(machine(2)), (80, 24)) as (app, pilot):
        await pilot.press("slash", "a")
        for size in ((30, 5), (39, 1)):
            await resize(app, pilot, size)
            await until(pilot, lambda: "/ a" in screen(app)[-1])
        await press(pilot, "escape")
        assert "gpuwatch needs" in text(app)


async def reloaded(app: GpuwatchApp, pilot: Pilot[int], configured: Options) -> None:
    app.helpers = Helpers(reload=lambda: Reloading("configuration reloaded: nothing has changed", options=configured))
    app.action_reload()
    await until(pilot, lambda: app.options is configured)


async def test_a_theme_chosen_by_hand_stays_unless_the_configuration_names_another() -> None:
    async with running(frame(machine(1))) as (app, pilot):
        app.action_theme("light")
        await reloaded(app, pilot, Options())
        assert app.theme == "gpuwatch-light"
        app.action_theme("dark")
        await reloaded(app, pilot, Options(theme="light"))
        assert app.theme == "gpuwatch-light"
        app.action_theme("dark")
        await reloaded(app, pilot, Options(theme="light"))
        assert app.theme == "gpuwatch-dark"
