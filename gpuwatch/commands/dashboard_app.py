"""Assembly of the dashboard: the monitor, the sinks, and the app with its options and helpers."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import threading
import time
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from gpuwatch.alerts.engine import Engine
from gpuwatch.base.errors import NoThreadError
from gpuwatch.base.text import clean
from gpuwatch.base.threads import Worker, start_thread
from gpuwatch.commands.filters import check_filter_flag
from gpuwatch.commands.recording import make_recording
from gpuwatch.commands.startup import Reloader, apply_config, check_snapshot, fixed_settings, format_reload
from gpuwatch.commands.stray_inputs import caller, idle_times, stray_limits
from gpuwatch.config.types import Config
from gpuwatch.model.snapshot import SourceState
from gpuwatch.model.values import DAY
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.sources.source import Source
from gpuwatch.ui.choices import Remembered
from gpuwatch.ui.desktop import which_osc
from gpuwatch.ui.options import Helpers, Options, Reloading

if TYPE_CHECKING:
    from gpuwatch.analysis.events import Events
    from gpuwatch.history.timeline import Timeline
    from gpuwatch.kill.demo import DemoEnder
    from gpuwatch.kill.pinned import Pinner
    from gpuwatch.recorder.demo import Past
    from gpuwatch.recorder.events import EventsReader
    from gpuwatch.recorder.recorder import Sinks
    from gpuwatch.ui.app import GpuwatchApp

SETTLED_S = 1.5
"""Seconds for which the dashboard holds back its first screen in case there is no driver at all."""
SEEN_S = 0.3
"""Seconds from the first screen until the sinks are made: by then the screen is fully drawn."""
M_ARENA_MAX = -8
"""Number of that setting in malloc.h."""
CLOSING_S = 0.3
"""Seconds that the sinks have to finish when the user leaves."""


def show(
    source: Source,
    args: argparse.Namespace,
    config: Config,
    seconds: float,
    only: Sequence[int],
    remembered: Remembered,
) -> int:
    """Show the dashboard until the user leaves it, and return the exit code.

    The watch starts before Textual is imported, so that real data is there by the first paint.
    """
    first_filter = check_filter_flag(args, config)
    app: GpuwatchApp | None = None

    def publish(frame: Frame) -> None:
        if app is not None and app.is_running:
            app.publish(frame, watch)

    recording = make_recording(args, config.limits())
    watch = Monitor(
        source,
        publish,
        engine=Engine(config.limits()),
        sinks=() if recording is None else (recording,),
        known_idle=idle_times,
    )
    sinks = _LateSinks(watch, config, demo=args.demo, only=only)
    with contextlib.suppress(AttributeError):  # glibc alone has it
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)  # a heap for each thread takes 2 MiB more
    start_thread(watch)
    gc.disable()  # until the dashboard has settled: what is imported stays
    try:
        from gpuwatch.ui.app import GpuwatchApp  # 230 ms, in which the first snapshot comes

        _check_first(watch, wait=args.wait)
        options = remembered.over(dashboard_options(config, seconds, first_filter=first_filter))
        helpers = _helpers(args, config, seconds, watch, sinks, source, remembered)
        if config.hosts and not args.demo:
            from gpuwatch.fleet.remote import RemoteHosts  # for those who have other hosts
            from gpuwatch.fleet.ssh import Hosts
            from gpuwatch.fleet.ui.hosts_app import HostsApp

            name = clean(os.uname().nodename)
            here = "this machine" if name in {host.name for host in config.hosts} else name
            hosts = RemoteHosts(Hosts(config.hosts), config.limits(), local=watch, here=here)  # it does not connect yet
            app = HostsApp(hosts, watch=watch, options=options, helpers=helpers)
        else:
            app = GpuwatchApp(watch=watch, options=options, helpers=helpers)
        sinks.open(app)
        return app.run_to_exit_code()
    finally:
        watch.stop()
        if recording is not None:
            recording.close(CLOSING_S)
        sinks.close(CLOSING_S)


def _check_first(watch: Monitor, *, wait: bool) -> None:
    """Wait a moment for the first snapshot; raises UnavailableError or UsageError if none can come."""
    deadline = time.monotonic() + SETTLED_S
    while watch.newest is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first = watch.newest
    fatal = {SourceState.ENDED} if wait else {SourceState.ENDED, SourceState.NO_DRIVER}
    if first is not None and first.snapshot.state in fatal:
        check_snapshot(first.snapshot)


class _LateSinks:
    """Sinks of the dashboard, made after the first screen is drawn, since their imports are slow."""

    def __init__(self, watch: Monitor, config: Config, *, demo: bool, only: Sequence[int]) -> None:
        self._watch, self._config, self._demo, self._only = watch, config, demo, only
        self._app: GpuwatchApp | None = None
        self._sinks: Sinks | None = None
        self._guard = threading.Lock()
        self._leaving = threading.Event()
        self._worker = Worker("gpuwatch-sinks", self._open)

    def open(self, app: GpuwatchApp) -> None:
        """Make the sinks in the background, once the app has drawn something; raises NoThreadError."""
        self._app = app
        self._worker.wake()

    def configure(self, old: Config, new: Config) -> None:
        """Apply a new configuration to the sinks."""
        with self._guard:
            self._config = new
            if self._sinks is not None:
                self._sinks.configure(old, new)

    def close(self, seconds: float) -> None:
        """Let the sinks finish; give up after `seconds`."""
        self._leaving.set()
        self._worker.close(seconds / 2)
        if self._sinks is not None:
            self._sinks.close(seconds)

    def _open(self) -> None:
        app = self._app
        assert app is not None
        while app.frame is None and not self._leaving.wait(0.05):
            pass
        if self._leaving.wait(SEEN_S):
            return
        try:
            from gpuwatch.recorder.recorder import Sinks  # 50 ms, for SQLite and more

            with self._guard:
                self._sinks = Sinks(self._watch, self._config, demo=self._demo, part=bool(self._only))
        except NoThreadError:  # the watch tells of it, and each frame tries again
            return
        except Exception as error:  # noqa: BLE001 - the edge of the thread: a traceback would be drawn over the screen
            words = clean(f"events are neither recorded nor sent: {type(error).__name__}: {error}")
            with contextlib.suppress(RuntimeError):  # the program is on its way out
                app.call_from_thread(app.notify, words, severity="error", markup=False, timeout=30)


def dashboard_options(config: Config, seconds: float, *, first_filter: str = "") -> Options:
    """Return the options of the dashboard; `first_filter` is the text of --filter."""
    desktop: str = config.notify.desktop
    if desktop == "auto":
        desktop = which_osc(os.environ) or "off"
    return Options(
        user=config.user,
        mine=config.mine,
        filter=first_filter,
        filters=config.filters,
        read_only=config.read_only,
        ascii=config.ascii,
        theme=config.theme,
        bell=config.bell,
        toast=config.notify.toast,
        desktop=desktop,
        interval=seconds,
        keys=config.keys,
        columns=config.columns,
        allowances=config.limits().allowances,
        stray_limits=stray_limits(config),
        caller=caller(),
    )


def _helpers(
    args: argparse.Namespace,
    config: Config,
    seconds: float,
    watch: Monitor,
    sinks: _LateSinks,
    source: Source,
    remembered: Remembered,
) -> Helpers:
    """Return the helpers of the dashboard: to end a process, read the events log, read the configuration again."""

    def apply(old: Config, new: Config) -> None:
        apply_config(watch, old, new)
        sinks.configure(old, new)

    reloader = Reloader(args, config, apply)

    def ender() -> Pinner | DemoEnder:
        if args.demo:  # its PIDs may be those of real processes: nothing that could signal these is made at all
            from gpuwatch.kill.demo import DemoEnder
            from gpuwatch.sources.demo import DemoSource, script

            assert isinstance(source, DemoSource)
            return DemoEnder(source.end, script().machine.viewer)
        from gpuwatch.kill.pinned import make_pinner  # 2 MiB, for those who end processes

        return make_pinner(read_only=reloader.config.read_only, allow_root=args.allow_root_kill)

    reader: EventsReader | None = None

    def events() -> Events:
        from gpuwatch.recorder.events import EventsReader
        from gpuwatch.recorder.public import stores_read  # 30 ms, for SQLite

        nonlocal reader
        if reader is None:
            reader = EventsReader(lambda: stores_read(since=time.time() - 7 * DAY))
        return reader()

    def reload() -> Reloading:
        came = reloader()
        words = format_reload(came, later=("interval", "user", "mine", "ascii", "tmux", "host"))
        fixed = remembered.fixed if came.error else fixed_settings(args)
        options = remembered.over(dashboard_options(reloader.config, seconds), fixed)
        return Reloading(words, failed=bool(came.error), options=options)

    loaded: list[Timeline] = []

    def older(timeline: Timeline, until: float) -> None:
        from gpuwatch.recorder.use import load_older  # 30 ms, for SQLite

        if timeline not in loaded:  # from then on it has every minute itself
            load_older(timeline, until)
            loaded.append(timeline)

    if args.demo:

        @cache
        def past() -> Past:
            from gpuwatch.recorder.demo import make_past  # a second, once, on a thread of whoever asks
            from gpuwatch.sources.demo import DemoSource

            assert isinstance(source, DemoSource)
            return make_past(source)

        return Helpers(
            ender=ender,
            events=lambda: past().events,
            older=lambda timeline, _: timeline.load(past().sums.means),
            reload=reload,
        )
    return Helpers(
        ender=ender, events=events, older=older, reload=reload, remember=remembered.save, notice=remembered.notice
    )
