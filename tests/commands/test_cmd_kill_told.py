"""`gpuwatch kill`, the command on real runs of processes and made-up snapshots: whom it takes, and what it says."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from gpuwatch.commands.kill import DialogConsole, Interrupted, KillCommand
from gpuwatch.kill.pinned import Pinner
from gpuwatch.model.snapshot import ProcessContext, Snapshot, Unlisted
from tests.support.alerts import Script
from tests.support.builders import EPOCH, gpu, holding, process, snapshot
from tests.support.kill import RealRun, a_pinner, held_by, on_record, outcomes
from tests.support.process import GpuHolder

STEP = 0.25
"""Seconds that go by with each snapshot, once nothing is waited for."""

PATIENCE = 60.0
"""Seconds that real processes are given."""

Said = pytest.CaptureFixture[str]


class Shown(Script):
    """Snapshots one after the other, the last again and again; until it `passes`, time goes at half its pace."""

    def __init__(self, *snapshots: Snapshot, passes: Callable[[], bool] = lambda: True, breaks_off: int = 0) -> None:
        """After so many steps at `breaks_off` the program is told to end; 0 for never."""
        super().__init__()
        self._snapshots = list(snapshots)
        self._passes = passes
        self._breaks_off = breaks_off
        self._steps = 0
        self._now = 0.0
        self._end = time.monotonic() + PATIENCE

    def clock(self) -> float:
        """Return the time, in seconds."""
        return self._now

    def next(self, timeout: float) -> Snapshot:
        """Return the next one."""
        assert time.monotonic() < self._end, "it did not come to what was waited for"
        if self._passes():
            self._steps += 1
            self._now += STEP
        else:
            time.sleep(0.01)
            self._now += 0.005
        if 0 < self._breaks_off <= self._steps:
            raise Interrupted(signal.SIGTERM)
        return self._snapshots.pop(0) if len(self._snapshots) > 1 else self._snapshots[0]


class Done(NamedTuple):
    """What came of it."""

    code: int
    out: str
    err: str


class YesConsole(DialogConsole):
    """Console on which every question is kept, and answered with yes."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def question(self, words: str) -> None:
        """Keep a question."""
        self.asked.append(words)

    def answer(self, seconds: float) -> str:
        """Return the answer."""
        return "y"


def end(
    pinner: Pinner,
    shown: Shown,
    said: Said,
    *pids: int,
    whole_run: bool = True,
    console: DialogConsole | None = None,
) -> Done:
    """Run the command with SIGTERM, unasked where no console is given."""
    asks, clock, sig = console or DialogConsole(), shown.clock, signal.SIGTERM
    ends = KillCommand(
        shown, pinner, asks, lambda: None, sig, whole_run=whole_run, ask=console is not None, clock=clock
    )
    try:
        code = ends.run(pids)
    except Interrupted as told:
        code = 128 + told.number
    return Done(code, *said.readouterr())


# ---------------------------------------------------------------------------------------------------------------
# What a run is


def unlisted(run: RealRun, pid: int, around: ProcessContext | None) -> Snapshot:
    """A snapshot in which one of a run is not listed by NVML, and has the GPU open."""
    found = process(pid, "you", start=run.starts[pid], uid=run.uid, context=around)
    return snapshot(
        [gpu(0)], [], viewer=run.uid, searched=EPOCH, unlisted=(Unlisted(process=found, gpus=(gpu(0).key,)),)
    )


@pytest.mark.parametrize("listed", [True, False])
def test_where_nothing_tells_what_the_run_is_nothing_is_ended(tmp_path: Path, capsys: Said, listed: bool) -> None:
    with RealRun(ranks=1) as run:
        pid = run.of("rank" if listed else "worker")[0]
        bare = process(pid, "you", start=run.starts[pid], uid=run.uid, command="python train.py", context=None)
        held = snapshot([gpu(0, holdings=[holding(pid, start=bare.start)])], [bare], viewer=run.uid)
        pinner = a_pinner(tmp_path, dev=run.dev)
        done = end(pinner, Shown(held if listed else unlisted(run, pid, None)), capsys, pid)
        assert (done.code, done.out) == (1, "")
        assert f"PID {pid} is not ended: " in done.err
        assert (
            "gpuwatch does not know which processes belong to it; without --run only this process is ended" in done.err
        )
        assert run.alive() == set(run.roles)
        assert [(line["event"], line["result"]) for line in on_record(pinner)] == [("refused", "run unknown")]


def test_a_run_of_which_something_still_runs_is_no_success(tmp_path: Path, capsys: Said) -> None:
    with RealRun(ranks=1, launcher="forks") as run:
        shown = Shown(run.snapshot(), passes=lambda: not run.alive() and bool(run.late()))
        done = end(a_pinner(tmp_path, dev=run.dev), shown, capsys, run.of("rank")[0])
        (late,) = run.late()
        assert f"not signalled: PID {late}" in done.out
        assert done.code == 1


# ---------------------------------------------------------------------------------------------------------------
# What is left


def test_sigterm_ignored_is_not_followed_by_sigkill_without_being_asked_for(tmp_path: Path, capsys: Said) -> None:
    pinner = a_pinner(tmp_path)
    with GpuHolder(deaf=True) as training:
        done = end(pinner, Shown(held_by(training)), capsys, training.pid, whole_run=False)
        assert done.code == 1
        assert training.alive()
        assert f"PID {training.pid}: ignored SIGTERM for 10 s; left running" in done.out
        assert f"next: gpuwatch kill {training.pid} --signal KILL" in done.out
    assert outcomes(pinner) == [(["SIGTERM"], "running")]


def test_asked_ignored_asked_again_and_killed(tmp_path: Path, capsys: Said) -> None:
    pinner, console = a_pinner(tmp_path), YesConsole()
    with GpuHolder(deaf=True) as training:
        shown = Shown(held_by(training), passes=lambda: len(console.asked) < 2 or not training.alive())
        done = end(pinner, shown, capsys, training.pid, whole_run=False, console=console)
        assert (done.code, training.alive()) == (0, False)
        assert f"PID {training.pid}: exited after" in done.out
    first, second = console.asked
    assert first.endswith(" with SIGTERM?")
    assert second.endswith(". Send SIGKILL?")
    ((sent, came),) = outcomes(pinner)
    assert sent == ["SIGTERM", "SIGKILL"]
    assert came in ("exited", "zombie"), "its parent here may not have waited for it yet"


# ---------------------------------------------------------------------------------------------------------------
# Broken off


def test_what_has_ended_is_told_though_its_memory_was_not_waited_for(tmp_path: Path, capsys: Said) -> None:
    with RealRun(ranks=2, workers=0, launcher="dies") as run:
        first, second = run.of("rank")
        shown = Shown(run.snapshot(), passes=lambda: first not in run.alive(), breaks_off=8)
        done = end(a_pinner(tmp_path, dev=run.dev), shown, capsys, first, second, whole_run=False)
        assert done.code == 128 + signal.SIGTERM
        assert f"PID {first}: exited after " in done.out
        assert "whether it freed its memory was not checked\n" in done.out
        assert "nothing more is sent" in done.err
        assert second in run.alive()


@pytest.mark.parametrize(("typed", "end_of_line"), [(b"n\n", ""), (b"", "\n")])
def test_an_answer_ends_the_line_of_its_question_and_ctrl_d_does_not(
    capsys: Said, monkeypatch: pytest.MonkeyPatch, typed: bytes, end_of_line: str
) -> None:
    reads, writes = os.pipe()
    os.write(writes, typed)
    os.close(writes)
    with os.fdopen(reads) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        console = DialogConsole()
        console.question("End this process?")
        assert console.answer(1.0) == typed.decode().strip()
        console.warn("nothing was sent")
    assert capsys.readouterr().err == f"End this process? [y/N] {end_of_line}gpuwatch: nothing was sent\n"
