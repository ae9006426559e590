"""Processes that end while the driver still lists them: who they were stays known, until it lets go of them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from gpuwatch.history.history import Usage
from gpuwatch.model.shares import was_read
from gpuwatch.model.snapshot import Presence, Process, Reason, Snapshot, SourceState
from gpuwatch.sources.local import LocalSource, keep_known
from tests.driver import GIB, Driver, Proc
from tests.sources.test_local import Start, start
from tests.support import builders
from tests.support.builders import declares
from tests.support.sampler import until

__all__ = ["start"]


def only(snapshot: Snapshot) -> Process | None:
    """Return the process that the driver lists, in a snapshot of its GPU."""
    if snapshot.state is not SourceState.OK or not snapshot.processes:
        return None
    (found,) = snapshot.processes
    (holding,) = snapshot.gpus[0].holdings
    assert (holding.pid, holding.start) == found.key
    return found


def until_process(source: LocalSource, presence: Presence, state: str = "", sequence: int = 0) -> Process:
    """Wait until the process is seen so, by a sampler that has written so many snapshots at least."""

    def is_seen(snapshot: Snapshot) -> bool:
        found = only(snapshot)
        return bool(
            found
            and (found.presence, state in ("", found.state)) == (presence, True)
            and snapshot.sequence >= sequence
            and was_read(found.declared)
        )

    found = only(until(source, is_seen))
    assert found is not None
    return found


def kill_sampler(source: LocalSource) -> None:
    """Kill the sampler, as the supervisor does with one that hangs, and wait for the first snapshot of the next."""
    assert source._child is not None
    before = source._child.pid
    os.kill(before, signal.SIGKILL)
    until(source, lambda it: it.state is SourceState.OK and source._child is not None and source._child.pid != before)


@pytest.fixture
def training() -> Iterator[subprocess.Popen[bytes]]:
    """A program that declares a share and waits; its parent reaps it when the test says so."""
    environment = {"PATH": os.environ["PATH"], "GPUWATCH_SHARE": "30GiB"}
    with subprocess.Popen(["sleep", "600"], env=environment) as process:
        yield process
        process.kill()


def facts(process: Process) -> Process:
    """Return a process without what changes when it ends."""
    gone: dict[str, object] = {"cpu": Reason.NO_SAMPLE, "below": Reason.NO_SAMPLE, "rss": Reason.NO_SAMPLE}
    return replace(process, presence=Presence.SEEN, state="", leader_alive=None, program="", started=None, **gone)


@pytest.mark.slow
@pytest.mark.parametrize("restarted", [False, True], ids=["by the same sampler", "by new samplers"])
def test_what_was_known_stays_until_the_driver_lets_go(
    driver: Driver, start: Start, training: subprocess.Popen[bytes], restarted: bool
) -> None:
    driver.put(procs=[Proc(0, training.pid, memory=40 * GIB)])
    source = start()
    alive = until_process(source, Presence.SEEN, "sleeping")
    assert (alive.uid, alive.command, alive.start > 0) == (os.getuid(), "sleep 600", True)

    training.kill()
    if restarted:
        kill_sampler(source)
    zombie = until_process(source, Presence.SEEN, "zombie", 2)
    assert facts(zombie) == facts(alive)

    training.wait()
    gone = until_process(source, Presence.GONE)
    if restarted:
        kill_sampler(source)
        gone = until_process(source, Presence.GONE, sequence=2)
    assert facts(gone) == facts(alive)
    assert (gone.state, gone.rss) == ("", Reason.NO_SAMPLE)

    usage = Usage()
    for _ in range(3):
        usage.add(until(source, lambda it: only(it) is not None))
    assert list(usage.totals) == [os.getuid()]

    driver.put(procs=[])
    until(source, lambda it: it.state is SourceState.OK and not it.processes)
    driver.put(procs=[Proc(0, training.pid)])
    unknown = only(until(source, lambda it: only(it) is not None))
    assert unknown is not None
    assert (unknown.presence, unknown.start, unknown.uid) == (Presence.GONE, 0, None)


ADA = builders.process(7, "ada", declared=declares(0, 30 * GIB))


def seen(process: Process) -> Snapshot:
    return builders.snapshot([builders.gpu(0, holdings=[builders.holding(7, start=process.start)])], [process])


@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        (Presence.GONE, Presence.GONE),
        # It was in this container, so the driver lists PIDs of this container.
        (Presence.ELSEWHERE, Presence.GONE),
        # It may have ended, or hide from us.
        (Presence.HIDDEN, Presence.HIDDEN),
        (Presence.UNREADABLE, Presence.UNREADABLE),
    ],
)
def test_one_that_is_not_to_be_seen_any_more_keeps_its_facts(listed: Presence, shown: Presence) -> None:
    snapshot = keep_known(seen(Process(pid=7, presence=listed)), {7: ADA})
    (found,), (holding,) = snapshot.processes, snapshot.gpus[0].holdings
    assert (found.presence, found.key, holding.start, found.user) == (shown, ADA.key, ADA.start, "ada")
    assert (found.command, found.declared, found.state) == (ADA.command, ADA.declared, "")


def test_a_new_process_of_its_pid_is_another_one() -> None:
    other = builders.process(7, "ben", start=ADA.start + 1)
    assert keep_known(seen(other), {7: replace(ADA, presence=Presence.GONE)}) == seen(other)


def test_one_that_was_never_known_stays_so() -> None:
    unknown = seen(Process(pid=7, presence=Presence.GONE))
    assert keep_known(unknown, {8: ADA}) == unknown
