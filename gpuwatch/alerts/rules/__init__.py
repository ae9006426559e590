"""Rules that gpuwatch comes with, one object each."""

from __future__ import annotations

from typing import Final

from gpuwatch.alerts.rule import Rule
from gpuwatch.alerts.rules import devices, hardware, health, idle, memory, shares

RULES: Final[tuple[Rule, ...]] = (
    *memory.RULES,
    *shares.RULES,
    *devices.RULES,
    *idle.RULES,
    *hardware.RULES,
    *health.RULES,
)
"""Rules in the order of the documents: memory, shares, holders, hardware, gpuwatch itself."""

RULE_NAMES: Final = frozenset(rule.name for rule in RULES)

FORMER_NAMES: Final = {
    "overshoot": shares.OVERSHOOT,
    "over-committed": shares.OVERCOMMITTED,
    "devices disagree": devices.DISAGREE,
    "stray contexts": devices.UNUSED,
    "unattributed memory": idle.UNATTRIBUTED,
    "orphaned holder": idle.DEAD,
    "dead process holds memory": idle.DEAD,
    "power at limit": hardware.POWER,
    **dict.fromkeys(("orphan_memory", "dead_process_memory"), "ended_process_memory"),
    **dict.fromkeys(("orphan_for", "dead_process_for"), "ended_process_for"),
    "unattributed_memory": "unknown_memory",
    "unattributed_for": "unknown_for",
}
"""Earlier names of rules and of their keys in `[alerts]`, with the present ones."""
