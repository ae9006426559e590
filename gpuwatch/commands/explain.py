"""`gpuwatch explain PID`: what a process declared, which GPUs it sees, and how we know."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import msgspec

from gpuwatch import procfs
from gpuwatch.analysis.explanation import Point, points, whereabouts
from gpuwatch.commands.answer import Answer, Ask
from gpuwatch.config import Config
from gpuwatch.errors import UsageError
from gpuwatch.model import Knowledge, Presence, Process, Snapshot, SourceState

Look: TypeAlias = Callable[[Process, Snapshot, Config], Process]
"""From a process to the same with what it declared."""

PATIENCE = 3.0
"""Seconds that a process which holds no GPU is waited for; the child that reads it gives up after 2."""

_MOST_DIGITS = 10

_UNSEEN = {
    Presence.GONE: "there is no process {}",
    Presence.HIDDEN: "process {} is hidden from you, or there is none: /proc shows only your own processes (hidepid)",
    Presence.ELSEWHERE: "process {} is in another PID namespace: from inside this container it cannot be read",
    Presence.UNREADABLE: "process {} cannot be read just now: too many files are open, or memory is short",
}


def look(process: Process, snapshot: Snapshot, config: Config) -> Process:
    """Read what a process declared as the sampler does: in a child, for a read can hang and a source crash a parser."""
    from gpuwatch.inspector.client import Witness
    from gpuwatch.sampler.declarations import Declarations

    witness = Witness(shares=config.shares)
    asking = Declarations(witness)
    try:
        gpus, count = snapshot.gpus, len(snapshot.gpus)
        asking.annotate([process], gpus, count, snapshot.driver)
        asking.settle(PATIENCE)
        return asking.annotate([process], gpus, count, snapshot.driver)[0]
    finally:
        witness.close()


def prepare(pid: str, config: Config, *, as_json: bool, look: Look = look, proc: Path = procfs.PROC) -> Ask:
    """Understand the arguments; raises UsageError. `look` is for a process that the snapshot says nothing of."""
    if not (pid.isascii() and pid.isdigit() and len(pid) <= _MOST_DIGITS and int(pid)):
        raise UsageError(f"explain: {pid[:40]!a} is no PID; write a number, such as 4711")
    return functools.partial(_explain, int(pid), config, as_json, look, proc)


def _explain(pid: int, config: Config, as_json: bool, look: Look, proc: Path, snapshot: Snapshot) -> Answer:
    process = next((one for one in snapshot.processes if one.pid == pid), None)
    if process is None and snapshot.demo:
        return Answer(words=[f"the demo has no process {pid}"], code=1)
    if process is None:
        process = _owner(pid, proc)
        if process.presence is not Presence.SEEN:
            return Answer(words=[_UNSEEN[process.presence].format(pid)], code=1)
    declared = process.declared
    if declared is None or declared.knowledge is Knowledge.PENDING:
        process = look(process, snapshot, config)
    words = [] if snapshot.state is SourceState.OK else [f"without GPUs: {snapshot.words}"]
    if _is_kernel_thread(process, proc):
        words.append(f"process {pid} is a thread of the kernel: it has no environment, and declares nothing")
    if as_json:
        itself = msgspec.to_builtins(process)
        said = itself.pop("declared")
        return Answer([msgspec.json.encode({"process": itself, "declared": said}).decode()], words)
    found = [*points(process, snapshot, config.allowance), *whereabouts(process)]
    return Answer([_head(process), "", *_lines(found)], words)


def _owner(pid: int, proc: Path) -> Process:
    """Read from /proc whose a process is that holds no GPU."""
    from gpuwatch.sampler.owners import Owners

    (process,) = Owners(proc=proc).read([pid])
    return process


def _is_kernel_thread(process: Process, proc: Path) -> bool:
    if process.command or process.presence is not Presence.SEEN:
        return False
    try:
        return procfs.read_stat(process.pid, proc).kernel_thread
    except (OSError, ValueError):
        return False


def _head(process: Process) -> str:
    if process.presence in _UNSEEN:
        return f"PID {process.pid} · {_UNSEEN[process.presence].format(process.pid)}"
    command = process.command or f"[{process.name}]"
    return " · ".join(filter(None, (f"PID {process.pid}", process.user, process.state, command)))


def _lines(found: Sequence[Point]) -> list[str]:
    """Print the points in two columns, what each rests on beneath it."""
    width = max((len(point.label) for point in found), default=0)
    lines: list[str] = []
    for point in found:
        lines.append(f"{point.label:<{width}}  {point.value}")
        if point.aside:
            lines.append(f"{'':<{width}}    {point.aside}")
    return lines
