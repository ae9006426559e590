"""One colour and one initial a person: stable, told apart in every palette, and readable on every background."""

from __future__ import annotations

import math
from itertools import combinations, product
from typing import Final, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict, replace
from rich.cells import cell_len
from rich.color import Color, ColorSystem
from textual.color import Color as TextualColor
from textual.theme import BUILTIN_THEMES

from gpuwatch.config.types import Theme
from gpuwatch.ui.draw.theme import DARK, LIGHT, SLOTS, Background, Role, StyleSet, make_styles, palette_of, theme_id

THEMES: Final = ("gpuwatch-dark", "gpuwatch-light")
BACKGROUNDS: Final[tuple[Background, ...]] = ("base", "band", "track", "cursor")
SYSTEMS: Final = {1 << 24: ColorSystem.TRUECOLOR, 256: ColorSystem.EIGHT_BIT, 16: ColorSystem.STANDARD}
Rgb = tuple[int, int, int]


def seen(color: str | None, system: ColorSystem) -> Rgb:
    """Return a colour as a terminal with this table shows it."""
    assert color is not None
    red, green, blue = Color.parse(color).downgrade(system).get_truecolor()
    return red, green, blue


def linear(value: int) -> float:
    part = value / 255
    return part / 12.92 if part <= 0.04045 else math.pow((part + 0.055) / 1.055, 2.4)


def luminance(rgb: Rgb) -> float:
    return sum(weight * linear(value) for weight, value in zip((0.2126, 0.7152, 0.0722), rgb, strict=True))


def contrast(one: Rgb, other: Rgb) -> float:
    """Return the contrast of two colours, 1 to 21 (WCAG 2.1)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb: Rgb) -> tuple[float, float, float]:
    """Return a colour in CIELAB (D65)."""
    red, green, blue = map(linear, rgb)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047
    y = 0.2126 * red + 0.7152 * green + 0.0722 * blue
    z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883
    fx, fy, fz = (v ** (1 / 3) if v > 0.008856 else 7.787 * v + 16 / 116 for v in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def difference(one: Rgb, other: Rgb) -> float:
    return math.dist(lab(one), lab(other))


def everybody(theme: str, colors: int) -> tuple[StyleSet, list[int | None]]:
    """Give styles, and a uid for each slot with the one that is not visible."""
    return make_styles(theme, colors=colors), [None, *range(1000, 1000 + SLOTS)]


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("colors", SYSTEMS)
def test_no_two_people_have_colours_that_look_alike(theme: str, colors: int) -> None:
    styles, uids = everybody(theme, colors)
    fills = [seen(styles.owner(uid).fill.background, SYSTEMS[colors]) for uid in uids]
    assert min(difference(one, other) for one, other in combinations(fills, 2)) >= 19
    if colors > 16:  # with 16 there are no swatches: the initial stands on the colour
        swatches = [seen(styles.owner(uid).swatches["base"].color, SYSTEMS[colors]) for uid in uids]
        assert min(difference(one, other) for one, other in combinations(swatches, 2)) >= 19


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("colors", "least"), [(1 << 24, 4.5), (256, 4.5), (16, 3.9)])
def test_what_is_written_on_a_colour_can_be_read(theme: str, colors: int, least: float) -> None:
    styles, uids = everybody(theme, colors)
    system = SYSTEMS[colors]
    for uid in uids:
        for style in (styles.owner(uid).fill, styles.badge(uid, "cursor")):
            assert contrast(seen(style.color, system), seen(style.background, system)) >= least


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("colors", "on_track", "on_any"), [(1 << 24, 1.25, 3.0), (256, 1.15, 2.9)])
def test_a_colour_stands_out_from_both_grounds(theme: str, colors: int, on_track: float, on_any: float) -> None:
    styles, uids = everybody(theme, colors)
    system = SYSTEMS[colors]
    for uid in uids:
        fill = seen(styles.owner(uid).fill.background, system)
        for name in ("base", "track"):
            assert contrast(fill, seen(styles("text", name).background, system)) >= on_track
        for background in BACKGROUNDS:
            swatch = styles.owner(uid).swatches[background]
            assert contrast(seen(swatch.color, system), seen(swatch.background, system)) >= on_any


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize(("colors", "step"), [(1 << 24, 1.15), (256, 1.05)])
def test_the_cells_of_a_heat_map_can_be_read_and_told_apart(theme: str, colors: int, step: float) -> None:
    styles, system = make_styles(theme, colors=colors), SYSTEMS[colors]
    heat = [styles.heat(percent) for percent in (0, 20, 40, 60, 80)]
    for style in heat:
        assert contrast(seen(style.color, system), seen(style.background, system)) >= 4.5
    backgrounds = [seen(style.background, system) for style in heat]
    assert all(difference(one, other) >= 8 for one, other in combinations(backgrounds, 2))
    full = contrast(backgrounds[-1], seen(styles("text").background, system))
    assert full > contrast(backgrounds[0], seen(styles("text").background, system)) * step
    assert styles.heat(100) == styles.heat(140) == heat[-1]


@pytest.mark.parametrize("theme", THEMES)
def test_without_colours_there_are_none(theme: str) -> None:
    styles, uids = everybody(theme, 0)
    for uid in uids:
        drawn = (*styles.owner(uid)[:4], styles.badge(uid, "base"))
        assert {(style.color, style.background) for style in drawn} == {(None, None)}


def test_the_colour_is_the_uids_and_not_the_order_of_arrival() -> None:
    first, second = make_styles(THEMES[0]), make_styles(THEMES[0])
    first.assign_colors([1001, 1002, 1003])
    second.assign_colors([1003])
    second.assign_colors([1002])
    second.assign_colors([1001])
    assert first.slots == second.slots


@pytest.mark.parametrize(
    ("people", "initials"),
    [
        ({1: "ada", 2: "ben"}, "ab"),
        ({1: "ada", 2: "amy"}, "am"),
        ({1: "ada", 2: "amy", 3: "max"}, "aym"),
        ({1: "aa", 2: "aaa"}, "a1"),
        ({1: "Élodie", 2: "Ada"}, "ea"),
        ({1: "日本", 2: "---"}, "12"),
        ({1001: "1001", 1002: "1002"}, "12"),
        ({7: "a7"}, "a"),
    ],
)
def test_an_initial_is_the_first_letter_that_is_free(people: dict[int, str], initials: str) -> None:
    styles = make_styles(THEMES[0])
    styles.add_people(people)
    assert "".join(styles.initial(uid) for uid in people) == initials


@pytest.mark.parametrize(
    ("seen", "initials"),
    [
        # An initial stays whoever comes and goes.
        ([{5: "amy"}, {1: "ada", 5: "amy"}, {1: "ada", 2: "abe"}, {5: "amy"}], {5: "a", 1: "d", 2: "b"}),
        # It waits for the name, and then stays too.
        ([{1001: "1001"}], {1001: "1"}),
        ([{1001: "1001"}, {1001: "ada"}, {1001: "other"}], {1001: "a"}),
        # A user who is not visible, or was never seen, has none.
        ([], {None: "?", 4711: "?"}),
    ],
)
def test_an_initial_stays(seen: list[dict[int, str]], initials: dict[int | None, str]) -> None:
    styles = make_styles(THEMES[0])
    for people in seen:
        styles.add_people(people)
    assert {uid: styles.initial(uid) for uid in initials} == initials


NAMES: Final = st.text(min_size=0, max_size=12)


@given(st.dictionaries(st.integers(0, 1 << 32), NAMES, min_size=1, max_size=60))
def test_no_two_people_have_both_the_same_initial_and_colour(people: dict[int, str]) -> None:
    styles = make_styles(THEMES[0])
    styles.add_people(people)
    assert all(cell_len(styles.initial(uid)) == 1 and styles.initial(uid).isascii() for uid in people)
    assert len({(styles.slots[uid], styles.initial(uid)) for uid in people}) == len(people)
    if len(people) <= 36:
        assert len({styles.initial(uid) for uid in people}) == len(people)


TEXTUAL: Final = tuple(BUILTIN_THEMES)


@pytest.mark.parametrize("theme", TEXTUAL)
def test_the_table_has_the_colours_that_textual_makes_of_its_themes(theme: str) -> None:
    made = BUILTIN_THEMES[theme].to_color_system().generate()
    own = DARK if BUILTIN_THEMES[theme].dark else LIGHT
    base, text = TextualColor.parse(made["background"]), TextualColor.parse(made["foreground"])
    expected = own
    if base.ansi is None:
        expected = replace(
            own,
            text=text.hex,
            strong=text.hex,
            muted=base.blend(text, 0.75).hex,
            faint=base.blend(text, 0.4).hex,
            critical=made["text-error"],
            warning=made["text-warning"],
            note=made["text-primary"],
            base=base.hex,
            band=made["panel"],
            track=made["surface"],
            cursor=made["primary-muted"],
        )
    in_small = {name: value.lower() for name, value in asdict(expected).items() if isinstance(value, str)}
    assert replace(expected, **in_small) == palette_of(theme)


ROLES: Final[tuple[Role, ...]] = ("text", "strong", "muted", "critical", "warning", "note")


@pytest.mark.parametrize("theme", [*THEMES, *TEXTUAL])
@pytest.mark.parametrize("colors", [1 << 24, 256])
def test_no_person_has_a_colour_that_looks_like_a_severity(theme: str, colors: int) -> None:
    styles, system = make_styles(theme, colors=colors), SYSTEMS[colors]
    severities = [seen(styles(role).color, system) for role in ("critical", "warning")]
    owners = [styles.owner(uid) for uid in range(SLOTS)]
    people = [color for one in owners for color in (one.fill.background, one.swatches["base"].color)]
    assert min(difference(seen(one, system), other) for one, other in product(people, severities)) >= 20


def test_the_configuration_names_every_theme() -> None:
    assert {theme_id(name) for name in get_args(Theme)} == {*THEMES, *TEXTUAL}


@pytest.mark.parametrize("theme", THEMES)
def test_text_has_a_contrast_of_4_5_on_every_ground(theme: str) -> None:
    styles, system = make_styles(theme), ColorSystem.TRUECOLOR
    for role, background in product(ROLES, BACKGROUNDS):
        style = styles(role, background)
        assert contrast(seen(style.color, system), seen(style.background, system)) >= 4.5, (role, background)
