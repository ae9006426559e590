"""Lines of plain text: their colours, their width, and what a place takes that has nothing but ASCII."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, TextIO

from gpuwatch.alerts.alert import Severity
from gpuwatch.text import spell_signs

COLORS: Final = {Severity.CRITICAL: "31", Severity.WARNING: "33", Severity.NOTE: "2"}
"""By severity, the number that makes a terminal write in that colour (SGR)."""

_LONGER = re.compile("( *)([≥→←°])")
"""Signs that take more cells in ASCII, or fewer, and the blanks before them."""


def in_ascii(line: str) -> str:
    """Return a line without any character outside ASCII; the columns of a table stay where they are.

    What a sign takes more is taken from the blanks that pad its cell, and what it takes less is given to them.
    """
    return spell_signs(_LONGER.sub(_padded, line)).encode("ascii", "replace").decode()


def _padded(found: re.Match[str]) -> str:
    blanks, sign = found.groups()
    more = len(spell_signs(sign)) - 1
    is_cell = len(blanks) > 1 or (blanks and not found.start())
    if is_cell:
        blanks = blanks[more:] if more > 0 else blanks + " " * -more
    return blanks + sign


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
