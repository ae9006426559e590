"""The colours of the two themes, for terminals with all of them, with 256 and with 16."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final


@dataclass(frozen=True, slots=True)
class Palette:
    """The colours of one theme, as `#rrggbb`."""

    dark: bool
    text: str
    strong: str
    muted: str
    faint: str
    critical: str
    warning: str
    note: str
    base: str
    band: str
    """Behind column titles and the keys."""
    track: str
    """Behind a memory bar: its length is the GPU's capacity."""
    cursor: str
    fills: tuple[str, ...]
    """Behind an owner's part of a bar, one for each of `SLOTS`, and a grey for whoever is not visible."""
    owner_text: str
    """What is written on them; black or white by each fill where there are 16 colours."""
    swatches: tuple[str, ...]
    """The same hues as thin marks on any ground."""


# Ten hues in an order in which neighbours lie far apart: people's uids often follow one another. Within a table any two
# differ by at least 19 in CIELAB (11 is what muted colours of one lightness come to), which is why their lightness
# differs too; what is written on a fill has a contrast of 4.5 to 1 and more, a swatch 3 to 1 on every ground.
_DARK_FILLS = "#31476f #2a6249 #8f563a #8b3a8f #8e3b4e #387384 #3e7933 #3c3e8f #626130 #683964 #474747"
_DARK_SWATCHES = "#86a7df #4cb080 #cb6a34 #c554d3 #cd6272 #33aebf #4bbd3b #7a79dd #a29c45 #d889cb #838383"
_LIGHT_FILLS = "#9fb4d1 #9adabd #d4b39c #d79ad8 #d99aa8 #97d3da #a4da96 #979dd9 #d5d29e #e4c4e5 #d2d2d2"
_LIGHT_SWATCHES = "#3d67b2 #1f653f #9f5530 #914590 #c2365d #298ba3 #349029 #3b44c2 #7f7c22 #c034ca #808080"

DARK: Final = Palette(
    dark=True,
    text="#c5cad3",
    strong="#f2f4f7",
    muted="#8a92a0",
    faint="#565d69",
    critical="#ff7070",
    warning="#e8b650",
    note="#74b4f5",
    base="#14161b",
    band="#1f232b",
    track="#23272f",
    cursor="#2e3a4f",
    fills=tuple(_DARK_FILLS.split()),
    owner_text="#f4f5f7",
    swatches=tuple(_DARK_SWATCHES.split()),
)
LIGHT: Final = Palette(
    dark=False,
    text="#30353d",
    strong="#000000",
    muted="#666d79",
    faint="#a3a9b3",
    critical="#c01f2c",
    warning="#8f5a00",
    note="#0b5cba",
    base="#fcfcfa",
    band="#eceef1",
    track="#e9ebee",
    cursor="#d3e2f8",
    fills=tuple(_LIGHT_FILLS.split()),
    owner_text="#1a1c20",
    swatches=tuple(_LIGHT_SWATCHES.split()),
)
PALETTES: Final = {"gpuwatch-dark": DARK, "gpuwatch-light": LIGHT}

# Over ssh a terminal usually says that it has 256 colours, and there muted hues fall together: ten of them become
# three. These are colours of that table.
_TABLE_DARK = "#005f87 #00875f #af5f00 #5f00af #af005f #005faf #008700 #875faf #5f5f00 #870087 #4e4e4e"
_TABLE_LIGHT = "#afafff #87d7d7 #ffaf87 #ffafff #d787af #87afd7 #87d787 #af87ff #d7af5f #ff87ff #c6c6c6"
_TABLE_DARK_SWATCHES = "#5fd7ff #00af5f #d78700 #d7afff #ff5faf #5f87ff #5fd700 #af87ff #d7d75f #ff5fff #949494"
_TABLE_LIGHT_SWATCHES = "#0000ff #00875f #875f00 #d700d7 #d7005f #005faf #008700 #5f5fff #5f5f00 #870087 #767676"
PALETTES_256: Final = {
    "gpuwatch-dark": replace(
        DARK,
        base="#121212",
        band="#262626",
        track="#303030",
        cursor="#444444",
        fills=tuple(_TABLE_DARK.split()),
        owner_text="#ffffff",
        swatches=tuple(_TABLE_DARK_SWATCHES.split()),
    ),
    "gpuwatch-light": replace(
        LIGHT,
        base="#ffffff",
        band="#eeeeee",
        track="#e4e4e4",
        cursor="#d7d7ff",
        fills=tuple(_TABLE_LIGHT.split()),
        swatches=tuple(_TABLE_LIGHT_SWATCHES.split()),
    ),
}

# Where there are 16, these are exactly the colours that Rich takes for them, so that none turns into another: blue,
# green, magenta, cyan, brown, and their bright ones, but no red, which is for what is wrong. The grey is none that a
# theme has as its ground.
_SIXTEEN = "#0000aa #00aa00 #aa5500 #aa00aa #55ffff #00aaaa #55ff55 #5555ff #ffff55 #ff55ff"
PALETTES_16: Final = {
    name: replace(one, fills=(*_SIXTEEN.split(), grey), swatches=(*_SIXTEEN.split(), grey))
    for (name, one), grey in zip(PALETTES.items(), ("#555555", "#aaaaaa"), strict=True)
}
ON_SIXTEEN: Final = dict.fromkeys(("#0000aa", "#aa00aa", "#5555ff", "#555555"), "#ffffff")
"""What is written in white there; black stands better on the others, whatever a terminal makes of them."""

SLOTS: Final = 10
"""Colours that people can have."""
