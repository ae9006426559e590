"""`gpuwatch message PID`, or a user: a polite message to the owner of processes, to copy; nothing is sent."""

from __future__ import annotations

import argparse

from gpuwatch.analysis.owner_message import message
from gpuwatch.analysis.rows import rows
from gpuwatch.base.errors import GpuwatchError
from gpuwatch.base.text import clean
from gpuwatch.commands.console import Console
from gpuwatch.commands.explain import find_process, parse_pid
from gpuwatch.commands.flags import add_flags
from gpuwatch.commands.startup import configured, read_snapshot
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.sources.sampler_process import SamplerProcess


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "demo")
    parser.add_argument("whom", metavar="PID|USER", help="a process that uses a GPU, or a user: all that they use")


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print the message and return the exit code; raises GpuwatchError if there is nobody to write to."""
    config, whom = configured(args), clean(args.whom)
    pid = parse_pid(whom, "message") if whom.isdecimal() else None
    snapshot = read_snapshot(args, config, sampler, tmux=config.tmux)
    every = rows(snapshot, idle_times=idle_times(snapshot))
    held = [row for row in every if row.holding.pid == pid]
    held = held or [row for row in every if row.process.user == whom]  # a user without a name has a number
    if not held and pid is None:
        users = sorted({row.process.user for row in every} - {""})
        raise GpuwatchError(f"no process of {whom} uses a GPU; these users use one: {', '.join(users) or 'nobody'}")
    if not held and pid is not None:
        find_process(pid, snapshot, config)  # raises an error if there is none, or it is not visible
        raise GpuwatchError(f"process {pid} uses no GPU")
    if held[0].process.uid is None:
        raise GpuwatchError(f"the owner of process {held[0].holding.pid} is not known")
    Console(ascii_only=config.ascii).print(*message(held, snapshot, config.limits().allowances).splitlines())
    return 0
