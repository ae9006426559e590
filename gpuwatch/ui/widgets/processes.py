"""Process list: columns, sorting, filter, and a cursor that stays on its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.style import Style

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.analysis.rows import SORTS, Filter, ProcessOrder, Row, RowKey, rows, share_words
from gpuwatch.analysis.strays import Stray
from gpuwatch.model import Presence, Reading, known
from gpuwatch.monitor import Frame
from gpuwatch.ui.layout import Form, Layout
from gpuwatch.ui.theme import Glyphs, Ground, Role, Skin
from gpuwatch.ui.view import View
from gpuwatch.ui.widgets.gpus import mark_of
from gpuwatch.ui.widgets.lines import Line, LineBuilder, centred_lines
from gpuwatch.ui.widgets.row_list import Cell, Column, RowList
from gpuwatch.units import duration, gib

QUIET_S = 60
"""Seconds of idleness that are not worth showing."""
LONGEST_USER = 16


_ALL = {
    "gpu": Column("gpu", "GPU", 4),
    "pid": Column("pid", "PID", 8, role="muted"),
    "swatch": Column("swatch", "", 1, right=False, gap=2),
    "user": Column("user", "user", 8, right=False),
    "memory": Column("memory", "GiB", 7, role="strong"),
    "share": Column("share", "held/decl%", 12),
    "sm": Column("sm", "SM %", 6),
    "cpu": Column("cpu", "CPU %", 7),
    "rss": Column("rss", "RSS GiB", 9, role="muted"),
    "idle": Column("idle", "idle", 8),
    "age": Column("age", "age", 8, role="muted"),
    "in": Column("in", "in", 18, right=False, role="muted", gap=2),
    "command": Column("command", "command", 0, right=False, gap=2),
}
_FORMS = {
    Form.FULL: tuple(_ALL),
    Form.MEDIUM: ("gpu", "pid", "swatch", "user", "memory", "share", "sm", "cpu", "idle", "age", "command"),
    Form.COMPACT: ("gpu", "pid", "swatch", "user", "memory", "share", "sm", "idle", "command"),
    Form.STRIP: ("gpu", "pid", "swatch", "user", "memory", "sm", "command"),
}
_WIDE_SHARE = Column("share", "held/declared %", 18)
"""As that of other forms, its title has the slash where the cells have theirs."""
_USER_CELLS = {Form.FULL: LONGEST_USER, Form.MEDIUM: 14, Form.COMPACT: 10, Form.STRIP: 8}


def columns(form: Form, rows: Sequence[Row], glyphs: Glyphs) -> list[Column]:
    """Return the columns of a form; that of the users is as wide as the longest name, within bounds.

    In ASCII `≥10h02m` takes a cell more, and would touch the figure before it.
    """
    longest = max((cell_len(row.owner) for row in rows), default=0)
    users = min(_USER_CELLS.get(form, 8), max(5 if form is Form.STRIP else 8, longest))
    fitted = {
        "user": replace(_ALL["user"], cells=users),
        "idle": replace(_ALL["idle"], cells=_ALL["idle"].cells + glyphs.ascii),
    }
    if not glyphs.swatch.strip():  # an initial is a letter: without a blank, it would be read as part of the name
        fitted["swatch"] = replace(_ALL["swatch"], gap=1)
        fitted["user"] = replace(fitted["user"], gap=1)
    if form is Form.FULL:
        fitted["share"] = _WIDE_SHARE
    return [fitted.get(name, _ALL[name]) for name in _FORMS.get(form, _FORMS[Form.STRIP])]


def cell(column: str, row: Row, taken: float, glyphs: Glyphs) -> str:
    """Return what a row shows in a column of one figure; `taken` is the snapshot's wall-clock time."""
    return _CELLS[column](row, taken, glyphs)


def share_cell(row: Row, mark: str, *, wide: bool) -> str:
    """Return the holding and the declared share, `62/40 ▲`: `mark` is that of an overshoot, empty for none.

    The slash has as many cells to its right as that of the column's title, so that all stand in one place.
    """
    behind = 10 if wide else 5
    held, declared = share_words(row)
    return f"{held}/{f'{declared:<3}{mark}':<{behind}}"


def state_word(row: Row, stray: Stray | None = None) -> str:
    """Return what is unusual about a process: that it is a stray, or its state; empty for one that runs or waits."""
    if stray is not None:
        return f"stray ({stray.cause.value})"
    return row.process.state if row.process.state in ("zombie", "stopped", "disk sleep", "dead") else ""


def _reading(reading: Reading | float | None, glyphs: Glyphs, show: Callable[[float], str]) -> str:
    return glyphs.missing if reading is None or not known(reading) else show(reading)


def _whole(value: float) -> str:
    return f"{value:.0f}"


def _idle(row: Row, _taken: float, glyphs: Glyphs) -> str:
    if row.idle is None:
        return glyphs.missing
    if row.idle.seconds < QUIET_S:
        return ""
    return (glyphs.least if row.idle.at_least else "") + duration(row.idle.seconds)


def _age(row: Row, taken: float, glyphs: Glyphs) -> str:
    return glyphs.missing if row.process.started is None else duration(taken - row.process.started)


_CELLS: dict[str, Callable[[Row, float, Glyphs], str]] = {
    "gpu": lambda row, _taken, _glyphs: str(row.gpu.index),
    "pid": lambda row, _taken, _glyphs: str(row.holding.pid),
    "user": lambda row, _taken, _glyphs: row.owner,
    "memory": lambda row, _taken, glyphs: _reading(row.holding.memory, glyphs, gib),
    "sm": lambda row, _taken, glyphs: _reading(row.holding.sm, glyphs, _whole),
    "cpu": lambda row, _taken, glyphs: _reading(row.process.cpu, glyphs, _whole),
    "rss": lambda row, _taken, glyphs: _reading(row.process.rss, glyphs, gib),
    "idle": _idle,
    "age": _age,
    "in": lambda row, _taken, _glyphs: row.where,
}


ASCENDING = ("gpu", "pid", "swatch", "user", "in", "command")
"""Columns that `rows.SORTS` begins with the smallest."""


class Processes(RowList[Row]):
    """The process list."""

    sorts = SORTS
    ascending = ASCENDING

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.by = "memory"
        self.filter = Filter()
        self.mine = False
        self.every: list[Row] = []
        """All rows, in the order of the GPUs."""
        self._steady = ProcessOrder()
        self._view: View
        self._form = Form.FULL
        self._over: dict[tuple[str, int], Severity] = {}
        """By GPU and pid: who holds more than was declared, and how bad it is."""
        self._joined: Frame | None = None
        """The frame that the rows are of."""

    def read_rows(self, view: View) -> None:
        """Update the rows from a frame."""
        self._view = view
        if self._joined is not view.frame:
            self._joined = view.frame
            self.every = rows(view.frame.snapshot, view.frame.history)
            self._over = overshoots(view.frame.alerts)
        self.update_rows([row for row in self.every if self.filter(row) and (row.mine or not self.mine)])

    def draw_rows(self, layout: Layout, width: int) -> None:
        """Draw the rows that were read last."""
        self._form = layout.form
        skin, room = self._view.skin, layout.rows
        words = self._why_empty(self._view) if room and not self.found else ""
        empty = centred_lines(words, skin, width, room) if words else []
        self.draw(skin, width, room + layout.table_title, empty)

    def identity(self, row: Row) -> RowKey:
        """Return GPU, PID and start time."""
        return row.key

    def ordered(self, rows: Sequence[Row]) -> list[Row]:
        """Sort rows by the chosen order."""
        return self._steady.sort(rows, self.by, reverse=self.reverse)

    def columns(self, skin: Skin, width: int) -> list[Column]:
        """Return the columns of the layout."""
        return columns(self._form, self.every, skin.glyphs)

    def cells(self, place: int, skin: Skin, ground: Ground) -> tuple[Cell, ...]:
        """Return the cells of a row."""
        row, view = self.found[place], self._view
        old = view.dimmed(row.gpu)
        return tuple(self._cell(column, row, view, ground, old=old) for column in self._columns)

    def _cell(self, column: Column, row: Row, view: View, ground: Ground, *, old: bool) -> Cell:
        skin = view.skin
        if column.id == "command":
            return command_cell(row, view.strays.get(row.process.key))
        if column.id == "swatch":
            return (_swatch(skin, row.process.uid, ground),)
        if column.id == "user":
            return ((row.owner, "strong" if row.mine else "text"),)
        role: Role = "faint" if old else column.role
        if column.id == "share":
            over = self._over.get((row.gpu.key, row.holding.pid))
            mark, role = mark_of(over, skin.glyphs) if over else ("", role)
            return ((share_cell(row, mark, wide=self._form is Form.FULL), role),)
        return ((cell(column.id, row, view.frame.snapshot.taken, skin.glyphs), role),)

    # -----------------------------------------------------------------------------------------------------------
    # Drawing

    def title_line(self, skin: Skin, width: int) -> Line:
        """Draw the titles, and which rows are shown in what order."""
        arrow = self._arrow(skin)
        builder = LineBuilder(skin, "band").gap(2)
        *columns, last = self._columns
        for column in columns:
            self._write_title(builder.gap(column.gap), column, skin)
        builder.gap(last.gap)
        sorted_by = last.id == self.by
        text = f"{last.title}{arrow * sorted_by}"
        # The last title gives way to what says that rows are hidden, or the column that they are sorted by.
        unseen = all(column.id != self.by for column in self._columns)
        room = max(0, width - builder.cells - 1)
        hiding = self.mine or bool(self.filter.text) or unseen
        summary = self._summary(skin, room if hiding and not sorted_by else room - cell_len(text) - 2, arrow * unseen)
        if cell_len(text) + 2 + cell_len(summary) <= room:
            builder.write(text, "text" if sorted_by else "muted")
        else:
            unseen = unseen or sorted_by
        if unseen and not summary:  # over the titles: their figures are told apart without them, their order is not
            summary, shown = f"{arrow}{self.by}", builder.build(width - len(self.by) - 3)
            builder = LineBuilder(skin, "band")
            builder.write_spans(shown)
        builder.gap(max(0, width - builder.cells - cell_len(summary) - 1))
        return builder.write(summary, "muted").build(width)

    def _summary(self, skin: Skin, room: int, arrow: str) -> str:
        """Return which rows are shown and in what order, in `room` cells; empty where nothing fits.

        `arrow` is given where no column on screen shows the order: it is then named before all else.
        """
        dot = f" {skin.glyphs.dot} "
        noun = f" row{'s' * (len(self.every) != 1)}"  # a process has one for each of its GPUs
        count = f"{len(self.found)} of {len(self.every)}"
        part = matching = (count if len(self.found) < len(self.every) else str(len(self.every))) + noun
        if len(self.found) > self.page_rows:
            last = min(self.top + self.page_rows, len(self.found))
            part = f"{self.top + 1}{skin.glyphs.dash}{last} of {len(self.found)}{noun}"
        order = [f"by {SORTS[self.by][0]}{f' {arrow}' * bool(arrow)}"]
        hidden, short = order * bool(arrow), [f"{arrow}{self.by}"] * bool(arrow)
        mine = ["mine"] * self.mine
        chosen = [f"filter: {self.filter.text}"] * bool(self.filter.text) + mine
        brief = [f"/{self.filter.text}"] * bool(self.filter.text) + mine
        for words in (
            [*chosen, part, *order],
            [*chosen, matching, *hidden],
            [*brief, matching, *hidden],
            [*brief, *(hidden or [matching])],
            [*brief, *(short or [count])],
            [*["filtered"] * bool(self.filter.text), *mine, *short],
            short or [count],
        ):
            text = dot.join(words)
            if cell_len(text) <= room:
                return text
        return ""

    def _why_empty(self, view: View) -> str:
        if len(self.every) and self.filter.text:
            quote = self.filter.text
            return f"no process matches “{quote}”{' among yours' * self.mine}: Esc clears the filter"
        if len(self.every):
            return "none of these processes is yours: m shows everybody's"
        notes = {gpu.holdings_note for gpu in view.frame.snapshot.gpus if gpu.holdings_note}
        return " · ".join(sorted(notes)) or "no process holds a GPU"


def overshoots(alerts: Iterable[Alert]) -> dict[tuple[str, int], Severity]:
    """Return the severity of the worst overshoot by GPU key and pid."""
    found: dict[tuple[str, int], Severity] = {}
    for alert in alerts:
        for pid in alert.pids if alert.rule == OVERSHOOT else ():
            found[alert.gpu, pid] = max(alert.severity, found.get((alert.gpu, pid), alert.severity))
    return found


def command_cell(row: Row, stray: Stray | None) -> Cell:
    """Return what is unusual about a process, and its command."""
    word = state_word(row, stray)
    presence = row.process.presence
    role: Role = "text" if presence is Presence.SEEN else "warning" if presence is Presence.GONE else "muted"
    return (*(((word, "warning"), (" ", "text")) if word else ()), (row.brief, role))


def _swatch(skin: Skin, uid: int | None, ground: Ground) -> tuple[str, Style]:
    """Return the mark before an owner's name, in the colour of their bars; their initial where hues are few."""
    if skin.glyphs.swatch.strip():
        return skin.glyphs.swatch, skin.styles.swatch(uid, ground)
    return skin.styles.initial(uid), skin.styles.badge(uid, ground)
