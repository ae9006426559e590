"""Control sequences of styles: the colours that Rich takes, for each kind of terminal."""

from __future__ import annotations

import io
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import asdict
from rich.color import Color, ColorSystem
from rich.console import Console
from textual.theme import BUILTIN_THEMES

from gpuwatch.ui.draw import sgr
from gpuwatch.ui.draw.theme import PALETTES, Style, make_styles

SYSTEMS: Final = {
    sgr.TRUECOLOR: ColorSystem.TRUECOLOR,
    256: ColorSystem.EIGHT_BIT,
    16: ColorSystem.STANDARD,
}


def of_rich(color: str, colors: int) -> tuple[str, str]:
    nearest = Color.parse(color).downgrade(SYSTEMS[colors])
    return ";".join(nearest.get_ansi_codes()), ";".join(nearest.get_ansi_codes(foreground=False))


@pytest.mark.parametrize("colors", SYSTEMS)
@pytest.mark.parametrize("theme", [*PALETTES, *BUILTIN_THEMES])
def test_every_colour_of_every_theme_is_the_one_that_rich_takes(theme: str, colors: int) -> None:
    for value in asdict(make_styles(theme, colors=colors).palette).values():
        for color in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
            assert sgr.codes(Style(color, color), colors)[1:] == of_rich(color, colors), color


@given(st.tuples(*[st.integers(0, 255)] * 3), st.sampled_from([*SYSTEMS]))
@example((0, 0, 0), 256)
@example((255, 255, 255), 256)
@example((128, 128, 128), 256)
def test_any_colour_is_the_one_that_rich_takes(rgb: tuple[int, ...], colors: int) -> None:
    color = "#{:02x}{:02x}{:02x}".format(*rgb)
    assert sgr.codes(Style(color, color), colors)[1:] == of_rich(color, colors)


@pytest.mark.parametrize("environ", [
    {"TERM": "xterm"},
    {"TERM": "xterm-256color"},
    {"TERM": "tmux-256color"},
    {"TERM": "xterm-kitty"},
    {"TERM": "rxvt-16color"},
    {"TERM": "screen"},
    {"TERM": "xterm", "COLORTERM": " TrueColor "},
    {"TERM": "xterm-256color", "COLORTERM": "24bit"},
    {"TERM": "xterm-256color", "COLORTERM": "yes"},
])  # fmt: skip
def test_the_number_of_colours_is_read_from_the_environment_as_rich_reads_it(environ: dict[str, str]) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, _environ=environ)
    assert SYSTEMS[sgr.colors_of(environ)] is console._color_system


def test_there_are_no_colours_with_no_color() -> None:
    assert sgr.colors_of({"TERM": "xterm-256color", "NO_COLOR": ""}) == 0
