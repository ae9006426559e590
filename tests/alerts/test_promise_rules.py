"""GPUs of which more is declared than they have, and processes that outgrew their start size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rules.shares import OUTGROWN, OVERCOMMITTED
from gpuwatch.model import Basis, Declaration, Declared, Kind, Memory, Reason
from tests.support.alerting import Bench, cap, card, feed, only, part, words
from tests.support.builders import GIB, TOTAL, gpu, memory, process

NOTE, WARNING = Severity.NOTE, Severity.WARNING


# Over-committed


def committed(*declared: Declared, used_gib: float = 30.0, bench: Bench | None = None, **changes: Any) -> Bench:
    """Let processes with these declarations be on GPU 0 for three seconds; the first two are ada's, the third ben's."""
    bench = bench or Bench()
    owners = ("ada", "ada", "ben", "cyn", "dov", "eve")
    people = [process(100 + n, owners[n], declared=one) for n, one in enumerate(declared)]
    for _ in range(3):
        bench.feed(card(*((one.pid, 5.0) for one in people), used_gib=used_gib, **changes), people=people)
    return bench


@pytest.mark.parametrize(
    ("fractions", "title"),
    [
        ((0.4, 0.4, 0.4), "GPU 0 overbooked: 120 % declared"),
        ((0.5, 0.5, 0.25), "GPU 0 overbooked: 125 % declared"),
        ((0.9, 0.1, 0.2, 0.3, 0.05), "GPU 0 overbooked: 155 % declared"),
        ((0.4, 0.4, 0.2), None),
        ((0.4, 0.5), None),
    ],
)
def test_a_gpu_that_is_promised_twice_is_noted(fractions: Sequence[float], title: str | None) -> None:
    bench = committed(*(part(each) for each in fractions))
    assert [alert.title for alert in bench.of(OVERCOMMITTED)] == ([title] if title else [])
    assert bench.severities() == ([NOTE] if title else [])


def test_limits_in_bytes_are_summed_in_gib_and_people_named() -> None:
    alert = only(committed(cap(30), part(0.4), part(0.5), cap(8), cap(1), cap(1)), OVERCOMMITTED)
    assert alert.title == "GPU 0 overbooked: 140 % declared"
    assert alert.evidence == "ada declared 61.9 GiB · ben 39.8 · cyn 8.0 and 2 more · 49.1 of 79.1 free"
    assert alert.pids == (100, 101, 102, 103, 104, 105)


def test_it_is_a_warning_once_memory_is_near_its_limit() -> None:
    three = [part(0.4)] * 3
    bench = committed(*three, used_gib=72)
    assert only(bench, OVERCOMMITTED).severity is WARNING
    committed(*three, used_gib=70.5, bench=bench)
    assert only(bench, OVERCOMMITTED).severity is WARNING
    committed(*three, used_gib=60, bench=bench)
    assert only(bench, OVERCOMMITTED).severity is NOTE
    committed(*three[:2], bench=bench)
    assert bench.of(OVERCOMMITTED) == []


def test_a_process_under_a_shared_limit_counts_in_that_alone() -> None:
    both = part(0.6)
    shared = cap(20, scope="container 3f9a1c", kind=Kind.GRANT)
    under_both = msgspec.structs.replace(
        both,
        declarations=both.declarations + shared.declarations,
        limits=both.limits + tuple(msgspec.structs.replace(one, declaration=1) for one in shared.limits),
    )
    assert committed(under_both, under_both).of(OVERCOMMITTED) == []
    assert only(committed(part(0.6), part(0.6)), OVERCOMMITTED).title.endswith("120 % declared")


def test_missing_memory_readings_and_lists_leave_it_as_it_is() -> None:
    three = [part(0.4)] * 3
    assert committed(*three, memory=Memory()).last.active == ()
    bench = committed(*three)
    committed(*three[:1], memory=Memory(), bench=bench)
    committed(*three[:1], holdings_note="incomplete", bench=bench)
    assert len(bench.of(OVERCOMMITTED)) == 1


# Past the start size


def start(value: float, basis: Basis = Basis.TOTAL, **changes: Any) -> Declared:
    fields: dict[str, Any] = {"channel": "lib.cnmem", "kind": Kind.START, "basis": basis, "value": value}
    return Declared(declarations=(Declaration(**{"effective": True, **fields, **changes}),))


@pytest.mark.parametrize(
    ("declared", "held", "noted"),
    [
        (start(0.3), 24.4, False),
        (start(0.3), 24.5, True),
        (start(4 * GIB, Basis.BYTES), 4.5, False),
        (start(4 * GIB, Basis.BYTES), 4.7, True),
        (start(0.3, Basis.FREE_AT_START), 70, False),
        (start(0.3, effective=False), 70, False),
        (Declared(declarations=(Declaration(channel="x", kind=Kind.START, effective=True),)), 70, False),
    ],
)
def test_growing_past_a_start_size_is_a_note(declared: Declared, held: float, noted: bool) -> None:
    bench = Bench()
    told = feed(bench, declared, *[held] * 40)
    assert told == [()] * 10 + [("+note",) if noted else ()] + [()] * 29
    if noted:
        assert only(bench, OUTGROWN).title.startswith("ada grew past the start size on GPU 0: ")
        assert words(bench.feed(gpu(0))) == ("cleared",)


def test_without_a_total_or_a_size_a_start_is_not_judged() -> None:
    bench = Bench()
    feed(bench, start(0.3), *[Reason.DENIED] * 12)
    for _ in range(12):
        bench.feed(card((100, 70.0), memory=memory(70, total=TOTAL, free=Reason.ERROR)), people=[process(100)])
        bench.feed(card((101, 70.0), memory=Memory()), people=[process(101, declared=start(0.3))])
    assert bench.last.active == ()
