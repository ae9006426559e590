"""Rules: their words and keys, and what memory, health and staleness find in one snapshot."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity, Unit
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Observation
from gpuwatch.alerts.rules import FORMER_NAMES, RULE_NAMES, RULES
from gpuwatch.alerts.rules.health import HEALTH, STALE
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.history import History, HistoryView
from gpuwatch.model import Gpu, Health, Memory, Presence, Reason, Snapshot, SourceState
from tests.support.alerting import observed
from tests.support.builders import EPOCH, GIB, USABLE_GIB, at, filled, gpu, holding, memory, process, snapshot

OF_ALL_RULES = {"off", "quiet", "custom", "allowances"}
"""Fields of Limits that belong to no single rule."""


def test_each_rule_is_there_once_and_has_all_words() -> None:
    assert len(RULES) == len(RULE_NAMES)
    for rule in RULES:
        words = [rule.name, rule.severity, rule.summary, rule.raised, rule.cleared]
        assert all(words)
        assert "\n" not in "".join(words)


def test_every_key_is_a_limit_and_every_limit_belongs_to_one_rule() -> None:
    keys = [key for rule in RULES for key in rule.keys]
    assert len(keys) == len(set(keys))
    assert set(keys) == set(Limits.__struct_fields__) - OF_ALL_RULES


def test_a_former_name_is_none_of_the_present_ones() -> None:
    present = RULE_NAMES | set(Limits.__struct_fields__)
    assert set(FORMER_NAMES.values()) <= present
    assert present.isdisjoint(FORMER_NAMES)


def levels(rule: str, gpus: Iterable[Gpu]) -> list[Severity | None]:
    return [one.level for one in observed(rule, snapshot(gpus))]


# Rule: memory near limit


@pytest.mark.parametrize(
    ("free", "level", "keeps"),
    [
        (50.0, None, None),
        (12.1, None, None),
        (11.0, None, Severity.WARNING),
        (9.9, Severity.WARNING, Severity.WARNING),
        (6.5, Severity.WARNING, Severity.CRITICAL),
        (4.9, Severity.CRITICAL, Severity.CRITICAL),
        (0.0, Severity.CRITICAL, Severity.CRITICAL),
    ],
)
def test_memory_is_judged_by_what_is_free_after_reserved(
    free: float, level: Severity | None, keeps: Severity | None
) -> None:
    (seen,) = observed(MEMORY, snapshot([filled(free)]))
    assert (seen.level, seen.keeps) == (level, keeps)


def test_reserved_memory_is_not_counted_as_room() -> None:
    total, reserved = 100 * GIB, 60 * GIB
    # 5 of the 40 GiB that programs can have: 12.5 %, though only 5 % of the whole.
    assert levels(MEMORY, [filled(0, memory=memory(35, total=total, reserved=reserved))]) == [None]


def test_where_reserved_is_unknown_free_is_judged_by_the_total() -> None:
    old = Memory(total=100 * GIB, used=96 * GIB, free=4 * GIB, reserved=Reason.UNSUPPORTED)
    assert levels(MEMORY, [filled(0, memory=old)]) == [Severity.CRITICAL]


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("field", ["free", "total"])
def test_a_missing_reading_is_no_observation(field: str, reason: Reason) -> None:
    shown = msgspec.structs.replace(memory(79), **{field: reason})
    assert observed(MEMORY, snapshot([filled(0, memory=shown)])) == []


@pytest.mark.parametrize("health", [health for health in Health if health is not Health.OK])
def test_memory_of_a_gpu_in_trouble_is_not_judged(health: Health) -> None:
    assert observed(MEMORY, snapshot([filled(0, health=health)])) == []


def test_an_empty_gpu_never_alerts() -> None:
    nobodys = Memory(total=2 * GIB, used=0, free=0, reserved=0)
    busy_machine = Memory(total=128 * GIB, used=126 * GIB, free=2 * GIB, reserved=0, unified=True)
    assert levels(MEMORY, [gpu(0, memory=nobodys), gpu(1, memory=busy_machine)]) == [None, None]


def test_a_full_gpu_with_nobody_listed_alerts_and_says_what_is_missing() -> None:
    (seen,) = observed(MEMORY, snapshot([gpu(0, used_gib=78)]))
    assert seen.level is Severity.CRITICAL
    assert seen.evidence == "unknown processes hold 78.0 GiB"


def test_unified_memory_says_so() -> None:
    shared = Memory(total=128 * GIB, used=126 * GIB, free=2 * GIB, reserved=0, unified=True)
    (seen,) = observed(MEMORY, snapshot([gpu(0, memory=shared, holdings=[holding(5, 100)])]))
    assert seen.evidence.endswith("memory is shared with the whole machine")


def test_the_evidence_names_the_largest_holders_by_user_and_who_grew() -> None:
    people = [process(1, "cyn"), process(2, "ben"), process(3, "cyn"), process(4, "dov"), process(5, "eve")]
    sizes = {1: 40.0, 2: 1.0, 3: 30.0, 4: 0.5, 5: 0.2}
    history = History()
    history.add(at(snapshot([gpu(0, holdings=[holding(*each) for each in sizes.items()])], people), 0), 5000)
    sizes[2] = 5.1
    shown = at(snapshot([gpu(0, holdings=[holding(*each) for each in sizes.items()])], people), 30)
    (seen,) = observed(MEMORY, shown, history.add(shown, 5030))
    assert seen.title == "GPU 0 near limit: 3.3 GiB of 79.1 free"
    assert seen.evidence == "cyn holds 70.0 GiB · ben 5.1 · dov 0.5 · ben grew 4.1 GiB in the last minute"
    assert seen.pids == (1, 3, 2, 4, 5)
    assert seen.owners == ("cyn", "ben", "dov", "eve")
    assert (seen.unit, seen.value, seen.least_is_worst) == (Unit.FREE, shown.gpus[0].memory.free, True)


def test_nobody_is_said_to_have_grown_by_next_to_nothing() -> None:
    history = History()
    history.add(at(snapshot([filled(4)]), 0), 5000)
    shown = at(snapshot([filled(3.99)]), 30)
    (seen,) = observed(MEMORY, shown, history.add(shown, 5030))
    assert "grew" not in seen.evidence


def test_holders_without_a_name_are_told_by_pid() -> None:
    people = [
        process(1, "", presence=Presence.GONE),
        process(2, "", presence=Presence.HIDDEN),
        process(3, ""),
    ]
    full = gpu(0, holdings=[holding(1, 40), holding(2, 20), holding(3, 18), holding(9, memory=Reason.DENIED)])
    shown = msgspec.structs.replace(snapshot([full]), processes=tuple(people))
    (seen,) = observed(MEMORY, shown)
    assert seen.evidence == "pid 1 (ended) holds 40.0 GiB · pid 2 (hidden) 20.0 · pid 3 18.0"
    assert seen.owners == ()


def test_less_than_a_hundredth_free_is_called_full() -> None:
    (seen,) = observed(MEMORY, snapshot([filled(0.1)]))
    assert seen.title == "GPU 0 full: 0.1 GiB of 79.1 free"


# Rule: GPU health


@pytest.mark.parametrize(
    ("health", "level"),
    [
        (Health.OK, None),
        (Health.LOST, Severity.CRITICAL),
        (Health.SILENT, Severity.CRITICAL),
        (Health.QUARANTINED, Severity.CRITICAL),
        (Health.RESET, Severity.CRITICAL),
        (Health.MISSING, Severity.CRITICAL),
        (Health.FAILED, Severity.WARNING),
        (Health.NOT_READY, Severity.WARNING),
        (Health.DENIED, Severity.WARNING),
    ],
)
def test_each_health_has_its_severity(health: Health, level: Severity | None) -> None:
    (seen,) = observed(HEALTH, snapshot([gpu(3, health=health, words="why")]))
    assert seen.level is level
    assert seen.title.startswith(f"GPU 3 {health.value}" if level else "GPU 3 answers again")
    assert seen.evidence == "why"


# Rule: data stale


def stale(shown: Snapshot, watching: float = 0.0) -> Observation:
    (seen,) = observed(STALE, shown, HistoryView(watched=watching))
    return seen


def test_data_is_stale_beyond_five_intervals() -> None:
    assert stale(snapshot([gpu(0)], monotonic=1005.0)).level is None
    late = stale(snapshot([gpu(0)], monotonic=1014.0))
    assert (late.level, late.title) == (Severity.CRITICAL, "no new data for 14 s")
    assert stale(snapshot([gpu(0)], monotonic=1014.0, interval=5.0)).level is None


def test_the_newest_gpu_decides_and_those_in_trouble_do_not() -> None:
    old, lost = gpu(0, sampled=900.0), gpu(1, sampled=900.0, health=Health.LOST)
    assert stale(snapshot([old, gpu(2)])).level is None
    assert stale(snapshot([lost])).level is None
    assert stale(snapshot([old, lost])).level is Severity.CRITICAL


def test_at_a_short_interval_too_data_may_be_late_for_as_long_as_a_hang_takes() -> None:
    assert stale(snapshot([gpu(0)], monotonic=1004.9, interval=0.25)).level is None
    assert stale(snapshot([gpu(0)], monotonic=1005.1, interval=0.25)).level is Severity.CRITICAL


def test_where_no_gpu_is_well_it_does_not_say_that_there_is_data_again() -> None:
    assert stale(snapshot([gpu(0)])).how == "data again after {lasted}"
    lost = stale(snapshot([gpu(0, health=Health.LOST)]))
    assert (lost.level, lost.how) == (None, "no GPU gives data now; each has an alert of its own")


def test_starting_is_given_ten_seconds() -> None:
    starting = snapshot(state=SourceState.STARTING, since=EPOCH - 9)
    seen = stale(starting, watching=20)
    assert (seen.level, seen.raise_for, seen.title) == (Severity.CRITICAL, 10.0, "starting for 9 s")
    unknown = msgspec.structs.replace(starting, since=0.0)
    assert stale(unknown, watching=11).title == "starting for 11 s"
    assert stale(snapshot(state=SourceState.NO_DRIVER), watching=11).raise_for == 5.0


def test_a_wall_clock_that_was_set_makes_no_state_older_than_we_watch() -> None:
    shown = snapshot(state=SourceState.DRIVER_DOWN, since=EPOCH - 3600)
    assert stale(shown, watching=30).title == "driver down for 30 s"
    assert stale(msgspec.structs.replace(shown, since=EPOCH + 3600), watching=30).title == "driver down"


@pytest.mark.parametrize("state", [each for each in SourceState if each not in (SourceState.OK, SourceState.STARTING)])
def test_any_other_state_is_critical_and_says_why(state: SourceState) -> None:
    seen = stale(snapshot(state=state, since=EPOCH, words="reload the driver"))
    assert (seen.level, seen.title, seen.evidence) == (Severity.CRITICAL, state.value, "reload the driver")


def test_a_sum_with_an_unknown_part_is_said_to_be_one() -> None:
    held = [holding(1, 60.0), holding(2, memory=Reason.UNSUPPORTED), holding(3, 12.0)]
    owners = [process(1), process(2), process(3, "ben")]
    card = gpu(0, memory=memory(USABLE_GIB - 2.0), holdings=held, unattributed=Reason.NO_SAMPLE)
    (seen,) = observed(MEMORY, snapshot([card], owners))
    assert seen.evidence.startswith("ada holds at least 60.0 GiB · ben 12.0")
