"""One row a GPU: who holds its memory, how busy and how hot it is, and in words what is wrong with it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor

from rich.cells import cell_len

from gpuwatch import shares
from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.memory import HEALTH
from gpuwatch.alerts.rules.shares import OVERCOMMITTED, OVERSHOOT
from gpuwatch.model import Gpu, Health, Holding, Instance, Process, Reading, Reason, known
from gpuwatch.text import fit
from gpuwatch.ui.graphs import memory_bar, parts, sparkline
from gpuwatch.ui.layout import Form, Layout, strip_cell
from gpuwatch.ui.panels.lines import Line, LinePanel, Pen
from gpuwatch.ui.theme import Glyphs, Role
from gpuwatch.ui.view import View, clock
from gpuwatch.units import duration, gib, long_duration, percent

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
        """Give the width of the memory bar."""
        power = self.power + 2 if self.power else 0
        name = self.name + 2 if self.name else 0
        figures = 7 + 7 + self.promised + self.declared + 8 + 2 + self.spark + 6 + power
        return max(8, width - (5 + name) - figures - 3 - self.state)


_FORMS = {
    Form.FULL: _Widths(name=12, declared=10, spark=15, power=8, state=31),
    Form.MEDIUM: _Widths(name=0, declared=0, spark=12, power=0, state=20),
}


def gpu_lines(view: View, layout: Layout, width: int) -> list[Line]:
    """Draw the panel: a title where there is one, and every GPU."""
    seen = view.frame.snapshot
    alerts: defaultdict[str, list[Alert]] = defaultdict(list)
    for alert in view.frame.alerts:
        alerts[alert.gpu].append(alert)
    if layout.gpu_form is Form.STRIP:
        return strip(view, alerts, width, layout.gpus)
    owners = {process.pid: process for process in seen.processes}
    promised = _promised_cells(layout.gpu_form, seen.gpus, view.kit.glyphs)
    widths = replace(_FORMS[layout.gpu_form], promised=promised) if layout.gpu_form in _FORMS else None
    lines = []
    if layout.gpu_title and widths is not None:
        lines.append(_title(view, widths, width))
    for gpu in seen.gpus:
        row = _Row(view, gpu, alerts[gpu.key], owners, width)
        lines.append(row.compact(promised) if widths is None else row.full(widths))
        if layout.children:
            lines += [row.child(instance, widths, promised) for instance in gpu.instances]
    return lines


def _promised_cells(form: Form, gpus: Sequence[Gpu], glyphs: Glyphs) -> int:
    """Give the cells for what is promised: where width is short none while nothing is, for the bar needs them.

    Those of a compact row are for `, ≥30.0 promised`, with room for a GPU of 100 GiB and more.
    """
    if form is Form.FULL:
        return 10
    compact = len(",") + _promised_width(glyphs) + len(" promised")
    return 0 if not any(map(shares.is_promised, gpus)) else 10 if form is Form.MEDIUM else compact


def _promised_width(glyphs: Glyphs) -> int:
    return len(f"{glyphs.least}100.0")


def _title(view: View, widths: _Widths, width: int) -> Line:
    pen = Pen(view.kit, "band").gap().write("GPU", "muted", 4)
    pen.gap(widths.name + 2 if widths.name else 0)
    bar = widths.bar(width)
    legend = f"memory by owner {view.kit.glyphs.dot} {view.kit.glyphs.declared} declared"
    pen.write(legend if cell_len(legend) < bar else "memory by owner", "muted", bar)
    figures = (("GiB", 7), ("free", 7), ("promised", widths.promised), ("declared", widths.declared), ("util %", 8))
    for text, cells in figures:
        pen.write(text, "muted", cells, right=True)
    pen.gap(2).write("last minute"[: widths.spark], "muted", widths.spark).write(
        "C" if view.kit.glyphs.ascii else "°C", "muted", 6, right=True
    )
    if widths.power:
        pen.write("W/limit", "muted", widths.power + 2, right=True)
    return pen.gap(3).write("state", "muted").line(width)


def _compact_state(width: int) -> int:
    return 17 + (width - 70) // 3


class _Row:
    """Draws one GPU."""

    def __init__(self, view: View, gpu: Gpu, alerts: Sequence[Alert], owners: dict[int, Process], width: int) -> None:
        self.view, self.gpu, self.alerts, self.owners, self.width = view, gpu, alerts, owners, width
        self.glyphs = view.kit.glyphs
        self.old = view.dimmed(gpu)
        self.mark, self.role = severity_mark(gpu, alerts, self.glyphs, stale=view.stale(gpu))

    def full(self, widths: _Widths) -> Line:
        """Draw all columns that a wide terminal has room for."""
        gpu, view = self.gpu, self.view
        pen = self._start()
        if widths.name:
            pen.write(short_name(gpu.name), "muted", widths.name).gap(2)
        bar = widths.bar(self.width)
        if gpu.health is not Health.OK and not widths.name:
            return self._unwell(pen)
        if gpu.health is not Health.OK:
            room = self.width - pen.cells - 3 - widths.state
            pen.write(self._trouble() or gpu.health.value, "text", room).gap(3)
            return pen.write(self.state(), self.role).line(self.width)
        self._bar(pen, gpu, gpu.holdings, bar)
        pen.write(self._gib(gpu.memory.used), self._ink(), 7, right=True)
        pen.write(self._gib(gpu.memory.free), self._ink("strong"), 7, right=True)
        pen.write(
            self._promised(), self._ink("text" if shares.is_promised(gpu) else "muted"), widths.promised, right=True
        )
        if widths.declared:
            pen.write(self._declared(), self._promise_ink(), widths.declared, right=True)
        pen.write(self._busy(), self._ink(), 8, right=True).gap(2)
        points = view.frame.history.utilization(gpu.key)
        pen.write(sparkline(points, widths.spark, floor(view.frame.history.now), self.glyphs), self._ink("muted"))
        pen.write(self._whole(gpu.temperature), self._heat("text"), 6, right=True)
        if widths.power:
            watts = f"{self._whole(gpu.power)}/{self._whole(gpu.power_limit)}"
            pen.write(watts, self._ink("muted"), widths.power + 2, right=True)
        pen.gap(3)
        return self._state(pen).line(self.width)

    def compact(self, promised: int) -> Line:
        """Draw what 70 to 99 columns have room for; `promised` are the cells for what is promised."""
        gpu = self.gpu
        pen = self._start()
        if gpu.health is not Health.OK:
            return self._unwell(pen)
        self._bar(pen, gpu, gpu.holdings, self._compact_bar(pen.cells + promised))
        pen.write(self._gib(gpu.memory.free), self._ink("strong"), 6, right=True).write(" free", self._ink("muted"))
        if promised and shares.is_promised(gpu):
            pen.write(",", self._ink("muted")).write(
                self._promised(), self._ink("strong"), _promised_width(self.glyphs), right=True
            )
            pen.write(" promised", self._ink("muted"))
        else:
            pen.gap(promised)
        pen.write(self._busy("%"), self._ink(), 5, right=True)
        pen.write(self._whole(gpu.temperature, self.glyphs.degree), self._heat("muted"), 5, right=True).gap(2)
        return self._state(pen).line(self.width)

    def child(self, instance: Instance, widths: _Widths | None, promised: int) -> Line:
        """Draw a MIG instance: its own memory, and that its utilization cannot be had."""
        pen = Pen(self.view.kit).gap(4).write(f"{self.glyphs.branch} ", "faint")
        if widths and widths.name:
            pen.write(instance.profile, "muted", widths.name + 1)
            bar = widths.bar(self.width)
        else:
            bar = self._compact_bar(pen.cells + promised) if widths is None else widths.bar(self.width) - 1
        held = [one for one in self.gpu.holdings if one.gpu_instance == instance.gpu_instance]
        # A bar is drawn for a GPU; an instance is one with its own memory, and what it holds is all that is listed.
        own = Gpu(index=self.gpu.index, memory=instance.memory)
        self._bar(pen, own, held, bar)
        if widths is None:
            pen.write(self._gib(instance.memory.free), self._ink("strong"), 6, right=True).write(" free", "muted")
            pen.gap(promised)
        else:
            pen.write(self._gib(instance.memory.used), self._ink(), 7, right=True)
            pen.write(self._gib(instance.memory.free), self._ink("strong"), 7, right=True)
            pen.gap(widths.promised + widths.declared)
        # Where there was no room for its name on the left, it stands here.
        named = widths is not None and widths.name
        name = "under MIG" if named else f"{self.glyphs.dot} {instance.profile}"
        return pen.gap(2).write(f"utilization n/a {name}", "muted").line(self.width)

    def state(self, room: int = 999) -> str:
        """Say in a few words what is worth knowing; empty for a GPU that is well and held."""
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
            return "promised" if shares.is_promised(gpu) else "free"
        return _fitted(words, f" {self.glyphs.dot} ", room)

    def _compact_bar(self, others: int) -> int:
        return self.width - others - 23 - _compact_state(self.width)

    def _unwell(self, pen: Pen) -> Line:
        pen.write(self.state(), self.role).gap(2)
        return pen.write(self._trouble(), "text", max(0, self.width - pen.cells)).line(self.width)

    def _trouble(self) -> str:
        """Return what is wrong in full: with who was on it, once there is an alert about it."""
        return next((alert.evidence for alert in self.alerts if alert.rule == HEALTH), "") or self.gpu.words

    def _start(self) -> Pen:
        pen = Pen(self.view.kit).write(self.mark, self.role, 2)
        return pen.write(str(self.gpu.index), self._ink(), 2, right=True).gap()

    def _state(self, pen: Pen) -> Pen:
        room = max(0, self.width - pen.cells)
        return pen.write(self.state(room), self.role, room)

    def _ink(self, role: Role = "text") -> Role:
        return "faint" if self.old else role

    def _heat(self, role: Role) -> Role:
        return "warning" if any(reason in _HOT for reason in _held_back(self.gpu)) else self._ink(role)

    def _bar(self, pen: Pen, gpu: Gpu, holdings: Sequence[Holding], cells: int) -> None:
        unknown = next((one for one in (gpu.memory.total, gpu.memory.used) if isinstance(one, Reason)), None)
        if unknown is not None and not any(known(one.memory) for one in holdings):
            pen.write(f"memory: {unknown.value}", self._ink("muted"), cells)  # an empty bar would say that it is free
            return
        for piece in memory_bar(
            gpu, parts(holdings, self.owners, self.gpu.uuid, self.view.kit.inks.initial), cells, self.glyphs
        ):
            self._piece(pen, piece.text, piece.kind, piece.uid)

    def _piece(self, pen: Pen, text: str, kind: str, uid: int | None) -> None:
        inks = self.view.kit.inks
        if kind in _ON_TRACK:
            pen.write_styled(text, inks(_ON_TRACK[kind], "track"))
        else:
            # An old bar is grey: it still shows how much, and no longer catches the eye.
            make = {"seam": inks.seam, "fill": inks.owner, "edge": inks.edge, "mark": inks.mark}[kind]
            pen.write_styled(text, make(None if self.old else uid))

    def _declared(self) -> str:
        """Print the sum of what is declared, with a sign where more may be: where something could not be read."""
        sums = shares.promised(self.gpu, self.owners)
        if not sums.limits:
            return "?" if sums.unread else self.glyphs.missing
        return f"{self.glyphs.least * bool(sums.unread)}{gib(sums.declared)}"

    def _promised(self) -> str:
        return shares.promised_words(self.gpu, self.owners, least=self.glyphs.least, missing=self.glyphs.missing)

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
    """Give the reasons for low clocks that somebody has to look at."""
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
    """Give the mark of a GPU's row and the role of its words: the worst of its alerts, and of what it says itself."""
    worst = max((alert.severity for alert in alerts), default=None)
    if worst in (None, Severity.NOTE) and (gpu.health is not Health.OK or stale or _held_back(gpu)):
        worst = Severity.WARNING
    if worst is None:
        return " ", "muted"
    return mark_of(worst, glyphs)


def mark_of(severity: Severity, glyphs: Glyphs) -> tuple[str, Role]:
    """Give the mark and the role of a severity."""
    if severity is Severity.CRITICAL:
        return glyphs.critical, "critical"
    return (glyphs.warning, "warning") if severity is Severity.WARNING else (glyphs.note, "note")


def short_name(name: str) -> str:
    """Give a GPU's name without what all of them start with: `H100 80GB`."""
    short = name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("Tesla ")
    for tail in (" HBM3", " HBM2e", " HBM3e", " PCIe", " SXM4", " SXM5"):
        short = short.removesuffix(tail)
    return short or name


_HOLDS = re.compile(" holds? ")


_BRIEF = {
    "unattributed memory": "unattributed memory",
    "temperature near slowdown": "near slowdown",
    "uncorrected ECC": "ECC errors",
    "row remap": "broken memory",
}
"""What is said of a rule where its title repeats the row, or is long."""


def short_title(alert: Alert) -> str:
    """Give an alert's title without what its row already shows: which GPU it is, and how much is free.

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
    return _BRIEF.get(alert.rule, title.removeprefix("over-committed: "))


_STRIP_LABELS = ("% of memory", "mem %", "%")
"""What the figures of a strip are; the longest that fits."""


def strip(view: View, alerts: dict[str, list[Alert]], width: int, lines: int) -> list[Line]:
    """Draw all GPUs as cells: index, mark, percent of memory in use (`--` where it is not known), and what that is."""
    gpus = view.frame.snapshot.gpus
    cell = strip_cell(len(gpus), max((gpu.index for gpu in gpus), default=0))
    per_line = max(1, width // cell)
    drawn: list[Line] = []
    for first in range(0, len(gpus), per_line):
        pen = Pen(view.kit)
        for gpu in gpus[first : first + per_line]:
            mark, role = severity_mark(gpu, alerts.get(gpu.key, []), view.kit.glyphs, stale=view.stale(gpu))
            old = view.dimmed(gpu)
            pen.write(str(gpu.index), "muted", cell - 5, right=True).write(mark, role)
            pen.write(_used(gpu), "faint" if old else "text" if mark == " " else role, 3).gap()
        if first + per_line >= len(gpus):
            room = width - pen.cells - 1
            label = next((words for words in _STRIP_LABELS if len(words) <= room), "")
            pen.gap(room - len(label)).write(label, "muted")
        drawn.append(pen.line(width))
    if len(drawn) > lines > 0:
        hidden = len(gpus) - per_line * lines
        pen = Pen(view.kit).write(f"+{hidden} more GPUs: a larger window shows them", "warning")
        drawn[lines - 1 :] = [pen.line(width)]
    return drawn[:lines]


def _used(gpu: Gpu) -> str:
    memory = gpu.memory
    if gpu.health is not Health.OK or not (known(memory.used) and known(memory.total)):
        return "--"
    return percent(memory.used, memory.total - (memory.reserved if known(memory.reserved) else 0))


class Gpus(LinePanel):
    """All GPUs."""

    def draw(self, view: View, layout: Layout, width: int) -> None:
        """Draw a frame."""
        self.show(gpu_lines(view, layout, width) if layout.gpus else [])
