"""Themes of Textual: gpuwatch's own made for dialogs, toasts and the palette, and Textual's made to palettes."""

from __future__ import annotations

from msgspec.structs import replace
from textual.color import Color
from textual.theme import BUILTIN_THEMES, Theme

from gpuwatch.ui.draw.theme import DARK, LIGHT, PALETTES, Palette


def themes() -> tuple[Theme, ...]:
    """Return the Textual themes that dialogs, toasts and the palette are drawn with."""
    return tuple(
        Theme(
            name=name,
            primary=palette.note,
            secondary=palette.muted,
            warning=palette.warning,
            error=palette.critical,
            success=palette.note,
            accent=palette.note,
            foreground=palette.text,
            background=palette.base,
            surface=palette.band,
            panel=palette.band,
            dark=palette.dark,
        )
        for name, palette in PALETTES.items()
    )


def palette_of(theme: str) -> Palette:
    """Return the palette of a theme by its Textual name; an unknown name means the dark theme.

    Textual's themes have their own colours for text and backgrounds, as Textual makes them, and the owners' colours of
    gpuwatch's theme. Those in the terminal's own colours, which no part of a bar can be blended with, are gpuwatch's.
    """
    if theme in PALETTES or theme not in BUILTIN_THEMES:
        return PALETTES.get(theme, DARK)
    colors = BUILTIN_THEMES[theme].to_color_system().generate()
    own = DARK if BUILTIN_THEMES[theme].dark else LIGHT
    base, text = Color.parse(colors["background"]), Color.parse(colors["foreground"])
    if base.ansi is not None:
        return own
    return replace(
        own,
        text=text.hex,
        strong=text.hex,
        muted=base.blend(text, 0.75).hex,
        faint=base.blend(text, 0.4).hex,
        critical=colors["text-error"],
        warning=colors["text-warning"],
        note=colors["text-primary"],
        base=base.hex,
        band=colors["panel"],
        track=colors["surface"],
        cursor=colors["primary-muted"],
    )
