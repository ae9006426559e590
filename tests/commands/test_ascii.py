"""ASCII alone: every sign of ours is spelled the same everywhere, says what it said, and moves no column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import MARKS
from gpuwatch.analysis.rows import rows
from gpuwatch.commands.console import in_ascii
from gpuwatch.history import Idle
from gpuwatch.model import Declared, Knowledge
from gpuwatch.monitor import Frame
from gpuwatch.text import spell_signs
from gpuwatch.ui.desktop import notification
from gpuwatch.ui.screens import sheet
from gpuwatch.ui.theme import make_skin
from gpuwatch.ui.widgets.lines import LineBuilder, plain
from tests.support.builders import GIB, gpu, holding, process, snapshot
from tests.support.dashboards import SIZES, frame, machine, running, screen, table, text
from tests.support.declaring import declares
from tests.support.straying import Told

ASCII = make_skin("gpuwatch-dark", ascii_only=True)
SAID = {
    "≥59.7": ">=59.7",
    "84 °C": "84 C",
    "30Σ": "30S",
    "GiB·h": "GiB*h",
    "ada 12.0 · ben 3.0": "ada 12.0 | ben 3.0",
    "3 × 0.4": "3 x 0.4",
    "cuda:0 → GPU 2": "cuda:0 -> GPU 2",
    "1–33 of 46": "1-33 of 46",
    "−0.3": "-0.3",
    "62/—": "62/-",
    "“z”": '"z"',
}


@pytest.mark.parametrize(("sign", "spelled"), SAID.items())
def test_a_sign_says_in_ascii_what_it_said_wherever_it_stands(sign: str, spelled: str) -> None:
    assert in_ascii(sign) == spelled
    assert plain(LineBuilder(ASCII).write(sign).build(len(spelled))) == spelled
    assert sheet.plain(sign) == spelled
    assert notification("osc9", "box", sign, ascii_only=True) == f"\x1b]9;box: {spelled}\a"


def test_no_two_marks_are_spelled_alike() -> None:
    marks = [*MARKS.values(), "✓", "—", "≥", "Σ"]
    assert len({spell_signs(mark) for mark in marks}) == len(marks)
    glyphs = ASCII.glyphs
    drawn = [glyphs.critical, glyphs.warning, glyphs.note, glyphs.dot, glyphs.least, glyphs.declared, glyphs.hatch]
    assert len(set(drawn)) == len(drawn)


@given(st.text())
def test_whatever_is_printed_is_ascii(words: str) -> None:
    assert in_ascii(words).isascii()


@pytest.mark.parametrize("sign", ["≥", "→", "°"])
def test_a_sign_that_takes_more_or_less_moves_no_column(sign: str) -> None:
    line = f"  GPU 1     {sign}6m  ada   12.0   {sign}C  end"
    spelled = in_ascii(line)
    assert len(spelled) == len(line)
    assert spelled.index("ada") == line.index("ada")
    assert spelled.endswith("  end")
    assert "1  " in spelled  # the cell before is not touched


@pytest.mark.parametrize("size", SIZES)
async def test_an_initial_does_not_stand_against_the_name(size: tuple[int, int]) -> None:
    async with running(frame(machine(2)), size, ascii=True, mine=True) as (app, _):
        shown = [line for line in table(app) if "you" in line]
        assert shown
        assert all(" y you " in f"{line} " for line in shown)
        title = app.dashboard.processes.text[0]
        assert {line.index("you") for line in shown} == {title.index("user")}


async def test_at_least_stays_at_least_and_in_its_column() -> None:
    unread = Declared(knowledge=Knowledge.UNREADABLE, words="no")
    held = [holding(1, 31.0), holding(2, 5.0)]
    cards = [gpu(0, holdings=held), gpu(1, holdings=held[:1])]
    people = [process(1, "ada", declared=declares(0, 20 * GIB)), process(2, "ben", declared=unread)]
    seen = snapshot(cards, people)
    for ascii_only, sign in ((False, "≥"), (True, ">=")):
        async with running(frame(seen), (160, 50), ascii=ascii_only) as (app, _):
            lines = app.dashboard.gpus.text
            at = lines[0].index("limits") + len("limits")
            assert lines[1][:at].endswith(f" {sign}20.0")
            assert lines[1][at] == " "


@pytest.mark.parametrize("size", SIZES[1:])
async def test_a_long_idle_time_does_not_touch_the_figure_before_it(size: tuple[int, int]) -> None:
    seen = snapshot([gpu(0, holdings=[holding(7, 3.0, sm=0)])], [process(7, "you", rss=99 * GIB)])
    (row,) = rows(seen)
    view = Told({(row.gpu.key, 7): Idle(36120.0, at_least=True)})
    async with running(Frame(seen, 0.0, view), size, ascii=True) as (app, pilot):
        assert "  >=10h02m" in table(app)[0] or " >=10h02m" in table(app)[0]
        await pilot.press("t")
        await pilot.pause()
        assert size[0] < 100 or any(" >=10h02m" in line for line in screen(app))
        assert text(app).isascii()
