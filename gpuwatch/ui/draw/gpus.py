"""Panel of GPUs: memory by owner, utilization, temperature, and a state in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby, pairwise
from math import ceil, floor
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace
from rich.cells import cell_len

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.devices import DISAGREE, UNUSED, unused_words
from gpuwatch.alerts.rules.hardware import BUSY_SHORT
from gpuwatch.alerts.rules.health import HEALTH
from gpuwatch.alerts.rules.idle import IDLE
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.base.text import fit
from gpuwatch.base.units import gib, long_duration, percent
from gpuwatch.model import shares
from gpuwatch.model.fields import GPU, throttle_words
from gpuwatch.model.holdings import GpuOwner, GpuProcess
from gpuwatch.model.snapshot import Gpu, Health, Instance, Reason, known, number
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.layout import Form, Grid, Layout, heat_map_grid
from gpuwatch.ui.draw.lines import Line, LineBuilder
from gpuwatch.ui.draw.row_list import ClickEffect, CursorList
from gpuwatch.ui.draw.table import Cell, Column, Table, TableRow, field_column, write_titles
from gpuwatch.ui.draw.theme import Background, Glyphs, Role, Style, StyleSet
from gpuwatch.ui.draw.view import View, clock, mark_of

Bars: TypeAlias = dict[Hashable, Cell]
"""Memory bars by the values that they are drawn from."""
MOST_BARS: Final = 256
"""Largest number of cached bars; a GPU whose memory changes needs a new bar each second."""
LEAST_NAME = 4
"""Least cells for the beginning of a name instead of its initial."""


SegmentKind: TypeAlias = Literal["seam", "fill", "edge", "hatch", "promised", "free", "mark"]


class BarSegment(NamedTuple):
    """Run of cells of a memory bar that look alike."""

    text: str
    kind: SegmentKind
    uid: int | None = None
    """Owner; None for several owners together, and for an unknown owner."""


class BarPart(NamedTuple):
    """Memory of a GPU that one owner holds, in bytes."""

    uid: int | None
    name: str
    bytes: int
    declared: int | None = None
    """Bytes if each of the owner's processes held what it declared; None if none declared a limit."""
    initial: str = ""
    """Initial of the owner for a part of one cell; empty for the first letter of the name."""


def bar_parts(owners: Iterable[GpuOwner], initial: Callable[[int | None], str] = lambda _uid: "") -> list[BarPart]:
    """Return the parts of owners who are known to hold memory, largest first; `initial` returns a person's initial."""
    found = [
        BarPart(one.uid, one.name, one.memory, _extent(one.processes), initial(one.uid)) for one in owners if one.memory
    ]
    return sorted(found, key=lambda part: (-part.bytes, part.name))


def _extent(held: Iterable[GpuProcess]) -> int | None:
    """Return the bytes of an owner's part if each process held its limit; None if no process has one.

    A process without a limit counts with the bytes that it holds, so that the difference from the part shows how far
    the other processes are from their limits. A shared limit counts once, at most with the sum of the own limits.
    """
    extent = 0
    shared: dict[str, tuple[int, int]] = {}
    limited = False
    for process in held:
        if not process.sized:
            continue
        limits = shares.limits_on(process.process.declared, process.gpu.uuid)
        limited = limited or bool(limits)
        alone = next((limit.bytes for limit in limits if not limit.scope), None)
        scopes = [limit for limit in limits if limit.scope]
        if not scopes:
            extent += process.memory if alone is None else alone
            continue
        least = min(scopes, key=lambda limit: limit.bytes)
        _, others = shared.get(least.scope, (0, 0))
        shared[least.scope] = (least.bytes, others + (least.bytes if alone is None else alone))
    extent += sum(min(limit, alone) for limit, alone in shared.values())
    return extent if limited else None


def memory_bar(gpu: Gpu, held: Sequence[BarPart], width: int, glyphs: Glyphs) -> list[BarSegment]:
    """Draw a GPU's memory as exactly `width` cells: owners, memory of unknown processes, promised memory, free memory.

    The width is the memory that processes can have: total minus reserved. Owners whose parts are smaller than a cell
    are drawn as one part, `+3`. A mark shows the declared limit of an owner who exceeds it; memory that others declared
    and do not hold is promised. A GPU whose total is not known has an empty bar.
    """
    usable = shares.usable(gpu) or 0
    bar = [BarSegment(" ", "free")] * max(width, 0)
    if usable <= 0 or not bar:
        return _joined(bar)
    cell = usable / width
    places = _places(held, cell, width, glyphs)
    marks = _marks(places, cell, width)
    initials = {part.uid: part.initial for part in held}
    for place in places:
        _draw_part(bar, place, marks, glyphs)
    start, end = (places[-1].until, places[-1].end) if places else (0, 0.0)
    eighth = round((end - start) * 8) if glyphs.eighths and places and start < width else 0
    if eighth > 0:
        bar[start] = BarSegment(glyphs.eighths[min(eighth, 7) - 1], "edge", places[-1].part.uid)
        start += 1
    rest = number(gpu.unattributed)
    if rest is None:  # then all used memory without a listed process is of unknown processes
        rest = max(0.0, (number(gpu.memory.used) or 0.0) - sum(part.bytes for part in held))
    until = min(width, max(start, round(end + rest / cell)))
    bar[start:until] = [BarSegment(glyphs.hatch, "hatch")] * (until - start)
    for promise in gpu.promises:
        start, until = until, min(width, until + round(promise.bytes / cell))
        names = (f" {promise.user} ", initials.get(promise.uid, ""))
        label = next((name for name in names if cell_len(name) <= until - start - 2), "")
        bar[start:until] = [BarSegment(glyphs.promised, "promised")] * (until - start)
        _write(bar, start + 1, label, "promised")
    for x in marks:
        bar[x] = BarSegment(glyphs.declared, "mark", bar[x].uid)
    return _joined(bar)


def _write(bar: list[BarSegment], x: int, text: str, kind: SegmentKind, uid: int | None = None) -> None:
    """Write text over cells of a bar; the second cell of a wide character is empty."""
    for char in text:
        bar[x] = BarSegment(char, kind, uid)
        for covered in range(x + 1, x + cell_len(char)):
            bar[covered] = BarSegment("", kind, uid)
        x += cell_len(char)


def _joined(bar: Sequence[BarSegment]) -> list[BarSegment]:
    """Join neighbours that look alike."""
    return [
        BarSegment("".join(one.text for one in run), kind, uid)
        for (kind, uid), run in groupby(bar, key=lambda one: (one.kind, one.uid))
    ]


class _Place(NamedTuple):
    """Position of a part in a bar, in cells."""

    part: BarPart
    start: int
    until: int
    begin: float
    """Begin and end in cells before they were rounded."""
    end: float


def _places(held: Sequence[BarPart], cell: float, width: int, glyphs: Glyphs) -> list[_Place]:
    """Return the positions of the parts; small ones are one part, and each has at least one cell if there is room."""
    shown = [part for part in held if part.bytes >= cell]
    small = [part for part in held if part.bytes < cell]
    together = sum(part.bytes for part in small)
    if together >= cell / 2:
        least = max(together, round(cell))
        shown.append(small[0]._replace(bytes=least) if len(small) == 1 else BarPart(None, f"+{len(small)}", least))
    places = []
    start, end = 0, 0.0
    for place, part in enumerate(shown):
        begin, end = end, end + part.bytes / cell
        last = place == len(shown) - 1
        until = int(end) if last and glyphs.eighths else round(end)
        until = min(width, max(until, start + 1))
        places.append(_Place(part, start, until, begin, end))
        start = until
    return places


def _marks(places: Sequence[_Place], cell: float, width: int) -> set[int]:
    """Return the cells of the declared limits of owners who reach or exceed them."""
    marks = set()
    for part, start, until, begin, _ in places:
        end = width + 1 if part.declared is None else begin + part.declared / cell
        if end <= width and start < until and part.declared is not None and part.declared <= part.bytes:
            # Not on the line that its own part begins with, where there is another cell: it would seem to belong to
            # the part before.
            marks.add(max(ceil(end) - 1, start + (until - start > 1)))
    return marks


def _draw_part(bar: list[BarSegment], place: _Place, marks: set[int], glyphs: Glyphs) -> None:
    """Draw one owner's part: a thin line, then its label between the marks."""
    part, start, until, *_ = place
    if until <= start:
        return
    bar[start:until] = [BarSegment(glyphs.fill, "fill", part.uid)] * (until - start)
    ends = [start, *sorted(mark for mark in marks if start < mark < until), until]
    rooms = [(a + 1, b - a - 1) for a, b in pairwise(ends) if b - a > 1]  # start and cells
    if not rooms:
        bar[start] = BarSegment(part.initial or fit(part.name, 1, ellipsis=""), "fill", part.uid)
        return
    bar[start] = BarSegment(glyphs.seam, "seam", part.uid)
    label, x, room = _label(part, rooms, glyphs)
    if glyphs.fill != " " and cell_len(label) < room:
        label += " "
    _write(bar, x, label, "fill", part.uid)


def _label(part: BarPart, rooms: Sequence[tuple[int, int]], glyphs: Glyphs) -> tuple[str, int, int]:
    """Return the longest label of a part that fits, and the room that it fits in: where it starts, and its cells."""
    # A blank after the name keeps it apart from the next one; `+8` needs none.
    pad = 0 if part.name.startswith("+") else 1
    for label in (f"{part.name} {gib(part.bytes)}", part.name):
        for start, room in rooms:
            if cell_len(label) + pad <= room:
                return label, start, room
    start, room = max(rooms, key=lambda one: one[1])
    beginning = fit(part.name, room - 1, ellipsis=glyphs.ellipsis) if room > LEAST_NAME else ""
    return beginning or fit(part.initial or part.name, 1, ellipsis=""), start, room


def sparkline(points: Sequence[float | None], cells: int, second: int, glyphs: Glyphs) -> str:
    """Return a graph of one value a second (percent, oldest first) in `cells` cells, on a scale from 0 to 100.

    Each cell is the mean of some seconds. The cells start at fixed seconds of the clock (`second` is the newest
    point's), so that a drawn cell moves and does not change. A gap is blank; zero is the lowest block.
    """
    per = max(1, len(points) // cells) if cells > 0 else 1
    newest = second % per + 1
    begin = len(points) - newest - per * (cells - 1)
    starts = range(begin, len(points), per)
    blocks = glyphs.levels
    return "".join([_mean_level(tuple(points[max(0, start) : max(0, start + per)]), blocks) for start in starts])


@lru_cache(4096)
def _mean_level(points: tuple[float | None, ...], blocks: str) -> str:
    """Return the block of some points, which moves for a minute: it need not be computed each second."""
    values = [value for value in points if value is not None]
    return _block(sum(values) / len(values), blocks) if values else " "


def level(percent: float, glyphs: Glyphs) -> str:
    """Return the block of a graph for a percentage; only zero has the lowest."""
    return _block(percent, glyphs.levels)


def _block(percent: float, blocks: str) -> str:
    return blocks[0] if percent < 0.5 else blocks[1 + min(6, int(percent * 7 / 100))]


_HOT: Final = ("hw thermal", "sw thermal")
FAULTS: Final = (*_HOT, "power brake")
"""Throttle reasons that are faults; a busy GPU normally reaches its power limit."""
_BUSY: Final = 5
"""Least utilization in percent of a GPU that counts as in use, even without listed processes."""

_COLUMNS: Final = {
    column.id: column
    for column in (
        Column("mark", "", 1),
        Column("gpu", "GPU", 4, right=False),
        Column("name", "", 12, right=False, role="muted"),
        Column("bar", "memory by owner", 8, right=False),
        Column("memory", "used/total", 11, gap=1),
        field_column(GPU["free"], 7),
        field_column(GPU["left"], 7, role="strong"),
        field_column(GPU["utilization"], 8),
        Column("graph", "last minute", 12, right=False, role="faint", gap=2),
        field_column(GPU["temperature"], 6),
        field_column(GPU["watts"], 10, role="muted"),
        field_column(GPU["state"], 0, gap=3),
    )
}
_FORMS: Final = {
    Form.FULL: tuple(_COLUMNS),
    Form.MEDIUM: ("mark", "gpu", "bar", "memory", "free", "left", "utilization", "graph", "temperature", "state"),
    Form.COMPACT: ("mark", "gpu", "bar", "memory", "free", "left", "utilization", "temperature", "state"),
}
_COMPACT: Final[dict[str, dict[str, Any]]] = {
    "memory": {"cells": 10},
    "free": {"cells": 6},
    "left": {"cells": 6},
    "utilization": {"cells": 7},
    "temperature": {"cells": 5, "role": "muted"},
    "state": {"gap": 2},
}
"""Changes to the columns in the compact form."""
_ROOMY: Final = 90
"""Least width for both the free memory and the memory left in the compact form."""
_WORDED: Final[dict[str, dict[str, Any]]] = {
    "free": {"cells": len("  79.1 free,"), "right": False},
    "left": {"cells": len("  79.1 left"), "right": False, "gap": 0},
    "utilization": {"cells": 5},
}
"""Changes to those where units replace the titles."""


@lru_cache(8)
def gpu_columns(form: Form, width: int, glyphs: Glyphs, *, worded: bool = False) -> tuple[Column, ...]:
    """Return the columns of a form; the bar fills what the others leave. If `worded`, units replace the titles."""
    marks = f" {glyphs.dot} {glyphs.declared} declared {glyphs.dot} {glyphs.promised} promised"
    titles = ("memory in GiB by owner" + marks, "GiB by owner" + marks, "memory in GiB by owner", "memory in GiB")
    changes: dict[str, dict[str, Any]] = {"temperature": {"title": glyphs.celsius}}
    hidden = ""
    if form is Form.COMPACT:
        state = (17 if worded else 22) + (width - 70) // 3
        changes |= _COMPACT | (_WORDED if worded else {})
        hidden = "memory" if worded else "free" if width < _ROOMY else ""
    elif form is Form.MEDIUM:
        state = 20
    else:
        state = 31
        changes["name"] = {"gap": 0}
        changes["bar"] = {"gap": 2}
        changes["graph"] = {"cells": 15}
    columns = {name: replace(_COLUMNS[name], **changes.get(name, {})) for name in _FORMS[form] if name != hidden}
    others = sum(one.gap + one.cells for one in columns.values()) - columns["bar"].cells
    cells = max(8, width - others - state)
    title = next((one for one in titles if cell_len(one) < cells), "GiB")
    columns["bar"] = replace(columns["bar"], cells=cells, title=title)
    return tuple(columns.values())


class _GpuRow:
    """Cells of one GPU, and of its MIG instances."""

    def __init__(
        self,
        view: View,
        gpu: Gpu,
        alerts: Sequence[Alert],
        columns: Sequence[Column],
        width: int,
        bars: Bars,
        *,
        here: bool = False,
        worded: bool = False,
    ) -> None:
        self.here = here
        """Whether the cursor is on it."""
        self.worded = worded
        """Whether figures have units, as there are no titles."""
        self.view, self.gpu, self.alerts = view, gpu, alerts
        self.columns, self.bars = columns, bars
        self.state_cells = width - sum(column.gap + column.cells for column in columns)
        self.glyphs = view.styles.glyphs
        self.old = view.dimmed(gpu)
        self.mark, self.role = severity_mark(gpu, alerts, self.glyphs, stale=view.stale(gpu))

    def cells(self) -> tuple[Cell, ...]:
        """Return a cell for each column, or words in place of the figures of a GPU that has none."""
        if self.gpu.health is not Health.OK:
            return self._words()
        return tuple(self._cell(column) for column in self.columns)

    def instance_cells(self, instance: Instance) -> tuple[Cell, ...]:
        """Return the cells of a MIG instance: its own memory, and that its utilization cannot be read."""
        named = any(column.id == "name" for column in self.columns)
        owners = self.view.frame.holdings.owners_on_instance(self.gpu, instance.gpu_instance)
        # A bar is drawn for a GPU: the instance is drawn as a GPU with its own memory and only listed processes.
        promises = tuple(one for one in self.gpu.promises if one.gpu_instance == instance.gpu_instance)
        own = Gpu(index=self.gpu.index, memory=instance.memory, promises=promises)
        cells: list[Cell] = []
        for column in self.columns:
            if column.id == "utilization":
                break
            if column.id == "gpu":
                cells.append(((f"   {self.glyphs.branch}", "faint"),))
            elif column.id == "name":
                cells.append(((f" {instance.profile}", "muted"),))
            elif column.id == "bar":
                indent = int(not named)
                cells.append(((" " * indent, "text"), *self._bar(own, owners, column.cells - indent)))
            elif column.id == "memory":
                cells.append(((self._of_total(own), self._dim(column.role)),))
            elif column.id in ("free", "left"):
                cells.append(self._room(own, column.id))
            else:
                cells.append((("", "text"),))
        # If its name had no room on the left, it is here.
        name = "under MIG" if named else f"{self.glyphs.dot} {instance.profile}"
        return (*cells, ((f"  utilization n/a {name}", "muted"),))

    def state(self) -> Cell:
        """Return the state in a few words; empty for a GPU that is in use and has no fault.

        What the user has acknowledged or muted is dim, and comes last.
        """
        gpu, view = self.gpu, self.view
        words = []
        if view.stale(gpu):
            words.append(f"stale {long_duration(int(view.age(gpu)))}")
        about = [alert for alert in self.alerts if alert.rule != HEALTH]
        words += dict.fromkeys(self._words_of(alert) for alert in about if not alert.quiet)
        words += _held_back(gpu)
        strays = sum(gpu.key in one.gpus for one in view.strays.values())
        key = f": {view.strays_key}" if view.strays_key else ""
        words += [f"{strays} stray{'s' * (strays != 1)} of yours{key}"] * bool(strays)
        if known(gpu.ecc_uncorrected) and gpu.ecc_uncorrected > 0:
            words.append(f"{gpu.ecc_uncorrected:.0f} ECC error{'s' * (gpu.ecc_uncorrected != 1)}")
        if gpu.holdings_note:
            short = "list not reliable" if gpu.holdings else "no process list"
            words.append(gpu.holdings_note if len(gpu.holdings_note) <= self.state_cells else short)
        if gpu.memory.unified:
            words.append("unified memory")
        if not words and isinstance(gpu.throttle, tuple):
            words += throttle_words(gpu.throttle[:1])
        if not words and not gpu.holdings and known(gpu.memory.used) and known(gpu.memory.total):
            busy = known(gpu.utilization) and gpu.utilization >= _BUSY
            if gpu.is_busy_unlisted:
                words = [BUSY_SHORT]
            elif busy or gpu.memory.used >= 0.05 * gpu.memory.total:
                words = ["unknown processes"]
            else:
                words = ["promised" if shares.has_promised(gpu) else "free"]
        dot = f" {self.glyphs.dot} "
        quiet = [*dict.fromkeys(self._words_of(alert) for alert in about if alert.quiet)]
        text = _fitted([*words, *quiet], dot, self.state_cells)
        loud = cell_len(dot.join(words))
        return ((text[:loud], self.role), (text[loud:], "muted"))

    def _words_of(self, alert: Alert) -> str:
        """Return the words for an alert; for one about several GPUs, those about this one."""
        held = self.view.frame.holdings.on(self.gpu) if alert.rule == UNUSED else ()
        return next((unused_words(one.process, one) for one in held if one.process.pid in alert.pids), row_words(alert))

    def _words(self) -> tuple[Cell, ...]:
        gpu = self.gpu
        state: tuple[str, Role] = (gpu.health.value + (f" since {clock(gpu.since)}" if gpu.since else ""), self.role)
        # Its last users are shown here once there is an alert about it.
        trouble = next((alert.evidence for alert in self.alerts if alert.rule == HEALTH), "") or gpu.words
        first = [self._cell(column) for column in self.columns if column.id in ("mark", "gpu", "name")]
        *figures, _ = self.columns[len(first) :]
        if len(first) < 3:
            return (*first, (state, ("  ", "text"), (trouble, "text")))
        room = sum(column.gap + column.cells for column in figures) - figures[0].gap
        words = fit(trouble or gpu.health.value, room, ellipsis=self.glyphs.ellipsis)
        return (*first, ((words, "text"), ("   ", "text"), state))

    def _cell(self, column: Column) -> Cell:
        gpu, role = self.gpu, self._dim(column.role)
        match column.id:
            case "mark":
                text, role = self.mark, self.role
            case "gpu":
                text = f"{self.glyphs.cursor if self.here else ' '}{gpu.index:>2}"
                role = "strong" if self.here else role
            case "name":
                text, role = short_name(gpu.name), "muted"
            case "bar":
                return self._bar(gpu, self.view.frame.holdings.owners(gpu), column.cells)
            case "free" | "left":
                return self._room(gpu, column.id)
            case "utilization":
                under_mig = gpu.mig is True and not known(gpu.utilization)
                text = "MIG" if under_mig else self._figure(gpu, column.id, "%")
            case "graph":
                history = self.view.frame.history
                text = sparkline(history.gpu(gpu.key).utilization, column.cells, floor(history.now), self.glyphs)
            case "temperature":
                text = self._figure(gpu, column.id, self.glyphs.degree)
                role = "warning" if any(reason in _HOT for reason in _held_back(gpu)) else role
            case "memory":
                text = self._of_total(gpu)
            case "state":
                return self.state()
            case _:
                text = self._figure(gpu, column.id)
        return ((text, role),)

    def _dim(self, role: Role) -> Role:
        return "faint" if self.old else role

    def _figure(self, gpu: Gpu, key: str, unit: str = "") -> str:
        """Return the text of a figure, with its unit where there are no titles."""
        text = GPU[key].cell(gpu, self.glyphs.missing)
        return text + unit if self.worded and text != self.glyphs.missing else text

    def _of_total(self, gpu: Gpu) -> str:
        """Return used and total memory without the driver's own, as for the free memory."""
        used, total = self._figure(gpu, "memory"), shares.usable(gpu)
        return used if total is None else f"{used}/{gib(total)}"

    def _room(self, gpu: Gpu, key: str) -> Cell:
        """Return the free memory, or the memory left: free minus promised."""
        figure = self._figure(gpu, key)
        role: Role = "strong" if key == "left" else "text"
        if not self.worded:
            return ((figure, self._dim(role)),)
        return ((f"{figure:>6}", self._dim(role)), (f" {key}{',' * (key == 'free')}", self._dim("muted")))

    def _bar(self, gpu: Gpu, owners: Sequence[GpuOwner], cells: int) -> Cell:
        unknown = next((one for one in (gpu.memory.total, gpu.memory.used) if isinstance(one, Reason)), None)
        if unknown is not None and not any(one.sized for owner in owners for one in owner.processes):
            return ((f"memory: {unknown.value}", self._dim("muted")),)  # an empty bar would say that it is free
        held = tuple(bar_parts(owners, self.view.styles.initial))
        key = (held, gpu.memory, gpu.unattributed, gpu.promises, cells, self.old)
        if key not in self.bars:
            self.bars[key] = self._draw_bar(gpu, held, cells)
        return self.bars[key]

    def _draw_bar(self, gpu: Gpu, held: Sequence[BarPart], cells: int) -> Cell:
        styles = self.view.styles
        drawn: list[tuple[str, Style]] = []
        for text, kind, uid in memory_bar(gpu, held, cells, self.glyphs):
            if kind in ("hatch", "promised", "free"):  # of no owner
                drawn.append((text, styles("faint" if kind == "free" else "muted", "track")))
            else:  # an old bar is grey: it still shows the amounts, less prominently
                drawn.append((text, getattr(styles.owner(None if self.old else uid), kind)))
        return tuple(drawn)


def _held_back(gpu: Gpu) -> list[str]:
    """Return the reasons for low clocks that are faults."""
    return [] if isinstance(gpu.throttle, str) else [reason for reason in gpu.throttle if reason in FAULTS]


def _fitted(words: Sequence[str], between: str, room: int) -> str:
    """Join as many whole words as fit, and count the others: `ada over declared +1`; the first may have to be cut."""
    for shown in range(len(words), 0, -1):
        hidden = len(words) - shown
        text = between.join(words[:shown]) + f" +{hidden}" * bool(hidden)
        if cell_len(text) <= room:
            return text
    more = f" +{len(words) - 1}" if len(words) > 1 else ""
    return fit(words[0], room - len(more)).rstrip() + more if words else ""


def severity_mark(gpu: Gpu, alerts: Sequence[Alert], glyphs: Glyphs, *, stale: bool = False) -> tuple[str, Role]:
    """Return the mark of a GPU's row and the role of its words, by its worst alert or its own state.

    What the user has acknowledged or muted has neither mark nor colour.
    """
    worst = max((alert.severity for alert in alerts if not alert.quiet), default=None)
    known = any(alert.quiet for alert in alerts)
    if worst in (None, Severity.NOTE) and not known and (gpu.health is not Health.OK or stale or _held_back(gpu)):
        worst = Severity.WARNING
    if worst is None:
        return " ", "muted"
    return mark_of(worst, glyphs)


def state_of(view: View, gpu: Gpu, alerts: Sequence[Alert], cells: int) -> tuple[str, Role, Cell]:
    """Return the mark of a GPU, the role of its words, and its state in `cells` cells, as in its row."""
    row = _GpuRow(view, gpu, alerts, (), cells, {})
    return row.mark, row.role, row.state() if gpu.health is Health.OK else ((gpu.health.value, row.role),)


def alerts_by_gpu(frame: Frame) -> defaultdict[str, list[Alert]]:
    """Return the alerts in the row of each GPU, by its key: the worst first, but a blocker before `nearly full`.

    Blocked memory is named on each GPU where it is blocked; a mere context is a note on one of them.
    """
    found: defaultdict[str, list[Alert]] = defaultdict(list)
    for alert in sorted((*frame.alerts, *frame.early), key=_urgency):
        several = alert.gpus if alert.rule in (UNUSED, DISAGREE) and alert.severity > Severity.NOTE else ()
        for key in dict.fromkeys((alert.gpu, *(one.key for one in several))):
            found[key].append(alert)
    return found


def _urgency(alert: Alert) -> tuple[int, bool]:
    # The figures show that a GPU is nearly full, and the mark how bad that is: the blocker is the news.
    blocks = alert.rule in (UNUSED, DISAGREE, IDLE) and alert.severity > Severity.NOTE
    return -(Severity.CRITICAL if blocks else alert.severity), alert.rule == MEMORY and not alert.forecast


def short_name(name: str) -> str:
    """Return a GPU's name without the maker and the connector: `H100 80GB`."""
    short = name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("Tesla ")
    for tail in (" HBM3", " HBM2e", " HBM3e", " PCIe", " SXM4", " SXM5"):
        short = short.removesuffix(tail)
    return short or name


def row_words(alert: Alert) -> str:
    """Return the words for an alert in the row of its GPU."""
    return alert.forecast or alert.short or alert.rule


_LABELS = ("  (memory in use, %) ", "  (memory, %) ", "  (mem %) ", "mem%")
"""Labels of the figures of a heat map; the longest that fits is shown. The brackets say that it is for all GPUs."""


class Gpus(CursorList[Gpu]):
    """List of all GPUs: a row for each, or the cells of a heat map."""

    def __init__(self) -> None:
        super().__init__()
        self.active = False
        self._table = Table()
        self._bars: Bars = {}
        self._style_set: StyleSet | None = None
        self._grid: Grid | None = None
        """Cells of the heat map; None where each GPU has a row."""
        self._top = 0
        """First line of the heat map on screen."""
        self._places: list[int | None] = []
        """Place of the GPU on each line, of the first one in a heat map; None for a line without one."""

    def identity(self, row: Gpu) -> str:
        return row.key

    def choose(self, key: str) -> None:
        """Put the cursor on the GPU with this key, if it is there."""
        if key in self._keys:
            self.point(self._keys.index(key))

    def move(self, by: int) -> None:
        """Move the cursor by `by` lines; in a heat map it stays in its column."""
        step = by * (self._grid.per_line if self._grid else 1)
        if abs(by) > 1 or 0 <= self.cursor + step < len(self.found):
            super().move(step)

    def move_across(self, by: int) -> None:
        """Move the cursor by `by` cells of a heat map."""
        super().move(by)

    @property
    def in_cells(self) -> bool:
        """Whether the GPUs are the cells of a heat map."""
        return self._grid is not None

    def click(self, x: int, y: int, *, again: bool) -> ClickEffect:
        """Choose a GPU; the second click shows its detail."""
        place = self._place_at(x, y)
        if place is None:
            return ""
        again = again and place == self.cursor
        self.point(place)
        return "chosen" if again else "moved"

    def _place_at(self, x: int, y: int) -> int | None:
        first = self._places[y] if y < len(self._places) else None
        if first is None or self._grid is None:
            return first
        column = x // self._grid.cell
        place = first + column
        return place if column < self._grid.per_line and place < len(self.found) else None

    # -- drawing ---------------------------------------------------------------------------------------------------

    def draw(self, view: View, layout: Layout, width: int) -> list[Line]:
        """Draw the GPUs that were set last."""
        if view.styles is not self._style_set or len(self._bars) > MOST_BARS:
            self._style_set, self._bars = view.styles, {}
        alerts = alerts_by_gpu(view.frame)
        if layout.gpu_form is Form.HEAT_MAP:
            self._grid = heat_map_grid(width, len(self.found), max((gpu.index for gpu in self.found), default=0))
            lines = self._heat_map(view, alerts, width, layout.gpus, self._grid)
            if layout.detail and self.selected is not None:
                lines.append(self._detail(view, self.selected, alerts, width))
            return lines
        self._grid = None
        columns = gpu_columns(layout.gpu_form, width, view.styles.glyphs)
        title = [write_titles(columns, view.styles).build(width)] if layout.gpu_title else []
        self._places = [None] * len(title)
        rows = []
        for place, gpu in enumerate(self.found):
            here = self.active and place == self.cursor
            row = _GpuRow(view, gpu, alerts[gpu.key], columns, width, self._bars, here=here)
            background: Background = "cursor" if here else "base"
            rows.append(TableRow((gpu.key, background), row.cells(), background))
            if layout.children:
                rows += [TableRow((gpu.key, one.uuid), row.instance_cells(one)) for one in gpu.instances]
            self._places += [place] * (len(rows) + len(title) - len(self._places))
        return title + self._table.lines(view.styles, width, columns, rows)

    def _heat_map(
        self, view: View, alerts: Mapping[str, Sequence[Alert]], width: int, lines: int, grid: Grid
    ) -> list[Line]:
        """Return the lines of cells that fit, those around the cursor; the last line counts the GPUs that do not."""
        every = len(self.found)
        shown = lines if grid.lines <= lines else max(1, lines - 1)
        if self.active:
            line = self.cursor // grid.per_line
            self._top = min(max(self._top, line - shown + 1), line)
        self._top = max(0, min(self._top, grid.lines - shown))
        self._places = [line * grid.per_line for line in range(self._top, min(self._top + shown, grid.lines))]
        drawn: list[Line] = []
        for start in [place for place in self._places if place is not None]:
            builder = LineBuilder(view.styles)
            for place in range(start, min(start + grid.per_line, every)):
                gpu = self.found[place]
                self._write_cell(
                    builder, view, gpu, alerts.get(gpu.key, ()), grid, self.active and place == self.cursor
                )
            if start + grid.per_line >= every:
                room = width - builder.cells
                label = next((words for words in _LABELS if len(words) <= room), "")
                builder.gap(room - len(label)).write(label, "muted")
            drawn.append(builder.build(width))
        if shown < lines < grid.lines:
            hidden = every - sum(min(grid.per_line, every - place) for place in self._places if place is not None)
            words = f"+{hidden} more GPUs: enlarge the window"
            drawn.append(LineBuilder(view.styles).write(words, "warning").build(width))
        return drawn[:lines]

    def _write_cell(
        self, builder: LineBuilder, view: View, gpu: Gpu, alerts: Sequence[Alert], grid: Grid, here: bool
    ) -> None:
        """Write a GPU's cell: index, mark, and memory in use on a background that shows the same."""
        styles, glyphs = view.styles, view.styles.glyphs
        background: Background = "cursor" if here else "base"
        mark, role = severity_mark(gpu, alerts, glyphs, stale=view.stale(gpu))
        share = GPU["mem_percent"].amount(gpu) if gpu.health is Health.OK else None
        used, old = share.number if share else None, view.dimmed(gpu)
        builder.write(glyphs.cursor if here else " ", styles("strong", background))
        builder.write(mark, styles(role, background))
        index = styles("strong" if here else "muted", background)
        builder.write(f"{gpu.index}:", index, grid.cell - 5 - 2 * grid.wide, right=True)
        if used is None or old:
            style = styles("faint" if old else "text" if mark == " " else role, background)
        else:
            style = styles.heat(used) if styles.has_heat else styles("text" if mark == " " else role, background)
        figure = "--" if used is None else percent(used, 100)
        if grid.wide:
            block = " " if used is None or styles.has_heat else level(used, glyphs)
            builder.write(f"{figure + '%' * (used is not None):<4}{block}", style)
        else:
            builder.write(figure, style, 3)

    def _detail(self, view: View, gpu: Gpu, alerts: Mapping[str, Sequence[Alert]], width: int) -> Line:
        """Return the line about the chosen GPU below a heat map: its row, with units in place of titles."""
        name = f" GPU {gpu.index}"
        columns = [*gpu_columns(Form.COMPACT, width, view.styles.glyphs, worded=True)]
        columns[1] = replace(columns[1], cells=len(name) + 1)
        columns[2] = replace(columns[2], cells=columns[2].cells - len(name) + 3)
        row = _GpuRow(view, gpu, alerts.get(gpu.key, ()), columns, width, self._bars, worded=True)
        mark, _, *rest = row.cells()
        cells = (mark, ((name, "strong"),), *rest)
        return self._table.lines(view.styles, width, columns, [TableRow(gpu.key, cells)])[0]
