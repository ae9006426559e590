"""All GPUs at once: their bands at each size, the choice by keys and mouse, the cursor, and what was before."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.history.history import History
from gpuwatch.history.timeline import Key, Metric, Minute, Timeline
from gpuwatch.model.snapshot import Health, Reason, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.draw.gpus_page import BandLayout, place_bands
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
    card = screen(app).bands.selected
    assert card is not None
    return card.index


@pytest.mark.parametrize(
    ("count", "room", "layout"),
    [
        (8, 47, BandLayout(5, 8, 4)),
        (8, 21, BandLayout(2, 8, 4)),
        (8, 8, BandLayout(1, 8, 0)),
        (3, 47, BandLayout(10, 3, 4)),
        (3, 8, BandLayout(2, 3, 1)),
        (64, 47, BandLayout(2, 21, 4)),
        (64, 3, BandLayout(1, 3, 0)),
        (0, 47, BandLayout(10, 1, 4)),
    ],
)
def test_bands_share_the_room_and_have_two_rows_at_least(count: int, room: int, layout: BandLayout) -> None:
    assert place_bands(count, room) == layout


async def test_o_shows_all_gpus_and_enter_the_chosen_one() -> None:
    over = alert(1, rule=OVERSHOOT, short="ada over declared", pids=(11,), title="ada holds more")
    full = alert(2, short="full", title="GPU 2 full: 0.1 GiB of 79.0 free")
    async with running(replace(watched(machine()), alerts=(over, full)), (160, 50)) as (app, pilot):
        await press(pilot, "o")
        lines = text(app).splitlines()
        assert [re.split("[│┃]", line)[0] for line in lines[2:17:5]] == [" ›  0 ", "  ● 1 ", "  ● 2 "]
        assert "40.0/79.1 ada over declared" in lines[7]
        assert "ada 30.0 ●" in lines[8]
        assert "ben 10.0" in lines[9]
        assert "50 %  310 W  55 °C" in lines[11]
        assert any("lost" in line for line in lines[37:42])
        assert "●" in lines[42]
        assert "GPU 2 full: 0.1 GiB of 79.0 free" in lines[43]
        await press(pilot, "down", "down", "up", "enter")
        assert isinstance(top(app), GpuScreen)
        assert text(app).startswith(" GPU 1 ")
        await press(pilot, "escape")
        assert chosen(app) == 1
        place = screen(app).drawing.placed[0]
        await pilot.click("#body", offset=(place.x + 145, place.y + 26), times=2)
        await until(pilot, lambda: isinstance(app.screen, GpuScreen))
        assert text(app).startswith(" GPU 5 ")
        await press(pilot, "escape", "o")
        assert top(app) is app.dashboard


@pytest.mark.uncounted
async def test_the_cursor_reads_all_gpus_at_one_time_without_states() -> None:
    history = History()
    for second in range(60):  # ada's memory doubles at the end
        held = (holding(11, 30.0 if second < 50 else 60.0),)
        now = builders.at(snapshot([gpu(0, holdings=held, power=100.0 + second), gpu(1)], [process(11, "ada")]), second)
        history.add(now, float(second))
    seen = Frame(now, 59.0, history.view, alerts=(alert(0, short="full"),))
    async with running(seen, (160, 50)) as (app, pilot):
        await press(pilot, "o", "1")
        assert "ada 60.0" in text(app)
        assert "full" in text(app).splitlines()[2]
        await press(pilot, *["left"] * 40)
        lines = text(app).splitlines()
        assert re.match(r" GPUs · \d\d:\d\d:\d\d ", lines[0])
        assert "ada 30.0" in text(app)
        assert "full" not in lines[2]
        assert re.search(r"50 %  1[0-4]\d W  55 °C", text(app))


@pytest.mark.parametrize("ascii_only", [False, True])
async def test_every_size_is_filled_and_the_chosen_gpu_is_on_screen(ascii_only: bool) -> None:
    async with running(watched(machine(11), 5), (120, 36), ascii=ascii_only) as (app, pilot):
        await press(pilot, "o")
        for size in [(80, 24)] if ascii_only else [(160, 50), (60, 10), (40, 6), (20, 4), (80, 24)]:
            await resize(app, pilot, size)
            for key, index in (("G", 10), ("up", 9), ("space", 10), ("g", 0)):
                await press(pilot, key)
                body = screen(app)._body
                assert {sum(span.cells for span in line) for line in body.lines} == {size[0]}
                assert chosen(app) == index
                mark = ">" if ascii_only else "›"
                assert any(re.match(rf" {mark}. ?{index} ", line) for line in text(app).splitlines())
        assert text(app).isascii() or not ascii_only
        await resize(app, pilot, (4, 24))  # too narrow for figures or plots, and no error
        assert {sum(span.cells for span in line) for line in screen(app)._body.lines} == {4}


async def test_what_is_not_known_has_a_reason_and_is_no_zero() -> None:
    cards = [
        gpu(0, utilization=Reason.UNSUPPORTED, power=Reason.DENIED, mig=True),
        gpu(1, memory=replace(gpu(1).memory, used=Reason.ERROR)),
    ]
    async with running(watched(snapshot(cards)), (160, 50)) as (app, pilot):
        await press(pilot, "o")
        lines = text(app).splitlines()
        assert "not supported by this GPU" in "".join(lines[2:11])
        assert " W " not in "".join(line[112:] for line in lines[2:11])
        assert "the call failed" in "".join(lines[12:21])
        assert " —/79.1" in lines[12]


@pytest.mark.uncounted
async def test_older_values_are_read_for_all_gpus_and_gpus_may_leave() -> None:
    def older(timeline: Timeline, at: float) -> None:
        keys = [str(Key(gpu(index).key, "", Metric.USED)) for index in range(8)]
        begin = at // 60 * 60
        timeline.load([Minute(at=begin - 60 * back, values=dict.fromkeys(keys, 5e9)) for back in range(2, 1500)])

    async with running(watched(machine()), (160, 50), helpers=Helpers(older=older)) as (app, pilot):
        await press(pilot, "o", "5")
        await until(pilot, lambda: "[24h]" in text(app)[:160] and "known" not in text(app)[:160])
        assert all(row.count(" ") < 10 for row in (line[7:100] for line in text(app).splitlines()[4:37:5]))
        await press(pilot, "3")
        graphs = screen(app).graphs
        newest = graphs.until
        await press(pilot, "comma", "comma")
        assert "until " in text(app).splitlines()[0]
        assert graphs.end == newest - 3600
        await press(pilot, "full_stop", "full_stop")
        assert "[1h]" in text(app).splitlines()[0]
        await press(pilot, *["comma"] * 60)  # not beyond the last day
        assert graphs.start == newest - 86400
        await press(pilot, "escape")
        assert graphs.start > newest - 86400
        await hand(app, pilot, watched(machine(3), 5))
        assert screen(app).bands.layout.shown == 3
        await hand(app, pilot, watched(replace(machine(), gpus=()), 2))
        assert "No GPU is listed" in text(app)
        await press(pilot, "right", "enter", "down")
        assert isinstance(app.screen, GpusScreen)
