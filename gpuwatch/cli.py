"""Command line: parses the arguments, imports the module of one command, and runs it."""

from __future__ import annotations

import importlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NoReturn

from gpuwatch.base.replaced import replaced

# Its own messages are read below, and so stay in English; looking for translations would take 2 ms.
with replaced(gettext=SimpleNamespace(gettext=str, ngettext=lambda one, many, number: one if number == 1 else many)):
    import argparse

from gpuwatch.base.errors import GpuwatchError, UsageError
from gpuwatch.commands.flags import FLAGS, RECORDING, given_flags, warn_renamed
from gpuwatch.commands.reference import COMMANDS, DASHBOARD, EXIT_CODES, GROUPS, Command
from gpuwatch.version import __version__

if TYPE_CHECKING:
    from pathlib import Path

    from gpuwatch.sources.sampler_process import SamplerProcess

_OVERVIEW: Final = "Live monitor for NVIDIA GPUs that several people share.\n\n" + "".join(
    f"{group}:\n" + "".join(f"  {name:<11} {command.words}\n" for name, command in commands.items())
    for group, commands in GROUPS.items()
)
_MORE: Final = "all flags: gpuwatch --help=all; of a command: gpuwatch COMMAND --help"
_SHARED: Final = ("help", "config", "ascii")
"""Flags of every command, which the help of a command does not repeat."""


def main(argv: Sequence[str], sampler: SamplerProcess | None, *, reservations: Path | None = None) -> int:
    """Run gpuwatch and return its exit code.

    `sampler` is a sampler process that was started early and waits for its options; None if there is none.
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
    if args.stream and (args.once or args.json):
        raise UsageError(
            f"--{'once' if args.once else 'json'} and --stream cannot be used together; --stream prints JSON"
        )
    args.once = args.once or bool(args.json)
    if args.keepalive is not None and not args.stream:
        raise UsageError("--keepalive needs --stream")
    if args.host:
        local = ("json", "once", "stream", "demo", "gpu", "wait", "allow-root-kill", *RECORDING)
        if given := given_flags(args, local):
            raise UsageError(f"--host cannot be used with {given[0]}")
    if args.wait and (args.once or args.stream):
        raise UsageError("--wait is for the dashboard; --once and --stream report a missing driver at once")
    if (args.at is not None or args.recording) and not args.once:
        raise UsageError("--recording works with --once, `events` and `report`; `gpuwatch replay FILE` shows it")
    if args.at is not None and not args.recording:
        raise UsageError("--at needs --once --recording FILE")
    if args.recording and (args.demo or args.gpu is not None):
        raise UsageError(f"--recording cannot be used with {'--demo' if args.demo else '--gpu'}")
    if (given := given_flags(args, RECORDING)) and (args.once or args.stream):
        raise UsageError(
            f"{given[0]} is for the dashboard and for `gpuwatch watch`; it cannot be used with --once and --stream"
        )
    if (args.user or args.mine or args.filter is not None) and (args.stream or args.json):
        raise UsageError(
            "--user, --mine and --filter cannot be used with JSON, which always has the processes of all users"
        )
    return "once" if args.once else "stream" if args.stream else "dashboard"


# ---------------------------------------------------------------------------------------------------------------
# Parsing


class _Parser(argparse.ArgumentParser):
    """Argument parser whose errors are one line each."""

    def __init__(self, **settings: Any) -> None:
        # argparse formats each new flag to check it: without a width it would import shutil, bz2 and lzma for that.
        super().__init__(allow_abbrev=False, formatter_class=partial(argparse.HelpFormatter, width=80), **settings)
        self._negative_number_matcher = re.compile(r"-[0-9]")  # -1,0 is a value, and no flag

    def format_help(self) -> str:
        """Return the help, as wide as the terminal."""
        self.formatter_class = argparse.RawDescriptionHelpFormatter
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Raise UsageError; for an unknown command suggest the most similar one."""
        if lacks := re.match(r"argument (\S+): expected ", message):
            message = f"{lacks[1]} needs a value: {lacks[1]} {self._option_string_actions[lacks[1]].metavar}"
        raise UsageError(message)


class CommandParser(_Parser):
    """Argument parser of one command: imports the command's module, which adds its arguments, when it is used."""

    command = ""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Add the arguments of the command, then parse."""
        self.add_all()
        return super().parse_known_args(args, namespace)

    def add_all(self) -> None:
        """Add the arguments of the command, and the usage line, exit codes and examples of its help."""
        about = COMMANDS[self.command]
        _import(self.command).add_arguments(self)
        self.usage = f"gpuwatch {self.command} [flags] {about.usage}".rstrip()
        self.description = f"{about.words[0].upper()}{about.words[1:]}."
        self._positionals.title, self._optionals.title = "arguments", "flags"
        parts = (self.epilog, _examples(about), _codes(about.exit_codes()), _ALSO)
        self.epilog = "\n\n".join(filter(None, parts))

    def format_help(self) -> str:
        """Return the help, without the flags that every command has."""
        for action in self._actions:
            if action.dest in _SHARED:
                action.help = argparse.SUPPRESS
        return super().format_help()


_ALSO: Final = "also: --config FILE, --ascii; see gpuwatch --help=all"


def _examples(about: Command) -> str:
    width = max(map(len, about.examples), default=0)
    lines = [f"  {line:<{width}}  {words}" for line, words in about.examples.items()]
    return "\n".join(["examples:", *lines]) if lines else ""


def _codes(codes: Mapping[int, str]) -> str:
    return textwrap.fill(f"exit codes: {'; '.join(f'{code} {words}' for code, words in codes.items())}", 78)


def parser(*, whole: bool = True) -> argparse.ArgumentParser:
    """Return the parser of the command line; its help has all flags, or unless `whole` those that are used most."""
    top = _flags_parser(whole=whole)
    _add_commands(top, whole=whole)
    return top


def _flags_parser(*, whole: bool) -> argparse.ArgumentParser:
    """Return the parser of a line without a command, whose help has no commands yet."""
    top = _Parser(
        prog="gpuwatch",
        usage="gpuwatch [flags] [COMMAND ...]     (without a COMMAND: the dashboard)",
        description=_OVERVIEW + _examples(DASHBOARD),
        epilog=f"{_codes(EXIT_CODES)}\nData goes to stdout, messages to stderr." if whole else _MORE,
    )
    top.set_defaults(command=None)
    top.add_argument("--version", action="version", version=f"gpuwatch {__version__}")
    for title, flags in FLAGS.items():
        group = top.add_argument_group(title)
        for name, settings in flags.items():
            group.add_argument(f"--{name}", **settings)
    return top


def _add_commands(top: argparse.ArgumentParser, *, whole: bool) -> None:
    commands = top.add_subparsers(
        title="commands", prog="gpuwatch", dest="command", metavar="COMMAND", parser_class=CommandParser
    )
    for group in top._action_groups:
        for action in group._group_actions:
            if action is commands or not (whole or group.title == "flags"):
                action.help = argparse.SUPPRESS
    for name, command in COMMANDS.items():
        commands.add_parser(name, help=command.words).command = name


def commands_of(top: argparse.ArgumentParser) -> Mapping[str, CommandParser]:
    (commands,) = (action.choices for action in top._actions if isinstance(action.choices, dict))
    return commands


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line; raises UsageError.

    The words after `run ... --`, and without `--` those from the first that is no flag, belong to another program: they
    are returned in `program`.
    """
    words, program = list(argv), []
    ours = words[: words.index("--")] if "--" in words else words
    whole = "--help=all" in ours
    top = _flags_parser(whole=whole)
    place = _find_command(top, ours)
    if whole or ours[place:] or "--" in argv or not {"-h", "--help"}.isdisjoint(ours):
        _add_commands(top, whole=whole)  # a line of flags is parsed without them, which saves 3 ms
    if ours[place : place + 1] == ["run"]:
        words, program, ours = ours, words[len(ours) + 1 :], ours[:place]
    else:
        words[place:] = _in_new_words(words[place:])
    parts = {word: word.partition("=") for word in ours if word.startswith(tuple(f"{flag}=" for flag in _FORMATS))}
    # With an optional value, --json would take the next command as its format.
    args, rest = top.parse_known_args([parts[word][0] if word in parts else word for word in words])
    for flag, _, wanted in parts.values():
        setattr(args, flag[2:], _format(args, flag, wanted))
    unmarked = args.program if args.command == "run" else []
    if "--" in argv:  # then the words before it are no program
        rest += unmarked
    _check_flags(top, args, rest)
    args.program, args.reservations = program or unmarked, None
    return args


_FORMATS: Final = {"--json": ("gpustat", ", but with --once"), "--stream": ("live", ""), "--help": ("all", "")}
"""Format of each flag that has a second one, and what it goes with."""
_MEANT: Final = {
    **dict.fromkeys(("-n", "-d", "-l"), "--interval"),
    **dict.fromkeys(("-g", "-i", "-o"), "--gpu"),
    **{"-1": "--once", "-f": "--filter", "-j": "--json", "-m": "--mine", "-u": "--user"},
}
"""Flags of watch, top, nvidia-smi, nvitop and gpustat, and their names here."""


def _find_command(top: argparse.ArgumentParser, words: Sequence[str]) -> int:
    """Return the place of the command among the words; raises UsageError for an unknown command, or flag before it."""
    place = 0
    while place < len(words) and words[place].startswith("-"):
        flag, equals, _ = words[place].partition("=")
        action = top._option_string_actions.get(flag)
        if action is None:
            raise UsageError(_unknown("flag", words[place:], top._option_string_actions))
        place += 1 if equals or action.nargs == 0 else 2
    if words[place:] and words[place] not in (*COMMANDS, "visible", "recording"):
        raise UsageError(_unknown("command", words[place:], {**top._option_string_actions, **COMMANDS}))
    return place


def _in_new_words(words: list[str]) -> list[str]:
    """Return a command with its arguments under its new name."""
    match words:
        case ["visible", *rest]:
            warn_renamed("`gpuwatch visible`", "`gpuwatch explain --visible`")
            return ["explain", "--visible", *rest]
        case ["recording", "copy", file, copy]:
            warn_renamed("`gpuwatch recording copy`", "`gpuwatch replay FILE --copy TO`")
            return ["replay", file, "--copy", copy]
        case ["recording", *_]:
            raise UsageError("recording: write `gpuwatch replay FILE --copy TO`")
    return words


def _format(args: argparse.Namespace, flag: str, wanted: str) -> str:
    known, goes_with = _FORMATS[flag]
    if wanted != known:
        raise UsageError(f"{flag}: unknown format {wanted[:40]!a}; write {flag}, or {flag}={known}")
    if args.command:
        raise UsageError(f"{flag}={known} cannot be used with `gpuwatch {args.command}`{goes_with}")
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
            raise UsageError(f"{given[0]} cannot be used with `gpuwatch {args.command}`")
    if rest:
        known = {flag: action for action in own for flag in action.option_strings}
        raise UsageError(_unknown("flag" if rest[0].startswith("-") else "argument", rest, known, args.command))


def _unknown(what: str, words: Sequence[str], known: Mapping[str, Any], command: str | None = None) -> str:
    """Return the error for the first of some words, with a suggestion from the `known`."""
    import difflib

    word, value = (ascii(one)[1:-1] for one in (*words, "")[:2])
    meant = _MEANT.get(word, "")
    if meant in known:
        takes = known[meant].nargs is None and not value.startswith("-")
        return f"unknown {what} {word}; did you mean {meant}{f' {value}' * (takes and bool(value))}?"
    if behind := next((one for one in words[1:] if command is None and one in COMMANDS), ""):
        return f"unknown {what} {word}; write flags of a command after it: gpuwatch {behind} {word}"
    close = difflib.get_close_matches(word.split("=")[0], known, n=1, cutoff=0.7)
    asked = f"gpuwatch {command}" if command else "gpuwatch"
    hint = f"did you mean {close[0]}?" if close else f"see `{asked} --help`"
    return f"unknown {what} {word}; {hint}"
