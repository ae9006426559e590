"""The dashboard: takes frames, draws the newest, and turns keys into actions."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final

from rich.text import Text
from textual import events
from textual.app import App
from textual.binding import BindingType
from textual.filter import Monochrome

from gpuwatch.model import SourceState
from gpuwatch.rows import Filter, FilterError, Row
from gpuwatch.text import clean
from gpuwatch.ui.announce import announce
from gpuwatch.ui.dashboard import Dashboard
from gpuwatch.ui.keys import KEYS
from gpuwatch.ui.messages import Framed
from gpuwatch.ui.options import Helpers, Options, Watching
from gpuwatch.ui.panels.footer import Footer
from gpuwatch.ui.panels.processes import Processes
from gpuwatch.ui.panels.prompt import Prompt
from gpuwatch.ui.terminal import AsciiOnly, ForgivingDriver, Lifeline, NoColors, speaks_unicode
from gpuwatch.ui.theme import Kit, kit, themes
from gpuwatch.ui.view import View
from gpuwatch.watch import Frame

if TYPE_CHECKING:
    from textual.command import Provider

    from gpuwatch.alerts import Alert
    from gpuwatch.ui.background import Background
    from gpuwatch.ui.screens.detail import DetailScreen
    from gpuwatch.ui.screens.end import Endings

INTERVALS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between two samples that `+` and `-` step through."""

ENDED: Final = 500
"""Alerts that have ended which the dashboard itself remembers."""


def _commands() -> type[Provider]:
    from gpuwatch.ui.commands import GpuwatchCommands  # only when the palette is opened

    return GpuwatchCommands


class GpuwatchApp(App[int]):
    """The dashboard. Frames come as `Framed` messages, from the watch thread or from a test."""

    TITLE = "gpuwatch"
    CSS_PATH = "gpuwatch.tcss"
    BINDINGS: ClassVar[list[BindingType]] = [*KEYS]
    COMMANDS: ClassVar[set[Any]] = {_commands}
    NOTIFICATION_TIMEOUT = 6

    def __init__(
        self,
        *,
        watch: Watching | None = None,
        options: Options | None = None,
        helpers: Helpers | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a watch it draws only the frames that it is handed."""
        super().__init__(driver_class=ForgivingDriver)
        self.watching = watch
        self.helpers = helpers or Helpers()
        self._backgrounds: dict[str, Background] = {}
        self._endings: Endings | None = None
        self.options = options or Options()
        self.frame: Frame | None = None
        """What is on screen; older than `newest` while paused."""
        self.newest: Frame | None = None
        self.ended: deque[Alert] = deque(maxlen=ENDED)
        """What this run saw end: the demo keeps no log, and one may be out of order."""
        self.interval = self.options.interval
        self.dashboard = Dashboard()
        self._lifeline: Lifeline | None = None
        self._clock = clock
        self._began = clock()
        self._paused_at: float | None = None
        if self.no_color:
            self._filters = [NoColors() if isinstance(one, Monochrome) else one for one in self._filters]
        self._hues: dict[int, int] = {}
        for theme in themes():
            self.register_theme(theme)
        self.theme = f"gpuwatch-{self.options.theme}"
        self.kit: Kit = self._make_kit()

    def _make_kit(self) -> Kit:
        ascii_only = self.options.ascii or (self._lifeline is not None and not speaks_unicode())
        return kit(self.theme, ascii_only=ascii_only, colors=self._colors(), slots=self._hues)

    def _colors(self) -> int:
        if self.no_color:
            return 0
        # A test or a screenshot has no terminal to ask.
        system = self.console.color_system if self._lifeline is not None else None
        return {"standard": 16, "256": 256}.get(system or "", 1 << 24)

    def get_default_screen(self) -> Dashboard:
        """Start with the dashboard."""
        return self.dashboard

    def run_to_exit_code(self) -> int:
        """Run until the user leaves; gives the exit code."""
        self._lifeline = Lifeline(
            lambda code: self.exit(return_code=code), sys.stdin.fileno(), hang_up=self.action_reload
        )
        try:
            self.run()
        finally:
            self._lifeline.close()
        return self.return_code or 0

    def exit(self, result: int | None = None, return_code: int = 0, message: Any = None) -> None:
        """Leave; in good order if that takes no longer than a moment."""
        if self._lifeline is not None:
            self._lifeline.arm(return_code)
        if self._endings is not None:
            self._endings.close()
        super().exit(result, return_code, message)

    def publish(self, frame: Frame) -> None:
        """Hand over a frame; from any thread. Raises RuntimeError once the dashboard has closed."""
        self.post_message(Framed(frame))

    # -----------------------------------------------------------------------------------------------------------
    # Life

    def on_mount(self) -> None:
        """Take the options, the signals and the frame that may be there already."""
        panel = self.dashboard.processes
        panel.mine = self.options.mine
        try:
            user = clean(self.options.user)
            panel.filter = Filter.parse(f"user:{user}" if user else self.options.filter)
        except FilterError as error:
            self.notify(str(error), severity="warning", markup=False)
        self.theme_changed_signal.subscribe(self, lambda _theme: self._on_theme())
        if self._lifeline is not None:
            self.kit = self._make_kit()
            self._lifeline.start()
            self.app_resume_signal.subscribe(self, lambda _app: self.action_retry(quiet=True))
        if self.kit.glyphs.ascii:
            self._filters.append(AsciiOnly())
        self.set_interval(1.0, self._beat, name="beat")
        first = self.watching.newest if self.watching else None
        if first is not None and self.newest is None:
            self.on_framed(Framed(first))
        else:
            self.paint()

    async def on_event(self, event: events.Event) -> None:
        """Clean what is pasted: it may come from anywhere, and is drawn."""
        if isinstance(event, events.Paste):
            event.text = clean(next(iter(event.text.splitlines()), ""))
        await super().on_event(event)

    def on_resize(self, event: events.Resize) -> None:
        """Draw all anew at the size that was: the terminal was smaller for a moment, and has lost what stood there."""
        if event.size == self.size:
            self.screen.refresh()

    def _beat(self) -> None:
        """Once a second, where no frame comes: let ages grow."""
        since = self._clock() - self.newest.received if self.newest else math.inf
        if self._paused_at is not None or since > max(2.0, 2 * self.interval):
            self.paint()

    def _on_theme(self) -> None:
        self.kit = self._make_kit()
        self.paint()

    def on_framed(self, message: Framed) -> None:
        """Take in a frame: the only place where data enters."""
        before, self.newest = self.newest, message.frame
        self.ended.extend(message.frame.cleared)
        if message.frame.snapshot.state is SourceState.ENDED:
            self.leave_ended(message.frame)
            return
        if self._endings is not None:
            self._endings.observe(message.frame)
        top = self.screen
        if top is not self.dashboard and hasattr(top, "refresh_frame"):
            top.refresh_frame(message.frame)
        if self._paused_at is None:
            self.frame = message.frame
            self.paint()
        if before is not None:
            announce(self, before, message.frame)

    def leave_ended(self, frame: Frame) -> None:
        """Leave because the source cannot go on; its words are printed once the terminal is restored."""
        words = frame.snapshot.words or "the source has ended"
        self.exit(return_code=2, message=Text(f"gpuwatch: {words}"))

    def paint(self) -> None:
        """Draw what there is: the only place that paints."""
        if not self.dashboard.is_mounted or not self._running:
            return
        now = self._clock()
        with self.batch_update():
            if self.frame is None:
                self.dashboard.draw_starting(now - self._began, self.kit)
            else:
                self.dashboard.draw(self._view(self.frame, now))

    def _view(self, frame: Frame, now: float) -> View:
        paused = None if self._paused_at is None else now - self._paused_at
        return View(frame, now, self.kit, self.interval, paused, self.options.read_only)

    def background(self, name: str) -> Background:
        """Give the thread of this name, for calls that may take their time."""
        from gpuwatch.ui.background import Background

        return self._backgrounds.setdefault(name, Background(name))

    @property
    def paused(self) -> bool:
        """Whether the user froze the screen."""
        return self._paused_at is not None

    def write_to_terminal(self, words: str) -> None:
        """Write what is no part of the screen: a control that the terminal acts on."""
        if self._driver is not None and not self.is_headless:
            self._driver.write(words)

    # -----------------------------------------------------------------------------------------------------------
    # From the panels

    def on_processes_moved(self, _message: Processes.Moved) -> None:
        """Draw cursor, order or scroll."""
        self.paint()

    def on_processes_chosen(self, _message: Processes.Chosen) -> None:
        """Open the row that was clicked twice."""
        self.action_detail()

    def on_detail_screen_end_asked(self, message: DetailScreen.EndAsked) -> None:
        """End the process whose detail is shown."""
        self.ask_to_end(message.row)

    def on_footer_pressed(self, message: Footer.Pressed) -> None:
        """Do what the key would do."""
        self.call_later(self.run_action, message.action)

    def on_prompt_changed(self, message: Prompt.Changed) -> None:
        """Filter as one types."""
        self.dashboard.processes.filter = message.filter
        self.paint()

    def on_prompt_left(self, _message: Prompt.Left) -> None:
        """Give the line back to the keys."""
        self.paint()

    # -----------------------------------------------------------------------------------------------------------
    # Actions

    def action_move(self, by: int) -> None:
        """Move the cursor."""
        self.dashboard.processes.move(by)

    def action_page(self, by: int) -> None:
        """Move the cursor by a screenful."""
        self.dashboard.processes.page(by)

    def action_sort(self, by: int) -> None:
        """Sort by the next column."""
        self.dashboard.processes.sort_next(by)

    def action_reverse(self) -> None:
        """Turn the order round."""
        panel = self.dashboard.processes
        panel.sort_by(panel.by)

    def action_mine(self) -> None:
        """Show one's own processes, or everybody's."""
        panel = self.dashboard.processes
        panel.mine = not panel.mine
        self.paint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave `/` to whatever is typed into, and to the screens above the dashboard."""
        return action != "filter" or (self.screen is self.dashboard and not self.dashboard.prompt.display)

    def action_filter(self) -> None:
        """Ask for a filter."""
        self.dashboard.prompt.open(self.dashboard.processes.filter.text, self.kit)
        self.paint()

    def action_clear(self) -> None:
        """Clear the filter, and close its prompt."""
        self.dashboard.processes.filter = Filter()
        if self.dashboard.prompt.display:
            self.dashboard.prompt.close()
        self.paint()

    def action_pause(self) -> None:
        """Freeze the screen, or let it go on."""
        self._paused_at = None if self._paused_at is not None else self._clock()
        if self._paused_at is None:
            self.frame = self.newest
        self.paint()

    def action_interval(self, by: int) -> None:
        """Sample more or less often."""
        place = min(range(len(INTERVALS)), key=lambda index: abs(INTERVALS[index] - self.interval))
        self.interval = INTERVALS[max(0, min(place + by, len(INTERVALS) - 1))]
        if self.watching:
            self.watching.set_interval(self.interval)
        self.paint()

    def action_retry(self, quiet: bool = False) -> None:
        """Sample at once, and try GPUs again that were given up."""
        if self.watching:
            self.watching.poke()
        if not quiet:
            self.notify("asking every GPU again", markup=False, timeout=3)

    def action_detail(self) -> None:
        """Show all that is known of the process under the cursor."""
        row = self.dashboard.processes.selected
        if row is not None and self.frame is not None:
            from gpuwatch.ui.screens.detail import DetailScreen  # 20 ms that the first paint need not wait for

            self.push_screen(DetailScreen(row.key, self.frame, self.kit.glyphs, self.options.allowances))

    def action_end_process(self) -> None:
        """Ask whether to end the process under the cursor."""
        row = self.dashboard.processes.selected
        if row is not None:
            self.ask_to_end(row)

    def ask_to_end(self, row: Row) -> None:
        """Ask whether to end a process; refuse where nothing may be signalled."""
        refusal = "read-only: nothing is signalled" if self.options.read_only else ""
        if not refusal and self.helpers.killer is None:
            refusal = "processes cannot be ended from here"
        if self.newest is not None and self.newest.snapshot.demo:
            refusal = "demo: these processes are made up, nothing is signalled"
        if refusal:
            self.notify(refusal, severity="warning", markup=False, timeout=4)
            return
        if self.newest is not None and self.helpers.killer is not None:
            from gpuwatch.ui.screens.end import Endings

            if self._endings is None:
                self._endings = Endings(self, self.helpers.killer(), glyphs=self.kit.glyphs)
            self._endings.open(row.key, self.newest)

    def action_events(self) -> None:
        """Show what was raised and how it ended."""
        from gpuwatch.ui.screens.events import EventsScreen

        self.push_screen(EventsScreen(self.helpers.events, self.newest, self.kit, ended=self.ended))

    def action_attend(self, alert: Alert | None = None) -> None:
        """Ask what is to become of a chosen alert, or of all that hold, those first that nobody has seen."""
        from gpuwatch.ui.screens.attend import AttendScreen, subjects

        alerts, mutes = subjects(self.newest, alert)
        if not alerts and not mutes:
            why = "nothing to acknowledge" if alert is None else "this is gpuwatch's own trouble: it ends once mended"
            self.notify(why, markup=False, timeout=3)
        elif self.watching is not None:
            self.push_screen(AttendScreen(alerts, self.watching, self.kit.glyphs, mutes=mutes))

    def action_reload(self) -> None:
        """Read the configuration again, away from the event loop."""
        if self.helpers.reload is None:
            self.notify("there is no configuration to read again", markup=False, timeout=3)
            return
        from gpuwatch.ui.reloading import reload

        self.background("gpuwatch-reload")(lambda: reload(self))

    def action_help(self) -> None:
        """Explain keys, marks and words."""
        from gpuwatch.ui.screens.help import HelpScreen

        self.push_screen(HelpScreen(KEYS, self.newest, self.kit.glyphs))

    def action_theme(self, name: str) -> None:
        """Draw for a dark or a light terminal."""
        self.theme = f"gpuwatch-{name}"

    def action_sort_by(self, column: str) -> None:
        """Sort by a column."""
        self.dashboard.processes.sort_by(column)
