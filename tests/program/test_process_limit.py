"""At the limit of processes: one line says so, what is under way goes on, and later it works again."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpuwatch.alerts.alert import NO_ATTENTION, Mute
from gpuwatch.config import Notify
from gpuwatch.errors import NoThreadError
from gpuwatch.kill.audit import Audit
from gpuwatch.recorder.live_writer import LiveFile
from gpuwatch.recorder.messages import Messenger
from gpuwatch.recorder.recorder import Recorder
from gpuwatch.sampler.owners import UserNames
from gpuwatch.threads import Worker
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.gpuholder import GpuHolder
from tests.support.processlimit import UID, as_uid, give, limit, started_with
from tests.support.recording import frame
from tests.support.telling import Outbox
from tests.support.terminal import Terminal, foreign, modes_on
from tests.support.uncovered import environment
from tests.support.waiting import PATIENCE, wait_for

pytestmark = pytest.mark.slow

GPUWATCH = str(Path(sys.executable).parent / "gpuwatch")
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
        terminal.wait_for(lambda one: "q quit" in one.text and str(training.pid) in one.text)
        limit(terminal.process.pid, reached=True)
        for _ in range(2):  # the second asks a thread that was never started
            terminal.send("K")
            terminal.wait_for(lambda one: f"gpuwatch failed at it: {NO_MORE}" in unwrapped(one))
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
        terminal.wait_for("configuration read again: nothing has changed")
        terminal.send("K")
        terminal.wait_for("Terminate (SIGTERM)")
        terminal.send("\r")
        terminal.wait_for(lambda one: "End process" not in one.text)
        terminal.send("e")
        terminal.wait_for("nothing was raised yet")
        terminal.send("e")
        terminal.wait_for("q quit")
        terminal.send("q")
        assert terminal.wait_exit() == 0
        assert b"Traceback" not in terminal.raw
    assert training.alive()


@pytest.mark.parametrize("command", [["--demo"], ["watch", "--demo"]], ids=" ".join)
def test_without_room_for_its_threads_it_does_not_start_and_says_why(
    driver: Driver, home: Path, command: list[str]
) -> None:
    """With room for one more each time, until it is enough: each thread is the one that is refused once."""
    refused = 0
    for more in range(1, 12):
        with started(driver.env(environment()), *command, more=more) as terminal:
            shown = ("q quit", "gpuwatch: watching", "gpuwatch: no more")
            terminal.wait_for(lambda one, shown=shown: any(words in one.text for words in shown))  # type: ignore[misc]
            if terminal.process.poll() is None and "gpuwatch: no more" not in terminal.text:
                terminal.process.send_signal(signal.SIGTERM)
                terminal.wait_exit()
                break
            assert terminal.wait_exit() == 3
            raw = bytes(terminal.raw)
            assert modes_on(raw) == {7, 25}
            assert terminal.modes() == terminal.modes_before
            assert raw.decode().count(f"gpuwatch: {NO_MORE}") == 1
            assert b"Traceback" not in raw
            assert foreign(raw) == []
            refused += 1
    assert refused >= 3


def test_without_room_for_the_sampler_it_does_not_start_and_says_why(driver: Driver, home: Path) -> None:
    for command in ([], ["watch"], ["--once"]):
        with started(driver.env(environment()), *command, more=1) as terminal:
            assert terminal.wait_exit() == 3
            said = bytes(terminal.raw).decode()
        why = NO_MORE.removeprefix("no more threads: ")
        assert said == f"gpuwatch: the sampler cannot be started: {why}\r\n"


def test_where_the_terminal_cannot_be_taken_again_after_ctrl_z_it_is_left_well(driver: Driver, home: Path) -> None:
    with started(driver.env(environment()), "--demo") as terminal:
        terminal.wait_for("q quit")
        terminal.send("\x1a")
        program = psutil.Process(terminal.process.pid)
        wait_for(lambda: terminal.read(0.05) is None or program.status() == psutil.STATUS_STOPPED)
        limit(terminal.process.pid, reached=True)
        terminal.process.send_signal(signal.SIGCONT)
        assert terminal.wait_exit() == 3
        raw = bytes(terminal.raw)
        assert modes_on(raw) == {7, 25}
        assert raw.count(b"\x1b[<u") == raw.count(b"\x1b[>25u")
        assert f"gpuwatch: {NO_MORE}" in raw.decode()
        assert b"Traceback" not in raw


def test_the_watch_says_so_and_goes_on(driver: Driver, home: Path) -> None:
    with started(driver.env(environment()), "watch") as terminal:
        terminal.wait_for("gpuwatch: watching")
        limit(terminal.process.pid, reached=True)
        terminal.process.send_signal(signal.SIGHUP)
        terminal.wait_for(f"gpuwatch: configuration not changed: {NO_MORE}")
        limit(terminal.process.pid, reached=False)
        terminal.process.send_signal(signal.SIGHUP)
        terminal.wait_for("gpuwatch: configuration read again: nothing has changed")
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.wait_exit() == 0
        assert b"Traceback" not in terminal.raw


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


def messenger(_folder: Path) -> Messenger:
    return Messenger(Notify(), lambda: True, routes=lambda _: [Outbox()])


SINKS: dict[str, Callable[[Path], Any]] = {
    "recorder": lambda folder: Recorder(folder=folder),
    "messages": messenger,
    "live": lambda folder: LiveFile(lambda: True, folder),
}


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_says_so_once_a_frame_and_begins_when_there_is_room(
    name: str, tmp_path: Path, full: threading.Event
) -> None:
    sink = SINKS[name](tmp_path / "state")
    news = frame(attention=NO_ATTENTION.muted(Mute(rule="uses more than declared")))
    for _ in range(2):
        with pytest.raises(NoThreadError, match="no more threads"):
            sink.take(news)
    full.set()
    before = threading.active_count()
    sink.take(news)
    assert threading.active_count() == before + 1
    sink.close(PATIENCE)


@pytest.mark.parametrize("name", SINKS)
def test_a_sink_that_never_began_is_closed_without_a_word(name: str, tmp_path: Path, full: threading.Event) -> None:
    sink = SINKS[name](tmp_path / "state")
    with pytest.raises(NoThreadError):
        sink.take(frame())
    sink.close(PATIENCE)


def test_a_call_in_the_background_fails_and_a_later_one_is_made(full: threading.Event) -> None:
    background = Worker("test-background")
    made: list[int] = []
    for _ in range(2):
        assert isinstance(background(lambda: made.append(1)).exception(0), NoThreadError)
    full.set()
    assert background(lambda: made.append(2)).result(PATIENCE) is None
    assert made == [2]


def test_an_action_that_cannot_be_recorded_says_why(tmp_path: Path, full: threading.Event) -> None:
    audit = Audit(tmp_path)
    audit.append("outcome", {})
    assert audit.problem() == audit.flush() == f"cannot record actions in {audit.path}: {NO_MORE}"
    full.set()
    assert audit.problem() is None


def test_users_are_numbers_until_their_names_can_be_asked_for(full: threading.Event) -> None:
    names = UserNames(lambda uid: f"user{uid}")
    assert (names.name(7), names.name(7), names.pending) == ("7", "7", 0)
    full.set()
    assert names.name(7) == "7"
    assert names.wait(PATIENCE)
    assert names.name(7) == "user7"
