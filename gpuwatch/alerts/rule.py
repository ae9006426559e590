"""Alert rule: name and finder in one object, and the observations that a finder returns.

A finder returns nothing where a reading that it needs is missing: the alert then stays as it is. It returns everything
that it can judge, fine or not, since only an observation that is fine ends an alert (but see `RuleContext.ignores`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.limits import Limits
from gpuwatch.alerts.unattributed import GapEvidence
from gpuwatch.base.units import Unit
from gpuwatch.model.holdings import UNSEEN_USER, GpuOwner, GpuProcess, Holdings
from gpuwatch.model.shares import LimitUsage
from gpuwatch.model.snapshot import Gpu, Health, Presence, Process, Snapshot

if TYPE_CHECKING:  # the causes of unknown memory are found without a history, too
    from gpuwatch.history.history import HistoryView

SAMPLES: Final = 3
"""Samples in a row that raise, step down or clear an alert, where a rule does not say otherwise."""
NAMED: Final = 3
"""Holders, or processes, named in the evidence."""


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a rule at one moment, for one GPU, some of its processes, or the whole stream."""

    gpu: Gpu | None = None
    """None for the whole stream, and for a user on any GPU."""
    gpus: tuple[Gpu, ...] = ()
    """GPUs that it is about; empty for only `gpu`, or for all GPUs on which the processes of a subject hold memory."""
    subject: str = ""
    """Process or scope that it is about, where the rule may observe several on one GPU.

    The alert of a subject ends once its GPU answers and the rule no longer observes it.
    """
    rests_on: tuple[tuple[int, int], ...] = ()
    """(PID, start) of processes whose declarations are judged: while these cannot be read, the alert does not end."""
    level: Severity | None = None
    """Severity by the limits that raise; None is fine."""
    keeps: Severity | None = None
    """Highest severity that an alert already raised keeps, by the limits that clear: `level`, where none is worse."""
    partial: bool = False
    """The level is a minimum, since a value could not be read: the observation may raise, and never clears."""
    raise_after: int = SAMPLES
    """Samples in a row that raise it."""
    raise_for: float = 0.0
    """Seconds that these samples must span, too."""
    momentary: bool = False
    """What it is about has no duration: its alert ends as soon as it is raised."""
    forgives: int = 0
    """Fine samples in a row that do not interrupt the samples that raise: a value at its limit varies."""
    clear_after: int = SAMPLES
    """Samples in a row that step it down or clear it."""
    clear_for: float = 0.0
    """Seconds that these samples must span, too."""
    stamp: float | None = None
    """Time of the sample, to recognize a repeated sample; None where each observation counts."""
    title: str
    short: str = ""
    """Title for a row, and prediction, as in `Alert`."""
    forecast: str = ""
    evidence: str = ""
    detail: str = ""
    """Words that follow the evidence and the worst `value`, which then must be bytes."""
    value: float | None = None
    unit: Unit = Unit.NONE
    least_is_worst: bool = False
    """Whether the smallest `value` is the worst."""
    pids: tuple[int, ...] = ()
    owners: tuple[str, ...] = ()
    """Users who cause it, the largest holder first; `UNSEEN_USER` first where that one is not visible."""
    how: str = ""
    """Why the alert ends, in a fine observation; `{lasted}` is the duration. Where it is empty, `title` says why."""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "keeps", max(filter(None, (self.level, self.keeps)), default=None))


class Rule(NamedTuple):
    """One rule: its name and its finder. `docs/alerts.md` says in words when it is raised and when it ends."""

    name: str
    find: Callable[[RuleContext], Iterable[Observation]]


class RuleContext:
    """Snapshot, history and limits for the finders, with lookups that several of them share."""

    def __init__(
        self,
        snapshot: Snapshot,
        history: HistoryView,
        limits: Limits,
        watched: Collection[tuple[str, str]] | None = None,
        holdings: Holdings | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.holdings = holdings or Holdings(snapshot)
        self.history = history
        self.limits = limits
        self.watched = watched
        """(rule, subject) of the engine's conditions; None where finders are to return all that they judge."""

    def ignores(self, rule: str, subject: Gpu | str) -> bool:
        """Return whether a fine observation of a subject may be left out: it would end or change no condition."""
        key = subject if isinstance(subject, str) else subject.key
        return self.watched is not None and (rule, key) not in self.watched

    @property
    def processes(self) -> Mapping[int, Process]:
        """Processes of the snapshot by PID."""
        return self.holdings.processes

    @cached_property
    def uids(self) -> Mapping[str, int]:
        """Uids of the owners of processes by name."""
        return {one.user: one.uid for one in self.snapshot.processes if one.uid is not None}

    @cached_property
    def gpus(self) -> Sequence[Gpu]:
        """GPUs whose figures can be judged, by index."""
        return sorted([gpu for gpu in self.snapshot.gpus if gpu.health is Health.OK], key=lambda gpu: gpu.index)

    @cached_property
    def listed(self) -> Sequence[Gpu]:
        """GPUs of `gpus` whose list of processes is complete and plausible."""
        return [gpu for gpu in self.gpus if gpu.is_listed]

    @cached_property
    def gap_evidence(self) -> GapEvidence:
        """Evidence about memory that no listed process holds."""
        return GapEvidence(self.snapshot, self.history.unknown_memory_starts(self.snapshot))

    def on(self, gpu: Gpu) -> Sequence[GpuProcess]:
        """Return the processes on a GPU; none where its list is not plausible."""
        return () if gpu.unreliable else self.holdings.on(gpu)

    def owners(self, gpu: Gpu) -> Sequence[GpuOwner]:
        """Return the owners of these processes."""
        return () if gpu.unreliable else self.holdings.owners(gpu)

    @cached_property
    def placements(self) -> Sequence[Sequence[GpuProcess]]:
        """Each process's entries on all GPUs where it computes or could compute, by index."""
        found: defaultdict[tuple[int, int], list[GpuProcess]] = defaultdict(list)
        for gpu in self.gpus:
            for one in self.on(gpu):
                if not one.graphics and (one.memory or not one.complete) and one.gpu.uuid:
                    found[one.process.pid, one.start].append(one)
        return list(found.values())

    @cached_property
    def limit_usages(self) -> Mapping[str, Sequence[LimitUsage]]:
        """Declared limits and the memory held under each, by the UUID of the GPU, as far as they can be judged.

        A limit of processes that have all ended is not judged: nobody can do anything about it.
        """
        found: dict[str, list[LimitUsage]] = {gpu.uuid: [] for gpu in self.gpus if gpu.uuid and not gpu.unreliable}
        for one in self.holdings.limit_usages:
            if one.gpu in found and not all(self.processes[pid].has_ended for pid in one.pids):
                found[one.gpu].append(one)
        return found


def severity_of(value: float, warning: float, critical: float) -> Severity | None:
    """Return the severity of a value that reaches one of two limits; the higher the value, the worse."""
    if value >= critical:
        return Severity.CRITICAL
    return Severity.WARNING if value >= warning else None


# -- words --------------------------------------------------------------------------------------------------------


def joined(*parts: str, between: str = " · ") -> str:
    """Join the parts that are not empty: `a · b`."""
    return between.join(filter(None, parts))


def and_more(names: Sequence[str], total: int) -> str:
    """List names, and count those of `total` that are left out: `ada, ben and 2 more`."""
    return ", ".join(names) + (f" and {total - len(names)} more" if total > len(names) else "")


def named_pids(processes: Sequence[Process]) -> str:
    """Name processes: `pid 1234 python, 1240 jupyter and 2 more`."""
    named = [f"{one.pid} {one.name}".rstrip() for one in processes[:NAMED]]
    return f"pid {and_more(named, len(processes))}"


def pid_and_user(process: Process) -> str:
    """Name a process: `pid 123 (ada)`."""
    return f"pid {process.pid} ({process.user})" if process.user else f"pid {process.pid}"


def hold(name: str, *, several: bool = False) -> str:
    """Return the verb after a holder's name: the demo calls its viewer `you`."""
    return "hold" if several or name == "you" else "holds"


def identity(process: Process) -> str:
    """Return the subject of an alert about a process: `123:4567`, its PID and start time."""
    return f"{process.pid}:{process.start}"


def holder_name(pid: int, process: Process | None) -> str:
    """Name a holder: the user, or the process where its owner is not visible."""
    if process is None:
        return f"pid {pid}"
    if process.user:
        return process.user
    if process.presence is Presence.SEEN:
        return f"pid {pid}"
    return f"pid {pid} ({'ended' if process.presence is Presence.GONE else process.presence.value})"


def owners_of(pids: Iterable[int], processes: Mapping[int, Process]) -> tuple[str, ...]:
    """Return the users of processes, in the order of the processes, without users who are not visible."""
    names = (processes[pid].user for pid in pids if pid in processes)
    return tuple(dict.fromkeys(name for name in names if name))


def named_owners(names: Iterable[str], visible: Collection[str]) -> tuple[str, ...]:
    """Return the visible users of the names, the largest holder first; `UNSEEN_USER` first where that is none."""
    shown = (name if name in visible else UNSEEN_USER for name in names)
    return tuple(name for at, name in enumerate(shown) if name != UNSEEN_USER or not at)


def largest_first(held: Iterable[GpuProcess]) -> tuple[int, ...]:
    """Return the PIDs of processes by their memory on all these GPUs, the largest first."""
    sizes: Counter[int] = Counter()
    for one in held:
        sizes[one.process.pid] += one.memory
    return tuple(sorted(sizes, key=lambda pid: (-sizes[pid], pid)))
