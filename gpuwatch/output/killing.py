"""`gpuwatch kill`: the table of what would be ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuwatch.kill.steps import Listed
from gpuwatch.model import Snapshot, known
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
    open: tuple[int, ...] = ()
    """Of one that the driver does not list, the GPUs whose device files it has open."""


def line_of(one: Listed, snapshot: Snapshot, uid: int) -> Line:
    """Give what a snapshot tells of one that would be ended; `uid` is whose it is."""
    unlisted = {row.process.pid: row for row in snapshot.unlisted}
    people = [*snapshot.processes, *(row.process for row in unlisted.values())]
    held = [(gpu.index, holding) for gpu in snapshot.gpus for holding in gpu.holdings if holding.pid == one.pid]
    figures = [float(holding.sm) for _, holding in held if known(holding.sm)]
    sizes = [int(holding.memory) for _, holding in held if known(holding.memory)]
    files = unlisted[one.pid].gpus if not held and one.pid in unlisted else ()
    return Line(
        pid=one.pid,
        user=next((process.user for process in people if process.uid == uid and process.user), "?"),
        gpus=tuple(sorted({index for index, _ in held})),
        open=tuple(sorted(gpu.index for gpu in snapshot.gpus if gpu.uuid in files)),
        held=sum(sizes) if sizes and len(sizes) == len(held) else None,
        sm=max(figures) if figures and len(figures) == len(held) else None,
        command=one.command,
    )


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
    gpus = ",".join((*map(str, line.gpus), *(f"({index})" for index in line.open)))
    return (str(line.pid), line.user, gpus or UNKNOWN, held, busy, line.command)
