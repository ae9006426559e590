"""Command `gpuwatch`: the dashboard. The sampler starts before Textual is imported, since both take long."""

from __future__ import annotations

import argparse
import os
import sys

from gpuwatch.base.errors import NoThreadError, UnavailableError, UsageError
from gpuwatch.commands.flags import parse_indices
from gpuwatch.commands.startup import configured, fixed_settings, interval_of, open_source
from gpuwatch.sources.sampler_process import SamplerProcess
from gpuwatch.ui.choices import Remembered, read_choices

_ADVICE = "try `gpuwatch --once`, `gpuwatch --json` or `gpuwatch --stream`"


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Show the dashboard until the user leaves it, and return the exit code."""
    only = parse_indices(args.gpu)
    check_terminal()
    config = configured(args)
    remembered = Remembered() if args.demo else read_choices(fixed_settings(args))
    seconds = remembered.interval or interval_of(args, config)
    if not args.host:
        source = open_source(args, config, sampler, interval=seconds, only=only, tmux=config.tmux)
        try:
            from gpuwatch.commands.dashboard_app import show

            return show(source, args, config, seconds, only, remembered)
        except UnavailableError as error:
            if not config.hosts or args.demo or isinstance(error, NoThreadError):
                raise  # else it is a laptop, from which other machines are watched
        finally:
            source.close()
    from gpuwatch.commands.hosts import show_hosts  # for those who have other hosts

    return show_hosts(args, config, seconds, remembered)


def check_terminal(advice: str = _ADVICE) -> None:
    """Raise UsageError with an `advice` if there is no terminal for a dashboard, and remove exported sizes."""
    for stale in ("COLUMNS", "LINES"):  # an exported size would be believed over the terminal's own, and over resizes
        os.environ.pop(stale, None)
    if os.environ.get("TERM", "dumb") in ("dumb", ""):
        raise UsageError(f"the dashboard needs a terminal that can move its cursor, but TERM is dumb; {advice}")
    for name, stream in (("stdin", sys.stdin), ("stdout", sys.stdout), ("stderr", sys.stderr)):
        if stream is None or not stream.isatty():
            raise UsageError(f"the dashboard needs a terminal, but {name} is not one; {advice}")
