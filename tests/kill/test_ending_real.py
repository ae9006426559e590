"""Ending of real processes, alone and as runs: asked, answered or not, killed, and what became of them."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch.base.errors import NoThreadError
from gpuwatch.kill.ending import (
    GRACE_SECONDS,
    MEMORY_SECONDS,
    POLL_SECONDS,
    REAP_SECONDS,
    Ending,
    KillChoice,
    KillState,
)
from gpuwatch.kill.outcome import End, Outcome
from gpuwatch.kill.pinned import KillTarget, Pinner, open_pidfd, shown_command
from gpuwatch.kill.run import PinnedRun, find_run
from gpuwatch.model.snapshot import Presence, ProcessContext, Snapshot
from tests.support import builders
from tests.support.kill import (
    POLICY,
    RealRun,
    a_pinner,
    a_target,
    asking,
    has_exited,
    look,
    on_record,
    outcomes,
    pinned,
    target_of,
)
from tests.support.process import ME, SOMEBODY_ELSE, GpuHolder
from tests.support.waiting import Clock, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def clock() -> Clock:
    """The clock of the ending under test."""
    return Clock(1000.0)


@pytest.fixture
def pinner(tmp_path: Path) -> Pinner:
    """The program as the person runs it, which reads commands as it does."""
    return a_pinner(tmp_path, describe=shown_command)


@pytest.fixture
def deaf() -> Iterator[GpuHolder]:
    """A training that ignores SIGTERM."""
    with GpuHolder(deaf=True) as training:
        yield training


def end_of(ending: Ending) -> End:
    """The end, which there must be."""
    assert ending.outcome is not None
    return ending.outcome.end


def unanswered(ending: Ending, clock: Clock) -> Ending:
    """Send SIGTERM and let the countdown run out."""
    ending.send(signal.SIGTERM)
    assert look(ending) is KillState.WAITING
    clock.now += GRACE_SECONDS
    look(ending)
    assert ending.asks_again
    return ending


def at_its_end(ending: Ending) -> Outcome:
    """Let an ending go on until all have ended; give the outcome."""
    wait_for(lambda: has_exited(ending))
    assert ending.outcome is not None
    return ending.outcome


# ---------------------------------------------------------------------------------------------------------------
# One process


def test_a_deaf_training_is_killed_only_when_asked(pinner: Pinner, deaf: GpuHolder, clock: Clock) -> None:
    ending = unanswered(asking(pinner, target_of(deaf), clock=clock), clock)
    assert end_of(ending) is End.RUNNING
    clock.now += 3600
    look(ending)
    for sig in (signal.SIGINT, signal.SIGTERM):
        with pytest.raises(ValueError, match="not stronger than SIGTERM"):
            ending.send(sig)
    assert ending.asks_again
    assert deaf.alive()
    ending.send(signal.SIGKILL)
    deaf.wait_until_exited()
    deaf.reap()
    clock.now += POLL_SECONDS
    assert has_exited(ending)
    assert end_of(ending) is End.EXITED
    assert outcomes(pinner) == [(["SIGTERM", "SIGKILL"], "exited")]


def test_a_zombie_names_the_parent_that_has_not_reaped_it(pinner: Pinner, clock: Clock) -> None:
    with GpuHolder(reap=False) as training:
        ending = asking(pinner, target_of(training), clock=clock)
        ending.send(signal.SIGTERM)
        training.wait_until_exited()
        clock.now += POLL_SECONDS
        look(ending)
        assert not ending.exited, "a parent needs a moment"
        clock.now += REAP_SECONDS
        assert at_its_end(ending).sentence.startswith(f"exited after 0.1 s, zombie: parent {os.getpid()} (")
    assert outcomes(pinner) == [(["SIGTERM"], "zombie")]


def test_a_process_in_the_kernel_does_not_hear_sigterm(pinner: Pinner, clock: Clock) -> None:
    with GpuHolder(stuck=True) as training:
        ending = unanswered(asking(pinner, target_of(training), clock=clock), clock)
        ending.abandon()
    assert outcomes(pinner) == [(["SIGTERM"], "stuck")]


def test_a_stopped_process_is_called_stopped_and_sigkill_ends_it(pinner: Pinner, clock: Clock) -> None:
    with GpuHolder() as training:
        training.stop()
        ending = unanswered(asking(pinner, target_of(training), clock=clock), clock)
        assert end_of(ending) is End.STOPPED
        ending.send(signal.SIGKILL)
        training.wait_until_exited()
        training.reap()
        clock.now += POLL_SECONDS
        assert at_its_end(ending).end is End.EXITED


def test_workers_that_outlive_their_parent_and_hold_the_gpu_are_named(pinner: Pinner, clock: Clock) -> None:
    with GpuHolder(children=2) as training:
        ending = asking(pinner, target_of(training), clock=clock)
        ending.send(signal.SIGTERM)
        training.wait_until_exited()
        training.reap()
        clock.now += POLL_SECONDS
        assert has_exited(ending)
        clock.now += MEMORY_SECONDS
        assert look(ending) is KillState.OVER
        first, second = training.children
        assert ending.message == f"exited after 0.1 s; still held by PIDs {first}, {second}"


def test_while_a_signal_is_under_way_no_second_one_is_sent(pinner: Pinner, deaf: GpuHolder, clock: Clock) -> None:
    ending = asking(pinner, target_of(deaf), clock=clock)
    ending.send(signal.SIGTERM)
    for sig in (signal.SIGTERM, signal.SIGKILL):
        ending.send(sig)
        look(ending)
    ending.abandon()
    assert deaf.alive()
    assert outcomes(pinner) == [(["SIGTERM"], "running")]


@pytest.mark.parametrize("randomised", [True, False])
def test_another_program_in_the_same_process_is_not_ended(pinner: Pinner, randomised: bool) -> None:
    """Where addresses are not random, as under a debugger, nothing tells a new title from a new program."""
    with GpuHolder(randomised=randomised) as training:
        ending = asking(pinner, target_of(training))
        training.exec()
        ending.choose(KillChoice.TERMINATE)
        another = "it runs another program now" if randomised else "it may run another program now"
        assert ending.message == f"{another}: python important_new_run.py; nothing was sent"
        assert training.alive()


def test_cancel_while_it_is_checked_closes_what_comes_of_it(pinner: Pinner, deaf: GpuHolder) -> None:
    future: Future[Any] = Future()
    calls: list[Any] = []

    def submit(call: Any) -> Future[Any]:
        calls.append(call)
        return future

    ending = Ending(pinner, target_of(deaf), Snapshot(), submit=submit)
    assert ending.choices == (KillChoice.CANCEL,)
    assert ending.choose(KillChoice.CANCEL)
    assert look(ending) is KillState.CHECKING
    handles = len(list(Path("/proc/self/fd").iterdir()))
    future.set_result(calls[0]())
    assert look(ending) is KillState.OVER
    wait_for(lambda: len(list(Path("/proc/self/fd").iterdir())) == handles)  # other threads open files now and then


def test_a_check_that_cannot_be_made_is_told(pinner: Pinner, deaf: GpuHolder) -> None:
    future: Future[Any] = Future()
    future.set_exception(NoThreadError("no more threads"))
    ending = Ending(pinner, target_of(deaf), Snapshot(), submit=lambda call: future)
    assert look(ending) is KillState.OVER
    assert ending.message == "gpuwatch failed: no more threads"


def test_nothing_of_a_demo_is_ended(pinner: Pinner, deaf: GpuHolder) -> None:
    ending = Ending(pinner, target_of(deaf), builders.snapshot([], [], demo=True))
    assert (ending.state, ending.refused, ending.message) == (KillState.OVER, True, "the demo's processes are not real")


# ---------------------------------------------------------------------------------------------------------------
# Runs


def rank_target(run: RealRun, place: int = 0) -> KillTarget:
    """A rank as the person chose it."""
    pid = run.of("rank")[place]
    gpus = (builders.gpu(0).key,)
    return a_target(pid, run.starts[pid], run.uid, "python train.py", gpus=gpus, memory=builders.GIB)


def signalled(pinner: Pinner, run: RealRun, sig: signal.Signals, **changes: Any) -> Ending:
    """An ending that has sent a signal to the run of the first rank."""
    ending = asking(pinner, rank_target(run), run.snapshot(), whole_run=True, **changes)
    ending.send(sig)
    return ending


@pytest.mark.parametrize(("launcher", "sig"), [("passes", signal.SIGINT), ("dies", signal.SIGTERM)])
def test_all_of_a_run_ends_each_by_one_signal_and_nobody_else_hears_any(
    tmp_path: Path, launcher: str, sig: signal.Signals
) -> None:
    with (
        RealRun(launcher=launcher, saving=0.2) as run,
        RealRun(ranks=1) as mine,
        RealRun(ranks=1, uid=SOMEBODY_ELSE if os.geteuid() == 0 else ME) as theirs,
    ):
        pinner = a_pinner(tmp_path, dev=run.dev)
        done = at_its_end(signalled(pinner, run, sig))
        assert done.sentence.startswith("all 13 exited after")
        assert not run.alive()
        assert run.heard() == {pid: [sig.name] for pid in run.roles}
        assert (mine.heard(), theirs.heard()) == ({}, {})
        assert mine.alive() == set(mine.roles)
        assert theirs.alive() == set(theirs.roles)
        lines = on_record(pinner)
        assert {line["run"] for line in lines} == {run.as_run().key}
        assert Counter(line["pid"] for line in lines) == Counter(run.roles.keys())


def test_a_rank_that_saves_keeps_its_workers_until_it_has_ended(tmp_path: Path) -> None:
    """A trainer whose data loader is shot first fails before it has written its checkpoint."""
    with RealRun(ranks=1, deaf="rank") as run:
        ending = signalled(a_pinner(tmp_path, dev=run.dev), run, signal.SIGTERM)
        wait_for(lambda: bool(look(ending)) and run.heard().keys() >= {run.launcher, run.of("rank")[0]})
        assert set(run.of("worker")) <= run.alive()
        assert not set(run.heard()) & set(run.of("worker"))
        os.kill(run.of("rank")[0], signal.SIGKILL)
        at_its_end(ending)
        assert {pid: run.heard()[pid] for pid in run.of("worker")} == {pid: ["SIGTERM"] for pid in run.of("worker")}


def test_what_of_a_run_ignores_sigterm_is_counted_and_killed_only_when_asked(tmp_path: Path) -> None:
    ahead = [0.0]
    with RealRun(ranks=2, workers=1, launcher="dies", deaf="rank") as run:
        pinner = a_pinner(tmp_path, dev=run.dev)
        ending = signalled(pinner, run, signal.SIGTERM, clock=lambda: time.monotonic() + ahead[0])
        wait_for(lambda: bool(look(ending)) and run.heard().keys() >= {run.launcher, *run.of("rank")})
        wait_for(lambda: run.launcher not in run.alive())
        ahead[0] += 11
        wait_for(lambda: bool(look(ending)) and ending.asks_again)
        assert "1 of 5 exited" in ending.sentence
        assert "4 still running: PIDs " in ending.sentence
        assert set(ending.on_gpu()) == {*run.of("rank"), *run.of("worker")}
        ending.send(signal.SIGKILL)
        assert at_its_end(ending).sentence.startswith("all 5 exited after")
        assert not run.alive()


def test_what_a_run_forks_while_it_is_ended_is_named_and_not_signalled(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1, launcher="forks") as run:
        ending = signalled(a_pinner(tmp_path, dev=run.dev), run, signal.SIGTERM)
        wait_for(lambda: bool(look(ending)) and bool(run.late()))
        done = at_its_end(ending)
        assert done.started == tuple(run.late())
        assert f"not signalled: PID {run.late()[0]}" in done.sentence
        assert run.late()[0] not in run.heard()


def test_a_process_of_somebody_else_in_a_run_is_left_out(tmp_path: Path) -> None:
    with RealRun(ranks=1, workers=1, odd=SOMEBODY_ELSE) as run:
        ending = signalled(a_pinner(tmp_path, dev=run.dev), run, signal.SIGKILL)
        (odd,) = run.of("odd")
        assert ending.notes == (f"not signalled: PID {odd}, it runs as uid {SOMEBODY_ELSE}",)
        assert at_its_end(ending).over
        assert run.alive() == {odd}
        assert odd not in run.heard()


def test_a_run_that_gpuwatch_runs_in_is_refused_whole(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1) as run:
        inside = run.of("worker")[-1]
        above = int(Path(f"/proc/{inside}/stat").read_text().rsplit(")", 1)[1].split()[1])
        place = next(index for index, pid in enumerate(run.of("rank")) if pid != above)
        pinner = a_pinner(tmp_path, replace(POLICY, pid=inside), dev=run.dev)
        ending = Ending(pinner, rank_target(run, place), run.snapshot(), whole_run=True)
        look(ending)
        assert ending.message.startswith("its run: gpuwatch runs inside it")
        assert f"PID {run.launcher} (" in ending.message
        assert on_record(pinner)[-1]["result"] == "ancestor"
        assert run.heard() == {}


def test_no_room_for_one_more_handle_refuses_a_run_and_leaks_none(tmp_path: Path) -> None:
    opened: list[int] = []

    def few(pid: int) -> int:
        if len(opened) > 4:
            raise OSError(24, os.strerror(24))
        opened.append(open_pidfd(pid))
        return opened[-1]

    with RealRun() as run:
        pinner = a_pinner(tmp_path, dev=run.dev, open_pidfd=few)
        ending = Ending(pinner, rank_target(run), run.snapshot(), whole_run=True)
        look(ending)
        assert "gpuwatch cannot end so many processes" in ending.message
        assert run.heard() == {}
    for handle in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


def test_of_a_run_one_that_is_being_ended_already_refuses_it(tmp_path: Path) -> None:
    """A signal to all of it would be a second one to the one that is asked to stop, and may be saving."""
    with RealRun(ranks=2, workers=0) as run:
        first, second = rank_target(run), rank_target(run, 1)
        for whole_run in (True, False):
            ending = Ending(
                a_pinner(tmp_path, dev=run.dev),
                second,
                run.snapshot(),
                has_run=True,
                whole_run=whole_run,
                is_under_way=lambda process: process == first.key,
            )
            look(ending)
            assert ending.refused is whole_run
            assert ending.run is None
            assert ("one of its processes is being ended already" in ending.message) is whole_run
            ending.abandon()


def test_an_ended_rank_that_the_driver_still_lists_is_no_twin_of_its_successor(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1, launcher="dies") as run:
        job = run.as_run(key="slurm 4711", launcher="srun", head=0, head_start=0)
        ranks = [
            replace(one, context=ProcessContext(run=replace(job, rank=place)))
            for place, one in enumerate(run.processes())
        ]
        ended = replace(ranks[1], pid=ranks[1].pid + 2**22, presence=Presence.GONE, state="")
        shown = replace(run.snapshot(), processes=(*ranks, ended))
        pinner = a_pinner(tmp_path, dev=run.dev)
        found = find_run(pinner, pinned(pinner, rank_target(run)), shown)
        assert isinstance(found, PinnedRun), found.sentence
        assert {one.pid for one in found.members} == {*run.of("rank"), *run.of("worker")}
        assert found.left_out == ()
        for member in found.members:
            member.pinned.close()
