"""Busy machine on which all is well: 8 GPUs, some 40 processes, and all that happens in an hour and is no trouble.

Jobs load, train in steps, write checkpoints, evaluate for minutes, end, and are followed by others; notebooks are used
now and then; a server fills a GPU to 88 %. Snapshots come with jitter and late, GPUs skip samples, figures are missing
for a second, the sampler ends once. The same seed gives the same hour.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from gpuwatch.model.snapshot import Presence
from tests.support.builders import uid
from tests.timelines.machine import Machine, Tick
from tests.timelines.recording import Header, OfGpu, OfMachine, OfProcess, Recording, Step

USERS: Final = ("ada", "ben", "cyn", "dan", "eve", "fay")
UNLISTED: Final = 0.35
"""GiB in use on every GPU that no process is listed for."""
OVERHEAD: Final = 0.34
"""GiB that a process holds over its limit: its CUDA context."""


class Seat(NamedTuple):
    """A place for one job after another."""

    gpu: int
    kind: str
    """`train`, `notebook` or `serve`."""
    least: float
    """GiB that a job here holds."""
    most: float
    limit: float | None = None
    """GiB that each of them declares."""


SEATS: Final = (
    Seat(0, "train", 56, 62, 62),
    Seat(1, "train", 35, 42),
    Seat(1, "notebook", 4, 8),
    Seat(1, "notebook", 2, 4),
    Seat(2, "serve", 69.55, 69.6, 70),
    Seat(3, "train", 50, 60),
    Seat(4, "train", 30, 60),
    *[Seat(5, "train", 4, 8, 8)] * 8,
    *[Seat(6, "train", 2, 5, 5)] * 12,
    *[Seat(7, "notebook", 1, 4, 4)] * 7,
    *[Seat(7, "train", 1, 4, 4)] * 7,
)


def ticks(seed: int, seconds: float, *others: Step) -> Iterator[Tick]:
    """Return so many seconds of the machine on which other things happen, too."""
    drawn = random.Random(seed)
    found: list[Step] = [*others, OfMachine(t=drawn.uniform(300, 3300), sampler_restarts=drawn.uniform(1.5, 4))]
    found += [OfMachine(t=drawn.uniform(0, 3600), wall=drawn.choice((-0.3, 0.3))) for _ in range(2)]
    for gpu in range(8):
        found += _gpu(gpu, drawn)
    for place, seat in enumerate(SEATS):
        found += _seat(seat, 1000 * (place + 1), seconds, drawn)
    header = Header(
        about="a busy hour", length=0, gpus=dict.fromkeys(range(8), 80), people={name: uid(name) for name in USERS}
    )
    steps = sorted(found, key=lambda step: step.t)
    recording = Recording(name="busy", header=header, steps=tuple(steps), events=())
    return Machine(recording).ticks(_moments(seconds, drawn))


def _moments(seconds: float, drawn: random.Random) -> Iterator[float]:
    """Return moments about a second apart; some are late."""
    t = 0.0
    while t < seconds:
        yield t
        t += drawn.uniform(2.0, 4.0) if drawn.random() < 0.002 else drawn.uniform(0.93, 1.07)


def _gpu(gpu: int, drawn: random.Random) -> Iterator[Step]:
    """Return the figures of a GPU, each of them missing for a second now and then, and the samples that it skips."""
    throttle: Sequence[list[Any]] = {
        0: ([20, ["power cap"]], [40, []]),
        3: ([45, ["sw thermal"]], [655, []]),
        4: ([5, ["power brake"]], [895, []]),
    }.get(gpu, ([60, []],))
    figures: dict[str, Sequence[list[Any]]] = {
        "temperature": ([40, 74], [25, 79], [10, 81], [30, 65]),
        "utilization": ([7, 95], [3, 12]),
        "power": ([7, 680], [3, 200]),
        "throttle": throttle,
        "ecc_uncorrected": ([60, 0],),
        "used": ([60, None],),
        "unattributed": ([60, None],),
    }
    cycles = {
        name: _sometimes_missing(turns, drawn.choice(("no sample", "error")), drawn) for name, turns in figures.items()
    }
    # The list of processes cannot be read for a second.
    cycles["holdings_note"] = {"cycle": [[899, ""], [1, "the list could not be read"]]}
    cycles["holdings"] = {"cycle": [[899, None], [1, []]]}
    yield OfGpu(t=-drawn.uniform(0, 800), gpu=gpu, figures=cycles)
    t = drawn.uniform(0, 3600)
    yield OfGpu(t=t, gpu=gpu, answers=False)
    yield OfGpu(t=t + drawn.uniform(1, 3), gpu=gpu, answers=True)
    t = drawn.uniform(0, 3600)
    yield OfGpu(t=t, gpu=gpu, listed=False)
    yield OfGpu(t=t + 1, gpu=gpu, listed=True)


def _sometimes_missing(turns: Sequence[list[Any]], why: str, drawn: random.Random) -> dict[str, Any]:
    """Return a figure that takes turns, and for a second in a quarter of an hour is not known."""
    rounds = drawn.randrange(600, 1200) // sum(seconds for seconds, _ in turns) + 1
    return {"cycle": [*(list(turns) * rounds), [1, why]]}


def _seat(seat: Seat, pid: int, seconds: float, drawn: random.Random) -> Iterator[Step]:
    """Return one job after another."""
    t = -drawn.uniform(100, 400)
    while t < seconds:
        for step in _job(seat, pid, t, seconds, drawn):
            yield step
            t = step.t
        pid, t = pid + 1, t + drawn.uniform(5, 90)


def _job(seat: Seat, pid: int, t: float, seconds: float, drawn: random.Random) -> Iterator[Step]:
    """Return what one job does, from its start to its end."""
    gpu, size = seat.gpu, drawn.uniform(seat.least, seat.most)
    if seat.limit is not None and seat.kind != "serve" and drawn.random() < 0.3:
        size = min(seat.most, seat.limit) + OVERHEAD
    end = t + drawn.uniform(200, 3600)

    def does(**changes: Any) -> OfProcess:
        return OfProcess(t=t, pid=pid, gpu=gpu, **changes)

    loaded = t + drawn.uniform(5, 60)
    yield does(
        user=drawn.choice(USERS), limit=seat.limit, visible=gpu, gib=[0.4, 0.95 * size], sm=_busy(drawn), until=loaded
    )
    t = loaded
    if seat.kind == "serve":
        yield does(gib={"cycle": [[97, size], [1, size + 4]]}, sm=_busy(drawn))
        t = seconds
    while seat.kind == "notebook" and t < seconds:
        yield does(gib=size, sm=0)
        t += drawn.uniform(60, 1500)
        yield does(sm=60)
        t += drawn.uniform(2.5, 20)
    if seat.kind != "train":
        yield OfProcess(t=t, pid=pid, ends=True)
        return
    swing, pause = drawn.uniform(0, min(1.5, size / 3)), drawn.uniform(3, 15) / 2
    for part in (0.96, 0.98):  # its caches fill
        yield does(gib={"cycle": [[pause, part * size], [pause, part * size - swing]]})
        t += 60
    while t < min(end, seconds):
        yield does(gib={"cycle": [[pause, size], [pause, size - swing]]}, sm=_busy(drawn))
        t += drawn.uniform(120, 700)
        yield does(gib=size, sm=0)  # it writes a checkpoint
        t += drawn.uniform(8, 25)
        if drawn.random() < 0.4:  # it evaluates, or waits
            yield does(sm=drawn.choice((0, {"cycle": [[20, 0], [3, 60], [4, 5]]})))
            t += drawn.uniform(120, 600)
    yield does(state="zombie", sm=0)
    t += drawn.uniform(0.5, 6)
    yield does(presence=Presence.GONE)
    t += drawn.uniform(0.5, 4)
    yield OfProcess(t=t, pid=pid, ends=True)
    yield OfGpu(t=t, gpu=gpu, others=UNLISTED + size)  # the driver frees it a moment later
    yield OfGpu(t=t + drawn.uniform(0, 3), gpu=gpu, others=UNLISTED)


def _busy(drawn: random.Random) -> dict[str, Any]:
    step = drawn.uniform(3, 15)
    return {
        "cycle": [[0.7 * step, drawn.randrange(85, 100)], [0.3 * step, drawn.randrange(0, 30)]] * 50
        + [[1, "no sample"]]
    }
