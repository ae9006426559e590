"""Rules of the user's own: every figure, raised and cleared sample by sample."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import Alert, Severity, Unit
from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.fields import Amount, Field
from gpuwatch.filters import Comparison
from gpuwatch.model import Gpu, Health, Reason
from tests.support.alerting import Bench, words
from tests.support.builders import GIB, USABLE_GIB, gpu, holding, memory, process, uid

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL


def own(when: str, **fields: Any) -> CustomRule:
    """Return a rule of the user's, called `mine`."""
    return CustomRule(**{"name": "mine", "when": when, **fields})


def bench(*rules: CustomRule) -> Bench:
    """Return an engine that knows nothing but these rules."""
    return Bench(Limits(quiet=0, custom=rules), rules=())


def only(one: Bench) -> Alert:
    """Return the one alert that holds."""
    (alert,) = one.last.active
    return alert


def run(one: Bench, seconds: int, *gpus: Gpu, **changes: Any) -> list[tuple[str, ...]]:
    """Let the GPUs be so for some samples, a second apart; returns what changed, less the seconds when nothing did."""
    found = [words(one.feed(*gpus, **changes)) for _ in range(seconds)]
    return [change for change in found if change]


# Raising and clearing


def test_it_is_raised_after_its_time_and_cleared_after_as_long() -> None:
    one = bench(own("temperature>80", name="hot memory", after=20.0, severity=CRITICAL))
    assert run(one, 20, gpu(3, temperature=83)) == []
    assert run(one, 1, gpu(3, temperature=83)) == [("+critical",)]
    alert = only(one)
    assert (alert.rule, alert.title) == ("hot memory", "hot memory: GPU 3 temperature 83 °C, above 80")
    assert run(one, 20, gpu(3, temperature=75)) == []
    (over,) = one.feed(gpu(3, temperature=74)).cleared
    assert (over.peak, over.last, over.unit) == (83, 74, Unit.CELSIUS)


def test_below_is_the_other_way_round() -> None:
    one = bench(own("free<10GiB", after=2.0))
    assert run(one, 5, gpu(0, memory=memory(USABLE_GIB - 5))) == [("+warning",)]
    assert only(one).title == "mine: GPU 0 free memory 5.0 GiB, below 10.0 GiB"
    run(one, 1, gpu(0, memory=memory(USABLE_GIB - 2)))
    assert only(one).peak == 2 * GIB
    assert run(one, 5, gpu(0, memory=memory(USABLE_GIB - 30))) == [("cleared",)]


def test_a_missing_reading_neither_raises_nor_clears() -> None:
    one = bench(own("power>300", after=5.0))
    run(one, 4, gpu(0, power=400.0))
    assert run(one, 30, gpu(0, power=Reason.ERROR)) == []
    assert run(one, 2, gpu(0, power=400.0)) == [("+warning",)]
    assert run(one, 60, gpu(0, power=Reason.ERROR)) == []
    assert run(one, 60, gpu(0, health=Health.LOST, power=100.0)) == []
    assert len(one.last.active) == 1


HOT = own("temperature>80", after=2.0)


def hot() -> Bench:
    """Return a bench with GPU 0 too hot."""
    one = bench(HOT)
    assert run(one, 5, gpu(0, temperature=85), gpu(1)) == [("+warning",)]
    return one


@pytest.mark.parametrize(
    ("changed", "how"),
    [
        (own("rss>80GiB", on="process"), "the rule was changed"),
        (own("power>600"), "the rule was changed"),
        (own("temperature<10"), "the rule was changed"),
        (own("temperature>80 gpu:1"), "the rule is not about GPU 0 now"),
    ],
)
def test_a_rule_that_now_asks_something_else_ends_what_it_raised(changed: CustomRule, how: str) -> None:
    one = hot()
    one.engine.limits = Limits(quiet=0, custom=(changed,))
    found: list[Alert] = []
    for _ in range(20):
        found += one.feed(gpu(0, temperature=85), gpu(1)).cleared
    assert [alert.how for alert in found] == [how]
    assert one.last.active == ()
    if changed.when in ("rss>80GiB", "power>600"):  # a restored alert tells its figure by its unit alone
        again = bench(changed)
        again.restore(*hot().last.active)
        assert run(again, 1, gpu(0, temperature=85)) == [("cleared",)]
        assert again.last.cleared[0].how == how


def test_a_rule_with_other_limits_goes_on_with_what_it_raised() -> None:
    one = hot()
    before = only(one).id
    one.engine.limits = Limits(quiet=0, custom=(own("temperature>70 gpu:0", severity=CRITICAL),))
    assert run(one, 9, gpu(0, temperature=85), gpu(1)) == []
    assert run(one, 9, gpu(0, temperature=85), gpu(1)) == [("+critical",)]
    assert only(one).id == before


@given(number=st.floats(0, 100), limit=st.floats(0, 100), sign=st.sampled_from([">", ">=", "<", "<="]))
def test_what_holds_of_a_lower_bound_holds_of_all_that_it_may_be(number: float, limit: float, sign: str) -> None:
    read: Field[Amount] = Field("x", "x", lambda one: one)
    comparison = Comparison(read, sign, limit)
    answer = comparison.holds(Amount(number, at_least=True))
    for more in (number, number + 1, number + 1000):
        assert answer in (None, comparison.holds(Amount(more)))


def test_all_terms_of_a_condition_must_hold() -> None:
    one = bench(own("idle>30s mem>10GiB !jupyter", on="process", after=0.0, message="asleep with much memory"))
    people = [process(7, command="python train.py"), process(8, command="jupyter lab")]
    cards = [
        gpu(0, holdings=[holding(7, 20.0, sm=0), holding(8, 20.0, sm=0)]),
        gpu(1, holdings=[holding(7, 5.0, sm=0)]),
    ]
    assert run(one, 32, *cards, people=people) == [("+warning",)]
    assert only(one).title == "mine: pid 7 (ada) on GPU 0 asleep with much memory"
    assert only(one).evidence.startswith("idle for at least 31 s, above 30 s; memory 20.0 GiB, above 10.0 GiB")


# What a rule is about


def test_a_rule_for_a_gpu_and_a_user_is_about_the_gpus_that_they_are_on() -> None:
    one = bench(own("utilization>90 user:ben", after=2.0))
    people = [process(1, "ada"), process(2, "ben")]
    ada, ben = gpu(0, utilization=99, holdings=[holding(1)]), gpu(1, utilization=99, holdings=[holding(2)])
    run(one, 5, ada, ben, people=people)
    assert only(one).index == 1
    blind = gpu(1, utilization=99, holdings_note="the list could not be read")
    assert run(one, 30, ada, blind, people=people) == []
    (over,) = [change for _ in range(3) for change in one.feed(ada, gpu(1, utilization=99), people=people).cleared]
    assert over.how == "the rule is not about GPU 1 now"


# Processes


def test_idle_time_that_may_be_longer_raises_and_does_not_clear() -> None:
    one = bench(own("idle>60s", on="process", after=0.0))
    assert run(one, 61, gpu(0, holdings=[holding(7, sm=0)])) == []
    assert run(one, 1, gpu(0, holdings=[holding(7, sm=0)])) == [("+warning",)]
    assert only(one).title == "mine: pid 7 (ada) on GPU 0 idle for at least 1 min 1 s, above 1 min"
    assert run(one, 1, gpu(0, holdings=[holding(7, sm=5)])) == [("cleared",)]


# Users


def test_an_alert_of_a_user_ends_when_they_hold_nothing() -> None:
    one = bench(own("gpus>1", name="too many", on="user", after=3.0))
    cards = [gpu(index, holdings=[holding(7, 5.0)]) for index in range(2)]
    assert run(one, 5, *cards, people=[process(7)]) == [("+warning",)]
    assert only(one).title == "too many: ada GPUs held 2, above 1"
    assert only(one).key == f"too many|box3|uid:{uid('ada')}"
    sick = gpu(1, health=Health.SILENT)
    assert run(one, 30, gpu(0), sick) == []
    (over,) = [change for _ in range(3) for change in one.feed(gpu(0), gpu(1)).cleared]
    assert over.how


def test_a_user_of_whom_a_part_is_not_known_may_raise_and_is_not_cleared() -> None:
    one = bench(own("mem>50GiB", on="user", after=2.0))
    known = [gpu(0, holdings=[holding(7, 40.0)]), gpu(1, holdings=[holding(8, 20.0)])]
    people = [process(7), process(8)]
    hidden = [known[0], gpu(1, holdings=[holding(8, memory=Reason.DENIED)])]
    assert run(one, 30, *hidden, people=people) == []
    assert run(one, 5, *known, people=people) == [("+warning",)]
    assert run(one, 30, *hidden, people=people) == []
    lost = [known[0], gpu(1, health=Health.LOST)]
    assert run(one, 30, *lost, people=people) == []
    assert run(one, 5, known[0], gpu(1), people=[process(7)]) == [("cleared",)]
