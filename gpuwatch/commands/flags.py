"""Flags that several commands share, and parsers of their values."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from gpuwatch.base.errors import UsageError
from gpuwatch.base.units import format_moment, parse_duration, parse_moment

N = TypeVar("N", bound=float)

_SHARED: Final[dict[str, dict[str, Any]]] = {
    "config": {"metavar": "FILE", "help": "read FILE instead of your gpuwatch.toml"},
    "ascii": {"action": "store_true", "help": "print only ASCII characters"},
    "recording": {"metavar": "FILE", "action": "append", "help": "read a recording instead; may be repeated"},
    "json": {"action": "store_true", "help": "print JSON"},
    "demo": {"action": "store_true", "help": "show a simulated machine instead of this one"},
    "theme": {"metavar": "NAME", "help": "dark (the default), light, or a theme of Textual: nord"},
    "gpu": {"metavar": "0,2", "help": "these GPUs alone"},
}


def add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add --config, --ascii and the named flags to a command; each may stand before the command too."""
    for name in ("config", "ascii", *names):
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS, **_SHARED[name])
        if name == "gpu":
            add_only(parser, default=argparse.SUPPRESS)


class _OldFlag(argparse.Action):
    """Flag by its old name, which stores its value as that of the new one."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, flag: str | None = None) -> None:
        setattr(namespace, self.dest, values)
        warn_renamed(str(flag), f"--{self.dest}")


def add_only(parser: argparse.ArgumentParser | argparse._ArgumentGroup, default: str | None = None) -> None:
    """Add --only, the old name of --gpu."""
    parser.add_argument("--only", dest="gpu", action=_OldFlag, default=default, help=argparse.SUPPRESS)


def warn_renamed(old: str, new: str) -> None:
    sys.stderr.write(f"gpuwatch: {old} is now {new}; the old name works in this release only\n")


def add_recording_flags(parser: argparse.ArgumentParser | argparse._ArgumentGroup, **defaults: Any) -> None:
    """Add the flags of a recording; `defaults` replaces their default None, for a command whose flags may stand before.

    `gpuwatch.commands.startup` reads them.
    """
    parser.add_argument("--record", metavar="FILE", help="record every snapshot in FILE", **defaults)
    parser.add_argument(
        "--record-size",
        metavar="SIZE",
        help="size beyond which the oldest snapshots of FILE are deleted (default 2GiB; 0: never)",
        **defaults,
    )
    parser.add_argument(
        "--record-commands",
        action="store_true",
        help="record whole command lines (default: the names of programs)",
        **(defaults or {"default": None}),
    )
    parser.add_argument(
        "--anonymise",
        action="store_true",
        help="record stand-ins for users, hosts, programs, paths and names",
        **(defaults or {"default": None}),
    )


def add_refused_demo(parser: argparse.ArgumentParser) -> None:
    """Add a hidden --demo to a command that refuses it with a reason."""
    parser.add_argument("--demo", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def parse_value(flag: str, parse: Callable[[str], N], text: str | None) -> N | None:
    """Parse a flag's value, None where it was not given; raises UsageError."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def parse_number(name: str, text: str, most: int, what: str) -> int:
    """Parse a whole number from 1 to `most`; raises UsageError that says that it is not `what`."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    if not 0 < number <= most:
        raise UsageError(f"{name}: {text[:40]!a} is not {what}")
    return number


def parse_indices(text: str | None) -> tuple[int, ...]:
    """Parse a list of GPU indices, empty for all; raises UsageError."""
    return tuple(sorted(set(parse_list(text, "--gpu", "3 or 0,2")))) if text is not None else ()


def parse_list(text: str, flag: str, allowed: str) -> tuple[int, ...]:
    """Parse GPU indices in the order in which they are given; raises UsageError, which names what is `allowed`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise UsageError(f"{flag}: {text[:40]!a} is not a list of GPU indices; write {allowed}")
    return tuple(map(int, parts))


def add_span_flags(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--since",
        metavar="TIME",
        help=f"from then on: 8h, 7d, yesterday, 22:00, 2026-11-20 (default {default}; of a recording: all of it)",
    )
    parser.add_argument("--until", metavar="TIME", help="up to then, as --since (default: now)")


def parse_span(args: argparse.Namespace, back: float, now: float) -> tuple[float, float]:
    """Parse --since and --until to wall-clock times; raises UsageError.

    A clock time of --until is the last one before `now`, and one of --since the last before that. Without --since it
    is `back` seconds before the end.
    """
    until = now if args.until is None else _parse_past("--until", args.until, now, now)
    since = until - back if args.since is None else _parse_past("--since", args.since, now, until)
    if since >= until:
        raise UsageError(f"--since: {format_moment(since)} is not before {format_moment(until)}, where --until ends")
    return since, until


def _parse_past(flag: str, text: str, now: float, last: float) -> float:
    """Parse a duration before `now`, `today`, `yesterday`, a date, or a clock time in the day before `last`."""
    word = text.strip().lower()
    if word in ("today", "yesterday"):
        year, month, day = time.localtime(now)[:3]
        return time.mktime((year, month, day - (word == "yesterday"), 0, 0, 0, 0, 0, -1))
    try:
        if re.match(r"\d+[-:]", word):
            at = f"{word} 00:00" if re.fullmatch(r"\d{4}-\d\d-\d\d", word) else word
            first = datetime.fromtimestamp(last) - timedelta(days=1)  # not every day has 24 hours
            return parse_moment(at, first.timestamp(), last, last)
        seconds = parse_duration(text)
    except ValueError as error:
        also = "" if word[:1].isdigit() else "; also yesterday, 22:00 or 2026-11-20"
        raise UsageError(f"{flag}: {error}{also}") from None
    if seconds <= 0:
        raise UsageError(f"{flag}: 0 is not allowed; write a duration such as 30min, 8h or 7d")
    return now - seconds
