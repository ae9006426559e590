"""Facts of the viewer's processes that may be strays: what they hold, do and wait for, and who needs them.

Pure functions. A fact that is missing or could not be read is None, or the value that accuses nobody.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Mapping
from functools import cached_property
from typing import Final

import msgspec

from gpuwatch.base.units import GIB, MIB
from gpuwatch.history.history import HistoryView
from gpuwatch.model.holdings import GpuProcess, Holdings
from gpuwatch.model.snapshot import (
    Gpu,
    Health,
    Idle,
    IdleTimes,
    Presence,
    Process,
    ProcessContext,
    Snapshot,
    SourceState,
    number,
)

_LATE: Final = 5.0
"""Largest age of a sample in intervals, and at least in seconds: a new sampler after a hang takes 3 s."""
_MPS_CLIENT: Final = "M"
"""Kind of a client of the MPS server: its work may be counted for the server."""
_GRAPHICS: Final = "G"
_LISTENS: Final = ("listens on", "gunicorn")
"""Beginnings of `ProcessContext.server` of a process that has a port open; gunicorn's workers have a title."""
_NO_CONTEXT: Final = ProcessContext()


class StrayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits from which on a process is a stray. Times in seconds, sizes in bytes."""

    idle_after: float = 1800.0
    """Idle time of a process that is a stray only because it is idle; the alert about idle memory has the same."""
    idle_memory: int = GIB
    """Memory of a process that is a stray only because it is idle."""
    least: int = 64 * MIB
    """Memory of a stray of any cause: less than a CUDA context takes on the smallest GPU."""
    quiet_after: float = 300.0
    """Idle time of a leftover: between two epochs a training may write its state for minutes."""
    sure_after: float = 86400.0
    """Idle time from which on a process without its login is certainly a stray: people use nohup on purpose."""
    settled_after: float = 60.0
    """Age from which on a process is judged, and idle time from which on a zombie or a stopped process is a stray."""
    at_work: float = 50.0
    """Percent of one core. A process that uses more prepares data, compiles or writes results."""


DEFAULT_LIMITS: Final = StrayLimits()


class StrayCandidate(msgspec.Struct, eq=False, dict=True):
    """One process of the viewer. Its facts are computed when a rule reads them: most processes need none."""

    process: Process
    others: StrayCandidates
    """Weak reference to all candidates: in a cycle, each snapshot would wait for the garbage collector."""
    on: list[GpuProcess] = msgspec.field(default_factory=list)
    """What it holds on each GPU that can be judged and lists it."""
    open: tuple[Gpu, ...] = ()
    """GPUs whose device files it has open, where NVML does not list it."""

    @property
    def context(self) -> ProcessContext:
        """Context of the process; empty where it was not read."""
        return self.process.context or _NO_CONTEXT

    @property
    def limits(self) -> StrayLimits:
        return self.others.limits

    # -- what it holds and does ------------------------------------------------------------------------------------

    @cached_property
    def held(self) -> int | None:
        """Bytes that it holds; None where not all of it is known."""
        return sum(part.memory for part in self.on) if self.on and all(part.complete for part in self.on) else None

    @cached_property
    def computes(self) -> bool:
        return any((part.sm or 0) > 0 for part in self.on)

    @property
    def works(self) -> bool:
        """Whether it, or a process that it has started, uses the CPU or waits for a disk."""
        used = sum(figure for figure in (number(self.process.cpu), number(self.process.below)) if figure is not None)
        return used > self.limits.at_work or self.process.state == "disk sleep"

    @property
    def draws(self) -> bool:
        """Whether it draws on a screen, as far as is known: a desktop waits for people."""
        return any(
            part.kinds == {_GRAPHICS} or (_GRAPHICS in part.kinds and part.gpu.display_active is True)
            for part in self.on
        )

    # -- how long it has been idle ---------------------------------------------------------------------------------

    @cached_property
    def idles(self) -> list[Idle | None]:
        """Idle time on each of its GPUs; None where that is not known."""
        return [self.others.find_idle(part) for part in self.on]

    @cached_property
    def idle(self) -> Idle | None:
        """Time for which it has run nothing on any of its GPUs; None where that is not known for one GPU."""
        times = [idle for idle in self.idles if idle is not None]
        if self.is_elsewhere or not times or len(times) < len(self.on):
            return None
        return min(times)  # of two equal ones, the one that is known exactly

    def is_idle_for(self, seconds: float) -> bool:
        return self.idle is not None and self.idle.seconds >= seconds

    @property
    def idle_unknown(self) -> bool:
        """Whether it may be idle for long enough, although that is not known; asked only while it runs nothing."""
        idle = self.idle
        unknown = idle is None or (idle.at_least and idle.seconds < self.limits.quiet_after)
        return unknown and not self.is_elsewhere

    @property
    def silent(self) -> bool:
        """Whether its idle time can never be known on any of its GPUs."""
        return bool(self.on) and not self.is_elsewhere and all(part.silent for part in self.on)

    @cached_property
    def is_elsewhere(self) -> bool:
        """Whether it was also seen on a GPU that cannot be judged now."""
        watched, gpus = self.others.watched_idle, self.others.unjudged
        return bool(self.on) and any(watched(gpu.key, self.process) is not None for gpu in gpus)

    def has_computed(self, within: float) -> bool:
        """Return whether it is known to have computed in the last `within` seconds."""
        times = (idle for idle in self.idles if idle is not None)
        return self.computes or any(not idle.at_least and idle.seconds < within for idle in times)

    # -- who needs it ----------------------------------------------------------------------------------------------

    @property
    def family(self) -> tuple[StrayCandidate, ...]:
        """Other processes of its run, its parent and its children."""
        return self.others.find_family(self)

    def is_in_use(self, within: float) -> bool:
        """Return whether it or one of its family works, or has computed in the last `within` seconds."""
        return any(each.works or each.has_computed(within) for each in (self, *self.family))

    @property
    def serves(self) -> bool:
        """Whether it or one of its family is a server: one rank of a served model listens, and the others wait."""
        return any(each.context.server for each in (self, *self.family))

    @property
    def answers(self) -> bool:
        """Whether it or one of its family has a port open, as a web server's worker has whose master was killed."""
        return any(each.context.server.startswith(_LISTENS) for each in (self, *self.family))

    @property
    def is_mps(self) -> bool:
        return self.process.name.startswith("nvidia-cuda-mps")  # the server and its control hold memory for others

    @property
    def is_attended(self) -> bool:
        """Whether a runtime, a scheduler, a service manager or an open window still needs it.

        A window of unknown state counts as open.
        """
        context = self.context
        window = context.pane is not None and context.pane.alive is not False
        managed = context.container or context.pod or context.batch_job or context.service or context.server
        return bool(managed) or window or self.is_mps

    @property
    def in_container(self) -> bool:
        return self.context.container is not None or bool(self.context.pod)

    @property
    def ended_employer(self) -> int | None:
        """PID of the process that it worked for, if that has ended; else None."""
        run = self.process.run
        employer = run.worker_of if run is not None and self.process.adopted else None
        return None if employer in self.others.listed or employer == self.process.ppid else employer

    @property
    def has_run_ended(self) -> bool:
        run = self.process.run
        return run is not None and (run.orphaned or self.ended_employer is not None)

    @property
    def absent_ranks(self) -> list[str]:
        """Words about ranks of its run that are on other machines or have ended: it may wait for them."""
        runs = [each.process.run for each in (self, *self.family)]
        ranks = {run.rank for run in runs if run is not None and run.rank is not None}
        world = next((run.world for run in runs if run is not None and run.world), 0)
        absent = world - len(ranks) if ranks else 0
        return [f"{absent} of its run's {world} ranks are not seen here"] if absent > 0 else []


class StrayCandidates:
    """The viewer's processes that have a GPU, and their relations."""

    def __init__(
        self, holdings: Holdings, history: HistoryView | None, limits: StrayLimits, idle_times: IdleTimes
    ) -> None:
        snapshot = holdings.snapshot
        self.limits = limits
        self._history = history
        self._idle_times = idle_times
        self.unjudged = [gpu for gpu in snapshot.gpus if find_obstacle(gpu, snapshot)]
        unjudged = {gpu.key for gpu in self.unjudged}
        judged = [gpu for gpu in snapshot.gpus if snapshot.state is SourceState.OK and gpu.key not in unjudged]
        self.listed = holdings.processes.keys()
        """PIDs of all listed processes, whoever owns them."""
        self._by_pid: dict[int, StrayCandidate] = {}
        for gpu in judged:
            for part in holdings.on(gpu):
                process = part.process
                if _is_viewers(process, snapshot) and part.start in (0, process.start):
                    if process.pid not in self._by_pid:
                        self._by_pid[process.pid] = StrayCandidate(process, weakref.proxy(self))
                    self._by_pid[process.pid].on.append(part)
        for unlisted in snapshot.unlisted:
            process = unlisted.process
            if _is_viewers(process, snapshot) and process.pid not in self.listed:
                opened = tuple(gpu for gpu in judged if unlisted.cuda_context and gpu.key in unlisted.gpus)
                self._by_pid[process.pid] = StrayCandidate(process, weakref.proxy(self), open=opened)
        self.all = tuple(self._by_pid.values())
        self._families: dict[int, tuple[StrayCandidate, ...]] = {}

    @cached_property
    def _groups(self) -> Mapping[str | int, list[StrayCandidate]]:
        """Candidates by the key of their run, and by the PID of their parent."""
        groups: defaultdict[str | int, list[StrayCandidate]] = defaultdict(list)
        for candidate in self.all:
            groups[candidate.process.run_key].append(candidate)
            if candidate.process.ppid is not None:
                groups[candidate.process.ppid].append(candidate)
        return groups

    def find_family(self, candidate: StrayCandidate) -> tuple[StrayCandidate, ...]:
        """Find the other processes of a process's run, and its parent and its children.

        The run of a Ray worker is not known: all workers of one daemon may wait for each other.
        """
        process = candidate.process
        pid, ppid, run = process.pid, process.ppid, process.run
        if pid in self._families:
            return self._families[pid]
        related = [*self._groups.get(pid, ())]
        if ppid in self._by_pid:
            related.append(self._by_pid[ppid])
        related += self._groups.get(process.run_key, ())
        if run is not None and run.launcher == "ray" and ppid is not None:
            related += self._groups.get(ppid, ())
        family = tuple({other.process.pid: other for other in related if other.process.pid != pid}.values())
        self._families[pid] = family
        return family

    def find_idle(self, part: GpuProcess) -> Idle | None:
        """Return how long a process has run nothing on a GPU: the longest time that is known."""
        if (part.sm or 0) > 0:
            return Idle(0.0, at_least=False)
        key, process = part.gpu.key, part.process
        watched, kept = self.watched_idle(key, process), self._idle_times.get((key, *process.key))
        if _MPS_CLIENT in part.kinds:  # no use seen says little here, and use seen says that it computed
            lately = watched is not None and not watched.at_least and watched.seconds < self.limits.quiet_after
            return watched if lately else None
        if watched is None or (watched.at_least and kept is not None and kept.seconds > watched.seconds):
            return kept
        return watched

    def watched_idle(self, key: str, process: Process) -> Idle | None:
        return self._history.idle(key, *process.key) if self._history is not None else None


def _is_viewers(process: Process, snapshot: Snapshot) -> bool:
    return process.uid == snapshot.viewer and process.presence is Presence.SEEN and process.start > 0


def find_obstacle(gpu: Gpu, snapshot: Snapshot) -> str:
    """Return why the processes of a GPU cannot be judged; empty where they can."""
    if gpu.health is not Health.OK:
        return ", ".join(filter(None, (gpu.health.value, gpu.words)))
    if gpu.unreliable:
        return "its list of processes is not reliable"
    unsure = {one.pid for one in snapshot.processes if one.presence is Presence.UNSURE}
    if unsure and not unsure.isdisjoint([one.pid for one in gpu.holdings]):
        return "the driver may mean processes outside of this container"
    is_old = gpu.sampled <= 0 or snapshot.monotonic - gpu.sampled > _LATE * max(snapshot.interval, 1.0)
    return gpu.holdings_note or "its values are old" * is_old
