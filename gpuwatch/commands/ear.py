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
    """Remembers Ctrl-C, SIGTERM and SIGHUP until `check` is called, between two steps of the command.

    No handler raises: an exception between a signal to a process and the line that tells of it would lose the line.
    So nothing that the command waits for may take long by itself; it waits in short pieces and checks between them.
    """

    def __init__(self) -> None:
        self._number = 0

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

    def check(self) -> None:
        """Raise `Told` where a signal has come."""
        if self._number:
            raise Told(self._number)


def call_now(call: Callable[[], Any]) -> Future[Any]:
    """Make a call here and now, to its end; what it raises is in the future, as a thread would have it."""
    future: Future[Any] = Future()
    try:
        future.set_result(call())
    except Exception as error:  # noqa: BLE001 - it is handed to the one who asked
        future.set_exception(error)
    return future
