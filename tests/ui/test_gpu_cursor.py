"""The cursor on GPUs: where it is, what it chooses, and the list that follows it."""

from __future__ import annotations

import msgspec
import pytest

from gpuwatch.model.snapshot import Health
from gpuwatch.ui.app import GpuwatchApp
from tests.support.builders import gpu, snapshot
from tests.support.screen import alert, click, frame, hand, machine, press, running

TABLE, CELLS = (120, 36), (160, 30)
"""Sizes in which 8 GPUs have rows, and 64 are a heat map."""


def chosen(app: GpuwatchApp) -> int:
    """Return the index of the GPU with the cursor."""
    selected = app.dashboard.gpus.selected
    assert selected is not None
    return selected.index


async def test_the_cursor_follows_its_gpu() -> None:
    async with running(frame(machine(4)), TABLE) as (app, pilot):
        await press(pilot, "tab", "down", "down")
        seen = machine(4)
        await hand(app, pilot, frame(msgspec.structs.replace(seen, gpus=seen.gpus[::-1])))
        assert (chosen(app), app.dashboard.gpus.cursor) == (2, 1)
        await hand(app, pilot, frame(msgspec.structs.replace(seen, gpus=seen.gpus[:2])))
        assert chosen(app) == 1
        await hand(app, pilot, frame(snapshot([])))
        assert app.dashboard.state.selected_gpu is None
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
        line = app.dashboard.gpu_panel.text[-1]
        assert line.startswith("● GPU 17")
        for word in ("you 22.0", "0.0 free", "50%", "nearly full"):
            assert word in line
        seen = machine(64)
        lost = [msgspec.structs.replace(one, health=Health.LOST) if one.index == 17 else one for one in seen.gpus]
        await hand(app, pilot, frame(msgspec.structs.replace(seen, gpus=tuple(lost))))
        assert Health.LOST.value in app.dashboard.gpu_panel.text[-1]
        assert "›▲17:-- " in app.dashboard.gpu_panel.text[1]


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
        assert "GPU 7" in app.dashboard.process_panel.text[0]
        await press(pilot, back)
        assert {row.gpu.index for row in panel.found} == {6}
        assert "GPU 6" in app.dashboard.process_panel.text[0]
        await press(pilot, "f")
        assert len({row.gpu.index for row in panel.found}) == 8
        assert "GPU 6" not in app.dashboard.process_panel.text[0]


async def test_no_process_is_meant_while_the_cursor_is_on_a_gpu() -> None:
    async with running(frame(machine(2)), TABLE) as (app, pilot):
        await press(pilot, "tab", "K", "y")
        assert app.screen is app.dashboard
        assert "Tab moves it to the processes" in next(iter(app._notifications)).message
