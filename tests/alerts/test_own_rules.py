"""Rules of the user's own: every figure, raised and cleared sample by sample."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.model.fields import Amount, Field
from gpuwatch.model.filters import Comparison
from tests.support.alerts import Bench
from tests.support.builders import gpu

NOTE, WARNING, CRITICAL = Severity.NOTE, Severity.WARNING, Severity.CRITICAL


def own(when: str, **fields: Any) -> CustomRule:
    """Return a rule of the user's, called `mine`."""
    return CustomRule(**{"name": "mine", "when": when, **fields})


def bench(*rules: CustomRule) -> Bench:
    """Return an engine that knows nothing but these rules."""
    return Bench(Limits(quiet=0, custom=rules), rules=())


@pytest.mark.parametrize("changed", [own("rss>80GiB", on="process"), own("power>600")])
def test_a_restored_alert_of_a_rule_that_now_asks_something_else_ends(changed: CustomRule) -> None:
    """It tells its figure by its unit alone."""
    hot, again = bench(own("temperature>80", after=2.0)), bench(changed)
    for _ in range(5):
        hot.feed(gpu(0, temperature=85))
    again.restore(*hot.last.active)
    (over,) = again.feed(gpu(0, temperature=85)).cleared
    assert "changed" in over.how


@given(number=st.floats(0, 100), limit=st.floats(0, 100), sign=st.sampled_from([">", ">=", "<", "<="]))
def test_what_holds_of_a_lower_bound_holds_of_all_that_it_may_be(number: float, limit: float, sign: str) -> None:
    read: Field[Amount] = Field("x", "x", lambda one: one)
    comparison = Comparison(read, sign, limit)
    answer = comparison.holds(Amount(number, at_least=True))
    for more in (number, number + 1, number + 1000):
        assert answer in (None, comparison.holds(Amount(more)))
