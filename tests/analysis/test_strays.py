"""Strays: a table of machines with their strays, any machine at all, and the screen."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwatch.analysis.stray_facts import StrayLimits
from gpuwatch.analysis.strays import StrayCause, find_strays
from gpuwatch.history.history import History
from gpuwatch.model.snapshot import Gpu, Holding, Idle, Process, ProcessContext, Reason, Snapshot, Unlisted
from gpuwatch.ui.screens.strays import StraysScreen
from tests.analysis.machines import any_machine
from tests.support import builders
from tests.support.builders import gpu, uid
from tests.support.screen import frame, running, text
from tests.support.strays import HOUR, LEFT, PID, find, held, left, machine, mine, started, told
from tests.timelines import busy

# ---------------------------------------------------------------------------------------------------------------
# The table


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """Machine of one line of strays.jsonl: rows say only what differs from a sleeping process of 4 GiB on GPU 0."""

    about: str
    processes: list[dict[str, Any]]
    """`left` is a process whose parent and login have ended, `around` its context, `age` its seconds."""
    gpus: list[Any] = msgspec.field(default_factory=lambda: [[{}]])
    """The holdings of each GPU, or an object with `holdings` and other fields."""
    unlisted: list[dict[str, Any]] = []
    snapshot: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    idle: list[tuple[Any, ...]] | None = None
    """GPU, PID, seconds without SM use, and whether these are a minimum."""
    known: list[tuple[Any, ...]] = []
    """The same of PID 100 on GPU 0, as another gpuwatch has counted it."""
    strays: list[dict[str, Any]] = []
    """The fields of each stray that the case is about."""
    possible: list[int] = []
    unjudged: list[int] = []


def row(changes: dict[str, Any]) -> Process:
    """Return a process of the viewer with changed fields."""
    changes = dict(changes)
    process = (left if changes.pop("left", False) else lambda **fields: mine(**fields))(pid=changes.pop("pid", PID))
    if "age" in changes:
        changes["started"] = started(changes.pop("age"))
    if "around" in changes:
        changes["context"] = changes.pop("around")
    return msgspec.convert(msgspec.to_builtins(process) | changes, Process)


def card(index: int, changes: Any) -> Gpu:
    fields = dict(changes) if isinstance(changes, dict) else {"holdings": changes}
    holdings = [
        held(one.get("pid", PID), **{k: v for k, v in one.items() if k != "pid"}) for one in fields.pop("holdings")
    ]
    made = gpu(index, holdings=msgspec.convert(msgspec.to_builtins(holdings), list[Holding]))  # reasons are words
    return msgspec.convert(msgspec.to_builtins(made) | fields, Gpu)


CASES = [
    msgspec.json.decode(line, type=Case) for line in (Path(__file__).parent / "strays.jsonl").read_text().splitlines()
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_a_machine_has_these_strays_and_no_others(case: Case) -> None:
    unlisted = [
        Unlisted(
            process=row({key: value for key, value in one.items() if key not in ("gpus", "cuda_context")}),
            gpus=tuple(gpu(index).key for index in one.get("gpus", [0])),
            cuda_context=one.get("cuda_context", True),
        )
        for one in case.unlisted
    ]
    seen = builders.snapshot(
        [card(*one) for one in enumerate(case.gpus)], map(row, case.processes), unlisted=tuple(unlisted)
    )
    seen = msgspec.convert(msgspec.to_builtins(seen) | case.snapshot, Snapshot)
    history = None if case.idle is None else told(*case.idle)
    known = {(gpu(0).key, PID, PID): Idle(seconds, at_least=bool(least)) for seconds, *least in case.known}
    report = find_strays(seen, history, StrayLimits(**case.limits), idle_times=known)
    assert [one.process.pid for one in report.possible] == case.possible
    assert [one.index for one in report.unjudged] == case.unjudged
    shown = [
        msgspec.to_builtins(one) | {"pid": one.process.pid, "why": list(one.why), "indices": list(one.indices)}
        for one in report.strays
    ]
    expected = [{"pid": PID, "ends": True, "listed": True, **one} for one in case.strays]
    assert [{key: stray[key] for key in wanted} for stray, wanted in zip(shown, expected, strict=True)] == expected


# ---------------------------------------------------------------------------------------------------------------
# Any machine


@pytest.mark.uncounted
@settings(max_examples=150)
@given(any_machine(5), st.lists(st.tuples(st.sampled_from((4e4, 400.0, 100.0, 0.0)), st.booleans()), min_size=10))
def test_who_is_at_work_is_never_a_stray(base: Snapshot, idles: list[tuple[float, bool]]) -> None:
    places = [(gpu, pid) for gpu in (0, 1) for pid in range(10, 15)]
    history = told(*((*place, *idle) for place, idle in zip(places, idles, strict=False)))
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
        assert not lately or row.cause in (StrayCause.STOPPED, StrayCause.ZOMBIE)
        of_run = process.run is not None and (process.run.orphaned or process.run.worker_of is not None)
        if row.cause is StrayCause.IDLE or (row.cause is StrayCause.LEFTOVER and not of_run):
            assert row.idle is not None
            assert row.idle >= 300
            assert process.cpu is Reason.NO_SAMPLE or float(process.cpu) <= 50
        if row.cause is StrayCause.IDLE:
            assert process.context is not None
            assert not process.context.server
        assert row.ends == (row.cause is not StrayCause.ZOMBIE)


@pytest.mark.uncounted
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
                one, context=ProcessContext(), **(LEFT if one.pid % 2 else {"leader_alive": True, "cpu": 0.0})
            )
            for one in shown.processes
        )
        shown = msgspec.structs.replace(shown, processes=people)
        for name in busy.USERS:
            for row in find(msgspec.structs.replace(shown, viewer=uid(name)), view):
                assert row.cause is StrayCause.ZOMBIE, row
                lasting[row.process.pid] += 1
    assert max(lasting.values(), default=0) <= 2, lasting


def test_the_family_of_a_worker_whose_run_goes_on_is_not_asked() -> None:
    workers = [mine(pid) for pid in range(PID, PID + 40)]
    busy_lately = told(*((0, one.pid, 30.0, False) for one in workers))
    asked: Counter[str] = Counter()
    sys.setprofile(lambda stack, event, _: asked.update([stack.f_code.co_name] * (event == "call")))
    try:
        found = find(machine(workers, [held(one.pid) for one in workers]), busy_lately)
    finally:
        sys.setprofile(None)
    assert not found
    assert asked["find_strays"]
    assert not asked["find_family"]


# ---------------------------------------------------------------------------------------------------------------
# The screen


async def test_what_may_be_a_stray_is_not_called_one() -> None:
    seen = machine([mine(100, **LEFT)], [held(100)], searched=builders.EPOCH)
    async with running(frame(seen), (160, 50)) as (app, pilot):
        assert "stray (" not in text(app), "on the dashboard nothing is called one that may be none"
        assert "stray of yours" not in text(app)
        await pilot.press("S")
        await pilot.pause()
        assert isinstance(app.screen, StraysScreen)
        assert "no strays found" not in text(app)
        assert "no stray" not in text(app)
        assert "1 of your processes may be a stray (100)" in text(app)
