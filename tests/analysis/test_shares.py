"""What is declared beside what is held: limits of one process, of a scope, of a GPU."""

from __future__ import annotations

from typing import Any

from gpuwatch import shares
from gpuwatch.model import Declaration, Declared, Kind, Knowledge, Limit, Memory, Presence, Process, Reason
from tests.support.builders import GIB, gpu, holding, process, snapshot

CARD = gpu(0).uuid


def declared(*limits: tuple[float, str], gpu_uuid: str = CARD, **changes: Any) -> Declared:
    """Give declarations of so many GiB on a GPU, each with its scope."""
    return Declared(
        declarations=tuple(Declaration(channel=f"c{n}", kind=Kind.CAP, effective=True) for n in range(len(limits))),
        limits=tuple(
            Limit(gpu=gpu_uuid, bytes=round(gib * GIB), declaration=n, scope=scope)
            for n, (gib, scope) in enumerate(limits)
        ),
        **changes,
    )


def people(*processes: Process) -> dict[int, Process]:
    return {one.pid: one for one in processes}


def test_the_limit_of_the_process_alone_comes_before_a_smaller_shared_one() -> None:
    both = declared((8, "genv 1"), (16, ""))
    limit = shares.limit_on(both, CARD)
    assert limit is not None
    assert limit.bytes == 16 * GIB
    assert shares.limit_on(both, "another") is None
    assert shares.limit_on(None, CARD) is None


def test_of_several_shared_limits_the_smallest_is_shown() -> None:
    limit = shares.limit_on(declared((8, "genv 1"), (4, "container a")), CARD)
    assert limit is not None
    assert limit.scope == "container a"


def test_unreadable_pending_and_unseen_are_not_undeclared() -> None:
    assert shares.is_conclusive(Declared())
    assert not shares.is_conclusive(Declared(knowledge=Knowledge.UNREADABLE))
    assert not shares.is_conclusive(Declared(knowledge=Knowledge.PENDING))
    assert not shares.is_conclusive(None)


def test_a_limit_that_only_the_program_knows_is_not_none() -> None:
    said = Declaration(channel="set_per_process_memory_fraction", kind=Kind.CAP, effective=True, undecided=True)
    assert not shares.is_conclusive(Declared(declarations=(said,)))
    assert shares.is_conclusive(Declared(declarations=(Declaration(channel="c", kind=Kind.GROWTH, effective=True),)))
    lifted = Declaration(channel="c", kind=Kind.CAP, effective=True, value=0.0)
    assert shares.is_conclusive(Declared(declarations=(lifted,)))


def test_each_process_stands_against_its_own_limit() -> None:
    card = gpu(0, holdings=[holding(1, 10), holding(2, 20), holding(3, 5)])
    seen = snapshot([card], [process(1, declared=declared((8, ""))), process(2, declared=declared((30, "")))])
    found = shares.limit_usages(seen)
    assert [(one.pids, one.held // GIB, one.limit.bytes // GIB) for one in found] == [((1,), 10, 8), ((2,), 20, 30)]
    assert found[0].declaration.channel == "c0"


def test_a_scopes_processes_count_together_and_the_smallest_of_their_limits_holds() -> None:
    card = gpu(0, holdings=[holding(1, 10), holding(2, 20)])
    seen = snapshot(
        [card], [process(1, declared=declared((25, "genv 7"))), process(2, declared=declared((24, "genv 7")))]
    )
    (one,) = shares.limit_usages(seen)
    assert (one.pids, one.held, one.limit.bytes, one.complete) == ((2, 1), 30 * GIB, 24 * GIB, True)


def test_two_entries_of_one_process_on_one_gpu_add_up() -> None:
    card = gpu(0, holdings=[holding(1, 10, kind="C"), holding(1, 2, kind="G")])
    (one,) = shares.limit_usages(snapshot([card], [process(1, declared=declared((8, "")))]))
    assert one.held == 12 * GIB


def test_a_holding_without_a_figure_leaves_the_sum_incomplete() -> None:
    card = gpu(0, used_gib=10, holdings=[holding(1, 10), holding(2, memory=Reason.UNSUPPORTED)])
    limit = declared((8, "genv 7"))
    (one,) = shares.limit_usages(snapshot([card], [process(1, declared=limit), process(2, declared=limit)]))
    assert (one.held, one.complete) == (10 * GIB, False)


def test_three_times_four_tenths_is_more_than_one() -> None:
    each = declared((0.4 * 79, ""))
    card = gpu(0, holdings=[holding(1, 3), holding(2, 3), holding(3, 3)])
    found = shares.declared_memory(card, people(*(process(pid, declared=each) for pid in (1, 2, 3))))
    assert found.overcommitted
    assert (found.limits, found.held, found.unread, found.undeclared) == (3, 9 * GIB, 0, 0)


def test_who_declared_nothing_is_told_from_who_could_not_be_read() -> None:
    card = gpu(0, holdings=[holding(1), holding(2), holding(3), holding(4)])
    found = shares.declared_memory(
        card,
        people(
            process(1, declared=declared((8, ""))),
            process(2, declared=Declared()),
            process(3, declared=Declared(knowledge=Knowledge.UNREADABLE)),
        ),
    )
    assert (found.limits, found.undeclared, found.unread) == (1, 1, 2)
    assert not found.overcommitted


def test_one_that_has_ended_takes_no_more() -> None:
    card = gpu(0, holdings=[holding(7, 40)])
    for changes, promised in (
        ({}, 20 * GIB),
        ({"state": "zombie"}, 0),
        ({"presence": Presence.GONE, "state": ""}, 0),
    ):
        one = process(7, declared=declared((60, "")), **changes)
        assert shares.add_promised(snapshot([card], [one]), []).gpus[0].promised == promised


def test_what_is_under_a_shared_limit_is_promised_once() -> None:
    both = declared((8, ""), (10, "genv 7"))
    card = gpu(0, holdings=[holding(1), holding(2)])
    found = shares.declared_memory(card, people(process(1, declared=both), process(2, declared=both)))
    assert (found.declared, found.limits) == (10 * GIB, 1)


def test_without_a_total_nothing_is_over_committed() -> None:
    card = gpu(0, used_gib=0, memory=Memory(total=Reason.ERROR, used=1), holdings=[holding(1)])
    found = shares.declared_memory(card, people(process(1, declared=declared((900, "")))))
    assert found.total is None
    assert not found.overcommitted


def test_without_a_reserve_all_is_usable() -> None:
    assert shares.usable(gpu(0, memory=Memory(total=80 * GIB, used=0), used_gib=0)) == 80 * GIB
