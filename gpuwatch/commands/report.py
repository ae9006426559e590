"""`gpuwatch report`: who held and used how much, from what was kept; no GPU is asked anything."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.output.plain import in_ascii, json_in_ascii, speaks_unicode
from gpuwatch.recorder.store import By, Kept, own_store, read_kept, store_words
from gpuwatch.text import clean
from gpuwatch.units import parse_duration

_WAYS: Final[tuple[By, ...]] = get_args(By)


def main(args: argparse.Namespace, wall: Callable[[], float] = time.time) -> int:
    """Run the command and give its exit code; raises UsageError, and GpuwatchError where nothing was kept yet."""
    if args.demo:
        raise UsageError("--demo does not go with `gpuwatch report`: what a demo does is written down nowhere")
    if args.json and args.csv:
        raise UsageError("--json and --csv exclude each other")
    by, since, now = _by(args.by), _since(args.since), wall()
    from gpuwatch.output.report import MOST, report_csv, report_json, report_lines

    kept = _read(args.file, by, now - since, None if args.json or args.csv else MOST)
    plain = bool(args.ascii) or not speaks_unicode(sys.stdout)
    if args.csv:
        _write_csv(report_csv(kept, ascii_only=bool(args.ascii)))
    elif args.json:
        text = report_json(kept, now)
        sys.stdout.write(f"{json_in_ascii(text) if plain else text}\n")
    else:
        for line in report_lines(kept, now):
            sys.stdout.write(f"{in_ascii(line) if plain else line}\n")
    sys.stdout.flush()
    if not kept.watched:
        sys.stderr.write("gpuwatch: nobody watched in that time; `gpuwatch watch` keeps what this is made from\n")
    return 0


def _write_csv(text: str) -> None:
    """Write CSV in UTF-8, whatever the locale says: its readers cannot be told otherwise."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())


def _read(file: str | None, by: By, since: float, most: int | None) -> Kept:
    """Read the store; what is wrong with one that was named is a mistake in that flag."""
    import sqlite3

    path = Path(file) if file else own_store()
    try:
        return read_kept(path, by, since, follow=bool(file), most=most)
    except FileNotFoundError:
        if file:
            raise UsageError(f"--file: there is no {clean(file)}; allowed is a store that gpuwatch wrote") from None
        raise GpuwatchError("nothing was kept yet: leave `gpuwatch watch` running") from None
    except (OSError, GpuwatchError, sqlite3.Error) as error:
        words = store_words(error, path)
        if file:
            raise UsageError(f"--file: {words}; allowed is a store that gpuwatch wrote") from None
        raise GpuwatchError(words) from None


def _by(text: str) -> By:
    for way in _WAYS:
        if text == way:
            return way
    raise UsageError(f"--by: there is no {text[:40]!a}; user, gpu and job are allowed")


def _since(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--since: {error}") from None
    if seconds <= 0:
        raise UsageError("--since: 0 is no time back; write a duration such as 8h or 7d")
    return seconds
