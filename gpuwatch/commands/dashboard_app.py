"""Assembly of the dashboard of this machine: the monitor, the app, and what the app asks for.

The monitor starts before Textual is imported, so that real data is there by the first paint. `dashboard_late` lists
what is made later.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from gpuwatch.alerts.engine import Engine
from gpuwatch.base.threads import start_thread
from gpuwatch.commands.dashboard_late import DemoParts, LateParts, LateSinks
from gpuwatch.commands.dashboard_setup import DashboardReloader, dashboard_options, prepare_memory
from gpuwatch.commands.filters import check_filter_flag
from gpuwatch.commands.startup import Reloader, apply_config, check_snapshot, make_recording
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.config.types import Config
from gpuwatch.model.snapshot import SourceState
from gpuwatch.monitor import Monitor
from gpuwatch.sources.source import Source
from gpuwatch.ui.choices import Remembered
from gpuwatch.ui.options import Helpers

if TYPE_CHECKING:
    from gpuwatch.sources.demo import DemoSource

SETTLED_S: Final = 1.5
"""Seconds for which the dashboard holds back its first screen in case there is no driver at all."""
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
        engine=Engine(config.limits()),
        sinks=() if recording is None else (recording,),
        known_idle=idle_times,
    )
    sinks = LateSinks(watch, config, demo=args.demo, part=bool(only))
    reloader = Reloader(args, config, partial(_apply, watch, sinks))
    prepare_memory()
    start_thread(watch)
    try:
        from gpuwatch.ui.app import GpuwatchApp

        _check_first(watch, wait=args.wait)
        options = remembered.over(dashboard_options(config, seconds, first_filter=first_filter))
        helpers = _helpers(
            source, args, remembered, reloader, DashboardReloader(reloader, args, seconds, remembered, "tmux")
        )
        if config.hosts and not args.demo:
            from gpuwatch.commands.hosts import make_app

            app: GpuwatchApp = make_app(config, options, helpers, watch)
        else:
            app = GpuwatchApp(watch=watch, options=options, helpers=helpers)
        watch.publish = partial(app.publish, watch=watch)
        sinks.open(app)
        return app.run_to_exit_code()
    finally:
        watch.stop()
        if recording is not None:
            recording.close(CLOSING_S)
        sinks.close(CLOSING_S)


def _apply(watch: Monitor, sinks: LateSinks, old: Config, new: Config) -> None:
    apply_config(watch, old, new)
    sinks.configure(old, new)


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


def _check_first(watch: Monitor, *, wait: bool) -> None:
    """Wait a moment for the first snapshot; raises UnavailableError or UsageError if none can come."""
    deadline = time.monotonic() + SETTLED_S
    while watch.newest is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first = watch.newest
    fatal = {SourceState.ENDED} if wait else {SourceState.ENDED, SourceState.NO_DRIVER}
    if first is not None and first.snapshot.state in fatal:
        check_snapshot(first.snapshot)
