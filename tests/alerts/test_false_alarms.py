"""A busy hour in which nothing is wrong raises nothing; the same with one thing wrong raises that and nothing else.

More hours: `GPUWATCH_TEST_SEEDS="2 3 4" pytest tests/test_false_alarms.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import pytest

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Limits
from gpuwatch.model import Declared, Health, Hint, Visible, Xid
from tests.support.alerting import cap, uuid
from tests.support.builders import EPOCH
from tests.timelines.lab import Lab, Phase
from tests.timelines.player import Player, as_lines

pytestmark = pytest.mark.no_cover
"""Hours of simulation, which take ten times as long while lines are counted; what they run is counted elsewhere."""

HOUR = 3600.0
BEGINS = 60.0
"""Seconds after the start at which something goes wrong."""
NOTE, WARNING, CRITICAL = Severity


@pytest.mark.parametrize("seed", [1, *map(int, os.environ.get("GPUWATCH_TEST_SEEDS", "").split())])
def test_a_busy_hour_raises_nothing(seed: int) -> None:
    happened = Player(Lab(seed).ticks(HOUR), Limits()).play()
    assert not happened, as_lines(happened)


class Wrong(NamedTuple):
    """One thing that goes wrong, for good."""

    rule: str
    severity: Severity
    breaks: Callable[[Lab], None]
    gpu: int | None
    within: float
    """Seconds after which it must be known."""


def fills_up(lab: Lab) -> None:
    """Let the server, which has declared nothing now, take what is left, but for 6 %."""
    job = lab.job(2)
    job.row, job.extra = msgspec.structs.replace(job.row, declared=Declared()), 4.7


def leaks(lab: Lab) -> None:
    """Let a job take 3 GiB more in each minute."""
    lab.job(3).leak = 3 / 60


def overshoots(lab: Lab) -> None:
    """Let one of twelve hold 1.3 GiB more than it declared."""
    job = lab.job(6)
    job.size, job.swing, job.extra = 5.0, 0.0, 1.3


def hangs(lab: Lab) -> None:
    """Let a job stop to compute, and go on to hold its memory."""
    job = lab.job(4)
    job.phases[-2:] = [Phase(1e6, "train")]
    job.hung = True


def hides(lab: Lab) -> None:
    """Let memory be in use that nobody is listed for."""
    lab.cards[4].others += 3


def dies(lab: Lab) -> None:
    """Let the driver list a process for ever that the kernel no longer has."""
    job = lab.job(5)
    job.phases[:] = [Phase(BEGINS, "train"), Phase(1e6, "gone")]


def promises_twice(lab: Lab) -> None:
    """Let somebody declare what others have declared already."""
    job = lab.job(7)
    job.row = msgspec.structs.replace(job.row, declared=cap(60, 7))


def goes_astray(lab: Lab) -> None:
    """Let a process be on a GPU that it chose not to see."""
    job = lab.job(4)
    visible = Visible(gpus=(uuid(5),), text="CUDA_VISIBLE_DEVICES=5", where="environment")
    declared = job.row.declared
    assert declared is not None
    job.row = msgspec.structs.replace(job.row, declared=msgspec.structs.replace(declared, visible=visible))


def misspells(lab: Lab) -> None:
    """Let somebody's environment have a name that means nothing."""
    job = lab.job(4)
    declared = job.row.declared
    assert declared is not None
    hint = Hint(rule="misspelt", words="CUDA_VISIBLE_DIVICES is surely to be CUDA_VISIBLE_DEVICES")
    job.row = msgspec.structs.replace(job.row, declared=msgspec.structs.replace(declared, hints=(hint,)))


def shows(gpu: int, **figures: object) -> Callable[[Lab], None]:
    """Let figures of a GPU be what they should not."""
    return lambda lab: lab.cards[gpu].figures.update(figures)


def reports(lab: Lab) -> None:
    """Let the driver report an error of a GPU."""
    lab.cards[3].xids[94] = Xid(code=94, last=EPOCH + BEGINS)


def falls_off(lab: Lab) -> None:
    """Let a GPU be lost."""
    lab.cards[0].health = Health.LOST


def freezes(lab: Lab) -> None:
    """Let no sample come any more."""
    lab.stuck = True


WRONG = (
    Wrong("memory near limit", WARNING, fills_up, 2, 10),
    Wrong("time to full", WARNING, leaks, 3, 220),
    Wrong("uses more than declared", WARNING, overshoots, 6, 20),
    Wrong("idle but held", WARNING, hangs, 4, 1830),
    Wrong("memory of unknown processes", WARNING, hides, 4, 70),
    Wrong("dead process holds memory", WARNING, dies, 5, 30),
    Wrong("overbooked", NOTE, promises_twice, 7, 10),
    Wrong("outside visible devices", WARNING, goes_astray, 4, 20),
    Wrong("misspelt variable", NOTE, misspells, 4, 10),
    Wrong("temperature near slowdown", WARNING, shows(0, temperature=84), 0, 20),
    Wrong("throttled", WARNING, shows(0, throttle=("hw thermal",)), 0, 70),
    Wrong("uncorrected ECC", CRITICAL, shows(0, ecc_uncorrected=1), 0, 5),
    Wrong("row remap", WARNING, shows(0, remap_pending=True), 0, 5),
    Wrong("XID", WARNING, reports, 3, 5),
    Wrong("gpu health", CRITICAL, falls_off, 0, 5),
    Wrong("data stale", CRITICAL, freezes, None, 15),
)


@pytest.mark.parametrize("wrong", WRONG, ids=[one.rule for one in WRONG])
def test_one_thing_that_is_wrong_raises_that_and_nothing_else(wrong: Wrong) -> None:
    broken: list[float] = []

    def go_wrong(lab: Lab, t: float) -> None:
        if t >= BEGINS and not broken:
            broken.append(t)
            wrong.breaks(lab)

    happened = Player(Lab(1).ticks(BEGINS + wrong.within + 60, go_wrong), Limits()).play()
    assert len(happened) == 1, as_lines(happened)
    (event,) = happened
    assert (event.first.rule, event.first.severity, event.first.index) == (wrong.rule, wrong.severity, wrong.gpu)
    assert event.last.most is wrong.severity
    assert broken[0] <= event.raised <= broken[0] + wrong.within
    assert event.ended is None
