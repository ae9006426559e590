"""A real tmux of the test's own: start a program in it, press keys, read the screen."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.process import unavailable


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
    """Return a tmux of 160×50."""
    if shutil.which("tmux") is None:
        unavailable("tmux is not installed")
    server = Tmux(tmp_path / "tmux", 160, 50)
    yield server
    subprocess.run(["tmux", "-S", str(tmp_path / "tmux"), "kill-server"], check=False, capture_output=True)
