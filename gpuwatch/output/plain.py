"""Lines of plain text: their colours, their width, and what a place takes that has nothing but ASCII."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TextIO

from gpuwatch.alerts import Severity

COLORS: Final = {Severity.CRITICAL: "31", Severity.WARNING: "33", Severity.NOTE: "2"}
"""By severity, the number that makes a terminal write in that colour (SGR)."""

_PLAIN = str.maketrans({**dict(zip("·—°…≥Σ●▲✓↑↓×", "--'~>+!*+^vx", strict=True)), "→": "->"})
"""Our own signs; ● and ▲ as on the dashboard."""


def in_ascii(line: str) -> str:
    """Give a line without any character outside ASCII."""
    return line.translate(_PLAIN).encode("ascii", "replace").decode()


def json_in_ascii(text: str) -> str:
    """Give JSON without any character outside ASCII, and the same in all it says."""
    import json

    return text if text.isascii() else "".join(one if one.isascii() else json.dumps(one)[1:-1] for one in text)


def speaks_unicode(stream: TextIO | None) -> bool:
    """Say whether what is printed to a stream may hold characters outside ASCII."""
    return "utf" in (getattr(stream, "encoding", None) or "").lower()


def may_color(stream: TextIO | None, environ: Mapping[str, str]) -> bool:
    """Say whether what is printed to a stream may be in colour: it is a terminal that can, and nobody said no."""
    plain = environ.get("NO_COLOR") or environ.get("TERM", "dumb") in ("dumb", "")
    return stream is not None and stream.isatty() and not plain


def cells(line: str) -> int:
    """Give how many cells of a terminal a line takes."""
    if line.isascii():
        return len(line)
    from rich.cells import cell_len

    return cell_len(line)
