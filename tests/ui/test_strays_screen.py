"""Strays screen: only selected strays are ended, one by one, and each line says what became of it."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.pilot import Pilot

from gpuwatch.kill.demo import DemoEnder
from gpuwatch.kill.pinned import Pinner
from gpuwatch.model.snapshot import Idle, ProcessContext, Reason, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.dialog import ConfirmDialog
from gpuwatch.ui.screens.end_dialog import EndDialog
from gpuwatch.ui.screens.strays import StraysScreen
from tests.support import builders
from tests.support.kill import a_pinner, on_record
from tests.support.process import ME, GpuHolder
from tests.support.screen import hand, press, running, text, top, until
from tests.support.strays import LEFT, Told
from tests.support.waiting import PATIENCE, describe

pytestmark = pytest.mark.slow

SLOW = 20.0
"""Seconds between two samples, as the snapshots say: on a machine that is busy a frame is soon two seconds old."""
_STAMPS = itertools.count(1)


def a_frame(*holders: GpuHolder, gone: tuple[int, ...] = (), **changes: Any) -> Frame:
    """Return a new frame of a machine on which real processes hold GPU 0; each has lost its login and been idle."""
    stamp = 1000.0 + next(_STAMPS)
    there = [one for one in holders if one.pid not in gone]
    held = [builders.holding(one.pid, 4.0, start=one.start_ticks, sm=0) for one in there]
    fields: dict[str, Any] = {**LEFT, "context": ProcessContext(ssh="10.0.0.5"), "cpu": 0.0, "state": "sleeping"}
    people = [
        builders.process(one.pid, "you", start=one.start_ticks, uid=one.uid, command=one.command, **fields, **changes)
        for one in there
    ]
    seen = builders.snapshot(
        [builders.gpu(0, holdings=held, sampled=stamp)],
        people,
        viewer=ME,
        monotonic=stamp,
        searched=builders.EPOCH,
        interval=SLOW,
    )
    return framed(seen)


def framed(seen: Snapshot, busy: tuple[int, ...] = ()) -> Frame:
    """Return a frame in whose history everything but these has been idle for an hour."""
    held = {(gpu.key, one.pid) for gpu in seen.gpus for one in gpu.holdings if one.pid not in busy}
    return Frame(seen, time.monotonic(), Told({one: Idle(3600.0, at_least=False) for one in held}))


def helpers(pinner: Pinner) -> Helpers:
    return Helpers(ender=lambda: pinner)


async def fed(app: GpuwatchApp, pilot: Pilot[int], make: Callable[[], Frame], condition: Callable[[], bool]) -> None:
    """Let the app run, with new frames as a watch gives them, until something is so."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{describe(condition)}\nthe screen:\n{text(app)}"
        await hand(app, pilot, make())
        await pilot.pause(0.02)


async def opened(app: GpuwatchApp, pilot: Pilot[int]) -> StraysScreen:
    await press(pilot, "S")
    assert isinstance(app.screen, StraysScreen)
    return app.screen


@asynccontextmanager
async def listed(
    pinner: Pinner, first: Frame, size: tuple[int, int] = (160, 50), **options: Any
) -> AsyncIterator[tuple[GpuwatchApp, Pilot[int], StraysScreen]]:
    """Show a frame in the dashboard and open the screen of strays."""
    async with running(first, size, helpers=helpers(pinner), **options) as (app, pilot):
        yield app, pilot, await opened(app, pilot)


def toasts(app: GpuwatchApp) -> str:
    return "\n".join(f"{one.title} {one.message}" for one in app._notifications)


async def confirm(pilot: Pilot[int]) -> None:
    """Choose SIGTERM in the question that is open."""
    await pilot.pause()
    assert isinstance(pilot.app.screen, ConfirmDialog)
    await press(pilot, "right", "right", "enter")


async def told_to_end(pilot: Pilot[int]) -> None:
    """Tick the one under the cursor, and confirm SIGTERM."""
    await pilot.press("space", "enter")
    await confirm(pilot)


async def test_two_of_three_are_selected_and_ended_and_the_third_lives(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    with GpuHolder() as one, GpuHolder() as two, GpuHolder() as three:
        holders = (one, two, three)
        async with listed(pinner, a_frame(*holders)) as (app, pilot, screen):
            order = [stray.process.pid for stray in screen.found()]
            assert sorted(order) == sorted(holder.pid for holder in holders)
            assert "[x]" not in text(app)
            await pilot.press("space", "down", "space")
            assert text(app).count("[x]") == 2
            assert "2 selected" in text(app)
            await press(pilot, "enter")
            assert "End 2 processes of yours?" in text(app)
            await confirm(pilot)

            def now() -> Frame:
                return a_frame(*holders, gone=tuple(holder.pid for holder in holders if not holder.alive()))

            await fed(app, pilot, now, lambda: text(app).count("4.0 GiB freed on GPU 0") >= 2)
            assert [holder.alive() for holder in holders] == [holder.pid == order[2] for holder in holders]
    assert [line["pid"] for line in on_record(pinner)] == order[:2]


async def test_one_that_became_another_program_since_it_was_selected_is_refused_and_the_next_is_ended(
    tmp_path: Path,
) -> None:
    with GpuHolder() as one, GpuHolder() as two:
        shown = a_frame(one, two).snapshot
        changed = shown.processes[0].pid
        people = tuple(
            replace(each, command="python seen.py") if each.pid == changed else each for each in shown.processes
        )
        pinner = a_pinner(tmp_path, describe=lambda pid: one.command)
        async with listed(pinner, framed(replace(shown, processes=people))) as (app, pilot, _):
            await pilot.press("space", "down", "space", "enter")
            await hand(app, pilot, a_frame(one, two))  # it has another command now than the question shows
            await confirm(pilot)
            first, other = (one, two) if one.pid == changed else (two, one)
            await fed(app, pilot, lambda: a_frame(one, two), lambda: "not ended: process changed" in text(app))
            await fed(app, pilot, lambda: a_frame(one, two), lambda: not other.alive())
            assert first.alive()


async def test_in_the_demo_rows_are_removed_and_nothing_is_signalled() -> None:
    removed: list[int] = []
    ender = DemoEnder(removed.append, ME)
    with GpuHolder() as one, GpuHolder() as two:
        seen = framed(replace(a_frame(one, two).snapshot, demo=True))
        async with running(seen, (160, 50), helpers=Helpers(ender=lambda: ender)) as (app, pilot):
            await pilot.press("K")
            await until(pilot, lambda: "no signal was sent (demo); its row was removed" in toasts(app))
            await opened(app, pilot)
            await pilot.press("space", "down")
            await told_to_end(pilot)
            await until(pilot, lambda: "no signal was sent (demo); 2 rows were removed" in toasts(app))
        assert len(removed) == 3
        assert set(removed) == {one.pid, two.pid}
        assert one.alive()
        assert two.alive()


async def test_what_was_signalled_is_followed_up_after_the_screen_was_closed(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    with GpuHolder() as one, GpuHolder() as two:
        async with listed(pinner, a_frame(one, two)) as (app, pilot, screen):
            first, second = (stray.process.pid for stray in screen.found())
            await pilot.press("space", "down")
            await told_to_end(pilot)
            doomed = next(holder for holder in (one, two) if holder.pid == first)
            await until(pilot, lambda: not doomed.alive())
            await pilot.press("escape")
            await hand(app, pilot, a_frame(one, two, gone=(first,)))
            assert app.screen is app.dashboard
            assert "1 waiting stray is left alone" in toasts(app)
            await fed(app, pilot, lambda: a_frame(one, two, gone=(first,)), lambda: "freed on GPU 0" in toasts(app))
            assert f"process {first}" in toasts(app)
            assert next(holder for holder in (one, two) if holder.pid == second).alive()
            await press(pilot, "S")
            assert "exited" not in "\n".join(text(app).splitlines()[:10])
    assert [(line["event"], line["pid"]) for line in on_record(pinner)] == [("outcome", first)]


def computing(*holders: GpuHolder, busy: int, gone: tuple[int, ...] = ()) -> Frame:
    """Return a new frame in which one of them computes again."""
    return framed(a_frame(*holders, gone=gone).snapshot, busy=(busy,))


async def test_one_that_computes_again_while_it_waits_for_its_turn_is_left_alone(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    with GpuHolder(deaf=True) as one, GpuHolder(deaf=True) as two:
        async with listed(pinner, a_frame(one, two)) as (app, pilot, screen):
            first, second = (stray.process.pid for stray in screen.found())
            await pilot.press("space", "down")
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            assert "waits for its turn" in text(app)
            await hand(app, pilot, computing(one, two, busy=second))
            assert "left alone: no longer a stray" in text(app)
            os.kill(first, signal.SIGKILL)
            queue = app.kill_queue
            assert queue is not None
            await fed(app, pilot, lambda: computing(one, two, busy=second, gone=(first,)), lambda: not queue.busy)
        assert [holder.alive() for holder in (one, two)] == [holder.pid == second for holder in (one, two)]
    assert {line["pid"] for line in on_record(pinner)} == {first}


async def test_one_that_is_ended_as_a_stray_is_not_asked_about_a_second_time(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    with GpuHolder(deaf=True) as one:
        async with listed(pinner, a_frame(one)) as (app, pilot, _):
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            await press(pilot, "escape", "K")
            assert "already being ended as a stray: S shows it" in toasts(app)
            assert not isinstance(top(app), EndDialog)


@pytest.mark.uncounted
async def test_quitting_records_both_kinds_of_endings(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    with GpuHolder(deaf=True) as one, GpuHolder(deaf=True) as two:
        async with running(a_frame(one, two), (160, 50), helpers=helpers(pinner)) as (app, pilot):
            await pilot.press(*["down"] * [row.process.pid for row in app.dashboard.processes.every].index(one.pid))
            await pilot.press("K")
            await until(pilot, lambda: f"End process {one.pid}?" in text(app) and "Terminate" in text(app))
            await pilot.press("right", "right", "enter")
            await until(pilot, lambda: "asked to stop" in text(app))
            await pilot.press("escape")
            screen = await opened(app, pilot)
            order = [stray.process.pid for stray in screen.found()]
            await pilot.press(*["down"] * order.index(one.pid), "space")
            assert "already being ended: Enter shows it" in toasts(app)
            await pilot.press("g", *["down"] * order.index(two.pid))
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            app.exit()
    lines = [(line["pid"], line["signals"], line["result"]) for line in on_record(pinner)]
    assert sorted(lines) == sorted((pid, ["SIGTERM"], "running") for pid in (one.pid, two.pid))


@pytest.mark.uncounted
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("key", ["enter", "K"])
async def test_the_one_under_the_cursor_is_asked_about_and_not_ended_by_default_or_read_only(
    tmp_path: Path, read_only: bool, key: str
) -> None:
    pinner = a_pinner(tmp_path)
    with GpuHolder() as one:
        async with listed(pinner, a_frame(one), (100, 30), read_only=read_only) as (app, pilot, screen):
            await press(pilot, key)
            assert (top(app) is screen) is read_only
            assert ("read-only" in toasts(app)) is read_only
            assert ("End 1 process of yours?" in text(app)) is not read_only
            await pilot.press("enter")  # Cancel is the default
            await pilot.pause()
            assert top(app) is screen
            assert one.alive()
    assert not pinner.audit.path.exists()


@pytest.mark.uncounted
async def test_a_zombie_cannot_be_selected_and_what_has_no_figure_is_not_counted_as_nothing() -> None:
    fields: dict[str, Any] = {**LEFT, "context": ProcessContext(), "cpu": 0.0, "uid": ME}
    found = [
        builders.holding(10, 4.0, sm=0),
        builders.holding(11, 3.0, sm=0),
        builders.holding(12, sm=0, memory=Reason.DENIED),
    ]
    states = {10: "zombie", 11: "sleeping", 12: "sleeping"}
    people = [builders.process(pid, "you", state=state, **fields) for pid, state in states.items()]
    seen = builders.snapshot([builders.gpu(0, holdings=found)], people, viewer=ME)
    async with listed(a_pinner(Path("/nonexistent")), framed(seen)) as (app, pilot, screen):
        assert "zombie" in text(app)
        for _ in screen.found():
            await pilot.press("space", "down")
        assert {pid for pid, _ in screen.rows.chosen} == {11, 12}
        await press(pilot, "enter")
        assert "together they hold at least 3.0 GiB" in text(app)


async def test_a_second_batch_waits_for_the_first_and_drops_none_of_it(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    with GpuHolder(deaf=True) as stubborn, GpuHolder() as other:
        holders = (stubborn, other)
        async with listed(pinner, a_frame(*holders)) as (app, pilot, screen):
            await pilot.press(*["down"] * [one.process.pid for one in screen.found()].index(stubborn.pid))
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            await pilot.press("up", "up", *["down"] * [one.process.pid for one in screen.found()].index(other.pid))
            await told_to_end(pilot)
            assert "asked to stop" in text(app)
            assert "waits for its turn" in text(app)
            app.exit()
            await pilot.pause()
    assert [(line["event"], line["pid"]) for line in on_record(pinner)][-1] == ("outcome", stubborn.pid)


async def test_it_is_said_that_fewer_are_ended_than_were_asked_about(tmp_path: Path) -> None:
    with GpuHolder() as one, GpuHolder() as two:
        holders = (one, two)
        async with listed(a_pinner(tmp_path), a_frame(*holders)) as (app, pilot, _):
            await press(pilot, *["space", "down"] * len(holders), "enter")
            assert isinstance(top(app), ConfirmDialog)
            await hand(app, pilot, computing(*holders, busy=two.pid))
            await press(pilot, "right", "right", "enter")
            assert f"PID {two.pid} is no longer a stray: left alone" in toasts(app)
            await fed(app, pilot, lambda: computing(*holders, busy=two.pid), lambda: not one.alive())
        assert two.alive()


def unrecorded(folder: Path) -> Pinner:
    """Return a pinner that can put nothing on record, so that each stray is left at once."""
    pinner = a_pinner(folder)
    pinner.audit.path.mkdir(parents=True)
    return pinner


async def test_one_that_was_left_and_computes_again_cannot_be_selected(tmp_path: Path) -> None:
    with GpuHolder() as one:
        async with listed(unrecorded(tmp_path), a_frame(one)) as (app, pilot, screen):
            await told_to_end(pilot)
            await until(pilot, lambda: "not ended: cannot record" in text(app))
            await pilot.press("space")
            assert "1 selected" in text(app), "while it is a stray, it may be tried again"
            await hand(app, pilot, computing(one, busy=one.pid))
            assert "selected" not in screen.query_one("#strays-title").render_line(0).text
            await press(pilot, "space")
            assert "it is no longer a stray" in toasts(app)


async def test_a_possible_stray_is_ended_alone_by_two_keys_and_a_question(tmp_path: Path) -> None:
    with GpuHolder() as one:
        async with listed(a_pinner(tmp_path), computing(one, busy=one.pid)) as (app, pilot, screen):
            await press(pilot, "space")
            assert "it cannot be selected, but Enter ends it" in toasts(app)
            await press(pilot, "enter")
            assert "not yet known to be a stray" in text(app)
            await confirm(pilot)
            await fed(app, pilot, lambda: computing(one, busy=one.pid), lambda: not one.alive())
            assert top(app) is screen
