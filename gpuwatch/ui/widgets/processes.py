"""Process list: columns, sorting, filter, and a cursor that stays on its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len
from rich.style import Style
from textual import events

from gpuwatch.alerts.alert import Alert, Severity
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.analysis.rows import SORTS, Filter, Row, SteadyOrder, rows, share_words
from gpuwatch.analysis.strays import Stray
from gpuwatch.model import Presence, Reading, known
from gpuwatch.ui.layout import Form, Layout
from gpuwatch.ui.theme import Glyphs, Kit, Role
from gpuwatch.ui.view import View
from gpuwatch.ui.widgets.gpus import mark_of
from gpuwatch.ui.widgets.lines import CursorList, Line, Pen, blank, centred
from gpuwatch.units import duration, gib

QUIET_S = 60
"""Seconds of idleness that are not worth showing."""
LONGEST_USER = 16


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    id: str
    """Its name in `rows.SORTS`."""
    title: str
    cells: int
    """Width; 0 for the last one, which takes what is left."""
    right: bool = True
    role: Role = "text"
    behind: int = 0
    """Cells behind the slash of a cell that has one."""


_ALL = {
    "gpu": Column("gpu", "GPU", 4),
    "pid": Column("pid", "PID", 8, role="muted"),
    "user": Column("user", "user", 8, right=False),
    "memory": Column("memory", "GiB", 7, role="strong"),
    "share": Column("share", "held/decl%", 12, behind=5),
    "sm": Column("sm", "SM %", 6),
    "cpu": Column("cpu", "CPU %", 7),
    "rss": Column("rss", "RSS GiB", 9, role="muted"),
    "idle": Column("idle", "idle", 8),
    "age": Column("age", "age", 8, role="muted"),
    "in": Column("in", "in", 18, right=False, role="muted"),
    "command": Column("command", "command", 0, right=False),
}
_FORMS = {
    Form.FULL: tuple(_ALL),
    Form.MEDIUM: ("gpu", "pid", "user", "memory", "share", "sm", "cpu", "idle", "age", "command"),
    Form.COMPACT: ("gpu", "pid", "user", "memory", "share", "sm", "idle", "command"),
    Form.STRIP: ("gpu", "pid", "user", "memory", "sm", "command"),
}
_WIDE_SHARE = Column("share", "held/declared %", 18, behind=10)
"""As that of other forms, its title has the slash where the cells have theirs."""
_USER_CELLS = {Form.FULL: LONGEST_USER, Form.MEDIUM: 14, Form.COMPACT: 10, Form.STRIP: 8}


def columns(form: Form, rows: Sequence[Row], *, ascii_only: bool = False) -> list[Column]:
    """Give the columns of a form; that of the users is as wide as the longest name, within bounds.

    In ASCII `≥10h02m` takes a cell more, and would touch the figure before it.
    """
    longest = max((cell_len(row.owner) for row in rows), default=0)
    users = min(_USER_CELLS.get(form, 8), max(5 if form is Form.STRIP else 8, longest))
    fitted = {
        "user": replace(_ALL["user"], cells=users),
        "idle": replace(_ALL["idle"], cells=_ALL["idle"].cells + ascii_only),
    }
    if form is Form.FULL:
        fitted["share"] = _WIDE_SHARE
    return [fitted.get(name, _ALL[name]) for name in _FORMS.get(form, _FORMS[Form.STRIP])]


def cell(column: str, row: Row, taken: float, glyphs: Glyphs) -> str:
    """Give what a row shows in a column of one figure; `taken` is the snapshot's wall-clock time."""
    return _CELLS[column](row, taken, glyphs)


def share_cell(row: Row, mark: str, behind: int) -> str:
    """Give the holding and the declared share, `62/40 ▲`: `mark` is that of an overshoot, empty for none.

    The slash has `behind` cells to its right, so that in a column it stands in one place; so does the mark.
    """
    held, declared = share_words(row)
    return f"{held}/{f'{declared:<3}{mark}':<{behind}}"


def state_word(row: Row, stray: Stray | None = None) -> str:
    """Say what is unusual about a process: that it is a stray, or its state; empty for one that runs or waits."""
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


ASCENDING = ("gpu", "pid", "user", "in", "command")
"""Columns that `rows.SORTS` begins with the smallest."""


class Processes(CursorList):
    """The process list."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.by = "memory"
        """Column by which rows are sorted."""
        self.reverse = False
        self.filter = Filter()
        self.mine = False
        self.every: list[Row] = []
        """All rows, in the order of the GPUs."""
        self.total = 0
        """Rows before filtering."""
        self.found: list[Row] = []
        """Rows that match, in order."""
        self._order = SteadyOrder()
        self._columns: list[Column] = []
        self._titles = 1
        """Lines above the rows: none where there is no room."""
        self._over: dict[tuple[str, int], Severity] = {}
        """By GPU and pid: who holds more than was declared, and how bad it is."""

    @property
    def selected(self) -> Row | None:
        """The row under the cursor."""
        return self.found[self.cursor] if self.cursor < len(self.found) else None

    def take(self, view: View) -> None:
        """Take in the rows of a frame; the cursor follows its process, and stays in place if that is gone."""
        every = rows(view.frame.snapshot, view.frame.history)
        self.every = every
        self.total = len(every)
        kept = [row for row in every if self.filter(row) and (row.mine or not self.mine)]
        self.found = self._order.sort(kept, self.by, reverse=self.reverse)
        self._settle([row.key for row in self.found])

    def draw(self, view: View, layout: Layout, width: int) -> None:
        """Draw the rows that `take` took in."""
        kit = view.kit
        shown = self._shown(layout.rows)
        self._columns = columns(layout.form, self.every, ascii_only=kit.glyphs.ascii)
        self._titles = layout.table_title
        self._over = overshoots(view.frame.alerts)
        lines = [self._title(kit, width)] if layout.table_title else []
        lines += [self._row(self.found[place], view, width, place == self.cursor) for place in shown]
        empty = [] if shown or not layout.rows else _nothing(self._why_empty(view), kit, width, layout.rows)
        lines += empty
        lines += [blank(kit, width)] * (layout.rows + layout.table_title - len(lines))
        self.show(lines)

    # -----------------------------------------------------------------------------------------------------------
    # Moving about

    def sort_by(self, column: str) -> None:
        """Sort by a column of `rows.SORTS`; once more turns the order round."""
        self.reverse = not self.reverse if column == self.by else False
        self.by = column
        self.to_top()
        self.post_message(self.Moved())

    def sort_next(self, by: int) -> None:
        """Sort by the column to the right or the left of the present one, among those on screen."""
        shown = [column.id for column in self._columns] or list(SORTS)
        place = shown.index(self.by) if self.by in shown else 0
        self.by, self.reverse = shown[(place + by) % len(shown)], False
        self.to_top()
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """Select the row, open it at the second click, or sort by the column whose title was hit."""
        if event.y < self._titles:
            hit = self._column_at(event.x)
            if hit:
                self.sort_by(hit)
            return
        index = self.top + event.y - self._titles
        if index >= len(self.found):
            return
        again = index == self.cursor and event.chain > 1
        self._put(index)
        self.post_message(self.Chosen() if again else self.Moved())

    def _column_at(self, x: int) -> str | None:
        left = 2
        for column in self._columns:
            left += column.cells + (0 if column.right else 3 if column.id == "user" else 2)
            if x < left or not column.cells:
                return column.id
        return None

    # -----------------------------------------------------------------------------------------------------------
    # Drawing

    def _title(self, kit: Kit, width: int) -> Line:
        arrow = kit.glyphs.up if (self.by in ASCENDING) != self.reverse else kit.glyphs.down
        pen = Pen(kit, "band").gap(2)
        for column in self._columns:
            sorted_by = column.id == self.by
            text = f"{arrow}{column.title}" if sorted_by and column.right else column.title
            text += arrow if sorted_by and not column.right else ""
            if not column.right:
                pen.gap(3 if column.id == "user" else 2)
            if not column.cells:
                break
            pen.write(text, "text" if sorted_by else "muted", column.cells, right=column.right)
        # The last title gives way to what says that rows are hidden, or the column that they are sorted by.
        unseen = all(column.id != self.by for column in self._columns)
        room = max(0, width - pen.cells - 1)
        hiding = self.mine or bool(self.filter.text) or unseen
        summary = self._summary(kit, room if hiding and not sorted_by else room - cell_len(text) - 2, arrow * unseen)
        if cell_len(text) + 2 + cell_len(summary) <= room:
            pen.write(text, "text" if sorted_by else "muted")
        else:
            unseen = unseen or sorted_by
        if unseen and not summary:  # over the titles: their figures are told apart without them, their order is not
            summary, shown = f"{arrow}{self.by}", pen.line(width - len(self.by) - 3)
            pen = Pen(kit, "band")
            for span in shown:
                pen.write_styled(span.text, span.style, span.cells)
        pen.gap(max(0, width - pen.cells - cell_len(summary) - 1))
        return pen.write(summary, "muted").line(width)

    def _summary(self, kit: Kit, room: int, arrow: str) -> str:
        """Return which rows are shown and in what order, in `room` cells; empty where nothing fits.

        `arrow` is given where no column on screen shows the order: it is then named before all else.
        """
        dot = f" {kit.glyphs.dot} "
        noun = f" row{'s' * (self.total != 1)}"  # a process has one for each of its GPUs
        count = f"{len(self.found)} of {self.total}"
        part = matching = (count if len(self.found) < self.total else str(self.total)) + noun
        if len(self.found) > self.page_rows:
            last = min(self.top + self.page_rows, len(self.found))
            part = f"{self.top + 1}{kit.glyphs.dash}{last} of {len(self.found)}{noun}"
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

    def _row(self, row: Row, view: View, width: int, under_cursor: bool) -> Line:
        kit = view.kit
        pen = Pen(kit, "cursor" if under_cursor else "base").write(
            kit.glyphs.cursor if under_cursor else "", "strong", 2
        )
        old = view.dimmed(row.gpu)
        for column in self._columns:
            if column.id == "command":
                self._command(pen.gap(2), row, width, view.strays.get(row.process.key))
            elif column.id == "user":
                # An initial is a letter: without a blank behind it, it would be read as part of the name.
                drawn = bool(kit.glyphs.swatch.strip())
                pen.gap(2 if drawn else 1).write_styled(*_swatch(kit, row.process.uid, pen)).gap(0 if drawn else 1)
                pen.write(row.owner, "strong" if row.mine else "text", column.cells)
            elif column.id == "share":
                over = self._over.get((row.gpu.key, row.holding.pid))
                mark, role = mark_of(over, kit.glyphs) if over else ("", "faint" if old else column.role)
                pen.write(share_cell(row, mark, column.behind), role, column.cells, right=True)
            else:
                text = cell(column.id, row, view.frame.snapshot.taken, kit.glyphs)
                pen.gap(0 if column.right else 2)
                pen.write(text, "faint" if old else column.role, column.cells, right=column.right)
        return pen.line(width)

    @staticmethod
    def _command(pen: Pen, row: Row, width: int, stray: Stray | None) -> None:
        word = state_word(row, stray)
        if word:
            pen.write(word, "warning").gap()
        presence = row.process.presence
        role: Role = "text" if presence is Presence.SEEN else "warning" if presence is Presence.GONE else "muted"
        pen.write(row.brief, role, max(0, width - pen.cells))

    def _why_empty(self, view: View) -> str:
        if self.total and self.filter.text:
            quote = self.filter.text
            return f"no process matches “{quote}”{' among yours' * self.mine}: Esc clears the filter"
        if self.total:
            return "none of these processes is yours: m shows everybody's"
        notes = {gpu.holdings_note for gpu in view.frame.snapshot.gpus if gpu.holdings_note}
        return " · ".join(sorted(notes)) or "no process holds a GPU"


def overshoots(alerts: Iterable[Alert]) -> dict[tuple[str, int], Severity]:
    """Give the severity of the worst overshoot by GPU key and pid."""
    found: dict[tuple[str, int], Severity] = {}
    for alert in alerts:
        for pid in alert.pids if alert.rule == OVERSHOOT else ():
            found[alert.gpu, pid] = max(alert.severity, found.get((alert.gpu, pid), alert.severity))
    return found


def _swatch(kit: Kit, uid: int | None, pen: Pen) -> tuple[str, Style]:
    """Give the mark that goes with an owner's name, as their part of the bars has it; an initial where hues are few."""
    if kit.glyphs.swatch.strip():
        return kit.glyphs.swatch, kit.inks.swatch(uid, pen.ground)
    return kit.inks.initial(uid), kit.inks.badge(uid, pen.ground)


def _nothing(words: str, kit: Kit, width: int, rows: int) -> list[Line]:
    return [*[blank(kit, width)] * max(0, min(rows // 2, rows - 1)), centred(kit, words, width)]
