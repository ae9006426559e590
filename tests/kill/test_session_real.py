"""A session on real processes: asked, answered or not, killed, and what became of them."""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.kill.outcome import MEMORY_PATIENCE, End, Outcome
from gpuwatch.kill.session import GRACE_SECONDS, KILL_SECONDS, LOOK_EVERY, REAP_SECONDS, Phase, Session
from gpuwatch.kill.target import Killer, Target
from tests.support.gpuholder import ME, GpuHolder
from tests.support.killing import Clock, a_killer, asking, has_exited, look, on_record, pinned, target_of
from tests.support.waiting import wait_for
from tests.test_procfs import fixture_process, stat_line

pytestmark = pytest.mark.slow


@pytest.fixture
def clock() -> Clock:
    """The clock of the session under test."""
    return Clock()


@pytest.fixture
def killer(tmp_path: Path) -> Killer:
    """The program as the person runs it."""
    return a_killer(tmp_path)


@pytest.fixture
def deaf() -> Iterator[GpuHolder]:
    """A training that ignores SIGTERM."""
    with GpuHolder(deaf=True) as training:
        yield training


def events(killer: Killer) -> list[tuple[str, str]]:
    """What is on record: each event with its signal or its result."""
    return [(line["event"], line.get("signal") or line["result"]) for line in on_record(killer)]


def end_of(session: Session) -> End:
    """The end, which there must be."""
    assert session.outcome is not None
    return session.outcome.end


def unanswered(session: Session, clock: Clock, sig: signal.Signals = signal.SIGTERM) -> Session:
    """Send a signal and let the countdown run out."""
    session.send(sig)
    assert look(session) is Phase.STOPPING
    clock.now += GRACE_SECONDS
    assert look(session) is Phase.STILL_THERE
    return session


def test_a_deaf_training_is_killed_only_when_asked(killer: Killer, deaf: GpuHolder, clock: Clock) -> None:
    session = unanswered(asking(killer, target_of(deaf), clock=clock), clock)
    assert end_of(session) is End.RUNNING
    clock.now += 3600
    assert look(session) is Phase.STILL_THERE
    assert deaf.alive()

    session.send(signal.SIGKILL)
    session.tick()
    assert (session.phase, session.view.message) == (Phase.KILLING, f"SIGKILL sent, {KILL_SECONDS:.0f} s …")
    deaf.wait_until_exited()
    deaf.reap()
    clock.now += LOOK_EVERY
    assert has_exited(session)
    assert end_of(session) is End.EXITED
    assert events(killer) == [
        ("intent", "SIGTERM"),
        ("outcome", "running"),
        ("intent", "SIGKILL"),
        ("outcome", "exited"),
    ]


def test_an_end_after_the_countdown_is_still_noticed(killer: Killer, deaf: GpuHolder, clock: Clock) -> None:
    session = unanswered(asking(killer, target_of(deaf), clock=clock), clock)
    os.kill(deaf.pid, signal.SIGKILL)
    deaf.reap()
    session.send(signal.SIGKILL)
    assert has_exited(session)
    assert session.outcome == Outcome(End.EXITED, GRACE_SECONDS)
    assert events(killer)[1:] == [("outcome", "running"), ("outcome", "exited")]


def test_sigkill_may_come_first_where_it_was_asked_for(killer: Killer, deaf: GpuHolder) -> None:
    session = asking(killer, target_of(deaf))
    session.send(signal.SIGKILL)
    wait_for(lambda: has_exited(session))
    assert session.outcome is not None
    assert session.outcome.killed


def test_a_zombie_names_the_parent_that_has_not_reaped_it(killer: Killer, clock: Clock) -> None:
    with GpuHolder(reap=False) as training:
        session = asking(killer, target_of(training), clock=clock)
        session.send(signal.SIGTERM)
        training.wait_until_exited()
        assert look(session) is Phase.STOPPING, "a parent needs a moment"
        clock.now += REAP_SECONDS
        assert has_exited(session)
        assert end_of(session) is End.ZOMBIE
        assert session.outcome is not None
        parent = session.outcome.parent
        assert parent is not None
        assert parent[0] == os.getpid()
        assert session.outcome.sentence.startswith("exited after 0 s, zombie: parent ")
    assert events(killer)[-1] == ("outcome", "zombie")


def test_a_process_in_the_kernel_does_not_hear_sigterm(killer: Killer, clock: Clock) -> None:
    with GpuHolder(stuck=True) as training:
        session = unanswered(asking(killer, target_of(training), clock=clock), clock)
        assert end_of(session) is End.STUCK
        session.abandon()
    assert events(killer) == [("intent", "SIGTERM"), ("outcome", "stuck")]


def test_a_process_that_sigkill_does_not_end_is_stuck(tmp_path: Path, clock: Clock) -> None:
    """Only a broken driver makes one of these, so the process is a fixture, and nothing real has its PID."""
    pid = 2**22 + 7
    folder = fixture_process(tmp_path / "proc", pid, stat_line(pid), uid=ME, threads="SD")
    (folder / "fd" / "3").symlink_to("/dev/nvidia0")

    def no_handle(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    killer = a_killer(tmp_path, proc=tmp_path / "proc", open_pidfd=no_handle)
    with pinned(killer, Target(pid, 900, ME, "x")) as process:
        assert process.look().end is End.RUNNING, "one thread that writes to a disk is nothing yet"
        assert process.look(killed=True).end is End.STUCK
        (folder / "task" / str(pid + 1) / "stat").write_bytes(stat_line(pid + 1, state="Z"))
        assert process.look(killed=True).end is End.RUNNING


def test_a_stopped_process_is_called_stopped_and_sigkill_ends_it(killer: Killer, clock: Clock) -> None:
    with GpuHolder() as training:
        training.stop()
        session = unanswered(asking(killer, target_of(training), clock=clock), clock)
        assert end_of(session) is End.STOPPED
        session.send(signal.SIGKILL)
        session.tick()
        training.wait_until_exited()
        training.reap()
        clock.now += LOOK_EVERY
        assert has_exited(session)
        assert end_of(session) is End.EXITED


def test_a_process_that_ended_before_the_signal(killer: Killer) -> None:
    with GpuHolder() as training:
        session = asking(killer, target_of(training))
        os.kill(training.pid, signal.SIGKILL)
        training.reap()
        session.send(signal.SIGTERM)
        session.tick()
        assert (session.phase, end_of(session), session.ended) == (Phase.OVER, End.GONE, True)
    assert events(killer) == [("intent", "SIGTERM"), ("outcome", "gone")]


def test_workers_that_outlive_their_parent_and_hold_the_gpu(killer: Killer, clock: Clock) -> None:
    with GpuHolder(children=2) as training:
        session = asking(killer, target_of(training), clock=clock)
        session.send(signal.SIGTERM)
        training.wait_until_exited()
        training.reap()
        assert look(session) is Phase.FREEING
        clock.now += MEMORY_PATIENCE
        assert look(session) is Phase.OVER
        first, second = training.children
        assert session.message == f"exited after 0 s; still held by PIDs {first}, {second}"


def test_workers_that_end_are_not_left_behind(killer: Killer, clock: Clock) -> None:
    with GpuHolder(children=1) as training:
        session = asking(killer, target_of(training), clock=clock)
        session.send(signal.SIGTERM)
        training.wait_until_exited()
        training.reap()
        assert look(session) is Phase.FREEING
        worker = os.pidfd_open(training.children[0])
        signal.pidfd_send_signal(worker, signal.SIGKILL)
        wait_for(lambda: bool(select.select([worker], [], [], 0)[0]))
        os.close(worker)
        clock.now += MEMORY_PATIENCE
        assert look(session) is Phase.OVER
        assert session.message == "exited after 0 s"


def test_while_a_signal_is_under_way_no_second_one_is_sent(killer: Killer, deaf: GpuHolder) -> None:
    session = asking(killer, target_of(deaf))
    session.send(signal.SIGTERM)
    for sig in (signal.SIGTERM, signal.SIGKILL):
        session.send(sig)
        look(session)
        session.send(sig)
    assert session.phase is Phase.STOPPING
    assert deaf.alive()
    session.abandon()
    assert events(killer) == [("intent", "SIGTERM"), ("outcome", "running")]


def test_after_a_signal_only_a_harder_one_follows(killer: Killer, deaf: GpuHolder, clock: Clock) -> None:
    session = unanswered(asking(killer, target_of(deaf), clock=clock), clock)
    for sig in (signal.SIGINT, signal.SIGTERM):
        with pytest.raises(ValueError, match="no harder than SIGTERM"):
            session.send(sig)
    assert session.phase is Phase.STILL_THERE
    session.abandon()
