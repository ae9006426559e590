"""The screen of strays, where one of them computes again meanwhile, and where one was left."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuwatch.analysis.strays import NONE
from gpuwatch.kill.audit import Audit
from gpuwatch.kill.target import Killer
from gpuwatch.model import Job, Surroundings
from gpuwatch.monitor import Frame
from gpuwatch.ui.screens.dialog import ConfirmDialog, EndDialog
from tests.support.dashboards import hand, running, text, top
from tests.support.gpuholder import GpuHolder
from tests.support.killing import POLICY, a_killer, on_record
from tests.support.screens import until
from tests.support.waiting import PATIENCE
from tests.ui.test_strays_screen import a_frame, fed, framed, helpers, opened, toasts, told_to_end

WIDE = (160, 50)


def of_one_run(*holders: GpuHolder, leaving: int = 0, note: str = "") -> Frame:
    """Return a frame in which all are of one run that has ended; `leaving` uses a core, and `note` is the GPUs'."""
    seen = a_frame(*holders).snapshot
    around = Surroundings(ssh="10.0.0.5", job=Job(key="left 1000:1:1", name="train.py"))
    people = [replace(one, surroundings=around, cpu=100.0 * (one.pid == leaving)) for one in seen.processes]
    gpus = [replace(one, holdings_note=note) for one in seen.gpus]
    return framed(replace(seen, processes=tuple(people), gpus=tuple(gpus)))


def computing(*holders: GpuHolder, busy: int, gone: tuple[int, ...] = ()) -> Frame:
    """Return a new frame in which one of them computes again."""
    return framed(a_frame(*holders, gone=gone).snapshot, busy=(busy,))


def unrecorded(folder: Path) -> Killer:
    """Return a killer that can put nothing on record, so that each stray is left at once."""
    killer = a_killer(folder)
    killer.audit.path.mkdir(parents=True)
    return killer


async def test_one_that_computes_again_while_it_waits_for_its_turn_is_left_alone(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder(deaf=True) as one, GpuHolder(deaf=True) as two:
        async with running(a_frame(one, two), WIDE, helpers=helpers(killer)) as (app, pilot):
            screen = await opened(app, pilot)
            first, second = (stray.process.pid for stray in screen.found())
            await pilot.press("space", "down")
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            assert "waits for its turn" in text(app)
            await hand(app, pilot, computing(one, two, busy=second))
            assert "left alone: no longer a stray" in text(app)
            os.kill(first, signal.SIGKILL)
            endings = app.endings
            assert endings is not None
            await fed(
                app,
                pilot,
                lambda: computing(one, two, busy=second, gone=(first,)),
                lambda: not endings.busy,
            )
        assert [holder.alive() for holder in (one, two)] == [holder.pid == second for holder in (one, two)]
    assert {line["pid"] for line in on_record(killer)} == {first}


async def test_one_that_was_left_and_computes_again_cannot_be_ticked(tmp_path: Path) -> None:
    with GpuHolder() as one:
        async with running(a_frame(one), WIDE, helpers=helpers(unrecorded(tmp_path))) as (app, pilot):
            screen = await opened(app, pilot)
            await told_to_end(pilot)
            await until(pilot, lambda: "not ended: cannot record" in text(app))
            await pilot.press("space")
            assert "1 selected" in text(app), "while it is a stray, it may be tried again"
            await hand(app, pilot, computing(one, busy=one.pid))
            assert "selected" not in screen.query_one("#strays-title").render_line(0).text
            await pilot.press("space", "enter")
            await pilot.pause()
            assert top(app) is screen
            assert "it is no longer a stray" in toasts(app)


@pytest.mark.parametrize("remains", [True, False])
async def test_it_is_said_that_fewer_are_ended_than_were_asked_about(remains: bool, tmp_path: Path) -> None:
    with GpuHolder() as one, GpuHolder() as two:
        holders = (one, two) if remains else (two,)
        async with running(a_frame(*holders), WIDE, helpers=helpers(a_killer(tmp_path))) as (app, pilot):
            await opened(app, pilot)
            await pilot.press(*["space", "down"] * len(holders), "enter")
            await pilot.pause()
            assert isinstance(top(app), ConfirmDialog)
            await hand(app, pilot, computing(*holders, busy=two.pid))
            await pilot.press("right", "right", "enter")
            await pilot.pause()
            assert f"PID {two.pid} is no longer a stray: left alone" in toasts(app)
            if remains:
                await fed(app, pilot, lambda: computing(*holders, busy=two.pid), lambda: not one.alive())
        assert two.alive()


async def test_k_on_one_that_was_left_asks_what_to_do_with_it(tmp_path: Path) -> None:
    with GpuHolder() as one, GpuHolder() as two:
        frame = a_frame(one, two)
        async with running(frame, WIDE, helpers=helpers(unrecorded(tmp_path))) as (app, pilot):
            screen = await opened(app, pilot)
            left = screen.found()[0].process.pid
            await told_to_end(pilot)
            await until(pilot, lambda: "not ended: cannot record" in text(app))
            await pilot.press("down", "space", "K")
            await pilot.pause()
            assert isinstance(top(app), ConfirmDialog), "this one was not left"
            await pilot.press("escape", "up", "enter")
            await pilot.pause()
            assert isinstance(top(app), ConfirmDialog), "Enter is for those that are ticked"
            await pilot.press("escape", "K")
            await pilot.pause()
            assert isinstance(top(app), EndDialog)
            await until(pilot, lambda: "▲ cannot record actions" in text(app))
            assert f"End process {left}?" in text(app)
            await pilot.press("escape")
            await until(pilot, lambda: top(app) is screen)
            assert "1 selected" in text(app)
            assert "not ended" not in text(app), "its line says what it is, and no more what became of it before"
            assert NONE not in text(app)
        assert one.alive()
        assert two.alive()


async def test_one_that_is_ended_as_a_stray_is_not_asked_about_a_second_time(tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    with GpuHolder(deaf=True) as one:
        async with running(a_frame(one), WIDE, helpers=helpers(killer)) as (app, pilot):
            await opened(app, pilot)
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            await pilot.press("escape", "K")
            await pilot.pause()
            assert "it is being ended as a stray: S shows it" in toasts(app)
            assert not isinstance(top(app), EndDialog)


async def test_one_whose_dialog_was_hidden_is_not_ended_as_a_stray_as_well(tmp_path: Path) -> None:
    with GpuHolder(deaf=True) as one:
        async with running(a_frame(one), WIDE, helpers=helpers(a_killer(tmp_path))) as (app, pilot):
            await pilot.press("K")
            await until(pilot, lambda: "Terminate" in text(app))
            await pilot.press("right", "right", "enter")
            await until(pilot, lambda: "asked to stop" in text(app))
            await pilot.press("escape")
            await opened(app, pilot)
            await pilot.press("space")
            await pilot.pause()
            assert "it is being ended already: K on the dashboard shows it" in toasts(app)
            assert "selected" not in text(app).splitlines()[0]


async def test_how_the_first_ends_and_one_bad_reading_call_off_nothing(tmp_path: Path) -> None:
    """The one that saves uses a core, and is of the others' run; of a GPU that cannot be judged nothing follows."""
    with GpuHolder(deaf=True) as one, GpuHolder(deaf=True) as two:
        async with running(of_one_run(one, two), WIDE, helpers=helpers(a_killer(tmp_path))) as (app, pilot):
            screen = await opened(app, pilot)
            first = screen.found()[0].process.pid
            await pilot.press("space", "down")
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            await hand(app, pilot, of_one_run(one, two, leaving=first))
            assert "waits for its turn" in text(app)
            await hand(app, pilot, of_one_run(one, two, note="its list has gaps"))
            assert "waits for its turn" in text(app)


async def test_quitting_lets_both_kinds_of_endings_be_recorded_at_the_same_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the one that K ended does not go on before that of the stray has begun."""
    monkeypatch.setattr("gpuwatch.ui.app.CLOSING_SECONDS", 2 * PATIENCE)
    begun, waited = threading.Event(), []
    with GpuHolder(deaf=True) as one, GpuHolder(deaf=True) as two:

        def write(descriptor: int, line: bytes) -> int:
            record = json.loads(line)
            if record["event"] == "outcome" and record["pid"] == one.pid:
                waited.append(begun.wait(PATIENCE))
            elif record["event"] == "outcome":
                begun.set()
            return os.write(descriptor, line)

        killer = Killer(POLICY, Audit(tmp_path, write=write))
        async with running(a_frame(one, two), WIDE, helpers=helpers(killer)) as (app, pilot):
            await pilot.press(*["down"] * [row.process.pid for row in app.dashboard.processes.every].index(one.pid))
            await pilot.press("K")
            await until(pilot, lambda: f"End process {one.pid}?" in text(app) and "Terminate" in text(app))
            await pilot.press("right", "right", "enter")
            await until(pilot, lambda: "asked to stop" in text(app))
            await pilot.press("escape")
            screen = await opened(app, pilot)
            await pilot.press(*["down"] * [stray.process.pid for stray in screen.found()].index(two.pid))
            await told_to_end(pilot)
            await until(pilot, lambda: "asked to stop" in text(app))
            app.exit()
            outcomes = {line["pid"] for line in on_record(killer) if line["event"] == "outcome"}
        assert waited == [True]
        assert outcomes == {one.pid, two.pid}
