"""Dashboard of several hosts: a list, and the dashboard of the host that is open."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Final

from msgspec.structs import replace
from textual.app import App, SuspendNotSupported

from gpuwatch.base.child import start_error
from gpuwatch.base.text import clean
from gpuwatch.fleet.remote import RemoteHosts
from gpuwatch.fleet.ssh import kill_command
from gpuwatch.fleet.ui.hosts_screen import HostsScreen
from gpuwatch.model.fields import RowKey
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.ui.app import CLOSING_SECONDS, GpuwatchApp, NewFrame
from gpuwatch.ui.draw.keys import BoundKey
from gpuwatch.ui.options import Helpers, Options

_LARGEST_PID: Final = 2**22
_LARGEST_START: Final = 2**63


def suspend_for(app: App[int], command: Sequence[str]) -> None:
    """Run a program in the suspended terminal, and wait for Enter, so that its last lines can be read."""
    with contextlib.suppress(SuspendNotSupported), app.suspend():
        _run_program(command)
        _print("Press Enter to go back to the dashboard.")
        sys.stdin.readline()


def _run_program(command: Sequence[str]) -> None:
    """Run a program and wait for its end. Ctrl-C reaches only the program; a signal to end this process ends it too."""
    try:
        process = subprocess.Popen(list(command))
    except OSError as error:
        _print(f"gpuwatch: ssh cannot be started: {clean(start_error(error))}")
        return
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        process.terminate()
        if callable(before[number]):
            before[number](number, frame)

    try:
        for one in (signal.SIGTERM, signal.SIGHUP):
            before[one] = signal.signal(one, stop)
        before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print(words: str) -> None:
    """Print a line to the terminal, past Textual, which captures stdout."""
    os.write(1, f"{words}\n".encode())


class HostsApp(GpuwatchApp):
    """Dashboard of several hosts.

    It never signals a process of another host: `K` runs `gpuwatch kill` on that host, in the terminal.
    """

    def __init__(
        self,
        fleet: RemoteHosts,
        *,
        watch: Monitor | None = None,
        options: Options,
        helpers: Helpers | None = None,
        run: Callable[[App[int], Sequence[str]], None] = suspend_for,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`watch` is the monitor of this machine, `helpers` are for it; without it the list of hosts comes first.

        `run` runs a program in the terminal while the dashboard is suspended.
        """
        self.fleet = fleet
        self._local, self._local_helpers, self._asked = watch, helpers or Helpers(), options
        self._run = run
        super().__init__(watch=watch, options=self._options_here(options), helpers=helpers, clock=clock)

    def make_keys(self) -> list[BoundKey]:
        """Return the keys of the dashboard; the one for hosts is in the footer."""
        shown = (one._replace(show=True) if one.id == "hosts" else one for one in super().make_keys())
        return sorted(shown, key=lambda one: one.id != "hosts")

    def _options_here(self, options: Options) -> Options:
        """Return the options for the open host, whose viewer is the user of the ssh login."""
        is_remote = self.fleet.opened is not None
        caller = None if is_remote else options.caller
        return replace(options, host=self.fleet.opened or self.fleet.here, caller=caller)

    def set_options(self, options: Options) -> None:
        """Apply new options, also to the hosts that are opened later."""
        self._asked = options
        super().set_options(self._options_here(options))

    def on_mount(self) -> None:
        """Show the list of hosts first if this machine is not one; Textual also calls the base class's handler."""
        if self._local is None:
            self.call_later(self.action_hosts)

    def handle_source_end(self, frame: Frame) -> None:
        """Report that the open host has ended, and show the list; the end of this machine's source ends the program."""
        if self.watching is self._local:
            super().handle_source_end(frame)
            return
        self.notify(frame.snapshot.words or "the data source has ended", severity="error", markup=False, timeout=15)
        self.watching = self.frame = self.newest = None
        self.action_hosts()

    def exit(self, result: int | None = None, return_code: int = 0, message: Any = None) -> None:
        """Quit; every ssh is killed at once."""
        super().exit(result, return_code, message)
        self.fleet.close()

    # -- hosts -----------------------------------------------------------------------------------------------------

    def action_hosts(self) -> None:
        self.fleet.begin()
        self.open_once(
            HostsScreen(
                self.fleet.rows, self.open_host, self.fleet.retry, lambda: self.watching is not None, self.style_set
            )
        )

    def action_clear(self) -> None:
        """Clear the filter; where there is none, go back to the list of hosts."""
        panel = self.dashboard
        if panel.prompt.display or panel.processes.filter.terms or panel.state.following:
            super().action_clear()
        else:
            self.action_hosts()

    def open_host(self, name: str) -> None:
        """Show a host in place of the one that is open."""
        while self.screen is not self.dashboard:
            self.pop_screen()
        if self.watching is not None and name == (self.fleet.opened or self.fleet.here):
            return
        if self.end_dialogs is not None:
            self.end_dialogs.close(time.monotonic() + CLOSING_SECONDS)
            self.end_dialogs = None
        here = name == self.fleet.here
        self.watching = self.fleet.open(None if here else name, self.interval, self.publish)
        shared = Helpers(reload=self._local_helpers.reload, remember=self._local_helpers.remember)
        self.helpers = self._local_helpers if here else shared
        self._forget()
        if self.watching is not None and self.watching.newest is not None:
            self.on_new_frame(NewFrame(self.watching.newest, self.watching))
        self.paint()

    def _forget(self) -> None:
        """Forget the previous host: its uids mean other people."""
        self.frame = self.newest = self._paused_at = self._stray_report = None
        self._began = self.clock()
        self.ended.clear()
        self.dashboard.state.following = False
        self.options = self._options_here(self._asked)
        self.reset_filter()
        self.style_set = self._make_styles()

    # -- what another host does itself -----------------------------------------------------------------------------

    @property
    def refused(self) -> frozenset[str]:
        return super().refused | (frozenset({"select"}) if self.fleet.opened else frozenset())

    def may_end(self) -> bool:
        """Return whether this program can end processes: not those of another host."""
        if self.fleet.opened is None:
            return super().may_end()
        words = f"end the processes of {self.fleet.opened} one at a time: K asks there"
        self.notify(words, severity="warning", markup=False, timeout=5)
        return False

    def ask_to_end(self, key: RowKey, *, whole_run: bool = False) -> None:
        """Ask by `gpuwatch kill` on the process's host; the PID is sent with its start time."""
        host = self.fleet.host
        if host is None:
            super().ask_to_end(key, whole_run=whole_run)
            return
        _, pid, start = key
        if self.frame is None:  # a host was opened whose processes are not known yet
            return
        if self.options.read_only:
            self.notify("read-only: processes cannot be ended", severity="warning", markup=False, timeout=4)
        elif not (0 < pid <= _LARGEST_PID and 0 < start < _LARGEST_START):
            words = "its start time is not known: the host could not identify it safely"
            self.notify(words, severity="warning", markup=False, timeout=5)
        else:
            self._run(self, kill_command(host, pid, start, whole_run=whole_run))
