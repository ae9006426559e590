"""Layout of the dashboard for a terminal size: a pure function, in stated steps.

By width: 150 or more terminal columns show every table column (full), 100 or more show some (medium), 70 or more show
compact GPU rows, 40 or more show GPUs as cells of a strip. By height, these steps follow until the processes have 8
rows, or 3 where 8 are impossible: remove blank lines, remove the rows of MIG instances, reduce alerts to two lines and
to one, draw the GPUs as a strip. A GPU or the worst alert is never removed for a process. Below 40×6 only the needed
size and the worst alert are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

MIN_WIDTH: Final = 40
MIN_HEIGHT: Final = 6
MAX_ALERTS: Final = 4
WANTED_ROWS: Final = 8
LEAST_ROWS: Final = 3


class Form(Enum):
    """Width class of the drawing."""

    FULL = "full"
    MEDIUM = "medium"
    COMPACT = "compact"
    STRIP = "strip"
    TINY = "tiny"


@dataclass(frozen=True, slots=True)
class Layout:
    """Number of lines of each part; they add up to the terminal's height."""

    form: Form
    """How the processes, alerts and header are drawn, by the width."""
    gpu_form: Form
    """How the GPUs are drawn; a strip also where the height does not suffice for a row per GPU."""
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

    @property
    def height(self) -> int:
        """Sum of all lines."""
        gaps = self.gap * (2 if self.alerts else 1)
        body = self.gpu_title + self.gpus + self.alerts + self.table_title + self.rows
        return self.header + gaps + body + self.footer


def form_of(width: int) -> Form:
    if width >= 150:
        return Form.FULL
    if width >= 100:
        return Form.MEDIUM
    return Form.COMPACT if width >= 70 else Form.STRIP


def room_for_toasts(width: int, height: int) -> bool:
    """Return whether a toast would cover only the end of the commands of the last processes."""
    return width >= 120 and height > 30


def strip_cell(n_gpus: int, largest_index: int = 0) -> int:
    """Return the width of one GPU in a strip, with the blank after it: `12●100 `."""
    return len(str(max(n_gpus - 1, largest_index))) + 5


def strip_lines(width: int, n_gpus: int, largest_index: int = 0) -> int:
    """Return the lines that a strip of all GPUs takes."""
    per_line = max(1, width // strip_cell(n_gpus, largest_index))
    return -(-n_gpus // per_line)


def fit_layout(
    width: int, height: int, n_gpus: int, n_alerts: int, n_rows: int, *, n_children: int = 0, largest_index: int = 0
) -> Layout:
    """Return the layout for a size and the numbers of GPUs, alerts, processes and MIG instances."""
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return Layout(Form.TINY, Form.TINY, 0, 0, 0, False, 0, 0, 0, max(height, 0), 0)
    form = form_of(width)
    strip = strip_lines(width, n_gpus, largest_index)
    alerts = min(n_alerts, MAX_ALERTS if height >= 20 else 2)
    for one, wanted in _steps(form, n_gpus, n_children, alerts, strip):
        spare = height - one.height
        if spare >= max(1, min(n_rows, wanted)):
            return replace(one, rows=spare)
    return _squeezed(height, form, strip, alerts)


def _steps(form: Form, n_gpus: int, n_children: int, alerts: int, strip: int) -> list[tuple[Layout, int]]:
    """Return the layouts to try, best first, each with the number of process rows that it must leave."""
    title = 1 if form in (Form.FULL, Form.MEDIUM) and n_gpus else 0
    base = Layout(form, Form.STRIP, 1, 0, strip, False, 0, alerts, 1, 0, 1)
    one_alert = replace(base, alerts=min(alerts, 1))
    steps: list[tuple[Layout, int]] = []
    if form is not Form.STRIP:
        rows = replace(base, gpu_form=form, gpu_title=title, gpus=n_gpus)
        full = replace(rows, gpus=n_gpus + n_children, children=n_children > 0)
        if form is not Form.COMPACT:
            steps.append((replace(full, gap=1), 2 * WANTED_ROWS))
        fewer = [full, rows, replace(rows, alerts=min(alerts, 2)), replace(rows, alerts=min(alerts, 1))]
        steps += [(one, WANTED_ROWS) for one in fewer]
        steps.append((fewer[-1], LEAST_ROWS))
    return [*steps, (base, WANTED_ROWS), (base, LEAST_ROWS), (one_alert, LEAST_ROWS)]


def _squeezed(height: int, form: Form, strip: int, alerts: int) -> Layout:
    """Return a layout for a height in which a strip, an alert and a process do not fit together."""
    left = height - 1
    alert = min(alerts, 1)
    gpus = min(strip, left - alert)
    left -= gpus + alert
    footer = 1 if left >= 3 else 0
    title = 1 if left - footer >= 2 else 0
    return Layout(form, Form.STRIP, 1, 0, gpus, False, 0, alert, title, left - footer - title, footer)
