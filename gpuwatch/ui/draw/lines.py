"""Lines of styled text: made of spans, wrapped, cut, and compared with those on screen.

A line is a tuple of spans of known width. Two drawings are compared line by line and span by span, so that only the
changed cells are sent to the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, NamedTuple, TypeAlias

from rich.cells import cell_len, chop_cells, set_cell_size

from gpuwatch.base.text import fit, spell_signs
from gpuwatch.ui.draw.theme import Background, Role, Style, StyleSet

_WORD: Final = re.compile(r"\s*\S+\s*")
NEAR: Final = 6
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


def draw_rule(title: str, words: Sequence[str], styles: StyleSet, width: int) -> Line:
    """Draw a title and words at both ends of a rule, as many words as there is room for: `╶ heat ──── 79 °C ╴`."""
    bar, first, last = ("-", "-", "-") if styles.glyphs.ascii else ("─", "╶", "╴")
    shown = list(words)
    between = f" {styles.glyphs.dot} "
    while shown and cell_len(title) + cell_len(between.join(shown)) + 7 > width:
        shown.pop()
    builder = LineBuilder(styles).write(first, "faint")
    if title:
        builder.gap().write(title, "strong", min(cell_len(title), width)).gap()
    end = width - 2 - cell_len(between.join(shown)) - bool(shown)
    builder.write(bar * (end - builder.cells), "faint")
    for place, one in enumerate(shown):
        builder.write(between if place else " ", "faint").write(one, "text" if place == 0 else "muted")
    return builder.write(f" {last}", "faint").build(width)


def plain(line: Line) -> str:
    return "".join(span.text for span in line)


def crop(line: Line, start: int, end: int) -> Line:
    """Return the cells of a line from `start` to `end`; half of a wide character becomes a blank."""
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
                    text = _cells_of(span.text, first, last)
                cropped.append(Span(text, span.style, last - first))
        x = after
    return tuple(cropped)


def _cells_of(text: str, start: int, end: int) -> str:
    """Return the cells of a text from `start` to `end`; half of a wide character becomes a blank."""
    kept, x = "", 0
    for char in text:
        first, x = x, x + cell_len(char)
        if first >= start and start < x <= end:
            kept += char
        elif first < start < x or first < end < x:
            kept += " "
    return kept


def wrapped_lines(runs: Sequence[tuple[str, Style]], styles: StyleSet, width: int, margin: int) -> list[Line]:
    """Draw runs of text after a margin, wrapped at blanks; a word that is longer than a line is divided."""
    lines: list[Line] = []
    start = 0
    for paragraph in "".join(text for text, _ in runs).split("\n"):
        breaks = _breaks(paragraph, max(1, width - margin))
        for first, last in pairwise((0, *breaks, len(paragraph))):
            builder = LineBuilder(styles).gap(margin)
            at = 0
            for text, style in runs:
                builder.write(text[max(0, start + first - at) : max(0, start + last - at)], style)
                at += len(text)
            lines.append(builder.build(width))
        start += len(paragraph) + 1
    return lines


def _breaks(text: str, width: int) -> list[int]:
    """Return the places at which a text is broken into lines of at most `width` cells, but for blanks at their ends."""
    breaks: list[int] = []
    taken = 0
    for word in _WORD.finditer(text):
        cells = cell_len(word[0].rstrip())
        if cells > width:
            at = word.start()
            for part in chop_cells(word[0], width):
                breaks += [at] * (at > 0)
                at += len(part)
                taken = cell_len(part)
        elif cells > width - taken:
            breaks.append(word.start())
            taken = cell_len(word[0])
        else:
            taken += cell_len(word[0])
    return breaks


def changed(old: Line, new: Line) -> list[tuple[int, int]]:
    """Return the runs of cells (from, until) in which two lines of one width differ, in order."""
    if [span.cells for span in old] != [span.cells for span in new]:
        is_wide = any(len(span.text) != span.cells for span in (*old, *new))  # such characters are not divided
        if is_wide or width_of(old) != width_of(new):
            return _middle(old, new)
        ends = sorted({end for line in (old, new) for end in accumulate(span.cells for span in line)})
        old, new = _divided(old, ends), _divided(new, ends)
    runs: list[tuple[int, int]] = []
    x = 0
    for before, after in zip(old, new, strict=True):
        if before is not after and before != after:
            start, end = _narrowed(before, after)
            if runs and x + start - runs[-1][1] <= NEAR:
                runs[-1] = (runs[-1][0], x + end)
            else:
                runs.append((x + start, x + end))
        x += after.cells
    return runs


def _divided(line: Line, ends: Sequence[int]) -> Line:
    """Divide the spans of a line at some cells."""
    parts = []
    x = place = 0
    for span in line:
        first, x = x, x + span.cells
        start = first
        while place < len(ends) and ends[place] <= x:
            parts.append(Span(span.text[start - first : ends[place] - first], span.style, ends[place] - start))
            start, place = ends[place], place + 1
    return tuple(parts)


def _middle(old: Line, new: Line) -> list[tuple[int, int]]:
    """Return the cells between the equal spans at the beginning and at the end of both lines."""
    same = min(len(old), len(new))
    head = next((at for at in range(same) if old[at] != new[at]), same)
    tail = next((at for at in range(same - head) if old[-1 - at] != new[-1 - at]), same - head)
    return [(width_of(new[:head]), width_of(new[: len(new) - tail]))]


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


def width_of(line: Line) -> int:
    return sum(span.cells for span in line)
