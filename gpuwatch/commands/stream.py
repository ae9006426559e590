"""`gpuwatch --stream`: one JSON line per snapshot until interrupted; `--stream=live`: a line of status each second."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from gpuwatch.alerts.engine import Engine
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import parse_indices, parse_value
from gpuwatch.commands.startup import check_snapshot, configured, interval_of, open_source
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.config import Config
from gpuwatch.model import Snapshot, SourceState, encode
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.live_writer import make_status
from gpuwatch.sources.sampler_process import SamplerProcess
from gpuwatch.sources.source import Source
from gpuwatch.threads import start_thread
from gpuwatch.units import parse_duration

_PACE: Final = 1.0
"""Seconds between two lines of status."""
_FIRST: Final = 0.05
"""Seconds between two looks for the first frame."""
_LAST: Final = 1.0
"""Seconds that a write may take to end once nobody reads any more."""


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print lines until the reader closes; raises UnavailableError where there is no driver from the start."""
    only = parse_indices(args.only)
    keepalive = parse_value("--keepalive", parse_duration, args.keepalive)
    config = configured(args)
    source = open_source(args, config, sampler, interval=interval_of(args, config), only=only, tmux=config.tmux)
    console, began = Console(), False
    unread = threading.Event()
    try:
        if keepalive:
            start_thread(threading.Thread(target=_end_unread, args=(keepalive, unread, source), daemon=True))
        for snapshot, line in (_statuses if args.stream == "live" else _snapshots)(source, config, unread):
            console.print_bytes(line + b"\n")
            began = began or snapshot.state is SourceState.OK
            # A driver that goes away later is waited for.
            if snapshot.state is SourceState.ENDED or (snapshot.state is SourceState.NO_DRIVER and not began):
                check_snapshot(snapshot)
        return 0
    finally:
        source.close()


def _snapshots(source: Source, _config: Config, unread: threading.Event) -> Iterator[tuple[Snapshot, bytes]]:
    """Yield each snapshot, and its line."""
    while not unread.is_set():
        snapshot = source.next(timeout=60.0)
        if snapshot is not None:
            yield snapshot, encode(snapshot)


def _statuses(source: Source, config: Config, unread: threading.Event) -> Iterator[tuple[Snapshot, bytes]]:
    """Yield each second the newest snapshot, and the line of its status with the alerts of this machine's rules."""
    monitor = Monitor(source, lambda frame: None, engine=Engine(config.limits()), known_idle=idle_times)
    start_thread(monitor)
    due = time.monotonic()
    try:
        while not unread.wait(_FIRST if monitor.newest is None else max(0.0, due - time.monotonic())):
            frame = monitor.newest
            if frame is None:
                continue
            due = max(due + _PACE, time.monotonic())
            status = make_status(frame.snapshot, frame.alerts, frame.received)
            # The difference to `sampled` is the age of the figures: no clock of another machine is needed for it.
            yield frame.snapshot, msgspec.json.encode(msgspec.structs.replace(status, monotonic=time.monotonic()))
    finally:
        monitor.stop()


def _end_unread(seconds: float, unread: threading.Event, source: Source) -> None:
    """End this program when stdin ends, or brings nothing for some seconds.

    A connection that breaks without a word closes neither stdin nor stdout, and a write to it waits for ever.
    """
    poller = select.poll()
    poller.register(0, select.POLLIN)
    with contextlib.suppress(OSError):
        while poller.poll(seconds * 1000) and os.read(0, 4096):
            pass
    unread.set()
    source.close()
    time.sleep(_LAST)
    os._exit(0)
