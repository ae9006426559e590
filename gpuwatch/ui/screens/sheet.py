"""Full screen of labelled facts: a title, one or two columns that scroll, and the keys at the bottom."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar, Final, NamedTuple, Protocol

import msgspec
from rich.cells import cell_len
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from gpuwatch.base.text import spell_signs
from gpuwatch.model.snapshot import Reading, Reason
from gpuwatch.ui.draw.footer import hints
from gpuwatch.ui.draw.lines import Line, LineBuilder, crop, wrapped_lines
from gpuwatch.ui.draw.row_list import WHEEL
from gpuwatch.ui.draw.theme import StyleSet, make_styles
from gpuwatch.ui.screens.full_screen import FullScreen
from gpuwatch.ui.widgets.panels import LinePanel

TWO_COLUMNS: Final = 110
"""Least width at which the two halves stand side by side."""
HIGH: Final = 20
"""Least height of a terminal in which blank lines stand around the facts."""

REASONS: Final = {
    Reason.UNSUPPORTED: "not supported by this GPU or driver",
    Reason.DENIED: "no permission",
    Reason.NO_SAMPLE: "no sample",
    Reason.ERROR: "the call failed",
}
"""Words in the place of a number that is missing."""

_SHORT: Final = 30
"""Largest number of cells of an aside that stands after its value; a longer one has a line of its own."""
_LABEL: Final = 15
"""Largest number of cells of the labels."""
_BETWEEN: Final = 3
"""Cells between the two halves."""


def reason_words(reading: Reading) -> str:
    """Return why a reading has no number; empty where it has one."""
    return REASONS[reading] if isinstance(reading, Reason) else ""


class Fact(msgspec.Struct, frozen=True):
    """Label with a value, or with the reason why there is none."""

    label: str
    value: str
    missing: bool = False
    aside: str = ""
    """Less important words: the source of the value, how certain it is."""


class Section(msgspec.Struct, frozen=True):
    """Facts under a heading."""

    title: str
    facts: tuple[Fact, ...]


class Block(Protocol):
    """Part of a sheet that is no section: a graph, a list."""

    gap: int
    """Blank lines below it."""

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        """Return its lines, each of `width` cells."""


class Placed(NamedTuple):
    """Place of a part in the lines of a sheet, whether on screen or not."""

    part: Section | Block
    x: int
    y: int
    width: int
    lines: Sequence[Line]


class Sheet(FullScreen):
    """Screen of sections and other parts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "back", id="sheet.close", tooltip="Back to the dashboard"),
        Binding("down,j", "line(1)", "down", show=False, id="sheet.down", tooltip="Scroll down"),
        Binding("up,k", "line(-1)", "up", show=False, id="sheet.up", tooltip="Scroll up"),
        Binding("space,pagedown", "page(1)", "scroll", id="sheet.page_down", tooltip="Next page"),
        Binding("pageup,b", "page(-1)", "page up", show=False, id="sheet.page_up", tooltip="Previous page"),
        Binding("home,g", "end(0)", "top", show=False, id="sheet.top", tooltip="Scroll to the top"),
        Binding("end,G", "end(1)", "bottom", show=False, id="sheet.bottom", tooltip="Scroll to the bottom"),
    ]

    LEFT: ClassVar[float] = 0.5
    """Part of the width that the left half has."""

    def __init__(self, styles: StyleSet | None = None) -> None:
        super().__init__(styles or make_styles("gpuwatch-dark"))
        self.over = False
        """Whether the facts are no longer true, and dimmed."""
        self.top = 0
        """First line on screen."""
        self.placed: list[Placed] = []
        """Parts in the order of the last drawing."""
        self._title, self._title_end = "", ""
        self._left: Sequence[Section | Block] = ()
        self._right: Sequence[Section | Block] = ()
        self._notice = ""
        self._length = 0
        """Lines of the longer half."""
        self._drawn: dict[Hashable, list[Line]] = {}
        """Lines of the facts of the last drawing, by all that they are drawn from."""
        self._notice_panel = LinePanel(id="notice")
        self._body = LinePanel(id="body")

    def compose(self) -> ComposeResult:
        yield from (self._title_panel, self._notice_panel, self._body, self._footer)

    # -- content ---------------------------------------------------------------------------------------------------

    def show(
        self, title: str, left: Sequence[Section | Block], right: Sequence[Section | Block], *, title_end: str = ""
    ) -> None:
        """Draw the parts of the left and the right half; `title_end` stands at the right end of the title."""
        self._title, self._left, self._right, self._title_end = title, left, right, title_end
        self.paint()

    def notice(self, text: str, *, over: bool = False) -> None:
        """Show a line below the title, or none; `over` dims the facts, which are no longer true."""
        if (text, over) != (self._notice, self.over):
            self._notice, self.over = text, over
            self.paint()

    def restyle(self, styles: StyleSet) -> None:
        self._drawn = {}
        super().restyle(styles)

    @property
    def two_columns(self) -> bool:
        """Whether the halves stand side by side."""
        return self.app.size.width >= TWO_COLUMNS

    def widths(self) -> tuple[int, int]:
        """Return the cells of the left and of the right half."""
        inner = max(1, self.app.size.width - 3)
        if not self.two_columns:
            return inner, inner
        left = int((inner - _BETWEEN) * self.LEFT)
        return left, inner - _BETWEEN - left

    @property
    def room(self) -> int:
        """Lines between title and keys."""
        _, height = self.app.size
        return max(1, height - 1 - (height >= 4) - len(self._notice_lines()))

    # -- drawing ---------------------------------------------------------------------------------------------------

    def paint(self) -> None:
        """Draw the parts, as far as they are on screen."""
        if self.hidden:
            return
        width, height = self.app.size
        styles = self.style_set
        self._place()
        room = self.room
        self.top = max(0, min(self.top, self._length - room))
        notice = self._notice_lines()
        with self.app.batch_update():
            self._title_panel.show([self._title_line(width)])
            self._notice_panel.display = bool(notice)
            self._notice_panel.set_height(max(1, len(notice)))
            self._notice_panel.show(notice)
            self._body.set_height(room)
            self._body.show(self._body_lines(width, room))
            self._footer.display = height >= 4
            keys = [hint for hint in hints(self.footer_keys()) if self.check_action(hint[2].partition("(")[0], ())]
            self._footer.draw(keys, styles, width)

    def footer_keys(self) -> list[Binding]:
        """Return the keys that the footer shows, the most needed first."""
        found = [one for kind in type(self).__mro__ for one in vars(kind).get("BINDINGS", ()) if kind is not Sheet]
        return self.own_keys(one for one in (*found, *Sheet.BINDINGS) if isinstance(one, Binding))

    def _title_line(self, width: int) -> Line:
        builder = LineBuilder(self.style_set, "band").gap()
        end = self._title_end if cell_len(self._title) + cell_len(self._title_end) + 4 <= width else ""
        builder.write(self._plain(self._title), "strong", max(0, min(cell_len(self._title), width - 2)))
        if end:
            builder.gap(width - 1 - cell_len(end) - builder.cells).write(end, "muted")
        return builder.build(width)

    def _notice_lines(self) -> list[Line]:
        width = self.app.size.width
        words = [(self._plain(self._notice), self.style_set("warning"))]
        return wrapped_lines(words, self.style_set, width, 1) if self._notice else []

    def _place(self) -> None:
        """Draw the parts, and place each below the one before; a part that did not change has its lines of before."""
        left, right = self.widths()
        margin = int(self.app.size.height >= HIGH)
        before, self._drawn = self._drawn, {}
        self.placed = []
        if self.two_columns:
            ends = [
                self._place_half(self._left, 1, margin, left, label_cells(self._left), before),
                self._place_half(self._right, 1 + left + _BETWEEN, margin, right, label_cells(self._right), before),
            ]
        else:
            # One above the other, both halves have their values after the same margin.
            labels = label_cells((*self._left, *self._right))
            ends = [self._place_half((*self._left, *self._right), 1, margin, left, labels, before)]
        self._length = max(ends)

    def _place_half(
        self,
        parts: Sequence[Section | Block],
        x: int,
        y: int,
        width: int,
        labels: int,
        before: dict[Hashable, list[Line]],
    ) -> int:
        gap = 0
        for part in parts:
            lines = (
                self._section_lines(part, width, labels, before)
                if isinstance(part, Section)
                else part.draw(self.style_set, width)
            )
            if lines:
                self.placed.append(Placed(part, x, y, width, lines))
                gap = 1 if isinstance(part, Section) else part.gap
                y += len(lines) + gap
        return max(0, y - gap)

    def _body_lines(self, width: int, room: int) -> list[Line]:
        """Return the lines on screen, with the position of the scroll bar at the right."""
        styles = self.style_set
        rows: list[list[tuple[int, Line]]] = [[] for _ in range(room)]
        for one in self.placed:
            first = one.y - self.top
            for place in range(max(0, -first), min(len(one.lines), room - first)):
                rows[first + place].append((one.x, one.lines[place]))
        bar = range(0)
        if self._length > room:
            thumb = max(1, room * room // self._length)
            start = round((room - thumb) * self.top / max(1, self._length - room))
            bar = range(start, start + thumb)
        drawn = []
        for y, parts in enumerate(rows):
            builder = LineBuilder(styles)
            for x, line in parts:
                builder.gap(x - builder.cells).write_spans(line)
            if y in bar:
                builder.gap(width - 1 - builder.cells).write("|" if styles.glyphs.ascii else "▐", "faint")
            drawn.append(builder.build(width))
        return drawn

    def _section_lines(
        self, section: Section, width: int, labels: int, before: dict[Hashable, list[Line]]
    ) -> list[Line]:
        title_key = (section.title, width)
        title = before.get(title_key) or [LineBuilder(self.style_set).write(section.title, "strong").build(width)]
        self._drawn[title_key] = title
        lines = [*title]
        for fact in section.facts:
            key = (fact, width, labels, self.over)
            drawn = before.get(key)
            if drawn is None:
                drawn = self._fact_lines(fact, width, labels)
            self._drawn[key] = drawn
            lines += drawn
        return lines

    def _fact_lines(self, fact: Fact, width: int, labels: int) -> list[Line]:
        """Draw a fact; the value wraps, and may be any text."""
        styles = self.style_set
        style = styles("muted" if self.over or fact.missing else "text")
        value = [(self._plain(fact.value), style._replace(italic=fact.missing))]
        if fact.aside:
            between = "  " if len(fact.aside) <= _SHORT else "\n"
            value.append((f"{between}{self._plain(fact.aside)}", styles("muted")._replace(italic=fact.missing)))
        margin = min(labels + 2, width // 2)
        lines = wrapped_lines(value, styles, width, margin)
        head = LineBuilder(styles).write(self._plain(fact.label), "muted", max(0, margin - 1)).gap()
        first = head.write_spans(crop(lines[0], margin, width)).build(width)
        return [first, *lines[1:]]

    def _plain(self, text: str) -> str:
        return plain(text) if self.style_set.glyphs.ascii else text

    # -- what the user does ----------------------------------------------------------------------------------------

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_line(WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_line(-WHEEL)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        self._point(event, 0)

    def on_click(self, event: events.Click) -> None:
        self._point(event, event.chain)

    def _point(self, event: events.MouseEvent, clicks: int) -> None:
        """Find the part under the mouse, which was moved, or clicked `clicks` times."""
        y = event.y + self.top
        for one in self.placed if event.widget is self._body else ():
            if one.x <= event.x < one.x + one.width and one.y <= y < one.y + len(one.lines):
                self.point(one, event.x - one.x, y - one.y, clicks)

    def point(self, placed: Placed, x: int, y: int, clicks: int) -> None:
        """React to the mouse over a part; `clicks` is 0 where it was only moved."""

    def reveal(self, y: int) -> None:
        """Scroll until a line is on screen."""
        self.top = min(max(self.top, y - self.room + 1), y)

    def action_line(self, lines: int) -> None:
        self.top += lines
        self.paint()

    def action_page(self, pages: int) -> None:
        """Scroll by pages, less one line."""
        self.action_line(pages * max(1, self.room - 1))

    def action_end(self, bottom: int) -> None:
        self.top = 0
        self.action_line(self._length if bottom else 0)


_NAMES = str.maketrans({"…": "...", "↑": "Up", "↓": "Down", "⇧": "S-"})
"""Signs that are spelled out."""


def plain(text: str) -> str:
    """Replace gpuwatch's symbols by ASCII; names that people chose stay unchanged."""
    return spell_signs(text.translate(_NAMES))


def label_cells(parts: Sequence[Section | Block]) -> int:
    """Return the cells of the longest label, up to `_LABEL`."""
    lengths = [len(fact.label) for part in parts if isinstance(part, Section) for fact in part.facts]
    return min(max(lengths, default=0), _LABEL)
