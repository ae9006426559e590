"""Declared shares against held memory: raised, held and cleared, sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.engine import FORGOTTEN
from gpuwatch.alerts.limits import Allowances, Limits
from gpuwatch.alerts.rules.shares import OUTGROWN, OVERCOMMITTED, OVERSHOOT, RULES, allowance
from gpuwatch.model import (
    LIMITS,
    Basis,
    Confidence,
    Declaration,
    Declared,
    Gpu,
    Health,
    Kind,
    Knowledge,
    Limit,
    Margin,
    Memory,
    Reason,
    SourceState,
)
from tests.support.alerting import Bench, cap, card, feed, only, overshooting, part, uuid, words
from tests.support.builders import GIB, TOTAL, gpu, memory, process

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL
UNREADABLE = Declared(knowledge=Knowledge.UNREADABLE)


# Overshoot: how far


@pytest.mark.parametrize(
    ("used", "limit", "allowances", "level"),
    [
        # PyTorch 1.8, CUDA 10.1, half of 10989 MiB (pytorch/pytorch#58466).
        (6509, 5494.5, {"margin": Margin.FRAMEWORK}, WARNING),
        (6509, 5494.5, {"margin": Margin.EAGER}, None),
        # TensorFlow 2.5, memory_limit=1024 on a laptop's GPU; TensorFlow Serving, half of a T4 (serving#1668).
        (1455, 1024, {}, None),
        (7789, 7554.5, {}, None),
        (4011, 3777.25, {}, None),
        # On each side of limit + allowance, and of the second step.
        (10840, 10240, {}, None),
        (10841, 10240, {}, WARNING),
        (10840 + 1024, 10240, {}, WARNING),
        (10840 + 1025, 10240, {}, CRITICAL),
        (20480 + 600 + 2048, 20480, {}, WARNING),
        (20480 + 600 + 2049, 20480, {}, CRITICAL),
        (10240 + 64, 10240, {"margin": Margin.EXACT}, None),
        (10240 + 65, 10240, {"margin": Margin.EXACT}, WARNING),
        (10240 + 65, 10240, {"margin": Margin.EXACT, "collective": True}, WARNING),
        (10240 + 1112, 10240, {"collective": True}, None),
        (10240 + 1113, 10240, {"collective": True}, WARNING),
        (10240 + 1631, 10240, {"margin": Margin.BUDGET}, None),
        (10240 + 1632, 10240, {"margin": Margin.BUDGET}, WARNING),
    ],
)
def test_what_is_over_by_how_much(used: int, limit: float, allowances: dict[str, Any], level: Severity | None) -> None:
    bench = Bench()
    feed(bench, cap(limit / 1024, **allowances), *[used / 1024] * 12)
    assert [alert.severity for alert in bench.of(OVERSHOOT)] == ([] if level is None else [level])


def test_a_budget_has_at_least_a_gib() -> None:
    limit = Limit(gpu=uuid(), bytes=GIB, declaration=0, margin=Margin.BUDGET)
    assert [allowance(limit, total) for total in (None, 24 * GIB, 100 * GIB)] == [GIB, GIB, 2 * GIB]


def test_allowances_are_the_users() -> None:
    allowances = Allowances(framework=0, second_step=0, after=0.1)
    bench = Bench(Limits(allowances=allowances, quiet=0))
    assert feed(bench, cap(10), 10, 11.1, 11.1, 11.1) == [(), (), (), ("+critical",)]


@pytest.mark.parametrize(
    ("confidence", "level", "doubt"),
    [
        (Confidence.CERTAIN, CRITICAL, ""),
        (Confidence.LIKELY, CRITICAL, ""),
        (Confidence.STALE, WARNING, "the file was edited after the process started"),
        (Confidence.GUESS, NOTE, "a guess"),
    ],
)
def test_doubt_caps_the_severity_and_is_said(confidence: Confidence, level: Severity, doubt: str) -> None:
    alert = only(overshooting(cap(10, confidence=confidence)), OVERSHOOT)
    assert alert.severity is level
    assert alert.evidence.endswith(doubt or "per_process_gpu_memory_fraction = 0.4")


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind not in LIMITS])
def test_what_is_no_limit_is_never_overshot(kind: Kind) -> None:
    said = Declaration(channel="x", kind=kind, basis=Basis.TOTAL, value=0.1, effective=True)
    bench = Bench()
    feed(bench, Declared(declarations=(said,)), *[70] * 20)
    assert bench.of(OVERSHOOT) == []
    assert all(alert.severity is NOTE for alert in bench.last.active)


@pytest.mark.parametrize("declared", [None, Declared(), UNREADABLE, Declared(knowledge=Knowledge.PENDING)])
def test_who_declared_nothing_overshoots_nothing(declared: Declared | None) -> None:
    bench = Bench()
    feed(bench, declared, *[70] * 20)
    assert bench.last.active == ()


# Overshoot: how long


def test_it_takes_three_samples_that_span_ten_seconds() -> None:
    assert feed(Bench(), cap(10), *[11] * 12) == [()] * 10 + [("+warning",), ()]
    slow = Bench()
    assert [feed(slow, cap(10), 11, seconds=5.0, interval=5.0) for _ in range(4)] == [[()], [()], [("+warning",)], [()]]
    slower = Bench(rules=RULES)
    assert [feed(slower, cap(10), 11, seconds=60.0) for _ in range(3)] == [[()], [()], [("+warning",)]]


def test_the_second_step_needs_its_own_time() -> None:
    assert feed(Bench(), cap(10), *[11] * 8, *[20] * 11) == [()] * 10 + [("+warning",)] + [()] * 7 + [("+critical",)]


def test_a_sampler_whose_clock_starts_anew_counts_from_there() -> None:
    bench = Bench()
    feed(bench, cap(10), *[11] * 9)
    person = process(100, declared=cap(10))
    for second in range(1, 12):
        assert bench.of(OVERSHOOT) == []
        bench.feed(card((100, 11.0), sampled=float(second)), people=[person], fresh=False)
    assert len(bench.of(OVERSHOOT)) == 1


# Overshoot: clearing


def test_it_clears_below_the_allowance_less_a_margin() -> None:
    bench = overshooting(cap(10), 11)
    # 600 MiB over the limit raises, 472 clears.
    assert feed(bench, cap(10), *[10 + 473 / 1024] * 5) == [()] * 5
    assert feed(bench, cap(10), *[10 + 472 / 1024] * 3) == [(), (), ("cleared",)]


def test_one_that_is_exact_clears_at_its_limit() -> None:
    bench = overshooting(cap(10, margin=Margin.EXACT), 10.2)
    assert feed(bench, cap(10, margin=Margin.EXACT), *[10.01] * 5) == [()] * 5
    assert feed(bench, cap(10, margin=Margin.EXACT), *[10] * 3) == [(), (), ("cleared",)]


def test_a_holding_that_is_not_known_neither_raises_nor_clears() -> None:
    assert feed(Bench(), cap(10), *[Reason.UNSUPPORTED] * 20) == [()] * 20
    bench = overshooting(cap(10), 11)
    before = only(bench, OVERSHOOT)
    assert feed(bench, cap(10), *[Reason.NO_SAMPLE] * 20) == [()] * 20
    assert only(bench, OVERSHOOT) == before
    assert feed(bench, cap(10), *[5] * 3) == [(), (), ("cleared",)]


# Overshoot: words


def test_title_and_evidence_name_all_that_one_needs_to_act() -> None:
    bench = Bench()
    declared = part(0.4)
    feed(bench, declared, *[49.0] * 10, 51.0, 49.6)
    alert = only(bench, OVERSHOOT)
    assert alert.title == "ada holds 62 % of GPU 0, declared 40 %"
    assert alert.evidence == (
        "17.7 GiB over 31.9 · peak 51.0 · +0.6 last minute · pid 100 python · "
        "train.py:12 per_process_gpu_memory_fraction = 0.4"
    )
    assert alert.peak == 51 * GIB
    assert (alert.gpu, alert.index, alert.pids) == (uuid(), 0, (100,))
    assert alert.subject == f"100:100 {uuid()}"


def test_a_limit_in_bytes_and_shares_that_look_alike_are_told_in_gib() -> None:
    assert only(overshooting(cap(10)), OVERSHOOT).title == "ada holds 50.0 GiB of GPU 0, declared 10.0"
    alike = overshooting(part(0.406), 32.95)
    assert only(alike, OVERSHOOT).title == "ada holds 33.0 GiB of GPU 0, declared 32.3"


def test_a_fraction_of_a_mig_instance_is_no_fraction_of_the_gpu() -> None:
    declared = part(0.5, kind=Kind.CAP)
    of_instance = msgspec.structs.replace(
        declared, limits=(msgspec.structs.replace(declared.limits[0], bytes=5 * GIB),)
    )
    assert only(overshooting(of_instance), OVERSHOOT).title == "ada holds 50.0 GiB of GPU 0, declared 5.0"


def test_an_owner_who_is_not_visible_is_a_pid() -> None:
    bench = Bench()
    person = process(100, user="", uid=None, name="", declared=cap(10, where="environment", line=0, text=""))
    for _ in range(11):
        bench.feed(card((100, 50.0)), people=[person])
    alert = only(bench, OVERSHOOT)
    assert alert.title.startswith("pid 100 holds 50.0 GiB")
    assert alert.evidence.endswith("· pid 100 · environment per_process_gpu_memory_fraction")


# Overshoot: whose


def scope_of(*held: tuple[int, float | Reason], seconds: int = 11, bench: Bench | None = None, **changes: Any) -> Bench:
    """Let processes of one genv id, 10 GiB in all, hold so much of GPU 0 for some seconds."""
    bench = bench or Bench()
    agreed = cap(10, scope="genv 12", margin=Margin.EXACT, kind=Kind.GRANT)
    people = [process(pid, user="ada" if pid < 200 else "ben", declared=agreed) for pid, _ in held]
    for _ in range(seconds):
        bench.feed(card(*held, **changes), people=people)
    return bench


def test_the_processes_of_a_scope_count_together() -> None:
    assert scope_of((100, 4.0), (101, 6.0)).last.active == ()
    alert = only(scope_of((100, 4.0), (101, 6.5)), OVERSHOOT)
    assert (alert.severity, alert.pids, alert.subject) == (WARNING, (101, 100), f"genv 12 {uuid()}")
    assert alert.title == "ada holds 10.5 GiB of GPU 0, declared 10.0"
    assert "pid 101 python, 100 python · genv 12 · train.py:12" in alert.evidence


def test_a_scope_of_many_names_some() -> None:
    alert = only(scope_of(*((pid, 4.0) for pid in (100, 101, 102, 200, 201))), OVERSHOOT)
    assert alert.title == "ada, ben hold 20.0 GiB of GPU 0, declared 10.0"
    assert "pid 100 python, 101 python, 102 python and 2 more · " in alert.evidence


def test_a_scope_goes_on_with_other_processes() -> None:
    bench = scope_of((100, 4.0), (101, 6.5))
    scope_of((100, 4.0), (102, 6.5), bench=bench, seconds=3)
    assert only(bench, OVERSHOOT).pids == (102, 100)
    assert bench.last.cleared == ()


def test_a_part_of_a_scope_raises_once_it_is_over_and_never_clears() -> None:
    bench = scope_of((100, 11.0), (101, Reason.UNSUPPORTED))
    assert only(bench, OVERSHOOT).title == "ada holds at least 11.0 GiB of GPU 0, declared 10.0"
    scope_of((100, 5.0), (101, Reason.UNSUPPORTED), bench=bench, seconds=20)
    assert only(bench, OVERSHOOT).title == "ada holds at least 11.0 GiB of GPU 0, declared 10.0"
    scope_of((100, 5.0), (101, 1.0), bench=bench, seconds=3, holdings_note="graphics processes are not listed")
    assert len(bench.of(OVERSHOOT)) == 1
    scope_of((100, 5.0), (101, 1.0), bench=bench, seconds=3)
    assert bench.of(OVERSHOOT) == []


def test_each_rank_on_one_gpu_has_a_cap_of_its_own() -> None:
    bench = Bench()
    people = [process(pid, declared=cap(10, collective=True)) for pid in range(100, 104)]
    for _ in range(12):
        bench.feed(card(*((pid, 11.0) for pid in range(100, 104)), used_gib=44), people=people)
    assert bench.of(OVERSHOOT) == []
    for _ in range(12):
        bench.feed(card((100, 11.0), (101, 11.2), (102, 11.0), (103, 13.0), used_gib=46), people=people)
    assert [(alert.pids, alert.severity) for alert in bench.of(OVERSHOOT)] == [((103,), CRITICAL), ((101,), WARNING)]


def test_one_process_is_judged_on_each_gpu() -> None:
    bench = Bench()
    person = process(100, declared=cap(10, 0, 1))
    for _ in range(11):
        bench.feed(card((100, 11.0)), card((100, 5.0), index=1), people=[person])
    assert only(bench, OVERSHOOT).index == 0
    for _ in range(11):
        bench.feed(card((100, 11.0)), card((100, 15.0), index=1), people=[person])
    assert [alert.index for alert in bench.of(OVERSHOOT)] == [1, 0]


@pytest.mark.parametrize("trouble", [{"health": Health.LOST}, {"unreliable": True}, {"uuid": ""}])
def test_a_gpu_that_cannot_be_judged_is_not(trouble: dict[str, Any]) -> None:
    bench = Bench()
    people = [process(100, declared=cap(10))]
    for _ in range(12):
        bench.feed(card((100, 60.0), **trouble), people=people)
    assert bench.of(OVERSHOOT) == []


# The end of a process


@pytest.mark.parametrize(
    "untrusted",
    [
        gpu(0, health=Health.SILENT),
        gpu(0, sampled=0.0),
        gpu(0, holdings_note="the compute list did not come"),
        gpu(0, unreliable=True),
        gpu(1),
    ],
    ids=["silent", "never sampled", "list missing", "list senseless", "gpu not listed"],
)
def test_where_the_list_cannot_be_trusted_it_goes_on_for_a_while(untrusted: Gpu) -> None:
    bench = overshooting(cap(10))
    bench.feed(untrusted, fresh=False)
    bench.feed(untrusted, fresh=False, seconds=FORGOTTEN - 1)
    assert len(bench.of(OVERSHOOT)) == 1
    bench.feed(untrusted, fresh=False)
    assert bench.of(OVERSHOOT) == []


def test_a_source_in_trouble_ends_no_alert() -> None:
    bench = overshooting(cap(10))
    bench.feed(gpu(0), state=SourceState.DRIVER_DOWN)
    assert len(bench.of(OVERSHOOT)) == 1


@pytest.mark.parametrize("declared", [None, UNREADABLE, Declared(knowledge=Knowledge.PENDING)])
def test_declarations_that_cannot_be_read_for_a_moment_end_nothing(declared: Declared | None) -> None:
    bench = overshooting(cap(10))
    assert feed(bench, declared, *[50] * 5) == [()] * 5
    assert len(bench.of(OVERSHOOT)) == 1
    assert feed(bench, cap(10), 50) == [()]
    assert feed(bench, Declared(), 50) == [("cleared",)]


@pytest.mark.uncounted
def test_hundreds_of_short_lived_processes_leave_nothing_behind() -> None:
    bench = Bench(rules=RULES)
    for generation in range(5):
        pids = range(1000 + 100 * generation, 1100 + 100 * generation)
        people = [process(pid, declared=cap(0.01, margin=Margin.EXACT)) for pid in pids]
        bench.feed(card(*((pid, 0.1) for pid in pids)), people=people)
        assert len(bench.engine._conditions) <= 100
    bench.feed(gpu(0, used_gib=40))
    assert bench.engine._conditions == {}
    for generation in range(20):
        people = [process(generation, declared=cap(0.01, margin=Margin.EXACT))]
        bench.feed(card((generation, 0.1), holdings_note="never complete"), people=people, seconds=100.0)
    assert len(bench.engine._conditions) <= FORGOTTEN / 100 + 1


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
