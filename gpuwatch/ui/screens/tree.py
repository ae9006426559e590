"""Tree screen: runs, their ranks and their workers, with sums for each level."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from textwrap import wrap
from typing import ClassVar, Final

import msgspec
from msgspec.structs import replace
from rich.cells import cell_len
from textual.binding import Binding, BindingType

from gpuwatch.analysis.runs import (
    LEFTOVERS,
    NODE,
    ORDERS,
    Node,
    NodeFlag,
    NodeKey,
    NodeKind,
    build_tree,
    count_flags,
    describe,
    flag_words,
    role_label,
    run_order,
)
from gpuwatch.base.text import fit
from gpuwatch.base.units import duration
from gpuwatch.model.fields import PROCESS
from gpuwatch.monitor import Frame
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.footer import Hint
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank
from gpuwatch.ui.draw.notice import nothing_words
from gpuwatch.ui.draw.row_list import ClickEffect, RowList
from gpuwatch.ui.draw.table import Cell, Column, field_column
from gpuwatch.ui.draw.theme import Background, Glyphs, Role, StyleSet
from gpuwatch.ui.draw.view import View
from gpuwatch.ui.screens.list_screen import SORT_KEYS, ListScreen

_GUIDES = ("├─", "└─", "│ ", "  ")
_GUIDES_ASCII = ("|-", "`-", "| ", "  ")


class Branch(msgspec.Struct, frozen=True):
    """Node on a line of the list, with its place in the tree."""

    node: Node
    path: tuple[NodeKey, ...]
    """Keys of the nodes above it, and its own."""
    last: tuple[bool, ...]
    """For the node and those above it, but the top one: whether it is the last of its siblings."""


_COLUMNS = (
    field_column(NODE["user"], 10, gap=2),
    field_column(NODE["gpu"], 8),
    field_column(NODE["memory"], 8, role="strong"),
    field_column(NODE["sm"], 6),
    field_column(NODE["idle"], 8),
    field_column(PROCESS["age"], 8, role="muted"),
    field_column(NODE["parts"], 13, role="muted"),
    field_column(NODE["in"], 26, role="muted", gap=2),
    field_column(NODE["pid"], 9, role="muted"),
)
_FIRST_TO_GO_BRANCHES = ("in", "age", "pid", "parts", "idle", "sm", "user", "gpu")
_WIDEST_USER: Final = 16


def columns(width: int, users: int, *, ascii_only: bool = False) -> list[Column]:
    """Return the columns that fit next to the names; `users` is the number of cells of the longest user name.

    In ASCII `≥10h02m` takes a cell more, and would touch the figure before it.
    """
    narrow = width < 70
    found = []
    for one in _COLUMNS:
        if one.id == "user":
            cells = 1 + min(max(users, 4), 7 if narrow else 10 if width < 150 else _WIDEST_USER)
            one = replace(one, cells=cells, gap=1 if narrow else 2)
        elif one.id == "in" and width < 150:
            one = replace(one, cells=16)
        elif one.id == "idle":
            one = replace(one, cells=one.cells + ascii_only)
        found.append(one)
    least = max(15, min(44, width * 3 // 10))
    for name in _FIRST_TO_GO_BRANCHES:
        if _room(width, found) - 1 >= least:
            break
        found = [one for one in found if one.id != name]
    return [Column("name", "run", max(0, _room(width, found) - 2), right=False), *found]


def _room(width: int, shown: Sequence[Column]) -> int:
    """Return the cells that the columns leave for the names."""
    return width - 1 - sum(one.cells + one.gap for one in shown)


def levels(room: int) -> int:
    """Return the number of levels of tree lines that fit before a name, in a column of `room` cells."""
    return max(0, (room - 9) // 2)


class _Runs:
    """Runs of text that are written one after the other into a fixed number of cells."""

    def __init__(self, cells: int, glyphs: Glyphs) -> None:
        self.left = cells
        self.runs: list[tuple[str, Role]] = []
        self._ellipsis = glyphs.ellipsis

    def write(self, words: str, role: Role, gap: int = 0, keep: int = 0) -> None:
        """Write words, cut so that `keep` cells stay free, and then `gap` blanks."""
        room = self.left - keep
        if words and room > 0:
            words = words if cell_len(words) <= room else fit(words, room, ellipsis=self._ellipsis)
            blanks = max(0, min(gap, self.left - cell_len(words)))
            self.runs += [(words, role), (" " * blanks, "text")]
            self.left -= cell_len(words) + blanks


def name_cell(branch: Branch, glyphs: Glyphs, room: int, *, is_open: bool) -> Cell:
    """Return tree lines, mark, troubles, label and name of a node; the last of the `room` cells stays blank."""
    node, runs = branch.node, _Runs(room - 1, glyphs)
    tee, corner, bar, gap = _GUIDES_ASCII if glyphs.ascii else _GUIDES
    guides = branch.last[max(0, len(branch.last) - levels(room)) :]
    for last in guides[:-1]:
        runs.write(gap if last else bar, "faint")
    for last in guides[-1:]:
        runs.write(corner if last else tee, "faint")
    opened, closed = ("-", "+") if glyphs.ascii else ("▾", "▸")
    runs.write(f"{(opened if is_open else closed) if node.children else ' '} ", "muted")
    trouble = flag_words(node)
    half = runs.left // 2
    if node.process is None:
        # Its name comes first, and leaves what is wrong with it half of the room.
        loud = node.kind is NodeKind.RUN or node.title == LEFTOVERS
        role: Role = "muted" if not loud else "strong" if node.kind is NodeKind.RUN else "text"
        runs.write(node.name, role, 2, min(cell_len(trouble) + 2, half) if trouble else 0)
        runs.write(trouble, "warning", 2)
        runs.write(node.run.launcher if node.run and node.kind is NodeKind.RUN else "", "muted")
    else:
        runs.write(trouble, "warning", 1, half if node.children else 0)
        label = role_label(node, top=len(branch.path) == 1)
        runs.write(label, "text" if node.kind is NodeKind.RANK and node.unlisted is None else "muted", 2)
        runs.write(node.name, "warning" if NodeFlag.ENDED in node.flags else "muted" if label else "text")
    return (*runs.runs, ("", "text"))


def cell(column: str, node: Node, view: View) -> str:
    glyphs, started = view.styles.glyphs, node.totals.started
    if column == "age":
        return glyphs.missing if started is None else duration(view.frame.snapshot.taken - started)
    return NODE[column].cell(node, glyphs.missing, glyphs.least)


def every(nodes: Sequence[Node]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from every(node.children)


FEW: Final = 16
"""Largest number of processes of an own run that is open from the start."""


class TreeList(RowList[Branch]):
    """List of the tree's nodes; the cursor follows its node, or the node above it where that is closed or has ended."""

    fields = NODE
    sorts = ORDERS
    reversible = False

    def __init__(self) -> None:
        super().__init__()
        self.by = "memory"
        self.nodes: list[Node] = []
        self.view: View
        """Frame to draw, with the age of its figures."""
        self._order = run_order()
        self._path: tuple[NodeKey, ...] = ()
        """Path of the node under the cursor."""
        self._opened: dict[NodeKey, bool] = {}
        """Nodes that the user opened (True) or closed."""
        self._every: bool | None = None
        """Whether the user opened or closed everything, new nodes included; None for neither."""

    @property
    def chosen(self) -> Node | None:
        return self.selected.node if self.selected else None

    def update_nodes(self, nodes: Sequence[Node]) -> None:
        self.nodes = self._order.sort(nodes, self.by)
        branches: list[Branch] = []
        for node in self.nodes:
            self._add_branches(branches, node, (), ())
        keys = {branch.path[-1] for branch in branches}
        self._key = next((key for key in reversed(self._path) if key in keys), None)
        self.update_rows(branches)

    def _add_branches(
        self, branches: list[Branch], node: Node, above: tuple[NodeKey, ...], last: tuple[bool, ...]
    ) -> None:
        path = (*above, node.key)
        branches.append(Branch(node, path, last))
        if self.is_open(node):
            for place, child in enumerate(node.children, 1):
                self._add_branches(branches, child, path, (*last, place == len(node.children)))

    def identity(self, row: Branch) -> Hashable:
        return row.path[-1]

    def sort_rows(self) -> None:
        self.update_nodes(self.nodes)

    @property
    def orders(self) -> list[str]:
        """All orders, also those that have no column on screen."""
        return list(ORDERS)

    def is_open(self, node: Node) -> bool:
        if not node.children:
            return False
        chosen = self._opened.get(node.key, self._every)
        if chosen is not None:
            return chosen
        if node.kind is NodeKind.GROUP:
            return node.title == LEFTOVERS
        return node.kind is NodeKind.RUN and node.mine and node.totals.processes <= FEW

    # -- moving about ----------------------------------------------------------------------------------------------

    def right(self) -> None:
        """Open the node; move to its first child where it is open."""
        node = self.chosen
        if node is not None and self.is_open(node):
            self.move(1)
        else:
            self.set_open(True)

    def left(self) -> None:
        """Close the node; move to the node above it where it is closed."""
        node = self.chosen
        if node is None:
            return
        if self.is_open(node):
            self.set_open(False)
            return
        above = self._path[:-1]
        place = next((place for place, one in enumerate(self.found) if one.path == above), self.cursor)
        self.move(place - self.cursor)

    def set_open(self, wanted: bool | None = None) -> None:
        """Open or close the node under the cursor; None toggles it."""
        node = self.chosen
        if node is not None and node.children:
            self._opened[node.key] = not self.is_open(node) if wanted is None else wanted
            self.update_nodes(self.nodes)

    def toggle_every(self) -> None:
        """Open everything; close it where all is open already."""
        self._every = any(not self.is_open(node) for node in every(self.nodes) if node.children)
        self._opened.clear()
        self.update_nodes(self.nodes)

    def to_top(self) -> None:
        super().to_top()
        self._path = ()

    def _put(self, place: int) -> None:
        super()._put(place)
        self._path = self.found[self.cursor].path if self.found else ()

    def react(self, x: int) -> ClickEffect:
        """Open or close the node where its mark was clicked."""
        branch = self.found[self.cursor]
        mark = 2 + 2 * min(len(branch.last), levels(self._columns[0].cells))
        if not (mark <= x < mark + 2 and branch.node.children):
            return ""
        self.set_open()
        return "moved"

    # -- drawing ---------------------------------------------------------------------------------------------------

    def columns(self, styles: StyleSet, width: int) -> list[Column]:
        longest = max((cell_len(node.user) for node in every(self.nodes)), default=0)
        return columns(width, longest, ascii_only=styles.glyphs.ascii)

    def cells(self, place: int, styles: StyleSet, background: Background) -> tuple[Cell, ...]:
        branch = self.found[place]
        node = branch.node
        old = any(self.view.dimmed(part.gpu) for part in node.totals.held)
        cells = [name_cell(branch, styles.glyphs, self._columns[0].cells, is_open=self.is_open(node))]
        for column in self._columns[1:]:
            if column.id == "user":
                one_person = node.process is not None or node.uid is not None
                swatch = styles.glyphs.swatch if one_person else " ", styles.owner(node.uid).swatches[background]
                cells.append((swatch, (node.user, "strong" if node.mine else "text")))
                continue
            role: Role = "faint" if old and column.id in ("memory", "sm", "idle") else column.role
            if column.id == "gpu" and not node.totals.held:
                role = "muted"
            cells.append(((cell(column.id, node, self.view), role),))
        return tuple(cells)


WHOLE: Final = 40
"""Cells of the longest part of a description that is never broken into two lines."""


class TreeScreen(ListScreen[TreeList, Branch]):
    """Screen that shows runs as a tree."""

    LIST = TreeList
    NAME = TITLE = "tree"
    KEYS = (
        Binding("escape,q,t", "close", "back", id="tree.close", tooltip="Back to the dashboard"),
        Binding("enter", "choose", "detail", id="tree.choose", tooltip="Show the process, or open or close the run"),
        Binding("K,f9", "end_process", "end", id="tree.end", tooltip="End this process or run (asks first)"),
        Binding("m", "mine", "mine", id="tree.mine", tooltip="Show only your own runs, or everybody's"),
        *SORT_KEYS,
        Binding("right,l,plus,equals_sign", "right", "open", id="tree.open", tooltip="Open, or go to the first child"),
        Binding("left,h,minus", "left", "close", id="tree.close_node", tooltip="Close, or go to the parent"),
        Binding("asterisk", "toggle_every", "all", id="tree.all", tooltip="Open or close everything"),
        Binding("space", "fold", "open or close", show=False, id="tree.fold", tooltip="Open or close"),
    )
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]
    DETAIL_LINES = ((24, 3), (16, 2), (6, 1))

    _frame: Frame
    _mine = False
    """Whether only the user's own runs are shown."""

    def read_rows(self) -> None:
        seen = self._frame.snapshot
        self.style_set.assign_colors(process.uid for process in seen.processes if process.uid is not None)
        self.rows.update_nodes(build_tree(self._frame.holdings, self._frame.history, mine=self._mine))

    def paint(self) -> None:
        self.rows.view = View(self._frame, self._clock(), self.style_set, self._frame.snapshot.interval)
        super().paint()

    def summary(self, room: int) -> list[tuple[str, Role]]:
        """Return the number of runs and processes, the order, and problems."""
        nodes = self.rows.nodes
        runs = sum(len(node.children) if node.kind is NodeKind.GROUP else 1 for node in nodes)
        unlisted = sum(node.totals.holders for node in nodes)
        processes = sum(node.totals.processes for node in nodes) - unlisted  # as the dashboard counts them
        more = f", {unlisted} more not listed" * (unlisted > 0)
        words = [f"{runs} run{'s' * (runs != 1)}", f"{processes} process{'es' * (processes != 1)}{more}"]
        shown = f" {self.style_set.glyphs.dot} ".join(
            (words if self._frame.snapshot.gpus else []) + ["mine"] * self._mine
        )
        return [(shown, "muted"), (count_flags(nodes), "warning"), (f"by {NODE[self.rows.by].name}", "muted")]

    def detail(self, width: int, lines: int) -> list[Line]:
        """Draw the description of the node under the cursor, below a blank line where there is room."""
        node, room = self.rows.chosen, max(1, width - 3)
        parts = describe(node).split(" · ") if node is not None else []
        # Lines break between the parts, and inside a part only if it is long.
        whole = [part.replace(" ", "\xa0") if cell_len(part) <= WHOLE else part for part in parts]
        found = [line.replace("\xa0", " ") for line in wrap(" · ".join(whole), room, break_on_hyphens=False)]
        kept = found[:lines]
        if len(found) > lines:
            kept[-1] = fit(" ".join(found[lines - 1 :]), room, ellipsis=self.style_set.glyphs.ellipsis)
        drawn = [LineBuilder(self.style_set).gap(2).write(part, "text").build(width) for part in kept]
        above = [blank(self.style_set, width)] * (len(drawn) < lines)
        return (above + drawn + [blank(self.style_set, width)] * lines)[:lines]

    def key_words(self) -> Mapping[str, str]:
        """Return what Enter and the arrows do on this node; for a run or a group, Enter does what one arrow does."""
        node = self.rows.chosen
        if node is None or node.is_listed:
            return {}
        if node.process is not None:
            return {"choose": ""}
        if self.rows.is_open(node):
            return {"choose": "close", "left": "", "right": "step in"}
        return {"choose": "open", "right": ""}

    def hints(self) -> list[Hint]:
        shown = super().hints()
        if not self.style_set.glyphs.ascii:
            return shown
        return [(key.replace("→", "+").replace("←", "-"), word, action) for key, word, action in shown]

    def why_empty(self) -> Sequence[str]:
        seen = self._frame.snapshot
        if self._mine and any(gpu.holdings for gpu in seen.gpus):
            return ["you have no process here: m shows everybody's"]
        return [nothing_words(seen) or "no process uses a GPU"]

    # -- actions ---------------------------------------------------------------------------------------------------

    def action_choose(self) -> None:
        """Show the detail of a process; open or close any other node.

        A process that NVML does not list has no page: the lines below the list show everything about it.
        """
        tree = self.rows
        node = tree.chosen
        if node is None or node.process is None:
            tree.set_open()
            self.paint()
        elif node.is_listed and node.row_key is not None:
            actions_of(self).show_detail(node.row_key)

    def action_right(self) -> None:
        self.rows.right()
        self.paint()

    def action_left(self) -> None:
        self.rows.left()
        self.paint()

    def action_fold(self) -> None:
        self.rows.set_open()
        self.paint()

    def action_toggle_every(self) -> None:
        self.rows.toggle_every()
        self.paint()

    def action_end_process(self) -> None:
        """Ask whether to end the process, or the run where the cursor is on a run; groups cannot be ended."""
        node = self.rows.chosen
        target = node.process_node if node is not None and node.kind is not NodeKind.GROUP else None
        if node is None or target is None or target.row_key is None:
            return
        whole_run = node.key[0] == "run" and node.totals.processes > 1
        actions_of(self).ask_to_end(target.row_key, whole_run=whole_run)

    def action_mine(self) -> None:
        self._mine = not self._mine
        self.refresh_frame(self._frame)
