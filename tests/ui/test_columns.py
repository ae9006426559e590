"""Columns of the process list that the user chose: in the dialog, and at every width."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from gpuwatch.config import ColumnName
from gpuwatch.fields import PROCESS
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.layout import Form, form_of
from gpuwatch.ui.screens.columns import ColumnsDialog
from gpuwatch.ui.theme import ASCII, UNICODE
from gpuwatch.ui.widgets.processes import columns, default_columns
from tests.support.dashboards import frame, machine, running, text, top
from tests.support.screens import press


def shown(app: GpuwatchApp) -> list[str]:
    return [column.id for column in app.dashboard.processes._columns if column.id not in ("swatch", "rest")]


def test_the_configuration_names_every_column() -> None:
    assert set(get_args(ColumnName)) == {*PROCESS} == {*default_columns(Form.FULL)}


@pytest.mark.parametrize("chosen", [("command",), ("user",), ("in", "rss", "user", "command", "gpu"), tuple(PROCESS)])
def test_chosen_columns_stand_in_order_and_fit(chosen: tuple[str, ...]) -> None:
    for width, glyphs in product((40, 60, 80, 119, 160, 400), (UNICODE, ASCII)):
        found = columns(form_of(width), [], glyphs, chosen, width)
        ids = [one.id for one in found if one.id not in ("swatch", "rest", "command")]
        places = [chosen.index(one) for one in ids]
        assert places == sorted(set(places))
        assert sum(one.gap + one.cells for one in found) + 2 <= width
        assert (found[-1].id == "command") == ("command" in chosen)
        assert width < 400 or {*ids} == {*chosen} - {"command"}


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
