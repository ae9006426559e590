"""What keys, clicks and panels ask of the dashboard: everything that the user can do."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from textual.app import App
from textual.screen import Screen

from gpuwatch.analysis.people import filter_for
from gpuwatch.analysis.rows import Filter, Row, RowKey, rows
from gpuwatch.monitor import Frame
from gpuwatch.ui.bindings import KEYS
from gpuwatch.ui.dashboard import Dashboard
from gpuwatch.ui.options import Helpers, Options, Watching
from gpuwatch.ui.theme import Kit
from gpuwatch.ui.view import judged, subject_of
from gpuwatch.ui.widgets.alerts import Alerts
from gpuwatch.ui.widgets.footer import Footer
from gpuwatch.ui.widgets.processes import Processes
from gpuwatch.ui.widgets.prompt import Prompt

if TYPE_CHECKING:
    from gpuwatch.alerts.alert import Alert
    from gpuwatch.analysis.strays import Judged
    from gpuwatch.threads import Worker
    from gpuwatch.ui.endings import Endings
    from gpuwatch.ui.screens.attend import AttendScreen
    from gpuwatch.ui.screens.detail import DetailScreen
    from gpuwatch.ui.screens.people import PeopleScreen
    from gpuwatch.ui.screens.tree import TreeScreen

INTERVALS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds between two samples that `+` and `-` step through."""


class Actions(App[int]):
    """The dashboard's actions; what they act on is the app's own."""

    dashboard: Dashboard
    frame: Frame | None
    newest: Frame | None
    watching: Watching | None
    helpers: Helpers
    options: Options
    kit: Kit
    interval: float
    clock: Callable[[], float]
    ended: deque[Alert]
    endings: Endings | None

    @abstractmethod
    def paint(self) -> None:
        """Draw what there is."""

    def open_once(self, screen: Screen[Any]) -> None:
        """Open a screen, unless one of its kind is open: of two quick clicks the second means nothing more."""
        if not any(type(one) is type(screen) for one in self.screen_stack):
            self.push_screen(screen)

    @abstractmethod
    def take_options(self, options: Options) -> None:
        """Go on as the configuration now wants it."""

    @abstractmethod
    def write_to_terminal(self, words: str) -> None:
        """Write what is no part of the screen: a control that the terminal acts on."""

    @abstractmethod
    def judged(self, frame: Frame) -> Judged:
        """Judge which of the viewer's processes in a frame are strays."""

    @abstractmethod
    def background(self, name: str) -> Worker:
        """Return the thread of this name, for calls that may take their time."""

    @property
    @abstractmethod
    def paused(self) -> bool:
        """Whether the user froze the screen."""

    @abstractmethod
    def pause(self) -> None:
        """Freeze the screen, or let it go on."""

    # -----------------------------------------------------------------------------------------------------------
    # From the panels

    def on_row_list_moved(self, _message: Processes.Moved) -> None:
        """Draw cursor, order or scroll."""
        self.paint()

    def on_row_list_chosen(self, _message: Processes.Chosen) -> None:
        """Open the row that was clicked twice."""
        self.action_detail()

    def on_detail_screen_end_asked(self, message: DetailScreen.EndAsked) -> None:
        """End the process whose detail is shown."""
        self.ask_to_end(message.row.key)

    def on_footer_pressed(self, message: Footer.Pressed) -> None:
        """Do what the key would do."""
        self.call_later(self.run_action, message.action)

    def on_prompt_changed(self, message: Prompt.Changed) -> None:
        """Filter as one types."""
        self.dashboard.processes.filter = message.filter
        self.paint()

    def on_prompt_left(self, _message: Prompt.Left) -> None:
        """Return the line back to the keys."""
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
        self.pause()

    def action_interval(self, by: int) -> None:
        """Sample more or less often: at the next step beyond the present one, where there is one."""
        longer = [one for one in INTERVALS if one > self.interval]
        shorter = [one for one in INTERVALS if one < self.interval]
        self.interval = min(longer, default=self.interval) if by > 0 else max(shorter, default=self.interval)
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
        if row is not None:
            self.show_detail(row.key)

    def show_detail(self, key: RowKey) -> None:
        """Show all that is known of a process."""
        # Other screens show the newest, also while the dashboard is frozen.
        frame = self.frame if self.screen is self.dashboard else self.newest
        if frame is not None:
            from gpuwatch.ui.screens.detail import DetailScreen  # 20 ms that the first paint need not wait for

            self.open_once(DetailScreen(key, frame, self.kit.glyphs, self.options))

    def action_end_process(self) -> None:
        """Ask whether to end the process under the cursor."""
        row = self.dashboard.processes.selected
        if row is not None:
            self.ask_to_end(row.key)

    def may_end(self) -> bool:
        """Return whether anything may be signalled from here; where not, tell why."""
        refusal = "read-only: nothing is signalled" if self.options.read_only else ""
        if not refusal and self.helpers.killer is None:
            refusal = "processes cannot be ended from here"
        if refusal:
            self.notify(refusal, severity="warning", markup=False, timeout=4)
        return not refusal

    def ask_to_end(self, key: RowKey, *, whole_run: bool = False) -> None:
        """Ask whether to end a process, or its run; refuse where nothing may be signalled."""
        if self.endings is not None and self.endings.has_stray(key[1:]):
            self.notify("it is being ended as a stray: S shows it", markup=False, timeout=4)
        elif self.may_end() and self.newest is not None:
            self.need_endings().open(key, self.newest, whole_run=whole_run)

    def need_endings(self) -> Endings:
        """Return the sessions that end processes, made at the first need; only where `may_end`."""
        if self.endings is None:
            from gpuwatch.ui.endings import Endings

            assert self.helpers.killer is not None
            self.endings = Endings(
                self,
                self.helpers.killer(),
                judge=lambda frame: judged(frame, self.options),
                glyphs=self.kit.glyphs,
                clock=self.clock,
            )
        return self.endings

    def action_people(self) -> None:
        """Show who has what, one row a person."""
        if self.newest is not None:
            from gpuwatch.ui.screens.people import PeopleScreen

            self.open_once(PeopleScreen(self.newest, self.kit, clock=self.clock))

    def on_people_screen_chosen(self, message: PeopleScreen.Chosen) -> None:
        """Show the processes of one person."""
        self._narrow(filter_for(message.uid))

    def _narrow(self, words: str) -> None:
        """Show the processes that a filter matches; for one who came after the dashboard was frozen, it goes on."""
        panel = self.dashboard.processes
        panel.mine = False
        panel.filter = Filter.parse(words)
        panel.to_top()
        if self.paused and not any(panel.filter(row) for row in panel.every):
            self.pause()
            self.notify("no longer paused: these processes are newer", markup=False, timeout=4)
        self.paint()

    def on_people_screen_message_asked(self, message: PeopleScreen.MessageAsked) -> None:
        """Copy a message to one person, about all that they hold."""
        self._write_about(self.newest, lambda row: row.process.uid == message.uid)

    def action_tree(self) -> None:
        """Show runs, their ranks and their workers."""
        if self.newest is not None:
            from gpuwatch.ui.screens.tree import TreeScreen

            self.open_once(TreeScreen(self.newest, self.kit, clock=self.clock))

    def on_tree_screen_detail_asked(self, message: TreeScreen.DetailAsked) -> None:
        """Show all that is known of a process of the tree."""
        self.show_detail(message.key)

    def on_tree_screen_end_asked(self, message: TreeScreen.EndAsked) -> None:
        """Ask whether to end a process of the tree, or its whole run."""
        self.ask_to_end(message.key, whole_run=message.whole_run)

    def action_strays(self) -> None:
        """Show one's own processes that nobody tends."""
        if self.newest is not None:
            from gpuwatch.ui.screens.strays import StraysScreen

            self.open_once(StraysScreen(self.newest, self.kit, clock=self.clock))

    def action_polite(self) -> None:
        """Copy a message to whoever owns the process under the cursor."""
        row = self.dashboard.processes.selected
        if row is not None:
            self._write_about(self.frame, lambda one: one.process.key == row.process.key)

    def _write_about(self, frame: Frame | None, meant: Callable[[Row], bool]) -> None:
        """Put a polite message to the owner of these rows of a frame on the clipboard, and show it.

        There is nothing to say to oneself.
        """
        held = [row for row in rows(frame.snapshot, frame.history) if meant(row)] if frame is not None else []
        if frame is None or not held:
            return
        if held[0].process.uid is None or held[0].mine:
            why = "these are your own: K ends one, S lists your strays" if held[0].mine else "its owner is not visible"
            self.notify(why, markup=False, timeout=4)
            return
        from gpuwatch.analysis.owner_message import message
        from gpuwatch.ui.screens.owner_message import PoliteScreen, clipboard

        words, tmux = message(held, frame.snapshot), "TMUX" in os.environ
        self.write_to_terminal(clipboard(words, tmux=tmux))
        self.open_once(PoliteScreen(held[0].owner, words, self.kit.glyphs, tmux=tmux))

    def action_events(self) -> None:
        """Show what was raised and how it ended."""
        from gpuwatch.ui.screens.events import EventsScreen

        self.open_once(EventsScreen(self.helpers.events, self.newest, self.kit, ended=self.ended))

    def action_attend(self, alert: Alert | None = None) -> None:
        """Ask what is to become of a chosen alert, or of all that hold, those first that nobody has seen."""
        from gpuwatch.ui.screens.attend import AttendScreen, subjects

        alerts, mutes = subjects(self.newest, alert)
        if not alerts and not mutes:
            why = "nothing to acknowledge" if alert is None else "this is gpuwatch's own trouble: it ends once mended"
            self.notify(why, markup=False, timeout=3)
        elif self.watching is not None:
            screen = AttendScreen(alerts, self.watching, self.kit.glyphs, mutes=mutes)
            if self.newest is not None:
                screen.refresh_frame(self.newest)
            self.open_once(screen)

    def on_attend_screen_show_asked(self, message: AttendScreen.ShowAsked) -> None:
        """Show what an alert is about."""
        self.show_subject(message.alert)

    def on_alerts_chosen(self, message: Alerts.Chosen) -> None:
        """Show what an alert is about."""
        self.show_subject(message.alert)

    def show_subject(self, alert: Alert) -> None:
        """Show all that is known of the process that an alert is about, or else the processes of its GPU."""
        subject = subject_of(alert, self.frame if self.screen is self.dashboard else self.newest)
        if isinstance(subject, Row):
            self.show_detail(subject.key)
        elif subject is not None:
            while self.screen is not self.dashboard:
                self.pop_screen()
            self._narrow(f"gpu:{subject.index}")
            self.notify(f"only GPU {subject.index}: Esc shows all again", markup=False, timeout=4)
        else:
            self.notify("it is about no process or GPU that is here now", markup=False, timeout=4)

    def action_reload(self) -> None:
        """Read the configuration again, away from the event loop."""
        if self.helpers.reload is None:
            self.notify("there is no configuration to read again", markup=False, timeout=3)
            return
        from gpuwatch.ui.app import reload

        future = self.background("gpuwatch-reload")(lambda: reload(self))
        if future.done() and (error := future.exception()) is not None:  # it was not begun
            self.notify(f"configuration not changed: {error}", severity="error", markup=False, timeout=8)

    def action_help(self) -> None:
        """Explain keys, marks and words."""
        from gpuwatch.ui.screens.help import HelpScreen

        self.open_once(HelpScreen(KEYS, self.newest, self.kit.glyphs))

    def action_theme(self, name: str) -> None:
        """Draw for a dark or a light terminal."""
        self.theme = f"gpuwatch-{name}"

    def action_sort_by(self, column: str) -> None:
        """Sort by a column."""
        self.dashboard.processes.sort_by(column)
