"""Drawing of the whole dashboard: the lines of each panel, for a view, the user's cursors and a size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gpuwatch.model.snapshot import SourceState
from gpuwatch.ui.draw.alerts import AlertLines, alerts_of, count_standing, draw_alerts
from gpuwatch.ui.draw.footer import FooterLine, Hint, draw_footer
from gpuwatch.ui.draw.gpus import Gpus
from gpuwatch.ui.draw.header import header_line
from gpuwatch.ui.draw.layout import MIN_HEIGHT, MIN_WIDTH, Form, Layout, fit_layout
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank
from gpuwatch.ui.draw.notice import notice_lines, starting_words, state_words, tiny_lines
from gpuwatch.ui.draw.processes import Processes
from gpuwatch.ui.draw.theme import StyleSet
from gpuwatch.ui.draw.view import View

if TYPE_CHECKING:
    from gpuwatch.model.fields import Row
    from gpuwatch.model.snapshot import Gpu


class DashboardState:
    """Cursors, order and filter of the user, and what was drawn last, of which only the changes are drawn anew."""

    def __init__(self) -> None:
        self.gpus = Gpus()
        self.processes = Processes()
        self.following = False
        """Whether the process list shows only the processes of the chosen GPU."""
        self.active: Gpus | Processes = self.processes
        """List whose cursor the keys move."""

    def activate(self, rows: Gpus | Processes) -> None:
        """Let the keys move the cursor of a list."""
        self.active = rows
        for one in (self.gpus, self.processes):
            one.active = one is rows

    def switch(self) -> None:
        """Move from the processes to the GPUs, or back."""
        self.activate(self.processes if self.active is self.gpus or not self.gpus.found else self.gpus)

    def follow(self) -> None:
        """Show only the processes of the chosen GPU, or those of all GPUs again.

        While the cursor is on a process, its GPU is the chosen one.
        """
        self.following = not self.following
        row = self.selected
        if self.following and row is not None:
            self.gpus.choose(row.gpu.key)

    @property
    def selected(self) -> Row | None:
        """The process under the cursor; None while the cursor is on a GPU."""
        return self.processes.selected if self.active is self.processes else None

    @property
    def selected_gpu(self) -> Gpu | None:
        """The GPU under the cursor; None while the cursor is on a process."""
        return self.gpus.selected if self.active is self.gpus else None

    def read(self, view: View) -> None:
        """Update the lists from a frame."""
        seen = view.frame.snapshot
        view.styles.add_people(view.frame.holdings.names)
        self.gpus.update_rows(seen.gpus)
        if not seen.gpus:
            self.activate(self.processes)
        self.processes.only = self.gpus.selected if self.following else None
        self.processes.read_rows(view)


class Drawn(NamedTuple):
    """Lines of the panels; a panel without lines is not on screen."""

    header: Sequence[Line] = ()
    gpus: Sequence[Line] = ()
    alerts: AlertLines = AlertLines()
    processes: Sequence[Line] = ()
    notice: Sequence[Line] = ()
    footer: FooterLine | None = None
    gap: int = 0
    """Blank lines before the alerts and before the processes, each."""
    layout: Layout | None = None

    def lines(self, styles: StyleSet, width: int) -> Iterator[Line]:
        """Yield the lines of the screen, from top to bottom."""
        gap = [blank(styles, width)] * self.gap
        for before, lines in (
            ([], self.header),
            ([], self.gpus),
            (gap, self.alerts.lines),
            (gap, self.processes),
            ([], self.notice),
            ([], [self.footer.line] if self.footer else []),
        ):
            yield from (*before, *lines) if lines else ()


def draw(
    view: View, state: DashboardState, size: tuple[int, int], keys: Sequence[Hint], *, prompt: bool = False
) -> Drawn:
    """Draw the dashboard; with `prompt` the last line is left to the prompt, which receives the keys."""
    width, height = size
    frame, styles = view.frame, view.styles
    seen = frame.snapshot
    state.read(view)
    layout = _fit(view, state, width, height)
    if layout.form is Form.TINY:
        return Drawn(notice=tiny_lines(frame, styles, width, height, prompt=prompt), layout=layout)
    others = {"switch": "processes"} if state.active is state.gpus else {}
    if view.playback is not None and view.playback.playing:
        others["play"] = "pause"
    shown = [(key, others.get(action, word), action) for key, word, action in keys]
    footer = draw_footer(shown if seen.gpus or view.playback is not None else _bare(shown), styles, width)
    header = [header_line(view, width)]
    if not seen.gpus:
        words = state_words(seen)
        if seen.state is SourceState.STARTING:
            words = starting_words(seen.taken - seen.since, seen.words)
        notice = notice_lines(words, styles, width, height - 2)
        return Drawn(header, notice=notice, footer=None if prompt else footer, layout=layout)
    return Drawn(
        header,
        state.gpus.draw(view, layout, width),
        draw_alerts(frame, styles, width, layout.alerts),
        state.processes.draw(layout, width),
        footer=footer if layout.footer and not prompt else None,
        gap=layout.gap,
        layout=layout,
    )


def draw_starting(seconds: float, styles: StyleSet, size: tuple[int, int], keys: Sequence[Hint]) -> Drawn:
    """Draw the screen shown before the first frame, so many seconds after the start."""
    width, height = size
    if width < MIN_WIDTH or height < MIN_HEIGHT:
        return Drawn(notice=tiny_lines(None, styles, width, height))
    header = LineBuilder(styles, "band").gap().write("gpuwatch", "strong").build(width)
    notice = notice_lines(starting_words(seconds), styles, width, height - 2)
    return Drawn([header], notice=notice, footer=draw_footer(_bare(keys), styles, width))


def _fit(view: View, state: DashboardState, width: int, height: int) -> Layout:
    gpus = view.frame.snapshot.gpus
    return fit_layout(
        width,
        height,
        len(gpus),
        len(alerts_of(view.frame)) or bool(count_standing(view.frame)),
        len(state.processes.found),
        n_children=sum(len(gpu.instances) for gpu in gpus),
        largest_index=max((gpu.index for gpu in gpus), default=0),
    )


def _bare(shown: Sequence[Hint]) -> list[Hint]:
    """Return the keys that are shown while there is no GPU."""
    return [hint for hint in shown if hint[2] in ("hosts", "help", "quit")]
