"""A command that talks with a person: data on stdout, words and questions on stderr; an answer may take its time."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import sys
from typing import TextIO

from gpuwatch.output.plain import in_ascii, speaks_unicode
from gpuwatch.text import clean


class Desk:
    """Prints lines, and asks on the terminal without waiting for the answer."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self._ascii = ascii_only
        self._asking = False
        self.unread = False
        """Whether nobody reads what is printed: the other end of the pipe is closed."""

    @property
    def width(self) -> int | None:
        """Cells of a line; None where it is no terminal that is printed to."""
        return shutil.get_terminal_size((160, 50)).columns if sys.stdout.isatty() else None

    def put(self, *lines: str) -> None:
        """Print data."""
        self._write(sys.stdout, "".join(f"{line}\n" for line in lines))

    def say(self, words: str) -> None:
        """Print words, on stderr."""
        self._write(sys.stderr, f"gpuwatch: {clean(words)}\n")

    def question(self, words: str) -> None:
        """Print a question, without its answer's line; what was typed before it was there is no answer to it."""
        import termios

        with contextlib.suppress(termios.error, OSError):  # no terminal, or one that has gone
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
        self._write(sys.stderr, f"{clean(words)} [y/N] ")
        self._asking = True

    def answer(self, seconds: float) -> str | None:
        """Wait so long for a line of the terminal; None where none has come, and nothing at its end."""
        poller = select.poll()
        poller.register(sys.stdin.fileno(), select.POLLIN)
        if not poller.poll(seconds * 1000):
            return None
        typed = os.read(sys.stdin.fileno(), 4096)
        self._asking = not typed.endswith(b"\n")  # Ctrl-D leaves the cursor where it was
        return typed.decode("utf-8", "replace").strip()

    def _write(self, stream: TextIO, text: str) -> None:
        if self._asking:  # the line of a question that nobody answers any more
            self._asking = False
            self._write(sys.stderr, "\n")
        plain = self._ascii or not speaks_unicode(stream)
        try:
            stream.write("\n".join(in_ascii(line) for line in text.split("\n")) if plain else text)
            stream.flush()
        except BrokenPipeError:  # what was begun goes on unheard; what is left in the buffer must go somewhere, too
            self.unread = True
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
