"""The grammar of filters: comparisons with units, values in lists and ranges, saved filters, and where a mistake is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuwatch.analysis.rows import rows
from gpuwatch.filters import ROW_GRAMMAR, Filter, FilterError, check_filter, find_next, parse_most
from gpuwatch.history import Idle
from gpuwatch.model import Presence, Process, Reason
from tests.support.builders import EPOCH, GIB, gpu, holding, process, snapshot
from tests.support.declaring import declares

SAVED = {"big": "mem>30GiB", "Long": "idle>30m user:ada,ben", "wrong": "mem>3", "nested": "@big"}

SNAPSHOT = snapshot(
    [
        gpu(0, holdings=[holding(11, 40, sm=90), holding(12, 2, sm=0)]),
        gpu(3, holdings=[holding(13, 12, sm=Reason.NO_SAMPLE), holding(14, memory=Reason.UNSUPPORTED)]),
    ],
    [
        process(11, "ada", command="python train.py lr=0.1", cpu=350.0, rss=3 * GIB, declared=declares(0, 20 * GIB)),
        process(12, "ben", command="jupyter lab", cpu=0.0, rss=512 * 2**20, declared=declares(0, 4 * GIB)),
        process(13, "cleo", command="a>b", started=None, cpu=Reason.NO_SAMPLE, rss=Reason.DENIED),
        Process(pid=14, presence=Presence.GONE),
    ],
)
IDLE = {
    (gpu(0).key, 12, 12): Idle(3600.0, at_least=False),
    (gpu(3).key, 13, 13): Idle(600.0, at_least=True),
}
ROWS = rows(SNAPSHOT, idle_times=IDLE)


def found(text: str) -> list[int]:
    """Return the PIDs of the rows that match."""
    wanted = Filter.parse(text, SAVED)
    return [row.holding.pid for row in ROWS if wanted(row)]


@pytest.mark.parametrize(
    ("text", "pids"),
    [
        ("mem>10GiB", [11, 13]),
        ("mem>=12GiB", [11, 13]),
        ("mem<12GiB", [12]),
        ("mem<=12g", [12, 13]),
        ("mem=12GiB", [13]),
        ("mem=12.04GiB", [13]),
        ("mem>0", [11, 12, 13]),
        ("!mem>10GiB", [12, 14]),
        ("share>1", [11]),
        ("share>=50%", [11, 12]),
        ("share<1.5", [12]),
        ("sm>0", [11, 14]),
        ("sm=0", [12]),
        ("sm<50%", [12]),
        ("cpu>300", [11]),
        ("rss>=1GiB", [11]),
        ("idle>30m", [12]),
        ("idle>5min", [12, 13]),
        ("idle<2h", [12]),
        ("idle=1h", [12]),
        ("MEM>10gib User:Ada", [11]),
        ("user:ada,ben", [11, 12]),
        ("user:ada,", [11]),
        ("gpu:0-2", [11, 12]),
        ("gpu:1-3", [13, 14]),
        ("gpu:0,3-5", [11, 12, 13, 14]),
        ("gpu:0-999999999999999999", [11, 12, 13, 14]),
        ("pid:12-13 -gpu:0", [13]),
        ("!jupyter", [11, 13, 14]),
        ("mem>10GiB idle>5m !user:ben", [13]),
        ("lr=0.1", [11]),
        ("!lr=0.1 mem>", [12, 13, 14]),
        ("mem>=", [11, 12, 13, 14]),
        ("gpu:,", [11, 12, 13, 14]),
        ("@", [11, 12, 13, 14]),
        ("@big", [11]),
        ("!@big", [12, 13, 14]),
        ("@LONG", [12]),
        ("@big @long", []),
    ],
)
def test_terms(text: str, pids: list[int]) -> None:
    assert found(text) == pids


@pytest.mark.parametrize(("text", "is_match"), [("age>59min", True), ("age<=59min", False), ("age=1h", True)])
def test_the_age_is_that_of_the_process(text: str, is_match: bool) -> None:
    seen = snapshot([gpu(0, holdings=[holding(1, 1)])], [process(1, "ada")])
    (row,) = rows(replace(seen, taken=EPOCH + 1))
    assert Filter.parse(text)(row) is is_match


def test_a_limit_that_several_processes_share_is_passed_only_by_one_that_is_above_it_alone() -> None:
    people = [process(pid, "ada", declared=declares(0, 10 * GIB, scope="7")) for pid in (1, 2)]
    seen = rows(snapshot([gpu(0, holdings=[holding(1, 12), holding(2, 5)])], people))
    assert [Filter.parse(text)(row) for text in ("share>1", "share<1", "share=1") for row in seen] == [
        True,
        *[False] * 5,
    ]


@pytest.mark.parametrize("name", ROW_GRAMMAR.figures)
@pytest.mark.parametrize("sign", [">", ">=", "<", "<=", "="])
def test_what_is_not_known_matches_no_comparison(name: str, sign: str) -> None:
    unknown = snapshot([gpu(0, holdings=[holding(1, memory=Reason.ERROR, sm=Reason.ERROR)])], [Process(pid=1)])
    (row,) = rows(unknown)
    assert not Filter.parse(f"{name}{sign}0")(row)


@pytest.mark.parametrize(
    ("text", "wrong", "words"),
    [
        ("user:ada mem>10 gpu:0", "mem>10", "size '10' has no unit; write 10GiB"),
        ("mem>>10GiB", "mem>>10GiB", "size '>10gib' is not understood"),
        ("  idle>30x ", "idle>30x", "duration '30x' is not understood; write a number with s, min, h or d"),
        ("sm>101", "sm>101", "write a number from 0 to 100, such as 10 or 10%"),
        ("share>x", "share>x", "ratio 'x' is not understood; write a number, such as 1, 1.5 or 150%"),
        ("memory>10GiB", "memory>10GiB", "memory is no figure; did you mean mem?"),
        ("power>10", "power>10", "power is no figure; mem, share, sm, cpu, rss, idle, age are figures"),
        ("ada gpu:3-1", "gpu:3-1", "gpu:3-1 ends before it begins; try gpu:1-3"),
        ("gpu:0-", "gpu:0-", "gpu:0- is no number; try gpu:3 or gpu:0,2-4"),
        ("rule:over", "rule:over", "rule: is no term of this list; user:, uid:, gpu:, pid:, mine, mem, share"),
        ("!@none", "!@none", "no saved filter is called none; @big, @Long, @wrong, @nested"),
        ("ada @wrong", "@wrong", "size '3' has no unit"),
        ("@nested", "@nested", "@nested names another saved filter"),
    ],
)
def test_a_mistake_has_a_place_and_says_what_is_allowed(text: str, wrong: str, words: str) -> None:
    with pytest.raises(FilterError) as error:
        Filter.parse(text, SAVED)
    assert text[error.value.start : error.value.end] == wrong
    assert words in str(error.value)


def test_wrong_terms_are_left_out_and_the_first_is_named() -> None:
    kept, wrong = parse_most("gpu:0  mem>3 user:ada pid:x", Filter.parse)
    assert kept.text == "gpu:0 user:ada"
    assert wrong is not None
    assert (wrong.start, wrong.end, str(wrong)) == (7, 12, "size '3' has no unit; write 3GiB")
    assert parse_most("gpu:0", Filter.parse)[1] is None


def test_a_filter_of_any_list_can_be_saved() -> None:
    check_filter("rule:over,leak user:ada age<2h")
    check_filter("mem>10GiB mine")
    with pytest.raises(FilterError, match="has no unit"):
        check_filter("mem>10")


@given(st.text("amgpuidlesh:@!-<>=0123456789.GB% ,\t\u3000ß"))
def test_any_text_is_a_filter_or_has_a_mistake_at_a_term(text: str) -> None:
    wrong = ["a term"]
    try:
        wanted = Filter.parse(text, SAVED)
    except FilterError as error:
        wrong = text[error.start : error.end].split()
    else:
        assert all(isinstance(wanted(row), bool) for row in ROWS)
    assert len(wrong) == 1


@pytest.mark.parametrize(
    ("place", "by", "expected"), [(0, 1, 2), (2, 1, 5), (5, 1, 2), (3, -1, 2), (2, -1, 5), (0, -1, 5), (9, 1, 2)]
)
def test_the_next_match_is_sought_round_the_end(place: int, by: int, expected: int) -> None:
    assert find_next("..x..x..", lambda one: one == "x", place, by) == expected


def test_without_a_match_there_is_no_next_one() -> None:
    assert find_next("....", lambda one: one == "x", 1, 1) is None
    assert find_next("", bool, 0, 1) is None
    assert find_next("x", bool, 0, 1) == 0
