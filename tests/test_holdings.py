"""Process lists and samples of utilization: what is kept, joined and averaged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.model import Holding, Reason
from gpuwatch.sampler.holdings import (
    NO_INSTANCE,
    NOT_AVAILABLE,
    Bounds,
    Entry,
    Sample,
    Window,
    held,
    merge,
    sound,
    with_use,
)

GIB = 2**30
NOW = 1_700_000_000_000_000
BOUNDS = Bounds(pid_max=4194304, memory=80 * GIB)

ENTRIES = st.lists(st.builds(Entry, st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1), st.integers(0, 9)))


def sample(pid: int, age: int = 100_000, sm: int = 50, **more: int) -> Sample:
    """Give a sample of so many µs ago."""
    return Sample(pid, NOW - age, sm, **{"memory": 0, "encoder": 0, "decoder": 0, **more})


def test_nonsense_is_dropped_and_counted() -> None:
    """A pid over pid_max, none, memory over the device's, and a second line for the same."""
    good = Entry(100, GIB)
    entries = [good, Entry(0, GIB), Entry(4194305, GIB), Entry(101, 81 * GIB), good, Entry(102, NOT_AVAILABLE)]
    assert sound(entries, BOUNDS) == ([good, Entry(102, NOT_AVAILABLE)], 4)
    assert sound([Entry(101, 81 * GIB)], Bounds(4194304, Reason.UNSUPPORTED)).dropped == 0


@given(ENTRIES)
def test_what_is_kept_is_possible(entries: list[Entry]) -> None:
    """Whatever a driver with another layout answers, no impossible pid and no impossible figure gets through."""
    kept, dropped = sound(entries, BOUNDS)
    assert len(kept) + dropped == len(entries)
    assert all(0 < entry.pid <= 4194304 for entry in kept)
    assert all(entry.memory <= 80 * GIB or entry.memory == NOT_AVAILABLE for entry in kept)
    assert len(set(kept)) == len(kept)


def test_a_process_on_two_lists_is_one_holding() -> None:
    """Kinds are joined; of the two figures the greater is taken, and one that is not told counts for nothing."""
    lists = {"C": [Entry(7, 5 * GIB), Entry(8, NOT_AVAILABLE)], "G": [Entry(7, GIB), Entry(8, GIB), Entry(9, 1)]}
    assert [(one.pid, one.kind, one.memory) for one in merge(lists)] == [
        (7, "C+G", 5 * GIB),
        (8, "C+G", GIB),
        (9, "G", 1),
    ]
    assert merge({"C": [Entry(8, NOT_AVAILABLE)]})[0].memory is Reason.UNSUPPORTED


def test_a_process_in_two_instances_is_two_holdings() -> None:
    """MIG instances are told apart; outside of them there is none."""
    found = merge({"C": [Entry(7, 1, 1, 0), Entry(7, 2, 2, 0), Entry(8, 3, NO_INSTANCE, NO_INSTANCE)]})
    assert [(one.gpu_instance, one.compute_instance) for one in found] == [(1, 0), (2, 0), (None, None)]


def test_a_sum_with_an_unknown_part_is_unknown() -> None:
    """Not the sum of the others."""
    assert held([Holding(pid=1, memory=3), Holding(pid=2, memory=4)]) == 7
    assert held([Holding(pid=1, memory=3), Holding(pid=2, memory=Reason.UNSUPPORTED)]) is Reason.NO_SAMPLE
    assert held([]) == 0


def test_several_samples_of_a_process_are_averaged() -> None:
    """The last one does not win."""
    window = Window()
    assert window.since(NOW) == NOW - 1_000_000
    window.add([sample(1, 300_000, 90), sample(1, 100_000, 30), sample(2, 200_000, 10)], frozenset({1, 2, 3}), NOW)
    assert [window.of(pid)[0] for pid in (1, 2, 3)] == [60, 10, 0]
    assert window.since(NOW) == NOW - 100_000


def test_samples_that_cannot_be_true_are_left_out() -> None:
    """Over 100 %, of a stranger, as old as the last one, or from the future."""
    window = Window()
    window.since(NOW)
    window.add(
        [
            sample(1, 100_000, 101),
            sample(1, 100_000, 5, decoder=2**32 - 1),
            sample(9),
            sample(1, 1_000_000),
            sample(1, -9_000_000),
        ],
        frozenset({1}),
        NOW,
    )
    assert window.of(1) == (0, 0, 0, 0)
    assert window.newest == NOW - 1_000_000


def test_between_two_of_the_drivers_samples_a_process_is_not_idle() -> None:
    """At ten looks a second most find no new sample; only after the driver's longest period is that idleness."""
    window = Window()
    window.since(NOW)
    window.add([sample(1, 0, 80)], frozenset({1}), NOW)
    window.add([], frozenset({1}), NOW + 500_000)
    assert window.of(1)[0] == 80
    window.add([], frozenset({1}), NOW + 2_000_000)
    assert window.of(1)[0] == 0


def test_at_a_slow_pace_old_samples_count() -> None:
    """What the driver took four seconds ago is new to one who looks every five."""
    window = Window(newest=NOW - 5_000_000)
    window.add([sample(1, 4_000_000, 40)], frozenset({1}), NOW)
    assert window.of(1)[0] == 40


def test_a_clock_that_is_set_back_starts_the_window_afresh() -> None:
    """Else everything would look old until the clock has caught up."""
    window = Window()
    window.add([sample(1)], frozenset({1}), NOW)
    earlier = NOW - 3_600_000_000
    assert window.since(earlier) == earlier - 1_000_000
    assert window.of(1)[0] == 0


def test_a_reason_is_given_to_every_process() -> None:
    """Under MIG there is no utilization of processes, and that is not 0."""
    (one,) = with_use([Holding(pid=1)], Reason.UNSUPPORTED)
    assert (one.sm, one.memory_utilization, one.encoder, one.decoder) == (Reason.UNSUPPORTED,) * 4
