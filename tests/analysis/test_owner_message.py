"""The message to somebody else: only facts, never sent, put on the clipboard by OSC 52."""

from __future__ import annotations

import time
from base64 import b64decode

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.analysis.owner_message import message
from gpuwatch.analysis.rows import rows
from gpuwatch.fields import Row
from gpuwatch.history import Idle
from gpuwatch.model import Reason, Snapshot
from gpuwatch.ui.desktop import clipboard
from gpuwatch.ui.screens.dialog import OwnerMessageDialog
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.dashboards import frame, hand, running, top
from tests.support.screens import HOSTILE


def held(*memories: float | Reason, user: str = "eve", idle: Idle | None = None) -> list[Row]:
    """Return the rows of one person, a process a holding, all on GPU 3."""
    parts = [
        msgspec.structs.replace(
            holding(100 + n, 1.0), memory=size if isinstance(size, Reason) else round(size * 1024**3)
        )
        for n, size in enumerate(memories)
    ]
    seen = snapshot([gpu(3, used_gib=70, holdings=parts)], [process(one.pid, user) for one in parts])
    return [msgspec_row(row, idle) for row in rows(seen)]


def msgspec_row(row: Row, idle: Idle | None) -> Row:
    return Row(row.gpu, row.holding, row.process, row.mine, idle, row.growth)


SEEN = snapshot([gpu(3)])


def test_an_idle_holding_is_named_with_its_size_and_its_idle_time() -> None:
    words = message(held(40.0, idle=Idle(3 * 3600 + 120, at_least=False)), SEEN)
    assert words.startswith("Hi eve,\non box3 (")
    assert "- 40.0 GiB on GPU 3: PID 100 (python train.py)" in words
    assert "no kernel run for 3 h 2 min" in words
    assert "could you end it?" in words


def test_what_is_only_known_as_a_minimum_is_said_so() -> None:
    assert "no kernel run for at least 10 min" in message(held(40.0, idle=Idle(600, at_least=True)), SEEN)


@pytest.mark.parametrize("idle", [None, Idle(0.0, at_least=False), Idle(200.0, at_least=True)])
def test_nobody_is_asked_to_end_what_is_not_known_to_be_idle(idle: Idle | None) -> None:
    words = message(held(40.0, idle=idle), SEEN)
    assert "no kernel" not in words
    assert "could you end" not in words


def test_a_holding_without_a_figure_has_none_in_the_message() -> None:
    words = message(held(Reason.DENIED), SEEN)
    assert "GiB" not in words
    assert "memory on GPU 3: PID 100" in words


def test_many_holdings_are_summed_up_the_largest_named_first() -> None:
    words = message(held(1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, Reason.NO_SAMPLE), SEEN)
    assert words.index("7.0 GiB") < words.index("3.0 GiB")
    assert "- and 3 more with at least 3.0 GiB in all" in words


@pytest.mark.parametrize("words", HOSTILE)
def test_any_command_is_text_in_a_line_of_its_own(words: str) -> None:
    (row,) = held(40.0)
    evil = msgspec.structs.replace(row.process, command=words)
    lines = message([Row(row.gpu, row.holding, evil, row.mine, None, None)], SEEN).split("\n")
    assert len(lines) == 4
    assert all(len(line) < 160 for line in lines)


@given(st.text(max_size=300), st.booleans())
def test_the_sequence_carries_any_words_and_nothing_else(words: str, tmux: bool) -> None:
    words = words.encode("utf-8", "replace").decode()
    sequence = clipboard(words, tmux=tmux)
    first = sequence.partition("\a")[0]
    assert first.startswith("\x1b]52;c;")
    assert b64decode(first.removeprefix("\x1b]52;c;")).decode() == words
    assert sequence.isascii()
    assert sequence.count("\x1b]52;c;") == 1 + tmux


async def test_y_shows_the_message_about_the_process_under_the_cursor() -> None:
    seen = snapshot([gpu(0, holdings=[holding(10, 20.0), holding(11, 2.0)])], [process(10, "eve"), process(11, "eve")])
    async with running(frame(seen)) as (app, pilot):
        await pilot.press("y")
        assert isinstance(top(app), OwnerMessageDialog)
        shown = "\n".join(str(one.render()) for one in app.screen.query("Static"))
        assert "Hi eve," in shown
        assert "PID 10" in shown
        assert "PID 11" not in shown
        assert "Nothing was sent" in shown
        await pilot.press("escape")
        assert app.screen is app.dashboard


async def test_nothing_is_written_to_oneself_or_to_nobody() -> None:
    mine = snapshot([gpu(0, holdings=[holding(10, 20.0)])], [process(10, "you")])
    hidden = snapshot([gpu(0, holdings=[holding(10, 20.0)])], [process(10, "", uid=None)])
    for seen, words in ((mine, "your own"), (hidden, "not visible")):
        async with running(frame(seen)) as (app, pilot):
            await pilot.press("y")
            assert app.screen is app.dashboard
            assert any(words in one.message for one in app._notifications)


@pytest.mark.parametrize(("keys", "pid", "date"), [(["y"], "PID 10", "2026"), (["u", "y"], "PID 11", "2027")])
async def test_figures_and_date_are_of_one_moment_while_the_dashboard_is_frozen(
    keys: list[str], pid: str, date: str
) -> None:
    def seen(pid: int, year: int) -> Snapshot:
        taken = time.mktime((year, 6, 1, 12, 0, 0, 0, 0, -1))
        return snapshot([gpu(0, holdings=[holding(pid, 20.0)])], [process(pid, "eve")], taken=taken)

    async with running(frame(seen(10, 2026))) as (app, pilot):
        await pilot.press("p")
        await hand(app, pilot, frame(seen(11, 2027)))
        await pilot.press(*keys)
        assert isinstance(top(app), OwnerMessageDialog)
        shown = "\n".join(str(one.render()) for one in app.screen.query("Static"))
        assert pid in shown
        assert f"({date}-06-01 12:00)" in shown
