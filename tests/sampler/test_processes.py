"""Process lists and samples of utilization: what is kept, joined and averaged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.model.snapshot import Holding, Reason
from gpuwatch.sampler.processes import (
    NO_INSTANCE,
    NOT_AVAILABLE,
    Entry,
    Sample,
    UtilizationWindow,
    add_utilization,
    merge,
    total_memory,
    valid_entries,
)

GIB = 2**30
NOW = 1_700_000_000_000_000
PID_MAX = 4194304

ENTRIES = st.lists(st.builds(Entry, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 9)))


def sample(pid: int, age: int = 100_000, sm: int = 50, **more: int) -> Sample:
    """Return a sample of so many µs ago."""
    return Sample(pid, NOW - age, sm, **{"memory": 0, "encoder": 0, "decoder": 0, **more})


def test_nonsense_is_dropped() -> None:
    good = Entry(100, GIB)
    entries = [good, Entry(0, GIB), Entry(4194305, GIB), Entry(101, 81 * GIB), good, Entry(102, NOT_AVAILABLE)]
    assert valid_entries(entries, PID_MAX, 80 * GIB) == [good, Entry(102, NOT_AVAILABLE)]
    assert len(valid_entries([Entry(101, 81 * GIB)], PID_MAX, Reason.UNSUPPORTED)) == 1


@given(ENTRIES)
def test_what_is_kept_is_possible(entries: list[Entry]) -> None:
    kept = valid_entries(entries, PID_MAX, 80 * GIB)
    assert len(kept) <= len(entries)
    assert all(0 < entry.pid <= 4194304 for entry in kept)
    assert all(entry.memory <= 80 * GIB or entry.memory == NOT_AVAILABLE for entry in kept)
    assert len(set(kept)) == len(kept)


def test_a_process_on_two_lists_is_one_holding() -> None:
    lists = {"C": [Entry(7, 5 * GIB), Entry(8, NOT_AVAILABLE)], "G": [Entry(7, GIB), Entry(8, GIB), Entry(9, 1)]}
    assert [(one.pid, one.kind, one.memory) for one in merge(lists)] == [
        (7, "C+G", 5 * GIB),
        (8, "C+G", GIB),
        (9, "G", 1),
    ]
    assert merge({"C": [Entry(8, NOT_AVAILABLE)]})[0].memory is Reason.UNSUPPORTED


def test_a_process_in_two_instances_is_two_holdings() -> None:
    found = merge({"C": [Entry(7, 1, 1, 0), Entry(7, 2, 2, 0), Entry(8, 3, NO_INSTANCE, NO_INSTANCE)]})
    assert [(one.gpu_instance, one.compute_instance) for one in found] == [(1, 0), (2, 0), (None, None)]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    assert total_memory([Holding(pid=1, memory=3), Holding(pid=2, memory=4)]) == 7
    assert total_memory([Holding(pid=1, memory=3), Holding(pid=2, memory=Reason.UNSUPPORTED)]) is Reason.NO_SAMPLE
    assert total_memory([]) == 0


def seen(
    samples: list[Sample], pids: set[int], window: UtilizationWindow | None = None, now: int = NOW
) -> UtilizationWindow:
    """Return a window that was asked for and filled with samples."""
    window = window or UtilizationWindow()
    window.add(samples, window.begin(now), frozenset(pids), now)
    return window


def sms(window: UtilizationWindow, *pids: int) -> list[float | Reason]:
    """Return what each process used of the SMs."""
    return [window.of(pid)[0] for pid in pids]


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        # As NVML gives them, each with the time at which that process ran last (NVIDIA/go-nvml#51, Syllo/nvtop#110):
        # one figure for each process is its average over the window already.
        ([sample(1, 900_000, 16), sample(2, 100_000, 70)], [16, 70, 0]),
        # Several are averaged over the sample periods of all; without a sample in one of them it used nothing in it.
        ([sample(1, 300_000, 90), sample(1, 100_000, 30), sample(2, 200_000, 9)], [40, 3, 0]),
        # Each is NVML's, though rounded ones, and those of different periods, add up to more than 100.
        ([sample(1, 600_000, 98), sample(2, 600_000, 6)], [98, 6, 0]),
        ([sample(1, 600_000, 100), sample(2, 100_000, 100)], [100, 100, 0]),
        # Some drivers also give what is older than the window; the process ran nothing since.
        ([sample(1, 1_300_000)], [0, 0, 0]),
    ],
)
def test_what_each_process_used_of_the_sms(samples: list[Sample], expected: list[float]) -> None:
    assert sms(seen(samples, {1, 2, 3}), 1, 2, 3) == expected


def test_figures_of_two_windows_are_not_shown_together() -> None:
    window = seen([sample(1, 0, 100)], {1, 2})
    assert sms(window, 1, 2) == [100, 0]
    later = NOW + 1_000_000
    assert sms(seen([sample(2, -900_000, 100)], {1, 2}, window, later), 1, 2) == [0, 100]


PERIODS = st.lists(st.dictionaries(st.integers(1, 5), st.integers(0, 100), min_size=1), max_size=8)


@given(PERIODS, st.booleans())
def test_a_process_has_the_mean_of_its_own_samples(periods: list[dict[int, int]], newest_alone: bool) -> None:
    """However the driver gives it: each sample period, or of each process only the newest sample."""
    samples = [
        sample(pid, 1_200_000 - 166_000 * place, sm, decoder=sm)
        for place, used in enumerate(periods)
        for pid, sm in used.items()
    ]
    if newest_alone:
        samples = list({one.pid: one for one in samples}.values())
    window = seen(samples, {1, 2, 3, 4, 5})
    figures = [[float(figure) for figure in window.of(pid)] for pid in range(1, 6)]
    assert all(0 <= figure <= 100 for one in figures for figure in one)
    given_to = {one.pid for one in samples if one.sm}
    assert {pid for pid, one in enumerate(figures, 1) if one[0] > 0} == given_to, "who ran is never shown as idle"
    several = len(samples) > len({one.pid for one in samples})
    newest = {one.pid: one.sm for one in reversed(samples)}
    for pid, one in enumerate(figures, 1):
        mean = sum(used.get(pid, 0) for used in periods) / len(periods) if several else newest.get(pid, 0)
        assert abs(one[0] - mean) < 1e-9


def test_what_cannot_be_true_is_no_sample() -> None:
    garbled = [sample(1, sm=101), sample(2, decoder=2**32 - 1), sample(3, -9_000_000), sample(9, sm=5)]
    window = seen(garbled, {1, 2, 3, 4})
    assert [window.of(pid) for pid in (1, 2, 3)] == [(Reason.NO_SAMPLE,) * 4] * 3
    assert window.of(4) == (0, 0, 0, 0)
    assert sms(seen([*garbled, sample(1, sm=60)], {1, 2}), 1, 2) == [60, Reason.NO_SAMPLE]


def test_where_the_window_begins() -> None:
    """Never shorter than the driver's longest period; at a slow pace at the last look; a clock may be set back."""
    window = UtilizationWindow()
    assert window.begin(NOW) == NOW - 1_250_000
    assert window.begin(NOW + 100_000) == NOW - 1_150_000
    earlier = NOW - 3_600_000_000
    assert window.begin(earlier) == earlier - 1_250_000
    slow = UtilizationWindow()
    slow.begin(NOW - 5_000_000)
    assert sms(seen([sample(1, 4_000_000, 40)], {1}, slow), 1) == [40]


def test_a_reason_is_given_to_every_process() -> None:
    (one,) = add_utilization([Holding(pid=1)], Reason.UNSUPPORTED)
    assert (one.sm, one.memory_utilization, one.encoder, one.decoder) == (Reason.UNSUPPORTED,) * 4
