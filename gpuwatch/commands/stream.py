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
from gpuwatch.base.threads import start_thread
from gpuwatch.base.units import parse_duration
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import parse_indices, parse_value
from gpuwatch.commands.startup import check_snapshot, configured, interval_of, open_source
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.config.types import Config
from gpuwatch.model.snapshot import Snapshot, SourceState, encode
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.live_writer import make_status
from gpuwatch.sources.sampler_process import SamplerProcess
from gpuwatch.sources.source import Source

_PACE: Final = 1.0
"""Seconds between two lines of status."""
_FIRST: Final = 0.05
"""Seconds between two looks for the first frame."""
_LAST: Final = 1.0
"""Seconds that a write may take to end after the reader has gone."""


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print lines until the reader closes; raises UnavailableError without a driver at the start."""
    only = parse_indices(args.gpu)
    keepalive = parse_value("--keepalive", parse_duration, args.keepalive)
    config = configured(args)
    source = open_source(args, config, sampler, interval=interval_of(args, config), only=only, tmux=config.tmux)
    console, began = Console(), False
    reader = StreamReader(source, keepalive)
    try:
        if keepalive:
            start_thread(reader)
        for snapshot, line in (_statuses if args.stream == "live" else _snapshots)(source, config, reader.gone):
            if reader.asked.is_set() or not reader.asks:
                reader.asked.clear()
                console.print_bytes(line + b"\n")
            began = began or snapshot.state is SourceState.OK
            # A driver that goes away later is waited for.
            if snapshot.state is SourceState.ENDED or (snapshot.state is SourceState.NO_DRIVER and not began):
                check_snapshot(snapshot)
        return 0
    finally:
        source.close()


def _snapshots(source: Source, _config: Config, gone: threading.Event) -> Iterator[tuple[Snapshot, bytes]]:
    """Yield each snapshot, and its line."""
    while not gone.is_set():
        snapshot = source.next(timeout=60.0)
        if snapshot is not None:
            yield snapshot, encode(snapshot)


def _statuses(source: Source, config: Config, gone: threading.Event) -> Iterator[tuple[Snapshot, bytes]]:
    """Yield each second the newest snapshot, and the line of its status with the alerts of this machine's rules."""
    monitor = Monitor(source, engine=Engine(config.limits()), known_idle=idle_times)
    start_thread(monitor)
    due = time.monotonic()
    try:
        while not gone.wait(_FIRST if monitor.newest is None else max(0.0, due - time.monotonic())):
            frame = monitor.newest
            if frame is None:
                continue
            due = max(due + _PACE, time.monotonic())
            status = make_status(frame.snapshot, frame.alerts, frame.received)
            # The difference to `sampled` is the age of the figures: no clock of another machine is needed for it.
            yield frame.snapshot, msgspec.json.encode(msgspec.structs.replace(status, monotonic=time.monotonic()))
    finally:
        monitor.stop()


class StreamReader(threading.Thread):
    """Thread that reads signs of life from the reader of the lines, and ends the program when they stop.

    A connection that breaks silently closes neither stdin nor stdout, and a write to it waits for ever. A reader that
    asks for each line by a `.` then gets the newest one: lines that wait in a slow network are old on arrival.
    """

    def __init__(self, source: Source, patience: float | None) -> None:
        """`patience` are the seconds without a sign of life after which the program ends."""
        super().__init__(name="gpuwatch-reader", daemon=True)
        self._source, self._patience = source, patience or 0.0
        self.gone = threading.Event()
        self.asks = False
        """Whether it asks for lines; one that does not ask gets each line."""
        self.asked = threading.Event()
        """Set while a line is asked for that was not sent yet."""

    def run(self) -> None:
        poller = select.poll()
        poller.register(0, select.POLLIN)
        with contextlib.suppress(OSError):
            while poller.poll(self._patience * 1000) and (signs := os.read(0, 4096)):
                if b"." in signs:
                    self.asks = True
                    self.asked.set()
        self.gone.set()
        self._source.close()
        time.sleep(_LAST)
        os._exit(0)
