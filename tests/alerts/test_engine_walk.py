"""Whatever goes wrong at random, alerts are raised once, end once, and leave nothing behind: `Player` checks that.

The machine is far worse than a real one, so that an engine meets within an hour what meets each other once in years:
a GPU is lost while its list is incomplete, limits change while the driver is down, clocks are set while a process
ends. More of it: `GPUWATCH_TEST_SEEDS="3 4 5" pytest tests/alerts/test_engine_walk.py`.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.monitor import Frame
from tests.timelines.machine import Machine, Tick
from tests.timelines.player import Player
from tests.timelines.recording import Header, Recording, parse

HOUR = 3600
GPUS = range(4)
LASTING = "uncorrected ECC"
"""Rule whose alerts hold when all is well again: memory that had an error is not to be trusted until a reset."""
USERS = {"ada": 1001, "ben": 1002, "cyn": 1003}
NOT_KNOWN = "no sample"

OWN = (
    CustomRule(name="hot", when="temperature>80", after=20.0),
    CustomRule(name="hot", when="temperature>80 gpu:0", after=20.0),
    CustomRule(name="hot", on="process", when="rss>1GiB", after=0.0),
    CustomRule(name="hog", on="user", when="mem>30GiB", after=20.0),
    CustomRule(name="hog", on="process", when="mem>30GiB", after=20.0),
    CustomRule(name="use below 10", when="utilization<10 user:ben", after=20.0),
    CustomRule(name="lazy", on="process", when="idle>600s"),
)
"""Rules of the user's own, some under one name: for a user who changes what a rule asks."""

GPU_TROUBLE: tuple[tuple[str, float, float, tuple[Any, ...], Any], ...] = (
    # key, seconds from one trouble to the next, seconds that it lasts, values, the value when all is well
    ("health", 500, 70, ("lost", "not responding", "missing", "not ready"), "ok"),
    ("listed", 1500, 200, (False,), True),
    ("answers", 100, 3, (False,), True),
    ("holdings_note", 1000, 1000, ("the list is not complete",), ""),
    ("unreliable", 2000, 500, (True,), False),
    ("used", 1000, 200, (NOT_KNOWN,), None),
    ("others", 1000, 1000, (0.2, 3.0), 0),
    ("temperature", 250, 300, (84, 90, NOT_KNOWN), None),
    ("utilization", 150, 150, (0, 5, 100, NOT_KNOWN), None),
    ("power", 500, 300, (700, NOT_KNOWN), None),
    ("throttle", 150, 150, (["power cap"], ["sw thermal"], ["hw thermal"], ["power brake"], NOT_KNOWN), None),
    ("ecc_uncorrected", 1500, 200, (NOT_KNOWN, 1), None),
    ("remap_pending", 2500, 2000, (True, NOT_KNOWN), None),
)
MACHINE_TROUBLE: tuple[tuple[float, tuple[dict[str, Any], ...]], ...] = (
    # seconds from one to the next, steps
    (2000, tuple({"wall": seconds} for seconds in (-3600, -10, 3600, 86400))),
    (2000, ({"sampler_restarts": 4}, {"sampler_restarts": 60}, {"silence": 100})),
    (1500, ({"gpuwatch_restarts": 4}, {"gpuwatch_restarts": 300})),
    (1000, ({"reload": True},)),
)
DOWN = ("driver down", "starting", "not responding")


def trouble(drawn: random.Random, begin: float, end: float) -> Iterator[dict[str, Any]]:
    """Return the steps of a time in which anything goes wrong; at its end all is well."""

    def moments(every: float) -> Iterator[float]:
        t = begin
        while (t := t + drawn.expovariate(1 / every)) < end:
            yield t

    for every, steps in MACHINE_TROUBLE:
        yield from ({"t": t, **drawn.choice(steps)} for t in moments(every))
    for t in moments(2000):
        yield {"t": t, "stream": drawn.choice(DOWN)}
        yield {"t": min(end, t + drawn.expovariate(1 / 100)), "stream": "ok"}
    for gpu in GPUS:
        for key, every, lasts, values, well in GPU_TROUBLE:
            for t in moments(every):
                yield {"t": t, "gpu": gpu, key: drawn.choice(values)}
                yield {"t": min(end, t + drawn.expovariate(1 / lasts)), "gpu": gpu, key: well}
        yield from ({"t": t, "gpu": gpu, "xid": drawn.choice((13, 48, 79, 94, 119))} for t in moments(3000))
        for t in moments(150):
            yield from process(drawn, gpu, t, min(end, t + drawn.expovariate(1 / 1000)))


def process(drawn: random.Random, gpu: int, t: float, end: float) -> Iterator[dict[str, Any]]:
    """Return what a process does that grows or shrinks, may be on another GPU, too, and may die and stay listed."""
    pid, size = drawn.randrange(100, 1_000_000), drawn.choice((0.5, 0.5, 5.0, 35.0))
    grown = [size, size * drawn.choice((1, 1, 0.5, 2, 10))]
    yield {
        "t": t,
        "pid": pid,
        "user": drawn.choice(list(USERS)),
        "gpu": gpu,
        "gib": drawn.choice((grown, grown, grown, NOT_KNOWN)),
        "until": end,
        "sm": drawn.choice((0, 50, {"cycle": [[700, 50], [700, 0]]}, NOT_KNOWN)),
        "limit": drawn.choice((None, None, 1, 6, 30)),
    }
    if drawn.random() < 0.2:
        yield {"t": t, "pid": pid, "gpu": drawn.choice(GPUS), "gib": 0.4, "sm": 0}
    if drawn.random() < 0.2:
        yield {"t": (t + end) / 2, "pid": pid, **drawn.choice(({"state": "zombie"}, {"presence": "gone"}))}
    yield {"t": end, "pid": pid, "ends": True}


def walk(seed: int, *lengths: int) -> Player:
    """Go through times of trouble of so many seconds, each followed by more than an hour in which all is well."""
    drawn, length, found = random.Random(seed), 0, list[dict[str, Any]]()
    well: list[tuple[int, int]] = []
    for seconds in lengths:
        found += trouble(drawn, length, length + seconds)
        well.append((length + seconds + HOUR, length + seconds + HOUR + 120))
        length = well[-1][1]
    header = Header(about="trouble", length=length, interval=2, gpus=dict.fromkeys(GPUS, 80), people=USERS)
    steps = tuple(parse(step) for step in sorted(found, key=lambda step: step["t"]))
    limits = [
        Limits(custom=tuple({rule.name: rule for rule in drawn.sample(OWN, 4)}.values()), off=frozenset(off))
        for off in ((), ("throttled",), ("XID", "over declared"), ())
    ]

    def look(frame: Frame, tick: Tick, watched: Collection[tuple[str, str]]) -> None:
        if any(since < tick.t for since, until in well if tick.t < until):
            held = [alert for alert in frame.alerts if alert.rule != LASTING]
            assert not held, f"still holds an hour after all was well: {held}"
            assert len(watched) <= len(frame.alerts), f"kept at {tick.t:g} s: {watched}"

    recording = Recording(name="walk", header=header, steps=steps, events=())
    return Player(Machine(recording).ticks(), limits, look)


WALKS = {1: (HOUR // 2,)}
DAY = (2 * HOUR, 4 * HOUR, 8 * HOUR, 2 * HOUR, 2 * HOUR)
MORE = {int(seed): DAY for seed in os.environ.get("GPUWATCH_TEST_SEEDS", "").split()}


@pytest.mark.parametrize(("seed", "lengths"), (WALKS | MORE).items())
def test_whatever_goes_wrong_at_random_is_told_once_and_ends_with_it(seed: int, lengths: tuple[int, ...]) -> None:
    happened = walk(seed, *lengths).play()
    raised = Counter(one.first.rule for one in happened)
    # And the machine is as bad as it should be.
    assert len(raised) > 10, raised
    assert raised.total() > 30, raised
