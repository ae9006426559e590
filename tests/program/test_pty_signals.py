"""How the program ends and rests in a real pseudo-terminal: signals, Ctrl-Z, a driver that hangs, a lost terminal."""

from __future__ import annotations

import select
import signal
import sys
from pathlib import Path

import psutil
import pytest

from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.environment import environment
from tests.support.store import story
from tests.support.terminal import Terminal, assert_given_back, in_terminal, modes_on
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

TITLES = "used/total"


def assert_gone(everybody: list[psutil.Process]) -> None:
    """Nobody is left behind, a zombie neither."""
    assert len(everybody) > 1
    assert psutil.wait_procs(everybody, timeout=5.0)[1] == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)], ids=lambda one: str(one))
def test_a_signal_leaves_nothing_behind(busy: Driver, number: signal.Signals, code: int) -> None:
    with in_terminal(env=busy.env(environment())) as terminal:
        terminal.wait_for(TITLES)
        everybody = terminal.tree()
        assert terminal.modes() != terminal.modes_before
        terminal.process.send_signal(number)
        assert terminal.wait_exit(5.0) == code
        assert_given_back(terminal)
        assert_gone(everybody)


def test_ctrl_z_and_back(busy: Driver) -> None:
    with in_terminal(env=busy.env(environment())) as terminal:
        terminal.wait_for(TITLES)
        program = psutil.Process(terminal.process.pid)
        for how in ("key", "signal", "key"):
            if how == "key":
                terminal.send("\x1a")
            else:
                terminal.process.send_signal(signal.SIGTSTP)
            terminal.wait_for(lambda _: program.status() == psutil.STATUS_STOPPED)
            while terminal.read(0.1):  # at most 4 kB at once
                pass
            assert_given_back(terminal)
            terminal.forget(120, 30)  # what a shell leaves of it
            busy.gpus[0].util_gpu = (busy.gpus[0].util_gpu or 0) + 11
            busy.write()
            terminal.process.send_signal(signal.SIGCONT)
            terminal.wait_for(
                lambda one: TITLES in one.text and f" {busy.gpus[0].util_gpu} " in one.lines[2] and "12.0" in one.text
            )
            assert modes_on(bytes(terminal.raw)) >= {1049, 1000, 2004}
        terminal.quit()


STOPPED_IN_A_WRITE = """
import os, queue, signal
from textual.drivers import _writer_thread

class Queue(queue.Queue):
    stopped = False

    def _put(self, item):  # with the lock of the queue
        super()._put(item)
        if not self.stopped and "used/total" in (item or ""):
            Queue.stopped = True
            os.kill(os.getpid(), signal.SIGTSTP)

_writer_thread.Queue = Queue
from gpuwatch.__main__ import main
main()
"""


def test_a_stop_in_the_middle_of_a_write(busy: Driver) -> None:
    """The handler waited for ever for a lock that its own thread held."""
    program = [sys.executable, "-c", STOPPED_IN_A_WRITE]
    with Terminal(program, columns=120, rows=30, env=busy.env(environment())) as terminal:
        process = psutil.Process(terminal.process.pid)
        terminal.wait_for(lambda _: process.status() == psutil.STATUS_STOPPED)
        terminal.process.send_signal(signal.SIGCONT)
        terminal.wait_for(TITLES)
        terminal.quit()


def test_quitting_in_the_middle_of_a_call_that_hangs(busy: Driver) -> None:
    with in_terminal(env=busy.env(environment())) as terminal:
        terminal.wait_for(TITLES)
        busy.faults = ["nvmlDeviceGetUtilizationRates hang"]
        busy.write()
        seen = busy.calls()["nvmlDeviceGetUtilizationRates"]
        terminal.wait_for(lambda _: busy.calls()["nvmlDeviceGetUtilizationRates"] > seen)
        everybody = terminal.tree()
        terminal.quit(timeout=5.0)
        assert_gone(everybody)


@pytest.mark.parametrize("ignore", [[], [signal.SIGHUP]], ids=["hang-up", "hang-up ignored"])
def test_a_terminal_that_is_gone(busy: Driver, ignore: list[signal.Signals]) -> None:
    with in_terminal(env=busy.env(environment()), ignore=ignore) as terminal:
        terminal.wait_for(TITLES)
        everybody = terminal.tree()
        terminal.hang_up()
        assert terminal.process.wait(10.0) == 129
        assert_gone(everybody)


def recorded(home: Path) -> list[str]:
    """Return the recorded events."""
    found = list((home / "state" / "gpuwatch").glob("*.sqlite"))
    return [" ".join(line.split()[1:]) for path in found for line in story(path)]


def test_a_terminal_that_takes_nothing_holds_up_neither_an_alert_nor_the_end(driver: Driver, own_home: Path) -> None:
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[alerts]\nquiet = 0\nmemory_for = 0\n")
    driver.gpus = [Gpu(0, memory_used=10 * GIB)]
    driver.procs = [Proc(0, 1, memory=10 * GIB)]
    driver.write()
    with in_terminal(columns=150, rows=40, env=driver.env(environment()), draw=False) as terminal:
        terminal.wait_for(lambda one: TITLES.encode() in one.raw)
        terminal.wait_for(lambda _: any((own_home / "state" / "gpuwatch").glob("*.lock")))
        for _ in range(400):  # nothing is read from here on: once the terminal is full, every write waits for ever
            if not select.select([], [terminal.master], [], 0)[1]:
                break
            terminal.send("\x1b[B\x1b[A" * 20)
        driver.gpus[0].memory_used = driver.procs[0].memory = 79 * GIB
        driver.write()
        wait_for(lambda: recorded(own_home) == ["critical"])
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.process.wait(timeout=10) == 143
