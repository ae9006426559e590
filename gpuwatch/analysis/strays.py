"""Strays: the viewer's own processes that nobody attends to and that still hold memory. Pure functions.

Pure functions over a snapshot and a history. Where a fact is missing, or could not be read, the rule that needs it does
not hold. Nobody's process but the viewer's own is ever judged: root's, where the viewer is root.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import msgspec

from gpuwatch.alerts import unattributed
from gpuwatch.history import HistoryView, Idle, IdleTimes
from gpuwatch.model import (
    Gpu,
    Health,
    Holding,
    Knowledge,
    Presence,
    Process,
    Reason,
    Snapshot,
    SourceState,
    Surroundings,
    Unlisted,
    known,
    number,
)
from gpuwatch.units import GIB, MIB, long_duration


class Cause(StrEnum):
    """Why a process is called a stray; the value is the word on screen."""

    LEFTOVER = "orphaned"
    """Its parent, its login or its terminal is gone, it is no service, and it does nothing."""
    STOPPED = "stopped"
    """By Ctrl-Z: it holds its memory and cannot run."""
    ZOMBIE = "zombie"
    """It has ended, still holds memory, and its parent has not taken note."""
    IDLE = "idle"
    """It has run nothing on any GPU for longer than the limit."""
    WORKER = "worker"
    """A worker whose run has ended."""
    KERNEL = "kernel"
    """A notebook kernel whose server is gone."""


class Certainty(StrEnum):
    """How sure it is that nobody wants it."""

    CERTAIN = "certain"
    """What the kernel says leaves no other reading."""
    LIKELY = "likely"
    POSSIBLE = "possible"
    """It would be a stray if it was known to be idle, which is not known yet, or not for long enough."""


class StrayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """When a process counts as one that nobody tends. Times in seconds, sizes in bytes."""

    idle_after: float = 1800.0
    """Without SM use on any GPU, for being idle alone; the same as of the alert about memory that is held idle."""
    idle_memory: int = GIB
    """That it must hold to be called a stray for being idle alone."""
    least: int = 64 * MIB
    """That it must hold for any cause: less than a CUDA context takes on the smallest of GPUs."""
    quiet_after: float = 300.0
    """Without SM use, for one that was left behind: between two epochs a training may write its state for minutes."""
    sure_after: float = 86400.0
    """Without SM use, for one whose login is gone to be a stray for certain."""
    settled_after: float = 60.0
    """Since its start, and since it was last seen to compute: whatever is going on with it may be over by then."""
    at_work: float = 50.0
    """Percent of one core. A process that uses more prepares data, compiles or writes what it has learned."""


DEFAULT_LIMITS: Final = StrayLimits()


@dataclass(frozen=True, slots=True)
class Stray:
    """One process that is called a stray, with the reasons."""

    process: Process
    gpus: tuple[str, ...]
    """Keys of the GPUs that it holds memory on, the most first; of one that NVML does not list, those it has open."""
    indices: tuple[int, ...]
    """NVML's indices of these."""
    held: int | None
    """Bytes on all of them; None where that is not known (NVML does not list it, or gives no figure)."""
    cause: Cause
    """The strongest of the reasons."""
    sure: Certainty
    why: tuple[str, ...]
    """Each reason in words, the strongest first: `its login has ended`, `no SM use for 3 h 2 min`."""
    idle: float | None = None
    """Seconds without SM use on any GPU, as far as it is known."""
    idle_at_least: bool = False
    listed: bool = True
    """Whether NVML lists it; else it only has device files open."""
    ends: bool = True
    """Whether a signal can end it: a zombie has ended already."""

    @property
    def key(self) -> tuple[int, int]:
        """Identity of the process: pid and start time."""
        return self.process.key


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
        """Return whether it was seen to compute in the last so many seconds."""
        idles = (part.idle for part in self.parts)
        return self.computes or any(one is not None and not one.at_least and one.seconds < within for one in idles)

    def works(self, limits: StrayLimits) -> bool:
        """Return whether it is at work on the CPU."""
        return is_at_work(self.process, limits)

    @property
    def draws(self) -> bool:
        """Whether it draws on a screen, as far as that can be told: a desktop waits for people."""
        return any(
            part.kinds == {_GRAPHICS} or (_GRAPHICS in part.kinds and part.gpu.display_active is True)
            for part in self.parts
        )


def is_at_work(process: Process, limits: StrayLimits) -> bool:
    """Return whether a process or what it has started uses the CPU, or it waits for a disk; not known, it does not."""
    used = sum(figure for figure in (number(process.cpu), number(process.below)) if figure is not None)
    return used > limits.at_work or process.state == "disk sleep"


class Scene:
    """All of the viewer's processes that hold a GPU, and how they belong together."""

    def __init__(self, snapshot: Snapshot, history: HistoryView | None, limits: StrayLimits, kept: IdleTimes) -> None:
        self.snapshot = snapshot
        self.limits = limits
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
        """Return the others of its run, its parent and its children, as far as they have a GPU open.

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
        """Return how long a process has run nothing on a GPU: the longest that any witness speaks for."""
        if sm is not None and sm > 0:
            return Idle(0.0, at_least=False)
        seen, kept = self._seen_idle(key, process), self._kept.get((key, process.pid, process.start))
        if _SERVED in kinds:  # that none of its own was seen says little, and that some was says that it computed
            lately = seen is not None and not seen.at_least and seen.seconds < self.limits.quiet_after
            return seen if lately else None
        if seen is None or (seen.at_least and kept is not None and kept.seconds > seen.seconds):
            return kept
        return seen

    def _seen_idle(self, key: str, process: Process) -> Idle | None:
        return self._history.idle(key, process.pid, process.start) if self._history is not None else None

    def _age(self, process: Process) -> float:
        """Return the seconds since a process started; 0 where that is not known."""
        return self.snapshot.taken - process.started if process.started is not None else 0.0

    def has_gap(self, gpus: Iterable[Gpu]) -> bool:
        """Return whether on one of these GPUs more memory is nobody's than a driver takes for itself."""
        judged = (gpu for gpu in gpus if gpu.key in self._gpus and not gpu.memory.unified)
        return any(known(gpu.unattributed) and gpu.unattributed > unattributed.of_driver(gpu) for gpu in judged)


def _is_seen(process: Process) -> bool:
    return process.presence is Presence.SEEN and process.start > 0


def unjudged(snapshot: Snapshot) -> list[Gpu]:
    """Return the GPUs of which nothing can be said now: in trouble, with old figures, or with no list to trust."""
    return [gpu for gpu in snapshot.gpus if not _may_be_judged(gpu, snapshot)]


def _may_be_judged(gpu: Gpu, snapshot: Snapshot) -> bool:
    oldest = max(_LATE_INTERVALS * snapshot.interval, _LATE)
    fresh = gpu.sampled > 0 and snapshot.monotonic - gpu.sampled <= oldest
    trusted = not (gpu.holdings_note or gpu.unreliable or has_unsure(gpu, snapshot))
    return fresh and gpu.health is Health.OK and trusted


def has_unsure(gpu: Gpu, snapshot: Snapshot) -> bool:
    """Return whether a process that the driver lists on a GPU may be another than the one of its PID here."""
    unsure = {one.pid for one in snapshot.processes if one.presence is Presence.UNSURE}
    return any(one.pid in unsure for one in gpu.holdings)


CERTAIN, LIKELY, POSSIBLE = Certainty

_TRACED: Final = "tracing stop"
_MPS: Final = "nvidia-cuda-mps"
"""How the names of the MPS server and of its control begin: they hold memory for others."""
_UNKNOWN: Final = "whether it is idle is not known yet"
_STOPPED: Final = "stopped, as by Ctrl-Z: it cannot run"
_SERVER_GONE: Final = "the server of its notebook has gone"
_PARENT_ENDED: Final = "its parent has ended"


class Finding(NamedTuple):
    """What one rule says."""

    cause: Cause
    sure: Certainty
    why: tuple[str, ...]
    ends: bool = True


Rule: TypeAlias = Callable[[Case, Scene], Finding | None]


def zombie(case: Case, scene: Scene) -> Finding | None:
    """Judge one that has ended. Of a program whose first thread has ended the kernel says zombie, too (proc(5)).

    So it must be known to run nothing, on the GPU and on the CPU. Every process is a zombie for a moment: one that may
    just have computed is not one that was forgotten.
    """
    process = case.process
    if not _is_zombie(case) or not _has_rested(case, scene.limits.settled_after):
        return None
    parent = f", {process.ppid} {process.parent}".rstrip() + "," if process.ppid else ""
    why = (f"it has ended, and its parent{parent} has not taken note", "no signal reaches it: end its parent")
    return Finding(Cause.ZOMBIE, CERTAIN, why, ends=False)


def _is_zombie(case: Case) -> bool:
    process = case.process
    works = isinstance(process.cpu, (int, float)) and process.cpu > 0
    return process.state == "zombie" and case.rests and not works


def stopped(case: Case, scene: Scene) -> Finding | None:
    """Judge one that was stopped, and not by a debugger. A scheduler goes on by itself with what it has stopped.

    Where nobody can ever tell for how long it has run nothing, it is enough that it cannot run. Who is gone may have
    stopped it on purpose, to lend its GPU: it is certain only after a day. Sources: Slurm suspends and resumes jobs by
    turns (slurm.schedmd.com/gang_scheduling.html); PBS suspends by SIGSTOP (qsig(1B)).
    """
    process, around = case.process, case.process.surroundings
    if around is None or not _is_stopped(case):
        return None
    if not case.silent and not _has_rested(case, scene.limits.settled_after):
        return None
    why = (_STOPPED,)
    if process.led is False:
        sure = _has_rested(case, scene.limits.sure_after)
        return Finding(Cause.STOPPED, CERTAIN if sure else LIKELY, (*why, _login_words(around)))
    return Finding(Cause.STOPPED, LIKELY, why)


def _is_stopped(case: Case) -> bool:
    around = case.process.surroundings
    return case.process.state == "stopped" and around is not None and not around.batch_job


def worker(case: Case, scene: Scene) -> Finding | None:
    """Judge one whose run has ended. One that is at work, or whose run is, was perhaps let go on purpose.

    From outside a container it cannot always be told which process started which, so there the kernel must say that
    its parent has ended; and who has the GPU open without being listed must be known to be a worker, or there must be
    memory that nobody is listed for.
    """
    process, around = case.process, case.process.surroundings
    if around is None or process.state in (_TRACED, "zombie"):
        return None
    job, limits = around.job, scene.limits
    orphan = job is not None and job.orphaned
    theirs = job.worker_of if job is not None and process.adopted else None
    left = orphan or (theirs is not None and theirs not in (*scene.listed, process.ppid))
    if case.listed:
        if not left or _is_in_use(case, scene, limits.quiet_after):
            return None
    elif not _is_leftover(case, scene, left=left):
        return None
    within = around.container is not None or bool(around.pod)
    if within and not process.adopted:
        return None
    rests = not case.listed or _has_rested(case, limits.quiet_after)
    # A rank may have started a server that is to outlive it, and that has its variables.
    answers = around.server.startswith("listens on")
    sure = orphan and process.adopted and rests and not (within or around.service or answers)
    why = ["the run that it belongs to has ended"]
    if not orphan:
        why = [f"process {theirs}, which it worked for, is gone" if left else _PARENT_ENDED]
    if not case.listed:
        why.append("it has the GPU open, and NVML does not list it")
    return Finding(Cause.WORKER, CERTAIN if sure else LIKELY, tuple(why))


def _is_leftover(case: Case, scene: Scene, *, left: bool) -> bool:
    """Return whether one that NVML does not list, but that has CUDA's files open, is what remains of something.

    A program that only asked how many GPUs there are has them open, too, and so has one that lets others compute: it
    is neither as long as one of those is there.
    """
    process, around = case.process, case.process.surroundings
    if not case.open or not process.adopted or around is None or process.ppid in scene.listed:
        return False
    if case.works(scene.limits):
        return False
    if any(one.listed or not one.process.adopted or one.works(scene.limits) for one in scene.family(case)):
        return False
    return left or (scene.has_gap(case.open) and not _is_tended(case, around))


def kernel(case: Case, scene: Scene) -> Finding | None:
    """Judge the kernel of a notebook whose server is gone: nobody can send it anything any more."""
    if not _is_left_kernel(case, scene) or not _has_rested(case, scene.limits.quiet_after):
        return None
    sure = CERTAIN if case.process.adopted else LIKELY
    return Finding(Cause.KERNEL, sure, (_SERVER_GONE,))


def _is_left_kernel(case: Case, scene: Scene) -> bool:
    around = case.process.surroundings
    if around is None or around.notebook is None or not around.notebook.left or around.container or around.pod:
        return False
    return case.process.state not in (_TRACED, "zombie") and not _is_in_use(case, scene, scene.limits.quiet_after)


def orphaned(case: Case, scene: Scene) -> Finding | None:
    """Judge one that whoever started it has left: parent and login are gone, and nothing else tends it.

    It is certain only after a day: who uses nohup leaves on purpose, and a program may wait for a file, for the night
    or for a free GPU. Who is connected to somebody, or is one rank of several, may wait for work, or for the others,
    for days.
    """
    around, limits = case.process.surroundings, scene.limits
    if around is None or not _is_left(case, scene) or not _has_rested(case, limits.quiet_after):
        return None
    # What could not be read may be what tends it.
    sure = _has_rested(case, limits.sure_after) and not around.words
    why = [_login_words(around), _PARENT_ENDED]
    if around.peer:
        why.append(f"it is connected to {around.peer}, and may wait for it")
    away = _ranks_away(case, scene)
    sure = sure and not around.peer and not away
    return Finding(Cause.LEFTOVER, CERTAIN if sure else LIKELY, (*why, *away))


def _ranks_away(case: Case, scene: Scene) -> list[str]:
    """Tell of the ranks of its run that are on other machines, or that have ended: it may wait for them."""
    jobs = [one.process.surroundings.job for one in (case, *scene.family(case)) if one.process.surroundings]
    ranks = {job.rank for job in jobs if job is not None and job.rank is not None}
    world = next((job.world for job in jobs if job is not None and job.world), 0)
    away = world - len(ranks) if ranks else 0
    return [f"{away} of its run's {world} ranks are not to be seen here"] if away > 0 else []


def _is_left(case: Case, scene: Scene) -> bool:
    process, around = case.process, case.process.surroundings
    if around is None or not process.adopted or process.led is not False:
        return False
    if _is_tended(case, around) or _serves(case, scene) or around.notebook is not None:
        return False
    if process.state in (_TRACED, "zombie"):
        return False
    return case.listed and not case.draws and not _is_in_use(case, scene, scene.limits.quiet_after)


def find_possible(case: Case, scene: Scene) -> Finding | None:
    """Judge one that would be a stray if it was known to be idle, which is not known, or not for long enough."""
    if case.silent and _is_stopped(case):  # it is one already
        return None
    idle, around = case.idle, case.process.surroundings
    unknown = not case.blind and (idle is None or (idle.at_least and idle.seconds < scene.limits.quiet_after))
    if not unknown or case.computes:
        return None
    if case.listed and _is_zombie(case):
        return Finding(Cause.ZOMBIE, POSSIBLE, (_UNKNOWN, "it has ended"), ends=False)
    if case.listed and _is_stopped(case):
        return Finding(Cause.STOPPED, POSSIBLE, (_UNKNOWN, _STOPPED))
    if _is_left_kernel(case, scene):
        return Finding(Cause.KERNEL, POSSIBLE, (_UNKNOWN, _SERVER_GONE))
    if around is not None and _is_left(case, scene):
        return Finding(Cause.LEFTOVER, POSSIBLE, (_UNKNOWN, _login_words(around), _PARENT_ENDED))
    return None


def idle(case: Case, scene: Scene) -> Finding | None:
    """Judge one that has run nothing on any of its GPUs for long. A server waits, and a rank waits for the others."""
    process, around, rest = case.process, case.process.surroundings, case.idle
    limits = scene.limits
    if around is None or rest is None or rest.seconds < limits.idle_after or case.memory < limits.idle_memory:
        return None
    if process.declared is not None and process.declared.knowledge is Knowledge.PENDING:
        return None
    if _serves(case, scene) or around.pod or around.service or process.name.startswith(_MPS):
        return None
    if case.draws or process.state in (_TRACED, "zombie") or _is_in_use(case, scene, limits.idle_after):
        return None
    family = [one for one in scene.family(case) if one.listed]
    if any(one.idle is None or one.idle.seconds < limits.idle_after for one in family):
        return None
    return Finding(Cause.IDLE, LIKELY, (*_attended(case, around), *_ranks_away(case, scene)))


def _attended(case: Case, around: Surroundings) -> list[str]:
    """Return who may still want one that is idle."""
    words = []
    if around.notebook is not None and not around.notebook.left:
        words.append("its notebook may still be open")
    elif case.process.led and case.process.terminal:
        words.append("its terminal is still open")
    if around.slurm:
        words.append(f"Slurm ends it with job {around.slurm.partition('.')[0]}")
    elif around.batch:
        words.append(f"its scheduler ends it with {around.batch}")
    elif around.container is not None:
        words.append("its container still runs")
    return words


def _is_tended(case: Case, around: Surroundings) -> bool:
    """Return whether something tends to its processes: a runtime, a scheduler, a manager of units, an open window.

    Where it cannot be told whether the window is still open, it may be.
    """
    pane = around.pane is not None and around.pane.alive is not False
    return bool(around.container or around.pod or around.batch_job or around.service or around.server or pane) or (
        case.process.name.startswith(_MPS)
    )


def _serves(case: Case, scene: Scene) -> bool:
    """Return whether a process, or one of its run, is a server: of a served model one rank listens, the others wait."""
    around = [one.process.surroundings for one in (case, *scene.family(case))]
    return any(one is not None and one.server for one in around)


def _is_in_use(case: Case, scene: Scene, within: float) -> bool:
    """Return whether a process or one that belongs to it computed lately, or is at work on the CPU."""
    return any(one.computed(within) or one.works(scene.limits) for one in (case, *scene.family(case)))


def _has_rested(case: Case, seconds: float) -> bool:
    """Return whether a process is known to have run nothing on its GPUs for so long."""
    return case.idle is not None and case.idle.seconds >= seconds


def _login_words(around: Surroundings) -> str:
    if around.pane is not None and around.pane.alive is False:
        return f"its {around.pane.program} session has ended"
    return f"its SSH login from {around.ssh} has ended" if around.ssh else "its login has ended"


def idle_words(idle: Idle) -> str:
    """Say for how long nothing was run; whole minutes from one on, so that a line does not change each second."""
    seconds = idle.seconds - idle.seconds % 60 if idle.seconds >= 60 else idle.seconds
    return f"no SM use for {'at least ' if idle.at_least else ''}{long_duration(seconds)}"


RULES: Final[tuple[Rule, ...]] = (zombie, stopped, worker, kernel, orphaned, idle)
"""The strongest first, among those that are as sure."""


_NOTHING: Final[IdleTimes] = MappingProxyType({})
_WITH_IDLE_TIME: Final = frozenset({Cause.WORKER, Cause.KERNEL, Cause.LEFTOVER, Cause.IDLE})
"""Causes among whose reasons is for how long it has run nothing."""


class StrayReport(NamedTuple):
    """What came of judging all of the viewer's processes."""

    strays: list[Stray]
    """Those that are certain first, then by the memory they hold."""
    possible: list[Stray]
    """Those of which it is not known yet whether they are idle; else they would be strays."""
    unjudged: list[Gpu]
    """GPUs of which nothing can be said now."""


def judge(
    snapshot: Snapshot,
    history: HistoryView | None,
    limits: StrayLimits = DEFAULT_LIMITS,
    *,
    known: IdleTimes | None = None,
) -> StrayReport:
    """Judge the viewer's own processes, each once.

    `known` are idle times that another gpuwatch has kept, for where the history is too short. Neither a young process
    is judged, nor what is held on a GPU in trouble, with old samples, or with a list of processes that has gaps.
    """
    scene = Scene(snapshot, history, limits, _NOTHING if known is None else known)
    strays, possible = [], []
    for case in _worth(scene):
        findings = [one for rule in RULES if (one := rule(case, scene)) is not None]
        if findings:
            strays.append(_stray(case, findings))
        elif (finding := find_possible(case, scene)) is not None:
            possible.append(_stray(case, [finding]))
    for found in strays, possible:
        found.sort(key=lambda one: (one.sure is not Certainty.CERTAIN, -(one.held or 0), one.process.pid))
    return StrayReport(strays, possible, unjudged(snapshot))


def _worth(scene: Scene) -> Iterable[Case]:
    """Return those that are neither too young nor too small to be judged; a size that is not known may be any."""
    limits = scene.limits
    for case in (*scene.cases, *scene.unlisted):
        if case.age >= limits.settled_after and (case.held is None or case.held >= limits.least):
            yield case


def _stray(case: Case, findings: list[Finding]) -> Stray:
    findings.sort(key=lambda one: one.sure is not Certainty.CERTAIN)  # it keeps the order of the rules otherwise
    strongest, idle = findings[0], case.idle
    why = [words for one in findings for words in one.why]
    if idle is not None and idle.seconds >= 1 and any(one.cause in _WITH_IDLE_TIME for one in findings):
        why.insert(0 if strongest.cause is Cause.IDLE else len(why), idle_words(idle))
    gpus = [part.gpu for part in case.parts] or list(case.open)
    return Stray(
        process=case.process,
        gpus=tuple(gpu.key for gpu in gpus),
        indices=tuple(gpu.index for gpu in gpus),
        held=case.held,
        cause=strongest.cause,
        sure=strongest.sure,
        why=tuple(dict.fromkeys(why)),
        idle=idle.seconds if idle is not None else None,
        idle_at_least=idle.at_least if idle is not None else False,
        listed=case.listed,
        ends=all(one.ends for one in findings),
    )


NONE = "none of your processes is a stray"
_BY = "by `gpuwatch watch` or in the dashboard"


def notes(
    judged: StrayReport, snapshot: Snapshot, watched: float | None, limits: StrayLimits = DEFAULT_LIMITS
) -> list[str]:
    """Say it in a sentence each, the same wherever the list is shown.

    `watched` is for how many seconds idle times have been counted, None where a `gpuwatch watch` counts them.
    """
    strays, possible, blind = judged
    said = [] if strays else ["none found" if possible or blind else NONE]
    said += [f"GPU {gpu.index} could not be judged: {_why(gpu, snapshot)}" for gpu in blind]
    if possible:
        pids = ", ".join(str(one.process.pid) for one in possible)
        one = len(possible) == 1
        who = "1 of your processes may be a stray" if one else f"{len(possible)} of your processes may be strays"
        idle = "whether it is idle" if one else "whether they are idle"
        takes = long_duration(limits.quiet_after)
        said.append(f"{who} ({pids}): {idle} is not known yet; that takes {takes} of watching, {_BY}")
    elif not strays and watched is not None and watched < limits.idle_after:
        takes = long_duration(limits.idle_after)
        said.append(f"who has been idle for {takes} is not known yet: that takes as long of watching, {_BY}")
    if not snapshot.searched:
        said.append("not all processes were looked into: one that NVML does not list may be missing here")
    return said


def _why(gpu: Gpu, snapshot: Snapshot) -> str:
    """Return why nothing can be said of who is idle on a GPU."""
    if gpu.health is not Health.OK:
        return ", ".join(filter(None, (gpu.health.value, gpu.words)))
    if gpu.unreliable:
        return "its list of processes makes no sense"
    if has_unsure(gpu, snapshot):
        return "the driver may mean processes outside of this container"
    return gpu.holdings_note or "its figures are old"
