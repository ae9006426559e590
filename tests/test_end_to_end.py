"""The whole program on the fake driver, in a real tmux: read the screen, end a real process with the keys, leave."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.driver import GIB, Driver, Gpu, Proc
from tests.gpuholder import ROOT, GpuHolder, unavailable

GPUWATCH = Path(sys.executable).parent / "gpuwatch"


class Tmux:
    """A tmux server of the test's own, with one window."""

    def __init__(self, socket: Path, columns: int, rows: int) -> None:
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        self._size = ("-x", str(columns), "-y", str(rows))

    def run(self, *words: str) -> str:
        """Give tmux a command and return what it prints."""
        # The environment by name: readline, which pytest imports, puts COLUMNS behind os.environ's back.
        done = subprocess.run([*self._tmux, *words], capture_output=True, text=True, check=True, env=dict(os.environ))
        return done.stdout

    def start(self, command: list[str], env: dict[str, str]) -> None:
        """Run a program in the window; its exit code stands on the screen when it has ended."""
        settings = [f"{name}={env[name]}" for name in env if name.startswith(("LD_", "GPUWATCH_", "XDG_", "HOME"))]
        shell = f"{shlex.join(['env', *settings, *command])}; echo exit code $?; sleep 600"
        self.run("new-session", "-d", *self._size, shell)

    @property
    def screen(self) -> str:
        """What stands on the screen."""
        return self.run("capture-pane", "-p")

    def keys(self, *names: str) -> None:
        """Press keys, by tmux's names."""
        self.run("send-keys", *names)

    def wait_for(self, what: str | Callable[[str], bool], timeout: float = 30.0) -> str:
        """Wait until a text stands on the screen, or a condition holds of it; give the screen."""
        holds = what if callable(what) else (lambda screen: what in screen)
        end = time.monotonic() + timeout
        while not holds(screen := self.screen):
            assert time.monotonic() < end, f"{what} did not come about; the screen:\n{screen}"
            time.sleep(0.05)
        return screen


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    """Give a tmux of 160×50."""
    if shutil.which("tmux") is None:
        unavailable("tmux is not installed")
    server = Tmux(tmp_path / "tmux", 160, 50)
    yield server
    subprocess.run(["tmux", "-S", str(tmp_path / "tmux"), "kill-server"], check=False, capture_output=True)


def test_a_real_process_is_seen_ended_and_gone(driver: Driver, tmux: Tmux, own_home: Path) -> None:
    with GpuHolder(["python", "train_mine.py"], uid=os.getuid()) as mine:
        driver.gpus = [Gpu(0, util_gpu=37), Gpu(1, memory_used=12 * GIB, util_gpu=99)]
        driver.procs = [Proc(1, mine.pid, memory=12 * GIB, sm=98)]
        driver.write()
        tmux.start([str(GPUWATCH), *(["--allow-root-kill"] if ROOT else [])], driver.env())
        screen = tmux.wait_for(lambda screen: str(mine.pid) in screen and "driver 580.95.05" in screen)
        (line,) = [line for line in screen.splitlines() if str(mine.pid) in line]
        assert "12.0" in line
        assert "python train_mine.py" in line

        tmux.keys("K")
        tmux.wait_for("Terminate (SIGTERM)")
        tmux.keys("Enter")  # the default is to let it live
        tmux.wait_for(lambda screen: "End process" not in screen)
        assert mine.alive()

        tmux.keys("K")
        tmux.wait_for("Terminate (SIGTERM)")
        tmux.keys("Right", "Enter")
        tmux.wait_for(lambda _: not mine.alive())
        driver.procs, driver.gpus[1].memory_used = [], 0
        driver.write()
        tmux.wait_for(lambda screen: "exited after" in screen and "12.0 GiB freed" in screen)
        tmux.keys("Escape")
        screen = tmux.wait_for("no process holds a GPU")
        assert str(mine.pid) not in screen, "what the dialog has told is not told again"

        tmux.keys("q")
        tmux.wait_for("exit code 0")
    (audit,) = own_home.rglob("actions.jsonl")
    lines = [json.loads(line) for line in audit.read_text().splitlines() if str(mine.pid) in line]
    assert [line["event"] for line in lines][-2:] == ["intent", "outcome"]
