"""A whole run that is ended: real launchers, ranks and workers; who belongs to it, who is told when, who is spared."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuwatch import procfs
from gpuwatch.kill import target as pidfd
from gpuwatch.kill.outcome import Outcome, Refusal, Refused
from gpuwatch.kill.run import Run, pin_run
from gpuwatch.kill.session import Phase, Session
from gpuwatch.kill.target import Killer, Target
from gpuwatch.model import Job, Presence, Snapshot, Surroundings
from tests.support import builders
from tests.support.gpuholder import ME, SOMEBODY_ELSE, GpuHolder
from tests.support.killing import POLICY, a_killer, asking, has_exited, look, on_record, pinned
from tests.support.running import RealRun
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

pytestmark = pytest.mark.slow


def rank_target(run: RealRun, place: int = 0) -> Target:
    """A rank as the person chose it."""
    pid = run.of("rank")[place]
    return Target(pid, run.starts[pid], run.uid, "python train.py", (builders.gpu(0).key,), builders.GIB)


def found(killer: Killer, run: RealRun, snapshot: Snapshot | None = None) -> Run:
    """The run of the first rank, which must not be refused."""
    result = pin_run(killer, pinned(killer, rank_target(run)), snapshot or run.snapshot())
    assert isinstance(result, Run), result.sentence
    return result


def refused(killer: Killer, run: RealRun, snapshot: Snapshot | None = None) -> Refused:
    """The refusal of the first rank's run, which is on record."""
    with pinned(killer, rank_target(run)) as target:
        result = pin_run(killer, target, snapshot or run.snapshot())
    assert isinstance(result, Refused)
    assert on_record(killer)[-1]["result"] == result.reason.value
    return result


def ending(killer: Killer, run: RealRun, sig: signal.Signals, **changes: Any) -> Session:
    """A session that has sent a signal to the run of the first rank."""
    session = asking(killer, rank_target(run), run.snapshot(), whole_run=True, **changes)
    session.send(sig)
    return session


def at_its_end(session: Session) -> Outcome:
    """Let a session go on to the end of all of its run; give the outcome."""
    wait_for(lambda: has_exited(session))
    assert session.outcome is not None
    return session.outcome


def test_the_run_is_the_head_and_all_below_it_in_order(tmp_path: Path) -> None:
    with RealRun() as run, RealRun(ranks=1) as other:
        members = found(a_killer(tmp_path, dev=run.dev), run)
        depth = {"launcher": 0, "rank": 1, "worker": 2}
        order = [depth[run.roles[pid]] for pid in members.pids]
        assert members.pids[0] == run.launcher
        assert order == sorted(order)
        assert sorted(members.pids) == sorted(run.roles)
        assert not set(members.pids) & set(other.roles)
        held = {member.pinned.target.pid: member.pinned.target.held for member in members.members}
        assert [held[pid] for pid in run.of("rank")] == [builders.GIB] * 4
        members.close()
        assert run.alive() == set(run.roles)


@pytest.mark.parametrize("launcher", ["passes", "dies"])
@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_all_of_it_ends_each_by_one_signal_and_nobody_else_hears_any(
    tmp_path: Path, launcher: str, sig: signal.Signals
) -> None:
    with (
        RealRun(launcher=launcher, saving=0.2) as run,
        RealRun(ranks=1) as mine,
        RealRun(ranks=1, uid=SOMEBODY_ELSE if os.geteuid() == 0 else ME) as theirs,
    ):
        killer = a_killer(tmp_path, dev=run.dev)
        done = at_its_end(ending(killer, run, sig))
        assert done.sentence.startswith("all 13 exited after")
        assert done.left == ()
        assert not run.alive()
        assert run.heard() == {pid: [sig.name] for pid in run.roles}
        assert (mine.heard(), theirs.heard()) == ({}, {})
        assert mine.alive() == set(mine.roles)
        assert theirs.alive() == set(theirs.roles)
        lines = on_record(killer)
        assert {line["run"] for line in lines} == {run.job().key}
        assert Counter(line["pid"] for line in lines if line["event"] == "intent") == Counter(run.roles.keys())
        assert Counter(line["pid"] for line in lines if line["event"] == "outcome") == Counter(run.roles.keys())
        assert [line["event"] for line in lines[:13]] == ["intent"] * 13, "all are on record before the first signal"


def test_a_rank_that_saves_keeps_its_workers_until_it_has_ended(tmp_path: Path) -> None:
    """A trainer whose data loader is shot first fails before it has written its checkpoint."""
    with RealRun(ranks=1, deaf="rank") as run:
        session = ending(a_killer(tmp_path, dev=run.dev), run, signal.SIGTERM)
        wait_for(lambda: bool(look(session)) and run.heard().keys() >= {run.launcher, run.of("rank")[0]})
        look(session)
        assert set(run.of("worker")) <= run.alive()
        assert not set(run.heard()) & set(run.of("worker"))
        os.kill(run.of("rank")[0], signal.SIGKILL)
        at_its_end(session)
        assert {pid: run.heard()[pid] for pid in run.of("worker")} == {pid: ["SIGTERM"] for pid in run.of("worker")}


def test_what_ignores_sigterm_is_counted_and_killed_only_when_asked(tmp_path: Path) -> None:
    ahead = [0.0]
    with RealRun(ranks=2, workers=1, launcher="dies", deaf="rank") as run:
        killer = a_killer(tmp_path, dev=run.dev)
        session = ending(killer, run, signal.SIGTERM, clock=lambda: time.monotonic() + ahead[0])
        wait_for(lambda: bool(look(session)) and "1 of 5 exited" in session.view.message)
        wait_for(lambda: bool(look(session)) and run.heard().keys() >= {run.launcher, *run.of("rank")})
        ahead[0] += 11
        assert look(session) is Phase.STILL_THERE
        assert "1 of 5 exited" in session.view.message
        assert "4 still running: PIDs " in session.view.message
        assert len(run.alive()) == 4
        session.send(signal.SIGKILL)
        done = at_its_end(session)
        assert done.sentence.startswith("all 5 exited after")
        assert done.killed
        assert not run.alive()


def test_what_is_forked_while_it_is_ended_is_named_and_not_signalled(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1, launcher="forks") as run:
        session = ending(a_killer(tmp_path, dev=run.dev), run, signal.SIGTERM)
        wait_for(lambda: bool(look(session)) and bool(run.late()))
        done = at_its_end(session)
        assert done.left == tuple(run.late())
        assert f"not signalled: PID {run.late()[0]}" in done.sentence
        assert run.late()[0] not in run.heard()


def test_a_process_of_somebody_else_below_the_head_is_left_out(tmp_path: Path) -> None:
    with RealRun(ranks=1, workers=1, odd=SOMEBODY_ELSE) as run:
        killer = a_killer(tmp_path, dev=run.dev)
        members = found(killer, run)
        (odd,) = run.of("odd")
        assert odd not in members.pids
        assert members.left_out == ((odd, f"it runs as uid {SOMEBODY_ELSE}"),)
        members.close()
        assert at_its_end(ending(killer, run, signal.SIGKILL)).over
        assert run.alive() == {odd}
        assert odd not in run.heard()


def test_a_run_that_gpuwatch_runs_in_is_refused_whole(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1) as run:
        inside = run.of("worker")[-1]
        policy = replace(POLICY, pid=inside)
        place = next(
            index
            for index, pid in enumerate(run.of("rank"))
            if pid != int(Path(f"/proc/{inside}/stat").read_text().rsplit(")", 1)[1].split()[1])
        )
        killer = a_killer(tmp_path, policy, dev=run.dev)
        with pinned(killer, rank_target(run, place)) as target:
            result = pin_run(killer, target, run.snapshot())
        assert isinstance(result, Refused)
        assert result.reason is Refusal.ANCESTOR
        assert f"PID {run.launcher} (" in result.sentence
        assert run.heard() == {}


def test_a_head_that_is_none_of_its_ancestors_is_not_believed(tmp_path: Path) -> None:
    with RealRun(ranks=2) as run, GpuHolder() as other:
        lie = run.job(head=other.pid, head_start=other.start_ticks, key="lie")
        alone = run.snapshot(lie)
        only = builders.snapshot(alone.gpus, [alone.processes[0]], viewer=ME)
        members = found(a_killer(tmp_path, dev=run.dev), run, only)
        assert members.pids[0] == run.of("rank")[0]
        assert len(members.pids) == 3
        members.close()


def test_a_head_with_the_pid_of_another_time_is_not_believed(tmp_path: Path) -> None:
    with RealRun(ranks=1) as run:
        members = found(a_killer(tmp_path, dev=run.dev), run, run.snapshot(run.job(head_start=1)))
        assert members.pids[0] == run.of("rank")[0]
        members.close()


def test_ranks_without_a_common_parent_are_found_by_their_key_where_they_hold_a_gpu(tmp_path: Path) -> None:
    with RealRun(ranks=1, workers=1) as run, RealRun(ranks=2, workers=1) as other:
        key = run.job(key="slurm 4711", launcher="srun", head=0, head_start=0)
        snapshot = run.snapshot(key, *other.processes(key))
        killer = a_killer(tmp_path, dev=run.dev)
        members = found(killer, run, snapshot)
        assert set(members.pids) == {run.of("rank")[0], *run.of("worker")}, "the others hold no GPU of this killer"
        assert {pid for pid, _ in members.left_out} == set(other.of("rank"))
        members.close()
        for file in ("nvidia0",):
            (Path(other.dev) / file).unlink()
    with RealRun(ranks=2, workers=1, launcher="dies") as run:
        key = run.job(key="slurm 4711", launcher="srun", head=0, head_start=0)
        only = run.snapshot(key)
        members = found(a_killer(tmp_path, dev=run.dev), run, only)
        assert set(members.pids) == {*run.of("rank"), *run.of("worker")}
        members.close()


def test_no_room_for_one_more_handle_refuses_all_and_leaks_none(tmp_path: Path) -> None:
    opened: list[int] = []

    def few(pid: int) -> int:
        if len(opened) > 4:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        opened.append(pidfd.open_pidfd(pid))
        return opened[-1]

    with RealRun() as run:
        killer = a_killer(tmp_path, dev=run.dev, open_pidfd=few)
        assert refused(killer, run).reason is Refusal.TOO_MANY
        assert run.heard() == {}
    for handle in opened:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(handle)


def test_one_that_has_just_ended_is_left_out(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1) as run:
        gone = run.of("rank")[1]
        os.kill(gone, signal.SIGKILL)
        wait_for(lambda: gone not in run.alive())
        members = found(a_killer(tmp_path, dev=run.dev), run)
        assert gone not in members.pids, "a zombie needs no signal"
        members.close()


def test_an_ended_rank_that_the_driver_still_lists_is_no_twin_of_its_successor(tmp_path: Path) -> None:
    with RealRun(ranks=2, workers=1, launcher="dies") as run:
        job = run.job(key="slurm 4711", launcher="srun", head=0, head_start=0)
        ranks = [
            replace(one, surroundings=Surroundings(job=replace(job, rank=place)))
            for place, one in enumerate(run.processes())
        ]
        ended = replace(ranks[1], pid=ranks[1].pid + 2**22, presence=Presence.GONE, state="")
        shown = replace(run.snapshot(), processes=(*ranks, ended))
        members = found(a_killer(tmp_path, dev=run.dev), run, shown)
        assert set(members.pids) == {*run.of("rank"), *run.of("worker")}
        assert members.left_out == ()
        members.close()


def test_no_run_begins_with_the_shell_that_somebody_works_in(tmp_path: Path) -> None:
    """The shell leads a session with a terminal, and is what the sampler calls the head here."""
    program = tmp_path / "train.py"
    device, ready = tmp_path / "dev" / "nvidia0", tmp_path / "ready"
    device.parent.mkdir()
    device.touch()
    program.write_text(
        f"import os, signal\nos.open({str(device)!r}, os.O_RDWR)\n"
        f"open({str(ready)!r}, 'w').write(f'{{os.getpid()}}\\n')\nsignal.pause()\n"
    )
    command = ["bash", "-c", f"{sys.executable} -S {program}; true"]
    with Terminal(command, columns=100, rows=10, env=dict(os.environ)) as shell:
        wait_for(lambda: ready.exists() and ready.read_text().endswith("\n"))
        pid = int(ready.read_text())
        start, head = procfs.read_stat(pid).start_ticks, shell.process.pid
        job: dict[str, Any] = {"key": "x", "head": head, "head_start": procfs.read_stat(head).start_ticks}
        process = builders.process(
            pid, "you", start=start, uid=os.getuid(), surroundings=Surroundings(job=Job(**job)), command="python3"
        )
        policy = replace(POLICY, uid=os.getuid(), euid=os.getuid(), allow_root=True)
        killer = a_killer(tmp_path, policy, dev=str(device.parent))
        run = pin_run(
            killer, pinned(killer, Target(pid, start, os.getuid(), "python3")), builders.snapshot([], [process])
        )
        assert isinstance(run, Run)
        assert run.pids == (pid,)
        run.close()
