"""Dashboard application: takes frames, draws the newest, and turns keys into actions."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, cast

from rich.text import Text
from textual.binding import BindingsMap, BindingType
from textual.message import Message

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.analysis.owner_message import message
from gpuwatch.analysis.people import filter_for
from gpuwatch.analysis.rows import rows
from gpuwatch.base.text import clean
from gpuwatch.model.fields import Row, RowKey
from gpuwatch.model.filters import Filter, FilterError, ListFilter
from gpuwatch.model.snapshot import SourceState
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.ui.actions import Actions, make_bindings
from gpuwatch.ui.dashboard import Dashboard
from gpuwatch.ui.desktop import Osc, clipboard, notification
from gpuwatch.ui.draw.dashboard import DashboardState
from gpuwatch.ui.draw.keys import KEYS, BoundKey, PaletteCommand, commands, dashboard_keys, keymap
from gpuwatch.ui.draw.theme import theme_id
from gpuwatch.ui.draw.view import View, mark_of, refused_actions, strays_of, subject_of, view_of
from gpuwatch.ui.options import Helpers, Options, Reloading
from gpuwatch.ui.partial_updates import is_covered
from gpuwatch.ui.terminal_app import TerminalApp
from gpuwatch.ui.widgets.panels import Alerts, Footer, ListPanel, drawing
from gpuwatch.ui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from textual.screen import Screen

    from gpuwatch.analysis.strays import Stray, StrayReport
    from gpuwatch.kill.ending import KillChoice
    from gpuwatch.kill.queue import KillQueue
    from gpuwatch.ui.first_frame import FirstFrame
    from gpuwatch.ui.screens.end_dialog import EndDialogs


@dataclass
class NewFrame(Message):
    """Message: a new frame from the monitor. A slow dashboard skips frames, but none that raised or ended an alert."""

    frame: Frame
    watch: object = None
    """Monitor that made it, where there are several."""

    def can_replace(self, message: Message) -> bool:
        """Return whether a newer frame may replace this one, which waits: not if it raised or ended alerts.

        Only this frame has them; everything else is also in the newer frame.
        """
        is_same = isinstance(message, NewFrame) and message.watch is self.watch
        return is_same and not (self.frame.raised or self.frame.cleared)


def reload(app: GpuwatchApp) -> None:
    """Read the configuration on this thread, then apply it in the app's event loop."""
    assert app.helpers.reload is not None
    try:
        came = app.helpers.reload()
    except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
        came = Reloading(clean(f"the configuration could not be reloaded: {error}"), failed=True)
    with contextlib.suppress(RuntimeError):  # the program is on its way out
        app.call_from_thread(app.apply_reload, came)


LOW: Final = 20
"""Height of a terminal below which a dialog may cover the last line, where toasts are shown."""
_KINDS: Final[dict[Severity, Literal["information", "warning", "error"]]] = {
    Severity.NOTE: "information",
    Severity.WARNING: "warning",
    Severity.CRITICAL: "error",
}


def announce(app: GpuwatchApp, before: Frame, frame: Frame) -> None:
    """Notify the user once of each alert that was raised or got worse, and of a sink's troubles, since `before`."""
    keys = {alert.key for alert in frame.raised}
    raised = [
        alert
        for alert in (*frame.alerts, *(one for one in frame.raised if one.ended is not None))
        if not alert.quiet
        and (alert.key in keys or (alert.rule == TROUBLE and alert.raised_monotonic > before.received))
    ]
    loud = [alert for alert in raised if alert.severity > Severity.NOTE and alert.rule != TROUBLE]
    if loud and app.options.bell:
        app.bell()
    if loud:
        _notify_desktop(app, loud, frame)
    if app.screen is app.dashboard and not app.paused:  # most alerts have a line in sight there
        raised = app.dashboard.out_of_sight(raised, frame)
    elif getattr(app.screen, "LISTS_ALERTS", False):
        raised = []  # each has a line there
    elif app.screen.styles.background.a < 1 and app.size.height < LOW:
        raised = []  # they are on the dashboard when the dialog closes
    if app.options.toast and raised:
        mark, _ = mark_of(raised[0].severity, app.style_set.glyphs)
        others = f" +{len(raised) - 1}: e lists all" * (len(raised) > 1)
        app.notify(f"{mark} {raised[0].title}{others}", severity=_KINDS[raised[0].severity], markup=False)


def _notify_desktop(app: GpuwatchApp, raised: Sequence[Alert], frame: Frame) -> None:
    """Ask the terminal for one desktop notification: the worst alert, and the number of further alerts."""
    if app.options.desktop == "off":
        return
    more = f" +{len(raised) - 1}" if len(raised) > 1 else ""
    host = frame.snapshot.host or "gpuwatch"
    kind = cast(Osc, app.options.desktop)
    plain = app.style_set.glyphs.ascii
    words = notification(kind, host, raised[0].title + more, tmux="TMUX" in os.environ, ascii_only=plain)
    app.write_to_terminal(words)


CLOSING_SECONDS: Final = 0.3
"""Seconds to wait, when the program quits, for the audit records of processes that are being ended."""

COVERED_SECONDS: Final = 2.0
"""Longest time for which the first frame stays while the app draws nothing complete."""

ENDED: Final = 500
"""Largest number of ended alerts that the dashboard keeps."""

INTERVALS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between two samples that `+` and `-` step through."""


class GpuwatchApp(TerminalApp):
    """Textual application of the dashboard. Frames are `NewFrame` messages, from the monitor or from a test."""

    BINDINGS: ClassVar[list[BindingType]] = [*make_bindings(KEYS)]

    def __init__(
        self,
        *,
        watch: Monitor | None = None,
        options: Options | None = None,
        helpers: Helpers | None = None,
        clock: Callable[[], float] = time.monotonic,
        first: FirstFrame | None = None,
    ) -> None:
        """Without `watch` the app draws only the frames passed to `publish`. `first` may be on the terminal already."""
        super().__init__(options, first)
        self.watching = watch
        self.helpers = helpers or Helpers()
        self.end_dialogs: EndDialogs | None = None
        """None before the first process is ended."""
        self.frame: Frame | None = None
        """Frame on screen; older than `newest` while paused."""
        self.newest: Frame | None = None
        self.ended: deque[Alert] = deque(maxlen=ENDED)
        """Alerts that ended in this run: the demo has no events log, and the log may be unreadable."""
        self.interval = self.options.interval
        self.keys: Sequence[BoundKey] = self.make_keys()
        """Keys for the footer, the help and the palette."""
        self._bindings = BindingsMap(make_bindings(self.keys))
        self.set_keymap(keymap(self.options.keys))
        self.dashboard = Dashboard(first.state if first is not None else DashboardState())
        self._covered = first is not None and first.shown
        """Whether the first frame, drawn before this app, is still on screen."""
        self.clock = clock
        self._began = clock()
        self._paused_at: float | None = None
        self._chosen: dict[str, object] = {}
        """What the user chose, as it was remembered last."""
        self._stray_report: tuple[Frame, StrayReport] | None = None
        """Last frame searched for strays, and the result."""

    def make_keys(self) -> list[BoundKey]:
        return dashboard_keys(self.options.keys)

    def palette_commands(self) -> Sequence[PaletteCommand]:
        return commands(self.keys)

    def get_default_screen(self) -> Dashboard:
        return self.dashboard

    def before_exit(self) -> None:
        """Leave alone the processes that are being ended, and wait a moment for their audit records."""
        if self.end_dialogs is not None:
            self.end_dialogs.close(time.monotonic() + CLOSING_SECONDS)

    def publish(self, frame: Frame, watch: object = None) -> None:
        """Post a frame to the app while it runs; from any thread. Raises RuntimeError once the dashboard has closed."""
        if self.is_running:
            self.post_message(NewFrame(frame, watch))

    # -----------------------------------------------------------------------------------------------------------
    # Life

    def on_mount(self) -> None:
        """Apply the options, and draw a frame that has already come."""
        with contextlib.suppress(FilterError):  # `reset_filter` tells the user
            self.dashboard.state.set_options(self.options)
        self.reset_filter()
        self._chosen = self._choices()
        if self.helpers.notice:
            self.notify(self.helpers.notice, severity="warning", markup=False, timeout=8)
        self.begin_drawing()
        if self.has_terminal:
            self.app_resume_signal.subscribe(self, lambda _app: self.action_retry(quiet=True))
        self.set_interval(1.0, self._beat, name="beat")
        first = self.watching.newest if self.watching else None
        if first is not None and self.newest is None:
            self.on_new_frame(NewFrame(first))
        else:
            self.paint()

    def reset_filter(self) -> None:
        """Show the processes that the options ask for."""
        try:
            self.dashboard.state.reset_filter(self.options)
            if self.options.filter:
                self.dashboard.prompt.sought = self.dashboard.processes.filter
        except FilterError as error:
            self.notify(str(error), severity="warning", markup=False)

    def _beat(self) -> None:
        """Redraw the ages once a second while the screen is paused, or no frame comes."""
        since = self.clock() - self.newest.received if self.newest else math.inf
        if self._paused_at is not None or since > max(2.0, 2 * self.interval):
            self.paint()

    def apply_reload(self, came: Reloading) -> None:
        """Apply the options of a configuration that was read again, and notify the user of the result."""
        if came.options is not None:
            self.set_options(came.options)
        self.notify(came.words, severity="error" if came.failed else "information", markup=False, timeout=8)

    def set_options(self, options: Options) -> None:
        """Apply new options; the user's choices stay unless the configuration changes them, which is not a choice."""
        self._remember()
        before, self.options = self.options, options
        self._stray_report = None
        self.keys = self.make_keys()
        self._bindings = BindingsMap(make_bindings(self.keys))
        self.set_keymap(keymap(options.keys))
        for screen in self.screen_stack:
            if hasattr(screen, "set_options"):
                screen.set_options(options)
        panel = self.dashboard.processes
        if options.columns != before.columns:
            panel.chosen = options.columns
        if options.order != before.order:
            panel.by, panel.reverse = options.order, False
        if options.theme != before.theme:
            self.theme = theme_id(options.theme)
        self._chosen = self._choices()
        self.paint()

    def on_new_frame(self, message: NewFrame) -> None:
        """Receive a frame: the only entry point for data. One of a host that is not open any more is dropped."""
        if message.watch is not None and message.watch is not self.watching:
            return
        before, self.newest = self.newest, message.frame
        self.ended.extend(message.frame.cleared)
        if message.frame.snapshot.state is SourceState.ENDED:
            self.handle_source_end(message.frame)
            return
        if self.kill_queue is not None:
            self.kill_queue.observe(message.frame)
        for screen in self.screen_stack:  # those below the top one, too: the selection of strays must stay true
            if screen is not self.dashboard and hasattr(screen, "refresh_frame"):
                screen.refresh_frame(message.frame)
        if self._paused_at is None:
            self.frame = message.frame
            self.paint()
        if before is not None:
            announce(self, before, message.frame)

    def handle_source_end(self, frame: Frame) -> None:
        """Exit because the source has ended; print the source's message after the terminal is restored."""
        words = frame.snapshot.words or "the data source has ended"
        self.exit(return_code=2, message=Text(f"gpuwatch: {words}"))

    def paint(self) -> None:
        """Draw the dashboard: the frame on screen, or the words before the first frame. No other method draws it."""
        if not self.dashboard.is_mounted or not self._running or is_covered(self.dashboard):
            return
        self._remember()
        now = self.clock()
        with drawing(self.dashboard):
            if self.frame is None:
                self.dashboard.draw_starting(now - self._began, self.style_set)
            else:
                self.dashboard.draw(self._view(self.frame, now))

    def _display(self, screen: Screen[Any], renderable: Any) -> None:
        """Send a drawing to the terminal; the first frame, drawn before this app, stays until all lines have places."""
        if self._covered:
            waited = self.clock() - self._began > COVERED_SECONDS
            if screen is self.dashboard and not self.dashboard.is_laid_out and not waited:
                return
            self._covered = False
            renderable = screen._compositor.render_full_update()  # what was not sent is missing
        super()._display(screen, renderable)

    def _choices(self) -> dict[str, object]:
        """Return what is remembered for the next start, by the fields of `choices.Choices`."""
        return {
            "theme": self.theme.removeprefix("gpuwatch-"),
            "columns": self.dashboard.processes.chosen,
            "interval": self.interval,
        }

    def _remember(self) -> None:
        """Save what the user chose since the last call, on a background thread."""
        chosen = self._choices()
        changed = {name: value for name, value in chosen.items() if value != self._chosen.get(name)}
        self._chosen = chosen
        if changed and self.helpers.remember is not None:
            self.remember(self.helpers.remember, changed)

    def _view(self, frame: Frame, now: float) -> View:
        paused = None if self._paused_at is None else now - self._paused_at
        return view_of(frame, now, self.style_set, self.options, self.strays_of(frame), self.interval, paused)

    def strays_of(self, frame: Frame) -> StrayReport:
        """Return the strays among the viewer's processes in a frame; the last frame is searched once."""
        if self._stray_report is None or self._stray_report[0] is not frame:
            self._stray_report = frame, strays_of(frame, self.options)
        return self._stray_report[1]

    def action_pause(self) -> None:
        if self.frame is None:
            self.notify("no data to freeze yet", markup=False, timeout=3)
            return
        self._paused_at = None if self._paused_at is not None else self.clock()
        if self._paused_at is None:
            self.frame = self.newest
        self.paint()

    @property
    def paused(self) -> bool:
        """Whether the user froze the screen."""
        return self._paused_at is not None

    # -----------------------------------------------------------------------------------------------------------
    # From the panels

    def on_list_panel_clicked(self, message: ListPanel.Clicked) -> None:
        if message.effect == "chosen":
            self.action_detail()
        else:
            self.paint()

    def on_footer_pressed(self, message: Footer.Pressed) -> None:
        self.call_later(self.run_action, message.action)

    def on_prompt_changed(self, message: Prompt.Changed) -> None:
        self.dashboard.processes.filter = message.filter
        self.paint()

    def on_prompt_sought(self, _message: Prompt.Sought) -> None:
        self.action_find(1)

    def on_prompt_left(self, _message: Prompt.Left) -> None:
        """Draw the footer again in place of the prompt."""
        self.paint()

    # -----------------------------------------------------------------------------------------------------------
    # Actions

    def action_move(self, by: int) -> None:
        self.dashboard.state.active.move(by)
        self.paint()

    def action_across(self, by: int) -> None:
        self.dashboard.gpus.move_across(by)
        self.paint()

    def action_page(self, by: int) -> None:
        self.dashboard.state.active.page(by)
        self.paint()

    def action_switch(self) -> None:
        self.dashboard.state.switch()
        self.paint()

    def action_follow(self) -> None:
        self.dashboard.state.follow()
        self.paint()

    def action_sort(self, by: int) -> None:
        self.dashboard.processes.sort_next(by)
        self.paint()

    def action_reverse(self) -> None:
        panel = self.dashboard.processes
        panel.sort_by(panel.by)
        self.paint()

    def action_columns(self) -> None:
        """Open the dialog in which columns are chosen and ordered; each change is drawn at once."""
        from gpuwatch.ui.screens.dialog import ColumnsDialog

        panel = self.dashboard.processes
        self.open_once(ColumnsDialog(panel.shown_columns, self.show_columns, self.style_set.glyphs))

    def show_columns(self, chosen: tuple[str, ...]) -> None:
        """Show these columns of the process list; none for those that suit the width."""
        self.dashboard.processes.chosen = chosen
        self.paint()

    def action_mine(self) -> None:
        panel = self.dashboard.processes
        panel.mine = not panel.mine
        self.paint()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Disable the actions of `/` and Tab while the prompt or another screen is open: the keys are for that."""
        if action in ("filter", "switch"):
            return self.screen is self.dashboard and not self.dashboard.prompt.display
        return action != "across" or (self.dashboard.gpus.active and self.dashboard.gpus.in_cells)

    def action_filter(self) -> None:
        self.clear_notifications()  # they would lie on what is typed
        self.dashboard.prompt.open(self.dashboard.processes.filter.text, self.style_set)
        self.paint()

    def action_find(self, by: int) -> None:
        """Move the cursor to the next match of the last filter, hiding nothing; ask for a filter if there was none."""
        panel = self.dashboard.processes
        if self.dashboard.prompt.find(panel, by, "process", self.style_set):
            self.dashboard.state.activate(panel)
        self.paint()

    def action_clear(self) -> None:
        """Clear the filter, close its prompt, and show the processes of all GPUs.

        Where the prompt asks what to jump to, only the prompt is closed.
        """
        prompt = self.dashboard.prompt
        if not (prompt.display and prompt.finding):
            self.dashboard.processes.filter = ListFilter()
            self.dashboard.state.following = False
        if prompt.display:
            prompt.cancel()
        self.paint()

    def action_interval(self, by: int) -> None:
        """Change the interval to the next longer or shorter of INTERVALS."""
        longer = [one for one in INTERVALS if one > self.interval]
        shorter = [one for one in INTERVALS if one < self.interval]
        self.interval = min(longer, default=self.interval) if by > 0 else max(shorter, default=self.interval)
        if self.watching:
            self.watching.set_interval(self.interval)
        self.paint()

    def action_retry(self, quiet: bool = False) -> None:
        """Sample at once, and try failed GPUs again."""
        if self.watching:
            self.watching.poke()
        if not quiet:
            self.notify("querying all GPUs again", markup=False, timeout=3)

    # Screens are imported when they are first opened: the first paint need not wait for them.

    def action_detail(self) -> None:
        row, gpu = self.dashboard.state.selected, self.dashboard.state.selected_gpu
        if row is not None:
            self.show_detail(row.key)
        elif gpu is not None:
            self.show_gpu(gpu.key)

    @property
    def _frame_here(self) -> Frame | None:
        """Frame on the screen; screens above the dashboard show the newest one, also while the dashboard is frozen."""
        return self.frame if self.screen is self.dashboard else self.newest

    def show_gpu(self, key: str) -> None:
        from gpuwatch.ui.screens.pages import GpuScreen

        focus = self.watching.set_focus if self.watching is not None else None
        if (frame := self._frame_here) is not None:
            self.open_once(GpuScreen(key, frame, self.style_set, helpers=self.helpers, ended=self.ended, focus=focus))

    def show_detail(self, key: RowKey) -> None:
        from gpuwatch.ui.screens.pages import DetailScreen

        if (frame := self._frame_here) is not None:
            self.open_once(
                DetailScreen(key, frame, self.style_set, self.options, helpers=self.helpers, ended=self.ended)
            )

    def action_end_process(self) -> None:
        row = self._selected_process()
        if row is not None:
            self.ask_to_end(row.key)

    def _selected_process(self) -> Row | None:
        """Return the process under the cursor; if the cursor is on a GPU, tell the user how to move it."""
        if self.dashboard.state.selected_gpu is not None:
            self.notify("the cursor is on a GPU: Tab moves it to the processes", markup=False, timeout=4)
        return self.dashboard.state.selected

    @property
    def refused(self) -> frozenset[str]:
        """Actions that would be refused on any screen: no footer shows them."""
        return refused_actions(self.options)

    def may_end(self) -> bool:
        """Return whether processes can be ended; if not, tell the user why."""
        refusal = "read-only: processes cannot be ended" if self.options.read_only else ""
        if not refusal and self.helpers.ender is None:
            refusal = "processes cannot be ended from here"
        if refusal:
            self.notify(refusal, severity="warning", markup=False, timeout=4)
        return not refusal

    def ask_to_end(self, key: RowKey, *, whole_run: bool = False) -> None:
        """Ask whether to end a process, or its run; if that is not possible, tell the user why."""
        if self.kill_queue is not None and self.kill_queue.has_stray(key[1:]):
            self.notify("already being ended as a stray: S shows it", markup=False, timeout=4)
        elif self.may_end() and self.newest is not None:
            self._need_end_dialogs().open(key, self.newest, whole_run=whole_run)

    def end_strays(self, strays: Sequence[Stray], choice: KillChoice, frame: Frame) -> None:
        """End strays one by one, by the signal that the user confirmed; requires `may_end`."""
        self._need_end_dialogs().end_strays(strays, choice, frame)

    @property
    def kill_queue(self) -> KillQueue | None:
        """Processes that are being ended; None before the first."""
        return self.end_dialogs.queue if self.end_dialogs is not None else None

    def _need_end_dialogs(self) -> EndDialogs:
        if self.end_dialogs is None:
            from gpuwatch.kill.queue import KillQueue
            from gpuwatch.ui.screens.end_dialog import EndDialogs

            assert self.helpers.ender is not None
            queue = KillQueue(
                self.helpers.ender(), find_strays=lambda frame: strays_of(frame, self.options), clock=self.clock
            )
            self.end_dialogs = EndDialogs(self, queue, self.style_set.glyphs)
        return self.end_dialogs

    def action_gpus(self) -> None:
        from gpuwatch.ui.screens.pages import GpusScreen

        if self.newest is not None:
            self.open_once(GpusScreen(self.newest, self.style_set, self.helpers, self.ended))

    def action_people(self) -> None:
        from gpuwatch.ui.screens.people import PeopleScreen

        if self.newest is not None:
            self.open_once(PeopleScreen(self.newest, self.style_set, clock=self.clock))

    def action_tree(self) -> None:
        from gpuwatch.ui.screens.tree import TreeScreen

        if self.newest is not None:
            self.open_once(TreeScreen(self.newest, self.style_set, clock=self.clock))

    def action_strays(self) -> None:
        from gpuwatch.ui.screens.strays import StraysScreen

        if self.newest is not None:
            self.open_once(StraysScreen(self.newest, self.style_set, clock=self.clock))

    def action_events(self) -> None:
        from gpuwatch.ui.screens.events import EventsScreen

        self.open_once(
            EventsScreen(self.helpers.events, self.newest, self.style_set, ended=self.ended, clock=self.clock)
        )

    def action_hosts(self) -> None:
        """Tell the user how to add other hosts."""
        self.notify("no other host: add one with --host, or as [[host]] in gpuwatch.toml", markup=False, timeout=5)

    def action_help(self) -> None:
        from gpuwatch.ui.screens.help import HelpScreen

        self.open_once(HelpScreen(self.keys, self.newest, self.style_set))

    def action_message(self) -> None:
        """Copy a message to the owner of the process under the cursor."""
        row = self._selected_process()
        if row is not None:
            self.write_to_owner(self.frame, lambda one: one.process.key == row.process.key)

    def write_to_owner(self, frame: Frame | None, is_meant: Callable[[Row], bool]) -> None:
        """Copy a message to the owner of these rows to the clipboard, and show it; the user's own rows get none."""
        from gpuwatch.ui.screens.dialog import OwnerMessageDialog

        held = [row for row in rows(frame.snapshot, frame.history) if is_meant(row)] if frame is not None else []
        if frame is None or not held:
            return
        if held[0].process.uid is None or held[0].mine:
            why = "these processes are your own" if held[0].mine else "the owner is not known"
            self.notify(why, markup=False, timeout=4)
            return
        words, tmux = message(held, frame.snapshot, self.options.allowances), "TMUX" in os.environ
        self.write_to_terminal(clipboard(words, tmux=tmux))
        whom = str(held[0].holding.pid) if len({row.process.key for row in held}) == 1 else held[0].owner
        command = f"gpuwatch message {'--demo ' * frame.snapshot.demo}{whom}"
        self.open_once(OwnerMessageDialog(held[0].owner, words, command, self.style_set.glyphs, tmux=tmux))

    def action_acknowledge(self, alert: Alert | None = None) -> None:
        """Open the dialog about one alert, or about all active alerts, unacknowledged alerts first."""
        from gpuwatch.ui.screens.acknowledge import AcknowledgeDialog, alerts_and_mutes

        alerts, mutes = alerts_and_mutes(self.newest, alert)
        if alert is None:  # that of the process or GPU under the cursor first
            gpu, row = self.dashboard.state.selected_gpu, self.dashboard.state.selected
            key = gpu.key if gpu is not None else "{1}:{2} ".format(*row.key) if row is not None else ""
            alerts = sorted(alerts, key=lambda one: not key or not (one.gpu == key or one.subject.startswith(key)))
        if not alerts and not mutes:
            why = "no alert to acknowledge"
            if alert is not None:
                why = "this is a problem of gpuwatch itself: it ends when the cause is fixed"
            self.notify(why, markup=False, timeout=3)
        elif self.watching is not None:
            screen = AcknowledgeDialog(alerts, self.watching, self.style_set.glyphs, mutes=mutes)
            if self.newest is not None:
                screen.refresh_frame(self.newest)
            self.open_once(screen)

    def on_alerts_counted(self) -> None:
        self.action_events()

    def on_alerts_chosen(self, message: Alerts.Chosen) -> None:
        self.show_subject(message.alert)

    def show_subject(self, alert: Alert) -> None:
        """Open the detail screen of an alert's process, or else show the processes of its GPU."""
        subject = subject_of(alert, self._frame_here)
        if isinstance(subject, Row):
            self.show_detail(subject.key)
        elif subject is not None:
            while self.screen is not self.dashboard:
                self.pop_screen()
            self.show_only(f"gpu:{subject.index}")
            self.notify(f"only GPU {subject.index}: Esc shows all GPUs", markup=False, timeout=4)
        else:
            self.notify("its process or GPU is no longer here", markup=False, timeout=4)

    def show_only_user(self, uid: int | None) -> None:
        """Show only the processes of one user; None for those whose owner is not visible."""
        self.show_only(filter_for(uid))

    def show_only(self, words: str) -> None:
        """Show only the processes that a filter matches; unfreeze the screen if the frozen frame has none of them."""
        panel = self.dashboard.processes
        panel.mine = self.dashboard.state.following = False
        self.dashboard.state.activate(panel)
        panel.filter = Filter.parse(words)
        panel.to_top()
        if self.paused and not any(panel.filter(row) for row in panel.every):
            self.action_pause()
            self.notify("resumed: these processes are newer than the frozen screen", markup=False, timeout=4)
        self.paint()

    def action_reload(self) -> None:
        """Read the configuration again on a background thread."""
        if self.helpers.reload is None:
            self.notify("no configuration to reload", markup=False, timeout=3)
            return
        future = self.background("gpuwatch-reload")(lambda: reload(self))
        if future.done() and (error := future.exception()) is not None:  # the reload did not start
            self.notify(f"configuration not changed: {error}", severity="error", markup=False, timeout=8)

    def action_sort_by(self, column: str) -> None:
        self.dashboard.processes.sort_by(column)
        self.paint()


if TYPE_CHECKING:
    _ACTIONS: type[Actions] = GpuwatchApp  # mypy compares the application with what screens may ask of it
