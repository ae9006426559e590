"""Contract of the list screens (people, tree, strays, events): each behaves alike, whatever it lists."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import replace
from rich.cells import cell_len
from textual.events import MouseScrollDown
from textual.pilot import Pilot

from gpuwatch.model.snapshot import Health, ProcessContext, SourceState
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.screens.list_screen import ListScreen
from tests.analysis.test_tree import run_of
from tests.support import builders
from tests.support.process import ME
from tests.support.screen import (
    HOSTILE,
    alert,
    click,
    fits,
    frame,
    hand,
    machine,
    press,
    running,
    set_size,
    text,
    until,
)
from tests.support.strays import LEFT
from tests.ui.test_strays_screen import framed

KEYS = ["u", "t", "S", "e"]
OF_FRAMES = ["u", "t", "S"]
"""Those that list what a frame has, and nothing from a log."""


def full(words: list[str]) -> Frame:
    """Return a frame with a row in every list for each of these words: a user, a run, a stray and an alert."""
    people, held, alerts = [], [], []
    for n, word in enumerate(words):
        context = ProcessContext(run=run_of(f"{n}:1", name=word, launcher=word), pod=word, server=word)
        people.append(builders.process(100 + n, word, uid=3000 + n, command=word, context=context))
        fields: dict[str, Any] = {**LEFT, "context": ProcessContext(), "cpu": 0.0, "state": "sleeping", "uid": ME}
        people.append(builders.process(1000 + n, "you", command=f"{word} {n}", **fields))
        held += [builders.holding(100 + n, 2.0), builders.holding(1000 + n, 1.0, sm=0)]
        alerts.append(alert(0, id=f"{n:010}", title=f"{word} {n}", evidence=word, rule=word, raised=9e8 + n))
    seen = builders.snapshot([builders.gpu(0, holdings=held)], people, viewer=ME)
    return replace(framed(seen), alerts=tuple(alerts))


def listed(app: GpuwatchApp) -> ListScreen[Any, Any]:
    assert isinstance(app.screen, ListScreen)
    return app.screen


async def opened(app: GpuwatchApp, pilot: Pilot[int], key: str) -> ListScreen[Any, Any]:
    await press(pilot, key)
    return listed(app)


@pytest.mark.parametrize("ascii_only", [False, True])
@pytest.mark.uncounted
async def test_it_fits_any_size_and_takes_any_text(ascii_only: bool) -> None:
    sizes = [(80, 24)] if ascii_only else [(160, 50), (60, 10), (40, 6), (8, 2)]
    async with running(full(HOSTILE), sizes[0], ascii=ascii_only) as (app, pilot):
        for key in KEYS:
            screen = await opened(app, pilot, key)
            assert len(screen.rows.found) >= len(HOSTILE)
            for size in sizes:
                await set_size(pilot, size)
                await press(pilot, "j", "greater_than_sign", "r", "G", "pageup", "g", "pagedown", "asterisk", "x")
                assert fits(app)
                lines = text(app).splitlines()
                assert [cell_len(line) for line in lines] == [size[0]] * size[1]
                assert not ascii_only or text(app).isascii()
                assert size[0] < 40 or "Esc" in lines[-1]
            await press(pilot, "escape")


@pytest.mark.parametrize("key", KEYS)
async def test_the_cursor_stays_on_its_row(key: str) -> None:
    words = [f"user{n:02}" for n in range(30)]
    async with running(full(words), (80, 24)) as (app, pilot):
        screen = await opened(app, pilot, key)
        rows = screen.rows
        await pilot.press("j", "j", "j")
        chosen = rows.identity(rows.selected)
        fewer = full(words)
        await hand(app, pilot, replace(fewer, alerts=(*fewer.alerts, alert(1, raised=9.5e8))))
        assert rows.identity(rows.selected) == chosen
        await pilot._post_mouse_events([MouseScrollDown], screen.list_panel, offset=(5, 2))
        await pilot.pause()
        assert rows.identity(rows.selected) == chosen, "the wheel moves what is on screen, and not the cursor"
        top = rows.top
        assert top == 3
        await hand(app, pilot, fewer)
        assert rows.top == top
        await press(pilot, "end")
        many = len(rows.found)
        assert f"–{many} of {many}" in text(app).splitlines()[0]
        await press(pilot, "g")
        assert f"1–{rows.page_rows} of {many}" in text(app).splitlines()[0]


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("u", "nobody uses a GPU"),
        ("t", "no process uses a GPU"),
        ("S", "none of your processes is a stray"),
        ("e", "no alert yet"),
    ],
)
async def test_an_empty_list_says_why_and_its_keys_do_nothing(key: str, words: str) -> None:
    async with running(frame(builders.snapshot([builders.gpu(0)])), (60, 10)) as (app, pilot):
        screen = await opened(app, pilot, key)
        await until(pilot, lambda: words in text(app))
        await pilot.press("j", "G", "enter", *"yKiax", "right", "left", "less_than_sign", "r", "asterisk")
        assert app.screen is screen
        assert not app._notifications or key == "S"
        await hand(app, pilot, full(["ada"]))
        assert words not in text(app)
        assert screen.rows.found


async def test_it_is_left_by_each_of_its_keys_and_by_a_click() -> None:
    async with running(full(["ada"]), (80, 24)) as (app, pilot):
        for key, way in zip(KEYS, ("escape", "q", "S", "click"), strict=True):
            screen = await opened(app, pilot, key)
            await (pilot.click(f"#{screen.NAME}-keys", offset=(2, 0)) if way == "click" else pilot.press(way))
            await until(pilot, lambda: app.screen is app.dashboard)


@pytest.mark.parametrize(("key", "reversible"), [("u", True), ("t", False)])
async def test_a_list_is_sorted_by_keys_and_by_clicks(key: str, reversible: bool) -> None:
    async with running(full(["ada", "ben", "cyn"]), (160, 50)) as (app, pilot):
        screen = await opened(app, pilot, key)
        rows, panel = screen.rows, screen.list_panel
        tried = set()
        for _ in rows.sorts:
            await pilot.press("end", "greater_than_sign")
            tried.add(rows.by)
            assert (rows.cursor, rows.top) == (0, 0), "at its top after a change"
        assert tried == set(rows.sorts)
        title = panel.text[0]
        await click(pilot, panel, title.index("user") + 1, 0)
        assert rows.by == "user"
        assert "user▴" in panel.text[0]
        if reversible:
            await pilot.press("r")
            assert rows.reverse
            await pilot.press("less_than_sign")
            assert not rows.reverse


@pytest.mark.parametrize("key", OF_FRAMES)
async def test_figures_that_are_old_and_a_driver_that_is_down_are_said_to_be(key: str) -> None:
    down = structs.replace(machine(0), state=SourceState.DRIVER_DOWN, words="nvmlInit: DRIVER_NOT_LOADED")
    async with running(frame(machine(2)), (60, 10)) as (app, pilot):
        await opened(app, pilot, key)
        assert " old" not in text(app).splitlines()[0]
        await hand(app, pilot, frame(machine(2), age=30.0))
        assert " 30 s old" in text(app).splitlines()[0]
        await hand(app, pilot, frame(down))
        await until(pilot, lambda: "the driver does not answer" in text(app))
        assert not any(claim in text(app) for claim in ("nobody", "none of", "0.0 GiB", " 0 ", "no strays"))
        await press(pilot, "enter", "y", "K", "i", "space", "right", "asterisk", "m", "r", "less_than_sign")
        await hand(app, pilot, frame(machine(2)))
        assert "the driver does not answer" not in text(app)


async def test_no_stray_is_claimed_of_a_gpu_that_does_not_tell() -> None:
    card = builders.gpu(0, health=Health.LOST, holdings_note="the GPU does not answer")
    async with running(frame(builders.snapshot([card]))) as (app, pilot):
        await opened(app, pilot, "S")
        assert "no strays found" in text(app)
        assert "GPU 0 could not be checked: lost" in text(app)
