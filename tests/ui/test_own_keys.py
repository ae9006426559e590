"""Keys of the user's own: pressed, in the footer, in the help and in the palette."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gpuwatch.config.keymap import PRESETS, RESERVED, Keys, actions
from gpuwatch.sources.demo import DemoSource
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.draw.keys import KEYS, commands, replay_keys
from gpuwatch.ui.screens.dialog import OwnerMessageDialog
from gpuwatch.ui.screens.help import HelpScreen
from gpuwatch.ui.screens.pages import DetailScreen
from tests.support.builders import gpu, holding, process
from tests.support.screen import frame, machine, press, running, screen, text


def test_every_action_with_keys_is_an_action_of_the_dashboard() -> None:
    bound = {one.id: one for one in KEYS}
    assert bound.keys() == {*actions(), "suspend", "quit_now"}
    assert {key for name in ("suspend", "quit_now") for key in bound[name].key.split(",")} == RESERVED.keys()


async def state(app: GpuwatchApp, pilot: Pilot[int], *keys: str) -> tuple[bool, bool]:
    """Press keys; return whether the screen is paused then, and whether only one's own processes are shown."""
    await press(pilot, *keys)
    return app.paused, app.dashboard.processes.mine


async def test_the_keys_of_the_options_count_and_no_others() -> None:
    keys = Keys(pause=("x",), tree=(), mine=("f5", "ctrl+r"))
    async with running(frame(machine(1)), (160, 36), keys=keys) as (app, pilot):
        assert await state(app, pilot, "p", "t", "m") == (False, False)
        assert app.screen is app.dashboard
        assert await state(app, pilot, "x", "f5", "ctrl+r", "f5") == (True, True)
        assert " x pause " in screen(app)[-1]
        assert " F5 mine " in screen(app)[-1]
        assert " tree " not in screen(app)[-1]
        assert "Tree: runs, their ranks and their workers" not in {one.name for one in commands(app.keys)}
        await press(pilot, "question_mark")
        assert "F5 ^r" in text(app)


@pytest.mark.parametrize(("strays", "words"), [(("x",), "of yours: x"), ((), "of yours")])
async def test_a_row_of_a_gpu_names_the_users_key_for_strays(strays: tuple[str, ...], words: str) -> None:
    async with running(frame(DemoSource().at(42.0)), (160, 36), keys=Keys(strays=strays)) as (app, _):
        assert any(line.rstrip().endswith(words) for line in screen(app)), text(app)


async def test_the_keys_of_nvitop() -> None:
    async with running(frame(machine(1)), (160, 36), keys=PRESETS["nvitop"]) as (app, pilot):
        await press(pilot, "full_stop")
        assert app.dashboard.processes.by == "used"
        await press(pilot, "comma", "slash")
        assert (app.dashboard.processes.by, app.dashboard.processes.reverse) == ("memory", True)
        assert " \\ filter " in screen(app)[-1]
        await press(pilot, "backslash")
        assert app.dashboard.prompt.display
        assert " F4 filter " not in screen(app)[-1]


async def test_ones_own_keys_hold_on_other_screens_too() -> None:
    keys = Keys(end=("x",), message=("w",), mine=())
    people = [process(11, "ada"), process(12, "ben")]
    seen = replace(machine(1), gpus=(gpu(0, holdings=[holding(11, 20.0), holding(12, 10.0)]),), processes=tuple(people))
    mine = replace(seen, viewer=people[1].uid)
    async with running(frame(mine), (160, 36), keys=keys) as (app, pilot):
        await press(pilot, "enter")
        assert " w message " in screen(app)[-1]
        assert " end " not in screen(app)[-1]
        await press(pilot, "y")
        assert isinstance(app.screen, DetailScreen)
        await press(pilot, "w")
        assert isinstance(app.screen, OwnerMessageDialog)
        await press(pilot, "escape", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        await press(pilot, "escape", "escape", "down", "enter")
        assert " x end " in screen(app)[-1]
        await press(pilot, "escape", "t")
        assert " x end " in screen(app)[-1]
        assert " mine " not in screen(app)[-1]


@pytest.mark.parametrize("preset", PRESETS)
def test_in_a_replay_its_own_keys_come_first(preset: str) -> None:
    found = replay_keys(PRESETS[preset])
    keys = [key for one in found if one.id not in ("left", "right") for key in one.key.split(",")]
    assert sorted(set(keys)) == sorted(keys)
    assert {one.id for one in found} >= {"replay.play", "replay.time", "detail", "tree", "filter"}
