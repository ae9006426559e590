"""Rules about declared shares and chosen GPUs: what each finds in one snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Allowances, Limits
from gpuwatch.alerts.rule import Observation, RuleContext
from gpuwatch.alerts.rules import RULES
from gpuwatch.alerts.rules.devices import DISAGREE, MISSPELT, UNUSED
from gpuwatch.alerts.rules.idle import DEAD, IDLE
from gpuwatch.alerts.rules.shares import OUTGROWN, OVERCOMMITTED, OVERSHOOT, allowance
from gpuwatch.history import HistoryView, Idle
from gpuwatch.model import (
    LIMITS,
    Basis,
    Confidence,
    Declaration,
    Declared,
    Hint,
    Holding,
    Instance,
    Kind,
    Knowledge,
    Limit,
    Margin,
    Memory,
    Order,
    Reason,
    Visible,
)
from tests.support.alerting import Past, cap, card, finding, observed, part, severities_of, uuid
from tests.support.builders import (
    GIB,
    gpu,
    holding,
    process,
    snapshot,
)

NOTE, WARNING, CRITICAL = Severity


# Uses more than declared


def overshoot(held: float | Reason, declared: Declared | None, **changes: Any) -> list[Observation]:
    """Return what the rule finds where ada's PID 100 holds so many GiB of GPU 0."""
    context = RuleContext(
        snapshot([card((100, held), **changes)], [process(100, declared=declared)]),
        HistoryView(),
        Limits(),
        [(OVERSHOOT, f"100:100 {uuid()}")],
    )
    (rule,) = [one for one in RULES if one.name == OVERSHOOT]
    return list(rule.find(context))


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
    (seen,) = overshoot(used / 1024, cap(limit / 1024, **allowances))
    assert seen.level is level
    assert seen.raise_for == Allowances().after


def test_a_budget_has_at_least_a_gib() -> None:
    limit = Limit(gpu=uuid(), bytes=GIB, declaration=0, margin=Margin.BUDGET)
    assert [allowance(limit, total) for total in (None, 24 * GIB, 100 * GIB)] == [GIB, GIB, 2 * GIB]


@pytest.mark.parametrize(
    ("held", "margin", "keeps"),
    [
        # 600 MiB over the limit raises, 472 clears; one that is exact clears at its limit.
        (10 + 473 / 1024, Margin.FRAMEWORK, WARNING),
        (10 + 472 / 1024, Margin.FRAMEWORK, None),
        (10.01, Margin.EXACT, WARNING),
        (10, Margin.EXACT, None),
    ],
)
def test_it_clears_below_the_allowance_less_a_margin(held: float, margin: Margin, keeps: Severity | None) -> None:
    (seen,) = overshoot(held, cap(10, margin=margin))
    assert (seen.level, seen.keeps, seen.partial) == (None, keeps, False)


@pytest.mark.parametrize(
    ("confidence", "level", "doubt"),
    [
        (Confidence.CERTAIN, CRITICAL, "per_process_gpu_memory_fraction = 0.4"),
        (Confidence.LIKELY, CRITICAL, "per_process_gpu_memory_fraction = 0.4"),
        (Confidence.STALE, WARNING, "the file was edited after the process started"),
        (Confidence.GUESS, NOTE, "a guess"),
    ],
)
def test_doubt_caps_the_severity_and_is_said(confidence: Confidence, level: Severity, doubt: str) -> None:
    (seen,) = overshoot(50, cap(10, confidence=confidence))
    assert (seen.level, seen.keeps) == (level, level)
    assert seen.detail.endswith(doubt)


@pytest.mark.parametrize(
    "declared",
    [
        None,
        Declared(),
        Declared(knowledge=Knowledge.UNREADABLE),
        Declared(knowledge=Knowledge.PENDING),
        *(
            Declared(declarations=(Declaration(channel="x", kind=kind, basis=Basis.TOTAL, value=0.1, effective=True),))
            for kind in Kind
            if kind not in LIMITS
        ),
    ],
)
def test_what_is_no_limit_is_never_overshot(declared: Declared | None) -> None:
    assert overshoot(70, declared) == []


def test_a_gpu_without_a_plausible_list_or_a_uuid_is_not_judged() -> None:
    assert overshoot(60, cap(10), unreliable=True) == []
    assert overshoot(60, cap(10), uuid="") == []


OF_INSTANCE = part(0.5)
OF_INSTANCE = msgspec.structs.replace(
    OF_INSTANCE, limits=(msgspec.structs.replace(OF_INSTANCE.limits[0], bytes=5 * GIB),)
)


@pytest.mark.parametrize(
    ("held", "declared", "title"),
    [
        (49.6, part(0.4), "ada holds 62 % of GPU 0, declared 40 %"),
        (50.0, cap(10), "ada holds 50.0 GiB of GPU 0, declared 10.0"),
        # Shares that look alike, and a fraction of a MIG instance.
        (32.95, part(0.406), "ada holds 33.0 GiB of GPU 0, declared 32.3"),
        (50.0, OF_INSTANCE, "ada holds 50.0 GiB of GPU 0, declared 5.0"),
    ],
)
def test_the_title_of_an_overshoot(held: float, declared: Declared, title: str) -> None:
    (seen,) = overshoot(held, declared)
    assert seen.title == title
    assert seen.evidence.startswith(f"{held - float(declared.limits[0].bytes / GIB):.1f} GiB over ")
    assert seen.detail == "pid 100 python · train.py:12 per_process_gpu_memory_fraction = 0.4"
    assert (seen.pids, seen.owners, seen.value) == ((100,), ("ada",), round(held * GIB))


SCOPE = cap(10, scope="genv 12", margin=Margin.EXACT, kind=Kind.GRANT)


@pytest.mark.parametrize(
    ("held", "note", "level", "title", "partial"),
    [
        ({100: 4.0, 101: 6.0}, "", None, "GPU 0: ada is back within the declared share", False),
        ({100: 4.0, 101: 6.5}, "", WARNING, "ada holds 10.5 GiB of GPU 0, declared 10.0", False),
        (
            dict.fromkeys((100, 101, 102, 200, 201), 4.0),
            "",
            CRITICAL,
            "ada, ben hold 20.0 GiB of GPU 0, declared 10.0",
            False,
        ),
        # A sum with an unknown part, or from an incomplete list, may raise, and never clears.
        (
            {100: 11.0, 101: Reason.UNSUPPORTED},
            "",
            WARNING,
            "ada holds at least 11.0 GiB of GPU 0, declared 10.0",
            True,
        ),
        ({100: 5.0, 101: 1.0}, "graphics processes are not listed", None, "", True),
    ],
)
def test_the_processes_of_a_scope_count_together(
    held: dict[int, float | Reason], note: str, level: Severity | None, title: str, partial: bool
) -> None:
    people = [process(pid, "ada" if pid < 200 else "ben", declared=SCOPE) for pid in held]
    shown = snapshot([card(*held.items(), holdings_note=note)], people)
    (rule,) = [one for one in RULES if one.name == OVERSHOOT]
    (seen,) = rule.find(RuleContext(shown, HistoryView(), Limits(), [(OVERSHOOT, f"genv 12 {uuid()}")]))
    assert (seen.level, seen.partial, seen.subject) == (level, partial, f"genv 12 {uuid()}")
    assert title in seen.title
    assert ("genv 12" in seen.detail) is (level is not None)
    assert ("and 2 more" in seen.detail) is (len(held) > 3)


def test_each_rank_and_each_gpu_has_a_limit_of_its_own() -> None:
    people = [process(pid, declared=cap(10, 0, 1, collective=True)) for pid in range(100, 104)]
    first = card((100, 11.0), (101, 11.2), (102, 11.0), (103, 13.0), used_gib=46)
    found = observed(OVERSHOOT, snapshot([first, card((100, 15.0), index=1)], people))
    assert [(one.gpu.index, one.pids, one.level) for one in found if one.gpu and one.level] == [
        (0, (101,), WARNING),
        (0, (103,), CRITICAL),
        (1, (100,), CRITICAL),
    ]


# Overbooked


def booked(*declared: Declared, used_gib: float = 30.0, **changes: Any) -> Observation | None:
    """Return what is found where processes of several people with these declarations are on GPU 0."""
    owners = ("ada", "ada", "ben", "cyn", "dov", "eve")
    people = [process(100 + n, owners[n], declared=one) for n, one in enumerate(declared)]
    shown = card(*((one.pid, 5.0) for one in people), used_gib=used_gib, **changes)
    return next(iter(observed(OVERCOMMITTED, snapshot([shown], people))), None)


@pytest.mark.parametrize(
    ("fractions", "title"),
    [
        ((0.4, 0.4, 0.4), "GPU 0 overbooked: 120 % declared"),
        ((0.5, 0.5, 0.25), "GPU 0 overbooked: 125 % declared"),
        ((0.4, 0.4, 0.2), None),
        ((0.4, 0.5), None),
    ],
)
def test_a_gpu_that_is_promised_twice_is_a_note(fractions: Sequence[float], title: str | None) -> None:
    seen = booked(*(part(each) for each in fractions))
    assert seen is not None
    assert (seen.level, seen.title if title else None) == (NOTE if title else None, title)


def test_limits_in_bytes_are_summed_and_people_named() -> None:
    seen = booked(cap(30), part(0.4), part(0.5), cap(8), cap(1), cap(1))
    assert seen is not None
    assert seen.evidence == "ada declared 61.9 GiB · ben 39.8 · cyn 8.0 and 2 more · 49.1 of 79.1 free"
    assert (seen.pids, seen.owners[:2]) == ((100, 101, 102, 103, 104, 105), ("ada", "ben"))


@pytest.mark.parametrize(("used", "level", "keeps"), [(72, WARNING, WARNING), (70.5, NOTE, WARNING), (60, NOTE, NOTE)])
def test_it_is_a_warning_once_memory_is_near_its_limit(used: float, level: Severity, keeps: Severity) -> None:
    seen = booked(*[part(0.4)] * 3, used_gib=used)
    assert seen is not None
    assert (seen.level, seen.keeps) == (level, keeps)


def test_a_shared_limit_counts_once_and_what_is_not_known_decides_nothing() -> None:
    both, shared = part(0.6), cap(20, scope="container 3f9a1c", kind=Kind.GRANT)
    under_both = msgspec.structs.replace(
        both,
        declarations=both.declarations + shared.declarations,
        limits=both.limits + tuple(msgspec.structs.replace(one, declaration=1) for one in shared.limits),
    )
    seen, alone = booked(under_both, under_both), booked(both, both, holdings_note="incomplete")
    assert seen is not None
    assert alone is not None
    assert (seen.level, alone.level, alone.partial) == (None, NOTE, True)
    assert booked(both, both, memory=Memory()) is None


# Past the start size


def start(value: float | None, basis: Basis = Basis.TOTAL, **changes: Any) -> Declared:
    fields: dict[str, Any] = {"channel": "lib.cnmem", "kind": Kind.START, "basis": basis, "value": value}
    return Declared(declarations=(Declaration(**{"effective": True, **fields, **changes}),))


@pytest.mark.parametrize(
    ("declared", "held", "is_note"),
    [
        (start(0.3), 24.4, False),
        (start(0.3), 24.5, True),
        (start(4 * GIB, Basis.BYTES), 4.5, False),
        (start(4 * GIB, Basis.BYTES), 4.7, True),
        (start(0.3, Basis.FREE_AT_START), 70, False),
        (start(0.3, effective=False), 70, False),
        (start(None), 70, False),
        (start(0.3), Reason.DENIED, False),
    ],
)
def test_growing_past_a_start_size_is_a_note(declared: Declared, held: float | Reason, is_note: bool) -> None:
    people = [process(100, declared=declared)]
    found = observed(OUTGROWN, snapshot([card((100, held))], people))
    assert [one.level for one in found] == [NOTE] * is_note
    assert all(one.title.startswith("ada grew past the start size on GPU 0: ") for one in found)
    assert severities_of(OUTGROWN, card((100, 70.0), memory=Memory()), people=[process(100, declared=start(0.3))]) == []


# Processes on GPUs that they did not choose


def sees(*gpus: int | str, text: str = "CUDA_VISIBLE_DEVICES=0", **changes: Any) -> Declared:
    """Return a process's choice of devices."""
    uuids = tuple(uuid(one) if isinstance(one, int) else one for one in gpus)
    return Declared(visible=Visible(**{"gpus": uuids, "text": text, "where": "environment", **changes}))


def placed(rule: str, declared: Declared | None, *places: tuple[int, Holding], past: HistoryView | None = None) -> Any:
    """Return what a rule finds of ada's PID 100 on these GPUs of four."""
    cards = [gpu(index, used_gib=40, holdings=[one for at, one in places if at == index]) for index in range(4)]
    return observed(rule, snapshot(cards, [process(100, declared=declared)]), past)


@pytest.mark.parametrize(
    ("declared", "title"),
    [
        (sees(), "holds 4.0 GiB on GPU 1, 2, its CUDA_VISIBLE_DEVICES=0 shows none"),
        (sees(3, 0), "holds 4.0 GiB on GPU 1, 2, its CUDA_VISIBLE_DEVICES=0 shows only GPU 0, 3"),
        (sees(1), "holds 2.0 GiB on GPU 2, its CUDA_VISIBLE_DEVICES=0 shows only GPU 1"),
        (sees("GPU-of-another-machine"), "holds 4.0 GiB on GPU 1, 2, its CUDA_VISIBLE_DEVICES=0 shows others"),
        (sees(1, order=Order.IDENTICAL), "holds 2.0 GiB on GPU 2, its CUDA_VISIBLE_DEVICES=0 shows only GPU 1"),
        (sees(0, order=Order.HEURISTIC), "is on 2 GPUs, its CUDA_VISIBLE_DEVICES=0 shows only 1"),
        (sees(0, order=Order.HEURISTIC, doubtful=True), None),
        (sees(0, 3, order=Order.HEURISTIC), None),
        (sees(1, 2), None),
        (sees(0, text=""), None),
        (msgspec.structs.replace(sees(0), knowledge=Knowledge.UNREADABLE), None),
        (Declared(), None),
        (None, None),
    ],
)
def test_which_devices_disagree(declared: Declared | None, title: str | None) -> None:
    found = placed(DISAGREE, declared, (1, holding(100, 2.0)), (2, holding(100, 2.0)))
    assert [one.title.removeprefix("pid 100 (ada) ") for one in found] == ([title] if title else [])
    for one in found:
        assert one.evidence == "environment CUDA_VISIBLE_DEVICES=0 · python train.py"
        assert (one.level, one.subject, one.pids, one.raise_for) == (WARNING, "100:100", (100,), 10.0)


@pytest.mark.parametrize(
    ("held", "words"),
    [
        (holding(100, 1.0, kind="G"), None),
        (holding(100, 0.0), None),
        (holding(100, 1.0, kind="C+G"), "holds 1.0 GiB on GPU 1"),
        (holding(100, 1.0, kind="M"), "holds 1.0 GiB on GPU 1"),
        (holding(100, memory=Reason.UNSUPPORTED), "is on GPU 1"),
    ],
)
def test_only_what_can_compute_counts(held: Holding, words: str | None) -> None:
    titles = [one.title for one in placed(DISAGREE, sees(0), (1, held))]
    assert [str(words) in title for title in titles] == ([True] if words else [])


def test_a_mig_instance_stands_for_its_gpu() -> None:
    instance = Instance(uuid="MIG-1", name="1g.10gb", gpu_instance=1, compute_instance=0)
    held = [holding(100, 1.0, gpu_instance=1), holding(100, 2.0, gpu_instance=2)]
    shown = gpu(0, used_gib=3, holdings=held, instances=(instance,), mig=True)
    for name, count in (("MIG-1", 0), ("MIG-2", 1)):
        person = process(100, declared=sees(name, text=f"CUDA_VISIBLE_DEVICES={name}"))
        found = observed(DISAGREE, snapshot([shown], [person]))
        assert ["holds 3.0 GiB on GPU 0" in one.title for one in found] == [True] * count


def test_a_long_value_is_cut_in_the_title_and_a_hidden_owner_is_not_named() -> None:
    value = "CUDA_VISIBLE_DEVICES=" + ",".join(f"GPU-{n:08x}" for n in range(9))
    person = process(100, user="", uid=None, command="", declared=sees(0, text=value, note="-1 hides all"))
    seen = finding(DISAGREE, gpu(1, used_gib=40, holdings=[holding(100, 2.0)]), people=[person])
    assert seen.title.startswith("pid 100 holds 2.0 GiB on GPU 1")
    assert len(seen.title) < 120
    assert f"{value} · -1 hides all" in seen.evidence


# GPUs that a process does not use


@pytest.mark.parametrize(
    ("sizes", "busy", "level", "title"),
    [
        ((10, 10, 10, 10), (0,), WARNING, "fills GPU 1, 2, 3 and computes on GPU 0 alone"),
        ((75, 45, 0.3), (0,), WARNING, "fills GPU 1 and computes on GPU 0 alone"),
        ((10, 70), (1,), None, ""),
        ((10, 5, 0.3), (0,), WARNING, "fills GPU 1 and computes on GPU 0 alone"),
        ((3, 312 / 1024, 312 / 1024), (0,), NOTE, "opened GPU 1, 2 (312 MiB each) and computes on GPU 0 alone"),
        ((3, 0.3, 0.5), (0,), NOTE, "opened GPU 1, 2 (307 MiB to 512 MiB) and computes on GPU 0 alone"),
        ((0.5, 3), (1,), NOTE, "opened GPU 0 (512 MiB) and computes on GPU 1 alone"),
        ((10, 3), (0,), None, ""),
        ((10, 0.01), (0,), None, ""),
        ((10, 10), (0, 1), None, ""),
        ((10, 10), (), None, ""),
        ((10,), (0,), None, ""),
    ],
)
def test_who_is_on_many_gpus_and_computes_on_one(
    sizes: Sequence[float], busy: Sequence[int], level: Severity | None, title: str
) -> None:
    places = [(index, holding(100, size)) for index, size in enumerate(sizes)]
    idle = {(index, 100): Idle(0.0 if index in busy else 60.0, index not in busy) for index, _ in places}
    found = placed(UNUSED, None, *places, past=Past(idle))
    assert [(one.level, one.title.removeprefix("pid 100 (ada) ")) for one in found] == [(level, title)] * bool(level)
    assert [one.gpu.index for one in found] == [*busy] * bool(level)
    short = Past(idle | {(index, 100): Idle(59.0, True) for index, _ in places if index not in busy})
    assert placed(UNUSED, None, *places, past=short) == []


@pytest.mark.parametrize("missing", [{"idle": None}, {"memory": Reason.NO_SAMPLE}])
def test_without_its_figures_nothing_is_judged_and_nothing_ends(missing: dict[str, Any]) -> None:
    idle = {(0, 100): Idle(0.0, False)} | ({} if "idle" in missing else {(1, 100): Idle(60.0, True)})
    fields = {"memory": missing["memory"]} if "memory" in missing else {"gib": 10.0}
    (seen,) = placed(UNUSED, None, (0, holding(100, 10)), (1, holding(100, **fields)), past=Past(idle))
    assert (seen.level, seen.partial) == (None, True)


def test_a_misspelt_variable_is_a_note_and_on_several_gpus_a_warning() -> None:
    slip = "CUDA_VISIBLE_DIVICES has no effect; CUDA_VISIBLE_DEVICES was meant"
    hints = (
        Hint(rule="dynamic", words="not this"),
        Hint(rule="misspelt", words=slip),
        Hint(rule="misspelt", words="another"),
    )
    (seen,) = placed(MISSPELT, Declared(hints=hints), (0, holding(100)))
    assert (seen.level, seen.title) == (NOTE, f"pid 100 (ada): {slip}")
    assert seen.evidence == "another · on GPU 0 · python train.py"
    (seen,) = placed(MISSPELT, Declared(hints=hints), (0, holding(100)), (2, holding(100)))
    assert (seen.level, seen.evidence) == (WARNING, "another · on GPU 0, 2 · python train.py")
    assert placed(MISSPELT, Declared(hints=hints[:1]), (0, holding(100))) == []


def test_a_process_that_proc_does_not_know_is_left_alone() -> None:
    shown = msgspec.structs.replace(snapshot([gpu(0, used_gib=40, holdings=[holding(7, 30.0)])]), processes=())
    for rule in (DISAGREE, UNUSED, MISSPELT, OVERSHOOT, OUTGROWN, IDLE, DEAD):
        assert observed(rule, shown) == []
