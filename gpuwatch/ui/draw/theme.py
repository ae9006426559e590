"""Themes: colours for each kind of terminal, styles of text, and glyphs in Unicode and ASCII.

No information is shown only by colour: marks, words or attributes show the same.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec
from msgspec.structs import replace


class Style(NamedTuple):
    """Look of text: colours as `#rrggbb`, None for the terminal's own, and attributes."""

    color: str | None = None
    background: str | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    reverse: bool = False


class Palette(msgspec.Struct, frozen=True):
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
    """Background of column titles and of the keys."""
    track: str
    """Background of a memory bar, whose length is the GPU's capacity."""
    cursor: str
    fills: tuple[str, ...]
    """Backgrounds of the owners' parts of a bar, one for each of `SLOTS`, and grey for owners who are not visible."""
    owner_text: str
    """Colour of text on `fills`; with 16 colours black or white, depending on the fill."""
    swatches: tuple[str, ...]
    """Colours of the owners' thin marks, in the same hues, for any background."""
    heat: tuple[str, ...]
    """Backgrounds of a heat map's cells, from empty to full, under `owner_text`."""


# Eight hues in an order in which neighbours lie far apart: people's uids often follow one another. None is between pink
# and yellow, as severity is. Within a table any two differ by at least 19 in CIELAB (11 is what muted colours of one
# lightness come to), and each by at least 20 from critical and warning of every theme, also of Textual's. What is
# written on a fill has a contrast of 4.5 to 1 and more, a swatch 3 to 1 on every background of gpuwatch's themes.
_DARK_FILLS = "#4e5631 #256264 #7c4485 #266623 #2b5676 #704f68 #10765b #47549c #474747"
_DARK_SWATCHES = "#8c925c #39a3b2 #a282b3 #699b47 #5494c0 #bf5c9a #4c9d7d #6384d4 #838383"
_LIGHT_FILLS = "#ceca75 #8bd2da #c99de3 #abc5a5 #80c5fd #f0b6d3 #6dd0ae #b6b2d7 #d2d2d2"
_LIGHT_SWATCHES = "#808246 #138c97 #8e74a6 #508c47 #397da8 #b1688a #3a846b #4577c4 #808080"

DARK: Final = Palette(
    dark=True,
    text="#c5cad3",
    strong="#f2f4f7",
    muted="#969eab",
    faint="#565d69",
    critical="#ff7878",
    warning="#e8b650",
    note="#74b4f5",
    base="#14161b",
    band="#1f232b",
    track="#23272f",
    cursor="#2a3548",
    fills=tuple(_DARK_FILLS.split()),
    owner_text="#f4f5f7",
    swatches=tuple(_DARK_SWATCHES.split()),
    heat=("#23272f", "#23354d", "#24456b", "#24558a", "#2566aa"),
)
LIGHT: Final = Palette(
    dark=False,
    text="#30353d",
    strong="#000000",
    muted="#5d6470",
    faint="#a3a9b3",
    critical="#b81c29",
    warning="#865400",
    note="#0b5cba",
    base="#fcfcfa",
    band="#eceef1",
    track="#e9ebee",
    cursor="#d3e2f8",
    fills=tuple(_LIGHT_FILLS.split()),
    owner_text="#1a1c20",
    swatches=tuple(_LIGHT_SWATCHES.split()),
    heat=("#e9ebee", "#d0dff2", "#b5d0f3", "#9ac1f4", "#7db0f3"),
)
PALETTES: Final = {"gpuwatch-dark": DARK, "gpuwatch-light": LIGHT}
"""Palettes of gpuwatch's own themes, by their Textual names."""

# Made by Textual 8.2 from its themes (`Theme.to_color_system().generate()`); tests/ui/draw/test_theme.py makes them
# again. Muted is 75 % of the text on the base, faint 40 %. Themes in the terminal's own colours are missing: no part of
# a bar can be blended with those.
_TEXTUAL: Final = """
                            text   muted  faint  crit.  warn.  note   base   band   track  cursor
textual-dark          dark  e0e0e0 acacac 646464 d17e92 ffc473 57a5e2 121212 242f38 1e1e1e 0c304c
textual-light         light 1f1f1f 4f4f4f 929292 7a273c a86d1c 002d4f e0e0e0 d0d0d0 d8d8d8 9cb1c0
nord                  dark  d8dee9 adb3be 727883 d4969c f1dcb2 b0d5df 2e3440 434c5e 3b4252 495e6b
gruvbox               dark  fbf1c7 c6be9f 7c7867 fc8679 feab67 aec3bb 282828 504945 3c3836 434d49
catppuccin-mocha      dark  cdd6f4 9fa6c0 606477 f6b5c8 fbecca f8d6ef 181825 45475a 313244 5a4b5f
dracula               dark  f8f8f2 c4c4c3 7b7c81 ff8e8e ffd09d d3b7fb 282a36 313442 2b2e3b 544970
tokyo-night           dark  a9b1d6 858baa 53576c f9a4b4 eaca9b d2bcf9 1a1b26 414868 24283b 4a4164
monokai               dark  d6d6d6 aaaaa9 6d6d6a fb6fa1 fdba6b c9abff 272822 3e3d32 2e2e2e 4f4264
flexoki               dark  fffcf0 c3c0b7 6f6d69 ca7671 c8ad57 6b94c4 100f0f 282726 1c1b1a 14263c
catppuccin-latte      light 4c4f69 74778c adb0bd 8a0925 935d13 59259d eff1f5 ccd0da e6e9ef d0b9f3
catppuccin-frappe     dark  c6d0f5 a0a9c9 6c728c efacad eddab5 dcbeee 303446 51576d 414559 5e5376
catppuccin-macchiato  dark  cad3f5 a0a8c6 666b84 f3afb9 f3e2bf d9c0f9 24273a 494d64 363a4f 544b72
solarized-light       light 586e75 819090 bbbfb7 91211f 85310e 195b8a fdf6e3 eee8d5 eee8d5 bcd5dd
solarized-dark        dark  839496 62797e 34555c e77775 dc8865 6fb2e1 002b36 073642 073642 0b4764
rose-pine             dark  e0def4 aeacc0 686677 f19fb7 f9d6a5 d8c4ef 191724 26233a 1f1d2e 4c425e
rose-pine-moon        dark  e0def4 b0aec4 6e6c82 f19fb7 f9d6a5 d8c4ef 232136 393552 2a273f 53496b
rose-pine-dawn        light 575279 7f7a96 b8b3be 764150 9a6722 5f506f faf4ed f2e9e1 fffaf3 dacfd8
atom-one-dark         dark  abb2bf 8a909c 5c616b f59797 e9cc92 96caf4 282c34 4f5666 3b414d 39536c
atom-one-light        light 383a42 686a70 acadb0 9f2929 8e8f24 2a4f9f fafafa cccccc e0e0e0 c2d3f7
"""


def _textual_palettes() -> dict[str, Palette]:
    titles, *rows = _TEXTUAL.strip().splitlines()
    names = titles.replace("crit.", "critical").replace("warn.", "warning").split()
    found = {}
    for theme, kind, *colors in map(str.split, rows):
        parts = {name: f"#{color}" for name, color in zip(names, colors, strict=True)}
        found[theme] = replace(DARK if kind == "dark" else LIGHT, strong=parts["text"], **parts)
    return found


def palette_of(theme: str) -> Palette:
    """Return the palette of a theme by its Textual name; an unknown name means the dark theme.

    Textual's themes have their own colours for text and backgrounds, and the owners' colours of gpuwatch's theme.
    """
    if theme in PALETTES:
        return PALETTES[theme]
    return _textual_palettes().get(theme) or (LIGHT if theme == "ansi-light" else DARK)


# Over ssh a terminal usually says that it has 256 colours, and there muted hues fall together: these are of that table.
_TABLE_DARK = "#5f5f00 #005f5f #875faf #005f00 #005f87 #875f87 #00875f #005faf #4e4e4e"
_TABLE_LIGHT = "#afaf87 #5fafaf #af87d7 #87af5f #5fafd7 #d787af #5faf87 #afafd7 #c6c6c6"
_TABLE_DARK_SWATCHES = "#afaf87 #5fafaf #8787d7 #87af5f #5fafd7 #d787d7 #5faf87 #afafd7 #949494"
_TABLE_LIGHT_SWATCHES = "#5f5f00 #008787 #875faf #008700 #0087af #af5f87 #00875f #5f5f87 #767676"
_OWN_256: Final[dict[str, dict[str, Any]]] = {
    "gpuwatch-dark": {
        "muted": "#a8a8a8", "base": "#121212", "band": "#262626", "track": "#303030", "cursor": "#3a3a3a",
    },
    "gpuwatch-light": {
        "muted": "#585858", "base": "#ffffff", "band": "#eeeeee", "track": "#e4e4e4", "cursor": "#d7d7ff",
    },
}  # fmt: skip
_HEAT_256: Final = {
    True: ("#303030", "#00005f", "#000087", "#0000af", "#005faf"),
    False: ("#e4e4e4", "#d7d7ff", "#afd7ff", "#87afff", "#5fafff"),
}


def _in_256(name: str, palette: Palette) -> Palette:
    """Return a palette for a terminal with 256 colours."""
    dark = palette.dark
    return replace(
        palette,
        fills=tuple((_TABLE_DARK if dark else _TABLE_LIGHT).split()),
        owner_text="#ffffff" if dark else LIGHT.owner_text,
        swatches=tuple((_TABLE_DARK_SWATCHES if dark else _TABLE_LIGHT_SWATCHES).split()),
        heat=_HEAT_256[dark],
        **_OWN_256.get(name, {}),
    )


# Where there are 16, these are exactly the colours that Rich takes for them, so that none turns into another: blue,
# green, magenta, cyan and their bright ones, but no red, brown or yellow, which are for what is wrong. The grey is none
# that a theme has as its background.
_SIXTEEN = "#0000aa #00aa00 #aa00aa #55ffff #00aaaa #55ff55 #5555ff #ff55ff"


ON_SIXTEEN: Final = dict.fromkeys(("#0000aa", "#aa00aa", "#5555ff", "#555555"), "#ffffff")
"""Fills with white text on 16 colours; black text is more readable on the others in every terminal."""

SLOTS: Final = 8
"""Number of colours for people; initials tell the others apart."""


Role: TypeAlias = Literal["text", "strong", "muted", "faint", "critical", "warning", "note"]
Background: TypeAlias = Literal["base", "band", "track", "cursor"]
BACKGROUNDS: Final[tuple[Background, ...]] = get_args(Background)
"""Backgrounds: plain, of titles, of memory bars, of the row under the cursor."""


def theme_id(name: str) -> str:
    """Return Textual's name of a theme: `gpuwatch-dark` for `dark`, `nord` for `nord`."""
    return f"gpuwatch-{name}" if f"gpuwatch-{name}" in PALETTES else name


class Glyphs(msgspec.Struct, frozen=True):
    """Characters to draw with."""

    critical: str = "●"
    warning: str = "▲"
    note: str = "·"
    levels: str = "▁▂▃▄▅▆▇█"
    """Sparkline, from zero to full."""
    seam: str = "▏"
    """Starts an owner's part of a bar."""
    fill: str = " "
    """Fills an owner's part; its background is the owner's colour."""
    eighths: str = "▏▎▍▌▋▊▉"
    """A cell that is filled in part; empty where only whole cells can be drawn."""
    hatch: str = "░"
    """Memory of unknown processes."""
    promised: str = "╱"
    declared: str = "┃"
    """Mark where an owner's declared memory ends."""
    dot: str = "·"
    missing: str = "—"
    none: str = "·"
    """Nothing declared, or none."""
    ellipsis: str = "…"
    down: str = "▾"
    up: str = "▴"
    cursor: str = "›"
    swatch: str = "▎"
    least: str = "≥"
    dash: str = "–"
    degree: str = "°"
    celsius: str = "°C"
    branch: str = "└"
    times: str = "×"
    shades: str = "░▒▓█"
    """Use of an SM, from nothing to all."""
    began: str = "╾"
    """Beginning of a run."""
    ended: str = "✝"
    """End of a process that still holds memory."""
    braille: bool = True
    """Whether graphs have dots; else blocks or ASCII."""
    ascii: bool = False


UNICODE: Final = Glyphs()
PLAIN: Final = Glyphs(seam="▐", fill="━", eighths="", swatch=" ", braille=False)
"""Glyphs for few or no colours: a bar is drawn with lines."""
ASCII: Final = Glyphs(
    critical="!",
    warning="*",
    note="-",
    levels="_.:-=+*#",
    seam="|",
    fill="=",
    eighths="",
    hatch=".",
    promised="/",
    declared="]",
    dot="|",
    missing="-",
    none=".",
    ellipsis="~",
    down="v",
    up="^",
    cursor=">",
    swatch=" ",
    least=">=",
    dash="-",
    degree="C",
    celsius="C",
    branch="+",
    times="x",
    shades=".:+#",
    began=">",
    ended="x",
    braille=False,
    ascii=True,
)


_SPARE: Final = "1234567890abcdefghijklmnopqrstuvwxyz"
"""Initials for people whose own letters all belong to others."""


def letters(name: str) -> str:
    """Return the initials that suit a name, best first: its letters and digits in ASCII, each once.

    Every terminal can show ASCII, in one cell each. The best initial of a number is its last digit.
    """
    plain = [char for char in unicodedata.normalize("NFKD", name).casefold() if char.isascii() and char.isalnum()]
    return "".join(dict.fromkeys(reversed(plain) if name.isdigit() else plain))


class OwnerStyles(NamedTuple):
    """Styles in an owner's colour, which is grey for an unknown owner."""

    fill: Style
    """Of the owner's part of a memory bar, and of the initial on it."""
    seam: Style
    """Of the thin line at the beginning of the part."""
    edge: Style
    """Of the last cell of the part, which fills some eighths of it."""
    mark: Style
    """Of the mark of a declared share on the part."""
    swatches: dict[Background, Style]
    """Of the mark before the owner's name in the process list, by background."""


class StyleSet(msgspec.Struct, frozen=True, dict=True):
    """Styles and glyphs to draw with: roles on each background, and the colours of owners."""

    palette: Palette
    glyphs: Glyphs = UNICODE
    color: bool = True
    few: bool = False
    """The terminal has 16 colours: each owner has one of them, and thin marks have none."""
    slots: dict[int, int] = msgspec.field(default_factory=dict)
    """Colour number by uid; kept from one theme to the next, as are the initials."""
    initials: dict[int, str] = msgspec.field(default_factory=dict)
    """Initial by uid."""
    _unnamed: set[int] = msgspec.field(default_factory=set)
    """People whose name is not known yet: their initial is a digit of their uid."""

    def add_people(self, people: Mapping[int, str]) -> None:
        """Assign a colour and an initial to each person (names by uid) for as long as gpuwatch runs.

        New people get the first letter of their names if it is free, the smallest uid first. After that, each of the
        others gets the next free letter of the name, else any free letter or digit, else, where all 36 are taken, the
        initial of somebody with another colour. People who left keep their initials while others are free.
        """
        self.assign_colors(people)
        for uid in [uid for uid in self._unnamed if not people.get(uid, "0").isdigit()]:
            self._unnamed.discard(uid)
            self.initials.pop(uid, None)
        new = sorted(people.keys() - self.initials.keys())
        if not new:
            return
        self._unnamed.update(uid for uid in new if people[uid].isdigit())
        waiting = []
        for uid in new:
            first = letters(people[uid])[:1]
            if first and first not in self.initials.values():
                self.initials[uid] = first
            else:
                waiting.append(uid)
        for uid in waiting:
            self.initials[uid] = self._free_initial(uid, people)

    def _free_initial(self, uid: int, people: Mapping[int, str]) -> str:
        own = letters(people[uid])
        wanted = own + _SPARE
        here = [other for other in people if other != uid and other in self.initials]
        ever = set(self.initials.values())
        now = {self.initials[other] for other in here}
        alike = {self.initials[other] for other in here if self.slots.get(other) == self.slots.get(uid)}
        for taken in (ever, now, alike):
            free = next((one for one in wanted if one not in taken), "")
            if free:
                return free
        return wanted[0]

    def initial(self, uid: int | None) -> str:
        """Return the initial of a person; `?` for an unknown person."""
        return "?" if uid is None else self.initials.get(uid, "?")

    def assign_colors(self, uids: Iterable[int]) -> None:
        """Assign a colour to each new uid for as long as gpuwatch runs.

        The last digit of the uid gives the colour, the same in every run. Where somebody has that colour and another is
        free: first a colour that nobody present has, then the colour that fewest people have had.
        """
        present = set(uids)
        new = sorted(present - self.slots.keys())
        if not new:
            return
        here = Counter(self.slots[uid] for uid in present & self.slots.keys())
        ever = Counter(self.slots.values())
        for own_digit in (True, False):
            for uid in [uid for uid in new if uid not in self.slots]:
                slot = min(range(SLOTS), key=lambda one: (here[one], ever[one], (one - uid) % SLOTS))
                if not own_digit or slot == uid % SLOTS:
                    self.slots[uid] = slot
                    here[slot] += 1
                    ever[slot] += 1

    @cached_property
    def _styles(self) -> dict[tuple[Role, Background], Style]:
        return {(role, ground): self._make(role, ground) for role in get_args(Role) for ground in BACKGROUNDS}

    def _make(self, role: Role, background: Background) -> Style:
        bold = role in ("strong", "critical", "warning")
        if not self.color:
            return Style(bold=bold, dim=role == "faint", reverse=background == "cursor", underline=background == "band")
        palette = self.palette
        if role == "faint" and (self.few or background == "cursor"):
            role = "muted"  # it would be too much like the cursor's background
        return Style(getattr(palette, role), getattr(palette, background), bold)

    def __call__(self, role: Role, background: Background = "base") -> Style:
        return self._styles[role, background]

    @property
    def has_heat(self) -> bool:
        """Whether the cells of a heat map have backgrounds; not with 16 colours or none."""
        return self.color and not self.few

    @cached_property
    def filled(self) -> Style:
        """Style of filled curves: quieter than what is wrong, and than owners' names."""
        return Style(self.palette.heat[-1], self.palette.base) if self.has_heat else self("note")

    @cached_property
    def _heat(self) -> list[Style]:
        return [Style(self.palette.owner_text, color) for color in self.palette.heat]

    def heat(self, percent: float) -> Style:
        """Return the style of a cell of a heat map; requires `has_heat`."""
        return self._heat[max(0, min(int(percent * len(self._heat) / 100), len(self._heat) - 1))]

    def owner(self, uid: int | None) -> OwnerStyles:
        """Return the styles of an owner; None for one who is not visible."""
        if uid is not None and uid not in self.slots:
            self.assign_colors((uid,))
        return self._owners[SLOTS if uid is None else self.slots[uid]]

    def badge(self, uid: int | None, background: Background) -> Style:
        """Return the style of an owner's initial: on the owner's colour, or plain without colours."""
        return self.owner(uid).fill if self.color else self("strong", background)

    @cached_property
    def _owners(self) -> list[OwnerStyles]:
        """Styles of the owners by colour number; the last are those of unknown owners."""
        if not self.color:
            plain = {background: self("text", background) for background in BACKGROUNDS}
            return [OwnerStyles(Style(), Style(), Style(), Style(bold=True), plain)] * (SLOTS + 1)
        palette = self.palette
        found = []
        for fill, swatch in zip(palette.fills, palette.swatches, strict=True):
            text = ON_SIXTEEN.get(fill, "#000000") if self.few else palette.owner_text
            part = Style(text, fill)
            # With 16 colours the theme's own would be lost on half of the fills.
            seam = part if self.few else Style(palette.base, fill)
            mark = Style(text if self.few else palette.strong, fill, bold=True)
            edge = Style(fill, palette.track)
            swatches = {background: Style(swatch, getattr(palette, background)) for background in BACKGROUNDS}
            found.append(OwnerStyles(part, seam, edge, mark, swatches))
        return found


def make_styles(
    theme: str,
    *,
    ascii_only: bool = False,
    colors: int = 1 << 24,
    before: StyleSet | None = None,
) -> StyleSet:
    """Return the styles of a theme by its Textual name.

    `colors` is the terminal's number of colours; 0 for none. People keep their colours and initials of the styles
    `before`.
    """
    palette = palette_of(theme)
    if colors == 256:
        palette = _in_256(theme, palette)
    elif 0 < colors <= 16:
        own, grey = (DARK, "#555555") if palette.dark else (LIGHT, "#aaaaaa")
        # The backgrounds are those of gpuwatch's own themes.
        palette = replace(own, fills=(*_SIXTEEN.split(), grey), swatches=(*_SIXTEEN.split(), grey))
    glyphs = ASCII if ascii_only else PLAIN if colors <= 16 else UNICODE
    people = () if before is None else (before.slots, before.initials, before._unnamed)
    return StyleSet(palette, glyphs, colors > 0, colors <= 16, *people)
