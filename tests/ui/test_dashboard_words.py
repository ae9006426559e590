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
    alert,
    frame,
    hand,
    machine,
    resize,
    running,
    table,
    text,
)

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
        for size, (changes, marked, words) in product([(160, 50), (80, 24)], UNUSUAL):
            row = (await _rows(app, pilot, gpu(3, **changes), size))[0]
            assert ("▲" in row) is marked
            assert words in row
            assert words == "free" or not row.rstrip().endswith(" free")


async def test_an_instance_has_its_profile_at_every_width() -> None:
    profiles = ["MIG 3g.40gb", "3g.40gb", "NVIDIA A100-SXM4-80GB MIG 1c.3g.40gb"]
    async with running() as (app, pilot):
        for size, name in product([(160, 50), (80, 24)], profiles):
            part = Instance(uuid="MIG-1", name=name, gpu_instance=1, compute_instance=0, memory=builders.memory(1))
            assert "3g.40gb" in (await _rows(app, pilot, gpu(0, mig=True, instances=(part,)), size))[1]


async def test_our_own_signs_are_spelled_in_ascii() -> None:
    evidence = "ben holds 40.0 · pid 7 (ended) 1.4"
    async with running(frame(machine(1), alert(0, evidence=evidence)), ascii=True) as (app, pilot):
        assert "ben holds 40.0 | pid 7" in text(app)
        await pilot.press("slash", "z", "enter")
        assert 'no process matches "z"' in "\n".join(table(app))
        assert "?" not in text(app).replace("? help", "")


async def test_a_toast_comes_where_the_alerts_are_out_of_sight_or_it_covers_nothing() -> None:
    assert room_for_toasts(120, 36)
    assert not room_for_toasts(100, 50)
    assert not room_for_toasts(160, 30)
    for keys, told in (([], 0), (["question_mark"], 1)):
        async with running(frame(machine(2)), (80, 24)) as (app, pilot):
            await pilot.press(*keys)
            await hand(app, pilot, frame(machine(2), alert(1)))
            assert len(app._notifications) == told
            assert all("near limit" in one.message for one in app._notifications)


def test_the_palette_has_every_order_and_theme_and_every_key_but_those_that_move_about() -> None:
    moving = {"up", "down", "left", "right", "pageup", "pagedown", "first", "last", "sort_left", "sort_right"}
    offered = {one.action for one in commands()}
    lacking = {one.id for one in KEYS if one.action not in offered}
    assert lacking == {*moving, "palette", "suspend"}
    assert {f"sort_by('{column}')" for column in PROCESS} | {f"theme('{name}')" for name in get_args(Theme)} <= offered
    assert len({one.name for one in commands()}) == len(commands())
