"""Layout of the dashboard for a terminal size: a pure function, in stated steps.

By width: 150 or more terminal columns show every table column (full), 100 or more show some (medium), 70 or more show
compact GPU rows, 40 or more show GPUs as cells of a heat map. By height, these steps follow until the processes have 8
rows, or 3 where 8 are impossible: remove blank lines, remove the rows of MIG instances (they leave the processes three
tenths of a high screen), reduce alerts to two lines and to one, draw the GPUs as a heat map with a line about the
chosen one, remove that line. A GPU or the worst alert is never removed for a process. Below 40×6 only the needed size
and the worst alert are drawn.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

MIN_WIDTH: Final = 40
MIN_HEIGHT: Final = 6
COMPACT_WIDTH: Final = 70
"""Least width at which each GPU may have a row."""
MAX_ALERTS: Final = 4
WANTED_ROWS: Final = 8
LEAST_ROWS: Final = 3


class Form(Enum):
    """Width class of the drawing."""

    FULL = "full"
    MEDIUM = "medium"
    COMPACT = "compact"
    HEAT_MAP = "heat map"
    TINY = "tiny"


class Layout(msgspec.Struct, frozen=True):
    """Number of lines of each part; they add up to the terminal's height."""

    form: Form
    """How the processes, alerts and header are drawn, by the width."""
    gpu_form: Form
    """How the GPUs are drawn; a heat map also where the height does not suffice for a row per GPU."""
    header: int
    gpu_title: int
    gpus: int
    children: bool
    """Whether each MIG instance has a row."""
    gap: int
    """Blank lines before the alerts and before the processes, each."""
    alerts: int
    table_title: int
    rows: int
    footer: int
    detail: int = 0
    """Line about the chosen GPU below a heat map."""

    @property
    def height(self) -> int:
        """Sum of all lines."""
        gaps = self.gap * (2 if self.alerts else 1)
        body = self.gpu_title + self.gpus + self.detail + self.alerts + self.table_title + self.rows
        return self.header + gaps + body + self.footer


def form_of(width: int) -> Form:
    if width >= 150:
        return Form.FULL
    if width >= 100:
        return Form.MEDIUM
    return Form.COMPACT if width >= COMPACT_WIDTH else Form.HEAT_MAP


class Grid(NamedTuple):
    """Cells of a heat map."""

    per_line: int
    """GPUs in a line; a multiple of 8 where they take several lines."""
    cell: int
    """Width of one GPU: a blank, mark, index and percent of memory (` ●12:100`, or ` ●12:100%  ` where it is wide)."""
    wide: bool
    lines: int


def heat_map_grid(width: int, n_gpus: int, largest_index: int = 0) -> Grid:
    """Return the cells of a heat map of all GPUs, whatever its height."""
    cell = len(str(max(n_gpus - 1, largest_index))) + 6
    per_line = max(1, width // cell)
    if n_gpus > per_line >= 8:
        per_line -= per_line % 8
    per_line = max(1, min(per_line, n_gpus))
    wide = (cell + 2) * per_line <= width
    return Grid(per_line, cell + 2 * wide, wide, -(-n_gpus // per_line))


def fit_layout(
    width: int, height: int, n_gpus: int, n_alerts: int, n_rows: int, *, n_children: int = 0, largest_index: int = 0
) -> Layout:
    """Return the layout for a size and the numbers of GPUs, alerts, processes and MIG instances."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return Layout(Form.TINY, Form.TINY, 0, 0, 0, False, 0, 0, 0, max(height, 0), 0)
    form = form_of(width)
    cells = heat_map_grid(width, n_gpus, largest_index).lines
    alerts = min(n_alerts, MAX_ALERTS if height >= 20 else 2)
    for one, wanted in _steps(form, height, n_gpus, n_children, alerts, cells):
        spare = height - one.height
        if spare >= max(1, min(n_rows, wanted)):
            return replace(one, rows=spare)
    return _squeezed(height, form, cells, alerts)


def _steps(
    form: Form, height: int, n_gpus: int, n_children: int, alerts: int, cells: int
) -> Iterator[tuple[Layout, int]]:
    """Yield the layouts to try, best first, each with the number of process rows that it must leave."""
    base = Layout(form, Form.HEAT_MAP, 1, 0, cells, False, 0, alerts, 1, 0, 1)
    if form is not Form.HEAT_MAP:
        rows = replace(base, gpu_form=form, gpu_title=min(n_gpus, 1), gpus=n_gpus)
        full = replace(rows, gpus=n_gpus + n_children, children=n_children > 0)
        if form is not Form.COMPACT:
            yield replace(full, gap=1), 2 * WANTED_ROWS
        yield full, max(WANTED_ROWS, height * 3 // 10)
        for most in (alerts, 2, 1):
            yield replace(rows, alerts=min(alerts, most)), WANTED_ROWS
        yield replace(rows, alerts=min(alerts, 1)), LEAST_ROWS
    yield replace(base, detail=min(n_gpus, 1)), WANTED_ROWS
    yield base, WANTED_ROWS
    yield base, LEAST_ROWS
    yield replace(base, alerts=min(alerts, 1)), LEAST_ROWS


def _squeezed(height: int, form: Form, cells: int, alerts: int) -> Layout:
    """Return a layout for a height in which a heat map, an alert and a process do not fit together."""
    left = height - 1
    alert = min(alerts, 1)
    gpus = min(cells, left - alert)
    left -= gpus + alert
    footer = 1 if left >= 3 else 0
    title = 1 if left - footer >= 2 else 0
    return Layout(form, Form.HEAT_MAP, 1, 0, gpus, False, 0, alert, title, left - footer - title, footer)
