"""`gpuwatch message PID`: a polite message to the owner of a process, to copy; nothing is sent."""

from __future__ import annotations

import argparse

from gpuwatch.analysis.owner_message import message
from gpuwatch.analysis.rows import rows
from gpuwatch.base.errors import GpuwatchError
from gpuwatch.commands.console import Console
from gpuwatch.commands.explain import find_process, parse_pid
from gpuwatch.commands.flags import add_flags
from gpuwatch.commands.startup import configured, read_snapshot
from gpuwatch.commands.stray_inputs import idle_times
from gpuwatch.sources.sampler_process import SamplerProcess


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "demo")
    parser.add_argument("pid", metavar="PID", help="a process that holds a GPU")


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print the message and return the exit code; raises GpuwatchError where there is nobody to write to."""
    config = configured(args)
    pid = parse_pid(args.pid, "message")
    snapshot = read_snapshot(args, config, sampler, tmux=config.tmux)
    held = [row for row in rows(snapshot, idle_times=idle_times(snapshot)) if row.holding.pid == pid]
    if not held:
        find_process(pid, snapshot, config)  # it says that there is none, or why it is not seen
        raise GpuwatchError(f"process {pid} holds no GPU")
    if held[0].process.uid is None:
        raise GpuwatchError(f"the owner of process {pid} is not known")
    Console(ascii_only=config.ascii).print(*message(held, snapshot, config.limits().allowances).splitlines())
    return 0
