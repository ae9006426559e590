"""The command line: arguments to one command. What is heavy is imported inside the command that needs it."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwatch.commands.arguments import parse
from gpuwatch.commands.arguments import parser as parser
from gpuwatch.errors import GpuwatchError, NoThreadError, UnavailableError, UsageError
from gpuwatch.startup import (
    Reloader,
    Ways,
    applied,
    check_interval,
    configured,
    indices,
    interval_of,
    ordered,
    own_log,
    said,
    source_of,
)
from gpuwatch.threads import start_thread

if TYPE_CHECKING:  # msgspec (24 ms) and Textual (230 ms) are imported while the sampler starts
    import argparse
    from pathlib import Path

    from gpuwatch.commands.answer import Answer, Ask
    from gpuwatch.config import Config
    from gpuwatch.kill.session import ProcessEnder
    from gpuwatch.monitor import Frame, Watch
    from gpuwatch.recorder.events_log import Events, LogReader
    from gpuwatch.sources.child import Child
    from gpuwatch.sources.source import Source
    from gpuwatch.ui.app import GpuwatchApp
    from gpuwatch.ui.options import Helpers, Options

SETTLED_S = 1.5
"""Seconds for which the dashboard holds back its first screen in case there is no driver at all."""
SEEN_S = 0.3
"""Seconds after the first screen at which the sinks are made: by then all of it is drawn."""
CLOSING_S = 0.3
"""Seconds that the sinks have to finish when the user leaves."""


def main(argv: Sequence[str], sampler: Child | None, *, locks: Path | None = None) -> int:
    """Run gpuwatch and give its exit code; `sampler` is one that waits for its orders, where there is one already.

    `locks` is where the runs of all users meet, in place of the machine's own folder.
    """
    try:
        args = parse(argv)
        if args.command in (
            "events",
            "watch",
            "status",
            "config",
            "strays",
            "kill",
            "report",
            "docs",
        ):  # with lives of their own
            return _on_its_own(args, sampler)
        return _command(args, sampler, locks) if args.command else _run(args, sampler, locks)
    except GpuwatchError as error:
        from gpuwatch.text import clean  # the words may quote a path, or a file

        print(f"gpuwatch: {clean(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `gpuwatch --stream | head`: whoever read has read enough
        _print_nowhere()
        return 0
    except OSError as error:  # `gpuwatch --once > file` on a full disk
        from gpuwatch import files

        if error.errno not in files.FULL:
            raise
        _print_nowhere()
        print(f"gpuwatch: what was asked for cannot be printed: {files.words(error, None)}", file=sys.stderr)
        return GpuwatchError.exit_code


def _print_nowhere() -> None:
    """Let the end of the program, which writes what waits, find a place that takes it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(args: argparse.Namespace, sampler: Child | None, locks: Path | None) -> int:
    only = indices(args.only)
    check_interval(args)
    if args.json and not args.once:
        raise UsageError("--json goes with --once; for a stream of JSON lines there is --stream")
    if args.once and args.stream:
        raise UsageError("--once and --stream exclude each other")
    dashboard = not (args.once or args.stream)
    if args.wait and not dashboard:
        raise UsageError("--wait is for the dashboard; --once and --stream say at once that there is no driver")
    if (args.user or args.mine) and (args.stream or args.json):
        raise UsageError("--user and --mine choose what is drawn; JSON always holds everybody's processes")
    if dashboard:
        check_terminal()
    config = configured(args)
    seconds = interval_of(args, config)
    child = None
    if not args.demo:
        from gpuwatch.sources.child import sampler_arguments

        once = ["--once"] if args.once else []
        orders = sampler_arguments(seconds, only, shares=config.shares, tmux=config.tmux, reservations=locks)
        child = ordered(sampler, [*once, *orders])
    source = source_of(child, seconds, only, config, locks)
    try:
        if dashboard:
            return _dashboard(source, args, config, seconds)
        if args.stream:
            return _stream(source)
        from gpuwatch.commands.once import once as print_once
        from gpuwatch.text import clean

        words = [f"user:{clean(args.user or '')}"] * bool(args.user) + ["mine"] * bool(args.mine)
        return print_once(source, as_json=args.json, ascii_only=config.ascii, only=" ".join(words))
    finally:
        source.close()


def _command(args: argparse.Namespace, sampler: Child | None, locks: Path | None) -> int:
    """Run one of the commands: each asks one snapshot."""
    if args.command == "run" and (args.demo or args.json):
        raise UsageError(f"{'--demo' if args.demo else '--json'} does not go with `gpuwatch run`")
    config = configured(args)
    ask = _prepared(args, config, locks)
    child = None
    if not args.demo:
        from gpuwatch.sources.child import sampler_arguments

        tmux = config.tmux and args.command == "explain"  # the others show no pane
        child = ordered(sampler, ["--once", *sampler_arguments(1.0, (), shares=config.shares, tmux=tmux)])
    from gpuwatch.commands.once import first, problem

    source = source_of(child, 1.0, (), config)
    try:
        snapshot = first(source)
    finally:
        source.close()
    error = problem(snapshot)
    if error is not None and args.command != "explain":  # a process can be explained without any GPU
        raise error
    answer = ask(snapshot)
    _print(answer, ascii_only=config.ascii)
    if answer.then:
        return answer.then()
    # What is told without GPUs is not all that was asked for.
    return answer.code or (0 if error is None else error.exit_code)


def _on_its_own(args: argparse.Namespace, sampler: Child | None) -> int:
    """Run a command that asks for no single snapshot."""
    if args.command == "events":
        from gpuwatch.commands import events

        return events.main(args)
    if args.command == "watch":
        from gpuwatch.commands import watch

        return watch.main(args, sampler)
    if args.command == "status":
        from gpuwatch.commands import status

        return status.main(args, sampler)
    if args.command == "strays":
        from gpuwatch.commands import strays

        return strays.main(args, sampler)
    if args.command == "kill":
        from gpuwatch.commands import kill

        return kill.main(args, sampler)
    if args.command == "report":
        from gpuwatch.commands import report

        return report.main(args)
    if args.command == "docs":
        from gpuwatch.commands import docs

        return docs.main(args)
    from gpuwatch.commands import config

    return config.main(args)


def _prepared(args: argparse.Namespace, config: Config, locks: Path | None) -> Ask:
    """Understand the arguments of a command, before the driver is asked anything."""
    if args.command == "explain":
        from gpuwatch.commands import explain

        return explain.prepare(args.pid, config, as_json=args.json)
    if args.command == "visible":
        from gpuwatch.commands import visible

        return visible.prepare(args.value, args.order, os.environ, as_json=args.json)
    from gpuwatch.commands import pick, run
    from gpuwatch.sampler.reservations import SHARED, places

    wish = pick.wish(args.share, args.memory, args.max_util)
    folders, ignore = places(locks or SHARED), args.ignore_reservations
    if args.command == "pick":
        only, count = indices(args.only), pick.count(args.count)
        choice = pick.Request(wish=wish, count=count, only=only, ignore=ignore, index=args.index, as_json=args.json)
        return pick.prepare(choice, os.environ, folders)
    gpus = run.gpus(args.gpu)
    if gpus and args.count is not None:
        raise UsageError("--gpu and -n exclude each other: the list says how many")
    program, count = tuple(args.program), pick.count(args.count)
    start = run.Request(wish=wish, command=program, count=count, gpus=gpus, ignore=ignore, quiet=args.quiet)
    return run.prepare(start, os.environ, folders, config.shares)


def _print(answer: Answer, *, ascii_only: bool) -> None:
    """Print what a command found: data on stdout, words on stderr."""
    from gpuwatch.output.plain import in_ascii, speaks_unicode

    for stream, lines, start in ((sys.stdout, answer.lines, ""), (sys.stderr, answer.words, "gpuwatch: ")):
        plain = ascii_only or not speaks_unicode(stream)
        for line in lines:
            print(start + (in_ascii(line) if plain else line), file=stream)
        stream.flush()


def check_terminal() -> None:
    """Raise UsageError where there is no terminal that a dashboard could be drawn on; forget sizes but its own."""
    for stale in ("COLUMNS", "LINES"):  # an exported size would be believed over the terminal's own, and over resizes
        os.environ.pop(stale, None)
    advice = "try `gpuwatch --once`, `gpuwatch --once --json` or `gpuwatch --stream`"
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        raise UsageError(f"the dashboard needs a terminal that can move its cursor, and TERM is dumb; {advice}")
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr)):
        if stream is None or not stream.isatty():
            raise UsageError(f"the dashboard needs a terminal, and {name} is none; {advice}")


def _stream(source: Source) -> int:
    from gpuwatch.model import SourceState, encode

    out, began = sys.stdout.buffer, False
    while True:
        snapshot = source.next(timeout=60.0)
        if snapshot is None:
            continue
        out.write(encode(snapshot) + b"\n")
        out.flush()
        if snapshot.state is SourceState.ENDED:
            raise UsageError(snapshot.words)
        began = began or snapshot.state is SourceState.OK
        if snapshot.state is SourceState.NO_DRIVER and not began:  # one that goes away later is waited for
            raise UnavailableError(snapshot.words)


def _dashboard(source: Source, args: argparse.Namespace, config: Config, seconds: float) -> int:
    """Start the watch thread, then import Textual: real data is there by the first paint."""
    from gpuwatch.alerts.engine import Engine
    from gpuwatch.commands.strays import idle_times
    from gpuwatch.monitor import Watch

    app: GpuwatchApp | None = None

    def publish(frame: Frame) -> None:
        if app is not None and app.is_running:
            app.publish(frame)

    watch = Watch(source, publish, engine=Engine(config.limits()), kept=idle_times)
    ways = Ways(watch, demo=args.demo, only=indices(args.only))
    leaving = threading.Event()
    start_thread(watch)
    gc.disable()  # until the dashboard has settled: what is imported stays
    try:
        from gpuwatch.ui.app import GpuwatchApp

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


def _check_first(watch: Watch, *, wait: bool) -> None:
    """Give the first snapshot a moment to come; raises where there is no driver at all, or nothing will ever come."""
    from gpuwatch.model import SourceState

    deadline = time.monotonic() + SETTLED_S
    while watch.newest is None and time.monotonic() < deadline:
        time.sleep(0.005)
    first = watch.newest
    if first is not None and first.snapshot.state is SourceState.NO_DRIVER and not wait:
        raise UnavailableError(first.snapshot.words)
    if first is not None and first.snapshot.state is SourceState.ENDED:
        raise UsageError(first.snapshot.words)


def _open_late(ways: Ways, config: Config, app: GpuwatchApp, leaving: threading.Event) -> None:
    """Make the sinks once there is something to see: what they import would delay the first paint."""
    while app.frame is None and not leaving.wait(0.05):
        pass
    if leaving.wait(SEEN_S):
        return
    try:
        ways.open(config)
    except NoThreadError:  # the watch tells of it, and each frame tries again
        return
    except Exception as error:  # noqa: BLE001 - the edge of the thread: a traceback would be drawn over the screen
        from gpuwatch.text import clean

        words = clean(f"events are neither logged nor sent: {type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # the program is on its way out
            app.call_from_thread(app.notify, words, severity="error", markup=False, timeout=30)


def _options(config: Config, seconds: float) -> Options:
    """Give how the dashboard is wanted."""
    from gpuwatch.commands.strays import caller, tending_of
    from gpuwatch.ui.options import Options

    desktop: str = config.notify.desktop
    if desktop == "auto":
        from gpuwatch.recorder.desktop import which_osc

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
        tending=tending_of(config),
        caller=caller(),
    )


def _helpers(
    args: argparse.Namespace, config: Config, seconds: float, watch: Watch, ways: Ways, source: Source
) -> Helpers:
    """Give whom the dashboard asks: to end a process, to read the events log, to read the configuration again."""
    from gpuwatch.ui.options import Helpers, Reloading

    reloader = Reloader(args, config, lambda old, new: applied(watch, ways, old, new))

    def killer() -> ProcessEnder:
        if args.demo:  # its PIDs may be those of real processes: nothing that could signal these is made at all
            from gpuwatch.kill.demo import DemoEnder
            from gpuwatch.sources.demo import DemoSource

            assert isinstance(source, DemoSource)
            return DemoEnder(source, read_only=reloader.config.read_only)
        from gpuwatch.kill.target import make_killer

        return make_killer(read_only=reloader.config.read_only, allow_root=args.allow_root_kill)

    reader: LogReader | None = None

    def events() -> Events:
        nonlocal reader
        if reader is None:
            from gpuwatch.recorder.events_log import LogReader

            reader = LogReader(own_log())
        return reader()

    def reload() -> Reloading:
        came = reloader()
        words = said(came, later=("interval", "user", "mine", "ascii", "tmux"))
        return Reloading(words, failed=bool(came.error), options=_options(reloader.config, seconds))

    return Helpers(killer=killer, events=None if args.demo else events, reload=reload)
