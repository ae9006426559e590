"""Command line: parses the arguments, imports the module of one command, and runs it."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gpuwatch.base.errors import EXIT_CODES, GpuwatchError, UsageError
from gpuwatch.commands.flags import add_only, add_recording_flags
from gpuwatch.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatch.sources.sampler_process import SamplerProcess

COMMANDS: Final = {
    "explain": "show what a process declared, which GPUs it sees, and the evidence",
    "visible": "show which GPUs a CUDA_VISIBLE_DEVICES value makes visible here",
    "pick": "print GPUs that have room, for CUDA_VISIBLE_DEVICES",
    "fleet": "all machines that a Prometheus server knows: hosts, free GPUs, people and alerts",
    "run": "pick GPUs, set the share for every framework, start a program",
    "strays": "your own processes that nobody attends to and that still hold memory, and why",
    "kill": "end your own processes, or a whole run, and report what became of them",
    "message": "print a polite message to the owner of a process; nothing is sent",
    "report": "how much each user held and used, from what gpuwatch has recorded",
    "events": "alerts that were raised and how they ended, from what gpuwatch has recorded",
    "replay": "show a recording in the dashboard: play it, and move to any time of it",
    "recording": "copy a recording that is being written",
    "watch": "monitor without a terminal: one line per event, messages",
    "export": "serve metrics for Prometheus, or print rules and a Grafana dashboard",
    "notify": "send a test message to the addresses of your gpuwatch.toml",
    "status": "one short line for the status bar of tmux",
    "config": "show, check or create a gpuwatch.toml",
    "doctor": "check the driver, permissions, terminal and files, and say how to mend what is wrong",
    "docs": "show the guide, one page per subject",
    "completion": "print the completions for a shell: bash, zsh, fish or tcsh",
}
"""Help text of each command; the module `gpuwatch.commands.NAME` runs it."""

_RECORDING: Final = ("record", "record_size", "record_commands", "anonymise")
"""Flags of a recording."""
_CODES: Final = (
    "Exit codes: 0 done (an empty list too), 1 not found (no such process, no room, nothing recorded yet), "
    + EXIT_CODES
)


def main(argv: Sequence[str], sampler: SamplerProcess | None, *, reservations: Path | None = None) -> int:
    """Run gpuwatch and return its exit code.

    `sampler` is a sampler process that was started early and waits for its options; None where there is none.
    `reservations` replaces the machine's folder of reservations that all users share.
    """
    try:
        args = parse(argv)
        args.reservations = reservations
        code: int = _import(args.command or _without_command(args)).main(args, sampler)
        return code
    except KeyboardInterrupt:
        return 130
    except (GpuwatchError, OSError) as error:
        from gpuwatch.commands.console import report_error  # `--version` and `--help` do without

        return report_error(error)


def _import(command: str) -> Any:
    """Import the module of a command, which has `add_arguments` and `main`."""
    return importlib.import_module(f"gpuwatch.commands.{command}")


def _without_command(args: argparse.Namespace) -> str:
    """Return the module for a command line without a command; raises UsageError for flags that exclude each other."""
    if args.json and not args.once:
        raise UsageError("--json goes with --once; for a stream of JSON lines there is --stream")
    if args.once and args.stream:
        raise UsageError("--once and --stream exclude each other")
    if args.keepalive is not None and not args.stream:
        raise UsageError("--keepalive goes with --stream")
    if args.host:
        local = ("once", "stream", "demo", "gpu", "wait", "allow_root_kill", *_RECORDING)
        if given := [f"--{name.replace('_', '-')}" for name in local if getattr(args, name)]:
            raise UsageError(f"--host does not go with {given[0]}")
    if args.wait and (args.once or args.stream):
        raise UsageError("--wait is for the dashboard; --once and --stream report at once that there is no driver")
    if (args.at is not None or args.recording) and not args.once:
        raise UsageError(
            "--recording goes with --once, `events` and `report`; `gpuwatch replay FILE` shows a recording"
        )
    if args.at is not None and not args.recording:
        raise UsageError("--at goes with --once --recording FILE")
    if args.recording and (args.demo or args.gpu is not None):
        raise UsageError(f"--recording does not go with {'--demo' if args.demo else '--gpu'}")
    given = [f"--{name.replace('_', '-')}" for name in _RECORDING if getattr(args, name) is not None]
    if given and (args.once or args.stream):
        raise UsageError(f"{given[0]} is for the dashboard and for `gpuwatch watch`; --once and --stream print instead")
    if (args.user or args.mine or args.filter is not None) and (args.stream or args.json):
        raise UsageError("--user, --mine and --filter choose what is drawn; JSON always has the processes of all users")
    return "once" if args.once else "stream" if args.stream else "dashboard"


# ---------------------------------------------------------------------------------------------------------------
# Parsing


class _Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line each."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; for an unknown command suggest the most similar one."""
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*)' \(choose", message)
        if wrong:  # the word as repr gives it: with its controls escaped, but not what is beyond ASCII
            message = _unknown("command", wrong[1].encode("ascii", "backslashreplace").decode(), COMMANDS)
        raise UsageError(message)


class _CommandParser(_Parser):
    """Argument parser of one command: imports the command's module, which adds its arguments, when it is used."""

    command = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the arguments of the command, then parse."""
        _import(self.command).add_arguments(self)
        return super().parse_known_args(args, namespace)


def parser() -> argparse.ArgumentParser:
    top = _Parser(
        prog="gpuwatch",
        description="A live, truthful monitor for GPUs that several people share.",
        epilog=_CODES,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"gpuwatch {__version__}")
    what = top.add_argument_group("mode (without any of these: the dashboard)")
    what.add_argument("--once", action="store_true", help="print one snapshot and exit")
    what.add_argument(
        "--json", action="store_true", help="with --once: as one JSON object; --json=gpustat: that of gpustat"
    )
    what.add_argument(
        "--stream",
        action="store_true",
        help="print one JSON line per snapshot until interrupted; --stream=live: a short one each second",
    )
    what.add_argument(
        "--recording", metavar="FILE", action="append", help="with --once: a snapshot of a recording; may be repeated"
    )
    what.add_argument(
        "--at", metavar="TIME", help="the time of that snapshot: 03:10, '2026-11-21 03:10' (default: the last)"
    )
    what.add_argument("--demo", action="store_true", help="show a simulated machine instead of this one")
    what.add_argument(
        "--host",
        metavar="HOST",
        action="append",
        help="show other machines by ssh: lab1, ada@lab2:2222, or the name of a [[host]]; may be repeated",
    )
    see = top.add_argument_group("what is shown")
    see.add_argument("--gpu", metavar="0,2", help="only these GPUs; no driver call is made to the others")
    add_only(see)
    see.add_argument("--user", metavar="NAME", help="start with the processes of one user")
    see.add_argument("--mine", action="store_true", default=None, help="start with your own processes")
    see.add_argument(
        "--filter", metavar="TEXT", help="start with the processes that match: 'mem>10GiB user:ada', @name"
    )
    how = top.add_argument_group("options")
    how.add_argument("--interval", metavar="S", help="time between two samples: 2, 500ms (0.1 to 3600 s; default 1)")
    how.add_argument("--memory-warning", metavar="P", help="warn when under P percent of a GPU is free (default 10)")
    how.add_argument("--memory-critical", metavar="P", help="the same for a critical alert (default 5)")
    how.add_argument("--bell", action="store_true", default=None, help="ring the terminal's bell on an alert")
    how.add_argument("--read-only", action="store_true", default=None, help="do not offer to end processes")
    how.add_argument(
        "--allow-root-kill",
        action="store_true",
        help="allow root to end processes: its own, or under sudo those of the caller",
    )
    how.add_argument(
        "--keepalive", metavar="S", help="with --stream: end when stdin ends, or brings nothing for so long"
    )
    how.add_argument("--wait", action="store_true", help="wait for a driver where there is none")
    how.add_argument("--theme", metavar="NAME", help="dark (the default), light, or a theme of Textual: nord")
    how.add_argument("--ascii", action="store_true", default=None, help="print only ASCII characters")
    how.add_argument("--config", metavar="FILE", help="read FILE instead of your gpuwatch.toml")
    add_recording_flags(top.add_argument_group("recording (of the dashboard and of `gpuwatch watch`)"))
    group = top.add_subparsers(title="commands", dest="command", metavar="COMMAND", parser_class=_CommandParser)
    for name, words in COMMANDS.items():
        description = f"{words[0].upper()}{words[1:]}."
        added = group.add_parser(name, help=words, description=description, epilog=_CODES, allow_abbrev=False)
        added.command = name
    return top


def commands_of(top: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Return the parser of each command."""
    (commands,) = (action.choices for action in top._actions if isinstance(action.choices, dict))
    return commands


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; raises UsageError.

    The words after `run ... --`, and without `--` those from the first that is no flag, belong to another program: they
    are returned in `program`. A value such as `-1,0` after `visible` is no flag.
    """
    top, words, program = parser(), list(argv), []
    ours = words[: words.index("--")] if "--" in words else words
    if "run" in ours:
        words, program = ours, words[len(ours) + 1 :]
    elif "visible" in ours:
        values = [word for word in ours if re.match(r"-[0-9]", word)]
        if values:
            words = [*(word for word in ours if word not in values), "--", *values, *words[len(ours) + 1 :]]
    parts = {word: word.partition("=") for word in ours if word.startswith(tuple(f"{flag}=" for flag in _FORMATS))}
    # With an optional value --json would take the command that follows it for its format.
    args, rest = top.parse_known_args([parts[word][0] if word in parts else word for word in words])
    for flag, _, wanted in parts.values():
        setattr(args, flag[2:], _format(args, flag, wanted))
    unmarked = args.program if args.command == "run" else []
    if "--" in argv:  # then the words before it are no program
        rest += unmarked
    _check_flags(top, args, rest)
    args.program, args.reservations = program or unmarked, None
    return args


_FORMATS: Final = {"--json": ("gpustat", ", but with --once"), "--stream": ("live", "")}
"""Format of each flag that has a second one, and what it goes with."""


def _format(args: argparse.Namespace, flag: str, wanted: str) -> str:
    known, goes_with = _FORMATS[flag]
    if wanted != known:
        raise UsageError(f"{flag}: unknown format {wanted[:40]!a}; write {flag}, or {flag}={known}")
    if args.command:
        raise UsageError(f"{flag}={known} does not go with `gpuwatch {args.command}`{goes_with}")
    return wanted


def _check_flags(top: argparse.ArgumentParser, args: argparse.Namespace, rest: Sequence[str]) -> None:
    """Raise UsageError for an unknown word, and for a flag of the dashboard that the command does not have."""
    own = top._actions
    if args.command:
        own = commands_of(top)[args.command]._actions
        names = {action.dest for action in own}
        others = [one for one in top._actions if one.dest not in names and one.default != argparse.SUPPRESS]
        flags = {flag: one for one in others for flag in one.option_strings}
        given = [flag for flag, one in flags.items() if getattr(args, one.dest) != one.default]
        given += [word for word in rest if word in flags]
        if given:
            raise UsageError(f"{given[0]} does not go with `gpuwatch {args.command}`")
    if rest:
        known = [flag for action in own for flag in action.option_strings if flag.startswith("--")]
        what = "flag" if rest[0].startswith("-") else "argument"
        raise UsageError(_unknown(what, ascii(rest[0])[1:-1], known, args.command))


def _unknown(what: str, word: str, known: Iterable[str], command: str | None = None) -> str:
    import difflib

    close = difflib.get_close_matches(word.split("=")[0], known, n=1, cutoff=0.7)
    asked = f"gpuwatch {command}" if command else "gpuwatch"
    hint = f"did you mean {close[0]}?" if close else f"`{asked} --help` lists what there is"
    return f"unknown {what} {word}; {hint}"
