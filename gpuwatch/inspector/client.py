"""Client of the inspector process: a fair queue of questions, answers and restarts. It never waits.

People choose what their processes are called, run and set, and with that how long it takes to read them: one who makes
it take long, or ends the reader each time, has only their own processes wait for it.

A read can hang for ever (a file on a server that is down) and a hostile source can crash a parser: both cost that
child its life and one process its answer. The others are asked about again; whose they were, theirs wait (`turns`).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
from msgspec.structs import replace

from gpuwatch import procfs
from gpuwatch.declared.facts import Card, Share
from gpuwatch.inspector.child import READER, start
from gpuwatch.inspector.protocol import Answer, Question
from gpuwatch.model import Declared, Knowledge

ALLOWED = 10.0
"""Seconds of reading that one user's processes may cost at once; then they wait until some of it is forgiven."""

FORGIVEN = 0.1
"""Seconds of those that are forgiven each second: what one user can make us spend of a core for ever."""

_SLOW = 1.0
"""Seconds owed from which a user's questions are sent one at a time, with nobody's behind them."""

_AHEAD = 16
_AHEAD_EACH = 4
_AHEAD_ALONE = 8
"""Questions that are sent before the first of them is answered: of all users, of each, of one that nobody else waits
beside."""


class Turns:
    """The questions that wait, by user, and what each user's have cost."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Question]] = {}
        self._owed: dict[str, tuple[float, float]] = {}
        """Seconds, and when that was so."""

    def __bool__(self) -> bool:
        """Whether any question waits, if only for what its user owes."""
        return bool(self._waiting)

    def add(self, question: Question) -> None:
        """Let a question wait behind the others of its user."""
        self._waiting.setdefault(question.user, deque()).append(question)

    def give_back(self, questions: Sequence[Question]) -> None:
        """Let questions that were taken, in this order, wait before all others of their users."""
        for question in reversed(questions):
            self._waiting.setdefault(question.user, deque()).appendleft(question)

    def keep(self, wanted: Collection[tuple[int, int]]) -> None:
        """Forget the questions about all other processes: they have ended."""
        for user, questions in list(self._waiting.items()):
            kept = deque(one for one in questions if (one.pid, one.start) in wanted)
            if kept:
                self._waiting[user] = kept
            else:
                del self._waiting[user]

    def charge(self, user: str, seconds: float, now: float) -> None:
        """Note what a user's question has cost."""
        self._owed = {one: then for one, then in self._owed.items() if self.owed(one, now) > 0.0}
        self._owed[user] = (self.owed(user, now) + seconds, now)

    def owed(self, user: str, now: float) -> float:
        """Return the seconds that a user's questions have cost and that are not forgiven yet."""
        seconds, then = self._owed.get(user, (0.0, now))
        return max(0.0, seconds - FORGIVEN * (now - then))

    def ready(self, now: float, barred: Collection[str]) -> list[str]:
        """Return the users that are neither barred nor owe too much, and of whom a question waits."""
        return [user for user in self._waiting if user not in barred and self.owed(user, now) < ALLOWED]

    def take(self, now: float, sent: Iterable[Question], barred: Collection[str]) -> Question | None:
        """Return the question to send next behind those that are on their way; None where none is to be sent now."""
        users = [one.user for one in sent]
        if len(users) >= _AHEAD or any(self.owed(user, now) >= _SLOW for user in users):
            return None
        each = _AHEAD_EACH if len(self._waiting) > 1 else _AHEAD_ALONE
        ready = [user for user in self.ready(now, barred) if users.count(user) < each]
        if not ready:
            return None
        user = min(ready, key=lambda user: self.owed(user, now))
        if users and self.owed(user, now) >= _SLOW:
            return None
        question = self._waiting[user].popleft()
        if not self._waiting[user]:
            del self._waiting[user]
        return question


DEADLINE = 2.0
"""Seconds that one answer may take."""

_TMUX = 1.0
"""Seconds of those that tmux may take to name its panes, and half of what there is at most: a server that does not
answer must not cost the answer."""

_STARTING = 8.0
"""Seconds more for one that has not said yet that it is ready: its modules may lie on a server, not yet in memory."""

_ASLEEP = 0.5
"""Seconds between two looks that count, at most: with more, we did not run (stopped, or on a machine that was paused),
and neither may the child have."""

_STUCK = 4
"""Children that were killed and do not go (they hang in the kernel) before no more are started. One user's processes
can have one hang: no more of theirs are asked about while it is there."""

_DYING = 1.0
"""Seconds that a child which has closed its output may take to go."""

_LONGEST_LINE = 1 << 20
"""Bytes. An answer with a hundred declarations takes 30 kB; more is a child gone mad."""


class Witness:
    """Asks about one process after the other; answers come when they come."""

    def __init__(
        self,
        *,
        proc: Path = procfs.PROC,
        shares: tuple[Share, ...] = (),
        tmux: bool = False,
        command: Sequence[str] = READER,
        first: subprocess.Popen[bytes] | None = None,
        deadline: float = DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take over `first`, a child that was started before this module was imported; else start one when needed.

        With `tmux` it asks our own tmux for the names of sessions and windows.
        """
        self.cards: tuple[Card, ...] = ()
        """The machine's GPUs, which the child is told with its first question and when they have changed."""
        self.driver = ""
        """The version of their driver, which it is told with them."""
        self._deadline = deadline
        self._command = command
        self._proc = str(proc)
        self._shares = shares
        self._tmux = min(_TMUX, deadline / 2) if tmux else 0.0
        self._clock = clock
        self._turns = Turns()
        self._sent: deque[Question] = deque()
        self._spent = 0.0
        """Seconds that the first of `_sent` has been worked at, at most."""
        self._looked = clock()
        self._ready = False
        """Whether the child has said anything."""
        self._told: tuple[Card, ...] | None = None
        self._child = first
        self._output = bytearray()
        self._input = bytearray()
        self._ended: float | None = None
        """When the child closed its output."""
        self._abandoned: dict[subprocess.Popen[bytes], str] = {}
        """Killed and not gone yet, with the user of the process that it hung over."""
        self._decode = msgspec.json.Decoder(Answer).decode
        self._encode = msgspec.json.Encoder().encode

    @property
    def busy(self) -> bool:
        """Whether an answer is to come soon; not for a user whose processes are to wait."""
        return bool(self._sent or (len(self._abandoned) < _STUCK and self._turns.ready(self._clock(), self._barred)))

    @property
    def _barred(self) -> Collection[str]:
        return self._abandoned.values()

    @property
    def descriptor(self) -> int | None:
        """What becomes readable when there is something to `look` at; None for nothing to wait for."""
        return None if self._child is None or self._ended is not None else _pipe(self._child.stdout).fileno()

    def ask(self, pid: int, start: int, user: str) -> None:
        """Ask what a process declared."""
        self._turns.add(Question(pid=pid, start=start, user=user))

    def keep(self, wanted: Collection[tuple[int, int]]) -> None:
        """Forget what was asked about processes that are not among these (PID, start time)."""
        self._turns.keep(wanted)

    def _start(self) -> None:
        """Start a child, unless too many hang."""
        if self._child is not None or len(self._abandoned) >= _STUCK:
            return
        try:
            self._child = start(self._command)
        except OSError:  # no memory, no room for a process: the next look tries again
            return
        self._told, self._ended, self._ready = None, None, False

    def look(self) -> list[Answer]:
        """Return the answers that have come, and see to the child; one that hangs or crashed is an answer too."""
        now = self._clock()
        self._spent += min(now - self._looked, _ASLEEP)
        self._looked = now
        if self._child is None and not self._turns and not self._abandoned:
            return []
        self._abandoned = {child: user for child, user in self._abandoned.items() if child.poll() is None}
        answers = list(self._read(now))
        if self._child is not None and self._ended is not None:
            answers += self._bury(self._child, now - self._ended)
        elif self._sent and self._spent > self._deadline + (0.0 if self._ready else _STARTING):
            answers += self._lose(now, f"could not be read within {self._deadline:g} s")
        if self._turns.ready(now, self._barred):
            self._start()
        self._send(now)
        return answers

    # -- the pipes -------------------------------------------------------------------------------------------------

    def _read(self, now: float) -> Iterator[Answer]:
        """Return the answers in the pipe; anything else in it ends the child."""
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
                if not self._ready:
                    self._ready, self._spent = True, 0.0
                if not line:  # it is ready
                    continue
                try:
                    answer = self._decode(line)
                except msgspec.MsgspecError:
                    answer = None
                if answer is None or not self._sent or (answer.pid, answer.start) != _identity(self._sent[0]):
                    yield from self._lose(now, "what gpuwatch's reader said of it makes no sense")
                    return
                self._turns.charge(self._sent.popleft().user, answer.took, now)
                self._spent = 0.0
                yield answer
            if len(self._output) > _LONGEST_LINE:
                yield from self._lose(now, "what gpuwatch's reader said of it is too long")

    def _send(self, now: float) -> None:
        """Send as many questions as may be on their way."""
        if self._child is None or self._ended is not None:
            return
        while question := self._turns.take(now, self._sent, self._barred):
            if not self._sent:
                self._spent = 0.0
            self._sent.append(question)
            if self._told is None:
                question = replace(question, shares=self._shares, proc=self._proc, tmux=self._tmux)
            if self._told is not self.cards:
                question = replace(question, cards=self.cards, driver=self.driver)
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
        did = "reading it crashed gpuwatch's reader" if self._ready else "gpuwatch's reader does not start"
        return self._lose(self._clock(), f"{did} ({_ending(code)})")

    def _lose(self, now: float, words: str) -> list[Answer]:
        """End the child over its first question, and ask another one the rest."""
        culprit = self._sent.popleft() if self._sent else None
        self._drop("" if culprit is None else culprit.user)
        if culprit is None:
            return []
        self._turns.charge(culprit.user, self._deadline, now)
        declared = Declared(knowledge=Knowledge.UNREADABLE, words=words)
        return [Answer(pid=culprit.pid, start=culprit.start, declared=declared)]

    def close(self, seconds: float = 0.2) -> None:
        """End the child, and wait so long for it to go; nothing is to be asked any more."""
        if self._child is not None:
            child = self._child
            self._drop()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel: it goes when that lets go
                child.wait(seconds)

    def _drop(self, user: str = "") -> None:
        """Let go of the child, whether it has ended or not, over a process of this user; the next is asked the rest."""
        assert self._child is not None
        child, self._child = self._child, None
        child.kill()
        for pipe in (child.stdin, child.stdout):
            _pipe(pipe).close()
        if child.poll() is None:
            self._abandoned[child] = user
        self._turns.give_back(self._sent)
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
