"""The dialog that ends a process, by its keys, on real processes, at three sizes and with hostile text."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot

from gpuwatch.kill.audit import Audit
from gpuwatch.kill.session import Choice, Phase
from gpuwatch.kill.target import Killer, Policy
from gpuwatch.model import Snapshot
from gpuwatch.ui.screens.dialog import ChoiceButton, ChoiceRow, EndDialog
from tests.support import builders
from tests.support.gpuholder import ME, SOMEBODY_ELSE, GpuHolder
from tests.support.killing import NO_PROCESS, POLICY, a_killer, on_record
from tests.support.running import RealRun
from tests.support.screens import HOSTILE, PID, SIZES, Host, a_snapshot, fits, frame_of, key_of, text_of, until
from tests.support.waiting import PATIENCE


class Clock:
    """Real time, and what a test adds to it."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


def held_by(holder: GpuHolder, gib: float = 12.0, **changes: Any) -> Snapshot:
    """A snapshot in which a real process holds GPU 4."""
    held = [builders.holding(holder.pid, gib, start=holder.start_ticks)] if gib else []
    process = builders.process(
        holder.pid, "you", start=holder.start_ticks, uid=holder.uid, command=holder.command, ppid=1
    )
    return builders.snapshot([builders.gpu(4, holdings=held)], [process], viewer=ME, **changes)


async def opened(pilot: Pilot[Any], snapshot: Snapshot, pid: int, phase: Phase = Phase.ASKING) -> EndDialog:
    """Open the dialog on a process and wait until it is as far as that."""
    app = pilot.app
    assert isinstance(app, Host)
    assert app.endings is not None
    assert app.endings.open(key_of(snapshot, pid), frame_of(snapshot))
    await until(pilot, lambda: isinstance(app.screen, EndDialog) and bool(app.screen.query(ChoiceButton)))
    screen = app.screen
    assert isinstance(screen, EndDialog)
    await reached(pilot, screen, phase)
    return screen


async def reached(pilot: Pilot[Any], screen: EndDialog, phase: Phase) -> None:
    """Wait until the dialog offers what belongs to a phase, and its default has the focus."""

    def settled() -> bool:
        choices = [button.choice for button in screen.query(ChoiceButton)]
        right = tuple(choices) == screen.session.view.choices and screen.session.phase is phase
        return right and isinstance(screen.focused, ChoiceButton)

    await until(pilot, settled)


def focused(screen: EndDialog) -> Choice:
    """The button that Enter presses."""
    assert isinstance(screen.focused, ChoiceButton)
    return screen.focused.choice


@pytest.mark.parametrize("size", SIZES)
async def test_cancel_is_the_default_and_neither_enter_nor_k_ends_anything(
    size: tuple[int, int], tmp_path: Path
) -> None:
    app = Host(a_killer(tmp_path))
    with GpuHolder() as training:
        async with app.run_test(size=size) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            shown = text_of(app)
            assert f"End process {training.pid}?" in shown
            told = ("python train.py", "GPU 4 · 12.0 GiB", "its parent ended")
            for words in (*told, "Cancel", "Interrupt (SIGINT)", "Terminate (SIGTERM)"):
                assert words in shown
            assert fits(app)
            assert focused(screen) is Choice.CANCEL
            await pilot.press("K", "K", "t", "T", "y", "f9")
            assert app.screen is screen
            await pilot.press("enter")
            await until(pilot, lambda: app.screen is not screen)
            await until(pilot, lambda: not (app.endings and app.endings._dialogs))
        assert training.alive()
    assert not (tmp_path / "actions.jsonl").exists() or on_record(app_killer(app)) == []


def app_killer(app: Host) -> Killer:
    """The killer of an app, which there must be."""
    assert app.killer is not None
    return app.killer


@pytest.mark.parametrize("size", SIZES)
async def test_the_dialog_shows_hostile_text_as_it_is(size: tuple[int, int], tmp_path: Path) -> None:
    app = Host(a_killer(tmp_path))
    async with app.run_test(size=size) as pilot:
        for command in HOSTILE:
            snapshot = a_snapshot(command, parent=command[:60], ppid=77)
            screen = await opened(pilot, snapshot, PID, Phase.REFUSED)  # there is no such process
            assert command[:8] in text_of(app) or size[1] == 10
            assert fits(app)
            row = screen.query_one(ChoiceRow).region
            assert row.bottom <= size[1]  # the buttons are always to be seen
            await pilot.click("#dialog", offset=(3, 3))
            await pilot.press("escape")
            await until(pilot, lambda screen=screen: app.screen is not screen)  # type: ignore[misc]
            await until(pilot, lambda: not (app.endings and app.endings._dialogs))


async def test_the_arrows_mark_and_the_mouse_presses(tmp_path: Path) -> None:
    app = Host(a_killer(tmp_path))
    with GpuHolder() as training:
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            for key, choice in (
                ("left", Choice.CANCEL),
                ("right", Choice.INTERRUPT),
                ("right", Choice.TERMINATE),
                ("right", Choice.TERMINATE),
                ("left", Choice.INTERRUPT),
                ("left", Choice.CANCEL),
                ("tab", Choice.INTERRUPT),
                ("shift+tab", Choice.CANCEL),
            ):
                await pilot.press(key)
                assert focused(screen) is choice
            await pilot.click(screen.query(ChoiceButton).first())
            await until(pilot, lambda: app.screen is not screen)
        assert training.alive()


@pytest.mark.parametrize("size", SIZES)
async def test_a_process_is_ended_by_keys(size: tuple[int, int], tmp_path: Path) -> None:
    killer = a_killer(tmp_path)
    app = Host(killer)
    with GpuHolder() as training:
        async with app.run_test(size=size) as pilot:
            assert app.endings is not None
            snapshot = held_by(training)
            screen = await opened(pilot, snapshot, training.pid)
            await pilot.press("right", "right", "enter")
            await reached(pilot, screen, Phase.FREEING)
            training.wait_until_exited()
            for seconds in (1, 2):
                app.endings.observe(frame_of(builders.at(held_by(training, gib=0), seconds)))
            await reached(pilot, screen, Phase.OVER)
            assert "12.0 GiB freed on GPU 4" in text_of(app)
            assert focused(screen) is Choice.CLOSE
            await pilot.press("enter")
            await until(pilot, lambda: app.screen is not screen)
    assert [(line["event"], line.get("signal")) for line in on_record(killer)] == [
        ("intent", "SIGTERM"),
        ("outcome", None),
    ]


async def test_sigterm_ignored_then_asked_then_killed(tmp_path: Path) -> None:
    clock = Clock()
    app = Host(a_killer(tmp_path), clock)
    with GpuHolder(deaf=True) as training:
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            await pilot.press("right", "right", "enter")
            await reached(pilot, screen, Phase.STOPPING)
            clock.ahead += 10
            await reached(pilot, screen, Phase.STILL_THERE)
            assert "ignored SIGTERM for 10 s" in text_of(app)
            assert focused(screen) is Choice.WAIT
            await pilot.press("enter")
            await reached(pilot, screen, Phase.STOPPING)
            clock.ahead += 10
            await reached(pilot, screen, Phase.STILL_THERE)
            assert training.alive()
            await pilot.press("right", "enter")
            await reached(pilot, screen, Phase.FREEING)
            training.wait_until_exited()
            clock.ahead += 10
            await reached(pilot, screen, Phase.OVER)
            assert "exited after" in text_of(app)
    events = [line.get("signal") or line["result"] for line in on_record(app_killer(app))]
    assert events == ["SIGTERM", "running", "SIGKILL", "exited"]


async def test_a_dialog_that_is_closed_goes_on_and_ends_in_a_toast(tmp_path: Path) -> None:
    app = Host(a_killer(tmp_path))
    with GpuHolder() as training:
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            assert app.endings is not None
            screen = await opened(pilot, held_by(training), training.pid)
            training.stop()  # so that it is still there while the dialog is closed
            await pilot.press("right", "right", "enter")
            await reached(pilot, screen, Phase.STOPPING)
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is not screen)
            resume(training)
            training.wait_until_exited()
            await until(pilot, lambda: screen.session.phase is Phase.FREEING)
            for seconds in (1, 2):
                app.endings.observe(frame_of(builders.at(held_by(training, gib=0), seconds)))
            await until(pilot, lambda: bool(app._notifications))
            assert [one.message for one in app._notifications] == [screen.session.message]
            assert "12.0 GiB freed on GPU 4" in screen.session.message


def resume(holder: GpuHolder) -> None:
    """Let a stopped process go on."""
    os.kill(holder.pid, signal.SIGCONT)


async def test_a_closed_dialog_never_kills_but_tells_that_it_was_ignored(tmp_path: Path) -> None:
    clock = Clock()
    app = Host(a_killer(tmp_path), clock)
    with GpuHolder(deaf=True) as training:
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            await pilot.press("right", "right", "enter")
            await reached(pilot, screen, Phase.STOPPING)
            await pilot.press("enter")
            await until(pilot, lambda: app.screen is not screen)
            clock.ahead += 10
            await until(pilot, lambda: bool(app._notifications))
            assert re.search(r"ignored SIGTERM for 1\d s; press K", next(iter(app._notifications)).message)
            await until(pilot, lambda: not (app.endings and app.endings._dialogs))
        assert training.alive()


class SlowAudit(Audit):
    """A record on a file system that takes its time over what is written, until the test says go on."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.answers = threading.Event()

    def append(self, event: str, fields: Mapping[str, object]) -> str | None:
        assert self.answers.wait(30)
        return super().append(event, fields)


async def test_hide_means_the_same_in_every_step_that_offers_it(tmp_path: Path) -> None:
    """Enter on it did nothing in the step after the one that it was first drawn for."""
    audit = SlowAudit(tmp_path)
    app = Host(Killer(POLICY, audit))
    with GpuHolder(deaf=True) as training:
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            await pilot.press("right", "right", "enter")
            await reached(pilot, screen, Phase.SENDING)
            hide = screen.focused
            assert focused(screen) is Choice.HIDE
            audit.answers.set()
            await reached(pilot, screen, Phase.STOPPING)
            await until(pilot, lambda: "asked to stop" in text_of(app))
            assert screen.focused is hide
            await pilot.press("enter")
            await until(pilot, lambda: app.screen is not screen)
        assert training.alive()


async def test_quitting_meanwhile_leaves_the_process_as_it_is(tmp_path: Path) -> None:
    app = Host(a_killer(tmp_path))
    with GpuHolder(deaf=True) as training:
        async with app.run_test(size=(80, 24)) as pilot:
            assert app.endings is not None
            screen = await opened(pilot, held_by(training), training.pid)
            await pilot.press("right", "right", "enter")
            await reached(pilot, screen, Phase.STOPPING)
            app.endings.abandon()
            app.endings.close(time.monotonic() + PATIENCE)
            assert screen.session.message == "left running"
        assert training.alive()
    assert [line["event"] for line in on_record(app_killer(app))] == ["intent", "outcome"]


async def test_refused_when_the_frame_is_old(tmp_path: Path) -> None:
    clock = Clock()
    app = Host(a_killer(tmp_path), clock)
    with GpuHolder() as training:
        async with app.run_test(size=(80, 24)) as pilot:
            snapshot = held_by(training)
            clock.ahead = 3.0
            await opened(pilot, snapshot, training.pid, Phase.REFUSED)
            assert "too old to act on" in text_of(app)
        assert training.alive()


async def test_refused_in_the_demo(tmp_path: Path) -> None:
    app = Host(a_killer(tmp_path))
    async with app.run_test(size=(60, 10)) as pilot:
        snapshot = builders.snapshot([builders.gpu(0, holdings=[builders.holding(PID)])], demo=True)
        screen = await opened(pilot, snapshot, PID, Phase.REFUSED)
        assert "Not ended: demo: its processes are not real." in text_of(app)
        assert [button.choice for button in screen.query(ChoiceButton)] == [Choice.CLOSE]


async def test_refused_when_read_only(tmp_path: Path) -> None:
    policy = Policy(uid=ME, euid=ME, pid=NO_PROCESS, read_only=True)
    app = Host(a_killer(tmp_path, policy))
    with GpuHolder() as training:
        async with app.run_test(size=(80, 24)) as pilot:
            await opened(pilot, held_by(training), training.pid, Phase.REFUSED)
            assert "--read-only" in text_of(app)
        assert training.alive()


async def test_refused_when_it_is_somebody_elses(tmp_path: Path) -> None:
    app = Host(a_killer(tmp_path, POLICY))
    snapshot = builders.snapshot(
        [builders.gpu(0, holdings=[builders.holding(PID)])], [builders.process(PID, "ada", uid=SOMEBODY_ELSE)]
    )
    async with app.run_test(size=(80, 24)) as pilot:
        await opened(pilot, snapshot, PID, Phase.REFUSED)
        assert "it belongs to ada, and gpuwatch signals only your own" in text_of(app).replace("\n", " ")


async def test_an_unwritable_record_is_a_warning_in_the_dialog(tmp_path: Path) -> None:
    (tmp_path / "actions.jsonl").mkdir()
    app = Host(a_killer(tmp_path))
    with GpuHolder() as training:
        async with app.run_test(size=(60, 10)) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            assert "▲ cannot record actions" in text_of(app)
            assert focused(screen) is Choice.CANCEL


async def test_one_dialog_at_a_time_and_none_for_what_is_gone(tmp_path: Path) -> None:
    app = Host(a_killer(tmp_path))
    snapshot = a_snapshot()
    async with app.run_test(size=(80, 24)) as pilot:
        assert app.endings is not None
        assert not app.endings.open(("GPU-x", 1, 1), frame_of(snapshot))
        await opened(pilot, snapshot, PID, Phase.REFUSED)
        assert not app.endings.open(key_of(snapshot), frame_of(snapshot))


@pytest.mark.parametrize("size", SIZES)
async def test_a_whole_run_is_chosen_shown_and_ended(size: tuple[int, int], tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1) as run:
        app = Host(a_killer(tmp_path, dev=run.dev))
        rank = run.of("rank")[0]
        async with app.run_test(size=size) as pilot:
            screen = await opened(pilot, run.snapshot(), rank)
            assert "its run has 5" in text_of(app) or size[1] == 10
            assert f"End process {rank}?" in text_of(app)
            await pilot.press("right", "right", "s")
            await until(pilot, lambda: screen.session.whole_run and "Terminate 5" in text_of(app))
            assert f"End the run of {rank}?" in text_of(app)
            assert fits(app)
            await until(pilot, lambda: isinstance(screen.focused, ChoiceButton))
            assert focused(screen) is Choice.CANCEL, "what is meant has changed: the focus is on no signal"
            if size[1] > 30:
                assert all(str(pid) in text_of(app) for pid in run.roles)
            await pilot.press("right", "right", "enter")
            await until(pilot, lambda: not run.alive())
            await reached(pilot, screen, Phase.FREEING)
            assert run.heard() == {pid: ["SIGTERM"] for pid in run.roles}
            await pilot.press("escape")
            assert screen.session.ended


async def test_a_key_that_is_quicker_than_the_screen_ends_no_run_that_was_not_shown(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1) as run:
        killer = a_killer(tmp_path, dev=run.dev)
        app = Host(killer)
        async with app.run_test(size=(100, 30)) as pilot:
            screen = await opened(pilot, run.snapshot(), run.of("rank")[0])
            await pilot.press("right", "right")
            assert focused(screen) is Choice.TERMINATE
            screen.session.toggle()
            screen.query(ChoiceButton).last().action_press()
            await until(pilot, lambda: "Terminate 5" in text_of(app))
            assert screen.session.phase is Phase.ASKING
            assert run.alive() == set(run.roles)
    assert on_record(killer) == []


async def test_it_may_begin_with_the_whole_run(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1) as run:
        app = Host(a_killer(tmp_path, dev=run.dev))
        async with app.run_test(size=(100, 30)) as pilot:
            assert app.endings is not None
            snapshot = run.snapshot()
            assert app.endings.open(key_of(snapshot, run.of("rank")[0]), frame_of(snapshot), whole_run=True)
            await until(pilot, lambda: "Terminate 5 (SIGTERM)" in text_of(app))
            await pilot.press("s")
            await until(pilot, lambda: "Terminate (SIGTERM)" in text_of(app))
        assert run.alive() == set(run.roles)
