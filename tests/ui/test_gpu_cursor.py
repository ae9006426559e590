"""The cursor on GPUs: where it is, what it chooses, and the list that follows it."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from gpuwatch.filters import Filter
from gpuwatch.model import Health
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.theme import make_skin
from tests.support.builders import gpu, snapshot
from tests.support.dashboards import alert, frame, hand, machine, running, screen, text
from tests.support.screens import click, press

TABLE, CELLS = (120, 36), (160, 30)
"""Sizes in which 8 GPUs have rows, and 64 are a heat map."""


def chosen(app: GpuwatchApp) -> int:
    """Return the index of the GPU with the cursor."""
    selected = app.dashboard.gpus.selected
    assert selected is not None
    return selected.index


async def test_tab_moves_the_keys_to_the_gpus_and_back() -> None:
    async with running(frame(machine(3)), TABLE) as (app, pilot):
        dashboard = app.dashboard
        assert (dashboard.selected_gpu, dashboard.selected) == (None, dashboard.processes.found[0])
        await press(pilot, "tab", "down", "j")
        assert dashboard.selected is None
        assert chosen(app) == 2
        await press(pilot, "home")
        assert chosen(app) == 0
        await press(pilot, "pagedown")
        assert chosen(app) == 2
        assert dashboard.processes.cursor == 0
        await press(pilot, "shift+tab", "down")
        assert dashboard.processes.cursor == 1
        assert (chosen(app), dashboard.selected_gpu) == (2, None)


SKINS = [*product([1 << 24, 256, 16, 0], [False, True])]
"""Numbers of colours, and whether in ASCII alone."""


@pytest.mark.parametrize(("gpus", "size"), [(8, TABLE), (64, CELLS)])
async def test_exactly_one_panel_shows_the_cursor(gpus: int, size: tuple[int, int]) -> None:
    async with running(frame(machine(gpus)), size) as (app, _pilot):
        panels = (app.dashboard.processes, app.dashboard.gpus)
        for colors, ascii_only in SKINS:
            app.skin = make_skin(app.theme, ascii_only=ascii_only, colors=colors)
            cursor = app.skin.glyphs.cursor
            grounds = {app.skin.styles(role, "cursor") for role in ("strong", "text", "muted", "faint")}
            for with_it, without in (panels, panels[::-1]):
                app.dashboard.activate(with_it)
                app.paint()
                marked = [span for line in with_it.lines for span in line if span.text.strip() == cursor]
                assert len(marked) == 1 or sum(line.count(cursor) for line in with_it.text) == 1
                assert cursor not in "".join(without.text)
                assert any(span.style in grounds for line in with_it.lines for span in line)
                assert not any(span.style in grounds for line in without.lines for span in line)


async def test_the_cursor_follows_its_gpu() -> None:
    async with running(frame(machine(4)), TABLE) as (app, pilot):
        await press(pilot, "tab", "down", "down")
        seen = machine(4)
        await hand(app, pilot, frame(msgspec.structs.replace(seen, gpus=seen.gpus[::-1])))
        assert (chosen(app), app.dashboard.gpus.cursor) == (2, 1)
        await hand(app, pilot, frame(msgspec.structs.replace(seen, gpus=seen.gpus[:2])))
        assert chosen(app) == 1
        await hand(app, pilot, frame(snapshot([])))
        assert app.dashboard.selected_gpu is None
        await press(pilot, "tab", "enter", "f", "down")  # nothing to choose, and nothing happens
        assert app.screen is app.dashboard
        await hand(app, pilot, frame(seen))
        assert app.dashboard.processes.active


async def test_in_a_heat_map_all_four_arrows_move() -> None:
    async with running(frame(machine(64)), CELLS) as (app, pilot):
        await press(pilot, "tab", "right", "right", "down", "left")
        assert chosen(app) == 17
        await press(pilot, "up", "up")  # the second has no line to go to
        assert chosen(app) == 1
        await press(pilot, "end", "right", "down")
        assert chosen(app) == 63
        await press(pilot, "tab", "left")  # the processes have no left and right
        assert chosen(app) == 63


async def test_below_a_heat_map_stands_the_chosen_gpu() -> None:
    async with running(frame(machine(64), alert(17)), CELLS) as (app, pilot):
        await press(pilot, "tab", "down", "right")
        line = app.dashboard.gpus.text[-1]
        assert line.startswith("● GPU 17")
        for word in ("you 22.0", "0.0 free", "50%", "near limit"):
            assert word in line
        seen = machine(64)
        lost = [msgspec.structs.replace(one, health=Health.LOST) if one.index == 17 else one for one in seen.gpus]
        await hand(app, pilot, frame(msgspec.structs.replace(seen, gpus=tuple(lost))))
        assert Health.LOST.value in app.dashboard.gpus.text[-1]
        assert "▲  --" in app.dashboard.gpus.text[1].replace("›17", "17")


async def test_a_small_heat_map_shows_the_part_with_the_cursor() -> None:
    async with running(frame(machine(64)), (40, 6)) as (app, pilot):
        assert " 0 " in screen(app)[1]
        assert "more GPUs" in text(app)
        await press(pilot, "tab", "end")
        assert "›63" in text(app)
        assert "more GPUs" in text(app)
        await click(pilot, "#gpus", 8, 0)
        shown = app.dashboard.gpus.text[0]
        assert f"›{chosen(app)}" in shown


@pytest.mark.parametrize(("gpus", "size", "cell", "index"), [(8, TABLE, (20, 4), 3), (64, CELLS, (22, 1), 18)])
async def test_a_click_chooses_a_gpu_and_a_second_one_shows_it(
    gpus: int, size: tuple[int, int], cell: tuple[int, int], index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(frame(machine(gpus)), size) as (app, pilot):
        shown: list[str] = []
        monkeypatch.setattr(app, "show_gpu", shown.append)
        await click(pilot, "#gpus", *cell)
        assert app.dashboard.gpus.active
        assert (chosen(app), shown) == (index, [])
        await click(pilot, "#gpus", *cell, times=2)
        assert shown == [gpu(index).key]
        await click(pilot, "#processes", 12, 1)
        assert app.dashboard.processes.active


@pytest.mark.parametrize(("size", "back"), [((60, 10), "left"), (TABLE, "up")])
async def test_the_list_follows_the_chosen_gpu(size: tuple[int, int], back: str) -> None:
    async with running(frame(machine(8)), size) as (app, pilot):
        panel = app.dashboard.processes
        await press(pilot, "tab", "end", "f")
        assert {row.gpu.index for row in panel.found} == {7}
        assert "GPU 7" in panel.text[0]
        await press(pilot, back)
        assert {row.gpu.index for row in panel.found} == {6}
        assert "GPU 6" in panel.text[0]
        await press(pilot, "f")
        assert len({row.gpu.index for row in panel.found}) == 8
        assert "GPU 6" not in panel.text[0]


async def test_a_filter_holds_while_the_list_follows() -> None:
    async with running(frame(machine(4)), TABLE, filter="user:ada gpu:0,1") as (app, pilot):
        assert len(app.dashboard.processes.found) == 2
        await press(pilot, "tab", "f")
        assert len(app.dashboard.processes.found) == 1
        assert " GPU 0 · /user:ada gpu:0,1 · 1 of 20 rows" in app.dashboard.processes.text[0]
        await press(pilot, "end")
        assert "no process on GPU 3 matches" in text(app)
        app.dashboard.processes.filter = Filter()
        await hand(app, pilot, frame(snapshot([*machine(1).gpus, gpu(3)])))
        assert "no process holds GPU 3: Esc shows those of all GPUs" in text(app)


async def test_no_process_is_meant_while_the_cursor_is_on_a_gpu() -> None:
    async with running(frame(machine(2)), TABLE) as (app, pilot):
        await press(pilot, "tab", "K", "y")
        assert app.screen is app.dashboard
        assert "Tab moves it to the processes" in next(iter(app._notifications)).message
