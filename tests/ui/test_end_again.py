"""The dialog on what is under way: hidden and opened again, left while it is looked at, asked about anew."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuwatch.kill.audit import Audit
from gpuwatch.kill.session import Choice, Phase, call_now
from gpuwatch.kill.target import Killer
from gpuwatch.ui.screens.dialog import EndDialog
from tests.support.gpuholder import GpuHolder
from tests.support.killing import POLICY, a_killer, on_record
from tests.support.running import RealRun
from tests.support.screens import Host, frame_of, key_of, text_of, until
from tests.ui.test_end_screen import Clock, SlowAudit, focused, held_by, opened, reached


class FullDisk(Audit):
    """A record that looks well until something is to be written."""

    def append(self, event: str, fields: Mapping[str, object]) -> str | None:
        return "cannot record actions: disk full"


@pytest.mark.parametrize("size", [(80, 24), (60, 8)])
async def test_the_second_enter_of_two_sends_nothing_unrecorded(
    size: tuple[int, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = Host(Killer(POLICY, FullDisk(tmp_path)))
    with GpuHolder() as training:
        async with app.run_test(size=size) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            monkeypatch.setattr(app.endings, "_worker", call_now)
            monkeypatch.setattr(
                screen.session, "_submit", call_now
            )  # so that one look sees it asked, sent and asked anew
            await pilot.press("right", "right", "down", "down", "enter")
            await until(pilot, lambda: "▲ cannot record actions" in text_of(app))
            await reached(pilot, screen, Phase.ASKING)
            assert focused(screen) is Choice.CANCEL
            await pilot.press("enter")
            await until(pilot, lambda: app.screen is not screen)
            assert not screen.session.signalled
        assert training.alive()


async def test_what_sends_nothing_keeps_the_focus_when_one_of_a_run_exits(tmp_path: Path) -> None:
    clock = Clock()
    with RealRun(ranks=2, workers=0, deaf="rank") as run:
        app = Host(a_killer(tmp_path, dev=run.dev), clock)
        async with app.run_test(size=(100, 30)) as pilot:
            screen = await opened(pilot, run.snapshot(), run.of("rank")[0])
            await pilot.press("s")
            await until(pilot, lambda: "▌ Cancel ▐" in text_of(app) and "Terminate 3" in text_of(app))
            await pilot.press("right", "right", "enter")

            def later() -> bool:
                clock.ahead += 0.2
                return screen.session.phase is Phase.STILL_THERE

            await until(pilot, later)
            await reached(pilot, screen, Phase.STILL_THERE)
            await pilot.press("right", "right")
            assert "▌ Leave it ▐" in text_of(app)
            os.kill(run.of("rank")[1], signal.SIGKILL)
            await until(pilot, lambda: "Kill 2 (SIGKILL)" in text_of(app) and "▌" in text_of(app))
            assert focused(screen) is Choice.LEAVE
            await pilot.press("left")
            assert focused(screen) is Choice.KILL
            os.kill(run.of("rank")[0], signal.SIGKILL)
            await reached(pilot, screen, Phase.FREEING)


async def test_a_hidden_dialog_is_shown_again_and_no_second_signal_offered(tmp_path: Path) -> None:
    audit = SlowAudit(tmp_path)
    app = Host(Killer(POLICY, audit))
    with GpuHolder(deaf=True) as training:
        async with app.run_test(size=(80, 24)) as pilot:
            screen = await opened(pilot, held_by(training), training.pid)
            await pilot.press("right", "enter")
            for phase in (Phase.SENDING, Phase.STOPPING):
                await reached(pilot, screen, phase)
                assert focused(screen) is Choice.HIDE
                await pilot.press("enter")
                await until(pilot, lambda before=screen: app.screen is not before)  # type: ignore[misc]
                again = await opened(pilot, held_by(training), training.pid, phase)
                assert again.session is screen.session
                assert f"End process {training.pid}?" in text_of(app)
                assert "python train.py" in text_of(app)
                screen = again
                audit.answers.set()
            assert "asked to stop" in text_of(app)
            assert app.endings is not None
            assert not app.endings.open(key_of(held_by(training), training.pid), frame_of(held_by(training)))
        assert training.alive()
    assert app.killer is not None
    assert [line["signal"] for line in on_record(app.killer) if line["event"] == "intent"] == ["SIGINT"]


async def test_a_hidden_run_is_shown_again_for_any_of_its_processes_until_it_was_left(tmp_path: Path) -> None:
    clock = Clock()
    with RealRun(ranks=2, workers=0, deaf="rank") as run:
        app = Host(a_killer(tmp_path, dev=run.dev), clock)
        async with app.run_test(size=(100, 30), notifications=True) as pilot:
            screen = await opened(pilot, run.snapshot(), run.of("rank")[0])
            await pilot.press("s")
            await until(pilot, lambda: "▌ Cancel ▐" in text_of(app) and "Terminate 3" in text_of(app))
            await pilot.press("right", "right", "enter")
            await reached(pilot, screen, Phase.STOPPING)
            await pilot.press("enter")
            await until(pilot, lambda: app.screen is not screen)
            again = await opened(pilot, run.snapshot(), run.of("rank")[1], Phase.STOPPING)
            assert again.session is screen.session
            await pilot.press("enter")

            def later() -> bool:
                clock.ahead += 0.2
                return bool(app._notifications)

            await until(pilot, later)
            assert "press K on it" in next(iter(app._notifications)).message
            clock.ahead = 0.0  # or what it is asked about would be too old
            other = await opened(pilot, run.snapshot(), run.of("rank")[1])
            assert other.session is not screen.session


async def test_what_was_left_while_it_was_looked_at_is_not_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    app = Host(a_killer(tmp_path), clock)
    with GpuHolder(deaf=True) as training:
        async with app.run_test(size=(80, 24), notifications=True) as pilot:
            assert app.endings is not None
            screen = await opened(pilot, held_by(training), training.pid)
            await pilot.press("right", "right", "enter")
            await reached(pilot, screen, Phase.STOPPING)
            clock.ahead += 10
            await reached(pilot, screen, Phase.STILL_THERE)
            looked = threading.Event()
            ticked: list[None] = []
            app.endings._worker(lambda: looked.wait(30))  # the look after this one takes its time
            await until(pilot, lambda: screen.session._job is not None)
            await pilot.press("right", "right")
            assert focused(screen) is Choice.LEAVE
            await pilot.press("enter")
            await until(pilot, lambda: app.screen is not screen)
            tick = screen.session.tick

            def ticking() -> None:
                tick()
                ticked.append(None)

            monkeypatch.setattr(screen.session, "tick", ticking)
            await until(pilot, lambda: len(ticked) >= 3)
            looked.set()
            await until(pilot, lambda: not (app.endings and app.endings._dialogs))
            assert list(app._notifications) == []
        assert isinstance(screen, EndDialog)
        assert training.alive()


async def test_a_run_is_not_asked_about_while_one_of_it_is_being_ended(tmp_path: Path) -> None:
    """A signal to all of it would be a second one to the one that is asked to stop, and may be saving."""
    with RealRun(ranks=2, workers=0, deaf="rank", launcher="dies") as run:
        first, second = run.of("rank")
        app = Host(a_killer(tmp_path, dev=run.dev), Clock())
        async with app.run_test(size=(100, 30)) as pilot:
            screen = await opened(pilot, run.snapshot(), first)
            await pilot.press("right", "enter")
            await reached(pilot, screen, Phase.STOPPING)
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is not screen)
            other = await opened(pilot, run.snapshot(), second)
            await pilot.press("s")
            assert not other.session.whole_run
            assert "its run" not in text_of(app)
            await pilot.press("escape")
            await until(pilot, lambda: app.screen is not other)
            assert app.endings is not None
            seen = run.snapshot()
            assert app.endings.open(key_of(seen, second), frame_of(seen), whole_run=True)
            await until(pilot, lambda: "one of its processes is being ended already" in text_of(app))
        assert run.heard()[first] == ["SIGINT"]
