"""`gpuwatch recording copy FILE TO`: copies a recording, also one that is being written."""

from __future__ import annotations

import argparse
from pathlib import Path

from gpuwatch.base.errors import UsageError
from gpuwatch.base.text import clean
from gpuwatch.commands.flags import add_flags
from gpuwatch.recorder.opening import StoreError, copy_store


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)
    parser.add_argument("action", choices=["copy"], help="copy a recording, also one that is being written")
    parser.add_argument("file", metavar="FILE", help="the recording, or your store of events and use")
    parser.add_argument("to", metavar="TO", help="the copy; it must not exist")


def main(args: argparse.Namespace, _sampler: object = None) -> int:
    """Copy the file and return the exit code; raises UsageError."""
    try:
        copy_store(Path(args.file), Path(args.to))
    except FileNotFoundError:
        raise UsageError(f"{clean(args.file)}: No such file or directory") from None
    except StoreError as error:
        raise UsageError(str(error)) from None
    return 0
