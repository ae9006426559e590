"""Panels: Textual's widgets around lines that `gpuwatch.ui.draw` makes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style as RichStyle
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gpuwatch.ui.draw.lines import Line, changed, plain, width_of
from gpuwatch.ui.draw.theme import Style


@lru_cache(1024)
def rich_style(style: Style) -> RichStyle:
    """Return the same style for Rich."""
    color, background, *attributes = style
    bold, dim, italic, underline, reverse = (True if one else None for one in attributes)
    return RichStyle(
        color=color,
        bgcolor=background,
        bold=bold,
        dim=dim,
        italic=italic,
        underline=underline,
        reverse=reverse,
    )


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
        same_width = bool(old and lines) and width_of(old[0]) == width_of(lines[0])
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
            strip = Strip([Segment(text, rich_style(style)) for text, style, _ in line], width_of(line))
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
