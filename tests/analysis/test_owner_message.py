"""The message to somebody else: only facts, never sent, put on the clipboard by OSC 52."""

from __future__ import annotations

import time
from base64 import b64decode
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.limits import Allowances
from gpuwatch.analysis.owner_message import message
from gpuwatch.analysis.rows import rows
from gpuwatch.model.fields import Row
from gpuwatch.model.snapshot import Idle, Reason, Snapshot
from gpuwatch.ui.desktop import clipboard
from gpuwatch.ui.screens.dialog import OwnerMessageDialog
from tests.support.builders import GIB, declares, gpu, holding, process, snapshot
from tests.support.screen import HOSTILE, frame, hand, running, top

SEEN = snapshot([gpu(3)])


def held(*memories: float | Reason, idle: Idle | None = None, **changes: Any) -> list[Row]:
    """Return the rows of eve, a process a holding, all on GPU 3."""
    parts = [
        holding(100 + n, memory=size if isinstance(size, Reason) else round(size * GIB))
        for n, size in enumerate(memories)
    ]
    seen = snapshot([gpu(3, used_gib=70, holdings=parts)], [process(one.pid, "eve", **changes) for one in parts])
    return [Row(row.gpu, row.holding, row.process, row.mine, idle, row.growth) for row in rows(seen)]


@pytest.mark.parametrize(
    ("memories", "idle", "said", "unsaid"),
    [
        (
            (40.0,),
            Idle(3 * 3600 + 120, at_least=False),
            ["Hi eve,\non box3 (", "- 40.0 GiB on GPU 3: PID 100 (train.py)", "no kernel run for 3 h 2 min"],
            [],
        ),
        ((40.0,), Idle(600, at_least=True), ["no kernel run for at least 10 min", "could you end it?"], []),
        # Nobody is asked to end what is not known to be idle.
        ((40.0,), None, ["Could you check"], ["no kernel", "could you end"]),
        ((40.0,), Idle(200.0, at_least=True), [], ["no kernel", "could you end"]),
        ((Reason.DENIED,), None, ["memory on GPU 3: PID 100"], ["GiB"]),
        (
            (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, Reason.NO_SAMPLE),
            Idle(600, at_least=False),
            ["- 7.0 GiB", "- and 3 more with at least 3.0 GiB in total", "could you end them?"],
            ["2.0 GiB on"],
        ),
    ],
)
def test_a_message_has_what_was_measured(memories: Any, idle: Idle | None, said: list[str], unsaid: list[str]) -> None:
    words = message(held(*memories, idle=idle), SEEN)
    assert [one for one in said if one not in words] == []
    assert [one for one in unsaid if one in words] == []


def test_an_overshoot_is_named_and_a_command_is_cut_between_words() -> None:
    rows = held(40.0, declared=declares(3, 8 * GIB), command="python retraining.py " + "--flag value " * 9)
    seen = snapshot([rows[0].gpu], [rows[0].process])
    words = message(rows, seen)
    assert "32.0 GiB more than the 8.0 GiB declared (" in words
    assert "stay within what you declared" in words
    assert "--flag value …)" in words
    roomy = msgspec.structs.replace(Allowances(), framework=33 * GIB, budget=33 * GIB, exact=33 * GIB, eager=33 * GIB)
    assert "more than" not in message(rows, seen, roomy)


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


async def test_nothing_is_written_to_oneself_or_to_nobody() -> None:
    mine = snapshot([gpu(0, holdings=[holding(10, 20.0)])], [process(10, "you")])
    hidden = snapshot([gpu(0, holdings=[holding(10, 20.0)])], [process(10, "", uid=None)])
    for seen, words in ((mine, "your own"), (hidden, "not known")):
        async with running(frame(seen)) as (app, pilot):
            await pilot.press("y")
            assert app.screen is app.dashboard
            assert any(words in one.message for one in app._notifications)


async def test_figures_and_date_are_of_one_moment_while_the_dashboard_is_frozen() -> None:
    def seen(pid: int, year: int) -> Snapshot:
        taken = time.mktime((year, 6, 1, 12, 0, 0, 0, 0, -1))
        return snapshot([gpu(0, holdings=[holding(pid, 20.0)])], [process(pid, "eve")], taken=taken)

    async with running(frame(seen(10, 2026))) as (app, pilot):
        await pilot.press("p")
        await hand(app, pilot, frame(seen(11, 2027)))
        for keys, pid, date in ((["y"], "PID 10", "2026"), (["escape", "u", "y"], "PID 11", "2027")):
            await pilot.press(*keys)
            assert isinstance(top(app), OwnerMessageDialog)
            shown = "\n".join(str(one.render()) for one in app.screen.query("Static"))
            assert pid in shown
            assert f"({date}-06-01 12:00)" in shown
            assert f"`gpuwatch message {pid.removeprefix('PID ')}` prints it" in shown
