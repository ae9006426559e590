"""Drawing of the whole dashboard: its header, and the lines of each panel, for a view, cursors and a size."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.cells import cell_len

from gpuwatch.analysis.playback import Playback
from gpuwatch.base.text import clean
from gpuwatch.base.units import long_duration
from gpuwatch.model.fields import host_words, process_words
from gpuwatch.model.filters import Filter
from gpuwatch.model.snapshot import SourceState
from gpuwatch.ui.draw.alerts import AlertLines, alerts_of, count_standing, draw_alerts, silent_mutes
from gpuwatch.ui.draw.footer import FooterLine, Hint, draw_footer
from gpuwatch.ui.draw.gpus import Gpus
from gpuwatch.ui.draw.layout import MIN_HEIGHT, MIN_WIDTH, Form, Layout, fit_layout
from gpuwatch.ui.draw.lines import Line, LineBuilder, blank
from gpuwatch.ui.draw.notice import notice_lines, starting_words, state_words, tiny_lines
from gpuwatch.ui.draw.processes import Processes
from gpuwatch.ui.draw.theme import Role, StyleSet
from gpuwatch.ui.draw.view import View, clock

if TYPE_CHECKING:
    from gpuwatch.model.fields import Row
    from gpuwatch.model.snapshot import Gpu
    from gpuwatch.ui.options import Options


class DashboardState:
    """Cursors, order and filter of the user, and the last drawing: only its changes are drawn again."""

    def __init__(self) -> None:
        self.gpus = Gpus()
        self.processes = Processes()
        self.following = False
        """Whether the process list shows only the processes of the chosen GPU."""
        self.active: Gpus | Processes = self.processes
        """List whose cursor the keys move."""

    def set_options(self, options: Options) -> None:
        """Show the processes and columns that the options ask for at first; raises FilterError."""
        self.processes.mine = options.mine
        self.processes.chosen = options.columns
        self.processes.by = options.order
        self.reset_filter(options)

    def reset_filter(self, options: Options) -> None:
        """Show the processes that the options ask for; raises FilterError."""
        user = clean(options.user)
        words = [f"user:{user}"] * bool(user) + [options.filter] * bool(options.filter)
        self.processes.filter = Filter.parse(" ".join(words), options.filters)

    def activate(self, rows: Gpus | Processes) -> None:
        """Let the keys move the cursor of a list."""
        self.active = rows
        for one in (self.gpus, self.processes):
            one.active = one is rows

    def switch(self) -> None:
        """Move from the processes to the GPUs, or back."""
        self.activate(self.processes if self.active is self.gpus or not self.gpus.found else self.gpus)

    def follow(self) -> None:
        """Show only the processes of the chosen GPU, or all processes again.

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

    def lines(self, styles: StyleSet, width: int) -> list[Line]:
        """Return all lines of the screen from its top, with the blank ones."""
        gap = [blank(styles, width)] * self.gap
        alerts = [*gap, *self.alerts.lines] if self.alerts.lines else []
        processes = [*gap, *self.processes] if self.processes else []
        footer = [self.footer.line] if self.footer is not None else []
        return [*self.header, *self.gpus, *alerts, *processes, *self.notice, *footer]


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


# -- header --------------------------------------------------------------------------------------------------------


def header_line(view: View, width: int) -> Line:
    """Return the header; what does not fit is left out in steps, and the host and the state stay longest."""
    right = _right(view, width)
    taken = sum(cell_len(text) + 2 for text, _ in right)
    dot = f" {view.styles.glyphs.dot} "
    builder = LineBuilder(view.styles, "band").gap()
    if width >= 60:
        builder.write("gpuwatch", "strong").gap(2)
    left = _facts(view, lambda text: builder.cells + cell_len(text) + taken < width, dot)
    host, _, rest = left.partition(dot)
    builder.write(host, "strong" if width < 60 else "text")
    if rest:
        builder.write(dot + rest, "muted")
    builder.gap(max(1, width - builder.cells - taken))
    for text, role in right:
        builder.write(text, role).gap(2)
    return builder.build(width)


def _facts(view: View, fits: Callable[[str], bool], dot: str) -> str:
    """Return the longest of a few wordings that fits."""
    seen = view.frame.snapshot
    gpus, processes = len(seen.gpus), len(seen.processes)
    people = len({process.uid for process in seen.processes if process.uid is not None})
    host = seen.host or "this machine"
    counts = [f"{gpus} GPU{'s' * (gpus != 1)}", process_words(seen.gpus, processes)]
    who = [f"{people} {'people' if people != 1 else 'person'}"] * bool(people)
    usage = host_words(seen.host_usage, view.styles.glyphs.missing)
    short = [counts[0], *[f"{processes} proc" if counts[1][0].isdigit() else counts[1]] * bool(gpus)]
    if not gpus:  # without GPUs nothing is known of processes; the notice below explains it
        counts, who = [], []
    wordings = (
        *([host, *counts, *who, *usage[:count]] for count in (len(usage), 3, 2)),
        [host, *short, *who, *usage[:2]],
        [host, *short, *usage[:2]],
        [host, *counts, *who],
        [host, *counts],
        [host, *short],
        [host, *counts[:1]],
        [host],
    )
    return next((text for text in (dot.join(one) for one in wordings) if fits(text)), host[:20])


def _right(view: View, width: int) -> list[tuple[str, Role]]:
    if view.playback is not None:
        return _replay_words(view, view.playback, width)
    seen = view.frame.snapshot
    words: list[tuple[str, Role]] = []
    if seen.demo:
        words.append(("DEMO", "note"))
    if view.read_only:
        words.append(("READ-ONLY", "note"))
    muted = sum(alert.muted for alert in view.frame.alerts) + len(silent_mutes(view.frame))
    if muted and width >= 60:
        words.append((f"{muted} muted", "note"))
    if view.paused is not None:
        words.append((f"PAUSED {long_duration(int(view.paused))}", "warning"))
    elif seen.state is SourceState.OK and view.behind:
        words.append((f"stale {long_duration(int(view.newest_age))}", "warning"))
    if width >= 60:
        words.append((f"{'every ' * (width >= 100)}{view.interval:g} s", "muted"))
    if width >= 120 and seen.gpus and view.paused is None and not view.behind:
        age = view.newest_age  # in whole seconds: a flickering figure distracts
        words.append(("<1 s old" if age < 1 else f"{age:.0f} s old", "muted"))
    taken = clock(seen.taken)
    words.append((taken if width >= 80 else taken[:5], "text"))
    return words


def _replay_words(view: View, playback: Playback, width: int) -> list[tuple[str, Role]]:
    seen = view.frame.snapshot
    words: list[tuple[str, Role]] = [("REPLAY", "warning")]
    if seen.demo and width >= 80:
        words.insert(0, ("DEMO", "note"))
    if seen.taken >= playback.last:
        words.append(("END OF THE RECORDING" if width >= 100 else "END", "note"))
    elif not playback.playing:
        words.append(("PAUSED", "note"))
    if width >= 60 or playback.playing:
        words.append((f"{playback.speed:g}{view.styles.glyphs.times}", "muted"))
    form = "%a %d %b %Y %H:%M:%S" if width >= 120 else "%d %b %H:%M:%S" if width >= 70 else "%H:%M:%S"
    words.append((time.strftime(form, time.localtime(seen.taken)), "text"))
    return words
