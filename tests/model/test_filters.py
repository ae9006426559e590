"""The grammar of filters: comparisons with units, values in lists and ranges, saved filters, and where a mistake is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.analysis.rows import rows
from gpuwatch.model.filters import ROW_GRAMMAR, Filter, FilterError, check_filter, find_next, parse_most
from gpuwatch.model.snapshot import Idle, Presence, Process, ProcessContext, Reason, Run
from tests.support.builders import GIB, declares, gpu, holding, process, snapshot

SAVED = {"big": "mem>30GiB", "Long": "idle>30m user:ada,ben", "wrong": "mem>3", "nested": "@big"}

SNAPSHOT = snapshot(
    [
        gpu(0, holdings=[holding(11, 40, sm=90), holding(12, 2, sm=0)]),
        gpu(3, holdings=[holding(13, 12, sm=Reason.NO_SAMPLE), holding(14, memory=Reason.UNSUPPORTED)]),
    ],
    [
        process(11, "ada", command="python train.py lr=0.1", cpu=350.0, rss=3 * GIB, declared=declares(0, 20 * GIB)),
        process(12, "ben", command="jupyter lab", cpu=0.0, rss=512 * 2**20, declared=declares(0, 4 * GIB)),
        process(13, "you", command="a>b", started=None, cpu=Reason.NO_SAMPLE, rss=Reason.DENIED),
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


CASES = [json.loads(line) for line in (Path(__file__).parent / "filters.jsonl").read_text().splitlines()]
"""A text, and the PIDs of the rows that match, or its mistake: where it is and some words of the error."""


@pytest.mark.parametrize("case", [one for one in CASES if "pids" in one], ids=lambda case: case["text"])
def test_terms(case: dict[str, Any]) -> None:
    assert found(case["text"]) == case["pids"]


def test_a_limit_that_several_processes_share_is_passed_only_by_one_that_is_above_it_alone() -> None:
    people = [process(pid, "ada", declared=declares(0, 10 * GIB, scope="7")) for pid in (1, 2)]
    seen = rows(snapshot([gpu(0, holdings=[holding(1, 12), holding(2, 5)])], people))
    assert [Filter.parse(text)(row) for text in ("used>1", "used<1", "used=1") for row in seen] == [
        True,
        *[False] * 5,
    ]


@pytest.mark.parametrize("name", ROW_GRAMMAR.figures)
def test_what_is_not_known_matches_no_comparison(name: str) -> None:
    unknown = snapshot([gpu(0, holdings=[holding(1, memory=Reason.ERROR, sm=Reason.ERROR)])], [Process(pid=1)])
    (row,) = rows(unknown)
    assert not any(Filter.parse(f"{name}{sign}0")(row) for sign in (">", ">=", "<", "<=", "="))


@pytest.mark.parametrize("case", [one for one in CASES if "wrong" in one], ids=lambda case: case["text"])
def test_a_mistake_has_a_place_and_says_what_is_allowed(case: dict[str, Any]) -> None:
    with pytest.raises(FilterError) as error:
        Filter.parse(case["text"], SAVED)
    assert case["text"][error.value.start : error.value.end] == case["wrong"]
    assert case["words"] in str(error.value)


def test_wrong_terms_are_left_out_and_the_first_is_named() -> None:
    kept, wrong = parse_most("gpu:0  mem>3 user:ada pid:x", Filter.parse)
    assert kept.text == "gpu:0 user:ada"
    assert wrong is not None
    assert (wrong.start, wrong.end, str(wrong)) == (7, 12, "size '3' has no unit; write 3GiB")
    assert parse_most("gpu:0", Filter.parse)[1] is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("mem>", "has no value; write one, such as"),
        ("idle >=", "has no value; write one, such as"),
        ("user:", "write user:ada"),
        ("gpu=,", "write gpu:0,2-4"),
        ("mine !", "nothing follows !"),
        ("not", "nothing follows not"),
        ("@", "the name of a saved filter"),
    ],
)
def test_what_is_unfinished_is_a_mistake_only_where_nobody_types(text: str, words: str) -> None:
    assert Filter.parse(text)
    with pytest.raises(FilterError, match=words):
        Filter.parse(text, finished=True)


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
    assert wrong


def test_the_next_match_is_sought_round_the_end() -> None:
    for place, by, expected in ((0, 1, 2), (2, 1, 5), (5, 1, 2), (3, -1, 2), (2, -1, 5), (0, -1, 5), (9, 1, 2)):
        assert find_next("..x..x..", lambda one: one == "x", place, by) == expected
    assert find_next("....", lambda one: one == "x", 1, 1) is None
    assert find_next("", bool, 0, 1) is None
    assert find_next("x", bool, 0, 1) == 0


@pytest.mark.parametrize("text", ["bin/python3", "enginecore", "meta/llama"])
def test_text_is_sought_in_the_whole_line_and_in_what_is_shown_of_it(text: str) -> None:
    server = process(11, "ada", command="/usr/bin/python3 /usr/bin/vllm serve meta/llama --port 1")
    run = Run(key="1:1", name="vllm serve meta/llama", worker_of=11)
    engine = process(12, "ada", command="VLLM::EngineCore", context=ProcessContext(run=run))
    seen = rows(snapshot([gpu(0, holdings=[holding(11), holding(12)])], [server, engine]))
    assert sum(map(Filter.parse(text), seen)) == 1 + (text == "meta/llama")
