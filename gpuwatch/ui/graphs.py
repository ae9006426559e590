"""Drawings as text: the memory bar stacked by owner, and the last minute as a sparkline. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from rich.cells import cell_len

from gpuwatch.model import Gpu, Holding, Memory, Process, known
from gpuwatch.text import fit
from gpuwatch.ui.theme import Glyphs
from gpuwatch.units import gib

LEAST_NAME = 4
"""Cells from which on the beginning of a long name says more than its initial."""


class Piece(NamedTuple):
    """A run of cells of a bar that look alike."""

    text: str
    kind: Literal["seam", "fill", "edge", "hatch", "free"]
    uid: int | None = None
    """Whose part it is; None also for several owners together and for one that is not visible."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one owner holds of a GPU, in bytes."""

    uid: int | None
    name: str
    bytes: int


def parts(holdings: Sequence[Holding], owners: dict[int, Process]) -> list[Part]:
    """Add up the known holdings by owner, the largest first; those whose owner is not visible go together as `?`."""
    sums: dict[int | None, tuple[str, int]] = {}
    for holding in holdings:
        if not known(holding.memory):
            continue
        owner = owners.get(holding.pid)
        uid = owner.uid if owner else None
        name, total = sums.get(uid, ("", 0))
        sums[uid] = (name or (owner.user if owner else "") or "?", total + int(holding.memory))
    found = [Part(uid, name, total) for uid, (name, total) in sums.items() if total > 0]
    return sorted(found, key=lambda part: (-part.bytes, part.name))


def memory_bar(gpu: Gpu, held: Sequence[Part], width: int, glyphs: Glyphs) -> list[Piece]:
    """Draw a GPU's memory as exactly `width` cells: owners, then the unattributed part, then what is free.

    The length stands for what processes can have: total less reserved. An owner whose part is less than a cell is drawn
    with the others like it as one part, `+3`. Empty where the driver does not say how much there is.
    """
    usable = _usable(gpu.memory)
    if width <= 0:
        return []
    if usable is None:
        return [Piece(fit("", width), "free")]
    cell = usable / width
    large = [part for part in held if part.bytes >= cell]
    small = [part for part in held if part.bytes < cell]
    shown = [*large]
    if sum(part.bytes for part in small) >= cell / 2:
        label = small[0].name if len(small) == 1 else f"+{len(small)}"
        uid = small[0].uid if len(small) == 1 else None
        shown.append(Part(uid, label, max(sum(part.bytes for part in small), round(cell))))
    pieces: list[Piece] = []
    start, end = 0, 0.0
    for number, part in enumerate(shown):
        end += part.bytes / cell
        last = number == len(shown) - 1
        until = int(end) if last and glyphs.eighths else round(end)
        until = min(width, max(until, start + 1))
        pieces += _owner(part, until - start, glyphs)
        start = max(start, until)
    hatched = _unattributed(gpu, held)
    eighth = round((end - start) * 8) if glyphs.eighths and shown and start < width else 0
    if eighth > 0:
        pieces.append(Piece(glyphs.eighths[min(eighth, 7) - 1], "edge", shown[-1].uid))
        start += 1
    until = min(width, max(start, round(end + hatched / cell)))
    pieces.append(Piece(glyphs.hatch * (until - start), "hatch"))
    pieces.append(Piece(" " * (width - until), "free"))
    return [piece for piece in pieces if piece.text]


def _unattributed(gpu: Gpu, held: Sequence[Part]) -> float:
    """Give the bytes to hatch: where the driver lists no processes, all that is used is nobody's, and not free."""
    if known(gpu.unattributed):
        return gpu.unattributed
    used = gpu.memory.used
    return max(0, used - sum(part.bytes for part in held)) if known(used) else 0


def _usable(memory: Memory) -> float | None:
    if not known(memory.total):
        return None
    usable = memory.total - (memory.reserved if known(memory.reserved) else 0)
    return usable if usable > 0 else None


def _owner(part: Part, cells: int, glyphs: Glyphs) -> list[Piece]:
    """Draw one owner's part: a thin line, then the name and amount, the name, or the initial, whichever fits."""
    if cells <= 0:
        return []
    room = cells - 1
    if room == 0:
        return [Piece(fit(part.name, 1, ellipsis=""), "fill", part.uid)]
    amount = f"{part.name} {gib(part.bytes)}"
    # A blank after the name keeps it apart from the next one; `+8` needs none.
    pad = 0 if part.name.startswith("+") else 1
    initial = fit(part.name, room - 1, ellipsis=glyphs.ellipsis) if room > LEAST_NAME else part.name[:1]
    label = next((one for one in (amount, part.name) if cell_len(one) + pad <= room), initial)
    text = fit(label, room, ellipsis="")
    rest = room - min(cell_len(label), room)
    if rest and glyphs.fill != " ":
        text = label + (" " + glyphs.fill * (rest - 1))
    return [Piece(glyphs.seam, "seam", part.uid), Piece(text, "fill", part.uid)]


def sparkline(points: Sequence[float | None], cells: int, second: int, glyphs: Glyphs) -> str:
    """Draw a series of one value a second (percent, oldest first) into `cells` cells, on a fixed scale of 0 to 100.

    A cell is the mean of so many seconds, counted from the clock (`second` is that of the newest point) and not from
    now: a cell once drawn only moves, every few seconds, and does not change. A gap is blank; zero is the lowest block.
    """
    per = max(1, len(points) // cells) if cells > 0 else 1
    newest = second % per + 1
    ends = [len(points) - newest - per * n for n in range(cells - 1, -1, -1)]
    drawn = []
    for start in ends:
        size = newest if start == ends[-1] else per
        values = [value for value in points[max(0, start) : max(0, start + size)] if value is not None]
        drawn.append(level(sum(values) / len(values), glyphs) if values else glyphs.gap)
    return "".join(drawn)


def level(percent: float, glyphs: Glyphs) -> str:
    """Give the block for a percentage; only zero has the lowest."""
    if percent < 0.5:
        return glyphs.levels[0]
    return glyphs.levels[1 + min(6, int(percent * 7 / 100))]
