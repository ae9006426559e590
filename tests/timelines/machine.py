"""Machine that goes through the steps of a recording, and its snapshots."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Final, NamedTuple

import msgspec

from gpuwatch.model.snapshot import (
    Declared,
    Gpu,
    Health,
    Hint,
    Holding,
    Knowledge,
    Memory,
    Presence,
    Process,
    Reading,
    Reason,
    Snapshot,
    SourceState,
    Visible,
    Xid,
    known,
)
from tests.support import builders
from tests.support.alerts import cap, uuid
from tests.support.builders import EPOCH, GIB
from tests.timelines.recording import Figure, Header, OfGpu, OfMachine, OfProcess, Recording

CLOCK: Final = 5000.0
"""What the monotonic clock shows at the start: one clock for all processes of a machine."""
RESERVED: Final = GIB // 2
_AGE: Final = 0.02
"""Seconds between a sample and the snapshot that has it, and between that and its receipt."""
_PENDING: Final = Declared(knowledge=Knowledge.PENDING)
_REASONS: Final = {reason.value: reason for reason in Reason}


class Course:
    """Figure of a recording from a moment on."""

    def __init__(self, figure: Figure, since: float = 0.0, until: float | None = None) -> None:
        self.figure, self.since, self.until = figure, since, until
        # An hour's cycle has a thousand turns, and is asked at every tick.
        self._ends = [*accumulate(seconds for seconds, _ in figure["cycle"])] if isinstance(figure, dict) else []

    def at(self, now: float) -> Any:
        """Return the value at a moment: a number, a Reason, words, a bool, a tuple of words or None."""
        value = self._value(now)
        if isinstance(value, list):
            return tuple(value)
        return _REASONS.get(value, value) if isinstance(value, str) else value

    def _value(self, now: float) -> Any:
        figure = self.figure
        if isinstance(figure, dict):
            return figure["cycle"][bisect_right(self._ends, (now - self.since) % self._ends[-1])][1]
        if isinstance(figure, list) and len(figure) == 2 and not any(isinstance(one, str) for one in figure):
            first, last = figure
            if self.until is None:
                raise ValueError(f"a line from {first} to {last} that has no end")
            return first + min(1.0, (now - self.since) / (self.until - self.since)) * (last - first)
        return figure


class Tick(NamedTuple):
    """What one second brings."""

    t: float
    wall: float
    """Wall-clock time."""
    snapshot: Snapshot | None
    """None where none comes."""
    restart: bool = False
    """Another gpuwatch watches from here on."""
    acknowledge: tuple[str, ...] = ()
    """Rules whose alerts somebody acknowledges."""
    reload: bool = False
    """Other limits hold from here on."""

    @property
    def now(self) -> float:
        """Return the reader's monotonic clock."""
        return CLOCK + self.t


@dataclass
class _Place:
    """What a process holds on one GPU."""

    memory: Course
    sm: Course
    kind: str = "C"


@dataclass
class _Tenant:
    """One process."""

    row: Process
    places: dict[int, _Place] = field(default_factory=dict)
    limits: dict[int, float] = field(default_factory=dict)

    def declare(self, size: float, gpu: int) -> None:
        """Let it have declared so many GiB on one more GPU; on each it is the same."""
        self.limits[gpu] = size
        self.change_declared(**{name: getattr(cap(size, *self.limits), name) for name in ("declarations", "limits")})

    def change_declared(self, **fields: Any) -> None:
        """Change what is known of its environment."""
        declared = msgspec.structs.replace(self.row.declared or Declared(), **fields)
        self.row = msgspec.structs.replace(self.row, declared=declared)

    def vanish(self) -> None:
        """Let the kernel forget it; the local source keeps what was known of it."""
        unread = dict.fromkeys(("cpu", "below", "rss"), Reason.NO_SAMPLE)
        self.row = msgspec.structs.replace(self.row, presence=Presence.GONE, state="", **unread)


@dataclass
class _Card:
    """One GPU."""

    total: int
    health: Health = Health.OK
    listed: bool = True
    answers: bool = True
    others: Course = field(default_factory=lambda: Course(0.0))
    figures: dict[str, Course] = field(default_factory=dict)
    xids: dict[int, Xid] = field(default_factory=dict)
    last: Gpu | None = None
    """The newest row."""


class Machine:
    """The state of a machine, brought forward step by step."""

    def __init__(self, recording: Recording) -> None:
        self._header: Header = recording.header
        self._steps = deque(recording.steps)
        self._cards = {index: _Card(round(total * GIB)) for index, total in recording.header.gpus.items()}
        self._tenants: dict[int, _Tenant] = {}
        self._crowd: Crowd | None = None
        self._sequence = 0
        self._step = 0.0
        """How far the wall clock was set."""
        self._stream = SourceState.OK
        self._since = EPOCH
        self._silent_until = 0.0
        self._down_until = 0.0
        """Until then there is no sampler, and the last samples are given again."""
        self._fresh = True
        """The next snapshot is a sampler's first."""
        self._restart_due: float | None = None
        """When another gpuwatch begins."""
        self._seen: list[str] = []
        self._reload = False

    def ticks(self, moments: Iterable[float] = ()) -> Iterator[Tick]:
        """Return what comes at these moments, or at each interval of the recording."""
        for t in moments or map(float, range(0, self._header.length, self._header.interval)):
            self._seen, self._reload = [], False
            while self._steps and self._steps[0].t <= t:
                self._take(self._steps.popleft())
            if self._crowd is not None:
                self._crowd.move(t)
            restart = self._restart_due is not None and t >= self._restart_due
            if restart:
                self._restart_due = None
            wall = EPOCH + t + self._step
            snapshot = None if t < self._silent_until else self._snapshot(t, wall)
            yield Tick(t, wall, snapshot, restart, tuple(self._seen), self._reload)

    # -- steps -----------------------------------------------------------------------------------------------------

    def _take(self, step: OfProcess | OfGpu | OfMachine) -> None:
        if isinstance(step, OfProcess):
            self._take_process(step)
        elif isinstance(step, OfGpu):
            self._take_gpu(step)
        else:
            self._take_machine(step)

    def _take_process(self, step: OfProcess) -> None:
        tenant = self._tenants.get(step.pid)
        if step.ends:
            if step.gpu is None:
                del self._tenants[step.pid]
            elif tenant is not None:
                del tenant.places[step.gpu]
            return
        if tenant is None:
            uid, start = self._header.people[step.user], step.start or step.pid
            row = builders.process(step.pid, step.user, start=start, uid=uid, declared=Declared())
            tenant = self._tenants[step.pid] = _Tenant(row)
        changes = {key: getattr(step, key) for key in ("name", "state") if getattr(step, key)}
        tenant.row = msgspec.structs.replace(tenant.row, **changes)
        if step.presence is Presence.GONE:
            tenant.vanish()
        elif step.presence is not None:
            tenant.row = msgspec.structs.replace(tenant.row, presence=step.presence)
        if step.visible is not None:
            shown = Visible(
                gpus=(uuid(step.visible),), text=f"CUDA_VISIBLE_DEVICES={step.visible}", where="environment"
            )
            tenant.change_declared(visible=shown)
        if step.hint:
            tenant.change_declared(hints=(Hint(rule="misspelt", words=step.hint),))
        if step.gpu is None:
            return
        place = tenant.places.setdefault(step.gpu, _Place(Course(0.0), Course(50)))
        if step.gib is not None:
            place.memory = Course(step.gib, step.t, step.until)
        if step.sm is not None:
            place.sm = Course(step.sm, step.t, step.until)
        place.kind = step.kind or place.kind
        if step.limit is not None:
            tenant.declare(step.limit, step.gpu)

    def _take_gpu(self, step: OfGpu) -> None:
        card = self._cards[step.gpu]
        card.health = step.health or card.health
        card.listed = card.listed if step.listed is None else step.listed
        card.answers = card.answers if step.answers is None else step.answers
        if step.others is not None:
            card.others = Course(step.others, step.t, step.until)
        if step.xid is not None:
            before = card.xids.get(step.xid)
            count = before.count + 1 if before else 1
            card.xids[step.xid] = Xid(code=step.xid, count=count, last=EPOCH + step.t + self._step)
        unknown = set(step.figures) - {*Gpu.__struct_fields__, "used", "free"}
        if unknown:
            raise ValueError(f"a GPU has no {', '.join(sorted(unknown))}")
        card.figures |= {name: Course(figure, step.t, step.until) for name, figure in step.figures.items()}

    def _take_machine(self, step: OfMachine) -> None:
        self._step += step.wall
        if step.silence:
            self._silent_until = step.t + step.silence
        if step.stream is not None:
            self._stream, self._since = step.stream, EPOCH + step.t + self._step
        if step.sampler_restarts is not None:
            self._down_until = step.t + step.sampler_restarts
            self._begin_anew()
        if step.gpuwatch_restarts is not None:
            self._silent_until = self._restart_due = step.t + step.gpuwatch_restarts
            self._begin_anew()
        if step.acknowledge:
            self._seen.append(step.acknowledge)
        self._reload = self._reload or step.reload
        if step.crowd:
            self._crowd = Crowd(self, step.crowd, step.until or self._header.length)

    def _begin_anew(self) -> None:
        """Let another sampler count from the start."""
        self._fresh, self._sequence = True, 0
        for card in self._cards.values():
            card.xids.clear()

    # -- what a crowd does -----------------------------------------------------------------------------------------

    @property
    def places(self) -> list[int]:
        """Return the indices of the GPUs."""
        return list(self._cards)

    @property
    def people(self) -> list[str]:
        """Return the users' names."""
        return list(self._header.people)

    def apply(self, step: OfProcess) -> None:
        """Take a step that stands in no recording."""
        self._take_process(step)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def _snapshot(self, t: float, wall: float) -> Snapshot:
        again = t < self._down_until or self._stream is not SourceState.OK
        if not again:
            self._sequence += 1
            for index, card in self._cards.items():
                if card.answers or card.last is None:
                    card.last = self._row(index, card, t)
            self._fresh = False
        gpus = tuple(card.last for card in self._cards.values() if card.listed and card.last is not None)
        held = {one.pid for gpu in gpus for one in gpu.holdings}
        people = [self._tenants[pid].row for pid in sorted(held) if pid in self._tenants]
        if self._sequence == 1:  # nobody's environment was read yet
            people = [msgspec.structs.replace(one, declared=_PENDING, cpu=Reason.NO_SAMPLE) for one in people]
        return builders.snapshot(
            gpus,
            people,
            sequence=self._sequence,
            taken=wall,
            monotonic=CLOCK + t - _AGE,
            interval=float(self._header.interval),
            state=self._stream,
            since=self._since,
        )

    def _row(self, index: int, card: _Card, t: float) -> Gpu:
        stamp = CLOCK + t - 2 * _AGE
        xids = tuple(card.xids[code] for code in sorted(card.xids))
        if card.health is not Health.OK:  # of such a GPU nothing is known but what it is
            before = card.last.sampled if card.last is not None else 0.0
            return Gpu(index=index, uuid=uuid(index), health=card.health, words="as it says", sampled=before, xids=xids)
        held = tuple(self._holdings(index, t))
        found: dict[str, Any] = {name: course.at(t) for name, course in card.figures.items()}
        changes = {name: figure for name, figure in found.items() if figure is not None}
        place = changes.pop("index", index)
        memory, unattributed = _memory(card, held, card.others.at(t), changes)
        fields = {"sampled": stamp, "slow_sampled": stamp, "memory": memory, "holdings": held, "xids": xids}
        row = builders.gpu(index, **{**fields, "unattributed": unattributed, **changes})
        return row if place == index else msgspec.structs.replace(row, index=place)

    def _holdings(self, index: int, t: float) -> Iterator[Holding]:
        for pid, tenant in self._tenants.items():
            place = tenant.places.get(index)
            if place is None:
                continue
            size = place.memory.at(t)
            yield Holding(
                pid=pid,
                start=tenant.row.start,
                kind=place.kind,
                memory=round(size * GIB) if known(size) else size,
                sm=Reason.NO_SAMPLE if self._fresh else place.sm.at(t),
            )


def _memory(card: _Card, held: tuple[Holding, ...], others: float, changes: dict[str, Any]) -> tuple[Memory, Reading]:
    """Return the memory of a GPU whose processes hold so much, and what nobody is listed for."""
    sizes = [int(one.memory) for one in held if known(one.memory)]
    used: Reading = min(sum(sizes) + round(others * GIB), card.total - RESERVED)
    if "used" in changes:
        used = _bytes(changes.pop("used"))
    free: Reading = card.total - RESERVED - used if known(used) else used
    if "free" in changes:
        free = _bytes(changes.pop("free"))
    sure = known(used) and len(sizes) == len(held)
    unattributed: Reading = max(0, used - sum(sizes)) if sure and known(used) else Reason.NO_SAMPLE
    return Memory(total=card.total, used=used, free=free, reserved=RESERVED), unattributed


def _bytes(gib: float | Reason) -> Reading:
    return round(gib * GIB) if known(gib) else gib


class Crowd:
    """So many processes at any time, which come, load, work and end, the same in each run."""

    FIRST = 10_000
    """The first PID."""

    def __init__(self, machine: Machine, count: int, until: float) -> None:
        self._machine = machine
        self._random = random.Random(11)
        self._until = until
        self._next = self.FIRST
        self._ends: dict[int, float] = {}
        self._room = count

    def move(self, t: float) -> None:
        """End those whose time has come, and start others in their place."""
        for pid, end in list(self._ends.items()):
            if t >= end:
                del self._ends[pid]
                self._machine.apply(OfProcess(t=t, pid=pid, ends=True))
        while len(self._ends) < self._room and t < self._until:
            self._start(t)

    def _start(self, t: float) -> None:
        drawn, pid = self._random, self._next
        self._next += 1
        places = self._machine.places
        size = drawn.uniform(0.2, 0.9)
        self._ends[pid] = min(self._until, t + drawn.uniform(15, 300))
        self._machine.apply(
            OfProcess(
                t=t,
                pid=pid,
                user=drawn.choice(self._machine.people),
                gpu=places[pid % len(places)],
                gib=[0.1, size],
                until=t + drawn.uniform(2, 20),
                sm={"cycle": [[drawn.randrange(1, 9), drawn.randrange(20, 100)], [drawn.randrange(1, 4), 0]]},
                limit=size,
            )
        )
