"""Runs a program that is told something, within a time, and takes nothing of ours down with it."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import IO, Final, Literal, NamedTuple

HEARD: Final = 64 * 1024
"""Bytes of what a program says that are kept, the last."""
_STEP: Final = 0.05
"""Seconds after which it is seen that a program has ended whose pipe another one holds open."""
_GRACE: Final = 2.0
"""Seconds that a killed process may take to be gone; one that hangs in the kernel is left behind."""


class Ended(NamedTuple):
    """How it went."""

    code: int | None
    """The exit code, negative for a signal; None where it was killed: too slow, or we are closing."""
    heard: bytes
    """The end of what it said."""


def run(
    command: Sequence[str], told: bytes, *, listen: Literal["stdout", "stderr"], limit: float, stop: threading.Event
) -> Ended:
    """Run a program with `told` on its stdin, in a session of its own; kill its group after `limit` s or once `stop`.

    The other one of stdout and stderr goes nowhere. It is over when the program itself is, whoever still holds its
    pipe. Raises OSError where it cannot be started.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE if listen == "stdout" else subprocess.DEVNULL,
        stderr=subprocess.PIPE if listen == "stderr" else subprocess.DEVNULL,
        start_new_session=True,
        bufsize=0,
    )
    talk = _Talk(process, told)
    deadline = time.monotonic() + limit
    try:
        while process.poll() is None and not stop.is_set() and (left := deadline - time.monotonic()) > 0:
            talk.go_on(min(_STEP, left))
        code = process.poll()
        talk.go_on(0)
        return Ended(code, bytes(talk.heard))
    finally:
        _end(process)
        talk.close()


class _Talk:
    """The two pipes to a program; none of it ever blocks."""

    def __init__(self, process: subprocess.Popen[bytes], told: bytes) -> None:
        self.heard = bytearray()
        said = process.stdout or process.stderr
        assert process.stdin is not None
        assert said is not None
        self._stdin: IO[bytes] = process.stdin
        self._said: IO[bytes] = said
        self._untold = memoryview(told)
        self._selector = selectors.DefaultSelector()
        for pipe, event in ((self._said, selectors.EVENT_READ), (self._stdin, selectors.EVENT_WRITE)):
            os.set_blocking(pipe.fileno(), False)
            self._selector.register(pipe, event)

    def go_on(self, seconds: float) -> None:
        """Wait so long for something to say or to hear, and do that."""
        for key, _ in self._selector.select(seconds):
            if key.fileobj is self._stdin:
                self._tell()
            else:
                self._hear()

    def close(self) -> None:
        """Let go of both."""
        self._selector.close()
        self._stdin.close()
        self._said.close()

    def _tell(self) -> None:
        try:
            self._untold = self._untold[self._stdin.write(self._untold) or 0 :]
        except OSError:  # it does not want to know: that is no failure
            self._untold = self._untold[:0]
        if not self._untold:
            self._selector.unregister(self._stdin)
            self._stdin.close()

    def _hear(self) -> None:
        chunk = self._said.read(HEARD)
        if chunk == b"":
            self._selector.unregister(self._said)
        elif chunk:
            self.heard += chunk
            del self.heard[:-HEARD]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the program and its group, if it has not ended; until it is reaped, no other group can have its number."""
    if process.poll() is not None:
        return
    with contextlib.suppress(OSError):  # it became another user's by a set-uid bit, or is gone this moment
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
