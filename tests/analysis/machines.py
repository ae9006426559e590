"""Machines of the JSONL tables: GPUs and processes of which a line says only what differs from the builders' ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from gpuwatch.analysis.runs import Node, PartialSum, flag_words, role_label, size_words
from gpuwatch.model import Gpu, Holding, Pane, Process, Run, Surroundings, Unlisted
from tests.support.alerting import cap, part
from tests.support.builders import GIB, filled, gpu, holding, process

TMUX = Pane(program="tmux", session="train")


def card(fields: dict[str, Any]) -> Gpu:
    """Return a GPU; a holding is [PID, GiB or the reason why that is not known, other fields].

    One process holds all but so much percent where it is `free`.
    """
    fields = dict(fields)
    if "free" in fields:
        return filled(fields["free"], fields.get("index", 0))
    index, used = fields.pop("index", 0), fields.pop("used_gib", None)
    held = []
    for pid, size, *changes in fields.pop("holdings", []):
        one = msgspec.to_builtins(holding(pid, 0 if isinstance(size, str) else size))
        held.append(one | ({"memory": size} if isinstance(size, str) else {}) | (changes[0] if changes else {}))
    made = gpu(index, used_gib=used, holdings=msgspec.convert(held, list[Holding]))
    return msgspec.convert(msgspec.to_builtins(made) | fields, Gpu)


def person(fields: dict[str, Any]) -> Process:
    """Return a process of ada's; a `bare` one has nothing but its PID.

    Its `declared` may be short: a `cap` in GiB, or a `part` of the GPU. `run` is what differs from train.py in tmux.
    """
    fields = dict(fields)
    pid, share, run = fields["pid"], fields.pop("declared", None), fields.pop("run", None)
    base = Process(pid=pid) if fields.pop("bare", False) else process(pid, fields.get("user", "ada"))
    if share is not None:
        share = dict(share)
        if share.keys() & {"cap", "part"}:
            make, size = (cap, share.pop("cap")) if "cap" in share else (part, share.pop("part"))
            share = msgspec.to_builtins(make(size, *share.pop("on", ()), **share))
        fields["declared"] = share
    if run is not None:
        around = Surroundings(pane=TMUX, run=msgspec.convert({"key": "812:812", "name": "train.py", **run}, Run))
        fields["surroundings"] = msgspec.to_builtins(around)
    return msgspec.convert(msgspec.to_builtins(base) | fields, Process)


def unlisted(fields: dict[str, Any]) -> Unlisted:
    """Return a process that has device files open, those of GPU 0 where nothing else is said."""
    fields = dict(fields)
    opened, context = fields.pop("gpus", [0]), fields.pop("context", True)
    return Unlisted(process=person(fields), gpus=tuple(gpu(index).key for index in opened), context=context)


def drawn(nodes: Sequence[Node], depth: int = 0) -> list[str]:
    """Draw a tree: a line for each node has its PID or title, its role, size and troubles, memory and SM use."""
    found: list[str] = []
    for node in nodes:
        parts = [
            str(node.process.pid) if node.process else node.title,
            role_label(node, top=depth == 0),
            size_words(node),
            flag_words(node),
            _amount(node.totals.memory, GIB, "GiB"),
            _amount(node.totals.sm, 1, "%"),
        ]
        found.append("  " * depth + " · ".join(filter(None, parts)))
        found += drawn(node.children, depth + 1)
    return found


def _amount(total: PartialSum, unit: int, name: str) -> str:
    if total.value is None:
        return f"? {name}" if total.missing else ""
    return f"{'at least ' * total.at_least}{total.value / unit:g} {name}"
