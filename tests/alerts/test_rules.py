"""Rules: their words and keys, and what each finds in one snapshot with its history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity, Unit
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rule import Observation, RuleContext
from gpuwatch.alerts.rules import FORMER_NAMES, RULE_NAMES, RULES
from gpuwatch.alerts.rules.hardware import ECC, MEANINGS, POWER, RECENT, REMAP, TEMPERATURE, THROTTLED, XID
from gpuwatch.alerts.rules.health import HEALTH, STALE
from gpuwatch.alerts.rules.idle import DEAD, IDLE, UNATTRIBUTED
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.alerts.rules.shares import OVERCOMMITTED, OVERSHOOT
from gpuwatch.history import History, HistoryView, Idle
from gpuwatch.model import (
    Gpu,
    Health,
    Holding,
    Memory,
    Presence,
    Process,
    Reason,
    SourceState,
)
from tests.support.alerting import Past, cap, finding, observed, severities_of, uuid
from tests.support.builders import (
    EPOCH,
    GIB,
    MIB,
    USABLE_GIB,
    at,
    filled,
    gpu,
    holding,
    memory,
    process,
    snapshot,
)

NOTE, WARNING, CRITICAL = Severity


# The table of rules


def test_each_rule_is_there_once_and_has_all_words() -> None:
    assert len(RULES) == len(RULE_NAMES)
    for rule in RULES:
        words = [rule.name, rule.severity, rule.summary, rule.raised, rule.cleared]
        assert all(words)
        assert "\n" not in "".join(words)


def test_every_key_is_a_limit_and_every_limit_belongs_to_one_rule() -> None:
    keys = [key for rule in RULES for key in rule.keys]
    assert len(keys) == len(set(keys))
    assert set(keys) == set(Limits.__struct_fields__) - {"off", "quiet", "custom", "allowances"}
    present = RULE_NAMES | set(Limits.__struct_fields__)
    assert set(FORMER_NAMES.values()) <= present
    assert present.isdisjoint(FORMER_NAMES)


# Memory near limit


@pytest.mark.parametrize(
    ("free", "level", "keeps"),
    [
        (12.1, None, None),
        (11.0, None, WARNING),
        (9.9, WARNING, WARNING),
        (6.5, WARNING, CRITICAL),
        (4.9, CRITICAL, CRITICAL),
        (0.0, CRITICAL, CRITICAL),
    ],
)
def test_memory_is_judged_by_what_is_free(free: float, level: Severity | None, keeps: Severity | None) -> None:
    seen = finding(MEMORY, filled(free))
    assert (seen.level, seen.keeps) == (level, keeps)


@pytest.mark.parametrize(
    ("shown", "level"),
    [
        # 5 of the 40 GiB that programs can have: 12.5 %, though only 5 % of the whole.
        (filled(0, memory=memory(35, total=100 * GIB, reserved=60 * GIB)), None),
        (
            filled(0, memory=Memory(total=100 * GIB, used=96 * GIB, free=4 * GIB, reserved=Reason.UNSUPPORTED)),
            CRITICAL,
        ),
        # Nobody uses these.
        (gpu(0, memory=Memory(total=2 * GIB, used=0, free=0, reserved=0)), None),
        (gpu(1, memory=Memory(total=128 * GIB, used=126 * GIB, free=2 * GIB, reserved=0, unified=True)), None),
    ],
)
def test_memory_that_the_driver_reserves_and_an_empty_gpu(shown: Gpu, level: Severity | None) -> None:
    assert severities_of(MEMORY, shown) == [level]


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("field", ["free", "total"])
def test_a_missing_reading_is_no_observation(field: str, reason: Reason) -> None:
    shown = msgspec.structs.replace(memory(79), **{field: reason})
    assert severities_of(MEMORY, filled(0, memory=shown)) == []


@pytest.mark.parametrize("health", [health for health in Health if health is not Health.OK])
def test_the_figures_of_a_gpu_in_trouble_are_not_judged(health: Health) -> None:
    hot = filled(0, health=health, temperature=95, throttle=("hw thermal",), ecc_uncorrected=3, remap_pending=True)
    for rule in (MEMORY, TEMPERATURE, THROTTLED, POWER, ECC, REMAP, IDLE, UNATTRIBUTED, DEAD, OVERSHOOT, OVERCOMMITTED):
        assert severities_of(rule, hot, people=[process(100, declared=cap(1))]) == []


@pytest.mark.parametrize(
    ("shown", "people", "title", "evidence", "owners"),
    [
        (
            gpu(0, used_gib=78),
            (),
            "GPU 0 near limit: 1.1 GiB of 79.1 free",
            "unknown processes hold 78.0 GiB",
            (),
        ),
        (
            gpu(
                0,
                memory=Memory(total=128 * GIB, used=126 * GIB, free=GIB, reserved=0, unified=True),
                holdings=[holding(5, 100)],
            ),
            [process(5)],
            "GPU 0 full: 1.0 GiB of 128.0 free",
            "ada holds 100.0 GiB · unknown processes 26.0 · memory is shared with the whole machine",
            ("ada",),
        ),
        (
            gpu(0, holdings=[holding(1, 40), holding(2, 20), holding(3, 18), holding(9, memory=Reason.DENIED)]),
            [process(1, "", presence=Presence.GONE), process(2, "", presence=Presence.HIDDEN), process(3, "")],
            "GPU 0 near limit: 1.1 GiB of 79.1 free",
            "pid 1 (ended) holds 40.0 GiB · pid 2 (hidden) 20.0 · pid 3 18.0",
            (),
        ),
        (
            gpu(
                0,
                memory=memory(USABLE_GIB - 2.0),
                holdings=[holding(1, 60.0), holding(2, memory=Reason.UNSUPPORTED), holding(3, 12.0)],
                unattributed=Reason.NO_SAMPLE,
            ),
            [process(1), process(2), process(3, "ben")],
            "GPU 0 near limit: 2.0 GiB of 79.1 free",
            "ada holds at least 60.0 GiB · ben 12.0",
            ("ada", "ben"),
        ),
    ],
)
def test_the_holders_of_memory(
    shown: Gpu, people: Sequence[Process], title: str, evidence: str, owners: tuple[str, ...]
) -> None:
    seen = finding(MEMORY, shown, people=people)
    assert (seen.title, seen.evidence, seen.owners) == (title, evidence, owners)


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


# GPU health and stale data


@pytest.mark.parametrize("health", list(Health))
def test_each_health_has_its_severity(health: Health) -> None:
    seen = finding(HEALTH, gpu(3, health=health, words="why"))
    warning = health in (Health.FAILED, Health.NOT_READY, Health.DENIED)
    assert seen.level is (None if health is Health.OK else WARNING if warning else CRITICAL)
    assert seen.title.startswith("GPU 3 answers again" if health is Health.OK else f"GPU 3 {health.value}")
    assert seen.evidence == "why"


def stale(watched: float = 0.0, *gpus: Gpu, **changes: Any) -> Observation:
    return finding(STALE, *gpus, past=HistoryView(watched=watched), **changes)


@pytest.mark.parametrize(
    ("gpus", "changes", "is_stale"),
    [
        ([gpu(0)], {"monotonic": 1005.0}, False),
        ([gpu(0)], {"monotonic": 1014.0}, True),
        ([gpu(0)], {"monotonic": 1014.0, "interval": 5.0}, False),
        # At a short interval data may be late for as long as a hang takes.
        ([gpu(0)], {"monotonic": 1004.9, "interval": 0.25}, False),
        ([gpu(0)], {"monotonic": 1005.1, "interval": 0.25}, True),
        # The newest GPU decides, and those in trouble do not.
        ([gpu(0, sampled=900.0), gpu(2)], {}, False),
        ([gpu(1, sampled=900.0, health=Health.LOST)], {}, False),
        ([gpu(0, sampled=900.0), gpu(1, sampled=900.0, health=Health.LOST)], {}, True),
    ],
)
def test_data_is_stale_beyond_five_intervals(gpus: list[Gpu], changes: dict[str, Any], is_stale: bool) -> None:
    assert stale(0.0, *gpus, **changes).level is (CRITICAL if is_stale else None)


@pytest.mark.parametrize(
    ("watched", "changes", "title", "raise_for"),
    [
        (20, {"state": SourceState.STARTING, "since": EPOCH - 9}, "starting for 9 s", 10.0),
        (11, {"state": SourceState.STARTING, "since": 0.0}, "starting for 11 s", 10.0),
        # A wall clock that was set makes no state older than we watch.
        (30, {"state": SourceState.DRIVER_DOWN, "since": EPOCH - 3600}, "driver down for 30 s", 5.0),
        (30, {"state": SourceState.DRIVER_DOWN, "since": EPOCH + 3600}, "driver down", 5.0),
        *((0, {"state": one, "since": EPOCH}, one.value, 5.0) for one in list(SourceState)[2:]),
    ],
)
def test_a_stream_in_trouble(watched: float, changes: dict[str, Any], title: str, raise_for: float) -> None:
    seen = stale(watched, words="reload the driver", **changes)
    assert (seen.level, seen.title, seen.raise_for, seen.evidence) == (CRITICAL, title, raise_for, "reload the driver")


def test_how_stale_data_ends() -> None:
    assert stale(0.0, gpu(0)).how == "data again after {lasted}"
    assert stale(0.0, gpu(0, health=Health.LOST)).how == "no GPU gives data now; each has an alert of its own"


# Heat, throttling and power


@pytest.mark.parametrize(
    ("degrees", "level", "keeps"),
    [(78, None, None), (79, None, WARNING), (82, WARNING, WARNING), (84, WARNING, CRITICAL), (87, CRITICAL, CRITICAL)],
)
def test_a_gpu_is_hot_from_a_margin_below_its_own_slowdown_temperature(
    degrees: int, level: Severity | None, keeps: Severity | None
) -> None:
    held = [holding(7, sm=10), holding(8, sm=90), holding(9, sm=0)]
    people = [process(7, "ada"), process(8, "ben"), process(9, "cyn")]
    seen = finding(TEMPERATURE, gpu(1, temperature=degrees, fan=60, holdings=held), people=people)
    assert (seen.level, seen.keeps, seen.value) == (level, keeps, degrees)
    assert seen.title == f"GPU 1 at {degrees} °C, slows down at 87"
    words = "310 of 700 W · SM clock 1980 MHz · fan 60 % · computing: ben, ada"
    assert seen.evidence == (words if keeps else "")


def test_what_is_not_known_of_a_temperature_decides_nothing() -> None:
    for slowdown in (Reason.UNSUPPORTED, 0):
        assert severities_of(TEMPERATURE, gpu(0, temperature=95, slowdown_temperature=slowdown)) == []
    assert severities_of(TEMPERATURE, gpu(0, temperature=Reason.ERROR)) == []


@pytest.mark.parametrize(
    ("reasons", "level", "title"),
    [
        (("hw thermal", "sw thermal"), WARNING, "GPU 0 slowed down by heat"),
        (("power brake",), WARNING, "GPU 0 slowed down by its power brake"),
        (("hw slowdown",), WARNING, "GPU 0 slowed down by its hardware"),
        (("hw thermal", "power brake", "power cap"), WARNING, "GPU 0 slowed down by heat and its power brake"),
        (("sw thermal",), NOTE, "GPU 0 slowed down by heat"),
        (("power cap",), None, "GPU 0 not slowed down"),
    ],
)
def test_what_slows_a_gpu_down(reasons: Sequence[str], level: Severity | None, title: str) -> None:
    seen = finding(THROTTLED, gpu(0, throttle=reasons, sm_clock=345, temperature=75))
    assert (seen.level, seen.title, seen.least_is_worst) == (level, title, True)
    assert (seen.value, seen.evidence) == ((345, "75 °C · SM clock 345 MHz · 310 of 700 W") if level else (None, ""))
    assert (seen.raise_for, seen.forgives, seen.clear_for) == (300.0 if level is NOTE else 60.0, 3, 10.0)


def test_power_at_its_limit_is_a_note() -> None:
    seen = finding(POWER, gpu(0, throttle=("power cap",), power_limit=Reason.DENIED, power=Reason.ERROR))
    assert (seen.level, seen.title, seen.forgives, seen.clear_for) == (NOTE, "GPU 0 at its power limit", 3, 60.0)
    assert finding(POWER, gpu(0)).title == "GPU 0 below its power limit of 700 W"
    for rule in (POWER, THROTTLED):
        assert severities_of(rule, gpu(0, throttle=Reason.NO_SAMPLE)) == []


# Memory errors and XIDs


@pytest.mark.parametrize(
    ("count", "newest", "watched", "level", "partial", "words"),
    [
        (0, None, 10.0, None, False, "no uncorrected memory errors"),
        (3, None, 10.0, WARNING, True, "3 uncorrected memory errors since the driver was loaded"),
        (1, None, RECENT, WARNING, False, "1 uncorrected memory error since the driver was loaded"),
        (3, 4990.0, 10.0, CRITICAL, False, "3 uncorrected memory errors since the driver was loaded"),
        (3, 5000.0 - RECENT, RECENT, WARNING, False, "3 uncorrected memory errors since the driver was loaded"),
    ],
)
def test_uncorrected_errors_are_critical_while_they_are_new(
    count: int, newest: float | None, watched: float, level: Severity | None, partial: bool, words: str
) -> None:
    seen = finding(ECC, gpu(0, ecc_uncorrected=count), past=Past(ecc=(count, newest), now=5000.0, watched=watched))
    assert (seen.level, seen.partial, seen.title) == (level, partial, f"GPU 0: {words}")
    ago = "none since gpuwatch started" if newest is None else "the newest "
    assert seen.evidence.startswith(ago if level else "")
    assert severities_of(ECC, gpu(0, ecc_uncorrected=Reason.NO_SAMPLE)) == []


@pytest.mark.parametrize(
    ("failed", "pending", "level", "partial"),
    [
        (False, False, None, False),
        (False, True, WARNING, False),
        (True, Reason.ERROR, CRITICAL, False),
        (Reason.ERROR, True, WARNING, True),
        (Reason.ERROR, False, "none", False),
        (False, Reason.ERROR, "none", False),
    ],
)
def test_rows_that_wait_to_be_replaced(failed: Any, pending: Any, level: Any, partial: bool) -> None:
    found = observed(REMAP, snapshot([gpu(0, remap_failed=failed, remap_pending=pending)]))
    assert [(one.level, one.partial) for one in found] == ([] if level == "none" else [(level, partial)])


@pytest.mark.parametrize(
    ("code", "level", "title"),
    [
        (79, CRITICAL, "GPU 0: XID 79, the driver no longer reaches the GPU (fell off the bus)"),
        (94, WARNING, "GPU 0: XID 94, a memory error, only one program affected"),
        (999, WARNING, "GPU 0: XID 999"),
        (31, None, ""),
    ],
)
def test_an_xid_has_its_severity_and_meaning(code: int, level: Severity | None, title: str) -> None:
    people = [process(pid, user) for pid, user in enumerate(("ada", "ben", "cyn", "dan"), 1)]
    shown = gpu(0, xids=(), holdings=[holding(pid) for pid in (1, 2, 3, 4)], health=Health.LOST)
    past = Past(xids={code: (2, 4990.0)}, now=5000.0, watched=20.0)
    limits = Limits(xid_warning=Limits().xid_warning | {999})
    found = observed(XID, snapshot([shown], people), past, limits)
    assert [(one.level, one.title) for one in found] == [(level, title)] * bool(level)
    words = "2 times, the newest 10 s ago · held by ada, ben, cyn and 1 more · the kernel's log says more"
    assert [one.evidence for one in found] == [words] * bool(level)
    assert limits.xid_critical | Limits().xid_warning <= MEANINGS.keys()


def test_an_xid_ends_when_it_is_too_old_and_one_from_before_we_watched_as_well() -> None:
    (rule,) = [one for one in RULES if one.name == XID]
    subject = f"xid 79 {uuid()}"

    def found(past: Past, **changes: Any) -> list[tuple[Severity | None, bool, str]]:
        shown = snapshot([gpu(0, **{"xids": (), **changes})])
        seen = rule.find(RuleContext(shown, past, Limits(), [(XID, subject)]))
        return [(one.level, one.partial, one.how) for one in seen if one.subject == subject]

    over = (None, False, "no more for 10 min")
    assert found(Past(xids={79: (1, 4400.0)}, now=5000.0, watched=700.0)) == [over]
    assert found(Past(now=5000.0, watched=599.0)) == [(None, True, "")]
    assert found(Past(now=5000.0, watched=600.0)) == [over]
    assert found(Past(now=5000.0, watched=600.0), xids=Reason.DENIED) == []


# Idle but held


EVE = (process(71, "eve"), process(72, "eve", name="jupyter"))
BOTH = {(3, 71): Idle(13350.0, False), (3, 72): Idle(20000.0, False)}


def idle(*held: Holding, past: dict[tuple[int, int], Idle] | None = None, people: Any = EVE, **changes: Any) -> Any:
    """Return (level, partial, title, how) of what is found on GPU 3."""
    found = observed(IDLE, snapshot([gpu(3, holdings=held, **changes)], people), Past(BOTH if past is None else past))
    return [(one.level, one.partial, one.title, one.how) for one in found]


def test_users_who_hold_memory_idle() -> None:
    big, small = holding(71, 30, sm=0), holding(72, 10, sm=0)
    seen = finding(IDLE, gpu(3, holdings=[big, small]), people=EVE, past=Past(BOTH))
    assert (seen.title, seen.evidence) == (
        "eve holds 40.0 GiB on GPU 3, idle for 3 h 42 min",
        "pid 71 python, 72 jupyter",
    )
    assert (seen.owners, seen.pids, seen.unit, seen.value) == (("eve",), (71, 72), Unit.SECONDS, 13350.0)
    least = BOTH | {(3, 71): Idle(1800.0, True)}
    assert idle(big, small, past=least)[0][2] == "eve holds 40.0 GiB on GPU 3, idle for at least 30 min"
    nameless = [process(71, "", uid=1234)]
    assert idle(big, people=nameless)[0][2].startswith("1234 holds 30.0 GiB")
    unknown = holding(72, memory=Reason.UNSUPPORTED, sm=0)
    assert idle(big, unknown, used_gib=40)[0][2].startswith("eve holds at least 30.0 GiB on GPU 3")


@pytest.mark.parametrize(
    ("held", "past", "partial", "how"),
    [
        ([holding(71, 30, sm=20), holding(72, 10, sm=0)], BOTH, False, "process 71 runs on the GPU again"),
        ([holding(71, 30, sm=0)], {(3, 71): Idle(1799.0, False)}, False, "process 71 runs on the GPU again"),
        ([holding(71, 30, sm=0)], {(3, 71): Idle(1799.0, True)}, True, ""),
        ([holding(71, 30, sm=Reason.DENIED), holding(72, 3, sm=0)], {(3, 72): Idle(9e3, False)}, True, ""),
        ([holding(71, 0.4, sm=0), holding(72, 0.4, sm=0)], BOTH, False, "eve holds less than 1.0 GiB there"),
        ([holding(71, 0.5, sm=0), holding(72, memory=Reason.UNSUPPORTED)], BOTH, True, ""),
    ],
)
def test_who_does_not_hold_it_idle_or_may_not(held: Any, past: Any, partial: bool, how: str) -> None:
    ((level, is_partial, _, words),) = idle(*held, past=past, used_gib=45)
    assert (level, is_partial, words) == (None, partial, how)


def test_whom_the_rule_about_idle_memory_leaves_out() -> None:
    held = holding(71, 30, sm=0)
    assert idle(held, people=[Process(pid=71, start=71, presence=Presence.HIDDEN)]) == []
    assert idle(held, people=[process(71, state="zombie")]) == []
    assert idle(holding(71, 30, sm=0, kind="G")) == []
    assert idle(held, holdings_note="the list of processes could not be read") == []


# Memory of unknown processes


def loose(gib: float, **changes: Any) -> Gpu:
    """Return GPU 2 with so much memory that nobody is listed for."""
    held = changes.pop("holdings", ())
    return gpu(2, used_gib=gib + sum(float(one.memory) for one in held) / GIB, holdings=held, **changes)


@pytest.mark.parametrize(("gib", "level", "keeps"), [(0.7, None, None), (0.8, None, WARNING), (1.0, WARNING, WARNING)])
def test_memory_that_nobody_is_listed_for(gib: float, level: Severity | None, keeps: Severity | None) -> None:
    seen = finding(UNATTRIBUTED, loose(gib))
    assert (seen.level, seen.keeps, seen.unit, seen.raise_for) == (level, keeps, Unit.BYTES, 60.0)
    assert seen.value == pytest.approx(gib * GIB)
    assert bool(seen.evidence) is (keeps is not None)


@pytest.mark.parametrize(
    ("shown", "people", "changes"),
    [
        (loose(40, holdings_note="you may not see this GPU's processes"), (), {}),
        (loose(40, unreliable=True), (), {}),
        (loose(40, unattributed=Reason.NO_SAMPLE), (), {}),
        (loose(40, memory=Memory(total=64 * GIB, used=40 * GIB, free=24 * GIB, unified=True)), (), {}),
        # In a container all that runs outside of it is unknown.
        (loose(40), (), {"confined": True}),
        (loose(40, holdings=[holding(5, 1)]), [Process(pid=5, presence=Presence.ELSEWHERE)], {}),
    ],
)
def test_unknown_memory_that_cannot_be_judged(shown: Gpu, people: Any, changes: dict[str, Any]) -> None:
    assert severities_of(UNATTRIBUTED, shown, people=people, **changes) == []


# Dead processes


GONE = Process(pid=1234, presence=Presence.GONE)
ZOMBIE = process(1234, state="zombie", ppid=4711, parent="bash")


@pytest.mark.parametrize(
    ("held", "person", "level", "title"),
    [
        (holding(1234, 12, start=0, sm=0), GONE, WARNING, "pid 1234 has ended and still holds 12.0 GiB on GPU 4"),
        (
            holding(1234, 40, sm=0),
            process(1234, "ada", presence=Presence.GONE),
            WARNING,
            "pid 1234 (ada) has ended and still holds 40.0 GiB on GPU 4",
        ),
        (
            holding(1234, 12, sm=0),
            ZOMBIE,
            WARNING,
            "pid 1234 (ada) is a zombie of 4711 bash and still holds 12.0 GiB on GPU 4",
        ),
        (holding(1234, 200 * MIB / GIB, sm=0), ZOMBIE, None, "is a zombie"),
        # A zombie that computes is a program whose first thread has ended.
        (holding(1234, 12, sm=80), ZOMBIE, None, "is a zombie"),
        (holding(1234, memory=Reason.UNSUPPORTED, start=0, sm=0), GONE, None, "at least 0.0 GiB"),
    ],
)
def test_a_dead_process_that_holds_memory(held: Holding, person: Process, level: Severity | None, title: str) -> None:
    seen = finding(DEAD, gpu(4, used_gib=41, holdings=[held]), people=[person])
    assert (seen.level, seen.subject, seen.pids) == (level, f"1234:{held.start} {uuid(4)}", (1234,))
    assert title in seen.title
    assert seen.partial is (held.memory is Reason.UNSUPPORTED)
    assert seen.how == ("it runs on the GPU" if held.sm == 80 else "its memory was freed")


@pytest.mark.parametrize("presence", [one for one in Presence if one is not Presence.GONE])
def test_one_that_may_be_there_is_not_dead(presence: Presence) -> None:
    assert (
        severities_of(DEAD, gpu(4, holdings=[holding(1234, 12)]), people=[Process(pid=1234, presence=presence)]) == []
    )
