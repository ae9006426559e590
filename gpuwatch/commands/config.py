"""`gpuwatch config`: show the settings in effect, write a documented file, check the files."""

from __future__ import annotations

import argparse
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

import msgspec

from gpuwatch.base import text
from gpuwatch.base.errors import UsageError
from gpuwatch.base.files import shown_path
from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import add_flags
from gpuwatch.config.document import default_text, effective_text
from gpuwatch.config.keys import escaped
from gpuwatch.config.paths import ADMINISTRATORS, SECRETS, path
from gpuwatch.config.reading import load_traced
from gpuwatch.config.types import Config
from gpuwatch.recorder.messages import check_program
from gpuwatch.recorder.messages import check_urls as ask_apprise
from gpuwatch.ui.choices import read_choices

_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


CheckUrls = Callable[[Sequence[str]], Sequence[str]]
"""Function that returns for each URL why apprise refuses it, in words to follow the scheme; empty for a good one."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--show", action="store_true", help="print every key, its value and its source")
    what.add_argument("--init", action="store_true", help="write a commented file, unless there is one")
    what.add_argument("--check", action="store_true", help="read the files, and print the first mistake")


def main(
    args: argparse.Namespace,
    _sampler: object = None,
    *,
    administrators: Path = ADMINISTRATORS,
    out: TextIO | None = None,
    check_urls: CheckUrls = ask_apprise,
) -> int:
    """Run the command and return its exit code; UsageError for a wrong file, or if `--init` would overwrite a file."""
    console = Console(ascii_only=bool(args.ascii), out=out)
    if args.init:
        lines, code = [init(Path(args.config) if args.config is not None else path(), administrators)], 0
    elif args.show:
        lines, code = show(args.config, ascii_flag=bool(args.ascii), administrators=administrators), 0
    else:
        lines, code = check(args.config, administrators, check_urls)
    console.print(*(map(_in_ascii, lines) if console.ascii else lines))
    return code


def show(given: str | None, *, ascii_flag: bool, administrators: Path) -> list[str]:
    config, files = load_traced(given, administrators=administrators)
    origins = {name: shown_path(file) for name, file in files.items()}
    if ascii_flag:
        config, origins = msgspec.structs.replace(config, ascii=True), {**origins, "ascii": "--ascii"}
    for name, value in msgspec.to_builtins(read_choices().choices).items():
        origins.setdefault(name, f"default; chosen in the dashboard: {msgspec.json.encode(value).decode()}")
    return effective_text(config, origins).splitlines()


def init(file: Path, administrators: Path) -> str:
    """Write the documented file; never overwrite a file.

    Only its owner can read it, since secrets may be added; everybody can read the administrator's file.
    """
    content = default_text().encode()
    mode = 0o644 if file.absolute() == administrators else 0o600
    try:
        for folder in reversed(file.absolute().parents):
            if not folder.exists():
                folder.mkdir(mode=0o755 if mode == 0o644 else 0o700)
        with open(os.open(file, _NEW_FILE, mode), "wb") as opened:
            try:
                os.fchmod(opened.fileno(), mode)
                opened.write(content)
                opened.flush()
            except OSError:
                file.unlink()  # half a file would block the next attempt
                raise
    except FileExistsError:
        raise UsageError(f"--init: {text.clean(str(file))} exists, and was not changed") from None
    except OSError as error:
        raise UsageError(f"--init: {text.clean(str(file))} cannot be written ({error.strerror})") from None
    return f"{shown_path(file)}: written; all its keys are commented out"


# ---------------------------------------------------------------------------------------------------------------
# Check


def check(given: str | None, administrators: Path, check_urls: CheckUrls) -> tuple[list[str], int]:
    """Return a line for each correct file with its warnings, or for the first mistake, and the exit code."""
    own = Path(given) if given is not None else path()
    try:
        config, origins = load_traced(given, administrators=administrators)
    except UsageError as error:
        if given is not None and not os.path.lexists(given):
            raise
        return [str(error)], 2
    there = [file for file in (administrators, own) if os.path.lexists(file)]
    words = ("not readable: it does not apply to you", "ok")
    lines = [f"{shown_path(file)}: {words[os.access(file, os.R_OK)]}" for file in there]
    if closed := find_closed(administrators):
        lines.append(f"{shown_path(administrators)}: warning: {closed}; {OPEN}")
    lines += [*_warnings(config, origins, check_urls, administrators)]
    return lines or [f"{shown_path(path())}: no such file; the defaults apply"], 0


OPEN: Final = f"run `chmod a+r` on it; put secrets of [notify] into {SECRETS} next to it, which only root can read"
"""Fix for a file of the administrator that applies only to root."""


def find_closed(administrators: Path) -> str:
    """Return that the administrator's file applies only to root; empty where it applies to everybody."""
    try:
        mode = stat.S_IMODE(administrators.stat().st_mode)
    except OSError:
        return ""
    return "" if mode & stat.S_IROTH else f"it applies only to root (mode {mode:04o})"


def _warnings(
    config: Config, origins: Mapping[str, Path], check_urls: CheckUrls, administrators: Path
) -> Iterator[str]:
    """Yield warnings about a correct file: a command that cannot run, secrets that others can read."""
    if config.notify.command:
        reason = check_program(config.notify.command[0])
        if reason:
            yield f"{shown_path(origins['notify.command'])}: warning: key notify.command: {reason}"
    if config.notify.urls:
        file = origins["notify.urls"]
        wrong = zip(config.notify.urls, check_urls(config.notify.urls), strict=False)
        reasons = [find_readable(file, administrators), *(f"{text.mask_url(url)} {why}" for url, why in wrong if why)]
        yield from (f"{shown_path(file)}: warning: key notify.urls: {text.clean(one)}" for one in reasons if one)


def find_readable(file: Path, administrators: Path) -> str:
    """Return a warning where others can read the secrets in a file."""
    mode = stat.S_IMODE(file.stat().st_mode)
    if not mode & (stat.S_IRGRP | stat.S_IROTH):
        return ""
    named = text.clean(str(file))
    fix = f"run `chmod go-r {named}`"
    if file == administrators:
        fix = f"move [notify] to {administrators.with_name(SECRETS)}, which only root can read (chmod 600)"
    return f"others can read these secrets (mode {mode:04o}); {fix}"


def _in_ascii(line: str) -> str:
    """Return a line in ASCII, with TOML escapes for other characters."""
    return "".join(char if char.isascii() else escaped(char) for char in line.replace(text.ELLIPSIS, "..."))
