"""`gpuwatch --stream`: one JSON line per snapshot until interrupted."""

from __future__ import annotations

import argparse

from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import parse_indices
from gpuwatch.commands.startup import check_snapshot, configured, interval_of, open_source
from gpuwatch.model import SourceState, encode
from gpuwatch.sources.sampler_process import SamplerProcess


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print snapshots until the reader closes; raises UnavailableError where there is no driver from the start."""
    only = parse_indices(args.only)
    config = configured(args)
    source = open_source(args, config, sampler, interval=interval_of(args, config), only=only, tmux=config.tmux)
    console, began = Console(), False
    try:
        while True:
            snapshot = source.next(timeout=60.0)
            if snapshot is None:
                continue
            console.print_bytes(encode(snapshot) + b"\n")
            began = began or snapshot.state is SourceState.OK
            # A driver that goes away later is waited for.
            if snapshot.state is SourceState.ENDED or (snapshot.state is SourceState.NO_DRIVER and not began):
                check_snapshot(snapshot)
    finally:
        source.close()
