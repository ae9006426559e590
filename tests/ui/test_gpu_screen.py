"""GPU detail and the graphs of process detail: over time, by keys and mouse, at three sizes."""

from __future__ import annotations

import re
import threading
import time
from typing import Any, Final

import pytest
from msgspec.structs import replace

from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.history.history import History
from gpuwatch.history.timeline import Key, Metric, Minute, Timeline
from gpuwatch.model.snapshot import Health, Instance, Promise, Reason, Snapshot, Xid
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.draw.time_axis import AXIS
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.pages import DetailScreen, GpuScreen
from gpuwatch.ui.screens.sheet import FrameSheet
from tests.support import builders
from tests.support.builders import GIB, gpu, holding, memory, process, snapshot
from tests.support.screen import Clockwork, alert, frame, hand, press, resize, running, text, top, until

PLOTS: Final = ("memory, GiB by owner", "work: utilization up, power down", "heat", "links: received up, sent down")
MEMORY, WORK, HEAT, LINKS = PLOTS


def two_people(seconds: float = 0.0, **changes: Any) -> Snapshot:
    """GPU 0 with a process of ada and one of ben, and GPU 1 with none."""
    held = (holding(11, 30.0, sm=70), holding(12, 10.0, sm=0))
    fields = {"holdings": held, "pcie_rx": 2.0 * GIB, "pcie_tx": 1.0 * GIB, "pcie_link": "gen4 x16", **changes}
    seen = snapshot([gpu(0, **fields), gpu(1)], [process(11, "ada"), process(12, "ben")])
    return builders.at(seen, seconds)


def watched(seconds: int, *, without: range = range(0), **changes: Any) -> Frame:
    """The last frame of so many seconds."""
    history = History()
    seen = two_people()
    for second in range(seconds):
        if second not in without:
            seen = two_people(second, **changes)
            history.add(seen, float(second))
    return Frame(seen, float(seconds - 1), history.view)


def sheet(app: GpuwatchApp) -> FrameSheet:
    assert isinstance(app.screen, FrameSheet)
    return app.screen


def legend(app: GpuwatchApp, title: str) -> str:
    """The line of a graph's legend."""
    lines = [line[1:] for line in text(app).splitlines() if line.startswith((f" ╶ {title} ", f" - {title} "))]
    assert lines, f"{title} is not on screen"
    return lines[0]


@pytest.mark.uncounted
@pytest.mark.parametrize("size", [(160, 50), (60, 10)])
async def test_enter_on_a_gpu_shows_it_and_its_processes(size: tuple[int, int]) -> None:
    async with running(watched(150), size) as (app, pilot):
        await press(pilot, "tab", "enter")
        assert isinstance(top(app), GpuScreen)
        assert text(app).startswith(" GPU 0 · H100 80GB")
        assert "ada 30.0" in text(app)
        assert "40.0/79.1 GiB" in text(app)
        for title in PLOTS if size[1] == 50 else ():
            legend(app, title)
        await press(pilot, "j", "enter")
        assert isinstance(top(app), DetailScreen)
        assert text(app).startswith(" 12 python · ben · GPU 0")
        await press(pilot, "escape")
        assert isinstance(top(app), GpuScreen)
        await press(pilot, "escape")
        assert top(app) is app.dashboard


async def test_pcie_is_read_while_the_screen_is_open() -> None:
    async with running(watched(5), (160, 50)) as (app, pilot):
        watching = app.watching
        assert isinstance(watching, Clockwork)
        app.show_gpu(gpu(0).key)
        await pilot.pause()
        assert watching.asked == [("focus", gpu(0).key)]
        await press(pilot, "enter", "escape", "escape")
        await until(pilot, lambda: len(watching.asked) == 2)
        assert watching.asked[-1] == ("focus", None)


async def test_the_mouse_reads_values_and_chooses_processes() -> None:
    async with running(watched(60), (160, 50)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await pilot.pause()
        block = next(one for one in sheet(app).drawing.placed if one.part is not None)
        await pilot.hover("#body", offset=(block.x + AXIS + 20, block.y + 4))
        await pilot.pause()
        assert sheet(app).graphs.cursor is not None
        screen = app.screen
        assert isinstance(screen, GpuScreen)
        place = next(one for one in screen.drawing.placed if one.part is screen.processes)
        await pilot.click("#body", offset=(place.x + 5, place.y + 3))
        await pilot.pause()
        selected = screen.processes.selected
        assert selected is not None
        assert selected.holding.pid == 12
        await pilot.click("#body", offset=(place.x + 5, place.y + 3), times=2)
        await until(pilot, lambda: isinstance(app.screen, DetailScreen))


async def test_a_gap_is_a_gap_in_every_graph() -> None:
    async with running(watched(60, without=range(20, 40)), (160, 50)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await pilot.pause()
        graphs = sheet(app).graphs.blocks
        for title in PLOTS:
            graph = graphs[title].graph
            assert graph is not None
            values = graph.curves[0].values
            known = [value is not None for value in values]
            first, last = known.index(True), len(known) - 1 - known[::-1].index(True)
            assert not all(known[first:last]), title


async def test_memory_of_unknown_processes_is_hatched_on_top_and_a_rest_that_may_be_the_drivers_is_called_so() -> None:
    async with running(watched(150, used_gib=50.0), (160, 50)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await pilot.pause()
        assert "░" in text(app)
        assert " unknown 10.0 " in text(app)
        await hand(app, pilot, watched(150, used_gib=50.0, unattributed=Reason.UNSUPPORTED))
        assert " rest 10.0 " in text(app)


async def test_used_memory_of_a_time_without_owners_is_not_of_unknown_processes() -> None:
    def load(timeline: Timeline, until: float) -> None:
        first = until // 60 * 60 - 240
        values = {str(Key(gpu(0).key, "", Metric.USED)): 50.0 * GIB}
        timeline.load([Minute(at=first + 60 * place, values=values) for place in range(4)])

    async with running(watched(60), (160, 50), helpers=Helpers(older=load)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await until(pilot, lambda: "owner not recorded" in text(app))
        graph = sheet(app).graphs.blocks[MEMORY].graph
        assert graph is not None
        (curve,) = [one for one in graph.curves if one.label == "owner not recorded"]
        assert max(one or 0.0 for one in curve.values) == pytest.approx(50.0 * GIB)
        assert curve.values[-1] is None or curve.values[-1] < GIB
        assert not any(one.hatched for one in graph.curves)


async def test_links_instances_errors_and_events_have_their_sections() -> None:
    part = Instance(uuid="M", name="NVIDIA H100 MIG 1g.10gb", gpu_instance=3, compute_instance=0, memory=memory(2.0))
    changes: dict[str, Any] = {
        "instances": (part,),
        "nvlinks": 18,
        "nvlink_rx": 5.0 * GIB,
        "xids": (Xid(code=79, count=2),),
    }
    held, over = alert(0, title="it holds"), alert(0, id="b", title="it ended", ended=builders.EPOCH, how="back again")
    seen = replace(watched(5, **changes), alerts=(held, alert(1, title="of another GPU")))
    async with running(seen, (160, 90)) as (app, pilot):
        app.ended.append(over)
        app.show_gpu(gpu(0).key)
        await pilot.pause()
        words = {"MIG instances", "1g.10gb: 2.0 GiB of", "gen4 x16", "18 active", "XID 79", "2 times"}
        assert [one for one in {*words, "it holds", "it ended", "back again"} if one not in text(app)] == []
        assert "of another GPU" not in text(app)


async def test_older_values_are_read_once_and_in_the_background() -> None:
    threads: list[str] = []

    def older(timeline: Timeline, at: float) -> None:
        threads.append(threading.current_thread().name)
        key = str(Key(gpu(0).key, "", Metric.UTILIZATION))
        begin = at // 60 * 60
        timeline.load([Minute(at=begin - 60 * back, values={key: 50.0}) for back in range(2, 600)])

    async with running(watched(60), (160, 50), helpers=Helpers(older=older)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await until(pilot, lambda: "known since" not in text(app)[:160])  # of 10 minutes it has seen 1
        await press(pilot, "2", "4", "5", "4")
        await until(pilot, lambda: "1m 10m 1h [6h] 24h" in text(app)[:160] and "known since" not in text(app)[:160])
        assert len(threads) == 1
        assert threads[0] != threading.main_thread().name


async def test_values_are_known_since_the_first_one_and_axes_fit_the_data() -> None:
    async with running(watched(60, power=100.0, power_limit=700.0), (160, 50)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        began = builders.EPOCH
        for key, form in (("2", "%H:%M:%S"), ("5", "%H:%M")):
            await press(pilot, key)
            known = re.search(r"data since ([\d:]+)", text(app).splitlines()[0])
            assert known
            assert known[1] == time.strftime(form, time.localtime(began))
        tops = {name: block.graph.top for name, block in sheet(app).graphs.blocks.items() if block.graph is not None}
        assert tops[MEMORY] == 45 * GIB
        assert "40.0 of 79.1" in legend(app, MEMORY)
        graph = sheet(app).graphs.blocks[WORK].graph
        assert graph is not None
        assert graph.down is not None
        assert graph.down.top < 200
        assert "100 W · limit 700" in legend(app, WORK)


async def test_promises_stand_by_name_and_a_reservation_is_a_row() -> None:
    taken = two_people().taken
    promises = (
        Promise(user="root", bytes=30 * GIB, uid=0, reserved=taken - 720),
        Promise(user="ada", bytes=2 * GIB),
    )
    async with running(Frame(two_people(promises=promises), 0.0, History().view), (160, 50)) as (app, pilot):
        await press(pilot, "tab", "enter")
        shown = text(app)
        assert "root reserved 12 min ago: 30.0 GiB not used yet" in shown
        assert "30.0 GiB to root, reserved 12 min ago" in shown
        assert "2.0 GiB to ada, declared, not used yet" in shown


async def test_a_gpu_that_fails_or_leaves_says_so() -> None:
    async with running(watched(30), (160, 50)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await pilot.pause()
        lost = snapshot([gpu(0, health=Health.LOST, words="GPU is lost (nvmlX)"), gpu(1)])
        await hand(app, pilot, frame(lost))
        assert "GPU is lost" in text(app).splitlines()[1]
        await hand(app, pilot, frame(snapshot([gpu(1)])))
        assert "no longer lists this GPU" in text(app)
        await hand(app, pilot, watched(30))
        assert "any more" not in text(app)


async def test_unknown_values_are_no_zero() -> None:
    bare: dict[str, Any] = dict.fromkeys(
        ("utilization", "power", "temperature", "sm_clock", "pcie_rx", "pcie_tx"), Reason.UNSUPPORTED
    )
    async with running(watched(30, **bare), (160, 50)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await pilot.pause()
        shown = text(app)
        assert [title for title in (WORK, HEAT, LINKS) if title in shown] == []
        assert "util " not in shown
        assert re.search(r"not supported +utilization, .*temperature, .*power", " ".join(shown.split()))


@pytest.mark.uncounted
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_both_details_fit_every_size(ascii_only: bool) -> None:
    async with running(watched(120), (120, 36), ascii=ascii_only) as (app, pilot):
        for key in ("show_gpu", "show_detail"):
            app.show_gpu(gpu(0).key) if key == "show_gpu" else app.show_detail((gpu(0).key, 11, 11))
            await press(pilot, "left", "1", "left", "space", "G")
            for size in [(80, 24)] if ascii_only else [(160, 50), (60, 10), (40, 6), (20, 4)]:
                await resize(app, pilot, size)
                body = sheet(app)._body
                assert {sum(span.cells for span in line) for line in body.lines} == {size[0]}
                assert text(app).isascii() or not ascii_only
            await press(pilot, "escape", "escape")


async def test_the_cursor_reads_values_by_keys_and_goes_by_escape_or_when_the_graphs_have_moved_on() -> None:
    async with running(watched(60), (160, 50)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await press(pilot, "1")
        assert not re.search(r"\d\d:\d\d:\d\d", legend(app, MEMORY))
        await press(pilot, *["left"] * 5)
        found = re.search(r" (\d\d:\d\d:\d\d) · 40.0 of 79.1 · ada 30.0 · ben 10.0 ", legend(app, MEMORY))
        assert found
        await press(pilot, "right")
        later = re.search(r" (\d\d:\d\d:\d\d)", legend(app, MEMORY))
        assert later
        assert later[1] > found[1]
        await press(pilot, "escape")
        assert isinstance(top(app), GpuScreen)
        assert sheet(app).graphs.cursor is None
        await press(pilot, "left")
        assert sheet(app).graphs.cursor is not None
        await hand(app, pilot, watched(160))
        assert sheet(app).graphs.cursor is None


async def test_at_80_by_24_the_page_begins_with_all_figures_and_has_three_processes() -> None:
    held = [holding(11, 30.0), *[holding(20 + place, 1.0) for place in range(5)]]
    seen = snapshot([gpu(0, holdings=tuple(held)), gpu(1)], [process(one.pid, "ada") for one in held])
    over = alert(0, rule=OVERSHOOT, pids=(11,), short="ada over declared")
    async with running(replace(frame(seen), alerts=(over,)), (80, 24)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await pilot.pause()
        lines = text(app).splitlines()
        assert lines[0].startswith(" GPU 0 · H100 80GB  ● ada over declared")
        assert lines[0].endswith(" 1m [10m] 1h 6h 24h ")
        assert re.match(r" 35.0/79.1 GiB · left 44.1 · util 50 % · 310/700 W · 55 °C", lines[1])
        assert [name for name in ("util┤", "power┤", "6 processes", "1 to 3 ╴") if name not in text(app)] == []
        assert re.search(r"› a ada +11  30.0 +38 ●", text(app))
        await press(pilot, *["j"] * 4)
        assert "3 to 5 ╴" in text(app)
        assert re.search(r"› a ada +23 ", text(app))
        await press(pilot, "g")
        assert text(app).startswith(" GPU 1 ")
        await press(pilot, "g")
        assert text(app).startswith(" GPU 0 ")


async def test_the_headline_has_the_figures_of_the_cursors_time() -> None:
    async with running(watched(120), (160, 50)) as (app, pilot):
        app.show_gpu(gpu(0).key)
        await press(pilot, "1")
        assert "memory ▕" in text(app).splitlines()[1]
        await press(pilot, "left")
        assert re.match(r" \d\d:\d\d:\d\d  40.0/79.1 GiB · util 50 % · 310/700 W", text(app).splitlines()[1])
