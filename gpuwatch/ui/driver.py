"""Textual's driver of the terminal, and its filters of drawn text: no colours, ASCII, invalid input."""

from __future__ import annotations

import codecs
import contextlib
import os
import select
from typing import TYPE_CHECKING, Any, Final

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
from gpuwatch.base.threads import no_thread_error
from gpuwatch.ui.first_frame import ALTERNATE_SCREEN
from gpuwatch.ui.terminal import bounded

if TYPE_CHECKING:
    from textual.app import App

    from gpuwatch.ui.first_frame import FirstFrame


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


class TolerantDriver(LinuxDriver):
    """Terminal driver that survives input that is not UTF-8, a lack of threads, and sizes that no terminal has.

    Textual 8.2 ends the program on the first such byte (Alt with a key, a torn paste). In a terminal larger than
    `LARGEST` the rest stays empty.

    Where one of its two threads cannot be started, at the start or after Ctrl-Z, the driver restores the terminal and
    raises SystemExit from a NoThreadError: for other exceptions Textual prints a traceback.
    """

    _given_back = False

    def __init__(self, app: App[Any], *, first: FirstFrame | None, **options: Any) -> None:
        """`first` may be on the terminal already, on its alternate screen."""
        super().__init__(app, **options)
        self._first = first
        self._modes_before: list[Any] | None = None
        """Modes of the terminal before the first frame; None where Textual has read them itself."""
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
        except RuntimeError:  # a first frame takes the terminal back itself
            if self._writes() and self._key_thread is not None and self._key_thread.ident is not None:
                raise
            if self._writes():
                self.stop_application_mode()
            self._given_back = True  # or it was never taken
            raise SystemExit(NoThreadError.exit_code) from no_thread_error()
        if self._first is not None:
            self._modes_before = self._first.hand_over()
            self._first = None

    def _get_terminal_size(self) -> tuple[int, int]:
        """Return the size that the kernel reports, `LARGEST` at most."""
        return bounded(*super()._get_terminal_size())

    def process_message(self, message: Message) -> None:
        """Pass a message on to the app; a size that the terminal itself reports is `LARGEST` at most."""
        if isinstance(message, Resize):
            message = Resize.from_dimensions(bounded(*message.size), message.pixel_size)
        super().process_message(message)

    def stop_application_mode(self) -> None:
        """Restore the terminal, once."""
        if not self._given_back:
            self._given_back = True
            if self._modes_before is not None:
                self.attrs_before, self._modes_before = self._modes_before, None
            super().stop_application_mode()

    def write(self, data: str) -> None:
        """Write to the terminal; directly if the thread that writes was not started."""
        if data == ALTERNATE_SCREEN and self._first is not None and self._first.shown:
            return  # to enter it again would clear it
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
