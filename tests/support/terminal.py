"""A real pseudo-terminal and a real tmux: start a program, type, resize, and read what it drew.

A Pilot test sees widgets; this sees bytes. The screen is read by pyte, which is a terminal and no part of Textual.
"""

from __future__ import annotations

import fcntl
import os
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil
import pyte
import pytest
from rich.cells import cell_len

from tests import GPUWATCH
from tests.support.process import unavailable
from tests.support.waiting import describe

OURS = re.compile(
    rb"\x1b(?:\[[0-9;]*m|\[[0-9]+;[0-9]+H|\[\?(?:7|25|1000|1003|1004|1006|1015|1016|1049|2004|2026|2048)[hl]"
    rb"|\[\?20(?:26|48)\$p|\[>[0-9]+u|\[<u|\]22;[a-z-]*\x07)"
)
"""Every escape sequence that Textual draws with: colours, positions, modes, the keyboard, the mouse pointer's shape."""
MODE = re.compile(rb"\x1b\[\?([0-9]+)([hl])")


def foreign(raw: bytes) -> list[str]:
    """Return what no program of ours has any business to send: other sequences, other controls, torn UTF-8."""
    drawn = OURS.sub(b"", raw).replace(b"\r\n", b"")
    text = drawn.decode("utf-8", "replace")
    found = [text[max(0, at - 20) : at + 20] for at, char in enumerate(text) if not char.isprintable()]
    return found if text.encode() == drawn else [*found, "bytes that are no UTF-8"]


def modes_on(raw: bytes) -> set[int]:
    """Return the private modes that are on at the end of some output; a terminal begins with 7 (wrap), 25 (cursor)."""
    last = {b"7": b"h", b"25": b"h"} | {found[1]: found[2] for found in MODE.finditer(raw)}
    return {int(number) for number, state in last.items() if state == b"h"}


def _shown(what: str | Callable[..., bool]) -> str:
    """Return what was waited for: a text, or a condition and the values of what it compares."""
    return describe(what) if callable(what) else what


class Terminal:
    """A program in a pseudo-terminal of so many columns and rows; a context manager that leaves nothing behind."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        columns: int,
        rows: int,
        env: Mapping[str, str],
        draw: bool = True,
        term: str | None = "xterm-256color",
        ignore: Sequence[signal.Signals] = (),
    ) -> None:
        """`draw` keeps a screen; `ignore` are signals that the program is started deaf to, as nohup does."""
        self.master, slave = os.openpty()
        self.raw = bytearray()
        """Every byte that the program has written."""
        self._lines: list[str] | None = None
        """The screen as it was last asked for, until it may have changed."""
        self._screen = pyte.Screen(columns or 80, rows or 24)  # what programs take it for where it has no size
        self._stream: pyte.ByteStream | None = pyte.ByteStream(self._screen) if draw else None
        self._set_size(columns, rows)
        self.modes_before = self.modes()
        self.started = time.monotonic()
        settings = {name: value for name, value in env.items() if name != "TERM"}
        self.process = subprocess.Popen(
            list(argv),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=settings if term is None else {**settings, "TERM": term},
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(ignore),  # it owns the terminal before it runs
        )
        os.close(slave)
        os.set_blocking(self.master, False)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[Any]:
        """How the terminal treats what is typed: its termios settings, echo and line editing among them."""
        return termios.tcgetattr(self.master)

    def hang_up(self) -> None:
        """Close the terminal, as a connection that breaks does."""
        os.close(self.master)
        self.master = -1

    def resize(self, columns: int, rows: int) -> None:
        """Change the terminal's size, as dragging its corner does."""
        self._set_size(columns, rows)
        self._screen.resize(max(rows, 1), max(columns, 1))
        self._lines = None
        self.process.send_signal(signal.SIGWINCH)

    def forget(self, columns: int, rows: int) -> None:
        """Lose all that is drawn, as a terminal does that is tiny for a moment; the program sees the size it had."""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._lines = None
        self.process.send_signal(signal.SIGWINCH)

    def send(self, keys: str | bytes) -> None:
        """Type."""
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def pump(self, seconds: float) -> bytes:
        """Read what the program writes for so long, or until it closes its terminal; give the bytes."""
        end = time.monotonic() + seconds
        got = bytearray()
        while (left := end - time.monotonic()) > 0:
            chunk = self.read(left)
            if chunk is None:
                break
            got += chunk
        return bytes(got)

    def read(self, timeout: float) -> bytes | None:
        """Wait for the next bytes, at most `timeout` seconds; None once the program has closed its terminal."""
        if not select.select([self.master], [], [], max(0.0, timeout))[0]:
            return b""
        try:
            chunk = os.read(self.master, 1 << 16)
        except OSError:  # EIO: nobody holds the other end any more
            return None
        self.raw += chunk
        if self._stream is not None:
            self._stream.feed(chunk)
            self._lines = None
        return chunk or None

    @property
    def lines(self) -> list[str]:
        """The screen as it stands, line by line; half a wide character, whose other half was drawn over, is a blank."""
        if self._lines is None:
            self._lines = [self._line(self._screen.buffer[row]) for row in range(self._screen.lines)]
        return self._lines

    def _line(self, cells: Mapping[int, pyte.screens.Char]) -> str:
        text = ""
        for column in range(self._screen.columns):
            # The second cell of a wide character is empty.
            text += cells[column].data or ("" if cell_len(text[-1:]) == 2 else " ")
        return text

    @property
    def text(self) -> str:
        """The screen as it stands."""
        return "\n".join(self.lines)

    def wait_for(self, what: str | Callable[[Terminal], bool], timeout: float = 20.0) -> float:
        """Read until a text stands on the screen, or until a condition holds; give the seconds since the start.

        Raises AssertionError with the screen where it does not come about.
        """
        holds = what if callable(what) else (lambda terminal: what in terminal.text)
        end = time.monotonic() + timeout
        while not holds(self):
            assert time.monotonic() < end, f"{_shown(what)} did not come about; the screen:\n{self.text}"
            chunk = self.read(0.05)
            while chunk and time.monotonic() < end:  # all that is there: to look at a large screen takes 0.1 s
                chunk = self.read(0.0)
            if chunk is None:
                assert holds(self), f"the program ended before {_shown(what)}; the screen:\n{self.text}"
        return time.monotonic() - self.started

    def wait_exit(self, timeout: float = 20.0) -> int:
        """Read until the program has ended; give its exit code, as a shell would."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < end, f"the program did not end; the screen:\n{self.text}"
            if self.read(0.02) is None:
                time.sleep(0.005)
        while self.read(1.0):  # to the end of what it wrote: the kernel passes that on a moment after its death
            pass
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def quit(self, keys: str = "q", timeout: float = 20.0) -> None:
        """Press the key that quits a dashboard, and see that it ends well and gives the terminal back."""
        self.send(keys)
        assert self.wait_exit(timeout) == 0
        assert_given_back(self)

    def tree(self) -> list[psutil.Process]:
        """Return the program and its descendants."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def close(self) -> None:
        """Kill the program and let go of the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.master >= 0:
            self.hang_up()


def in_terminal(*words: str, columns: int = 120, rows: int = 30, env: Mapping[str, str], **options: Any) -> Terminal:
    """Start the installed gpuwatch in a terminal."""
    return Terminal([GPUWATCH, *words], columns=columns, rows=rows, env=env, **options)


def assert_given_back(terminal: Terminal) -> None:
    """The terminal is as it was found, and nothing was sent that we do not mean to send."""
    raw = bytes(terminal.raw)
    assert modes_on(raw) == {7, 25}
    assert raw.count(b"\x1b[<u") == raw.count(b"\x1b[>25u")  # the keyboard protocol is a stack
    assert terminal.modes() == terminal.modes_before
    assert b"Traceback" not in raw
    assert foreign(raw) == []


def _take_terminal(ignore: Sequence[signal.Signals]) -> None:
    # As a terminal starts it, also where the tests themselves run in the background and are deaf to Ctrl-C.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    for number in ignore:
        signal.signal(number, signal.SIG_IGN)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


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
            assert time.monotonic() < end, f"{_shown(what)} did not come about; the screen:\n{screen}"
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
