"""How things look: two themes, the inks that panels write with, and the glyphs, with a plain and an ASCII form of all.

A colour is never the only carrier of a meaning: marks, words and attributes say the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from colorsys import hls_to_rgb
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final, Literal, TypeAlias

from rich.style import Style
from textual.theme import Theme

Role: TypeAlias = Literal["text", "strong", "muted", "faint", "critical", "warning", "note"]
Ground: TypeAlias = Literal["base", "band", "track", "cursor"]


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
    owner_light: float
    """Lightness and saturation of an owner's part of a bar, on which `owner_text` is written."""
    owner_saturation: float
    owner_text: str
    swatch_light: float
    fills: tuple[str, ...] = ()
    """Owners' colours by name, where they cannot be mixed freely; one a hue, and a grey."""


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
    owner_light=0.335,
    owner_saturation=0.36,
    owner_text="#f4f5f7",
    swatch_light=0.58,
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
    owner_light=0.80,
    owner_saturation=0.48,
    owner_text="#1a1c20",
    swatch_light=0.52,
)
PALETTES: Final = {"gpuwatch-dark": DARK, "gpuwatch-light": LIGHT}

# Over ssh a terminal usually says that it has 256 colours, and there muted hues fall together: ten of them become
# three. These are colours of that table.
_TABLE_DARK = "#005f87 #00875f #875f00 #5f0087 #87005f #008787 #5f8700 #005faf #5f5f00 #8700af #4e4e4e"
_TABLE_LIGHT = "#afd7ff #afffd7 #ffd7af #d7afff #ffafd7 #afffff #d7ffaf #afafff #ffffaf #ffd7ff #d0d0d0"
PALETTES_256: Final = {
    "gpuwatch-dark": replace(
        DARK, base="#121212", band="#262626", track="#303030", cursor="#444444", fills=tuple(_TABLE_DARK.split())
    ),
    "gpuwatch-light": replace(
        LIGHT, base="#ffffff", band="#eeeeee", track="#e4e4e4", cursor="#d7d7ff", fills=tuple(_TABLE_LIGHT.split())
    ),
}

_HUES: Final = (212, 152, 26, 278, 338, 186, 92, 240, 52, 308)
"""Ten hues that stay apart when they are muted; neighbours in this order lie far from one another."""


def themes() -> tuple[Theme, ...]:
    """Give the Textual themes that dialogs, toasts and the palette are drawn with."""
    return tuple(
        Theme(
            name=name,
            primary=one.note,
            secondary=one.muted,
            warning=one.warning,
            error=one.critical,
            success=one.note,
            accent=one.note,
            foreground=one.text,
            background=one.base,
            surface=one.band,
            panel=one.band,
            dark=one.dark,
        )
        for name, one in PALETTES.items()
    )


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that are drawn with."""

    critical: str = "●"
    warning: str = "▲"
    note: str = "·"
    levels: str = "▁▂▃▄▅▆▇█"
    """Sparkline, from zero to full."""
    gap: str = " "
    seam: str = "▏"
    """Starts an owner's part of a bar."""
    fill: str = " "
    """Fills it; its background is the owner's colour."""
    eighths: str = "▏▎▍▌▋▊▉"
    """A cell that is filled in part; empty where only whole cells can be drawn."""
    hatch: str = "░"
    declared: str = "┃"
    """Where what an owner declared ends."""
    dot: str = "·"
    missing: str = "—"
    ellipsis: str = "…"
    down: str = "▾"
    up: str = "▴"
    cursor: str = "›"
    swatch: str = "▎"
    least: str = "≥"
    dash: str = "–"
    degree: str = "°"
    branch: str = "└"
    ascii: bool = False


UNICODE: Final = Glyphs()
PLAIN: Final = Glyphs(seam="▐", fill="━", eighths="", swatch=" ")
"""Where colours are few or none, a bar is drawn with lines."""
ASCII: Final = Glyphs(
    critical="!",
    warning="*",
    note="-",
    levels="_.:-=+*#",
    seam="|",
    fill="=",
    eighths="",
    hatch=".",
    declared="]",
    dot="-",
    missing="-",
    ellipsis="~",
    down="v",
    up="^",
    cursor=">",
    swatch=" ",
    least=">",
    dash="-",
    degree="C",
    branch="+",
    ascii=True,
)


@dataclass(frozen=True)
class Inks:
    """Every style that a panel may write with, made once: a role on a ground, or an owner's colours."""

    palette: Palette
    color: bool = True
    few: bool = False
    """The terminal has 16 colours: owners' hues all become one grey, and the seams between them carry the bar."""
    slots: dict[int, int] = field(default_factory=dict)
    """Which hue each uid has; kept from one theme to the next."""

    def meet(self, uids: Iterable[int]) -> None:
        """Give each new uid its hue: always the same one, unless somebody who is here has it and another is free."""
        for uid in sorted(set(uids) - self.slots.keys()):
            wanted = (uid * 2654435761 >> 12) % len(_HUES)
            taken = set(self.slots.values())
            free = [slot for slot in range(len(_HUES)) if slot not in taken]
            self.slots[uid] = (
                wanted if wanted not in taken or not free else min(free, key=lambda one: (one - wanted) % 10)
            )

    @cached_property
    def _styles(self) -> dict[tuple[Role, Ground], Style]:
        roles: tuple[Role, ...] = ("text", "strong", "muted", "faint", "critical", "warning", "note")
        grounds: tuple[Ground, ...] = ("base", "band", "track", "cursor")
        return {(role, ground): self._make(role, ground) for role in roles for ground in grounds}

    def _make(self, role: Role, ground: Ground) -> Style:
        bold = role in ("strong", "critical", "warning")
        if not self.color:
            return Style(
                bold=bold or None,
                dim=(role == "faint") or None,
                reverse=(ground == "cursor") or None,
                underline=(ground == "band") or None,
            )
        palette = self.palette
        if role == "faint" and (self.few or ground == "cursor"):
            role = "muted"  # it would be too much like the cursor's ground
        return Style(color=getattr(palette, role), bgcolor=getattr(palette, ground), bold=bold or None)

    def __call__(self, role: Role, ground: Ground = "base") -> Style:
        """Give the style of a role on a ground."""
        return self._styles[role, ground]

    def owner(self, uid: int | None) -> Style:
        """Give the style of an owner's part of a memory bar: stable for a uid, grey where the uid is not known."""
        return self._owners[self._slot(uid)]

    def seam(self, uid: int | None) -> Style:
        """Give the style of the thin line between an owner's part and what is left of it."""
        return self._seams[self._slot(uid)]

    def edge(self, uid: int | None) -> Style:
        """Give the style of a cell that an owner's part fills from the left, in part."""
        return self._edges[self._slot(uid)]

    def mark(self, uid: int | None) -> Style:
        """Give the style of the mark of a declared share that stands on an owner's part."""
        return self._marks[self._slot(uid)]

    def swatch(self, uid: int | None, ground: Ground) -> Style:
        """Give the style of the mark that goes with an owner's name in the process list."""
        return self._swatches[self._slot(uid), ground]

    def _slot(self, uid: int | None) -> int:
        if uid is not None and uid not in self.slots:
            self.meet((uid,))
        return len(_HUES) if uid is None else self.slots[uid]

    def _hue(self, slot: int, light: float, saturation: float) -> str:
        if slot == len(_HUES):
            saturation = 0.0
            slot = 0
        red, green, blue = hls_to_rgb(_HUES[slot] / 360, light, saturation)
        return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"

    @cached_property
    def _fills(self) -> list[str]:
        one = self.palette
        if one.fills:
            return list(one.fills)
        return [self._hue(slot, one.owner_light, one.owner_saturation) for slot in range(len(_HUES) + 1)]

    @cached_property
    def _owners(self) -> list[Style]:
        if not self.color:
            return [Style()] * (len(_HUES) + 1)
        return [Style(color=self.palette.owner_text, bgcolor=fill) for fill in self._fills]

    @cached_property
    def _seams(self) -> list[Style]:
        if not self.color or self.few:
            return self._owners
        return [Style(color=self.palette.base, bgcolor=fill) for fill in self._fills]

    @cached_property
    def _marks(self) -> list[Style]:
        return [style + Style(color=self.palette.strong if self.color else None, bold=True) for style in self._owners]

    @cached_property
    def _edges(self) -> list[Style]:
        return [Style(color=fill, bgcolor=self.palette.track) if self.color else Style() for fill in self._fills]

    @cached_property
    def _swatches(self) -> dict[tuple[int, Ground], Style]:
        grounds: tuple[Ground, ...] = ("base", "band", "track", "cursor")
        if not self.color:
            return {(slot, ground): self("text", ground) for slot in range(len(_HUES) + 1) for ground in grounds}
        return {
            (slot, ground): Style(
                color=self._hue(slot, self.palette.swatch_light, 0.5), bgcolor=getattr(self.palette, ground)
            )
            for slot in range(len(_HUES) + 1)
            for ground in grounds
        }


@dataclass(frozen=True)
class Kit:
    """What a panel draws with."""

    inks: Inks
    glyphs: Glyphs


def kit(theme: str, *, ascii_only: bool = False, colors: int = 1 << 24, slots: dict[int, int] | None = None) -> Kit:
    """Give the inks and glyphs of a theme by its Textual name; any other theme is drawn as the dark one.

    `colors` is how many the terminal has; 0 for none.
    """
    palettes = PALETTES_256 if colors == 256 else PALETTES
    glyphs = ASCII if ascii_only else PLAIN if colors <= 16 else UNICODE
    inks = Inks(
        palettes.get(theme, palettes["gpuwatch-dark"]), colors > 0, colors <= 16, {} if slots is None else slots
    )
    return Kit(inks, glyphs)
