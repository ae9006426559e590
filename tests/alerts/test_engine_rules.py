"""Rules that are off, that fail, or that speak of what is on no GPU."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from gpuwatch.alerts.alert import TROUBLE, Alert, Severity
from gpuwatch.alerts.engine import FORGOTTEN
from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.alerts.rule import Observation, Rule, RuleContext
from gpuwatch.alerts.rules import memory
from gpuwatch.alerts.rules.health import HEALTH
from gpuwatch.alerts.rules.memory import MEMORY
from gpuwatch.model import Gpu, Health, Reason, SourceState
from tests.support.alerting import Bench, only, words
from tests.support.builders import filled, gpu, holding

QUIET = Limits(quiet=0)
OFF = Limits(quiet=0, off=frozenset({MEMORY}))
WARNING = Severity.WARNING


class Shaky:
    """A rule that finds one thing on each GPU, and fails when it is asked to, halfway through."""

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


# Off


def test_a_rule_that_is_off_says_nothing() -> None:
    bench = Bench(OFF)
    assert bench.feed_free(4, 4, 4, 4) == [()] * 4
    assert words(bench.feed(filled(4), gpu(1, health=Health.LOST))) == ("+critical",)
    assert bench.engine._conditions.keys() == {(HEALTH, "box3", gpu(1).key)}


def test_a_rule_that_is_turned_off_ends_what_it_raised() -> None:
    bench = Bench()
    for _ in range(3):
        bench.feed(filled(4), gpu(1, health=Health.LOST))
    bench.engine.limits = OFF
    changes = bench.feed(filled(4), gpu(1, health=Health.LOST))
    assert [(alert.rule, alert.how) for alert in changes.cleared] == [(MEMORY, "the rule was turned off")]
    assert [alert.rule for alert in changes.active] == [HEALTH]
    bench.engine.limits = QUIET
    assert bench.feed_free(4, 4, 4)[-1] == ("+critical",)


def test_what_is_restored_of_a_rule_that_is_off_ends_at_once() -> None:
    first = Bench()
    first.feed_free(4, 4, 4)
    bench = Bench(OFF)
    bench.feed_free(4)
    bench.restore(only(first, MEMORY))
    assert bench.feed_free(4) == [("cleared",)]
    assert bench.last.cleared[0].how == "the rule was turned off"


def test_what_is_restored_of_a_rule_that_is_none_any_more_ends_at_once() -> None:
    first = Bench(rules=[Shaky().rule])
    first.feed(gpu(0))
    bench = Bench()
    bench.restore(only(first, "shaky"))
    assert [alert.how for alert in bench.feed(gpu(0)).cleared] == ["the rule was turned off"]


def test_an_own_rule_that_is_gone_ends_what_it_raised() -> None:
    own = CustomRule(name="hot", when="temperature>80", after=0.0)
    bench = Bench(msgspec.structs.replace(QUIET, custom=(own,)), rules=[])
    hot = gpu(0, temperature=83)
    assert words(bench.feed(hot)) == ("+warning",)
    bench.engine.limits = msgspec.structs.replace(QUIET, memory_warning=20.0, custom=(own,))
    assert words(bench.feed(hot)) == ()
    bench.engine.limits = QUIET
    assert [alert.how for alert in bench.feed(hot).cleared] == ["the rule was turned off"]


# Failing


def test_a_rule_that_fails_is_told_once_and_the_others_go_on() -> None:
    shaky = Shaky()
    bench = Bench(rules=[shaky.rule, *memory.RULES])
    shaky.error = TypeError("no \x1b[31mway")
    told = [words(bench.feed(filled(4))) for _ in range(4)]
    assert told == [("+warning",), (), ("+critical",), ()]
    assert [alert.rule for alert in bench.last.active] == [MEMORY, TROUBLE]
    alert = only(bench, TROUBLE)
    assert (alert.subject, alert.severity, alert.host) == ("shaky", WARNING, "box3")
    assert alert.title.startswith("the rule shaky failed: TypeError: no ")
    assert alert.title.isprintable()
    shaky.error = None
    changes = bench.feed(filled(4))
    assert [alert.how for alert in changes.cleared] == ["the rule shaky works again"]
    assert [alert.rule for alert in changes.raised] == ["shaky"]


@pytest.mark.parametrize("subject", ["", "7:7"])
def test_what_a_failing_rule_raised_is_held(subject: str) -> None:
    shaky = Shaky(subject)
    bench = Bench(rules=[shaky.rule])
    assert words(bench.feed(gpu(0), gpu(1))) == ("+warning", "+warning")
    shaky.error = ValueError("no")
    for _ in range(3):
        bench.feed(gpu(0), gpu(1), seconds=FORGOTTEN)
    assert len(bench.of("shaky")) == 2
    shaky.error = None
    bench.feed(gpu(0))
    assert len(bench.of("shaky")) == 2


def test_a_failure_of_every_sample_is_one_alert() -> None:
    shaky = Shaky()
    shaky.error = ValueError("no")
    bench = Bench(rules=[shaky.rule])
    told = [words(bench.feed(gpu(0))) for _ in range(20)]
    assert told == [("+warning",)] + [()] * 19
    assert len(bench.engine._conditions) == 1


# About users, on no GPU


def of_user(context: RuleContext) -> Iterator[Observation]:
    pids = tuple(one.pid for gpu in context.snapshot.gpus for one in gpu.holdings)
    if pids:
        yield Observation(subject="uid:1000", level=WARNING, keeps=WARNING, raise_after=1, title="hog", pids=pids)


@pytest.mark.parametrize(
    ("cards", "over"),
    [
        ((gpu(0), gpu(1)), True),
        ((gpu(0), gpu(1, health=Health.LOST)), False),
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


# What flickers


def throttled(context: RuleContext) -> Iterator[Observation]:
    for one in context.snapshot.gpus:
        level = WARNING if one.throttle else None
        if isinstance(one.throttle, Reason):
            continue
        yield Observation(
            gpu=one, level=level, keeps=level, title="x", stamp=one.sampled, raise_after=1, raise_for=5, forgives=2
        )


@pytest.mark.parametrize(
    ("samples", "raised"),
    [
        ("xx.x.xx", True),
        ("x..x..x", True),
        ("x...xxx", False),
        ("xx?x?.x", True),
        ("xxxxx..", False),
    ],
)
def test_fine_samples_that_are_forgiven_do_not_break_a_rise(samples: str, raised: bool) -> None:
    bench = Bench(rules=[Rule("flicker", throttled)])
    readings = {"x": ("power brake",), ".": (), "?": Reason.NO_SAMPLE}
    for each in samples:
        bench.feed(gpu(0, throttle=readings[each]))
    assert bool(bench.last.active) is raised


def test_alerts_of_one_rule_stay_apart_by_gpu() -> None:
    bench = Bench(rules=[Shaky("7:7").rule])
    bench.feed(gpu(0), gpu(1))
    keys = {alert.key for alert in bench.last.active}
    assert keys == {f"shaky|box3|7:7 {gpu(index).key}" for index in (0, 1)}
    assert all(isinstance(alert, Alert) for alert in bench.last.active)
