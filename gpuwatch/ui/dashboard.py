"""Main screen: the panels, and the number of lines of each panel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen
from textual.widget import Widget

from gpuwatch.model.filters import Filter
from gpuwatch.model.snapshot import SourceState
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.alerts import alerts_of, count_standing
from gpuwatch.ui.draw.footer import Hint, hints
from gpuwatch.ui.draw.gpus import Gpus
from gpuwatch.ui.draw.header import header_line
from gpuwatch.ui.draw.layout import Form, Layout, fit_layout
from gpuwatch.ui.draw.lines import LineBuilder
from gpuwatch.ui.draw.notice import notice_lines, starting_words, state_words, tiny_lines, tiny_words
from gpuwatch.ui.draw.processes import Processes
from gpuwatch.ui.draw.theme import Role, StyleSet
from gpuwatch.ui.draw.view import View
from gpuwatch.ui.partial_updates import PartialUpdateCompositor
from gpuwatch.ui.widgets.panels import Alerts, Footer, LinePanel, ListPanel
from gpuwatch.ui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.alerts.alert import Alert
    from gpuwatch.model.fields import Row
    from gpuwatch.model.snapshot import Gpu
    from gpuwatch.monitor import Frame


_FILTER_HINT: Final = "user:ada  gpu:0-3  mem>10GiB  idle>30m  !text  mine  used>1"
"""How a filter of processes looks."""


class Dashboard(Screen[None]):
    """Main screen that draws frames. Its only data are the user's cursors, order and filter."""

    AUTO_FOCUS = ""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._compositor = PartialUpdateCompositor()
        self.layout_now: Layout | None = None
        """Layout of the last drawing."""
        self.header = LinePanel(id="header")
        self.gpus = Gpus()
        self.gpu_panel = ListPanel(self.gpus, id="gpus")
        self.alerts = Alerts(id="alerts")
        self.processes = Processes()
        self.process_panel = ListPanel(self.processes, id="processes")
        self.following = False
        """Whether the process list shows only the processes of the chosen GPU."""
        self.active: Gpus | Processes = self.processes
        """Panel whose cursor the keys move."""
        self.notice = LinePanel(id="notice")
        self.prompt = Prompt(Filter.parse, _FILTER_HINT, id="prompt")
        self.footer = Footer(id="footer")

    def compose(self) -> ComposeResult:
        """Return the panels, from top to bottom."""
        yield from (self.header, self.gpu_panel, self.alerts, self.process_panel, self.notice, self.prompt, self.footer)

    def on_mount(self) -> None:
        self.activate(self.processes)

    # -----------------------------------------------------------------------------------------------------------
    # Cursors

    def activate(self, panel: Gpus | Processes) -> None:
        """Let the keys move the cursor of a panel."""
        self.active = panel
        for one in (self.gpus, self.processes):
            one.active = one is panel

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

    def on_click(self, event: events.Click) -> None:
        """Move to the panel that was clicked."""
        if isinstance(event.widget, ListPanel):
            self.activate(self.gpus if event.widget is self.gpu_panel else self.processes)
            actions_of(self).paint()

    # -----------------------------------------------------------------------------------------------------------
    # Drawing

    def on_resize(self, _event: events.Resize) -> None:
        actions_of(self).paint()

    def on_screen_resume(self) -> None:
        """Draw what came while another screen was above."""
        actions_of(self).paint()

    def draw(self, view: View) -> None:
        width, height = self.app.size
        frame, styles = view.frame, view.styles
        seen = frame.snapshot
        styles.add_people(frame.holdings.names)
        self.gpus.update_rows(seen.gpus)
        if not seen.gpus:
            self.activate(self.processes)
        self.processes.only = self.gpus.selected if self.following else None
        self.processes.read_rows(view)
        layout = self._fit(view, width, height)
        if layout.form is Form.TINY:
            self._only_notice(tiny_words(frame, width, height), styles)
            return
        if not seen.gpus:
            room = height - 2
            starting = seen.state is SourceState.STARTING
            words = starting_words(seen.taken - seen.since, seen.words) if starting else state_words(seen)
            self._arrange({self.header: 1, self.notice: room, self._bottom: 1})
            self.notice.show(notice_lines(words, styles, width, room))
        else:
            self._arrange(
                {
                    self.header: layout.header,
                    self.gpu_panel: layout.gpu_title + layout.gpus + layout.detail,
                    self.alerts: layout.alerts,
                    self.process_panel: layout.table_title + layout.rows,
                    self._bottom: layout.footer,
                },
                gap=layout.gap,
            )
            self.gpu_panel.show(self.gpus.draw(view, layout, width))
            self.alerts.draw(view, layout, width)
            self.process_panel.show(self.processes.draw(layout, width))
        self.header.show([header_line(view, width)])
        others = {"switch": "processes"} if self.active is self.gpus else {}
        if view.playback is not None and view.playback.playing:
            others["play"] = "pause"
        shown = [(key, others.get(action, word), action) for key, word, action in hints(actions_of(self).keys)]
        self.footer.draw(shown if seen.gpus or view.playback is not None else _bare(shown), styles, width)

    def draw_starting(self, seconds: float, styles: StyleSet) -> None:
        """Draw the screen shown before the first frame."""
        width, height = self.app.size
        if width < 40 or height < 6:
            self._only_notice(tiny_words(None, width, height), styles)
            return
        self._arrange({self.header: 1, self.notice: height - 2, self._bottom: 1})
        self.header.show([LineBuilder(styles, "band").gap().write("gpuwatch", "strong").build(width)])
        self.notice.show(notice_lines(starting_words(seconds), styles, width, height - 2))
        self.footer.draw(_bare(hints(actions_of(self).keys)), styles, width)

    @property
    def _bottom(self) -> Widget:
        return self.prompt if self.prompt.display else self.footer

    def _fit(self, view: View, width: int, height: int) -> Layout:
        gpus = view.frame.snapshot.gpus
        self.layout_now = fit_layout(
            width,
            height,
            len(gpus),
            len(alerts_of(view.frame)) or bool(count_standing(view.frame)),
            len(self.processes.found),
            n_children=sum(len(gpu.instances) for gpu in gpus),
            largest_index=max((gpu.index for gpu in gpus), default=0),
        )
        return self.layout_now

    def out_of_sight(self, alerts: Sequence[Alert], frame: Frame) -> list[Alert]:
        """Return the alerts that had no line in the last drawing, which was of `frame`."""
        shown = alerts_of(frame)[: self.layout_now.alerts if self.layout_now else 0]
        return [alert for alert in alerts if alert not in shown]

    def _only_notice(self, words: list[tuple[str, Role]], styles: StyleSet) -> None:
        """Draw words in place of all panels, and the prompt if it is open: it receives the keys."""
        width, height = self.app.size
        room = max(0, height - self.prompt.display)
        self._arrange({self.notice: room})
        self.notice.show(tiny_lines(words, styles, width, room))

    def _arrange(self, heights: dict[Any, int], gap: int = 0) -> None:
        """Set the height of each panel and hide the others. Textual computes a new layout only after a change."""
        for panel in (self.header, self.gpu_panel, self.alerts, self.process_panel, self.notice, self.footer):
            height = heights.get(panel, 0)
            if panel.display != (height > 0):
                panel.display = height > 0
            above = gap if panel in (self.alerts, self.process_panel) else 0
            assert isinstance(panel, LinePanel)
            panel.set_height(height, above)


def _bare(shown: Sequence[Hint]) -> list[Hint]:
    """Return the keys that are shown while there is no GPU."""
    return [hint for hint in shown if hint[2] in ("hosts", "help", "quit")]
