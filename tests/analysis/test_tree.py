"""Runs, ranks and workers out of a snapshot: who stands where, what each level takes, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.analysis.runs import (
    ASKERS,
    DEEPEST,
    LEFTOVER_WORKERS,
    ORDERS,
    Node,
    NodeFlag,
    NodeKind,
    PartialSum,
    add,
    build_tree,
    count_flags,
    describe,
    flag_words,
    role_label,
    run_order,
    shortest,
    size_words,
)
from gpuwatch.history import History, Idle
from gpuwatch.model import Health, Pane, Presence, Process, Reason, Run, Snapshot, Surroundings, Unlisted
from tests.support.builders import EPOCH, GIB, at, gpu, holding, process, snapshot, uid

TMUX = Pane(program="tmux", session="train")


def run_of(key: str = "812:812", **changes: Any) -> Run:
    return Run(**{"key": key, "name": "train.py", **changes})


def around(pid: int, user: str = "ada", /, **of_run: Any) -> Process:
    """Return a process of a run."""
    return process(pid, user, surroundings=Surroundings(pane=TMUX, run=run_of(**of_run)))


def ranks(count: int, *without: int, world: int | None = None, first: int = 0, **changes: Any) -> Snapshot:
    """Return a torchrun of so many ranks, one a GPU, some of which have ended."""
    there = [n for n in range(count) if n not in without]
    one = {"launcher": "torchrun", "head": 812, "world": world or count}
    people = [around(1000 + n, rank=first + n, local_rank=n, **one) for n in there]
    cards = [gpu(n, holdings=[holding(1000 + n, 10.0 + n)] if n in there else []) for n in range(count)]
    return snapshot(cards, people, **changes)


def helper(
    pid: int, ppid: int = 1000, *, context: bool = True, cards: tuple[int, ...] = (0,), **changes: Any
) -> Unlisted:
    """Return a process that has device files open and that NVML does not list."""
    held = process(pid, **{"ppid": ppid, "name": "pt_data_worker", **changes})
    return Unlisted(process=held, gpus=tuple(gpu(n).key for n in cards), context=context)


def every(nodes: list[Node] | tuple[Node, ...]) -> Iterator[Node]:
    for node in nodes:
        yield node
        yield from every(node.children)


def shape(nodes: list[Node] | tuple[Node, ...]) -> list[Any]:
    """Draw a tree as nested lists of PIDs and titles."""
    return [
        [node.process.pid if node.process else node.title, *shape(node.children)]
        if node.children
        else (node.process.pid if node.process else node.title)
        for node in nodes
    ]


# Who stands where


def test_the_ranks_of_a_run_are_one_node_by_their_numbers() -> None:
    seen = snapshot(
        [gpu(0, holdings=[holding(30, 1.0), holding(10, 2.0)]), gpu(1, holdings=[holding(20, 3.0)])],
        [around(30, rank=0, world=3), around(10, rank=2, world=3), around(20, rank=1, world=3)],
    )
    (run,) = build_tree(seen)
    assert (run.kind, run.title, run.run is not None and run.run.world) == (NodeKind.RUN, "train.py", 3)
    assert shape([run]) == [["train.py", 30, 20, 10]]
    assert run.totals.ranks == (0, 1, 2)
    assert run.totals.memory == PartialSum(6 * GIB)
    assert [(held.gpu, held.memory.value) for held in run.totals.gpus] == [(0, 3 * GIB), (1, 3 * GIB)]


@pytest.mark.parametrize("presence", [one for one in Presence if one not in (Presence.SEEN, Presence.UNSURE)])
def test_who_cannot_be_seen_is_there_all_the_same(presence: Presence) -> None:
    unseen = Process(pid=10, presence=presence)
    (node,) = build_tree(snapshot([gpu(0, holdings=[holding(10, 2.0)])], [unseen]))
    assert node.user == "?"
    assert node.totals.memory.value == 2 * GIB
    assert node.name.startswith("(")


def test_a_run_keeps_a_gpu_no_busier_than_100_percent() -> None:
    """NVML's values of its processes may add up to more."""
    people = [around(10, rank=0), around(20, rank=1)]
    (run,) = build_tree(snapshot([gpu(0, holdings=[holding(10, sm=98), holding(20, sm=6)])], people))
    assert run.totals.sm == PartialSum(100)
    assert [one.totals.sm for one in run.children] == [PartialSum(98), PartialSum(6)]


def listed(people: list[Process], *others: Unlisted) -> Snapshot:
    """Return a machine on whose GPU 0 all of these hold memory."""
    return snapshot([gpu(0, holdings=[holding(one.pid, start=one.start) for one in people])], people, unlisted=others)


@pytest.mark.parametrize(
    ("seen", "shapes"),
    [
        (listed([around(10, rank=0, world=1)]), [10]),
        (listed([process(pid, surroundings=None) for pid in (10, 20)]), [10, 20]),
        (listed([process(pid, surroundings=Surroundings()) for pid in (10, 20)]), [10, 20]),
        # Two people whose runs have one name.
        (listed([around(10, "ada", key="ray:1"), around(20, "ben", key="ray:1")]), [10, 20]),
        # Workers of workers, and one of a process that is unknown.
        (
            listed([around(10, rank=0), around(20, rank=1), around(11, worker_of=10), around(12, worker_of=11)]),
            [["train.py", [10, [11, 12]], 20]],
        ),
        (listed([around(10, rank=0), around(11, worker_of=999)]), [["train.py", 10, 11]]),
        # A younger process with the PID of a parent is not the parent.
        (
            listed(
                [
                    process(11, start=5, surroundings=Surroundings(run=run_of(worker_of=10))),
                    process(10, start=900, surroundings=Surroundings(run=run_of(rank=0))),
                ]
            ),
            [["train.py", 10, 11]],
        ),
        # A double fork under a living rank, and one that NVML has come to list.
        (
            ranks(2, unlisted=(helper(2000, 1, adopted=True, surroundings=Surroundings(run=run_of(worker_of=1000))),)),
            [["train.py", [1000, 2000], 1001]],
        ),
        (ranks(2, unlisted=(helper(1000, 900),)), [["train.py", 1000, 1001]]),
    ],
)
def test_where_each_process_stands(seen: Snapshot, shapes: list[Any]) -> None:
    assert shape(build_tree(seen)) == shapes


def test_one_rank_with_its_workers_needs_no_line_for_the_run() -> None:
    people = [around(10), around(11, worker_of=10)]
    (node,) = build_tree(snapshot([gpu(0, holdings=[holding(10, 5.0), holding(11, 1.0)])], people))
    assert shape([node]) == [[10, 11]]
    assert node.key[0] == "run"
    assert node.own is not None
    assert (node.own.memory.value, node.totals.memory.value) == (5 * GIB, 6 * GIB)


# Those that NVML does not list


def test_a_forked_worker_stands_below_its_rank_and_holds_device_files() -> None:
    known = helper(2000, surroundings=Surroundings(run=run_of(worker_of=1000)))
    guessed = helper(2001, surroundings=None)
    (run,) = build_tree(ranks(2, unlisted=(known, guessed)))
    assert shape([run]) == [["train.py", [1000, 2000, 2001], 1001]]
    worker = run.children[0].children[0]
    assert role_label(worker, top=False) == "worker, holds device files"
    assert run.totals.memory == PartialSum(21 * GIB)
    assert worker.totals.memory == PartialSum()
    assert (run.totals.holders, run.totals.opened) == (2, (0,))
    assert "2 workers hold device files" in describe(run)
    assert not flag_words(run)


def test_an_orphan_holder_stands_below_its_run_where_that_is_known() -> None:
    left = helper(2000, ppid=1, adopted=True, surroundings=Surroundings(run=run_of(worker_of=1007)))
    (run,) = build_tree(ranks(2, unlisted=(left,)))
    assert shape([run]) == [["train.py", 1000, 1001, 2000]]
    assert run.children[2].flags == (NodeFlag.LEFTOVER_WORKER,)
    assert flag_words(run) == "1 leftover worker"
    assert "1 leftover worker" in describe(run)


def test_orphan_holders_of_runs_that_have_ended_are_a_group_at_the_end() -> None:
    gone = Surroundings(run=run_of("700:700", worker_of=700, orphaned=True))
    left = [helper(pid, ppid=1, adopted=True, surroundings=gone) for pid in (2000, 2001)]
    alone = helper(2002, ppid=1, adopted=True, surroundings=None)
    nodes = build_tree(ranks(2, unlisted=(*left, alone)))
    assert shape(nodes[1:]) == [[LEFTOVER_WORKERS, 2002, ["train.py", 2000, 2001]]]
    assert nodes[-1].totals.memory == PartialSum()
    assert flag_words(nodes[-1]) == ""
    assert flag_words(nodes[-1].children[1]) == "all leftover workers"
    assert count_flags(nodes) == "3 leftover workers"
    assert "their run has ended" in describe(nodes[-1])


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"adopted": True}, LEFTOVER_WORKERS),
        ({"adopted": True, "context": False}, ASKERS),
        ({"context": False}, ASKERS),
        ({}, 2000),
        ({"adopted": True, "surroundings": Surroundings(unit="dcgm.service")}, 2000),
        ({"adopted": True, "surroundings": Surroundings(server="listens on port 8000")}, 2000),
        ({"surroundings": Surroundings(run=run_of("7:7", orphaned=True))}, LEFTOVER_WORKERS),
    ],
)
def test_who_only_asks_the_driver_has_a_living_parent_or_serves_is_no_orphan(changes: Any, place: str | int) -> None:
    (node,) = build_tree(snapshot([gpu(0)], unlisted=(helper(2000, 1, **changes),)))
    assert (node.process.pid if node.process else node.title) == place


def test_the_launcher_that_holds_device_files_is_called_that() -> None:
    head = helper(812, ppid=900, surroundings=Surroundings(run=run_of(launcher="torchrun", head=812)))
    (run,) = build_tree(ranks(2, unlisted=(head,)))
    assert role_label(run.children[-1], top=False) == "launcher, holds device files"


# Sums


@pytest.mark.parametrize(
    ("sizes", "total"),
    [
        ((1.0, 2.0), PartialSum(3 * GIB)),
        ((1.0, None), PartialSum(GIB, missing=True)),
        ((None, None), PartialSum(None, missing=True)),
        ((0.0, 0.0), PartialSum(0.0)),
    ],
)
def test_a_figure_that_is_missing_is_no_nought(sizes: tuple[float | None, ...], total: PartialSum) -> None:
    held = [
        holding(10 + n, memory=Reason.UNSUPPORTED if size is None else round(size * GIB))
        for n, size in enumerate(sizes)
    ]
    (run,) = build_tree(snapshot([gpu(0, holdings=held, used_gib=1)], [around(10), around(11)]))
    assert run.totals.memory == total
    assert run.totals.memory.at_least is (total.missing and total.value is not None)


@pytest.mark.parametrize(
    ("idles", "shown"),
    [
        ([Idle(90, False), Idle(30, True)], Idle(30, True)),
        ([Idle(30, True), Idle(30, False)], Idle(30, False)),
        ([Idle(30, False), None], None),
        ([Idle(0, False), None], Idle(0, False)),
        ([None], None),
        ([], None),
    ],
)
def test_a_run_is_as_idle_as_the_busiest_of_its_parts(idles: list[Idle | None], shown: Idle | None) -> None:
    assert shortest(idles) == shown


def test_idleness_and_age_come_from_all_parts() -> None:
    held = [holding(10, sm=0), holding(11, sm=0)]
    people = [around(10), process(11, started=EPOCH - 9000, surroundings=Surroundings(run=run_of()))]
    seen, history = snapshot([gpu(0, holdings=held)], people), History()
    for second in range(100):
        view = history.add(at(seen, second), 500.0 + second)
    (run,) = build_tree(seen, view)
    assert run.totals.idle == Idle(99.0, at_least=True)
    assert run.totals.started == EPOCH - 9000


# What is wrong


@pytest.mark.parametrize(
    ("seen", "absent"),
    [
        (ranks(8), ()),
        (ranks(8, 5), (5,)),
        (ranks(8, 0, 3), (0, 3)),
        (ranks(8, 7), ()),  # it may be on another host
        (ranks(4, 1, world=16, first=8), (9,)),
    ],
)
def test_a_rank_between_others_that_is_not_here_is_missed(seen: Snapshot, absent: tuple[int, ...]) -> None:
    (run,) = build_tree(seen)
    assert run.absent == absent
    assert ("no rank" in flag_words(run)) is bool(absent)


@pytest.mark.parametrize(
    "changes", [{"health": Health.LOST}, {"holdings_note": "incomplete"}, {"index": 9}, {"health": Health.MISSING}]
)
def test_no_rank_is_missed_where_a_gpu_may_have_it(changes: dict[str, Any]) -> None:
    whole = ranks(8, 5)
    cards = [gpu(**{"index": 5, **changes}) if card.index == 5 else card for card in whole.gpus]
    (run,) = build_tree(snapshot(cards, whole.processes))
    assert run.absent == ()
    assert size_words(run) == "7/8 ranks"


@pytest.mark.parametrize(
    "of_runs",
    [
        [{"rank": 0}, {"rank": 3}],
        [{"rank": 0, "local_rank": 0, "world": 4}, {"rank": 3, "local_rank": 1, "world": 4}],
        [{"rank": 0, "local_rank": 0}, {"rank": 2, "local_rank": 2}],
        [{"rank": 0, "local_rank": 0, "world": 4}, {"rank": 2**40, "local_rank": 2**40, "world": 4}],
    ],
)
def test_no_rank_is_missed_where_the_local_ranks_do_not_tell(of_runs: list[dict[str, int]]) -> None:
    people = [around(10 + n, **one) for n, one in enumerate(of_runs)]
    (run,) = build_tree(snapshot([gpu(0, holdings=[holding(10), holding(11)])], people))
    assert run.absent == ()


@pytest.mark.parametrize(
    ("changes", "flags", "words"),
    [
        ({"state": "zombie"}, (NodeFlag.ZOMBIE,), "zombie"),
        ({"state": "stopped"}, (NodeFlag.STOPPED,), "stopped"),
        ({"surroundings": Surroundings(run=run_of(orphaned=True))}, (NodeFlag.LEFTOVER,), "leftover"),
        ({"presence": Presence.GONE}, (NodeFlag.ENDED,), ""),  # the command says so
        ({"state": "disk sleep"}, (), ""),
    ],
)
def test_what_is_wrong_with_a_process(changes: dict[str, Any], flags: tuple[NodeFlag, ...], words: str) -> None:
    (node,) = build_tree(snapshot([gpu(0, holdings=[holding(10)])], [process(10, **changes)]))
    assert node.flags == flags
    assert flag_words(node) == words


def test_what_is_wrong_below_a_run_is_counted_on_it() -> None:
    whole = ranks(4)
    ill = {1000: "stopped", 1001: "zombie", 1002: "zombie"}
    people = [process(p.pid, state=ill.get(p.pid, "running"), surroundings=p.surroundings) for p in whole.processes]
    (run,) = build_tree(snapshot(whole.gpus, people))
    assert flag_words(run) == "2 zombies, 1 stopped"
    every_one = [process(p.pid, state="stopped", surroundings=p.surroundings) for p in whole.processes]
    assert flag_words(build_tree(snapshot(whole.gpus, every_one))[0]) == "all stopped"


# Words


def test_a_run_in_words() -> None:
    found = helper(2000, surroundings=Surroundings(run=run_of(worker_of=1000)))
    (run,) = build_tree(ranks(8, 5, unlisted=(found,)))
    assert describe(run).startswith(
        "torchrun · ranks 0-4,6-7 of 8 on GPUs 0-4,6-7 · rank 5 is on none of these GPUs"
        " · 1 worker holds device files · in tmux train · GiB: 10.0 on 0, 11.0 on 1"
    )
    assert describe(run.children[3]) == ("PID 1003, rank 3 of 8 on GPU 3 · torchrun · in tmux train · python train.py")
    assert "worker of 1000" in describe(run.children[0].children[0])
    assert "has the device file of GPU 0 open, and the driver does not list it" in describe(run.children[0].children[0])


# Whose, and in which order


def test_only_the_viewers_own() -> None:
    people = [process(10, "you"), process(20, "ada"), Process(pid=30, presence=Presence.HIDDEN)]
    seen = snapshot([gpu(0, holdings=[holding(pid) for pid in (10, 20, 30)])], people)
    assert shape(build_tree(seen, mine=True)) == [10]
    assert build_tree(seen, mine=True)[0].mine
    assert build_tree(snapshot()) == []


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
    return build_tree(snapshot(cards, people, unlisted=(left,)))


@pytest.mark.parametrize(
    ("by", "pids"),
    [
        ("memory", [20, 10, 30]),
        ("sm", [20, 10, 30]),
        ("gpu", [10, 30, 20]),
        ("user", [20, 10, 30]),
        ("name", [30, 10, 20]),
    ],
)
def test_the_order(by: str, pids: list[int]) -> None:
    assert by in ORDERS
    assert shape(run_order().sort(crowd(), by)) == [*pids, [LEFTOVER_WORKERS, 99]]


def test_the_order_is_order() -> None:
    def two(first: float, second: float) -> list[Node]:
        return build_tree(snapshot([gpu(0, holdings=[holding(10, first), holding(20, second)])]))

    order = run_order()
    assert shape(order.sort(two(10.0, 9.9), "memory")) == [10, 20]
    assert shape(order.sort(two(9.9, 10.0), "memory")) == [10, 20]
    assert shape(order.sort(two(9.0, 12.0), "memory")) == [20, 10]
    assert shape(run_order().sort(two(9.9, 10.0), "memory")) == [20, 10]


# Whatever may come

runs = st.none() | st.builds(
    Run,
    key=st.sampled_from(["a", "b", "10:10"]),
    name=st.sampled_from(["", "train.py", "[/x]"]),
    launcher=st.sampled_from(["", "torchrun"]),
    head=st.integers(0, 40),
    rank=st.none() | st.integers(-1, 9),
    local_rank=st.none() | st.integers(-1, 9),
    world=st.none() | st.integers(0, 9),
    worker_of=st.none() | st.integers(0, 40),
    orphaned=st.booleans(),
)


@st.composite
def machines(draw: st.DrawFn) -> Snapshot:
    """Return a machine on which processes may say anything of each other."""
    pids = draw(st.lists(st.integers(1, 30), max_size=30))
    held: list[list[Any]] = [[], []]
    people: dict[int, Process] = {}
    unlisted = []
    for pid in pids:
        one_run = draw(runs)
        one = process(
            pid,
            draw(st.sampled_from(["you", "ada"])),
            start=draw(st.sampled_from([0, 5, pid])),
            ppid=draw(st.none() | st.integers(0, 30)),
            adopted=draw(st.booleans()),
            state=draw(st.sampled_from(["running", "zombie", "stopped"])),
            surroundings=draw(st.sampled_from([None, Surroundings(run=one_run)])),
        )
        if draw(st.booleans()):
            opened = draw(st.lists(st.sampled_from([0, 1, 7]), max_size=2))
            unlisted.append(Unlisted(process=one, gpus=tuple(gpu(n).key for n in opened), context=draw(st.booleans())))
            continue
        people[pid] = one
        for card in draw(st.lists(st.sampled_from([0, 1]), min_size=1, max_size=2)):
            size = draw(st.sampled_from([Reason.UNSUPPORTED, 0, GIB]))
            held[card].append(
                holding(pid, start=one.start, memory=size, sm=draw(st.sampled_from([Reason.ERROR, 0, 9])))
            )
    cards = [gpu(n, holdings=one, used_gib=40) for n, one in enumerate(held)]
    return snapshot(cards, people.values(), unlisted=tuple(unlisted))


@given(machines(), st.booleans())
def test_every_process_is_there_once_and_the_sums_add_up(seen: Snapshot, mine: bool) -> None:
    listed = {(one.pid, one.start) for card in seen.gpus for one in card.holdings}
    others = {one.process.pid for one in seen.unlisted} - {pid for pid, _ in listed}
    nodes = build_tree(seen, mine=mine)
    shown = [node for node in every(nodes) if node.process]
    keys = [(node.process.pid, node.rows[0].holding.start) for node in shown if node.process and node.rows]
    assert len(set(keys)) == len(keys)
    rest = [node.process.pid for node in shown if node.process and not node.rows]
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
        assert node.totals.memory == add(held.memory for held in node.totals.gpus)
        assert node.totals.processes == sum(one.processes for one in below)
        assert node.totals.holders == sum(one.holders for one in below)
        assert not node.children or node.process or len(node.children) > 1 or node.kind is NodeKind.GROUP
        assert describe(node)
        assert "\n" not in describe(node) + flag_words(node) + size_words(node) + role_label(node, top=True)
        assert node.kind is NodeKind.GROUP or node.target is not None
    for by in ORDERS:
        assert len(run_order().sort(nodes, by)) == len(nodes)


@pytest.mark.parametrize("ring", [1, 2, 3, 300])
def test_workers_of_one_another_hang_nobody(ring: int) -> None:
    people = [around(10 + n, worker_of=10 + (n + 1) % ring) for n in range(ring)]
    people = [process(one.pid, start=1, surroundings=one.surroundings) for one in people]
    seen = snapshot([gpu(0, holdings=[holding(one.pid, 0.1, start=1) for one in people])], people)
    assert sorted(node.process.pid for node in every(build_tree(seen)) if node.process) == [one.pid for one in people]


def test_the_depth_is_bounded() -> None:
    people = [around(10 + n, worker_of=9 + n if n else None) for n in range(400)]
    seen = snapshot([gpu(0, holdings=[holding(one.pid, 0.1) for one in people])], people)

    def depth(node: Node) -> int:
        return 1 + max(map(depth, node.children), default=0)

    (node,) = build_tree(seen)
    assert depth(node) == DEEPEST
    assert node.totals.processes == 400
