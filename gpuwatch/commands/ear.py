"""Hears what a command is told to end by, and when it may."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Told(BaseException):
    """A signal said that the program is to end."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Ear:
    """Hears Ctrl-C, SIGTERM and SIGHUP, but in the middle of what must not be torn: a signal and its line on record."""

    def __init__(self) -> None:
        self._number = 0
        self._busy = False

    @contextmanager
    def open(self) -> Iterator[None]:
        """Hear for a while; one that we were started deaf to stays unheard."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {one: signal.signal(one, self._hear) for one in numbers if signal.getsignal(one) != signal.SIG_IGN}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        self._number = number
        if not self._busy:
            raise Told(number)

    def check(self) -> None:
        """Raise what was heard meanwhile."""
        if self._number:
            raise Told(self._number)

    def call(self, call: Callable[[], Any]) -> Future[Any]:
        """Make a call here and now, to its end; what it raises is in the future, as a thread would have it."""
        future: Future[Any] = Future()
        before, self._busy = self._busy, True
        try:
            future.set_result(call())
        except Exception as error:  # noqa: BLE001 - it is handed to the one who asked
            future.set_exception(error)
        finally:
            self._busy = before
        return future
