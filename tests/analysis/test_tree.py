"""Runs, ranks and workers out of a snapshot: who stands where, what each level takes, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.analysis.runs import (
    DEEPEST,
    ORDERS,
    Node,
    NodeKind,
    add,
    build_tree,
    describe,
    flag_words,
    memory_of,
    role_label,
    run_order,
    shortest,
    size_words,
)
from gpuwatch.history.history import History, HistoryView
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.snapshot import Idle, Process, ProcessContext, Reason, Run, Snapshot, Unlisted
from tests.analysis.machines import TMUX, any_machine, card, drawn, person, read_cases, unlisted
from tests.support.builders import EPOCH, at, gpu, holding, process, snapshot, uid


def built(seen: Snapshot, history: HistoryView | None = None, *, mine: bool = False) -> list[Node]:
    return build_tree(Holdings(seen), history, mine=mine)


def run_of(key: str = "812:812", **changes: Any) -> Run:
    return Run(**{"key": key, "name": "train.py", **changes})


def around(pid: int, user: str = "ada", /, **of_run: Any) -> Process:
    """Return a process of a run."""
    return process(pid, user, context=ProcessContext(pane=TMUX, run=run_of(**of_run)))


def ranks(count: int, *without: int, world: int | None = None, first: int = 0, **changes: Any) -> Snapshot:
    """Return a torchrun of so many ranks, one a GPU, some of which have ended."""
    there = [n for n in range(count) if n not in without]
    one = {"launcher": "torchrun", "head": 812, "world": world or count}
    people = [around(1000 + n, rank=first + n, local_rank=n, **one) for n in there]
    cards = [gpu(n, holdings=[holding(1000 + n, 10.0 + n)] if n in there else []) for n in range(count)]
    return snapshot(cards, people, **changes)


def helper(
    pid: int, ppid: int = 1000, *, cuda_context: bool = True, cards: tuple[int, ...] = (0,), **changes: Any
) -> Unlisted:
    """Return a process that has device files open and that NVML does not list."""
    held = process(pid, **{"ppid": ppid, "name": "pt_data_worker", **changes})
    return Unlisted(process=held, gpus=tuple(gpu(n).key for n in cards), cuda_context=cuda_context)


def every(nodes: list[Node] | tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from every(node.children)


# Who stands where


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """Line of trees.jsonl: a machine, and its tree as `machines.drawn` draws it; `@1` is the UUID of GPU 1."""

    about: str
    tree: list[str]
    gpus: list[dict[str, Any]] = []
    people: list[dict[str, Any]] = []
    unlisted: list[dict[str, Any]] = []
    mine: bool = False
    words: list[str] = []
    """Descriptions of the first nodes, from above."""


@pytest.mark.parametrize("case", read_cases("trees.jsonl", Case), ids=lambda case: case.about)
def test_a_machine_has_this_tree(case: Case) -> None:
    others = tuple(map(unlisted, case.unlisted))
    nodes = built(snapshot(map(card, case.gpus), map(person, case.people), unlisted=others), mine=case.mine)
    assert drawn(nodes) == case.tree
    assert [describe(node) for node in every(nodes)][: len(case.words)] == case.words


def test_a_run_is_as_idle_as_the_busiest_of_its_parts() -> None:
    for idles, shown in (
        ([Idle(90, False), Idle(30, True)], Idle(30, True)),
        ([Idle(30, True), Idle(30, False)], Idle(30, False)),
        ([Idle(30, False), None], None),
        ([Idle(0, False), None], Idle(0, False)),
        ([], None),
    ):
        assert shortest(idles) == shown


def test_idleness_and_age_come_from_all_parts() -> None:
    held = [holding(10, sm=0), holding(11, sm=0)]
    people = [around(10), process(11, started=EPOCH - 9000, context=ProcessContext(run=run_of()))]
    seen, history = snapshot([gpu(0, holdings=held)], people), History()
    for second in range(100):
        view = history.add(at(seen, second), 500.0 + second)
    (run,) = built(seen, view)
    assert run.totals.idle == Idle(99.0, at_least=True)
    assert run.totals.started == EPOCH - 9000


# Whose, and in which order


def crowd() -> list[Node]:
    cards = [
        gpu(
            0,
            holdings=[holding(10, 5.0, sm=1), holding(30, memory=Reason.UNSUPPORTED, sm=Reason.NO_SAMPLE)],
            used_gib=9,
        ),
        gpu(1, holdings=[holding(20, 7.0, sm=9)]),
    ]
    people = [process(10, "ben", command="b"), process(20, "ada", command="C"), process(30, "cyn", command="a")]
    left = helper(99, ppid=1, adopted=True, user="aaa")
    return built(snapshot(cards, people, unlisted=(left,)))


def test_the_order() -> None:
    for by, pids in {
        "memory": [20, 10, 30],
        "sm": [20, 10, 30],
        "gpu": [10, 30, 20],
        "user": [20, 10, 30],
        "name": [30, 10, 20],
    }.items():
        assert [node.process and node.process.pid for node in run_order().sort(crowd(), by)] == [*pids, None]


# Whatever may come


@pytest.mark.uncounted
@given(any_machine(30), st.booleans())
def test_every_process_is_there_once_and_the_sums_add_up(seen: Snapshot, mine: bool) -> None:
    listed = {(one.pid, one.start) for card in seen.gpus for one in card.holdings}
    others = {one.process.pid for one in seen.unlisted} - {pid for pid, _ in listed}
    nodes = built(seen, mine=mine)
    assert built(snapshot()) == []
    shown = [node for node in every(nodes) if node.process]
    keys = [(node.process.pid, node.row_key[2]) for node in shown if node.process and node.row_key and node.is_listed]
    assert len(set(keys)) == len(keys)
    rest = [node.process.pid for node in shown if node.process and not node.is_listed]
    assert len(set(rest)) == len(rest)
    if mine:
        assert all(node.uid == uid("you") for node in shown)
    else:
        assert set(keys) == listed
        assert set(rest) == others
    assert len({node.key for node in every(nodes)}) == len(list(every(nodes)))
    for node in every(nodes):
        below = [child.totals for child in node.children] + ([node.own] if node.own else [])
        assert node.totals.memory == add(one.memory for one in below)
        assert node.totals.sm == add(one.sm for one in below)
        assert node.totals.memory == add(map(memory_of, node.totals.by_gpu.values()))
        assert node.totals.processes == sum(one.processes for one in below)
        assert node.totals.holders == sum(one.holders for one in below)
        assert not node.children or node.process or len(node.children) > 1 or node.kind is NodeKind.GROUP
        assert describe(node)
        assert "\n" not in describe(node) + flag_words(node) + size_words(node) + role_label(node, top=True)
        assert node.kind is NodeKind.GROUP or node.process_node is not None
    for by in ORDERS:
        assert len(run_order().sort(nodes, by)) == len(nodes)


def test_workers_of_one_another_hang_nobody_and_the_depth_is_bounded() -> None:
    def tree(parents: dict[int, int | None]) -> list[Node]:
        people = [
            process(pid, start=1, context=ProcessContext(run=run_of(worker_of=parent)))
            for pid, parent in parents.items()
        ]
        return built(snapshot([gpu(0, holdings=[holding(pid, 0.1, start=1) for pid in parents])], people))

    def depth(node: Node) -> int:
        return 1 + max(map(depth, node.children), default=0)

    for ring in (1, 2, 3, 300):
        nodes = tree({10 + n: 10 + (n + 1) % ring for n in range(ring)})
        assert len([node for node in every(nodes) if node.process]) == ring
    (node,) = tree({10 + n: 9 + n if n else None for n in range(400)})
    assert (depth(node), node.totals.processes) == (DEEPEST, 400)
