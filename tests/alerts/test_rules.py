"""Rules: their section in the guide, and a table of what each finds in one snapshot with its history."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.alerts.rule import Observation, RuleContext
from gpuwatch.alerts.rules import RULE_NAMES, RULES
from gpuwatch.alerts.rules.custom import GRAMMARS, find_custom
from gpuwatch.alerts.rules.devices import DISAGREE, MISSPELT, UNUSED
from gpuwatch.alerts.rules.hardware import BUSY, ECC, MEANINGS, POWER, REMAP, TEMPERATURE, THROTTLED
from gpuwatch.alerts.rules.idle import DEAD, IDLE, UNATTRIBUTED
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.alerts.rules.runs import RUN_ENDED
from gpuwatch.alerts.rules.shares import OUTGROWN, OVERBOOKED, OVERSHOOT, allowance
from gpuwatch.base.units import Unit
from gpuwatch.commands.docs import page_text
from gpuwatch.history.history import History, HistoryView
from gpuwatch.model.holdings import UNSEEN_USER
from gpuwatch.model.snapshot import Health, Idle, Limit, Margin, Presence, Reason, Snapshot
from tests.analysis.machines import card, person
from tests.support.alerts import Past, cap, observed, severities_of, uuid
from tests.support.builders import GIB, at, filled, gpu, holding, memory, process, snapshot


def test_each_rule_has_its_row_on_the_page_and_each_limit_is_named_there_once() -> None:
    rows = re.findall(r"^\| `.+$", page_text("alerts").partition("\n## Rules\n")[2].partition("\n## ")[0], re.MULTILINE)
    assert [row.split("`")[1] for row in rows] == [*(rule.name for rule in RULES), RUN_ENDED]
    keys = re.findall(r"`([a-z]+_[a-z_]+)`", "".join(rows))
    assert sorted(keys) == sorted(set(Limits.__struct_fields__) - {"off", "quiet", "custom", "allowances"})


def test_names_of_rules_differ_and_every_xid_code_has_words() -> None:
    assert len(RULES) + 1 == len(RULE_NAMES)
    assert Limits().xid_critical | Limits().xid_warning <= MEANINGS.keys()


# ---------------------------------------------------------------------------------------------------------------
# The table


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """Line of rules.jsonl: one snapshot, and what one rule finds in it; `@1` is the UUID of GPU 1."""

    about: str
    found: list[dict[str, Any]]
    """The fields of each observation that the case is about; a severity is a word."""
    rule: str = ""
    own: dict[str, Any] | None = None
    """The rule of a user, where it is no built-in one."""
    gpus: list[dict[str, Any]] = []
    """What differs from the GPU of the builders; a holding is [PID, GiB or the reason, other fields]."""
    people: list[dict[str, Any]] = []
    """What differs from a process of ada's; a `bare` one has nothing but its PID."""
    snapshot: dict[str, Any] = {}
    past: dict[str, Any] = {}
    """Idle times as [GPU, PID, seconds, whether these are a minimum], ECC errors, XIDs as [code, count, newest]."""
    limits: dict[str, Any] = {}
    watched: list[tuple[str, str]] = []


def history(idle: Any = (), ecc: Any = None, xids: Any = (), **fields: Any) -> Past:
    """Return a history that says this."""
    idles = {(index, pid): Idle(seconds, at_least) for index, pid, seconds, at_least in idle}
    return Past(idles, ecc and tuple(ecc), {code: (count, newest) for code, count, newest in xids}, **fields)


def fields_of(one: Observation) -> dict[str, Any]:
    """Return an observation as a case has it."""
    shown = {name: getattr(one, name) for name in one.__struct_fields__}
    levels = {name: shown[name] and shown[name].name.lower() for name in ("level", "keeps")}
    value = None if one.value is None else round(one.value, 3)
    indices = {"gpu": one.gpu and one.gpu.index, "gpus": [gpu.index for gpu in one.gpus]}
    return shown | levels | indices | {"value": value, "pids": list(one.pids)}


TEXT = (Path(__file__).parent / "rules.jsonl").read_text()
for place in range(6):
    TEXT = TEXT.replace(f"@{place}", uuid(place))
CASES = [msgspec.json.decode(line, type=Case) for line in TEXT.splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.about)
def test_a_rule_finds_this_in_a_snapshot(case: Case) -> None:
    seen = snapshot(map(card, case.gpus), map(person, case.people))
    seen = msgspec.convert(msgspec.to_builtins(seen) | case.snapshot, Snapshot)
    context = RuleContext(seen, history(**case.past), msgspec.convert(case.limits, Limits), case.watched or None)
    if case.own is None:
        (rule,) = [one for one in RULES if one.name == case.rule]
        found = list(rule.find(context))
    else:
        found = list(find_custom(msgspec.convert({"name": "mine", **case.own}, CustomRule), context))
    shown = [fields_of(one) for one in found]
    for one, wanted in zip(shown, case.found, strict=True):
        expected = {"keeps": wanted["level"], "partial": False, **wanted}
        assert {key: one[key] for key in expected} == expected


def test_every_rule_and_every_figure_is_in_the_table() -> None:
    assert {case.rule for case in CASES if case.rule} == RULE_NAMES - {"time to full", RUN_ENDED}, "others have these"
    for scope in ("gpu", "process", "user"):
        tried = " ".join(case.own["when"] for case in CASES if case.own and case.own.get("on", "gpu") == scope)
        assert {figure for figure in GRAMMARS[scope].figures if f"{figure}>" not in tried} <= {"idle", "used"}


# ---------------------------------------------------------------------------------------------------------------
# What holds of several rules, or needs more than one snapshot


@pytest.mark.parametrize("name", [MEMORY, POWER, BUSY, ECC, REMAP, OVERBOOKED, UNATTRIBUTED])
def test_a_fine_gpu_is_observed_only_where_the_engine_watches_it(name: str) -> None:
    (rule,) = [one for one in RULES if one.name == name]
    seen = snapshot([gpu(0, power=100.0, throttle=(), ecc_uncorrected=0, remap_pending=False, remap_failed=False)])
    key = seen.gpus[0].key
    cases: list[tuple[set[tuple[str, str]] | None, int]] = [(None, 1), (set(), 0), ({(name, key)}, 1), ({("", key)}, 0)]
    for watched, count in cases:
        assert len(list(rule.find(RuleContext(seen, HistoryView(), Limits(), watched)))) == count


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("field", ["free", "total"])
def test_a_missing_reading_is_no_observation(field: str, reason: Reason) -> None:
    shown = msgspec.structs.replace(memory(79), **{field: reason})
    assert severities_of(MEMORY, filled(0, memory=shown)) == []


@pytest.mark.parametrize("health", [health for health in Health if health is not Health.OK])
def test_the_figures_of_a_gpu_in_trouble_are_not_judged(health: Health) -> None:
    hot = filled(0, health=health, temperature=95, throttle=("hw thermal",), ecc_uncorrected=3, remap_pending=True)
    for rule in (MEMORY, TEMPERATURE, THROTTLED, POWER, ECC, REMAP, IDLE, UNATTRIBUTED, DEAD, OVERSHOOT, OVERBOOKED):
        assert severities_of(rule, hot, people=[process(100, declared=cap(1))]) == []


def test_a_process_that_proc_does_not_know_is_left_alone() -> None:
    shown = msgspec.structs.replace(snapshot([gpu(0, used_gib=40, holdings=[holding(7, 30.0)])]), processes=())
    for rule in (DISAGREE, UNUSED, MISSPELT, OVERSHOOT, OUTGROWN, IDLE, DEAD):
        assert observed(rule, shown) == []


def test_the_largest_holders_and_who_grew() -> None:
    people = [process(1, "cyn"), process(2, "ben"), process(3, "cyn"), process(4, "dov"), process(5, "eve")]
    sizes = {1: 40.0, 2: 1.0, 3: 30.0, 4: 0.5, 5: 0.2}
    history = History()
    history.add(at(snapshot([gpu(0, holdings=[holding(*each) for each in sizes.items()])], people), 0), 5000)
    sizes |= {2: 5.1, 3: 30.01}
    shown = at(snapshot([gpu(0, holdings=[holding(*each) for each in sizes.items()])], people), 30)
    (seen,) = observed(MEMORY, shown, history.add(shown, 5030))
    assert seen.evidence == "cyn holds 70.0 GiB · ben 5.1 · dov 0.5 · ben grew 4.1 GiB in the last minute"
    assert (seen.pids, seen.owners) == ((1, 3, 2, 4, 5), ("cyn", "ben", "dov", "eve"))
    assert (seen.unit, seen.value, seen.least_is_worst) == (Unit.FREE, shown.gpus[0].memory.free, True)


@pytest.mark.parametrize(("hidden", "owners"), [(70.0, (UNSEEN_USER, "cyn")), (0.5, ("cyn",))])
def test_the_largest_holder_causes_it_though_its_owner_is_not_visible(hidden: float, owners: tuple[str, ...]) -> None:
    people = [process(1, "cyn"), process(2, "", presence=Presence.HIDDEN)]
    shown = at(snapshot([gpu(0, holdings=[holding(1, 79.0 - hidden), holding(2, hidden)])], people), 0)
    (seen,) = observed(MEMORY, shown)
    assert seen.owners == owners


def test_a_budget_has_at_least_a_gib() -> None:
    limit = Limit(gpu=uuid(), bytes=GIB, declaration=0, margin=Margin.BUDGET)
    assert [allowance(limit, total) for total in (None, 24 * GIB, 100 * GIB)] == [GIB, GIB, 2 * GIB]
