"""Timeline: series at three resolutions, their gaps, and what is loaded into them."""

from __future__ import annotations

from math import nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.history.history import History
from gpuwatch.history.timeline import (
    DAY,
    LEVELS,
    MOST,
    NO_USER,
    PROCESS_ENDED,
    Key,
    Metric,
    Minute,
    Series,
    Timeline,
    parse_key,
    process_owner,
    user_owner,
)
from gpuwatch.model.snapshot import Gpu, Health, Process, Reason, Snapshot
from tests.support.builders import EPOCH, GIB, at, gpu, holding, process, snapshot, uid

GPU = gpu(0).key
USED = Key(GPU, "", Metric.USED)
UTILIZATION = Key(GPU, "", Metric.UTILIZATION)
ADA, BEN = user_owner(uid("ada")), user_owner(uid("ben"))
START = EPOCH + 40
"""A full minute."""


class Watch:
    """A timeline that is fed snapshots; `second` counts from a full minute of the wall clock."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.set_by = 0.0
        """Seconds by which the wall clock was set."""
        self.second = 0.0

    def add(self, base: Snapshot, second: float) -> None:
        """Add a snapshot that was sampled and received at a second."""
        self.second = second
        seen = at(base, second, taken=START + second + self.set_by)
        self.timeline.add(seen, 5000.0 + second)

    def run(self, seconds: range, *held: Any, people: tuple[Process, ...] = (), **changes: Any) -> None:
        """Add one snapshot of a machine with one GPU at each of some seconds."""
        for second in seconds:
            self.add(snapshot([gpu(0, holdings=held, **changes)], people, interval=float(seconds.step)), second)

    def read(self, key: Key, span: float, points: int) -> list[float | None]:
        """Return the points that end with the newest snapshot's second."""
        return self.timeline.read(key, START + self.second + 1 + self.set_by, span, points)


# One series


def mean(values: list[float]) -> float | None:
    known = [value for value in values if value == value]
    return sum(known) / len(known) if known else None


@given(
    st.lists(
        st.tuples(st.integers(1, 130), st.sampled_from((10.0, 20.0, nan)), st.integers(1, 30)), min_size=1, max_size=40
    ),
    st.integers(0, 10_000),
)
def test_a_coarse_slot_is_the_mean_of_its_seconds(samples: list[tuple[int, float, int]], start: int) -> None:
    """Compared with a plain list of all seconds."""
    series, second, until, last = Series(start), start, start, nan
    seconds: dict[int, float] = {}
    for step, value, lasts in samples:
        for each in range(second, second + step):
            seconds.setdefault(each, last if each < until else nan)
        second += step
        series.put(value, second, second + lasts)
        seconds[second], last, until = value, value, second + lasts
    now = second + 40
    for each in range(second + 1, now + 1):
        seconds[each] = last if each < until else nan
    for level, (width, size) in enumerate(LEVELS):
        numbers = range(max(start // width, now // width - size + 10), now // width + 1)
        found = series.slots(level, numbers.start, numbers.stop, now)
        for number, one in zip(numbers, found, strict=True):
            inside = [seconds[each] for each in range(number * width, (number + 1) * width) if each in seconds]
            assert (None if one != one else one) == pytest.approx(mean(inside))


def test_a_gap_of_years_costs_no_memory() -> None:
    series = Series(0)
    for second in (0, 1, 10**9, 10**9 + 1):
        series.put(5.0, second, second + 2)
    assert [len(one) <= size + 60 for one, (_, size) in zip(series._arrays, LEVELS, strict=True)] == [True] * 3
    assert series.slots(0, 10**9 - 1, 10**9 + 2, 10**9 + 1) == pytest.approx([nan, 5.0, 5.0], nan_ok=True)


# Reading


def test_each_span_has_its_points() -> None:
    watch = Watch()
    for second in range(0, DAY + 3600, 20):
        watch.add(snapshot([gpu(0, utilization=second // 3600)], interval=20.0), second)
    for span, points in ((60, 300), (600, 300), (3600, 300), (6 * 3600, 300), (DAY, 288)):
        found = watch.read(UTILIZATION, span, points)
        assert len(found) == points
        assert found[-1] == pytest.approx(24, abs=0.5), span
        assert found[0] == pytest.approx((DAY + 3600 - span) // 3600, abs=1), span
        assert None not in found, span


def test_samples_of_one_second_are_one_value_and_memory_counts_by_its_peak() -> None:
    watch = Watch()
    for moment, value in ((0.0, 10), (0.25, 20), (0.5, 60), (0.75, 30)):
        watch.add(snapshot([gpu(0, utilization=value, used_gib=value)], interval=0.25), moment)
    assert watch.timeline.read(UTILIZATION, START + 1, 2, 2) == [None, pytest.approx(30.0)]
    assert watch.timeline.read(USED, START + 1, 1, 1) == [60 * GIB]


@pytest.mark.parametrize("seconds", [90, 1500, 8000])
def test_an_extent_has_the_first_time_and_the_extremes_of_seconds_however_long_the_span(seconds: int) -> None:
    watch = Watch()
    watch.run(range(33, seconds), utilization=40)
    watch.run(range(seconds, seconds + 1), utilization=100)
    watch.run(range(seconds + 1, seconds + 20), utilization=0)
    until = START + seconds + 20
    for span in (DAY, seconds + 20):
        found = watch.timeline.extent(UTILIZATION, until, span)
        assert found is not None
        assert (found.first, found.low, found.high) == (START + 33, 0, 100)
        assert 20 < found.mean < 41
    assert watch.timeline.extent(UTILIZATION, until, 19) == (until - 19, 0, 0, 0)
    assert watch.timeline.extent(USED._replace(gpu="GPU-9"), until, DAY) is None
    watch.timeline.load([Minute(at=START - 3600, values={str(UTILIZATION): 7.0})])
    loaded = watch.timeline.extent(UTILIZATION, until, DAY)
    assert loaded is not None
    assert loaded.first == START - 3600


def test_a_point_without_values_is_a_gap_and_never_joins_two_values() -> None:
    watch = Watch()
    watch.run(range(0, 100), utilization=40)
    watch.run(range(100, 160), utilization=Reason.ERROR)
    watch.run(range(160, 200), utilization=60)
    assert watch.read(UTILIZATION, 200, 10) == [40, 40, 40, 40, 40, None, None, None, 60, 60]
    assert watch.read(UTILIZATION, 3600, 360)[-21:] == [None, *[40] * 10, *[None] * 6, *[60] * 4]


def test_a_suspended_machine_leaves_a_gap() -> None:
    history = History()
    for second in range(120):
        history.add(at(snapshot([gpu(0, utilization=50)]), second), 5000.0 + second, 0.0)
    for second in range(120, 180):
        view = history.add(
            at(snapshot([gpu(0, utilization=50)]), second, taken=EPOCH + second + 7200), 5000.0 + second, 7200.0
        )
    found = view.timeline.read(UTILIZATION, EPOCH + 180 + 7200, 10_800, 180)
    assert [one is not None for one in found].count(True) in (3, 4, 5)
    assert found[-1] == 50
    assert found[-100] is None


@pytest.mark.parametrize("seconds", [-3600, 3600, -30, 90_000])
def test_a_clock_that_is_set_leaves_the_age_of_all_values(seconds: int) -> None:
    watch = Watch()
    watch.run(range(0, 60), utilization=20)
    watch.set_by = seconds
    watch.run(range(60, 120), utilization=40)
    assert watch.read(UTILIZATION, 180, 6) == [None, None, 20, 20, 40, 40]


def test_snapshots_that_go_back_in_time_replace_what_was_later() -> None:
    """As in a replay of a recording whose clock was set back."""
    timeline, one = Timeline(), snapshot([gpu(0, utilization=20)])
    for second in (*range(0, 300), *range(100, 150)):
        timeline.add(at(one, second, taken=START + second), START + second)
    assert timeline.read(UTILIZATION, START + 300, 300, 6) == [20, 20, 20, None, None, None]


def test_pcie_throughput_is_there_while_the_gpu_is_in_focus() -> None:
    watch = Watch()
    watch.run(range(0, 5))
    watch.run(range(5, 8), pcie_rx=3.0e9, pcie_tx=1.0e9)
    watch.run(range(8, 10))
    assert watch.read(Key(GPU, "", Metric.PCIE_RX), 10, 10) == [*[None] * 5, *[3.0e9] * 3, None, None]


# Owners


def test_memory_is_summed_by_owner() -> None:
    watch = Watch()
    people = (process(1), process(2), process(3, "ben"), process(4, uid=None, user=""))
    held = (holding(1, 1), holding(2, 2), holding(2, 1), holding(3, 4), holding(4, 8))
    watch.run(range(0, 5), *held, people=people)
    until = START + 5
    assert watch.timeline.owners(GPU, until, 60) == sorted([ADA, BEN, NO_USER])
    read = {owner: watch.read(Key(GPU, owner, Metric.MEMORY), 1, 1) for owner in (ADA, BEN, NO_USER)}
    assert read == {ADA: [4 * GIB], BEN: [4 * GIB], NO_USER: [8 * GIB]}
    assert watch.read(Key(GPU, process_owner(2, 2), Metric.MEMORY), 1, 1) == [3 * GIB]


def test_a_process_of_which_nothing_is_known_has_no_values() -> None:
    watch = Watch()
    unsized = holding(1, memory=Reason.UNSUPPORTED, sm=Reason.UNSUPPORTED)
    for second in range(5):
        watch.add(snapshot([gpu(0, holdings=[unsized], used_gib=1)]), second)
    assert watch.timeline.owners(GPU, START + 5, 60) == []
    assert watch.read(Key(GPU, process_owner(1, 1), Metric.MEMORY), 5, 1) == [None]
    assert watch.read(Key(GPU, process_owner(1, 1), Metric.SM), 5, 1) == [None]


def test_what_a_process_held_ends_with_it() -> None:
    watch = Watch()
    watch.run(range(0, 10), holding(1, 4), people=(process(1, cpu=50.0, rss=GIB),))
    watch.run(range(10, 20))
    for key, value in {
        Key(GPU, ADA, Metric.MEMORY): 4 * GIB,
        Key(GPU, process_owner(1, 1), Metric.MEMORY): 4 * GIB,
        Key(GPU, process_owner(1, 1), Metric.SM): 50,
        Key("", process_owner(1, 1), Metric.CPU): 50,
        Key("", process_owner(1, 1), Metric.RSS): GIB,
    }.items():
        assert watch.read(key, 12, 12) == [value, value, *[None] * 10], key
    assert watch.timeline.owners(GPU, START + 20, 5) == []
    assert watch.timeline.owners(GPU, START + 20, 60) == [ADA]


def test_a_gpu_that_is_lost_is_a_gap_from_then_on() -> None:
    watch = Watch()
    watch.run(range(0, 10))
    lost = Gpu(index=0, uuid=GPU, health=Health.LOST, sampled=1009.0)
    watch.timeline.add(snapshot([lost], monotonic=1010.0, taken=START + 10), 5010.0)
    watch.timeline.add(snapshot([lost], monotonic=1015.0, taken=START + 15), 5015.0)
    assert watch.timeline.read(USED, START + 15, 3, 3) == [None] * 3


@pytest.mark.parametrize("every", [120, 1800])
def test_the_means_of_all_users_are_that_of_the_used_memory(every: int) -> None:
    """A user who came for a part of a point held nothing in the other part."""
    watch = Watch()
    for second in range(0, 7200, every):
        watch.run(range(second, second + every // 4), holding(1, 40))
        watch.run(range(second + every // 4, second + every))
    for span, points in ((600, 5), (3600, 2), (3600, 30), (6 * 3600, 12)):
        of_user = watch.read(Key(GPU, ADA, Metric.MEMORY), span, points)
        used = watch.read(USED, span, points)
        assert [one or 0.0 for one in of_user] == pytest.approx([one or 0.0 for one in used])
    minute = watch.timeline.means(START + 7200 - every, 60)
    assert minute[Key(GPU, ADA, Metric.MEMORY)] == pytest.approx(minute[USED])


def test_ended_processes_are_removed_and_their_users_stay() -> None:
    watch = Watch()
    watch.run(range(0, 10), holding(1, 4))
    watch.run(range(10, PROCESS_ENDED + 200, 10))
    owners = {key.owner for key in watch.timeline._series}
    assert owners == {"", ADA}
    assert watch.timeline.user_name(ADA) == "ada"
    watch.run(range(PROCESS_ENDED + 200, DAY + 2000, 1800))
    assert {key.owner for key in watch.timeline._series} == {""}
    assert watch.timeline.user_name(ADA) == ""


def test_users_of_older_minutes_have_their_names() -> None:
    timeline = Timeline()
    values = {str(Key(GPU, ADA, Metric.MEMORY)): 1.0}
    timeline.load([Minute(at=START - 60, values=values, users={ADA: "ada", "user:7": "eve"})])
    assert (timeline.user_name(ADA), timeline.user_name("user:7")) == ("ada", "")


def test_processes_that_come_and_go_take_bounded_memory() -> None:
    """Five hundred at a time, none of which lives longer than five seconds."""
    watch = Watch()
    for second in range(0, 200, 5):
        held = [holding(second * 1000 + place, 0.1) for place in range(500)]
        watch.run(range(second, second + 5, 5), *held)
        assert len(watch.timeline._series) <= MOST
    key = Key(GPU, process_owner(195_000, 195_000), Metric.MEMORY)
    assert watch.read(key, 1, 1) == [pytest.approx(0.1 * GIB, rel=1e-6)], "those that ended made room"
    assert sum(map(len, watch.timeline._owners.values())) <= 1100


# Keys, and older minutes


@pytest.mark.parametrize(
    "key", [USED, Key(GPU, ADA, Metric.MEMORY), Key(GPU, NO_USER, Metric.MEMORY), Key("", "process:1:2", Metric.CPU)]
)
def test_a_key_is_read_back(key: Key) -> None:
    assert parse_key(str(key)) == key


@pytest.mark.parametrize(
    "words", ["", "used", "a/used", f"{GPU}//unknown", f"{GPU}/user:\x1b[31m/memory", "\x1b]0;x\a//used", "é//used"]
)
def test_what_is_no_key_is_none(words: str) -> None:
    assert parse_key(words) is None


def older(*values: float, key: Key = UTILIZATION, until: float = START) -> list[Minute]:
    """Return the minutes before a time."""
    return [
        Minute(at=until - 60 * (len(values) - place), values={str(key): value}) for place, value in enumerate(values)
    ]


@pytest.mark.parametrize("when", ["before the first snapshot", "later"])
def test_older_minutes_are_under_what_is_in_memory(when: str) -> None:
    watch, minutes = Watch(), [*older(10, 20, 30), Minute(at=START, values={str(UTILIZATION): 99.0})]
    if when != "later":
        watch.timeline.load(minutes[:3])
    watch.run(range(0, 120), utilization=50)
    if when == "later":
        watch.timeline.load(minutes)
    assert watch.read(UTILIZATION, 360, 6) == [None, 10, 20, 30, 50, 50]
    assert watch.read(UTILIZATION, 6 * 3600, 360)[-6:] == [None, 10, 20, 30, 50, 50]
    assert watch.timeline.last_minute(UTILIZATION) == (50,) * 60


def test_of_loaded_processes_only_those_are_kept_that_may_still_run() -> None:
    timeline = Timeline()
    ended, running = (Key(GPU, process_owner(pid, pid), Metric.MEMORY) for pid in (1, 2))
    minutes = [*older(1, 1, key=ended, until=START - 3600), *older(2, 2, key=running)]
    timeline.load([*minutes, *older(3, key=Key(GPU, ADA, Metric.MEMORY), until=START - 3600)])
    assert {key.owner for key in timeline._series} == {ADA, "process:2:2"}


@pytest.mark.parametrize(
    "minute",
    [
        Minute(at=nan, values={str(USED): 1.0}),
        Minute(at=1e300, values={str(USED): 1.0}),
        Minute(at=START - 60, values={str(USED): 1e300, str(UTILIZATION): nan, "\x1b//used": 1.0}),
    ],
)
def test_a_damaged_minute_loads_nothing(minute: Minute) -> None:
    timeline = Timeline()
    timeline.load([minute])
    assert timeline.means(START - 3600, 7200) == {}


def test_a_flood_of_loaded_keys_is_bounded() -> None:
    timeline = Timeline()
    values = {f"GPU-{place}//used": 1.0 for place in range(3 * MOST)}
    timeline.load([Minute(at=START - 60, values=values), Minute(at=START - 120, values=values)])
    assert len(timeline._series) == MOST
