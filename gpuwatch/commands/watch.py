"""`gpuwatch watch`: the monitor without a screen, one line an event."""

from __future__ import annotations

import argparse
import math
import os
import re
import signal
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace

from gpuwatch.alerts.alert import MARKS, TROUBLE, Alert
from gpuwatch.alerts.engine import Engine
from gpuwatch.alerts.rules import RULES
from gpuwatch.alerts.rules.runs import RunFollower
from gpuwatch.analysis.events import value_words
from gpuwatch.base import files
from gpuwatch.base.errors import GpuwatchError, NoThreadError, UsageError
from gpuwatch.base.extras import install_hint
from gpuwatch.base.text import clean
from gpuwatch.base.threads import Worker, start_thread
from gpuwatch.base.units import long_duration, parse_duration
from gpuwatch.commands.console import GREEN, BackgroundConsole
from gpuwatch.commands.events import COLORS
from gpuwatch.commands.flags import EXPORT_FLAGS, RECORDING, add_export_flags, add_flags, parse_indices, parse_value
from gpuwatch.commands.startup import (
    Reloader,
    apply_config,
    configured,
    format_reload,
    interval_of,
    make_recording,
    open_source,
)
from gpuwatch.commands.unit import AGAIN, print_unit
from gpuwatch.config.keys import read_flag
from gpuwatch.config.paths import ADMINISTRATORS
from gpuwatch.config.types import Config, ExportConfig
from gpuwatch.model.snapshot import Gpu, SourceState
from gpuwatch.monitor import Frame, Monitor
from gpuwatch.recorder.recorder import Sinks
from gpuwatch.recorder.schema import DAYS, own_store
from gpuwatch.sources.sampler_process import SamplerProcess

if TYPE_CHECKING:
    from gpuwatch.export.exporter import Exporter

_ENDED: Final = "✓"

_QUIET_STATES: Final = frozenset({SourceState.OK, SourceState.STARTING, SourceState.ENDED})
"""States of the source that are no trouble, or are printed elsewhere."""


class AlertChange(NamedTuple):
    """Alert that was raised, got worse, eased or ended, and when."""

    at: float
    """Wall-clock time."""
    kind: str
    """`raised`, `worse`, `eased` or `ended`."""
    alert: Alert


def find_changes(frame: Frame) -> list[AlertChange]:
    """Return the changed alerts of a frame: those that ended, then those that eased, then those that began."""
    now = frame.snapshot.taken
    found = [AlertChange(one.ended or now, "ended", one) for one in frame.cleared if one not in frame.raised]
    found += [AlertChange(now, "eased", one) for one in frame.eased]
    for one in frame.raised:
        is_new = one.raised_monotonic >= frame.received
        found.append(AlertChange(one.raised if is_new else now, "raised" if is_new else "worse", one))
    return [event for event in found if event.alert.rule != TROUBLE]  # those are printed by `TroubleFinder`


class LineFormatter:
    """Formatter of changes as lines, with the date if it differs from the line before."""

    def __init__(self, *, color: bool = False) -> None:
        self._color = color
        self._day = ""

    def format(self, event: AlertChange) -> str:
        moment = time.localtime(event.at)
        day = time.strftime("%Y-%m-%d ", moment)
        date, self._day = ("" if day == self._day else day), day
        alert = event.alert
        if event.kind == "ended":
            mark, color = _ENDED, GREEN
            verb = f"ended after {long_duration(alert.lasted)}"
            facts = [alert.title, alert.how if alert.how != alert.title else "", value_words(alert)]
        else:
            mark, color = MARKS[alert.severity], COLORS[alert.severity]
            verb = f"{event.kind:<6}"
            facts = [alert.title, alert.evidence]
        head = f"{mark} {verb}"
        if self._color:
            head = f"\x1b[{color}m{head}\x1b[0m"
        return f"{date}{time.strftime('%H:%M:%S', moment)} {head}  {' · '.join(filter(None, facts))}"


class TroubleFinder:
    """Finder of troubles of gpuwatch itself: each is reported once when it begins, and once when it ends."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        """The trouble of each sink, by its name."""
        self._state = SourceState.OK

    def find(self, frame: Frame) -> Iterator[str]:
        """Yield lines about new and ended troubles in a frame."""
        yield from self._source(frame)
        troubles = [one for one in frame.alerts if one.rule == TROUBLE]
        now = {one.subject: _gist(one.title) for one in troubles}
        for one in troubles:
            if self._known.get(one.subject) != now[one.subject]:
                yield one.title
        for subject in self._known.keys() - now.keys():
            yield f"{subject}: works again"
        self._known = now

    def _source(self, frame: Frame) -> Iterator[str]:
        snapshot = frame.snapshot
        if snapshot.state not in _QUIET_STATES and snapshot.state is not self._state:
            self._state = snapshot.state
            yield f"{snapshot.words or snapshot.state.value}; gpuwatch waits"
        elif snapshot.state is SourceState.OK and self._state is not SourceState.OK:
            self._state = SourceState.OK
            yield f"the driver answers: {_several(snapshot.gpus)}"


def _gist(words: str) -> str:
    """Return a trouble's words without its counts and durations, which change all the time."""
    parts = [re.sub(r" for [0-9].*", "", part) for part in words.split("; ")]
    return "; ".join(part for part in parts if not part[:1].isdigit())


def greeting(frame: Frame, notes: Iterable[str]) -> str:
    """Return the first line: the host and the GPUs, and notes about files and time."""
    host = f" on {frame.snapshot.host}" if frame.snapshot.host else ""
    return "; ".join([f"watching {_several(frame.snapshot.gpus)}{host}", *notes])


def _notes(args: argparse.Namespace, log: str, seconds: float | None) -> list[str]:
    """Return where events and snapshots are recorded, and when the watch ends."""
    notes = [f"events go to {clean(log)}"] if log else []
    if args.record is not None:
        commands = "whole command lines" if args.record_commands else "names of programs, without arguments"
        who = "pseudonyms of people and programs" if args.anonymise else commands
        notes.append(f"snapshots go to {clean(args.record)}, with {who}")
    return notes if seconds is None else [*notes, f"ends after {long_duration(seconds)}"]


def _several(gpus: Sequence[Gpu]) -> str:
    return f"{len(gpus)} GPU{'s' * (len(gpus) != 1)}"


CODES: Final = {signal.SIGTERM: 0, signal.SIGINT: 130, signal.SIGHUP: 129}
"""Exit codes by signal: a service that is stopped has not failed."""

_CLOSING: Final = 0.9
"""Seconds for a recording, and for the sinks, to be written; with all other work the program ends within 3 s."""
_LOOK: Final = 5.0
"""Seconds between two checks that the monitor still runs, without a signal."""
_LAST_WORDS: Final = 0.2
"""Seconds that the watch, and each of stdout and stderr, has to finish."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "demo", "gpu", "interval", *RECORDING)
    parser.add_argument("--quiet", action="store_true", help="print only what goes wrong")
    parser.add_argument("--for", dest="time", metavar="TIME", help="end after this time: 1h, 30min")
    parser.add_argument("--service", action="store_true", help="as root: run as the machine's service (see --unit)")
    parser.add_argument("--export", action="store_true", help="also serve metrics, as gpuwatch export does")
    add_export_flags(parser)
    parser.add_argument("--unit", action="store_true", help="print a systemd unit for the machine's service")
    parser.add_argument("--remove", action="store_true", help="with --unit: print how to remove the service")


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Watch until a signal or `--for` ends the program, and return the exit code."""
    if args.unit or args.remove:
        return print_unit(args)
    if args.quiet and args.json:
        raise UsageError("--quiet and --json cannot be used together")
    exporting = [name for name in EXPORT_FLAGS if getattr(args, name) is not None]
    if exporting and not args.export:
        raise UsageError(f"--{exporting[0].replace('_', '-')} needs --export")
    if args.service:
        _serve(args)
    return run(args, sampler)


def run(args: argparse.Namespace, sampler: SamplerProcess | None, *, events: bool = True, record: bool = True) -> int:
    """Watch, print `events`, `record` and export; return the exit code."""
    seconds = parse_value("--for", parse_duration, args.time) if record else None
    if seconds == 0:
        raise UsageError("--for: 0 is not allowed; write a duration such as 30min or 1h")
    config = configured(args)
    interval, only = interval_of(args, config), parse_indices(args.gpu)
    recording = make_recording(args, config.limits()) if record else None
    with ExitStack() as stack:
        signals = stack.enter_context(_signals())
        output = _Output(args, config, signals, events=events)
        stack.callback(output.close)
        exporter = None
        if not record or args.export:
            try:
                exporter, where = start_export(args, config, stack)
            except UsageError as error:
                if not (record and args.service):  # the machine's service goes on without metrics
                    raise
                output.warn(f"no metrics: {error}")
        source = open_source(args, config, sampler, interval=interval, only=only, tmux=config.tmux)
        stack.callback(source.close)
        others = [one for one in (recording, exporter) if one is not None]
        engine = Engine(config.limits(), rules=(*RULES, RunFollower().rule))
        watch = Monitor(source, output.publish, engine=engine, sinks=others)
        sinks: Sinks | None = None
        try:
            if record:
                sinks = Sinks(watch, config, demo=args.demo, watch=True, part=bool(only), service=args.service)
                output.notes = _notes(args, "" if args.demo or only else str(own_store()), seconds)
            if exporter is not None and not output.quiet:  # at once: the driver may take long to answer
                output.warn(where)

            def apply(old: Config, new: Config) -> None:
                apply_config(watch, old, new)
                if sinks is not None:
                    sinks.configure(old, new)
                if exporter is not None:
                    exporter.allowances = new.allowance
                if args.interval is None and new.interval != old.interval:
                    watch.set_interval(interval_of(args, new))

            start_thread(watch)
            return output.serve(watch, Reloader(args, config, apply), seconds)
        finally:
            watch.stop()
            if watch.ident is not None:
                watch.join(_LAST_WORDS)
            if recording is not None:
                recording.close(_CLOSING)
            if sinks is not None:
                sinks.close(_CLOSING)


def _serve(args: argparse.Namespace) -> None:
    """Set up the machine's service: it reads only /etc, and records in /var/lib; raises UsageError."""
    given = [name for name in ("config", "gpu", "demo", "record") if getattr(args, name, None)]
    if given:
        raise UsageError(
            f"--service cannot be used with --{given[0]}: it watches all GPUs of this machine for everybody"
        )
    if os.geteuid():
        raise UsageError("--service: only root can serve everybody; `gpuwatch watch` records only for you")
    for name in [name for name in os.environ if name.startswith("SUDO_")]:
        del os.environ[name]
    os.environ |= {"XDG_CONFIG_HOME": str(ADMINISTRATORS.parent.parent), "XDG_STATE_HOME": str(DAYS)}


@contextmanager
def _signals() -> Iterator[SimpleQueue[signal.Signals | None]]:
    """Yield a queue of received signals; a signal that was ignored at the start (nohup) stays ignored.

    After a regular end all signals are ignored: a second SIGTERM during the exit would change the exit code, or
    interrupt other exit handlers.
    """
    signals: SimpleQueue[signal.Signals | None] = SimpleQueue()

    def put(number: int, _frame: FrameType | None) -> None:
        signals.put(signal.Signals(number))

    before = {number: signal.signal(number, put) for number in CODES if signal.getsignal(number) is not signal.SIG_IGN}
    try:
        yield signals
    except BaseException:  # its report may hang, and a signal must end that
        for number, handler in before.items():
            signal.signal(number, handler)
        raise
    for number in before:
        signal.signal(number, signal.SIG_IGN)


class _Output:
    """Output of the monitor's frames; the main thread waits for signals in `serve`."""

    def __init__(
        self,
        args: argparse.Namespace,
        config: Config,
        signals: SimpleQueue[signal.Signals | None],
        *,
        events: bool,
    ) -> None:
        self.notes: Sequence[str] = ()
        """Notes of the greeting."""
        self.quiet = events and args.quiet
        """Whether only what goes wrong is printed."""
        self._json = events and args.json
        self._events = events and not self.quiet
        self._console = BackgroundConsole(ascii_only=config.ascii)
        self._signals = signals
        self._troubles = TroubleFinder()
        self._lines = LineFormatter(color=self._console.color)
        self._greeted = self.quiet
        self._warned = False
        self._last: Frame | None = None
        self._terminals = [fd for fd in (0, 1, 2) if os.isatty(fd)]

    def publish(self, frame: Frame) -> None:
        """Print the changes and troubles of a frame; in the thread of the monitor."""
        for words in self._troubles.find(frame):
            self.warn(words)
        state = frame.snapshot.state
        if not self._greeted and state is SourceState.OK:
            self._greeted = True
            self.warn(greeting(frame, self.notes))
        for event in find_changes(frame):
            if self._json:
                document = {"at": event.at, "event": event.kind, "alert": event.alert}
                self._console.print_json(msgspec.json.encode(document).decode())
            elif self._events:
                self._console.print(self._lines.format(event))
        if self._console.unread and not self._warned and self._events:
            self._warned = True
            self.warn("nobody reads the output any more; gpuwatch continues")
        if state is SourceState.ENDED:
            self._last = frame
            self._signals.put(None)

    def warn(self, words: str) -> None:
        """Print a message on stderr."""
        self._console.warn(words)

    def serve(self, watch: Monitor, reloader: Reloader, seconds: float | None) -> int:
        """Wait for a signal or the time that ends the program; return its exit code, raise what ended the monitor."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        reloading = Worker("gpuwatch-reload", lambda: self._reload(reloader))  # reading files may hang
        while True:
            try:
                number = self._signals.get(timeout=max(0.0, min(_LOOK, until - time.monotonic())))
            except Empty:
                if time.monotonic() >= until:
                    return 0
                if watch.is_alive():
                    continue
                number = None
            if number is None:
                words = self._last.snapshot.words if self._last else f"gpuwatch stopped watching: {watch.failure!r}"
                raise UsageError(words) if watch.failure is None else GpuwatchError(words)
            if number is signal.SIGHUP and all(map(os.isatty, self._terminals)):  # else its terminal is lost
                try:
                    reloading.wake()
                except NoThreadError as error:
                    self.warn(f"configuration not changed: {error}")
                continue
            return CODES[number]

    def _reload(self, reloader: Reloader) -> None:
        try:
            read = reloader()
            words = format_reload(read, later=("tmux", *(f"export.{name}" for name in ExportConfig.__struct_fields__)))
            if read.config.notify.sends and not _has_network():
                words += (
                    f"; no message can be sent: the service's unit allows no network; print the unit again: {AGAIN}"
                )
        except Exception as error:  # noqa: BLE001 - the edge of the thread: whatever it is must reach the user
            words = f"configuration not changed: {type(error).__name__}: {error}"
        self.warn(words)

    def close(self) -> None:
        self._console.close(_LAST_WORDS)


def _has_network() -> bool:
    """Return whether sockets of the network can be opened, which RestrictAddressFamilies of a unit decides."""
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()
    except OSError:
        return False
    return True


# ---------------------------------------------------------------------------------------------------------------
# The exporter, with the flags and the keys of `[export]`

_PATHS: Final = ("web_config", "textfile")


def start_export(args: argparse.Namespace, config: Config, stack: ExitStack) -> tuple[Exporter, str]:
    """Listen, or write the file, until `stack` is closed; return the sink, and a line with the place of its metrics.

    Raises UsageError, which names the flag or the key.
    """
    settings = settings_of(args, config.export)
    if settings.textfile and settings.web_config:
        raise UsageError("--web-config needs --listen; --textfile opens no port")
    try:
        from gpuwatch.export.exporter import TEXTFILE, Exporter, Server, TextFile, parse_address
    except ImportError as error:
        raise UsageError(f"the metrics need {clean(str(error.name))}: {install_hint('export')}") from None
    sink = Exporter(per_process=settings.per_process, names=settings.names, allowances=config.allowance)
    try:
        if settings.textfile:
            folder = Path(settings.textfile).expanduser()
            if os.geteuid() == 0 and (unsafe := files.check_source(folder / TEXTFILE, missing_ok=True)):
                raise UsageError(f"--textfile: {unsafe}")
            stack.callback(TextFile(sink, folder).close, 0.2)
            return sink, f"metrics go to {clean(settings.textfile)}"
        web = Path(settings.web_config).expanduser() if settings.web_config else None
        server = Server(sink, *parse_address(settings.listen), web, settings.hosts)
        stack.callback(server.close)
        return sink, f"metrics are at {server.url}"
    except UsageError as error:  # it names the flag
        flag, colon, words = str(error).partition(":")
        key = flag.removeprefix("--").replace("-", "_")
        if getattr(config.export, key, "") != getattr(ExportConfig(), key, "") and getattr(args, key, None) is None:
            flag = f"export.{key} in the configuration"
        raise UsageError(f"{flag}{colon}{words}") from None


def settings_of(args: argparse.Namespace, configured: ExportConfig) -> ExportConfig:
    """Return the settings of `[export]` under the flags; raises UsageError, which names the flag."""
    given: dict[str, Any] = {
        name: read_flag(ExportConfig, name, str(Path(text).absolute()) if text and name in _PATHS else text)
        for name in EXPORT_FLAGS
        if (text := getattr(args, name, None)) is not None
    }
    if "listen" in given and "textfile" in given:
        raise UsageError("--listen and --textfile cannot be used together: node_exporter serves the file")
    if "listen" in given:
        given.setdefault("textfile", "")
    return replace(configured, **given)
