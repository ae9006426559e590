"""`gpuwatch kill`: the table of what would be ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.text import fit
from gpuwatch.units import UNKNOWN, gib

_HEAD = ("PID", "USER", "GPU", "GiB", "SM", "COMMAND")


@dataclass(frozen=True, slots=True)
class Line:
    """One process that would be ended."""

    pid: int
    user: str
    gpus: tuple[int, ...] = ()
    """NVML's indices; empty for one that the driver does not list."""
    held: int | None = None
    """Bytes on all of them; None where that is not known."""
    sm: float | None = None
    """Percent of the time that its kernels ran on the busiest of them; None where that is not known."""
    command: str = ""


def table(lines: Sequence[Line], width: int | None = None) -> list[str]:
    """Give the table, each line cut to `width` cells where there is one."""
    cells = [_HEAD, *(_cells(line) for line in lines)]
    wide = [max(len(row[column]) for row in cells) for column in range(len(_HEAD) - 1)]
    left = (1,)
    drawn = []
    for row in cells:
        parts = [
            row[column].ljust(wide[column]) if column in left else row[column].rjust(wide[column])
            for column in range(len(wide))
        ]
        whole = "  ".join((*parts, row[-1])).rstrip()
        drawn.append(whole if width is None else fit(whole, width).rstrip())
    return drawn


def _cells(line: Line) -> tuple[str, ...]:
    held = UNKNOWN if line.held is None else gib(line.held)
    busy = UNKNOWN if line.sm is None else f"{line.sm:.0f}%" if line.sm else "idle"
    return (str(line.pid), line.user, ",".join(map(str, line.gpus)) or UNKNOWN, held, busy, line.command)
