"""Columns of the process list that the user chose: in the dialog, and at every width."""

from __future__ import annotations

from itertools import pairwise
from typing import get_args

import pytest
from textual.widgets import OptionList

from gpuwatch.config import ColumnName
from gpuwatch.fields import PROCESS
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.layout import Form, form_of
from gpuwatch.ui.screens.columns import ColumnsDialog
from gpuwatch.ui.theme import ASCII, UNICODE
from gpuwatch.ui.widgets.processes import columns, default_columns
from tests.support.dashboards import frame, machine, resize, running, text, top
from tests.support.screens import click, fits, press, until


def shown(app: GpuwatchApp) -> list[str]:
    return [column.id for column in app.dashboard.processes._columns if column.id not in ("swatch", "rest")]


def test_the_configuration_names_every_column() -> None:
    assert set(get_args(ColumnName)) == {*PROCESS} == {*default_columns(Form.FULL)}


@pytest.mark.parametrize("chosen", [("command",), ("user",), ("in", "rss", "user", "command", "gpu"), tuple(PROCESS)])
@pytest.mark.parametrize("glyphs", [UNICODE, ASCII])
@pytest.mark.parametrize("width", [40, 60, 80, 119, 160, 400])
def test_chosen_columns_stand_in_order_and_fit(chosen: tuple[str, ...], width: int, glyphs: object) -> None:
    found = columns(form_of(width), [], ASCII if glyphs is ASCII else UNICODE, chosen, width)
    ids = [one.id for one in found if one.id not in ("swatch", "rest", "command")]
    places = [chosen.index(one) for one in ids]
    assert all(before < after for before, after in pairwise(places))
    assert sum(one.gap + one.cells for one in found) + 2 <= width
    assert (found[-1].id == "command") == ("command" in chosen)
    if width == 400:
        assert {*ids} == {*chosen} - {"command"}


async def test_the_list_has_the_columns_of_the_options() -> None:
    async with running(frame(machine(2)), (160, 36), columns=("user", "memory", "gpu")) as (app, pilot):
        for size in ((160, 36), (60, 10), (40, 8)):
            await resize(app, pilot, size)
            assert shown(app) == ["user", "memory", "gpu"]
        assert "10 rows" in app.dashboard.processes.text[0]
        await press(pilot, "greater_than_sign")
        assert app.dashboard.processes.by == "gpu"


async def test_columns_are_chosen_and_ordered_in_a_dialog() -> None:
    async with running(frame(machine(2)), (160, 36)) as (app, pilot):
        before = shown(app)
        await press(pilot, "C")
        assert isinstance(top(app), ColumnsDialog)
        assert "[x] PID" in text(app)
        assert "[x] GiB           memory" in text(app)
        await press(pilot, "down", "space")
        assert shown(app) == [name for name in before if name != "pid"]
        await press(pilot, "space", "greater_than_sign")
        assert shown(app)[:3] == ["gpu", "user", "pid"]
        await press(pilot, "less_than_sign", "less_than_sign", "escape")
        assert top(app) is app.dashboard
        assert shown(app)[:3] == ["pid", "gpu", "user"]
        await press(pilot, "C", "d")
        assert top(app) is app.dashboard
        assert shown(app) == before


async def test_a_click_shows_or_hides_a_column() -> None:
    async with running(frame(machine(1)), (120, 36)) as (app, pilot):
        await press(pilot, "C")
        await click(pilot, "OptionList", 3, 1)
        assert "pid" not in shown(app)


async def test_the_dialog_fits() -> None:
    async with running(frame(machine(1)), (160, 50)) as (app, pilot):
        for size in [(40, 6), (60, 10), (80, 24), (160, 50)]:
            await resize(app, pilot, size)
            await press(pilot, "C", "end")
            assert fits(app)
            options = app.screen.query_one(OptionList)
            assert options.highlighted == options.option_count - 1
            await until(pilot, lambda options=options: options.scroll_y == options.max_scroll_y)  # type: ignore[misc]
            await press(pilot, "escape")
