"""What is known of each process that may be a stray: what it holds where, since when it rests, who belongs to it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpuwatch.alerts import unattributed
from gpuwatch.history import HistoryView, Idle, IdleTimes
from gpuwatch.model import (
    Gpu,
    Health,
    Holding,
    Presence,
    Process,
    Reason,
    Snapshot,
    SourceState,
    Unlisted,
    known,
    number,
)
from gpuwatch.strays.stray import Tending

_LATE_INTERVALS: Final = 5.0
_LATE: Final = 5.0
"""Seconds that a sample may be old at any interval: 3 go by where a call hangs and another sampler is started."""
_SERVED: Final = "M"
"""A client of the MPS server: what it runs may be counted for the server."""
_GRAPHICS: Final = "G"


class Part(NamedTuple):
    """What one process has on one GPU."""

    gpu: Gpu
    memory: int | None
    """Bytes; None where that is not known."""
    sm: float | None
    silent: bool
    """NVML never has a figure for it there, as on MIG and on a vGPU: nobody can tell for how long it has been idle."""
    kinds: frozenset[str]
    idle: Idle | None
    """None where nothing says so."""


@dataclass(frozen=True, slots=True)
class Case:
    """One process of the viewer's, over all GPUs that can be judged."""

    process: Process
    age: float
    parts: tuple[Part, ...] = ()
    """The GPU with most of its memory first; none for one that NVML does not list."""
    open: tuple[Gpu, ...] = ()
    """GPUs whose device files it has open; only of one that NVML does not list."""
    blind: bool = False
    """It was seen on a GPU, too, that cannot be judged now."""

    @property
    def listed(self) -> bool:
        """Whether NVML lists it."""
        return bool(self.parts)

    @property
    def memory(self) -> int:
        """Bytes that it is known to hold."""
        return sum(part.memory for part in self.parts if part.memory is not None)

    @property
    def held(self) -> int | None:
        """The same; None where not all of it is known."""
        return self.memory if self.parts and all(part.memory is not None for part in self.parts) else None

    @property
    def computes(self) -> bool:
        """Whether a kernel of it ran on some GPU just now."""
        return any(part.sm is not None and part.sm > 0 for part in self.parts)

    @property
    def rests(self) -> bool:
        """Whether it is known that none did on any."""
        return bool(self.parts) and not self.blind and all(part.sm == 0 for part in self.parts)

    @property
    def silent(self) -> bool:
        """Whether it can never be told of any of its GPUs for how long it has run nothing there."""
        return bool(self.parts) and not self.blind and all(part.silent for part in self.parts)

    @property
    def idle(self) -> Idle | None:
        """For how long it has run nothing on any of its GPUs; None where that is not known of one of them."""
        idles = [part.idle for part in self.parts if part.idle is not None]
        if self.blind or not idles or len(idles) < len(self.parts):
            return None
        return min(idles)  # of two that are as long, the one that is known exactly

    def computed(self, within: float) -> bool:
        """Say whether it was seen to compute in the last so many seconds."""
        idles = (part.idle for part in self.parts)
        return self.computes or any(one is not None and not one.at_least and one.seconds < within for one in idles)

    def works(self, tending: Tending) -> bool:
        """Say whether it is at work on the CPU."""
        return is_at_work(self.process, tending)

    @property
    def draws(self) -> bool:
        """Whether it draws on a screen, as far as that can be told: a desktop waits for people."""
        return any(
            part.kinds == {_GRAPHICS} or (_GRAPHICS in part.kinds and part.gpu.display_active is True)
            for part in self.parts
        )


def is_at_work(process: Process, tending: Tending) -> bool:
    """Say whether a process or what it has started uses the CPU, or it waits for a disk; not known, it does not."""
    used = sum(figure for figure in (number(process.cpu), number(process.below)) if figure is not None)
    return used > tending.at_work or process.state == "disk sleep"


class Scene:
    """All of the viewer's processes that hold a GPU, and how they belong together."""

    def __init__(self, snapshot: Snapshot, history: HistoryView | None, tending: Tending, kept: IdleTimes) -> None:
        self.snapshot = snapshot
        self.tending = tending
        self._history = history
        self._kept = kept
        well = snapshot.state is SourceState.OK
        self._gpus = {gpu.key: gpu for gpu in snapshot.gpus if well and _may_be_judged(gpu, snapshot)}
        self._unjudged = [gpu.key for gpu in snapshot.gpus if gpu.key not in self._gpus]
        mine = {one.pid: one for one in snapshot.processes if _is_seen(one) and one.uid == snapshot.viewer}
        self.cases = tuple(self._listed(mine))
        self.listed = frozenset(one.pid for one in snapshot.processes)
        hidden = (one for one in snapshot.unlisted if _is_seen(one.process) and one.process.uid == snapshot.viewer)
        self.unlisted = tuple(self._unlisted(one) for one in hidden if one.process.pid not in self.listed)
        self._runs: defaultdict[str, list[Case]] = defaultdict(list)
        self._children: defaultdict[int, list[Case]] = defaultdict(list)
        for case in (*self.cases, *self.unlisted):
            around = case.process.surroundings
            if around is not None and around.job is not None and around.job.key:
                self._runs[around.job.key].append(case)
            if case.process.ppid is not None:
                self._children[case.process.ppid].append(case)
        self._by_pid = {case.process.pid: case for case in (*self.cases, *self.unlisted)}

    def family(self, case: Case) -> list[Case]:
        """Give the others of its run, its parent and its children, as far as they have a GPU open.

        Of Ray's workers nobody can tell which are of one run: those of one daemon may wait for each other.
        """
        process = case.process
        found: dict[int, Case] = {one.process.pid: one for one in self._children.get(process.pid, ())}
        parent = self._by_pid.get(process.ppid) if process.ppid is not None else None
        if parent is not None:
            found[parent.process.pid] = parent
        around = process.surroundings
        if around is not None and around.job is not None:
            found |= {one.process.pid: one for one in self._runs.get(around.job.key, ())}
            if around.job.launcher == "ray" and process.ppid is not None:
                found |= {one.process.pid: one for one in self._children.get(process.ppid, ())}
        found.pop(process.pid, None)
        return list(found.values())

    def _listed(self, mine: Mapping[int, Process]) -> Iterable[Case]:
        on: defaultdict[int, dict[str, list[Holding]]] = defaultdict(dict)
        for gpu in self._gpus.values():
            for one in gpu.holdings:
                process = mine.get(one.pid)
                if process is not None and one.start in (0, process.start):
                    on[one.pid].setdefault(gpu.key, []).append(one)
        for pid, by_gpu in on.items():
            process = mine[pid]
            parts = [self._part(self._gpus[key], process, held) for key, held in by_gpu.items()]
            parts.sort(key=lambda part: (-(part.memory or 0), part.gpu.index))
            blind = any(self._seen_idle(key, process) is not None for key in self._unjudged)
            yield Case(process, self._age(process), parts=tuple(parts), blind=blind)

    def _unlisted(self, one: Unlisted) -> Case:
        gpus = tuple(gpu for key, gpu in self._gpus.items() if key in one.gpus) if one.context else ()
        return Case(one.process, self._age(one.process), open=gpus)

    def _part(self, gpu: Gpu, process: Process, held: Sequence[Holding]) -> Part:
        """Join what a process holds on one GPU: with MIG it is listed once for each instance."""
        sizes = [int(one.memory) for one in held if known(one.memory)]
        sms = [one.sm for one in held if known(one.sm)]
        sm = max(sms) if sms and (len(sms) == len(held) or max(sms) > 0) else None
        kinds = frozenset(kind for one in held for kind in one.kind.split("+"))
        memory = sum(sizes) if len(sizes) == len(held) else None
        silent = all(one.sm is Reason.UNSUPPORTED for one in held)
        return Part(gpu, memory, sm, silent, kinds, self._idle(gpu.key, process, sm, kinds))

    def _idle(self, key: str, process: Process, sm: float | None, kinds: frozenset[str]) -> Idle | None:
        """Give for how long a process has run nothing on a GPU: the longest that any witness speaks for."""
        if sm is not None and sm > 0:
            return Idle(0.0, at_least=False)
        seen, kept = self._seen_idle(key, process), self._kept.get((key, process.pid, process.start))
        if _SERVED in kinds:  # that none of its own was seen says little, and that some was says that it computed
            lately = seen is not None and not seen.at_least and seen.seconds < self.tending.quiet_after
            return seen if lately else None
        if seen is None or (seen.at_least and kept is not None and kept.seconds > seen.seconds):
            return kept
        return seen

    def _seen_idle(self, key: str, process: Process) -> Idle | None:
        return self._history.idle(key, process.pid, process.start) if self._history is not None else None

    def _age(self, process: Process) -> float:
        """Give the seconds since a process started; 0 where that is not known."""
        return self.snapshot.taken - process.started if process.started is not None else 0.0

    def has_gap(self, gpus: Iterable[Gpu]) -> bool:
        """Say whether on one of these GPUs more memory is nobody's than a driver takes for itself."""
        judged = (gpu for gpu in gpus if gpu.key in self._gpus and not gpu.memory.unified)
        return any(known(gpu.unattributed) and gpu.unattributed > unattributed.of_driver(gpu) for gpu in judged)


def _is_seen(process: Process) -> bool:
    return process.presence is Presence.SEEN and process.start > 0


def unjudged(snapshot: Snapshot) -> list[Gpu]:
    """Give the GPUs of which nothing can be said now: in trouble, with old figures, or with no list to trust."""
    return [gpu for gpu in snapshot.gpus if not _may_be_judged(gpu, snapshot)]


def _may_be_judged(gpu: Gpu, snapshot: Snapshot) -> bool:
    oldest = max(_LATE_INTERVALS * snapshot.interval, _LATE)
    fresh = gpu.sampled > 0 and snapshot.monotonic - gpu.sampled <= oldest
    trusted = not (gpu.holdings_note or gpu.unreliable or has_unsure(gpu, snapshot))
    return fresh and gpu.health is Health.OK and trusted


def has_unsure(gpu: Gpu, snapshot: Snapshot) -> bool:
    """Say whether a process that the driver lists on a GPU may be another than the one of its PID here."""
    unsure = {one.pid for one in snapshot.processes if one.presence is Presence.UNSURE}
    return any(one.pid in unsure for one in gpu.holdings)
