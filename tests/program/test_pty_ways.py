"""What the dashboard tells besides the screen, in a real pseudo-terminal: its log, and its configuration read again."""

from __future__ import annotations

import select
import signal
import sys
from pathlib import Path

import pytest

from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.recording import story
from tests.support.terminal import Terminal
from tests.support.uncovered import environment
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow

GPUWATCH = str(Path(sys.executable).parent / "gpuwatch")


@pytest.fixture
def full(driver: Driver, own_home: Path) -> Driver:
    """A GPU that is full, and a configuration by which that is said at once."""
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[alerts]\nquiet = 0\nmemory_for = 0\n")
    driver.gpus = [Gpu(0, memory_used=79 * GIB)]
    driver.procs = [Proc(0, 1, memory=79 * GIB)]
    return driver.write()


def recorded(home: Path) -> list[str]:
    """Return the recorded events."""
    found = list((home / "state" / "gpuwatch").glob("*.sqlite"))
    return [" ".join(line.split()[1:]) for path in found for line in story(path)]


def test_it_writes_the_log_and_reads_its_configuration_again(full: Driver, own_home: Path) -> None:
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    good = file.read_text()
    with Terminal([GPUWATCH], columns=150, rows=40, env=full.env(environment())) as terminal:
        terminal.wait_for("GPU 0 full")
        terminal.wait_for(lambda _: recorded(own_home) == ["critical"])
        terminal.send("L")
        terminal.wait_for("nothing has changed")
        file.write_text(f"{good}memory_warning = 'lots'\n")
        terminal.process.send_signal(signal.SIGHUP)
        terminal.wait_for("configuration not changed")
        file.write_text(f'{good}off = ["memory near limit"]\n')
        terminal.send("L")
        terminal.wait_for("alerts.off changed")
        terminal.wait_for(lambda one: "GPU 0 full" not in one.text)
        terminal.wait_for(lambda _: recorded(own_home) == ["ended"])
        terminal.send("q")
        assert terminal.wait_exit() == 0


def test_a_terminal_that_takes_nothing_holds_up_no_alert(driver: Driver, own_home: Path) -> None:
    file = own_home / "config" / "gpuwatch" / "gpuwatch.toml"
    file.parent.mkdir(parents=True)
    file.write_text("[alerts]\nquiet = 0\nmemory_for = 0\n")
    driver.gpus = [Gpu(0, memory_used=10 * GIB)]
    driver.procs = [Proc(0, 1, memory=10 * GIB)]
    driver.write()
    with Terminal([GPUWATCH], columns=150, rows=40, env=driver.env(environment()), draw=False) as terminal:
        terminal.wait_for(lambda one: b"memory by owner" in one.raw)
        terminal.wait_for(lambda _: any((own_home / "state" / "gpuwatch").glob("*.lock")))
        for _ in range(400):  # nothing is read from here on: once the terminal is full, every write waits for ever
            if not select.select([], [terminal.master], [], 0)[1]:
                break
            terminal.send("\x1b[B\x1b[A" * 20)
        driver.gpus[0].memory_used = driver.procs[0].memory = 79 * GIB
        driver.write()
        wait_for(lambda: recorded(own_home) == ["critical"])
        driver.gpus[0].memory_used = driver.procs[0].memory = 10 * GIB
        driver.write()
        wait_for(lambda: recorded(own_home) == ["ended"])


def test_the_demo_writes_nothing(driver: Driver, own_home: Path) -> None:
    with Terminal([GPUWATCH, "--demo"], columns=150, rows=40, env=driver.env(environment())) as terminal:
        terminal.wait_for("GPU 1 near limit")
        terminal.pump(1.0)
        terminal.send("q")
        assert terminal.wait_exit() == 0
    assert not (own_home / "state").exists()
