"""Rules that gpuwatch comes with, one object each."""

from __future__ import annotations

from typing import Final

from gpuwatch.alerts.rule import Rule
from gpuwatch.alerts.rules import devices, hardware, health, idle, memory, runs, shares

RULES: Final[tuple[Rule, ...]] = (
    *memory.RULES,
    *shares.RULES,
    *devices.RULES,
    *idle.RULES,
    *hardware.RULES,
    *health.RULES,
)
"""Rules in the order of the documents: memory, shares, holders, hardware, gpuwatch itself."""

RULE_NAMES: Final = frozenset([*(rule.name for rule in RULES), runs.RUN_ENDED])
"""Names of all rules, also of the one that follows runs of this machine: each engine of a live view has its own."""
