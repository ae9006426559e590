"""Strays: the viewer's own processes that nobody attends to and that still hold memory. Pure functions.

Each cause is a rule over the facts of one process. Where a fact is missing or could not be read, a rule that needs it
does not match. Only the viewer's own processes are judged; for root, these are root's.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple

import msgspec

from gpuwatch.base.units import GIB, MIB, long_duration, steady_duration
from gpuwatch.history.history import HistoryView
from gpuwatch.model.fields import PROCESS, Amount, Field, amount, table
from gpuwatch.model.holdings import GpuProcess, Holdings
from gpuwatch.model.shares import has_gap
from gpuwatch.model.snapshot import (
    Gpu,
    Health,
    Idle,
    IdleTimes,
    Knowledge,
    Presence,
    Process,
    ProcessContext,
    Snapshot,
    SourceState,
    number,
)


class StrayCause(StrEnum):
    """Kind of a stray; the value is the word on screen."""

    ZOMBIE = "zombie"
    """It has ended, still holds memory, and its parent has not collected its exit status."""
    STOPPED = "stopped"
    """Stopped by Ctrl-Z: it holds its memory and cannot run."""
    LEFTOVER = "leftover"
    """Its run, the server of its notebook, or its parent and its login or terminal have ended, and it does nothing."""
    IDLE = "idle"
    """It has run nothing on any GPU for longer than the limit."""


class StrayCertainty(StrEnum):
    """How certain it is that a process is a stray."""

    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"
    """The process is a stray if it is idle, and its idle time is not known yet, or not for long enough."""


CERTAIN, LIKELY, POSSIBLE = StrayCertainty


class StrayLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits from which on a process is a stray. Times in seconds, sizes in bytes."""

    idle_after: float = 1800.0
    """Idle time of a process that is a stray for being idle alone; the alert about idle memory has the same."""
    idle_memory: int = GIB
    """Memory of a process that is a stray for being idle alone."""
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


class Stray(msgspec.Struct, frozen=True):
    """Process that is a stray, with the reasons."""

    process: Process
    gpus: tuple[str, ...]
    """Keys of the GPUs that it holds memory on, the most first; where NVML does not list it, of those it has open."""
    indices: tuple[int, ...]
    """NVML's indices of these GPUs."""
    held: int | None
    """Bytes on all GPUs; None where that is not known."""
    cause: StrayCause
    """The strongest of its causes."""
    sure: StrayCertainty
    why: tuple[str, ...]
    """Reasons in words, the strongest first: `its login has ended`, `no SM use for 3 h 2 min`."""
    idle: float | None = None
    """Seconds without SM use on any GPU, as far as that is known."""
    idle_at_least: bool = False
    listed: bool = True
    """Whether NVML lists it; else it only has device files open."""
    ends: bool = True
    """Whether a signal can end it; not a zombie."""

    @property
    def key(self) -> tuple[int, int]:
        """PID and start time."""
        return self.process.key


STRAY: Final[Mapping[str, Field[Stray]]] = table(
    (
        PROCESS["pid"].of(lambda one: Amount(one.process.pid)),
        PROCESS["gpu"].of(lambda one: ",".join(map(str, one.indices)) or None),
        PROCESS["memory"].of(lambda one: amount(one.held)),
        PROCESS["idle"].of(lambda one: amount(one.idle, at_least=one.idle_at_least), quiet=0),
        Field("cause", "stray", lambda one: f"{one.cause.value}, {one.sure.value}", right=False),
        PROCESS["in"].of(lambda one: around.where or None if (around := one.process.context) else None, title="in"),
        PROCESS["command"].of(lambda one: one.process.command or f"[{one.process.name}]"),
    )
)
"""Fields of a stray."""


class StrayReport(NamedTuple):
    """Result of judging all processes of the viewer."""

    strays: list[Stray]
    """Certain ones first, then by memory."""
    possible: list[Stray]
    """Processes that are strays if they are idle, which is not known yet."""
    unjudged: list[Gpu]
    """GPUs whose processes cannot be judged now."""


# ---------------------------------------------------------------------------------------------------------------
# Facts

_LATE: Final = 5.0
"""Largest age of a sample in intervals, and at least in seconds: a new sampler after a hang takes 3 s."""
_MPS_CLIENT: Final = "M"
"""Kind of a client of the MPS server: its work may be counted for the server."""
_GRAPHICS: Final = "G"
_NOT_RUNNING: Final = ("tracing stop", "zombie")
_NO_CONTEXT: Final = ProcessContext()


class _Candidate(msgspec.Struct, eq=False, dict=True):
    """One process of the viewer. Its facts are computed when a rule reads them: most processes need none."""

    process: Process
    machine: _Machine
    """Weak reference to the machine that has it: in a cycle, each snapshot would wait for the garbage collector."""
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
        return self.machine.limits

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
        return [self.machine.find_idle(part) for part in self.on]

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
        watched, gpus = self.machine.watched_idle, self.machine.unjudged
        return bool(self.on) and any(watched(gpu.key, self.process) is not None for gpu in gpus)

    def has_computed(self, within: float) -> bool:
        """Return whether it is known to have computed in the last `within` seconds."""
        times = (idle for idle in self.idles if idle is not None)
        return self.computes or any(not idle.at_least and idle.seconds < within for idle in times)

    # -- who needs it ----------------------------------------------------------------------------------------------

    @property
    def family(self) -> tuple[_Candidate, ...]:
        """Other processes of its run, its parent and its children."""
        return self.machine.find_family(self)

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
        """Whether a runtime, a scheduler, a service manager or an open window attends to it.

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
        return None if employer in self.machine.listed or employer == self.process.ppid else employer

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


class _Machine:
    """The viewer's processes that have a GPU, and their relations."""

    def __init__(
        self, holdings: Holdings, history: HistoryView | None, limits: StrayLimits, idle_times: IdleTimes
    ) -> None:
        snapshot = holdings.snapshot
        self.limits = limits
        self._history = history
        self._idle_times = idle_times
        self.unjudged = [gpu for gpu in snapshot.gpus if _obstacle(gpu, snapshot)]
        unjudged = {gpu.key for gpu in self.unjudged}
        judged = [gpu for gpu in snapshot.gpus if snapshot.state is SourceState.OK and gpu.key not in unjudged]
        self.listed = holdings.processes.keys()
        """PIDs of all listed processes, whoever owns them."""
        self._by_pid: dict[int, _Candidate] = {}
        for gpu in judged:
            for part in holdings.on(gpu):
                process = part.process
                if _is_viewers(process, snapshot) and part.start in (0, process.start):
                    if process.pid not in self._by_pid:
                        self._by_pid[process.pid] = _Candidate(process, weakref.proxy(self))
                    self._by_pid[process.pid].on.append(part)
        for unlisted in snapshot.unlisted:
            process = unlisted.process
            if _is_viewers(process, snapshot) and process.pid not in self.listed:
                opened = tuple(gpu for gpu in judged if unlisted.cuda_context and gpu.key in unlisted.gpus)
                self._by_pid[process.pid] = _Candidate(process, weakref.proxy(self), open=opened)
        self.candidates = tuple(self._by_pid.values())
        self._families: dict[int, tuple[_Candidate, ...]] = {}

    @cached_property
    def _groups(self) -> Mapping[str | int, list[_Candidate]]:
        """Candidates by the key of their run, and by the PID of their parent."""
        groups: defaultdict[str | int, list[_Candidate]] = defaultdict(list)
        for candidate in self.candidates:
            groups[candidate.process.run_key].append(candidate)
            if candidate.process.ppid is not None:
                groups[candidate.process.ppid].append(candidate)
        return groups

    def find_family(self, candidate: _Candidate) -> tuple[_Candidate, ...]:
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


def _obstacle(gpu: Gpu, snapshot: Snapshot) -> str:
    """Return why the processes of a GPU cannot be judged; empty where they can."""
    if gpu.health is not Health.OK:
        return ", ".join(filter(None, (gpu.health.value, gpu.words)))
    if gpu.unreliable:
        return "its list of processes makes no sense"
    pids = {one.pid for one in gpu.holdings}
    if any(one.presence is Presence.UNSURE and one.pid in pids for one in snapshot.processes):
        return "the driver may mean processes outside of this container"
    is_old = gpu.sampled <= 0 or snapshot.monotonic - gpu.sampled > _LATE * max(snapshot.interval, 1.0)
    return gpu.holdings_note or "its figures are old" * is_old


# ---------------------------------------------------------------------------------------------------------------
# Rules

_UNKNOWN: Final = "whether it is idle is not known yet"
_STOPPED: Final = "stopped, as by Ctrl-Z: it cannot run"
_PARENT_ENDED: Final = "its parent has ended"
_LISTENS: Final = ("listens on", "gunicorn")
"""Beginnings of `ProcessContext.server` of a process that has a port open; gunicorn's workers have a title."""


def _is_zombie(candidate: _Candidate) -> bool:
    """Return whether a process has ended and still holds memory.

    The kernel also calls a program a zombie whose first thread alone has ended (proc(5)), so the process must also run
    nothing on the GPU and on the CPU.
    """
    if candidate.process.state != "zombie" or not candidate.on or candidate.is_elsewhere:
        return False
    rests = all(part.sm == 0 and part.sm_complete for part in candidate.on)
    return rests and not (number(candidate.process.cpu) or 0) > 0


def _zombie_words(candidate: _Candidate) -> list[str]:
    process = candidate.process
    parent = f", {process.ppid} {process.parent}".rstrip() + "," if process.ppid else ""
    ended = f"it has ended, and its parent{parent} has not collected its exit status"
    return [ended, "no signal ends it: end its parent"]


def _is_stopped(candidate: _Candidate) -> bool:
    """Return whether a process was stopped, but not by a debugger or a scheduler, which will continue it.

    Sources: Slurm suspends and resumes jobs by turns (slurm.schedmd.com/gang_scheduling.html); PBS suspends by SIGSTOP
    (qsig(1B)).
    """
    return bool(candidate.on) and candidate.process.state == "stopped" and not candidate.context.batch_job


def _is_left_worker(candidate: _Candidate) -> bool:
    """Return whether a worker's run has ended, and it and its family are not in use: else it may be left on purpose.

    In a container the launcher is not always visible: there the process must also have been adopted. One that answers
    on a port is in use for all that is known.
    """
    if candidate.answers:
        return False
    if candidate.process.state in _NOT_RUNNING or (candidate.in_container and not candidate.process.adopted):
        return False
    if candidate.on:
        return candidate.has_run_ended and not candidate.is_in_use(candidate.limits.quiet_after)
    return _is_left_without_listing(candidate)


def _is_left_without_listing(candidate: _Candidate) -> bool:
    """Return whether a process that NVML does not list, and that has CUDA's files open, is a leftover.

    The process that started it must have ended, and it and its family must do nothing. A program that only counted the
    GPUs has such files open, too. So its run must have ended; else nothing may attend to it, and there must be memory
    that no listed process holds.
    """
    process = candidate.process
    if not candidate.open or not process.adopted or process.ppid in candidate.machine.listed or candidate.works:
        return False
    if any(relative.on or not relative.process.adopted or relative.works for relative in candidate.family):
        return False
    gap = any(has_gap(gpu) and not gpu.memory.unified for gpu in candidate.open)
    return candidate.has_run_ended or (gap and not candidate.is_attended)


def _is_certain_worker(candidate: _Candidate) -> bool:
    rests = not candidate.on or candidate.is_idle_for(candidate.limits.quiet_after)
    lost = candidate.process.run is not None and candidate.process.run.orphaned and candidate.process.adopted
    # A rank may have started a service that is to outlive it, and that has its variables.
    return lost and rests and not (candidate.in_container or candidate.context.service)


def _worker_words(candidate: _Candidate) -> list[str]:
    words = [_PARENT_ENDED]
    if candidate.process.run is not None and candidate.process.run.orphaned:
        words = ["the run that it belongs to has ended"]
    elif (employer := candidate.ended_employer) is not None:
        words = [f"process {employer}, which it worked for, has ended"]
    return words if candidate.on else [*words, "it has the GPU open, and NVML does not list it"]


def _is_left_kernel(candidate: _Candidate) -> bool:
    """Return whether a notebook kernel is not in use, and its server has ended: nobody can send it code."""
    notebook = candidate.context.notebook
    if notebook is None or not notebook.left or candidate.in_container or candidate.process.state in _NOT_RUNNING:
        return False
    return not candidate.is_in_use(candidate.limits.quiet_after)


def _is_leftover(candidate: _Candidate) -> bool:
    """Return whether a process is not in use, its parent and login have ended, and nothing else attends to it."""
    process, pane = candidate.process, candidate.context.pane
    # The command of a pane leads a session of its own.
    ended = process.leader_alive is False or (pane is not None and pane.alive is False)
    if not candidate.on or not process.adopted or not ended or process.state in _NOT_RUNNING:
        return False
    if candidate.is_attended or candidate.serves or candidate.context.notebook is not None or candidate.draws:
        return False
    return not candidate.is_in_use(candidate.limits.quiet_after)


def _is_certain_leftover(candidate: _Candidate) -> bool:
    """Return whether a leftover has nothing left to wait for, and its whole context was read."""
    waits = candidate.context.words or candidate.context.peer or candidate.absent_ranks
    return candidate.is_idle_for(candidate.limits.sure_after) and not waits


def _leftover_words(candidate: _Candidate) -> list[str]:
    peer = candidate.context.peer
    waits = [f"it is connected to {peer}, and may wait for it"] if peer else []
    return [_login_words(candidate), _PARENT_ENDED, *waits, *candidate.absent_ranks]


def _login_words(candidate: _Candidate) -> str:
    pane = candidate.context.pane
    if pane is not None and pane.alive is False:
        return f"its {pane.program} session has ended"
    return f"its SSH login from {candidate.context.ssh} has ended" if candidate.context.ssh else "its login has ended"


def _is_idle(candidate: _Candidate) -> bool:
    """Return whether a process and its run hold memory and do nothing. A server waits, and a rank waits for others."""
    process, limits = candidate.process, candidate.limits
    if sum(part.memory for part in candidate.on if part.complete) < limits.idle_memory or process.state in _NOT_RUNNING:
        return False
    if process.declared is not None and process.declared.knowledge is Knowledge.PENDING:
        return False
    managed = candidate.context.pod and not candidate.context.in_podman
    if candidate.serves or managed or candidate.context.service or candidate.is_mps or candidate.draws:
        return False
    return not candidate.is_in_use(limits.idle_after) and all(
        relative.is_idle_for(limits.idle_after) for relative in candidate.family if relative.on
    )


def _idle_words(candidate: _Candidate) -> list[str]:
    """Return who may still want an idle process."""
    context, words = candidate.context, []
    if context.notebook is not None and not context.notebook.left:
        words.append("its notebook may still be open")
    elif candidate.process.leader_alive and candidate.process.terminal:
        words.append("its terminal is still open")
    if context.slurm:
        words.append(f"Slurm ends it with job {context.slurm.partition('.')[0]}")
    elif context.batch:
        words.append(f"its scheduler ends it with {context.batch}")
    elif context.container is not None:
        words.append("its container still runs")
    return [*words, *candidate.absent_ranks]


class _Rule(NamedTuple):
    """Cause of strays: when a process matches, how long it must be idle, and the reasons in words."""

    cause: StrayCause
    matches: Callable[[_Candidate], bool]
    """Whether a process matches, apart from its idle time."""
    idle_for: Callable[[_Candidate], float | None]
    """Returns the idle time in seconds that a match requires; None where none is required."""
    is_certain: Callable[[_Candidate], bool]
    words: Callable[[_Candidate], list[str]]
    may_be_possible: bool = True
    """Whether a process that matches is listed as possible while its idle time is not known."""


RULES: Final = (
    _Rule(
        StrayCause.ZOMBIE,
        _is_zombie,
        lambda one: one.limits.settled_after,
        lambda one: True,
        _zombie_words,
    ),
    _Rule(
        StrayCause.STOPPED,
        _is_stopped,
        # Where the idle time can never be known, it is enough that it cannot run.
        lambda one: None if one.silent else one.limits.settled_after,
        # Its owner may have stopped it on purpose, to lend the GPU to somebody.
        lambda one: one.process.leader_alive is False and one.is_idle_for(one.limits.sure_after),
        lambda one: [_STOPPED, *([_login_words(one)] if one.process.leader_alive is False else [])],
    ),
    _Rule(StrayCause.LEFTOVER, _is_left_worker, lambda one: None, _is_certain_worker, _worker_words, False),
    _Rule(
        StrayCause.LEFTOVER,
        _is_left_kernel,
        lambda one: one.limits.quiet_after,
        lambda one: one.process.adopted,
        lambda one: ["the server of its notebook has ended"],
    ),
    _Rule(
        StrayCause.LEFTOVER,
        _is_leftover,
        lambda one: one.limits.quiet_after,
        _is_certain_leftover,
        _leftover_words,
    ),
    _Rule(
        StrayCause.IDLE,
        _is_idle,
        lambda one: one.limits.idle_after,
        lambda one: False,
        _idle_words,
        False,
    ),
)
"""Rules of all causes; of two equally certain causes the first is the stronger."""


def find_strays(
    snapshot: Snapshot,
    history: HistoryView | None,
    limits: StrayLimits = DEFAULT_LIMITS,
    *,
    idle_times: IdleTimes | None = None,
    holdings: Holdings | None = None,
) -> StrayReport:
    """Judge each of the viewer's own processes once.

    `idle_times` are those that another gpuwatch has counted for longer. `holdings` are the snapshot's, where somebody
    has folded them. Young processes are not judged, nor is memory on a GPU in trouble, with old samples, or with an
    incomplete list of processes.
    """
    machine = _Machine(holdings or Holdings(snapshot), history, limits, idle_times or {})
    strays, possible = [], []
    for candidate in machine.candidates:
        started = candidate.process.started
        if started is None or snapshot.taken - started < limits.settled_after:  # young
            continue
        if candidate.computes or (candidate.held is not None and candidate.held < limits.least):
            continue
        rules = RULES if candidate.process.context is not None else RULES[:1]  # a zombie has no context any more
        matching: list[_Rule] = []
        undecided: list[_Rule] = []
        for rule in rules:  # the idle time first: it is the cheapest to ask
            seconds = rule.idle_for(candidate)
            is_idle = seconds is None or candidate.is_idle_for(seconds)
            if (is_idle or (rule.may_be_possible and candidate.idle_unknown)) and rule.matches(candidate):
                (matching if is_idle else undecided).append(rule)
        if matching:
            matching.sort(key=lambda rule: not rule.is_certain(candidate))
            strays.append(_stray(candidate, matching))
        elif undecided:
            possible.append(_stray(candidate, undecided[:1], POSSIBLE))
    for several in strays, possible:
        several.sort(key=lambda stray: (stray.sure is not CERTAIN, -(stray.held or 0), stray.process.pid))
    return StrayReport(strays, possible, machine.unjudged)


def _stray(candidate: _Candidate, rules: Sequence[_Rule], certainty: StrayCertainty | None = None) -> Stray:
    """Return a process as a stray by these rules, the strongest first."""
    strongest, idle = rules[0], candidate.idle
    why = [reason for rule in rules for reason in rule.words(candidate)]
    if certainty is POSSIBLE:
        why.insert(0, _UNKNOWN)
    elif idle and idle.seconds >= 1 and not {rule.cause for rule in rules} <= {StrayCause.ZOMBIE, StrayCause.STOPPED}:
        words = f"no SM use for {'at least ' * idle.at_least}{steady_duration(idle.seconds)}"
        why.insert(0 if strongest.cause is StrayCause.IDLE else len(why), words)
    held = sorted(candidate.on, key=lambda part: (-part.memory if part.complete else 0, part.gpu.index))
    gpus = [part.gpu for part in held] or list(candidate.open)
    return Stray(
        process=candidate.process,
        gpus=tuple(gpu.key for gpu in gpus),
        indices=tuple(gpu.index for gpu in gpus),
        held=candidate.held,
        cause=strongest.cause,
        sure=certainty or (CERTAIN if strongest.is_certain(candidate) else LIKELY),
        why=tuple(dict.fromkeys(why)),
        idle=idle.seconds if idle is not None else None,
        idle_at_least=idle.at_least if idle is not None else False,
        listed=bool(candidate.on),
        ends=all(rule.cause is not StrayCause.ZOMBIE for rule in rules),
    )


# ---------------------------------------------------------------------------------------------------------------
# Notes

NONE = "none of your processes is a stray"
_WATCHING = "by `gpuwatch watch` or in the dashboard"


def notes(
    report: StrayReport, snapshot: Snapshot, watched: float | None, limits: StrayLimits = DEFAULT_LIMITS
) -> list[str]:
    """Return sentences about a report, for the command and the screen.

    `watched` is the number of seconds in which idle times were counted; None where a `gpuwatch watch` counts them.
    """
    strays, possible, unjudged = report
    lines = [] if strays else ["none found" if possible or unjudged else NONE]
    lines += [f"GPU {gpu.index} could not be judged: {_obstacle(gpu, snapshot)}" for gpu in unjudged]
    if possible:
        pids = ", ".join(str(one.process.pid) for one in possible)
        one = len(possible) == 1
        who = "1 of your processes may be a stray" if one else f"{len(possible)} of your processes may be strays"
        idle = "whether it is idle" if one else "whether they are idle"
        takes = long_duration(limits.quiet_after)
        lines.append(f"{who} ({pids}): {idle} is not known yet; that takes {takes} of watching, {_WATCHING}")
    elif not strays and watched is not None and watched < limits.idle_after:
        mine, after = (one.started for one in snapshot.processes if one.uid == snapshot.viewer), limits.idle_after
        if any(one is None or snapshot.taken - one >= after for one in mine):  # which may have been idle for so long
            words = f"who has been idle for {long_duration(after)} is not known yet"
            lines.append(f"{words}: that takes as long of watching, {_WATCHING}")
    if not snapshot.searched:
        lines.append("not all processes were looked into: one that NVML does not list may be missing here")
    return lines
