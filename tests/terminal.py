"""A real pseudo-terminal for tests and benchmarks: start a program, type, resize, and read what it drew.

A Pilot test sees widgets; this sees bytes. The screen is read by pyte, which is a terminal and no part of Textual.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import psutil
import pyte


class Terminal:
    """A program in a pseudo-terminal of so many columns and rows; a context manager that leaves nothing behind."""

    def __init__(
        self, argv: Sequence[str], *, columns: int, rows: int, env: Mapping[str, str], draw: bool = True
    ) -> None:
        self.master, slave = os.openpty()
        self.raw = bytearray()
        """Every byte that the program has written."""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen) if draw else None
        self._set_size(columns, rows)
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            list(argv),
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**env, "TERM": env.get("TERM_UNDER_TEST", "xterm-256color")},
            start_new_session=True,
            preexec_fn=_take_terminal,  # it owns the terminal before it runs
        )
        os.close(slave)
        os.set_blocking(self.master, False)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _set_size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns: int, rows: int) -> None:
        """Change the terminal's size, as dragging its corner does."""
        self._set_size(columns, rows)
        self._screen.resize(max(rows, 1), max(columns, 1))
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
        return chunk or None

    @property
    def lines(self) -> list[str]:
        """The screen as it stands, line by line."""
        return [str(line) for line in self._screen.display]

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
            assert time.monotonic() < end, f"{what} did not come about; the screen:\n{self.text}"
            if self.read(0.05) is None:
                assert holds(self), f"the program ended before {what}; the screen:\n{self.text}"
        return time.monotonic() - self.started

    def wait_exit(self, timeout: float = 20.0) -> int:
        """Read until the program has ended; give its exit code, as a shell would."""
        end = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < end, f"the program did not end; the screen:\n{self.text}"
            if self.read(0.02) is None:
                time.sleep(0.005)
        while self.read(0):
            pass
        code = self.process.returncode
        return 128 - code if code < 0 else code

    def tree(self) -> list[psutil.Process]:
        """Give the program and its descendants."""
        top = psutil.Process(self.process.pid)
        return [top, *top.children(recursive=True)]

    def close(self) -> None:
        """Kill the program and let go of the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
