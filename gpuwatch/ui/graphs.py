"""Drawings as text: the memory bar stacked by owner, and the last minute as a sparkline. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal, NamedTuple

from rich.cells import cell_len

from gpuwatch import shares
from gpuwatch.model import Gpu, Holding, Memory, Process, known
from gpuwatch.text import fit
from gpuwatch.ui.theme import Glyphs
from gpuwatch.units import gib

LEAST_NAME = 4
"""Cells from which on the beginning of a long name says more than its initial."""


class Piece(NamedTuple):
    """A run of cells of a bar that look alike."""

    text: str
    kind: Literal["seam", "fill", "edge", "hatch", "free", "mark", "bare mark"]
    """A `mark` of what was declared stands on an owner's part, a `bare mark` on what nobody listed has."""
    uid: int | None = None
    """Whose part it is; None also for several owners together and for one that is not visible."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one owner holds of a GPU, in bytes."""

    uid: int | None
    name: str
    bytes: int
    declared: int | None = None
    """Where the part would end if each of their processes held what it declared; None where none declared a limit."""
    initial: str = ""
    """What stands for them in one cell; empty for the first letter of the name."""


def parts(
    holdings: Sequence[Holding],
    owners: Mapping[int, Process],
    gpu: str = "",
    initial: Callable[[int | None], str] = lambda _uid: "",
) -> list[Part]:
    """Add up the known holdings by owner, the largest first; those whose owner is not visible go together as `?`.

    `gpu` is the UUID of the GPU that limits are looked up for, `initial` gives what stands for a person in one cell.
    """
    names: dict[int | None, str] = {}
    held: dict[int | None, dict[int, int]] = {}
    for holding in holdings:
        if not known(holding.memory):
            continue
        owner = owners.get(holding.pid)
        uid = owner.uid if owner else None
        names[uid] = names.get(uid) or (owner.user if owner else "") or "?"
        sizes = held.setdefault(uid, {})
        sizes[holding.pid] = sizes.get(holding.pid, 0) + int(holding.memory)
    found = [
        Part(uid, names[uid], sum(sizes.values()), _extent(sizes, owners, gpu), initial(uid))
        for uid, sizes in held.items()
        if any(sizes.values())
    ]
    return sorted(found, key=lambda part: (-part.bytes, part.name))


def _extent(held: Mapping[int, int], owners: Mapping[int, Process], gpu: str) -> int | None:
    """Give the bytes that an owner's part would have if each process held its limit; None where none has one.

    A process without a limit counts with what it holds, so that the difference to the part is what the declared ones
    are over or under. A limit that several share counts once, and for no more than their own limits come to.
    """
    extent = 0
    shared: dict[str, tuple[int, int]] = {}
    limited = False
    for pid, size in held.items():
        process = owners.get(pid)
        limits = shares.limits_on(process.declared if process else None, gpu)
        limited = limited or bool(limits)
        alone = next((limit.bytes for limit in limits if not limit.scope), None)
        scopes = [limit for limit in limits if limit.scope]
        if not scopes:
            extent += size if alone is None else alone
            continue
        least = min(scopes, key=lambda limit: limit.bytes)
        _, others = shared.get(least.scope, (0, 0))
        shared[least.scope] = (least.bytes, others + (least.bytes if alone is None else alone))
    extent += sum(min(limit, alone) for limit, alone in shared.values())
    return extent if limited else None


def memory_bar(gpu: Gpu, held: Sequence[Part], width: int, glyphs: Glyphs) -> list[Piece]:
    """Draw a GPU's memory as exactly `width` cells: owners, then the unattributed part, then what is free.

    The length stands for what processes can have: total less reserved. An owner whose part is less than a cell is drawn
    with the others like it as one part, `+3`. A mark stands where an owner's declared part would end, be that within
    the part (they hold more) or beyond it; none stands where that is beyond the bar. Empty where the driver does not
    say how much there is.
    """
    usable = _usable(gpu.memory)
    if width <= 0:
        return []
    if usable is None:
        return [Piece(fit("", width), "free")]
    cell = usable / width
    places = _places(held, cell, width, glyphs)
    marks = _marks(places, cell, width)
    pieces = [piece for place in places for piece in _owner(place, marks, glyphs)]
    start, end = (places[-1].until, places[-1].end) if places else (0, 0.0)
    hatched = _unattributed(gpu, held)
    eighth = round((end - start) * 8) if glyphs.eighths and places and start < width else 0
    if eighth > 0:
        edge = Piece(glyphs.eighths[min(eighth, 7) - 1], "edge", places[-1].part.uid)
        pieces.append(Piece(glyphs.declared, "bare mark") if start in marks else edge)
        start += 1
    until = min(width, max(start, round(end + hatched / cell)))
    pieces += _marked((glyphs.hatch * (b - a) for a, b in _runs(start, until, marks)), Piece("", "hatch"), glyphs)
    pieces += _marked((" " * (b - a) for a, b in _runs(until, width, marks)), Piece("", "free"), glyphs)
    return [piece for piece in pieces if piece.text]


class _Place(NamedTuple):
    """Where a part stands in a bar, in cells."""

    part: Part
    start: int
    until: int
    begin: float
    """The same before they were rounded."""
    end: float


def _places(held: Sequence[Part], cell: float, width: int, glyphs: Glyphs) -> list[_Place]:
    """Stack the parts, the small ones as one; each has a cell at least while there is one left."""
    shown = [part for part in held if part.bytes >= cell]
    small = [part for part in held if part.bytes < cell]
    together = sum(part.bytes for part in small)
    if together >= cell / 2:
        least = max(together, round(cell))
        shown.append(replace(small[0], bytes=least) if len(small) == 1 else Part(None, f"+{len(small)}", least))
    places = []
    start, end = 0, 0.0
    for number, part in enumerate(shown):
        begin, end = end, end + part.bytes / cell
        last = number == len(shown) - 1
        until = int(end) if last and glyphs.eighths else round(end)
        until = min(width, max(until, start + 1))
        places.append(_Place(part, start, until, begin, end))
        start = until
    return places


def _marks(places: Sequence[_Place], cell: float, width: int) -> set[int]:
    """Give the cells in which a declared part ends."""
    marks = set()
    for part, start, until, begin, _ in places:
        end = width + 1 if part.declared is None else begin + part.declared / cell
        if end <= width:
            # Not on the line that its own part begins with, where there is another cell: it would seem to belong to
            # the part before.
            marks.add(max(ceil(end) - 1, start + (until - start > 1)))
    return marks


def _runs(start: int, until: int, marks: set[int]) -> list[tuple[int, int]]:
    """Give the runs of cells (from, until) between the marks, some of them empty."""
    on = sorted(mark for mark in marks if start <= mark < until)
    return list(zip([start, *(mark + 1 for mark in on)], [*on, until], strict=True))


def _marked(texts: Iterable[str], like: Piece, glyphs: Glyphs) -> list[Piece]:
    """Give pieces of the same kind with a mark between each two."""
    mark = Piece(glyphs.declared, "mark" if like.kind == "fill" else "bare mark", like.uid)
    return [piece for text in texts for piece in (mark, like._replace(text=text))][1:]


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


def _owner(place: _Place, marks: set[int], glyphs: Glyphs) -> list[Piece]:
    """Draw one owner's part: a thin line, then its label beside the marks that stand on it."""
    part, start, until, *_ = place
    if until <= start:
        return []
    runs = _runs(start + 1, until, marks)
    rooms = [b - a for a, b in runs]
    if start in marks:
        first = Piece(glyphs.declared, "mark", part.uid)
    elif any(rooms):
        first = Piece(glyphs.seam, "seam", part.uid)
    else:
        first = Piece(part.initial or fit(part.name, 1, ellipsis=""), "fill", part.uid)
    label, at = _label(part, rooms, glyphs)
    texts = (_filled(label if n == at else "", room, glyphs) for n, room in enumerate(rooms))
    return [first, *_marked(texts, Piece("", "fill", part.uid), glyphs)]


def _label(part: Part, rooms: Sequence[int], glyphs: Glyphs) -> tuple[str, int]:
    """Give the name and amount, the name, or the initial, whichever fits, and in which of the rooms it does."""
    # A blank after the name keeps it apart from the next one; `+8` needs none.
    pad = 0 if part.name.startswith("+") else 1
    for label in (f"{part.name} {gib(part.bytes)}", part.name):
        for at, room in enumerate(rooms):
            if cell_len(label) + pad <= room:
                return label, at
    room = max(rooms)
    beginning = (
        fit(part.name, room - 1, ellipsis=glyphs.ellipsis) if room > LEAST_NAME else part.initial or part.name[:1]
    )
    return beginning, rooms.index(room)


def _filled(label: str, room: int, glyphs: Glyphs) -> str:
    """Write a label and fill what is left of its room."""
    rest = room - cell_len(label)
    if rest <= 0 or glyphs.fill == " ":
        return fit(label, room, ellipsis="")
    blank = " " if label else ""
    return label + blank + glyphs.fill * (rest - len(blank))


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
