"""`gpuwatch docs [PAGE]`: the pages of the guide, drawn in a terminal and as plain Markdown in a pipe."""

from __future__ import annotations

import argparse
import io
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

from rich.console import Console as RichConsole
from rich.markdown import Markdown

from gpuwatch.base.errors import UsageError
from gpuwatch.commands.console import Console, in_ascii
from gpuwatch.commands.flags import add_flags

PAGES: Final = (
    "start",
    "screen",
    "strays",
    "shares",
    "alerts",
    "report",
    "fleet",
    "ssh",
    "recording",
    "admin",
    "troubleshooting",
    "data",
    "terms",
    "commands",
    "configuration",
    "json",
    "metrics",
    "python",
)
"""The pages, in the order in which people read them."""

FOLDER: Final = Path(__file__).parent.parent / "docs"

_WIDEST: Final = 110
"""Cells of a line: longer lines are hard to read."""
_LINK: Final = re.compile(r"\[((?:`[^`]*`|[^\]])+)\]\((\w+)\.md(?:#[\w-]+)?\)")
_UNSHOWN: Final = re.compile(r"^<!--.*-->\n|^(?:!\[.*\n)+\n", re.MULTILINE)
"""Markers of generated tables, and pictures, which a terminal does not show."""
_LESS: Final = "-FRX"
"""For less, where LESS is not set: quit if the page fits, show colours, leave the page on screen."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    parser.add_argument("page", metavar="PAGE", nargs="?", help="a page, such as alerts (default: list the pages)")


def main(
    args: argparse.Namespace,
    _sampler: object = None,
    *,
    out: TextIO | None = None,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Print a page, or the list of pages; return the exit code. Raises UsageError for an unknown page."""
    console = Console(ascii_only=bool(args.ascii), out=out)
    if args.page is None:
        console.print(*(f"{name:<16}{summary(name)}" for name in PAGES))
    elif not console.out.isatty() or environ.get("TERM", "dumb") in ("dumb", ""):
        console.out.write(_in_ascii(page_text(args.page), console.ascii))
    else:
        width = min(shutil.get_terminal_size().columns, _WIDEST)
        drawn = render(page_text(args.page), width, ascii_only=console.ascii)
        _show(_in_ascii(drawn, console.ascii), console.out, environ)
    console.out.flush()
    return 0


def page_text(name: str) -> str:
    """Return a page as Markdown, without markers and pictures; raises UsageError for an unknown page."""
    if name not in PAGES:
        raise UsageError(f"unknown page {name}; the pages are {', '.join(PAGES)}")
    return _UNSHOWN.sub("", (FOLDER / f"{name}.md").read_text(encoding="utf-8"))


def summary(name: str) -> str:
    """Return what a page is about: its first line of text."""
    return next(line for line in page_text(name).splitlines() if line and not line.startswith("#"))


def render(markdown: str, width: int, *, ascii_only: bool = False) -> str:
    """Render Markdown for a terminal of a width; a link to a page becomes the command that shows it."""
    markdown = _LINK.sub(r"\1 (`gpuwatch docs \2`)", markdown)
    # Rich chooses the characters of its lines by the encoding of its file, which gets nothing here.
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii" if ascii_only else "utf-8")
    console = RichConsole(file=file, width=width, force_terminal=True)
    with console.capture() as capture:
        console.print(Markdown(markdown, hyperlinks=False, code_theme="ansi_dark"))
    return capture.get()


def _in_ascii(text: str, ascii_only: bool) -> str:
    return "\n".join(map(in_ascii, text.replace("•", "*").split("\n"))) if ascii_only else text


def _show(text: str, out: TextIO, environ: Mapping[str, str]) -> None:
    """Show text in the pager of the user, or print it without one."""
    command = pager(environ)
    if not command:
        out.write(text)
        return
    interrupted = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the pager
    try:
        subprocess.run(command, input=text.encode(), env={"LESS": _LESS, **environ}, stdout=out.fileno(), check=False)
    finally:
        signal.signal(signal.SIGINT, interrupted)


def pager(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the command of the pager: `$PAGER`, else less; nothing where there is none, or `$PAGER` is empty."""
    try:
        command = shlex.split(environ.get("PAGER", "less"))
    except ValueError:
        return ()
    return command if command and shutil.which(command[0]) else ()
