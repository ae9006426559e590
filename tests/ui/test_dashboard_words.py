"""What the screen must not leave out, and must not claim: marks, words and figures, by Pilot with frames handed in."""

from __future__ import annotations

from itertools import product
from typing import Any, get_args

from textual.pilot import Pilot

from gpuwatch.config import Theme
from gpuwatch.fields import PROCESS
from gpuwatch.model import Gpu, Instance, Memory, Reason
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.bindings import KEYS, commands
from gpuwatch.ui.layout import room_for_toasts
from tests.support import builders
from tests.support.builders import gpu, snapshot
from tests.support.dashboards import (
    SIZES,
    alert,
    frame,
    hand,
    machine,
    resize,
    running,
    screen,
    table,
    text,
)
from tests.support.screens import press

UNKNOWN = Reason.UNSUPPORTED
NO_MEMORY = Memory(total=UNKNOWN, used=UNKNOWN, free=UNKNOWN, reserved=UNKNOWN)


async def _rows(app: GpuwatchApp, pilot: Pilot[int], card: Gpu, size: tuple[int, int], age: float = 0.0) -> list[str]:
    await resize(app, pilot, size, frame(snapshot([card]), age=age))
    layout = app.dashboard.layout_now
    assert layout is not None
    return app.dashboard.gpus.text[layout.gpu_title :]


UNUSUAL: list[tuple[dict[str, Any], bool, str]] = [
    ({"throttle": ("hw thermal",), "temperature": 91}, True, "hw thermal"),
    ({"throttle": ("sw thermal",), "temperature": 91}, True, "sw thermal"),
    ({"throttle": ("power brake",)}, True, "power brake"),
    ({"throttle": ("power cap",)}, False, "power cap"),
    ({"ecc_uncorrected": 1}, False, "1 ECC error"),
    ({"ecc_uncorrected": 2}, False, "2 ECC errors"),
    ({"utilization": 0}, False, "free"),
    ({"utilization": UNKNOWN}, False, "free"),
    ({"utilization": 60}, False, "no process listed"),
    ({"utilization": 0, "used_gib": 20}, False, "no process listed"),
    ({"used_gib": 40, "holdings_note": "you may not see this", "unattributed": Reason.DENIED}, False, "░░░░"),
    ({"memory": NO_MEMORY, "unattributed": UNKNOWN}, False, "memory: unsupported"),
]


async def test_a_row_says_what_is_unusual_about_a_gpu() -> None:
    async with running() as (app, pilot):
        for size, (changes, marked, words) in product(SIZES, UNUSUAL):
            row = (await _rows(app, pilot, gpu(3, **changes), size))[0]
            assert ("▲" in row) is marked
            assert words in row or size[0] < 70
            assert words == "free" or not row.rstrip().endswith(" free")


async def test_an_instance_has_its_profile_at_every_width() -> None:
    profiles = ["MIG 3g.40gb", "3g.40gb", "NVIDIA H100 80GB HBM3 MIG 3g.40gb", "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb"]
    async with running() as (app, pilot):
        for size, name in product(SIZES[1:], profiles):
            part = Instance(uuid="MIG-1", name=name, gpu_instance=1, compute_instance=0, memory=builders.memory(1))
            assert "3g.40gb" in (await _rows(app, pilot, gpu(0, mig=True, instances=(part,)), size))[1]


async def test_what_is_turned_off_is_not_offered() -> None:
    async with running(frame(machine(1)), read_only=True) as (app, _):
        assert "K end" not in screen(app)[-1]


async def test_what_hides_rows_is_told_with_their_count_at_80_columns() -> None:
    async with running(frame(machine(8)), (80, 24)) as (app, pilot):
        title = app.dashboard.processes.text
        assert "command" in title[0]
        await pilot.press("slash", *"user:you", "enter")
        assert "/user:you · 8 of 40" in app.dashboard.processes.text[0]
        await pilot.press("escape", "m")
        assert "mine · 8 of 40" in app.dashboard.processes.text[0]


async def test_our_own_signs_are_spelled_in_ascii() -> None:
    evidence = "ben holds 40.0 · pid 7 (ended) 1.4"
    async with running(frame(machine(1), alert(0, evidence=evidence)), ascii=True) as (app, pilot):
        assert "ben holds 40.0 | pid 7" in text(app)
        await pilot.press("slash", "z", "enter")
        assert 'no process matches "z"' in "\n".join(table(app))
        assert "?" not in text(app).replace("? help", "")


async def test_a_toast_comes_where_the_alerts_are_out_of_sight_or_it_covers_nothing() -> None:
    assert room_for_toasts(160, 50)
    assert room_for_toasts(120, 36)
    assert not room_for_toasts(100, 50)
    assert not room_for_toasts(160, 30)
    for keys, told in (([], 0), (["p"], 1), (["question_mark"], 1), (["C"], 0)):
        async with running(frame(machine(2)), (80, 24)) as (app, pilot):
            await pilot.press(*keys)
            await hand(app, pilot, frame(machine(2), alert(1)))
            assert len(app._notifications) == told
            assert all("near limit" in one.message for one in app._notifications)


def test_the_palette_names_keys_and_orders() -> None:
    found = {one.name: one.help for one in commands()}
    beginnings = {
        "Mine only, or everybody's": "m  ",
        "Sort by PID": "The smallest first",
        "Sort by memory": "The greatest first",
        "Sort by user": "From A to Z",
    }
    assert all(found[name].startswith(words) for name, words in beginnings.items())


def test_the_palette_has_every_order_and_theme_and_every_key_but_those_that_move_about() -> None:
    moving = {"up", "down", "left", "right", "pageup", "pagedown", "first", "last", "sort_left", "sort_right"}
    offered = {one.action for one in commands()}
    lacking = {one.id for one in KEYS if one.action not in offered}
    assert lacking == {*moving, "palette", "suspend"}
    assert {f"sort_by('{column}')" for column in PROCESS} | {f"theme('{name}')" for name in get_args(Theme)} <= offered
    assert len({one.name for one in commands()}) == len(commands())


async def test_the_palette_has_no_glyph_that_terminals_lack() -> None:
    async with running(frame(machine(1))) as (app, pilot):
        await press(pilot, "colon")
        assert "Search for commands" in text(app)
        assert "🔎" not in text(app)


async def test_the_prompt_shows_whole_terms() -> None:
    async with running(frame(machine(1))) as (app, pilot):
        await pilot.press("slash")
        for width in (60, 80, 120, 160):
            await resize(app, pilot, (width, 24))
            assert "…" not in app.dashboard.prompt.note
            assert app.dashboard.prompt.note.startswith("user:")


async def test_the_numbers_of_the_heat_map_have_a_label() -> None:
    async with running(size=(60, 10)) as (app, pilot):
        for gpus in (1, 4, 8, 16):
            await hand(app, pilot, frame(machine(gpus)))
            assert app.dashboard.layout_now is not None
            cells = app.dashboard.gpus.text[: app.dashboard.layout_now.gpus]
            assert cells[-1].rstrip().endswith("% of memory" if gpus <= 8 else " %")
            assert all(f" {index} " in " ".join(cells).replace("●", " ") for index in range(1, gpus))
