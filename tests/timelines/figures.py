"""Figures of a recording that change with time."""

from __future__ import annotations

from typing import Any, NamedTuple

from gpuwatch.model import Reason
from tests.timelines.recording import Figure

_REASONS = {reason.value: reason for reason in Reason}


class Course(NamedTuple):
    """What a figure is from a moment on."""

    figure: Figure
    since: float = 0.0
    until: float | None = None

    def at(self, now: float) -> Any:
        """Return the value at a moment: a number, a Reason, words, a bool or a tuple of words."""
        return _plain(self._value(now))

    def _value(self, now: float) -> Any:
        figure = self.figure
        if isinstance(figure, dict):
            return _turn(figure["cycle"], now - self.since)
        if isinstance(figure, list) and len(figure) == 2 and not any(isinstance(one, str) for one in figure):
            first, last = figure
            if self.until is None:
                raise ValueError(f"a line from {first} to {last} that has no end")
            part = min(1.0, (now - self.since) / (self.until - self.since))
            return first + part * (last - first)
        return figure


def _turn(cycle: list[list[Any]], passed: float) -> Any:
    """Return the value whose turn it is."""
    passed %= sum(turn[0] for turn in cycle)
    for seconds, value in cycle:
        if passed < seconds:
            return value
        passed -= seconds
    raise AssertionError("turns that do not add up")


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    return _REASONS.get(value, value) if isinstance(value, str) else value
