"""Lines of styled text that repaint only where they changed.

A line is a tuple of spans of known width. Panels hand in all their lines whenever there is something new; what differs
from the lines on screen is found span by span, and only that is drawn and sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gpuwatch.text import fit, spell_signs
from gpuwatch.ui.theme import Ground, Role, Skin

NEAR = 6
"""Changed runs that are no further apart than this many cells are sent as one: a cursor move costs about as much."""


class Span(NamedTuple):
    """Text in one style, and the terminal cells that it takes."""

    text: str
    style: Style
    cells: int


Line: TypeAlias = tuple[Span, ...]


class LineBuilder:
    """Writes one line, field by field, on one ground."""

    def __init__(self, skin: Skin, ground: Ground = "base") -> None:
        self._styles, self._glyphs = skin.styles, skin.glyphs
        self.spans: list[Span] = []
        """What was written so far."""
        self.ground = ground
        self.cells = 0
        """Cells written so far."""

    def write(
        self, text: str, style: Role | Style = "text", cells: int | None = None, *, right: bool = False
    ) -> LineBuilder:
        """Write text in a role or a style of the styles, cut or padded to `cells` where they are given."""
        style = self._styles(style, self.ground) if isinstance(style, str) else style
        if self._glyphs.ascii and not text.isascii():
            text = spell_signs(text).encode("ascii", "replace").decode("ascii")
        width = len(text) if text.isascii() else cell_len(text)
        if cells is not None and width != cells:
            if width < cells:
                padding = " " * (cells - width)
                text = padding + text if right else text + padding
            else:
                text = fit(text, cells, ellipsis=self._glyphs.ellipsis)
            width = cells
        if width > 0:
            self.spans.append(Span(text, style, width))
            self.cells += width
        return self

    def gap(self, cells: int = 1) -> LineBuilder:
        """Write blanks."""
        if cells > 0:
            self.spans.append(Span(" " * cells, self._styles("text", self.ground), cells))
            self.cells += cells
        return self

    def write_spans(self, spans: Iterable[Span]) -> LineBuilder:
        """Write what another builder has written already."""
        for span in spans:
            self.spans.append(span)
            self.cells += span.cells
        return self

    def build(self, width: int) -> Line:
        """Return the line, cut or padded to exactly `width` cells."""
        if self.cells < width:
            self.gap(width - self.cells)
        if self.cells == width:
            return tuple(self.spans)
        kept: list[Span] = []
        left = width
        for span in self.spans:
            if span.cells >= left:
                if left > 0:
                    kept.append(Span(set_cell_size(span.text, left), span.style, left))
                break
            kept.append(span)
            left -= span.cells
        return tuple(kept)


def blank(skin: Skin, width: int) -> Line:
    """Return an empty line."""
    return LineBuilder(skin).build(width)


def centred(skin: Skin, text: str, width: int, role: Role = "muted") -> Line:
    """Return a line with text in its middle."""
    shown = fit(text, width, ellipsis=skin.glyphs.ellipsis) if cell_len(text) > width else text
    return LineBuilder(skin).gap(max(0, (width - cell_len(shown)) // 2)).write(shown, role).build(width)


def centred_lines(words: str, skin: Skin, width: int, lines: int) -> list[Line]:
    """Draw words in the middle of so many lines."""
    return [*[blank(skin, width)] * max(0, min(lines // 2, lines - 1)), centred(skin, words, width)]


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join(span.text for span in line)


def strip(line: Line) -> Strip:
    """Return a line as Textual draws it, with neighbours of one style joined."""
    segments: list[Segment] = []
    text, style = "", None
    cells = 0
    for span in line:
        cells += span.cells
        if span.style is style:
            text += span.text
            continue
        if text:
            segments.append(Segment(text, style))
        text, style = span.text, span.style
    if text:
        segments.append(Segment(text, style))
    return Strip(segments, cells)


def _width(line: Line) -> int:
    return sum(span.cells for span in line)


def changed(old: Line, new: Line) -> list[tuple[int, int]]:
    """Return the runs of cells (from, until) in which two lines of one width differ, in order."""
    runs: list[tuple[int, int]] = []
    olds, news = _aligned(old, new)
    x = 0
    for before, after in zip(olds, news, strict=True):
        if before is not after and before != after:
            start, end = _tight(before, after)
            if runs and x + start - runs[-1][1] <= NEAR:
                runs[-1] = (runs[-1][0], x + end)
            else:
                runs.append((x + start, x + end))
        x += after.cells
    return runs


def _aligned(old: Line, new: Line) -> tuple[Line, Line]:
    """Return both lines in spans of the same widths: as they are, or all that lies between their like ends as one."""
    if len(old) == len(new) and all(one.cells == two.cells for one, two in zip(old, new, strict=True)):
        return old, new
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    return tuple(_joined(line, head, tail) for line in (old, new))  # type: ignore[return-value]


def _joined(line: Line, head: int, tail: int) -> Line:
    middle = line[head : len(line) - tail]
    whole = Span("\n".join(span.text for span in middle), Style(), sum(span.cells for span in middle))
    # The text only has to differ from the other line's, and is never drawn.
    return (*line[:head], whole._replace(text=f"{whole.text}{id(line)}"), *line[len(line) - tail :])


def _tight(old: Span, new: Span) -> tuple[int, int]:
    """Narrow a changed span to the cells that differ, where every character is one cell wide."""
    if old.style != new.style or not len(old.text) == len(new.text) == new.cells:
        return 0, new.cells
    start, end = 0, new.cells
    while start < end and old.text[start] == new.text[start]:
        start += 1
    while end > start and old.text[end - 1] == new.text[end - 1]:
        end -= 1
    return start, end


class LinePanel(Widget):
    """A widget that shows lines and sends only what changed of them."""

    DEFAULT_CSS = "LinePanel { width: 1fr; height: 1; }"
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._lines: list[Line] = []
        self._strips: list[Strip | None] = []
        self._room = (-1, 0)

    def show(self, lines: Sequence[Line]) -> None:
        """Show lines, all of the panel's width; draws those parts that are not on screen already."""
        old = self._lines
        as_wide = bool(old and lines) and _width(old[0]) == _width(lines[0])
        dirty: list[Region] = []
        for y, (before, after) in enumerate(zip(old, lines, strict=False)):
            if before is after or before == after:
                continue
            self._strips[y] = None
            runs = changed(before, after) if as_wide else [(0, max(self.size.width, 1))]
            dirty += [Region(start, y, end - start, 1) for start, end in runs]
        beyond = range(min(len(old), len(lines)), max(len(old), len(lines)))
        dirty += [Region(0, y, self.size.width, 1) for y in beyond]
        self._strips[len(old) :] = [None] * (len(lines) - len(old))
        del self._strips[len(lines) :]
        self._lines = list(lines)
        if dirty:
            self.refresh(*dirty)

    def render_line(self, y: int) -> Strip:
        """Return one line to Textual."""
        width = self.size.width
        if y >= len(self._lines):
            return Strip.blank(width, self.rich_style)
        made = self._strips[y]
        if made is None or made.cell_length != width:
            made = strip(self._lines[y])
            if made.cell_length != width:  # to find its style costs more than to draw the line
                made = made.adjust_cell_length(width, self.rich_style)
            self._strips[y] = made
        return made

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a region as they are: a panel has no border, padding or tint that Textual would add."""
        background = self.background_colors[1]
        strips = []
        for y in crop.line_range:
            made = self.render_line(y)
            for line_filter in self.get_line_filters():
                made = made.apply_filter(line_filter, background)
            strips.append(made.crop(crop.x, crop.right))
        return strips

    def set_height(self, height: int, above: int = 0) -> None:
        """Set the lines that the panel has, and the blank ones above it; only a change costs a new layout."""
        if self._room != (height, above):
            self._room = (height, above)
            self.styles.height = height
            self.styles.margin = (above, 0, 0, 0)

    @property
    def text(self) -> list[str]:
        """The lines as plain text."""
        return [plain(line) for line in self._lines]
