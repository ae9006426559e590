"""What the history counts of XIDs and memory errors, over samplers and drivers that start anew."""

from __future__ import annotations

from typing import Any

from gpuwatch.history import History, HistoryView
from gpuwatch.model import Health, Reason, Snapshot, Xid
from tests.support.builders import EPOCH
from tests.support.histories import KEY, machine, watched


def xids(*seen: tuple[int, int, float], **changes: Any) -> Snapshot:
    """Return a GPU with XIDs of (code, count, seconds since the first snapshot of the newest)."""
    return machine(xids=tuple(Xid(code=code, count=count, last=EPOCH + last) for code, count, last in seen), **changes)


def test_a_gpu_without_xids_has_none() -> None:
    assert HistoryView().xids("x") == {}
    assert watched(History(), machine(), 0).xids(KEY) == {}
    assert watched(History(), machine(xids=Reason.UNSUPPORTED), 0).xids(KEY) == {}


def test_xids_at_the_first_look_have_their_age() -> None:
    assert watched(History(), xids((79, 2, -300), (43, 1, 500)), 10).xids(KEY) == {79: (2, 4700.0), 43: (1, 5010.0)}


def test_xids_are_counted_as_they_come() -> None:
    history = History()
    watched(history, xids(), 0)
    assert watched(history, xids((94, 1, 4.5)), 5).xids(KEY) == {94: (1, 5004.5)}
    assert watched(history, xids((94, 1, 4.5)), 6).xids(KEY) == {94: (1, 5004.5)}
    assert watched(history, xids((94, 4, 7), (13, 1, 7)), 7).xids(KEY) == {94: (4, 5007.0), 13: (1, 5007.0)}


def test_a_sampler_that_starts_anew_is_counted_on() -> None:
    history = History()
    watched(history, xids((94, 3, 0)), 0)
    watched(history, machine(xids=Reason.NO_SAMPLE), 5)
    watched(history, xids(), 6)
    assert watched(history, xids((94, 5, 8)), 8).xids(KEY) == {94: (8, 5008.0)}
    assert watched(history, xids((94, 1, 10)), 10).xids(KEY) == {94: (9, 5010.0)}


def test_a_wall_clock_that_is_set_makes_no_xid_older_than_our_last_look() -> None:
    history = History()
    watched(history, xids(), 0)
    assert watched(history, xids((94, 1, -3600)), 5).xids(KEY) == {94: (1, 5000.0)}
    assert watched(history, xids((94, 2, 9999)), 6).xids(KEY) == {94: (2, 5006.0)}


def test_xids_of_a_lost_gpu_are_kept_and_taken_in() -> None:
    history = History()
    watched(history, xids(), 0)
    fallen = xids((79, 1, 3), health=Health.LOST, utilization=Reason.NO_SAMPLE)
    assert watched(history, fallen, 0, late=4).xids(KEY) == {79: (1, 5003.0)}
    assert watched(history, machine(xids=Reason.ERROR), 6).xids(KEY) == {79: (1, 5003.0)}


def test_xids_of_a_view_never_change() -> None:
    history = History()
    view = watched(history, xids((94, 1, 0)), 0)
    watched(history, xids((94, 2, 1)), 1)
    assert view.xids(KEY) == {94: (1, 5000.0)}


def errors(*counts: int | Reason) -> tuple[int, float | None] | None:
    history = History()
    for second, count in enumerate(counts):
        view = watched(history, machine(ecc_uncorrected=count), second)
    return view.ecc(KEY)


def test_memory_errors_have_the_time_of_their_last_increase() -> None:
    assert errors(0) == (0, None)
    assert errors(3, 3) == (3, None)
    assert errors(3, 4, 4) == (4, 5001.0)
    assert errors(0, 1, 1, 2) == (2, 5003.0)


def test_memory_errors_that_are_not_known_are_not_nothing() -> None:
    assert HistoryView().ecc("x") is None
    assert errors(Reason.UNSUPPORTED) is None
    assert errors(3, Reason.ERROR) is None
    assert errors(3, Reason.ERROR, 3) == (3, None)
    assert errors(3, Reason.ERROR, 4) == (4, 5002.0)


def test_a_driver_that_was_loaded_anew_has_only_new_errors() -> None:
    assert errors(3, 0) == (0, None)
    assert errors(3, 1) == (1, 5001.0)
    assert errors(3, 4, 0, 0) == (0, 5001.0)
