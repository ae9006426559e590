"""The dashboard's screen of strays and `gpuwatch strays` say the same of the same machine at the same time."""

from __future__ import annotations

import re

import pytest

from gpuwatch.analysis.strays import StrayLimits
from gpuwatch.cli import parse
from gpuwatch.commands import stray_inputs
from gpuwatch.commands import strays as command
from gpuwatch.history import History, Idle
from gpuwatch.monitor import Frame
from gpuwatch.sources.demo import DemoSource
from gpuwatch.ui.screens.strays import StraysScreen
from tests.sources.test_local import start
from tests.support import builders
from tests.support.dashboards import frame, hand, running, text
from tests.support.straying import LEFT, held, machine, mine

__all__ = ["start"]

AT_ONCE = StrayLimits(settled_after=0.0)
"""The processes of a test are young."""

Row = tuple[int, str, str, str]
"""PID, GPUs, GiB, and what it is called with how sure that is."""


def listed(out: str) -> list[Row]:
    """Return the rows that the command printed."""
    found = re.findall(r"^ *(\d+) +(\S+) +(\S+) +\S+ +\S+ +(\w+), (\w+)  ", out, re.MULTILINE)
    return [(int(pid), gpus, gib, f"{cause}, {sure}") for pid, gpus, gib, cause, sure in found]


def drawn(shown: str) -> list[Row]:
    """Return the rows of the screen, which says nothing more where one is certain."""
    found = re.findall(r"^.{6} +(\d+) +(\S+) +(\S+) +\S+ +\S+  (\w+)(?: \((\w+)\))? ·", shown, re.MULTILINE)
    return [(int(pid), gpus, gib, f"{cause}, {sure or 'certain'}") for pid, gpus, gib, cause, sure in found]


def unwrapped(shown: str) -> str:
    """Return what is on screen as one line."""
    return " ".join(shown.split())


async def test_the_demo_has_the_same_strays_in_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(parse(["strays", "--demo"]), None) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    demo, history = DemoSource(), History()
    seen = demo.at(0.0)
    first = Frame(seen, 0.0, history.add(seen, 0.0), kept=stray_inputs.idle_times(seen))
    async with running(first, (160, 50)) as (app, pilot):
        await pilot.press("S")
        await pilot.pause()
        assert drawn(text(app)) == listed(printed.out)
        assert len(drawn(text(app))) == 2
        assert "may be" not in text(app)
        later = demo.at(20.0)
        await hand(app, pilot, Frame(later, 20.0, history.add(later, 20.0), kept=stray_inputs.idle_times(later)))
        assert drawn(text(app)) == listed(printed.out), "they stay"


@pytest.mark.parametrize("kept", [None, 20.0, 400.0, 90000.0])
async def test_one_orphan_is_the_same_in_both(
    kept: float | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither has watched it; a `gpuwatch watch` has, for so long."""
    people = [mine(100, **LEFT), mine(101)]
    seen = machine(people, [held(100), held(101)], demo=True, searched=builders.EPOCH)
    idle = {(builders.gpu(0).key, 100, 100): Idle(kept, at_least=True)} if kept is not None else None
    monkeypatch.setattr(command, "demo", lambda: seen)
    monkeypatch.setattr(command, "idle_times", lambda snapshot, warn=None: idle)
    assert command.main(parse(["strays", "--demo"]), None) == 0
    printed = capsys.readouterr()
    async with running(Frame(seen, 0.0, History().add(seen, 0.0), kept=idle), (160, 50)) as (app, pilot):
        await pilot.press("S")
        await pilot.pause()
        rows, words = drawn(text(app)), unwrapped(text(app))
    assert rows == listed(printed.out)
    (row,) = rows
    sure = "possible" if kept is None or kept < 300 else "likely" if kept < 86400 else "certain"
    assert row == (100, "0", "4.0", f"leftover, {sure}")
    said = [line.removeprefix("gpuwatch: ") for line in printed.err.splitlines()]
    assert bool(said) is (sure == "possible")
    for line in said:
        assert line in words


async def test_what_may_be_a_stray_is_not_ended_and_not_counted() -> None:
    seen = machine([mine(100, **LEFT)], [held(100)], searched=builders.EPOCH)
    async with running(frame(seen), (160, 50)) as (app, pilot):
        assert "stray (" not in text(app), "on the dashboard nothing is called one that may be none"
        assert "stray of yours" not in text(app)
        await pilot.press("S")
        await pilot.pause()
        assert "no strays · 1 possible" in text(app)
        await pilot.press("space", "enter")
        await pilot.pause()
        assert isinstance(app.screen, StraysScreen)
        assert "[ ]" not in text(app)
        assert "[x]" not in text(app)


@pytest.mark.parametrize("size", [(160, 50), (80, 24), (60, 10)])
async def test_what_is_not_known_is_read_in_full_at_any_size(size: tuple[int, int]) -> None:
    seen = machine([mine(100, **LEFT)], [held(100)], searched=builders.EPOCH)
    async with running(frame(seen), size) as (app, pilot):
        await pilot.press("S")
        await pilot.pause()
        words = unwrapped(text(app))
        assert "1 of your processes may be a stray (100): whether it is idle is not known yet" in words
        assert "that takes 5 min of watching, by `gpuwatch watch` or in the dashboard" in words
