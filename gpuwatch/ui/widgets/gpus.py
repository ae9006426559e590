"""GPU rows: memory by owner, utilization, temperature and the words for what is wrong with a GPU."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import Final, Literal, NamedTuple, TypeAlias

from rich.cells import cell_len

from gpuwatch import shares
from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.health import HEALTH
from gpuwatch.alerts.rules.shares import OVERCOMMITTED, OVERSHOOT
from gpuwatch.model import Gpu, Health, Holding, Instance, Memory, Process, Reading, Reason, known
from gpuwatch.text import fit
from gpuwatch.ui.layout import Form, Layout, strip_cell
from gpuwatch.ui.theme import Glyphs, Role, Skin
from gpuwatch.ui.view import View, clock
from gpuwatch.ui.widgets.lines import Line, LineBuilder, LinePanel
from gpuwatch.units import duration, gib, long_duration, percent

Bars: TypeAlias = dict[Hashable, Line]
"""Memory bars by what they are made of."""
MOST_BARS: Final = 256
"""Bars that are kept; a GPU whose memory moves has a new one each second."""
LEAST_NAME = 4
"""Cells from which on the beginning of a long name says more than its initial."""


class Piece(NamedTuple):
    """A run of cells of a bar that look alike."""

    text: str
    kind: Literal["seam", "fill", "edge", "hatch", "free", "mark", "bare mark"]
    """A `mark` of what was declared stands on an owner's part, a `bare mark` on what nobody listed has."""
    uid: int | None = None
    """Whose part it is; None also for several owners together and for one that is not visible."""


class Part(NamedTuple):
    """Memory of a GPU that one owner holds, in bytes."""

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
    """Return the bytes that an owner's part would have if each process held its limit; None where none has one.

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
        shown.append(small[0]._replace(bytes=least) if len(small) == 1 else Part(None, f"+{len(small)}", least))
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
    """Return the cells in which a declared part ends."""
    marks = set()
    for part, start, until, begin, _ in places:
        end = width + 1 if part.declared is None else begin + part.declared / cell
        if end <= width:
            # Not on the line that its own part begins with, where there is another cell: it would seem to belong to
            # the part before.
            marks.add(max(ceil(end) - 1, start + (until - start > 1)))
    return marks


def _runs(start: int, until: int, marks: set[int]) -> list[tuple[int, int]]:
    """Return the runs of cells (from, until) between the marks, some of them empty."""
    on = sorted(mark for mark in marks if start <= mark < until)
    return list(zip([start, *(mark + 1 for mark in on)], [*on, until], strict=True))


def _marked(texts: Iterable[str], like: Piece, glyphs: Glyphs) -> list[Piece]:
    """Return pieces of the same kind with a mark between each two."""
    mark = Piece(glyphs.declared, "mark" if like.kind == "fill" else "bare mark", like.uid)
    return [piece for text in texts for piece in (mark, like._replace(text=text))][1:]


def _unattributed(gpu: Gpu, held: Sequence[Part]) -> float:
    """Return the bytes to hatch: where the driver lists no processes, all that is used is nobody's, and not free."""
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
    """Return the name and amount, the name, or the initial, whichever fits, and in which of the rooms it does."""
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
    """Return the block for a percentage; only zero has the lowest."""
    if percent < 0.5:
        return glyphs.levels[0]
    return glyphs.levels[1 + min(6, int(percent * 7 / 100))]


_HOT = ("hw thermal", "sw thermal")
_ALARMING = (*_HOT, "power brake")
"""Throttle reasons that are a fault or an emergency; running into the power cap is a full GPU's normal state."""
_ON_TRACK: dict[str, Role] = {"hatch": "muted", "free": "faint", "bare mark": "strong"}
"""What stands in a bar where no owner's part is, and in which role."""
_BUSY = 5
"""Percent of utilization from which on a GPU is in use, whatever the list of its processes says."""


@dataclass(frozen=True, slots=True)
class _Widths:
    """Cells of the columns of a form; the bar takes what is left, up to a half."""

    name: int
    declared: int
    spark: int
    power: int
    state: int
    promised: int = 0

    def bar(self, width: int) -> int:
        """Return the width of the memory bar."""
        power = self.power + 2 if self.power else 0
        name = self.name + 2 if self.name else 0
        figures = 7 + 7 + self.promised + self.declared + 8 + 2 + self.spark + 6 + power
        return max(8, width - (5 + name) - figures - 3 - self.state)


_FORMS = {
    Form.FULL: _Widths(name=12, declared=10, spark=15, power=8, state=31),
    Form.MEDIUM: _Widths(name=0, declared=0, spark=12, power=0, state=20),
}


def gpu_lines(view: View, layout: Layout, width: int, bars: Bars) -> list[Line]:
    """Draw the panel: a title where there is one, and every GPU; `bars` has memory bars that were drawn before."""
    seen = view.frame.snapshot
    alerts: defaultdict[str, list[Alert]] = defaultdict(list)
    for alert in view.frame.alerts:
        alerts[alert.gpu].append(alert)
    if layout.gpu_form is Form.STRIP:
        return strip(view, alerts, width, layout.gpus)
    owners = {process.pid: process for process in seen.processes}
    promised = _promised_cells(layout.gpu_form, seen.gpus, view.skin.glyphs)
    widths = replace(_FORMS[layout.gpu_form], promised=promised) if layout.gpu_form in _FORMS else None
    lines = []
    if layout.gpu_title and widths is not None:
        lines.append(_title(view, widths, width))
    for gpu in seen.gpus:
        row = _Row(view, gpu, alerts[gpu.key], owners, width, bars)
        lines.append(row.compact(promised) if widths is None else row.full(widths))
        if layout.children:
            lines += [row.child(instance, widths, promised) for instance in gpu.instances]
    return lines


def _promised_cells(form: Form, gpus: Sequence[Gpu], glyphs: Glyphs) -> int:
    """Return the cells for what is promised: where width is short none while nothing is, for the bar needs them.

    Those of a compact row are for `, ≥30.0 promised`, with room for a GPU of 100 GiB and more.
    """
    if form is Form.FULL:
        return 10
    compact = len(",") + _promised_width(glyphs) + len(" promised")
    return 0 if not any(map(shares.has_promised, gpus)) else 10 if form is Form.MEDIUM else compact


def _promised_width(glyphs: Glyphs) -> int:
    return len(f"{glyphs.least}100.0")


def _title(view: View, widths: _Widths, width: int) -> Line:
    builder = LineBuilder(view.skin, "band").gap().write("GPU", "muted", 4)
    builder.gap(widths.name + 2 if widths.name else 0)
    bar = widths.bar(width)
    legend = f"memory by owner {view.skin.glyphs.dot} {view.skin.glyphs.declared} declared"
    builder.write(legend if cell_len(legend) < bar else "memory by owner", "muted", bar)
    figures = (("GiB", 7), ("free", 7), ("promised", widths.promised), ("declared", widths.declared), ("util %", 8))
    for text, cells in figures:
        builder.write(text, "muted", cells, right=True)
    builder.gap(2).write("last minute"[: widths.spark], "muted", widths.spark).write(
        "C" if view.skin.glyphs.ascii else "°C", "muted", 6, right=True
    )
    if widths.power:
        builder.write("W/limit", "muted", widths.power + 2, right=True)
    return builder.gap(3).write("state", "muted").build(width)


def _compact_state(width: int) -> int:
    return 17 + (width - 70) // 3


class _Row:
    """Draws one GPU."""

    def __init__(
        self,
        view: View,
        gpu: Gpu,
        alerts: Sequence[Alert],
        owners: dict[int, Process],
        width: int,
        bars: Bars,
    ) -> None:
        self.view, self.gpu, self.alerts, self.owners, self.width = view, gpu, alerts, owners, width
        self.bars = bars
        self.sums = shares.declared_memory(gpu, owners)
        self.glyphs = view.skin.glyphs
        self.old = view.dimmed(gpu)
        self.mark, self.role = severity_mark(gpu, alerts, self.glyphs, stale=view.stale(gpu))

    def full(self, widths: _Widths) -> Line:
        """Draw all columns that a wide terminal has room for."""
        gpu, view = self.gpu, self.view
        builder = self._start()
        if widths.name:
            builder.write(short_name(gpu.name), "muted", widths.name).gap(2)
        bar = widths.bar(self.width)
        if gpu.health is not Health.OK and not widths.name:
            return self._unwell(builder)
        if gpu.health is not Health.OK:
            room = self.width - builder.cells - 3 - widths.state
            builder.write(self._trouble() or gpu.health.value, "text", room).gap(3)
            return builder.write(self.state(), self.role).build(self.width)
        self._bar(builder, gpu, gpu.holdings, bar)
        builder.write(self._gib(gpu.memory.used), self._ink(), 7, right=True)
        builder.write(self._gib(gpu.memory.free), self._ink("strong"), 7, right=True)
        builder.write(
            self._promised(), self._ink("text" if shares.has_promised(gpu) else "muted"), widths.promised, right=True
        )
        if widths.declared:
            builder.write(self._declared(), self._promise_ink(), widths.declared, right=True)
        builder.write(self._busy(), self._ink(), 8, right=True).gap(2)
        points = view.frame.history.utilization(gpu.key)
        builder.write(sparkline(points, widths.spark, floor(view.frame.history.now), self.glyphs), self._ink("muted"))
        builder.write(self._whole(gpu.temperature), self._heat("text"), 6, right=True)
        if widths.power:
            watts = f"{self._whole(gpu.power)}/{self._whole(gpu.power_limit)}"
            builder.write(watts, self._ink("muted"), widths.power + 2, right=True)
        builder.gap(3)
        return self._state(builder).build(self.width)

    def compact(self, promised: int) -> Line:
        """Draw what 70 to 99 columns have room for; `promised` are the cells for what is promised."""
        gpu = self.gpu
        builder = self._start()
        if gpu.health is not Health.OK:
            return self._unwell(builder)
        self._bar(builder, gpu, gpu.holdings, self._compact_bar(builder.cells + promised))
        builder.write(self._gib(gpu.memory.free), self._ink("strong"), 6, right=True).write(" free", self._ink("muted"))
        if promised and shares.has_promised(gpu):
            builder.write(",", self._ink("muted")).write(
                self._promised(), self._ink("strong"), _promised_width(self.glyphs), right=True
            )
            builder.write(" promised", self._ink("muted"))
        else:
            builder.gap(promised)
        builder.write(self._busy("%"), self._ink(), 5, right=True)
        builder.write(self._whole(gpu.temperature, self.glyphs.degree), self._heat("muted"), 5, right=True).gap(2)
        return self._state(builder).build(self.width)

    def child(self, instance: Instance, widths: _Widths | None, promised: int) -> Line:
        """Draw a MIG instance: its own memory, and that its utilization cannot be had."""
        builder = LineBuilder(self.view.skin).gap(4).write(f"{self.glyphs.branch} ", "faint")
        if widths and widths.name:
            builder.write(instance.profile, "muted", widths.name + 1)
            bar = widths.bar(self.width)
        else:
            bar = self._compact_bar(builder.cells + promised) if widths is None else widths.bar(self.width) - 1
        held = [one for one in self.gpu.holdings if one.gpu_instance == instance.gpu_instance]
        # A bar is drawn for a GPU; an instance is one with its own memory, and what it holds is all that is listed.
        own = Gpu(index=self.gpu.index, memory=instance.memory)
        self._bar(builder, own, held, bar)
        if widths is None:
            builder.write(self._gib(instance.memory.free), self._ink("strong"), 6, right=True).write(" free", "muted")
            builder.gap(promised)
        else:
            builder.write(self._gib(instance.memory.used), self._ink(), 7, right=True)
            builder.write(self._gib(instance.memory.free), self._ink("strong"), 7, right=True)
            builder.gap(widths.promised + widths.declared)
        # Where there was no room for its name on the left, it stands here.
        named = widths is not None and widths.name
        name = "under MIG" if named else f"{self.glyphs.dot} {instance.profile}"
        return builder.gap(2).write(f"utilization n/a {name}", "muted").build(self.width)

    def state(self, room: int = 999) -> str:
        """Return a few words on what is worth knowing; empty for a GPU that is well and held."""
        gpu, view = self.gpu, self.view
        words = []
        if gpu.health is not Health.OK:
            since = f" since {clock(gpu.since)}" if gpu.since else ""
            return f"{gpu.health.value}{since}"
        if view.stale(gpu):
            words.append(f"stale {long_duration(int(view.age(gpu)))}")
        words += dict.fromkeys(short_title(alert) for alert in self.alerts if alert.rule != HEALTH)
        words += _held_back(gpu)
        strays = sum(gpu.key in one.gpus for one in view.strays.values())
        words += [f"{strays} stray{'s' * (strays != 1)} of yours"] * bool(strays)
        if known(gpu.ecc_uncorrected) and gpu.ecc_uncorrected > 0:
            words.append(f"{gpu.ecc_uncorrected:.0f} ECC error{'s' * (gpu.ecc_uncorrected != 1)}")
        if gpu.holdings_note:
            short = "list not reliable" if gpu.holdings else "no process list"
            words.append(gpu.holdings_note if len(gpu.holdings_note) <= room else short)
        if gpu.memory.unified:
            words.append("unified memory")
        if not words and isinstance(gpu.throttle, tuple):
            words += gpu.throttle[:1]
        if not words and not gpu.holdings and known(gpu.memory.used) and known(gpu.memory.total):
            busy = known(gpu.utilization) and gpu.utilization >= _BUSY
            if busy or gpu.memory.used >= 0.05 * gpu.memory.total:
                return "no process listed"
            return "promised" if shares.has_promised(gpu) else "free"
        return _fitted(words, f" {self.glyphs.dot} ", room)

    def _compact_bar(self, others: int) -> int:
        return self.width - others - 23 - _compact_state(self.width)

    def _unwell(self, builder: LineBuilder) -> Line:
        builder.write(self.state(), self.role).gap(2)
        return builder.write(self._trouble(), "text", max(0, self.width - builder.cells)).build(self.width)

    def _trouble(self) -> str:
        """Return what is wrong in full: with who was on it, once there is an alert about it."""
        return next((alert.evidence for alert in self.alerts if alert.rule == HEALTH), "") or self.gpu.words

    def _start(self) -> LineBuilder:
        builder = LineBuilder(self.view.skin).write(self.mark, self.role, 2)
        return builder.write(str(self.gpu.index), self._ink(), 2, right=True).gap()

    def _state(self, builder: LineBuilder) -> LineBuilder:
        room = max(0, self.width - builder.cells)
        return builder.write(self.state(room), self.role, room)

    def _ink(self, role: Role = "text") -> Role:
        return "faint" if self.old else role

    def _heat(self, role: Role) -> Role:
        return "warning" if any(reason in _HOT for reason in _held_back(self.gpu)) else self._ink(role)

    def _bar(self, builder: LineBuilder, gpu: Gpu, holdings: Sequence[Holding], cells: int) -> None:
        unknown = next((one for one in (gpu.memory.total, gpu.memory.used) if isinstance(one, Reason)), None)
        if unknown is not None and not any(known(one.memory) for one in holdings):
            builder.write(
                f"memory: {unknown.value}", self._ink("muted"), cells
            )  # an empty bar would say that it is free
            return
        held = tuple(parts(holdings, self.owners, self.gpu.uuid, self.view.skin.styles.initial))
        key = (held, gpu.memory, gpu.unattributed, cells, self.old)
        if key not in self.bars:
            self.bars[key] = self._draw_bar(gpu, held, cells)
        builder.write_spans(self.bars[key])

    def _draw_bar(self, gpu: Gpu, held: Sequence[Part], cells: int) -> Line:
        styles = self.view.skin.styles
        builder = LineBuilder(self.view.skin)
        for text, kind, uid in memory_bar(gpu, held, cells, self.glyphs):
            if kind in _ON_TRACK:
                builder.write(text, styles(_ON_TRACK[kind], "track"))
            else:
                # An old bar is grey: it still shows how much, and no longer catches the eye.
                make = {"seam": styles.seam, "fill": styles.owner, "edge": styles.edge, "mark": styles.mark}[kind]
                builder.write(text, make(None if self.old else uid))
        return builder.build(builder.cells)

    def _declared(self) -> str:
        """Print the sum of what is declared, with a sign where more may be: where something could not be read."""
        sums = self.sums
        if not sums.limits:
            return "?" if sums.unread else self.glyphs.missing
        return f"{self.glyphs.least * bool(sums.unread)}{gib(sums.declared)}"

    def _promised(self) -> str:
        return shares.format_promised(self.gpu, self.sums, least=self.glyphs.least, missing=self.glyphs.missing)

    def _promise_ink(self) -> Role:
        alert = next((one for one in self.alerts if one.rule == OVERCOMMITTED), None)
        return self._ink("muted") if alert is None else mark_of(alert.severity, self.glyphs)[1]

    def _gib(self, reading: Reading) -> str:
        return gib(reading) if known(reading) else self.glyphs.missing

    def _whole(self, reading: Reading, unit: str = "") -> str:
        return f"{reading:.0f}{unit}" if known(reading) else self.glyphs.missing

    def _busy(self, unit: str = "") -> str:
        if self.gpu.mig is True and not known(self.gpu.utilization):
            return "MIG"
        return self._whole(self.gpu.utilization, unit)


def _held_back(gpu: Gpu) -> list[str]:
    """Return the reasons for low clocks that somebody has to look at."""
    return [] if isinstance(gpu.throttle, str) else [reason for reason in gpu.throttle if reason in _ALARMING]


def _fitted(words: Sequence[str], between: str, room: int) -> str:
    """Join as many words as fit whole and count the rest: `ada over share +1`; the first may have to be cut."""
    for shown in range(len(words), 0, -1):
        text = between.join(words[:shown])
        more = f" +{len(words) - shown}" if shown < len(words) else ""
        if shown == 1 or cell_len(text + more) <= room:
            return fit(text, room - len(more)).rstrip() + more
    return ""


def severity_mark(gpu: Gpu, alerts: Sequence[Alert], glyphs: Glyphs, *, stale: bool = False) -> tuple[str, Role]:
    """Return the mark of a GPU's row and the role of its words: the worst of its alerts, and of what it says itself."""
    worst = max((alert.severity for alert in alerts), default=None)
    if worst in (None, Severity.NOTE) and (gpu.health is not Health.OK or stale or _held_back(gpu)):
        worst = Severity.WARNING
    if worst is None:
        return " ", "muted"
    return mark_of(worst, glyphs)


def mark_of(severity: Severity, glyphs: Glyphs) -> tuple[str, Role]:
    """Return the mark and the role of a severity."""
    if severity is Severity.CRITICAL:
        return glyphs.critical, "critical"
    return (glyphs.warning, "warning") if severity is Severity.WARNING else (glyphs.note, "note")


def short_name(name: str) -> str:
    """Return a GPU's name without what all of them start with: `H100 80GB`."""
    short = name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("Tesla ")
    for tail in (" HBM3", " HBM2e", " HBM3e", " PCIe", " SXM4", " SXM5"):
        short = short.removesuffix(tail)
    return short or name


_HOLDS = re.compile(" holds? ")


_BRIEF = {
    "memory of unknown processes": "memory of unknown processes",
    "temperature near slowdown": "near slowdown",
    "uncorrected ECC": "ECC errors",
    "row remap": "broken memory",
}
"""What is said of a rule where its title repeats the row, or is long."""


def short_title(alert: Alert) -> str:
    """Return an alert's title without what its row already shows: which GPU it is, and how much is free.

    Of an alert about a process only who it is about, or the rule: the process list has the rest.
    """
    if alert.rule == "memory near limit":
        return "full" if f"GPU {alert.index} full" in alert.title else "near limit"
    if alert.rule == OVERSHOOT:
        return f"{_HOLDS.split(alert.title)[0]} over share"
    if alert.rule == "idle but held" and alert.owners and alert.last is not None:
        return f"{alert.owners[0]} idle {duration(alert.last)}"
    title = alert.title.removeprefix(f"GPU {alert.index} ").removeprefix(f"GPU {alert.index}: ")
    if alert.rule == "XID":
        return title.partition(",")[0]
    if alert.subject or alert.title.startswith(f"{alert.rule}: "):
        return alert.rule
    return _BRIEF.get(alert.rule, title.removeprefix("overbooked: "))


_STRIP_LABELS = ("% of memory", "mem %", "%")
"""What the figures of a strip are; the longest that fits."""


def strip(view: View, alerts: dict[str, list[Alert]], width: int, lines: int) -> list[Line]:
    """Draw all GPUs as cells: index, mark, percent of memory in use (`--` where it is not known), and what that is."""
    gpus = view.frame.snapshot.gpus
    cell = strip_cell(len(gpus), max((gpu.index for gpu in gpus), default=0))
    per_line = max(1, width // cell)
    drawn: list[Line] = []
    for first in range(0, len(gpus), per_line):
        builder = LineBuilder(view.skin)
        for gpu in gpus[first : first + per_line]:
            mark, role = severity_mark(gpu, alerts.get(gpu.key, []), view.skin.glyphs, stale=view.stale(gpu))
            old = view.dimmed(gpu)
            builder.write(str(gpu.index), "muted", cell - 5, right=True).write(mark, role)
            builder.write(_used(gpu), "faint" if old else "text" if mark == " " else role, 3).gap()
        if first + per_line >= len(gpus):
            room = width - builder.cells - 1
            label = next((words for words in _STRIP_LABELS if len(words) <= room), "")
            builder.gap(room - len(label)).write(label, "muted")
        drawn.append(builder.build(width))
    if len(drawn) > lines > 0:
        hidden = len(gpus) - per_line * lines
        builder = LineBuilder(view.skin).write(f"+{hidden} more GPUs: a larger window shows them", "warning")
        drawn[lines - 1 :] = [builder.build(width)]
    return drawn[:lines]


def _used(gpu: Gpu) -> str:
    memory = gpu.memory
    if gpu.health is not Health.OK or not (known(memory.used) and known(memory.total)):
        return "--"
    return percent(memory.used, memory.total - (memory.reserved if known(memory.reserved) else 0))


class Gpus(LinePanel):
    """All GPUs."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._bars: Bars = {}
        self._skin: Skin | None = None

    def draw(self, view: View, layout: Layout, width: int) -> None:
        """Draw a frame."""
        if view.skin is not self._skin or len(self._bars) > MOST_BARS:
            self._skin, self._bars = view.skin, {}
        self.show(gpu_lines(view, layout, width, self._bars) if layout.gpus else [])
