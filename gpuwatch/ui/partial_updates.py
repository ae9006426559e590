"""Partial updates of the screen in few bytes and little CPU time.

Textual 8.2 renders every widget again for a partial update, resends a changed run of cells from its widget's left
edge, and sets the whole style for every segment. This module sends only the changed runs, style by style: a colour
takes twice as many bytes as a move of the cursor. While nothing but panels is on screen, the runs are taken from their
lines, without Textual's rendering.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from rich.color import ColorSystem
from rich.console import Console
from rich.style import Style as RichStyle
from textual._compositor import ChopsUpdate, Compositor, CompositorUpdate
from textual.screen import Screen

from gpuwatch.ui.draw import sgr
from gpuwatch.ui.draw.lines import Line, crop
from gpuwatch.ui.draw.theme import Style
from gpuwatch.ui.widgets.panels import LinePanel

COLORS: Final = {ColorSystem.STANDARD: 16, ColorSystem.EIGHT_BIT: 256}
"""Number of colours of the systems of Rich with fewer than 2^24."""
_PLAIN: Final = Style()


class CellRun(NamedTuple):
    """Changed cells of one row of the screen."""

    x: int
    y: int
    spans: Sequence[tuple[str, Style | RichStyle, int]]


class PartialUpdate(CompositorUpdate):
    """Partial update of the screen: runs of cells in reading order."""

    def __init__(self, runs: Iterable[CellRun]) -> None:
        self.runs = runs

    def render_segments(self, console: Console) -> str:
        """Return the update as terminal sequences; the terminal is left without a style."""
        system = console._color_system or ColorSystem.TRUECOLOR
        pieces: dict[Style | RichStyle, list[tuple[int, int, str, int]]] = {}
        for x, y, spans in self.runs:
            for text, new, cells in spans:
                pieces.setdefault(new, []).append((x, y, text, cells))
                x += cells
        out: list[str] = []
        position = (-1, -1)
        style: Style | RichStyle | None = None
        for new, those in pieces.items():
            out.append(_transition(style, new, system))
            style = new
            for x, y, text, cells in those:
                if position != (x, y):
                    out.append(f"\x1b[{y + 1};{x + 1}H")
                out.append(text)
                position = (x + cells, y)
        if _codes(style, system) != sgr.Codes():
            out.append("\x1b[0m")
        return "".join(out)


class PartialUpdateCompositor(Compositor):
    """Textual compositor of the dashboard that makes `PartialUpdate`s."""

    def render_partial_update(self) -> CompositorUpdate | None:  # type: ignore[override]
        """Return an update of the cells that changed since the last one; None where none did."""
        width, height = self.size
        spans = [span for span in self._regions_to_spans(self._dirty_regions) if span[0] < height]
        rows = self._panel_rows()
        if rows is not None and all(y in rows for y, _, _ in spans):
            self._dirty_regions.clear()
            return PartialUpdate([CellRun(x1, y, crop(rows[y], x1, min(x2, width))) for y, x1, x2 in spans])
        update = super().render_partial_update()
        return None if update is None else PartialUpdate(_runs_of_chops(update))

    def _panel_rows(self) -> dict[int, Line] | None:
        """Return the line of each row of the screen; None while a widget that is no panel is visible."""
        rows: dict[int, Line] = {}
        for widget, (region, _clip) in self.visible_widgets.items():
            if isinstance(widget, LinePanel):
                rows.update(enumerate(widget.lines[: region.height], region.y))
            elif not isinstance(widget, Screen):
                return None
        return rows


def _runs_of_chops(update: ChopsUpdate) -> Iterable[CellRun]:
    for y, x1, x2 in update.spans:
        for end, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=False):
            if strip is None or x >= x2 or end <= x1:
                continue
            start = max(x, x1)
            cropped = strip.crop(start - x, min(end, x2) - x)
            yield CellRun(start, y, [(one.text, one.style or _PLAIN, one.cell_length) for one in cropped._segments])


@lru_cache(4096)
def _transition(old: Style | RichStyle | None, new: Style | RichStyle, system: ColorSystem) -> str:
    """Return the SGR sequence that leads from one style to another."""
    return sgr.transition(_codes(old, system), _codes(new, system))


@lru_cache(1024)
def _codes(style: Style | RichStyle | None, system: ColorSystem) -> sgr.Codes:
    """Return the SGR codes of a style of ours, or of Rich's in a widget of Textual's."""
    if style is None:
        return sgr.Codes()
    if isinstance(style, Style):
        return sgr.codes(style, COLORS.get(system, sgr.TRUECOLOR))
    attributes = ";".join(on for name, on, _ in sgr.ATTRIBUTES if getattr(style, name))
    foreground = ";".join(style.color.downgrade(system).get_ansi_codes()) if style.color else ""
    background = ";".join(style.bgcolor.downgrade(system).get_ansi_codes(foreground=False)) if style.bgcolor else ""
    return sgr.Codes(attributes, foreground, background)


def is_covered(screen: Screen[Any]) -> bool:
    """Return whether a screen above hides this one: any change of this one would make Textual send all of that one."""
    stack = screen.app.screen_stack
    return screen in stack and any(one.styles.background.a == 1 for one in stack[stack.index(screen) + 1 :])
