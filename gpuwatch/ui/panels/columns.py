"""The columns of the process list: which there are at which width, and how a row fills them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len

from gpuwatch.analysis.rows import Row, share_words
from gpuwatch.analysis.strays import Stray
from gpuwatch.model import Reading, known
from gpuwatch.ui.layout import Form
from gpuwatch.ui.theme import Glyphs, Role
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
