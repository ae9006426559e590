"""The dialog that ends a process, by its keys, on real processes: asked, sent, hidden, shown again, refused."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from gpuwatch.kill.ending import POLL_SECONDS, KillChoice
from gpuwatch.kill.pinned import Pinner
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.ui.screens.dialog import ChoiceButton, ChoiceRow
from gpuwatch.ui.screens.end_dialog import EndDialog
from tests.support import builders
from tests.support.kill import RealRun, a_pinner, held_by, on_record, outcomes
from tests.support.process import ME, GpuHolder
from tests.support.screen import HOSTILE, PID, Host, a_snapshot, fits, frame_of, key_of, set_size, text, until
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow


class Clock:
    """Clock that goes on by one poll at most each time it is read, and by what a test adds.

    On a busy machine no time limit of the dialog passes before the dialog was drawn.
    """

    def __init__(self) -> None:
        self.ahead = 0.0
        self._now = self._read = time.monotonic()

    def __call__(self) -> float:
        last, self._read = self._read, time.monotonic()
        self._now += min(self._read - last, POLL_SECONDS)
        return self._now + self.ahead


async def opened(pilot: Pilot[Any], snapshot: Snapshot, pid: int, default: KillChoice = KillChoice.CANCEL) -> EndDialog:
    """Open the dialog on a process and wait until it is as far as that."""
    app = pilot.app
    assert isinstance(app, Host)
    assert app.end_dialogs is not None
    assert app.end_dialogs.open(key_of(snapshot, pid), frame_of(snapshot))
    await until(pilot, lambda: isinstance(app.screen, EndDialog) and bool(app.screen.query(ChoiceButton)))
    screen = app.screen
    assert isinstance(screen, EndDialog)
    await reached(pilot, screen, default)
    return screen


async def reached(pilot: Pilot[Any], screen: EndDialog, default: KillChoice) -> None:
    """Wait until the dialog offers what belongs to a step, by its default, and that has the focus."""

    def settled() -> bool:
        choices = tuple(button.choice for button in screen.query(ChoiceButton))
        right = choices == screen.ending.choices and choices[0] is default and choices != (KillChoice.CANCEL,)
        return right and isinstance(screen.focused, ChoiceButton)

    await until(pilot, settled)


async def closed(pilot: Pilot[Any], screen: EndDialog) -> None:
    await until(pilot, lambda: pilot.app.screen is not screen)


def focused(screen: EndDialog) -> KillChoice:
    """The button that Enter presses."""
    assert isinstance(screen.focused, ChoiceButton)
    return screen.focused.choice


def is_busy(app: Host) -> bool:
    return bool(app.end_dialogs and app.end_dialogs.queue.busy)


@asynccontextmanager
async def asking(
    pinner: Pinner, *, deaf: bool = False, size: tuple[int, int] = (80, 24), clock: Clock | None = None
) -> AsyncIterator[tuple[Host, Pilot[Any], EndDialog, GpuHolder]]:
    """Open the dialog on a real process, in an app of its own."""
    app = Host(pinner, clock or Clock())
    with GpuHolder(deaf=deaf) as training:
        async with app.run_test(size=size, notifications=True) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            yield app, pilot, screen, training


@asynccontextmanager
async def asking_run(
    folder: Path, size: tuple[int, int] = (100, 30), **kind: Any
) -> AsyncIterator[tuple[Host, Pilot[Any], EndDialog, RealRun, Clock]]:
    """Open the dialog on the first rank of a real run of two, in an app of its own."""
    clock = Clock()
    with RealRun(**{"ranks": 2, "workers": 0, **kind}) as run:
        app = Host(a_pinner(folder, dev=run.dev), clock)
        async with app.run_test(size=size, notifications=True) as pilot:
            yield app, pilot, await opened(pilot, run.snapshot(), run.of("rank")[0]), run, clock


async def choose_all(pilot: Pilot[Any], count: int) -> None:
    """Choose the whole run, and wait until that is asked."""
    await pilot.press("s")
    await until(pilot, lambda: "▌ Cancel ▐" in text(pilot.app) and f"Terminate {count}" in text(pilot.app))


TERMINATE = ("right", "right", "enter")


@pytest.mark.parametrize("size", [(160, 50), (60, 10)])
async def test_cancel_is_the_default_and_neither_enter_nor_k_ends_anything(
    size: tuple[int, int], tmp_path: Path
) -> None:
    pinner = a_pinner(tmp_path)
    async with asking(pinner, size=size) as (app, pilot, screen, training):
        shown = text(app)
        facts = (f"End process {training.pid}?", "python train.py", "GPU 4 · 12.0 GiB", "its parent ended")
        for words in (*facts, "Cancel", "Interrupt (SIGINT)", "Terminate (SIGTERM)"):
            assert words in shown
        assert fits(app)
        for key, choice in (
            ("left", KillChoice.CANCEL),
            ("right", KillChoice.INTERRUPT),
            ("right", KillChoice.TERMINATE),
            ("right", KillChoice.TERMINATE),
            ("left", KillChoice.INTERRUPT),
            ("left", KillChoice.CANCEL),
            ("tab", KillChoice.INTERRUPT),
            ("shift+tab", KillChoice.CANCEL),
        ):
            await pilot.press(key)
            assert focused(screen) is choice
        await pilot.press("K", "K", "t", "T", "y", "f9")
        assert app.screen is screen
        await (pilot.press("enter") if size[0] > 60 else pilot.click(screen.query(ChoiceButton).first()))
        await closed(pilot, screen)
        await until(pilot, lambda: not is_busy(app))
        assert training.alive()
    assert not pinner.audit.path.exists() or on_record(pinner) == []


@pytest.mark.uncounted
async def test_the_dialog_shows_hostile_text_as_it_is(tmp_path: Path) -> None:
    app = Host(a_pinner(tmp_path))
    async with app.run_test(size=(60, 10)) as pilot:
        for command in HOSTILE:
            snapshot = a_snapshot(command, parent=command[:60], ppid=77, uid=ME)
            screen = await opened(pilot, snapshot, PID, KillChoice.CLOSE)  # there is no such process
            assert fits(app)
            assert screen.query_one(ChoiceRow).region.bottom <= 10  # the buttons are always to be seen
            await set_size(pilot, (160, 50))
            assert command[:8] in text(app)
            assert fits(app)
            await pilot.click("#dialog", offset=(3, 3))
            await pilot.press("escape")
            await closed(pilot, screen)
            await until(pilot, lambda: not is_busy(app))
            await set_size(pilot, (60, 10))


async def test_a_process_is_ended_by_keys(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    async with asking(pinner, size=(60, 10)) as (app, pilot, screen, training):
        assert app.end_dialogs is not None
        await pilot.press(*TERMINATE)
        await until(pilot, lambda: screen.ending.exited)
        training.wait_until_exited()
        for seconds in (1, 2):
            app.end_dialogs.queue.observe(frame_of(builders.at(held_by(training, gib=0), seconds)))
        await reached(pilot, screen, KillChoice.CLOSE)
        assert "12.0 GiB freed on GPU 4" in text(app)
        assert focused(screen) is KillChoice.CLOSE
        await pilot.press("enter")
        await closed(pilot, screen)
    assert outcomes(pinner) == [(["SIGTERM"], "exited")]


async def test_sigterm_ignored_then_asked_then_killed(tmp_path: Path) -> None:
    clock, pinner = Clock(), a_pinner(tmp_path)
    async with asking(pinner, deaf=True, clock=clock) as (app, pilot, screen, training):
        await pilot.press(*TERMINATE)
        for again in (True, False):
            await reached(pilot, screen, KillChoice.HIDE)
            clock.ahead += 10
            await reached(pilot, screen, KillChoice.WAIT)
            assert focused(screen) is KillChoice.WAIT
            if again:
                await until(pilot, lambda: re.search(r"ignored SIGTERM for 1\d s", text(app)) is not None)
                await pilot.press("enter")
        assert training.alive()
        await pilot.press("right", "enter")
        await until(pilot, lambda: screen.ending.exited)
        training.wait_until_exited()
        clock.ahead += 10
        await reached(pilot, screen, KillChoice.CLOSE)
        await until(pilot, lambda: "exited after" in text(app))
    assert outcomes(pinner) == [(["SIGTERM", "SIGKILL"], "exited")]


# -- hidden --------------------------------------------------------------------------------------------------------


async def test_a_closed_dialog_never_kills_but_tells_that_it_was_ignored(tmp_path: Path) -> None:
    clock = Clock()
    async with asking(a_pinner(tmp_path), deaf=True, clock=clock) as (app, pilot, screen, training):
        await pilot.press(*TERMINATE)
        await reached(pilot, screen, KillChoice.HIDE)
        await pilot.press("enter")
        await closed(pilot, screen)
        clock.ahead += 10
        await until(pilot, lambda: bool(app._notifications))
        assert re.search(r"ignored SIGTERM for 1\d s; press K", next(iter(app._notifications)).message)
        await until(pilot, lambda: not is_busy(app))
        assert training.alive()


async def test_a_hidden_dialog_is_shown_again_and_no_second_signal_offered(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    async with asking(pinner, deaf=True) as (app, pilot, screen, training):
        assert app.end_dialogs is not None
        await pilot.press("right", "enter")
        await reached(pilot, screen, KillChoice.HIDE)
        await pilot.press("enter")
        await closed(pilot, screen)
        again = await opened(pilot, held_by(training), training.pid, KillChoice.HIDE)
        assert again.ending is screen.ending
        assert f"End process {training.pid}?" in text(app)
        assert "python train.py" in text(app)
        assert not app.end_dialogs.open(key_of(held_by(training), training.pid), frame_of(held_by(training)))
        await pilot.press("enter")
        await closed(pilot, again)
        assert training.alive()
        app.end_dialogs.close(time.monotonic() + PATIENCE)
    assert outcomes(pinner) == [(["SIGINT"], "running")]


# -- refused, warned -----------------------------------------------------------------------------------------------


async def test_what_may_not_be_ended_is_not_asked_about(tmp_path: Path) -> None:
    pinner = a_pinner(tmp_path)
    app = Host(pinner)
    async with app.run_test(size=(80, 24)) as pilot:
        snapshot = a_snapshot(user="ada", uid=ME + 1)
        assert app.end_dialogs is not None
        assert not app.end_dialogs.open(key_of(snapshot), frame_of(snapshot))
        await until(pilot, lambda: bool(app._notifications))
        assert "it belongs to ada" in next(iter(app._notifications)).message
        assert not isinstance(app.screen, EndDialog)
        assert not app.end_dialogs.queue.find_asked((PID, PID))
    assert [one["result"] for one in on_record(pinner)] == ["not yours"]


async def test_what_cannot_be_recorded_is_warned_of_first_of_all_and_told_afterwards(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with asking(a_pinner(tmp_path / "file" / "gpuwatch"), size=(60, 8)) as (app, pilot, screen, _):
        assert "▲ cannot record actions" in text(app)
        await pilot.press(*TERMINATE)
        await until(pilot, lambda: screen.ending.exited)
        await until(pilot, lambda: bool(app._notifications))
        assert next(iter(app._notifications)).message == screen.ending.warnings[0]


# -- runs ----------------------------------------------------------------------------------------------------------


async def test_a_whole_run_is_chosen_shown_and_ended(tmp_path: Path) -> None:
    async with asking_run(tmp_path, (160, 50), workers=1) as (app, pilot, screen, run, _):
        rank = run.of("rank")[0]
        assert "its run has 5" in text(app)
        assert f"End process {rank}?" in text(app)
        await pilot.press("right", "right")
        await choose_all(pilot, 5)
        assert screen.ending.whole_run
        assert f"End the run of {rank}?" in text(app)
        assert focused(screen) is KillChoice.CANCEL, "what is meant has changed: the focus is on no signal"
        assert all(str(pid) in text(app) for pid in run.roles)
        await pilot.press(*TERMINATE)
        await until(pilot, lambda: not run.alive())
        await until(pilot, lambda: screen.ending.exited)
        assert run.heard() == {pid: ["SIGTERM"] for pid in run.roles}
        await pilot.press("escape")
        assert screen.ending.exited


async def test_a_key_that_is_quicker_than_the_screen_ends_no_run_that_was_not_shown(tmp_path: Path) -> None:
    async with asking_run(tmp_path, workers=1) as (app, pilot, screen, run, _):
        await pilot.press("right", "right")
        assert focused(screen) is KillChoice.TERMINATE
        screen.ending.toggle()
        screen.query(ChoiceButton).last().action_press()
        await until(pilot, lambda: "Terminate 5" in text(app))
        assert screen.ending.sent is None
        await pilot.press("escape")
        await closed(pilot, screen)
        assert app.end_dialogs is not None
        snapshot = run.snapshot()
        assert app.end_dialogs.open(key_of(snapshot, run.of("rank")[0]), frame_of(snapshot), whole_run=True)
        await until(pilot, lambda: "Terminate 5 (SIGTERM)" in text(app))
        await pilot.press("s")
        await until(pilot, lambda: "Terminate (SIGTERM)" in text(app))
        assert run.alive() == set(run.roles)
        assert app.pinner is not None
        assert on_record(app.pinner) == []


@pytest.mark.uncounted
async def test_what_sends_nothing_keeps_the_focus_when_one_of_a_run_exits(tmp_path: Path) -> None:
    async with asking_run(tmp_path, deaf="rank") as (app, pilot, screen, run, clock):
        await choose_all(pilot, 3)
        await pilot.press(*TERMINATE)
        await reached(pilot, screen, KillChoice.HIDE)
        clock.ahead += 10
        await reached(pilot, screen, KillChoice.WAIT)
        await pilot.press("right", "right")
        assert "▌ Leave it ▐" in text(app)
        os.kill(run.of("rank")[1], signal.SIGKILL)
        await until(pilot, lambda: "Kill 2 (SIGKILL)" in text(app) and "▌" in text(app))
        assert focused(screen) is KillChoice.LEAVE
        await pilot.press("left")
        assert focused(screen) is KillChoice.KILL
        os.kill(run.of("rank")[0], signal.SIGKILL)
        await until(pilot, lambda: screen.ending.exited)


# -- buttons -------------------------------------------------------------------------------------------------------


async def marked(pilot: Pilot[Any], words: str) -> None:
    """Wait until a button is on screen with these words and the marks of what Enter presses."""
    await until(pilot, lambda: f"▌{words}▐" in text(pilot.app).replace("▌ ", "▌").replace(" ▐", "▐"))


async def test_the_buttons_of_a_run_are_on_screen_at_every_size(tmp_path: Path) -> None:
    async with asking_run(tmp_path, (100, 24), ranks=4, workers=3) as (app, pilot, screen, *_):
        await choose_all(pilot, 17)
        await pilot.press("right", "right")
        for size in ((100, 6), (100, 15), (40, 6), (40, 24), (60, 10)):
            await set_size(pilot, size)
            await marked(pilot, "Terminate 17 (SIGTERM)" if size[0] >= 60 else "Terminate 17")
            assert fits(app)
        assert focused(screen) is KillChoice.TERMINATE
