"""Every rule that gpuwatch comes with: what it says, when, and which keys of `[alerts]` are its own.

The one place where they are described: the documentation, the configuration and the events log take names from here.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from gpuwatch.alerts.rules.memory import Limits
from gpuwatch.units import long_duration, size

_BY: Final = Limits()
_MARGIN: Final = f"{_BY.clear_margin:g} points"
_SAMPLES: Final = f"{_BY.samples} samples"
_ALLOWED: Final = _BY.allowances


class RuleFact(NamedTuple):
    """One rule in words, with the default limits."""

    name: str
    severity: str
    """`warning`; `warning, critical` where it steps up; what it depends on where that is to be said."""
    says: str
    raised: str
    """When it is raised."""
    cleared: str
    keys: tuple[str, ...] = ()
    """Fields of `Limits` that are its keys in `[alerts]`."""


RULES: Final[tuple[RuleFact, ...]] = (
    RuleFact(
        "memory near limit",
        "warning, critical",
        "a GPU has little memory left; who holds it, and who grew",
        f"less than {_BY.memory_warning:g} % free, critical {_BY.memory_critical:g} %, in {_SAMPLES} over "
        f"{long_duration(_BY.memory_for)}",
        f"{_MARGIN} above that, as long",
        ("memory_warning", "memory_critical", "memory_for"),
    ),
    RuleFact(
        "time to full",
        "warning, critical",
        "a GPU's memory will be full soon, at the speed of the last minutes",
        f"in less than {long_duration(_BY.full_warning)}, critical {long_duration(_BY.full_critical)}, for "
        f"{long_duration(_BY.full_for)}",
        f"one and a half times as far off, or no longer growing, for {long_duration(_BY.full_for)}",
        ("full_warning", "full_critical", "full_for"),
    ),
    RuleFact(
        "uses more than declared",
        "warning, critical; a note where the limit is a guess, a warning where the script was edited since",
        "a process, or all that share a limit, hold more than they declared",
        f"over the limit and an allowance in {_SAMPLES} over {long_duration(_ALLOWED.after)}; critical a second step "
        f"({size(_ALLOWED.second_step)} or {_ALLOWED.second_step_percent:g} %) beyond",
        f"{size(_ALLOWED.clear_margin)} below that, in {_SAMPLES}",
    ),
    RuleFact(
        "overbooked",
        "note; warning where memory is near its limit",
        "more is declared on a GPU than it has",
        f"in {_SAMPLES}",
        "when it is not",
    ),
    RuleFact(
        "past start size",
        "note",
        "a process holds more than the size it said it starts with; that is allowed",
        f"over the start size and an allowance in {_SAMPLES} over {long_duration(_ALLOWED.after)}",
        "when it does not",
    ),
    RuleFact(
        "outside visible devices",
        "warning",
        "a process is on a GPU that its CUDA_VISIBLE_DEVICES does not show",
        f"memory there in {_SAMPLES} over {long_duration(_ALLOWED.after)}",
        "when it is gone",
    ),
    RuleFact(
        "opened GPUs it does not use",
        "note; warning where it fills the others",
        "a process holds memory on several GPUs and computes on one",
        "no kernel on the others for 1 min",
        "when it does not",
    ),
    RuleFact(
        "misspelt variable",
        "note; warning where the process is on several GPUs",
        "a name like CUDA_VISIBLE_DIVICES stands in a process's environment",
        f"in {_SAMPLES}",
        "with the process",
    ),
    RuleFact(
        "idle but held",
        "warning",
        "a user holds memory on a GPU, and none of their processes there computes",
        f"{size(_BY.idle_memory)} or more without SM use for {long_duration(_BY.idle_after)}",
        "when one of them computes, or they are gone",
        ("idle_memory", "idle_after"),
    ),
    RuleFact(
        "memory of unknown processes",
        "warning",
        "memory of a GPU is held by no process that is listed",
        f"{size(_BY.unattributed_memory)} or more for {long_duration(_BY.unattributed_for)}",
        "below three quarters of that",
        ("unattributed_memory", "unattributed_for"),
    ),
    RuleFact(
        "dead process holds memory",
        "warning",
        "a process that has ended, or is a zombie, still holds memory",
        f"{size(_BY.dead_process_memory)} or more for {long_duration(_BY.dead_process_for)}",
        "below three quarters of that, or when it is gone",
        ("dead_process_memory", "dead_process_for"),
    ),
    RuleFact(
        "temperature near slowdown",
        "warning, critical",
        "a GPU is nearly as hot as where it slows itself down",
        f"{_BY.temperature_margin:g} °C below its own slowdown temperature, critical at that, for "
        f"{long_duration(_BY.temperature_for)}",
        "3 °C cooler, as long",
        ("temperature_margin", "temperature_for"),
    ),
    RuleFact(
        "throttled",
        "warning; note where the driver does it",
        "heat or the power brake holds a GPU's clocks down",
        f"for {long_duration(_BY.throttled_for)}; by the driver for heat alone, {long_duration(5 * _BY.throttled_for)}",
        "10 s without",
        ("throttled_for",),
    ),
    RuleFact(
        "power at limit",
        "note",
        "a GPU draws all the power that it may",
        f"for {long_duration(_BY.power_for)}",
        "1 min below",
        ("power_for",),
    ),
    RuleFact(
        "uncorrected ECC",
        "warning; critical for an hour after a new one",
        "a GPU has had memory errors that could not be corrected",
        "at once",
        "when the count is 0 again: the driver was loaded anew, or the GPU reset",
    ),
    RuleFact(
        "row remap",
        "warning; critical where it failed",
        "broken memory waits for a reset to be replaced, or could not be replaced",
        "at once",
        "when the GPU says so",
    ),
    RuleFact(
        "XID",
        "critical, warning by the code",
        "the driver reported an error of a GPU, with what its code means",
        f"at once, for the codes {', '.join(map(str, sorted(_BY.xid_critical)))} (critical) and "
        f"{', '.join(map(str, sorted(_BY.xid_warning)))} (warning)",
        f"{long_duration(_BY.xid_for)} after the newest",
        ("xid_critical", "xid_warning", "xid_for"),
    ),
    RuleFact(
        "gpu health",
        "critical; warning where it may pass",
        "a GPU is lost, denied, not responding, or in need of a reset",
        "at once",
        f"when it has answered in {_SAMPLES}",
    ),
    RuleFact(
        "data stale",
        "critical",
        "gpuwatch itself gets no new data",
        f"nothing new for {_BY.stale_intervals:g} intervals, and for 5 s",
        "with the next sample",
    ),
)
"""In the order in which people look for them: memory, shares, holders, hardware, gpuwatch itself."""


def names() -> frozenset[str]:
    """Return the names of all rules that gpuwatch comes with."""
    return frozenset(fact.name for fact in RULES)
