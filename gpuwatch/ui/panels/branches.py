"""One line of the tree: guides, what is wrong, name, and the columns that a width has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rich.cells import cell_len

from gpuwatch.analysis.rows import Row
from gpuwatch.analysis.runs import ORPHAN_HOLDERS, Flag, Kind, Node, NodeKey, Sum, label, parts, wrong
from gpuwatch.text import fit
from gpuwatch.ui.theme import Glyphs, Role
from gpuwatch.ui.view import View
from gpuwatch.ui.widgets.lines import Line, Pen
from gpuwatch.ui.widgets.processes import QUIET_S
from gpuwatch.units import duration, gib, ranges

_GUIDES = ("├─", "└─", "│ ", "  ")
_GUIDES_ASCII = ("|-", "`-", "| ", "  ")


@dataclass(frozen=True, slots=True)
class Branch:
    """A node that shows, and where."""

    node: Node
    path: tuple[NodeKey, ...]
    """Those above it, and itself."""
    last: tuple[bool, ...]
    """For it and each above but the first: whether nothing stands below it beside it."""

    @property
    def top(self) -> bool:
        """Whether it stands below none."""
        return len(self.path) == 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column behind the names."""

    id: str
    title: str
    cells: int
    right: bool = True
    role: Role = "text"
    ahead: int = 0
    """Blank cells before it."""


_COLUMNS = (
    Column("user", "user", 10, right=False, ahead=2),
    Column("gpu", "GPUs", 8),
    Column("memory", "GiB", 8, role="strong"),
    Column("sm", "SM %", 6),
    Column("idle", "idle", 8),
    Column("age", "age", 8, role="muted"),
    Column("parts", "procs/ranks", 13, role="muted"),
    Column("in", "in", 26, right=False, role="muted", ahead=2),
    Column("pid", "PID", 9, role="muted"),
)
_FIRST_TO_GO = ("in", "age", "pid", "parts", "idle", "sm", "user", "gpu")
_WIDEST_USER: Final = 16


def columns(width: int, users: int, *, ascii_only: bool = False) -> list[Column]:
    """Give the columns that leave a width enough room for the names; `users` is the longest user name's cells.

    In ASCII `≥10h02m` takes a cell more, and would touch the figure before it.
    """
    narrow = width < 70
    found = []
    for one in _COLUMNS:
        if one.id == "user":
            cells = 1 + min(max(users, 4), 7 if narrow else 10 if width < 150 else _WIDEST_USER)
            one = replace(one, cells=cells, ahead=1 if narrow else 2)
        elif one.id == "in" and width < 150:
            one = replace(one, cells=16)
        elif one.id == "idle":
            one = replace(one, cells=one.cells + ascii_only)
        found.append(one)
    least = max(15, min(44, width * 3 // 10))
    for name in _FIRST_TO_GO:
        if width - 2 - sum(one.cells + one.ahead for one in found) >= least:
            break
        found = [one for one in found if one.id != name]
    return found


def room_for_names(width: int, shown: Sequence[Column]) -> int:
    """Give the cells before the columns, which leave one blank at the right edge."""
    return width - 1 - sum(one.cells + one.ahead for one in shown)


def levels(room: int) -> int:
    """Give how many guides there is room for beside a name."""
    return max(0, (room - 11) // 2)


def titles(shown: Sequence[Column], view: View, width: int, by: str) -> Line:
    """Draw the titles of the columns; `by` is the one of the order."""
    glyphs = view.kit.glyphs
    pen = Pen(view.kit, "band").gap(2)
    arrow = glyphs.up if by in ("name", "user", "gpu") else glyphs.down
    pen.write(f"run{arrow}" if by == "name" else "run", "text" if by == "name" else "muted")
    pen.gap(max(0, room_for_names(width, shown) - pen.cells))
    for column in shown:
        mark = arrow if column.id == by else ""
        title = f"{mark}{column.title}" if column.right else f"{column.title}{mark}"
        pen.gap(column.ahead).write(title, "text" if mark else "muted", column.cells, right=column.right)
    return pen.line(width)


def tree_line(
    branch: Branch, shown: Sequence[Column], view: View, width: int, *, under_cursor: bool, is_open: bool
) -> Line:
    """Draw one node."""
    kit, node = view.kit, branch.node
    pen = Pen(kit, "cursor" if under_cursor else "base")
    pen.write(kit.glyphs.cursor if under_cursor else "", "strong", 2)
    room = room_for_names(width, shown)
    _draw_name(pen, branch, kit.glyphs, room, is_open=is_open)
    pen.gap(max(0, room - pen.cells))
    old = any(view.dimmed(row.gpu) for row in _rows(node))
    for column in shown:
        pen.gap(column.ahead)
        if column.id == "user":
            one_person = node.process is not None or node.uid is not None
            pen.write_styled(kit.glyphs.swatch if one_person else " ", kit.inks.swatch(node.uid, pen.ground))
            pen.write(node.user, "strong" if node.mine else "text", column.cells - 1)
            continue
        role: Role = "faint" if old and column.id in ("memory", "sm", "idle") else column.role
        if column.id == "gpu" and not node.totals.gpus:
            role = "muted"
        pen.write(cell(column.id, node, view), role, column.cells, right=column.right)
    return pen.line(width)


def _draw_name(pen: Pen, branch: Branch, glyphs: Glyphs, room: int, *, is_open: bool) -> None:
    """Draw guides, mark, what is wrong, label and name; a blank is left before the columns."""
    node, end = branch.node, room - 1

    def put(words: str, role: Role, gap: int = 0, spare: int = 0) -> None:
        left = end - pen.cells - spare
        if words and left > 0:
            words = words if cell_len(words) <= left else fit(words, left, ellipsis=glyphs.ellipsis)
            pen.write(words, role).gap(max(0, min(gap, end - pen.cells)))

    tee, corner, bar, gap = _GUIDES_ASCII if glyphs.ascii else _GUIDES
    guides = branch.last[max(0, len(branch.last) - levels(room)) :]
    for place, last in enumerate(guides, 1):
        here = place == len(guides)
        put((corner if last else tee) if here else (gap if last else bar), "faint")
    opened, closed = ("-", "+") if glyphs.ascii else ("▾", "▸")
    put(f"{(opened if is_open else closed) if node.children else ' '} ", "muted")
    trouble = wrong(node)
    if node.process is None:
        # Its name comes first, and leaves what is wrong with it half of the room.
        spare = min(cell_len(trouble) + 2, (end - pen.cells) // 2) if trouble else 0
        loud = node.kind is Kind.RUN or node.title == ORPHAN_HOLDERS
        put(node.name, ("strong" if node.kind is Kind.RUN else "text") if loud else "muted", 2, spare)
        put(trouble, "warning", 2)
        put(node.job.launcher if node.job and node.kind is Kind.RUN else "", "muted")
        return
    put(trouble, "warning", 1, (end - pen.cells) // 2 if node.children else 0)
    before = label(node, top=branch.top)
    put(before, "text" if node.kind is Kind.RANK and node.unlisted is None else "muted", 2)
    put(node.name, "warning" if Flag.GONE in node.flags else "muted" if before else "text")


def cell(column: str, node: Node, view: View) -> str:
    """Give what a node shows in a column."""
    glyphs, totals = view.kit.glyphs, node.totals
    if column == "gpu":
        return _gpus(node)
    if column == "memory":
        return _figure(totals.memory, glyphs, gib)
    if column == "sm":
        return _figure(totals.sm, glyphs, lambda value: f"{value:.0f}")
    if column == "idle":
        if totals.idle is None:
            return glyphs.missing
        quiet = totals.idle.seconds < QUIET_S
        return "" if quiet else (glyphs.least if totals.idle.at_least else "") + duration(totals.idle.seconds)
    if column == "age":
        return glyphs.missing if totals.started is None else duration(view.frame.snapshot.taken - totals.started)
    if column == "parts":
        return parts(node)
    if column == "in":
        return node.where
    return str(node.process.pid) if node.process is not None else ""


def _figure(figure: Sum, glyphs: Glyphs, show: Callable[[float], str]) -> str:
    if figure.value is None:
        return glyphs.missing
    return (glyphs.least if figure.missing else "") + show(figure.value)


def _gpus(node: Node) -> str:
    """Print the GPUs with memory held; in brackets those of which only the device files are open."""
    held = [one.gpu for one in node.totals.gpus]
    words = ranges(held or node.totals.opened)
    if len(words) > 7:
        words = f"{len(held or node.totals.opened)} GPUs"
    return words if held or not words else f"({words})"


def every(nodes: Sequence[Node]) -> Iterator[Node]:
    """Give nodes with all that is below them."""
    for node in nodes:
        yield node
        yield from every(node.children)


def _rows(node: Node) -> Iterator[Row]:
    yield from node.rows
    for child in node.children:
        yield from _rows(child)
