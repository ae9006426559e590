"""The table of rules against the rules themselves and against the limits that they are given."""

from __future__ import annotations

import importlib
import pkgutil

import gpuwatch.alerts
from gpuwatch.alerts.alert import TROUBLE
from gpuwatch.alerts.rules import hardware
from gpuwatch.alerts.rules.memory import Limits
from gpuwatch.alerts.table import RULES, names
from gpuwatch.units import long_duration

OF_NO_RULE = {
    "off",
    "quiet",
    "own",
    "allowances",
    "samples",
    "clear_margin",
    "stale_intervals",
    "starting_grace",
}
"""Fields of Limits that belong to all rules, or cannot be set."""


def constants() -> set[str]:
    """Return the public text constants of all modules with rules: these are the names that rules go by."""
    found: set[str] = set()
    for info in pkgutil.walk_packages(gpuwatch.alerts.__path__, "gpuwatch.alerts."):
        module = importlib.import_module(info.name)
        values = vars(module).items()
        found |= {value for name, value in values if name.isupper() and name[0] != "_" and isinstance(value, str)}
    return {value for value in found if "{" not in value} - {TROUBLE}


def test_the_table_has_every_rule_and_no_other() -> None:
    assert constants() == names()


def test_each_rule_is_there_once_and_says_everything() -> None:
    assert len(RULES) == len(names())
    for fact in RULES:
        assert all([fact.name, fact.severity, fact.says, fact.raised, fact.cleared])
        assert "\n" not in "".join([fact.severity, fact.says, fact.raised, fact.cleared])


def test_every_key_is_a_limit_and_every_limit_belongs_to_one_rule() -> None:
    keys = [key for fact in RULES for key in fact.keys]
    assert len(keys) == len(set(keys))
    assert set(keys) == set(Limits.__struct_fields__) - OF_NO_RULE


def test_the_words_have_what_the_rules_do() -> None:
    facts = {fact.name: fact for fact in RULES}
    assert f"{hardware.COOLER:g} °C cooler" in facts[hardware.TEMPERATURE].cleared
    assert facts[hardware.THROTTLED].cleared == f"{long_duration(hardware.FREE_FOR)} without"
    assert long_duration(Limits().throttled_for * hardware.SLOW_LONGER) in facts[hardware.THROTTLED].raised
    assert facts[hardware.POWER].cleared == f"{long_duration(hardware.BELOW_FOR)} below"
