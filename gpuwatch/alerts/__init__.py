"""Alerts: rules find, the engine raises, holds and clears. Nothing here does I/O."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Final

import msgspec

TROUBLE: Final = "gpuwatch"
"""The rule of alerts about gpuwatch itself: a log that cannot be written, a rule that failed. It is never restored."""


class Severity(IntEnum):
    """How much an alert matters; a greater number is worse."""

    NOTE = 1
    """For information: shown and logged. It rings no bell, and is a message only where `notify.least` says so."""
    WARNING = 2
    CRITICAL = 3


MARKS: Final[Mapping[Severity, str]] = {Severity.NOTE: "·", Severity.WARNING: "▲", Severity.CRITICAL: "●"}
"""How a severity is marked in a line of text; the dashboard has signs for terminals without these, too."""


class Unit(StrEnum):
    """What a rule's value counts."""

    NONE = ""
    FREE = "bytes free"
    BYTES = "bytes"
    SECONDS = "s"
    CELSIUS = "°C"
    WATTS = "W"
    PERCENT = "%"
    COUNT = "count"
    MHZ = "MHz"


class Alert(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One condition, from when it was raised until it ended: the same object on screen, in the log and in a message."""

    id: str = ""
    """Ten hexadecimal digits, made when it was raised; the same for as long as it lasts, whoever watches."""
    rule: str
    """Its name in `alerts.table`, or that of a `[[rule]]` of the user's own."""
    host: str = ""
    gpu: str = ""
    """Key of the GPU it is about; empty for the whole machine."""
    index: int | None = None
    """That GPU's index, for display."""
    subject: str = ""
    """What tells alerts of one rule on one GPU apart: the process or scope it is about; empty for the GPU itself."""
    severity: Severity
    """What it is worth now; of one that has ended, what it was worth last."""
    most: Severity = Severity.NOTE
    """The worst that it was."""
    title: str
    """A few words for a narrow line: `GPU 1 full: 0.1 GiB of 79.0 free`."""
    evidence: str = ""
    """Who and why, for a wide line: `cyn holds 77.6 · ben grew 2.1 GiB in the last minute`."""
    raised: float
    """Wall-clock time at which it was raised."""
    raised_monotonic: float = 0.0
    """The same on the reader's monotonic clock; means nothing to another process."""
    seen: float = 0.0
    """Wall-clock time of the last sample that judged it."""
    ended: float | None = None
    """Wall-clock time at which it ended; None while it holds."""
    lasted: float = 0.0
    """Seconds on the monotonic clock from raised to the last sample that judged it, or to its end."""
    how: str = ""
    """How it ended: `back within the limit`, `process 123 has ended`, `nobody watched`; empty while it holds."""
    unit: Unit = Unit.NONE
    peak: float | None = None
    """The worst value seen since, in `unit`; of bytes free the least."""
    mean: float | None = None
    """Over the samples that were not fine."""
    last: float | None = None
    owners: tuple[str, ...] = ()
    """Users whose doing it is, the largest holder first."""
    pids: tuple[int, ...] = ()
    """Processes it names, the largest first."""
    acknowledged: bool = False
    """Somebody has seen it: it stays on screen, and says nothing more."""
    muted: bool = False
    """It, or its rule, is to say nothing for now."""

    @property
    def key(self) -> str:
        """What identifies the condition, whoever watches it: rule, host, and the subject or the GPU."""
        return f"{self.rule}|{self.host}|{self.subject or self.gpu}"

    @property
    def weight(self) -> tuple[int, float, int, str, str]:
        """What to sort by: the worst first, then the oldest."""
        index = -1 if self.index is None else self.index
        return (-self.severity, self.raised_monotonic, index, self.rule, self.subject)

    @property
    def quiet(self) -> bool:
        """Whether nobody is to be told of it."""
        return self.acknowledged or self.muted
