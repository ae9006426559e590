"""What is declared beside what is held: limits of one process, of a scope, of a GPU."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gpuwatch.model import shares
from gpuwatch.model.snapshot import (
    Declaration,
    Declared,
    Instance,
    Kind,
    Knowledge,
    Limit,
    Memory,
    Presence,
    Process,
    Reason,
)
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


def test_a_scopes_processes_count_together_and_the_smallest_of_their_limits_holds() -> None:
    card = gpu(0, holdings=[holding(1, 10), holding(2, 20)])
    seen = snapshot(
        [card], [process(1, declared=declared((25, "genv 7"))), process(2, declared=declared((24, "genv 7")))]
    )
    (one,) = shares.limit_usages(seen)
    assert (one.pids, one.held, one.limit.bytes, one.complete) == ((2, 1), 30 * GIB, 24 * GIB, True)


@pytest.mark.parametrize(("scope", "limits", "promised"), [("container a", 1, 10), ("genv 7", 2, 30)])
def test_of_two_users_each_has_a_limit_and_a_container_is_booked_once(scope: str, limits: int, promised: int) -> None:
    """A container is the machine's word; a scope from an environment is nobody's but its user's."""
    card = gpu(0, holdings=[holding(1, 4), holding(2, 6)])
    seen = snapshot(
        [card], [process(pid, user, declared=declared((20, scope))) for pid, user in ((1, "ada"), (2, "eve"))]
    )
    assert [one.pids for one in shares.limit_usages(seen)] == [(1,), (2,)]
    sums = shares.declared_memory(card, people(*seen.processes))
    assert (sums.limits, sums.declared) == (limits, limits * 20 * GIB)
    assert shares.add_promised(seen, []).gpus[0].promised == promised * GIB


def test_two_entries_of_one_process_on_one_gpu_add_up() -> None:
    card = gpu(0, holdings=[holding(1, 10, kind="C"), holding(1, 2, kind="G")])
    (one,) = shares.limit_usages(snapshot([card], [process(1, declared=declared((8, "")))]))
    assert one.held == 12 * GIB


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
    assert not found.overbooked


def test_one_that_has_ended_takes_no_more() -> None:
    card = gpu(0, holdings=[holding(7, 40)])
    for changes, promised in (
        ({}, 20 * GIB),
        ({"state": "zombie"}, 0),
        ({"presence": Presence.GONE, "state": ""}, 0),
    ):
        one = process(7, declared=declared((60, "")), **changes)
        assert shares.add_promised(snapshot([card], [one]), []).gpus[0].promised == promised


def test_promises_are_by_user_kind_and_instance_and_what_is_left_is_without_them() -> None:
    card = gpu(0, holdings=[holding(1, 4), holding(2, 4), holding(3, 4, gpu_instance=7)])
    capped = [process(pid, user, declared=declared((10, ""))) for pid, user in ((1, "ada"), (2, "ada"), (3, "ada"))]
    reserved = shares.Reservation(frozenset(), 0, {CARD: 20 * GIB}, made=snapshot([card]).taken - 60, user="root")
    (seen,) = shares.add_promised(snapshot([card], capped), [reserved]).gpus
    assert [(one.user, one.bytes, one.gpu_instance, one.reserved > 0) for one in seen.promises] == [
        ("root", 20 * GIB, None, True),
        ("ada", 12 * GIB, None, False),
        ("ada", 6 * GIB, 7, False),
    ]
    assert isinstance(seen.memory.free, int)
    assert shares.left(seen) == seen.memory.free - 38 * GIB
    assert seen.promised == 38 * GIB
    assert shares.left(gpu(0, memory=Memory(free=Reason.UNSUPPORTED))) is Reason.UNSUPPORTED
    parts = [
        Instance(uuid=str(at), name="", gpu_instance=at, compute_instance=0, memory=Memory(free=10 * GIB))
        for at in (7, 8)
    ]
    assert shares.left(msgspec.structs.replace(seen, mig=True, instances=tuple(parts))) == 14 * GIB  # 10 - 6, and 10


def test_without_a_total_nothing_is_over_committed() -> None:
    card = gpu(0, used_gib=0, memory=Memory(total=Reason.ERROR, used=1), holdings=[holding(1)])
    found = shares.declared_memory(card, people(process(1, declared=declared((900, "")))))
    assert found.total is None
    assert not found.overbooked
