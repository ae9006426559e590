"""Console that a command prints to: data on stdout, messages on stderr, in ASCII or in colour, and one text table."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import select
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TextIO, TypeVar

from gpuwatch.base import files
from gpuwatch.base.errors import GpuwatchError
from gpuwatch.base.text import cell_width, clean, fit, spell_signs
from gpuwatch.base.threads import Worker

if TYPE_CHECKING:
    from gpuwatch.model.fields import Field

T = TypeVar("T")

RED: Final = "31"
YELLOW: Final = "33"
GREEN: Final = "32"
DIM: Final = "2"
"""Colours, as parameters of the escape sequence that sets them (SGR)."""
WAITING: Final = 1000
"""Lines of a stream that wait to be printed, at most."""

_GAP: Final = "  "
_LEAST_FOLD: Final = 20
"""Cells of a folded text, at least."""


# ---------------------------------------------------------------------------------------------------------------
# Printing


class Console:
    """Writer of a command's output: data goes to stdout; messages go to stderr, after the program's name.

    Where a stream is not in Unicode, or `ascii_only` asks for it, each line is spelled in ASCII.
    """

    def __init__(self, *, ascii_only: bool = False, out: TextIO | None = None, err: TextIO | None = None) -> None:
        self.out, self.err = out or sys.stdout, err or sys.stderr
        self.ascii = ascii_only or not _is_unicode(self.out)
        """Whether data is printed in ASCII."""
        self._ascii_words = ascii_only or not _is_unicode(self.err)

    @property
    def width(self) -> int | None:
        """Cells of a line of the terminal; None if stdout is no terminal."""
        if not self.out.isatty():
            return None
        import shutil  # it imports compressors

        return shutil.get_terminal_size((160, 50)).columns

    @property
    def color(self) -> bool:
        """Whether data may be in colour: stdout is a terminal that has colours, and NO_COLOR is not set."""
        refused = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") in ("dumb", "")
        return self.out.isatty() and not refused

    def print(self, *lines: str) -> None:
        """Print lines of data."""
        self._write(self.out, map(in_ascii, lines) if self.ascii else lines)

    def print_json(self, *documents: str) -> None:
        """Print JSON documents, a line each; where data is ASCII, other characters are escaped."""
        self._write(self.out, map(escape_json, documents) if self.ascii else documents)

    def print_bytes(self, content: bytes) -> None:
        """Write bytes unchanged, whatever the locale."""
        self.out.flush()
        self.out.buffer.write(content)
        self.out.flush()

    def warn(self, *words: str) -> None:
        """Print messages, a line each."""
        self._write(self.err, map(self.format_words, words))

    def format_words(self, words: str, name: str = "gpuwatch: ") -> str:
        """Return a message in the characters that stderr can print: clean, after the program's name."""
        line = f"{name}{clean(words)}"
        return in_ascii(line) if self._ascii_words else line

    def _write(self, stream: TextIO, lines: Iterable[str], end: str = "\n") -> None:
        stream.write("".join(f"{line}{end}" for line in lines))
        stream.flush()


class BackgroundConsole(Console):
    """Console that never waits for its reader: a thread for each stream prints the lines.

    While a pipe or a disk is full, lines wait; beyond `waiting` the oldest are dropped, and counted in the next line
    that is printed. Nothing is printed on a stream that has no reader any more.
    """

    def __init__(
        self, *, ascii_only: bool = False, out: TextIO | None = None, err: TextIO | None = None, waiting: int = WAITING
    ) -> None:
        """Raises NoThreadError."""
        super().__init__(ascii_only=ascii_only, out=out, err=err)
        self._printers = {stream: _Printer(stream, waiting) for stream in (self.out, self.err)}

    @property
    def unread(self) -> bool:
        """Whether nobody reads the data any more."""
        return self._printers[self.out].broken

    def close(self, seconds: float) -> None:
        """Print the waiting lines; give up after so many seconds for each stream."""
        for printer in self._printers.values():
            printer.close(seconds)

    def _write(self, stream: TextIO, lines: Iterable[str], end: str = "\n") -> None:
        for line in lines:
            self._printers[stream].put(f"{line}{end}")


class _Printer:
    """Queue of lines that a thread prints on one stream."""

    def __init__(self, stream: TextIO, waiting: int) -> None:
        """Raises NoThreadError."""
        self.broken = False
        """Whether nobody reads the output: the reader of the pipe or the terminal has ended."""
        # The stream's own buffer would be flushed at the end, and that may wait for ever.
        self._descriptor = stream.fileno()
        self._lines: deque[str] = deque(maxlen=waiting)
        self._lost = 0
        self._torn = False
        """Whether the last thing printed is the beginning of a line."""
        self._guard = threading.Lock()
        self._worker = Worker("gpuwatch-printer", self._print_all, last=self._print_all)
        self._worker.wake()

    def put(self, line: str) -> None:
        """Queue a line with its end; from any thread."""
        with self._guard:
            if self.broken or self._worker.is_closing:
                return
            self._lost += len(self._lines) == self._lines.maxlen
            self._lines.append(line)
        self._worker.wake()

    def close(self, seconds: float) -> None:
        """Print the waiting lines, and give up after `seconds`."""
        self._worker.close(seconds)

    def _print_all(self) -> None:
        while True:
            with self._guard:
                if not self._lines:
                    return
                line = self._lines.popleft()
                lost, self._lost = self._lost, 0
            try:
                self._print(lost, line)
            except OSError:  # EPIPE, EIO: nobody reads any more, and `broken` says so
                with self._guard:
                    self.broken = True
                    self._lines.clear()

    def _print(self, lost: int, line: str) -> None:
        count = "1 line was" if lost == 1 else f"{lost} lines were"
        notice = f"gpuwatch: {count} not printed: nobody reads the output\n" if lost else ""
        start = "\n" if self._torn else ""
        try:
            self._write(f"{start}{notice}{line}".encode(errors="replace"))
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            with self._guard:
                self._lost += lost + 1

    def _write(self, content: bytes) -> None:
        rest = memoryview(content)
        while rest:
            with contextlib.suppress(BlockingIOError):  # somebody made it non-blocking: the terminal is shared
                rest = rest[os.write(self._descriptor, rest) :]
                self._torn = bool(rest)
                continue
            poll = select.poll()
            poll.register(self._descriptor, select.POLLOUT)
            poll.poll()


def discard_output(stream: TextIO) -> None:
    """Send the buffer of a stream, and all later output, to /dev/null: its reader has ended, or its disk is full."""
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), stream.fileno())


def report_error(error: GpuwatchError | OSError) -> int:
    """Print the error that ends a command, and return its exit code; reraise an OSError of other work than printing."""
    if isinstance(error, GpuwatchError):
        Console().warn(str(error))
        return error.exit_code
    if isinstance(error, BrokenPipeError):  # `gpuwatch --stream | head`: the reader has read enough
        discard_output(sys.stdout)
        return 0
    if error.errno not in files.FULL:
        raise error
    discard_output(sys.stdout)  # `gpuwatch --once > file` on a full disk
    Console().warn(f"the output cannot be printed: {files.words(error, None)}")
    return GpuwatchError.exit_code


def _is_unicode(stream: TextIO) -> bool:
    return "utf" in (getattr(stream, "encoding", None) or "").lower()


# ---------------------------------------------------------------------------------------------------------------
# ASCII

_WIDER: Final = re.compile("( *)([≥→←°])")
"""Signs that take more cells in ASCII, or fewer, and the blanks before them."""


def in_ascii(line: str) -> str:
    """Return a line in ASCII; the columns of a table stay where they are.

    Where a sign is longer in ASCII, as many blanks before it are removed; where it is shorter, blanks are added.
    """
    return spell_signs(_WIDER.sub(_pad_sign, line)).encode("ascii", "replace").decode()


def _pad_sign(found: re.Match[str]) -> str:
    blanks, sign = found.groups()
    more = len(spell_signs(sign)) - 1
    is_padded = len(blanks) > 1 or (blanks and not found.start())
    if is_padded:
        blanks = blanks[more:] if more > 0 else blanks + " " * -more
    return blanks + sign


def escape_json(text: str) -> str:
    """Return the same JSON in ASCII: characters beyond it as `\\uXXXX`."""
    return re.sub("[^\0-\x7f]", _escape, text)


def _escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass").hex(" ", 2)
    return "".join(f"\\u{unit}" for unit in units.split())


# ---------------------------------------------------------------------------------------------------------------
# The text table


class TextColumn(NamedTuple, Generic[T]):
    """Column of a text table."""

    header: str
    cell: Callable[[T], str]
    right: bool = True
    """Whether the cells are aligned to the right."""
    gap: str = _GAP
    """Text between this column and the one before."""
    color: Callable[[T], str] | None = None
    """The colour of a cell, as parameters of SGR."""

    @classmethod
    def of(cls, field: Field[T], most: int = 0) -> TextColumn[T]:
        """Return the column of a field, whose cells are cut at `most` terminal cells (0: not cut)."""
        if not most:
            return cls(field.title, field.cell, field.right)
        return cls(field.title, lambda row: fit(field.cell(row), most).rstrip(), field.right)


def format_table(
    columns: Sequence[TextColumn[T]],
    rows: Sequence[T],
    *,
    total: Sequence[str] | None = None,
    width: int | None = None,
    least: int = 0,
    color: bool = False,
) -> list[str]:
    """Return a line of headers, where there are any, a line for each row, and one of the cells of `total`.

    Lines are cut to `width` cells (None: not cut), but the last column keeps at least `least` cells (0: no such bound).
    """
    headers = [column.header for column in columns]
    table = [headers, *([column.cell(row) for column in columns] for row in rows)]
    colors = [[column.color and DIM for column in columns]]
    colors += [[column.color and column.color(row) for column in columns] for row in rows]
    if total is not None:
        table.append([*total])
        colors.append([None] * len(columns))
    widths = [max(map(cell_width, cells)) for cells in zip(*table, strict=True)]
    if width is not None and least:
        before = sum(widths[:-1]) + sum(len(column.gap) for column in columns[1:])
        width = max(width, before + least)
    lines = []
    for cells, codes in zip(table, colors, strict=True):
        padded = list(map(_pad, cells, widths, columns))
        line = cut("".join(column.gap * (at > 0) + padded[at] for at, column in enumerate(columns)), width)
        lines.append(_paint(line, padded, columns, codes) if color else line)
    return lines if any(headers) else lines[1:]


def fold(words: str, width: int | None, indent: int = 0) -> list[str]:
    """Fold words at `width` cells less an indent (None: not folded); a longer word, such as a path, stays whole."""
    if width is None:
        return [words]
    room = max(width - indent, _LEAST_FOLD)
    return textwrap.wrap(words, room, break_long_words=False, break_on_hyphens=False) or [""]


def cut(line: str, width: int | None) -> str:
    """Return a line of at most `width` cells, without blanks at its end; None for any length."""
    line = line.rstrip()
    return line if width is None else fit(line, width).rstrip()


def _pad(text: str, width: int, column: TextColumn[T]) -> str:
    padding = " " * (width - cell_width(text))
    return padding + text if column.right else text + padding


def _paint(line: str, cells: Sequence[str], columns: Sequence[TextColumn[T]], codes: Sequence[str | None]) -> str:
    ends = [*itertools.accumulate(len(column.gap) * (at > 0) + len(cells[at]) for at, column in enumerate(columns))]
    for end, text, code in reversed([*zip(ends, cells, codes, strict=True)]):
        if code:
            start = end - len(text)
            line = f"{line[:start]}\x1b[{code}m{line[start:end]}\x1b[0m{line[end:]}"
    return line
