"""The processes on the GPUs as runs, their ranks and their workers, with sums at each level. Pure functions.

A run is what one start set going (`Surroundings.job`); a process of which that is not known is a run of its own. What
runs alone is one node, not two. Processes that have GPU device files open and that NVML does not list stand below the
process that they work for, and in groups of their own at the end where there is none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Snapshot
from gpuwatch.surroundings import Job
from gpuwatch.tree.members import DEEPEST, Member, flags_of, hang, members_of, run_keys
from gpuwatch.tree.nodes import ASKERS, ORPHAN_HOLDERS, Flag, Kind, Node, NodeKey, OnGpu, Sum, Totals, total
from gpuwatch.tree.order import SORTS, Order

__all__ = [
    "ASKERS",
    "DEEPEST",
    "ORPHAN_HOLDERS",
    "SORTS",
    "Flag",
    "Kind",
    "Node",
    "NodeKey",
    "OnGpu",
    "Order",
    "Sum",
    "Totals",
    "grow",
]

MOST_RANKS: Final = 4096
"""Local rank beyond which what a process says of itself is not believed."""


def grow(snapshot: Snapshot, history: HistoryView | None = None, *, mine: bool = False) -> list[Node]:
    """Give the runs, each with its ranks and workers, in the order of their keys, and the groups after them.

    Every process is in it once. `mine` leaves out what is not the viewer's.
    """
    members = members_of(snapshot, history, mine=mine)
    runs: dict[NodeKey, list[Member]] = {}
    for member, key in zip(members, run_keys(members), strict=True):
        runs.setdefault(key, []).append(member)
    whole = _complete(snapshot.gpus)
    nodes: list[Node] = []
    groups: dict[str, list[Node]] = {ORPHAN_HOLDERS: [], ASKERS: []}
    for key, together in sorted(runs.items()):
        hang(together)
        node = _run(key, together, whole=whole)
        lonely = not node.totals.gpus
        if lonely and all(member.orphan for member in together if member.parent is None):
            groups[ORPHAN_HOLDERS].append(node)
        elif lonely and not any(member.unlisted and member.unlisted.context for member in together):
            groups[ASKERS].append(node)
        else:
            nodes.append(node)
    return nodes + [_group(title, found) for title, found in groups.items() if found]


def _run(key: NodeKey, together: Sequence[Member], *, whole: bool) -> Node:
    """Give the node of a run: of its only process, where nothing else stands beside that."""
    tops = [_process(member) for member in sorted((one for one in together if one.parent is None), key=_place)]
    if len(tops) == 1:
        return msgspec.structs.replace(tops[0], key=key)
    first = tops[0]
    job = first.job
    jobs = [one.job for one in together if one.job and not one.helper]
    return Node(
        key=key,
        kind=Kind.RUN,
        title=(job.name if job else "") or first.name,
        totals=total([top.totals for top in tops]),
        children=tuple(tops),
        uid=first.uid,
        user=first.user,
        mine=first.mine,
        job=job,
        absent=_absent(jobs) if whole else (),
    )


def _place(member: Member) -> tuple[bool, bool, int, int, int]:
    """Sort ranks by number, GPU and PID, workers without a rank after them, and what NVML does not list last."""
    rank = member.job.rank if member.job else None
    gpu = member.totals.gpus[0].gpu if member.totals.gpus else 0
    return (member.unlisted is not None, member.helper, -1 if rank is None else rank, gpu, member.pid)


def _process(member: Member) -> Node:
    process = member.process
    own = member.totals
    flags = flags_of(member)
    if flags:
        own = msgspec.structs.replace(own, flags=tuple((flag, 1) for flag in flags))
    workers: tuple[Node, ...] = ()
    if member.workers:
        workers = tuple(_process(one) for one in sorted(member.workers, key=_place))
    return Node(
        key=("process", member.pid, str(member.start)),
        kind=Kind.WORKER if member.helper and (member.job or member.parent) else Kind.RANK,
        totals=total([own, *(worker.totals for worker in workers)]) if workers else own,
        own=own,
        children=workers,
        process=process,
        rows=member.rows,
        unlisted=member.unlisted,
        uid=member.uid,
        user=process.user or "?",
        mine=member.mine,
        job=member.job,
    )


def _group(title: str, found: Sequence[Node]) -> Node:
    people = {node.uid for node in found}
    return Node(
        key=("group", 0, title),
        kind=Kind.GROUP,
        title=title,
        totals=total([node.totals for node in found]),
        children=tuple(found),
        uid=found[0].uid if len(people) == 1 else None,
        user=found[0].user if len(people) == 1 else "",
        mine=all(node.mine for node in found),
    )


def _complete(gpus: Sequence[Gpu]) -> bool:
    """Say whether who is not listed is not there: every GPU is watched, is well, and its list can be trusted."""
    whole = [gpu.index for gpu in gpus] == list(range(len(gpus)))
    return whole and all(gpu.health is Health.OK and not gpu.holdings_note for gpu in gpus)


def _absent(jobs: Sequence[Job]) -> tuple[int, ...]:
    """Give the ranks between those that are here; only where ranks on this host follow one another.

    Launchers count local ranks from 0 without a gap (torchrun: rank = node rank × ranks a node + local rank). How many
    there are to be on this host, none of them tells, so that those after the last one are not missed.
    """
    here = {(one.rank, one.local_rank) for one in jobs if one.rank is not None and one.local_rank is not None}
    offsets = {rank - local for rank, local in here}
    most = max((local for _, local in here), default=0)
    if len(offsets) != 1 or not 0 <= most <= MOST_RANKS or not all(one.world for one in jobs):
        return ()
    first = offsets.pop()
    return tuple(first + local for local in range(most) if (first + local, local) not in here)
