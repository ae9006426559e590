"""`gpuwatch report`: memory held and used by each user, from the usage store; no GPU is read."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, get_args

from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import add_flags, add_refused_demo, parse_since
from gpuwatch.commands.report_formats import MOST, report_csv, report_json, report_lines
from gpuwatch.errors import GpuwatchError, UsageError
from gpuwatch.recorder.store import StoreError, own_store
from gpuwatch.recorder.usage import By, UsageReport, joined_reports, read_usage
from gpuwatch.text import clean

_WAYS: Final[tuple[By, ...]] = get_args(By)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "recording")
    add_refused_demo(parser)
    parser.add_argument("--since", metavar="7d", help="how far back: 8h, 7d (default 7d; of a recording: all of it)")
    parser.add_argument("--by", metavar="WHAT", help="user, gpu or job (default: user)")
    parser.add_argument("--csv", action="store_true", help="as CSV, a line a row")
    parser.add_argument("--html", metavar="FILE", help="as a page with charts, written to FILE")
    parser.add_argument("--file", metavar="FILE", help="another file than your own")


def main(args: argparse.Namespace, _sampler: object = None, wall: Callable[[], float] = time.time) -> int:
    """Run the command and return its exit code; raises UsageError, and GpuwatchError where nothing was kept yet."""
    if args.demo:
        raise UsageError("--demo does not go with `gpuwatch report`: what a demo does is written down nowhere")
    forms = [flag for flag in ("json", "csv", "html") if getattr(args, flag, None)]
    if len(forms) > 1:
        raise UsageError(f"--{forms[0]} and --{forms[1]} exclude each other")
    by, since, now = _by(args.by or "user"), parse_since(args.since or "7d", "8h or 7d"), wall()
    if args.recording and args.file:
        raise UsageError("--recording does not go with --file")
    if args.html is not None:
        if args.by:
            raise UsageError("--by does not go with --html: the page has the use of users, of GPUs and of runs")
        return _main_html(args, since, now)

    most = None if args.json or args.csv else MOST
    notes: list[str] = []
    if args.recording:
        from gpuwatch.commands import recorded  # 60 ms, for the rules and more, which the store does without

        recording = recorded.open_recording(args.recording)
        now, notes = recording.last, recording.notes
        start = now - since if args.since else recording.first
        kept = joined_reports([_read(file, by, start, most, "--recording") for file in args.recording], most)
    else:
        kept = _read(args.file, by, now - since, most)
    console = Console(ascii_only=bool(args.ascii))
    if args.csv:  # in UTF-8, whatever the locale says: its readers cannot be told otherwise
        console.print_bytes(report_csv(kept, ascii_only=bool(args.ascii)).encode())
    elif args.json:
        console.print_json(report_json(kept, now))
    else:
        console.print(*report_lines(kept, now))
    _warn(console, args, kept, notes)
    return 0


def _main_html(args: argparse.Namespace, since: float, now: float) -> int:
    try:
        from gpuwatch.commands import report_page  # 0.5 s, for matplotlib and jinja2, which are optional
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "gpuwatch":
            raise
        raise UsageError("--html needs matplotlib and jinja2: pip install '.[html]' in the clone of gpuwatch") from None

    path = Path(args.html)
    report_page.check_target(path)
    notes: list[str] = []
    if args.recording:
        from gpuwatch.commands import recorded

        recording = recorded.open_recording(args.recording)
        start, end, notes = recording.first, recording.last, recording.notes
        asked = end - since if args.since else start
        parts = tuple(
            joined_reports([_read(file, by, asked, MOST, "--recording") for file in args.recording], MOST)
            for by in _WAYS
        )
        start = max(start, parts[0].since)
        series = report_page.read_series([*map(Path, args.recording)], start, end)
        page = report_page.Page(start, end, now, parts, series, source="a recording")
    else:
        parts = tuple(_read(args.file, by, now - since, MOST) for by in _WAYS)
        series = report_page.read_series([Path(args.file) if args.file else own_store()], parts[0].since, now)
        page = report_page.Page(parts[0].since, now, now, parts, series)
    report_page.save_page(path, report_page.render_page(page))
    console = Console(ascii_only=bool(args.ascii))
    console.warn(f"{clean(str(path))} is written")
    _warn(console, args, page.parts[0], notes)
    return 0


def _warn(console: Console, args: argparse.Namespace, kept: UsageReport, notes: Iterable[str]) -> None:
    console.warn(*notes)
    if args.recording and not kept.watched:
        console.warn("nothing was recorded in that time")
    elif not kept.watched:
        console.warn(
            "gpuwatch was not running in that time, or no GPU listed its processes; `gpuwatch watch` records what "
            "this is made from"
        )


def _read(file: str | None, by: By, since: float, most: int | None, flag: str = "--file") -> UsageReport:
    """Read the store; an error in a store that a flag names is reported as a mistake in that flag."""
    try:
        report = read_usage(Path(file) if file else own_store(), by, since, named=bool(file), most=most)
    except FileNotFoundError:
        if file:
            raise UsageError(f"{flag}: there is no {clean(file)}; allowed is a store that gpuwatch wrote") from None
        report = UsageReport(by, since, exists=False)
    except StoreError as error:
        if file:
            raise UsageError(f"{flag}: {error}; allowed is a store that gpuwatch wrote") from None
        raise
    if not report.exists and not file:
        raise GpuwatchError("nothing was recorded yet: leave a dashboard or `gpuwatch watch` running")
    return report


def _by(text: str) -> By:
    for way in _WAYS:
        if text == way:
            return way
    raise UsageError(f"--by: there is no {text[:40]!a}; user, gpu and job are allowed")
