"""`gpuwatch events`: what was raised and how it ended, from the events log; no GPU is asked anything."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from gpuwatch.alerts.alert import Alert
from gpuwatch.errors import UsageError
from gpuwatch.output.events import events_rows, moment, table
from gpuwatch.output.plain import in_ascii, may_color, speaks_unicode
from gpuwatch.recorder.events_log import Events, read_events
from gpuwatch.startup import indices, own_log
from gpuwatch.text import clean
from gpuwatch.units import long_duration, parse_duration


@dataclass(frozen=True, slots=True)
class Wish:
    """Which events somebody wants to see."""

    gpus: frozenset[int] = frozenset()
    """Indices; empty for all, and for what is about no GPU."""
    user: str = ""
    rules: frozenset[str] | None = None

    def __call__(self, alert: Alert) -> bool:
        """Say whether an event is one of them."""
        return (
            (not self.gpus or alert.index in self.gpus)
            and (not self.user or self.user in alert.owners)
            and (self.rules is None or alert.rule in self.rules)
        )


def main(args: argparse.Namespace, wall: Callable[[], float] = time.time) -> int:
    """Run the command and give its exit code; raises UsageError."""
    if args.demo:
        raise UsageError("--demo does not go with `gpuwatch events`: what a demo raises is written down nowhere")
    since = _since(args.since)
    gpus = frozenset(indices(getattr(args, "gpu", None), "--gpu"))
    user = clean(getattr(args, "user", None) or "")
    path = Path(args.file) if args.file else own_log()
    now = wall()
    found = _read(path, now - since, given=bool(args.file))
    wish = Wish(gpus, user, _rules(args.rule, found))
    chosen = [alert for alert in found.alerts if wish(alert)]
    if args.json:
        lines = [_json(alert, found) for alert in chosen]
    else:
        filtered = bool(gpus or user or args.rule)
        until = found.watched_until
        gaps = () if filtered and not chosen else found.gaps
        rows = events_rows(chosen, now, watched=found.watched, until=until, gaps=gaps)
        terminal = sys.stdout.isatty()
        width = shutil.get_terminal_size((160, 50)).columns if terminal else None
        lines = table(rows, width=width, color=may_color(sys.stdout, os.environ)) if rows else []
    plain = bool(args.ascii) or not speaks_unicode(sys.stdout)
    _print(lines, sys.stdout, plain=plain and not args.json)
    _print(_words(path, found, chosen, args.since, now), sys.stderr, plain=plain)
    return 0 if found.exists else 1


def _read(path: Path, since: float, *, given: bool) -> Events:
    try:
        found = read_events(path, since)
    except OSError as error:
        raise UsageError(f"{clean(str(path))}: {error.strerror or error}") from None
    if given and not found.exists:
        raise UsageError(f"--file: there is no {clean(str(path))}")
    if given and found.damaged and found.last is None:
        raise UsageError(f"--file: {clean(str(path))} is no events log")
    return found


def _since(text: str) -> float:
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--since: {error}") from None
    if seconds <= 0:
        raise UsageError("--since: 0 is no time back; write a duration such as 30min, 8h or 7d")
    return seconds


def _rules(text: str | None, found: Events) -> frozenset[str] | None:
    """Give the rules that a name or its beginning means: those that gpuwatch has, and those that the log knows."""
    if text is None:
        return None
    from gpuwatch.alerts import table

    known = table.names() | {alert.rule for alert in found.alerts}
    wanted = text.strip().lower()
    exact = {name for name in known if name.lower() == wanted}
    meant = exact or {name for name in known if wanted and name.lower().startswith(wanted)}
    if not meant:
        raise UsageError(f"--rule: no rule begins with {text[:40]!a}; there are: {', '.join(sorted(known))}")
    return frozenset(meant)


def _json(alert: Alert, found: Events) -> str:
    fields: dict[str, Any] = msgspec.to_builtins(alert)
    return msgspec.json.encode({**fields, "state": found.state(alert).value}).decode()


def _words(path: Path, found: Events, chosen: Collection[Alert], since: str, now: float) -> Iterable[str]:
    """Say what the lines do not: that there are none, what could not be read, that nobody watches."""
    if not found.exists:
        yield f"there is no events log yet ({clean(str(path))}); the dashboard and `gpuwatch watch` write it"
        return
    if not chosen:
        which = "no event of these" if found.alerts else "no event"
        yield f"{which} in the last {clean(since, 20)}; --since 7d looks further back"
    if found.damaged:
        lines = "1 line is" if found.damaged == 1 else f"{found.damaged} lines are"
        yield f"{lines} damaged in {clean(str(path))}, and left out"
    if not found.watched and found.watched_until is not None:
        ago = long_duration(max(0.0, now - found.watched_until))
        yield f"nobody watches now; the last to do so stopped at {moment(found.watched_until, now)}, {ago} ago"


def _print(lines: Iterable[str], stream: Any, *, plain: bool) -> None:
    start = "gpuwatch: " if stream is sys.stderr else ""
    for line in lines:
        stream.write(f"{start}{in_ascii(line) if plain else line}\n")
    stream.flush()
