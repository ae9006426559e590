"""`gpuwatch status`: one short line for a status bar, from the figures of a `gpuwatch watch` or from one sample."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Final

from gpuwatch.errors import UsageError
from gpuwatch.output.plain import in_ascii, json_in_ascii, speaks_unicode
from gpuwatch.output.status import exit_code, status_line
from gpuwatch.recorder.status_file import Newest, read_newest
from gpuwatch.sources.child import ONE_SAMPLE, UNDECLARED
from gpuwatch.wiring import configured, ordered, source_of

if TYPE_CHECKING:
    from gpuwatch.config import Config
    from gpuwatch.sources.child import Child

_PATIENCE: Final = 3.0
"""Seconds that a sample is waited for: a driver that hangs must not hang the status bar too."""


def main(args: argparse.Namespace, sampler: Child | None) -> int:
    """Print the line and give its exit code; `sampler` is one that takes a sample already, or waits for its orders."""
    if args.tmux and args.json:
        raise UsageError("--tmux and --json exclude each other")
    damaged: list[str] = []
    found = None if args.demo else read_newest(warn=damaged.append)
    if found is None and not args.demo and (sampler is None or not sampler.has_orders):
        sampler = ordered(sampler, ONE_SAMPLE, command=UNDECLARED)
    config = configured(args)
    if found is None:
        found = _sampled(None if args.demo else sampler, config)
    for words in damaged:
        said = in_ascii(words) if config.ascii or not speaks_unicode(sys.stderr) else words
        sys.stderr.write(f"gpuwatch: {said}; this is a sample of its own\n")
    if args.json:
        import msgspec

        shown = msgspec.structs.replace(found, resting=())  # these are for `gpuwatch strays` alone
        line = json_in_ascii(msgspec.json.encode(shown).decode())
    else:
        line = status_line(found, time.monotonic(), tmux=args.tmux)
        if config.ascii or not speaks_unicode(sys.stdout):
            line = in_ascii(line)
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
    return exit_code(found)


def _sampled(sampler: Child | None, config: Config) -> Newest:
    """Take one sample and judge it as if it had held for long; what processes declared is not read for it."""
    import msgspec

    from gpuwatch.alerts.engine import Engine
    from gpuwatch.history import History
    from gpuwatch.model import SourceState
    from gpuwatch.recorder.status_file import newest

    source = source_of(sampler, 1.0, (), config)
    try:
        end = time.monotonic() + _PATIENCE
        while True:
            snapshot = source.next(max(0.0, end - time.monotonic()))
            now = time.monotonic()
            if snapshot is not None and snapshot.state is not SourceState.STARTING:
                break
            if now >= end:
                return Newest(state=SourceState.SILENT)
    finally:
        source.close()
    if snapshot.state is SourceState.ENDED:
        raise UsageError(snapshot.words)
    limits = config.limits()
    at_once = msgspec.structs.replace(limits.allowances, after=0.0)
    limits = msgspec.structs.replace(limits, samples=1, quiet=0.0, memory_for=0.0, allowances=at_once)
    alerts = Engine(limits).update(snapshot, History().add(snapshot, now), now, time.time()).active
    return newest(snapshot, alerts, now)
