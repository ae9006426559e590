"""Choices made in the dashboard: saved at once, read at the next start, and never in the way; and its columns."""

from __future__ import annotations

import json
import threading
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from gpuwatch.base import files
from gpuwatch.model.fields import PROCESS
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.choices import FILE, Choices, Remembered, read_choices
from gpuwatch.ui.draw.layout import form_of
from gpuwatch.ui.draw.processes import columns
from gpuwatch.ui.draw.theme import ASCII, UNICODE
from gpuwatch.ui.options import Helpers, Options, Reloading
from gpuwatch.ui.screens.dialog import ColumnsDialog
from tests.support.screen import frame, machine, press, running, text, top, until


def file() -> Path:
    return files.state_folder() / FILE


def write(content: bytes) -> None:
    file().parent.mkdir(parents=True, exist_ok=True)
    file().write_bytes(content)


def test_what_is_saved_is_read_again() -> None:
    remembered = read_choices()
    assert (remembered.choices, remembered.notice, remembered.interval) == (Choices(), "", None)
    remembered.save({"theme": "nord"})
    remembered.save({"columns": ("gpu", "user"), "interval": 2.0})
    again = read_choices()
    assert again.interval == 2.0
    assert again.over(Options()) == Options(theme="nord", columns=("gpu", "user"))
    assert file().stat().st_mode & 0o077 == 0
    again.save({"columns": ()})
    assert json.loads(file().read_bytes())["columns"] == []


def test_the_configuration_and_flags_win() -> None:
    Remembered().save({"theme": "nord", "columns": ("gpu",), "interval": 2.0})
    remembered = read_choices({"theme", "interval"})
    assert remembered.over(Options(theme="light")) == Options(theme="light", columns=("gpu",))
    assert remembered.interval is None
    assert remembered.over(Options(theme="light"), fixed={"columns"}) == Options(theme="nord")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b'{"theme": "pink"}',
        b'{"columns": ["x"]}',
        b'{"interval": 0}',
        b'{"interval": 1e9}',
        b"\x1b[31m" * 100_000,
    ],
)
def test_a_damaged_file_is_ignored_with_one_line(content: bytes) -> None:
    write(content)
    remembered = read_choices()
    assert remembered.choices == Choices()
    assert remembered.notice.startswith("your saved choices cannot be used: ")
    assert "dashboard.json is damaged" in remembered.notice
    assert remembered.notice.isprintable()
    assert len(remembered.notice) <= 200
    remembered.save({"theme": "light"})
    assert read_choices().choices == Choices(theme="light")


async def test_each_choice_is_saved_and_nothing_else() -> None:
    saved: list[dict[str, Any]] = []
    helpers = Helpers(remember=lambda changed: saved.append(dict(changed)))
    async with running(frame(machine(2)), (160, 36), helpers=helpers, theme="light", order="user") as (app, pilot):
        await press(pilot, "down", "m", "m", "p", "p", "tab", "tab", "f", "f", "greater_than_sign", "r")
        assert saved == []
        for keys, choice in (
            (["plus"], {"interval": 2.0}),
            (["C", "space", "escape"], {"columns": ("pid", "user", "memory", "used", "sm", "cpu")}),
        ):
            saved.clear()
            await press(pilot, *keys)
            await until(pilot, lambda: bool(saved))
            found = {name: value[:6] if name == "columns" else value for one in saved for name, value in one.items()}
            assert found == choice
        saved.clear()
        app.action_theme("nord")
        await until(pilot, lambda: bool(saved))
        assert saved == [{"theme": "nord"}]


async def test_what_the_configuration_sets_is_no_choice() -> None:
    """It is read again while the dashboard runs: its theme must not be there once the configuration has none."""
    saved: list[object] = []
    read_again = Reloading("", options=Options(theme="nord", columns=("gpu",), order="user"))
    helpers = Helpers(remember=saved.append, reload=lambda: read_again)
    async with running(frame(machine(2)), (160, 36), helpers=helpers) as (app, pilot):
        await press(pilot, "L")
        await until(pilot, lambda: app.theme == "nord")
        assert (shown(app), app.dashboard.processes.by) == (["gpu"], "user")
        await press(pilot, "plus")
        await until(pilot, lambda: bool(saved))
        assert saved == [{"interval": 2.0}]


def test_an_order_that_an_earlier_gpuwatch_remembered_is_ignored() -> None:
    write(b'{"order": "user", "reverse": true, "theme": "nord"}')
    remembered = read_choices()
    assert (remembered.notice, remembered.over(Options())) == ("", Options(theme="nord"))


async def test_a_file_system_that_hangs_does_not_hold_the_screen() -> None:
    hangs, begun = threading.Event(), threading.Event()

    def remember(_changed: object) -> None:
        begun.set()
        hangs.wait(60)

    async with running(frame(machine(2)), (160, 36), helpers=Helpers(remember=remember)) as (app, pilot):
        await press(pilot, "plus")
        await until(pilot, begun.is_set)
        await press(pilot, "plus", "p")
        assert app.paused
        hangs.set()


async def test_what_cannot_be_saved_is_said() -> None:
    def remember(_changed: object) -> None:
        raise OSError(28, "No space left on device")

    async with running(frame(machine(2)), (160, 36), helpers=Helpers(remember=remember)) as (app, pilot):
        await press(pilot, "plus")
        await until(pilot, lambda: bool(app._notifications))
        assert next(iter(app._notifications)).message.endswith(": no space left on device")


async def test_a_notice_is_shown_at_the_start() -> None:
    async with running(frame(machine(1)), helpers=Helpers(notice="your saved choices cannot be used: x")) as (app, _):
        assert "your saved choices" in next(iter(app._notifications)).message


def shown(app: GpuwatchApp) -> list[str]:
    return [column.id for column in app.dashboard.processes._columns if column.id not in ("swatch", "rest")]


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
        assert "[x] GiB             memory" in text(app)
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
