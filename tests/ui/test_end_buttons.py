"""The buttons of the dialogs: what Enter presses is on screen, at every size that the dashboard is drawn at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from gpuwatch.kill.session import Choice
from gpuwatch.ui.screens.dialog import ConfirmDialog
from tests.support.killing import a_killer
from tests.support.running import RealRun
from tests.support.screens import Host, fits, text_of, until
from tests.ui.test_end_screen import focused, opened

LOW = [(100, height) for height in (6, 7, 8, *range(15, 25))]
NARROW = [(40, 6), (40, 12), (45, 8), (60, 10), (40, 24)]


async def marked(pilot: Pilot[Any], words: str) -> None:
    """Wait until a button is on screen with these words and the marks of what Enter presses."""
    await until(pilot, lambda: f"▌{words}▐" in text_of(pilot.app).replace("▌ ", "▌").replace(" ▐", "▐"))


async def test_the_buttons_of_a_run_are_on_screen_at_every_size(tmp_path: Path) -> None:
    with RealRun(ranks=4, workers=3) as run:
        app = Host(a_killer(tmp_path, dev=run.dev))
        async with app.run_test(size=(100, 24)) as pilot:
            screen = await opened(pilot, run.snapshot(), run.of("rank")[0])
            await pilot.press("s")
            await until(pilot, lambda: "Terminate 17 (SIGTERM)" in text_of(app))
            await marked(pilot, "Cancel")
            await pilot.press("right", "right")
            for size in (*LOW, *NARROW):
                await pilot.resize_terminal(*size)
                await until(pilot, lambda size=size: app.size == size)  # type: ignore[misc]
                await marked(pilot, "Terminate 17 (SIGTERM)" if size[0] >= 60 else "Terminate 17")
                assert fits(app)
            await pilot.resize_terminal(100, 24)
            await marked(pilot, "Terminate 17 (SIGTERM)")
            assert focused(screen) is Choice.TERMINATE


@pytest.mark.parametrize("size", [*NARROW, (100, 6), (80, 24)])
async def test_the_buttons_of_a_question_are_on_screen_at_every_size(size: tuple[int, int]) -> None:
    app = Host()
    async with app.run_test(size=size) as pilot:
        lines = [f"{pid}  python train.py" for pid in range(30)]
        app.push_screen(ConfirmDialog("End 2 processes of yours?", lines, 2))
        await marked(pilot, "Cancel")
        assert "Terminate 2" in text_of(app)
        assert ("(SIGTERM)" in text_of(app)) is (size[0] >= 60)
        await pilot.press("right", "right")
        await marked(pilot, "Terminate 2 (SIGTERM)" if size[0] >= 60 else "Terminate 2")
        assert "Cancel" in text_of(app)
        assert fits(app)


async def test_the_button_that_enter_presses_is_on_screen_where_not_all_of_them_have_room() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(ConfirmDialog("End 137 processes of yours?", ["…"], 137))
        await marked(pilot, "Cancel")
        await pilot.press("right", "right")
        await pilot.resize_terminal(40, 6)
        await marked(pilot, "Terminate 137")
        await pilot.press("left", "left")
        await marked(pilot, "Cancel")


async def test_a_short_question_is_a_small_box() -> None:
    app = Host()
    async with app.run_test(size=(80, 24)) as pilot:
        app.push_screen(ConfirmDialog("End 1 process of yours?", ["4711  python train.py"], 1))
        await marked(pilot, "Cancel")
        assert app.screen.query_one("#dialog").size.height == 3
