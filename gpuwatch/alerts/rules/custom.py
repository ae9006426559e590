"""Rules that the user wrote: each `[[rule]]` compares one metric of a GPU, a process or a user with a value.

Everything present is observed in each snapshot, fine or not: the engine ends an alert that no rule observes any more.
Where a reading is missing the observation is `partial`, which neither raises nor clears.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple

import msgspec

from gpuwatch import units
from gpuwatch.alerts.alert import Alert, Severity, Unit
from gpuwatch.alerts.limits import CustomRule, Limits, Scope
from gpuwatch.alerts.rule import (
    NAMED,
    SAMPLES,
    GpuProcess,
    Observation,
    Rule,
    RuleContext,
    is_listed,
    joined,
    largest_first,
    owners_of,
    pid_and_user,
    sizes_by_pid,
)
from gpuwatch.alerts.rules.memory import holders
from gpuwatch.model import Gpu, Process, number
from gpuwatch.shares import usable


class Value(NamedTuple):
    """Value of a metric."""

    amount: float | None
    """Amount in the metric's unit; None where it is not known."""
    at_least: bool = False
    """The true amount may be greater: a part of it is not known."""


UNKNOWN: Final = Value(None)


class UserHoldings(msgspec.Struct):
    """One user's memory on the GPUs of a rule."""

    uid: int
    name: str
    complete: bool
    """Whether the list of processes of each of these GPUs could be read."""
    whole: int | None
    """Bytes that these GPUs can give to programs; None unless this is known for each GPU."""
    memory: Counter[int] = msgspec.field(default_factory=Counter)
    """Bytes by the GPU's index, as far as they are known."""
    pids: Counter[int] = msgspec.field(default_factory=Counter)
    """Bytes by process, as far as they are known."""
    unknown: bool = False
    """The memory of one of the user's processes is not known."""

    @property
    def partial(self) -> bool:
        """Whether the user may hold more."""
        return self.unknown or not self.complete


class Metric(NamedTuple):
    """Metric that a rule can compare with a value."""

    unit: Unit
    words: str
    """Name of the metric in a title, as in `GPU 3 temperature 83 °C`."""
    gpu: Callable[[Gpu], Value] | None = None
    """Functions that read the metric of a GPU, a process and a user; None where they have no such metric."""
    process: Callable[[GpuProcess, RuleContext], Value] | None = None
    user: Callable[[UserHoldings], Value] | None = None
    everywhere: bool = False
    """The value of a process is the same on every GPU: it is judged once, not on each."""

    @property
    def scopes(self) -> tuple[Scope, ...]:
        """Scopes that have this metric."""
        readers: dict[Scope, object] = {"gpu": self.gpu, "process": self.process, "user": self.user}
        return tuple(scope for scope, reader in readers.items() if reader is not None)


def _figure(name: str) -> Callable[[Gpu], Value]:
    read = attrgetter(name)
    return lambda gpu: Value(number(read(gpu)))


def _part(part: float | None, whole: float | None) -> Value:
    return Value(100 * part / whole) if part is not None and whole else UNKNOWN


def _idle(held: GpuProcess, context: RuleContext) -> Value:
    idle = context.history.idle(held.gpu.key, held.process.pid, held.start)
    return Value(idle.seconds, idle.at_least) if idle is not None else UNKNOWN


def _age(held: GpuProcess, context: RuleContext) -> Value:
    started = held.process.started
    return UNKNOWN if started is None else Value(max(0.0, context.snapshot.taken - started))


METRICS: Final[Mapping[str, Metric]] = {
    "memory": Metric(
        Unit.BYTES,
        "memory",
        _figure("memory.used"),
        lambda held, _: Value(held.memory if held.complete else None),
        lambda user: Value(user.memory.total(), user.partial),
    ),
    "memory_percent": Metric(Unit.PERCENT, "memory", lambda gpu: _part(number(gpu.memory.used), usable(gpu))),
    "free": Metric(Unit.FREE, "free memory", _figure("memory.free")),
    "free_percent": Metric(Unit.PERCENT, "free memory", lambda gpu: _part(number(gpu.memory.free), usable(gpu))),
    "unattributed": Metric(
        Unit.BYTES,
        "memory of unknown processes",
        lambda gpu: Value(number(gpu.unattributed)) if is_listed(gpu) else UNKNOWN,
    ),
    "utilization": Metric(Unit.PERCENT, "utilization", _figure("utilization")),
    "memory_utilization": Metric(Unit.PERCENT, "memory utilization", _figure("memory_utilization")),
    "temperature": Metric(Unit.CELSIUS, "temperature", _figure("temperature")),
    "power": Metric(Unit.WATTS, "power", _figure("power")),
    "power_percent": Metric(Unit.PERCENT, "power", lambda gpu: _part(number(gpu.power), number(gpu.power_limit))),
    "fan": Metric(Unit.PERCENT, "fan", _figure("fan")),
    "sm_clock": Metric(Unit.MHZ, "SM clock", _figure("sm_clock")),
    "memory_clock": Metric(Unit.MHZ, "memory clock", _figure("memory_clock")),
    "encoder": Metric(Unit.PERCENT, "encoder", _figure("encoder")),
    "decoder": Metric(Unit.PERCENT, "decoder", _figure("decoder")),
    "ecc_uncorrected": Metric(Unit.COUNT, "uncorrected memory errors", _figure("ecc_uncorrected")),
    "processes": Metric(
        Unit.COUNT,
        "processes",
        lambda gpu: (
            UNKNOWN if gpu.unreliable else Value(len({one.pid for one in gpu.holdings}), bool(gpu.holdings_note))
        ),
        user=lambda user: Value(len(user.pids), not user.complete),
    ),
    "sm": Metric(Unit.PERCENT, "SM use", process=lambda held, _: Value(held.sm)),
    "idle": Metric(Unit.SECONDS, "idle for", process=_idle),
    "cpu": Metric(Unit.PERCENT, "CPU", process=lambda held, _: Value(number(held.process.cpu)), everywhere=True),
    "rss": Metric(Unit.BYTES, "host memory", process=lambda held, _: Value(number(held.process.rss)), everywhere=True),
    "age": Metric(Unit.SECONDS, "running for", process=_age, everywhere=True),
    "gpus": Metric(Unit.COUNT, "GPUs held", user=lambda user: Value(len(user.memory), not user.complete)),
    "share": Metric(
        Unit.PERCENT,
        "share of all GPU memory",
        user=lambda user: Value(_part(user.memory.total(), user.whole).amount, user.partial),
    ),
}
"""Metrics by name. Percentages of memory refer to the memory that programs can have: total less reserved."""


class Comparison(NamedTuple):
    """Severity of a value by the limits of a rule."""

    level: Severity | None = None
    """Severity by the limit that raises."""
    keeps: Severity | None = None
    """Severity by the limit that clears."""
    partial: bool = False
    """The severity may be higher."""


_UNDECIDED: Final = Comparison(partial=True)

_BACK: Final = "back within the limit"


class _Subject(NamedTuple):
    """Subject of an observation."""

    words: str
    """`GPU 3`, `pid 123 (ada) on GPU 3`, `ada`."""
    stamp: float | None
    gpu: Gpu | None = None
    subject: str = ""


class _Details(NamedTuple):
    evidence: str = ""
    owners: tuple[str, ...] = ()
    pids: tuple[int, ...] = ()


def custom_rules(limits: Limits) -> tuple[Rule, ...]:
    """Return the rules that the user wrote."""
    return tuple(Rule(rule.name, partial(find_custom, rule)) for rule in limits.custom)


def find_custom(rule: CustomRule, context: RuleContext) -> Iterator[Observation]:
    """Apply a rule to all GPUs, processes or users that it selects."""
    metric = METRICS[rule.metric]
    if rule.scope == "gpu" and metric.gpu is not None:
        yield from _judge_gpus(rule, metric.gpu, context)
    elif rule.scope == "process" and metric.process is not None:
        yield from _judge_processes(rule, metric.process, context, everywhere=metric.everywhere)
    elif rule.scope == "user" and metric.user is not None:
        yield from _judge_users(rule, metric.user, context)


def judges(rule: CustomRule, alert: Alert) -> bool:
    """Return whether a rule still judges a restored alert of its name: the user may have rewritten the rule since."""
    return (rule.scope == "gpu") == (not alert.subject) and METRICS[rule.metric].unit is alert.unit


def asks_the_same(rule: CustomRule, other: CustomRule) -> bool:
    """Return whether two rules differ only in limits, times and filters, so that one may judge the other's alerts."""
    return (rule.metric, rule.scope, rule.above is None) == (other.metric, other.scope, other.above is None)


def compare(rule: CustomRule, value: Value) -> Comparison:
    """Compare a value with the limits of a rule."""
    amount, at_least = value
    if amount is None:
        return _UNDECIDED
    raises, clears, sign = _limits(rule)
    level = rule.severity if sign * amount > sign * raises else None
    keeps = rule.severity if sign * amount > sign * clears else None
    if sign < 0 and at_least:
        # A value below a limit that may be more could be on either side of it.
        return _UNDECIDED if keeps is not None else Comparison()
    return Comparison(level, keeps, at_least)


def _limits(rule: CustomRule) -> tuple[float, float, int]:
    """Return the values that raise and clear the alert, and a sign: 1 where a larger value is worse, -1 a smaller."""
    raises, sign = (rule.above, 1) if rule.above is not None else (rule.below or 0.0, -1)
    return raises, raises if rule.clear is None else rule.clear, sign


# -- what a rule is about -----------------------------------------------------------------------------------------


def _is_about(rule: CustomRule, gpu: Gpu) -> bool:
    if not rule.gpus:
        return True
    uuid = gpu.uuid.lower()
    return any(one == gpu.index if isinstance(one, int) else uuid.startswith(one.lower()) for one in rule.gpus)


def _is_of(user: str, process: Process) -> bool:
    """Return whether a user, given by name or uid, owns a process; always true where no user is given."""
    return not user or (process.uid is not None and user in (process.user, str(process.uid)))


def _chosen(rule: CustomRule, context: RuleContext) -> Iterator[GpuProcess]:
    """Yield the processes that a rule selects, on each of its GPUs."""
    for gpu in context.gpus:
        if _is_about(rule, gpu):
            yield from (held for held in context.on.get(gpu.key, ()) if _is_of(rule.user, held.process))


def _judge_gpus(rule: CustomRule, read: Callable[[Gpu], Value], context: RuleContext) -> Iterator[Observation]:
    """Judge every GPU that the rule selects; a rule with a user judges the GPUs where that user has processes."""
    for gpu in context.gpus:
        about = _Subject(f"GPU {gpu.index}", gpu.sampled, gpu)
        if not _is_about(rule, gpu):  # it may have been, before the configuration was read again
            yield _fine(rule, gpu, f"the rule is not about {about.words}")
        elif rule.user and not any(_is_of(rule.user, held.process) for held in context.on.get(gpu.key, ())):
            if is_listed(gpu):
                yield _fine(rule, gpu, f"{rule.user} is not on {about.words}")
        elif (value := read(gpu)).amount is not None:
            yield _observation(rule, value, about, partial(_gpu_details, gpu, context))


def _judge_processes(
    rule: CustomRule, read: Callable[[GpuProcess, RuleContext], Value], context: RuleContext, *, everywhere: bool
) -> Iterator[Observation]:
    """Judge every process on each of its GPUs, or once where the value is the same `everywhere`."""
    done: set[tuple[int, int]] = set()
    for held in _chosen(rule, context):
        process, gpu = held.process, held.gpu
        who, subject = pid_and_user(process), f"{process.pid}:{process.start}"
        if everywhere:
            if process.key in done:
                continue
            done.add(process.key)
        else:
            who, subject = f"{who} on GPU {gpu.index}", f"{subject} {gpu.key}"
        about = _Subject(who, gpu.sampled, gpu, subject)
        yield _observation(rule, read(held, context), about, partial(_process_details, process))


def _judge_users(
    rule: CustomRule, read: Callable[[UserHoldings], Value], context: RuleContext
) -> Iterator[Observation]:
    """Judge every known user who holds memory, over all GPUs of the rule together."""
    gpus = [gpu for gpu in context.snapshot.gpus if _is_about(rule, gpu)]
    sizes = [size for gpu in gpus if (size := usable(gpu)) is not None]
    whole = sum(sizes) if len(sizes) == len(gpus) else None
    complete = all(is_listed(gpu) for gpu in gpus)
    users: dict[int, UserHoldings] = {}
    for held in _chosen(rule, context):
        process = held.process
        if process.uid is None:
            continue
        user = users.get(process.uid)
        if user is None:
            user = users[process.uid] = UserHoldings(process.uid, process.user or str(process.uid), complete, whole)
        user.memory[held.gpu.index] += held.memory
        user.pids[process.pid] += held.memory
        user.unknown = user.unknown or not held.complete
    stamp = max((gpu.sampled for gpu in context.gpus if _is_about(rule, gpu)), default=None)
    for user in users.values():
        about = _Subject(user.name, stamp, subject=f"uid:{user.uid}")
        yield _observation(rule, read(user), about, partial(_user_details, user))


# -- observations -------------------------------------------------------------------------------------------------


def _observation(rule: CustomRule, value: Value, about: _Subject, details: Callable[[], _Details]) -> Observation:
    """Return the observation of a value; `details` is called only for a value that is not fine."""
    level, keeps, at_least = compare(rule, value)
    fine = keeps is None  # most are
    evidence, owners, pids = _Details() if fine else details()
    samples = SAMPLES if rule.after else 1
    return Observation(
        gpu=about.gpu,
        subject=about.subject,
        level=level,
        keeps=keeps,
        partial=at_least,
        raise_after=samples,
        raise_for=rule.after,
        clear_after=samples,
        clear_for=rule.after,
        stamp=about.stamp,
        title=f"{rule.name}: {about.words} {_BACK}" if fine else _title(rule, value, about.words, level),
        evidence=evidence,
        value=value.amount,
        unit=METRICS[rule.metric].unit,
        least_is_worst=rule.above is None,
        pids=pids,
        owners=owners,
        how=_BACK if fine else "",
    )


def _fine(rule: CustomRule, gpu: Gpu, words: str) -> Observation:
    """Return an observation that says why there is nothing to compare on a GPU."""
    return Observation(gpu=gpu, stamp=gpu.sampled, title=f"{rule.name}: {words}", how=words)


def _title(rule: CustomRule, value: Value, who: str, level: Severity | None) -> str:
    """Return a title such as `hot memory: GPU 3 temperature 83 °C, above 80`."""
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


def _gpu_details(gpu: Gpu, context: RuleContext) -> _Details:
    pids = largest_first(sizes_by_pid(gpu))
    found = holders(gpu, context.processes, context.history)[:NAMED]
    parts = [f"{one.name} {'at least ' if one.partial else ''}{units.gib(one.memory)}" for one in found]
    evidence = f"held by {joined(*parts)} GiB" if parts else ""
    return _Details(evidence, owners_of(pids, context.processes), pids)


def _process_details(process: Process) -> _Details:
    return _Details(process.command or process.name, (process.user,) if process.user else (), (process.pid,))


def _user_details(user: UserHoldings) -> _Details:
    places = sorted(user.memory.items(), key=lambda item: (-item[1], item[0]))
    evidence = joined(*(f"GPU {index} {units.gib(size)}" for index, size in places[:NAMED])) + " GiB"
    more = len(places) - NAMED
    return _Details(evidence + (f" and {more} more" if more > 0 else ""), (user.name,), largest_first(user.pids))
