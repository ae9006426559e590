"""Reading the configuration again while the dashboard runs: what is open follows it, what was chosen by hand stays."""

from __future__ import annotations

from textual.pilot import Pilot

from gpuwatch.analysis.strays import StrayLimits
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.options import Helpers, Options, Reloading
from gpuwatch.ui.screens.detail import DetailScreen
from tests.support import builders
from tests.support.dashboards import frame, machine, running, text, top
from tests.support.gpuholder import ME
from tests.support.screens import until
from tests.support.straying import mine
from tests.ui.test_strays_screen import framed

NEVER = StrayLimits(idle_after=1e9, idle_memory=1 << 60)


async def reloaded(app: GpuwatchApp, pilot: Pilot[int], configured: Options) -> None:
    app.helpers = Helpers(reload=lambda: Reloading("configuration read again", options=configured))
    app.action_reload()
    await until(pilot, lambda: app.options is configured)


def with_a_stray() -> Frame:
    held = [builders.holding(100, 4.0, sm=0)]
    return framed(builders.snapshot([builders.gpu(0, holdings=held)], [mine(uid=ME)], viewer=ME))


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


async def test_what_counts_as_a_stray_reaches_an_open_detail() -> None:
    async with running(with_a_stray()) as (app, pilot):
        await pilot.press("enter")
        assert isinstance(top(app), DetailScreen)
        assert "Stray: nobody attends to it" in text(app)
        await reloaded(app, pilot, Options(stray_limits=NEVER))
        await until(pilot, lambda: "Stray: nobody attends to it" not in text(app))


async def test_what_counts_as_a_stray_reaches_a_frozen_dashboard() -> None:
    async with running(with_a_stray()) as (app, pilot):
        assert "stray (idle)" in text(app)
        await pilot.press("p")
        await reloaded(app, pilot, Options(stray_limits=NEVER))
        await until(pilot, lambda: "stray (idle)" not in text(app))
        assert "PAUSED" in text(app)
