"""Flags that several commands share, and parsers of their values."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from gpuwatch.errors import UsageError
from gpuwatch.units import parse_duration

_SHARED: Final[dict[str, dict[str, Any]]] = {
    "config": {"metavar": "FILE", "help": "read FILE instead of your gpuwatch.toml"},
    "ascii": {"action": "store_true", "help": "print only ASCII characters"},
    "recording": {"metavar": "FILE", "action": "append", "help": "read a recording instead; may be repeated"},
    "json": {"action": "store_true", "help": "print JSON"},
    "demo": {"action": "store_true", "help": "show a simulated machine instead of this one"},
}


def add_flags(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add --config, --ascii and the named flags to a command; each may stand before the command too."""
    for name in ("config", "ascii", *names):
        parser.add_argument(f"--{name}", default=argparse.SUPPRESS, **_SHARED[name])


def add_recording_flags(parser: argparse.ArgumentParser | argparse._ArgumentGroup, **defaults: Any) -> None:
    """Add the flags of a recording; `defaults` replaces their default None, for a command whose flags may stand before.

    `gpuwatch.commands.recording` reads them.
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


def parse_value(flag: str, parse: Callable[[str], float], text: str | None) -> float | None:
    """Parse a flag's value, None where it was not given; raises UsageError."""
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from None


def parse_indices(text: str | None, flag: str = "--only") -> tuple[int, ...]:
    """Parse a list of GPU indices, empty for all; raises UsageError."""
    return tuple(sorted(set(parse_list(text, flag, "3 or 0,2")))) if text is not None else ()


def parse_list(text: str, flag: str, allowed: str) -> tuple[int, ...]:
    """Parse GPU indices in the order in which they are given; raises UsageError, which names what is `allowed`."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 5 for part in parts):
        raise UsageError(f"{flag}: {text[:40]!a} is not a list of GPU indices; write {allowed}")
    return tuple(map(int, parts))


def parse_since(text: str, examples: str) -> float:
    """Parse --since to seconds; raises UsageError."""
    seconds = parse_value("--since", parse_duration, text)
    if not seconds or seconds <= 0:
        raise UsageError(f"--since: 0 is not allowed; write a duration such as {examples}")
    return seconds
