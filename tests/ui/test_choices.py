"""Choices made in the dashboard: saved at once, read at the next start, and never in the way."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from gpuwatch import files
from gpuwatch.ui.choices import FILE, Choices, Remembered, read_choices
from gpuwatch.ui.options import Helpers, Options
from tests.support.dashboards import frame, machine, running
from tests.support.screens import press, until


def file() -> Path:
    return files.state_folder() / FILE


def write(content: bytes) -> None:
    file().parent.mkdir(parents=True, exist_ok=True)
    file().write_bytes(content)


def test_what_is_saved_is_read_again() -> None:
    remembered = read_choices()
    assert (remembered.choices, remembered.notice, remembered.interval) == (Choices(), "", None)
    remembered.save({"theme": "nord"})
    remembered.save({"columns": ("gpu", "user"), "order": "user", "reverse": True, "interval": 2.0})
    again = read_choices()
    assert again.interval == 2.0
    assert again.over(Options()) == Options(theme="nord", columns=("gpu", "user"), order="user", reverse=True)
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
        b"[" * 10_000,
        b'{"theme": "pink"}',
        b'{"columns": ["x"]}',
        b'{"interval": 0}',
        b'{"interval": 1e9}',
        b'{"order": 3}',
        b"\x1b[31m" * 100_000,
    ],
)
def test_a_damaged_file_is_ignored_with_one_line(content: bytes) -> None:
    write(content)
    remembered = read_choices()
    assert remembered.choices == Choices()
    assert remembered.notice.startswith("earlier choices are not known: ")
    assert "dashboard.json is damaged" in remembered.notice
    assert remembered.notice.isprintable()
    assert len(remembered.notice) <= 200
    remembered.save({"theme": "light"})
    assert read_choices().choices == Choices(theme="light")


def test_a_folder_in_its_place_is_one_line() -> None:
    file().mkdir(parents=True)
    assert "no ordinary file" in read_choices().notice


async def test_each_choice_is_saved_and_nothing_else() -> None:
    saved: list[dict[str, Any]] = []
    helpers = Helpers(remember=lambda changed: saved.append(dict(changed)))
    async with running(frame(machine(2)), (160, 36), helpers=helpers, theme="light", order="user") as (app, pilot):
        await press(pilot, "down", "m", "m", "p", "p", "tab", "tab", "f", "f")
        assert saved == []
        for keys, choice in (
            (["greater_than_sign"], {"order": "memory"}),
            (["r"], {"reverse": True}),
            (["plus"], {"interval": 2.0}),
            (["C", "space", "escape"], {"columns": ("pid", "user", "memory", "share", "sm", "cpu", "rss", "idle")}),
        ):
            saved.clear()
            await press(pilot, *keys)
            await until(pilot, lambda: bool(saved))
            found = {name: value[:8] if name == "columns" else value for one in saved for name, value in one.items()}
            assert found == choice
        saved.clear()
        app.action_theme("nord")
        await until(pilot, lambda: bool(saved))
        assert saved == [{"theme": "nord"}]


async def test_a_file_system_that_hangs_does_not_hold_the_screen() -> None:
    hangs, begun = threading.Event(), threading.Event()

    def remember(_changed: object) -> None:
        begun.set()
        hangs.wait(60)

    async with running(frame(machine(2)), (160, 36), helpers=Helpers(remember=remember)) as (app, pilot):
        await press(pilot, "r")
        await until(pilot, begun.is_set)
        await press(pilot, "r", "p")
        assert app.paused
        hangs.set()


async def test_what_cannot_be_saved_is_said() -> None:
    def remember(_changed: object) -> None:
        raise OSError(28, "No space left on device")

    async with running(frame(machine(2)), (160, 36), helpers=Helpers(remember=remember)) as (app, pilot):
        await press(pilot, "r")
        await until(pilot, lambda: bool(app._notifications))
        assert next(iter(app._notifications)).message == "your choice is not remembered: no space left on device"


async def test_a_notice_is_shown_at_the_start() -> None:
    async with running(frame(machine(1)), helpers=Helpers(notice="earlier choices are not known: x")) as (app, _):
        assert "earlier choices" in next(iter(app._notifications)).message
