"""`gpuwatch completion SHELL`: the completions of the command line for a shell."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from gpuwatch.commands.console import Console
from gpuwatch.commands.flags import add_flags

SHELLS: Final = ("bash", "zsh", "fish", "tcsh")

FOLDER: Final = Path(__file__).parent.parent / "shell"
"""The completions and the man page, which `python -m tests.docs` makes from the parser."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help="bash, zsh, fish or tcsh")


def main(args: argparse.Namespace, _sampler: object = None) -> int:
    """Print the completions and return the exit code."""
    Console().print_bytes((FOLDER / f"gpuwatch.{args.shell}").read_bytes())
    return 0
