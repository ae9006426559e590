"""`gpuwatch visible 'VALUE'`: the GPUs that a CUDA_VISIBLE_DEVICES value makes visible on this machine."""

from __future__ import annotations

import argparse
import os
from operator import itemgetter

import msgspec

from gpuwatch.analysis.explanation import order_words
from gpuwatch.base.text import clean
from gpuwatch.commands.console import Console, TextColumn, format_table
from gpuwatch.commands.flags import add_flags
from gpuwatch.commands.startup import configured, read_snapshot
from gpuwatch.declared.env import find_misspelt
from gpuwatch.declared.facts import CVD, gpu_facts
from gpuwatch.declared.visible_devices import ORDER, parse
from gpuwatch.model.snapshot import Gpu, Snapshot, Visible
from gpuwatch.sources.sampler_process import SamplerProcess

_SHOWN = 200


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_flags(parser, "json", "demo")
    parser.add_argument("value", metavar="VALUE", nargs="?", help="such as 0,2 (default: that of your environment)")
    orders = ("PCI_BUS_ID", "FASTEST_FIRST")
    parser.add_argument("--order", choices=orders, help="CUDA_DEVICE_ORDER (default: that of your environment)")


def main(args: argparse.Namespace, sampler: SamplerProcess | None) -> int:
    """Run the command and return its exit code: 1 where no GPU is visible."""
    config = configured(args)
    snapshot = read_snapshot(args, config, sampler)
    own = args.value is None
    value, order = os.environ.get(CVD) if own else args.value, args.order or os.environ.get(ORDER)
    seen = parse(value, tuple(map(gpu_facts, snapshot.gpus)), order, driver=snapshot.driver)
    console = Console(ascii_only=config.ascii)
    if args.json:
        console.print_json(msgspec.json.encode(_json(seen, snapshot)).decode())
    else:
        said = f"{CVD} is not set" if value is None else f"{CVD}={clean(value, _SHOWN)}"
        how = f", {ORDER}={clean(order, _SHOWN)}" if order else ""
        console.print(f"{said}{how}{' in your environment' if own else ''}", "", *visible_lines(seen, snapshot))
    if own:
        console.warn(*(hint.words for hint in find_misspelt(os.environ)))
    return 0 if seen.gpus else 1


def visible_lines(seen: Visible, snapshot: Snapshot) -> list[str]:
    """Return a line for each visible device, then the order, the hidden GPUs and the note."""
    found = [(uuid, *_named(uuid, snapshot)) for uuid in seen.gpus]
    rows = [
        (f"cuda:{place}", f"GPU {gpu.index}" if gpu else "?", name, uuid)
        for place, (uuid, gpu, name) in enumerate(found)
    ]
    lines = format_table(_COLUMNS, rows) or ["no GPU is visible"]
    hidden = [f"GPU {gpu.index}" for gpu in _hidden(seen, snapshot)]
    facts = {"order": order_words(seen), "hidden": ", ".join(hidden), "note": seen.note}
    return [*lines, "", *(f"{name:<6}  {words}" for name, words in facts.items() if words)]


_Row = tuple[str, str, str, str]

_COLUMNS: tuple[TextColumn[_Row], ...] = tuple(
    TextColumn("", itemgetter(place), right=False, gap=" → " if place == 1 else "  ") for place in range(4)
)


def _named(uuid: str, snapshot: Snapshot) -> tuple[Gpu | None, str]:
    """Find the GPU or MIG instance of a UUID, and its name."""
    for gpu in snapshot.gpus:
        if gpu.key == uuid:
            return gpu, gpu.name
        for instance in gpu.instances:
            if instance.uuid == uuid:
                return gpu, instance.name
    return None, ""


def _hidden(seen: Visible, snapshot: Snapshot) -> list[Gpu]:
    shown = {gpu.key for gpu, _ in (_named(uuid, snapshot) for uuid in seen.gpus) if gpu}
    return [gpu for gpu in snapshot.gpus if gpu.key not in shown]


def _json(seen: Visible, snapshot: Snapshot) -> dict[str, object]:
    devices = []
    for place, uuid in enumerate(seen.gpus):
        gpu, name = _named(uuid, snapshot)
        devices.append({"ordinal": place, "gpu": gpu.index if gpu else None, "name": name, "uuid": uuid})
    hidden = [gpu.index for gpu in _hidden(seen, snapshot)]
    return {"devices": devices, "order": seen.order, "hidden": hidden, "note": seen.note}
