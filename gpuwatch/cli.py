"""The command line: arguments to one command. What is heavy is imported inside the command that needs it."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from gpuwatch import __version__
from gpuwatch.errors import GpuwatchError, UnavailableError, UsageError
from gpuwatch.units import parse_interval, parse_percent

if TYPE_CHECKING:  # msgspec (24 ms) and Textual (230 ms) are imported while the sampler starts
    from gpuwatch.actions.kill import Killer
    from gpuwatch.config import Config
    from gpuwatch.sources.child import Child
    from gpuwatch.sources.source import Source
    from gpuwatch.ui.app import GpuwatchApp
    from gpuwatch.watch import Frame

SETTLED_S = 1.5
"""Seconds for which the dashboard holds back its first screen in case there is no driver at all."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, with the flag that was probably meant."""
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            import difflib

            word = unknown.split()[0]
            flags = [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]
            close = difflib.get_close_matches(word.split("=")[0], flags, n=1, cutoff=0.7)
            hint = f"did you mean {close[0]}?" if close else "`gpuwatch --help` lists what there is"
            message = f"unknown {'flag' if word.startswith('-') else 'argument'} {ascii(word)[1:-1]}; {hint}"
        raise UsageError(message)


def parser() -> argparse.ArgumentParser:
    """Give the parser of gpuwatch's command line."""
    top = _Parser(
        prog="gpuwatch",
        description="A live, truthful monitor for GPUs that several people share.",
        epilog="Exit codes: 0 done, 2 bad usage, 3 no driver or no GPU. Data on stdout, words on stderr.",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"gpuwatch {__version__}")
    what = top.add_argument_group("what to do (without any of these: the dashboard)")
    what.add_argument("--once", action="store_true", help="print one snapshot, and out")
    what.add_argument("--json", action="store_true", help="with --once: as one JSON object")
    what.add_argument("--stream", action="store_true", help="print one JSON line a snapshot, for ever")
    what.add_argument("--demo", action="store_true", help="a simulated lab machine instead of this one")
    see = top.add_argument_group("what to see")
    see.add_argument("--only", metavar="0,2", help="these GPUs alone; no call is made to the others")
    see.add_argument("--user", metavar="NAME", help="start with the processes of one user")
    see.add_argument("--mine", action="store_true", default=None, help="start with your own processes")
    how = top.add_argument_group("how")
    how.add_argument("--interval", metavar="S", help="time between two samples: 2, 500ms (0.1 to 3600 s; default 1)")
    how.add_argument("--memory-warning", metavar="P", help="warn when under P percent of a GPU is free (default 10)")
    how.add_argument("--memory-critical", metavar="P", help="the same for a critical alert (default 5)")
    how.add_argument("--bell", action="store_true", default=None, help="ring the terminal's bell on an alert")
    how.add_argument("--read-only", action="store_true", default=None, help="no process can be ended from here")
    how.add_argument("--allow-root-kill", action="store_true", help="let root end the processes of the uid behind sudo")
    how.add_argument("--wait", action="store_true", help="where there is no driver, wait until there is one")
    how.add_argument("--theme", metavar="NAME", help="dark or light (default dark)")
    how.add_argument("--ascii", action="store_true", default=None, help="no character outside ASCII")
    how.add_argument("--config", metavar="FILE", help="read FILE instead of your gpuwatch.toml")
    return top


def main(argv: Sequence[str], sampler: Child | None) -> int:
    """Run gpuwatch and give its exit code; `sampler` is one that waits for its orders, None for the demo."""
    try:
        return _run(parser().parse_args(argv), sampler)
    except GpuwatchError as error:
        from gpuwatch.text import clean  # the words may quote a path, or a file

        print(f"gpuwatch: {clean(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `gpuwatch --stream | head`: whoever read has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _run(args: argparse.Namespace, sampler: Child | None) -> int:
    only = _only(args.only)
    interval = _parsed("--interval", parse_interval, args.interval)
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
    config = _config(args)
    seconds = interval or parse_interval(str(config.interval))
    if sampler is not None:
        from gpuwatch.sources.child import sampler_arguments

        sampler.order([*(["--once"] if args.once else []), *sampler_arguments(seconds, only)])
    source = _source(sampler, seconds, only)
    try:
        if dashboard:
            return _dashboard(source, args, config, seconds)
        if args.stream:
            return _stream(source)
        from gpuwatch.output.once import once
        from gpuwatch.text import clean

        words = [f"user:{clean(args.user or '')}"] * bool(args.user) + ["mine"] * bool(args.mine)
        return once(source, as_json=args.json, ascii_only=config.ascii, only=" ".join(words))
    finally:
        source.close()


def _source(child: Child | None, interval: float, only: Sequence[int]) -> Source:
    if child is None:
        from gpuwatch.sources.demo import GPUS, DemoSource

        if any(index >= GPUS for index in only):
            raise UsageError(f"--only: there is no GPU {max(only)}; the demo has 0 to {GPUS - 1}")
        return DemoSource(interval=interval, only=only)
    from gpuwatch.sources.local import LocalSource

    return LocalSource(interval=interval, only=only, first=child)


def _config(args: argparse.Namespace) -> Config:
    """Read the configuration file and put the flags over it."""
    import msgspec

    from gpuwatch.config import Alerts, check_limits, load

    config = load(args.config)
    if args.theme not in (None, "dark", "light"):
        raise UsageError(f"--theme: there is no theme {args.theme!a}; dark and light are allowed")
    flags = {name: getattr(args, name) for name in ("user", "mine", "read_only", "ascii", "theme", "bell")}
    percents = {
        name: _parsed(f"--{name.replace('_', '-')}", parse_percent, getattr(args, name))
        for name in Alerts.__struct_fields__
    }
    alerts = msgspec.structs.replace(config.alerts, **_given(percents))
    if _given(percents):
        check_limits(alerts, "--", "memory-critical", "memory-warning")
    return msgspec.structs.replace(config, alerts=alerts, **_given(flags))


def _given(flags: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def _parsed(flag: str, parse: object, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parse(text)  # type: ignore[operator,no-any-return]
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def _only(text: str | None) -> tuple[int, ...]:
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise UsageError(f"--only: {text!a} is no list of GPU indices; write 3 or 0,2")
    return tuple(sorted({int(part) for part in parts}))


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
    from gpuwatch.model import SourceState
    from gpuwatch.watch import Watch

    app: GpuwatchApp | None = None

    def killer() -> Killer:
        from gpuwatch.ui.background import make_killer

        return make_killer(read_only=config.read_only, allow_root=args.allow_root_kill)

    def publish(frame: Frame) -> None:
        if app is not None and app.is_running:
            app.publish(frame)

    watch = Watch(source, publish, engine=Engine(config.alerts.limits()))
    watch.start()
    try:
        from gpuwatch.ui.app import GpuwatchApp, Options

        deadline = time.monotonic() + SETTLED_S
        while watch.newest is None and time.monotonic() < deadline:
            time.sleep(0.005)
        first = watch.newest
        if first is not None and first.snapshot.state is SourceState.NO_DRIVER and not args.wait:
            raise UnavailableError(first.snapshot.words)
        if first is not None and first.snapshot.state is SourceState.ENDED:
            raise UsageError(first.snapshot.words)
        options = Options(
            user=config.user,
            mine=config.mine,
            read_only=config.read_only,
            ascii=config.ascii,
            theme=config.theme,
            bell=config.bell,
            interval=seconds,
        )
        app = GpuwatchApp(watch=watch, options=options, make_killer=killer)
        return app.run_to_exit_code()
    finally:
        watch.stop()
