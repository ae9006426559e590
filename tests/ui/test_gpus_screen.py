"""All GPUs at once: the grid at each size, the choice by keys and mouse, and what was before."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpuwatch.history.history import History
from gpuwatch.history.timeline import Key, Metric, Minute, Timeline
from gpuwatch.model.snapshot import Health, Reason, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.draw.gpu_pages import GpuGrid, make_grid
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.pages import GpuScreen, GpusScreen
from tests.support import builders
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.screen import alert, hand, press, resize, running, text, top, until


def machine(count: int = 8) -> Snapshot:
    """A machine on whose GPU 1 ada and ben hold memory; its last GPU does not answer."""
    cards = [gpu(index) for index in range(count)]
    cards[1] = gpu(1, holdings=(holding(11, 30.0, sm=70), holding(12, 10.0, sm=0)))
    cards[-1] = gpu(count - 1, health=Health.LOST, utilization=Reason.ERROR)
    return snapshot(cards, [process(11, "ada"), process(12, "ben")])


def watched(seen: Snapshot, seconds: int = 60) -> Frame:
    history = History()
    for second in range(seconds):
        now = builders.at(seen, second)
        history.add(now, float(second))
    return Frame(now, float(seconds - 1), history.view)


def screen(app: GpuwatchApp) -> GpusScreen:
    assert isinstance(app.screen, GpusScreen)
    return app.screen


def chosen(app: GpuwatchApp) -> int:
    """The index of the GPU under the cursor."""
    card = screen(app).chosen
    assert card is not None
    return card.index


@pytest.mark.parametrize(
    ("count", "width", "room", "grid"),
    [
        (8, 157, 47, GpuGrid(4, 37, 23)),
        (8, 77, 21, GpuGrid(2, 37, 10)),
        (8, 57, 8, GpuGrid(2, 27, 8)),
        (3, 157, 47, GpuGrid(3, 51, 47)),
        (16, 157, 47, GpuGrid(4, 37, 11)),
        (1, 17, 2, GpuGrid(1, 17, 2)),
        (0, 157, 47, GpuGrid(1, 157, 47)),
    ],
)
def test_as_many_stand_side_by_side_as_fit_in_whole_rows(count: int, width: int, room: int, grid: GpuGrid) -> None:
    assert make_grid(count, width, room) == grid


async def test_o_shows_all_gpus_and_enter_the_chosen_one() -> None:
    seen = replace(watched(machine()), alerts=(alert(2, title="GPU 2 full: 0.1 GiB of 79.0 free"),))
    async with running(seen, (160, 50)) as (app, pilot):
        await press(pilot, "o", "1")
        shown = text(app)
        assert [index for index in range(8) if f" {index}  " not in shown] == []
        lines = shown.splitlines()
        assert "40.0 of 79.1" in lines[3]
        assert " ada 30.0 " in shown
        assert "●" in lines[2]
        assert "lost" in shown
        assert "the call failed" in shown
        await press(pilot, "right", "down", "left", "up", "right", "enter")
        assert isinstance(top(app), GpuScreen)
        assert text(app).startswith(" GPU 1 ")
        await press(pilot, "escape")
        assert chosen(app) == 1
        place = screen(app).drawing.placed[0]
        await pilot.click("#body", offset=(place.x + 45, place.y + 30), times=2)
        await until(pilot, lambda: isinstance(app.screen, GpuScreen))
        assert text(app).startswith(" GPU 5 ")
        await press(pilot, "escape", "o")
        assert top(app) is app.dashboard


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_every_size_is_filled_and_the_chosen_gpu_is_on_screen(ascii_only: bool) -> None:
    async with running(watched(machine(11), 5), (120, 36), ascii=ascii_only) as (app, pilot):
        await press(pilot, "o")
        for size in [(80, 24)] if ascii_only else [(160, 50), (60, 10), (40, 6), (20, 4), (80, 24)]:
            await resize(app, pilot, size)
            for key, index in (("right", 1), ("left", 0)):
                await press(pilot, key)
                body = screen(app)._body
                assert {sum(span.cells for span in line) for line in body.lines} == {size[0]}
                assert f" {index}  " in text(app)
            for _ in range(11):
                await press(pilot, "down")
            assert chosen(app) != 0
            assert f"{chosen(app)}  " in text(app)
            for _ in range(11):
                await press(pilot, "up")
        assert text(app).isascii() or not ascii_only


async def test_older_values_are_read_for_all_gpus_and_gpus_may_leave() -> None:
    def older(timeline: Timeline, at: float) -> None:
        keys = [str(Key(gpu(index).key, "", Metric.USED)) for index in range(8)]
        begin = at // 60 * 60
        timeline.load([Minute(at=begin - 60 * back, values=dict.fromkeys(keys, 5e9)) for back in range(2, 1500)])

    async with running(watched(machine()), (160, 50), helpers=Helpers(older=older)) as (app, pilot):
        await press(pilot, "o", "5")
        await until(pilot, lambda: "last 24 h " in f"{text(app).splitlines()[0]} ")
        for block in (cell.memory for cell in [*screen(app).block.cells.values()][:7]):
            assert block.graph is not None
            assert block.graph.curves[-1].values[2] is not None
        await press(pilot, "3")
        graphs = screen(app).graphs
        newest = graphs.until
        await press(pilot, "comma", "comma")
        assert "1 h until " in text(app).splitlines()[0]
        assert graphs.end == newest - 3600
        await press(pilot, "full_stop", "full_stop")
        assert "last 1 h " in text(app).splitlines()[0]
        await press(pilot, *["comma"] * 60)  # not beyond the last day
        assert graphs.start == newest - 86400
        await press(pilot, "escape")
        assert graphs.start > newest - 86400
        await hand(app, pilot, watched(machine(3), 5))
        assert len(screen(app).block.cells) == 3
        await hand(app, pilot, watched(replace(machine(), gpus=()), 2))
        assert "No GPU is listed" in text(app)
        await press(pilot, "right", "enter", "down")
        assert isinstance(app.screen, GpusScreen)
