"""What commands read from a recording: opened, and a time of it parsed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuwatch.errors import UsageError
from gpuwatch.recording.reader import Recording
from gpuwatch.units import format_moment, parse_moment


def open_recording(files: Iterable[str]) -> Recording:
    """Open the recording that some files are together; raises UsageError."""
    return Recording([Path(file) for file in files])


def parse_at(text: str, recording: Recording) -> float:
    """Parse a clock time of a recording; raises UsageError, also for a time that the recording does not cover."""
    first, last = recording.first, recording.last
    try:
        at = parse_moment(text, first, last, last)
    except ValueError as error:
        raise UsageError(f"--at: {error}") from None
    if not first <= at <= last:
        covers = f"{format_moment(first)} to {format_moment(last)}"
        raise UsageError(f"--at: {format_moment(at)} is not in the recording, which covers {covers}")
    return at
