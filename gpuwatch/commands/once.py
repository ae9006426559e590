"""`gpuwatch --once`: prints one snapshot. The sampler begins before the table's modules are imported."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gpuwatch.commands.flags import parse_indices
from gpuwatch.commands.startup import check_snapshot, configured, interval_of, open_source

if TYPE_CHECKING:  # the demo needs no child
    from gpuwatch.sources.sampler_process import SamplerProcess


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print one snapshot and return the exit code."""
    if args.recording:
        return _recorded(args)
    only = parse_indices(args.gpu)
    config = configured(args)
    interval = interval_of(args, config)
    source = open_source(args, config, sampler, interval=interval, only=only, tmux=config.tmux, once=True)
    try:
        from gpuwatch.commands.console import Console  # while the sampler reads
        from gpuwatch.commands.snapshot_table import once, parse_filter

        keep = parse_filter(args, config)
        return once(source, Console(ascii_only=config.ascii), as_json=args.json, keep=keep, limits=config.limits())
    finally:
        source.close()


def _recorded(args: argparse.Namespace) -> int:
    """Print one snapshot of a recording: the one at `--at`, or the last."""
    from gpuwatch.commands import recorded  # SQLite and more, which the snapshot of this machine does without
    from gpuwatch.commands.console import Console
    from gpuwatch.commands.snapshot_table import parse_filter, print_snapshot

    config = configured(args)
    keep = parse_filter(args, config)
    console = Console(ascii_only=config.ascii)
    recording = recorded.open_recording(args.recording)
    at = recorded.parse_at(args.at, recording) if args.at is not None else recording.last
    snapshot, warning = recorded.recorded_snapshot(recording, at)
    print_snapshot(snapshot, console, as_json=args.json, keep=keep, limits=config.limits())
    console.warn(*recording.notes, *[warning] * bool(warning))
    check_snapshot(snapshot)
    return 0
