"""Machines on which nobody has left anything behind have no strays; the demo has the two that it is about."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest

from gpuwatch.analysis.strays import Cause, Certainty, StrayLimits
from gpuwatch.history import History
from gpuwatch.model import Snapshot, Surroundings
from gpuwatch.sources.demo import DemoSource
from tests.support.builders import uid
from tests.support.demo_people import LEFTOVER_PID, LONG_CYCLE, STRAY_PID, UIDS, VIEWER_UID
from tests.support.straying import LEFT, find
from tests.timelines import busy

pytestmark = pytest.mark.uncounted
"""Hours of simulation, which take ten times as long while lines are counted; what they run is counted elsewhere."""

HOUR = 3600.0


def seen_by(base: Snapshot, viewer: int) -> Snapshot:
    """Return a snapshot as another person sees it."""
    return msgspec.structs.replace(base, viewer=viewer)


def test_the_demo_has_a_forgotten_run_and_a_leftover_worker_and_nobody_elses_is_one() -> None:
    demo, history = DemoSource(), History()
    called: dict[int, int] = {}
    for t in range(0, int(LONG_CYCLE) + 200, 5):
        base = demo.at(float(t))
        view = history.add(base, base.monotonic)
        for row in find(base, view):
            called.setdefault(row.process.pid, t)
        if t % 60 == 0:
            others = [row for viewer in UIDS.values() for row in find(seen_by(base, viewer), view)]
            assert not others, others
    assert set(called) == {STRAY_PID, LEFTOVER_PID}
    assert 0 <= called[STRAY_PID] - StrayLimits().quiet_after <= 5


def test_after_an_hour_the_demo_has_what_is_idle_as_well() -> None:
    demo, history = DemoSource(), History()
    for t in range(0, int(HOUR), 13):
        base = demo.at(float(t))
        view = history.add(base, base.monotonic)
    found = {viewer: find(seen_by(base, viewer), view) for viewer in (*UIDS.values(), VIEWER_UID)}
    theirs = {row.process.pid: row for rows in found.values() for row in rows}
    assert {row.process.pid for row in found[VIEWER_UID]} == {STRAY_PID, LEFTOVER_PID}
    assert (theirs[STRAY_PID].cause, theirs[STRAY_PID].sure) == (Cause.LEFTOVER, Certainty.LIKELY)
    assert (theirs[LEFTOVER_PID].cause, theirs[LEFTOVER_PID].listed) == (Cause.WORKER, False)
    assert all(row.cause is Cause.IDLE for pid, row in theirs.items() if pid not in (STRAY_PID, LEFTOVER_PID))


def test_on_a_busy_machine_nobody_has_a_stray_for_longer_than_it_takes_to_reap_it() -> None:
    history = History()
    lasting: Counter[int] = Counter()
    for number, tick in enumerate(busy.ticks(1, HOUR / 8)):
        shown = tick.snapshot
        assert shown is not None
        view = history.add(shown, shown.monotonic)
        if number % 8:
            continue
        # Half of them are those of people who have logged out, and let them run.
        people = tuple(
            msgspec.structs.replace(
                one, surroundings=Surroundings(), **(LEFT if one.pid % 2 else {"led": True, "cpu": 0.0})
            )
            for one in shown.processes
        )
        shown = msgspec.structs.replace(shown, processes=people)
        for name in busy.USERS:
            for row in find(seen_by(shown, uid(name)), view):
                assert row.cause is Cause.ZOMBIE, row
                lasting[row.process.pid] += 1
    assert max(lasting.values(), default=0) <= 2, lasting
