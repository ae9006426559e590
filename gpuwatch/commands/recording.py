"""Recording that the flags ask for: `--record` and those that go with it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gpuwatch.commands.flags import parse_value
from gpuwatch.errors import UsageError
from gpuwatch.units import MIB, parse_size

if TYPE_CHECKING:
    from gpuwatch.recorder.recording_writer import RecordingWriter

_MOST_PARTS: Final = 1000


def make_recording(args: argparse.Namespace) -> RecordingWriter | None:
    """Return the writer that the flags ask for, None without `--record`; raises UsageError.

    The file is opened, or created.
    """
    if args.record is None:
        flags = ("record_size", "record_keep", "record_commands", "anonymise")
        given = [f"--{name.replace('_', '-')}" for name in flags if getattr(args, name) is not None]
        if given:
            raise UsageError(f"{given[0]} goes with --record FILE")
        return None
    if args.record_commands and args.anonymise:
        raise UsageError("--record-commands and --anonymise exclude each other")
    if not args.record:
        raise UsageError("--record: the name of a file is missing")
    from gpuwatch.recorder.recording_format import Commands  # 8 ms with the next one, and each dashboard comes by here
    from gpuwatch.recorder.recording_writer import PARTS, SIZE, RecordingWriter

    size, parts = parse_value("--record-size", _parse_limit, args.record_size), _parse_parts(args.record_keep)
    return RecordingWriter(
        Path(args.record),
        size=SIZE if size is None else int(size),
        parts=PARTS if parts is None else parts,
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


def _parse_parts(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 5 and int(text) <= _MOST_PARTS):
        raise UsageError(f"--record-keep: {text[:40]!a} is not a number from 0 to {_MOST_PARTS}")
    return int(text)
