"""A busy machine that is well: 8 GPUs, some 40 processes, all that happens in an hour and is nobody's trouble.

Jobs load, train in steps, write checkpoints, evaluate for minutes, end and are followed by others; notebooks are used
now and then; a server fills a GPU to 88 %. Samples come with jitter, late, or without some of their figures. The same
seed gives the same hour.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from gpuwatch.model import Declared, Gpu, Health, Holding, Memory, Presence, Process, Reason, Snapshot, Visible, Xid
from tests.support import builders
from tests.support.alerting import cap, uuid
from tests.support.builders import EPOCH, GIB
from tests.timelines.machine import CLOCK, RESERVED, Tick

TOTAL: Final = 80 * GIB
USERS: Final = ("ada", "ben", "cyn", "dan", "eve", "fay")
UNLISTED: Final = 0.35
"""GiB in use on every GPU that no process is listed for."""
OVERHEAD: Final = 0.35
"""GiB that a process holds over its limit: its CUDA context."""
PEAK: Final = 4.0
"""GiB more that the server holds for a moment now and then: then its GPU is 93 % full."""
HOTTEST: Final = 81.0
"""One degree below where it is near the slowdown temperature."""
_MISSING: Final = 0.001
"""How often a figure is missing."""


class Seat(NamedTuple):
    """A place for one job after another."""

    gpu: int
    kind: str
    """`train`, `notebook` or `serve`."""
    size: tuple[float, float]
    """The least and the most that a job here holds, in GiB."""
    limit: float | None = None
    """GiB that each of them declares."""


class Phase(NamedTuple):
    """What a job does until a moment."""

    until: float
    does: str
    """`load`, `train`, `save`, `evaluate`, `wait`, `run`, `serve`, `zombie`, `gone`."""


SEATS: Final = (
    Seat(0, "train", (56, 62), 62),
    Seat(1, "train", (35, 42)),
    Seat(1, "notebook", (4, 8)),
    Seat(1, "notebook", (2, 4)),
    Seat(2, "serve", (69.55, 69.6), 70),
    Seat(3, "train", (50, 60)),
    Seat(4, "train", (30, 60)),
    *[Seat(5, "train", (4, 8), 8)] * 8,
    *[Seat(6, "train", (2, 5), 5)] * 12,
    *[Seat(7, "notebook", (1, 4), 4)] * 7,
    *[Seat(7, "train", (1, 4), 4)] * 7,
)


@dataclass
class Job:
    """One process on one GPU."""

    row: Process
    seat: Seat
    size: float
    phases: list[Phase]
    began: float
    swing: float
    """GiB that it frees and takes again in each step."""
    step: float
    """Seconds of a step."""
    extra: float = 0.0
    """GiB more than it should hold."""
    leak: float = 0.0
    """GiB a second."""
    hung: bool = False
    _at: int = 0

    def phase(self, t: float) -> Phase | None:
        """Return what it does at a moment; None once it is no more."""
        while self._at < len(self.phases) and t >= self.phases[self._at].until:
            self._at += 1
        return self.phases[self._at] if self._at < len(self.phases) else None

    def memory(self, t: float, does: str) -> float:
        """Return the GiB that it holds."""
        if does == "load":
            return 0.4 + (self.size - 0.4) * (t - self.began) / (self.phases[0].until - self.began)
        if does == "train":
            warm = min(1.0, 0.95 + 0.05 * (t - self.phases[0].until) / 180)
            return warm * self.size - (self.swing if t % self.step < self.step / 2 else 0.0) + self.extra
        return self.size + self.extra

    def sm(self, t: float, does: str, drawn: random.Random) -> int:
        """Return the percent of the time in which it runs on the GPU."""
        if self.hung or does in ("save", "wait", "zombie", "gone"):
            return 0
        if does == "train":
            return drawn.randrange(85, 100) if t % self.step < 0.7 * self.step else drawn.randrange(0, 30)
        return drawn.choice((0, 0, 5, 60)) if does == "evaluate" else drawn.randrange(0, 70)


@dataclass
class Card:
    """One GPU, and what is wrong with it."""

    index: int
    heat: float = 60.0
    health: Health = Health.OK
    others: float = UNLISTED
    figures: dict[str, Any] = field(default_factory=dict)
    xids: dict[int, Xid] = field(default_factory=dict)
    leaving: list[tuple[float, float]] = field(default_factory=list)
    """(until, GiB) of processes that are no longer listed, or not yet."""
    skips: float = 0.0
    """Until then it gives no new sample."""
    last: Gpu | None = None


class Lab:
    """The machine; tests reach in and break something."""

    def __init__(self, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.cards = [Card(index) for index in range(8)]
        self.jobs: list[Job | None] = []
        self.stuck = False
        """The last samples are given again and again."""
        self._due: list[float] = []
        self._pid = 1000
        self._sequence = 0
        self._step = 0.0
        for seat in SEATS:
            self.jobs.append(self._job(seat, -self.drawn.uniform(100, 400)))
            self._due.append(0.0)

    def job(self, gpu: int) -> Job:
        """Return the first job on a GPU."""
        return next(one for one in self.jobs if one is not None and one.seat.gpu == gpu)

    def ticks(self, seconds: float, faults: Callable[[Lab, float], None] | None = None) -> Iterator[Tick]:
        """Give so much time, about a second at a time; `faults` are called with the time before each."""
        drawn, t = self.drawn, 0.0
        restart, pause = drawn.uniform(300, 3300), 0.0
        while t < seconds:
            self._step += drawn.choice((-0.3, 0.3)) if drawn.random() < 0.0005 else 0.0
            if faults is not None:
                faults(self, t)
            if t >= restart:
                restart, pause, self._sequence = float("inf"), t + drawn.uniform(1.5, 4), 0
                for card in self.cards:
                    card.xids.clear()
            wall = EPOCH + t + self._step
            snapshot = self._snapshot(t, wall, again=self.stuck or t < pause)
            yield Tick(t, wall, snapshot)
            t += drawn.uniform(2.0, 4.0) if drawn.random() < 0.002 else drawn.uniform(0.93, 1.07)

    # -- jobs ------------------------------------------------------------------------------------------------------

    def _job(self, seat: Seat, began: float) -> Job:
        drawn, user = self.drawn, self.drawn.choice(USERS)
        self._pid += drawn.randrange(1, 9)
        size = drawn.uniform(*seat.size)
        if seat.limit is not None and drawn.random() < 0.3:
            size = min(seat.size[1], seat.limit) + OVERHEAD - 0.01
        size = min(size, seat.size[1] + OVERHEAD) if seat.kind != "serve" else seat.size[1]
        declared = cap(seat.limit, seat.gpu) if seat.limit is not None else Declared()
        visible = Visible(gpus=(uuid(seat.gpu),), text=f"CUDA_VISIBLE_DEVICES={seat.gpu}", where="environment")
        row = builders.process(self._pid, user, declared=msgspec.structs.replace(declared, visible=visible))
        step = drawn.uniform(3, 15)
        return Job(row, seat, size, _plan(seat, began, drawn), began, drawn.uniform(0, min(1.5, size / 3)), step)

    def _move(self, place: int, t: float) -> None:
        """Let a job end, and another come in its place."""
        job, drawn = self.jobs[place], self.drawn
        if job is not None and job.phase(t) is None:
            card = self.cards[job.seat.gpu]
            card.leaving.append((t + drawn.uniform(0, 3), job.memory(t, "")))
            self.jobs[place], self._due[place] = None, t + drawn.uniform(5, 90)
        elif job is None and t >= self._due[place]:
            self.jobs[place] = self._job(SEATS[place], t)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _snapshot(self, t: float, wall: float, *, again: bool) -> Snapshot:
        drawn = self.drawn
        if not again:
            self._sequence += 1
            for place in range(len(SEATS)):
                self._move(place, t)
            for card in self.cards:
                card.skips = t + drawn.uniform(1, 3) if drawn.random() < 0.0005 else card.skips
                if t >= card.skips or card.last is None:
                    card.last = self._row(card, t)
        gone = drawn.randrange(8) if drawn.random() < 0.0005 else -1
        gpus = [card.last for card in self.cards if card.last is not None and card.index != gone]
        return builders.snapshot(
            gpus,
            [_seen(one, t) for one in self.jobs if one is not None],
            sequence=self._sequence,
            taken=wall,
            monotonic=CLOCK + t - 0.01,
        )

    def _row(self, card: Card, t: float) -> Gpu:
        drawn = self.drawn
        xids = tuple(card.xids.values())
        if card.health is not Health.OK:
            stamp = card.last.sampled if card.last is not None else 0.0
            return Gpu(index=card.index, uuid=uuid(card.index), health=card.health, sampled=stamp, xids=xids)
        here = [one for one in self.jobs if one is not None and one.seat.gpu == card.index]
        held = [_held(one, t, drawn) for one in here]
        card.leaving = [(until, size) for until, size in card.leaving if t < until]
        others = card.others + sum(size for _, size in card.leaving)
        used = sum(int(one.memory) for one in held) + round(others * GIB)
        busy = max([int(one.sm) for one in held], default=0)
        card.heat = min(HOTTEST, card.heat + 0.05 * (42 + 0.41 * busy - card.heat) + drawn.uniform(-0.5, 0.5))
        free = TOTAL - RESERVED - used
        if drawn.random() < 0.002 and held:
            held = [msgspec.structs.replace(one, sm=Reason.NO_SAMPLE) for one in held]
        figures: dict[str, Any] = {
            "memory": Memory(total=TOTAL, used=used, free=free, reserved=RESERVED),
            "unattributed": round(others * GIB),
            "utilization": busy,
            "temperature": round(card.heat),
            "power": min(700.0, 120.0 + 6.2 * busy),
            "throttle": self._throttle(card.index, busy, t),
            "ecc_uncorrected": 0,
        }
        if drawn.random() < 8 * _MISSING:
            figures |= _some_missing(drawn)
        stamp = CLOCK + t - 0.03
        note = "the list could not be read" if drawn.random() < _MISSING else ""
        shown = () if note else tuple(held)
        figures |= {"unattributed": Reason.NO_SAMPLE} if note else {}
        fields = {"sampled": stamp, "slow_sampled": stamp, "holdings": shown, "holdings_note": note, "xids": xids}
        return builders.gpu(card.index, **{**fields, **figures, **card.figures})

    def _throttle(self, index: int, busy: int, t: float) -> tuple[str, ...]:
        found = ["power cap"] if busy > 90 and index in (0, 3, 4) else []
        if index == 3 and t % 700 < 45:
            found.insert(0, "sw thermal")
        if index == 4 and t % 900 < 5:
            found.insert(0, "power brake")
        return tuple(found)


def _plan(seat: Seat, began: float, drawn: random.Random) -> list[Phase]:
    """Return what a job will do, to its end."""
    phases = [Phase(began + drawn.uniform(5, 60), "load")]

    def go_on(does: str, least: float, most: float) -> None:
        phases.append(Phase(phases[-1].until + drawn.uniform(least, most), does))

    if seat.kind == "serve":
        go_on("serve", 1e6, 1e6)
        return phases
    end = began + drawn.uniform(200, 3600) if seat.kind == "train" else float("inf")
    while phases[-1].until < min(end, began + 8000):
        if seat.kind == "notebook":
            go_on("wait", 60, 1500)
            go_on("run", 2.5, 20)
            continue
        go_on("train", 120, 700)
        go_on("save", 8, 25)
        if drawn.random() < 0.4:
            go_on(drawn.choice(("evaluate", "wait")), 120, 600)
    go_on("zombie", 0.5, 6)
    go_on("gone", 0.5, 4)
    return phases


def _held(job: Job, t: float, drawn: random.Random) -> Holding:
    phase = job.phase(t)
    does = phase.does if phase is not None else "gone"
    job.extra += job.leak
    start = 0 if does == "gone" else job.row.start
    peak = PEAK if does == "serve" and drawn.random() < 0.01 else 0.0
    size = round((job.memory(t, does) + peak) * GIB)
    return Holding(pid=job.row.pid, start=start, memory=size, sm=job.sm(t, does, drawn))


def _seen(job: Job, t: float) -> Process:
    """Return a process as /proc shows it."""
    phase = job.phase(t)
    if phase is None or phase.does == "gone":
        return Process(pid=job.row.pid, presence=Presence.GONE)
    return msgspec.structs.replace(job.row, state="zombie") if phase.does == "zombie" else job.row


def _some_missing(drawn: random.Random) -> dict[str, Any]:
    """Return one figure, or those of the memory, as a reason."""
    why = drawn.choice((Reason.NO_SAMPLE, Reason.ERROR))
    name = drawn.choice(("memory", "unattributed", "utilization", "temperature", "throttle", "ecc_uncorrected"))
    if name == "memory":
        return {"memory": Memory(total=TOTAL, used=why, free=why, reserved=RESERVED), "unattributed": why}
    return {name: why}
