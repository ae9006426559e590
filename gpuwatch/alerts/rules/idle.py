"""Memory that is held and not used: by idle processes, by processes that have ended, and by nobody who is listed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from gpuwatch import units
from gpuwatch.alerts.alert import Severity, Unit
from gpuwatch.alerts.rules.memory import NAMED, Limits, Observation, largest_first
from gpuwatch.alerts.unattributed import left_over, likeliest
from gpuwatch.history import HistoryView, Idle
from gpuwatch.model import Gpu, Health, Holding, Presence, Process, Snapshot, known

IDLE: Final = "idle but held"
UNATTRIBUTED: Final = "memory of unknown processes"
ORPHANED: Final = "dead process holds memory"

_CLEARS: Final = 0.75
"""The part of a limit in bytes below which an alert is cleared."""
_ZOMBIE: Final = "zombie"
_GRAPHICS: Final = "G"


def holder_rules(snapshot: Snapshot, history: HistoryView, limits: Limits) -> Iterator[Observation]:
    """Apply the rules about memory that is held and not used.

    GPUs in trouble, and those whose list of processes cannot be trusted, are not judged.
    """
    people = {one.pid: one for one in snapshot.processes}
    # In a container all that runs outside it is unattributed, and always will be.
    confined = snapshot.confined or any(one.presence is Presence.ELSEWHERE for one in snapshot.processes)
    for gpu in snapshot.gpus:
        if gpu.health is not Health.OK or gpu.holdings_note or gpu.unreliable:
            continue
        yield from idle_but_held(gpu, people, history, limits)
        yield from orphaned_holder(gpu, people, limits, [one.process.pid for one in left_over(gpu, snapshot)])
        if not confined:
            yield from unattributed_memory(gpu, snapshot, limits)


# ---------------------------------------------------------------------------------------------------------------
# Idle but held


class _Rest(NamedTuple):
    """How long the holdings of one owner on one GPU have been idle together."""

    idle: Idle | None = None
    """None where it is not known of one of them."""
    busy: int | None = None
    """The pid of one that ran on the GPU lately, where there is one: then nothing else matters."""


def idle_but_held(
    gpu: Gpu, people: Mapping[int, Process], history: HistoryView, limits: Limits
) -> Iterator[Observation]:
    """Judge what each user holds on a GPU without having run anything on it for long.

    It counts what all their processes hold together, and only where none of them runs; what only draws a screen does
    not count. While the idle time is known as a minimum that is below the limit (we have not watched for longer), an
    alert is neither raised nor cleared.
    """
    theirs: defaultdict[int, list[Holding]] = defaultdict(list)
    for one in gpu.holdings:
        process = people.get(one.pid)
        if process is None or process.uid is None or process.state == _ZOMBIE or one.kind == _GRAPHICS:
            continue
        theirs[process.uid].append(one)
    for uid, held in theirs.items():
        yield _idle(gpu, uid, held, people, history, limits)


def _idle(
    gpu: Gpu,
    uid: int,
    held: Sequence[Holding],
    people: Mapping[int, Process],
    history: HistoryView,
    limits: Limits,
) -> Observation:
    size = sum(int(one.memory) for one in held if known(one.memory))
    unknown = any(not known(one.memory) for one in held)
    enough = size >= limits.idle_memory
    rest = _rest(gpu, held, history, limits) if enough else _Rest()
    who = people[held[0].pid].user or str(uid)
    level, title, evidence, how = None, f"{who} does not hold GPU {gpu.index} idle", "", ""
    # Less than the limit is fine, unless a holding is not known; one that runs is fine, and says so.
    partial = unknown
    if enough:
        partial = rest.busy is None
        if rest.idle is not None and rest.idle.seconds >= limits.idle_after:
            level = Severity.WARNING
            least = "at least " if rest.idle.at_least else ""
            title = (
                f"{who} holds {'at least ' if unknown else ''}{units.gib(size)} GiB on GPU {gpu.index}, "
                f"idle for {least}{units.long_duration(_whole(rest.idle.seconds))}"
            )
            evidence = _named(held, people)
        elif rest.busy is not None:
            how = f"process {rest.busy} runs on the GPU again"
    elif not unknown:
        how = f"{who} holds less than {units.size(limits.idle_memory)} there"
    return Observation(
        rule=IDLE,
        gpu=gpu.key,
        index=gpu.index,
        subject=f"uid:{uid} {gpu.key}",
        level=level,
        keeps=level,
        partial=partial and level is None,
        raise_after=limits.samples,
        stamp=gpu.sampled,
        title=title,
        evidence=evidence,
        value=rest.idle.seconds if rest.idle is not None else None,
        unit=Unit.SECONDS,
        pids=largest_first(held) if level is not None else (),
        owners=(who,) if level is not None else (),
        how=how,
    )


def _rest(gpu: Gpu, held: Sequence[Holding], history: HistoryView, limits: Limits) -> _Rest:
    shortest: Idle | None = None
    unknown = False
    for one in held:
        if known(one.sm) and one.sm > 0:
            return _Rest(busy=one.pid)
        idle = history.idle(gpu.key, one.pid, one.start)
        if idle is None:
            unknown = True
        elif not idle.at_least and idle.seconds < limits.idle_after:
            return _Rest(busy=one.pid)
        elif shortest is None or idle.seconds < shortest.seconds:
            shortest = idle
    return _Rest() if unknown else _Rest(idle=shortest)


def _whole(seconds: float) -> float:
    """Give whole minutes from a minute on, so that a title does not change each second."""
    return seconds - seconds % 60 if seconds >= 60 else seconds


# ---------------------------------------------------------------------------------------------------------------
# Unattributed memory


def unattributed_memory(gpu: Gpu, snapshot: Snapshot, limits: Limits) -> Iterator[Observation]:
    """Judge the bytes in use on a GPU that no listed process holds. Where they cannot be told it says nothing.

    The evidence is the likeliest cause, by what the snapshot has, and what would settle it.
    """
    size, limit = gpu.unattributed, limits.unattributed_memory
    if not known(size) or gpu.memory.unified:
        return
    level = Severity.WARNING if size >= limit else None
    keeps = Severity.WARNING if size >= _CLEARS * limit else None
    yield Observation(
        rule=UNATTRIBUTED,
        gpu=gpu.key,
        index=gpu.index,
        level=level,
        keeps=keeps,
        raise_after=limits.samples,
        raise_for=limits.unattributed_for,
        clear_after=limits.samples,
        stamp=gpu.sampled,
        title=f"GPU {gpu.index}: {units.gib(size)} GiB held by no process that is listed",
        evidence=_cause(gpu, snapshot) if keeps is not None else "",
        value=size,
        unit=Unit.BYTES,
        how="listed processes account for the memory again",
    )


def _cause(gpu: Gpu, snapshot: Snapshot) -> str:
    found = likeliest(gpu, snapshot)
    return f"{found.words} · {found.settle}" if found is not None else ""


# ---------------------------------------------------------------------------------------------------------------
# Orphaned holders


def orphaned_holder(
    gpu: Gpu, people: Mapping[int, Process], limits: Limits, left: Sequence[int] = ()
) -> Iterator[Observation]:
    """Judge processes that have ended, or are zombies, and still hold memory.

    `left` are the PIDs of workers without a parent that have the GPU open: while they do, it is not freed.

    One that we may not see, or that is in another namespace, has not ended for all we know. Nor has one that runs on
    the GPU: of a program whose first thread has ended the kernel says zombie, too (proc(5)).
    """
    theirs: defaultdict[int, list[Holding]] = defaultdict(list)
    for one in gpu.holdings:
        process = people.get(one.pid)
        if process is not None and (process.presence is Presence.GONE or process.state == _ZOMBIE):
            theirs[one.pid].append(one)
    for pid, held in theirs.items():
        yield _orphan(gpu, people[pid], held, limits, left)


def _orphan(gpu: Gpu, process: Process, held: Sequence[Holding], limits: Limits, left: Sequence[int]) -> Observation:
    size = sum(int(one.memory) for one in held if known(one.memory))
    unknown = any(not known(one.memory) for one in held)
    runs = any(known(one.sm) and one.sm > 0 for one in held)
    level = Severity.WARNING if size >= limits.dead_process_memory and not runs else None
    keeps = Severity.WARNING if size >= _CLEARS * limits.dead_process_memory and not runs else None
    holds = f"still holds {'at least ' if unknown else ''}{units.gib(size)} GiB on GPU {gpu.index}"
    if process.state == _ZOMBIE:
        who = f"pid {process.pid} ({process.user})" if process.user else f"pid {process.pid}"
        parent = f" of {process.ppid} {process.parent}".rstrip() if process.ppid else ""
        title = f"{who} is a zombie{parent} and {holds}"
        evidence = f"{process.name} ended without giving it back: its parent has not taken note, or the driver hangs"
    else:
        title = f"pid {process.pid} has ended and {holds}"
        evidence = "the driver lists a process that the kernel no longer has · if it stays, only a reset frees it"
        if left:
            named = ", ".join(map(str, left[:NAMED])) + f" and {len(left) - NAMED} more" * (len(left) > NAMED)
            evidence = f"the driver lists a process that the kernel no longer has · left over and open: pid {named}"
    return Observation(
        rule=ORPHANED,
        gpu=gpu.key,
        index=gpu.index,
        subject=f"{process.pid}:{process.start} {gpu.key}",
        level=level,
        keeps=keeps,
        partial=unknown and keeps is None and not runs,
        raise_after=max(2, limits.samples),
        raise_for=limits.dead_process_for,
        clear_after=limits.samples,
        stamp=gpu.sampled,
        title=title,
        evidence=evidence if keeps is not None else "",
        value=size,
        unit=Unit.BYTES,
        pids=(process.pid,),
        owners=(process.user,) if process.user else (),
        how="it runs on the GPU" if runs else "its memory was freed",
    )


def _named(held: Sequence[Holding], people: Mapping[int, Process]) -> str:
    """Name processes: `pid 1234 python, 1240 jupyter and 2 more`."""
    pids = largest_first(held)
    named = ", ".join(f"{pid} {people[pid].name}".rstrip() for pid in pids[:NAMED])
    more = len(pids) - NAMED
    return f"pid {named}" + (f" and {more} more" if more > 0 else "")
