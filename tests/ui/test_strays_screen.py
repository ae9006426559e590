"""The screen of strays: nothing is ticked by itself, what is ticked is ended one by one, and what became of it."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from textual.pilot import Pilot

from gpuwatch.analysis.strays import NONE
from gpuwatch.history import Idle
from gpuwatch.kill.target import Killer
from gpuwatch.model import Reason, Snapshot, Surroundings
from gpuwatch.monitor import Frame
from gpuwatch.ui.app import GpuwatchApp
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.detail import DetailScreen
from gpuwatch.ui.screens.dialog import ConfirmDialog
from gpuwatch.ui.screens.strays import StraysScreen
from tests.support import builders
from tests.support.dashboards import hand, running, text, top
from tests.support.gpuholder import ME, GpuHolder
from tests.support.killing import a_killer, on_record
from tests.support.screens import until
from tests.support.straying import LEFT, Told

SLOW = 20.0
"""Seconds between two samples, as the snapshots say: on a machine that is busy a frame is soon two seconds old."""
_STAMPS = itertools.count(1)


def a_frame(*holders: GpuHolder, gone: tuple[int, ...] = (), **changes: Any) -> Frame:
    """Return a new frame of a machine on which real processes hold GPU 0; each has lost its login and been idle."""
    stamp = 1000.0 + next(_STAMPS)
    there = [one for one in holders if one.pid not in gone]
    held = [builders.holding(one.pid, 4.0, start=one.start_ticks, sm=0) for one in there]
    fields: dict[str, Any] = {**LEFT, "surroundings": Surroundings(ssh="10.0.0.5"), "cpu": 0.0, "state": "sleeping"}
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


def helpers(killer: Killer) -> Helpers:
    return Helpers(killer=lambda: killer)


async def fed(app: GpuwatchApp, pilot: Pilot[int], make: Callable[[], Frame], condition: Callable[[], bool]) -> None:
    """Let the app run, with new frames as a watch gives them, until something is so."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, text(app)
        await hand(app, pilot, make())
        await pilot.pause(0.02)


async def opened(app: GpuwatchApp, pilot: Pilot[int]) -> StraysScreen:
    await pilot.press("S")
    await pilot.pause()
    assert isinstance(app.screen, StraysScreen)
    return app.screen


async def test_two_of_three_are_ticked_and_ended_and_the_third_lives(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder() as one, GpuHolder() as two, GpuHolder() as three:
        holders = (one, two, three)
        async with running(a_frame(*holders), (160, 50), helpers=helpers(killer)) as (app, pilot):
            screen = await opened(app, pilot)
            order = [stray.process.pid for stray in screen.found()]
            assert sorted(order) == sorted(holder.pid for holder in holders)
            assert "[x]" not in text(app)
            await pilot.press("space", "down", "space")
            assert text(app).count("[x]") == 2
            assert "2 selected" in text(app)
            await pilot.press("enter")
            await pilot.pause()
            assert isinstance(app.screen, ConfirmDialog)
            assert "End 2 processes of yours?" in text(app)
            await pilot.press("right", "right", "enter")
            doomed = [holder for holder in holders if holder.pid in order[:2]]

            async def over() -> bool:
                gone = tuple(holder.pid for holder in doomed if not holder.alive())
                await hand(app, pilot, a_frame(*holders, gone=gone))
                return text(app).count("freed on GPU 0") >= 2 + (screen.size.height > 16)

            for _ in range(400):
                if await over():
                    break
                await pilot.pause(0.05)
            shown = text(app)
            assert shown.count("4.0 GiB freed on GPU 0") >= 2
            assert [holder.alive() for holder in holders] == [holder not in doomed for holder in holders]
    events = [(line["event"], line["pid"]) for line in on_record(killer)]
    assert events == [("intent", order[0]), ("outcome", order[0]), ("intent", order[1]), ("outcome", order[1])]


async def test_without_a_tick_nothing_is_asked_and_cancel_is_the_default(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder() as one:
        async with running(a_frame(one), (100, 30), helpers=helpers(killer)) as (app, pilot):
            screen = await opened(app, pilot)
            await pilot.press("enter")
            await pilot.pause()
            assert top(app) is screen
            await pilot.press("space", "enter")
            await pilot.pause()
            assert isinstance(top(app), ConfirmDialog)
            await pilot.press("enter")
            await pilot.pause()
            assert app.screen is screen
            await pilot.press("enter", "escape")
            await pilot.pause()
            assert app.screen is screen
            assert one.alive()
    assert not killer.audit.path.exists()


async def test_one_that_changed_meanwhile_is_refused_and_the_next_is_ended(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder() as one, GpuHolder() as two:
        seen = a_frame(one, two)
        first = seen.snapshot.processes[0].pid
        changed = builders.at(seen.snapshot, 0.0)
        people = tuple(
            replace(each, command="python other.py") if each.pid == first else each for each in changed.processes
        )
        killer = a_killer(tmp_path, describe=lambda pid: one.command)
        async with running(framed(replace(changed, processes=people)), (160, 50), helpers=helpers(killer)) as (
            app,
            pilot,
        ):
            screen = await opened(app, pilot)
            for _ in screen.found():
                await pilot.press("space", "down")
            await pilot.press("enter")
            await pilot.pause()
            await pilot.press("right", "right", "enter")
            other = next(holder for holder in (one, two) if holder.pid != first)
            again = replace(changed, processes=people)
            await fed(app, pilot, lambda: framed(again), lambda: "not ended: process changed" in text(app))
            await fed(app, pilot, lambda: framed(again), lambda: not other.alive())
            assert next(holder for holder in (one, two) if holder.pid == first).alive()


async def test_read_only_ends_nothing(tmp_path: Path) -> None:
    with GpuHolder() as one:
        async with running(a_frame(one), helpers=helpers(a_killer(tmp_path)), read_only=True) as (app, pilot):
            screen = await opened(app, pilot)
            await pilot.press("space", "enter")
            await pilot.pause()
            assert app.screen is screen
        assert one.alive()


async def test_what_signals_real_processes_ends_nothing_of_a_demo(tmp_path: Path) -> None:
    with GpuHolder() as one:

        def demo() -> Frame:
            return framed(replace(a_frame(one).snapshot, demo=True))

        async with running(demo(), helpers=helpers(a_killer(tmp_path))) as (app, pilot):
            await opened(app, pilot)
            await pilot.press("space", "enter")
            await pilot.pause()
            await pilot.press("right", "right", "enter")
            await fed(app, pilot, demo, lambda: "not ended: demo: its processes are not real" in text(app))
        assert one.alive()


async def test_a_zombie_cannot_be_ticked(tmp_path: Path) -> None:
    held = [builders.holding(10, 4.0, sm=0)]
    process = builders.process(
        10, "you", state="zombie", cpu=0.0, surroundings=Surroundings(), uid=ME, ppid=9, parent="bash"
    )
    seen = builders.snapshot([builders.gpu(0, holdings=held)], [process], viewer=ME)
    async with running(framed(seen), (120, 36), helpers=helpers(a_killer(tmp_path))) as (app, pilot):
        await opened(app, pilot)
        assert "zombie" in text(app)
        await pilot.press("space")
        assert "[x]" not in text(app)


async def test_the_process_list_and_the_gpu_say_it_too() -> None:
    fields: dict[str, Any] = {**LEFT, "surroundings": Surroundings(), "cpu": 0.0, "state": "sleeping", "uid": ME}
    process = builders.process(10, "you", **fields)
    seen = builders.snapshot([builders.gpu(0, holdings=[builders.holding(10, 4.0, sm=0)])], [process], viewer=ME)
    async with running(framed(seen), (160, 50)) as (app, pilot):
        assert "stray (leftover)" in text(app)
        assert "1 stray of yours" in text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert "Stray: nobody attends to it" in text(app)


def toasts(app: GpuwatchApp) -> str:
    return "\n".join(f"{one.title} {one.message}" for one in app._notifications)


async def told_to_end(pilot: Pilot[int]) -> None:
    """Tick the one under the cursor, and confirm SIGTERM."""
    await pilot.press("space", "enter")
    await pilot.pause()
    assert isinstance(pilot.app.screen, ConfirmDialog)
    await pilot.press("right", "right", "enter")
    await pilot.pause()


async def test_a_question_that_was_open_for_long_makes_nothing_stale(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder() as one:
        old = dataclasses.replace(a_frame(one), received=time.monotonic() - 3 * SLOW)
        async with running(old, helpers=helpers(killer)) as (app, pilot):
            await opened(app, pilot)
            await pilot.press("space", "enter")
            await hand(app, pilot, a_frame(one))
            await pilot.press("right", "right", "enter")
            await fed(app, pilot, lambda: a_frame(one), lambda: not one.alive())


async def test_what_computes_again_while_the_question_is_open_loses_its_tick(tmp_path: Path) -> None:
    with GpuHolder() as one:
        async with running(a_frame(one), helpers=helpers(a_killer(tmp_path))) as (app, pilot):
            await opened(app, pilot)
            await pilot.press("space", "enter")
            busy = a_frame(one)
            computed = {(builders.gpu(0).key, one.pid): Idle(1.0, at_least=False)}
            await hand(app, pilot, Frame(busy.snapshot, busy.received, Told(computed)))
            await pilot.press("right", "right", "enter")
            await pilot.pause(0.3)
            assert NONE in text(app)
            assert one.alive()


async def test_what_came_free_is_seen_behind_another_screen(tmp_path: Path) -> None:
    with GpuHolder() as one, GpuHolder() as two:
        async with running(a_frame(one, two), helpers=helpers(a_killer(tmp_path))) as (app, pilot):
            screen = await opened(app, pilot)
            first = screen.found()[0].process.pid
            await told_to_end(pilot)
            await until(pilot, lambda: not next(holder for holder in (one, two) if holder.pid == first).alive())
            await pilot.press("down", "i")
            await pilot.pause()
            assert isinstance(app.screen, DetailScreen)
            await hand(app, pilot, a_frame(one, two, gone=(first,)))
            endings = app.endings
            assert endings is not None

            await fed(app, pilot, lambda: a_frame(one, two, gone=(first,)), lambda: not endings.busy)
            assert "4.0 GiB freed on GPU 0" in next(iter(endings.strays.values())).message
            await pilot.press("escape")
            await pilot.pause()
            assert "1 stray · 4.0 GiB" in text(app)


async def test_a_second_batch_waits_for_the_first_and_drops_none_of_it(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder(deaf=True) as stubborn, GpuHolder() as other:
        holders = (stubborn, other)
        async with running(a_frame(*holders), helpers=helpers(killer)) as (app, pilot):
            screen = await opened(app, pilot)
            await pilot.press(*["down"] * [one.process.pid for one in screen.found()].index(stubborn.pid))
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            await pilot.press("up", "up", *["down"] * [one.process.pid for one in screen.found()].index(other.pid))
            await told_to_end(pilot)
            assert "asked to stop" in text(app)
            assert "waits for its turn" in text(app)
            app.exit()
            await pilot.pause()
    assert [(line["event"], line["pid"]) for line in on_record(killer)][-1] == ("outcome", stubborn.pid)


async def test_what_was_signalled_is_followed_up_after_the_screen_was_closed(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder() as one, GpuHolder() as two:
        async with running(a_frame(one, two), (160, 50), helpers=helpers(killer)) as (app, pilot):
            screen = await opened(app, pilot)
            first, second = (stray.process.pid for stray in screen.found())
            await pilot.press("space", "down")
            await told_to_end(pilot)
            doomed = next(holder for holder in (one, two) if holder.pid == first)
            await until(pilot, lambda: not doomed.alive())
            await pilot.press("escape")
            await hand(app, pilot, a_frame(one, two, gone=(first,)))
            assert app.screen is app.dashboard
            assert "1 stray that waited for its turn is left alone" in toasts(app)
            await fed(app, pilot, lambda: a_frame(one, two, gone=(first,)), lambda: "freed on GPU 0" in toasts(app))
            assert f"process {first}" in toasts(app)
            assert next(holder for holder in (one, two) if holder.pid == second).alive()
            await pilot.press("S")
            await pilot.pause()
            assert "exited" not in "\n".join(text(app).splitlines()[:10])
    assert [(line["event"], line["pid"]) for line in on_record(killer)] == [("intent", first), ("outcome", first)]


async def test_leaving_while_one_is_being_ended_puts_its_outcome_on_record(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder(deaf=True) as one:
        async with running(a_frame(one), helpers=helpers(killer)) as (app, pilot):
            await opened(app, pilot)
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            app.exit()
            await pilot.pause()
    assert [line["event"] for line in on_record(killer)] == ["intent", "outcome"]


async def test_nothing_is_signalled_that_cannot_be_recorded(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    killer.audit.path.mkdir(parents=True)
    with GpuHolder() as one:
        async with running(a_frame(one), (160, 50), helpers=helpers(killer)) as (app, pilot):
            await opened(app, pilot)
            await told_to_end(pilot)
            await until(pilot, lambda: "not ended: cannot record" in text(app))
            assert one.alive()


async def test_one_that_became_another_program_since_it_was_ticked_is_left_alone(tmp_path: Path) -> None:
    with GpuHolder() as one:
        shown = a_frame(one)
        people = tuple(replace(each, command="python seen.py") for each in shown.snapshot.processes)
        killer = a_killer(tmp_path, describe=lambda pid: one.command)
        async with running(framed(replace(shown.snapshot, processes=people)), helpers=helpers(killer)) as (app, pilot):
            await opened(app, pilot)
            await pilot.press("space", "enter")
            await hand(app, pilot, a_frame(one))  # it has another command now, and the question shows the one before
            await pilot.press("right", "right", "enter")
            await until(pilot, lambda: "process changed" in text(app))
            assert one.alive()


async def test_the_question_does_not_count_what_has_no_figure_as_nothing() -> None:
    held = builders.holding(10, 4.0, sm=0)
    fields: dict[str, Any] = {**LEFT, "surroundings": Surroundings(), "cpu": 0.0, "state": "sleeping", "uid": ME}
    found = [builders.holding(11, sm=0, memory=Reason.DENIED), held]
    people = [builders.process(pid, "you", **fields) for pid in (10, 11)]
    seen = builders.snapshot([builders.gpu(0, holdings=found)], people, viewer=ME)
    killer = a_killer(Path("/nonexistent"))
    async with running(framed(seen), helpers=helpers(killer)) as (app, pilot):
        screen = await opened(app, pilot)
        for _ in screen.found():
            await pilot.press("space", "down")
        await pilot.press("enter")
        await pilot.pause()
        assert len(screen.found()) < 2 or "together at least 4.0 GiB" in text(app)
