"""`gpuwatch replay FILE…`: a recording in the dashboard, with keys that move through it; `--copy TO` copies it."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.threads import start_thread
from gpuwatch.commands.dashboard import check_terminal
from gpuwatch.commands.dashboard_setup import dashboard_options, prepare_memory
from gpuwatch.commands.flags import add_flags, given_flags
from gpuwatch.commands.recorded import open_recording, parse_at
from gpuwatch.commands.startup import check_filter_flag, configured, fixed_settings
from gpuwatch.monitor import Monitor
from gpuwatch.recorder.opening import copy_store
from gpuwatch.recorder.recording import explained
from gpuwatch.recorder.replay import Replay
from gpuwatch.ui.choices import read_choices


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "theme", "filter")
    parser.add_argument("files", metavar="FILE", nargs="+", help="a recording; several are played as one")
    parser.add_argument("--at", metavar="TIME", help="begin at 03:10, 03:10:22 or '2026-11-21 03:10'")
    parser.add_argument("--copy", metavar="TO", help="copy FILE instead, even while it is written; TO must not exist")


def main(args: argparse.Namespace, _sampler: object = None) -> int:
    """Show the recording until the user leaves it, and return the exit code; raises UsageError."""
    if args.copy is not None:
        return _copy(args)
    config = configured(args)
    first_filter = check_filter_flag(args, config)
    recording = open_recording(args.files)
    replay = Replay(recording, limits=config.limits(), at=parse_at(args.at, recording) if args.at else None)
    if next(recording.snapshots(recording.first), None) is None:
        raise UsageError(f"{clean(args.files[0])}: no snapshot can be read")
    check_terminal()
    watch = Monitor(replay, clock=replay.now, wall=replay.now, slept=lambda: 0.0)
    replay.restart = watch.restart
    prepare_memory()
    start_thread(watch)
    try:
        from gpuwatch.ui.replay import ReplayApp  # Textual, while the first snapshot is read

        remembered = read_choices(fixed_settings(args))
        options = remembered.over(dashboard_options(config, config.interval, first_filter=first_filter))
        app = ReplayApp(replay, watch=watch, options=options)
        watch.publish = app.publish
        return app.run_to_exit_code()
    finally:
        watch.stop()


def _copy(args: argparse.Namespace) -> int:
    given = given_flags(args, ("at", "filter", "theme"))
    if given or len(args.files) > 1:
        raise UsageError(f"--copy copies one whole recording; {given[0] if given else 'a second FILE'} is not allowed")
    file = Path(args.files[0])
    with explained(file):
        copy_store(file, Path(args.copy))
    return 0
