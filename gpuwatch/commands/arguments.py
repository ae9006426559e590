"""The arguments of gpuwatch and of its commands; nothing heavy is imported here."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Protocol

from gpuwatch import __version__
from gpuwatch.errors import UsageError

COMMANDS = {
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

_FOR_ALL = frozenset({"config", "ascii", "demo", "json"})
"""Flags that every command takes too; the others are the dashboard's."""

_ALSO = {
    "pick": frozenset({"only"}),
    "watch": frozenset({"only", "interval"}),
    "events": frozenset({"user"}),
    "kill": frozenset({"read_only", "allow_root_kill"}),
}
"""The dashboard's flags that a command has as its own."""


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError, with the command that was probably meant."""
        wrong = re.match(r"argument COMMAND: invalid choice: '(.*)' \(choose", message)
        if wrong:  # the word as repr gives it: with its controls escaped, but not what is beyond ASCII
            message = _unknown("command", wrong[1].encode("ascii", "backslashreplace").decode(), COMMANDS)
        raise UsageError(message)


def _unknown(what: str, word: str, known: Iterable[str]) -> str:
    import difflib

    close = difflib.get_close_matches(word.split("=")[0], known, n=1, cutoff=0.7)
    hint = f"did you mean {close[0]}?" if close else "`gpuwatch --help` lists what there is"
    return f"unknown {what} {word}; {hint}"


_OTHER_CODES = "2 bad usage, 3 no driver or no GPU. Data on stdout, words on stderr."
_MISSING = "1 what it needs is not there (no such process, no room, nothing kept yet)"
_CODES = f"Exit codes: 0 done, an empty list too, {_MISSING}, {_OTHER_CODES}"
_KILL_CODES = f"Exit codes: 0 all have exited, 1 one was refused or still runs, {_OTHER_CODES}"

_AS_ROOT = "let root end processes: its own, under sudo those of whoever called it"


def parser() -> argparse.ArgumentParser:
    """Give the parser of gpuwatch's command line."""
    return _parsers()[0]


def _parsers() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """Give the parser of the whole, and those of the commands."""
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
    how.add_argument("--allow-root-kill", action="store_true", help=_AS_ROOT)
    how.add_argument("--wait", action="store_true", help="where there is no driver, wait until there is one")
    how.add_argument("--theme", metavar="NAME", help="dark or light (default dark)")
    how.add_argument("--ascii", action="store_true", default=None, help="no character outside ASCII")
    how.add_argument("--config", metavar="FILE", help="read FILE instead of your gpuwatch.toml")
    return top, _add_commands(top)


def _add_commands(top: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """Add the commands; a flag of the same name before the command counts too."""
    common = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    common.add_argument("--config", metavar="FILE", help="read FILE instead of your gpuwatch.toml")
    common.add_argument("--ascii", action="store_true", help="no character outside ASCII")
    asking, telling = (
        argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS, parents=[common]) for _ in range(2)
    )
    for one in (asking, telling):
        one.add_argument("--json", action="store_true", help="as JSON")
    asking.add_argument("--demo", action="store_true", help="a simulated lab machine instead of this one")
    telling.add_argument("--demo", action="store_true", help=argparse.SUPPRESS)  # refused, and it is said why
    group = top.add_subparsers(title="commands", dest="command", metavar="COMMAND")

    def add(
        name: str, *, flags: argparse.ArgumentParser, usage: str | None = None, epilog: str = _CODES
    ) -> argparse.ArgumentParser:
        return group.add_parser(
            name,
            help=COMMANDS[name],
            description=f"{COMMANDS[name][0].upper()}{COMMANDS[name][1:]}.",
            usage=usage,
            parents=[flags],
            epilog=epilog,
            allow_abbrev=False,
        )

    _add_choosing(add, common, asking)
    _add_ending(add, common, asking)
    _add_telling(add, telling)
    _add_watching(add, common, asking)
    return group.choices


class _Add(Protocol):
    """Adds a command."""

    def __call__(
        self, name: str, *, flags: argparse.ArgumentParser, usage: str | None = None, epilog: str = _CODES
    ) -> argparse.ArgumentParser: ...


def _add_choosing(add: _Add, common: argparse.ArgumentParser, asking: argparse.ArgumentParser) -> None:
    """Add what is about choosing GPUs and declaring a share of them."""
    explain = add("explain", flags=asking)
    explain.add_argument("pid", metavar="PID")
    visible = add("visible", flags=asking)
    visible.add_argument("value", metavar="VALUE", nargs="?", help="such as 0,2 (default: that of your environment)")
    orders = ("PCI_BUS_ID", "FASTEST_FIRST")
    visible.add_argument("--order", choices=orders, help="CUDA_DEVICE_ORDER (default: that of your environment)")
    pick = add("pick", flags=asking)
    run = add("run", flags=common, usage="gpuwatch run (--share F | --memory SIZE) [flags] -- COMMAND ...")
    for one in (pick, run):
        one.add_argument("--share", metavar="F", help="of each GPU: 0.4 or 40%%")
        one.add_argument("--memory", metavar="SIZE", help="of each GPU: 20GiB")
        one.add_argument("-n", dest="count", metavar="N", help="how many GPUs (default 1)")
        one.add_argument("--max-util", metavar="P", help="none that is more than P percent busy")
        one.add_argument(
            "--ignore-reservations", action="store_true", help="take no account of what others reserved; says whose"
        )
    pick.add_argument("--only", metavar="0,2", default=argparse.SUPPRESS, help="among these GPUs alone")
    pick.add_argument("--index", action="store_true", help="print NVML's indices, not UUIDs")
    run.add_argument("--gpu", metavar="0,2", default="auto", help="these GPUs (default: auto, those with most room)")
    run.add_argument("--quiet", action="store_true", help="do not say what was set")


def _add_ending(add: _Add, common: argparse.ArgumentParser, asking: argparse.ArgumentParser) -> None:
    """Add what is about who holds memory for nothing, and ending it."""
    add("strays", flags=asking)
    kill = add("kill", flags=common, epilog=_KILL_CODES)
    kill.add_argument("pids", metavar="PID", nargs="+", help="processes of yours that hold a GPU")
    kill.add_argument("--signal", metavar="NAME", help="INT, TERM or KILL (default: TERM)")
    kill.add_argument("--job", action="store_true", help="the whole run that it belongs to: launcher, ranks, workers")
    kill.add_argument("--yes", action="store_true", help="do not ask")
    kill.add_argument("--allow-root-kill", action="store_true", default=argparse.SUPPRESS, help=_AS_ROOT)
    kill.add_argument("--read-only", action="store_true", default=argparse.SUPPRESS, help="end nothing: refuse all")


def _add_telling(add: _Add, telling: argparse.ArgumentParser) -> None:
    """Add what tells of what was kept."""
    report = add("report", flags=telling)
    report.add_argument("--since", metavar="7d", default="7d", help="how far back: 8h, 7d (default 7d)")
    report.add_argument("--by", metavar="WHAT", default="user", help="user, gpu or job (default: user)")
    report.add_argument("--csv", action="store_true", help="as CSV, a line a row")
    report.add_argument("--file", metavar="FILE", help="another file than your own")
    events = add("events", flags=telling)
    events.add_argument("--since", metavar="8h", default="24h", help="how far back: 8h, 7d (default 24h)")
    events.add_argument("--gpu", metavar="0,2", default=argparse.SUPPRESS, help="about these GPUs alone")
    events.add_argument("--user", metavar="NAME", default=argparse.SUPPRESS, help="about one user")
    events.add_argument("--rule", metavar="NAME", help="of one rule: 'overshoot', or its beginning")
    events.add_argument("--file", metavar="FILE", help="another log than your own")


def _add_watching(add: _Add, common: argparse.ArgumentParser, asking: argparse.ArgumentParser) -> None:
    """Add what is about the watch and its configuration."""
    watch = add("watch", flags=asking)
    watch.add_argument("--events", metavar="FILE", help="write the events to FILE instead of your own log")
    watch.add_argument("--quiet", action="store_true", help="print nothing but what goes wrong")
    watch.add_argument("--interval", metavar="S", default=argparse.SUPPRESS, help="time between two samples")
    watch.add_argument("--only", metavar="0,2", default=argparse.SUPPRESS, help="these GPUs alone")
    status = add("status", flags=asking)
    status.add_argument("--tmux", action="store_true", help="with the colours of tmux's status line")
    status.formatter_class, status.epilog = argparse.RawDescriptionHelpFormatter, _status_epilog()
    settings = add("config", flags=common)
    what = settings.add_mutually_exclusive_group(required=True)
    what.add_argument("--show", action="store_true", help="every key, its value, and where it comes from")
    what.add_argument("--init", action="store_true", help="write a commented file; never over one that is there")
    what.add_argument("--check", action="store_true", help="read the files and say what is wrong with them")
    docs = add("docs", flags=common)
    docs.add_argument("page", metavar="PAGE", nargs="?", help="such as guide or alerts (default: list the pages)")


def _status_epilog() -> str:
    """Return the lines for a tmux.conf and the exit codes, each in a line of its own."""
    # By its path where it was called by one: a tmux server need not have the PATH of a virtual environment.
    path = Path(sys.argv[0]).absolute()
    program = str(path) if path.name == "gpuwatch" and re.fullmatch(r"[\w./+-]+", str(path)) else "gpuwatch"
    return (
        "In ~/.tmux.conf:\n\n"
        f"  set -g status-right '#({program} status --tmux)'\n"
        "  set -g status-right-length 80\n"
        "  set -g status-interval 5\n\n"
        f"Exit codes: 0 done, {_OTHER_CODES}"
    )


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Understand a command line; raises UsageError.

    What follows `--` after `run` is a program's own and is in `program`. A value such as `-1,0` is none of our flags.
    """
    (top, commands), words, program = _parsers(), list(argv), []
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
    dashboards = {flag: action for action in top._actions for flag in action.option_strings}
    if args.command:
        given = [flag for flag, action in dashboards.items() if _is_given(args, action)]
        given += [word for word in rest if word in dashboards]
        if given:
            raise UsageError(f"{given[0]} does not go with `gpuwatch {args.command}`")
    if rest:
        known = [action.option_strings for action in (commands.get(args.command) or top)._actions]
        flags = [flag for strings in known for flag in strings if flag.startswith("--")]
        raise UsageError(_unknown("flag" if rest[0].startswith("-") else "argument", ascii(rest[0])[1:-1], flags))
    args.program = program
    return args


def _without_dashes(argv: list[str], program: str) -> str:
    """Return what to write instead of a `run` whose program does not stand behind `--`."""
    import shlex

    place = argv.index(program, argv.index("run"))
    flags = argv[:place]
    if not any(word.startswith(("--share", "--memory")) for word in flags):
        flags = [*flags, "--share", "0.4"]
    return f"-- is missing before {program}; write: gpuwatch {shlex.join([*flags, '--', *argv[place:]])}"


def _is_given(args: argparse.Namespace, action: argparse.Action) -> bool:
    """Say whether a flag was given that is the dashboard's alone."""
    shared = _FOR_ALL | _ALSO.get(args.command, frozenset())
    default = action.default
    return action.dest not in shared and default != argparse.SUPPRESS and getattr(args, action.dest) != default
