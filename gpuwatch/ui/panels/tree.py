"""The tree of runs, ranks and workers: what is open, and the node under the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from textual import events
from textual.message import Message

from gpuwatch.analysis.runs import ORPHAN_HOLDERS, SORTS, Kind, Node, NodeKey
from gpuwatch.ui.panels.branches import Branch, Column, columns, every, levels, room_for_names, titles, tree_line
from gpuwatch.ui.view import View
from gpuwatch.ui.widgets.lines import CursorList, blank, centred

FEW: Final = 16
"""Processes up to which a run of the viewer's own is open from the start."""


class TreeList(CursorList):
    """The tree. The cursor follows its node; where that has gone or is closed away, what it stood below."""

    class Sorted(Message):
        """The title of a column was clicked."""

        def __init__(self, column: str) -> None:
            self.column = column
            super().__init__()

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.nodes: list[Node] = []
        self.branches: list[Branch] = []
        """All that shows, from top to bottom."""
        self._path: tuple[NodeKey, ...] = ()
        """The node under the cursor, with those above it."""
        self._opened: dict[NodeKey, bool] = {}
        """What the user opened and closed."""
        self._every: bool | None = None
        """Whether the user opened or closed everything, what is new included."""
        self._columns: list[Column] = []

    @property
    def chosen(self) -> Node | None:
        """The node under the cursor."""
        return self.branches[self.cursor].node if self.branches else None

    def take(self, nodes: Sequence[Node]) -> None:
        """Take the runs of a frame, in order."""
        self.nodes = list(nodes)
        self._spread()

    def is_open(self, node: Node) -> bool:
        """Say whether what is below a node shows."""
        if not node.children:
            return False
        given = self._opened.get(node.key, self._every)
        if given is not None:
            return given
        if node.kind is Kind.GROUP:
            return node.title == ORPHAN_HOLDERS
        return node.kind is Kind.RUN and node.mine and node.totals.processes <= FEW

    # -- moving about ------------------------------------------------------------------------------------------

    def right(self) -> None:
        """Open the node, or step into it where it is open."""
        node = self.chosen
        if node is not None and self.is_open(node):
            self.move(1)
        else:
            self.set_open(True)

    def left(self) -> None:
        """Close the node, or step to the one that it stands below."""
        node = self.chosen
        if node is None:
            return
        if self.is_open(node):
            self.set_open(False)
            return
        above = self._path[:-1]
        place = next((place for place, one in enumerate(self.branches) if one.path == above), self.cursor)
        self.move(place - self.cursor)

    def set_open(self, wanted: bool | None = None) -> None:
        """Open or close the node under the cursor; without a wish, turn it round."""
        node = self.chosen
        if node is not None and node.children:
            self._opened[node.key] = not self.is_open(node) if wanted is None else wanted
            self._spread()
        self.post_message(self.Moved())

    def to_top(self) -> None:
        """Put the cursor on whatever will be the first line: the order is about to change."""
        super().to_top()
        self._path = ()

    def toggle_every(self) -> None:
        """Open everything; close it where all is open already."""
        self._every = any(not self.is_open(node) for node in every(self.nodes) if node.children)
        self._opened.clear()
        self._spread()
        self.post_message(self.Moved())

    def _spread(self) -> None:
        """Lay out what shows, and find the cursor's node again."""
        self.branches = []
        for node in self.nodes:
            self._branch(node, (), ())
        keys = [branch.path[-1] for branch in self.branches]
        self._key = next((key for key in reversed(self._path) if key in keys), None)
        self._settle(keys)

    def _branch(self, node: Node, above: tuple[NodeKey, ...], last: tuple[bool, ...]) -> None:
        path = (*above, node.key)
        self.branches.append(Branch(node, path, last))
        if self.is_open(node):
            for place, child in enumerate(node.children, 1):
                self._branch(child, path, (*last, place == len(node.children)))

    def _put(self, place: int) -> None:
        super()._put(place)
        self._path = self.branches[self.cursor].path if self.branches else ()

    def on_click(self, event: events.Click) -> None:
        """Choose the line; on its mark open or close it, at the second click do what Enter does."""
        if event.y == 0:
            self._click_title(event.x)
            return
        line = self.top + event.y - 1
        if line >= len(self.branches):
            return
        again = line == self.cursor and event.chain > 1
        self._put(line)
        mark = 2 + 2 * min(len(self.branches[line].last), levels(room_for_names(self.size.width, self._columns)))
        if mark <= event.x < mark + 2 and self.branches[line].node.children:
            self.set_open()
        else:
            self.post_message(self.Chosen() if again else self.Moved())

    def _click_title(self, x: int) -> None:
        left = room_for_names(self.size.width, self._columns)
        hit = "name"
        for column in self._columns:
            if x < left:
                break
            hit = column.id
            left += column.cells + column.ahead
        if hit in SORTS:
            self.post_message(self.Sorted(hit))

    # -- drawing -----------------------------------------------------------------------------------------------

    def draw(self, view: View, width: int, lines: int, by: str, empty: str) -> None:
        """Draw the titles and as many lines as there are; `by` is the column of the order, `empty` why none is."""
        longest = max((cell_len(node.user) for node in every(self.nodes)), default=0)
        self._columns = columns(width, longest, ascii_only=view.kit.glyphs.ascii)
        drawn = [titles(self._columns, view, width, by)] if lines > 1 else []
        shown = self._shown(lines - len(drawn))
        for place in shown:
            branch = self.branches[place]
            here, is_open = place == self.cursor, self.is_open(branch.node)
            drawn.append(tree_line(branch, self._columns, view, width, under_cursor=here, is_open=is_open))
        if not shown:
            drawn.append(centred(view.kit, empty, width))
        self.show((drawn + [blank(view.kit, width)] * lines)[:lines])
