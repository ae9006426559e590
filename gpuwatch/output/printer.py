"""Lines to a descriptor that may take none for hours, or go away: whoever prints never waits, and never ends of it.

A file on a full disk may have room again: lines are dropped and counted until then. A reader that went stays away.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections import deque
from typing import Final

from gpuwatch.spawn import start_thread

WAITING: Final = 1000
"""Lines that wait to be written, at most; of more the oldest are dropped and counted."""

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class Printer:
    """Writes lines on a thread of its own. Where nobody can read them any more they are dropped."""

    def __init__(self, descriptor: int | None, *, waiting: int = WAITING) -> None:
        """`descriptor` is None where there is nothing to print to. Raises NoThreadError."""
        self.broken = descriptor is None
        """Whether what is printed goes nowhere: the reader of the pipe or the terminal has gone."""
        self._descriptor = descriptor
        self._lines: deque[str] = deque(maxlen=waiting)
        self._lost = 0
        self._torn = False
        """Whether what stands there last is the beginning of a line."""
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="gpuwatch-printer", daemon=True)
        if descriptor is not None:
            start_thread(self._thread)

    def put(self, line: str) -> None:
        """Have a line written, in its turn; from any thread."""
        with self._changed:
            if self.broken or self._closing:
                return
            self._lost += len(self._lines) == self._lines.maxlen
            self._lines.append(line)
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Write what waits, and give up after so many seconds."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while (found := self._next()) is not None:
                self._print(*found)
        except OSError:  # EPIPE, EIO: nobody reads any more, and `broken` says so
            self.broken = True
            with self._changed:
                self._lines.clear()

    def _next(self) -> tuple[int, str] | None:
        """Wait for a line, and give how many were lost before it."""
        with self._changed:
            while not self._lines and not self._closing:
                self._changed.wait()
            if not self._lines:
                return None
            lost, self._lost = self._lost, 0
            return lost, self._lines.popleft()

    def _print(self, lost: int, line: str) -> None:
        count = "1 line was" if lost == 1 else f"{lost} lines were"
        said = f"gpuwatch: {count} not printed: nothing took them\n" if lost else ""
        start = "\n" if self._torn else ""
        try:
            self._write(f"{start}{said}{line}\n".encode(errors="replace"))
        except OSError as error:
            if error.errno not in _FULL:
                raise
            with self._changed:
                self._lost += lost + 1

    def _write(self, content: bytes) -> None:
        assert self._descriptor is not None
        rest = memoryview(content)
        while rest:
            with contextlib.suppress(BlockingIOError):  # somebody made it non-blocking: the terminal is shared
                rest = rest[os.write(self._descriptor, rest) :]
                self._torn = bool(rest)
                continue
            _wait_for_room(self._descriptor)


def _wait_for_room(descriptor: int) -> None:
    import select

    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    poll.poll()
