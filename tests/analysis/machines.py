"""Machines of the JSONL tables, and any machine at all.

Of GPUs and processes a line says only what differs from the builders' ones.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from hypothesis import strategies as st

from gpuwatch.analysis.runs import Node, PartialSum, flag_words, role_label, size_words
from gpuwatch.model.snapshot import (
    Gpu,
    Holding,
    Notebook,
    Pane,
    Process,
    ProcessContext,
    Reason,
    Run,
    Snapshot,
    Unlisted,
)
from tests.support.alerts import cap, part
from tests.support.builders import EPOCH, GIB, filled, gpu, holding, process, snapshot
from tests.support.strays import DOCKER, KERNEL

T = TypeVar("T")
TMUX = Pane(program="tmux", session="train")


def read_cases(name: str, kind: type[T]) -> list[T]:
    """Read the cases of a JSONL table, one a line; in them `@1` is the UUID of GPU 1."""
    text = re.sub(r"@(\d)", lambda place: gpu(int(place[1])).uuid, (Path(__file__).parent / name).read_text())
    return [msgspec.json.decode(line, type=kind) for line in text.splitlines()]


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
        around = ProcessContext(pane=TMUX, run=msgspec.convert({"key": "812:812", "name": "train.py", **run}, Run))
        fields["context"] = msgspec.to_builtins(around)
    return msgspec.convert(msgspec.to_builtins(base) | fields, Process)


def unlisted(fields: dict[str, Any]) -> Unlisted:
    """Return a process that has device files open, those of GPU 0 where nothing else is said."""
    fields = dict(fields)
    opened, cuda_context = fields.pop("gpus", [0]), fields.pop("cuda_context", True)
    return Unlisted(process=person(fields), gpus=tuple(gpu(index).key for index in opened), cuda_context=cuda_context)


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


_RUNS = st.builds(
    Run,
    key=st.sampled_from(("a", "90:90", "10:10", "")),
    name=st.sampled_from(("", "train.py", "[/x]")),
    launcher=st.sampled_from(("", "torchrun")),
    head=st.sampled_from((0, 10, 90)),
    rank=st.none() | st.integers(-1, 9),
    local_rank=st.none() | st.integers(-1, 9),
    world=st.none() | st.integers(0, 9),
    worker_of=st.none() | st.integers(8, 20),
    orphaned=st.booleans(),
)
_PLACES = st.builds(
    ProcessContext,
    container=st.sampled_from((None, DOCKER)),
    pod=st.sampled_from(("", "", "lab/x")),
    slurm=st.sampled_from(("", "", "4711.0")),
    unit=st.sampled_from(("", "", "x.service")),
    pane=st.sampled_from((None, TMUX, Pane(program="tmux", session="$1", window="%3", alive=False))),
    notebook=st.sampled_from((None, KERNEL, Notebook(server=3))),
    run=st.none() | _RUNS,
    server=st.sampled_from(("", "vLLM")),
)


@st.composite
def any_machine(draw: st.DrawFn, most: int) -> Snapshot:
    """Return a machine on which up to so many processes, from PID 10 on, may say anything of each other."""
    who = st.builds(
        process,
        pid=st.integers(10, 9 + most),
        user=st.sampled_from(("you", "you", "ada")),
        start=st.sampled_from((0, 5, 10)),
        context=st.just(ProcessContext()) | st.builds(ProcessContext, run=_RUNS) | st.none() | _PLACES,
        leader_alive=st.sampled_from((False, False, True, None)),
        adopted=st.sampled_from((True, True, False)),
        state=st.sampled_from(("sleeping", "running", "stopped", "zombie", "tracing stop", "")),
        cpu=st.sampled_from((0.0, 0.0, 20.0, 90.0, Reason.NO_SAMPLE)),
        ppid=st.none() | st.integers(0, 20),
        started=st.sampled_from((EPOCH - 3600, EPOCH - 3600, EPOCH - 10, None)),
    )
    size = st.sampled_from((4 * GIB, GIB, GIB // 2, 0, Reason.UNSUPPORTED))
    sm = st.sampled_from((0, 0, 0, 0, 7, Reason.NO_SAMPLE))
    people: dict[int, Process] = {}
    held: list[list[Holding]] = [[], []]
    others: list[Unlisted] = []
    for one in draw(st.lists(who, max_size=most)):
        if draw(st.sampled_from((False, False, True))):
            opened = draw(st.lists(st.sampled_from((0, 1, 7)), max_size=2))
            gpus = tuple(gpu(n).key for n in opened)
            others.append(Unlisted(process=one, gpus=gpus, cuda_context=draw(st.booleans())))
            continue
        people[one.pid] = one
        for index in draw(st.lists(st.sampled_from((0, 1)), min_size=1, max_size=2)):
            kind = draw(st.sampled_from(("C", "C", "G", "M", "C+G")))
            held[index].append(holding(one.pid, start=one.start, memory=draw(size), sm=draw(sm), kind=kind))
    cards = [gpu(n, holdings=some, used_gib=40) for n, some in enumerate(held)]
    return snapshot(cards, people.values(), unlisted=tuple(others))
