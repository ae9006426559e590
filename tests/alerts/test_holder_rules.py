"""Memory that is held and not used: idle holders, ended processes, and what nobody is listed for."""

from __future__ import annotations

from typing import Any

import pytest

from gpuwatch.alerts.alert import Unit
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules.idle import DEAD, IDLE, RULES, UNATTRIBUTED
from gpuwatch.model import Gpu, Health, Holding, Memory, Presence, Process, Reason
from tests.support.alerting import Bench, only, uuid, words
from tests.support.builders import GIB, MIB, gpu, holding, process, uid

HOUR = 3600.0


def bench(**limits: Any) -> Bench:
    return Bench(Limits(quiet=0, **limits), rules=RULES)


def run(tested: Bench, card: Gpu, seconds: float, *people: Process, step: float = 1.0, **changes: Any) -> list[str]:
    """Feed the same figures for so many seconds; say what changed."""
    found: list[str] = []
    for _ in range(int(seconds / step)):
        found += words(tested.feed(card, people=people, seconds=step, **changes))
    return found


def eve(*held: Holding, **changes: Any) -> Gpu:
    return gpu(3, holdings=held, **changes)


EVE = (process(71, "eve"), process(72, "eve", name="jupyter"))
BUSY = eve(holding(71, 30, sm=20), holding(72, 10, sm=0))
IDLE_BOTH = eve(holding(71, 30, sm=0), holding(72, 10, sm=0))


def resting(seconds: float = 1900, **limits: Any) -> Bench:
    """Return a bench on which eve's two processes computed once, and have been idle since."""
    tested = bench(**limits)
    run(tested, eve(holding(71, 30, sm=20), holding(72, 10, sm=20)), 1, *EVE)
    run(tested, IDLE_BOTH, seconds, *EVE, step=10)
    return tested


# Idle but held


def test_an_idle_holder_is_told_after_half_an_hour_with_who_and_for_how_long() -> None:
    tested = resting(1790)
    assert tested.of(IDLE) == []
    assert run(tested, IDLE_BOTH, 40, *EVE, step=10) == ["+warning"]
    run(tested, IDLE_BOTH, 3 * HOUR + 700, *EVE, step=10)
    alert = only(tested, IDLE)
    assert alert.title == "eve holds 40.0 GiB on GPU 3, idle for 3 h 42 min"
    assert alert.evidence == "pid 71 python, 72 jupyter"
    assert (alert.subject, alert.gpu) == (f"uid:{uid('eve')} {uuid(3)}", uuid(3))
    assert (alert.owners, alert.pids, alert.unit) == (("eve",), (71, 72), Unit.SECONDS)


def test_one_that_computes_keeps_the_others_from_being_told() -> None:
    tested = bench()
    assert run(tested, BUSY, HOUR, *EVE, step=10) == []


def test_less_than_the_limit_is_nothing_and_ends_it() -> None:
    small = eve(holding(71, 0.4, sm=0), holding(72, 0.4, sm=0))
    assert run(bench(), small, 2 * HOUR, *EVE, step=10) == []
    last = resting().feed(small, people=EVE)
    assert [alert.how for alert in last.cleared] == ["eve holds less than 1.0 GiB there"]


def test_users_and_gpus_are_judged_apart() -> None:
    tested = bench()
    other = gpu(1, holdings=[holding(73, 5, sm=0)])
    people = (*EVE, process(73, "ada"))
    both = eve(holding(71, 30, sm=0), holding(72, 10, sm=0), holding(73, 5, sm=50))
    for _ in range(250):
        tested.feed(both, other, people=people, seconds=10)
    assert {(alert.owners, alert.index) for alert in tested.of(IDLE)} == {(("eve",), 3), (("ada",), 1)}


@pytest.mark.parametrize("sm", [Reason.UNSUPPORTED, Reason.DENIED])
def test_without_an_sm_figure_nobody_is_idle(sm: Reason) -> None:
    assert run(bench(), eve(holding(71, 30, sm=sm), holding(72, 3, sm=0)), 2 * HOUR, *EVE, step=10) == []
    tested = resting()
    assert run(tested, eve(holding(71, 30, sm=sm), holding(72, 10, sm=0)), 100, *EVE) == []
    assert len(tested.of(IDLE)) == 1


def test_a_new_idle_process_of_the_owner_neither_ends_nor_renews_it() -> None:
    tested = resting()
    people = (*EVE, process(74, "eve"))
    more = eve(*IDLE_BOTH.holdings, holding(74, 1, sm=0))
    assert run(tested, more, 1700, *people, step=10) == []
    assert len(tested.of(IDLE)) == 1


def test_an_unknown_holding_counts_as_at_least() -> None:
    tested = bench()
    unknown = eve(holding(71, 30, sm=0), holding(72, memory=Reason.UNSUPPORTED, sm=0), used_gib=40)
    run(tested, unknown, 1900, *EVE, step=10)
    assert only(tested, IDLE).title.startswith("eve holds at least 30.0 GiB on GPU 3")
    less = eve(holding(71, 0.5, sm=0), holding(72, memory=Reason.UNSUPPORTED, sm=0), used_gib=40)
    assert run(tested, less, 100, *EVE) == []
    assert len(tested.of(IDLE)) == 1


def test_processes_whose_owner_is_not_visible_are_not_judged() -> None:
    hidden = Process(pid=71, start=71, presence=Presence.HIDDEN)
    assert run(bench(), eve(holding(71, 30, sm=0)), 2 * HOUR, hidden, step=10) == []


def test_a_name_that_is_not_known_yet_is_its_number() -> None:
    tested = bench(idle_after=10)
    run(tested, eve(holding(71, 30, sm=0)), 20, process(71, "", uid=1234))
    assert only(tested, IDLE).title.startswith("1234 holds 30.0 GiB")


def test_a_list_that_cannot_be_trusted_holds_what_is_raised() -> None:
    tested = resting()
    assert run(tested, eve(holdings_note="the list of processes could not be read"), 100) == []
    assert len(tested.of(IDLE)) == 1


# Unattributed memory


def loose(gib: float, **changes: Any) -> Gpu:
    """Give GPU 2 with so much memory that nobody is listed for."""
    held = changes.pop("holdings", ())
    return gpu(2, used_gib=gib + sum(float(one.memory) for one in held) / GIB, holdings=held, **changes)


def test_memory_that_nobody_is_listed_for_is_told_after_a_minute() -> None:
    tested = bench()
    assert run(tested, loose(3.1), 60) == []
    assert run(tested, loose(3.1), 5) == ["+warning"]
    alert = only(tested, UNATTRIBUTED)
    assert "fuser" in alert.evidence
    assert alert.unit is Unit.BYTES
    assert alert.last == pytest.approx(3.1 * GIB)


def test_it_clears_below_three_quarters_of_the_limit() -> None:
    tested = bench()
    run(tested, loose(3.1), 65)
    assert run(tested, loose(0.8), 60) == []
    assert run(tested, loose(0.7), 5) == ["cleared"]


@pytest.mark.parametrize(
    "changes",
    [
        {"holdings_note": "you may not see this GPU's processes"},
        {"unreliable": True},
        {"unattributed": Reason.NO_SAMPLE},
        {"health": Health.LOST},
        {"memory": Memory(total=64 * GIB, used=40 * GIB, free=24 * GIB, unified=True)},
    ],
    ids=str,
)
def test_what_cannot_be_told_is_not_judged(changes: dict[str, Any]) -> None:
    assert run(bench(), loose(40, **changes), 200) == []
    tested = bench()
    run(tested, loose(3.1), 65)
    assert run(tested, loose(0, **changes), 200) == []


def test_in_a_container_others_are_never_unattributed() -> None:
    assert run(bench(), loose(40), 200, confined=True) == []
    foreign = Process(pid=5, presence=Presence.ELSEWHERE)
    assert run(bench(), loose(40, holdings=[holding(5, 1)]), 200, foreign) == []


# Dead holders


GONE = Process(pid=1234, presence=Presence.GONE)
ZOMBIE = process(1234, state="zombie", ppid=4711, parent="bash")


def dead(gib: float | Reason = 12.0, start: int = 0, **changes: Any) -> Gpu:
    size: Any = {"memory": gib} if isinstance(gib, Reason) else {"gib": gib}
    return gpu(4, holdings=[holding(1234, start=start, **{"sm": 0, **size, **changes})])


def test_a_process_that_has_ended_and_still_holds_is_told() -> None:
    tested = bench()
    assert run(tested, dead(), 25, GONE) == ["+warning"]
    alert = only(tested, DEAD)
    assert (alert.subject, alert.pids, alert.owners) == (f"1234:0 {uuid(4)}", (1234,), ())
    assert (alert.unit, alert.last) == (Unit.BYTES, 12 * GIB)


def test_of_one_that_was_known_while_it_ran_its_user_is_named() -> None:
    tested = bench()
    known = process(1234, "ada", presence=Presence.GONE, state="")
    assert run(tested, dead(40.0, start=known.start), 25, known) == ["+warning"]
    alert = only(tested, DEAD)
    assert alert.title == "pid 1234 (ada) has ended and still holds 40.0 GiB on GPU 4"
    assert alert.owners == ("ada",)
    assert [alert.how for alert in tested.feed(gpu(4)).cleared] == ["the driver no longer lists process 1234"]


def test_an_idle_zombie_is_not_told_twice() -> None:
    tested = bench()
    run(tested, dead(start=1234), 2 * HOUR, ZOMBIE, step=10)
    assert [alert.rule for alert in tested.last.active] == [DEAD]


def test_it_ends_when_the_driver_lists_it_no_more_or_its_memory_is_freed() -> None:
    tested = bench()
    run(tested, dead(), 25, GONE)
    assert [alert.how for alert in tested.feed(gpu(4)).cleared] == ["the driver no longer lists process 1234"]
    tested = bench()
    run(tested, dead(start=1234), 25, ZOMBIE)
    assert run(tested, dead(0.1, start=1234), 5, ZOMBIE) == ["cleared"]


@pytest.mark.parametrize(
    ("card", "person"),
    [
        (dead(200 * MIB / GIB), GONE),
        (dead(Reason.UNSUPPORTED), GONE),
        # A zombie that computes is a program whose first thread has ended.
        (dead(start=1234, sm=80), ZOMBIE),
    ],
    ids=["little", "not known", "computes"],
)
def test_what_is_no_dead_holder(card: Gpu, person: Process) -> None:
    assert run(bench(), card, 100, person) == []


@pytest.mark.parametrize("presence", [one for one in Presence if one is not Presence.GONE])
def test_one_that_may_be_there_is_not_dead(presence: Presence) -> None:
    tested = bench()
    run(tested, dead(), 100, Process(pid=1234, presence=presence))
    assert tested.of(DEAD) == []


def test_memory_that_is_no_longer_known_ends_nothing() -> None:
    tested = bench()
    run(tested, dead(), 25, GONE)
    assert run(tested, dead(Reason.NO_SAMPLE), 25, GONE) == []
    assert len(tested.of(DEAD)) == 1
