"""What people, tree and strays have in common: old figures, no figures at all, another theme, the frozen dashboard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch.model import Health, SourceState, Surroundings
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.screens.detail import DetailScreen
from gpuwatch.ui.screens.dialog import ConfirmDialog
from tests.support import builders
from tests.support.dashboards import frame, hand, machine, running, text
from tests.support.gpuholder import ME
from tests.support.killing import a_killer
from tests.support.straying import LEFT, mine
from tests.ui.test_ui_strays import framed, helpers

KEYS = ["u", "t", "S"]


@pytest.mark.parametrize("key", KEYS)
async def test_figures_that_are_old_are_said_to_be(key: str) -> None:
    async with running(frame(machine(2)), (80, 24)) as (app, pilot):
        await pilot.press(key)
        assert " old" not in text(app).splitlines()[0]
        await hand(app, pilot, frame(machine(2), age=30.0))
        assert " 30 s old" in text(app).splitlines()[0]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("size", [(160, 50), (60, 10)])
async def test_a_driver_that_is_down_is_no_empty_machine(key: str, size: tuple[int, int]) -> None:
    words = "nvmlInit answered NVML_ERROR_DRIVER_NOT_LOADED"
    down = replace(machine(0), state=SourceState.DRIVER_DOWN, words=words)
    async with running(frame(machine(2)), size) as (app, pilot):
        await pilot.press(key, "j")
        await hand(app, pilot, frame(down))
        assert "the driver does not answer" in text(app)
        assert not any(claim in text(app) for claim in ("nobody", "none of", "0.0 GiB", " 0 ", "no strays"))
        await pilot.press("enter", "y", "K", "i", "space", "right", "asterisk", "m", "r", "less_than_sign")
        await hand(app, pilot, frame(machine(2)))
        assert "the driver does not answer" not in text(app)


async def test_no_stray_is_claimed_of_a_gpu_that_does_not_tell() -> None:
    card = builders.gpu(0, health=Health.LOST, holdings_note="the GPU does not answer")
    async with running(frame(builders.snapshot([card]))) as (app, pilot):
        await pilot.press("S")
        assert "none found" in text(app)
        assert "GPU 0 could not be judged: lost" in text(app)


def grounds(app: GpuwatchApp) -> set[str]:
    """Return the colours behind a line of the list."""
    return {str(one.style.bgcolor) for one in app.screen._compositor.render_strips()[6] if one.style}


@pytest.mark.parametrize("key", [*KEYS, "e"])
async def test_another_theme_reaches_the_screen_that_is_open(key: str) -> None:
    async with running(frame(machine(0)), (80, 24)) as (app, pilot):
        await pilot.press(key)
        await pilot.pause()
        dark = grounds(app)
        app.action_theme("light")
        await pilot.pause()
        assert grounds(app).isdisjoint(dark)
        await pilot.press("escape", key)
        await pilot.pause()
        light = grounds(app)
        assert light.isdisjoint(dark)


async def test_detail_from_a_screen_has_the_newest_while_the_dashboard_is_frozen() -> None:
    fields: dict[str, Any] = {**LEFT, "surroundings": Surroundings(), "cpu": 0.0, "state": "sleeping", "uid": ME}
    before = builders.snapshot([builders.gpu(0)], viewer=ME)
    people = [builders.process(10, "you", command="python left.py", **fields)]
    after = builders.snapshot([builders.gpu(0, holdings=[builders.holding(10, 4.0, sm=0)])], people, viewer=ME)
    async with running(frame(before)) as (app, pilot):
        await pilot.press("p")
        await hand(app, pilot, framed(after))
        await pilot.press("S", "i")
        await pilot.pause()
        assert isinstance(app.screen, DetailScreen)
        assert "python left.py" in text(app)
        assert "is on no GPU any more" not in text(app)


async def test_who_came_after_the_dashboard_was_frozen_is_shown_and_it_goes_on() -> None:
    seen = builders.snapshot([builders.gpu(0, holdings=[builders.holding(77, 9.0)])], [builders.process(77, "zoe")])
    async with running(frame(machine(1))) as (app, pilot):
        await pilot.press("p")
        await hand(app, pilot, frame(seen))
        await pilot.press("u", "enter")
        await pilot.pause()
        assert [row.owner for row in app.dashboard.processes.found] == ["zoe"]
        assert not app.paused
        assert "no longer paused" in "".join(one.message for one in app._notifications)


async def test_who_was_there_when_the_dashboard_was_frozen_is_shown_as_they_were() -> None:
    async with running(frame(machine(1))) as (app, pilot):
        await pilot.press("p")
        await hand(app, pilot, frame(machine(2)))
        await pilot.press("u", "enter")
        await pilot.pause()
        assert len(app.dashboard.processes.found) == 1
        assert app.paused


async def test_two_quick_clicks_on_a_key_of_a_list_mean_one() -> None:
    async with running(frame(machine(2)), (120, 36)) as (app, pilot):
        await pilot.press("t")
        await pilot.pause()
        await pilot.press("asterisk", "end")
        await pilot.pause()
        at = text(app).splitlines()[-1].index("detail")
        await pilot.click("#tree-keys", offset=(at, 0), times=3)
        await pilot.pause()
        assert len(app.screen_stack) == 3
        assert isinstance(app.screen, DetailScreen)


async def test_two_quick_clicks_ask_once_whether_to_end_what_is_ticked(tmp_path: Path) -> None:
    held = [builders.holding(100, 4.0, sm=0)]
    seen = builders.snapshot([builders.gpu(0, holdings=held)], [mine(uid=ME)], viewer=ME)
    async with running(framed(seen), helpers=helpers(a_killer(tmp_path))) as (app, pilot):
        await pilot.press("S", "space")
        await pilot.pause()
        at = text(app).splitlines()[-1].index("end selected")
        await pilot.click("#strays-keys", offset=(at, 0), times=2)
        await pilot.pause()
        assert isinstance(app.screen, ConfirmDialog)
        assert len(app.screen_stack) == 3


@pytest.mark.parametrize("key", KEYS)
async def test_a_storm_of_sizes_leaves_it_whole(key: str) -> None:
    async with running(frame(machine(4)), (160, 50)) as (app, pilot):
        await pilot.press(key)
        for size in [(20, 5), (1, 1), (200, 60), (45, 8), (60, 10), (80, 24), (3, 40), (120, 36)] * 2:
            await pilot.resize_terminal(*size)
            await hand(app, pilot, frame(machine(4)))
        await pilot.pause()
        assert all(len(line) <= 120 for line in text(app).splitlines())
        assert "Esc" in text(app).splitlines()[-1]
