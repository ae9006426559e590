"""What fits at which size."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuwatch.ui.layout import (
    LEAST_ROWS,
    MIN_HEIGHT,
    MIN_WIDTH,
    Form,
    fit_layout,
    form_of,
    heat_map_grid,
)


@given(
    width=st.integers(1, 300),
    height=st.integers(1, 100),
    n_gpus=st.integers(0, 64),
    n_alerts=st.integers(0, 70),
    n_rows=st.integers(0, 500),
    n_children=st.integers(0, 56),
)
@example(width=40, height=6, n_gpus=64, n_alerts=9, n_rows=40, n_children=0)
@example(width=1, height=1, n_gpus=8, n_alerts=1, n_rows=1, n_children=0)
def test_every_line_of_the_terminal_is_given_away_once(
    width: int, height: int, n_gpus: int, n_alerts: int, n_rows: int, n_children: int
) -> None:
    layout = fit_layout(width, height, n_gpus, n_alerts, n_rows, n_children=n_children)
    assert layout.height == height
    counts = (layout.header, layout.gpus, layout.alerts, layout.rows, layout.footer, layout.gap)
    assert min(counts) >= 0
    if layout.form is Form.TINY:
        assert width < MIN_WIDTH or height < MIN_HEIGHT
        return
    assert layout.form is form_of(width)
    assert layout.alerts >= min(n_alerts, 1)
    assert layout.alerts <= n_alerts
    if layout.gpu_form is not Form.HEAT_MAP:
        assert layout.gpus == n_gpus + (n_children if layout.children else 0)
        assert layout.rows >= min(n_rows, LEAST_ROWS)
    elif layout.rows >= LEAST_ROWS:
        assert layout.gpus == heat_map_grid(width, n_gpus).lines


@pytest.mark.parametrize(
    ("width", "height", "n_gpus", "n_children", "form", "least_rows", "children"),
    [
        (160, 50, 8, 7, Form.FULL, 18, True),
        (120, 36, 8, 0, Form.MEDIUM, 16, False),
        (80, 24, 8, 0, Form.COMPACT, 8, False),
        (80, 24, 8, 14, Form.COMPACT, 8, False),  # MIG instances lose their rows before processes do
        (80, 24, 16, 0, Form.COMPACT, 3, False),
        (160, 50, 16, 0, Form.FULL, 20, False),
        (160, 50, 16, 112, Form.FULL, 15, False),
        (160, 50, 64, 0, Form.HEAT_MAP, 25, False),
        (80, 24, 64, 0, Form.HEAT_MAP, 8, False),
        (60, 10, 8, 0, Form.HEAT_MAP, 3, False),
    ],
)
def test_the_promised_sizes(
    width: int, height: int, n_gpus: int, n_children: int, form: Form, least_rows: int, children: bool
) -> None:
    layout = fit_layout(width, height, n_gpus, 2, 43, n_children=n_children)
    assert layout.gpu_form is form
    assert layout.rows >= least_rows
    assert layout.children or not children
    assert n_children == 0 or bool(layout.children) is children


@pytest.mark.parametrize(
    ("width", "n_gpus", "per_line", "cell", "lines"),
    [
        (160, 64, 16, 9, 4),
        (80, 64, 8, 9, 8),
        (60, 8, 8, 6, 1),
        (60, 64, 8, 7, 8),
        (40, 64, 5, 7, 13),
        (160, 8, 8, 8, 1),
    ],
)
def test_the_cells_of_a_heat_map_stand_in_columns_of_eight(
    width: int, n_gpus: int, per_line: int, cell: int, lines: int
) -> None:
    grid = heat_map_grid(width, n_gpus)
    assert (grid.per_line, grid.cell, grid.lines) == (per_line, cell, lines)
    assert grid.per_line * grid.cell <= width
