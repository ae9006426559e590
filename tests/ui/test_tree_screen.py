"""The screen of runs: what is open, where the cursor stays, what keys ask for, and that it fits anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from textual.pilot import Pilot

from gpuwatch.model.snapshot import ProcessContext, Reason, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw import theme
from gpuwatch.ui.screens.tree import TreeList, TreeScreen
from tests.analysis.test_tree import around, helper, ranks, run_of
from tests.support.builders import gpu, holding, process, snapshot
from tests.support.screen import Host, frame, frame_clock, press, text


class Around(Host):
    """An app around the screen."""

    def __init__(self, first: Frame, styles: theme.StyleSet) -> None:
        super().__init__()
        self.runs = TreeScreen(first, styles, clock=frame_clock)

    def on_mount(self) -> None:
        self.push_screen(self.runs)


@asynccontextmanager
async def shown(seen: Snapshot, size: tuple[int, int] = (120, 36)) -> AsyncIterator[tuple[Around, Pilot[None]]]:
    app = Around(frame(seen), theme.make_styles("gpuwatch-dark"))
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield app, pilot


async def refresh(app: Around, pilot: Pilot[None], seen: Snapshot) -> None:
    app.runs.refresh_frame(frame(seen))
    await pilot.pause()


def tree(app: Around) -> TreeList:
    return app.runs.rows


def lines(app: Around) -> list[str]:
    return [line for line in (one.rstrip() for one in app.runs.list_panel.text[1:]) if line]


def chosen(app: Around) -> str:
    """Return what the cursor is on: the PID, or the title."""
    node = tree(app).chosen
    assert node is not None
    return str(node.process.pid) if node.process else node.title


def box(**changes: Any) -> Snapshot:
    """Give ada's run of four ranks, one of ben's alone, and two runs of the viewer's: one with workers, one of two."""
    run = ranks(4)
    held = [[*card.holdings] for card in run.gpus]
    held[0] += [holding(50, 5.0), holding(60, 4.0)]
    held[1] += [holding(70, 2.0), holding(71, 1.0)]
    people = [
        *run.processes,
        process(50, "ben", command="python alone.py"),
        around(60, "you", key="60:60", name="mine.py"),
        around(70, "you", key="70:70", name="pair.py", rank=0, world=2),
        around(71, "you", key="70:70", name="pair.py", rank=1, world=2),
    ]
    workers = [
        helper(pid, 60, user="you", context=ProcessContext(run=run_of("60:60", worker_of=60))) for pid in (61, 62)
    ]
    left = helper(90, 1, user="you", adopted=True)
    cards = [gpu(n, holdings=one) for n, one in enumerate(held)]
    return snapshot(cards, people, **{"unlisted": (*workers, left), **changes})


async def test_right_and_left_open_close_and_step() -> None:
    async with shown(box()) as (app, pilot):
        await press(pilot, "right")
        assert "├─  rank 0  train.py" in text(app)
        assert chosen(app) == "train.py"
        await press(pilot, "right")
        assert chosen(app) == "1000"
        await press(pilot, "j", "left")
        assert chosen(app) == "train.py"
        await press(pilot, "left")
        assert "rank 3" not in text(app)
        await press(pilot, "enter")
        assert "rank 3" in text(app)
        await press(pilot, "space")
        assert "rank 3" not in text(app)
        await press(pilot, "plus", "minus", "minus", "plus")
        assert "rank 3" in text(app)
        assert app.asked == []
        for seen in (box(), ranks(4)):  # what was opened stays open
            await refresh(app, pilot, seen)
            assert "rank 3" in text(app)


async def test_the_cursor_follows_its_node_not_its_line() -> None:
    async with shown(box()) as (app, pilot):
        await press(pilot, "right", "j", "j")
        assert chosen(app) == "1001"
        bigger = box()
        first = gpu(0, holdings=[*bigger.gpus[0].holdings, holding(50, 60.0)], used_gib=79)
        await refresh(app, pilot, snapshot([first, *bigger.gpus[1:]], bigger.processes))
        assert "alone.py" in lines(app)[0]
        assert chosen(app) == "1001"


async def test_enter_asks_for_a_process_and_k_to_end_it_or_on_the_line_of_a_run_all_of_it() -> None:
    async with shown(box()) as (app, pilot):
        for keys, asked in (
            (("j", "enter"), ("detail", (gpu(0).key, 50, 50))),
            (("K",), ("end", (gpu(0).key, 1000, 1000), True)),
            (("j", "K"), ("end", (gpu(0).key, 50, 50), False)),
            (("j", "j", "K"), ("end", (gpu(0).key, 60, 60), True)),
            (("end", "K"), ("end", (gpu(0).key, 90, 90), False)),
            (("right", "j", "j", "K"), ("end", (gpu(1).key, 1001, 1001), False)),
        ):
            app.asked.clear()
            await press(pilot, "g", *keys)
            assert app.asked == [asked]


async def test_what_is_missing_is_no_nought() -> None:
    held = [holding(1, memory=Reason.UNSUPPORTED, sm=Reason.ERROR), holding(2, 3.0, sm=Reason.ERROR)]
    people = [around(1, rank=0), around(2, rank=1)]
    seen = snapshot([gpu(0, holdings=held, used_gib=9)], people, unlisted=(helper(3, 1),))
    async with shown(seen) as (app, pilot):
        await press(pilot, "asterisk")
        run, first, left, second = lines(app)
        assert "≥3.0" in run
        assert first.count("—") == 3  # memory, SM and idle
        assert "3.0" in second
        assert "≥" not in second
        assert "(0)" in left
        assert run.count("—") == 2  # SM and idle
