"""Ending the demo's processes: the dialog goes through every step, says at each that it is a demo, signals nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from gpuwatch.analysis.rows import RowKey, rows
from gpuwatch.history import History
from gpuwatch.kill.demo import DemoEnder, DemoProcess
from gpuwatch.kill.outcome import Refusal, Refused
from gpuwatch.kill.session import SIGNALS, Choice, ProcessEnder
from gpuwatch.kill.target import Target
from gpuwatch.model import Process, Snapshot
from gpuwatch.monitor import Frame
from gpuwatch.sources.demo import DemoSource
from gpuwatch.sources.demo_machine import LEFTOVER_PID, RUN_PID, RUN_WORKER_PIDS, STRAY_PID, VIEWER_UID
from gpuwatch.ui.app import GpuwatchApp, NewFrame
from gpuwatch.ui.options import Helpers
from gpuwatch.ui.screens.dialog import ChoiceButton
from tests.program.test_pty import GPUWATCH
from tests.support import builders
from tests.support.dashboards import Clockwork, text
from tests.support.gpuholder import ROOT, GpuHolder, unavailable
from tests.support.killing import a_killer, sent, target_of
from tests.support.terminal import Terminal

NOTICE = "demo: nothing is signalled"


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Demo:
    """The dashboard of the demo, whose seconds pass when a test says so."""

    def __init__(self, app: GpuwatchApp, pilot: Pilot[int], source: DemoSource, clock: Clock) -> None:
        self.app, self.pilot = app, pilot
        self._source, self._clock, self._history = source, clock, History()

    async def pass_time(self, seconds: float = 1.0) -> None:
        """Let the demo go on, and show it."""
        self._clock.now += seconds
        snapshot = self._source.next(0.0)
        assert snapshot is not None
        now = self._clock()
        self.app.post_message(NewFrame(Frame(snapshot, now, self._history.add(snapshot, now))))
        await self.pilot.pause(0.02)

    @property
    def snapshot(self) -> Snapshot:
        assert self.app.newest is not None
        return self.app.newest.snapshot

    def key_of(self, pid: int) -> RowKey:
        return next(row.key for row in rows(self.snapshot) if row.holding.pid == pid)

    async def until(self, words: str, *, step: float = 0.5) -> str:
        """Let time pass in steps until words are on screen; at each step before it is said that this is a demo."""
        end = time.monotonic() + 30
        while words not in (shown := text(self.app)):
            if self.app.screen.query(ChoiceButton):
                assert NOTICE in shown
            assert time.monotonic() < end, shown
            if step:
                await self.pass_time(step)
            await self.pilot.pause(0.02)
        return shown

    async def choose(self, choice: Choice) -> None:
        """Press a button of the dialog once it is offered."""
        end = time.monotonic() + 30
        while not (found := [one for one in self.app.screen.query(ChoiceButton) if one.choice is choice]):
            assert time.monotonic() < end, text(self.app)
            await self.pilot.pause(0.02)
        assert NOTICE in text(self.app)
        found[0].action_press()
        await self.pilot.pause()


@asynccontextmanager
async def demonstrated(size: tuple[int, int] = (160, 50)) -> AsyncIterator[Demo]:
    clock = Clock()
    source = DemoSource(clock=clock, interval=0.5)
    app = GpuwatchApp(watch=Clockwork(), helpers=Helpers(killer=lambda: DemoEnder(source)), clock=clock)
    async with app.run_test(size=size, notifications=True) as pilot:
        demo = Demo(app, pilot, source, clock)
        await demo.pass_time()
        await demo.pass_time()
        yield demo


def pids(snapshot: Snapshot) -> set[int]:
    """Return all that there are, listed or not."""
    return {one.pid for one in snapshot.processes} | {one.process.pid for one in snapshot.unlisted}


async def test_a_forgotten_process_is_ended_and_its_memory_comes_free() -> None:
    async with demonstrated((80, 24)) as demo:
        demo.app.ask_to_end(demo.key_of(STRAY_PID))
        shown = await demo.until("Terminate (SIGTERM)")
        assert "End process 15260? (demo)" in shown
        assert demo.app.screen.focused is demo.app.screen.query(ChoiceButton).first()
        await demo.choose(Choice.TERMINATE)
        shown = await demo.until("freed on GPU 4")
        assert re.search(r"exited after \S+ s, \d+\.\d GiB", shown)
        assert NOTICE in shown
        assert STRAY_PID not in pids(demo.snapshot)


async def test_one_that_takes_its_time_is_asked_about_again_and_killed() -> None:
    async with demonstrated() as demo:
        demo.app.ask_to_end(demo.key_of(RUN_PID))
        await demo.choose(Choice.TERMINATE)
        for left in range(10, 0, -1):
            await demo.until(f"asked to stop, {left} s", step=0)
            await demo.pass_time()
        await demo.until("ignored SIGTERM for 10 s", step=0)
        assert RUN_PID in pids(demo.snapshot)
        await demo.choose(Choice.KILL)
        await demo.until("freed on GPU 4")
        assert not {RUN_PID, *RUN_WORKER_PIDS} & pids(demo.snapshot)


async def test_a_whole_run_is_ended() -> None:
    async with demonstrated() as demo:
        demo.app.ask_to_end(demo.key_of(RUN_PID), whole_run=True)
        shown = await demo.until("its run: 5 processes")
        assert all(str(pid) in shown for pid in (RUN_PID, *RUN_WORKER_PIDS))
        await demo.choose(Choice.INTERRUPT)
        await demo.until("all 5 exited after")
        assert not {RUN_PID, *RUN_WORKER_PIDS} & pids(demo.snapshot)


async def test_somebody_elses_process_is_refused_as_on_a_real_machine() -> None:
    async with demonstrated() as demo:
        demo.app.ask_to_end(demo.key_of(15226))
        shown = await demo.until("Not ended: it belongs to ada")
        assert NOTICE in shown


async def test_strays_are_ended_one_by_one() -> None:
    async with demonstrated() as demo:
        await demo.pilot.press("S")
        await demo.until(str(LEFTOVER_PID))
        assert NOTICE in text(demo.app)
        await demo.pilot.press("space", "enter")
        await demo.until("End 1 process of yours?")
        await demo.choose(Choice.TERMINATE)
        shown = await demo.until("freed on GPU 2")
        assert NOTICE in shown
        assert LEFTOVER_PID not in pids(demo.snapshot)


# ---------------------------------------------------------------------------------------------------------------
# Nothing real can be meant


@pytest.mark.parametrize("sig", SIGNALS)
def test_a_real_process_of_that_pid_gets_no_signal(sig: signal.Signals) -> None:
    clock = Clock()
    with GpuHolder() as real:
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
        terminal.send("\x1b[C\x1b[C\r")
        terminal.wait_for("freed on GPU 4")
        terminal.send("\r")
        terminal.wait_for(lambda one: "End process" not in one.text)
        terminal.send("q")
        terminal.wait_for(f"exit code 0 alive {' '.join(map(str, meant))}")
    assert not (own_home / "state").exists()
