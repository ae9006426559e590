"""The child that reads for the sampler what processes declared, as the sampler holds it. Nothing here ever waits.

A read can hang for ever (a file on a server that is down) and a hostile source can crash a parser: both cost that
child its life and one process its answer. The others are asked about again.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from gpuwatch import procfs
from gpuwatch.declared.claims import Share
from gpuwatch.declared.facts import Card
from gpuwatch.evidence.child import READER, start
from gpuwatch.evidence.wire import Answer, Question
from gpuwatch.model import Declared, Knowledge

DEADLINE = 2.0
"""Seconds that one answer may take."""

_AHEAD = 16
"""Questions that are sent before the first of them is answered: the child need not wait for us."""

_LOSSES = 3
_LOSSES_WITHIN = 60.0
"""So many children lost within so many seconds, and there is a pause as long."""

_STUCK = 2
"""Children that were killed and do not go (they hang in the kernel) before no more are started."""

_DYING = 1.0
"""Seconds that a child which has closed its output may take to go."""

_LONGEST_LINE = 1 << 20
"""Bytes. An answer with a hundred declarations takes 30 kB; more is a child gone mad."""


class Witness:
    """Asks one process after the other; answers come when they come."""

    def __init__(
        self,
        *,
        proc: Path = procfs.PROC,
        shares: tuple[Share, ...] = (),
        command: Sequence[str] = READER,
        first: subprocess.Popen[bytes] | None = None,
        deadline: float = DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over `first`, a child that was started before this module was imported; else start one when needed."""
        self.cards: tuple[Card, ...] = ()
        """The machine's GPUs, which the child is told with its first question and when they have changed."""
        self._deadline = deadline
        self._command = command
        self._proc = str(proc)
        self._shares = shares
        self._clock = clock
        self._queue: deque[Question] = deque()
        self._sent: deque[Question] = deque()
        self._since = 0.0
        """When the first of `_sent` became the one that is worked at, at the latest."""
        self._told: tuple[Card, ...] | None = None
        self._child = first
        self._output = bytearray()
        self._input = bytearray()
        self._ended: float | None = None
        """When the child closed its output."""
        self._abandoned: list[subprocess.Popen[bytes]] = []
        self._losses: deque[float] = deque(maxlen=_LOSSES)
        self._decode = msgspec.json.Decoder(Answer).decode
        self._encode = msgspec.json.Encoder().encode

    @property
    def busy(self) -> bool:
        """Whether an answer is still to come."""
        return bool(self._queue or self._sent)

    @property
    def descriptor(self) -> int | None:
        """What becomes readable when there is something to `look` at; None for nothing to wait for."""
        return None if self._child is None or self._ended is not None else _pipe(self._child.stdout).fileno()

    def ask(self, pid: int, start: int, user: str) -> None:
        """Ask what a process declared."""
        self._queue.append(Question(pid=pid, start=start, user=user))

    def _start(self, now: float) -> None:
        """Start a child, unless too many were lost."""
        if self._child is not None or self._pauses(now) or len(self._abandoned) >= _STUCK:
            return
        try:
            self._child = start(self._command)
        except OSError:  # no memory, no room for a process: the next look tries again
            return
        self._told, self._ended = None, None

    def _pauses(self, now: float) -> bool:
        losses = self._losses
        many = len(losses) == _LOSSES and losses[-1] - losses[0] < _LOSSES_WITHIN
        return many and now - losses[-1] < _LOSSES_WITHIN

    def look(self) -> list[Answer]:
        """Give the answers that have come, and see to the child; one that hangs or crashed is an answer too."""
        if self._child is None and not self.busy and not self._abandoned:
            return []
        self._abandoned[:] = [child for child in self._abandoned if child.poll() is None]
        now = self._clock()
        answers = list(self._read(now))
        if self._child is not None and self._ended is not None:
            answers += self._bury(self._child, now - self._ended)
        elif self._sent and now - self._since > self._deadline:
            answers += self._lose(now, f"could not be read within {self._deadline:g} s")
        if self._queue:
            self._start(now)
        self._send(now)
        return answers

    # -- the pipes -------------------------------------------------------------------------------------------------

    def _read(self, now: float) -> Iterator[Answer]:
        """Give the answers in the pipe; anything else in it ends the child."""
        while self._child is not None and self._ended is None:
            try:
                chunk = os.read(_pipe(self._child.stdout).fileno(), 1 << 16)
            except BlockingIOError:
                return
            self._ended = None if chunk else now
            self._output += chunk
            *lines, rest = bytes(self._output).split(b"\n")
            self._output = bytearray(rest)
            for line in lines:
                try:
                    answer = self._decode(line)
                except msgspec.MsgspecError:
                    answer = None
                if answer is None or not self._sent or (answer.pid, answer.start) != _identity(self._sent[0]):
                    yield from self._lose(now, "what gpuwatch's reader said of it makes no sense")
                    return
                self._sent.popleft()
                self._since = now
                yield answer
            if len(self._output) > _LONGEST_LINE:
                yield from self._lose(now, "what gpuwatch's reader said of it is too long")

    def _send(self, now: float) -> None:
        """Send as many questions as may be on their way."""
        if self._child is None or self._ended is not None:
            return
        while self._queue and len(self._sent) < _AHEAD:
            question = self._queue.popleft()
            if not self._sent:
                self._since = now
            self._sent.append(question)
            if self._told is None:
                question = replace(question, shares=self._shares, proc=self._proc)
            if self._told is not self.cards:
                question = replace(question, cards=self.cards)
                self._told = self.cards
            self._input += self._encode(question) + b"\n"
        if self._input:
            try:
                written = os.write(_pipe(self._child.stdin).fileno(), self._input)
            except (BlockingIOError, BrokenPipeError):  # it is busy, or has ended: its deadline or its output tells
                return
            del self._input[:written]

    # -- the end of a child ----------------------------------------------------------------------------------------

    def _bury(self, child: subprocess.Popen[bytes], ago: float) -> list[Answer]:
        """Judge a child that closed its output so long ago: it was idle, or it crashed over the first question."""
        code = child.poll()
        if code is None and ago < _DYING:
            return []  # it is on its way out; look again
        if code == 0 or not self._sent:
            self._drop()
            return []
        return self._lose(self._clock(), f"reading it crashed gpuwatch's reader ({_ending(code)})")

    def _lose(self, now: float, words: str) -> list[Answer]:
        """End the child over its first question, and ask another one the rest."""
        culprit = self._sent.popleft() if self._sent else None
        self._losses.append(now)
        self._drop()
        if culprit is None:
            return []
        declared = Declared(knowledge=Knowledge.UNREADABLE, words=words)
        return [Answer(pid=culprit.pid, start=culprit.start, declared=declared)]

    def _drop(self) -> None:
        """Let go of the child, whether it has ended or not; what it was asked comes first in the next one's queue."""
        assert self._child is not None
        child, self._child = self._child, None
        child.kill()
        for pipe in (child.stdin, child.stdout):
            _pipe(pipe).close()
        if child.poll() is None:
            self._abandoned.append(child)
        self._queue.extendleft(reversed(self._sent))
        self._sent.clear()
        self._output.clear()
        self._input.clear()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe


def _identity(question: Question) -> tuple[int, int]:
    return (question.pid, question.start)


def _ending(code: int | None) -> str:
    if code is None:
        return "it hangs in the kernel"
    return f"signal {-code}" if code < 0 else f"exit code {code}"
