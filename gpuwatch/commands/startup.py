"""Setup that commands share: the configuration under the flags, a source of snapshots, the recording, the reload."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from gpuwatch.base.child import start_error
from gpuwatch.base.errors import GpuwatchError, UnavailableError, UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.units import MAX_INTERVAL_S, MIB, MIN_INTERVAL_S, parse_duration, parse_percent, parse_size
from gpuwatch.commands.flags import RECORDING, given_flags, parse_value
from gpuwatch.config import Reloaded, keys_in_files, load, reload
from gpuwatch.config.types import Config, Theme
from gpuwatch.model.snapshot import Snapshot, SourceState
from gpuwatch.sampler.protocol import SamplerOptions
from gpuwatch.sources.sampler_process import SAMPLER, SamplerProcess
from gpuwatch.sources.source import Source

if TYPE_CHECKING:  # what only some of the commands load: the history and the rules, the sampler's child or the demo
    from gpuwatch.alerts.limits import Limits
    from gpuwatch.model.filters import Grammar
    from gpuwatch.monitor import Monitor
    from gpuwatch.recorder.recording_writer import RecordingWriter

_PERCENTS: Final = ("memory_warning", "memory_critical")
"""Flags for keys of `[alerts]`."""

PATIENCE: Final = 30.0
"""Seconds to wait for a snapshot: longer than the sampler may take to start, so that an error names the driver."""


# ---------------------------------------------------------------------------------------------------------------
# Configuration


def configured(args: argparse.Namespace) -> Config:
    """Read the configuration file and put the flags over it; raises UsageError."""
    config = load(args.config)
    if args.theme not in (None, *get_args(Theme)):
        raise UsageError(f"--theme: there is no theme {args.theme!a}; write one of {', '.join(get_args(Theme))}")
    if args.user is not None and not args.user.strip():
        raise UsageError("--user: the name is empty; write --user ada, or omit it for everybody")
    flags = {name: getattr(args, name) for name in ("user", "mine", "read_only", "ascii", "theme", "bell")}
    percents = {
        name: parse_value(f"--{name.replace('_', '-')}", parse_percent, getattr(args, name)) for name in _PERCENTS
    }
    alerts = msgspec.structs.replace(config.alerts, **_given(percents))
    if _given(percents):
        from gpuwatch.config.keys import check_limits

        check_limits(alerts)
    return msgspec.structs.replace(config, alerts=alerts, **_given(flags))


def fixed_settings(args: argparse.Namespace) -> frozenset[str]:
    """Return the names of the settings that a flag or a configuration file has set; raises UsageError."""
    flags = {name for name in ("theme", "interval") if getattr(args, name, None) is not None}
    return keys_in_files(args.config) | flags


def _given(flags: Mapping[str, object]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None}


def check_filter_flag(args: argparse.Namespace, config: Config, grammar: Grammar[Any] | None = None) -> str:
    """Return the text of --filter, empty if it is not given; raises UsageError for a mistake in it.

    `grammar` is for another list than the processes.
    """
    from gpuwatch.model.filters import ROW_GRAMMAR, FilterError, parse_terms  # for the commands that have the flag

    words = clean(args.filter or "")
    try:
        parse_terms(words, grammar or ROW_GRAMMAR, config.filters, finished=True)
    except FilterError as error:
        raise UsageError(f"--filter: {error}") from None
    return words


def interval_of(args: argparse.Namespace, config: Config) -> float:
    """Return the seconds between two samples: `--interval` or the configured value; raises UsageError."""
    seconds = parse_value("--interval", parse_duration, args.interval)
    if seconds is not None and not MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_S:
        bounds = f"{MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} seconds is allowed"
        raise UsageError(f"--interval: {args.interval!a} is out of range; {bounds}")
    return config.interval if seconds is None else seconds


# ---------------------------------------------------------------------------------------------------------------
# Sources


def configured_sampler(
    child: SamplerProcess | None, options: Mapping[str, object], *, command: Sequence[str] = SAMPLER
) -> SamplerProcess:
    """Send the options to a sampler: to `child` if it waits for them, else to a new one; raises UnavailableError."""
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
    long_search: bool = False,
) -> Source:
    """Open the snapshots of this machine, or of the demo; raises UsageError and UnavailableError.

    With `once` there is a single snapshot; with `long_search` it waits longer for processes that are not listed.
    """
    if args.demo:
        from gpuwatch.sources.demo import GPUS, DemoSource

        if any(index >= GPUS for index in only):
            flag = "--gpu" if "gpu" in args else "only"  # in Python
            raise UsageError(f"{flag}: there is no GPU {max(only)}; the demo has 0 to {GPUS - 1}")
        return DemoSource(interval=interval, only=only)
    options = SamplerOptions(
        interval=interval,
        only=tuple(only),
        shares=config.shares,
        tmux=tmux,
        reservations=str(args.reservations or ""),
        once=once,
        long_search=long_search,
    )
    # Before the next import, which the sampler need not wait for.
    child = configured_sampler(sampler, msgspec.to_builtins(options))
    from gpuwatch.sources.local import LocalSource

    return LocalSource(msgspec.structs.replace(options, once=False, long_search=False), first=child)


def read_snapshot(
    args: argparse.Namespace,
    config: Config,
    sampler: SamplerProcess | None,
    *,
    tmux: bool = False,
    long_search: bool = False,
    required: bool = True,
) -> Snapshot:
    """Take one snapshot; raises UnavailableError without an answer of the driver, and without a `required` GPU."""
    source = open_source(args, config, sampler, tmux=tmux, once=True, long_search=long_search)
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
    """Wait for the first snapshot after the start of the source; raises UnavailableError if none comes.

    Every `look` seconds `check` is called, which may raise to end the wait.
    """
    end = monotonic() + PATIENCE
    while (left := end - monotonic()) > 0:
        snapshot = source.next(timeout=min(left, look))
        check()
        if snapshot is not None and snapshot.state is not SourceState.STARTING:
            return snapshot
    raise UnavailableError(f"the driver has not answered for {PATIENCE:.0f} s")


def snapshot_error(snapshot: Snapshot, *, python: bool = False) -> GpuwatchError | None:
    """Return the error of a snapshot without any GPU, in the words of the shell or of Python; None with GPUs."""
    if snapshot.state is SourceState.OK:
        return None
    if snapshot.state is SourceState.NO_DRIVER:
        return UnavailableError(f"{snapshot.words}; without a GPU, try: {'demo=True' if python else 'gpuwatch --demo'}")
    if snapshot.state is SourceState.ENDED:
        return UsageError(snapshot.words.replace("--gpu", "only") if python else snapshot.words)
    return UnavailableError(snapshot.words)


def check_snapshot(snapshot: Snapshot, *, python: bool = False) -> None:
    """Raise UnavailableError or UsageError if a snapshot has no visible GPU; `python` as in `snapshot_error`."""
    error = snapshot_error(snapshot, python=python)
    if error is not None:
        raise error


# ---------------------------------------------------------------------------------------------------------------
# The recording


def make_recording(args: argparse.Namespace, limits: Limits) -> RecordingWriter | None:
    """Return the writer that the flags ask for, None without `--record`; raises UsageError.

    The file is opened, or created. Its events are judged by `limits`.
    """
    if args.record is None:
        if given := given_flags(args, RECORDING):
            raise UsageError(f"{given[0]} needs --record FILE")
        return None
    if args.record_commands and args.anonymise:
        raise UsageError("--record-commands and --anonymise cannot be used together")
    if not args.record:
        raise UsageError("--record: the file name is missing")
    from gpuwatch.recorder.anonymise import Commands  # for those who record
    from gpuwatch.recorder.recording_writer import SIZE, RecordingWriter

    size = parse_value("--record-size", _parse_limit, args.record_size)
    return RecordingWriter(
        Path(args.record),
        size=SIZE if size is None else int(size),
        limits=limits,
        commands=Commands.ANONYMISED if args.anonymise else Commands.ALL if args.record_commands else Commands.NAMES,
    )


def _parse_limit(text: str) -> int:
    """Parse a size of at least 1 MiB, or 0 for none; raises ValueError."""
    if text.strip() == "0":
        return 0
    size = parse_size(text)
    if size < MIB:
        raise ValueError(f"size {text!a} is too small; 1MiB or more is allowed, or 0 for no limit")
    return size


# ---------------------------------------------------------------------------------------------------------------
# The configuration, read again


class Reloader:
    """Function that reads the configuration again under the same flags, and applies it; from one thread at a time."""

    def __init__(self, args: argparse.Namespace, config: Config, apply: Callable[[Config, Config], None]) -> None:
        """`apply` is called with the old and the new configuration, if the new one has no mistake."""
        self.config = config
        """Configuration in effect."""
        self._args, self._apply = args, apply

    def __call__(self) -> Reloaded:
        """Read the configuration; with a mistake the old one stays, and the result has the error."""
        reloaded = reload(self.config, lambda: configured(self._args))
        if not reloaded.error and reloaded.changed:
            self._apply(self.config, reloaded.config)
            self.config = reloaded.config
        return reloaded


def apply_config(monitor: Monitor, old: Config, new: Config) -> None:
    if new.limits() != old.limits():
        monitor.set_limits(new.limits())
    if new.shares != old.shares:
        monitor.set_shares(new.shares)


def format_reload(reloaded: Reloaded, later: Collection[str] = ()) -> str:
    """Format the result of reading the configuration again; `later` are keys that apply from the next start."""
    if reloaded.error:
        return f"configuration not changed: {reloaded.error}"
    if not reloaded.changed:
        return "configuration reloaded: nothing has changed"
    waiting = [name for name in reloaded.changed if name in later]
    words = f"configuration reloaded: {', '.join(reloaded.changed)} changed"
    return f"{words} (restart gpuwatch to apply: {', '.join(waiting)})" if waiting else words
