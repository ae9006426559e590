"""Main screen: the panels, with the lines that `gpuwatch.ui.draw` makes of a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from textual import events
from textual.app import ComposeResult
from textual.screen import Screen

from gpuwatch.model.filters import Filter
from gpuwatch.ui.actions import actions_of
from gpuwatch.ui.draw.alerts import alerts_of
from gpuwatch.ui.draw.dashboard import DashboardState, Drawn, draw, draw_starting
from gpuwatch.ui.draw.footer import Hint, hints
from gpuwatch.ui.draw.layout import Form
from gpuwatch.ui.draw.theme import StyleSet
from gpuwatch.ui.draw.view import View
from gpuwatch.ui.partial_updates import PartialUpdateCompositor
from gpuwatch.ui.widgets.panels import Alerts, Footer, LinePanel, ListPanel
from gpuwatch.ui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuwatch.alerts.alert import Alert
    from gpuwatch.monitor import Frame


_FILTER_HINT: Final = "user:ada  gpu:0-3  mem>10GiB  idle>30m  !text  mine  used>1"
"""How a filter of processes looks."""


class Dashboard(Screen[None]):
    """Main screen that shows frames; what it draws is made by functions without Textual."""

    AUTO_FOCUS = ""

    def __init__(self, state: DashboardState) -> None:
        super().__init__()
        self._compositor = PartialUpdateCompositor()
        self.state = state
        self.gpus, self.processes = self.state.gpus, self.state.processes
        self.drawn = Drawn()
        """What is on screen."""
        self.header = LinePanel(id="header")
        self.gpu_panel = ListPanel(self.gpus, id="gpus")
        self.alerts = Alerts(id="alerts")
        self.process_panel = ListPanel(self.processes, id="processes")
        self.notice = LinePanel(id="notice")
        self.prompt = Prompt(Filter.parse, _FILTER_HINT, id="prompt")
        self.footer = Footer(id="footer")

    def compose(self) -> ComposeResult:
        yield from (self.header, self.gpu_panel, self.alerts, self.process_panel, self.notice, self.prompt, self.footer)

    def on_click(self, event: events.Click) -> None:
        """Move to the list that was clicked."""
        if isinstance(event.widget, ListPanel):
            self.state.activate(self.gpus if event.widget is self.gpu_panel else self.processes)
            actions_of(self).paint()

    def on_resize(self, _event: events.Resize) -> None:
        actions_of(self).paint()

    def on_screen_resume(self) -> None:
        """Draw what came while another screen was above."""
        actions_of(self).paint()

    def draw(self, view: View) -> None:
        self._show(draw(view, self.state, self.app.size, self._keys(), prompt=self.prompt.display))

    def draw_starting(self, seconds: float, styles: StyleSet) -> None:
        self._show(draw_starting(seconds, styles, self.app.size, self._keys()))

    def _keys(self) -> list[Hint]:
        actions = actions_of(self)
        return [hint for hint in hints(actions.keys) if hint[2] not in actions.refused]

    def _show(self, drawn: Drawn) -> None:
        """Show the lines of each panel, and hide panels without; Textual computes a new layout only after a change."""
        self.drawn = drawn
        panels: list[tuple[LinePanel, int]] = [
            (self.header, len(drawn.header)),
            (self.gpu_panel, len(drawn.gpus)),
            (self.alerts, len(drawn.alerts.lines)),
            (self.process_panel, len(drawn.processes)),
            (self.notice, len(drawn.notice)),
            (self.footer, int(drawn.footer is not None)),
        ]
        for panel, height in panels:
            if panel.display != (height > 0):
                panel.display = height > 0
            panel.set_height(height, drawn.gap if panel in (self.alerts, self.process_panel) else 0)
        self.header.show(drawn.header)
        self.gpu_panel.show(drawn.gpus)
        self.alerts.show_alerts(drawn.alerts)
        self.process_panel.show(drawn.processes)
        self.notice.show(drawn.notice)
        if drawn.footer is not None:
            self.footer.show_keys(drawn.footer)

    @property
    def is_laid_out(self) -> bool:
        """Whether all lines of the last drawing have their places on screen; not before the first drawing."""
        return self.drawn.layout is not None and all(
            panel.size.height == len(panel.lines) for panel in self.query(LinePanel) if panel.display
        )

    def out_of_sight(self, alerts: Sequence[Alert], frame: Frame) -> list[Alert]:
        """Return the alerts that had no line in the last drawing, which was of `frame`; none where that was tiny."""
        layout = self.drawn.layout
        if layout and layout.form is Form.TINY:
            return []
        shown = alerts_of(frame)[: layout.alerts if layout else 0]
        return [alert for alert in alerts if alert not in shown]
