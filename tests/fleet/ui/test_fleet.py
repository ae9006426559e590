"""Screens of a fleet: what each shows, its keys, its filter, its troubles, and the graphs of a host."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from msgspec.structs import replace
from rich.cells import cell_len
from textual.pilot import Pilot
from textual.screen import Screen

from gpuwatch.base.units import GIB
from gpuwatch.fleet.host import HOST, HostGpu
from gpuwatch.fleet.overview import Fleet, HostOwner, HostPast, PastKey
from gpuwatch.fleet.reader import FleetReader
from gpuwatch.fleet.ui.fleet_app import FleetApp, FleetHelp
from gpuwatch.fleet.ui.fleet_host_screen import FleetHostScreen, owner_words, span_step
from gpuwatch.fleet.ui.fleet_screens import FleetAlertsScreen, FleetPeopleScreen, FreeScreen, MapScreen, TableScreen
from gpuwatch.ui.options import Options
from tests.fleet.test_overview import NOW, alert, card, fleet, user
from tests.support.prometheus import a_fleet
from tests.support.screen import click, fits, press, set_size, text, until

SMALL = "\n".join(
    [
        card(0, 72.0),
        card(1, 0.0),
        card(2, 0.0, up__bool=0.0),
        card(3, 10.0, memory_used__bytes=None),
        user("ada", "a:9400", 72.0, idle_memory=9.0),
        alert("GpuwatchNearlyFull", "critical", instance="a:9400", gpu="0", uuid="GPU-a:9400-0"),
        *(card(index, 0.0, host="b:9400", name="NVIDIA L40S") for index in range(4)),
        'up{instance="c:9400"} 0',
        'gpuwatch:host_age:seconds{instance="a:9400"} 7',
    ]
)
VIEWS = {"m": MapScreen, "t": TableScreen, "f": FreeScreen, "u": FleetPeopleScreen, "e": FleetAlertsScreen}


class Reader:
    """Stands in for the reader: remembers what it was asked, and answers when the test says so."""

    def __init__(self, newest: Fleet) -> None:
        self.newest = newest
        self.read = 0
        self.asked: list[tuple[str, float, float, int]] = []
        self.futures: list[Future[HostPast]] = []

    def start(self) -> None:
        self.read += 1

    def past(self, host: str, start: float, step: float, count: int) -> Future[HostPast]:
        self.asked.append((host, start, step, count))
        self.futures.append(Future())
        return self.futures[-1]


Running = tuple[FleetApp, Pilot[int], Reader]


@asynccontextmanager
async def running(
    first: Fleet | None = None, size: tuple[int, int] = (110, 30), *, now: float = 6.0, **options: Any
) -> AsyncIterator[Running]:
    """Run the app on a fleet that was received at 5."""
    reader = Reader(fleet(SMALL) if first is None else first)
    app = FleetApp(options=Options(**options), reader=cast(FleetReader, reader), clock=lambda: now)
    async with app.run_test(size=size, notifications=True) as pilot:
        await pilot.pause()
        yield app, pilot, reader


def top(app: FleetApp) -> Screen[Any]:
    """Return the screen on top; a checker does not take it for the one that was there before."""
    return app.screen


def lines(app: FleetApp) -> list[str]:
    return text(app).splitlines()


def line_of(app: FleetApp, words: str) -> str:
    return next(line for line in lines(app) if words in line)


async def publish(app: FleetApp, pilot: Pilot[int], new: Fleet) -> None:
    app.publish(new)
    await until(pilot, lambda: app.fleet is new)
    await pilot.pause()


# -- views ----------------------------------------------------------------------------------------------------------


async def test_the_heat_map_has_a_cell_for_each_gpu() -> None:
    async with running() as (app, pilot, _):
        assert "3 hosts · 8 GPUs · 5 free · 1 alert · 1 without new data" in lines(app)[0]
        assert "90● free down   —" in line_of(app, "● a ")
        assert "1/4" in line_of(app, "● a ")
        assert "free free free free" in line_of(app, " b ")
        assert "its exporter does not answer" in line_of(app, " c ")
        await press(pilot, "v")
        assert "utilization %" in lines(app)[0]
        assert "50●" in line_of(app, "● a ")


async def test_a_gpu_that_is_not_listed_leaves_its_place_empty_and_one_that_does_not_fit_is_counted() -> None:
    many = "\n".join([card(0, 8.0), card(2, 16.0), *(card(index, 24.0, host="b:1") for index in range(12))])
    async with running(fleet(many), (60, 20)) as (app, pilot, _):
        assert " 10        20" in line_of(app, " a ")
        assert "+5" in line_of(app, " b ")
        await set_size(pilot, (110, 20))
        assert line_of(app, " b ").count("30") == 12


async def test_each_view_has_its_key_everywhere_and_escape_leads_to_the_map() -> None:
    async with running() as (app, pilot, _):
        for key, kind in [*VIEWS.items(), *reversed(VIEWS.items())]:
            await press(pilot, key)
            assert type(top(app)) is kind
            assert len(app.screen_stack) == 1 + (kind is not MapScreen)
        await press(pilot, "u", "escape")
        assert type(top(app)) is MapScreen
        await press(pilot, "escape")
        assert app.is_running
        await press(pilot, "question_mark")
        assert isinstance(top(app), FleetHelp)
        assert "Show free GPUs by model" in text(app)
        await press(pilot, "escape", "t", "q")
        await until(pilot, lambda: not app.is_running or app.return_code == 0)


@pytest.mark.uncounted
async def test_the_palette_opens_views_and_changes_the_theme_which_is_saved() -> None:
    saved: list[object] = []
    async with running() as (app, pilot, reader):
        app.save = saved.append
        for words, kind in (("free gpus by model", FreeScreen), ("hosts as a heat", MapScreen)):
            await press(pilot, "colon")
            await pilot.press(*words)
            await until(pilot, lambda: bool(getattr(app.screen, "_hit_count", 0)))
            await press(pilot, "enter")
            await until(pilot, lambda kind=kind: type(top(app)) is kind)  # type: ignore[misc]
        await press(pilot, "enter", "ctrl+p")
        await pilot.press(*"theme: light")
        await until(pilot, lambda: bool(getattr(app.screen, "_hit_count", 0)))
        await press(pilot, "enter")
        await until(pilot, lambda: saved == [{"theme": "light"}])
        assert app.theme == "gpuwatch-light"
        assert isinstance(top(app), FleetHostScreen)
        assert not reader.read


async def test_tables_show_what_the_fields_say() -> None:
    async with running() as (app, pilot, _):
        await press(pilot, "t")
        row = line_of(app, "● GPU 0: nearly full").split()
        assert row[:9] == ["›", "a", "4", "1", "30", "238.0", "50", "1", "7s"]
        await press(pilot, "f")
        assert line_of(app, "L40S").split() == ["›", "L40S", "80", "4", "4", "4", "b", "4"]
        await press(pilot, "u")
        assert line_of(app, "ada").split()[1:6] == ["ada", "72.0", "11", "1", "1"]
        assert "9.0 GiB of it idle" in text(app)
        await press(pilot, "e")
        assert line_of(app, "nearly full").split()[:4] == ["›", "●", "a", "10m"]


async def test_enter_leads_from_free_gpus_and_people_to_hosts_and_from_an_alert_to_its_host() -> None:
    async with running() as (app, pilot, _):
        await press(pilot, "f", "enter")
        assert "filter: L40S free>=4" in lines(app)[0]
        assert [host.name for host in cast(TableScreen, top(app)).rows.found] == ["b"]
        await press(pilot, "u", "enter")
        assert "filter: user:ada" in lines(app)[0]
        assert [host.name for host in cast(TableScreen, top(app)).rows.found] == ["a"]
        await press(pilot, "escape")
        assert type(top(app)) is TableScreen
        assert len(cast(TableScreen, top(app)).rows.found) == 3
        await press(pilot, "e", "enter")
        assert isinstance(top(app), FleetHostScreen)
        assert lines(app)[0].startswith(" a · 4 GPUs H100 ")


async def test_a_filter_follows_each_key_and_a_mistake_is_said() -> None:
    async with running() as (app, pilot, _):
        screen = cast(MapScreen, top(app))
        await press(pilot, "slash", *"free", "greater_than_sign", "equals_sign", "4")
        assert [host.name for host in screen.rows.found] == ["b"]
        await press(pilot, "enter")
        assert "filter: free>=4" in lines(app)[0]
        assert "1 of 3 hosts" in lines(app)[0]
        await press(pilot, "slash", *" sm", "greater_than_sign", "3")
        assert "sm is not a figure of this list" in text(app)
        await press(pilot, "escape", "slash", *"zzz", "enter")
        assert "no host matches “zzz”: Esc clears the filter" in text(app)


async def test_a_filter_of_the_command_line_is_there_at_first() -> None:
    async with running(filter="free>=4") as (app, _, _):
        assert [host.name for host in cast(MapScreen, top(app)).rows.found] == ["b"]


async def test_a_filter_follows_its_people_and_may_be_a_saved_one() -> None:
    async with running(filter="@adas", filters={"adas": "user:ada free<2"}) as (app, pilot, _):
        screen = cast(MapScreen, top(app))
        assert [host.name for host in screen.rows.found] == ["a"]
        await publish(app, pilot, fleet(f"{SMALL}\n{card(5, 1.0, host='d:1')}\n{user('ada', 'd:1', 1.0)}"))
        assert [host.name for host in screen.rows.found] == ["a", "d"]


async def test_a_name_that_is_no_filter_ends_nothing() -> None:
    name = "gpu:x @nothing mem>"
    async with running(fleet(card(0, 0.0, name=name))) as (app, pilot, _):
        await press(pilot, "f", "enter")
        assert type(top(app)) is TableScreen


@pytest.mark.uncounted
async def test_the_cursor_stays_on_its_host_and_columns_sort() -> None:
    async with running(fleet(a_fleet(60, 8)), (110, 24)) as (app, pilot, _):
        rows = cast(MapScreen, top(app)).rows
        await press(pilot, "end", "up")
        chosen = rows.selected.name
        await publish(app, pilot, fleet(a_fleet(59, 8)))
        assert rows.selected.name == chosen
        await press(pilot, "t", "greater_than_sign", "greater_than_sign")
        screen = cast(TableScreen, top(app))
        table, panel = screen.rows, screen.list_panel
        for order in ("gpus", "free", "memory", "left", "busy", "people", "age"):
            assert table.by == order
            assert f"▾{HOST[order].title}" in panel.text[0]
            await press(pilot, "greater_than_sign")
        await click(pilot, panel, panel.text[0].index("free") + 1, 0)
        assert table.by == "free"
        assert table.found[0].name == "node0000"
        await press(pilot, "r")
        assert table.found[0].name != "node0000"


# -- troubles -------------------------------------------------------------------------------------------------------


async def test_old_figures_stay_with_their_age_and_the_trouble() -> None:
    async with running(now=50.0) as (app, pilot, _):
        trouble = "http://prom: it refuses fleet.token_file (401)"
        await publish(app, pilot, replace(app.fleet, trouble=trouble))
        for key in VIEWS:
            await press(pilot, key)
            assert " 45 s old " in lines(app)[0]
            assert lines(app)[1].strip() == trouble
        await press(pilot, "m")
        assert "free free free free" in text(app)
        await publish(app, pilot, replace(app.fleet, trouble="", received=50.0))
        assert " old" not in lines(app)[0]
        assert trouble not in text(app)


@pytest.mark.uncounted
@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (Fleet(server="http://prom"), "reading http://prom"),
        (Fleet(server="http://prom", trouble="http://prom: no answer within 10 s"), "no data yet"),
        (fleet(""), "http://prom has no hosts: are gpuwatch's recording rules loaded there?"),
    ],
)
async def test_an_empty_screen_says_why(shown: Fleet, words: str) -> None:
    async with running(shown) as (app, pilot, _):
        for key in VIEWS:
            await press(pilot, key)
            assert words in text(app)
            assert shown.trouble in text(app)
        await press(pilot, "t", "enter", "u", "enter", "f", "enter")
        assert not isinstance(top(app), FleetHostScreen)


async def test_a_partial_answer_is_said() -> None:
    async with running(fleet(SMALL, "the answer is partial: store eu-1 is down")) as (app, _, _):
        assert lines(app)[1].rstrip().endswith("store eu-1 is down")


@pytest.mark.uncounted
@pytest.mark.parametrize("ascii_only", [False, True])
async def test_it_fits_any_size(ascii_only: bool) -> None:
    hostile = "[/x] [b 日本語のプロセス" + "x" * 300
    many = f"{SMALL}\n" + "\n".join(card(n, 1.0, host=f"{hostile}:1", name=hostile) for n in range(20))
    many += (
        f"\n{user(hostile, f'{hostile}:1', 3.0)}\n{alert('Gpuwatch' + hostile, instance=f'{hostile}:1', user=hostile)}"
    )
    async with running(fleet(many, hostile), (80, 24), ascii=ascii_only) as (app, pilot, _):
        for size in [(80, 24), (160, 50), (60, 10), (40, 6), (8, 2)]:
            await set_size(pilot, size)
            for key in VIEWS:
                await press(pilot, key, "j", "G", "g", "greater_than_sign", "r", "less_than_sign")
                assert fits(app)
                assert [cell_len(line) for line in lines(app)] == [size[0]] * size[1]
                assert not ascii_only or text(app).isascii()
            await press(pilot, "t", "enter")
            assert isinstance(top(app), FleetHostScreen)
            assert [cell_len(line) for line in lines(app)] == [size[0]] * size[1]
            await press(pilot, "escape")


async def test_r_reads_the_server_now() -> None:
    async with running() as (_, pilot, reader):
        await press(pilot, "R", "t", "R")
        assert reader.read == 2


# -- one host -------------------------------------------------------------------------------------------------------


def past_of(reader: Reader, place: int = -1) -> HostPast:
    """Return an answer to a question of the screen: ada on GPU 0, which is half busy."""
    host, start, step, count = reader.asked[place]
    uuid = "GPU-a:9400-0"
    series = {
        PastKey(uuid, "", "used"): [72.0 * GIB] * count,
        PastKey(uuid, "ada", "memory"): [70.0 * GIB] * count,
        PastKey(uuid, "", "utilization"): [0.5] * count,
        PastKey(uuid, "", "power"): [300.0] * count,
    }
    owner = HostOwner(uuid=uuid, user="ada", memory=70.0 * GIB, declared=60.0 * GIB, over=10.0 * GIB, idle=10800.0)
    return HostPast(host=host, start=start, step=step, series=series, owners=(owner,))


async def answer(pilot: Pilot[int], reader: Reader, past: HostPast | Exception) -> None:
    future = reader.futures[-1]
    if isinstance(past, Exception):
        future.set_exception(past)
    else:
        future.set_result(past)
    await pilot.pause()
    await asyncio.sleep(0)
    await pilot.pause()


async def test_a_host_has_its_gpus_owners_alerts_and_graphs() -> None:
    async with running(size=(150, 40)) as (app, pilot, reader):
        await press(pilot, "enter")
        assert isinstance(top(app), FleetHostScreen)
        assert reader.asked == [("a", cast(FleetHostScreen, top(app)).graphs.until - 3600.0, 15.0, 240)]
        assert "last 1 h, reading" in lines(app)[0]
        await answer(pilot, reader, past_of(reader))
        assert "reading" not in lines(app)[0]
        assert "70.0 of 60.0 GiB declared, 10.0 over, idle 3h00m" in line_of(app, "ada 70.0 of")
        assert "nearly full" in text(app)
        assert " 72.0 of 320.0 ╴" in line_of(app, "╶ memory")
        assert text(app).count(" ada 70.0 ") == 2
        assert " 300 W ╴" in line_of(app, "╶ power")
        assert "no data in this period" in text(app), "of the temperature the server has none"
        await press(pilot, "down", "down")
        assert lines(app)[0].startswith(" a · GPU 1 H100 ")
        assert " — ╴" in line_of(app, "╶ power")
        await press(pilot, "up", "5")
        assert reader.asked[1:] == [("a", cast(FleetHostScreen, top(app)).graphs.until - 86400.0, 360.0, 240)]
        assert "last 24 h, reading" in lines(app)[0]
        await answer(pilot, reader, past_of(reader))
        assert " 300 W ╴" in line_of(app, "╶ power")
        await press(pilot, "escape")
        assert type(top(app)) is MapScreen


async def test_a_host_that_is_down_still_shows_its_past() -> None:
    async with running(size=(150, 40)) as (app, pilot, reader):
        while cast(MapScreen, top(app)).rows.selected.gpus:
            await press(pilot, "down")
        await press(pilot, "enter")
        assert "no data in this period" in text(app) or "reading" in text(app)
        known = (HostGpu(index=0, uuid="GPU-a:9400-0", name="NVIDIA H100", up=False),)
        await answer(pilot, reader, replace(past_of(reader), gpus=known))
        assert "1 GPU H100" in lines(app)[0]
        assert "down" in text(app)
        assert " 300 W ╴" in line_of(app, "╶ power")


async def test_a_host_that_cannot_be_read_says_so_and_keeps_its_graphs() -> None:
    async with running(size=(150, 40)) as (app, pilot, reader):
        await press(pilot, "enter")
        await answer(pilot, reader, OSError("http://prom: no answer within 10 s"))
        assert lines(app)[1].strip() == "http://prom: no answer within 10 s"
        await publish(app, pilot, replace(app.fleet))
        assert len(reader.asked) == 2, "asked again with the next figures"
        await answer(pilot, reader, past_of(reader))
        assert "no answer" not in text(app)
        await publish(app, pilot, replace(app.fleet, taken=NOW + 20.0))
        await answer(pilot, reader, OSError("gone"))
        assert " 300 W ╴" in line_of(app, "╶ power")
        await publish(app, pilot, replace(app.fleet, hosts=()))
        assert "the server no longer lists this host" in lines(app)[1]
        assert "80.0" in text(app), "its last figures"


async def test_an_old_value_is_not_shown_as_that_of_now() -> None:
    async with running(size=(150, 40)) as (app, pilot, reader):
        await press(pilot, "enter")
        past = past_of(reader)
        ended = {key: [*values[:60], *[None] * 180] for key, values in past.series.items()}
        await answer(pilot, reader, replace(past, series=ended))
        assert " — ╴" in line_of(app, "╶ power")
        assert " — of " in line_of(app, "╶ memory")


def test_values_are_asked_for_no_closer_than_they_are_sampled() -> None:
    assert [span_step(span) for span in (60.0, 600.0, 3600.0, 86400.0)] == [(15, 4), (15, 40), (15, 240), (360, 240)]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "— GiB"),
        ({"memory": 9.0 * GIB, "idle": 10.0}, "9.0 GiB"),
        ({"memory": 9.0 * GIB, "declared": 0.0, "idle": 60.0}, "9.0 GiB, idle 1m"),
    ],
)
def test_what_an_owner_holds(values: dict[str, float], words: str) -> None:
    assert owner_words(HostOwner(uuid="", user="ada", **values), "—") == words
