"""Assembly of the dashboard of this machine: the monitor, the app, and what the app asks for.

The monitor starts first, then the first frame is drawn, then Textual is imported. Parts whose imports are slow or large
are made later:

| part    | what it is                  | made by                        | when                               |
|---------|-----------------------------|--------------------------------|------------------------------------|
| app     | GpuwatchApp, HostsApp       | `show`                         | after the first frame is drawn     |
| sinks   | recorder, messages, …       | a thread of `LateSinks`        | after the first screen             |
| ender   | Pinner, DemoEnder           | the app                        | with the first process to be ended |
| events  | EventsReader, the demo's    | a thread of a screen           | with the first list or graph       |
| older   | means that were recorded    | a thread of a graph            | with the first graph               |
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import threading
import time
import typing
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Final, cast

from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.rules import RULES
from gpuwatch.alerts.rules.runs import RunFollower
from gpuwatch.base.errors import NoThreadError
from gpuwatch.base.replaced import replaced
from gpuwatch.base.text import clean
from gpuwatch.base.threads import Worker, start_thread
from gpuwatch.commands.dashboard_setup import DashboardReloader, dashboard_options, prepare_memory
from gpuwatch.commands.startup import Reloader, apply_config, check_filter_flag, check_snapshot, make_recording
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.config.types import Config
from gpuwatch.model.snapshot import SourceState
from gpuwatch.model.values import DAY
from gpuwatch.monitor import Monitor
from gpuwatch.sources.source import Source
from gpuwatch.ui.choices import Remembered
from gpuwatch.ui.options import Helpers

if TYPE_CHECKING:
    from gpuwatch.analysis.events import Events
    from gpuwatch.history.timeline import Timeline
    from gpuwatch.kill.demo import DemoEnder
    from gpuwatch.kill.pinned import Pinner
    from gpuwatch.recorder.demo import Past
    from gpuwatch.recorder.events import EventsReader
    from gpuwatch.recorder.recorder import Sinks
    from gpuwatch.sources.demo import DemoSource
    from gpuwatch.ui.app import GpuwatchApp
    from gpuwatch.ui.first_frame import FirstFrame

SETTLED_S: Final = 1.5
"""Seconds for which the dashboard holds back its first screen in case there is no driver at all."""
EARLY_S: Final = 0.1
"""Seconds for which the first frame is waited for before the import of Textual begins."""
SEEN_S: Final = 0.3
"""Seconds from the first screen until the sinks are made: by then the screen is fully drawn."""
CLOSING_S: Final = 0.3
"""Seconds that the sinks have to finish when the user leaves."""


def show(
    source: Source,
    args: argparse.Namespace,
    config: Config,
    seconds: float,
    only: Sequence[int],
    remembered: Remembered,
) -> int:
    """Show the dashboard until the user leaves it, and return the exit code."""
    first_filter = check_filter_flag(args, config)
    recording = make_recording(args, config.limits())
    watch = Monitor(
        source,
        engine=Engine(config.limits(), rules=(*RULES, RunFollower().rule)),
        sinks=() if recording is None else (recording,),
        known_idle=idle_times,
    )
    sinks = LateSinks(watch, config, demo=args.demo, part=bool(only))

    def apply(old: Config, new: Config) -> None:
        apply_config(watch, old, new)
        sinks.configure(old, new)

    reloader = Reloader(args, config, apply)
    prepare_memory()
    start_thread(watch)
    first: FirstFrame | None = None
    try:
        options = remembered.over(dashboard_options(config, seconds, first_filter=first_filter))
        if not config.hosts or args.demo:
            from gpuwatch.ui.first_frame import FirstFrame

            first = FirstFrame(options)
            with import_less():
                _show_first(watch, first)
                importlib.import_module("gpuwatch.ui.app")
        from gpuwatch.ui.app import GpuwatchApp

        _check_first(watch, wait=args.wait)
        helpers = _helpers(
            source, args, remembered, reloader, DashboardReloader(reloader, args, seconds, remembered, "tmux")
        )
        if config.hosts and not args.demo:
            from gpuwatch.commands.hosts import make_app

            app: GpuwatchApp = make_app(config, options, helpers, watch)
        else:
            app = GpuwatchApp(watch=watch, options=options, helpers=helpers, first=first)
        watch.publish = partial(app.publish, watch=watch)
        sinks.open(app)
        return app.run_to_exit_code()
    finally:
        if first is not None:
            first.close()
        watch.stop()
        if recording is not None:
            recording.close(CLOSING_S)
        sinks.close(CLOSING_S)


@contextlib.contextmanager
def import_less() -> Iterator[None]:
    """Context in which Textual is imported without what the dashboard of one machine does not use.

    asyncio does without TLS, which saves 1.2 MiB; the module ssl can be imported afterwards. typing_extensions, of
    which Textual takes only names that typing has, saves 0.3 MiB. An ImportError is suppressed: the next import,
    outside of the context, has both.
    """
    with contextlib.suppress(ImportError), replaced(ssl=None, typing_extensions=typing):
        yield


def _helpers(
    source: Source, args: argparse.Namespace, remembered: Remembered, reloader: Reloader, reload: DashboardReloader
) -> Helpers:
    """Return what the app asks for; the demo remembers nothing."""
    if args.demo:
        demo = DemoParts(cast("DemoSource", source))
        return Helpers(ender=demo.ender, events=demo.events, older=demo.older, reload=reload)
    late = LateParts(reloader, allow_root=args.allow_root_kill)
    return Helpers(
        ender=late.ender,
        events=late.events,
        older=late.older,
        reload=reload,
        remember=remembered.save,
        notice=remembered.notice,
    )


_TEXTUAL: Final = ("textual.css.stylesheet", "textual.widget", "textual.screen", "textual.app")
"""Modules that are imported one by one while the first snapshot does not come."""


def _show_first(watch: Monitor, first: FirstFrame) -> None:
    """Show the first frame as soon as it comes, if there is a GPU in it, and it comes before Textual is imported."""
    deadline = time.monotonic() + EARLY_S
    while watch.newest is None and time.monotonic() < deadline:
        time.sleep(0.001)
    for name in _TEXTUAL:
        if watch.newest is not None:
            break
        importlib.import_module(name)
    frame = watch.newest
    if frame is not None and frame.snapshot.gpus:
        first.show(frame)


def _check_first(watch: Monitor, *, wait: bool) -> None:
    """Wait a moment for the first snapshot; raises UnavailableError or UsageError if none can come."""
    deadline = time.monotonic() + SETTLED_S
    while watch.newest is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first = watch.newest
    fatal = {SourceState.ENDED} if wait else {SourceState.ENDED, SourceState.NO_DRIVER}
    if first is not None and first.snapshot.state in fatal:
        check_snapshot(first.snapshot)


# ---------------------------------------------------------------------------------------------------------------
# Parts that are made late


class LateSinks:
    """Sinks of the dashboard, made in the background once the app has drawn something."""

    def __init__(self, watch: Monitor, config: Config, *, demo: bool, part: bool) -> None:
        """`part` says that only some GPUs are watched."""
        self._watch, self._config, self._demo, self._part = watch, config, demo, part
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
            from gpuwatch.recorder.recorder import Sinks

            with self._guard:
                self._sinks = Sinks(self._watch, self._config, demo=self._demo, part=self._part)
        except NoThreadError:  # the watch tells of it, and each frame tries again
            return
        except Exception as error:  # noqa: BLE001 - the edge of the thread: a traceback would be drawn over the screen
            words = clean(f"events are neither recorded nor sent: {type(error).__name__}: {error}")
            with contextlib.suppress(RuntimeError):  # the program is on its way out
                app.call_from_thread(app.notify, words, severity="error", markup=False, timeout=30)


class LateParts:
    """Parts that a screen of this machine asks for: the ender of processes, recorded events and means."""

    def __init__(self, reloader: Reloader, *, allow_root: bool) -> None:
        self._reloader, self._allow_root = reloader, allow_root
        self._reader: EventsReader | None = None
        self._loaded: list[Timeline] = []

    def ender(self) -> Pinner | DemoEnder:
        from gpuwatch.kill.pinned import make_pinner

        return make_pinner(read_only=self._reloader.config.read_only, allow_root=self._allow_root)

    def events(self) -> Events:
        """Return the events of the last 7 days; raises StoreError."""
        from gpuwatch.recorder.events import EventsReader
        from gpuwatch.recorder.public import stores_read

        if self._reader is None:
            self._reader = EventsReader(lambda: stores_read(since=time.time() - 7 * DAY))
        return self._reader()

    def older(self, timeline: Timeline, until: float) -> None:
        """Add to a timeline what was recorded before `until`, once; raises StoreError."""
        from gpuwatch.recorder.use import load_older

        if timeline not in self._loaded:  # from then on it has every minute itself
            load_older(timeline, until)
            self._loaded.append(timeline)


class DemoParts:
    """Parts that a screen of the demo asks for. Nothing that could signal a process is made.

    The PIDs of the demo may be those of real processes.
    """

    def __init__(self, source: DemoSource) -> None:
        self._source = source

    def ender(self) -> Pinner | DemoEnder:
        from gpuwatch.kill.demo import DemoEnder

        return DemoEnder(self._source.end, self._source.at(0.0).viewer)

    def events(self) -> Events:
        return self._past.events

    def older(self, timeline: Timeline, until: float) -> None:
        timeline.load(self._past.sums.means)

    @cached_property
    def _past(self) -> Past:
        from gpuwatch.recorder.demo import make_past

        return make_past(self._source)  # a second, once, on a thread of whoever asks
