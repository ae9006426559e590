"""Completions and man page, made from the parser; `python -m tests.docs` writes them, and a test finds stale ones."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from typing import Any, Final
from unittest import mock

import shtab
from argparse_manpage.manpage import Manpage

from gpuwatch import __version__, cli
from gpuwatch.alerts.rules import RULE_NAMES
from gpuwatch.commands.completion import SHELLS
from gpuwatch.commands.docs import PAGES
from gpuwatch.errors import EXIT_CODES

_WORDS: Final = {
    ("docs", "page"): PAGES,
    ("events", "rule"): tuple(sorted(name.replace(" ", "-") for name in RULE_NAMES)),
    ("report", "by"): ("user", "gpu", "job"),
    ("kill", "signal"): ("INT", "TERM", "KILL"),
    ("", "theme"): ("dark", "light"),
    ("replay", "theme"): ("dark", "light"),
}
"""Words that an argument takes and that the parser does not check, by command and argument."""


def _actions(top: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
    """Yield the name of each command with each of its arguments; the name is empty for the flags of the dashboard."""
    for name, one in {"": top, **cli.commands_of(top)}.items():
        for action in one._actions:
            yield name, action


def completions(shell: str) -> str:
    """Return the completions for a shell: commands, flags, files, and the words that an argument takes."""
    top = cli.whole_parser()
    for name, action in _actions(top):
        if action.metavar == "FILE":
            action.complete = shtab.FILE
        action.choices = action.choices or _WORDS.get((name, action.dest))
    text = shtab.complete(top, shell)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def man_page() -> str:
    """Return the man page of all commands."""
    with mock.patch.dict(os.environ, COLUMNS="100"):  # the parser folds its texts at the width of the terminal
        top = cli.whole_parser()
        for one in (top, *cli.commands_of(top).values()):
            one.epilog = None
        page = Manpage(
            top,
            format="single-commands-section",
            _data={
                "project_name": "gpuwatch",
                "version": __version__,
                "description": "live monitor for NVIDIA GPUs that several people share",
                "manual_title": "User Commands",
            },
        )
        page.date = ""  # the page is the same on each day
        page.synopsis = ["gpuwatch", "[flags]", "[COMMAND", "...]"]
        page.add_section("exit status", "=", _EXIT_STATUS)
        page.add_section("see also", "=", _SEE_ALSO)
        return str(page)


_EXIT_STATUS: Final = (
    "0 done (an empty list too), 1 not found (no such process, no room, nothing recorded yet; doctor: something to "
    f"mend), {EXIT_CODES}"
)
_SEE_ALSO: Final = ".B gpuwatch docs\nlists the pages of the guide, and shows one of them."


def shell_files() -> dict[str, str]:
    """Return the files of the folder `gpuwatch/shell` by their names."""
    return {"gpuwatch.1": man_page()} | {f"gpuwatch.{shell}": completions(shell) for shell in SHELLS}
