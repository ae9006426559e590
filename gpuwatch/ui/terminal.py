"""The dashboard's terminal: no colours, ASCII, invalid input, signals, and the loss of the terminal."""

from __future__ import annotations

import asyncio
import codecs
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
from typing import Any, Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual._xterm_parser import XTermParser
from textual.color import Color
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Resize
from textual.filter import LineFilter
from textual.message import Message

from gpuwatch.base.errors import NoThreadError
from gpuwatch.base.threads import no_thread_error, start_thread


class NoColors(LineFilter):
    """Filter that drops colours and keeps bold, dim, reverse and underline (https://no-color.org)."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        # The meta data that identify clicks would be lost with the colours.
        return [
            Segment(text, style and style.without_color + Style.from_meta(style.meta), control)
            for text, style, control in segments
        ]


_STAND_INS: Final = {
    **dict.fromkeys("▔▁─", "-"),
    **dict.fromkeys("▌▐▎▏▊│", "|"),
    **dict.fromkeys("▂▃▄▅▆▇█", " "),  # the ends of a scroll bar, which is drawn in reverse
    "…": "~",
    "🔎": "  ",
}


class AsciiOnly(LineFilter):
    """Filter that replaces other characters by ASCII of the same width: Textual's borders, people's names."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        found = []
        for one in segments:
            if not one.text.isascii():
                spelled = (char if char.isascii() else _STAND_INS.get(char, "?" * cell_len(char)) for char in one.text)
                one = Segment("".join(spelled), one.style, one.control)
            found.append(one)
        return found


LARGEST: Final = (1000, 400)
"""Columns and rows that are drawn, at most: an 8K screen in a small font has about 960×400. A terminal that reported
9,999×9,999 took 960 MiB, and was sent 500 MB."""


class TolerantDriver(LinuxDriver):
    """Terminal driver that survives input that is not UTF-8, a lack of threads, and sizes that no terminal has.

    Textual 8.2 ends the program on the first such byte (Alt with a key, a torn paste). In a terminal larger than
    `LARGEST` the rest stays empty.

    Where one of its two threads cannot be started, at the start or after Ctrl-Z, the driver restores the terminal and
    raises SystemExit from a NoThreadError: for other exceptions Textual prints a traceback.
    """

    _given_back = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._size = self._size or self._get_terminal_size()
        self._input_end = os.eventfd(0, os.EFD_NONBLOCK)
        """Event that ends the thread that reads keys."""

    def _sigtstp_application(self, *_: object) -> None:
        """Suspend from the event loop: in the middle of a write the handler would wait for a lock that it holds."""
        self._loop.call_soon_threadsafe(super()._sigtstp_application)

    def start_application_mode(self) -> None:
        """Put the terminal into the mode of a full-screen program; raises SystemExit."""
        self._given_back = False
        try:
            super().start_application_mode()  # type: ignore[no-untyped-call]
        except RuntimeError:
            if self._writes() and self._key_thread is not None and self._key_thread.ident is not None:
                raise
            if self._writes():
                self.stop_application_mode()
            self._given_back = True  # or it was never taken
            raise SystemExit(NoThreadError.exit_code) from no_thread_error()

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the size that the kernel reports, `LARGEST` at most."""
        return _bounded(*super()._get_terminal_size())

    def process_message(self, message: Message) -> None:
        """Pass a message on to the app; a size that the terminal itself reports is `LARGEST` at most."""
        if isinstance(message, Resize):
            message = Resize.from_dimensions(_bounded(*message.size), message.pixel_size)
        super().process_message(message)

    def stop_application_mode(self) -> None:
        """Restore the terminal, once."""
        if not self._given_back:
            self._given_back = True
            super().stop_application_mode()

    def write(self, data: str) -> None:
        """Write to the terminal; directly if the thread that writes was not started."""
        if self._writes():
            super().write(data)
        else:
            assert self._file is not None
            self._file.write(data)
            self._file.flush()

    def close(self) -> None:
        """End the thread that writes."""
        if self._writes():
            super().close()

    def _writes(self) -> bool:
        """Return whether the thread that writes was started."""
        return self._writer_thread is not None and self._writer_thread.ident is not None

    def run_input_thread(self) -> None:
        """Read keys; input that is not UTF-8 is dropped, with all bytes of the same read.

        Textual's own loop wakes up ten times a second for nothing.
        """
        parser = XTermParser(self._debug)
        decoder = codecs.getincrementaldecoder("utf-8")()
        while not self.exit_event.is_set():
            unfinished = parser._timeout_time is not None  # an Escape, or the beginning of a sequence
            ready, _, _ = select.select([self.fileno, self._input_end], [], [], 0.1 if unfinished else None)
            if self.fileno in ready:
                try:
                    typed = os.read(self.fileno, 4096)
                    text = decoder.decode(typed)
                except UnicodeDecodeError:
                    decoder.reset()
                    continue
                except OSError:  # the terminal has gone, as it has at the end of the input
                    return
                if not typed:
                    return
                for message in parser.feed(text) if text else ():
                    self.process_message(message)
            for message in parser.tick():
                self.process_message(message)

    def disable_input(self) -> None:
        """End the thread that reads keys."""
        os.eventfd_write(self._input_end, 1)
        super().disable_input()
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._input_end)


def _bounded(columns: int, rows: int) -> tuple[int, int]:
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

    def __init__(
        self,
        ask: Callable[[int], object],
        descriptor: int,
        patience: float = PATIENCE,
        *,
        hang_up: Callable[[], object] | None = None,
    ) -> None:
        """`ask` is called in the event loop with the exit code; `descriptor` is the terminal.

        `hang_up` is called in the event loop after a SIGHUP that does not come from the loss of the terminal.
        """
        self._ask = ask
        self._hang_up = hang_up
        self._descriptor = descriptor
        self._patience = patience
        self._news: SimpleQueue[int | None] = SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._early: int | None = None
        """Exit code of a signal that came before the event loop."""
        self._before: dict[signal.Signals, Any] = {}
        self._modes: list[Any] | None = None
        with contextlib.suppress(termios.error):
            self._modes = termios.tcgetattr(descriptor)

    def begin(self) -> None:
        """Start the thread and install the signal handlers, before the first screen; raises NoThreadError."""
        start_thread(threading.Thread(target=self._watch, name="gpuwatch-exit-watchdog", daemon=True))
        for number in EXIT_SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self._on_signal)

    def start(self) -> None:
        """Use the running event loop from now on; end the program if a signal has already asked for it."""
        self._loop = asyncio.get_running_loop()
        if self._early is not None:
            self._ask(self._early)

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
        if number == signal.SIGHUP and self._hang_up is not None and self._is_there():
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
