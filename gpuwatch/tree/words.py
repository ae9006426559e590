"""A node in words: its label in the tree, what is wrong with it, and the sentence about the chosen one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpuwatch.model import Presence
from gpuwatch.tree.nodes import ASKERS, ORPHAN_HOLDERS, Flag, Kind, Node
from gpuwatch.units import gib, ranges

_MANY = {Flag.ZOMBIE: "zombies", Flag.ORPHAN: "orphan holders"}
"""Words that are others where there are several; `2 stopped` needs no other."""

_GROUPS = {
    ORPHAN_HOLDERS: (
        "what they worked for has ended, and they still have GPU device files open",
        "the driver does not list them: what they hold is not known",
    ),
    ASKERS: ("they have GPU device files open and run no CUDA: monitors, exporters and the like",),
}


def label(node: Node, *, top: bool) -> str:
    """Give what stands before a process's command: `rank 3`, `worker`; empty for what needs no word.

    `top` is a node that stands below none.
    """
    if node.process is None:
        return ""
    rank = node.job.rank if node.job else None
    words = f"rank {rank}" if rank is not None and node.kind is Kind.RANK else ""
    if top and words and not (node.job and node.job.world and node.job.world > 1):
        words = ""  # it is all there is
    if node.kind is Kind.WORKER:
        words = "worker"
    elif not words and node.job and node.job.launcher and node.job.head == node.process.pid and not top:
        words = "launcher"
    if Flag.ORPHAN in node.flags:
        return ""  # that is said already
    if node.unlisted is None or not node.unlisted.context:
        return words
    return f"{words}, holds device files" if words else "holds device files"


def wrong(node: Node) -> str:
    """Say in a word or two what is wrong with a node or what is below it, the worst first; empty when all is well."""
    found = [flag.value for flag in node.flags if flag is not Flag.GONE]  # who is gone has no command: it says so there
    for flag, count in node.totals.flags:
        below = count - (flag in node.flags)
        if not below or (node.kind is Kind.GROUP and flag is Flag.ORPHAN):
            continue  # its title says so
        many = "all" if count == node.totals.processes else str(below)
        of_workers = node.process is not None and flag is not Flag.ORPHAN
        found.append(
            f"{many} worker{'s' * (below > 1)} {flag.value}" if of_workers else f"{many} {_counted(flag, below)}"
        )
    if node.absent:
        found.append(f"no rank {ranges(node.absent)}")
    return ", ".join(found)


def troubles(nodes: Iterable[Node]) -> str:
    """Count what is wrong in all of a tree, the worst first: `1 gone, 2 orphan holders`; empty when all is well."""
    counts: Counter[Flag] = Counter()
    for node in nodes:
        counts.update(dict(node.totals.flags))
    return ", ".join(f"{counts[flag]} {_counted(flag, counts[flag])}" for flag in Flag if counts[flag])


def _counted(flag: Flag, count: int) -> str:
    return flag.value if count == 1 else _MANY.get(flag, flag.value)


def parts(node: Node) -> str:
    """Give the ranks that are here, `7/8 ranks`, or how many processes there are; empty for one process alone."""
    totals, world = node.totals, node.job.world if node.job else None
    if node.kind is Kind.RUN and totals.ranks:
        count = len(totals.ranks)
        if world and world != count:
            return f"{count}/{world} ranks"
        return f"{count} rank{'s' * (count != 1)}"
    return f"{totals.processes} procs" if totals.processes > 1 else ""


def describe(node: Node) -> str:
    """Tell all of a node in one line: `torchrun · ranks 0-7 of 8 on GPUs 0-7 · 4 workers hold device files · …`."""
    if node.kind is Kind.GROUP:
        said = [f"{node.totals.processes} processes", *_GROUPS.get(node.title, ())]
    elif node.process is None:
        said = [*_run(node), _place(node), _by_gpu(node)]
    else:
        said = [*_process(node), _place(node), _by_gpu(node), node.name]
    return " · ".join(word for word in said if word)


def _run(node: Node) -> list[str]:
    totals, job = node.totals, node.job
    found = [job.launcher] if job and job.launcher else []
    if totals.ranks:
        many = len(totals.ranks) > 1
        members = f"rank{'s' * many} {ranges(totals.ranks)}" + (f" of {job.world}" if job and job.world else "")
    else:
        members = f"{totals.processes} processes"
    found.append(f"{members}{_on_gpus(node)}")
    if node.absent:
        many = len(node.absent) > 1
        found.append(f"rank{'s' * many} {ranges(node.absent)} {'are' if many else 'is'} on none of these GPUs")
    return [*found, *_helpers(node)]


def _process(node: Node) -> list[str]:
    process, job = node.process, node.job
    if process is None:
        return []
    found = [f"PID {process.pid}"]
    if job and job.rank is not None and node.kind is Kind.RANK:
        found[0] += f", rank {job.rank}" + (f" of {job.world}" if job.world else "")
    elif job and job.worker_of is not None:
        found[0] += f", worker of {job.worker_of}"
    found[0] += _on_gpus(node)
    if job and job.launcher:
        found.append(job.launcher)
    if node.unlisted is not None:
        opened = ranges(node.own.opened) if node.own else ""
        files = f"the device file of GPU {opened}" if opened.isdigit() else f"device files of GPUs {opened}"
        found.append(f"has {files if opened else 'GPU device files'} open, and the driver does not list it")
    if process.presence is Presence.GONE:
        found.append("no such process, and its memory is still held")
    if job and job.orphaned:
        found.append("what it belongs to has ended")
    elif process.adopted and Flag.ORPHAN in node.flags:
        found.append("the process that started it has ended")
    found += [f"it is {flag.value}" for flag in node.flags if flag in (Flag.STOPPED, Flag.ZOMBIE)]
    own, every = (node.own or node.totals).memory, node.totals.memory
    if node.children and own.value is not None and every.value != own.value:
        found.append(
            f"{_size(own.value, own.at_least)} itself, {_size(every.value or 0.0, every.at_least)} with its workers"
        )
    return [*found, *_helpers(node)]


def _helpers(node: Node) -> list[str]:
    """Count those below it that only hold device files."""
    orphans = dict(node.totals.flags).get(Flag.ORPHAN, 0)
    own = node.unlisted is not None
    workers = node.totals.holders - orphans - (own and Flag.ORPHAN not in node.flags)
    orphans -= own and Flag.ORPHAN in node.flags
    found = [f"{workers} worker{'s hold' if workers > 1 else ' holds'} device files"] if workers > 0 else []
    return found + [f"{orphans} orphan holder{'s' * (orphans > 1)}"] * (orphans > 0)


def _on_gpus(node: Node) -> str:
    gpus = ranges(held.gpu for held in node.totals.gpus)
    return f" on GPU{'s' * (not gpus.isdigit())} {gpus}" if gpus else ""


def _place(node: Node) -> str:
    where, server = node.where, node.server
    place = f"over {where}" if where.startswith("ssh ") else f"in {where}" if where else ""
    waits = f"a server: {server}" if server else ""
    return " · ".join(word for word in (place, waits) if word)


def _by_gpu(node: Node) -> str:
    """Say what is held on each of several GPUs."""
    held = node.totals.gpus
    if len(held) < 2:
        return ""
    sizes = ["—" if one.memory.value is None else gib(one.memory.value) for one in held]
    return "GiB: " + ", ".join(f"{size} on {one.gpu}" for size, one in zip(sizes, held, strict=True))


def _size(value: float, at_least: bool) -> str:
    return f"{'≥' if at_least else ''}{gib(value)} GiB"
