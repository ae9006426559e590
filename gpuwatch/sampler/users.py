"""User names for uids, looked up where it may take its time: a directory server can hold a look-up up for 10 s."""

from __future__ import annotations

import pwd
import queue
import threading
import time
from collections.abc import Callable

from gpuwatch.errors import NoThreadError
from gpuwatch.spawn import start_thread
from gpuwatch.text import clean

TTL = 600.0
"""Seconds after which a name is looked up again; the old one is shown until the new one is there."""


def name_of(uid: int) -> str:
    """Ask the system's user database; raises KeyError where it has no such user."""
    return pwd.getpwuid(uid).pw_name


class UserNames:
    """Names by uid, from a thread of their own; the uid in digits until a name is known, and where there is none."""

    def __init__(
        self, look_up: Callable[[int], str] = name_of, *, ttl: float = TTL, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look_up = look_up
        self._ttl = ttl
        self._clock = clock
        self._names: dict[int, tuple[str, float]] = {}
        self._asked: set[int] = set()
        self._wanted: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def name(self, uid: int) -> str:
        """Give a user's name, cleaned, or the uid in digits; never waits."""
        with self._changed:
            known = self._names.get(uid)
            stale = known is None or self._clock() - known[1] > self._ttl
            if stale and uid not in self._asked and self._is_started():
                self._asked.add(uid)
                self._wanted.put(uid)
        return known[0] if known else str(uid)

    def settle(self, seconds: float) -> bool:
        """Wait up to so many seconds for the look-ups under way; say whether all are done."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._asked, seconds)

    @property
    def pending(self) -> int:
        """Look-ups under way."""
        return len(self._asked)

    def _is_started(self) -> bool:
        """Start the thread, if need be; where there is none to be had, the next call tries again."""
        if self._thread is None:
            # A daemon: a look-up that hangs must not hold up the end of the program.
            thread = threading.Thread(target=self._work, name="user names", daemon=True)
            try:
                start_thread(thread)
            except NoThreadError:
                return False
            self._thread = thread
        return True

    def _work(self) -> None:
        while True:
            uid = self._wanted.get()
            try:
                name = clean(self._look_up(uid), 64) or str(uid)
            except (KeyError, OSError, ValueError):  # no such user, or the directory does not answer
                name = str(uid)
            with self._changed:
                self._names[uid] = (name, self._clock())
                self._asked.discard(uid)
                self._changed.notify_all()
