"""Client of the inspector process: a fair queue of questions, their answers, and the process's restarts. Never waits.

A read can hang forever (a file on a server that is down), and a hostile source can crash a parser. Then the inspector
is killed, one process gets no answer, and the other questions are asked again. Users choose the names, programs and
variables of their processes, and so how long reading takes: a slow reading delays only processes of the same user.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gpuwatch import procfs
from gpuwatch.child import ChildProcess, describe_exit
from gpuwatch.declared.facts import GpuFacts, Share
from gpuwatch.inspector import INSPECTOR
from gpuwatch.inspector.protocol import Answer, Question
from gpuwatch.model import Declared, Knowledge

ALLOWED = 10.0
"""Seconds of reading that one user's processes may owe; above that the user's questions wait."""

FORGIVEN = 0.1
"""Seconds by which each user's debt shrinks per second: the part of a core that one user can keep busy."""

_SLOW = 1.0
"""Seconds owed above which a user's questions are sent one at a time, with no other question after them."""

_SENT_MOST = 16
_SENT_EACH = 4
_SENT_ALONE = 8
"""Questions that may be sent without an answer: in all, of each user, and of a user who alone has questions."""


class FairQueue:
    """Queue of questions by user, which serves next the user whose questions have cost the least time."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Question]] = {}
        self._owed: dict[str, tuple[float, float]] = {}
        """Seconds that each user owed, and the time of that."""

    def __bool__(self) -> bool:
        """Return whether any question waits, even one whose user owes too much."""
        return bool(self._waiting)

    def add(self, question: Question) -> None:
        """Add a question after the others of its user."""
        self._waiting.setdefault(question.user, deque()).append(question)

    def put_back(self, questions: Sequence[Question]) -> None:
        """Put back questions that were sent, in this order, before all others of their users."""
        for question in reversed(questions):
            self._waiting.setdefault(question.user, deque()).appendleft(question)

    def retain(self, wanted: Collection[tuple[int, int]]) -> None:
        """Keep only the questions about these processes (PID, start time)."""
        for user, questions in list(self._waiting.items()):
            kept = deque(question for question in questions if (question.pid, question.start) in wanted)
            if kept:
                self._waiting[user] = kept
            else:
                del self._waiting[user]

    def charge(self, user: str, seconds: float, now: float) -> None:
        """Add the cost of a question to what its user owes."""
        self._owed = {other: then for other, then in self._owed.items() if self.owed(other, now) > 0.0}
        self._owed[user] = (self.owed(user, now) + seconds, now)

    def owed(self, user: str, now: float) -> float:
        """Return the seconds that a user owes: the cost of the user's questions, less what has been forgiven."""
        seconds, then = self._owed.get(user, (0.0, now))
        return max(0.0, seconds - FORGIVEN * (now - then))

    def ready_users(self, now: float, barred: Collection[str]) -> list[str]:
        """Return the users with waiting questions who are not `barred` and whose debt is below `ALLOWED` seconds."""
        return [user for user in self._waiting if user not in barred and self.owed(user, now) < ALLOWED]

    def pop(self, now: float, sent: Iterable[Question], barred: Collection[str]) -> Question | None:
        """Remove and return the next question to send; None where those already `sent` must be answered first."""
        users = [question.user for question in sent]
        if len(users) >= _SENT_MOST or any(self.owed(user, now) >= _SLOW for user in users):
            return None
        each = _SENT_EACH if len(self._waiting) > 1 else _SENT_ALONE
        ready = [user for user in self.ready_users(now, barred) if users.count(user) < each]
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
"""Seconds of the deadline that tmux may take to name its panes, at most half of it: a tmux server that hangs must not
cost the whole answer."""

_START_TIME = 8.0
"""Seconds added to the deadline of an inspector that has only started: its modules may lie on a file server."""

_MOST_ELAPSED = 0.5
"""Seconds between two calls of `poll` that count towards the deadline, at most. Where more have passed, this process
was stopped or the machine was paused, and the inspector may not have run either."""

_MOST_STUCK = 4
"""Number of killed inspectors that hang in the kernel at which no more are started. One user can cause only one of
them: while it hangs, no more questions about that user's processes are sent."""

_EXIT_TIME = 1.0
"""Seconds that an inspector which has closed its output may take to end."""

_LONGEST_ANSWER = 1 << 20
"""Bytes. An answer with a hundred declarations takes 30 kB."""


class InspectorClient:
    """Client that sends questions about processes to the inspector, and collects the answers."""

    def __init__(
        self,
        *,
        proc: Path = procfs.PROC,
        shares: tuple[Share, ...] = (),
        tmux: bool = False,
        command: Sequence[str] = INSPECTOR,
        first: ChildProcess | None = None,
        deadline: float = DEADLINE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use `first`, an inspector that runs already; start others when they are needed.

        With `tmux` the inspector asks our own tmux for the names of sessions and windows.
        """
        self.cards: tuple[GpuFacts, ...] = ()
        """The machine's GPUs; sent with the first question, and again after a change."""
        self.driver = ""
        """Version of the driver, sent together with `cards`."""
        self._deadline = deadline
        self._command = command
        self._settings = {"shares": shares, "proc": str(proc), "tmux": min(_TMUX, deadline / 2) if tmux else 0.0}
        self._clock = clock
        self._queue = FairQueue()
        self._sent: deque[Question] = deque()
        self._spent = 0.0
        """Seconds that the first question of `_sent` has taken so far, at most."""
        self._polled_at = clock()
        self._is_ready = False
        """Whether the inspector has written anything."""
        self._sent_cards: tuple[GpuFacts, ...] | None = None
        self._child = first
        self._eof_at: float | None = None
        self._stuck: dict[ChildProcess, str] = {}
        """Killed inspectors that have not ended, each with the user whose process it was reading."""
        self._decode = msgspec.json.Decoder(Answer).decode
        self._encode = msgspec.json.Encoder().encode

    @property
    def busy(self) -> bool:
        """Whether an answer is expected soon; false where all waiting questions are of users who owe too much."""
        return bool(self._sent or (len(self._stuck) < _MOST_STUCK and self._ready_users()))

    @property
    def descriptor(self) -> int | None:
        """Descriptor that becomes readable when `poll` has something to read; None where nothing is expected."""
        return None if self._child is None else self._child.descriptor

    def ask(self, pid: int, start: int, user: str) -> None:
        """Queue a question about a process."""
        self._queue.add(Question(pid=pid, start=start, user=user))

    def retain(self, wanted: Collection[tuple[int, int]]) -> None:
        """Keep only the waiting questions about these processes (PID, start time)."""
        self._queue.retain(wanted)

    def poll(self) -> list[Answer]:
        """Return the answers that have come, and send the next questions.

        A process over which the inspector hung or crashed has an answer that says so.
        """
        now = self._clock()
        self._spent += min(now - self._polled_at, _MOST_ELAPSED)
        self._polled_at = now
        self._stuck = {child: user for child, user in self._stuck.items() if child.exit_code() is None}
        answers: list[Answer] = []
        if self._child is not None:
            answers += self._receive(self._child, now)
        if self._child is not None and self._child.eof:
            answers += self._check_exit(self._child, now)
        elif self._sent and self._spent > self._deadline + (0.0 if self._is_ready else _START_TIME):
            answers += self._fail_first(f"could not be read within {self._deadline:g} s")
        if self._child is None and len(self._stuck) < _MOST_STUCK and self._ready_users():
            self._start()
        if self._child is not None and not self._child.eof:
            self._send(self._child, now)
        return answers

    def close(self, seconds: float = 0.2) -> None:
        """Kill the inspector, and wait up to `seconds` for its end. No other method may be called afterwards."""
        if self._child is not None:
            child = self._child
            self._drop()
            child.exit_code(seconds)

    def _ready_users(self) -> list[str]:
        return self._queue.ready_users(self._clock(), self._stuck.values())

    def _start(self) -> None:
        try:
            self._child = ChildProcess(self._command, longest_line=_LONGEST_ANSWER)
        except OSError:  # no memory, no room for a process: the next poll tries again
            return
        self._sent_cards, self._eof_at, self._is_ready = None, None, False

    def _receive(self, child: ChildProcess, now: float) -> Iterator[Answer]:
        """Return the answers in the pipe; kill the inspector where the pipe has anything else."""
        for line in child.read_lines():
            if not self._is_ready:
                self._is_ready, self._spent = True, 0.0
            if not line:  # the inspector's first line
                continue
            try:
                answer = self._decode(line)
            except ValueError:
                answer = None
            first = self._sent[0] if self._sent else None
            if answer is None or first is None or (answer.pid, answer.start) != (first.pid, first.start):
                yield from self._fail_first("what gpuwatch's reader said of it makes no sense")
                return
            self._queue.charge(self._sent.popleft().user, answer.took, now)
            self._spent = 0.0
            yield answer
        if child.overflowed:
            yield from self._fail_first("what gpuwatch's reader said of it is too long")

    def _send(self, child: ChildProcess, now: float) -> None:
        """Send questions until the limit of unanswered questions is reached."""
        while question := self._queue.pop(now, self._sent, self._stuck.values()):
            if not self._sent:
                self._spent = 0.0
            self._sent.append(question)
            if self._sent_cards is None:
                question = replace(question, **self._settings)
            if self._sent_cards is not self.cards:
                question = replace(question, cards=self.cards, driver=self.driver)
                self._sent_cards = self.cards
            child.write(self._encode(question) + b"\n")
        child.write(b"")

    def _check_exit(self, child: ChildProcess, now: float) -> list[Answer]:
        """Handle an inspector that has closed its output: it was idle, or it crashed over the first question."""
        if self._eof_at is None:
            self._eof_at = now
        code = child.exit_code()
        if code is None and now - self._eof_at < _EXIT_TIME:
            return []
        if code == 0 or not self._sent:
            self._drop()
            return []
        words = "reading it crashed gpuwatch's reader" if self._is_ready else "gpuwatch's reader does not start"
        return self._fail_first(f"{words} ({describe_exit(code)})")

    def _fail_first(self, words: str) -> list[Answer]:
        """Kill the inspector; answer its first question with the reason why the process could not be read."""
        question = self._sent.popleft() if self._sent else None
        self._drop("" if question is None else question.user)
        if question is None:
            return []
        self._queue.charge(question.user, self._deadline, self._clock())
        declared = Declared(knowledge=Knowledge.UNREADABLE, words=words)
        return [Answer(pid=question.pid, start=question.start, declared=declared)]

    def _drop(self, user: str = "") -> None:
        """Kill the inspector because of a process of `user`; the next inspector gets the remaining questions."""
        assert self._child is not None
        child, self._child = self._child, None
        child.kill()
        if child.exit_code() is None:
            self._stuck[child] = user
        self._queue.put_back(self._sent)
        self._sent.clear()
