"""Terminal of the dashboard, without Textual: its size, what it can show, signals, and the loss of it."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from gpuwatch.base.threads import start_thread

if TYPE_CHECKING:
    import asyncio

LARGEST: Final = (1000, 400)
"""Columns and rows that are drawn, at most: an 8K screen in a small font has about 960×400. A terminal that reported
9,999×9,999 took 960 MiB, and was sent 500 MB."""


def bounded(columns: int, rows: int) -> tuple[int, int]:
    """Return a size, `LARGEST` at most."""
    return min(columns, LARGEST[0]), min(rows, LARGEST[1])


def is_utf8_terminal() -> bool:
    """Return whether the locale says that the terminal reads UTF-8."""
    encoding = getattr(sys.__stderr__, "encoding", None) or ""
    # Python turns the C locale into UTF-8 by itself; LC_ALL=C is a deliberate choice.
    return encoding.lower().replace("-", "") == "utf8" and os.environ.get("LC_ALL") not in ("C", "POSIX")


EXIT_SIGNALS: Final = {signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGINT: 130}
"""Signals that end the program in good order, with the exit code of each."""
PATIENCE: Final = 0.7
"""Seconds that a regular end may take."""
RESTORE: Final = (
    b"\x1b[0m\x1b[?1000l\x1b[?1003l\x1b[?1015l\x1b[?1006l\x1b[?1016l\x1b[?2048l\x1b[?2004l\x1b[?1004l\x1b[?7h\x1b[<u"
    b"\x1b[?1049l\x1b[?25h"
)
"""Sequences that restore a terminal when Textual has no time to."""


class ExitWatchdog:
    """Thread that ends the dashboard within a second after a signal or the loss of the terminal.

    Textual's writes block the event loop for as long as a terminal accepts none (Ctrl-S, a stalled connection), so
    that nothing in the loop can end the program.
    """

    def __init__(self, descriptor: int, patience: float = PATIENCE) -> None:
        """`descriptor` is the terminal; before `begin` nothing is changed."""
        self._ask: Callable[[int], object] = lambda code: None
        self._hang_up: Callable[[], object] = lambda: None
        self._descriptor = descriptor
        self._patience = patience
        self._news: SimpleQueue[int | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._begun = False
        self._early: int | None = None
        """Exit code of a signal that came before the event loop."""
        self._before: dict[signal.Signals, Any] = {}
        self._modes: list[Any] | None = None
        with contextlib.suppress(termios.error):
            self._modes = termios.tcgetattr(descriptor)

    def begin(self) -> None:
        """Start the thread and install the signal handlers, once, before the first screen; raises NoThreadError."""
        if self._begun:
            return
        start_thread(threading.Thread(target=self._watch, name="gpuwatch-exit-watchdog", daemon=True))
        self._begun = True
        for number in EXIT_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)

    def start(
        self,
        loop: asyncio.AbstractEventLoop,
        ask: Callable[[int], object],
        hang_up: Callable[[], object],
    ) -> None:
        """Use an event loop, in which this is called, from now on.

        `ask` is called in it with the exit code after a signal, at once if one came before; `hang_up` after a SIGHUP
        that does not come from the loss of the terminal.
        """
        self._loop, self._ask, self._hang_up = loop, ask, hang_up
        if self._early is not None:
            ask(self._early)

    def arm(self, code: int) -> None:
        """Begin the time in which the dashboard must end; after it, the process is ended at once."""
        self._news.put(code)

    def close(self) -> None:
        """End the thread and restore the signal handlers."""
        self._news.put(None)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        # A handler of the event loop would wait for the loop, which may be the one that hangs.
        if number == signal.SIGHUP and self._is_there():
            with contextlib.suppress(RuntimeError):
                if self._loop is not None:
                    self._loop.call_soon_threadsafe(self._hang_up)
            return
        self._leave(EXIT_SIGNALS[signal.Signals(number)])

    def _is_there(self) -> bool:
        """Return whether the terminal still exists: the kernel marks a lost one before it sends the signal."""
        poll = select.poll()
        poll.register(self._descriptor, select.POLLHUP)
        try:
            return os.isatty(self._descriptor) and not poll.poll(0)
        except OSError:
            return False

    def _leave(self, code: int) -> None:
        self.arm(code)
        if self._loop is None:
            self._early = code
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: leaving is under way
            self._loop.call_soon_threadsafe(self._ask, code)

    def _watch(self) -> None:
        code: int | None = None
        deadline = math.inf
        while True:
            try:
                news = self._news.get(timeout=min(1.0, max(0.0, deadline - time.monotonic())))
            except Empty:
                if code is not None and time.monotonic() >= deadline:
                    self._abandon(code)
                elif code is None and not os.isatty(self._descriptor):
                    self._leave(EXIT_SIGNALS[signal.SIGHUP])
                continue
            if news is None:
                return
            if code is None:
                code, deadline = news, time.monotonic() + self._patience

    def _abandon(self, code: int) -> None:
        """Restore the terminal as far as possible, and end the process."""
        with contextlib.suppress(OSError, ValueError):
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            if any(event & select.POLLOUT for _, event in poll.poll(0)):
                os.write(self._descriptor, RESTORE)
        with contextlib.suppress(termios.error):
            if self._modes is not None:
                termios.tcsetattr(self._descriptor, termios.TCSANOW, self._modes)
        os._exit(code)
