"""Sends a terminal only what changed.

Textual 8.2 crops a changed run of cells on its right side only: it resends its line from the widget's left edge, and
sets the whole style anew for every segment. This writes each run alone, and a colour only where it differs from the
one before: 3.4 kB/s against 32 where all figures of 8 GPUs and 35 processes change each second (160×50, 256 colours).
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, Compositor
from textual.strip import Strip

_ATTRIBUTES = (
    ("bold", "1", "22"),
    ("dim", "2", "22"),
    ("italic", "3", "23"),
    ("underline", "4", "24"),
    ("blink", "5", "25"),
    ("reverse", "7", "27"),
    ("strike", "9", "29"),
)
"""Name in Rich, and the SGR codes that turn it on and off."""


class PartialUpdate(ChopsUpdate):
    """A partial update of the screen in as few bytes as it takes."""

    def render_segments(self, console: Console) -> str:
        """Return the update as terminal sequences; the terminal is left without a style."""
        writer = _Writer(console._color_system or ColorSystem.TRUECOLOR)
        for y, x1, x2 in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                if strip is None or x >= x2 or end <= x1:
                    continue
                start, until = max(x, x1), min(end, x2)
                writer.write(start, y, strip.crop(start - x, until - x))
        return writer.finish()


class PartialUpdateCompositor(Compositor):
    """A compositor whose partial updates are tight."""

    def render_partial_update(self) -> ChopsUpdate | None:
        """Return what changed since the last update."""
        update = super().render_partial_update()
        return None if update is None else PartialUpdate(update.chops, update.spans, update.chop_ends)


class _Writer:
    def __init__(self, color_system: ColorSystem) -> None:
        self._system = color_system
        self._out: list[str] = []
        self._at: tuple[int, int] | None = None
        self._style: tuple[str, str, str] = ("", "", "")

    def write(self, x: int, y: int, strip: Strip) -> None:
        """Write a strip at a place on the screen."""
        if self._at != (x, y):
            self._out.append(f"\x1b[{y + 1};{x + 1}H")
        segments: Iterable[Segment] = strip
        for text, style, control in segments:
            if control:
                continue
            self._turn(style)
            self._out.append(text)
        self._at = (x + strip.cell_length, y)

    def finish(self) -> str:
        """Reset the style, and give all that was written."""
        if self._style != ("", "", ""):
            self._out.append("\x1b[0m")
        return "".join(self._out)

    def _turn(self, style: Style | None) -> None:
        new = _codes(style, self._system)
        old = self._style
        if new == old:
            return
        if (old[1] and not new[1]) or (old[2] and not new[2]):  # the terminal's own colour is left to it by a reset
            codes = ["0", *new]
        else:
            codes = [
                *_switches(old[0], new[0]),
                *(code for code, was in zip(new[1:], old[1:], strict=True) if code != was),
            ]
        self._out.append(f"\x1b[{';'.join(code for code in codes if code)}m")
        self._style = new


def _switches(old: str, new: str) -> list[str]:
    """Return the SGR codes that lead from one set of attributes to another."""
    before, after = set(old.split(";")), set(new.split(";"))
    if before == after:
        return []
    off = {code for _, on, code in _ATTRIBUTES if on in before - after}
    # 22 ends bold and dim alike: the one that stays is turned on again.
    return sorted(off) + [on for _, on, code in _ATTRIBUTES if on in after and (on not in before or code in off)]


_known: dict[tuple[Style, ColorSystem], tuple[str, str, str]] = {}


def _codes(style: Style | None, system: ColorSystem) -> tuple[str, str, str]:
    """Return a style as its attributes, foreground and background, in SGR codes."""
    if style is None:
        return ("", "", "")
    found = _known.get((style, system))
    if found is None:
        if len(_known) > 4096:
            _known.clear()
        attributes = ";".join(on for name, on, _ in _ATTRIBUTES if getattr(style, name))
        fore = ";".join(style.color.downgrade(system).get_ansi_codes()) if style.color else ""
        back = ";".join(style.bgcolor.downgrade(system).get_ansi_codes(foreground=False)) if style.bgcolor else ""
        found = _known[style, system] = (attributes, fore, back)
    return found
