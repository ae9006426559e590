"""`gpuwatch report`: use by users, of GPUs and by runs, from the store; no GPU is read."""

from __future__ import annotations

import argparse
import math
import os
import pwd
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, get_args

from gpuwatch.base import files
from gpuwatch.base.errors import GpuwatchError, UsageError
from gpuwatch.base.extras import install_hint
from gpuwatch.base.text import clean
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import add_flags, add_span_flags, parse_span
from gpuwatch.commands.recorded import on_demo_store, open_recording
from gpuwatch.commands.report_formats import report_csv, report_json, report_lines
from gpuwatch.config.paths import ADMINISTRATORS
from gpuwatch.config.reading import merge, read_administrators
from gpuwatch.model.values import DAY
from gpuwatch.recorder.forget import forget_user
from gpuwatch.recorder.opening import StoreError, explained, reading
from gpuwatch.recorder.public import PublicDays, stores_read
from gpuwatch.recorder.schema import DAYS, is_public, own_store
from gpuwatch.recorder.use import By, UseReport, read_reports

_WAYS: Final[tuple[By, ...]] = get_args(By)
_NOT_PUBLIC: Final = (
    "the machine's service has not published who used how much, and you have recorded nothing: if it has just started, "
    'wait a minute; else ask an administrator to set publish = "use" in /etc/gpuwatch/gpuwatch.toml, or leave a '
    "dashboard or `gpuwatch watch` running, which records only for you"
)
_FORGET: Final = (
    "this deletes the name and runs of {who}, and the words of events about them, from {stores}; their use becomes "
    "that of unknown users (?); delete it? [y/N]"
)
_KEPT: Final = "recordings, saved reports and actions.jsonl are unchanged; a running gpuwatch records the user again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "recording", "demo")
    add_span_flags(parser, "7d")
    parser.add_argument(
        "--by", metavar="WHAT", help="one table: user, gpu or run (default: all; with --json or --csv: user)"
    )
    parser.add_argument("--csv", action="store_true", help="print CSV")
    parser.add_argument("--html", metavar="FILE", help="write a page with charts to FILE")
    parser.add_argument("--file", metavar="FILE", help="read this store instead of your own")
    parser.add_argument(
        "--forget",
        metavar="USER",
        help="delete what is stored about a user (name or uid); as root: also by the service",
    )
    parser.add_argument("--yes", action="store_true", help="with --forget: do not ask")


def main(args: argparse.Namespace, _sampler: object = None, wall: Callable[[], float] = time.time) -> int:
    """Run the command and return its exit code; raises UsageError, and GpuwatchError if nothing was recorded yet."""
    if args.yes and not args.forget:
        raise UsageError("--yes needs --forget")
    if args.forget is not None:
        return _main_forget(args, wall())
    if args.demo:
        return on_demo_store(args, partial(main, wall=wall))
    forms = [flag for flag in ("json", "csv", "html") if getattr(args, flag, None)]
    if len(forms) > 1:
        raise UsageError(f"--{forms[0]} and --{forms[1]} cannot be used together")
    now = wall()
    if args.by not in (None, *_WAYS):
        raise UsageError(f"--by: {args.by[:40]!a} is not allowed; write user, gpu or run")
    ways: tuple[By, ...] = (args.by or "user",) if args.by or args.json or args.csv else _WAYS
    if args.recording and args.file:
        raise UsageError("--recording cannot be used with --file")
    if args.html is not None:
        if args.by:
            raise UsageError("--by cannot be used with --html: the page has all three tables")
        return _main_html(args, now)

    parts, now, notes = _read(args, ways, now)
    console = Console(ascii_only=bool(args.ascii))
    if args.csv:  # in UTF-8 in any locale: CSV cannot name its encoding
        console.print_bytes(report_csv(parts[0], ascii_only=bool(args.ascii)).encode())
    elif args.json:
        console.print_json(report_json(parts[0], now))
    else:
        console.print(*report_lines(parts, now, width=console.width))
    _warn(console, args, parts[0], notes)
    return 0


def _main_html(args: argparse.Namespace, now: float) -> int:
    try:
        from gpuwatch.commands import report_page  # matplotlib and jinja2, which are optional
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "gpuwatch":
            raise
        raise UsageError(f"--html needs matplotlib and jinja2: {install_hint('html')}") from None

    path = Path(args.html)
    report_page.check_target(path)
    parts, until, notes = _read(args, _WAYS, now)
    start = parts[0].since
    if args.recording:
        start = max(start, open_recording(args.recording).first)
    series = report_page.read_series(_paths(args, start, []), start, until)
    page = report_page.Page(start, until, now, tuple(parts), series, *(["a recording"] if args.recording else []))
    report_page.save_page(path, report_page.render_page(page))
    console = Console(ascii_only=bool(args.ascii))
    console.warn(f"{clean(str(path))} was written")
    _warn(console, args, page.parts[0], notes)
    return 0


def _main_forget(args: argparse.Namespace, now: float) -> int:
    """Delete what is stored about a person: in one's own store, and as root also in that of the machine's service."""
    flags = ("json", "csv", "html", "by", "since", "until", "recording", "file", "demo")
    if given := [flag for flag in flags if getattr(args, flag)]:
        raise UsageError(f"--forget cannot be used with --{given[0]}")
    service, console = own_store(DAYS / "gpuwatch"), Console(ascii_only=bool(args.ascii))
    stores = [path for path in (own_store(), *([] if os.geteuid() else [service])) if path.exists()]
    uid = _find_uid(args.forget, stores)
    who = f"{clean(args.forget)} (uid {uid})"
    if stores and not args.yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError("--forget asks before it deletes, and stdin is not a terminal; --yes skips the question")
        console.warn(_FORGET.format(who=who, stores=" and ".join(map(str, stores))))
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise GpuwatchError("nothing was deleted")
    config = merge(read_administrators(ADMINISTRATORS) if service in stores else [])
    for path in stores:
        counts = ", ".join(f"{kind} {count}" for kind, count in forget_user(path, uid, args.forget).items() if count)
        console.print(f"{who} in {files.shown_path(path)}: {counts or 'nothing was stored'}")
        if path == service:
            with explained(DAYS):
                PublicDays(path, config.publish).write(now, config.report.keep, all_days=True)
    console.warn(_KEPT if stores else "nothing was recorded yet")
    return 0


def _find_uid(name: str, stores: Iterable[Path]) -> int:
    """Return the uid of a user of this system, or of a store, or in digits; raises UsageError."""
    if name.isascii() and name.isdigit() and len(name) <= 10:
        return int(name)
    with suppress(KeyError):
        return pwd.getpwnam(name).pw_uid
    for path in stores:
        with reading(path) as connection:
            found = connection.execute("SELECT uid FROM users WHERE name = ? AND uid >= 0", (clean(name),)).fetchone()
        if found:
            return int(found[0])
    raise UsageError(f"--forget: there is no user {name[:40]!a}, here or in what is stored; write the uid")


def _warn(console: Console, args: argparse.Namespace, report: UseReport, notes: Iterable[str]) -> None:
    console.warn(*notes)
    if args.recording and not report.watched:
        console.warn("nothing was recorded in that time")
    elif not report.watched:
        console.warn(
            "gpuwatch was not running in that time, or no GPU listed its processes; leave `gpuwatch watch` running"
        )


def _paths(args: argparse.Namespace, since: float, notes: list[str]) -> list[Path]:
    """Return the stores that are read; a line for each that is left out is added to `notes`."""
    named = args.recording or ([args.file] if args.file else [])
    return [Path(name) for name in named] or stores_read(since=since, warn=notes.append)


def _read(args: argparse.Namespace, ways: Sequence[By], now: float) -> tuple[list[UseReport], float, list[str]]:
    """Read the use, its end, and notes; an error in a file that a flag names is a mistake in that flag."""
    flag = "--recording" if args.recording else "--file" if args.file else ""
    if args.recording:
        recording = open_recording(args.recording)
        notes = recording.notes
        start, until = parse_span(args, math.inf, recording.last)
        start = start if args.since else recording.first
    else:
        notes = []
        start, until = parse_span(args, 7 * DAY, now)
    paths = _paths(args, start, notes)
    try:
        parts = read_reports(paths, ways, start, until if args.until else math.inf, named=bool(flag))
    except FileNotFoundError as error:
        if flag:
            name = clean(str(error.filename or paths[-1]))
            raise UsageError(f"{flag}: no such file: {name}; name a store that gpuwatch wrote") from None
        parts = [UseReport(by, start) for by in ways]
    except StoreError as error:
        if flag:
            raise UsageError(f"{flag}: {error}; name a store that gpuwatch wrote") from None
        raise UsageError(str(error)) from None
    if not flag and not parts[0].exists:
        unread = "".join(f" ({note})" for note in notes)
        if any(map(is_public, paths)):
            raise GpuwatchError(f"{_NOT_PUBLIC}{unread}")
        raise GpuwatchError(f"nothing was recorded yet: leave a dashboard or `gpuwatch watch` running{unread}")
    return parts, until, notes
