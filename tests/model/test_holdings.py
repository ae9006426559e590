"""Holdings: what is folded by process and by owner, and what of it is known."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from gpuwatch.history.history import HistoryView
from gpuwatch.model.holdings import UNSEEN_USER, Holdings, user_names
from gpuwatch.model.snapshot import Holding, Process, Reason
from gpuwatch.monitor import Frame
from tests.support.builders import GIB, gpu, holding, process, snapshot

UNKNOWN = Reason.DENIED


def on_instances(*held: tuple[float | Reason, float | Reason], pid: int = 100) -> list[Holding]:
    """Return the holdings of one process, (GiB, percent) on each of its MIG instances."""
    return [
        holding(pid, memory=size if isinstance(size, Reason) else round(size * GIB), sm=sm, gpu_instance=place)
        for place, (size, sm) in enumerate(held)
    ]


@pytest.mark.parametrize(
    ("held", "memory", "complete", "sm", "sm_complete"),
    [
        ([(3.0, 40)], 3, True, 40, True),
        ([(3.0, 0), (2.0, 60)], 5, True, 60, True),
        ([(3.0, 0), (UNKNOWN, UNKNOWN)], 3, False, 0, False),
        ([(UNKNOWN, UNKNOWN)], 0, False, None, False),
        ([(0.0, Reason.UNSUPPORTED)], 0, True, None, False),
    ],
)
def test_the_instances_of_a_process_are_added_up_as_far_as_they_are_known(
    held: list[tuple[float | Reason, float | Reason]],
    memory: float,
    complete: bool,
    sm: float | None,
    sm_complete: bool,
) -> None:
    seen = snapshot([gpu(0, used_gib=9, holdings=on_instances(*held))])
    (one,) = Holdings(seen).on(seen.gpus[0])
    assert (one.memory, one.complete, one.sm, one.sm_complete) == (memory * GIB, complete, sm, sm_complete)
    assert one.sized == (complete or memory > 0)
    assert one.silent == all(figure is Reason.UNSUPPORTED for _, figure in held)


def test_a_process_only_draws_where_all_of_its_holdings_do() -> None:
    held = [holding(1, kind="G"), holding(2, kind="G"), holding(2, kind="C"), holding(3, kind="C+M")]
    seen = snapshot([gpu(0, holdings=held)])
    one, two, three = Holdings(seen).on(seen.gpus[0])
    assert (one.graphics, two.graphics, three.graphics) == (True, False, False)
    assert [sorted(each.kinds) for each in (one, two, three)] == [["G"], ["C", "G"], ["C", "M"]]


def test_owners_add_up_to_the_gpu_and_those_who_are_not_visible_are_one() -> None:
    people = [process(1), process(2), process(3, "ben"), process(4, uid=None, user="")]
    held = [holding(3, 4), holding(1, 1), holding(2, memory=UNKNOWN), holding(4, 2), holding(5, 3)]
    seen = snapshot([gpu(0, used_gib=20, holdings=held)], people)
    seen = replace(seen, processes=tuple(people))  # without process 5
    holdings = Holdings(seen)
    owners = holdings.owners(seen.gpus[0])
    shown = [(one.name, one.memory // GIB, one.complete) for one in owners]
    assert [[each.process.pid for each in one.processes] for one in owners] == [[3], [1, 2], [4, 5]]
    assert shown == [("ben", 4, True), ("ada", 1, False), (UNSEEN_USER, 5, True)]
    assert holdings.on(seen.gpus[0])[-1].process == Process(pid=5, start=5)


def test_a_mig_instance_has_owners_of_its_own() -> None:
    seen = snapshot([gpu(0, used_gib=9, holdings=on_instances((1.0, 0), (2.0, 0)))])
    holdings = Holdings(seen)
    assert [one.memory for one in holdings.owners_on_instance(seen.gpus[0], 1)] == [2 * GIB]
    assert [one.memory for one in holdings.owners(seen.gpus[0])] == [3 * GIB]


def test_two_gpus_of_one_uuid_have_their_own_processes() -> None:
    seen = snapshot([gpu(0, uuid="GPU-1", holdings=[holding(1)]), gpu(1, uuid="GPU-1", holdings=[holding(2)])])
    holdings = Holdings(seen)
    assert [one.process.pid for each in seen.gpus for one in holdings.on(each)] == [1, 2]
    assert [one.processes[0].process.pid for each in seen.gpus for one in holdings.owners(each)] == [1, 2]


@pytest.mark.parametrize(
    ("users", "name"), [(["1001", "ada"], "ada"), (["ada", "1001"], "ada"), (["", "1001"], "1001"), ([""], "1001")]
)
def test_a_name_counts_more_than_a_uid_whose_name_is_not_known(users: list[str], name: str) -> None:
    assert user_names(process(pid, user, uid=1001) for pid, user in enumerate(users, 1)) == {1001: name}


def test_a_frame_has_the_holdings_of_its_snapshot() -> None:
    seen = snapshot([gpu(0, holdings=[holding(1)])])
    made = Holdings(seen)
    assert Frame(seen, 0.0, HistoryView(), holdings=made).holdings is made
    assert Frame(seen, 0.0, HistoryView()).holdings.owners(seen.gpus[0])[0].memory == GIB
