"""Limits of the alert rules: types, defaults, bounds and words of the tables `[alerts]`, `[allowance]` and `[[rule]]`.

A field with a description is a key of gpuwatch.toml.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from gpuwatch.alerts.alert import Severity
from gpuwatch.base.units import GIB, MIB
from gpuwatch.model.values import DAY, HOUR, Bytes, RuleNames, Seconds, Text, XidCodes

MOST_FREE: Final = 95
"""Percent. An alert clears 2 points above its limit, so an alert with a limit near 100 would never end."""


class Allowances(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes and seconds by which a process may exceed its limit before an alert: `[allowance]`.

    Memory beyond an allocator's limit is nearly constant, not proportional to it: TensorFlow Serving held 234 MiB
    over at half a T4 and at a quarter (tensorflow/serving#1668), PyTorch 1.8 with CUDA 10.1 held 1014 MiB over at 5.4
    GiB (pytorch/pytorch#58466).
    """

    after: Annotated[Seconds, Meta(ge=0.1, le=HOUR, description="time above the limit, but at least 3 samples")] = 10.0
    framework: Annotated[
        Bytes, Meta(ge=0, description="CUDA context and library handles on top of what an allocator counts")
    ] = 600 * MIB
    eager: Annotated[Bytes, Meta(ge=0, description="the same if all kernels are loaded at once (CUDA before 11.7)")] = (
        1100 * MIB
    )
    budget: Annotated[Bytes, Meta(ge=0, description="vLLM; at least 2 % of the GPU")] = GIB
    exact: Annotated[Bytes, Meta(ge=0, description="limits that are enforced (MPS, HAMi, NVML)")] = 64 * MIB
    collective: Annotated[Bytes, Meta(ge=0, description="added for ranks of a run on several GPUs (NCCL)")] = 512 * MIB
    """Not added to `exact`."""
    second_step: Annotated[Bytes, Meta(ge=0, description="excess that is critical; at least 10 % of the limit")] = GIB


Scope: TypeAlias = Literal["gpu", "process", "user"]


class CustomRule(msgspec.Struct, frozen=True, kw_only=True):
    """Rule that the user wrote, one `[[rule]]`: alert while the figures that it compares are beyond its values.

    `alerts.rules.custom.parse_condition` checks the condition.
    """

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=40,
            description="1 to 40 characters, not a rule of gpuwatch",
            examples=['"hot memory"'],
            extra={"form": "text"},
        ),
    ]
    when: Annotated[
        Text,
        Meta(
            min_length=1,
            description="as in a filter: comparisons and gpu: or user:, all must be true",
            examples=['"temperature>80 gpu:0-3"'],
        ),
    ]
    on: Annotated[Scope, Meta(description='or "process", "user"; left out: "gpu"', examples=['"gpu"'])] = "gpu"
    after: Annotated[
        Seconds,
        Meta(ge=0, le=7 * DAY, description="time to raise it and to end it; left out: 10s", examples=['"30s"']),
    ] = msgspec.field(default=10.0, name="for")
    severity: Annotated[
        Severity, Meta(description='or "note", "critical"; left out: "warning"', examples=['"warning"'])
    ] = Severity.WARNING
    message: Annotated[
        Text, Meta(min_length=1, description="text of the alert; left out: the figures", examples=['"too hot"'])
    ] = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of all rules: `[alerts]`. Percentages are of the memory that programs can have: all but the driver's own.

    `at_most` names the field that a value must not exceed: otherwise critical would be reached before the warning.
    """

    off: Annotated[RuleNames, Meta(description='rules to turn off: ["power limit"]')] = frozenset()
    quiet: Annotated[
        Seconds, Meta(ge=0, le=HOUR / 6, description="time after the start in which nothing is raised")
    ] = 5.0
    """Alerts do not end in this time either: after a start, drivers report wrong values."""
    memory_warning: Annotated[float, Meta(ge=0, le=MOST_FREE, description="warn below this percent of free memory")] = (
        10.0
    )
    memory_critical: Annotated[
        float,
        Meta(ge=0, le=MOST_FREE, description="the same, for a critical alert", extra={"at_most": "memory_warning"}),
    ] = 5.0
    memory_for: Annotated[Seconds, Meta(ge=0, le=HOUR, description="how long it must last, but at least 3 samples")] = (
        2.0
    )
    """Applies both to raising and to clearing."""
    full_warning: Annotated[
        Seconds, Meta(ge=10, le=DAY, description="time until a GPU is full, if it grows as in the last minutes")
    ] = 600.0
    full_critical: Annotated[
        Seconds, Meta(ge=0, le=DAY, description="the same, for a critical alert", extra={"at_most": "full_warning"})
    ] = 120.0
    full_for: Annotated[Seconds, Meta(ge=0, le=HOUR, description="how long this prediction must last")] = 5.0
    idle_after: Annotated[Seconds, Meta(ge=10, le=7 * DAY, description="time without a kernel")] = 1800.0
    idle_memory: Annotated[Bytes, Meta(ge=MIB, description="least memory of one user on one GPU")] = GIB
    unknown_memory: Annotated[Bytes, Meta(ge=MIB, description="memory of unknown processes")] = GIB
    unknown_for: Annotated[Seconds, Meta(ge=0, le=DAY, description="how long it must last")] = 60.0
    busy_unlisted_for: Annotated[
        Seconds, Meta(ge=0, le=DAY, description="how long a GPU must be busy without a listed process")
    ] = 180.0
    ended_process_memory: Annotated[
        Bytes, Meta(ge=MIB, description="memory still held by a process that has ended")
    ] = 256 * MIB
    ended_process_for: Annotated[Seconds, Meta(ge=0, le=DAY, description="how long it must last")] = 20.0
    temperature_margin: Annotated[
        float,
        Meta(ge=0, le=50, description="degrees below the slowdown temperature, which itself is critical"),
    ] = 5.0
    temperature_for: Annotated[Seconds, Meta(ge=0, le=DAY, description="how long it must last")] = 10.0
    throttled_for: Annotated[
        Seconds, Meta(ge=0, le=DAY, description="time of a slowdown by heat or by the power brake")
    ] = 60.0
    sensor_failed_for: Annotated[Seconds, Meta(ge=0, le=DAY, description="how long a figure must give an error")] = 15.0
    power_for: Annotated[Seconds, Meta(ge=0, le=7 * DAY, description="time at the power limit; a note")] = 1800.0
    xid_for: Annotated[
        Seconds, Meta(ge=10, le=7 * DAY, description="time after the newest XID at which its alert ends")
    ] = 600.0
    xid_critical: Annotated[XidCodes, Meta(description="the driver's error codes that are critical")] = frozenset(
        {48, 62, 64, 74, 79, 95, 119, 120}
    )
    xid_warning: Annotated[
        XidCodes, Meta(description="codes that are a warning; all others are mistakes of programs, and raise no alert")
    ] = frozenset({94})
    allowances: Allowances = Allowances()
    custom: tuple[CustomRule, ...] = ()
