"""What the tests of ending processes share: a pinner, its audit file, and groups that are driven by hand."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuwatch.kill.audit import Audit
from gpuwatch.kill.group import KillState, ProcessGroup
from gpuwatch.kill.outcome import Refusal, Refused
from gpuwatch.kill.pinned import KillTarget, PinnedProcess, Pinner
from gpuwatch.kill.policy import Policy
from gpuwatch.model.snapshot import Process, Snapshot
from tests.support.process import ME, GpuHolder

NO_PROCESS = 2**22 + 1
"""Above the largest pid_max of Linux. The holders are children of pytest, so its own PID would shield them."""

POLICY = Policy(uid=ME, euid=ME, pid=NO_PROCESS)


def a_pinner(folder: Path, policy: Policy = POLICY, **seams: Any) -> Pinner:
    """The program as this person runs it, with its audit file in `folder`."""
    return Pinner(policy, Audit(folder), **seams)


def a_target(
    pid: int, start: int, uid: int | None = ME, command: str = "", program: str = "", **more: Any
) -> KillTarget:
    """A process as a row of the screen has it."""
    return KillTarget(Process(pid=pid, start=start, uid=uid, command=command, program=program), **more)


def target_of(holder: GpuHolder, **changes: Any) -> KillTarget:
    """The row of a holder on screen; `changes` are of its process."""
    shown = a_target(holder.pid, holder.start_ticks, holder.uid, holder.command, gpus=("GPU-4",), memory=12 << 30)
    return replace(shown, process=replace(shown.process, **changes))


def pinned(pinner: Pinner, target: KillTarget) -> PinnedProcess:
    """Pin what must not be refused."""
    result = pinner.pin(target)
    assert isinstance(result, PinnedProcess), result.sentence
    return result


def refused(pinner: Pinner, target: KillTarget) -> Refused:
    """Try what must be refused, and see that it is on record."""
    result = pinner.pin(target)
    if isinstance(result, PinnedProcess):
        result.close()
        raise AssertionError(f"PID {target.pid} was not refused")
    last = on_record(pinner)[-1]
    assert (last["event"], last["pid"], last["result"]) == ("refused", target.pid, result.reason.word)
    return result


def reason(pinner: Pinner, target: KillTarget) -> Refusal:
    """Why a target is refused."""
    return refused(pinner, target).reason


def asking(
    pinner: Pinner,
    target: KillTarget,
    snapshot: Snapshot | None = None,
    *,
    whole_run: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> ProcessGroup:
    """A group that was checked at once and has come to the question."""
    group = ProcessGroup(pinner, target, snapshot or Snapshot(), whole_run=whole_run, clock=clock)
    group.tick()
    assert group.state is KillState.ASKING, group.message
    return group


def look(group: ProcessGroup) -> KillState:
    """Let a group look where it is time to look, and go on by what it saw."""
    for _ in range(3):
        group.tick()
    return group.state


def has_exited(group: ProcessGroup) -> bool:
    """Let a group look; whether all of it has come to its end."""
    look(group)
    return group.exited


def on_record(pinner: Pinner) -> list[dict[str, Any]]:
    """The lines of the audit file."""
    assert pinner.audit.flush(30.0) is None
    return [json.loads(line) for line in pinner.audit.path.read_text().splitlines()]


def outcomes(pinner: Pinner) -> list[tuple[list[str], str]]:
    """The signals and the result of each line about an outcome."""
    return [(line["signals"], line["result"]) for line in on_record(pinner) if line["event"] == "outcome"]


def sent(process: PinnedProcess, sig: signal.Signals) -> bool:
    """Signal a process; whether the signal was sent."""
    return process.send(sig) is None
