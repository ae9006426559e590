"""Rules about memory that idle, ended or unknown processes hold without using it.

GPUs in trouble, and those whose list of processes cannot be trusted, are not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from gpuwatch.alerts.alert import Severity
from gpuwatch.alerts.rule import (
    NAMED,
    Observation,
    Rule,
    RuleContext,
    and_more,
    hold,
    largest_first,
    named_pids,
    pid_and_user,
)
from gpuwatch.base import units
from gpuwatch.base.units import Unit
from gpuwatch.model.holdings import GpuOwner, GpuProcess
from gpuwatch.model.snapshot import Idle, Presence, known

IDLE: Final = "idle but held"
UNATTRIBUTED: Final = "memory of unknown processes"
DEAD: Final = "ended process holds memory"

_CLEARS: Final = 0.75
"""Part of a limit in bytes below which an alert is cleared."""
_ZOMBIE: Final = "zombie"


# -- idle but held ------------------------------------------------------------------------------------------------


def find_idle(context: RuleContext) -> Iterator[Observation]:
    """Find users who hold memory on a GPU and have run nothing on it for longer than the limit.

    All of a user's processes on the GPU must be idle; a process that only draws a screen does not count. If they
    were idle when gpuwatch started, an alert is neither raised nor cleared until the limit has passed since then.
    """
    for gpu in context.listed:
        for owner in context.owners(gpu):
            held = [one for one in owner.processes if one.process.state != _ZOMBIE and not one.graphics]
            if owner.uid is not None and held:
                yield _idle(context, owner, held)


def _idle(context: RuleContext, owner: GpuOwner, held: Sequence[GpuProcess]) -> Observation:
    limits, gpu, who = context.limits, owner.gpu, owner.name
    size, complete = sum(one.memory for one in held), all(one.complete for one in held)
    level, title, short, evidence, how = None, f"no idle memory of {who} on GPU {gpu.index}", "", "", ""
    partial, idle = not complete, None
    pids: tuple[int, ...] = ()
    if size >= limits.idle_memory:
        idle = _idle_time(context, held)
        # A process that runs is fine; an idle time that is only a minimum below the limit decides nothing.
        partial = not isinstance(idle, int)
        if isinstance(idle, int):
            how = f"process {idle} runs on the GPU again"
        elif idle is not None and idle.seconds >= limits.idle_after:
            level, partial = Severity.WARNING, False
            pids = largest_first(held)
            least = "at least " if idle.at_least else ""
            title = (
                f"{who} {hold(who)} {'' if complete else 'at least '}{units.gib(size)} GiB on GPU {gpu.index}, "
                f"idle for {least}{units.steady_duration(idle.seconds)}"
            )
            short = f"{who} idle {units.duration(idle.seconds)}"
            evidence = named_pids([context.processes[pid] for pid in pids])
    elif complete:
        how = f"{who} {hold(who)} less than {units.size(limits.idle_memory)} there"
    return Observation(
        gpu=gpu,
        subject=f"uid:{owner.uid} {gpu.key}",
        level=level,
        partial=partial,
        clear_after=1,
        stamp=gpu.sampled,
        title=title,
        short=short,
        evidence=evidence,
        value=idle.seconds if isinstance(idle, Idle) else None,
        unit=Unit.SECONDS,
        pids=pids,
        owners=(who,) if level is not None else (),
        how=how,
    )


def _idle_time(context: RuleContext, held: Sequence[GpuProcess]) -> Idle | int | None:
    """Return the time for which all processes have been idle, the PID of one that ran lately, or None if unknown."""
    times: list[Idle | None] = []
    for one in held:
        idle = context.history.idle(one.gpu.key, one.process.pid, one.start)
        if one.sm or (idle is not None and not idle.at_least and idle.seconds < context.limits.idle_after):
            return one.process.pid
        times.append(idle)
    return None if None in times else min(filter(None, times), key=lambda idle: idle.seconds)


# -- memory of unknown processes ----------------------------------------------------------------------------------


def find_unattributed(context: RuleContext) -> Iterator[Observation]:
    """Judge the bytes in use on a GPU that no listed process holds, with the likeliest cause as evidence."""
    # In a container all that runs outside it is unknown, and always will be.
    snapshot = context.snapshot
    if snapshot.confined or any(one.presence is Presence.ELSEWHERE for one in snapshot.processes):
        return
    limit = context.limits.unknown_memory
    for gpu in context.listed:
        size = gpu.unattributed
        if not known(size) or gpu.memory.unified or (size < limit and context.ignores(UNATTRIBUTED, gpu)):
            continue
        keeps = Severity.WARNING if size >= _CLEARS * limit else None
        cause = context.gap_evidence.likeliest(gpu) if keeps is not None else None
        yield Observation(
            gpu=gpu,
            level=Severity.WARNING if size >= limit else None,
            keeps=keeps,
            raise_for=context.limits.unknown_for,
            stamp=gpu.sampled,
            title=f"GPU {gpu.index}: {units.gib(size)} GiB of unknown processes",
            short=f"{units.gib(size)} GiB unknown",
            evidence=f"{cause.reason} · {cause.step}" if cause is not None else "",
            value=size,
            unit=Unit.BYTES,
            how="listed processes account for the memory again",
        )


# -- ended process holds memory ------------------------------------------------------------------------------------


def find_ended_holders(context: RuleContext) -> Iterator[Observation]:
    """Find processes that have ended, or are zombies, and still hold memory.

    A process that gpuwatch may not see, or in another namespace, does not count as ended. Nor does a zombie that runs
    on the GPU: the kernel also calls a program a zombie if only its first thread has ended (proc(5)).
    """
    for gpu in context.listed:
        for one in context.on(gpu):
            if one.process.presence is Presence.GONE or one.process.state == _ZOMBIE:
                yield _dead(context, one)


def _dead(context: RuleContext, one: GpuProcess) -> Observation:
    process, gpu, limit = one.process, one.gpu, context.limits.ended_process_memory
    runs = bool(one.sm)
    keeps = Severity.WARNING if one.memory >= _CLEARS * limit and not runs else None
    holds = f"still holds {'' if one.complete else 'at least '}{units.gib(one.memory)} GiB on GPU {gpu.index}"
    if process.state == _ZOMBIE:
        parent = f" of {process.ppid} {process.parent}".rstrip() if process.ppid else ""
        title = f"{pid_and_user(process)} is a zombie{parent} and {holds}"
        why = "its parent has not collected its exit status, or the driver hangs"
        evidence = f"{process.name} ended without releasing it: {why}"
    else:
        title = f"{pid_and_user(process)} has ended and {holds}"
        # While a leftover has the GPU open, the memory is not freed.
        left = [str(each.process.pid) for each in context.gap_evidence.leftovers(gpu)] if keeps is not None else []
        rest = f"leftovers have it open: pid {and_more(left[:NAMED], len(left))}" if left else ""
        rest = rest or "if it stays, only a reset frees it"
        evidence = f"the driver lists a process that the kernel no longer has · {rest}"
    return Observation(
        gpu=gpu,
        subject=f"{process.pid}:{process.start} {gpu.key}",
        level=Severity.WARNING if one.memory >= limit and not runs else None,
        keeps=keeps,
        partial=not one.complete and keeps is None and not runs,
        raise_for=context.limits.ended_process_for,
        stamp=gpu.sampled,
        title=title,
        short="ended process" + f" of {process.user}" * bool(process.user),
        evidence=evidence if keeps is not None else "",
        value=one.memory,
        unit=Unit.BYTES,
        pids=(process.pid,),
        owners=(process.user,) if process.user else (),
        how="it runs on the GPU" if runs else "its memory was freed",
    )


RULES: Final = (
    Rule(IDLE, find_idle),
    Rule(UNATTRIBUTED, find_unattributed),
    Rule(DEAD, find_ended_holders),
)
