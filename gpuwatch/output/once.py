"""`gpuwatch --once`: one snapshot, as a table or as JSON, and out."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable

from gpuwatch.analysis.rows import Filter
from gpuwatch.errors import GpuwatchError, UnavailableError, UsageError
from gpuwatch.model import Snapshot, SourceState, encode
from gpuwatch.output.plain import in_ascii, json_in_ascii, speaks_unicode
from gpuwatch.output.table import table
from gpuwatch.sources.source import Source

_PATIENCE = 30.0
"""Seconds: longer than the sampler is given to start, so that the words are about the driver and not about us."""


def once(
    source: Source,
    *,
    as_json: bool,
    ascii_only: bool = False,
    only: str = "",
    monotonic: Callable[[], float] = time.monotonic,
) -> int:
    """Print the first snapshot that says something; raises UnavailableError (exit 3) where there is nothing to see."""
    snapshot = first(source, monotonic)
    ascii_only = ascii_only or not speaks_unicode(sys.stdout)
    if as_json:
        text = encode(snapshot).decode()
        print(json_in_ascii(text) if ascii_only else text)
    elif snapshot.gpus:
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((160, 50)).columns if terminal else None
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(snapshot.taken))
        lines = table(snapshot, clock=clock, width=width, keep=Filter.parse(only))
        print("\n".join(in_ascii(line) if ascii_only else line for line in lines))
    sys.stdout.flush()
    error = problem(snapshot)
    if error is not None:
        raise error
    return 0


def first(
    source: Source,
    monotonic: Callable[[], float] = time.monotonic,
    *,
    look: float = _PATIENCE,
    check: Callable[[], None] = lambda: None,
) -> Snapshot:
    """Wait for the first snapshot that says something; raises UnavailableError where none comes.

    Every `look` seconds `check` is called, which may raise to end the wait.
    """
    end = monotonic() + _PATIENCE
    while (left := end - monotonic()) > 0:
        snapshot = source.next(timeout=min(left, look))
        check()
        if snapshot is not None and snapshot.state is not SourceState.STARTING:
            return snapshot
    raise UnavailableError(f"the driver has not answered for {_PATIENCE:.0f} s")


def problem(snapshot: Snapshot) -> GpuwatchError | None:
    """Give the error that a snapshot without any GPU to see stands for; None where all is well."""
    if snapshot.state is SourceState.OK:
        return None
    return (UsageError if snapshot.state is SourceState.ENDED else UnavailableError)(snapshot.words)
