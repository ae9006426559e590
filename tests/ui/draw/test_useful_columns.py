"""Columns without a value in any row: left out at the start, and later only after a minute."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from gpuwatch.model.snapshot import Declared, Knowledge, Pane, Process, ProcessContext, Reading, Reason, Snapshot
from gpuwatch.ui.draw.table import HELD, UsefulColumns
from gpuwatch.ui.draw.theme import make_styles
from gpuwatch.ui.screens.people import PeopleScreen
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.screen import Host, frame, frame_clock, resize, running

PENDING = Declared(knowledge=Knowledge.PENDING)
UNREADABLE = Declared(knowledge=Knowledge.UNREADABLE)
IN_TMUX = ProcessContext(pane=Pane(program="tmux", session="train"))


@pytest.mark.parametrize(
    ("story", "shown"),
    [
        ([(0, "")], "y"),
        ([(0, "?")], "y"),
        ([(0, "-")], "n"),
        ([(0, "-+?")], "y"),
        ([(0, "-?")], "y"),
        ([(0, "?"), (1, "-")], "yn"),
        ([(0, "-"), (10, "+"), (10 + HELD - 1, "+"), (10 + HELD, "+")], "nnny"),
        ([(0, "+"), (10, "-"), (40, "+"), (41, "-"), (10 + HELD, "-"), (41 + HELD, "-")], "yyyyyn"),
        ([(0, "+"), (10, "-"), (11, ""), (10 + HELD, "-?"), (11 + HELD, "-")], "yyyyn"),
    ],
)
def test_when_a_column_is_shown(story: Sequence[tuple[float, str]], shown: str) -> None:
    """`+` is a row with a value, `-` one without, and of `?` it is not known yet."""
    columns = UsefulColumns[str]({"in": {"+": True, "-": False, "?": None}.get})
    for (now, rows), expected in zip(story, shown, strict=True):
        columns.update(rows, now)
        assert ("in" not in columns.useless) == (expected == "y")


def machine(declared: Declared, context: ProcessContext | None = None) -> Snapshot:
    one: Process = process(11, "ada", declared=declared, context=context)
    return snapshot([gpu(0, holdings=[holding(11, 40.0)])], [one])


@pytest.mark.parametrize(
    ("declared", "context", "titles"),
    [
        (PENDING, None, ("used/declared %", "runs in")),
        (UNREADABLE, None, ("mem %",)),
        (Declared(), None, ("used/declared %",)),
        (UNREADABLE, IN_TMUX, ("mem %", "runs in")),
    ],
)
async def test_the_list_of_processes(
    declared: Declared, context: ProcessContext | None, titles: tuple[str, ...]
) -> None:
    async with running(frame(machine(declared, context)), (160, 50)) as (app, pilot):
        title, row = app.dashboard.process_panel.text[:2]
        assert {name for name in ("used/declared %", "mem %", "runs in") if name in title} == {*titles}
        assert row[: title.index("%") + 1].split()[-1].partition("/")[0] == "51"
        app.show_columns(("used", "in"))  # chosen by the user: always there
        await pilot.pause()
        assert "used/declared %" in app.dashboard.process_panel.text[0]
        assert "runs in" in app.dashboard.process_panel.text[0]


@pytest.mark.parametrize(
    ("figure", "is_shown"), [(Reason.DENIED, False), (Reason.NO_SAMPLE, True), (0, True), (3.0, True)]
)
async def test_figures_that_no_process_has_give_their_room_to_the_command(figure: Reading, is_shown: bool) -> None:
    one = process(11, "ada", cpu=figure, rss=figure)
    shown = snapshot([gpu(0, holdings=[holding(11, 40.0)])], [one])
    async with running(frame(shown), (160, 50)) as (app, pilot):
        panel, rows = app.dashboard.process_panel, app.dashboard.processes
        assert [name in panel.text[0] for name in ("CPU %", "RSS GiB", "idle")] == [is_shown, is_shown, False]
        assert [name in rows.shown_columns for name in ("cpu", "rss", "idle")] == [is_shown, is_shown, False]
        rows.sort_by("idle")  # the column that the rows are sorted by is always there
        await resize(app, pilot, (160, 50), frame(shown))
        assert "idle" in panel.text[0]


async def test_the_table_does_not_jump_within_a_minute() -> None:
    first = frame(machine(UNREADABLE))
    known = frame(machine(Declared(), IN_TMUX))
    async with running(first, (160, 50)) as (app, pilot):
        for seconds, words in ((0.0, "mem %"), (HELD - 1, "mem %"), (HELD, "used/declared %")):
            await resize(app, pilot, (160, 50), replace(known, received=first.received + seconds))
            assert words in app.dashboard.process_panel.text[0]


async def test_the_screen_of_people() -> None:
    for declared, is_shown in ((UNREADABLE, False), (Declared(), True), (PENDING, True)):
        async with Host().run_test(size=(120, 30)) as pilot:
            screen = PeopleScreen(frame(machine(declared)), make_styles("gpuwatch-dark"), clock=frame_clock)
            await pilot.app.push_screen(screen)
            await pilot.pause()
            assert ("declared" in screen.list_panel.text[0]) == is_shown
