"""Parts of the dashboard that are made late, since their imports are slow or large.

| part    | what it is                  | made by                        | when                               |
|---------|-----------------------------|--------------------------------|------------------------------------|
| app     | GpuwatchApp, HostsApp       | `dashboard_app.show`           | while the first snapshot comes     |
| sinks   | recorder, messages, …       | a thread of `LateSinks`        | after the first screen             |
| ender   | Pinner, DemoEnder           | the app                        | with the first process to be ended |
| events  | EventsReader, the demo's    | a thread of a screen           | with the first list or graph       |
| older   | means that were recorded    | a thread of a graph            | with the first graph               |
"""

from __future__ import annotations

import contextlib
import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Final

from gpuwatch.base.errors import NoThreadError
from gpuwatch.base.text import clean
from gpuwatch.base.threads import Worker
from gpuwatch.commands.startup import Reloader
from gpuwatch.config.types import Config
from gpuwatch.model.values import DAY
from gpuwatch.monitor import Monitor

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

SEEN_S: Final = 0.3
"""Seconds from the first screen until the sinks are made: by then the screen is fully drawn."""


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
