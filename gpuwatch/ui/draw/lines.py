"""Lines of styled text, of which only the changed cells are drawn again.

A line is a tuple of spans of known width. Panels pass all their lines after each change; the lines are compared with
those on screen span by span, and only the changed cells are drawn and sent.
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

from gpuwatch.base.text import fit, spell_signs
from gpuwatch.ui.draw.theme import Background, Role, StyleSet

NEAR = 6
"""Most cells between two changed runs that are sent as one: a cursor move takes about as many bytes."""


class Span(NamedTuple):
    """Text in one style, and the terminal cells that it takes."""

    text: str
    style: Style
    cells: int


Line: TypeAlias = tuple[Span, ...]


class LineBuilder:
    """Builder of one line, field by field, on one background."""

    def __init__(self, styles: StyleSet, background: Background = "base") -> None:
        self._styles, self._glyphs = styles, styles.glyphs
        self.spans: list[Span] = []
        """Spans written so far."""
        self.background = background
        self.cells = 0
        """Cells written so far."""

    def write(
        self, text: str, style: Role | Style = "text", cells: int | None = None, *, right: bool = False
    ) -> LineBuilder:
        """Write text in a role or a style, cut or padded to `cells` if given."""
        style = self._styles(style, self.background) if isinstance(style, str) else style
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
        if cells > 0:
            self.spans.append(Span(" " * cells, self._styles("text", self.background), cells))
            self.cells += cells
        return self

    def write_spans(self, spans: Iterable[Span]) -> LineBuilder:
        """Append the spans of another line."""
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


def blank(styles: StyleSet, width: int) -> Line:
    return LineBuilder(styles).build(width)


def centred(styles: StyleSet, text: str, width: int, role: Role = "muted") -> Line:
    shown = fit(text, width, ellipsis=styles.glyphs.ellipsis) if cell_len(text) > width else text
    return LineBuilder(styles).gap(max(0, (width - cell_len(shown)) // 2)).write(shown, role).build(width)


def centred_lines(words: str, styles: StyleSet, width: int, lines: int) -> list[Line]:
    """Return words in the middle of `lines` lines."""
    return [*[blank(styles, width)] * max(0, min(lines // 2, lines - 1)), centred(styles, words, width)]


def plain(line: Line) -> str:
    """Return the text of a line."""
    return "".join(span.text for span in line)


def crop(line: Line, start: int, end: int) -> Line:
    """Return the cells of a line from `start` to `end`; a blank stands for half of a wide character."""
    cropped = []
    x = 0
    for span in line:
        after = x + span.cells
        if after > start and x < end:
            if start <= x and after <= end:
                cropped.append(span)
            else:
                first, last = max(start - x, 0), min(end, after) - x
                text = span.text[first:last]
                if len(span.text) != span.cells:  # wide characters
                    _, rest = Segment(span.text).split_cells(first)
                    text = rest.split_cells(last - first)[0].text
                cropped.append(Span(text, span.style, last - first))
        x = after
    return tuple(cropped)


def changed(old: Line, new: Line) -> list[tuple[int, int]]:
    """Return the runs of cells (from, until) in which two lines of one width differ, in order."""
    if len(old) != len(new):
        return _middle(old, new)
    runs: list[tuple[int, int]] = []
    x = 0
    for before, after in zip(old, new, strict=True):
        if before is not after and before != after:
            if before.cells != after.cells:
                return _middle(old, new)
            start, end = _narrowed(before, after)
            if runs and x + start - runs[-1][1] <= NEAR:
                runs[-1] = (runs[-1][0], x + end)
            else:
                runs.append((x + start, x + end))
        x += after.cells
    return runs


def _middle(old: Line, new: Line) -> list[tuple[int, int]]:
    """Return the cells between the equal spans at the beginning and at the end of both lines."""
    same = min(len(old), len(new))
    head = next((at for at in range(same) if old[at] != new[at]), same)
    tail = next((at for at in range(same - head) if old[-1 - at] != new[-1 - at]), same - head)
    return [(_width(new[:head]), _width(new[: len(new) - tail]))]


def _narrowed(old: Span, new: Span) -> tuple[int, int]:
    """Return the cells of a span that differ, where every character is one cell wide; else all of them."""
    if (old.style is not new.style and old.style != new.style) or not len(old.text) == len(new.text) == new.cells:
        return 0, new.cells
    start, end = 0, new.cells
    while start < end and old.text[start] == new.text[start]:
        start += 1
    while end > start and old.text[end - 1] == new.text[end - 1]:
        end -= 1
    return start, end


def _width(line: Line) -> int:
    return sum(span.cells for span in line)


class LinePanel(Widget):
    """Widget that shows lines; only the cells that changed are drawn again."""

    DEFAULT_CSS = "LinePanel { width: 1fr; height: 1; }"
    ALLOW_SELECT = False

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.lines: Sequence[Line] = ()
        """Lines on screen."""
        self._room = (-1, 0)

    def show(self, lines: Sequence[Line]) -> None:
        """Show lines, which have the width of the panel."""
        old, self.lines = self.lines, lines
        same_width = bool(old and lines) and _width(old[0]) == _width(lines[0])
        if not same_width or len(old) != len(lines):
            self.refresh()
            return
        dirty = [
            Region(start, y, end - start, 1)
            for y, (before, after) in enumerate(zip(old, lines, strict=True))
            if before is not after and before != after
            for start, end in changed(before, after)
        ]
        if dirty:
            self.refresh(*dirty)

    def _set_dirty(self, *regions: Region) -> None:
        # Without Textual's caches of rendered lines, which are not used, and cost more than to draw the regions.
        self._repaint_regions.update(regions or (self.size.region,))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Return the lines of a region as they are: a panel has no border, padding or tint that Textual would add."""
        background = self.background_colors[1]
        filters = self.get_line_filters()
        strips = []
        for line in [*self.lines[crop.y : crop.bottom], *[()] * (crop.bottom - len(self.lines))]:
            strip = Strip([Segment(text, style) for text, style, _ in line], _width(line))
            strip = strip.adjust_cell_length(self.size.width, self.rich_style)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            strips.append(strip.crop(crop.x, crop.right))
        return strips[: crop.height]

    def set_height(self, height: int, above: int = 0) -> None:
        """Set the number of lines, and of blank lines above; Textual computes a new layout only after a change."""
        if self._room != (height, above):
            self._room = (height, above)
            self.styles.height = height
            self.styles.margin = (above, 0, 0, 0)

    @property
    def text(self) -> list[str]:
        return [plain(line) for line in self.lines]
