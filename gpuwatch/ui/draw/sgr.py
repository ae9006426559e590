"""Control sequences of styles (SGR), for terminals with 2^24, 256 or 16 colours.

The nearest colour is the one that Rich 14 takes (`rich.color.Color.downgrade`), which Textual draws dialogs with: the
same colour must look the same on both. Rich itself takes 40 ms to import.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from gpuwatch.ui.draw.lines import Line
from gpuwatch.ui.draw.theme import Style

TRUECOLOR: Final = 1 << 24

ATTRIBUTES: Final = (
    ("bold", "1", "22"),
    ("dim", "2", "22"),
    ("italic", "3", "23"),
    ("underline", "4", "24"),
    ("blink", "5", "25"),
    ("reverse", "7", "27"),
    ("strike", "9", "29"),
)
"""Attributes of text: the name in Rich, and the SGR codes that turn the attribute on and off."""

_SIXTEEN: Final = (
    *((0, 0, 0), (170, 0, 0), (0, 170, 0), (170, 85, 0), (0, 0, 170), (170, 0, 170), (0, 170, 170), (170, 170, 170)),
    *((85, 85, 85), (255, 85, 85), (85, 255, 85), (255, 255, 85), (85, 85, 255), (255, 85, 255), (85, 255, 255)),
    (255, 255, 255),
)
"""Red, green and blue of the 16 colours (`rich._palettes.STANDARD_PALETTE`)."""


class Codes(NamedTuple):
    """SGR codes of a style, each with `;` between; an empty one is the terminal's own."""

    attributes: str = ""
    foreground: str = ""
    background: str = ""


def colors_of(environ: Mapping[str, str]) -> int:
    """Return the number of colours that the environment states, as Rich reads it: 2^24, 256 or 16; 0 with NO_COLOR."""
    if "NO_COLOR" in environ:
        return 0
    if environ.get("COLORTERM", "").strip().lower() in ("truecolor", "24bit"):
        return TRUECOLOR
    kind = environ.get("TERM", "").strip().lower().rpartition("-")[2]
    return 256 if kind in ("kitty", "256color") else 16


@lru_cache(4096)
def codes(style: Style, colors: int) -> Codes:
    """Return the codes of a style on a terminal with so many colours."""
    attributes = ";".join(on for name, on, _ in ATTRIBUTES if getattr(style, name, False))
    return Codes(attributes, _color(style.color, colors, 30), _color(style.background, colors, 40))


def transition(before: Codes, after: Codes) -> str:
    """Return the sequence that leads from one style to another; empty where both are the same."""
    if before == after:
        return ""
    if (before[1] and not after[1]) or (before[2] and not after[2]):  # only a reset leads back to the terminal's colour
        parts = ["0", *after]
    else:
        parts = [*_switches(before[0], after[0]), *(a for a, b in zip(after[1:], before[1:], strict=True) if a != b)]
    return f"\x1b[{';'.join(part for part in parts if part)}m"


def sequence(lines: Iterable[Line], colors: int) -> str:
    """Return lines of the terminal's width, to be drawn from its first row on; it is left without a style."""
    out: list[str] = []
    last = Codes()
    for y, line in enumerate(lines, 1):
        out.append(f"\x1b[{y};1H")
        for text, style, _ in line:
            new = codes(style, colors)
            out += (transition(last, new), text)
            last = new
    return "".join(out) + "\x1b[0m"


def _switches(before: str, after: str) -> list[str]:
    """Return the codes that lead from one set of attributes to another."""
    old, new = set(before.split(";")), set(after.split(";"))
    off = {code for _, on, code in ATTRIBUTES if on in old - new}
    # 22 ends bold and dim alike: the one that stays is turned on again.
    return sorted(off) + [on for _, on, code in ATTRIBUTES if on in new and (on not in old or code in off)]


def _color(color: str | None, colors: int, first: int) -> str:
    """Return the codes of a colour as `#rrggbb`; `first` is 30 for text, 40 for a background."""
    if color is None:
        return ""
    red, green, blue = (int(color[at : at + 2], 16) for at in (1, 3, 5))
    if colors == TRUECOLOR:
        return f"{first + 8};2;{red};{green};{blue}"
    if colors == 256:
        return f"{first + 8};5;{_of_256(red, green, blue)}"
    number = _of_16(red, green, blue)
    return str(first + number if number < 8 else first + 52 + number)


def _of_256(red: int, green: int, blue: int) -> int:
    """Return the nearest of the colours 16 to 255: a grey below 15 % of saturation (HLS), else of the cube."""
    low, high = min(red, green, blue) / 255, max(red, green, blue) / 255
    light = (low + high) / 2
    spread = (high - low) / (high + low if light <= 0.5 else 2 - high - low) if high > low else 0.0
    if spread < 0.15:
        grey = round(light * 25)
        return {0: 16, 25: 231}.get(grey, 231 + grey)
    parts = [round(one / 95 if one < 95 else 1 + (one - 95) / 40) for one in (red, green, blue)]
    return 16 + 36 * parts[0] + 6 * parts[1] + parts[2]


def _of_16(red: int, green: int, blue: int) -> int:
    """Return the nearest of the 16 colours, by a distance that is weighted by the amount of red."""

    def distance(number: int) -> int | float:
        other = _SIXTEEN[number]
        mean = (red + other[0]) // 2
        parts = red - other[0], green - other[1], blue - other[2]
        weighted = ((512 + mean) * parts[0] ** 2) >> 8, 4 * parts[1] ** 2, ((767 - mean) * parts[2] ** 2) >> 8
        return sum(weighted)

    return min(range(16), key=distance)
