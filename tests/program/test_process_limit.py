"""At the limit of processes: one line says so, what is under way goes on, and later it works again."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any, Final

import pytest

from gpuwatch.base.errors import NoThreadError
from gpuwatch.base.threads import Worker
from tests import GPUWATCH
from tests.driver import GIB, Driver, Gpu, Proc
from tests.program.processlimit import UID, as_uid, give, limit, started_with
from tests.support.environment import environment
from tests.support.process import GpuHolder
from tests.support.terminal import Terminal, assert_given_back
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.slow

NO_MORE = "no more threads: the limit of processes is reached (ulimit -u, or the cgroup's pids.max)"
"""What is said, wherever a thread cannot be started."""


# ---------------------------------------------------------------------------------------------------------------
# The real program, under a real limit


@pytest.fixture
def home(own_home: Path) -> Path:
    """The home of the person who has reached the limit."""
    give(own_home, own_home / "runtime")
    return own_home


def started(env: dict[str, str], *arguments: str, more: int | None = None) -> Terminal:
    """Start gpuwatch under the uid, with room for so many threads."""
    command = as_uid(GPUWATCH, *arguments) if more is None else started_with(more, GPUWATCH, *arguments)
    return Terminal(command, columns=160, rows=50, env={**env, "PYTHONDONTWRITEBYTECODE": "1"})


def unwrapped(terminal: Terminal) -> str:
    """Return what is on screen as one line, without the frames around it."""
    return " ".join(terminal.text.translate(dict.fromkeys(map(ord, "│▌▎▏"), " ")).split())


RUNNING: Final = b"\x1b[?2004h"
"""What Textual sends once its threads run: bracketed paste."""


@pytest.fixture
def training(driver: Driver) -> Any:
    """A real process of the person's on the fake driver."""
    with GpuHolder(["python", "train.py"], uid=UID) as holder:
        driver.gpus = [Gpu(0, memory_used=12 * GIB)]
        driver.procs = [Proc(0, holder.pid, memory=12 * GIB)]
        driver.write()
        yield holder


def test_the_dashboard_says_so_and_goes_on(driver: Driver, home: Path, training: GpuHolder) -> None:
    with started(driver.env(environment())) as terminal:
        terminal.wait_for(lambda one: RUNNING in one.raw and str(training.pid) in one.text)
        limit(terminal.process.pid, reached=True)
        for _ in range(2):  # the second asks a thread that was never started
            terminal.send("K")
            terminal.wait_for(lambda one: f"gpuwatch failed: {NO_MORE}" in unwrapped(one))
            terminal.wait_for("▌ Close ▐")
            terminal.send("\r")
            terminal.wait_for(lambda one: "End process" not in one.text and "Close" not in one.text)
        terminal.send("e")
        terminal.wait_for(lambda one: f"the events cannot be read: {NO_MORE}" in unwrapped(one))
        terminal.send("e")
        terminal.wait_for(lambda one: "q quit" in one.text)
        terminal.send("L")
        terminal.wait_for(lambda one: f"configuration not changed: {NO_MORE}" in unwrapped(one))
        limit(terminal.process.pid, reached=False)
        terminal.send("L")
        terminal.wait_for("configuration reloaded: nothing has changed")
        terminal.send("K")
        terminal.wait_for("Terminate (SIGTERM)")
        terminal.send("\r")
        terminal.wait_for(lambda one: "End process" not in one.text)
        terminal.send("e")
        terminal.wait_for("no alert yet")
        terminal.send("e")
        terminal.wait_for("q quit")
        terminal.quit()
        assert b"Traceback" not in terminal.raw
    assert training.alive()


def test_without_room_for_its_threads_it_does_not_start_and_says_why(driver: Driver, home: Path) -> None:
    """With room for one more each time, until it is enough: each thread is the one that is refused once."""
    refused = 0
    for more in range(1, 12):
        with started(driver.env(environment()), "--demo", more=more) as terminal:
            terminal.wait_for(lambda one: RUNNING in one.raw or "gpuwatch: no more" in one.text)
            if terminal.process.poll() is None and "gpuwatch: no more" not in terminal.text:
                terminal.process.send_signal(signal.SIGTERM)
                terminal.wait_exit()
                break
            assert terminal.wait_exit() == 3
            assert_given_back(terminal)
            assert terminal.raw.decode().count(f"gpuwatch: {NO_MORE}") == 1
            refused += 1
    assert refused >= 3


# ---------------------------------------------------------------------------------------------------------------
# Everything that has a thread, where that does not start at first


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """No thread can be started until this is set; its failure is what CPython makes of EAGAIN."""
    start, room = threading.Thread.start, threading.Event()

    def refuse(thread: threading.Thread) -> None:
        if not room.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return room


def test_a_call_in_the_background_fails_and_a_later_one_is_made(full: threading.Event) -> None:
    background = Worker("test-background")
    made: list[int] = []
    for _ in range(2):
        assert isinstance(background(lambda: made.append(1)).exception(0), NoThreadError)
    full.set()
    assert background(lambda: made.append(2)).result(PATIENCE) is None
    assert made == [2]
