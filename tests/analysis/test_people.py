"""People: what each has on the machine, added up; the order of their list, and what is said of one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpuwatch.analysis.people import (
    PERSON,
    Longest,
    Person,
    filter_for,
    people,
    stable_order,
    story,
    totals,
)
from gpuwatch.analysis.rows import rows
from gpuwatch.history.history import NO_USE, History, HistoryView, Use
from gpuwatch.model.filters import Filter, FilterError
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.snapshot import Idle, Presence, Process, Reason, Snapshot
from tests.analysis.machines import card, person, read_cases
from tests.support.builders import EPOCH, GIB, MIB, at, gpu, holding, process, snapshot, uid


def a_person(**changes: object) -> Person:
    fields: dict[str, object] = {
        "uid": 1005,
        "name": "eve",
        "viewer": False,
        "gpus": (3,),
        "memory": 40 * GIB,
        "at_least": False,
        "share": 6.3,
        "declared": None,
        "unread": False,
        "sm": 0.0,
        "sm_at_least": False,
        "use": NO_USE,
        "longest": None,
        "idle": 0,
        "processes": 1,
        "oldest": EPOCH - 7 * 3600,
    }
    return Person(**{**fields, **changes})  # type: ignore[arg-type]


# What one person has


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """Line of people.jsonl: a machine and its people; `@1` is the UUID of GPU 1."""

    about: str
    gpus: list[dict[str, Any]]
    found: list[dict[str, Any]]
    """Fields of each person, less what is false or an hour old; memory is `gib`."""
    people: list[dict[str, Any]] = []


PLAIN = {"viewer": False, "at_least": False, "sm_at_least": False, "unread": False, "declared": None}


@pytest.mark.parametrize("case", read_cases("people.jsonl", Case), ids=lambda case: case.about)
def test_these_people_are_on_a_machine(case: Case) -> None:
    found = people(Holdings(snapshot(map(card, case.gpus), map(person, case.people))))
    for one, wanted in zip(found, case.found, strict=True):
        expected = {**PLAIN, "oldest": EPOCH - 3600, "uid": uid(wanted["name"]), **wanted}
        share = None if one.share is None else round(one.share, 3)
        shown = structs.asdict(one) | {"gib": round(one.memory / GIB, 3), "gpus": list(one.gpus), "share": share}
        assert {key: shown[key] for key in expected} == expected


# Idle, and use


def watched(seen: Snapshot, seconds: int) -> HistoryView:
    history = History()
    for second in range(seconds + 1):
        view = history.add(at(seen, second), 5000.0 + second)
    return view


def test_the_longest_idle_holding_is_one_that_is_worth_it() -> None:
    seen = snapshot([gpu(0, holdings=[holding(11, 0.1, sm=0), holding(12, 3, sm=0), holding(13, 4, sm=60)])])
    (ada,) = people(Holdings(seen), watched(seen, 90))
    assert ada.longest == Longest(Idle(90.0, at_least=True), 0, 12, 3 * GIB)
    assert ada.idle == round(3.1 * GIB)
    (ada,) = people(Holdings(seen), watched(seen, 30))
    assert ada.idle == 0
    (ada,) = people(Holdings(seen), HistoryView(use={uid("ada"): Use(held=10.0, memory=5.0)}))
    assert (ada.longest, ada.use.held) == (None, 10.0)


@pytest.mark.parametrize(
    ("use", "waste", "least"),
    [
        (NO_USE, None, False),
        (Use(held=100, busy=50, memory=1000, idle_memory=500), 50.0, False),
        (Use(held=100, unknown=4, memory=1000, idle_memory=0), 0.0, False),
        (Use(held=100, unknown=40, memory=1000, idle_memory=100), 10.0, True),
        (Use(held=100, unknown=100, memory=1000), None, True),
        (Use(held=100, busy=50), None, False),
    ],
)
def test_the_idle_part(use: Use, waste: float | None, least: bool) -> None:
    one = a_person(use=use)
    assert one.waste == waste
    assert one.waste_at_least is least


# The machine as a whole


def test_the_whole_is_the_sum_of_all() -> None:
    seen = snapshot(
        [
            gpu(0, holdings=[holding(11, 40, sm=90), holding(12, 2, sm=0)]),
            gpu(1, holdings=[holding(11, 10, sm=80), holding(13, 12), holding(14, 1, sm=Reason.UNSUPPORTED)]),
        ],
        [process(11, "ada"), process(12, "ben"), process(13, "you"), Process(pid=14, presence=Presence.GONE)],
    )
    forms = totals(people(Holdings(seen)), seen)
    assert forms[0] == "at least 3 people · 4 processes · 65 of 158 GiB held"
    assert forms[-1] == "65 of 158 GiB held"


def test_the_whole_of_one_and_of_nobody() -> None:
    seen = snapshot([gpu(0, holdings=[holding(11, memory=Reason.UNSUPPORTED), holding(12, 30, sm=0)])])
    words = "1 person · 2 processes · at least 30 of 79 GiB held, 30 idle"
    assert totals(people(Holdings(seen), watched(seen, 70)), seen)[0] == words
    assert totals([], snapshot([]))[0] == "0 people · 0 processes · 0.0 GiB held"


HELD = st.builds(
    holding,
    st.integers(1, 9),
    memory=st.one_of(st.integers(0, 40 * GIB), st.just(Reason.UNSUPPORTED)),
    sm=st.one_of(st.integers(0, 100), st.just(Reason.NO_SAMPLE)),
)


@given(st.lists(st.lists(HELD, max_size=5), max_size=4), st.lists(st.one_of(st.none(), st.integers(0, 4)), max_size=9))
def test_nothing_is_lost_or_counted_twice(held: list[list], owners: list[int | None]) -> None:  # type: ignore[type-arg]
    processes = [process(pid, f"u{one}", uid=one) for pid, one in enumerate(owners, 1)]
    seen = Snapshot(gpus=tuple(gpu(n, holdings=some) for n, some in enumerate(held)), processes=tuple(processes))
    found = people(Holdings(seen))
    every = [one for some in held for one in some]
    assert sum(one.memory for one in found) == sum(one.memory for one in every if not isinstance(one.memory, Reason))
    assert sum(one.processes for one in found) == len({one.pid for one in every})
    assert len({one.uid for one in found}) == len(found)
    assert all(one.share is None or one.share >= 0 for one in found)
    for by in PERSON:
        for reverse in (False, True):
            ordered = stable_order().sort(found, by, reverse=reverse)
            assert {one.uid for one in ordered} == {one.uid for one in found}
            missing = [PERSON[by].order(one)[0] for one in ordered]
            assert missing == sorted(missing)


# Order


def test_names_go_from_a_and_whoever_is_not_visible_comes_last() -> None:
    found = [a_person(uid=None, name="?"), a_person(uid=3, name="Zoe"), a_person(uid=2, name="amy")]
    assert [one.name for one in stable_order().sort(found, "user")] == ["amy", "Zoe", "?"]
    assert [one.name for one in stable_order().sort(found, "user", reverse=True)] == ["Zoe", "amy", "?"]


# One person alone


def test_the_filter_of_one_person_is_exact() -> None:
    card = gpu(0, holdings=[holding(11), holding(12), holding(13), holding(14)])
    owners = [process(11, "ann", uid=1001), process(12, "joanna", uid=10011), process(13, "1001", uid=5)]
    seen = snapshot([card], [*owners, Process(pid=14, presence=Presence.GONE)])

    def left(text: str) -> list[int]:
        wanted = Filter.parse(text)
        return [row.holding.pid for row in rows(seen) if wanted(row)]

    assert left(filter_for(1001)) == [11]
    assert left(filter_for(None)) == [14]
    assert left("uid:NONE") == [14]
    assert left("user:ann") == [11, 12]
    assert left("-uid:1001,5") == [12, 14]
    assert left("uid:") == [11, 12, 13, 14]
    with pytest.raises(FilterError, match="uid:ann is not a number"):
        Filter.parse("uid:ann")


# Words


def test_the_story_makes_the_point() -> None:
    hour = 3600.0
    use = Use(held=3 * hour, busy=1200.0, memory=40 * GIB * 3 * hour, idle_memory=40 * GIB * 2.5 * hour)
    longest = Longest(Idle(2.5 * hour, at_least=False), 3, 812, 40 * GIB)
    told = story(a_person(use=use, longest=longest, declared=16 * GIB), EPOCH, 3 * hour)
    assert told == [
        "eve holds 40.0 GiB on GPU 3, declared 16.0, by one process that is 7 h old",
        "in the last 3 h: 3 h of GPU time, 20 min of it used; 83 % of the memory (120.0 GiB·h) was idle",
        "now idle for 2 h 30 min: PID 812 on GPU 3 with 40.0 GiB",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"viewer": True}, "you hold 40.0"),
        ({"uid": None, "name": "?"}, "an unknown owner holds 40.0 GiB"),
        ({"memory": 0, "at_least": True}, "eve holds memory on GPU 3"),
        ({"at_least": True}, "holds at least 40.0 GiB"),
        ({"gpus": (0, 1, 2), "processes": 4}, "on GPUs 0-2, by 4 processes, the oldest 7 h old"),
        ({"oldest": None}, "by one process"),
        ({"declared": 2 * GIB, "unread": True}, "declared at least 2.0"),
        (
            {"use": Use(held=60, memory=3600 * GIB, idle_memory=3600 * GIB)},
            "none of it used; 100 % of the memory (1.0 GiB·h)",
        ),
        ({"use": Use(held=60, busy=60, memory=60 * GIB)}, "all of it used"),
        ({"use": Use(held=60, unknown=60, memory=9)}, "whether it was used is not known"),
        (
            {"use": Use(held=60, unknown=30, memory=3600 * GIB, idle_memory=60 * GIB)},
            "(not known for 30 s); at least 2 % of the memory (1.0 GiB·h)",
        ),
        ({"longest": Longest(Idle(99.0, at_least=True), 3, 8, 300 * MIB)}, "idle for at least 1 min 39 s: PID 8"),
    ],
)
def test_what_is_not_known_is_not_told(changes: dict[str, object], words: str) -> None:
    assert words in "\n".join(story(a_person(**changes), EPOCH, 60.0))
