"""Recordings as commands read them: their span, and one snapshot."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuwatch.base.errors import UsageError
from gpuwatch.base.units import format_moment, long_duration, parse_moment
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.recorder.recording import Recording
from gpuwatch.recorder.replay import shortest_gap


def open_recording(files: Iterable[str]) -> Recording:
    """Open the recording that some files are together; raises UsageError."""
    return Recording([Path(file) for file in files])


def covered_words(recording: Recording) -> str:
    """Return the span of a recording in words: `2026-11-21 00:00:00 to 2026-11-22 00:00:00`."""
    return f"{format_moment(recording.first)} to {format_moment(recording.last)}"


def parse_at(text: str, recording: Recording) -> float:
    """Parse a clock time of a recording; raises UsageError, also for a time that the recording does not cover."""
    first, last = recording.first, recording.last
    try:
        at = parse_moment(text, first, last, last)
    except ValueError as error:
        raise UsageError(f"--at: {error}") from None
    if not first <= at <= last:
        raise UsageError(f"--at: {format_moment(at)} is not in the recording, which covers {covered_words(recording)}")
    return at


def recorded_snapshot(recording: Recording, at: float) -> tuple[Snapshot, str]:
    """Return the last snapshot up to a time, and a warning if that time is in a gap; raises UsageError."""
    found = after = None
    for snapshot in recording.snapshots(at):
        if found is not None and snapshot.taken > at:
            after = snapshot
            break
        found = snapshot
    if found is None:
        raise UsageError(f"no snapshot of {format_moment(at)} can be read")
    if after is None or at <= found.taken or after.taken - found.taken < shortest_gap(found):
        return found, ""
    span = f"{format_moment(found.taken)} to {format_moment(after.taken)}"
    gap = long_duration(after.taken - found.taken)
    return found, f"nothing was recorded for {gap}, {span}; this is the snapshot before"


def on_demo_store(args: argparse.Namespace, main: Callable[[argparse.Namespace], int]) -> int:
    """Run a command on the day before a demo; raises UsageError if a flag names something else to read."""
    from gpuwatch.recorder.demo import demo_store  # the rules, for those who ask for a demo

    for flag in ("recording", "file", "follow"):
        if getattr(args, flag, None):
            raise UsageError(f"--demo cannot be used with --{flag}")
    with demo_store() as path:
        return main(argparse.Namespace(**{**vars(args), "demo": False, "file": str(path)}))
