"""Assembly of the dashboard: the watch thread, the sinks, and the app with its options and helpers."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwatch.alerts.engine import Engine
from gpuwatch.commands.startup import Reloader, Ways, applied, said
from gpuwatch.commands.strays import caller, idle_times, stray_limits
from gpuwatch.config import Config
from gpuwatch.errors import NoThreadError, UnavailableError, UsageError
from gpuwatch.kill.session import ProcessEnder
from gpuwatch.kill.target import make_killer
from gpuwatch.model import SourceState
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.recorder.events_log import Events, LogReader, own_log
from gpuwatch.sources.source import Source
from gpuwatch.text import clean
from gpuwatch.threads import start_thread
from gpuwatch.ui.desktop import which_osc
from gpuwatch.ui.options import Helpers, Options, Reloading

if TYPE_CHECKING:
    from gpuwatch.ui.app import GpuwatchApp

SETTLED_S = 1.5
"""Seconds for which the dashboard holds back its first screen in case there is no driver at all."""
SEEN_S = 0.3
"""Seconds after the first screen at which the sinks are made: by then all of it is drawn."""
M_ARENA_MAX = -8
"""Number of that setting in malloc.h."""
CLOSING_S = 0.3
"""Seconds that the sinks have to finish when the user leaves."""


def show(source: Source, args: argparse.Namespace, config: Config, seconds: float, only: Sequence[int]) -> int:
    """Show the dashboard until the user leaves it, and return the exit code.

    The watch starts before Textual is imported, so that real data is there by the first paint.
    """
    app: GpuwatchApp | None = None

    def publish(frame: Frame) -> None:
        if app is not None and app.is_running:
            app.publish(frame)

    watch = Monitor(source, publish, engine=Engine(config.limits()), kept=idle_times)
    ways = Ways(watch, demo=args.demo, only=only)
    leaving = threading.Event()
    with contextlib.suppress(AttributeError):  # glibc alone has it
        ctypes.CDLL(None).mallopt(M_ARENA_MAX, 1)  # a heap for each thread takes 2 MiB more
    start_thread(watch)
    gc.disable()  # until the dashboard has settled: what is imported stays
    try:
        from gpuwatch.ui.app import GpuwatchApp  # 230 ms, in which the first snapshot comes

        _check_first(watch, wait=args.wait)
        app = GpuwatchApp(
            watch=watch,
            options=_options(config, seconds),
            helpers=_helpers(args, config, seconds, watch, ways, source),
        )
        opening = threading.Thread(target=_open_late, args=(ways, config, app, leaving), daemon=True)
        start_thread(opening)
        return app.run_to_exit_code()
    finally:
        leaving.set()
        watch.stop()
        ways.close(CLOSING_S)


def _check_first(watch: Monitor, *, wait: bool) -> None:
    """Wait a moment for the first snapshot; raises UnavailableError or UsageError if none can come."""
    deadline = time.monotonic() + SETTLED_S
    while watch.newest is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first = watch.newest
    if first is not None and first.snapshot.state is SourceState.NO_DRIVER and not wait:
        raise UnavailableError(first.snapshot.words)
    if first is not None and first.snapshot.state is SourceState.ENDED:
        raise UsageError(first.snapshot.words)


def _open_late(ways: Ways, config: Config, app: GpuwatchApp, leaving: threading.Event) -> None:
    """Open the sinks after the first paint, which their imports would delay."""
    while app.frame is None and not leaving.wait(0.05):
        pass
    if leaving.wait(SEEN_S):
        return
    try:
        ways.open(config)
    except NoThreadError:  # the watch tells of it, and each frame tries again
        return
    except Exception as error:  # noqa: BLE001 - the edge of the thread: a traceback would be drawn over the screen
        words = clean(f"events are neither logged nor sent: {type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # the program is on its way out
            app.call_from_thread(app.notify, words, severity="error", markup=False, timeout=30)


def _options(config: Config, seconds: float) -> Options:
    """Return the options of the dashboard."""
    desktop: str = config.notify.desktop
    if desktop == "auto":
        desktop = which_osc(os.environ) or "off"
    return Options(
        user=config.user,
        mine=config.mine,
        read_only=config.read_only,
        ascii=config.ascii,
        theme=config.theme,
        bell=config.bell,
        toast=config.notify.toast,
        desktop=desktop,
        interval=seconds,
        allowances=config.limits().allowances,
        stray_limits=stray_limits(config),
        caller=caller(),
    )


def _helpers(
    args: argparse.Namespace, config: Config, seconds: float, watch: Monitor, ways: Ways, source: Source
) -> Helpers:
    """Return the helpers of the dashboard: to end a process, read the events log, read the configuration again."""
    reloader = Reloader(args, config, lambda old, new: applied(watch, ways, old, new))

    def killer() -> ProcessEnder:
        if args.demo:  # its PIDs may be those of real processes: nothing that could signal these is made at all
            from gpuwatch.kill.demo import DemoEnder
            from gpuwatch.sources.demo import DemoSource

            assert isinstance(source, DemoSource)
            return DemoEnder(source, read_only=reloader.config.read_only)
        return make_killer(read_only=reloader.config.read_only, allow_root=args.allow_root_kill)

    reader: LogReader | None = None

    def events() -> Events:
        nonlocal reader
        if reader is None:
            reader = LogReader(own_log())
        return reader()

    def reload() -> Reloading:
        came = reloader()
        words = said(came, later=("interval", "user", "mine", "ascii", "tmux"))
        return Reloading(words, failed=bool(came.error), options=_options(reloader.config, seconds))

    return Helpers(killer=killer, events=None if args.demo else events, reload=reload)
