"""How the dashboard ends: while a screen opens or closes, by a fault, and by a signal at its start."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.terminal import ExitWatchdog
from tests.support.kill import a_pinner
from tests.support.screen import alert, frame, machine, running

DIALOGS = ["end_process", "columns", "message", "acknowledge", "command_palette", "filter"]
SCREENS = ["help", "detail", "people", "tree", "strays", "events"]


@pytest.mark.parametrize(
    ("action", "closes"), [*((one, False) for one in [*DIALOGS, *SCREENS]), ("columns", True), ("people", True)]
)
async def test_the_end_may_come_while_a_screen_opens_or_closes(tmp_path: Path, action: str, closes: bool) -> None:
    helpers = Helpers(ender=lambda: a_pinner(tmp_path))
    async with running(frame(machine(2), alert()), helpers=helpers) as (app, pilot):
        app.dashboard.processes.move(1)  # to a process of somebody else
        await app.run_action(action)
        if closes:
            await pilot.pause()
            await pilot.press("escape")
        app.exit(return_code=143)
    assert app.return_code == 143


async def test_a_fault_is_reported_where_nobody_asked_for_the_end() -> None:
    def fail() -> None:
        raise LookupError("a fault")

    apps: list[GpuwatchApp] = []

    async def run() -> None:
        async with running(frame(machine(2))) as (app, pilot):
            apps.append(app)
            app.call_later(fail)
            await pilot.pause()

    with pytest.raises(LookupError, match="a fault"):
        await run()
    assert apps[0].return_code == 1


async def test_a_signal_that_comes_before_the_event_loop_ends_the_program_too() -> None:
    asked: list[int] = []
    master, terminal = os.openpty()
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    watchdog = ExitWatchdog(terminal, patience=600.0)
    try:
        watchdog.begin()
        signal.raise_signal(signal.SIGTERM)
        assert asked == []
        watchdog.start(asyncio.get_running_loop(), asked.append, lambda: None)
        assert asked == [143]
    finally:
        watchdog.close()
        signal.signal(signal.SIGTERM, before)
        os.close(master)
        os.close(terminal)
