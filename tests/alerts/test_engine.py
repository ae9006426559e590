"""Engine: how observations become alerts over time, and how alerts end, are restored, and follow changed limits."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, repeat
from typing import Any

import msgspec
import pytest

from gpuwatch.alerts.alert import TROUBLE, Alert, AlertCause, AlertGpu, AlertUser, Severity, Unit
from gpuwatch.alerts.condition import CALM
from gpuwatch.alerts.engine import FORGOTTEN, Changes
from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.alerts.rule import Observation, Rule, RuleContext
from gpuwatch.alerts.rules import memory, shares
from gpuwatch.alerts.rules.health import HEALTH, STALE
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.alerts.rules.shares import OVERSHOOT
from gpuwatch.model import Declared, Gpu, Health, Kind, Knowledge, Margin, Memory, Reason, SourceState
from gpuwatch.sampler.nvml import Code, Failed, health
from tests.support.alerting import Bench, cap, card, feed, only, overshooting, part, uuid, words
from tests.support.builders import EPOCH, GIB, USABLE_GIB, filled, gpu, holding, process, uid

NOTE, WARNING, CRITICAL = Severity
LOST = gpu(1, health=Health.LOST)


def cleared(bench: Bench) -> Alert:
    """Return the one alert that the last snapshot ended."""
    (alert,) = bench.last.cleared
    return alert


def free_percent(amount: float | None) -> float:
    """Return bytes free in percent of the GPU that `filled` builds."""
    assert amount is not None
    return round(100 * amount / GIB / USABLE_GIB, 4)


# Raising and clearing


@pytest.mark.parametrize(
    ("limits", "free", "changed"),
    [
        # It is raised at the third sample in a row.
        (Limits(quiet=0), [4, 4, 4, 4], {2: "+critical"}),
        (Limits(quiet=0), [8, 8, 20, 8, 8, 8], {5: "+warning"}),
        # A sawtooth above the limit that raises and below the one that clears raises once, and it stays.
        (Limits(quiet=0), [9, 9, 9, *[10.5, 11.5, 9.5] * 20], {2: "+warning"}),
        # It is cleared at the third sample beyond the margin.
        (Limits(quiet=0), [9, 9, 9, 13, 13, 13, 13], {2: "+warning", 5: "cleared"}),
        # A step up is raised again, a step down is silent.
        (
            Limits(quiet=0),
            [9, 9, 9, 4, 4, 4, *[6.5] * 4, 8, 8, 8, 13, 13, 13],
            {2: "+warning", 5: "+critical", 15: "cleared"},
        ),
        (Limits(quiet=0, memory_for=5), [*[4] * 6, *[60] * 5, 11, *[60] * 6], {5: "+critical", 17: "cleared"}),
        (
            Limits(quiet=0, memory_warning=50, memory_critical=20, memory_for=0),
            [60, *[40] * 3, *[10] * 3],
            {3: "+warning", 6: "+critical"},
        ),
        # In the first seconds nothing is raised; what holds is raised then, and what is over never.
        (Limits(), [4] * 7, {5: "+critical"}),
        (Limits(), [4, 4, 4, 4, 60, 60, 60, 60], {}),
    ],
)
def test_when_an_alert_is_raised_and_cleared(limits: Limits, free: list[float], changed: dict[int, str]) -> None:
    found = Bench(limits).feed_free(*free)
    assert {sample: " ".join(changes) for sample, changes in enumerate(found) if changes} == changed


@pytest.mark.parametrize("fall", [[8, 8, 8], [20, 9, 20]])
def test_a_fall_below_the_second_limit_or_to_both_steps_down(fall: list[float]) -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4, 6.5, 6.5, 6.5)
    assert bench.severities() == [CRITICAL]
    assert bench.feed_free(*fall) == [()] * 3
    (eased,) = bench.last.eased
    assert eased == only(bench, MEMORY)
    assert (eased.severity, eased.most) == (WARNING, CRITICAL)


def test_missing_readings_freeze_what_is_raised_and_what_is_counted() -> None:
    bench, missing = Bench(), filled(4, memory=Memory())
    for free, change in ((4, ()), (4, ()), (4, ("+critical",)), (20, ()), (20, ()), (20, ("cleared",))):
        assert bench.feed_free(free) == [change]
        assert [words(bench.feed(missing)) for _ in range(3)] == [()] * 3


def test_a_sample_counts_once_and_time_is_the_readers() -> None:
    bench = Bench()
    bench.feed(filled(4))
    for _ in range(4):
        bench.feed(filled(4), fresh=False)
    assert bench.last.active == ()
    quiet = Bench(Limits())
    quiet.feed(filled(4))
    quiet.feed(filled(4), seconds=60)
    assert words(quiet.feed(filled(4))) == ("+critical",)


def test_samples_that_raise_must_span_the_time_of_their_own_severity() -> None:
    assert feed(Bench(), cap(10), *[11] * 8, *[20] * 11) == [()] * 10 + [("+warning",)] + [()] * 7 + [("+critical",)]
    for seconds in (5.0, 60.0):
        slow = Bench(rules=shares.RULES)
        assert [feed(slow, cap(10), 11, seconds=seconds, interval=seconds) for _ in range(3)] == [
            [()],
            [()],
            [("+warning",)],
        ]


def flickering(context: RuleContext) -> Iterator[Observation]:
    for one in context.snapshot.gpus:
        level = WARNING if one.throttle else None
        if not isinstance(one.throttle, Reason):
            yield Observation(
                gpu=one, level=level, keeps=level, title="x", stamp=one.sampled, raise_after=1, raise_for=5, forgives=2
            )


@pytest.mark.parametrize(
    ("samples", "raised"),
    [("xx.x.xx", True), ("x..x..x", True), ("x...xxx", False), ("xx?x?.x", True), ("xxxxx..", False)],
)
def test_fine_samples_that_are_forgiven_do_not_break_a_rise(samples: str, raised: bool) -> None:
    bench = Bench(rules=[Rule("flicker", flickering)])
    readings = {"x": ("power brake",), ".": (), "?": Reason.NO_SAMPLE}
    for each in samples:
        bench.feed(gpu(0, throttle=readings[each]))
    assert bool(bench.last.active) is raised


FULL, ROOM, QUICK = 8, 30, int(CALM / 2)


def test_what_swings_is_raised_twice_and_goes_on_until_it_is_better_for_long() -> None:
    bench = Bench()
    swing = [*repeat(FULL, QUICK), *repeat(ROOM, QUICK)]
    assert list(chain(*bench.feed_free(*swing))) == ["+warning", "cleared"]
    assert list(chain(*bench.feed_free(*swing * 10))) == ["+warning"]
    calm = bench.feed_free(*repeat(ROOM, int(3 * CALM)))
    assert [second for second, changes in enumerate(calm, QUICK + 1) if changes] == [CALM + 1]
    assert bench.feed_free(FULL, FULL, FULL, ROOM, ROOM, ROOM) == [(), (), ("+warning",), (), (), ("cleared",)]
    steps = Bench().feed_free(*[*repeat(FULL, QUICK), *repeat(3, QUICK)] * 10)
    assert list(chain(*steps)) == ["+warning", "+critical", "+critical"]


def test_health_is_raised_at_once_and_stale_data_by_the_first_old_sample() -> None:
    bench = Bench()
    kinds = (Health.NOT_READY, Health.LOST, Health.FAILED, Health.FAILED, Health.FAILED)
    assert [words(bench.feed(gpu(0, health=each))) for each in kinds] == [("+warning",), ("+critical",), (), (), ()]
    assert bench.severities() == [WARNING]
    bench = Bench()
    bench.feed(gpu(0))
    old = gpu(0, sampled=1000.0)
    assert [words(bench.feed(old, fresh=False)) for _ in range(7)] == [()] * 5 + [("+critical",), ()]
    assert (only(bench, STALE).title, only(bench, STALE).peak) == ("no new data for 7 s", 7.0)
    assert words(bench.feed(gpu(0))) == ("cleared",)
    assert Bench().feed() == Changes()


def test_alerts_are_sorted_by_severity_and_then_by_age() -> None:
    bench = Bench()
    for _ in range(3):
        bench.feed(filled(8, 0), filled(4, 1), gpu(2))
    changes = bench.feed(filled(8, 0), filled(4, 1), gpu(2, health=Health.LOST))
    assert [(one.severity, one.index) for one in changes.active] == [(CRITICAL, 1), (CRITICAL, 2), (WARNING, 0)]


# One alert: identity, figures, words


def test_an_alert_has_a_key_and_an_id_until_it_ends() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    first = only(bench, MEMORY)
    assert first.key == f"memory near limit|box3|{gpu(0).key}"
    assert len(first.id) == 10
    assert int(first.id, 16) >= 0
    bench.feed_free(9, 8, 9, 4, 60, 60, 60)
    assert cleared(bench).id == first.id
    bench.feed_free(4, 4, 4)
    assert only(bench, MEMORY).id != first.id
    assert only(overshooting(cap(10)), OVERSHOOT).key == f"uses more than declared|box3|100:100 {uuid()}"


def test_it_lists_gpus_users_and_the_processes_that_cause_it() -> None:
    over = only(overshooting(cap(10)), OVERSHOOT)
    ada = AlertUser(uid("ada"), "ada")
    assert (over.gpus, over.users) == ((AlertGpu(uuid(), 0),), (ada,))
    assert over.causes == (AlertCause(uid=ada.uid, user="ada", pid=100, start=100, run="100:100"),)
    assert over.indices == {0}
    assert over.people == {"ada"}


def test_peak_mean_and_last_are_those_of_its_own_samples() -> None:
    bench = Bench()
    # Three samples raise it; only the third is its own.
    bench.feed_free(4, 1, 4, 2, 3)
    alert = only(bench, MEMORY)
    assert [free_percent(one) for one in (alert.peak, alert.mean, alert.last)] == [2, 3, 3]
    assert (alert.seen, alert.lasted, alert.raised, alert.raised_monotonic) == (EPOCH + 4, 2.0, EPOCH + 2, 5002.0)
    bench.feed(filled(1, sampled=1004.0), fresh=False)
    assert only(bench, MEMORY) == alert
    over = Bench()
    feed(over, part(0.4), *[49.0] * 10, 51.0, 49.6)
    assert only(over, OVERSHOOT).unit is Unit.BYTES
    assert only(over, OVERSHOOT).evidence == (
        "17.7 GiB over 31.9 · peak 51.0 · +0.6 last minute · pid 100 python · "
        "train.py:12 per_process_gpu_memory_fraction = 0.4"
    )


def test_an_alert_says_what_it_was_while_it_clears_and_its_worst_when_it_has_ended() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4, 1.5, 3)
    (alert,) = bench.feed(filled(40)).active
    assert (alert.title, alert.evidence) == (
        "GPU 0 near limit: 2.4 GiB of 79.1 free",
        "now: 31.6 of 79.1 GiB free again",
    )
    bench.feed_free(60, 60)
    over = cleared(bench)
    assert (over.title, over.how) == ("GPU 0 near limit: 1.2 GiB of 79.1 free", "47.5 of 79.1 GiB free again")
    assert over.evidence.startswith("ada holds 77.9 GiB")
    assert (over.ended, over.lasted, over.seen) == (EPOCH + 7, 5.0, EPOCH + 7)
    assert (free_percent(over.peak), free_percent(over.last), over.owners) == (1.5, 60, ("ada",))
    assert msgspec.json.decode(msgspec.json.encode(over), type=Alert) == over


def test_a_gpu_that_is_lost_says_who_was_last_on_it() -> None:
    bench = Bench()
    people = [process(pid, user) for pid, user in enumerate(("ada", "ben", "cyn", "dov", "eve", "fay"), 1)]
    held = [holding(1, 31.8), holding(2, 9.6), holding(3, 2.0), holding(4, 0.2), holding(5, 0.1)]
    bench.feed(gpu(5, holdings=[*held, holding(6, 5.0)]), people=people)
    bench.feed(gpu(5, holdings=held), people=people)
    nvml = health(Failed("nvmlDeviceGetPowerUsage", Code.GPU_IS_LOST))[1]
    bench.feed(gpu(5, health=Health.LOST, words=nvml, memory=Memory()))  # NVML lists nobody on it any more
    who, _, rest = only(bench, HEALTH).evidence.partition(" · cannot be reached")
    assert who == "last on it: ada 31.8 GiB · ben 9.6 · cyn 2.0 · 2 others"
    assert rest.endswith("NVML error 15: GPU is lost (nvmlDeviceGetPowerUsage)")
    assert only(bench, HEALTH).title == "GPU 5 lost: it needs a reset or a reboot"
    empty = Bench()
    empty.feed(gpu(5))
    empty.feed(gpu(5, health=Health.LOST, words="fell off the bus", memory=Memory()))
    assert only(empty, HEALTH).evidence == "nobody was on it · fell off the bus"


# GPUs that come, go, and get a name


def test_a_gpu_left_out_keeps_its_alert_until_it_is_forgotten() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    assert len(bench.feed(gpu(1)).active) == len(bench.feed().active) == 1
    assert bench.feed_free(4) == [()]
    bench.feed(seconds=FORGOTTEN)
    assert len(bench.last.active) == 1
    assert words(bench.feed()) == ("cleared",)


def test_an_alert_and_counts_of_a_gpu_without_a_uuid_go_on_under_the_uuid() -> None:
    bench = Bench()
    assert words(bench.feed(gpu(2, uuid="", health=Health.NOT_READY, memory=Memory(), sampled=0.0))) == ("+warning",)
    (alert,) = bench.feed(gpu(2)).active
    assert alert.gpu == gpu(2).key
    bench.feed(gpu(2))
    assert words(bench.feed(gpu(2))) == ("cleared",)
    for _ in range(2):
        bench.feed(filled(4, uuid=""))
    assert words(bench.feed(filled(4))) == ("+critical",)


def test_a_uuid_that_has_an_alert_or_was_there_before_takes_none_over() -> None:
    bench = Bench()
    bench.feed(gpu(2, health=Health.MISSING))
    bench.feed(gpu(2, uuid="", health=Health.NOT_READY))
    bench.feed(gpu(2, health=Health.LOST))
    assert (cleared(bench).title, cleared(bench).how) == ("GPU 2 not ready", "it goes on under the GPU's UUID")
    assert only(bench, HEALTH).title == "GPU 2 lost: it needs a reset or a reboot"
    # GPU 2, which never gave a UUID, is behind one that drops out; GPU 3 gets its index.
    moved = Bench()
    moved.feed(gpu(2, uuid="", health=Health.SILENT), gpu(3))
    for _ in range(2):
        moved.feed(gpu(1, uuid="", health=Health.SILENT), gpu(2, uuid=gpu(3).uuid))
        assert [(one.gpu, one.index) for one in moved.of(HEALTH)] == [("index-1", 1)]
    both = Bench()
    seen = (gpu(2, uuid="", health=Health.SILENT), gpu(2, health=Health.MISSING))
    assert [len(both.feed(*seen).raised) for _ in range(3)] == [2, 0, 0]


def test_what_was_raised_before_the_host_was_known_is_that_hosts() -> None:
    bench = Bench()
    for _ in range(6):
        bench.feed(host="", state=SourceState.DRIVER_DOWN)
    before = only(bench, STALE)
    for host in ("box3", ""):
        bench.feed(host=host, state=SourceState.DRIVER_DOWN)
        assert (only(bench, STALE).host, only(bench, STALE).id, bench.last.raised) == ("box3", before.id, ())


# Processes and users


@pytest.mark.parametrize(
    ("cards", "declared", "how"),
    [
        ([gpu(0)], None, "process 100 has ended"),
        ([gpu(0), card((100, 50.0), index=1)], cap(10), "process 100 has left GPU 0"),
        ([card((100, 50.0))], Declared(), "it is no longer so"),
    ],
)
def test_an_overshoot_that_ends_says_how(cards: list[Gpu], declared: Declared | None, how: str) -> None:
    bench = overshooting(cap(10))
    bench.feed(*cards, people=[process(100, declared=declared)] if declared else [])
    assert (cleared(bench).how, cleared(bench).title) == (how, "ada holds 50.0 GiB of GPU 0, declared 10.0")


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
    bench.feed(gpu(0), state=SourceState.DRIVER_DOWN)
    bench.feed(untrusted, fresh=False)
    bench.feed(untrusted, fresh=False, seconds=FORGOTTEN - 2)
    assert len(bench.of(OVERSHOOT)) == 1
    bench.feed(untrusted, fresh=False)
    assert bench.of(OVERSHOOT) == []


@pytest.mark.parametrize(
    "declared", [None, Declared(knowledge=Knowledge.UNREADABLE), Declared(knowledge=Knowledge.PENDING)]
)
def test_declarations_and_memory_that_cannot_be_read_for_a_moment_end_nothing(declared: Declared | None) -> None:
    bench = overshooting(cap(10))
    assert feed(bench, declared, *[50] * 5) == [()] * 5
    before = only(bench, OVERSHOOT)
    assert feed(bench, cap(10), *[Reason.NO_SAMPLE] * 20, 50) == [()] * 21
    assert only(bench, OVERSHOOT).id == before.id
    assert feed(bench, Declared(), 50) == [("cleared",)]


def test_a_scope_goes_on_with_other_processes_and_ends_with_all() -> None:
    bench, shared = Bench(), cap(10, scope="genv 12", margin=Margin.EXACT, kind=Kind.GRANT)
    for seconds, pids in ((11, (100, 101)), (3, (100, 102))):
        people = [process(pid, declared=shared) for pid in pids]
        for _ in range(seconds):
            bench.feed(card((pids[0], 4.0), (pids[1], 6.5)), people=people)
        assert only(bench, OVERSHOOT).pids == pids[::-1]
    bench.feed(gpu(0))
    assert cleared(bench).how == "its processes have ended"


def test_hundreds_of_short_lived_processes_leave_nothing_behind() -> None:
    bench = Bench(rules=shares.RULES)
    for generation in range(5):
        pids = range(1000 + 100 * generation, 1100 + 100 * generation)
        people = [process(pid, declared=cap(0.01, margin=Margin.EXACT)) for pid in pids]
        bench.feed(card(*((pid, 0.1) for pid in pids)), people=people)
        assert len(bench.watched) <= 100
    bench.feed(gpu(0, used_gib=40))
    bench.feed(gpu(0, used_gib=40))
    assert bench.watched == set()
    for pid in range(20):
        people = [process(pid, declared=cap(0.01, margin=Margin.EXACT))]
        bench.feed(card((pid, 0.1), holdings_note="never complete"), people=people, seconds=100.0)
    assert 1 <= len(bench.watched) <= FORGOTTEN / 100 + 1


def of_user(context: RuleContext) -> Iterator[Observation]:
    pids = tuple(one.pid for gpu in context.snapshot.gpus for one in gpu.holdings)
    if pids:
        yield Observation(subject="uid:1000", level=WARNING, keeps=WARNING, raise_after=1, title="hog", pids=pids)


@pytest.mark.parametrize(
    ("cards", "over"),
    [
        ((gpu(0), gpu(1)), True),
        ((gpu(0), LOST), False),
        ((gpu(0), gpu(1, holdings_note="incomplete")), False),
        ((), False),
    ],
)
def test_what_is_about_a_user_ends_once_no_gpu_has_them(cards: tuple[Gpu, ...], over: bool) -> None:
    bench = Bench(rules=[Rule("hog", of_user)])
    assert words(bench.feed(gpu(0, holdings=[holding(7)]), gpu(1, holdings=[holding(8)]))) == ("+warning",)
    assert words(bench.feed(gpu(0), gpu(1), state=SourceState.SILENT)) == ()
    bench.feed(*cards)
    assert [alert.how for alert in bench.last.cleared] == (["its processes have ended"] if over else [])


# Rules that are off, changed, or fail


OFF = Limits(quiet=0, off=frozenset({MEMORY}))


def test_a_rule_that_is_off_says_nothing_and_ends_what_it_raised() -> None:
    bench = Bench(OFF)
    assert bench.feed_free(4, 4, 4, 4) == [()] * 4
    assert bench.watched == set()
    bench.engine.limits = Limits(quiet=0)
    for _ in range(3):
        bench.feed(filled(4), LOST)
    before = only(bench, MEMORY)
    bench.engine.limits = OFF
    changes = bench.feed(filled(4), LOST)
    assert [(alert.rule, alert.how) for alert in changes.cleared] == [(MEMORY, "the rule was turned off")]
    assert [alert.rule for alert in changes.active] == [HEALTH]
    bench.restore(before, msgspec.structs.replace(before, rule="a rule of before"))
    assert [alert.how for alert in bench.feed(filled(4), LOST).cleared] == ["the rule was turned off"] * 2


def test_an_own_rule_that_is_gone_ends_what_it_raised() -> None:
    own = CustomRule(name="hot", when="temperature>80", after=0.0)
    bench = Bench(Limits(quiet=0, custom=(own,)), rules=[])
    hot = gpu(0, temperature=83)
    assert words(bench.feed(hot)) == ("+warning",)
    bench.engine.limits = Limits(quiet=0, memory_warning=20.0, custom=(own,))
    assert words(bench.feed(hot)) == ()
    bench.engine.limits = Limits(quiet=0)
    assert [alert.how for alert in bench.feed(hot).cleared] == ["the rule was turned off"]


class Shaky:
    """Rule that finds one thing on each GPU, and fails when a test sets an error, halfway through."""

    def __init__(self, subject: str = "") -> None:
        self.error: Exception | None = None
        self.subject = subject
        self.rule = Rule("shaky", self._find)

    def _find(self, context: RuleContext) -> Iterator[Observation]:
        for one in context.snapshot.gpus:
            subject = f"{self.subject} {one.key}" if self.subject else ""
            yield Observation(
                gpu=one, subject=subject, level=WARNING, keeps=WARNING, raise_after=1, clear_after=1, title="it shakes"
            )
            if self.error is not None:
                raise self.error


def test_a_rule_that_fails_is_reported_once_and_the_others_go_on() -> None:
    shaky = Shaky()
    bench = Bench(rules=[shaky.rule, *memory.RULES])
    shaky.error = TypeError("no \x1b[31mway")
    told = [words(bench.feed(filled(4))) for _ in range(20)]
    assert told == [("+warning",), (), ("+critical",), *[()] * 17]
    alert = only(bench, TROUBLE)
    assert (alert.subject, alert.severity, alert.host) == ("shaky", WARNING, "box3")
    assert alert.title.startswith("the rule shaky failed: TypeError: no ")
    assert alert.title.isprintable()
    shaky.error = None
    changes = bench.feed(filled(4))
    assert [alert.how for alert in changes.cleared] == ["the rule shaky works again"]
    assert [alert.rule for alert in changes.raised] == ["shaky"]


@pytest.mark.parametrize("subject", ["", "7:7"])
def test_what_a_failing_rule_raised_goes_on(subject: str) -> None:
    shaky = Shaky(subject)
    bench = Bench(rules=[shaky.rule])
    assert words(bench.feed(gpu(0), gpu(1))) == ("+warning", "+warning")
    shaky.error = ValueError("no")
    for _ in range(3):
        bench.feed(gpu(0), gpu(1), seconds=FORGOTTEN)
    shaky.error = None
    bench.feed(gpu(0))
    assert len({alert.key for alert in bench.of("shaky")}) == 2


# Alerts that another gpuwatch raised


def near(**changes: Any) -> Alert:
    """Return the alert of a GPU near its limit that somebody else raised a minute before the first snapshot."""
    bench = Bench()
    bench.feed_free(4, 3, 4)
    fields = {"id": "0123456789", "raised": EPOCH - 60, "raised_monotonic": 7.0}
    return msgspec.structs.replace(only(bench, MEMORY), **{**fields, **changes})


def held(**changes: Any) -> Alert:
    """Return an overshoot that somebody else raised."""
    return msgspec.structs.replace(only(overshooting(cap(10)), OVERSHOOT), raised=EPOCH - 60, **changes)


def test_a_restored_alert_goes_on_and_is_not_raised_again() -> None:
    bench = Bench()
    bench.restore(near(peak=12.0, mean=100.0))
    assert bench.feed_free(4, 4, 4, 4) == [()] * 4
    alert = only(bench, MEMORY)
    assert (alert.id, alert.raised, alert.peak, alert.lasted) == ("0123456789", EPOCH - 60, 12.0, 63.0)
    assert alert.mean is not None
    assert 100.0 < alert.mean < (alert.last or 0)
    worse = Bench()
    worse.restore(near(severity=WARNING, most=WARNING))
    assert worse.feed_free(4, 4, 4) == [(), (), ("+critical",)]
    assert only(worse, MEMORY).id == "0123456789"
    future = Bench()
    future.restore(near(raised=EPOCH + 3600))
    future.feed_free(4)
    assert only(future, MEMORY).lasted == 1.0


def test_it_is_held_in_the_first_seconds_and_while_readings_are_missing() -> None:
    bench = Bench(Limits())
    bench.restore(near())
    for shown in (filled(4, memory=Memory()), gpu(0, health=Health.SILENT), filled(60), filled(60), filled(60)):
        assert words(bench.feed(shown)) == ()
        assert only(bench, MEMORY).id == "0123456789"
    assert bench.feed_free(60) == [("cleared",)]
    assert (cleared(bench).title, cleared(bench).how) == (near().title, "47.5 of 79.1 GiB free again")


def test_of_two_alerts_the_older_is_the_event() -> None:
    bench = Bench()
    bench.feed_free(4, 4, 4)
    young = only(bench, MEMORY)
    for alert in (near(peak=12.0, severity=WARNING), young):
        bench.restore(alert)
        assert bench.feed_free(4) == [()]
        older = only(bench, MEMORY)
        assert (older.id, older.raised, older.peak, older.severity) == ("0123456789", EPOCH - 60, 12.0, CRITICAL)


def test_what_is_not_restored_and_what_waits_for_the_host() -> None:
    bench = Bench()
    bench.restore(near(host="box4"), near(ended=EPOCH), near(rule=TROUBLE, gpu="", subject="events log"))
    bench.feed_free(60, 60)
    assert (bench.last.active, bench.last.cleared, bench.watched) == ((), (), set())
    bench = Bench()
    bench.restore(near(), near(host="", rule=STALE, gpu="", id="9876543210"))
    bench.feed(host="", state=SourceState.DRIVER_DOWN)
    bench.feed(filled(4), state=SourceState.DRIVER_DOWN)
    assert only(bench, MEMORY).id == "0123456789"
    assert (only(bench, STALE).id, only(bench, STALE).host) == ("9876543210", "box3")
    assert bench.last.raised == ()


def test_the_restored_overshoot_of_a_process_goes_on_until_it_is_judged() -> None:
    bench = Bench()
    bench.restore(held())
    for declared in (None, Declared(knowledge=Knowledge.PENDING), Declared(), cap(10)):
        assert feed(bench, declared, 50) == [()]
        assert only(bench, OVERSHOOT).raised == EPOCH - 60
    assert feed(bench, Declared(), 50) == [("cleared",)]
    partly = Bench()
    partly.restore(held())
    partly.feed(card((100, 5.0), holdings_note="incomplete"), people=[process(100, declared=part(0.9))])
    assert len(partly.of(OVERSHOOT)) == 1


@pytest.mark.parametrize("shown", [gpu(0), gpu(0, used_gib=40, holdings=[holding(100, 50.0, start=999)])])
def test_a_restored_overshoot_ends_with_its_process(shown: Any) -> None:
    bench = Bench()
    bench.restore(held())
    assert words(bench.feed(shown)) == ("cleared",)
    assert cleared(bench).how == "process 100 has ended"
    scope = Bench()
    scope.restore(held(subject=f"genv 12 {gpu(0).key}", pids=(100, 101)))
    scope.feed(card((101, 5.0)), people=[process(101)])
    assert len(scope.of(OVERSHOOT)) == 1
    scope.feed(card((102, 5.0)), people=[process(102)])
    assert cleared(scope).how == "its processes have ended"
