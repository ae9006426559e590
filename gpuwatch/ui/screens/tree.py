"""What runs on the GPUs as a tree: runs, their ranks and their workers, with what each level takes together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from textwrap import wrap
from typing import ClassVar, Final

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.analysis.rows import RowKey
from gpuwatch.analysis.runs import SORTS, Kind, Node, Order, describe, grow, troubles
from gpuwatch.monitor import Frame
from gpuwatch.text import fit
from gpuwatch.ui.panels.footer import Footer, Hint, hints
from gpuwatch.ui.panels.notice import nothing_words
from gpuwatch.ui.panels.tree import TreeList
from gpuwatch.ui.screens.list_screen import ListScreen
from gpuwatch.ui.theme import Kit
from gpuwatch.ui.view import View
from gpuwatch.ui.widgets.lines import Line, LinePanel, Pen, blank

_KEYS: Final[list[Binding]] = [
    Binding("enter", "choose", "detail", id="tree.choose", key_display="Enter", tooltip="Detail, or what is below it"),
    Binding("right,l,plus,equals_sign", "right", "open", id="tree.right", key_display="→", tooltip="Open, or step in"),
    Binding("left,h,minus", "left", "close", id="tree.left", key_display="←", tooltip="Close, or step out"),
    Binding("space", "turn", "open or close", show=False, id="tree.turn", tooltip="Open or close"),
    Binding("asterisk", "toggle_every", "all", id="tree.every", key_display="*", tooltip="Open or close everything"),
    Binding("K,f9", "end_process", "end", id="tree.end", key_display="K", tooltip="End this process, or this run"),
    Binding("m", "mine", "mine", id="tree.mine", tooltip="Only your own runs, or everybody's"),
    Binding("less_than_sign", "sort(-1)", "sort", id="tree.sort_left", key_display="<", tooltip="The order before"),
    Binding("greater_than_sign", "sort(1)", "sort", id="tree.sort_right", key_display=">", tooltip="The next order"),
    Binding("escape,q,t", "close", "back", id="tree.close", key_display="Esc", tooltip="Go back to the dashboard"),
    Binding("down,j", "move(1)", "down", show=False, id="tree.down", tooltip="The next line"),
    Binding("up,k", "move(-1)", "up", show=False, id="tree.up", tooltip="The line before"),
    Binding("pagedown", "page(1)", "page down", show=False, id="tree.pagedown", tooltip="A screenful down"),
    Binding("pageup,b", "page(-1)", "page up", show=False, id="tree.pageup", tooltip="A screenful up"),
    Binding("home,g", "move(-1000000)", "first", show=False, id="tree.first", tooltip="The first line"),
    Binding("end,G", "move(1000000)", "last", show=False, id="tree.last", tooltip="The last line"),
]
_FIRST_TO_GO: Final = ("toggle_every", "left", "right")
"""Hints that go before those that every screen has."""
_HIGH: Final = 24
"""From this height on three lines tell of the chosen node; one where there are fewer than `_LOW` lines."""
_LOW: Final = 16
WHOLE: Final = 40
"""Cells up to which a part of what is told of a node is not broken."""


class TreeScreen(ListScreen):
    """The screen of runs."""

    class DetailAsked(Message):
        """The user wants to see all that is known of a process."""

        def __init__(self, key: RowKey) -> None:
            self.key = key
            super().__init__()

    class EndAsked(Message):
        """The user wants to end a process, or the whole run that it belongs to."""

        def __init__(self, key: RowKey, whole_run: bool) -> None:
            self.key = key
            self.whole_run = whole_run
            super().__init__()

    BINDINGS: ClassVar[list[BindingType]] = [*_KEYS]

    def __init__(self, frame: Frame, kit: Kit, *, clock: Callable[[], float] = time.monotonic) -> None:
        """Show the runs of `frame`, and from then on of those that `refresh_frame` is given.

        `clock` is the monotonic clock that frames are stamped with.
        """
        super().__init__(frame, kit, clock=clock)
        self._frame: Frame = frame
        self._order = Order()
        self._by = "memory"
        self._mine = False
        self._ready = False
        """Whether there are widgets to draw in."""

    def compose(self) -> ComposeResult:
        """Give the title, the tree, the lines about the chosen node, and the keys."""
        yield LinePanel(id="tree-title")
        yield TreeList(id="tree-list")
        yield LinePanel(id="tree-detail")
        yield Footer(id="tree-keys")

    def on_mount(self) -> None:
        """Show what there is."""
        self._ready = True
        self.refresh_frame(self._frame)

    def refresh_frame(self, frame: Frame) -> None:
        """Take a new frame."""
        self._frame = frame
        if self._ready:
            self._take()
            self.paint()

    def _view(self) -> View:
        return View(self._frame, self._clock(), self._kit, self._frame.snapshot.interval)

    def _take(self) -> None:
        """Grow the tree anew."""
        seen = self._frame.snapshot
        nodes = grow(seen, self._frame.history, mine=self._mine)
        self._kit.inks.meet(process.uid for process in seen.processes if process.uid is not None)
        self.query_one(TreeList).take(self._order.sort(nodes, self._by))

    def paint(self) -> None:
        """Draw everything."""
        if not self._ready:
            return
        width, height = self.app.size
        tree, view = self.query_one(TreeList), self._view()
        detail = 3 if height >= _HIGH else 2 if height >= _LOW else 1 if height >= 6 else 0
        room = max(1, height - 2 - detail)
        with self.app.batch_update():
            tree.give(room)
            tree.draw(view, width, room, self._by, self._why_empty())
            self.query_one("#tree-title", LinePanel).show([self._title(view, width)])
            panel = self.query_one("#tree-detail", LinePanel)
            panel.display = detail > 0
            panel.give(max(detail, 1))
            panel.show(self._detail(tree.chosen, width, detail))
            self.query_one(Footer).draw(self._hints(tree, width), self._kit, width)

    def _title(self, view: View, width: int) -> Line:
        tree, dot = self.query_one(TreeList), f" {self._kit.glyphs.dot} "
        runs = sum(len(node.children) if node.kind is Kind.GROUP else 1 for node in tree.nodes)
        unlisted = sum(node.totals.holders for node in tree.nodes)
        processes = sum(node.totals.processes for node in tree.nodes) - unlisted  # as the dashboard counts them
        more = f", {unlisted} more unlisted" * (unlisted > 0)
        words = [f"{runs} run{'s' * (runs != 1)}", f"{processes} process{'es' * (processes != 1)}{more}"]
        words = words if self._frame.snapshot.gpus else []
        words += ["mine"] * self._mine + [f"by {SORTS[self._by]}"]
        words += [f"lines {tree.part(self._kit.glyphs.dash)}"] * bool(tree.part())
        pen = Pen(self._kit, "band").gap().write("tree", "strong").gap(2)
        text = dot.join(words)
        pen.write(text, "muted", min(cell_len(text), max(0, width - pen.cells - 1)))
        for warning in (self.old(), troubles(tree.nodes)):
            if warning:
                pen.gap(2).write(warning, "warning", min(cell_len(warning), max(0, width - pen.cells - 3)))
        return pen.line(width)

    def _detail(self, node: Node | None, width: int, lines: int) -> list[Line]:
        """Draw the line about the chosen node, over as many lines as there are; one blank above it if it needs less."""
        if lines <= 0:
            return []
        room = max(1, width - 3)
        parts = describe(node).split(" · ") if node is not None else []
        # Lines break between the parts, and in those only that are long.
        whole = [part.replace(" ", "\xa0") if cell_len(part) <= WHOLE else part for part in parts]
        found = [line.replace("\xa0", " ") for line in wrap(" · ".join(whole), room, break_on_hyphens=False)]
        kept = found[:lines]
        if len(found) > lines:
            kept[-1] = fit(" ".join(found[lines - 1 :]), room, ellipsis=self._kit.glyphs.ellipsis)
        drawn = [Pen(self._kit).gap(2).write(part, "text").line(width) for part in kept]
        above = [blank(self._kit, width)] * (len(drawn) < lines)
        return (above + drawn + [blank(self._kit, width)] * lines)[:lines]

    def _hints(self, tree: TreeList, width: int) -> list[Hint]:
        """Give the keys, with what Enter does on this node; those that are needed least go first."""
        node = tree.chosen
        keys = {one.action: one for one in _KEYS}
        if node is not None and node.process is None:  # Enter does what one of the arrows does
            word = "close" if tree.is_open(node) else "open"
            del keys["left" if word == "close" else "right"]
            if word == "close":
                keys["right"] = replace(keys["right"], description="step in")
            keys["choose"] = replace(keys["choose"], description=word)
        elif node is not None and not node.rows:
            del keys["choose"]
        found = hints(list(keys.values()))
        if self._kit.glyphs.ascii:
            found = [(key.replace("→", "+").replace("←", "-"), said, action) for key, said, action in found]
        for action in _FIRST_TO_GO:
            if sum(len(key) + len(said) + 3 for key, said, _ in found) <= width:
                break
            found = [hint for hint in found if hint[2] != action]
        return found

    def _why_empty(self) -> str:
        seen = self._frame.snapshot
        if self._mine and any(gpu.holdings for gpu in seen.gpus):
            return "none of these processes is yours: m shows everybody's"
        return nothing_words(seen) or "no process holds a GPU"

    # -- what the user does ------------------------------------------------------------------------------------

    def on_cursor_list_chosen(self, message: TreeList.Chosen) -> None:
        """Do what Enter does."""
        message.stop()
        self.action_choose()

    def on_tree_list_sorted(self, message: TreeList.Sorted) -> None:
        """Sort by the column whose title was clicked."""
        self._sort_by(message.column)

    def action_choose(self) -> None:
        """Show the detail of a process; open or close what is none.

        Of a process that NVML does not list, the line below tells all that is known.
        """
        tree = self.query_one(TreeList)
        node = tree.chosen
        if node is None or node.process is None:
            tree.set_open()
        elif node.rows:
            self.post_message(self.DetailAsked(node.rows[0].key))

    def action_right(self) -> None:
        """Open the node, or step into it."""
        self.query_one(TreeList).right()

    def action_left(self) -> None:
        """Close the node, or step out of it."""
        self.query_one(TreeList).left()

    def action_turn(self) -> None:
        """Open or close the node."""
        self.query_one(TreeList).set_open()

    def action_toggle_every(self) -> None:
        """Open everything, or close it."""
        self.query_one(TreeList).toggle_every()

    def action_end_process(self) -> None:
        """Ask to end the process; on the line of a run, all of the run. A group is nothing that could be ended."""
        node = self.query_one(TreeList).chosen
        target = node.target if node is not None and node.kind is not Kind.GROUP else None
        if node is None or target is None or target.row_key is None:
            return
        self.post_message(self.EndAsked(target.row_key, node.key[0] == "run" and node.totals.processes > 1))

    def action_mine(self) -> None:
        """Show one's own runs, or everybody's."""
        self._mine = not self._mine
        self.refresh_frame(self._frame)

    def action_sort(self, by: int) -> None:
        """Take the next order."""
        orders = list(SORTS)
        self._sort_by(orders[(orders.index(self._by) + by) % len(orders)])

    def _sort_by(self, column: str) -> None:
        self._by = column
        self.query_one(TreeList).to_top()
        self.refresh_frame(self._frame)
