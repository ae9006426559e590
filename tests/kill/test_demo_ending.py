"""Ending the demo's processes: a session goes through every step and signals nothing that is real."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuwatch.analysis.rows import rows
from gpuwatch.history import History
from gpuwatch.kill.demo import DemoEnder, DemoProcess
from gpuwatch.kill.outcome import Refusal, Refused
from gpuwatch.kill.session import SIGNALS, Choice, Phase, ProcessEnder, Session, call_now
from gpuwatch.kill.target import Target, target_of_unlisted
from gpuwatch.kill.target import target_of as target_of_rows
from gpuwatch.model import Process, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.sources.demo import DemoSource
from gpuwatch.sources.demo_machine import LEFTOVER_PID, RUN_PID, RUN_WORKER_PIDS, STRAY_PID, VIEWER_UID
from gpuwatch.ui.app import GpuwatchApp, NewFrame
from gpuwatch.ui.options import Helpers
from tests.program.test_pty import GPUWATCH
from tests.support import builders
from tests.support.dashboards import Clockwork, text
from tests.support.gpuholder import ROOT, GpuHolder, unavailable
from tests.support.killing import Clock, a_killer, look, sent, target_of
from tests.support.terminal import Terminal

NOTICE = "demo: nothing is signalled"


def pids(snapshot: Snapshot) -> set[int]:
    """Return all that there are, listed or not."""
    return {one.pid for one in snapshot.processes} | {one.process.pid for one in snapshot.unlisted}


class Ending:
    """A session about a process of the demo, whose seconds pass when a test says so."""

    def __init__(self, pid: int, *, whole_run: bool = False) -> None:
        self._clock = Clock()
        self._source = DemoSource(clock=self._clock, interval=0.5)
        self.snapshot = self._next()
        found = [row for row in rows(self.snapshot) if row.holding.pid == pid]
        self.session = Session(
            DemoEnder(self._source),
            target_of_rows(found, self.snapshot) if found else self._unlisted(pid),
            self.snapshot,
            submit=call_now,
            clock=self._clock,
            whole_run=whole_run,
        )
        look(self.session)

    def _next(self) -> Snapshot:
        snapshot = self._source.next(0.0)
        assert snapshot is not None
        return snapshot

    def _unlisted(self, pid: int) -> Target:
        (one,) = [one for one in self.snapshot.unlisted if one.process.pid == pid]
        return target_of_unlisted(one.process, one.gpus)

    def pass_time(self, seconds: float) -> str:
        """Let so many seconds pass in steps of a half, and return what is said then."""
        for _ in range(round(2 * seconds)):
            self._clock.now += 0.5
            self.snapshot = self._next()
            self.session.observe(self.snapshot)
            look(self.session)
        return self.session.view.message


@pytest.mark.parametrize(("pid", "gpu"), [(STRAY_PID, 4), (LEFTOVER_PID, 2)])
def test_a_stray_is_ended_and_its_memory_comes_free(pid: int, gpu: int) -> None:
    ending = Ending(pid)
    assert NOTICE in ending.session.notice
    ending.session.choose(Choice.TERMINATE)
    assert re.search(rf"exited after \S+ s, \d+\.\d GiB freed on GPU {gpu}", ending.pass_time(10))
    assert pid not in pids(ending.snapshot)


def test_one_that_takes_its_time_is_asked_about_again_and_killed() -> None:
    ending = Ending(RUN_PID)
    ending.session.choose(Choice.TERMINATE)
    assert ending.pass_time(3) == "asked to stop, 7 s …"
    assert ending.pass_time(7) == "ignored SIGTERM for 10 s"
    assert RUN_PID in pids(ending.snapshot)
    ending.session.choose(Choice.KILL)
    assert "freed on GPU 4" in ending.pass_time(10)
    assert not {RUN_PID, *RUN_WORKER_PIDS} & pids(ending.snapshot)


def test_a_whole_run_is_ended() -> None:
    ending = Ending(RUN_PID, whole_run=True)
    assert {one.pid for one in ending.session.members} == {RUN_PID, *RUN_WORKER_PIDS}
    ending.session.choose(Choice.INTERRUPT)
    assert "all 5 exited after" in ending.pass_time(20)
    assert not {RUN_PID, *RUN_WORKER_PIDS} & pids(ending.snapshot)


def test_somebody_elses_process_is_refused_as_on_a_real_machine() -> None:
    session = Ending(15226).session
    assert session.phase is Phase.REFUSED
    assert NOTICE in session.notice
    assert session.message.startswith("it belongs to ada")


# ---------------------------------------------------------------------------------------------------------------
# Nothing real can be meant


def test_a_real_process_of_that_pid_gets_no_signal() -> None:
    clock = Clock()
    with GpuHolder() as real:
        for sig in SIGNALS:
            held = DemoEnder(DemoSource(clock=clock)).pin(target_of(real, uid=VIEWER_UID))
            assert isinstance(held, DemoProcess)
            assert sent(held, sig) is None
            clock.now += 60.0
            assert held.exited() or held.ignores(sig)
            held.close()
        assert real.alive()


def test_only_the_viewers_own_can_be_ended() -> None:
    demo = DemoSource(clock=Clock())
    ender = DemoEnder(demo)
    mine = builders.process(STRAY_PID, "you", uid=VIEWER_UID)
    assert isinstance(ender.pin(_target(mine)), DemoProcess)
    reasons = {}
    for uid in (None, 0, VIEWER_UID + 1):
        refused = ender.pin(_target(builders.process(1, "ada", uid=uid)))
        assert isinstance(refused, Refused)
        reasons[uid] = refused.reason
    assert reasons == {None: Refusal.NO_IDENTITY, 0: Refusal.NOT_YOURS, VIEWER_UID + 1: Refusal.NOT_YOURS}


def _target(process: Process) -> Target:
    return Target(process.pid, process.start, process.uid, process.command)


@pytest.mark.parametrize("demo", [True, False])
async def test_the_machines_own_and_the_demos_never_meet(demo: bool, tmp_path: Path) -> None:
    ender: ProcessEnder = a_killer(tmp_path) if demo else DemoEnder(DemoSource())
    held = builders.gpu(0, holdings=[builders.holding(os.getppid())])
    seen = builders.snapshot([held], [builders.process(os.getppid(), "you")], demo=demo)
    app = GpuwatchApp(watch=Clockwork(), helpers=Helpers(killer=lambda: ender))
    async with app.run_test(size=(120, 36)) as pilot:
        app.post_message(NewFrame(Frame(seen, time.monotonic(), History().add(seen, time.monotonic()))))
        await pilot.pause()
        await pilot.press("K")
        end = time.monotonic() + 30
        while "Not ended" not in text(app):
            assert time.monotonic() < end, text(app)
            await pilot.pause(0.02)
        assert ("its processes are not real" if demo else "a demo can end no real process") in text(app)


REAL = """
import os, signal, subprocess, sys
pids = [int(word) for word in sys.argv[1].split(",")]
children = []
for pid in pids:
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    child = os.fork()
    if not child:
        while True:
            signal.pause()
    if child != pid:
        sys.exit(f"PID {pid} cannot be had")
    children.append(child)
code = subprocess.run(sys.argv[2:]).returncode
alive = [pid for pid in children if os.waitpid(pid, os.WNOHANG) == (0, 0)]
print("exit code", code, "alive", *alive)
"""
"""Has real processes under the demo's PIDs, runs the demo beside them, and says which of them live."""


def test_real_processes_under_the_demos_pids_outlive_the_demo(own_home: Path) -> None:
    namespace = ["unshare", "--fork", "--pid", "--mount-proc", *([] if ROOT else ["--user", "--map-root-user"])]
    try:
        probe = subprocess.run([*namespace, "true"], capture_output=True, timeout=60)
    except OSError as error:
        unavailable(f"unshare: {error}")
    if probe.returncode:
        unavailable(f"no PID namespace can be had: {probe.stderr!r}")
    meant = (STRAY_PID, LEFTOVER_PID, RUN_PID, *RUN_WORKER_PIDS)
    command = [*namespace, sys.executable, "-c", REAL, ",".join(map(str, meant)), GPUWATCH, "--demo"]
    with Terminal(command, columns=120, rows=40, env=dict(os.environ)) as terminal:
        terminal.wait_for("GPU 1 near limit")
        terminal.send("mK")
        terminal.wait_for("Terminate (SIGTERM)")
        assert NOTICE in terminal.text
        terminal.send("\x1b[C\x1b[C\r")
        terminal.wait_for("freed on GPU 4")
        terminal.send("\r")
        terminal.wait_for(lambda one: "End process" not in one.text)
        terminal.send("q")
        terminal.wait_for(f"exit code 0 alive {' '.join(map(str, meant))}")
    assert not (own_home / "state").exists()
