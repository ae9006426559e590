"""Flags that several commands share, and parsers of their values."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from gpuwatch.base.errors import UsageError
from gpuwatch.base.units import format_moment, parse_duration, parse_moment

N = TypeVar("N", bound=float)


def warn_renamed(old: str, new: str) -> None:
    sys.stderr.write(f"gpuwatch: {old} is now {new}; the old name works only in this release\n")


class _OldFlag(argparse.Action):
    """Flag with an old name, which stores its value under the new one."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: object, flag: str | None = None) -> None:
        setattr(namespace, self.dest, values)
        warn_renamed(str(flag), f"--{self.dest}")


def _switch(words: str, default: bool | None = False) -> dict[str, Any]:
    """Return the settings of a flag without a value; its default is None if the configuration has the same key."""
    return {"action": "store_true", "default": default, "help": words}


FLAGS: Final[dict[str, dict[str, dict[str, Any]]]] = {
    "flags": {
        "once": _switch("print one snapshot as a table, and exit"),
        "json": _switch("print one snapshot as JSON; --json=gpustat: like gpustat"),
        "stream": _switch("print a line of JSON per snapshot; --stream=live: a short one"),
        "gpu": {"metavar": "0,2", "help": "only these GPUs"},
        "only": {"dest": "gpu", "action": _OldFlag, "help": argparse.SUPPRESS},
        "user": {"metavar": "NAME", "help": "start with the processes of one user"},
        "mine": _switch("start with your own processes", None),
        "host": {
            "metavar": "HOST",
            "action": "append",
            "help": "show other machines by ssh, such as lab1; may be repeated",
        },
        "demo": _switch("show a simulated machine instead of this one"),
        "interval": {"metavar": "S", "help": "time between samples: 2, 500ms (0.1 to 3600 s, default 1)"},
    },
    "display": {
        "filter": {"metavar": "TEXT", "help": "start with the processes that match: 'mem>10GiB user:ada', @name"},
        "recording": {"metavar": "FILE", "action": "append", "help": "read a recording instead; may be repeated"},
        "at": {"metavar": "TIME", "help": "with --once --recording: 03:10, '2026-11-21 03:10' (default: the end)"},
        "memory-warning": {
            "metavar": "P",
            "help": "warn when less than P percent of a GPU's memory is free (default 10)",
        },
        "memory-critical": {"metavar": "P", "help": "the same for critical alerts (default 5)"},
        "theme": {"metavar": "NAME", "help": "dark (default), light, or a theme of Textual, such as nord"},
        "ascii": _switch("use only ASCII characters", None),
    },
    "behaviour": {
        "config": {"metavar": "FILE", "help": "read FILE instead of your gpuwatch.toml"},
        "bell": _switch("ring the terminal's bell on an alert", None),
        "read-only": _switch("never end a process, and do not offer it", None),
        "allow-root-kill": _switch("allow root to end its own processes, or under sudo the caller's"),
        "wait": _switch("wait for a driver if there is none"),
        "keepalive": {"metavar": "S", "help": "with --stream: exit when stdin ends, or is silent for S seconds"},
    },
    "recording, also for gpuwatch watch": {
        "record": {"metavar": "FILE", "help": "record every snapshot in FILE"},
        "record-size": {"metavar": "SIZE", "help": "delete the oldest rows above this size (default 2GiB, 0: never)"},
        "record-commands": _switch("record whole command lines (default: only names of programs)", None),
        "anonymise": _switch("record pseudonyms of users, hosts, programs, paths and names", None),
    },
}
"""Flags before a command, and without one, by their groups in `--help=all`; `--help` shows the first group."""
RECORDING: Final = ("record", "record-size", "record-commands", "anonymise")
_SHARED: Final = {name: settings for flags in FLAGS.values() for name, settings in flags.items()}


def add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add --config, --ascii and the named flags to a command; each may also come before the command."""
    for name in ("config", "ascii", *names, *["only"] * ("gpu" in names)):
        words = "print JSON" if name == "json" else _SHARED[name]["help"]
        parser.add_argument(f"--{name}", **{**_SHARED[name], "default": argparse.SUPPRESS, "help": words})


def given_flags(args: argparse.Namespace, names: Iterable[str]) -> list[str]:
    return [f"--{name}" for name in names if getattr(args, name.replace("-", "_")) not in (None, False)]


def parse_value(flag: str, parse: Callable[[str], N], text: str | None) -> N | None:
    """Parse a flag's value; None if it was not given. Raises UsageError."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def parse_number(name: str, text: str, most: int, what: str) -> int:
    """Parse a whole number from 1 to `most`; raises UsageError, which says that it is not `what`."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else 0
    if not 0 < number <= most:
        raise UsageError(f"{name}: {text[:40]!a} is not {what}")
    return number


def parse_indices(text: str | None) -> tuple[int, ...]:
    """Parse a list of GPU indices, empty for all; raises UsageError."""
    return tuple(sorted(parse_list(text, "3 or 0,2"))) if text is not None else ()


def parse_list(text: str, allowed: str) -> tuple[int, ...]:
    """Parse GPU indices, each once, in the given order; raises UsageError, which names the `allowed` form."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise UsageError(f"--gpu: {text[:40]!a} is not a list of GPU indices; write {allowed}")
    return tuple(dict.fromkeys(map(int, parts)))


EXPORT_FLAGS: Final = ("listen", "web_config", "textfile", "per_process", "names")
"""Attributes of the flags for keys of `[export]`."""


def add_export_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags for keys of `[export]`."""
    parser.add_argument("--listen", metavar="ADDRESS", help="address and port (default 127.0.0.1:9836)")
    parser.add_argument(
        "--web-config",
        metavar="FILE",
        help="Prometheus's web configuration file, for other machines: TLS, passwords",
    )
    parser.add_argument(
        "--textfile", metavar="DIR", help="write a file for node_exporter into DIR instead of listening"
    )
    parser.add_argument("--per-process", metavar="N", help="also metrics of the N largest processes (default 0)")
    parser.add_argument("--names", metavar="WHICH", help="own: omit the names of other exporters (default: all)")


def add_span_flags(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--since",
        metavar="TIME",
        help=f"from: 8h, 7d (ago), yesterday, 22:00, 2026-11-20 (default {default}; of a recording: all)",
    )
    parser.add_argument("--until", metavar="TIME", help="to, as --since (default: now)")


def parse_span(args: argparse.Namespace, back: float, now: float) -> tuple[float, float]:
    """Parse --since and --until to wall-clock times; raises UsageError.

    A clock time of --until is the last one before `now`, and one of --since the last before that. Without --since it
    is `back` seconds before the end.
    """
    until = now if args.until is None else _parse_past("--until", args.until, now, now)
    since = until - back if args.since is None else _parse_past("--since", args.since, now, until)
    if since >= until:
        raise UsageError(f"--since: {format_moment(since)} is not before the end, {format_moment(until)}")
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
