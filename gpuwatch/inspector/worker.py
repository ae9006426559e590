"""Inspector process: answers questions about processes. Reads may hang, and parsers may crash.

It answers each `Question` on stdin by an `Answer` on stdout, in the same order. It ends at the end of stdin, after 30 s
without a question, or when it has grown large. Its client kills it when one answer takes too long.

It is not a thread of the sampler: parsing a hostile script holds the interpreter's lock, and a thread that reads from a
dead file server cannot be ended. The first inspector is forked from the sampler; see "Decisions" in gpuwatch/README.md.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from gpuwatch.base import procfs
from gpuwatch.base.child import die_with_parent
from gpuwatch.base.text import clean
from gpuwatch.declared.facts import GpuFacts, Share
from gpuwatch.declared.resolver import resolve
from gpuwatch.inspector import IDLE, context, reader
from gpuwatch.inspector.containers import ContainerNames, Monitors
from gpuwatch.inspector.protocol import Answer, Question, bounded
from gpuwatch.inspector.servers import Sockets
from gpuwatch.inspector.terminals import PaneNames
from gpuwatch.model.snapshot import Declared, Knowledge, ProcessContext

MEMORY = 512 << 20
"""Bytes of address space, at most: a source of 1 MiB with nothing but brackets would take more to parse."""


LARGE = 64 << 20
"""Bytes of memory at which the inspector ends after an answer and another one is started: memory that a large source
took is not freed, and would be missing for the next source."""


class Inspector:
    """Reader of processes that answers questions; it keeps the settings that came with earlier questions."""

    def __init__(self) -> None:
        self._proc = procfs.PROC
        self._gpus: tuple[GpuFacts, ...] = ()
        self._driver = ""
        self._shares: tuple[Share, ...] = ()
        self.in_two = False
        """Whether two processes answer a batch."""
        self._names = ContainerNames()
        self._panes: PaneNames | None = None
        self._ancestors: dict[int, reader.Ancestor] = {}
        self._monitors: Monitors = {}
        self._sockets = Sockets()
        self._encode = msgspec.json.Encoder().encode

    def begin(self) -> None:
        """Clear the cached ancestors and sockets; to be called before each batch of questions."""
        self._ancestors.clear()
        self._monitors.clear()
        self._sockets = Sockets(self._proc)

    def line(self, question: Question) -> bytes:
        """Return the answer to a question as a line of JSON; never raises."""
        return self._encode(self.answer(question)) + b"\n"

    def answer(self, question: Question) -> Answer:
        """Return the answer to a question; never raises."""
        began = time.monotonic()
        if question.gpus is not None:
            self._gpus = question.gpus
        if question.driver is not None:
            self._driver = question.driver
        if question.shares is not None:
            self._shares = question.shares
        if question.proc is not None:
            self._proc = Path(question.proc)
        if question.in_two is not None:
            self.in_two = question.in_two
        if question.tmux is not None:
            self._panes = PaneNames(question.tmux) if question.tmux else None
        around, ended = None, False
        try:
            declared, around, ended = self._read(question)
            declared = bounded(declared)
        except (OSError, ValueError) as error:
            ended = isinstance(error, procfs.GONE)
            declared = _unreadable("it has ended" if ended else f"it cannot be read: {clean(str(error), 200)}")
        except Exception as bug:  # noqa: BLE001 - one odd process must not prevent reading the others
            declared = _unreadable(f"a fault in gpuwatch: {type(bug).__name__}: {clean(str(bug), 200)}")
        return Answer(
            pid=question.pid,
            start=question.start,
            declared=declared,
            context=around,
            ended=ended,
            took=time.monotonic() - began,
        )

    def _read(self, question: Question) -> tuple[Declared, ProcessContext, bool]:
        """Read a process, resolve its declarations, and return whether it is ending.

        Raises ProcessLookupError where another process has its PID.
        """
        facts = reader.read(
            question.pid,
            proc=self._proc,
            user=question.user,
            shares=self._shares,
            ancestors=self._ancestors,
            monitors=self._monitors,
        )
        stat = procfs.read_stat(question.pid, self._proc)
        if stat.start_ticks != question.start:
            raise ProcessLookupError
        around = context.read_context(
            facts, proc=self._proc, names=self._names, panes=self._panes, sockets=self._sockets, monitors=self._monitors
        )
        return resolve(facts, self._gpus, self._driver), around, stat.is_ending


def _unreadable(words: str) -> Declared:
    return Declared(knowledge=Knowledge.UNREADABLE, words=words)


def questions() -> Iterator[list[Question]]:
    """Yield the questions on stdin in batches, until stdin ends or no question has come for `IDLE` seconds."""
    decode = msgspec.json.Decoder(Question).decode
    buffer = b""
    poller = select.poll()
    poller.register(0, select.POLLIN)
    while poller.poll(IDLE * 1000) and (chunk := os.read(0, 1 << 16)):
        *lines, buffer = (buffer + chunk).split(b"\n")
        if batch := [decode(line) for line in lines if line]:
            yield batch  # an empty line is for `inspector.__main__`


def answers(inspector: Inspector, batch: Sequence[Question]) -> Iterator[bytes]:
    """Yield the lines of the answers to a batch, in its order; with `in_two` a fork answers the second half meanwhile.

    Only for a single snapshot: the client does not know of a fork that hangs in the kernel. Raises SystemExit where the
    fork has crashed: the question without an answer is to blame.
    """
    first, *rest = batch
    yield inspector.line(first)  # it has the settings, and what is read for it is known to both
    own, forked = rest, None
    if inspector.in_two and len(rest) > 1:
        with contextlib.suppress(OSError):  # no room for a process
            forked = _fork(inspector, rest[len(rest) // 2 :])
            own = rest[: len(rest) // 2]
    yield from map(inspector.line, own)
    if forked is not None:
        with forked:
            for _ in rest[len(own) :]:
                yield forked.readline() or sys.exit(1)


def _fork(inspector: Inspector, batch: Sequence[Question]) -> BinaryIO:
    """Fork this process to answer a batch, and return the pipe with the answers; raises OSError.

    Not a `ChildProcess`, which has a session of its own: the client kills this process and its fork as one group.
    """
    output, end = os.pipe()
    if os.fork():
        os.close(end)
        return open(output, "rb")
    try:
        die_with_parent()
        os.dup2(end, 1)
        for question in batch:
            _write(inspector.line(question))
    finally:
        os._exit(0)


def _write(line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(1, rest) :]


def main() -> None:
    """Answer questions until stdin ends, or until no question has come for `IDLE` seconds."""
    die_with_parent()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # it has read private data
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    if most == resource.RLIM_INFINITY or most > MEMORY:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    inspector = Inspector()
    try:
        _write(b"\n")
        for several in questions():
            inspector.begin()
            for line in answers(inspector, several):
                _write(line)
                # Not by psutil: its import would delay the first picture.
                if int(procfs.read_file(os.getpid(), "statm").split()[1]) * resource.getpagesize() > LARGE:
                    return  # ru_maxrss would be our parent's: exec(3) keeps it
    except BrokenPipeError:
        return
