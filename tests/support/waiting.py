"""How tests wait: for a condition, never for a time."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 30.0
"""Seconds after which a test gives up waiting."""


def wait_for(true: Callable[[], object], what: str = "") -> None:
    """Wait until something is true; fails where it does not become so."""
    end = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < end, what or "it did not happen"
        time.sleep(0.005)


class Clock:
    """Clock that a test sets."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """Return the time of its wall clock."""
        return self.now + 1_700_000_000.0
