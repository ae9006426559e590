"""Sheet: a page of labelled facts and other parts in one or two columns, drawn as lines, which scroll."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

import msgspec
from rich.cells import cell_len

from gpuwatch.base.text import spell_signs
from gpuwatch.model.fields import Field
from gpuwatch.model.snapshot import Reading, Reason
from gpuwatch.ui.draw.lines import Line, LineBuilder, crop, draw_rule, wrapped_lines
from gpuwatch.ui.draw.table import Cell
from gpuwatch.ui.draw.theme import Role, StyleSet

T = TypeVar("T")

TWO_COLUMNS: Final = 110
"""Least width for the two halves side by side."""
HIGH: Final = 20
"""Least height of a terminal for blank lines around the facts."""

REASONS: Final = {
    Reason.UNSUPPORTED: "not supported by this GPU or driver",
    Reason.DENIED: "no permission",
    Reason.NO_SAMPLE: "no sample",
    Reason.ERROR: "the call failed",
}
"""Words in place of a missing number."""

_SHORT: Final = 30
"""Largest width in cells of an aside in the line of its value; a longer one has its own line."""
_LABEL: Final = 15
"""Largest number of cells of the labels."""
_BETWEEN: Final = 3
"""Cells between the two halves."""


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
    """Part of a page that is no section: a graph, a list."""

    gap: int
    """Blank lines below it."""

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        """Return its lines, each of `width` cells."""


class LinesBlock:
    """Lines that are drawn already."""

    def __init__(self, lines: Sequence[Line], gap: int = 0) -> None:
        self.lines, self.gap = lines, gap

    def draw(self, styles: StyleSet, width: int) -> list[Line]:
        return [*self.lines]


Part = Section | Block


class SheetPage(NamedTuple):
    """Content of a sheet."""

    title: str
    left: Sequence[Part]
    right: Sequence[Part] = ()
    """Parts of the right half; without room at the right, they are below the left half."""
    title_end: str = ""
    """Words at the right end of the title; those before two blanks are left out first."""
    notice: str = ""
    """Line below the title that does not scroll."""
    notice_role: Role = "warning"
    over: bool = False
    """Whether the facts are no longer true, and dimmed."""
    state: Cell = ()
    """Words after the title, in colours of their own."""
    head: Sequence[Line] = ()
    """Lines above both halves, as wide as the screen."""
    ruled: bool = False
    """Whether the titles of sections are rules, like those of graphs."""


class Canvas(NamedTuple):
    """Screen that a page is made for."""

    styles: StyleSet
    width: int
    height: int
    left: float = 0.5
    """Part of the width that the left half has; 1.0 for pages that have one column at any width."""

    @property
    def two_columns(self) -> bool:
        """Whether the halves are side by side."""
        return self.width >= TWO_COLUMNS and self.left < 1.0

    @property
    def widths(self) -> tuple[int, int]:
        """Cells of the left and of the right half."""
        inner = max(1, self.width - 3)
        if not self.two_columns:
            return inner, inner
        left = int((inner - _BETWEEN) * self.left)
        return left, inner - _BETWEEN - left

    @property
    def margin(self) -> int:
        """Blank lines above the parts."""
        return int(self.height >= HIGH)

    def room(self, notice: str = "") -> int:
        """Return the lines between the title, with a notice below it, and the keys."""
        return max(1, self.height - 1 - (self.height >= 4) - len(self.notice_lines(notice)))

    def notice_lines(self, notice: str, role: Role = "warning") -> list[Line]:
        runs = [(self.spell(notice), self.styles(role))]
        return wrapped_lines(runs, self.styles, self.width, 1) if notice else []

    def title_line(self, page: SheetPage) -> Line:
        title, width = self.spell(page.title), self.width
        builder = LineBuilder(self.styles, "band").gap()
        builder.write(title, "strong", max(0, min(cell_len(page.title), width - 2)))
        for words, role in page.state:
            if builder.cells + cell_len(words) < width:
                builder.write(words, role)
        for end in (page.title_end, page.title_end.rpartition("  ")[2]):
            if end and builder.cells + cell_len(end) + 3 <= width:
                builder.gap(width - 1 - cell_len(end) - builder.cells).write(end, "muted")
                break
        return builder.build(width)

    def spell(self, text: str) -> str:
        """Return text as the terminal can show it."""
        return plain(text) if self.styles.glyphs.ascii else text


class Placed(NamedTuple):
    """Place of a part in the lines of a sheet, whether on screen or not."""

    part: Part
    x: int
    y: int
    width: int
    lines: Sequence[Line]


class SheetDrawing:
    """Drawing of a page, which scrolls; an unchanged fact keeps its lines."""

    def __init__(self) -> None:
        self.top = 0
        """First line on screen."""
        self.placed: list[Placed] = []
        """Parts in the order of the last drawing."""
        self.length = 0
        """Lines of the longer half."""
        self._styles: StyleSet | None = None
        self._before: dict[Hashable, list[Line]] = {}
        self._drawn: dict[Hashable, list[Line]] = {}
        """Lines of the facts of the last drawing, by their inputs."""

    def draw(self, page: SheetPage, canvas: Canvas) -> list[Line]:
        """Return the lines between title and keys, with the position of the scroll bar at the right."""
        self._before, self._drawn = self._drawn if canvas.styles is self._styles else {}, {}
        self._styles, self.placed = canvas.styles, []
        left, right = canvas.widths
        # One above the other, both halves have their values after the same margin.
        halves = [(page.left, 1, left), (page.right, 1 + left + _BETWEEN, right)]
        halves = halves if canvas.two_columns else [((*page.left, *page.right), 1, left)]
        self.length = max(self._place(parts, x, width, canvas, page) for parts, x, width in halves)
        room = canvas.room(page.notice)
        self.top = max(0, min(self.top, self.length - room))
        return self._lines(canvas, room, page.head)

    def _place(self, parts: Sequence[Part], x: int, width: int, canvas: Canvas, page: SheetPage) -> int:
        """Place parts below each other; return the line at which they end."""
        over = page.over
        lengths = [len(fact.label) for part in parts if isinstance(part, Section) for fact in part.facts]
        labels, y, gap = min(max(lengths, default=0), _LABEL), len(page.head) or canvas.margin, 0
        for part in parts:
            if isinstance(part, Section):
                title = LineBuilder(canvas.styles).write(part.title, "strong").build(width)
                lines = [draw_rule(part.title, (), canvas.styles, width) if page.ruled else title]
                for fact in part.facts:
                    key = (fact, width, labels, over)
                    self._drawn[key] = self._before.get(key) or fact_lines(fact, canvas, width, labels, over=over)
                    lines += self._drawn[key]
            else:
                lines = part.draw(canvas.styles, width)
            if lines:
                self.placed.append(Placed(part, x, y, width, lines))
                gap = 1 if isinstance(part, Section) else part.gap
                y += len(lines) + gap
        return max(0, y - gap)

    def _lines(self, canvas: Canvas, room: int, head: Sequence[Line]) -> list[Line]:
        rows: list[list[tuple[int, Line]]] = [[] for _ in range(room)]
        for place in range(self.top, min(len(head), room + self.top)):
            rows[place - self.top].append((0, head[place]))
        for placed in self.placed:
            first = placed.y - self.top
            for place in range(max(0, -first), min(len(placed.lines), room - first)):
                rows[first + place].append((placed.x, placed.lines[place]))
        bar = range(0)
        if self.length > room:
            thumb = max(1, room * room // self.length)
            start = round((room - thumb) * self.top / max(1, self.length - room))
            bar = range(start, start + thumb)
        drawn = []
        for y, row in enumerate(rows):
            builder = LineBuilder(canvas.styles)
            for x, line in row:
                builder.gap(x - builder.cells).write_spans(line)
            if y in bar:
                mark = "|" if canvas.styles.glyphs.ascii else "▐"
                builder.gap(canvas.width - 1 - builder.cells).write(mark, "faint")
            drawn.append(builder.build(canvas.width))
        return drawn

    def at(self, x: int, y: int) -> Placed | None:
        """Return the part at a cell of the lines on screen."""
        y += self.top
        return next(
            (
                placed
                for placed in self.placed
                if placed.x <= x < placed.x + placed.width and placed.y <= y < placed.y + len(placed.lines)
            ),
            None,
        )

    def reveal(self, y: int, room: int) -> None:
        """Scroll until a line is on screen."""
        self.top = min(max(self.top, y - room + 1), y)


def fact_lines(fact: Fact, canvas: Canvas, width: int, labels: int, *, over: bool) -> list[Line]:
    """Draw a fact; the value wraps, and may be any text."""
    styles = canvas.styles
    style = styles("muted" if over or fact.missing else "text")
    value = [(canvas.spell(fact.value), style._replace(italic=fact.missing))]
    if fact.aside:
        between = "  " if len(fact.aside) <= _SHORT else "\n"
        value.append((f"{between}{canvas.spell(fact.aside)}", styles("muted")._replace(italic=fact.missing)))
    margin = min(labels + 2, width // 2)
    first, *others = wrapped_lines(value, styles, width, margin)
    head = LineBuilder(styles).write(canvas.spell(fact.label), "muted", max(0, margin - 1)).gap()
    return [head.write_spans(crop(first, margin, width)).build(width), *others]


_NAMES = str.maketrans({"…": "...", "↑": "Up", "↓": "Down", "⇧": "S-"})
"""Signs that are spelled out."""


def plain(text: str) -> str:
    """Replace gpuwatch's symbols by ASCII; names that people chose stay unchanged."""
    return spell_signs(text.translate(_NAMES))


def reason_words(reading: Reading) -> str:
    """Return why a reading has no number; empty where it has one."""
    return REASONS[reading] if isinstance(reading, Reason) else ""


def field_fact(field: Field[T], row: T) -> Fact:
    """Return the fact of a field: its value with the unit, or the reason in words."""
    value = field.describe(row) or Reason.NO_SAMPLE
    if isinstance(value, Reason):
        return Fact(field.label or field.name, REASONS[value], missing=True)
    return Fact(field.label or field.name, value)


def text_fact(label: str, text: str, otherwise: str) -> Fact:
    """Return the fact of a text, or the reason `otherwise` where it is empty."""
    return Fact(label, text) if text else Fact(label, otherwise, missing=True)
