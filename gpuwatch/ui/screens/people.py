"""People screen: one row a person with the GPU memory and processes that they have."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.cells import cell_len, set_cell_size
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.analysis.people import QUIET, SORTS, Person, gib_hours, names, people, steady, story, totals, whole
from gpuwatch.text import fit
from gpuwatch.ui.screens.list_screen import ListScreen
from gpuwatch.ui.theme import Glyphs, Kit, Role
from gpuwatch.ui.widgets.footer import Footer, Hint, hints
from gpuwatch.ui.widgets.lines import CursorList, Line, LinePanel, Pen, blank, centred
from gpuwatch.ui.widgets.notice import nothing_words
from gpuwatch.units import duration, gib, percent, ranges

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame


LEAST_BAR: Final = 10
"""Cells below which a bar of somebody's share says nothing."""
LONGEST_BAR: Final = 40
_LEFT: Final = 4
"""Cells of the cursor, the initial and the blank behind it."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column."""

    id: str
    """Its name in `people.SORTS`; `bar` for the share as a bar."""
    title: str
    cells: int
    """Width, with the blanks before it."""
    right: bool = True
    role: Role = "text"


_FIXED: Final = {
    "memory": Column("memory", "GiB", 8, role="strong"),
    "share": Column("share", "box %", 7),
    "declared": Column("declared", "declared", 10, role="muted"),
    "sm": Column("sm", "SM %", 7),
    "use": Column("use", "GiB·h", 9, role="muted"),
    "waste": Column("waste", "idle %", 8),
    "longest": Column("longest", "idle for", 10),
    "processes": Column("processes", "procs", 7, role="muted"),
}
_NEEDED: Final = ("user", "memory", "longest", "sm", "share", "gpus", "waste", "use", "processes", "declared", "bar")
"""The most needed first: a narrow terminal has fewer."""
_SHOWN: Final = ("user", "bar", "memory", "share", "declared", "gpus", "sm", "use", "waste", "longest", "processes")
"""From left to right."""


def columns(width: int, found: Sequence[Person]) -> list[Column]:
    """Give the columns that a width has room for; a wider one never lacks one that a narrower one has."""
    longest = max((cell_len(name_of(one)) for one in found), default=0)
    most = 24 if width >= 100 else 16 if width >= 70 else 10 if width >= 50 else 8
    cards = max((len(ranges(one.gpus)) for one in found), default=0)
    sized = {
        **_FIXED,
        # A name may fill its column; what stands to the right of it begins with blanks.
        "user": Column("user", "user", _LEFT + min(most, max(8, longest)), right=False),
        "gpus": Column("gpus", "GPUs", 2 + min(10, max(5, cards)), right=False, role="muted"),
        "bar": Column("bar", "share of the box", 2 + LEAST_BAR, right=False),
    }
    kept: list[str] = []
    left = width
    for name in _NEEDED:
        left -= sized[name].cells
        if left < 0 and kept:
            left += sized[name].cells
            break
        kept.append(name)
    if "bar" in kept:
        wide = min(2 + LONGEST_BAR, sized["bar"].cells + max(0, left - 1))
        sized["bar"] = Column("bar", "share of the box", wide, right=False)
    return [sized[name] for name in _SHOWN if name in kept]


def name_of(one: Person) -> str:
    """Give the name to display."""
    return "not visible" if one.uid is None else one.name


def apart(found: Sequence[Person], cells: int, glyphs: Glyphs) -> list[str]:
    """Give everybody's name in so many cells, no two of them alike.

    A name that is cut ends in an ellipsis; where two would look the same their ends are kept as well, and where even
    these are alike, the uid.
    """
    names = [_spelled(name_of(one), glyphs) for one in found]
    shown = [fit(name, cells, ellipsis=glyphs.ellipsis) for name in names]
    for shorten in (_ends, _numbered):
        times = Counter(shown)
        shown = [
            shorten(name, one, cells, glyphs) if times[before] > 1 else before
            for before, name, one in zip(shown, names, found, strict=True)
        ]
    return shown


def _spelled(name: str, glyphs: Glyphs) -> str:
    if not glyphs.ascii or name.isascii():
        return name
    return "".join(char if char.isascii() else "?" * cell_len(char) for char in name)


def _ends(name: str, _one: Person, cells: int, glyphs: Glyphs) -> str:
    if cell_len(name) <= cells:
        return fit(name, cells)
    half = (cells - 1) // 2
    tail = ""
    for char in reversed(name):
        if cell_len(char + tail) > half:
            break
        tail = char + tail
    head = set_cell_size(name, cells - 1 - cell_len(tail))
    return f"{head}{glyphs.ellipsis}{tail}"


def _numbered(name: str, one: Person, cells: int, glyphs: Glyphs) -> str:
    number = str(one.uid if one.uid is not None else "?")[-max(1, cells - 2) :]
    room = cells - 1 - len(number)
    return set_cell_size(name, room).rstrip() + glyphs.ellipsis + number


def cell(column: str, one: Person, glyphs: Glyphs) -> str:
    """Give what stands in a column of one figure."""
    return _CELLS[column](one, glyphs)


def _share(one: Person, glyphs: Glyphs) -> str:
    if one.share is None:
        return glyphs.missing
    return glyphs.least * one.at_least + percent(one.share, 100)


def _memory(one: Person, glyphs: Glyphs) -> str:
    if one.at_least and not one.memory:
        return glyphs.missing
    return glyphs.least * one.at_least + gib(one.memory)


def _declared(one: Person, glyphs: Glyphs) -> str:
    if one.declared is None:
        return "?" if one.unread else glyphs.missing
    return glyphs.least * one.unread + gib(one.declared)


def _sm(one: Person, glyphs: Glyphs) -> str:
    return glyphs.missing if one.sm is None else f"{glyphs.least * one.sm_at_least}{one.sm:.0f}"


def _use(one: Person, glyphs: Glyphs) -> str:
    use = one.use
    if use.held <= 0 or (use.unsized > 0 and not use.memory):
        return glyphs.missing
    return glyphs.least * (use.unsized > 0) + gib_hours(use)


def _waste(one: Person, glyphs: Glyphs) -> str:
    return glyphs.missing if one.waste is None else glyphs.least * one.waste_at_least + percent(one.waste, 100)


def _idle(one: Person, glyphs: Glyphs) -> str:
    if one.longest is None:
        return "" if one.sm else glyphs.missing
    idle = one.longest.idle
    return glyphs.least * idle.at_least + duration(idle.seconds) if idle.seconds >= QUIET else ""


def _gpus(one: Person, _glyphs: Glyphs) -> str:
    named = ranges(one.gpus)
    return named if len(named) <= 10 else f"{len(one.gpus)} GPUs"


_CELLS: Final[dict[str, Callable[[Person, Glyphs], str]]] = {
    "gpus": _gpus,
    "memory": _memory,
    "share": _share,
    "declared": _declared,
    "sm": _sm,
    "use": _use,
    "waste": _waste,
    "longest": _idle,
    "processes": lambda one, _glyphs: str(one.processes),
}


def draw_bar(pen: Pen, one: Person, cells: int, kit: Kit) -> None:
    """Draw somebody's share of the box as exactly so many cells, in their colour."""
    share = min(100.0, one.share or 0.0) / 100 * cells
    whole = int(share) if kit.glyphs.eighths else round(share)
    if one.share and share < 1 and not kit.glyphs.eighths:
        whole = 1  # something is not nothing
    pen.write_styled(kit.glyphs.fill * whole, kit.inks.owner(one.uid))
    eighth = round((share - whole) * 8) if kit.glyphs.eighths else 0
    if one.share and not whole:
        eighth = max(eighth, 1)
    if eighth > 0 and whole < cells:
        pen.write_styled(kit.glyphs.eighths[min(eighth, 7) - 1], kit.inks.edge(one.uid))
        whole += 1
    pen.write_styled(" " * (cells - whole), kit.inks("faint", "track"))


class PeopleList(CursorList):
    """The people, and the one under the cursor; the cursor follows the person, not the line."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.by = "memory"
        """Column of `people.SORTS` by which they are sorted."""
        self.reverse = False
        self.found: list[Person] = []
        self._order = steady()
        self._columns: list[Column] = []

    @property
    def selected(self) -> Person | None:
        """The person under the cursor."""
        return self.found[self.cursor] if self.cursor < len(self.found) else None

    @property
    def unseen_order(self) -> str:
        """The order in words, where no column on screen shows it; else empty."""
        shown = [column.id for column in self._columns]
        return "" if self.by in shown or not shown else f"by {SORTS[self.by][0]}"

    def take(self, found: Sequence[Person]) -> None:
        """Take in people as they are now; the cursor follows its person, and stays in place where they have gone."""
        self.found = self._order.sort(found, self.by, reverse=self.reverse)
        self._settle([(one.uid,) for one in self.found])

    def draw(self, kit: Kit, width: int, lines: int, empty: str) -> None:
        """Draw the titles and as many people as there are lines; `empty` says why there are none."""
        titled = lines >= 2
        shown = self._shown(lines - titled)
        self._columns = columns(width, self.found)
        drawn = [self._title(kit, width)] if titled else []
        names = apart(self.found, self._columns[0].cells - _LEFT, kit.glyphs)
        drawn += [self._row(self.found[one], names[one], kit, width, one == self.cursor) for one in shown]
        if not self.found:
            drawn += [blank(kit, width)] * (self.page_rows // 2) + [centred(kit, empty, width)]
        self.show((drawn + [blank(kit, width)] * lines)[:lines])

    # -----------------------------------------------------------------------------------------------------------
    # Moving about

    def sort_by(self, column: str) -> None:
        """Sort by a column; once more turns the order round."""
        self.reverse = not self.reverse if column == self.by else False
        self.by = column
        self.to_top()
        self.take(self.found)
        self.post_message(self.Moved())

    def sort_next(self, by: int) -> None:
        """Sort by the column to the right or the left of the present one, among those on screen."""
        shown = [column.id for column in self._columns if column.id in SORTS] or list(SORTS)
        place = shown.index(self.by) if self.by in shown else 0
        self.by, self.reverse = shown[(place + by) % len(shown)], False
        self.to_top()
        self.take(self.found)
        self.post_message(self.Moved())

    def on_click(self, event: events.Click) -> None:
        """Select a person, choose them at the second click, or sort by the column whose title was hit."""
        if event.y == 0 and self.page_rows < len(self.text):
            hit = self.column_at(event.x)
            if hit:
                self.sort_by(hit)
            return
        place = self.top + event.y - (self.page_rows < len(self.text))
        if place >= len(self.found):
            return
        again = place == self.cursor and event.chain > 1
        self._put(place)
        self.post_message(self.Chosen() if again else self.Moved())

    def column_at(self, x: int) -> str:
        """Give the column at a cell of the titles; empty for none."""
        left = 0
        for column in self._columns:
            left += column.cells
            if x < left:
                return "share" if column.id == "bar" else column.id
        return ""

    # -----------------------------------------------------------------------------------------------------------
    # Drawing

    def _title(self, kit: Kit, width: int) -> Line:
        arrow = kit.glyphs.up if (self.by == "user") != self.reverse else kit.glyphs.down
        pen = Pen(kit, "band")
        for column in self._columns:
            lead = _LEFT if column.id == "user" else 0 if column.right else 2
            pen.gap(lead)
            by = column.id == self.by
            text = f"{arrow * by}{column.title}" if column.right else f"{column.title}{arrow * by}"
            if cell_len(text) > column.cells - lead:
                text = column.title.partition(" ")[0]
            pen.write(text, "text" if by else "muted", column.cells - lead, right=column.right)
        return pen.line(width)

    def _row(self, one: Person, name: str, kit: Kit, width: int, under_cursor: bool) -> Line:
        pen = Pen(kit, "cursor" if under_cursor else "base")
        pen.write(kit.glyphs.cursor if under_cursor else "", "strong", 2)
        pen.write_styled(kit.inks.initial(one.uid), kit.inks.badge(one.uid, pen.ground)).gap()
        for column in self._columns:
            if column.id == "user":
                role: Role = "strong" if one.viewer else "muted" if one.uid is None else "text"
                pen.write(name, role, column.cells - _LEFT)
            elif column.id == "bar":
                draw_bar(pen.gap(2), one, column.cells - 2, kit)
            else:
                lead = 0 if column.right else 2
                text = cell(column.id, one, kit.glyphs)
                pen.gap(lead).write(text, column.role, column.cells - lead, right=column.right)
        return pen.line(width)


_KEYS: Final[list[Binding]] = [
    Binding("escape,q,u", "close", "back", id="people.close", key_display="Esc", tooltip="Go back to the dashboard"),
    Binding(
        "enter", "choose", "only them", id="people.choose", key_display="Enter", tooltip="Show only their processes"
    ),
    Binding("less_than_sign", "sort(-1)", "sort", id="people.left", key_display="<", tooltip="The column before"),
    Binding("greater_than_sign", "sort(1)", "sort", id="people.right", key_display=">", tooltip="The next column"),
    Binding("r", "reverse", "reverse", id="people.reverse", tooltip="Turn the order round"),
    Binding("y", "message", "message", id="people.message", tooltip="Copy a polite message to them; nothing is sent"),
    Binding("down,j", "move(1)", "down", show=False, id="people.down", tooltip="The next person"),
    Binding("up,k", "move(-1)", "up", show=False, id="people.up", tooltip="The person before"),
    Binding("pagedown,space", "page(1)", "page down", show=False, id="people.pagedown", tooltip="A screenful down"),
    Binding("pageup,b", "page(-1)", "page up", show=False, id="people.pageup", tooltip="A screenful up"),
    Binding("home,g", "move(-1000000)", "first", show=False, id="people.first", tooltip="The first person"),
    Binding("end,G", "move(1000000)", "last", show=False, id="people.last", tooltip="The last person"),
]


def detail_lines_for(height: int) -> int:
    """Give the lines about the person under the cursor, from a height of 16 on with an empty one above them."""
    if height < 10:
        return 0
    return 2 if height < 16 else 4 if height < 24 else 5


class PeopleScreen(ListScreen):
    """The screen of people."""

    class Chosen(Message):
        """The dashboard is to show only this person's processes: those that `people.filter_for` leaves."""

        def __init__(self, uid: int | None, name: str) -> None:
            """`uid` is None for those who are not visible."""
            self.uid, self.name = uid, name
            super().__init__()

    class MessageAsked(Message):
        """The user wants to write to this person; None for those who are not visible."""

        def __init__(self, uid: int | None) -> None:
            self.uid = uid
            super().__init__()

    BINDINGS: ClassVar[list[BindingType]] = [*_KEYS]

    def __init__(self, frame: Frame | None, kit: Kit, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`kit` is the dashboard's: everybody has the same colour and initial here."""
        super().__init__(frame, kit, clock=clock)
        self._ready = False
        """Whether there are widgets to show something in."""

    def compose(self) -> ComposeResult:
        """Give the title, the list, the detail and the keys."""
        yield LinePanel(id="people-title")
        yield PeopleList(id="people-list")
        yield LinePanel(id="people-detail")
        yield Footer(id="people-keys")

    def on_mount(self) -> None:
        """Begin with what there is."""
        self._ready = True
        self.refresh_frame(self._frame)

    def refresh_frame(self, frame: Frame | None) -> None:
        """Take a new frame."""
        self._frame = frame
        if frame is not None and self._ready:
            self._kit.inks.introduce(names(frame.snapshot))
            self.query_one(PeopleList).take(people(frame.snapshot, frame.history))
        self.paint()

    def paint(self) -> None:
        """Draw everything."""
        if not self._ready:
            return
        width, height = self.app.size
        kit = self._kit
        detail = detail_lines_for(height)
        footer = 1 if height >= 4 else 0
        room = max(1, height - 1 - footer - detail)
        people_list = self.query_one(PeopleList)
        with self.app.batch_update():
            people_list.give(room)
            people_list.draw(kit, width, room, self._why_empty())
            self.query_one("#people-title", LinePanel).show([self._title(width)])
            panel = self.query_one("#people-detail", LinePanel)
            panel.display = detail > 0
            panel.give(max(detail, 1))
            panel.show(self._detail(width, detail, separate=height >= 16))
            keys = self.query_one(Footer)
            keys.display = footer > 0
            keys.draw(_fitting(hints(_KEYS), width), kit, width)

    def _title(self, width: int) -> Line:
        pen = Pen(self._kit, "band").gap().write("people", "strong").gap(2)
        people_list = self.query_one(PeopleList)
        old = self.old()
        if old:
            pen.write(old, "warning").gap(2)
        if self._frame is None or not self._frame.snapshot.gpus:
            return pen.line(width)
        found, dot = people_list.found, f" {self._kit.glyphs.dot} "
        part = dot.join(filter(None, (people_list.part(self._kit.glyphs.dash), people_list.unseen_order)))
        room = max(0, width - pen.cells - 1 - (cell_len(part) + 2 if part else 0))
        forms = totals(whole(found, self._frame.snapshot))
        words = next((form for form in forms if cell_len(form) <= room), forms[-1])
        pen.write(words, "text", min(room, cell_len(words)))
        if part:
            pen.gap(max(2, width - pen.cells - cell_len(part) - 1)).write(part, "muted")
        return pen.line(width)

    def _detail(self, width: int, lines: int, *, separate: bool) -> list[Line]:
        if lines <= 0:
            return []
        drawn = [Pen(self._kit, "band").line(width)] if separate else []
        chosen = self.query_one(PeopleList).selected
        if chosen is not None and self._frame is not None:
            told = self._story(chosen, self._frame, width - 3, lines - len(drawn))
            drawn += [Pen(self._kit).gap(2).write(text, "text", max(0, width - 3)).line(width) for text in told]
        return (drawn + [blank(self._kit, width)] * lines)[:lines]

    @staticmethod
    def _story(chosen: Person, frame: Frame, width: int, lines: int) -> list[str]:
        """Give the sentences about somebody in so many lines; the list says the first one, where it has to go."""
        sentences = story(chosen, frame.snapshot.taken, frame.history.watched)
        for kept in (sentences, sentences[1:], sentences[-1:]):
            told = [part for sentence in kept for part in wrap(sentence, max(1, width))]
            if told and len(told) <= lines:
                return told
        return [*told[: lines - 1], " ".join(told[lines - 1 :])]

    def _why_empty(self) -> str:
        if self._frame is None:
            return "nothing was seen yet"
        return nothing_words(self._frame.snapshot) or "nobody holds a GPU"

    # -- what the user does ------------------------------------------------------------------------------------

    def on_cursor_list_chosen(self, message: PeopleList.Chosen) -> None:
        """Show the processes of the person who was clicked twice."""
        message.stop()
        self.action_choose()

    def action_choose(self) -> None:
        """Narrow the dashboard to the person under the cursor, and go back to it."""
        chosen = self.query_one(PeopleList).selected
        if chosen is not None:
            self.post_message(self.Chosen(chosen.uid, chosen.name))
            self.dismiss(None)

    def action_message(self) -> None:
        """Ask for a message to the person under the cursor."""
        chosen = self.query_one(PeopleList).selected
        if chosen is not None:
            self.post_message(self.MessageAsked(chosen.uid))

    def action_sort(self, by: int) -> None:
        """Sort by the next column."""
        self.query_one(PeopleList).sort_next(by)

    def action_reverse(self) -> None:
        """Turn the order round."""
        people_list = self.query_one(PeopleList)
        people_list.sort_by(people_list.by)


def _fitting(found: list[Hint], width: int) -> list[Hint]:
    """Give the hints that fit, from the left: the last ones are needed least."""
    kept: list[Any] = list(found)
    while len(kept) > 1 and sum(len(key) + len(word) + 3 for key, word, _ in kept) > width:
        kept.pop()
    return kept
