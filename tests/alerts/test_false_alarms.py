"""On a busy machine one thing that is wrong raises an alert, and nothing else does.

More machines: `GPUWATCH_TEST_SEEDS="2 3 4" pytest tests/alerts/test_false_alarms.py`.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Limits
from tests.timelines import busy, recording
from tests.timelines.player import Player, as_lines

BEGINS = 60.0
"""Seconds after the start at which something goes wrong."""


def job(gpu: int, gib: Any, **changes: Any) -> dict[str, Any]:
    """Return the step of one more process."""
    return {"pid": 99, "user": "ada", "gpu": gpu, "gib": gib, "sm": 50, **changes}


@pytest.mark.parametrize("seed", [1, *map(int, os.environ.get("GPUWATCH_TEST_SEEDS", "").split())])
def test_for_half_an_hour_only_the_job_that_hangs_is_told(seed: int) -> None:
    happened = Player(busy.ticks(seed, 1920, recording.parse({"t": BEGINS, **job(4, 10, sm=0)})), [Limits()]).play()
    assert [one.first.rule for one in happened] == ["idle but held"], as_lines(happened)
    (event,) = happened
    assert event.first.index == 4
    assert BEGINS + 1800 <= event.raised <= BEGINS + 1830


NOTE, WARNING, CRITICAL = Severity
WRONG: tuple[tuple[str, Severity, int | None, float, tuple[dict[str, Any], ...]], ...] = (
    # rule, severity, GPU, seconds after which it must be known, steps for good
    ("nearly full", WARNING, 2, 10, (job(2, 4.7),)),
    ("time to full", WARNING, 7, 220, (job(7, [0, 70], until=660),)),
    ("over declared", WARNING, 6, 20, (job(6, 6.3, limit=5),)),
    ("memory of unknown processes", WARNING, 4, 70, ({"gpu": 4, "others": 3.35},)),
    ("ended process holds memory", WARNING, 5, 30, (job(5, 4, t=0, sm=0), {"pid": 99, "presence": "gone"})),
    ("overbooked", NOTE, 7, 10, (job(7, 2, limit=60),)),
    ("outside visible devices", WARNING, 4, 20, (job(4, 2, visible=5),)),
    ("misspelt variable", NOTE, 4, 10, (job(4, 2, hint="CUDA_VISIBLE_DIVICES is surely to be …_DEVICES"),)),
    ("sensor failed", WARNING, 0, 20, ({"gpu": 0, "power": "error", "fan": "error"},)),
    ("temperature near slowdown", WARNING, 0, 20, ({"gpu": 0, "temperature": 84},)),
    ("throttled", WARNING, 0, 70, ({"gpu": 0, "throttle": ["hw thermal"]},)),
    ("uncorrected ECC", CRITICAL, 0, 5, ({"gpu": 0, "ecc_uncorrected": 1},)),
    ("row remap", WARNING, 0, 5, ({"gpu": 0, "remap_pending": True},)),
    ("XID", WARNING, 3, 5, ({"gpu": 3, "xid": 94},)),
    ("gpu health", CRITICAL, 0, 5, ({"gpu": 0, "health": "lost"},)),
    ("data stale", CRITICAL, None, 15, ({"sampler_restarts": 600},)),
)


@pytest.mark.parametrize(("rule", "severity", "gpu", "within", "wrong"), WRONG, ids=[one[0] for one in WRONG])
def test_one_thing_that_is_wrong_raises_that_and_nothing_else(
    rule: str, severity: Severity, gpu: int | None, within: float, wrong: tuple[dict[str, Any], ...]
) -> None:
    steps = [recording.parse({"t": BEGINS, **step}) for step in wrong]
    happened = Player(busy.ticks(1, BEGINS + within + 30, *steps), [Limits()]).play()
    assert len(happened) == 1, as_lines(happened)
    (event,) = happened
    assert (event.first.rule, event.first.severity, event.first.index) == (rule, severity, gpu)
    assert event.last.most is severity
    assert BEGINS <= event.raised <= BEGINS + 2 + within
    assert event.ended is None
