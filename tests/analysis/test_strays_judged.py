"""Who cannot be judged, how causes combine, and whatever else there may be: who is at work is never a stray."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.analysis.strays import Cause, StrayLimits, judge
from gpuwatch.history import HistoryView, Idle
from gpuwatch.model import Health, Job, Notebook, Process, Reason, Snapshot, SourceState, Surroundings
from tests.support import builders
from tests.support.builders import GIB, gpu
from tests.support.straying import (
    CERTAIN,
    DOCKER,
    HOUR,
    KERNEL,
    LEFT,
    LIKELY,
    PID,
    REST,
    TMUX,
    find,
    held,
    left,
    machine,
    mine,
    one,
    started,
    stray,
    suspects,
    told,
)


def replaced(base: Snapshot, **changes: Any) -> Snapshot:
    """Return a machine whose only GPU is otherwise."""
    return msgspec.structs.replace(base, gpus=(msgspec.structs.replace(base.gpus[0], **changes),))


# ---------------------------------------------------------------------------------------------------------------
# What cannot be judged


@pytest.mark.parametrize(
    "changes",
    [
        {"health": Health.LOST},
        {"holdings_note": "under MIG the list is not complete"},
        {"unreliable": True},
        {"sampled": 994.0},
        {"sampled": 0.0},
    ],
)
def test_a_gpu_in_trouble_is_not_judged(changes: dict[str, Any]) -> None:
    base = machine([left(state="stopped")], [held()])
    assert find(base, told((0, PID, 1e5)))
    assert not find(replaced(base, **changes), told((0, PID, 1e5)))


def test_nothing_is_judged_while_the_driver_is_down() -> None:
    assert not find(machine([left()], [held()], state=SourceState.DRIVER_DOWN), told((0, PID, 1e5)))


def test_what_was_seen_on_a_gpu_that_is_lost_may_compute_there() -> None:
    base = machine([left()], [held()], [])
    lost = msgspec.structs.replace(
        base, gpus=(base.gpus[0], msgspec.structs.replace(base.gpus[1], health=Health.LOST, holdings=()))
    )
    assert find(lost, told((0, PID, 1e5)))
    assert not find(lost, told((0, PID, 1e5), (1, PID, 0.0)))


def test_a_pid_that_is_somebody_elses_by_now_is_not_judged() -> None:
    assert not find(machine([left()], [held(start=99)]), told((0, PID, 1e5)))


# ---------------------------------------------------------------------------------------------------------------
# Together


def test_causes_combine_and_the_strongest_comes_first() -> None:
    found = stray(left(state="stopped"), 1e5)
    assert (found.cause, found.sure) == (Cause.STOPPED, CERTAIN)
    assert found.why == (
        "stopped, as by Ctrl-Z: it cannot run",
        "its login has ended",
        "its parent has ended",
        "no SM use for 1 d 3 h",
    )
    found = stray(mine(state="stopped", **{**LEFT, "led": True}), 1e5)
    assert (found.cause, found.sure) == (Cause.STOPPED, LIKELY)
    found = stray(left(Surroundings(job=REST)), 1e5)
    assert (found.cause, found.sure) == (Cause.WORKER, CERTAIN)


def test_the_worst_is_first() -> None:
    people = [mine(100), mine(101, **LEFT), mine(102, **LEFT)]
    found = find(
        machine(people, [held(100, 20), held(101, 2), held(102, 3)]),
        told((0, 100, 1e5), (0, 101, 1e5), (0, 102, 1e5)),
    )
    assert [(row.process.pid, row.sure) for row in found] == [(102, CERTAIN), (101, CERTAIN), (100, LIKELY)]


def test_what_another_has_kept_counts_where_it_says_more() -> None:
    base, key = machine([left()], [held()]), (gpu(0).key, PID, PID)
    assert not find(base, None)
    assert find(base, None, known={key: Idle(400.0, at_least=False)})
    assert find(base, told((0, PID, 0.0, True)), known={key: Idle(400.0, at_least=False)})
    assert not find(base, told((0, PID, 20.0)), known={key: Idle(400.0, at_least=False)})
    busy = machine([left()], [held(sm=3)])
    assert not find(busy, None, known={key: Idle(400.0, at_least=False)})


def test_of_whom_it_cannot_be_told_is_said() -> None:
    base = machine([left()], [held()])
    assert [each.pid for each in suspects(base, None)] == [PID]
    assert [each.pid for each in suspects(base, told((0, PID, 20.0, True)))] == [PID]
    assert not suspects(base, told((0, PID, 20.0)))
    assert not suspects(machine([left()], [held(sm=9)]), None)
    assert not suspects(machine([mine()], [held()]), None)
    for state in ("stopped", "zombie"):
        assert suspects(machine([mine(state=state)], [held()]), None)
        assert not suspects(machine([mine(state=state)], [held()]), told((0, PID, 20.0))), "it has just computed"


def test_who_is_stopped_is_one_where_nobody_can_ever_tell_for_how_long_it_was_idle() -> None:
    never = Reason.UNSUPPORTED
    for facts in ({"led": False}, LEFT, {}):
        who = mine(state="stopped", **facts)
        found = stray(who, sm=never)
        assert (found.cause, found.sure, found.idle) == (Cause.STOPPED, LIKELY, None)
        assert not suspects(machine([who], [held(sm=never)]), None)
    assert not one(mine(state="stopped"), sm=Reason.NO_SAMPLE)
    assert not find(machine([mine(state="stopped")], [held(sm=never)], [held()]), None), "the other GPU may tell"
    assert not one(mine(around=Surroundings(slurm="4711.0"), state="stopped"), sm=never)
    ended = machine([mine(state="zombie")], [held(sm=never)])
    assert not find(ended, None)
    assert not suspects(ended, None)


def test_limits_are_the_callers() -> None:
    patient = StrayLimits(idle_after=7200, idle_memory=8 * GIB, quiet_after=3600)
    assert not find(machine([left()], [held()]), told((0, PID, 3000.0)), patient)
    assert find(machine([left()], [held()]), told((0, PID, 3700.0)), patient)


# ---------------------------------------------------------------------------------------------------------------
# Whatever there is

maybe = st.sampled_from((True, False, None))
jobs = st.builds(
    Job,
    key=st.sampled_from(("90:90", "91:91", "")),
    head=st.sampled_from((0, 90, 100)),
    worker_of=st.sampled_from((None, 90, 100, 101)),
    orphaned=st.booleans(),
)
places = st.builds(
    Surroundings,
    container=st.sampled_from((None, DOCKER)),
    pod=st.sampled_from(("", "lab/x")),
    slurm=st.sampled_from(("", "4711.0")),
    unit=st.sampled_from(("", "x.service")),
    pane=st.sampled_from((None, TMUX, msgspec.structs.replace(TMUX, alive=False))),
    notebook=st.sampled_from((None, KERNEL, Notebook(server=3))),
    job=st.none() | jobs,
    server=st.sampled_from(("", "vLLM")),
)
people = st.builds(
    lambda pid, **changes: builders.process(pid, **changes),
    pid=st.sampled_from((100, 101, 102)),
    user=st.sampled_from(("you", "you", "ada")),
    surroundings=st.none() | places,
    led=maybe,
    adopted=st.booleans(),
    state=st.sampled_from(("sleeping", "running", "stopped", "zombie", "tracing stop", "disk sleep", "")),
    cpu=st.sampled_from((0.0, 20.0, 90.0, Reason.NO_SAMPLE)),
    ppid=st.sampled_from((1, 90, 100, None)),
    started=st.sampled_from((None, started(10), started(HOUR))),
)
holdings = st.builds(
    builders.holding,
    pid=st.sampled_from((100, 101, 102, 103)),
    gib=st.sampled_from((0.01, 0.5, 4.0)),
    sm=st.sampled_from((0, 0, 7, Reason.NO_SAMPLE, Reason.UNSUPPORTED)),
    kind=st.sampled_from(("C", "G", "M", "C+G")),
)
idle_times = st.tuples(
    st.integers(0, 1), st.integers(100, 103), st.sampled_from((0.0, 100.0, 400.0, 4e4)), st.booleans()
)


@settings(max_examples=80)
@given(
    st.lists(people, max_size=4, unique_by=lambda each: each.pid),
    st.lists(st.lists(holdings, max_size=4), min_size=1, max_size=2),
    st.lists(idle_times, max_size=6, unique_by=lambda each: each[:2]),
)
def test_who_is_at_work_is_never_a_stray(crowd: list[Process], cards: list[Any], idles: list[Any]) -> None:
    base, history = machine(crowd, *cards), told(*idles)
    found = find(base, history)
    assert len({row.key for row in found}) == len(found)
    for row in found:
        process = row.process
        assert process.uid == base.viewer
        assert row.why
        assert process.started is not None
        assert base.taken - process.started >= 60
        mine = [(card.index, each) for card in base.gpus for each in card.holdings if each.pid == process.pid]
        assert not any(isinstance(each.sm, int) and each.sm > 0 for _, each in mine)
        rests = [history.idle(gpu(index).key, process.pid, process.start) for index, _ in mine]
        lately = any(rest is not None and not rest.at_least and rest.seconds < 300 for rest in rests)
        assert not lately or row.cause in (Cause.STOPPED, Cause.ZOMBIE)
        if row.cause in (Cause.LEFTOVER, Cause.IDLE, Cause.KERNEL):
            assert row.idle is not None
            assert row.idle >= 300
            assert process.cpu is Reason.NO_SAMPLE or float(process.cpu) <= 50
        if row.cause is Cause.IDLE:
            assert process.surroundings is not None
            assert not process.surroundings.server
        assert row.ends == (row.cause is not Cause.ZOMBIE)


# ---------------------------------------------------------------------------------------------------------------
# Ranks of a server


@pytest.mark.parametrize("facts", [{}, LEFT])
def test_the_ranks_of_a_server_wait_with_the_one_that_listens(facts: dict[str, Any]) -> None:
    job = Job(key="90:90", name="serve.py", launcher="torchrun", head=90)
    rank = mine(PID, Surroundings(job=job), **facts)
    first = mine(PID + 1, Surroundings(job=job, server="listens on port 8000"), **facts)
    alone = machine([rank], [held(PID)])
    both = machine([rank, first], [held(PID), held(PID + 1)])
    idles = told((0, PID, 5 * HOUR), (0, PID + 1, 5 * HOUR))
    assert [each.process.pid for each in find(alone, idles)] == [PID]
    assert not find(both, idles)


@pytest.mark.parametrize("work", [{"cpu": 300.0}, {"below": 300.0}, {"state": "disk sleep"}])
def test_a_rank_whose_launcher_has_ended_may_wait_for_one_that_is_at_work_on_the_cpu(work: dict[str, Any]) -> None:
    ranks = [left(Surroundings(job=REST), pid=100, **work), left(Surroundings(job=REST), pid=101)]
    assert not find(machine(ranks, [held(100)], [held(101)]), told((0, 100, 900.0), (1, 101, 900.0)))


def test_workers_of_one_daemon_of_rays_may_wait_for_each_other() -> None:
    jobs = [Job(key=f"{pid}:1", launcher="ray", head=pid) for pid in (100, 101)]
    workers = [mine(job.head, Surroundings(job=job), ppid=90) for job in jobs]
    both = machine(workers, [held(100)], [held(101)])
    assert len(find(both, told((0, 100, HOUR), (1, 101, HOUR)))) == 2
    assert not find(both, told((0, 100, HOUR), (1, 101, 60.0)))


def test_a_process_that_computes_or_is_young_costs_no_look_into_the_history() -> None:
    class Closed(HistoryView):
        def idle(self, gpu_key: str, pid: int, start: int) -> Idle | None:
            raise AssertionError(pid)

    busy, young = mine(1), mine(2, started=started(10.0))
    report = judge(machine([busy, young], [held(1, sm=30), held(2)]), Closed())
    assert (report.strays, report.possible) == ([], [])


def test_judging_leaves_nothing_for_the_garbage_collector() -> None:
    """Each snapshot is judged once a second: in a cycle it would stay in memory until the next collection."""
    ranks = [left(Surroundings(job=REST), pid=pid) for pid in (100, 101)]
    base, history = machine(ranks, [held(100)], [held(101)]), told((0, 100, HOUR), (1, 101, HOUR))
    judge(base, history)  # what lasts is made once
    gc.collect()
    gc.disable()
    try:
        assert find(base, history)
        assert gc.collect() == 0
    finally:
        gc.enable()
