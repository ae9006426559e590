"""Process list: columns, sorting, filter, and a cursor that stays on its process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from msgspec.structs import replace
from rich.cells import cell_len

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.analysis.rows import process_order, rows
from gpuwatch.analysis.strays import Stray
from gpuwatch.base.units import duration
from gpuwatch.model.fields import PROCESS, Row, RowKey, share_words
from gpuwatch.model.filters import ListFilter
from gpuwatch.model.shares import is_conclusive, is_pending, unread_processes
from gpuwatch.model.snapshot import Gpu, Presence, Reason
from gpuwatch.monitor import Frame
from gpuwatch.ui.draw.layout import Form, Layout
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank, centred
from gpuwatch.ui.draw.row_list import CURSOR_CELLS, RowList
from gpuwatch.ui.draw.table import Cell, Column, UsefulColumns, field_column, write_titles
from gpuwatch.ui.draw.theme import Background, Glyphs, Role, StyleSet
from gpuwatch.ui.draw.view import View, mark_of

COLUMNS: Final = {
    column.id: column
    for column in (
        field_column(PROCESS["gpu"], 4),
        field_column(PROCESS["pid"], 8, role="muted"),
        Column("swatch", "", 1, right=False, gap=2),
        field_column(PROCESS["user"], 8),
        field_column(PROCESS["memory"], 7, role="strong"),
        field_column(PROCESS["used"], 16),
        field_column(PROCESS["sm"], 6),
        field_column(PROCESS["cpu"], 7),
        field_column(PROCESS["rss"], 9, role="muted"),
        field_column(PROCESS["idle"], 8),
        field_column(PROCESS["age"], 8, role="muted"),
        field_column(PROCESS["in"], 18, role="muted", gap=2),
        field_column(PROCESS["command"], 0, gap=2),
    )
}
"""Columns of the list by id, in their usual order."""
_FORMS: Final = {
    Form.FULL: tuple(COLUMNS),
    Form.MEDIUM: ("gpu", "pid", "swatch", "user", "memory", "used", "sm", "cpu", "idle", "age", "command"),
    Form.COMPACT: ("gpu", "pid", "swatch", "user", "memory", "used", "sm", "idle", "command"),
    Form.HEAT_MAP: ("gpu", "pid", "swatch", "user", "memory", "sm", "command"),
}
_USER_CELLS: Final = {Form.FULL: 16, Form.MEDIUM: 14, Form.COMPACT: 10, Form.HEAT_MAP: 8}
"""Most cells for the names of users."""
_ODD_STATES: Final = ("zombie", "stopped", "disk sleep", "dead")
_REST: Final = Column("rest", "", 0, right=False)
"""Blank end of the line where the command is not shown."""
_HELD_ALONE: Final = replace(COLUMNS["used"], title="mem %", cells=8)
"""Column of the used memory if no limit, and no lack of a limit, is known."""
_SHORT_USED: Final = replace(COLUMNS["used"], title="used/decl.", cells=12)
_LEAST_COMMAND: Final = 10
"""Cells that are kept for the command."""


def columns(
    form: Form,
    rows: Sequence[Row],
    glyphs: Glyphs,
    chosen: Sequence[str] = (),
    width: int = 0,
    useless: Collection[str] = (),
) -> list[Column]:
    """Return the chosen columns that fit the width, the command last; without a choice the columns of the form.

    Those in `useless` are left out of a form, or show the holding without a limit. The column of users is as wide as
    the longest name, within bounds.
    """
    longest = max((cell_len(row.owner) for row in rows), default=0)
    users = min(_USER_CELLS[form], max(5, longest))
    # An initial is a letter: without a blank, it would be read as part of the name.
    lettered = not glyphs.swatch.strip()
    fitted = {
        "swatch": replace(COLUMNS["swatch"], gap=2 - lettered),
        "user": replace(COLUMNS["user"], cells=users, gap=int(lettered)),
        "used": COLUMNS["used"] if form is Form.FULL else _SHORT_USED,
        "idle": replace(COLUMNS["idle"], cells=8 + glyphs.ascii),  # `>=10h02m` takes a cell more than `≥10h02m`
    }
    if not chosen:
        if "used" in useless:
            fitted["used"] = _HELD_ALONE
        return [fitted.get(name, COLUMNS[name]) for name in _FORMS[form] if name == "used" or name not in useless]
    last, room = _REST, width - CURSOR_CELLS
    if "command" in chosen:
        last, room = COLUMNS["command"], room - COLUMNS["command"].gap - _LEAST_COMMAND
    shown: list[Column] = []
    for name in chosen:
        parts = [fitted.get(part, COLUMNS[part]) for part in (("swatch", "user") if name == "user" else (name,))]
        cells = sum(column.gap + column.cells for column in parts)
        if name != "command" and cells <= room:
            shown += parts
            room -= cells
    return [*shown, last]


def _has_limit(row: Row) -> bool | None:
    """Return whether a row has a limit or declared none; None where that may be read yet."""
    if row.limit is not None or is_conclusive(row.process.declared):
        return True
    return None if is_pending(row.process.declared) else False


def _has_place(row: Row) -> bool | None:
    """Return whether it is known what a process runs in; None where that may be read yet."""
    return True if row.where else None if is_pending(row.process.declared) else False


def _has_figure(key: str) -> Callable[[Row], bool | None]:
    """Return the test whether a row has a figure to show; None where it was not measured yet."""
    return lambda row: None if PROCESS[key].read(row) is Reason.NO_SAMPLE else bool(PROCESS[key].cell(row, ""))


class Processes(RowList[Row]):
    """The process list."""

    fields = PROCESS

    def __init__(self) -> None:
        super().__init__()
        self.by = "memory"
        self.filter: ListFilter[Row] = ListFilter()
        self.mine = False
        self.chosen: tuple[str, ...] = ()
        """Ids of the columns that the user chose, in order; empty for those that suit the width."""
        self.only: Gpu | None = None
        """GPU that the list follows: only its processes are shown."""
        self.every: list[Row] = []
        """All rows, in the order of the GPUs."""
        self._order = process_order()
        self._useful = UsefulColumns[Row](
            {"used": _has_limit, "in": _has_place, **{key: _has_figure(key) for key in ("idle", "cpu", "rss")}}
        )
        self._view: View
        self._form = Form.FULL
        self._over: dict[tuple[str, int], Severity] = {}
        """Severity by GPU and PID of processes that are over declared."""
        self._joined: Frame | None = None
        """The frame that the rows are of."""
        self._style_set: StyleSet | None = None
        self._cells: dict[RowKey, tuple[tuple[object, ...], tuple[Cell, ...]]] = {}
        """Cells of each row in these styles and columns, and all that they show."""

    def read_rows(self, view: View) -> None:
        """Update the rows from a frame."""
        self._view = view
        if self._joined is not view.frame:
            self._joined = view.frame
            self.every = rows(view.frame.snapshot, view.frame.history, usages=view.frame.holdings.limit_usages)
            self._over = overshoots((*view.frame.alerts, *view.frame.early))
            self._useful.update(self.every, view.frame.received)
        here = [row for row in self.every if self.only is None or row.gpu.key == self.only.key]
        self.update_rows([row for row in here if (row.mine or not self.mine) and self.filter(row)])

    def draw(self, layout: Layout, width: int) -> list[Line]:
        """Draw the rows that were read last."""
        self._form = layout.form
        styles, room = self._view.styles, layout.rows
        empty: list[Line] = []
        if room and not self.found:
            empty = [*[blank(styles, width)] * min(room // 2, room - 1), centred(styles, self._why_empty(), width)]
        return self.lines(styles, width, room + layout.table_title, empty)

    def identity(self, row: Row) -> RowKey:
        """Return GPU, PID and start time."""
        return row.key

    def ordered(self, rows: Sequence[Row]) -> list[Row]:
        return self._order.sort(rows, self.by, reverse=self.reverse)

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        found = columns(self._form, self.every, styles.glyphs, self.chosen, width, self._useless)
        if styles is not self._style_set or found != self._columns or len(self._cells) > len(self.every):
            self._style_set, self._cells = styles, {}
        return found

    @property
    def _useless(self) -> frozenset[str]:
        """Columns without a value in any row; never the one that the rows are sorted by."""
        return self._useful.useless - {self.by}

    @property
    def shown_columns(self) -> tuple[str, ...]:
        """Ids of the columns that were chosen, or that suit the width."""
        hidden = {"swatch", *self._useless} - {"used"}
        return self.chosen or tuple(name for name in _FORMS[self._form] if name not in hidden)

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        """Return the cells of a row: those of the drawing before where all that they show is the same."""
        row, stray = self.found[place], self._view.strays.get(self.found[place].process.key)
        old, over = self._view.dimmed(row.gpu), self._over.get((row.gpu.key, row.holding.pid))
        gpu, idle = (row.gpu.index, row.gpu.memory.usable), row.idle and (duration(row.idle.seconds), row.idle.at_least)
        age = None if row.age is None else duration(row.age)
        facts = (row.process, row.holding, row.mine, row.together, idle, age, gpu, old, over, stray and stray.cause)
        shown = (*facts, styles.initial(row.process.uid), background)
        before = self._cells.get(row.key)
        if before is None or before[0] != shown:
            before = self._cells[row.key] = shown, self._make_cells(row, styles, background, old, over, stray)
        return before[1]

    def _make_cells(
        self,
        row: Row,
        styles: StyleSet,
        background: Background,
        old: bool,
        over: Severity | None,
        stray: Stray | None,
    ) -> tuple[Cell, ...]:
        glyphs = styles.glyphs
        cells: list[Cell] = []
        for column in self._columns:
            role: Role = "faint" if old else column.role
            if column.id == "command":
                cells.append(command_cell(row, stray))
            elif column is _REST:
                cells.append((("", "text"),))
            elif column.id == "swatch":
                uid = row.process.uid
                if glyphs.swatch.strip():
                    cells.append(((glyphs.swatch, styles.owner(uid).swatches[background]),))
                else:  # few colours: the initial
                    cells.append(((styles.initial(uid), styles.badge(uid, background)),))
            elif column.id == "user":
                cells.append(((row.owner, "strong" if row.mine else "text"),))
            elif column.id == "used":
                # The holding, the declared share, and the mark of an overshoot: `62/40 ▲`. Slashes are aligned.
                mark, role = mark_of(over, glyphs) if over else ("", role)
                held, declared = share_words(row)
                if "/" not in column.title:
                    cells.append(((f"{held}{mark}", role),))
                    continue
                slash = "/" if declared else " "
                cells.append(((f"{held}{slash}{f'{declared:<3}{mark}':<{len(column.title.partition('/')[2])}}", role),))
            else:
                cells.append(((PROCESS[column.id].cell(row, glyphs.missing, glyphs.least), role),))
        return tuple(cells)

    # -----------------------------------------------------------------------------------------------------------
    # Drawing

    def title_line(self, styles: StyleSet, width: int) -> Line:
        """Draw the titles, and which rows are shown in what order."""
        *columns, last = self._table_columns
        arrow = self._arrow(styles)
        builder = write_titles(columns, styles, self.by, arrow).gap(last.gap)
        sorted_by = last.id == self.by
        text = f"{last.title}{arrow * sorted_by}"
        # The last title gives way to the note about hidden rows, or about the sort column.
        unseen = all(column.id != self.by for column in self._columns)
        room = max(0, width - builder.cells - 1)
        hiding = self.mine or self.only is not None or bool(self.filter.text) or unseen
        summary = self._summary(styles, room if hiding and not sorted_by else room - cell_len(text) - 2, arrow * unseen)
        if cell_len(text) + 2 + cell_len(summary) <= room:
            builder.write(text, "text" if sorted_by else "muted")
        else:
            unseen = unseen or sorted_by
        if unseen and not summary:  # over the titles: figures are clear without titles, their order is not
            summary, shown = f"{arrow}{self.by}", builder.build(width - len(self.by) - 3)
            builder = LineBuilder(styles, "band").write_spans(shown)
        builder.gap(max(0, width - builder.cells - cell_len(summary) - 1))
        return builder.write(summary, "muted").build(width)

    def _summary(self, styles: StyleSet, room: int, arrow: str) -> str:
        """Return which rows are shown and in what order, in at most `room` cells; empty if nothing fits.

        `arrow` is given where no column on screen shows the order: the order is then the first word.
        """
        dot = f" {styles.glyphs.dot} "
        noun = f" row{'s' * (len(self.every) != 1)}"  # a process has one for each of its GPUs
        count = f"{len(self.found)} of {len(self.every)}"
        part = matching = (count if len(self.found) < len(self.every) else str(len(self.every))) + noun
        if on_screen := self.part(styles.glyphs.dash):
            part = on_screen + noun
        order = [f"by {PROCESS[self.by].name}{f' {arrow}' * bool(arrow)}"]
        hidden, short = order * bool(arrow), [f"{arrow}{self.by}"] * bool(arrow)
        mine = ["mine"] * self.mine
        gpu = [f"GPU {self.only.index}"] if self.only is not None else []
        chosen = [*(f"only {name}" for name in gpu), *[f"filter: {self.filter.text}"] * bool(self.filter.text), *mine]
        count_unread = unread_processes(self._view.frame.snapshot)
        unread = [f"{count_unread} share{'s' * (count_unread != 1)} unread (?)"] * bool(count_unread)
        brief = [*gpu, *[f"/{self.filter.text}"] * bool(self.filter.text), *mine]
        for words in (
            [*chosen, *unread, part, *order],
            [*chosen, *unread, part, *hidden],
            [*chosen, part, *order],
            [*chosen, matching, *hidden],
            [*brief, matching, *hidden],
            [*brief, *(hidden or [matching])],
            [*brief, *(short or [count])],
            [*gpu, *["filtered"] * bool(self.filter.text), *mine, *short],
            [*gpu, *short],
            short or [count],
        ):
            text = dot.join(words)
            if cell_len(text) <= room:
                return text
        return ""

    def _why_empty(self) -> str:
        if self.only is not None and all(row.gpu.key != self.only.key for row in self.every):
            note = f" ({self.only.holdings_note})" if self.only.holdings_note else ""
            return f"no process on GPU {self.only.index}{note}: Esc shows all GPUs"
        if len(self.every) and self.filter.text:
            who = "none of your processes" if self.mine else "no process"
            where = f" on GPU {self.only.index}" if self.only is not None else ""
            return f"{who}{where} matches “{self.filter.text}”: Esc clears the filter"
        if len(self.every):
            return "you have no process here: m shows everybody's"
        notes = {gpu.holdings_note for gpu in self._view.frame.snapshot.gpus if gpu.holdings_note}
        return " · ".join(sorted(notes)) or "no process uses a GPU"


def overshoots(alerts: Iterable[Alert]) -> dict[tuple[str, int], Severity]:
    """Return the severity of the worst overshoot, by GPU key and PID."""
    found: dict[tuple[str, int], Severity] = {}
    for alert in alerts:
        for pid in alert.pids if alert.rule == OVERSHOOT else ():
            found[alert.gpu, pid] = max(alert.severity, found.get((alert.gpu, pid), alert.severity))
    return found


def command_cell(row: Row, stray: Stray | None) -> Cell:
    """Return why a process is unusual (a stray, or an odd state), and its command."""
    word = row.process.state if row.process.state in _ODD_STATES else ""
    if stray is not None:
        word = f"stray ({stray.cause.value})"
    presence = row.process.presence
    role: Role = "text" if presence is Presence.SEEN else "warning" if presence is Presence.GONE else "muted"
    return (*(((word, "warning"), (" ", "text")) if word else ()), (row.brief, role))
