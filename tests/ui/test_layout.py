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
    ("width", "height", "n_gpus", "form", "least_rows"),
    [
        (160, 50, 8, Form.FULL, 25),
        (120, 36, 8, Form.MEDIUM, 16),
        (80, 24, 8, Form.COMPACT, 8),
        (80, 24, 16, Form.COMPACT, 3),
        (160, 50, 16, Form.FULL, 20),
        (160, 50, 64, Form.HEAT_MAP, 25),
        (60, 10, 8, Form.HEAT_MAP, 3),
    ],
)
def test_the_promised_sizes(width: int, height: int, n_gpus: int, form: Form, least_rows: int) -> None:
    layout = fit_layout(width, height, n_gpus, 2, 43)
    assert layout.gpu_form is form
    assert layout.rows >= least_rows


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


def test_sixty_four_gpus_fit_a_heat_map_of_an_ordinary_terminal() -> None:
    layout = fit_layout(80, 24, 64, 1, 43)
    assert (layout.gpu_form, layout.gpus, layout.detail) == (Form.HEAT_MAP, 8, 1)
    assert layout.rows >= 8


@pytest.mark.parametrize("n_alerts", [0, 9])
@pytest.mark.parametrize("n_children", [0, 7, 16, 112])
def test_sixteen_gpus_leave_fifteen_processes(n_alerts: int, n_children: int) -> None:
    layout = fit_layout(160, 50, 16, n_alerts, 43, n_children=n_children)
    assert layout.gpu_form is Form.FULL
    assert layout.rows >= 15


def test_mig_instances_lose_their_rows_before_processes_do() -> None:
    assert fit_layout(160, 50, 8, 0, 43, n_children=7).children
    tight = fit_layout(80, 24, 8, 0, 43, n_children=14)
    assert not tight.children
    assert tight.rows >= 8


def test_a_healthy_machine_has_no_line_for_alerts() -> None:
    assert fit_layout(160, 50, 8, 0, 43).alerts == 0
