"""The rules, one for each cause: from a case to a finding, or None where it does not hold, or cannot be told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from gpuwatch.declarations import Knowledge
from gpuwatch.history import Idle
from gpuwatch.strays.cases import Case, Scene
from gpuwatch.strays.stray import Cause, Sureness
from gpuwatch.surroundings import Surroundings
from gpuwatch.units import long_duration

CERTAIN, LIKELY, POSSIBLE = Sureness

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
    sure: Sureness
    why: tuple[str, ...]
    ends: bool = True


Rule: TypeAlias = Callable[[Case, Scene], Finding | None]


def zombie(case: Case, scene: Scene) -> Finding | None:
    """Judge one that has ended. Of a program whose first thread has ended the kernel says zombie, too (proc(5)).

    So it must be known to run nothing, on the GPU and on the CPU. Every process is a zombie for a moment: one that may
    just have computed is not one that was forgotten.
    """
    process = case.process
    if not _is_zombie(case) or not _has_rested(case, scene.tending.settled_after):
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
    if not case.silent and not _has_rested(case, scene.tending.settled_after):
        return None
    why = (_STOPPED,)
    if process.led is False:
        sure = _has_rested(case, scene.tending.sure_after)
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
    job, limits = around.job, scene.tending
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
    """Say whether one that NVML does not list, but that has CUDA's files open, is what remains of something.

    A program that only asked how many GPUs there are has them open, too, and so has one that lets others compute: it
    is neither as long as one of those is there.
    """
    process, around = case.process, case.process.surroundings
    if not case.open or not process.adopted or around is None or process.ppid in scene.listed:
        return False
    if case.works(scene.tending):
        return False
    if any(one.listed or not one.process.adopted or one.works(scene.tending) for one in scene.family(case)):
        return False
    return left or (scene.has_gap(case.open) and not _is_tended(case, around))


def kernel(case: Case, scene: Scene) -> Finding | None:
    """Judge the kernel of a notebook whose server is gone: nobody can send it anything any more."""
    if not _is_left_kernel(case, scene) or not _has_rested(case, scene.tending.quiet_after):
        return None
    sure = CERTAIN if case.process.adopted else LIKELY
    return Finding(Cause.KERNEL, sure, (_SERVER_GONE,))


def _is_left_kernel(case: Case, scene: Scene) -> bool:
    around = case.process.surroundings
    if around is None or around.notebook is None or not around.notebook.left or around.container or around.pod:
        return False
    return case.process.state not in (_TRACED, "zombie") and not _is_in_use(case, scene, scene.tending.quiet_after)


def orphaned(case: Case, scene: Scene) -> Finding | None:
    """Judge one that whoever started it has left: parent and login are gone, and nothing else tends it.

    It is certain only after a day: who uses nohup leaves on purpose, and a program may wait for a file, for the night
    or for a free GPU. Who is connected to somebody, or is one rank of several, may wait for work, or for the others,
    for days.
    """
    around, limits = case.process.surroundings, scene.tending
    if around is None or not _is_left(case, scene) or not _has_rested(case, limits.quiet_after):
        return None
    # What could not be read may be what tends it.
    sure = _has_rested(case, limits.sure_after) and not around.words
    why = [_login_words(around), _PARENT_ENDED]
    if around.peer:
        why.append(f"it is connected to {around.peer}, and may wait for it")
    away = _ranks_away(case, scene)
    sure = sure and not around.peer and not away
    return Finding(Cause.ORPHANED, CERTAIN if sure else LIKELY, (*why, *away))


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
    return case.listed and not case.draws and not _is_in_use(case, scene, scene.tending.quiet_after)


def possible(case: Case, scene: Scene) -> Finding | None:
    """Judge one that would be a stray if it was known to be idle, which is not known, or not for long enough."""
    if case.silent and _is_stopped(case):  # it is one already
        return None
    idle, around = case.idle, case.process.surroundings
    unknown = not case.blind and (idle is None or (idle.at_least and idle.seconds < scene.tending.quiet_after))
    if not unknown or case.computes:
        return None
    if case.listed and _is_zombie(case):
        return Finding(Cause.ZOMBIE, POSSIBLE, (_UNKNOWN, "it has ended"), ends=False)
    if case.listed and _is_stopped(case):
        return Finding(Cause.STOPPED, POSSIBLE, (_UNKNOWN, _STOPPED))
    if _is_left_kernel(case, scene):
        return Finding(Cause.KERNEL, POSSIBLE, (_UNKNOWN, _SERVER_GONE))
    if around is not None and _is_left(case, scene):
        return Finding(Cause.ORPHANED, POSSIBLE, (_UNKNOWN, _login_words(around), _PARENT_ENDED))
    return None


def idle(case: Case, scene: Scene) -> Finding | None:
    """Judge one that has run nothing on any of its GPUs for long. A server waits, and a rank waits for the others."""
    process, around, rest = case.process, case.process.surroundings, case.idle
    limits = scene.tending
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
    """Tell who may still want one that is idle."""
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
    """Say whether something tends to its processes: a runtime, a scheduler, a manager of units, an open window.

    Where it cannot be told whether the window is still open, it may be.
    """
    pane = around.pane is not None and around.pane.alive is not False
    return bool(around.container or around.pod or around.batch_job or around.service or around.server or pane) or (
        case.process.name.startswith(_MPS)
    )


def _serves(case: Case, scene: Scene) -> bool:
    """Say whether a process, or one of its run, is a server: of a served model one rank listens, the others wait."""
    around = [one.process.surroundings for one in (case, *scene.family(case))]
    return any(one is not None and one.server for one in around)


def _is_in_use(case: Case, scene: Scene, within: float) -> bool:
    """Say whether a process or one that belongs to it computed lately, or is at work on the CPU."""
    return any(one.computed(within) or one.works(scene.tending) for one in (case, *scene.family(case)))


def _has_rested(case: Case, seconds: float) -> bool:
    """Say whether a process is known to have run nothing on its GPUs for so long."""
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
