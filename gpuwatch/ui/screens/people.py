"""Who has what: one row a person, sorted by any column, and what there is to say about the one under the cursor."""

from __future__ import annotations

import time
from collections.abc import Callable
from textwrap import wrap
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.message import Message

from gpuwatch.analysis.people import Person, names, people, story, totals, whole
from gpuwatch.ui.panels.footer import Footer, Hint, hints
from gpuwatch.ui.panels.notice import nothing_words
from gpuwatch.ui.panels.people import PeopleList
from gpuwatch.ui.screens.list_screen import ListScreen
from gpuwatch.ui.theme import Kit
from gpuwatch.ui.widgets.lines import Line, LinePanel, Pen, blank

if TYPE_CHECKING:
    from gpuwatch.monitor import Frame

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
