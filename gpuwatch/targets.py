"""What is to be ended, as the screen shows it: `actions.kill` proves that it is still the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuwatch import procfs
from gpuwatch.actions.kill import Killer, Policy, Target
from gpuwatch.analysis.rows import Row, rows
from gpuwatch.model import Presence, Process, Snapshot, known

if TYPE_CHECKING:
    from gpuwatch.actions.interfaces import ProcessEnder


def not_yours(process: Process, policy: Policy) -> str:
    """Say whose a process is that is not one's own; empty where it is, or where nothing may be ended at all."""
    if policy.read_only or process.uid in (None, policy.may_end):
        return ""
    return f"it belongs to {process.user or '?'}, and gpuwatch signals only your own processes"


def wrong_machine(snapshot: Snapshot, ender: ProcessEnder) -> str:
    """Return why nothing of a snapshot may be ended through `ender`; empty where it may.

    The PIDs of a demo may be those of real processes here, so its snapshots go with its own ender alone.
    """
    if snapshot.demo and not ender.notice:
        return "demo: its processes are not real"
    return "a demo can end no real process" if ender.notice and not snapshot.demo else ""


def target_of(held: Sequence[Row], snapshot: Snapshot, age: float = 0.0) -> Target:
    """Give what `actions.kill` must find: the process of `held`, its rows on all GPUs, as the screen shows it.

    `age` is how many seconds ago the snapshot came.
    """
    first = held[0]
    # A tenth of an interval more, since a sample that is due has not always been taken yet.
    oldest = 2.1 * max(snapshot.interval, 0.5) - age
    return Target(
        pid=first.holding.pid,
        start_ticks=first.process.start or first.holding.start,
        uid=first.process.uid,
        command=first.process.command,
        gpus=tuple(row.gpu.key for row in held),
        held=sum(int(row.holding.memory) for row in held if known(row.holding.memory)),
        stale=any(snapshot.monotonic - row.gpu.sampled > oldest for row in held),
        unreliable=any(row.gpu.unreliable for row in held),
        program=first.process.program,
        unsure=first.process.presence is Presence.UNSURE,
    )


def target_of_unlisted(process: Process, gpus: Sequence[str] = ()) -> Target:
    """Give the same for a process that the driver does not list, and that has device files of these GPUs open."""
    return Target(process.pid, process.start, process.uid, process.command, tuple(gpus), program=process.program)


def target_of_pid(pid: int, snapshot: Snapshot, killer: Killer) -> tuple[Target, Process | None]:
    """Give the same for a PID that somebody typed, and its process, where the snapshot has it."""
    held = [row for row in rows(snapshot) if row.holding.pid == pid]
    if held:
        return target_of(held, snapshot), held[0].process
    found = next((one for one in snapshot.unlisted if one.process.pid == pid), None)
    if found is not None:
        return target_of_unlisted(found.process, found.gpus), found.process
    try:
        stat, uid = procfs.read_stat(pid), procfs.read_uids(pid)[1]
    except (OSError, ValueError):
        return Target(pid, 1, killer.policy.may_end, "", unlisted=True), None  # the pin says what is the matter
    command = killer.shown(pid, stat.comm)
    return Target(pid, stat.start_ticks, uid, command, unlisted=True, program=stat.program), None
