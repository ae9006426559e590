"""Strip of the last day: gaps, the window of the graphs, and its fallback in ASCII."""

from __future__ import annotations

import pytest

from gpuwatch.ui.draw.lines import plain
from gpuwatch.ui.draw.theme import make_styles
from gpuwatch.ui.draw.time_axis import draw_strip

NOON = 1_795_262_400.0


@pytest.mark.parametrize(
    ("start", "end", "drawn"),
    [
        (-3600.0, 0.0, " 24 h▕ ▁▁▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▐█▌"),
        (-5 * 3600.0, -3 * 3600.0 - 1, " 24 h▕ ▁▁▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▐▄▄▌▄█ "),
        (-24 * 3600.0, -23 * 3600.0 - 1, " 24 h▕ ▌▁▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄▄█ "),
    ],
)
def test_the_strip_of_a_day_has_its_gaps_and_the_window_of_the_graphs(start: float, end: float, drawn: str) -> None:
    values = [None, 0.0, 0.01, *[0.4] * 20, 1.0]
    window = (NOON + start, NOON + end)
    strip, axis = draw_strip(values, NOON, window, make_styles("gpuwatch-dark"), times=True)
    assert plain(strip) == drawn
    assert len(plain(axis)) == len(drawn)
    (strip,) = draw_strip(values, NOON, window, make_styles("gpuwatch-dark", ascii_only=True), times=False)
    assert plain(strip).isascii()
