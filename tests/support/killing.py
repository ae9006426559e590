"""What the tests of ending a process share: a person, a record, and the row that they chose."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from gpuwatch.kill.audit import Audit
from gpuwatch.kill.outcome import Outcome, Refusal, Refused
from gpuwatch.kill.policy import Policy
from gpuwatch.kill.session import Phase, PinnedProcess, Session, call_now
from gpuwatch.kill.target import Killer, Pinned, Target
from gpuwatch.model import Snapshot
from tests.support.gpuholder import ME, GpuHolder

NO_PROCESS = 2**22 + 1
"""Above the largest pid_max of Linux. The holders are children of pytest, so its own PID would shield them."""

POLICY = Policy(uid=ME, euid=ME, pid=NO_PROCESS)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def a_killer(folder: Path, policy: Policy = POLICY, **seams: Any) -> Killer:
    """The program as this person runs it, with its record in `folder`."""
    return Killer(policy, Audit(folder), **seams)


def target_of(holder: GpuHolder, **changes: Any) -> Target:
    """The row of a holder on screen."""
    shown = Target(holder.pid, holder.start_ticks, holder.uid, holder.command, ("GPU-4",), 12 << 30)
    return replace(shown, **changes)


def pinned(killer: Killer, target: Target) -> Pinned:
    """Pin what must not be refused."""
    result = killer.pin(target)
    assert isinstance(result, Pinned), result.sentence
    return result


def refused(killer: Killer, target: Target) -> Refused:
    """Try what must be refused, and see that it is on record."""
    result = killer.pin(target)
    if isinstance(result, Pinned):
        result.close()
        raise AssertionError(f"PID {target.pid} was not refused")
    last = on_record(killer)[-1]
    assert (last["event"], last["pid"], last["result"]) == ("refused", target.pid, result.reason.value)
    return result


def reason(killer: Killer, target: Target) -> Refusal:
    """Why a target is refused."""
    return refused(killer, target).reason


def sent(process: PinnedProcess, sig: signal.Signals) -> Outcome | None:
    """Signal a process, with its line of intent; None when it was sent."""
    process.record("intent", signal=sig.name)
    return process.send(sig)


def asking(
    killer: Killer,
    target: Target,
    snapshot: Snapshot | None = None,
    *,
    whole_run: bool = False,
    clock: Callable[[], float] = time.monotonic,
) -> Session:
    """A session that makes its calls at once and has come to the question."""
    session = Session(killer, target, snapshot or Snapshot(), submit=call_now, whole_run=whole_run, clock=clock)
    session.tick()
    assert session.phase is Phase.ASKING, session.message
    return session


def look(session: Session) -> Phase:
    """Let a session pick up what was done, look where it is time to look, and go on by what it saw."""
    for _ in range(4):
        session.tick()
    return session.phase


def has_exited(session: Session) -> bool:
    """Let a session look; whether all of it has come to its end."""
    return look(session) in (Phase.FREEING, Phase.OVER)


def on_record(killer: Killer) -> list[dict[str, Any]]:
    """The lines of the record."""
    return [json.loads(line) for line in killer.audit.path.read_text().splitlines()]
