"""The signs that lines of text carry, and lines for a place that takes nothing but ASCII."""

from __future__ import annotations

from typing import Final

from gpuwatch.alerts import Severity

MARKS: Final = {Severity.CRITICAL: "●", Severity.WARNING: "▲", Severity.NOTE: "·"}
"""As on the dashboard."""

_PLAIN = str.maketrans({**dict(zip("·—°…≥Σ●▲✓↑↓×", "--'~>+!*+^vx", strict=True)), "→": "->"})
"""Our own signs; ● and ▲ as on the dashboard."""


def in_ascii(line: str) -> str:
    """Give a line without any character outside ASCII."""
    return line.translate(_PLAIN).encode("ascii", "replace").decode()
