"""`gpuwatch explain PID`: the declarations of a process, the GPUs that it sees, and the source of each fact.

`gpuwatch explain --visible 'VALUE'`: the GPUs that a value of CUDA_VISIBLE_DEVICES makes visible on this machine.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from operator import itemgetter

import msgspec

from gpuwatch.analysis.explanation import context_points, explain_process, order_words
from gpuwatch.base.errors import GpuwatchError, UsageError
from gpuwatch.base.text import clean
from gpuwatch.commands.console import Console, TextColumn, fold, format_table
from gpuwatch.commands.flags import add_flags, parse_number
from gpuwatch.commands.startup import configured, read_snapshot, snapshot_error
from gpuwatch.config.types import Config
from gpuwatch.declared.env import find_misspelt
from gpuwatch.declared.facts import CVD, gpu_facts
from gpuwatch.declared.visible_devices import ORDER, parse
from gpuwatch.inspector.client import InspectorClient
from gpuwatch.model.live import SharesReader
from gpuwatch.model.snapshot import Knowledge, Order, Presence, Process, Snapshot
from gpuwatch.sampler.declarations import DeclarationCache
from gpuwatch.sampler.owners import Owners
from gpuwatch.sources.sampler_process import SamplerProcess

PATIENCE = 3.0
"""Seconds to wait for a process that holds no GPU; the child process that reads it gives up after 2."""

_MOST_DIGITS = 10
_SHOWN = 200
"""Characters of a value of the environment that are shown."""

_UNSEEN = {
    Presence.GONE: "there is no process {}",
    Presence.HIDDEN: "process {} does not exist or is hidden: /proc shows only your own processes (hidepid)",
    Presence.ELSEWHERE: "process {} is in another PID namespace: it cannot be read from inside this container",
    Presence.UNREADABLE: "process {} cannot be read now: too many open files, or too little memory",
}


def read_declarations(process: Process, snapshot: Snapshot, config: Config) -> Process:
    """Read a process's declarations in a child process, as the sampler does: a read can hang, or a parser crash."""
    inspector = InspectorClient(shares=config.shares)
    asking = DeclarationCache(inspector)
    try:
        gpus, count = snapshot.gpus, len(snapshot.gpus)
        asking.published = SharesReader().read()
        asking.annotate([process], gpus, count, snapshot.driver)
        asking.wait(PATIENCE)
        return asking.annotate([process], gpus, count, snapshot.driver)[0]
    finally:
        inspector.close()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "demo")
    parser.add_argument("pid", metavar="PID", nargs="?", help="a process that uses a GPU")
    said = "which GPUs a value of CUDA_VISIBLE_DEVICES shows, such as 0,2 (default: your environment's)"
    parser.add_argument("--visible", metavar="VALUE", nargs="?", const=False, help=said)
    said = "with --visible: CUDA_DEVICE_ORDER (default: your environment's)"
    parser.add_argument("--order", choices=("PCI_BUS_ID", "FASTEST_FIRST"), help=said)


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Run the command and return its exit code; without GPUs it explains what it can."""
    if args.visible is not None:
        return _explain_visible(args, sampler)
    if args.pid is None or args.order:
        raise UsageError("--order needs --visible" if args.order else "explain: write a PID, or --visible '0,2'")
    config = configured(args)
    pid = parse_pid(args.pid)
    snapshot = read_snapshot(args, config, sampler, tmux=config.tmux, required=False)
    error = snapshot_error(snapshot)
    process = find_process(pid, snapshot, config)
    console = Console(ascii_only=config.ascii)
    if args.json:
        itself = msgspec.to_builtins(process)
        said = itself.pop("declared")
        console.print_json(msgspec.json.encode({"process": itself, "declared": said}).decode())
    else:
        console.print(*explanation_lines(process, snapshot, config, console.width))
    if error is not None:
        console.warn(f"no GPUs: {snapshot.words}")
    return 0 if error is None else error.exit_code


def parse_pid(text: str, command: str = "explain") -> int:
    """Parse a PID; raises UsageError."""
    return parse_number(command, text, 10**_MOST_DIGITS - 1, "a PID; write a number such as 4711")


def find_process(pid: int, snapshot: Snapshot, config: Config) -> Process:
    """Find a process in a snapshot or in /proc, with its declarations; raises GpuwatchError if there is none."""
    process = next((one for one in snapshot.processes if one.pid == pid), None)
    if process is None and snapshot.demo:
        raise GpuwatchError(f"the demo has no process {pid}")
    if process is None:
        (process,) = Owners().read([pid])
        if process.presence is not Presence.SEEN:
            raise GpuwatchError(_UNSEEN[process.presence].format(pid))
    if process.declared is None or process.declared.knowledge is Knowledge.PENDING:
        process = read_declarations(process, snapshot, config)
    return process


def explanation_lines(process: Process, snapshot: Snapshot, config: Config, width: int | None = None) -> list[str]:
    """Return a line about the process, then the points in two columns with their sources; folded at `width` cells."""
    points = explain_process(process, snapshot, config.allowance)
    points += [one for one in context_points(process) if (one.label, one.value) not in {each[:2] for each in points}]
    facts = [process.user, process.state, process.command or f"[{process.name}]"]
    if process.presence in _UNSEEN:
        facts = [_UNSEEN[process.presence].format(process.pid)]
    head = " · ".join(filter(None, (f"PID {process.pid}", *facts)))
    lines = [*fold(head, width), ""]
    labels = max((len(point.label) for point in points), default=0)
    for point in points:
        first, *rest = fold(point.value, width, labels + 2)
        lines += [f"{point.label:<{labels}}  {first}", *(f"{'':<{labels}}  {line}" for line in rest)]
        if point.aside:
            lines += [f"{'':<{labels}}    {line}" for line in fold(point.aside, width, labels + 4)]
    return lines


# ---------------------------------------------------------------------------------------------------------------
# gpuwatch explain --visible


class VisibleDevice(msgspec.Struct, frozen=True):
    """GPU or MIG instance that is visible."""

    ordinal: int
    """Its number in the program: 0 for `cuda:0`."""
    gpu: int | None
    """NVML's index of the GPU."""
    name: str
    uuid: str


class VisibleJson(msgspec.Struct, frozen=True):
    """JSON of `explain --visible`."""

    devices: Sequence[VisibleDevice]
    order: Order
    """How sure the order of the devices is."""
    hidden: Sequence[int]
    """Indices of the other GPUs."""
    note: str
    """What hides them, or what is wrong with the value."""


def _explain_visible(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Print the GPUs that a value makes visible, and return the exit code: 1 if there is none."""
    asked = args.pid if args.visible is False else args.visible  # other flags may come before the value
    if args.pid not in (None, asked):
        raise UsageError(f"explain: write a PID or --visible, not both; {args.pid[:40]!a} was read as a PID")
    config = configured(args)
    snapshot = read_snapshot(args, config, sampler)
    value, order = os.environ.get(CVD) if asked is None else asked, args.order or os.environ.get(ORDER)
    seen = parse(value, tuple(map(gpu_facts, snapshot.gpus)), order, driver=snapshot.driver)
    names = {gpu.key: (gpu.index, gpu.name) for gpu in snapshot.gpus}
    names |= {one.uuid: (gpu.index, one.name) for gpu in snapshot.gpus for one in gpu.instances}
    devices = [(place, *names.get(uuid, (None, "")), uuid) for place, uuid in enumerate(seen.gpus)]
    hidden = [gpu.index for gpu in snapshot.gpus if gpu.index not in {index for _, index, _, _ in devices}]
    console = Console(ascii_only=config.ascii)
    if args.json:
        shown = VisibleJson([VisibleDevice(*device) for device in devices], seen.order, hidden, seen.note)
        console.print_json(msgspec.json.encode(shown).decode())
    else:
        said = f"{CVD} is not set" if value is None else f"{CVD}={clean(value, _SHOWN)}"
        how = f", {ORDER}={clean(order, _SHOWN)}" if order else ""
        console.print(f"{said}{how}{' in your environment' if asked is None else ''}", "")
        rows = [
            (f"cuda:{place}", "?" if index is None else f"GPU {index}", name, uuid)
            for place, index, name, uuid in devices
        ]
        console.print(*(format_table(_DEVICE, rows) or ["no GPU is visible"]), "")
        facts = {"order": order_words(seen), "hidden": ", ".join(f"GPU {one}" for one in hidden), "note": seen.note}
        console.print(*(f"{name:<6}  {words}" for name, words in facts.items() if words))
    if asked is None:
        console.warn(*(hint.words for hint in find_misspelt(os.environ)))
    return 0 if seen.gpus else 1


_DEVICE: tuple[TextColumn[tuple[str, str, str, str]], ...] = tuple(
    TextColumn("", itemgetter(place), right=False, gap=" → " if place == 1 else "  ") for place in range(4)
)
