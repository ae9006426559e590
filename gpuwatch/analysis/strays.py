"""Strays: the viewer's own abandoned processes that still hold memory. Pure functions.

Each cause is a rule over the facts of one process. Where a fact is missing or could not be read, a rule that needs it
does not match. Only the viewer's own processes are judged; for root, these are root's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

from gpuwatch.analysis.stray_facts import DEFAULT_LIMITS, StrayCandidate, StrayCandidates, StrayLimits, find_obstacle
from gpuwatch.base.units import NONE, long_duration, ranges, size, steady_duration
from gpuwatch.history.history import HistoryView
from gpuwatch.model.fields import PROCESS, Amount, Field, amount, brief_command, table
from gpuwatch.model.holdings import Holdings
from gpuwatch.model.shares import has_gap
from gpuwatch.model.snapshot import Gpu, IdleTimes, Knowledge, Process, Snapshot, number


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
        PROCESS["gpu"].of(lambda one: ranges(one.indices) or None),
        PROCESS["memory"].of(lambda one: amount(one.held)),
        PROCESS["idle"].of(lambda one: amount(one.idle, at_least=one.idle_at_least), quiet=0),
        Field("cause", "cause", lambda one: f"{one.cause.value}, {one.sure.value}", right=False),
        PROCESS["in"].of(lambda one: (around.where or NONE) if (around := one.process.context) else None, title="in"),
        PROCESS["command"].of(lambda one: brief_command(one.process)),
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
# Rules

_NOT_RUNNING: Final = ("tracing stop", "zombie")
_STOPPED: Final = "stopped, as by Ctrl-Z: it cannot run"
_PARENT_ENDED: Final = "its parent has ended"


def _is_zombie(candidate: StrayCandidate) -> bool:
    """Return whether a process has ended and still holds memory.

    The kernel also calls a program a zombie if only its first thread has ended (proc(5)), so the process must also
    run nothing on the GPU and on the CPU.
    """
    if candidate.process.state != "zombie" or not candidate.on or candidate.is_elsewhere:
        return False
    rests = all(part.sm == 0 and part.sm_complete for part in candidate.on)
    return rests and not (number(candidate.process.cpu) or 0) > 0


def _zombie_words(candidate: StrayCandidate) -> list[str]:
    process = candidate.process
    parent = f", {process.ppid} {process.parent}".rstrip() + "," if process.ppid else ""
    ended = f"it has ended, and its parent{parent} has not collected its exit status"
    return [ended, "no signal ends it: end its parent"]


def _is_stopped(candidate: StrayCandidate) -> bool:
    """Return whether a process was stopped, but not by a debugger or a scheduler, which will continue it.

    Sources: Slurm suspends and resumes jobs by turns (slurm.schedmd.com/gang_scheduling.html); PBS suspends by SIGSTOP
    (qsig(1B)).
    """
    return bool(candidate.on) and candidate.process.state == "stopped" and not candidate.context.batch_job


def _is_left_worker(candidate: StrayCandidate) -> bool:
    """Return whether a worker's run has ended, and it and its family are not in use: else it may be left on purpose.

    In a container the launcher is not always visible: there the process must also have been adopted. One that answers
    on a port is in use for all that is known.
    """
    if candidate.process.state in _NOT_RUNNING or (candidate.in_container and not candidate.process.adopted):
        return False
    # The family last: a large one takes the longest to ask, and the runs of most processes have not ended.
    if candidate.on:
        left = candidate.has_run_ended and not candidate.is_in_use(candidate.limits.quiet_after)
    else:
        left = _is_left_without_listing(candidate)
    return left and not candidate.answers


def _is_left_without_listing(candidate: StrayCandidate) -> bool:
    """Return whether a process that NVML does not list, and that has CUDA's files open, is a leftover.

    The process that started it must have ended, and it and its family must do nothing. A program that only counted the
    GPUs has such files open, too. So its run must have ended; else nothing may attend to it, and there must be memory
    that no listed process holds.
    """
    process = candidate.process
    if not candidate.open or not process.adopted or process.ppid in candidate.others.listed or candidate.works:
        return False
    if any(relative.on or not relative.process.adopted or relative.works for relative in candidate.family):
        return False
    gap = any(has_gap(gpu) and not gpu.memory.unified for gpu in candidate.open)
    return candidate.has_run_ended or (gap and not candidate.is_attended)


def _is_certain_worker(candidate: StrayCandidate) -> bool:
    rests = not candidate.on or candidate.is_idle_for(candidate.limits.quiet_after)
    lost = candidate.process.run is not None and candidate.process.run.orphaned and candidate.process.adopted
    # A rank may have started a service that is to outlive it, and that has its variables.
    return lost and rests and not (candidate.in_container or candidate.context.service)


def _worker_words(candidate: StrayCandidate) -> list[str]:
    words = [_PARENT_ENDED]
    if candidate.process.run is not None and candidate.process.run.orphaned:
        words = ["the run that it belongs to has ended"]
    elif (employer := candidate.ended_employer) is not None:
        words = [f"process {employer}, which it worked for, has ended"]
    return words if candidate.on else [*words, "it has the GPU open, and NVML does not list it"]


def _is_left_kernel(candidate: StrayCandidate) -> bool:
    """Return whether a notebook kernel is not in use, and its server has ended: nobody can send it code."""
    notebook = candidate.context.notebook
    if notebook is None or not notebook.left or candidate.in_container or candidate.process.state in _NOT_RUNNING:
        return False
    return not candidate.is_in_use(candidate.limits.quiet_after)


def _is_leftover(candidate: StrayCandidate) -> bool:
    """Return whether a process is not in use, its parent and login have ended, and nothing else needs it."""
    process, pane = candidate.process, candidate.context.pane
    # The command of a pane leads a session of its own.
    ended = process.leader_alive is False or (pane is not None and pane.alive is False)
    if not candidate.on or not process.adopted or not ended or process.state in _NOT_RUNNING:
        return False
    if candidate.is_attended or candidate.serves or candidate.context.notebook is not None or candidate.draws:
        return False
    return not candidate.is_in_use(candidate.limits.quiet_after)


def _is_certain_leftover(candidate: StrayCandidate) -> bool:
    """Return whether a leftover has nothing left to wait for, and its whole context was read."""
    waits = candidate.context.words or candidate.context.peer or candidate.absent_ranks
    return candidate.is_idle_for(candidate.limits.sure_after) and not waits


def _leftover_words(candidate: StrayCandidate) -> list[str]:
    peer = candidate.context.peer
    waits = [f"it is connected to {peer}, and may wait for it"] if peer else []
    return [_login_words(candidate), _PARENT_ENDED, *waits, *candidate.absent_ranks]


def _login_words(candidate: StrayCandidate) -> str:
    pane = candidate.context.pane
    if pane is not None and pane.alive is False:
        return f"its {pane.program} session has ended"
    return f"its SSH login from {candidate.context.ssh} has ended" if candidate.context.ssh else "its login has ended"


def _is_idle(candidate: StrayCandidate) -> bool:
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


def _idle_words(candidate: StrayCandidate) -> list[str]:
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
    matches: Callable[[StrayCandidate], bool]
    """Whether a process matches, apart from its idle time."""
    idle_for: Callable[[StrayCandidate], float | None]
    """Returns the idle time in seconds that a match requires; None where none is required."""
    is_certain: Callable[[StrayCandidate], bool]
    words: Callable[[StrayCandidate], list[str]]
    may_be_possible: bool = True
    """Whether a process that matches is listed as possible while its idle time is not known."""


RULES: Final = (
    _Rule(StrayCause.ZOMBIE, _is_zombie, lambda one: one.limits.settled_after, lambda one: True, _zombie_words),
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
    _Rule(StrayCause.LEFTOVER, _is_leftover, lambda one: one.limits.quiet_after, _is_certain_leftover, _leftover_words),
    _Rule(StrayCause.IDLE, _is_idle, lambda one: one.limits.idle_after, lambda one: False, _idle_words, False),
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
    candidates = StrayCandidates(holdings or Holdings(snapshot), history, limits, idle_times or {})
    strays, possible = [], []
    for candidate in candidates.all:
        started = candidate.process.started
        if started is None or snapshot.taken - started < limits.settled_after:  # young
            continue
        if not candidate.on and not (candidate.process.adopted or candidate.context.notebook):
            continue  # most forked workers: without memory only an adopted process or a notebook kernel is a stray
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
    return StrayReport(strays, possible, candidates.unjudged)


def _stray(candidate: StrayCandidate, rules: Sequence[_Rule], certainty: StrayCertainty | None = None) -> Stray:
    """Return a process as a stray by these rules, the strongest first."""
    strongest, idle = rules[0], candidate.idle
    why = [reason for rule in rules for reason in rule.words(candidate)]
    if certainty is POSSIBLE:
        why.append("whether it is idle is not known yet")
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
# Words


def held_words(strays: Collection[Stray]) -> str:
    """Format the memory of strays together, `at least 18.0 GiB`; empty where that of none is known."""
    held = [one.held for one in strays if one.held is not None]
    return f"{'at least ' * (len(held) < len(strays))}{size(sum(held))}" if held else ""


_WATCHING = "by `gpuwatch watch` or in the dashboard"


def notes(
    report: StrayReport, snapshot: Snapshot, watched: float | None, limits: StrayLimits = DEFAULT_LIMITS
) -> list[str]:
    """Return sentences about a report, for the command and the screen.

    `watched` is the number of seconds in which idle times were counted; None where a `gpuwatch watch` counts them.
    """
    strays, possible, unjudged = report
    lines = [] if strays or possible else ["no strays found" if unjudged else "none of your processes is a stray"]
    lines += [f"GPU {gpu.index} could not be checked: {find_obstacle(gpu, snapshot)}" for gpu in unjudged]
    if possible:
        pids = ", ".join(str(one.process.pid) for one in possible)
        one = len(possible) == 1
        who = "1 of your processes may be a stray" if one else f"{len(possible)} of your processes may be strays"
        idle = "whether it is idle" if one else "whether they are idle"
        takes = long_duration(limits.quiet_after)
        lines.append(f"{who} ({pids}): to know {idle} takes {takes} of watching, {_WATCHING}")
    elif not strays and watched is not None and watched < limits.idle_after:
        mine, after = (one.started for one in snapshot.processes if one.uid == snapshot.viewer), limits.idle_after
        if any(one is None or snapshot.taken - one >= after for one in mine):  # which may have been idle for so long
            words = f"to know which processes have been idle for {long_duration(after)}"
            lines.append(f"{words} takes as much watching, {_WATCHING}")
    if not snapshot.searched:
        lines.append("not all processes were examined: one that NVML does not list may be missing here")
    return lines
