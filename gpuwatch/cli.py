"""The command line: parses the arguments, imports the module of one command, and runs it."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gpuwatch import __version__
from gpuwatch.errors import EXIT_CODES, GpuwatchError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatch.sources.child import Child

COMMANDS: Final = {
    "explain": "what a process declared, which GPUs it sees, and how we know",
    "visible": "what a CUDA_VISIBLE_DEVICES value makes visible here",
    "pick": "GPUs with room, printed for CUDA_VISIBLE_DEVICES",
    "run": "pick, declare to every framework, start a program",
    "strays": "your own processes that nobody tends and that still hold memory, and why",
    "kill": "end processes of yours, or a whole run, and say what became of them",
    "report": "who held and used how much since when, from what `watch` has kept",
    "events": "what was raised and how it ended, from the events log",
    "watch": "watch without a terminal: log, messages, one line an event",
    "status": "one short line, for the status bar of tmux",
    "config": "show, check or begin a gpuwatch.toml",
    "docs": "the guide, one page a subject",
}
"""Each command, which is the module of that name in `gpuwatch.commands`, in words."""

_CODES: Final = (
    "Exit codes: 0 done, an empty list too, 1 what it needs is not there (no such process, no room, nothing kept yet), "
    + EXIT_CODES
)


def main(argv: Sequence[str], sampler: Child | None, *, reservations: Path | None = None) -> int:
    """Run gpuwatch and return its exit code; `sampler` is one that waits for its orders, where there is one already.

    `reservations` is the folder in which the runs of all users meet, in place of the machine's own.
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
    """Import the module of a command: its `add_arguments` and its `main`."""
    return importlib.import_module(f"gpuwatch.commands.{command}")


def _without_command(args: argparse.Namespace) -> str:
    """Return the module that the flags before any command ask for; raises UsageError."""
    if args.json and not args.once:
        raise UsageError("--json goes with --once; for a stream of JSON lines there is --stream")
    if args.once and args.stream:
        raise UsageError("--once and --stream exclude each other")
    if args.wait and (args.once or args.stream):
        raise UsageError("--wait is for the dashboard; --once and --stream say at once that there is no driver")
    if (args.user or args.mine) and (args.stream or args.json):
        raise UsageError("--user and --mine choose what is drawn; JSON always holds everybody's processes")
    return "once" if args.once else "stream" if args.stream else "dashboard"


# ---------------------------------------------------------------------------------------------------------------
# Parsing


class _Parser(argparse.ArgumentParser):
    """Parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, with the command that was probably meant."""
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*)' \(choose", message)
        if wrong:  # the word as repr gives it: with its controls escaped, but not what is beyond ASCII
            message = _unknown("command", wrong[1].encode("ascii", "backslashreplace").decode(), COMMANDS)
        raise UsageError(message)


class _CommandParser(_Parser):
    """Parser of one command, whose arguments its module adds once the command line names it."""

    command = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the arguments of the command, then parse."""
        _import(self.command).add_arguments(self)
        return super().parse_known_args(args, namespace)


def parser() -> argparse.ArgumentParser:
    """Return the parser of gpuwatch's command line."""
    top = _Parser(
        prog="gpuwatch",
        description="A live, truthful monitor for GPUs that several people share.",
        epilog=_CODES,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"gpuwatch {__version__}")
    what = top.add_argument_group("what to do (without any of these: the dashboard)")
    what.add_argument("--once", action="store_true", help="print one snapshot, and out")
    what.add_argument("--json", action="store_true", help="with --once: as one JSON object")
    what.add_argument("--stream", action="store_true", help="print one JSON line a snapshot, for ever")
    what.add_argument("--demo", action="store_true", help="a simulated lab machine instead of this one")
    see = top.add_argument_group("what to see")
    see.add_argument("--only", metavar="0,2", help="these GPUs alone; no call is made to the others")
    see.add_argument("--user", metavar="NAME", help="start with the processes of one user")
    see.add_argument("--mine", action="store_true", default=None, help="start with your own processes")
    how = top.add_argument_group("how")
    how.add_argument("--interval", metavar="S", help="time between two samples: 2, 500ms (0.1 to 3600 s; default 1)")
    how.add_argument("--memory-warning", metavar="P", help="warn when under P percent of a GPU is free (default 10)")
    how.add_argument("--memory-critical", metavar="P", help="the same for a critical alert (default 5)")
    how.add_argument("--bell", action="store_true", default=None, help="ring the terminal's bell on an alert")
    how.add_argument("--read-only", action="store_true", default=None, help="no process can be ended from here")
    how.add_argument(
        "--allow-root-kill",
        action="store_true",
        help="let root end processes: its own, under sudo those of whoever called it",
    )
    how.add_argument("--wait", action="store_true", help="where there is no driver, wait until there is one")
    how.add_argument("--theme", metavar="NAME", help="dark or light (default dark)")
    how.add_argument("--ascii", action="store_true", default=None, help="no character outside ASCII")
    how.add_argument("--config", metavar="FILE", help="read FILE instead of your gpuwatch.toml")
    group = top.add_subparsers(title="commands", dest="command", metavar="COMMAND", parser_class=_CommandParser)
    for name, words in COMMANDS.items():
        description = f"{words[0].upper()}{words[1:]}."
        added = group.add_parser(name, help=words, description=description, epilog=_CODES, allow_abbrev=False)
        added.command = name
    return top


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; raises UsageError.

    What follows `--` after `run` is a program's own and is in `program`. A value such as `-1,0` is none of our flags.
    """
    top, words, program = parser(), list(argv), []
    ours = words[: words.index("--")] if "--" in words else words
    if "run" in ours:
        words, program = ours, words[len(ours) + 1 :]
    elif "visible" in ours:
        values = [word for word in ours if re.match(r"-[0-9]", word)]
        if values:
            words = [*(word for word in ours if word not in values), "--", *values, *words[len(ours) + 1 :]]
    args, rest = top.parse_known_args(words)
    if args.command == "run" and "--" not in argv and rest and not rest[0].startswith("-"):
        raise UsageError(_without_dashes(list(argv), rest[0]))
    _check_flags(top, args, rest)
    args.program, args.reservations = program, None
    return args


def _check_flags(top: argparse.ArgumentParser, args: argparse.Namespace, rest: Sequence[str]) -> None:
    """Raise UsageError where a flag of the dashboard stands with a command that has none such, or a word is unknown."""
    own = top._actions
    if args.command:
        (commands,) = (action.choices for action in own if isinstance(action.choices, dict))
        own = commands[args.command]._actions
        names = {action.dest for action in own}
        others = [one for one in top._actions if one.dest not in names and one.default != argparse.SUPPRESS]
        flags = {flag: one for one in others for flag in one.option_strings}
        given = [flag for flag, one in flags.items() if getattr(args, one.dest) != one.default]
        given += [word for word in rest if word in flags]
        if given:
            raise UsageError(f"{given[0]} does not go with `gpuwatch {args.command}`")
    if rest:
        known = [flag for action in own for flag in action.option_strings if flag.startswith("--")]
        raise UsageError(_unknown("flag" if rest[0].startswith("-") else "argument", ascii(rest[0])[1:-1], known))


def _unknown(what: str, word: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word.split("=")[0], known, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}?" if close else "`gpuwatch --help` lists what there is"
    return f"unknown {what} {word}; {hint}"


def _without_dashes(argv: list[str], program: str) -> str:
    """Return what to write instead of a `run` whose program does not stand behind `--`."""
    import shlex

    place = argv.index(program, argv.index("run"))
    flags = argv[:place]
    if not any(word.startswith(("--share", "--memory")) for word in flags):
        flags = [*flags, "--share", "0.4"]
    return f"-- is missing before {program}; write: gpuwatch {shlex.join([*flags, '--', *argv[place:]])}"
