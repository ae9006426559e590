"""What the command line, the dashboard and `gpuwatch watch` put together alike: configuration, source, sinks, reload.

What is heavy is imported inside the function that needs it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from gpuwatch.errors import UnavailableError, UsageError
from gpuwatch.threads import child_error
from gpuwatch.units import parse_interval, parse_percent

if TYPE_CHECKING:  # msgspec takes 24 ms, which the sampler's start need not wait for
    import argparse
    from pathlib import Path

    from gpuwatch.alerts.alert import Alert
    from gpuwatch.config import Config, Reloaded
    from gpuwatch.monitor import Sink, Watch
    from gpuwatch.recorder.leader_lock import Turn
    from gpuwatch.recorder.notify import Manner, Messenger
    from gpuwatch.recorder.usage import UsageKeeper, Wish
    from gpuwatch.sources.child import Child
    from gpuwatch.sources.source import Source

_PERCENTS: Final = ("memory_warning", "memory_critical")
"""Flags that stand for keys of `[alerts]`."""


# ---------------------------------------------------------------------------------------------------------------
# What the user asked for


def configured(args: argparse.Namespace) -> Config:
    """Read the configuration file and put the flags over it; raises UsageError."""
    import msgspec

    from gpuwatch.config import load

    config = load(args.config)
    if args.theme not in (None, "dark", "light"):
        raise UsageError(f"--theme: there is no theme {args.theme!a}; dark and light are allowed")
    flags = {name: getattr(args, name) for name in ("user", "mine", "read_only", "ascii", "theme", "bell")}
    percents = {name: parsed(f"--{name.replace('_', '-')}", parse_percent, getattr(args, name)) for name in _PERCENTS}
    alerts = msgspec.structs.replace(config.alerts, **_given(percents))
    if _given(percents):
        from gpuwatch.config.keys import check_limits

        check_limits(alerts)
    return msgspec.structs.replace(config, alerts=alerts, **_given(flags))


def _given(flags: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def parsed(flag: str, parse: Callable[[str], float], text: str | None) -> float | None:
    """Understand a flag's value, None where it was not given; raises UsageError."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def indices(text: str | None, flag: str = "--only") -> tuple[int, ...]:
    """Understand a flag's list of GPU indices, empty for all; raises UsageError."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise UsageError(f"{flag}: {text[:40]!a} is no list of GPU indices; write 3 or 0,2")
    return tuple(sorted({int(part) for part in parts}))


def check_interval(args: argparse.Namespace) -> None:
    """Raise UsageError where --interval is none, before anything is read."""
    parsed("--interval", parse_interval, args.interval)


def interval_of(args: argparse.Namespace, config: Config) -> float:
    """Give the seconds between two samples; a flag beats the file."""
    return parsed("--interval", parse_interval, args.interval) or config.interval


# ---------------------------------------------------------------------------------------------------------------
# Sources


def ordered(child: Child | None, arguments: Sequence[str], *, command: Sequence[str] | None = None) -> Child:
    """Give a sampler its orders: one that waits for them, or else a new one; raises UnavailableError."""
    from gpuwatch.sources.child import SAMPLER, Child

    if child is None or child.has_orders:
        try:
            child = Child(command=command or SAMPLER)
        except OSError as error:  # no memory, no room for a process
            raise UnavailableError(f"the sampler cannot be started: {child_error(error)}") from None
    child.order(arguments)
    return child


def source_of(
    child: Child | None, interval: float, only: Sequence[int], config: Config, reservations: Path | None = None
) -> Source:
    """Give the snapshots of a sampler that has its orders; without one, which only `--demo` asks for, the demo's.

    `reservations` is the folder of all users' reservations where it is not the machine's own.
    """
    if child is None:
        from gpuwatch.sources.demo import GPUS, DemoSource

        if any(index >= GPUS for index in only):
            raise UsageError(f"--only: there is no GPU {max(only)}; the demo has 0 to {GPUS - 1}")
        return DemoSource(interval=interval, only=only)
    from gpuwatch.sources.local import LocalSource

    return LocalSource(
        interval=interval, only=only, shares=config.shares, tmux=config.tmux, reservations=reservations, first=child
    )


# ---------------------------------------------------------------------------------------------------------------
# Who hears of what happens


class Ways:
    """All that a run tells besides the screen: the events log, what was acknowledged, messages, the newest figures.

    The demo tells nobody: its troubles are made up. Only a log that was named is written.
    """

    def __init__(
        self,
        watch: Watch,
        *,
        demo: bool = False,
        events: Path | None = None,
        newest: bool = False,
        keeps: bool = False,
        only: Collection[int] = (),
    ) -> None:
        """`events` is a log to write in place of the user's own; `newest` is what `gpuwatch status` reads.

        With `keeps`, what `gpuwatch report` is made from is kept, whatever the configuration says of the dashboard.
        `only` are the indices of the GPUs that are watched, empty for all: of others nothing is known.
        """
        self._watch, self._demo, self._events, self._newest, self._only = watch, demo, events, newest, only
        self._keeps = keeps
        self._sinks: list[Sink] = []
        self._messenger: Messenger | None = None
        self._keeper: UsageKeeper | None = None
        self._turn: Turn | None = None
        self._tells = False
        """Whether there is a way out to send messages by."""
        self._lock = threading.Lock()
        self._closed = False

    @property
    def log(self) -> Path | None:
        """Where the events go; None where they go nowhere."""
        return self._events or (None if self._demo else own_log())

    def open(self, config: Config) -> None:
        """Make the sinks and let the watch tell them; raises UsageError where the log that was named is something else.

        Nothing is lost where this comes after the watch has started: it raises no alert in its first seconds.
        """
        with self._lock:
            if not self._closed:
                self._open(config)

    def _open(self, config: Config) -> None:
        log = None
        if self.log is not None:
            from gpuwatch.recorder.event_writer import EventsLog

            log = EventsLog(path=self._events, restore=self._watch.restore, only=self._only)
            self._sinks.append(log)
        if log is not None and not self._demo:
            from gpuwatch.recorder.attention import AttentionFile
            from gpuwatch.recorder.delivery import outlets
            from gpuwatch.recorder.leader_lock import Turn
            from gpuwatch.recorder.notify import Messenger, Plan

            self._sinks.append(AttentionFile(attend=self._watch.attend))
            ways_out = outlets(config.notify.command, config.notify.urls)
            self._turn, self._tells = Turn(), bool(ways_out)
            self._messenger = Messenger(Plan(_manner(config)), ways_out, is_allowed=self._is_our_turn)
            self._sinks.append(self._messenger)
        if self._newest and not self._demo:
            from gpuwatch.recorder.status_file import NewestFile

            self._sinks.append(NewestFile())
        if not self._demo:
            from gpuwatch.recorder.usage import UsageKeeper

            self._keeper = UsageKeeper(self._kept(config))
            self._sinks.append(self._keeper)
        self._watch.add(*self._sinks)
        if log is not None:
            log.start()  # what held when somebody last watched is to be known before the first snapshot is judged

    def _kept(self, config: Config) -> Wish:
        from gpuwatch.recorder.usage import Wish

        report = config.report
        return Wish(self._keeps or report.dashboard, report.keep, report.largest)

    def _is_our_turn(self) -> bool:
        """Say whether we are the one who sends; one that has nobody to tell leaves it to others."""
        if self._turn is None or self._tells:
            return self._turn is None or self._turn()
        self._turn.release()
        return False

    def settle(self, old: Config, new: Config) -> None:
        """Go by another configuration from now on."""
        if self._messenger is not None and new.notify != old.notify:
            from gpuwatch.recorder.delivery import outlets

            ways_out = outlets(new.notify.command, new.notify.urls)
            self._tells = bool(ways_out)
            self._messenger.settle(_manner(new), ways_out)
        if self._keeper is not None and new.report != old.report:
            self._keeper.settle(self._kept(new))

    def close(self, seconds: float) -> None:
        """Let each finish what is under way, the log last; give up after so many seconds."""
        end = time.monotonic() + seconds
        if not self._lock.acquire(timeout=seconds / 2):
            return  # they are being made, and hang in that: nothing has been told yet
        self._closed = True
        self._lock.release()
        sinks = list(reversed(self._sinks))
        for number, sink in enumerate(sinks):
            sink.close(max(0.0, end - time.monotonic()) / (len(sinks) - number))
        if self._turn is not None:
            self._turn.release()


def own_log() -> Path:
    """Give the place of the user's own events log."""
    from gpuwatch.kill.audit import state_folder
    from gpuwatch.recorder.events_log import log_name

    return state_folder() / log_name()


def _manner(config: Config) -> Manner:
    from gpuwatch.recorder.notify import Manner

    notify = config.notify
    return Manner(least=notify.least, cooldown=notify.cooldown, gather=notify.gather, digest=notify.digest)


def record(at: float, kind: str, alert: Alert) -> str:
    """Give an event as a line of the events log."""
    from gpuwatch.recorder.events_log import Event, Record, encode

    return encode(Record(at=at, event=Event(kind), alert=alert)).decode().rstrip("\n")


# ---------------------------------------------------------------------------------------------------------------
# The configuration, read again


class Reloader:
    """Reads the configuration again, the same flags over it, and has it applied; from one thread at a time."""

    def __init__(self, args: argparse.Namespace, config: Config, apply: Callable[[Config, Config], None]) -> None:
        """`apply` is handed the old and the new one, where the new one is good."""
        self.config = config
        """What holds now."""
        self._args, self._apply = args, apply

    def __call__(self) -> Reloaded:
        """Read it; what is wrong with it is in the answer, and the old one stays."""
        from gpuwatch.config import reload

        came = reload(self.config, lambda: configured(self._args))
        if not came.error and came.changed:
            self._apply(self.config, came.config)
            self.config = came.config
        return came


def applied(watch: Watch, ways: Ways, old: Config, new: Config) -> None:
    """Let the watch, its source and the messages go by a new configuration."""
    if new.limits() != old.limits():
        watch.set_limits(new.limits())
    if new.shares != old.shares:
        watch.set_shares(new.shares)
    ways.settle(old, new)


def said(came: Reloaded, later: Collection[str] = ()) -> str:
    """Say in one line what came of reading the configuration again; `later` are keys that count from the next start."""
    if came.error:
        return f"configuration not changed: {came.error}"
    if not came.changed:
        return "configuration read again: nothing has changed"
    waiting = [name for name in came.changed if name in later]
    words = f"configuration read again: {', '.join(came.changed)} changed"
    return f"{words} (from the next start on: {', '.join(waiting)})" if waiting else words
