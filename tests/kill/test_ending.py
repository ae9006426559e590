"""The course of an ending, on real processes: asked, answered or not, killed, and what became of it."""

from __future__ import annotations

import errno
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuwatch.kill.audit import Audit
from gpuwatch.kill.ending import GRACE_SECONDS, KILL_SECONDS, REAP_SECONDS, Ending, NotRecordedError, Phase, Progress
from gpuwatch.kill.outcome import End, Outcome
from gpuwatch.kill.target import Killer, Target
from tests.support.gpuholder import ME, GpuHolder
from tests.support.killing import POLICY, a_killer, on_record, pinned, target_of
from tests.support.waiting import wait_for
from tests.test_procfs import fixture_process, stat_line


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """The clock of the ending under test."""
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


def outcome_of(progress: Progress) -> Outcome:
    """The outcome, which there must be."""
    assert progress.outcome is not None
    return progress.outcome


def poll_until_done(ending: Ending) -> Progress:
    """Poll as a timer does; the test's time limit is that of the whole run."""
    while (progress := ending.poll()).phase is not Phase.DONE:
        time.sleep(0.005)
    return progress


def test_a_training_that_stops_when_asked(killer: Killer, clock: Clock) -> None:
    with GpuHolder() as training:
        ending = Ending(pinned(killer, target_of(training)), clock=clock)
        assert ending.poll() == Progress(Phase.PINNED)
        assert ending.poll().sentence == "nothing was sent"
        asked = ending.begin()
        assert (asked.phase, asked.left, asked.sentence) == (Phase.ASKED, GRACE_SECONDS, "asked to stop, 10 s")
        clock.now += 1.45
        training.wait_until_exited()
        training.reap()
        done = ending.poll()
        assert (done.phase, done.left, done.sentence) == (Phase.DONE, 0.0, "exited after 1.4 s")
        clock.now += 5
        assert ending.poll().sentence == done.sentence
        ending.close()
    assert events(killer) == [("intent", "SIGTERM"), ("outcome", "exited")]
    assert on_record(killer)[1]["seconds"] == 1.45


def test_the_countdown_counts_whole_seconds(killer: Killer, deaf: GpuHolder, clock: Clock) -> None:
    ending = Ending(pinned(killer, target_of(deaf)), clock=clock)
    ending.begin()
    clock.now += 2.5
    assert ending.poll().sentence == "asked to stop, 8 s"
    ending.close()


def test_a_deaf_training_is_killed_only_when_asked(killer: Killer, deaf: GpuHolder, clock: Clock) -> None:
    ending = Ending(pinned(killer, target_of(deaf)), clock=clock)
    ending.begin()
    clock.now += GRACE_SECONDS
    unanswered = ending.poll()
    assert (unanswered.phase, outcome_of(unanswered).end) == (Phase.UNANSWERED, End.RUNNING)
    clock.now += 3600
    assert ending.poll().phase is Phase.UNANSWERED
    assert deaf.alive()

    killed = ending.go_on(signal.SIGKILL)
    assert (killed.phase, killed.left, killed.sentence) == (Phase.KILLED, KILL_SECONDS, "SIGKILL sent, 10 s")
    assert outcome_of(poll_until_done(ending)).end is End.EXITED
    ending.close()
    assert events(killer) == [
        ("intent", "SIGTERM"),
        ("outcome", "running"),
        ("intent", "SIGKILL"),
        ("outcome", "exited"),
    ]


def test_an_end_after_the_countdown_is_still_noticed(killer: Killer, deaf: GpuHolder, clock: Clock) -> None:
    ending = Ending(pinned(killer, target_of(deaf)), clock=clock)
    ending.begin()
    clock.now += GRACE_SECONDS
    ending.poll()
    os.kill(deaf.pid, signal.SIGKILL)
    deaf.reap()
    assert ending.poll().outcome == Outcome(End.EXITED, GRACE_SECONDS)
    assert ending.go_on(signal.SIGKILL).phase is Phase.DONE
    ending.close()
    assert events(killer)[1:] == [("outcome", "running"), ("outcome", "exited")]


def test_sigkill_before_the_countdown_is_over(killer: Killer, deaf: GpuHolder) -> None:
    ending = Ending(pinned(killer, target_of(deaf)))
    ending.begin()
    ending.go_on(signal.SIGKILL)
    done = poll_until_done(ending)
    assert outcome_of(done).killed
    ending.close()


def test_a_zombie_names_the_parent_that_has_not_reaped_it(killer: Killer, clock: Clock) -> None:
    with GpuHolder(reap=False) as training:
        ending = Ending(pinned(killer, target_of(training)), clock=clock)
        ending.begin()
        training.wait_until_exited()
        assert ending.poll().phase is Phase.ASKED, "a parent needs a moment"
        clock.now += REAP_SECONDS
        done = ending.poll()
        assert outcome_of(done).end is End.ZOMBIE
        parent = outcome_of(done).parent
        assert parent is not None
        assert parent[0] == os.getpid()
        assert done.sentence.startswith("exited after 0 s, zombie: parent ")
        ending.close()
    assert events(killer)[-1] == ("outcome", "zombie")


def test_a_process_in_the_kernel_does_not_hear_sigterm(killer: Killer, clock: Clock) -> None:
    with GpuHolder(stuck=True) as training:
        ending = Ending(pinned(killer, target_of(training)), clock=clock)
        ending.begin()
        clock.now += GRACE_SECONDS
        assert outcome_of(ending.poll()).end is End.STUCK
        ending.close()
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
        ending = Ending(pinned(killer, target_of(training)), clock=clock)
        ending.begin()
        clock.now += GRACE_SECONDS
        assert outcome_of(ending.poll()).end is End.STOPPED
        ending.go_on(signal.SIGKILL)
        assert outcome_of(poll_until_done(ending)).end is End.EXITED
        ending.close()


def test_a_process_that_ended_before_the_signal(killer: Killer) -> None:
    with GpuHolder() as training:
        ending = Ending(pinned(killer, target_of(training)))
        os.kill(training.pid, signal.SIGKILL)
        training.reap()
        done = ending.begin()
        assert (done.phase, outcome_of(done).end) == (Phase.DONE, End.GONE)
        ending.close()
    assert events(killer) == [("intent", "SIGTERM"), ("outcome", "gone")]


def test_workers_that_outlive_their_parent_and_hold_the_gpu(killer: Killer) -> None:
    with GpuHolder(children=2) as training:
        ending = Ending(pinned(killer, target_of(training)))
        assert ending.pinned.left_behind() == ()
        ending.begin()
        assert outcome_of(poll_until_done(ending)).end is End.EXITED
        assert ending.pinned.left_behind() == training.children
        ending.close()


def test_workers_that_end_are_not_left_behind(killer: Killer) -> None:
    with GpuHolder(children=1) as training:
        ending = Ending(pinned(killer, target_of(training)))
        ending.begin()
        poll_until_done(ending)
        worker = os.pidfd_open(training.children[0])
        signal.pidfd_send_signal(worker, signal.SIGKILL)
        os.close(worker)
        while ending.pinned.left_behind():
            os.sched_yield()
        ending.close()


def test_an_ending_left_half_way_is_on_record(killer: Killer, deaf: GpuHolder) -> None:
    ending = Ending(pinned(killer, target_of(deaf)))
    ending.begin()
    ending.close()
    assert events(killer) == [("intent", "SIGTERM"), ("outcome", "running")]
    assert deaf.alive()


def test_nothing_sent_leaves_no_outcome_on_record(killer: Killer, deaf: GpuHolder) -> None:
    Ending(pinned(killer, target_of(deaf))).close()
    assert not killer.audit.path.exists()


def test_no_signal_goes_before_its_line_on_a_full_disk(tmp_path: Path, deaf: GpuHolder) -> None:
    def full(_file: int, _line: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    killer = Killer(POLICY, Audit(tmp_path, write=full))
    assert killer.audit.problem() is None, "the file itself can be opened"
    ending = Ending(pinned(killer, target_of(deaf)))
    with pytest.raises(NotRecordedError, match="No space left on device") as refused:
        ending.begin(signal.SIGKILL)
    assert not (tmp_path / "actions.jsonl").stat().st_size
    assert deaf.alive()
    ending.begin(signal.SIGKILL, told=(str(refused.value),))
    wait_for(ending.pinned.exited)
    ending.close()


def test_sigkill_never_comes_first_and_sigterm_comes_once(killer: Killer, deaf: GpuHolder) -> None:
    ending = Ending(pinned(killer, target_of(deaf)))
    with pytest.raises(RuntimeError, match="pinned"):
        ending.go_on(signal.SIGKILL)
    ending.begin()
    with pytest.raises(RuntimeError, match="asked"):
        ending.begin()
    ending.close()
