"""The rules against their limits: names, words and configuration keys."""

from __future__ import annotations

from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.rules import FORMER_NAMES, RULE_NAMES, RULES

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
