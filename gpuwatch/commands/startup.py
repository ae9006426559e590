"""Setup that commands share: the configuration under the flags, a source of snapshots, the sinks, the reload."""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from gpuwatch.child import start_error
from gpuwatch.commands.flags import parse_value
from gpuwatch.config import Config, Reloaded, load, reload
from gpuwatch.errors import GpuwatchError, UnavailableError, UsageError
from gpuwatch.model import Snapshot, SourceState
from gpuwatch.sampler.protocol import Options
from gpuwatch.sources.sampler_process import SAMPLER, SamplerProcess
from gpuwatch.sources.source import Source
from gpuwatch.units import parse_interval, parse_percent

if TYPE_CHECKING:  # what only some of the commands load: the history and the rules, the sampler's child or the demo
    from gpuwatch.monitor import Monitor, Sink
    from gpuwatch.recorder.leader_lock import Turn
    from gpuwatch.recorder.notify import Manner, Messenger
    from gpuwatch.recorder.usage import UsageKeeper, Wish

_PERCENTS: Final = ("memory_warning", "memory_critical")
"""Flags that stand for keys of `[alerts]`."""

PATIENCE: Final = 30.0
"""Seconds: longer than the sampler is given to start, so that the words are about the driver and not about us."""


# ---------------------------------------------------------------------------------------------------------------
# Configuration


def configured(args: argparse.Namespace) -> Config:
    """Read the configuration file and put the flags over it; raises UsageError."""
    config = load(args.config)
    if args.theme not in (None, "dark", "light"):
        raise UsageError(f"--theme: there is no theme {args.theme!a}; dark and light are allowed")
    flags = {name: getattr(args, name) for name in ("user", "mine", "read_only", "ascii", "theme", "bell")}
    percents = {
        name: parse_value(f"--{name.replace('_', '-')}", parse_percent, getattr(args, name)) for name in _PERCENTS
    }
    alerts = msgspec.structs.replace(config.alerts, **_given(percents))
    if _given(percents):
        from gpuwatch.config.keys import check_limits

        check_limits(alerts)
    return msgspec.structs.replace(config, alerts=alerts, **_given(flags))


def _given(flags: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def interval_of(args: argparse.Namespace, config: Config) -> float:
    """Return the seconds between two samples; a flag beats the file."""
    return parse_value("--interval", parse_interval, args.interval) or config.interval


# ---------------------------------------------------------------------------------------------------------------
# Sources


def configured_sampler(
    child: SamplerProcess | None, options: Mapping[str, object], *, command: Sequence[str] = SAMPLER
) -> SamplerProcess:
    """Send a sampler its options: one that waits for them, or else a new one; raises UnavailableError."""
    if child is None or child.is_configured:
        try:
            child = SamplerProcess(command=command)
        except OSError as error:  # no memory, no room for a process
            raise UnavailableError(f"the sampler cannot be started: {start_error(error)}") from None
    child.configure(options)
    return child


def open_source(
    args: argparse.Namespace,
    config: Config,
    sampler: SamplerProcess | None,
    *,
    interval: float = 1.0,
    only: Sequence[int] = (),
    tmux: bool = False,
    once: bool = False,
    patient: bool = False,
) -> Source:
    """Open the snapshots of this machine, or of the demo; raises UsageError and UnavailableError.

    With `once` there is a single one; a `patient` one waits for the search of processes that are not listed.
    """
    if args.demo:
        from gpuwatch.sources.demo import GPUS, DemoSource

        if any(index >= GPUS for index in only):
            raise UsageError(f"--only: there is no GPU {max(only)}; the demo has 0 to {GPUS - 1}")
        return DemoSource(interval=interval, only=only)
    options = Options(
        interval=interval,
        only=tuple(only),
        shares=config.shares,
        tmux=tmux,
        reservations=str(args.reservations or ""),
        once=once,
        patient=patient,
    )
    # Before the next import, which the sampler need not wait for.
    child = configured_sampler(sampler, msgspec.to_builtins(options))
    from gpuwatch.sources.local import LocalSource

    return LocalSource(msgspec.structs.replace(options, once=False, patient=False), first=child)


def read_snapshot(
    args: argparse.Namespace,
    config: Config,
    sampler: SamplerProcess | None,
    *,
    tmux: bool = False,
    patient: bool = False,
    required: bool = True,
) -> Snapshot:
    """Take one snapshot; raises UnavailableError without an answer of the driver, and without a `required` GPU."""
    source = open_source(args, config, sampler, tmux=tmux, once=True, patient=patient)
    try:
        snapshot = first_snapshot(source)
    finally:
        source.close()
    if required:
        check_snapshot(snapshot)
    return snapshot


def first_snapshot(
    source: Source,
    monotonic: Callable[[], float] = time.monotonic,
    *,
    look: float = PATIENCE,
    check: Callable[[], None] = lambda: None,
) -> Snapshot:
    """Wait for the first snapshot that says something; raises UnavailableError where none comes.

    Every `look` seconds `check` is called, which may raise to end the wait.
    """
    end = monotonic() + PATIENCE
    while (left := end - monotonic()) > 0:
        snapshot = source.next(timeout=min(left, look))
        check()
        if snapshot is not None and snapshot.state is not SourceState.STARTING:
            return snapshot
    raise UnavailableError(f"the driver has not answered for {PATIENCE:.0f} s")


def snapshot_error(snapshot: Snapshot) -> GpuwatchError | None:
    """Return the error that a snapshot without any GPU stands for; None where all is well."""
    if snapshot.state is SourceState.OK:
        return None
    return (UsageError if snapshot.state is SourceState.ENDED else UnavailableError)(snapshot.words)


def check_snapshot(snapshot: Snapshot) -> None:
    """Raise UnavailableError or UsageError where a snapshot has no GPU to see."""
    error = snapshot_error(snapshot)
    if error is not None:
        raise error


# ---------------------------------------------------------------------------------------------------------------
# Who hears of what happens


class Ways:
    """All that a run tells besides the screen: the events log, what was acknowledged, messages, the newest figures.

    The demo tells nobody: its troubles are made up. Only a log that was named is written.
    """

    def __init__(
        self,
        watch: Monitor,
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
        from gpuwatch.recorder.events_log import own_log

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
        """Return whether we are the one who sends; one that has nobody to tell leaves it to others."""
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


def _manner(config: Config) -> Manner:
    from gpuwatch.recorder.notify import Manner

    notify = config.notify
    return Manner(least=notify.least, cooldown=notify.cooldown, gather=notify.gather, digest=notify.digest)


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
        came = reload(self.config, lambda: configured(self._args))
        if not came.error and came.changed:
            self._apply(self.config, came.config)
            self.config = came.config
        return came


def applied(watch: Monitor, ways: Ways, old: Config, new: Config) -> None:
    """Let the watch, its source and the messages go by a new configuration."""
    if new.limits() != old.limits():
        watch.set_limits(new.limits())
    if new.shares != old.shares:
        watch.set_shares(new.shares)
    ways.settle(old, new)


def said(came: Reloaded, later: Collection[str] = ()) -> str:
    """Format what came of reading the configuration again; `later` are keys that count from the next start."""
    if came.error:
        return f"configuration not changed: {came.error}"
    if not came.changed:
        return "configuration read again: nothing has changed"
    waiting = [name for name in came.changed if name in later]
    words = f"configuration read again: {', '.join(came.changed)} changed"
    return f"{words} (from the next start on: {', '.join(waiting)})" if waiting else words
