"""Tree screen: runs, ranks and workers, with what each level takes together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from textwrap import wrap
from typing import ClassVar, Final

from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.analysis.rows import Row, RowKey
from gpuwatch.analysis.runs import (
    ORPHAN_HOLDERS,
    SORTS,
    Flag,
    Kind,
    Node,
    NodeKey,
    Order,
    Sum,
    describe,
    grow,
    label,
    parts,
    troubles,
    wrong,
)
from gpuwatch.monitor import Frame
from gpuwatch.text import fit
from gpuwatch.ui.screens.list_screen import ListScreen
from gpuwatch.ui.theme import Glyphs, Kit, Role
from gpuwatch.ui.view import View
from gpuwatch.ui.widgets.footer import Footer, Hint, hints
from gpuwatch.ui.widgets.lines import CursorList, Line, LinePanel, Pen, blank, centred
from gpuwatch.ui.widgets.notice import nothing_words
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
_FIRST_TO_GO_BRANCHES = ("in", "age", "pid", "parts", "idle", "sm", "user", "gpu")
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
    for name in _FIRST_TO_GO_BRANCHES:
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
