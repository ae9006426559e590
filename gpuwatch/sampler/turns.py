"""Whose processes are asked about next: those of whoever has cost the least time of late.

People choose what their processes are called, run and set, and with that how long it takes to read them: one who makes
it take long, or ends the reader each time, has only their own processes wait for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence

from gpuwatch.evidence.wire import Question

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
        """Give the seconds that a user's questions have cost and that are not forgiven yet."""
        seconds, then = self._owed.get(user, (0.0, now))
        return max(0.0, seconds - FORGIVEN * (now - then))

    def ready(self, now: float, barred: Collection[str]) -> list[str]:
        """Give the users that are neither barred nor owe too much, and of whom a question waits."""
        return [user for user in self._waiting if user not in barred and self.owed(user, now) < ALLOWED]

    def take(self, now: float, sent: Iterable[Question], barred: Collection[str]) -> Question | None:
        """Give the question to send next behind those that are on their way; None where none is to be sent now."""
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
