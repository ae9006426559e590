"""History: series, idle time, growth, errors and trends."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.history.history import GPU_GONE, SENSORS, SLOT, SLOTS, History, HistoryView, Trend, estimate_trend
from gpuwatch.model.shares import UnknownMemoryStart
from gpuwatch.model.snapshot import Gpu, Health, Idle, Memory, Reading, Reason, Snapshot, Xid, known
from tests.history.histories import KEY, machine, watched
from tests.support.builders import EPOCH, GIB, at, gpu, holding, snapshot, uid


def test_unknown_keys_have_nothing() -> None:
    view = HistoryView()
    assert view.gpu("x").utilization == (None,) * SLOTS
    assert view.idle("x", 1, 1) is None
    assert view.growth("x", 1, 1) is None


def test_a_sample_holds_until_the_next_at_a_longer_interval() -> None:
    history = History()
    for second in (0, 5, 10):
        view = watched(history, snapshot([gpu(0, utilization=second)], interval=5.0), second)
    assert view.gpu(KEY).utilization[-11:] == (0, 0, 0, 0, 0, 5, 5, 5, 5, 5, 10)


def test_a_suspend_is_a_gap_as_long_as_it_took() -> None:
    """The reader's clock stands still meanwhile; before this run the machine was suspended for a while, too."""
    history, before = History(), 7000.4
    for second in range(10):
        history.add(at(machine(utilization=40), second), 5000.0 + second, before + second * 1e-6)
    for second in range(10, 13):
        view = history.add(at(machine(utilization=60), second), 5000.0 + second, before + 20.0)
    assert view.gpu(KEY).utilization[-32:] == (*(40,) * 11, *(None,) * 18, 60, 60, 60)
    assert view.watched == 12.0
    view = history.add(at(machine(utilization=60), 13), 5013.0, before + 9 * 3600.0)
    assert view.gpu(KEY).utilization == (*(None,) * 59, 60)


def test_who_was_idle_before_a_suspend_is_not_said_to_have_been_idle_meanwhile() -> None:
    history, held = History(), machine(holding(7, 4, sm=0, start=7))
    for second in range(10):
        view = history.add(at(held, second), 5000.0 + second)
    assert view.idle(KEY, 7, 7) == Idle(9.0, at_least=True)
    for second in range(10, 13):
        view = history.add(at(held, second), 5000.0 + second, 9 * 3600.0)
    assert view.idle(KEY, 7, 7) == Idle(2.0, at_least=True)
    assert view.use(uid("ada")).held == 12.0, "a GPU that was off was held by nobody"


def test_a_reading_taken_back_under_the_same_stamp_is_a_gap_from_then_on() -> None:
    history = History()
    watched(history, snapshot([gpu(0, utilization=40)], interval=60.0), 0)
    watched(history, snapshot([gpu(0, utilization=40)], interval=60.0), 0, late=2)
    lost = gpu(0, utilization=Reason.NO_SAMPLE, memory=Memory(), health=Health.LOST)
    watched(history, snapshot([lost], interval=60.0), 0, late=3)
    view = watched(history, snapshot([lost], interval=60.0), 0, late=5)
    assert view.gpu(KEY).utilization[-6:] == (40, 40, 40, 40, None, None)


@given(
    st.lists(
        st.tuples(st.floats(0.05, 30.0), st.one_of(st.integers(0, 100), st.sampled_from(Reason)), st.floats(0, 3)),
        max_size=80,
    )
)
def test_any_series_has_its_length_and_only_values_that_were_sampled(steps: list[tuple[float, Reading, float]]) -> None:
    history, moment = History(), 0.0
    seen: list[float] = []
    for step, value, late in steps:
        moment += step
        view = watched(history, machine(utilization=value), moment, late)
        seen += [value] if known(value) else []
        series = view.gpu(KEY).utilization
        assert len(series) == SLOTS
        assert all(point is None or min(seen) - 1e-9 <= point <= max(seen) + 1e-9 for point in series)


def idle_after(*readings: tuple[float, int | Reason]) -> Idle | None:
    history = History()
    for second, sm in readings:
        view = watched(history, machine(holding(7, sm=sm)), second)
    return view.idle(KEY, 7, 7)


ERROR, MISSED = Reason.ERROR, Reason.NO_SAMPLE


@pytest.mark.parametrize(
    ("readings", "idle"),
    [
        # Since the last busy sample, or for at least as long as we watch.
        ([(0, 30), (1, 0), (9, 0)], Idle(9.0, at_least=False)),
        ([(0, 0), (5, 0)], Idle(5.0, at_least=True)),
        ([(0, 0), (5, 1)], Idle(0.0, at_least=False)),
        # A missing sample neither counts nor resets.
        ([(0, 30), (4, 0), (5, MISSED), (60, MISSED)], Idle(4.0, at_least=False)),
        ([(0, 30), (4, 0), (5, ERROR), (8, 0)], Idle(8.0, at_least=False)),
        # It goes on over a gap of a minute, and starts anew after a longer one.
        ([(0, 30), (4, 0), (64, 0)], Idle(64.0, at_least=False)),
        ([(0, 30), (4, 0), (65, 0)], Idle(0.0, at_least=True)),
        ([(0, 30), (4, 0), (65, 0), (75, 0)], Idle(10.0, at_least=True)),
        ([(0, 30), (4, 0), (34, ERROR), (66, 0)], Idle(0.0, at_least=True)),
        # Without any sample, and once the figure is withdrawn, nobody is called idle.
        *(([(0, reason), (100, reason)], None) for reason in Reason),
        ([(0, 0), (5, Reason.UNSUPPORTED)], None),
        ([(0, 0), (5, Reason.DENIED)], None),
    ],
)
def test_idle_time(readings: list[tuple[float, int | Reason]], idle: Idle | None) -> None:
    assert idle_after(*readings) == idle


def test_samples_that_are_far_apart_by_intent_are_no_gap() -> None:
    history = History()
    for second in range(0, 1000, 100):
        sm = 0 if second else 50
        view = watched(history, snapshot([gpu(0, holdings=[holding(7, sm=sm)])], interval=100.0), second)
    assert view.idle(KEY, 7, 7) == Idle(900.0, at_least=False)


def test_a_reused_pid_is_another_process() -> None:
    history = History()
    watched(history, machine(holding(7, sm=0)), 0)
    view = watched(history, machine(holding(7, start=99, sm=0)), 30)
    assert view.idle(KEY, 7, 99) == Idle(0.0, at_least=True)


def growth_after(*sizes: tuple[float, float | Reason], start: int = 7) -> int | None:
    history = History()
    for second, size in sizes:
        held = holding(7, memory=size) if isinstance(size, Reason) else holding(7, size)
        view = watched(history, machine(held), second)
    return view.growth(KEY, 7, start)


def test_growth_of_a_steady_holding_is_nothing_and_of_a_single_look_unknown() -> None:
    assert growth_after((0, 5), (1, 5), (200, 5)) == 0
    assert growth_after((0, 5)) is None
    assert growth_after((0, 5), start=8) is None


def test_one_that_we_saw_appear_grew_from_nothing() -> None:
    history = History()
    watched(history, machine(), 0)
    assert watched(history, machine(holding(7, 40)), 1).growth(KEY, 7, 7) == 40 * GIB
    assert watched(history, machine(holding(7, 40)), 90).growth(KEY, 7, 7) == 0


@pytest.mark.parametrize(("gap", "grown"), [(59, 40 * GIB), (60, 40 * GIB), (61, None), (600, None)])
def test_one_that_may_have_started_long_before_a_gap_ended_was_not_seen_to_appear(gap: int, grown: int | None) -> None:
    history = History()
    watched(history, machine(), 0)
    assert watched(history, machine(holding(7, 40)), gap).growth(KEY, 7, 7) == grown


def test_one_that_an_incomplete_list_may_have_hidden_did_not_appear() -> None:
    history = History()
    watched(history, machine(holdings_note="the list was not read"), 0)
    assert watched(history, machine(holding(7, 40)), 1).growth(KEY, 7, 7) is None


def test_what_is_kept_of_a_holding_is_bounded_at_any_interval() -> None:
    history = History()
    for step in range(1000):
        view = watched(history, machine(holding(7, memory=step * 1000)), step / 10)
    # Samples closer than a second share a point, so that a minute ago is known to the second.
    assert view.growth(KEY, 7, 7) == pytest.approx(600 * 1000, abs=11 * 1000)
    assert len(view._gpus[KEY].records[7, 7].points) <= SLOTS + 2


def test_two_instances_of_one_process_are_one_holding() -> None:
    history = History()
    for second, size in ((0, 1), (1, 2)):
        first = holding(7, size, sm=0, gpu_instance=1)
        view = watched(history, machine(first, holding(7, 5, sm=20, gpu_instance=2)), second)
    assert view.growth(KEY, 7, 7) == GIB
    assert view.idle(KEY, 7, 7) == Idle(0.0, at_least=False)
    hidden = holding(7, memory=Reason.DENIED, sm=Reason.UNSUPPORTED, gpu_instance=2)
    assert watched(history, machine(first, hidden), 2).growth(KEY, 7, 7) is None


def test_a_holding_is_forgotten_after_a_minute_of_samples_without_it() -> None:
    history = History()
    watched(history, machine(holding(7, sm=50)), 0)
    assert watched(history, machine(), 60).idle(KEY, 7, 7) is not None
    assert watched(history, machine(), 60.5).idle(KEY, 7, 7) is None


def test_a_gpu_is_forgotten_ten_minutes_after_it_left_every_list() -> None:
    history = History()
    watched(history, machine(), 0)
    assert watched(history, snapshot(), GPU_GONE).gpu(KEY).utilization is not None
    assert KEY in history.view._gpus
    watched(history, snapshot(), GPU_GONE + 1)
    assert KEY not in history.view._gpus


def test_gpus_are_kept_apart_by_uuid_and_not_by_index() -> None:
    history = History()
    one: Gpu = gpu(0, utilization=10)
    other = gpu(1, utilization=90)
    watched(history, snapshot([one, other]), 0)
    swapped = [gpu(0, uuid=other.uuid, utilization=91), gpu(1, uuid=one.uuid, utilization=11)]
    view = watched(history, snapshot(swapped), 1)
    assert view.gpu(one.uuid).utilization[-2:] == (10, 11)
    assert view.gpu(other.uuid).utilization[-2:] == (90, 91)


def test_it_has_not_grown_by_that() -> None:
    history = History()
    for second in range(70):
        watched(history, machine(holding(7, 40, sm=5)), second)
    view = watched(history, machine(holding(7, 40, start=0, sm=0)), 70)
    assert view.growth(KEY, 7, 0) == 0
    assert view.idle(KEY, 7, 0) == Idle(1.0, at_least=False)


def test_one_that_comes_without_a_start_time_has_grown_from_nothing() -> None:
    history = History()
    watched(history, machine(holding(8, 1)), 0)
    assert watched(history, machine(holding(8, 1), holding(7, 40, start=0)), 1).growth(KEY, 7, 0) == 40 * GIB


def xids(*seen: tuple[int, int, float], **changes: Any) -> Snapshot:
    """Return a GPU with XIDs of (code, count, seconds since the first snapshot of the newest)."""
    return machine(xids=tuple(Xid(code=code, count=count, last=EPOCH + last) for code, count, last in seen), **changes)


def test_a_gpu_without_xids_has_none() -> None:
    assert HistoryView().gpu("x").xids == {}
    assert watched(History(), machine(), 0).gpu(KEY).xids == {}
    assert watched(History(), machine(xids=Reason.UNSUPPORTED), 0).gpu(KEY).xids == {}


def test_xids_at_the_first_look_have_their_age() -> None:
    assert watched(History(), xids((79, 2, -300), (43, 1, 500)), 10).gpu(KEY).xids == {79: (2, 4700.0), 43: (1, 5010.0)}


def test_xids_are_counted_as_they_come() -> None:
    history = History()
    watched(history, xids(), 0)
    assert watched(history, xids((94, 1, 4.5)), 5).gpu(KEY).xids == {94: (1, 5004.5)}
    before = watched(history, xids((94, 1, 4.5)), 6)
    assert watched(history, xids((94, 4, 7), (13, 1, 7)), 7).gpu(KEY).xids == {94: (4, 5007.0), 13: (1, 5007.0)}
    assert before.gpu(KEY).xids == {94: (1, 5004.5)}, "a view never changes"


def test_a_sampler_that_starts_anew_is_counted_on() -> None:
    history = History()
    watched(history, xids((94, 3, 0)), 0)
    watched(history, machine(xids=Reason.NO_SAMPLE), 5)
    watched(history, xids(), 6)
    assert watched(history, xids((94, 5, 8)), 8).gpu(KEY).xids == {94: (8, 5008.0)}
    assert watched(history, xids((94, 1, 10)), 10).gpu(KEY).xids == {94: (9, 5010.0)}


def test_a_wall_clock_that_is_set_makes_no_xid_older_than_our_last_look() -> None:
    history = History()
    watched(history, xids(), 0)
    assert watched(history, xids((94, 1, -3600)), 5).gpu(KEY).xids == {94: (1, 5000.0)}
    assert watched(history, xids((94, 2, 9999)), 6).gpu(KEY).xids == {94: (2, 5006.0)}


def test_xids_of_a_lost_gpu_are_kept_and_taken_in() -> None:
    history = History()
    watched(history, xids(), 0)
    fallen = xids((79, 1, 3), health=Health.LOST, utilization=Reason.NO_SAMPLE)
    assert watched(history, fallen, 0, late=4).gpu(KEY).xids == {79: (1, 5003.0)}
    assert watched(history, machine(xids=Reason.ERROR), 6).gpu(KEY).xids == {79: (1, 5003.0)}


def errors(*counts: int | Reason) -> tuple[int, float | None] | None:
    history = History()
    for second, count in enumerate(counts):
        view = watched(history, machine(ecc_uncorrected=count), second)
    return view.gpu(KEY).ecc


@pytest.mark.parametrize(
    ("counts", "found"),
    [
        ([0], (0, None)),
        ([3, 3], (3, None)),
        # With the time of their last increase.
        ([3, 4, 4], (4, 5001.0)),
        ([0, 1, 1, 2], (2, 5003.0)),
        # A count that is not known is not 0.
        ([Reason.UNSUPPORTED], None),
        ([3, ERROR], None),
        ([3, ERROR, 3], (3, None)),
        ([3, ERROR, 4], (4, 5002.0)),
        # A driver that was loaded anew counts from 0.
        ([3, 0], (0, None)),
        ([3, 1], (1, 5001.0)),
        ([3, 4, 0, 0], (0, 5001.0)),
    ],
)
def test_memory_errors(counts: list[int | Reason], found: tuple[int, float | None] | None) -> None:
    assert HistoryView().gpu("x").ecc is None
    assert errors(*counts) == found


def trend_after(course: Callable[[int], float], until: int, step: int = 1, **changes: Any) -> Trend | None:
    history = History()
    for second in range(0, until, step):
        base = snapshot([gpu(0, holdings=[holding(7, course(second))], **changes)], interval=float(step))
        view = watched(history, base, second)
    return view.gpu(KEY).trend


def test_a_steady_growth_has_its_speed_after_a_minute() -> None:
    assert trend_after(lambda second: second / 30, 70) is None
    trend = trend_after(lambda second: second / 30, 71)
    assert trend is not None
    assert trend.steady
    assert trend.speed == pytest.approx(GIB / 30, rel=0.01)


@pytest.mark.parametrize("step", [1, 2, 5, 10, 30, 60])
def test_a_trend_is_found_at_any_interval_up_to_a_minute(step: int) -> None:
    trend = trend_after(lambda second: second / 30, 400, step)
    assert trend is not None
    assert trend.steady
    assert trend.speed == pytest.approx(GIB / 30, rel=0.01)


@pytest.mark.parametrize(
    ("course", "until"),
    [
        (lambda second: 40, 100),
        (lambda second: 40 if second > 150 else 10, 400),
        (lambda second: 40 - second / 30, 400),
        (lambda second: min(second, 200) / 10, 270),  # it has stopped growing for a minute
    ],
)
def test_a_step_and_a_level_are_no_trend(course: Callable[[int], float], until: int) -> None:
    assert trend_after(course, until) == Trend()


def test_a_step_does_not_change_the_speed_of_a_slow_growth() -> None:
    trend = trend_after(lambda second: second / 100 + (30 if second > 150 else 0), 310)
    assert trend is not None
    assert trend.speed == pytest.approx(GIB / 100, rel=0.05)


@pytest.mark.parametrize(
    ("before", "step", "after"),
    # GiB/min until 200 s, GiB at once then, GiB/min from then on
    [(2, 0, 20), (2, 0, 5), (10, 0, 4), (20, 0, 2), (5, 10, 5), (5, 3, 5), (5, 40, 5), (0, 30, 5), (3, 5, 12)],
)
def test_a_steady_speed_is_never_far_off(before: float, step: float, after: float) -> None:
    """A change is seen with the second slot that is complete."""
    history, steady = History(), 0
    for second in range(400):
        size = before * min(second, 200) / 60 + (step + after * (second - 200) / 60 if second > 200 else 0)
        trend = watched(history, machine(holding(7, 1 + size)), second).gpu(KEY).trend
        if trend is not None and trend.steady and not 200 <= second < 210:
            steady += second > 200
            assert 1 / 1.5 <= trend.speed * 60 / GIB / (before if second < 200 else after) <= 1.5
    assert steady > 60


def trend_with_a_jump(silence: int, grown: float, interval: float = 1.0) -> Trend | None:
    """Return the trend where a steady growth of 2 GiB/min is followed by a silence, and by so many GiB more."""
    history = History()
    for second in range(100):
        watched(history, snapshot([gpu(0, holdings=[holding(7, second / 30)])], interval=interval), second)
    for second in range(100 + silence, 172 + silence):
        view = watched(
            history, snapshot([gpu(0, holdings=[holding(7, second / 30 + grown)])], interval=interval), second
        )
        if second == 101 + silence:
            assert (view.gpu(KEY).trend is None) is (silence > max(20, 2.5 * interval))
    return view.gpu(KEY).trend


@pytest.mark.parametrize(
    ("silence", "grown", "interval"),
    [(0, 0.0, 1.0), (18, 0.0, 1.0), (21, 40.0, 1.0), (300, 40.0, 1.0), (300, -10.0, 1.0), (300, 0.0, 200.0)],
)
def test_a_gap_starts_a_trend_anew(silence: int, grown: float, interval: float) -> None:
    """What it grew or freed meanwhile is no growth: nobody saw when."""
    after = trend_with_a_jump(silence, grown, interval)
    assert after is not None
    assert after.steady
    assert after.speed == pytest.approx(GIB / 30, rel=0.01)


@pytest.mark.parametrize(
    ("since", "until", "grows"),
    [
        (0, 59, False),
        (0, 115, False),
        (30, 115, False),
        (0, 140, True),
        (60, 140, True),
        (200, 280, True),
    ],
)
def test_what_a_process_takes_in_its_first_minute_is_no_growth(since: int, until: int, grows: bool) -> None:
    """The seconds are those of its life; the loads of its first 60 s do not count, all after that does."""
    history = History()
    for second in range(-20, until):
        held = [holding(8, 10)] + ([holding(7, 1 + max(0, second - since) / 10)] if second >= 0 else [])
        view = watched(history, machine(*held), 1020 + second)
    trend = view.gpu(KEY).trend
    assert trend is not None
    assert trend.steady is grows
    if grows:
        assert trend.speed == pytest.approx(GIB / 10, rel=0.01)


def test_what_a_process_had_grown_is_forgotten_with_its_end_and_the_others_go_on() -> None:
    """A process that is missing in a single list has not ended."""
    history, speeds = History(), {}
    for second in range(200):
        held = [holding(7, 5 + second / 30), holding(8, 10 + second / 10)]
        shown = [held[0]] if second == 100 or second > 150 else held
        trend = watched(history, machine(*shown), second).gpu(KEY).trend
        speeds[second] = round(trend.speed * 60 / GIB, 1) if trend is not None else None
    assert speeds[99] == speeds[106] == speeds[150] == 8.0
    assert {speeds[second] for second in range(156, 200)} == {2.0}


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, GIB),
)
def test_a_trend_never_grows_faster_than_its_levels(rises: list[int], size: int) -> None:
    levels = [*accumulate(rise * size for rise in rises)]
    found = estimate_trend(levels)
    if found is not None and found[0].speed:
        assert found[0].steady
        assert 0 < found[0].speed * SLOT <= max(rises) * size + 1e-6


def test_growth_is_against_a_minute_ago_and_may_be_negative() -> None:
    assert growth_after(*((second, second) for second in range(121))) == 60 * GIB
    assert growth_after(*((second, 50 - second) for second in range(30))) == -29 * GIB


def test_memory_of_unknown_processes_began_when_it_rose_above_half_of_what_it_is() -> None:
    """Without growth since gpuwatch started it may be older; what came and went is none of it."""
    history, sizes = History(), {0: 0.3, 1: 0.3, 2: 9.0, 3: 0.3, 10: 0.4, 11: 8.0, 12: 8.1, 60: 8.0}
    for second, size in sizes.items():
        shown = machine(unattributed=round(size * GIB))
        view = watched(history, shown, second)
    slack = 2 * shown.interval
    assert view.unknown_memory_starts(shown) == {KEY: UnknownMemoryStart(EPOCH + 10 + slack, at_least=False)}
    small = machine(unattributed=round(0.4 * GIB))
    assert view.unknown_memory_starts(small) == {KEY: UnknownMemoryStart(EPOCH + slack, at_least=True)}
    assert view.unknown_memory_starts(machine(unattributed=Reason.UNSUPPORTED)) == {}
    assert HistoryView().unknown_memory_starts(shown) == {}


def test_a_figure_has_answered_once_it_had_a_value() -> None:
    history = History()
    view = watched(history, machine(power=Reason.ERROR, fan=Reason.UNSUPPORTED, temperature=50), 0)
    assert view.gpu(KEY).answered == {*SENSORS} - {"power", "fan"}
    view = watched(history, machine(power=300, temperature=Reason.ERROR), 1)
    assert view.gpu(KEY).answered == {*SENSORS} - {"fan"}
    assert view.gpu("GPU-other").answered == frozenset()
