"""Clocks of a whole process that it can stop. Import it before gpuwatch, which binds clocks as defaults."""

from __future__ import annotations

import time
from unittest import mock


class Clock:
    """The functions of `time`, until they are stopped; then only `sleep` moves them on, and does not wait."""

    def __init__(self) -> None:
        self._time, self._monotonic, self._sleep = time.time, time.monotonic, time.sleep
        self._wall: float | None = None
        self._ticks: float | None = None

    def stop_wall(self, at: float) -> None:
        """Stop the wall clock."""
        self._wall = at

    def stop(self, at: float) -> None:
        """Stop the wall clock and the monotonic clock."""
        self._wall, self._ticks = at, self._monotonic()

    def time(self) -> float:
        return self._time() if self._wall is None else self._wall

    def monotonic(self) -> float:
        return self._monotonic() if self._ticks is None else self._ticks

    def sleep(self, seconds: float) -> None:
        if self._wall is None or self._ticks is None:
            self._sleep(seconds)
        else:
            self._wall, self._ticks = self._wall + seconds, self._ticks + seconds


CLOCK = Clock()
mock.patch.multiple("time", time=CLOCK.time, monotonic=CLOCK.monotonic, sleep=CLOCK.sleep).start()
