"""What each person held and used: by hand-made histories, and for any."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.history import NO_USE, History, HistoryView, Usage, Use, charged
from gpuwatch.model import Gpu, Health, Holding, Presence, Reading, Reason
from tests.support.builders import GIB, at, gpu, holding, process, snapshot, uid
from tests.support.histories import lost, machine, watched

ADA, BEN = uid("ada"), uid("ben")


def used(*samples: tuple[float, tuple[Holding, ...]], interval: float = 1.0) -> HistoryView:
    """Return the view after samples of one GPU at these seconds."""
    history = History()
    for seconds, held in samples:
        view = watched(history, snapshot([gpu(0, holdings=held)], interval=interval), seconds)
    return view


def test_nothing_is_known_of_who_was_never_seen() -> None:
    assert HistoryView().use(ADA) == NO_USE == Use()
    assert used((0, (holding(1, 2),))).use(ADA) == NO_USE, "the first sample has no time before it"


def test_a_sample_charges_the_time_since_the_last() -> None:
    view = used((0, (holding(1, 2),)), (1, (holding(1, 2),)), (2, (holding(1, 4, sm=0),)))
    assert view.use(ADA) == Use(2.0, 1.0, 0.0, 6.0 * GIB, 4.0 * GIB, 0.0)


def test_a_gap_is_not_made_up() -> None:
    assert used((0, (holding(1, 1),)), (60, (holding(1, 1),))).use(ADA).held == 2.5
    assert used((0, (holding(1, 1),)), (60, (holding(1, 1),)), interval=60.0).use(ADA).held == 60.0


def test_a_lost_gpu_charges_nothing() -> None:
    history = History()
    for second in range(11):
        watched(history, machine(holding(1, 1)), second)
    lost(history, 10, 70)
    assert history.view.use(ADA).held == 10.0
    assert watched(history, machine(holding(1, 1)), 71).use(ADA).held == 12.5


def test_a_sample_that_is_given_again_charges_nothing() -> None:
    history = History()
    base = machine(holding(1, 1))
    watched(history, base, 0)
    watched(history, base, 1)
    for late in (1, 2, 3):
        assert watched(history, base, 1, late=late).use(ADA).held == 1.0


@pytest.mark.parametrize("reason", [Reason.NO_SAMPLE, Reason.DENIED, Reason.UNSUPPORTED])
def test_what_has_no_figure_is_neither_busy_nor_idle(reason: Reason) -> None:
    one = holding(1, 3, sm=reason)
    assert used((0, (one,)), (1, (one,))).use(ADA) == Use(1.0, 0.0, 1.0, 3.0 * GIB, 0.0, 0.0)
    one = holding(1, memory=reason, sm=0)
    assert used((0, (one,)), (1, (one,))).use(ADA) == Use(1.0, 0.0, 0.0, 0.0, 0.0, 1.0)


def test_two_processes_of_one_user_hold_a_gpu_once() -> None:
    held = (holding(1, 2, sm=0), holding(2, 3, sm=7))
    assert used((0, held), (1, held)).use(ADA) == Use(1.0, 1.0, 0.0, 5.0 * GIB, 2.0 * GIB, 0.0)
    held = (holding(1, 2, sm=0), holding(2, 3, sm=Reason.NO_SAMPLE))
    assert used((0, held), (1, held)).use(ADA) == Use(1.0, 0.0, 1.0, 5.0 * GIB, 2.0 * GIB, 0.0)


def test_two_gpus_for_a_second_are_two_gpu_seconds() -> None:
    base = snapshot([gpu(0, holdings=[holding(1, 1)]), gpu(1, holdings=[holding(1, 1)])])
    history = History()
    watched(history, base, 0)
    assert watched(history, base, 1).use(ADA).held == 2.0


def test_an_owner_whom_nobody_sees_is_nobodys_use() -> None:
    gone = process(1, presence=Presence.GONE, uid=None)
    base = snapshot([gpu(0, holdings=[holding(1, 1), holding(2, 1)])], [gone, process(2, "ben")])
    history = History()
    watched(history, base, 0)
    view = watched(history, base, 1)
    assert (view.use(ADA).held, view.use(BEN).held) == (0.0, 1.0)


def test_a_view_never_changes() -> None:
    history = History()
    base = machine(holding(1, 1))
    watched(history, base, 0)
    before = watched(history, base, 1)
    watched(history, base, 2)
    assert (before.use(ADA).held, history.view.use(ADA).held) == (1.0, 2.0)


def test_those_who_were_seen_longest_ago_are_forgotten() -> None:
    usage = Usage(most=2)
    for second, pids in enumerate(([1, 2], [1, 2], [1], [3])):
        people = [process(pid, f"user{pid}", uid=pid) for pid in pids]
        base = snapshot([gpu(0, holdings=[holding(pid) for pid in pids])], people)
        usage.add(at(base, second))
    assert {who: use.held for who, use in usage.totals.items()} == {1: 2.0, 3: 1.0}


def test_a_gpu_that_is_not_sampled_charges_nothing() -> None:
    usage = Usage()
    for second in range(3):
        sick = gpu(0, health=Health.FAILED, sampled=0.0, holdings=[holding(1)])
        usage.add(snapshot([sick], monotonic=1000.0 + second))
    assert usage.totals == {}


READINGS: st.SearchStrategy[Reading] = st.sampled_from([0, 1, 50, 100, Reason.NO_SAMPLE, Reason.DENIED])
HOLDINGS = st.lists(
    st.builds(
        Holding,
        pid=st.integers(1, 6),
        start=st.just(1),
        memory=st.one_of(st.integers(0, 80 * GIB), st.just(Reason.NO_SAMPLE)),
        sm=READINGS,
    ),
    max_size=8,
)


@given(HOLDINGS, st.floats(0.1, 100.0))
def test_the_parts_are_never_more_than_the_whole(held: list[Holding], seconds: float) -> None:
    for group in (lambda one: one.pid, lambda one: one.pid % 2, lambda _: 0):
        for use in charged(held, seconds, group).values():
            assert use.held == seconds
            assert use.busy + use.unknown <= use.held
            assert use.unsized <= use.held
            assert 0 <= use.idle <= use.memory


@given(HOLDINGS)
def test_users_together_hold_no_less_than_the_gpu_was_held(held: list[Holding]) -> None:
    whole = charged(held, 1.0, lambda _: 0)
    parts = charged(held, 1.0, lambda one: one.pid % 3)
    assert bool(whole) == bool(parts) == bool(held)
    if held:
        sums = Use(*map(sum, zip(*parts.values(), strict=True)))
        assert sums.held >= whole[0].held
        assert sums.busy >= whole[0].busy
        assert (sums.memory, sums.idle) == (whole[0].memory, whole[0].idle)


@given(st.lists(st.tuples(st.floats(0.0, 100.0), HOLDINGS), min_size=1, max_size=8), st.floats(0.1, 60.0))
def test_no_more_is_charged_than_passed(samples: list[tuple[float, list[Holding]]], interval: float) -> None:
    usage, now = Usage(), 0.0
    for step, held in samples:
        now += step
        card: Gpu = gpu(0, holdings=held, used_gib=1.0)
        usage.add(at(snapshot([card], interval=interval), now))
    assert sum(use.held for use in usage.totals.values()) <= min(now, 2.5 * interval * len(samples)) + 1e-6
