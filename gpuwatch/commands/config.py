"""`gpuwatch config`."""

from __future__ import annotations

import argparse

from gpuwatch.errors import UsageError


def main(args: argparse.Namespace) -> int:
    """Run the command and give its exit code."""
    raise UsageError(f"`gpuwatch {args.command}` is not there yet")
