"""The dashboard in a real pseudo-terminal: it ends when it is told to, whatever its terminal does."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator, Mapping

import pytest

TITLES = b"memory by owner"


class Terminal:
    """A dashboard on the demo, and the other end of its terminal."""

    def __init__(self, env: Mapping[str, str] | None = None, *, ignore: signal.Signals | None = None) -> None:
        self.sent = b""
        self.pid, self.end = pty.fork()
        if self.pid == 0:
            if ignore is not None:
                signal.signal(ignore, signal.SIG_IGN)
            os.environ.update({"TERM": "xterm-256color", "COLORTERM": "truecolor", **(env or {})})
            os.execv(sys.executable, [sys.executable, "-m", "gpuwatch", "--demo"])
        fcntl.ioctl(self.end, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))

    def read_until(self, wanted: bytes, seconds: float = 20.0) -> None:
        """Read what the dashboard writes until it has written `wanted`."""
        deadline = time.monotonic() + seconds
        while wanted not in self.sent:
            assert time.monotonic() < deadline, f"{wanted!r} never came; last: {self.sent[-300:]!r}"
            if select.select([self.end], [], [], 0.1)[0]:
                self.sent += os.read(self.end, 1 << 16)

    def status(self, seconds: float = 10.0, *, reading: bool = True) -> int:
        """Wait for the end, and give the exit status."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if reading and select.select([self.end], [], [], 0.02)[0]:
                try:
                    self.sent += os.read(self.end, 1 << 16)
                except OSError:
                    reading = False
            done, status = os.waitpid(self.pid, os.WNOHANG)
            if done:
                self.pid = 0
                return os.waitstatus_to_exitcode(status)
            if not reading:
                time.sleep(0.02)
        raise AssertionError("it is still there")

    def close(self) -> None:
        """End what is left."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        if self.end >= 0:
            os.close(self.end)


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    """Collect terminals, and end what a failed test leaves."""
    opened: list[Terminal] = []
    yield opened
    for one in opened:
        one.close()


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)], ids=lambda one: str(one)
)
def test_a_signal_ends_it_in_good_order(terminals: list[Terminal], number: signal.Signals, code: int) -> None:
    terminals.append(one := Terminal())
    one.read_until(TITLES)
    os.kill(one.pid, number)
    assert one.status() == code
    after = one.sent.partition(b"\x1b[?1049l")[2]
    assert b"\x1b[?25h" in after
    assert b"Traceback" not in after


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_a_key_ends_it(terminals: list[Terminal], key: bytes) -> None:
    terminals.append(one := Terminal())
    one.read_until(TITLES)
    os.write(one.end, key)
    assert one.status() == 0
    assert b"\x1b[?1049l" in one.sent


def test_it_ends_when_its_terminal_takes_nothing_any_more(terminals: list[Terminal]) -> None:
    terminals.append(one := Terminal())
    one.read_until(TITLES)
    # Nothing is read from here on: once the terminal is full, every write waits for ever.
    for _ in range(400):
        if not select.select([], [one.end], [], 0)[1]:
            break
        os.write(one.end, b"\x1b[B\x1b[A" * 20)
    os.kill(one.pid, signal.SIGTERM)
    assert one.status(reading=False) == 143


def test_it_ends_when_its_terminal_has_gone_and_nothing_tells_it(terminals: list[Terminal]) -> None:
    terminals.append(one := Terminal(ignore=signal.SIGHUP))
    one.read_until(TITLES)
    os.close(one.end)
    one.end = -1
    assert one.status(reading=False) == 129


def test_no_color_is_no_colour(terminals: list[Terminal]) -> None:
    terminals.append(one := Terminal({"NO_COLOR": "1"}))
    one.read_until(TITLES)
    os.write(one.end, b"?")
    one.read_until(b"Moving")
    os.write(one.end, b"\x1b")
    os.write(one.end, b"\x03")
    assert one.status() == 0
    codes = {code for found in re.findall(rb"\x1b\[([0-9;]*)m", one.sent) for code in found.split(b";")}
    assert codes <= {b"", b"0", b"1", b"2", b"3", b"4", b"7", b"22", b"23", b"24", b"27"}  # on and off
