"""What a `[[rule]]` of the user's own can compare, and how it is read of a GPU, a process or a user. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from gpuwatch.alerts.alert import Unit
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
    def scopes(self) -> tuple[str, ...]:
        """Give those that have it, of `gpu`, `process` and `user`."""
        readers = {"gpu": self.gpu, "process": self.process, "user": self.user}
        return tuple(scope for scope, reader in readers.items() if reader is not None)


def is_listed(gpu: Gpu) -> bool:
    """Say whether a GPU's list of processes is complete and makes sense."""
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
    "unattributed": Metric(Unit.BYTES, "unattributed memory", _unattributed),
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
