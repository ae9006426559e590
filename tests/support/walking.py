"""A machine on which anything goes wrong at random, and a gpuwatch there that is started anew and set otherwise.

It is far worse than a real one, so that within an hour an engine meets what meets each other once in years: a GPU is
lost while its list is incomplete, rules change while the driver is down, clocks are set while a process ends. After
each time of trouble all is well for longer than an hour. The same seed gives the same walk.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec

from gpuwatch.alerts.alert import TROUBLE, Alert
from gpuwatch.alerts.engine import Changes, Engine
from gpuwatch.alerts.limits import CustomRule, Limits
from gpuwatch.history import History
from gpuwatch.model import Declared, Gpu, Health, Memory, Presence, Process, Reason, Snapshot, SourceState, Xid
from tests.support import builders
from tests.support.alerting import cap, part
from tests.support.builders import EPOCH, GIB

HOUR: Final = 3600.0
INTERVAL: Final = 2.0
GPUS: Final = 4
WELL: Final = HOUR + 120
"""Seconds for which all is well after trouble."""
USERS: Final = ("ada", "ben", "cyn", "dan")
CAPACITY: Final = 79.0
"""GiB of a GPU that processes can have."""

_CODES: Final = (13, 48, 79, 94, 119)
_ILLS: Final = (Health.LOST, Health.SILENT, Health.MISSING, Health.NOT_READY)
_DOWN: Final = (SourceState.DRIVER_DOWN, SourceState.STARTING, SourceState.SILENT)
_THROTTLES: Final = ((), (), ("power cap",), ("sw thermal",), ("hw thermal",), ("power brake",))
_FIGURES: Final = ("temperature", "utilization", "ecc_uncorrected", "throttle", "remap_failed", "power", "memory")
_SWITCHED: Final = ("uses more than declared", "throttled", "XID")
"""Rules that are turned off at times."""

OWN: Final = (
    CustomRule(name="hot", metric="temperature", above=80.0, after=20.0),
    CustomRule(name="hot", metric="temperature", above=80.0, after=20.0, gpus=(0,)),
    CustomRule(name="hot", metric="power", above=500.0, after=20.0),
    CustomRule(name="hot", metric="rss", scope="process", above=1.0 * GIB, after=0.0),
    CustomRule(name="hog", metric="memory", scope="user", above=30.0 * GIB, after=20.0),
    CustomRule(name="hog", metric="memory", scope="process", above=30.0 * GIB, after=20.0),
    CustomRule(name="wasted", metric="utilization", below=10.0, after=20.0, user="ben"),
    CustomRule(name="lazy", metric="idle", scope="process", above=600.0),
)
"""Rules of the user's own, some under one name: for whoever changes what a rule asks."""


class Step(NamedTuple):
    """One sample, and what the engine made of it."""

    at: float
    """Seconds since the walk began."""
    now: float
    """Reader's monotonic clock."""
    snapshot: Snapshot
    changes: Changes
    lost: frozenset[str]
    """Keys of alerts that ended with the gpuwatch before this one, for they were about itself."""
    restarted: bool
    """This is the first sample of another gpuwatch, which goes on with the alerts of the one before."""
    well_for: float
    """Seconds for which all has been well; 0 while it is not."""
    conditions: int
    """How many the engine keeps."""


@dataclass
class Job:
    """What one process does on one GPU."""

    size: float
    """GiB."""
    grows: float = 0.0
    """GiB a second."""
    sm: int | Reason = 50


@dataclass
class Card:
    """One GPU."""

    index: int
    jobs: dict[int, Job] = field(default_factory=dict)
    """By PID."""
    health: Health = Health.OK
    listed: bool = True
    note: str = ""
    unreliable: bool = False
    missing: frozenset[str] = frozenset()
    """Figures that cannot be read."""
    sampled: float = 0.0
    utilization: int = 50
    temperature: float = 50.0
    power: float = 300.0
    unattributed: float = 0.0
    """GiB in use that nobody is listed for."""
    throttle: tuple[str, ...] = ()
    errors: int = 0
    """Uncorrected ones of its memory: these stay when all is well."""
    xids: dict[int, Xid] = field(default_factory=dict)
    remap_pending: bool = False
    last: Gpu | None = None

    def recovered(self) -> Card:
        """Give it as it is when it is well: empty, cool, read without fail. What was counted stays."""
        return Card(self.index, errors=self.errors, xids=self.xids, sampled=self.sampled)

    def used(self) -> float:
        """Return the GiB in use."""
        return sum(job.size for job in self.jobs.values()) + self.unattributed


class World:
    """The machine."""

    def __init__(self, drawn: random.Random) -> None:
        self.drawn = drawn
        self.clock = 1000.0
        """The sampler's monotonic clock."""
        self.set_by = 0.0
        """Seconds by which the wall clock was set."""
        self.well = False
        self._state = SourceState.OK
        self._cards = [Card(index) for index in range(GPUS)]
        self._people: dict[int, Process] = {}
        """By PID."""
        self._pid = 100

    @property
    def wall(self) -> float:
        """Return the wall-clock time."""
        return EPOCH + self.clock + self.set_by

    def once_in(self, seconds: float) -> bool:
        """Return whether what happens once in so many seconds happens now."""
        return self.drawn.random() < INTERVAL / seconds

    def go_on(self) -> None:
        """Let an interval go by."""
        seconds = INTERVAL * self.drawn.choice((1, 1, 1, 1, 1.3))
        self.clock += seconds
        if self.well:
            self._state = SourceState.OK
            self._cards = [card.recovered() for card in self._cards]
        else:
            self._shake()
            for card in self._cards:
                self._sicken(card)
                self._blind(card)
                self._work(card, seconds)
                self._wear(card, seconds)
        for card in self._cards:
            if card.health is Health.OK and (self.well or not self.once_in(200)):
                card.sampled = self.clock - 0.01
        held = {pid for card in self._cards for pid in card.jobs}
        self._people = {pid: person for pid, person in self._people.items() if pid in held}

    def snapshot(self) -> Snapshot:
        """Return what the sampler sees now."""
        gpus = [self._row(card) for card in self._cards if card.listed]
        pids = {one.pid for gpu in gpus for one in gpu.holdings}
        return builders.snapshot(
            gpus,
            [person for pid, person in self._people.items() if pid in pids],
            monotonic=self.clock,
            taken=self.wall,
            interval=INTERVAL,
            state=self._state,
            since=self.wall - 5,
        )

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def _shake(self) -> None:
        """Set the wall clock; let the whole driver go and come back; let another sampler count XIDs from none."""
        if self.once_in(2000):
            self.set_by += self.drawn.choice((-3600, -10, 3600, 86400))
        if self.once_in(2000):
            self._state = self.drawn.choice(_DOWN)
        elif self._state is not SourceState.OK and self.once_in(100):
            self._state = SourceState.OK
        if self.once_in(2000):
            for card in self._cards:
                card.xids = {}

    def _sicken(self, card: Card) -> None:
        """Let a GPU be lost, or no longer be listed, and come back."""
        if card.health is Health.OK and self.once_in(1000):
            card.health = self.drawn.choice(_ILLS)
        elif card.health is not Health.OK and self.once_in(70):
            card.health = Health.OK
        if self.once_in(200 if not card.listed else 3000):
            card.listed = not card.listed

    def _blind(self, card: Card) -> None:
        """Let figures and the list of processes be missing, or make no sense, and be there again."""
        if self.once_in(1000):
            card.note = self.drawn.choice(("", "", "the list is not complete"))
        if self.once_in(1000):
            card.unreliable = self.drawn.random() < 0.2
        if self.once_in(1000):
            card.missing = frozenset(name for name in _FIGURES if self.drawn.random() < 0.3)
        elif self.once_in(200):
            card.missing = frozenset()

    def _work(self, card: Card, seconds: float) -> None:
        """Let processes come, grow, idle, die, and go; half of them go at once where the GPU is full."""
        drawn = self.drawn
        if self.once_in(300) and len(card.jobs) < 6:
            self._begin(card)
        for pid, job in tuple(card.jobs.items()):
            if self.once_in(1000):
                del card.jobs[pid]
                continue
            job.size = max(0.1, job.size + job.grows * seconds)
            if self.once_in(2000):
                job.grows = drawn.choice((0.0, 0.01, -0.05, 0.3))
            if self.once_in(700):
                job.sm = drawn.choice((0, 0, 0, 50, 100, Reason.NO_SAMPLE))
            if self.once_in(5000):
                death = drawn.choice(({"state": "zombie"}, {"presence": Presence.GONE}))
                self._people[pid] = msgspec.structs.replace(self._people[pid], **death)
        if self.once_in(2000):
            card.unattributed = drawn.choice((0.0, 0.0, 0.2, 3.0))
        if card.used() > CAPACITY:
            card.unattributed = 0.0
            for pid in tuple(card.jobs)[: len(card.jobs) // 2 + 1]:
                del card.jobs[pid]

    def _begin(self, card: Card) -> None:
        """Let a process come; one in five holds something on some other GPU, too."""
        drawn = self.drawn
        self._pid += 1
        grows = drawn.choice((0.0, 0.0, 0.001, 0.02, 0.2)) * drawn.choice((1.0, -0.2))
        self._people[self._pid] = builders.process(self._pid, drawn.choice(USERS), declared=self._declared(card.index))
        card.jobs[self._pid] = Job(drawn.choice((0.5, 0.5, 5.0, 35.0)), grows)
        if drawn.random() < 0.2:
            drawn.choice(self._cards).jobs.setdefault(self._pid, Job(0.4, sm=0))

    def _declared(self, index: int) -> Declared | None:
        kind = self.drawn.choice(("bytes", "bytes", "bytes", "part", "nothing", "nothing"))
        if kind == "bytes":
            return cap(self.drawn.uniform(1, 30), index)
        return part(self.drawn.choice((0.3, 0.5, 0.9)), index) if kind == "part" else None

    def _wear(self, card: Card, seconds: float) -> None:
        """Let a GPU get hot and cold, be slowed down, and have errors."""
        drawn = self.drawn
        card.temperature = min(95.0, max(30.0, card.temperature + drawn.uniform(-0.5, 0.5) * seconds))
        card.power = min(700.0, max(100.0, card.power + drawn.uniform(-20, 20)))
        if self.once_in(300):
            card.utilization = drawn.choice((0, 5, 50, 100))
        if self.once_in(200):
            card.throttle = drawn.choice(_THROTTLES)
        if self.once_in(10000):
            card.errors += 1
        if self.once_in(5000):
            code = drawn.choice(_CODES)
            count = card.xids[code].count if code in card.xids else 0
            card.xids[code] = Xid(code=code, count=count + 1, last=self.wall)
        if self.once_in(5000):
            card.remap_pending = not card.remap_pending

    # -- what is seen of it ----------------------------------------------------------------------------------------

    def _row(self, card: Card) -> Gpu:
        """Return a GPU as the sampler has it: one in trouble is as it last was."""
        if card.health is not Health.OK and card.last is not None:
            held = () if card.health is Health.MISSING else card.last.holdings
            return msgspec.structs.replace(card.last, health=card.health, holdings=held)
        figures: dict[str, Any] = {
            "memory": builders.memory(min(card.used(), CAPACITY)),
            "unattributed": round(card.unattributed * GIB),
            "utilization": card.utilization,
            "temperature": round(card.temperature),
            "power": card.power,
            "throttle": card.throttle,
            "ecc_uncorrected": card.errors,
        }
        figures |= dict.fromkeys(card.missing, Reason.NO_SAMPLE)
        if "memory" in card.missing:
            figures |= {"memory": Memory(), "unattributed": Reason.NO_SAMPLE}
        card.last = builders.gpu(
            card.index,
            sampled=card.sampled,
            holdings=[builders.holding(pid, job.size, sm=job.sm) for pid, job in card.jobs.items()],
            holdings_note=card.note,
            unreliable=card.unreliable,
            remap_pending=card.remap_pending,
            xids=tuple(card.xids[code] for code in sorted(card.xids)),
            **figures,
        )
        return card.last


class Walk:
    """An engine that goes through hours of trouble, each followed by one in which all is well.

    It is started anew and set otherwise in trouble only: else nobody saw what it keeps for ever.
    """

    def __init__(self, seed: int) -> None:
        self._drawn = random.Random(seed)
        self._world = World(self._drawn)
        self._ahead = 5000.0
        """How far the reader's clock is before the sampler's."""
        self._history = History()
        self._engine = Engine(Limits(custom=self._own()))
        self._active: tuple[Alert, ...] = ()

    def steps(self, trouble: Iterable[float]) -> Iterator[Step]:
        """Return each sample of times of trouble of so many seconds, and of the times between them."""
        began = self._world.clock
        for seconds in trouble:
            for well, lasts in ((False, seconds), (True, WELL)):
                self._world.well, since = well, self._world.clock
                while self._world.clock < since + lasts:
                    yield self._step(began, since)

    def _step(self, began: float, since: float) -> Step:
        world = self._world
        world.go_on()
        if not world.well and world.once_in(2000):
            off = frozenset(name for name in _SWITCHED if self._drawn.random() < 0.1)
            self._engine.limits = Limits(custom=self._own(), off=off)
        restarted = not world.well and world.once_in(1500)
        lost = self._restart() if restarted else frozenset()
        now, snapshot = world.clock + self._ahead, world.snapshot()
        changes = self._engine.update(snapshot, self._history.add(snapshot, now), now, world.wall)
        self._active = changes.active
        well_for, conditions = world.clock - since if world.well else 0.0, len(self._engine._conditions)
        return Step(world.clock - began, now, snapshot, changes, lost, restarted, well_for, conditions)

    def _restart(self) -> frozenset[str]:
        """End this gpuwatch and start another, at times after the machine was; give the keys of what ends by that."""
        self._ahead += self._drawn.choice((0.0, 1e5))
        own = self._own() if self._drawn.random() < 0.5 else self._engine.limits.custom
        self._history, self._engine = History(), Engine(Limits(custom=own))
        # What a monotonic clock said means nothing to another process, and is in no file.
        held = [msgspec.structs.replace(one, raised_monotonic=0.0) for one in self._active]
        self._engine.restore(held, self._world.clock + self._ahead, self._world.wall)
        return frozenset(one.key for one in self._active if one.rule == TROUBLE)

    def _own(self) -> tuple[CustomRule, ...]:
        """Give some rules of the user's own, no two of one name."""
        return tuple({rule.name: rule for rule in self._drawn.sample(OWN, 4)}.values())
