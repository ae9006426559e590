"""Rules about memory: GPUs near their limit, growth, processes that grow, and memory that nobody listed holds.

A rule that cannot judge (a reading is missing) says nothing: its alert then stays as it is. Everything a rule can judge
it reports, fine or not, for an alert is only cleared by an observation that says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from typing import Annotated, Final, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec import Meta

from gpuwatch import units
from gpuwatch.alerts.alert import Severity, Unit
from gpuwatch.fields import DAY, HOUR, Bytes, Gpus, Number, RuleNames, Seconds, Text, XidCodes
from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Holding, Memory, Presence, Process, Snapshot, SourceState, known, number

MEMORY: Final = "memory near limit"
HEALTH: Final = "gpu health"
STALE: Final = "data stale"

NAMED: Final = 3
"""Holders, or processes, named in the evidence."""
GROWN: Final = 64 * units.MIB
"""Bytes in a minute below which nobody is said to have grown: about what a new stream or a cuBLAS workspace takes."""

_UNKNOWN: Final = "unknown processes"
_LATE: Final = 5.0
"""Seconds that data may be old at any interval: 3 go by where a call hangs and another sampler is started."""
_FULL: Final = 1.0
"""Percent free below which a GPU is called full."""
_TROUBLES: Final = {Health.LOST: f"{Health.LOST.value}: it needs a reset or a reboot"}
"""What a title says of a health whose name alone does not say what to do."""
_CRITICAL_HEALTH: Final = frozenset({Health.LOST, Health.SILENT, Health.QUARANTINED, Health.RESET, Health.MISSING})


MOST_FREE: Final = 95
"""Percent. An alert clears 2 points above its limit, so one near 100 would never end."""


class Allowances(msgspec.Struct, frozen=True, kw_only=True):
    """How far, in bytes, and how long a holding may exceed its limit before that is an overshoot: `[allowance]`.

    What comes on top of an allocator's limit is nearly constant, and no share of it: TensorFlow Serving held 234 MiB
    over at half a T4 and at a quarter (tensorflow/serving#1668), PyTorch 1.8 with CUDA 10.1 held 1014 MiB over at 5.4
    GiB (pytorch/pytorch#58466). A field without a description is no key of the file.
    """

    after: Annotated[Seconds, Meta(ge=0.1, le=HOUR, description="so long, and in 3 samples at least")] = 10.0
    framework: Annotated[
        Bytes, Meta(ge=0, description="CUDA context and library handles on top of what an allocator counts")
    ] = 600 * units.MIB
    eager: Annotated[
        Bytes, Meta(ge=0, description="the same where all kernels are loaded at once (CUDA before 11.7)")
    ] = 1100 * units.MIB
    budget: Annotated[Bytes, Meta(ge=0, description="vLLM; at least 2 % of the GPU")] = units.GIB
    budget_percent: float = 2.0
    exact: Annotated[Bytes, Meta(ge=0, description="what is enforced (MPS, HAMi, NVML)")] = 64 * units.MIB
    collective: Annotated[Bytes, Meta(ge=0, description="more for ranks of a job on several GPUs (NCCL)")] = (
        512 * units.MIB
    )
    """Not over what is exact."""
    second_step: Annotated[Bytes, Meta(ge=0, description="beyond which it is critical; at least 10 % of the limit")] = (
        units.GIB
    )
    second_step_percent: float = 10.0
    clear_margin: int = 128 * units.MIB
    """How far below limit and allowance an alert is cleared, though never below the limit itself."""


Scope: TypeAlias = Literal["gpu", "process", "user"]


class OwnRule(msgspec.Struct, frozen=True, kw_only=True):
    """One `[[rule]]` of the user's own: raise while a metric is above (or below) a value.

    Metrics are the keys of `alerts.rules.custom.METRICS`.
    The file also ensures what no single field can: a metric that exists, with a scope that it has; exactly one of
    `above` and `below`, in the unit of the metric; `clear` on the right side of it.
    """

    name: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=40,
            description="1 to 40 characters, none of gpuwatch's own names",
            examples=['"hot memory"'],
            extra={"form": "text"},
        ),
    ]
    metric: Annotated[Text, Meta(min_length=1, description="one of those above", examples=['"temperature"'])]
    scope: Annotated[Scope, Meta(description='or "process", "user"; left out: "gpu"', examples=['"gpu"'])] = "gpu"
    above: (
        Annotated[Number, Meta(description='or below = 20; sizes as "20GiB", durations as "10min"', examples=["80"])]
        | None
    ) = None
    below: Annotated[Number, Meta(description="instead of above")] | None = None
    clear: Annotated[Number, Meta(description="the value that ends it; left out: the same", examples=["75"])] | None = (
        None
    )
    after: Annotated[
        Seconds,
        Meta(ge=0, le=7 * DAY, description="so long, to raise it and to end it; left out: 10s", examples=['"30s"']),
    ] = msgspec.field(default=10.0, name="for")
    severity: Annotated[
        Severity, Meta(description='or "note", "critical"; left out: "warning"', examples=['"warning"'])
    ] = Severity.WARNING
    gpus: Annotated[Gpus, Meta(description='or one, or "GPU-8932"; left out: each', examples=["[0, 1]"])] = (
        msgspec.field(default=(), name="gpu")
    )
    user: Annotated[Text, Meta(min_length=1, description="a name or a uid; left out: anybody", examples=['"ada"'])] = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """When alerts are raised: `[alerts]`. Percentages are of the memory that programs can have: total less reserved.

    A field without a description is no key of the file. `at_most` names the field that a value must not be above:
    critical would be reached before the warning.
    """

    off: Annotated[RuleNames, Meta(description='rules that are not applied: ["power at limit"]')] = frozenset()
    quiet: Annotated[Seconds, Meta(ge=0, le=HOUR / 6, description="nothing is raised so soon after the start")] = 5.0
    """Nor ended: drivers wake up with odd figures."""
    memory_warning: Annotated[float, Meta(ge=0, le=MOST_FREE, description="percent of a GPU's memory still free")] = (
        10.0
    )
    memory_critical: Annotated[
        float,
        Meta(ge=0, le=MOST_FREE, description="the same, for a critical alert", extra={"at_most": "memory_warning"}),
    ] = 5.0
    memory_for: Annotated[Seconds, Meta(ge=0, le=HOUR, description="so long, and in 3 samples at least")] = 2.0
    """To raise, and to clear."""
    clear_margin: float = 2.0
    """Percentage points that must be free beyond a limit before an alert steps down or is cleared."""
    samples: int = 3
    """Samples in a row that it takes to raise, and to step down or clear."""
    full_warning: Annotated[
        Seconds, Meta(ge=10, le=DAY, description="full so soon, at the speed of the last minutes")
    ] = 600.0
    full_critical: Annotated[
        Seconds, Meta(ge=0, le=DAY, description="the same, for a critical alert", extra={"at_most": "full_warning"})
    ] = 120.0
    full_for: Annotated[Seconds, Meta(ge=0, le=HOUR, description="foreseen for so long")] = 20.0
    idle_after: Annotated[Seconds, Meta(ge=10, le=7 * DAY, description="memory held so long without computing")] = (
        1800.0
    )
    idle_memory: Annotated[Bytes, Meta(ge=units.MIB, description="so much at least, by one user on one GPU")] = (
        units.GIB
    )
    unattributed_memory: Annotated[
        Bytes, Meta(ge=units.MIB, description="memory that no listed process accounts for")
    ] = units.GIB
    unattributed_for: Annotated[Seconds, Meta(ge=0, le=DAY, description="for so long")] = 60.0
    dead_process_memory: Annotated[
        Bytes, Meta(ge=units.MIB, description="memory still held by a process that has ended")
    ] = 256 * units.MIB
    dead_process_for: Annotated[Seconds, Meta(ge=0, le=DAY, description="for so long")] = 20.0
    temperature_margin: Annotated[
        float,
        Meta(ge=0, le=50, description="degrees below where the GPU slows itself down; critical at that"),
    ] = 5.0
    temperature_for: Annotated[Seconds, Meta(ge=0, le=DAY, description="for so long")] = 10.0
    throttled_for: Annotated[
        Seconds, Meta(ge=0, le=DAY, description="slowed down so long by heat or by the power brake")
    ] = 60.0
    power_for: Annotated[Seconds, Meta(ge=0, le=7 * DAY, description="so long at the power limit; a note")] = 1800.0
    xid_for: Annotated[Seconds, Meta(ge=10, le=7 * DAY, description="its alert ends so long after the newest XID")] = (
        600.0
    )
    xid_critical: Annotated[XidCodes, Meta(description="the driver's error codes that are critical")] = frozenset(
        {48, 62, 64, 74, 79, 95, 119, 120}
    )
    xid_warning: Annotated[
        XidCodes, Meta(description="a warning; the others are a program's own fault, and no alert")
    ] = frozenset({94})
    stale_intervals: float = 5.0
    """Age of the newest data, in intervals, at which it is stale."""
    starting_grace: float = 10.0
    """Seconds that a source may take to start."""
    allowances: Allowances = Allowances()
    own: tuple[OwnRule, ...] = ()


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule says of one GPU, of some of its processes, or of the whole stream, at one moment."""

    rule: str
    gpu: str = ""
    """Key of the GPU; empty for the whole stream."""
    index: int | None = None
    subject: str = ""
    """What tells it from all else that the rule says, where the GPU does not: the process or scope it is about.

    One with a subject is over once its GPU answers and the rule no longer speaks of it.
    """
    rests_on: tuple[tuple[int, int], ...] = ()
    """(pid, start) of the processes whose declarations it rests on: while they cannot be read, it is not over."""
    level: Severity | None = None
    """What it is worth by the limits that raise; None is fine."""
    keeps: Severity | None = None
    """The most that an alert already raised keeps, by the limits that clear."""
    partial: bool = False
    """The level is the least that it is worth, for something could not be read: it may raise, and never clears."""
    raise_after: int = 1
    """Samples in a row that it takes to raise it."""
    raise_for: float = 0.0
    """Seconds that these samples must span, too."""
    forgives: int = 0
    """Fine samples in a row that do not break those which raise it: what is at its limit flickers."""
    clear_after: int = 1
    """Samples in a row that it takes to step down or clear."""
    clear_for: float = 0.0
    """Seconds that these samples must span, too."""
    stamp: float | None = None
    """What tells one sample from the same one given again; None where each observation counts."""
    title: str
    evidence: str = ""
    detail: str = ""
    """What follows the evidence and the worst `value`, which then must be bytes; empty where that is not to be told."""
    value: float | None = None
    unit: Unit = Unit.NONE
    """What `value` counts."""
    least_is_worst: bool = False
    """Whether the smallest `value` is the worst."""
    pids: tuple[int, ...] = ()
    owners: tuple[str, ...] = ()
    """Users whose doing it is, the largest holder first."""
    how: str = ""
    """Where it is fine: what to say of how it ended, `{lasted}` standing for how long it held; empty for the title."""

    @property
    def clear(self) -> bool:
        """Whether it is fine even by the limits that clear."""
        return self.keeps is None


class Holder(NamedTuple):
    """What one user holds on one GPU, in bytes."""

    name: str
    memory: int
    growth: int
    """In the last minute, as far as it is known."""
    partial: bool = False
    """What one of their processes holds is not known, and not in `memory`."""


def memory_near_limit(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Judge how much memory each GPU has left for programs.

    That is free over total less reserved. Where the driver does not say what is reserved, it is free over total.
    """
    people: dict[int, Process] | None = None
    for gpu in snapshot.gpus:
        room = room_of(gpu.memory)
        if room is None or gpu.health is not Health.OK:
            continue
        free, usable = room
        percent = 100.0 * free / usable
        empty = _is_empty(gpu)
        level = None if empty else _severity(percent, limits, 0.0)
        keeps = None if empty else _severity(percent, limits, limits.clear_margin)
        seen = Observation(
            rule=MEMORY,
            gpu=gpu.key,
            index=gpu.index,
            level=level,
            keeps=keeps,
            raise_after=limits.samples,
            raise_for=limits.memory_for,
            clear_after=limits.samples,
            clear_for=limits.memory_for,
            stamp=gpu.sampled,
            title=_memory_title(gpu.index, free, usable, percent, level),
            how="" if keeps is not None else f"{units.gib(free)} of {units.gib(usable)} GiB free again",
            value=free,
            unit=Unit.FREE,
            least_is_worst=True,
        )
        if keeps is not None:
            # Who is only worked out where somebody may read it: most GPUs have room most of the time.
            people = people if people is not None else {one.pid: one for one in snapshot.processes}
            found, pids = holders(gpu, people, history), largest_first(gpu.holdings)
            seen = msgspec.structs.replace(
                seen, evidence=_memory_evidence(gpu, found), pids=pids, owners=_users(found, pids, people)
            )
        yield seen


def gpu_health(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Judge each GPU's health. Trouble counts at its first sample; well again needs several."""
    for gpu in snapshot.gpus:
        fine = gpu.health is Health.OK
        level = None if fine else Severity.CRITICAL if gpu.health in _CRITICAL_HEALTH else Severity.WARNING
        yield Observation(
            rule=HEALTH,
            gpu=gpu.key,
            index=gpu.index,
            level=level,
            keeps=level,
            clear_after=limits.samples,
            # A GPU in trouble has no new samples to tell apart: there, each look counts.
            stamp=gpu.sampled if fine else None,
            title=f"GPU {gpu.index} {'answers again' if fine else _TROUBLES.get(gpu.health, gpu.health.value)}",
            evidence=gpu.words if fine else " · ".join(filter(None, (_last_on(gpu, history), gpu.words))),
            how="answers again after {lasted}",
        )


def _last_on(gpu: Gpu, history: HistoryView) -> str:
    """Name who was on a GPU when its processes were last listed; empty where they never were."""
    last = history.last_listed(gpu.key)
    if last is None:
        return ""
    then, snapshot = last
    found = holders(then, {one.pid: one for one in snapshot.processes}, history)
    if not found:
        return "nobody was on it"
    sizes = [units.gib(one.memory) for one in found]
    named = [f"{one.name} {size}" for one, size in zip(found, sizes, strict=True)]
    named[0] += " GiB"
    more = len(named) - NAMED
    others = [f"{more} other{'s' * (more > 1)}"] * (more > 0)
    return f"last on it: {' · '.join([*named[:NAMED], *others])}"


def data_stale(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Judge whether the stream is alive: its state, and the age of its newest data, in seconds.

    A GPU in trouble is left out of the age, for it has an alert of its own. A source may take some time to start; until
    it has, what was raised holds.
    """
    raise_for, how = 0.0, "data again after {lasted}"
    if snapshot.state is SourceState.OK:
        stamps = [gpu.sampled for gpu in snapshot.gpus if gpu.health is Health.OK and gpu.sampled]
        age = max(0.0, snapshot.monotonic - max(stamps)) if stamps else 0.0
        stale = age > max(_LATE, limits.stale_intervals * snapshot.interval)
        if snapshot.gpus and not stamps:
            how = "no GPU gives data now; each has an alert of its own"
        title = f"no new data for {units.long_duration(age)}" if stale else "data again"
    else:
        # By the wall clock, which may have been set meanwhile: never longer than we watch.
        age = min(max(0.0, snapshot.taken - snapshot.since), history.watched) if snapshot.since else history.watched
        stale = True
        # A sampler that crashed is replaced within 3 s, and the screen says meanwhile what the matter is.
        raise_for = limits.starting_grace if snapshot.state is SourceState.STARTING else _LATE
        title = f"{snapshot.state.value} for {units.long_duration(age)}"
        title = snapshot.state.value if age < 1 else title
    level = Severity.CRITICAL if stale else None
    yield Observation(
        rule=STALE,
        level=level,
        keeps=level,
        raise_for=raise_for,
        title=title,
        evidence=snapshot.words,
        value=age,
        unit=Unit.SECONDS,
        how=how,
    )


def holders(gpu: Gpu, people: Mapping[int, Process], history: HistoryView) -> list[Holder]:
    """Return who holds a GPU's memory, the most first: users, nameless processes, and what nobody is listed for."""
    memory: defaultdict[str, int] = defaultdict(int)
    growth: defaultdict[str, int] = defaultdict(int)
    partial: set[str] = set()
    for one in gpu.holdings:
        name = holder_name(one.pid, people.get(one.pid))
        if known(one.memory):
            memory[name] += int(one.memory)
            growth[name] += history.growth(gpu.key, one.pid, one.start) or 0
        else:
            partial.add(name)
    found = [Holder(name, size, growth[name], name in partial) for name, size in memory.items() if size]
    if known(gpu.unattributed) and gpu.unattributed >= GROWN:
        found.append(Holder(_UNKNOWN, int(gpu.unattributed), 0))
    return sorted(found, key=lambda holder: -holder.memory)


def room_of(memory: Memory) -> tuple[float, float] | None:
    """Give (bytes free, bytes that programs can have), or None where it cannot be judged."""
    free, total, reserved = number(memory.free), number(memory.total), number(memory.reserved)
    if free is None or total is None:
        return None
    usable = total - (reserved or 0.0)
    return (free, usable) if usable > 0 else None


def _is_empty(gpu: Gpu) -> bool:
    """Return whether no program holds this GPU: then its figures are nobody's doing, or another device's."""
    return not gpu.holdings and not gpu.holdings_note and (gpu.memory.unified or gpu.memory.used == 0)


def _severity(percent: float, limits: Limits, margin: float) -> Severity | None:
    if percent < limits.memory_critical + margin:
        return Severity.CRITICAL
    if percent < limits.memory_warning + margin:
        return Severity.WARNING
    return None


def _memory_title(index: int, free: float, usable: float, percent: float, level: Severity | None) -> str:
    word = " full" if percent < _FULL else " near limit" if level else ""
    return f"GPU {index}{word}: {units.gib(free)} GiB of {units.gib(usable)} free"


def _users(found: Iterable[Holder], pids: Iterable[int], people: Mapping[int, Process]) -> tuple[str, ...]:
    """Return those of the holders that are users, in the same order."""
    names = {people[pid].user for pid in pids if pid in people}
    return tuple(one.name for one in found if one.name in names)


def _memory_evidence(gpu: Gpu, found: Sequence[Holder]) -> str:
    parts: list[str] = []
    for one in found[:NAMED]:
        size = f"at least {units.gib(one.memory)}" if one.partial else units.gib(one.memory)
        parts.append(f"{one.name} {size}" if parts else f"{one.name} hold{'s' * (one.name != _UNKNOWN)} {size} GiB")
    grower = max(found, key=lambda holder: holder.growth, default=None)
    if grower is not None and grower.growth >= GROWN:
        parts.append(f"{grower.name} grew {units.gib(grower.growth)} GiB in the last minute")
    if gpu.memory.unified:
        parts.append("memory is shared with the whole machine")
    return " · ".join(parts)


def owners_of(pids: Iterable[int], people: Mapping[int, Process]) -> tuple[str, ...]:
    """Return the users whose processes these are, in their order; who is not visible is left out."""
    names = (people[pid].user for pid in pids if pid in people)
    return tuple(dict.fromkeys(name for name in names if name))


def holder_name(pid: int, process: Process | None) -> str:
    """Name who holds: the user, or the process where its owner is not visible."""
    if process is None:
        return f"pid {pid}"
    if process.user:
        return process.user
    return f"pid {pid}" if process.presence is Presence.SEEN else f"pid {pid} ({process.presence.value})"


def largest_first(held: Iterable[Holding]) -> tuple[int, ...]:
    """Return the processes that hold something, each once, the largest holder first."""
    sizes: defaultdict[int, float] = defaultdict(float)
    for one in held:
        sizes[one.pid] += number(one.memory) or 0.0
    return tuple(sorted(sizes, key=lambda pid: (-sizes[pid], pid)))


def worse(one: float | None, other: float | None, *, least: bool) -> float | None:
    """Return the worse of two values of a rule, whose smallest is the worst where `least`; None is no value."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other) if least else max(one, other)


FULL: Final = "time to full"

_LATER: Final = 1.5
"""How many times a limit the time must be before an alert steps down or is cleared."""


def time_to_full(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Judge in how many seconds each GPU's memory is full, where it grows and grows (`history.Trend`).

    Nothing is raised where memory is near its limit already: another rule says so. Not judged are GPUs whose memory is
    not theirs alone (unified), or is divided (MIG), and those of which there is no minute of samples yet.
    """
    people: dict[int, Process] | None = None
    for gpu in snapshot.gpus:
        room, trend = room_of(gpu.memory), history.trend(gpu.key)
        if room is None or trend is None or gpu.health is not Health.OK or gpu.memory.unified or gpu.mig is True:
            continue
        free, usable = room
        seconds = free / trend.speed if trend.speed > 0 else None
        near = 100.0 * free / usable < limits.memory_critical
        keeps = None if seconds is None else Severity.CRITICAL if near else _severity_growth(seconds, limits, _LATER)
        seen = Observation(
            rule=FULL,
            gpu=gpu.key,
            index=gpu.index,
            level=None if seconds is None or near or not trend.steady else _severity_growth(seconds, limits, 1.0),
            keeps=keeps,
            raise_after=limits.samples,
            raise_for=limits.full_for,
            clear_after=limits.samples,
            clear_for=limits.full_for,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index} does not fill up",
            value=seconds,
            unit=Unit.SECONDS,
            least_is_worst=True,
            how="its memory no longer grows that fast",
        )
        if keeps is not None and seconds is not None:
            people = people if people is not None else {one.pid: one for one in snapshot.processes}
            growers = _growers(gpu, history)
            seen = msgspec.structs.replace(
                seen,
                title=f"GPU {gpu.index} full in about {_about(seconds)}",
                evidence=_evidence(growers, people, trend.speed, room),
                pids=tuple(growers),
                owners=_users_growth(growers, people),
            )
        yield seen


def _severity_growth(seconds: float, limits: Limits, times: float) -> Severity | None:
    if seconds <= limits.full_critical * times:
        return Severity.CRITICAL
    return Severity.WARNING if seconds <= limits.full_warning * times else None


def _about(seconds: float) -> str:
    """Say a predicted time no more exactly than it is known: in minutes, below one in tens of seconds."""
    if seconds > 55:
        return units.long_duration(60 * max(1, round(seconds / 60)))
    return units.long_duration(10 * max(1, ceil(seconds / 10)))


def _growers(gpu: Gpu, history: HistoryView) -> dict[int, int]:
    """Return the bytes that processes took in the last minute, the most first; not those that came in that minute."""
    found: dict[int, int] = {}
    for one in gpu.holdings:
        grown = history.growth(gpu.key, one.pid, one.start)
        if grown is not None and grown >= GROWN and known(one.memory) and grown < one.memory:
            found[one.pid] = grown
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _evidence(
    growers: Mapping[int, int], people: Mapping[int, Process], speed: float, room: tuple[float, float]
) -> str:
    """Return who grew by how much in the last minute; where nobody stands out, how fast the whole grows."""
    by_name: Counter[str] = Counter()
    for pid, grown in growers.items():
        by_name[holder_name(pid, people.get(pid))] += grown
    parts = [f"{name} grew {units.gib(grown)} GiB/min" for name, grown in by_name.most_common(NAMED)]
    parts = parts or [f"grows {units.gib(60 * speed)} GiB/min"]
    free, usable = room
    return " · ".join([*parts, f"{units.gib(free)} of {units.gib(usable)} GiB free"])


def _users_growth(growers: Mapping[int, int], people: Mapping[int, Process]) -> tuple[str, ...]:
    by_user: Counter[str] = Counter()
    for pid, grown in growers.items():
        process = people.get(pid)
        if process is not None and process.user:
            by_user[process.user] += grown
    return tuple([user for user, _ in by_user.most_common()])
