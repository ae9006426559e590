"""Rules of the user: each `[[rule]]` compares one metric of a GPU, a process or a user with a value.

Whoever is there is spoken of in each snapshot, fine or not: the engine ends what no rule speaks of any more. Where a
reading is missing that is said as `partial`, which neither raises nor clears. Pure functions, as in `rules`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, NamedTuple

from gpuwatch import units
from gpuwatch.alerts.alert import Alert, Severity, Unit
from gpuwatch.alerts.rules.memory import NAMED, Limits, Observation, OwnRule, Scope, holders, owners_of
from gpuwatch.history import HistoryView
from gpuwatch.model import Gpu, Health, Process, Reading, Snapshot, number
from gpuwatch.shares import usable


class Value(NamedTuple):
    """What a metric comes to."""

    amount: float | None
    """In the metric's unit; None where it cannot be told."""
    at_least: bool = False
    """It may be more: a part of it is not known."""


UNKNOWN: Final = Value(None)


@dataclass(slots=True)
class Held:
    """What one process holds on one GPU."""

    process: Process
    gpu: Gpu
    start: int
    """As in the holding, for the history."""
    snapshot: Snapshot
    history: HistoryView
    memory: float | None = 0.0
    """Bytes; None where a part of it is not known."""
    sm: float | None = 0.0
    """Percent."""


@dataclass(slots=True)
class Person:
    """What one user holds on the GPUs that a rule is about."""

    uid: int
    name: str
    complete: bool
    """Whether the list of processes of each of these GPUs could be read."""
    whole: int | None
    """Bytes that these GPUs can give to programs; None where that is not known of each."""
    memory: Counter[int] = field(default_factory=Counter)
    """Bytes by the GPU's index, as far as they are known."""
    pids: Counter[int] = field(default_factory=Counter)
    """Bytes by process, as far as they are known."""
    unknown: bool = False
    """What one of their processes holds is not known."""

    @property
    def partial(self) -> bool:
        """Whether they may hold more."""
        return self.unknown or not self.complete


class Metric(NamedTuple):
    """One thing that a rule can compare."""

    unit: Unit
    words: str
    """As in `GPU 3 temperature 83 °C`."""
    gpu: Callable[[Gpu], Value] | None = None
    """How it is read of a GPU, a process, a user; None where they have no such thing."""
    process: Callable[[Held], Value] | None = None
    user: Callable[[Person], Value] | None = None
    everywhere: bool = False
    """Of a process it is the same on every GPU: it is judged once, not on each."""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Return those that have it, of `gpu`, `process` and `user`."""
        readers: dict[Scope, object] = {"gpu": self.gpu, "process": self.process, "user": self.user}
        return tuple(scope for scope, reader in readers.items() if reader is not None)


def is_listed(gpu: Gpu) -> bool:
    """Return whether a GPU's list of processes is complete and makes sense."""
    return gpu.health is Health.OK and not gpu.holdings_note and not gpu.unreliable


def _figure(read: Callable[[Gpu], Reading]) -> Callable[[Gpu], Value]:
    return lambda gpu: Value(number(read(gpu)))


def _part(part: float | None, whole: float | None) -> Value:
    return Value(100 * part / whole) if part is not None and whole else UNKNOWN


def _unattributed(gpu: Gpu) -> Value:
    return Value(number(gpu.unattributed)) if is_listed(gpu) else UNKNOWN


def _processes(gpu: Gpu) -> Value:
    return UNKNOWN if gpu.unreliable else Value(len({one.pid for one in gpu.holdings}), bool(gpu.holdings_note))


def _idle(held: Held) -> Value:
    idle = held.history.idle(held.gpu.key, held.process.pid, held.start)
    return Value(idle.seconds, idle.at_least) if idle is not None else UNKNOWN


def _age(held: Held) -> Value:
    started = held.process.started
    return UNKNOWN if started is None else Value(max(0.0, held.snapshot.taken - started))


def _memory(person: Person) -> Value:
    return Value(person.memory.total(), person.partial)


def _share(person: Person) -> Value:
    return Value(_part(person.memory.total(), person.whole).amount, person.partial)


METRICS: Final[Mapping[str, Metric]] = {
    "memory": Metric(
        Unit.BYTES, "memory", _figure(lambda gpu: gpu.memory.used), lambda held: Value(held.memory), _memory
    ),
    "memory_percent": Metric(Unit.PERCENT, "memory", lambda gpu: _part(number(gpu.memory.used), usable(gpu))),
    "free": Metric(Unit.FREE, "free memory", _figure(lambda gpu: gpu.memory.free)),
    "free_percent": Metric(Unit.PERCENT, "free memory", lambda gpu: _part(number(gpu.memory.free), usable(gpu))),
    "unattributed": Metric(Unit.BYTES, "memory of unknown processes", _unattributed),
    "utilization": Metric(Unit.PERCENT, "utilization", _figure(lambda gpu: gpu.utilization)),
    "memory_utilization": Metric(Unit.PERCENT, "memory utilization", _figure(lambda gpu: gpu.memory_utilization)),
    "temperature": Metric(Unit.CELSIUS, "temperature", _figure(lambda gpu: gpu.temperature)),
    "power": Metric(Unit.WATTS, "power", _figure(lambda gpu: gpu.power)),
    "power_percent": Metric(Unit.PERCENT, "power", lambda gpu: _part(number(gpu.power), number(gpu.power_limit))),
    "fan": Metric(Unit.PERCENT, "fan", _figure(lambda gpu: gpu.fan)),
    "sm_clock": Metric(Unit.MHZ, "SM clock", _figure(lambda gpu: gpu.sm_clock)),
    "memory_clock": Metric(Unit.MHZ, "memory clock", _figure(lambda gpu: gpu.memory_clock)),
    "encoder": Metric(Unit.PERCENT, "encoder", _figure(lambda gpu: gpu.encoder)),
    "decoder": Metric(Unit.PERCENT, "decoder", _figure(lambda gpu: gpu.decoder)),
    "ecc_uncorrected": Metric(Unit.COUNT, "uncorrected memory errors", _figure(lambda gpu: gpu.ecc_uncorrected)),
    "processes": Metric(
        Unit.COUNT, "processes", _processes, user=lambda person: Value(len(person.pids), not person.complete)
    ),
    "sm": Metric(Unit.PERCENT, "SM use", process=lambda held: Value(held.sm)),
    "idle": Metric(Unit.SECONDS, "idle for", process=_idle),
    "cpu": Metric(Unit.PERCENT, "CPU", process=lambda held: Value(number(held.process.cpu)), everywhere=True),
    "rss": Metric(Unit.BYTES, "host memory", process=lambda held: Value(number(held.process.rss)), everywhere=True),
    "age": Metric(Unit.SECONDS, "running for", process=_age, everywhere=True),
    "gpus": Metric(Unit.COUNT, "GPUs held", user=lambda person: Value(len(person.memory), not person.complete)),
    "share": Metric(Unit.PERCENT, "share of all GPU memory", user=_share),
}
"""By name. Percentages of memory are of what programs can have: total less reserved."""


class Verdict(NamedTuple):
    """What a value is worth."""

    level: Severity | None = None
    """By the limit that raises."""
    keeps: Severity | None = None
    """By the limit that clears."""
    partial: bool = False
    """It may be worth more."""


CANNOT_TELL: Final = Verdict(partial=True)

_BACK: Final = "back within the limit"


class _About(NamedTuple):
    """What an observation is about."""

    who: str
    """`GPU 3`, `pid 123 (ada) on GPU 3`, `ada`."""
    stamp: float | None
    gpu: str = ""
    number: int | None = None
    """The GPU's index."""
    subject: str = ""


class _Details(NamedTuple):
    """Who it is, and why."""

    evidence: str = ""
    owners: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


def own_rules(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Apply the user's own rules. GPUs in trouble, and lists that make no sense, are not judged."""
    if not limits.own:
        return
    scene = _Scene(snapshot, history)
    for rule in limits.own:
        metric = METRICS[rule.metric]
        if rule.scope == "gpu" and metric.gpu is not None:
            yield from _of_gpus(rule, metric.gpu, scene, limits)
        elif rule.scope == "process" and metric.process is not None:
            yield from _of_processes(rule, metric.process, scene, limits, everywhere=metric.everywhere)
        elif rule.scope == "user" and metric.user is not None:
            yield from _of_users(rule, metric.user, scene, limits)


def is_of(rule: OwnRule, alert: Alert) -> bool:
    """Return if a restored alert under a rule's name is what the rule judges: it may have been written anew since."""
    return (rule.scope == "gpu") == (not alert.subject) and METRICS[rule.metric].unit is alert.unit


def asks_the_same(rule: OwnRule, other: OwnRule) -> bool:
    """Give whether two rules differ in no more than limits, times and filters: what one raised the other may judge."""
    return (rule.metric, rule.scope, rule.above is None) == (other.metric, other.scope, other.above is None)


def verdict(rule: OwnRule, value: Value) -> Verdict:
    """Compare a value with the limits of a rule."""
    amount, at_least = value
    if amount is None:
        return CANNOT_TELL
    raises, clears, sign = _limits(rule)
    level = rule.severity if sign * amount > sign * raises else None
    keeps = rule.severity if sign * amount > sign * clears else None
    if sign < 0 and at_least:
        # What is below a limit and may be more could be on either side of it.
        return CANNOT_TELL if keeps is not None else Verdict()
    return Verdict(level, keeps, at_least)


def _limits(rule: OwnRule) -> tuple[float, float, int]:
    """Return the value that raises, the one that clears, and 1 where more is worse, -1 where less is."""
    raises, sign = (rule.above, 1) if rule.above is not None else (rule.below or 0.0, -1)
    return raises, raises if rule.clear is None else rule.clear, sign


# ---------------------------------------------------------------------------------------------------------------
# What is there


def _chosen(rule: OwnRule, gpu: Gpu) -> bool:
    """Return whether a rule is about a GPU."""
    if not rule.gpus:
        return True
    uuid = gpu.uuid.lower()
    return any(one == gpu.index if isinstance(one, int) else uuid.startswith(one.lower()) for one in rule.gpus)


def _is(user: str, process: Process) -> bool:
    """Return whether a process is one of a user's, named or by uid; of anybody's where no user is given."""
    return not user or (process.uid is not None and user in (process.user, str(process.uid)))


@dataclass(frozen=True)
class _Scene:
    """What is there, worked out once for all rules that ask."""

    snapshot: Snapshot
    history: HistoryView

    @cached_property
    def people(self) -> Mapping[int, Process]:
        """Every process by its PID."""
        return {one.pid: one for one in self.snapshot.processes}

    @cached_property
    def gpus(self) -> Sequence[Gpu]:
        """Those that can be judged, by index."""
        return sorted((gpu for gpu in self.snapshot.gpus if gpu.health is Health.OK), key=lambda gpu: gpu.index)

    @cached_property
    def held(self) -> Sequence[Held]:
        """What each process holds on each GPU; one that holds several MIG instances of a GPU is listed once."""
        return [held for gpu in self.gpus if not gpu.unreliable for held in self._held(gpu)]

    @cached_property
    def on(self) -> Mapping[str, Sequence[Held]]:
        """The same by the GPU's key."""
        found: defaultdict[str, list[Held]] = defaultdict(list)
        for held in self.held:
            found[held.gpu.key].append(held)
        return found

    def _held(self, gpu: Gpu) -> Iterable[Held]:
        found: dict[tuple[int, int], Held] = {}
        for one in gpu.holdings:
            process = self.people.get(one.pid)
            if process is None:
                continue
            held = found.get((one.pid, one.start))
            if held is None:
                held = found[one.pid, one.start] = Held(process, gpu, one.start, self.snapshot, self.history)
            size, sm = number(one.memory), number(one.sm)
            held.memory = size + held.memory if size is not None and held.memory is not None else None
            held.sm = max(sm, held.sm) if sm is not None and held.sm is not None else None
        return found.values()

    def users(self, rule: OwnRule) -> Iterable[Person]:
        """Add up what each user holds on the GPUs of a rule. Whose owner is not visible is nobody's."""
        gpus = [gpu for gpu in self.snapshot.gpus if _chosen(rule, gpu)]
        sizes = [size for gpu in gpus if (size := usable(gpu)) is not None]
        whole = sum(sizes) if len(sizes) == len(gpus) else None
        complete = all(is_listed(gpu) for gpu in gpus)
        found: dict[int, Person] = {}
        for held in self.held:
            process = held.process
            if process.uid is None or not _chosen(rule, held.gpu) or not _is(rule.user, process):
                continue
            person = found.get(process.uid)
            if person is None:
                person = found[process.uid] = Person(process.uid, process.user or str(process.uid), complete, whole)
            size = int(held.memory or 0)
            person.memory[held.gpu.index] += size
            person.pids[process.pid] += size
            person.unknown = person.unknown or held.memory is None
        return found.values()


# ---------------------------------------------------------------------------------------------------------------
# What a rule says


def _of_gpus(rule: OwnRule, read: Callable[[Gpu], Value], scene: _Scene, limits: Limits) -> Iterator[Observation]:
    """Judge every GPU that the rule is about; with a user, those on which that user is."""
    for gpu in scene.gpus:
        about = _About(f"GPU {gpu.index}", gpu.sampled, gpu.key, gpu.index)
        if not _chosen(rule, gpu):  # it may have been, before the configuration was read again
            yield _fine(rule, about, limits, f"the rule is not about {about.who}")
            continue
        if rule.user and not any(_is(rule.user, held.process) for held in scene.on.get(gpu.key, ())):
            if is_listed(gpu):
                yield _fine(rule, about, limits, f"{rule.user} is not on {about.who}")
            continue
        value = read(gpu)
        if value.amount is not None:
            yield _observation(rule, value, about, limits, partial(_on_gpu, gpu, scene))


def _of_processes(
    rule: OwnRule, read: Callable[[Held], Value], scene: _Scene, limits: Limits, *, everywhere: bool
) -> Iterator[Observation]:
    """Judge every process on each GPU that it holds; once, on the first, where it comes to the same `everywhere`."""
    done: set[tuple[int, int]] = set()
    for held in scene.held:
        process, gpu = held.process, held.gpu
        if not _chosen(rule, gpu) or not _is(rule.user, process):
            continue
        who = f"pid {process.pid} ({process.user})" if process.user else f"pid {process.pid}"
        subject = f"{process.pid}:{process.start}"
        if everywhere:
            if process.key in done:
                continue
            done.add(process.key)
        else:
            who, subject = f"{who} on GPU {gpu.index}", f"{subject} {gpu.key}"
        about = _About(who, gpu.sampled, gpu.key, gpu.index, subject)
        yield _observation(rule, read(held), about, limits, partial(_of_process, process))


def _of_users(rule: OwnRule, read: Callable[[Person], Value], scene: _Scene, limits: Limits) -> Iterator[Observation]:
    """Judge every user who holds something, over all GPUs of the rule together."""
    stamp = max((gpu.sampled for gpu in scene.gpus if _chosen(rule, gpu)), default=None)
    for person in scene.users(rule):
        about = _About(person.name, stamp, subject=f"uid:{person.uid}")
        yield _observation(rule, read(person), about, limits, partial(_of_person, person))


def _observation(
    rule: OwnRule, value: Value, about: _About, limits: Limits, details: Callable[[], _Details]
) -> Observation:
    """Return what a value says; `details` are asked for only where somebody may read them."""
    level, keeps, at_least = verdict(rule, value)
    samples = limits.samples if rule.after else 1
    if keeps is None:  # Most are, of many processes: no more is worked out for those.
        return Observation(
            rule=rule.name,
            gpu=about.gpu,
            index=about.number,
            subject=about.subject,
            partial=at_least,
            clear_after=samples,
            clear_for=rule.after,
            stamp=about.stamp,
            title=f"{rule.name}: {about.who} {_BACK}",
            value=value.amount,
            unit=METRICS[rule.metric].unit,
            least_is_worst=rule.above is None,
            how=_BACK,
        )
    evidence, owners, pids = details()
    return Observation(
        rule=rule.name,
        gpu=about.gpu,
        index=about.number,
        subject=about.subject,
        level=level,
        keeps=keeps,
        partial=at_least,
        raise_after=samples,
        raise_for=rule.after,
        clear_after=samples,
        clear_for=rule.after,
        stamp=about.stamp,
        title=_title(rule, value, about.who, level),
        evidence=evidence,
        value=value.amount,
        unit=METRICS[rule.metric].unit,
        least_is_worst=rule.above is None,
        pids=pids,
        owners=owners,
    )


def _fine(rule: OwnRule, about: _About, limits: Limits, words: str) -> Observation:
    """Return why there is nothing to compare on a GPU."""
    return Observation(
        rule=rule.name,
        gpu=about.gpu,
        index=about.number,
        clear_after=limits.samples,
        stamp=about.stamp,
        title=f"{rule.name}: {words}",
        how=words,
    )


def _title(rule: OwnRule, value: Value, who: str, level: Severity | None) -> str:
    """Return what is above or below what: `hot memory: GPU 3 temperature 83 °C, above 80`."""
    metric = METRICS[rule.metric]
    raises, clears, sign = _limits(rule)
    shown = _plain(metric.unit, value.amount or 0.0) + (f" {metric.unit.value}" if metric.unit in _AFTER else "")
    least = "at least " if value.at_least else ""
    side = "above" if sign > 0 else "below"
    limit = f"{side} {_plain(metric.unit, raises)}" if level else f"ends at {_plain(metric.unit, clears)}"
    return f"{rule.name}: {who} {metric.words} {least}{shown}, {limit}"


_AFTER: Final = frozenset({Unit.CELSIUS, Unit.WATTS, Unit.PERCENT, Unit.MHZ})
"""Units that are written after the first number only."""


def _plain(unit: Unit, amount: float) -> str:
    if unit in (Unit.BYTES, Unit.FREE):
        return units.size(amount)
    if unit is Unit.SECONDS:
        return units.long_duration(amount)
    return f"{amount:.1f}".removesuffix(".0")


def _on_gpu(gpu: Gpu, scene: _Scene) -> _Details:
    sizes: Counter[int] = Counter()
    for one in gpu.holdings:
        sizes[one.pid] += int(number(one.memory) or 0)
    pids = _largest(sizes)
    found = holders(gpu, scene.people, scene.history)[:NAMED]
    parts = [f"{one.name} {'at least ' if one.partial else ''}{units.gib(one.memory)}" for one in found]
    return _Details(f"held by {' · '.join(parts)} GiB" if parts else "", owners_of(pids, scene.people), pids)


def _largest(sizes: Counter[int]) -> tuple[int, ...]:
    return tuple(sorted(sizes, key=lambda pid: (-sizes[pid], pid)))


def _of_process(process: Process) -> _Details:
    return _Details(process.command or process.name, (process.user,) if process.user else (), (process.pid,))


def _of_person(person: Person) -> _Details:
    places = sorted(person.memory.items(), key=lambda item: (-item[1], item[0]))
    parts = [f"GPU {index} {units.gib(size)}" for index, size in places[:NAMED]]
    more = len(places) - NAMED
    evidence = " · ".join(parts) + " GiB" + (f" and {more} more" if more > 0 else "")
    return _Details(evidence, (person.name,), _largest(person.pids))
