"""Client of the inspector process: batches of questions, their answers, and the process's restarts. Never waits.

A read can hang forever (a file on a server that is down), and a hostile source can crash a parser. Then the inspector
is killed, one process gets no answer, and the other questions are asked again. Users choose the names, programs and
variables of their processes, and so how long reading takes: users whose processes took long come last in the next
batch, and a long batch is followed by a pause.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from gpuwatch.base import procfs
from gpuwatch.base.child import ChildProcess, describe_exit
from gpuwatch.declared.facts import GpuFacts, Share
from gpuwatch.inspector import INSPECTOR
from gpuwatch.inspector.protocol import Answer, Question
from gpuwatch.model.snapshot import Declared, Knowledge

_SLOW = 1.0
"""Seconds of reading in one batch after which a user comes last in the next."""

_LONGEST_BATCH = 4.0
"""Seconds after which a batch is given up: the processes that were not read wait for the next."""

_SHORT_BATCH = 0.25
"""Seconds up to which a batch is followed by no pause."""

_PAUSE = 5.0
"""Longest pause after a batch, in seconds; a shorter one takes nine times as long as the batch, so that reading never
takes more than a tenth of a core."""

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
        in_two: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use `first`, an inspector that runs already; start others when they are needed.

        With `tmux` the inspector asks our own tmux for the names of sessions and windows; with `in_two` it answers by
        two processes, see `worker.answers`.
        """
        self.gpus: tuple[GpuFacts, ...] = ()
        """The machine's GPUs; sent with the first question, and again after a change."""
        self.driver = ""
        """Version of the driver, sent together with `gpus`."""
        self._deadline = deadline
        self._command = command
        patience = min(_TMUX, deadline / 2) if tmux else 0.0
        self._settings = {"shares": shares, "proc": str(proc), "tmux": patience, "in_two": in_two}
        self._clock = clock
        self._waiting: dict[tuple[int, int], Question] = {}
        """Questions without an answer, by PID and start time; those of the batch too."""
        self._batch: deque[Question] = deque()
        """Questions of this batch that were not sent, or not to this inspector."""
        self._sent: deque[Question] = deque()
        self._costs: defaultdict[str, float] = defaultdict(float)
        """Seconds of reading in this batch, by user."""
        self._slow: set[str] = set()
        """Users whose processes took long in the previous batch."""
        self._batch_at = clock()
        """When the next batch may begin."""
        self._batch_spent = 0.0
        """Seconds that this batch has taken so far, at most."""
        self._spent = 0.0
        """Seconds that the first question of `_sent` has taken so far, at most."""
        self._polled_at = clock()
        self._is_ready = False
        """Whether the inspector has written anything."""
        self._sent_gpus: tuple[GpuFacts, ...] | None = None
        self._child = first
        self._eof_at: float | None = None
        self._stuck: dict[ChildProcess, str] = {}
        """Killed inspectors that have not ended, each with the user whose process it was reading."""
        self._decode = msgspec.json.Decoder(Answer).decode
        self._encode = msgspec.json.Encoder().encode

    @property
    def busy(self) -> bool:
        """Whether an answer is expected soon; false in a pause, and where only questions of barred users wait."""
        return bool(self._sent or self._batch or (self._clock() >= self._batch_at and self._askable()))

    @property
    def descriptor(self) -> int | None:
        """Descriptor that becomes readable when `poll` has something to read; None where nothing is expected."""
        return None if self._child is None else self._child.descriptor

    def ask(self, pid: int, start: int, user: str) -> None:
        """Add a question about a process."""
        self._waiting[pid, start] = Question(pid=pid, start=start, user=user)

    def retain(self, wanted: Collection[tuple[int, int]]) -> None:
        """Keep only the questions about these processes (PID, start time) that were not sent."""
        sent = {(question.pid, question.start) for question in self._sent}
        self._waiting = {key: one for key, one in self._waiting.items() if key in wanted or key in sent}
        self._batch = deque(one for one in self._batch if (one.pid, one.start) in self._waiting)

    def poll(self) -> list[Answer]:
        """Return the answers that have come, and send the next questions.

        A process over which the inspector hung or crashed has an answer that says so.
        """
        now = self._clock()
        elapsed = min(now - self._polled_at, _MOST_ELAPSED)
        self._spent += elapsed
        self._batch_spent += elapsed
        self._polled_at = now
        self._stuck = {child: user for child, user in self._stuck.items() if child.exit_code() is None}
        answers: list[Answer] = []
        if self._child is not None:
            answers += self._receive(self._child)
        if self._child is not None and self._child.eof:
            answers += self._check_exit(self._child, now)
        elif self._sent and self._spent > self._deadline + (0.0 if self._is_ready else _START_TIME):
            answers += self._fail_first(f"could not be read within {self._deadline:g} s")
        self._plan(now)
        if self._child is None and self._batch:
            self._start()
        if self._child is not None and not self._child.eof:
            self._send(self._child)
        return answers

    def close(self, seconds: float = 0.2) -> None:
        """Kill the inspector, and wait up to `seconds` for its end. No other method may be called afterwards."""
        if self._child is not None:
            child = self._child
            self._drop()
            child.exit_code(seconds)

    def _askable(self) -> list[Question]:
        """Return the waiting questions, without those of users who have an inspector hang in the kernel."""
        if len(self._stuck) >= _MOST_STUCK:
            return []
        barred = set(self._stuck.values())
        return [one for one in self._waiting.values() if one.user not in barred]

    def _plan(self, now: float) -> None:
        """Begin the next batch, or end the present one: users take turns, and those who took long come last."""
        if (self._batch or self._sent) and self._is_ready and self._batch_spent > _LONGEST_BATCH:
            if self._child is not None and self._sent:
                self._costs[self._sent[0].user] += self._batch_spent
                self._drop()
            self._batch.clear()
        if self._batch or self._sent:
            return
        if self._costs:  # a batch has ended
            took = sum(self._costs.values())
            self._batch_at = now + (0.0 if took <= _SHORT_BATCH else min(_PAUSE, 9 * took))
            self._slow = {user for user, cost in self._costs.items() if cost > _SLOW}
            self._costs.clear()
        questions = self._askable()
        if now < self._batch_at or not questions:
            return
        turns: Counter[str] = Counter()
        placed = []
        for question in questions:
            placed.append(((question.user in self._slow, turns[question.user]), question))
            turns[question.user] += 1
        self._batch.extend(question for _, question in sorted(placed, key=lambda one: one[0]))
        self._batch_spent = 0.0

    def _start(self) -> None:
        try:
            self._child = ChildProcess(self._command, longest_line=_LONGEST_ANSWER)
        except OSError:  # no memory, no room for a process: the next poll tries again
            return
        self._sent_gpus, self._eof_at, self._is_ready = None, None, False

    def _receive(self, child: ChildProcess) -> Iterator[Answer]:
        """Return the answers in the pipe; kill the inspector where the pipe has anything else."""
        for line in child.read_lines():
            if not self._is_ready:
                self._is_ready, self._spent, self._batch_spent = True, 0.0, 0.0
            if not line:  # the inspector's first line
                continue
            try:
                answer = self._decode(line)
            except ValueError:
                answer = None
            first = self._sent[0] if self._sent else None
            if answer is None or first is None or (answer.pid, answer.start) != (first.pid, first.start):
                yield from self._fail_first("gpuwatch's reader gave an invalid answer")
                return
            self._costs[self._sent.popleft().user] += answer.took
            del self._waiting[answer.pid, answer.start]
            self._spent = 0.0
            yield answer
        if child.overflowed:
            yield from self._fail_first("gpuwatch's reader gave too long an answer")

    def _send(self, child: ChildProcess) -> None:
        lines = []
        for question in self._batch:
            if not self._sent:
                self._spent = 0.0
            self._sent.append(question)
            if self._sent_gpus is None:
                question = replace(question, **self._settings)
            if self._sent_gpus is not self.gpus:
                question = replace(question, gpus=self.gpus, driver=self.driver)
                self._sent_gpus = self.gpus
            lines.append(self._encode(question) + b"\n")
        self._batch.clear()
        child.write(b"".join(lines))

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
        self._costs[question.user] += self._deadline
        del self._waiting[question.pid, question.start]
        declared = Declared(knowledge=Knowledge.UNREADABLE, words=words)
        return [Answer(pid=question.pid, start=question.start, declared=declared)]

    def _drop(self, user: str = "") -> None:
        """Kill the inspector because of a process of `user`, whose other questions are now the last of the batch."""
        assert self._child is not None
        child, self._child = self._child, None
        child.kill()
        if child.exit_code() is None:
            self._stuck[child] = user
        self._batch.extendleft(reversed(self._sent))
        self._sent.clear()
        self._batch = deque(sorted(self._batch, key=lambda one: one.user == user))
