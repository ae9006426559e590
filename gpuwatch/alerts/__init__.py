"""Alerts: rules find, the engine raises, holds and clears. Nothing here does I/O."""

from __future__ import annotations

from enum import IntEnum

import msgspec


class Severity(IntEnum):
    """How much an alert matters; a greater number is worse."""

    NOTE = 1
    WARNING = 2
    CRITICAL = 3


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """One condition that holds now."""

    rule: str
    """`memory near limit`, `gpu health`, `data stale`; of declared shares `overshoot`, `over-committed`,
    `past start size`, `devices disagree`, `stray contexts`, `misspelt variable`."""
    gpu: str = ""
    """Key of the GPU it is about; empty for the whole machine."""
    index: int | None = None
    """That GPU's index, for display."""
    subject: str = ""
    """What tells alerts of one rule on one GPU apart: the process or scope it is about; empty for the GPU itself."""
    severity: Severity
    title: str
    """A few words for a narrow line: `GPU 1 full: 0.1 GiB of 79.0 free`."""
    evidence: str = ""
    """Who and why, for a wide line: `cyn holds 77.6 · ben grew 2.1 GiB in the last minute`."""
    raised: float
    """Wall-clock time at which it was raised."""
    raised_monotonic: float
    """The same on the reader's monotonic clock, for durations."""
    worst: float | None = None
    """The worst value seen since, in the rule's unit (memory: bytes free; overshoot: bytes held)."""
    pids: tuple[int, ...] = ()
    """Processes it names, the largest first."""
