"""`gpuwatch recording copy FILE TO`, and the recording that `--record` and its flags ask for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.base.units import MIB, parse_size
from gpuwatch.commands.flags import add_flags, add_refused_demo, parse_value

if TYPE_CHECKING:
    from gpuwatch.alerts.limits import Limits
    from gpuwatch.recorder.recording_writer import RecordingWriter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    add_flags(parser)
    add_refused_demo(parser)
    parser.add_argument("action", choices=["copy"], help="copy a recording, also one that is being written")
    parser.add_argument("file", metavar="FILE", help="the recording, or your store of events and use")
    parser.add_argument("to", metavar="TO", help="the copy; it must not exist")


def main(args: argparse.Namespace, _sampler: object = None) -> int:
    """Copy the file and return the exit code; raises UsageError."""
    from gpuwatch.recorder.opening import StoreError, copy_store

    if args.demo:
        raise UsageError("--demo does not go with `gpuwatch recording`")
    try:
        copy_store(Path(args.file), Path(args.to))
    except FileNotFoundError:
        raise UsageError(f"{clean(args.file)}: No such file or directory") from None
    except StoreError as error:
        raise UsageError(str(error)) from None
    return 0


def make_recording(args: argparse.Namespace, limits: Limits) -> RecordingWriter | None:
    """Return the writer that the flags ask for, None without `--record`; raises UsageError.

    The file is opened, or created. Its events are judged by `limits`.
    """
    if args.record is None:
        flags = ("record_size", "record_commands", "anonymise")
        given = [f"--{name.replace('_', '-')}" for name in flags if getattr(args, name) is not None]
        if given:
            raise UsageError(f"{given[0]} goes with --record FILE")
        return None
    if args.record_commands and args.anonymise:
        raise UsageError("--record-commands and --anonymise exclude each other")
    if not args.record:
        raise UsageError("--record: the name of a file is missing")
    from gpuwatch.recorder.anonymise import Commands  # 8 ms with the next one, and each dashboard comes by here
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
