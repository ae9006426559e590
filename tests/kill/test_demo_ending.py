"""Ending the demo's processes: their rows go, and nothing real under their PIDs is signalled."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gpuwatch.kill.demo import DemoEnder
from gpuwatch.kill.pinned import KillTarget, find_targets
from gpuwatch.model.snapshot import Snapshot
from gpuwatch.sources.demo import DemoSource
from tests import GPUWATCH
from tests.support.demo import LEFTOVER_PID, RUN_PID, RUN_WORKER_PIDS, STRAY_PID, VIEWER_UID
from tests.support.process import unavailable
from tests.support.program import PID_NAMESPACE, can_enter
from tests.support.terminal import Terminal
from tests.support.waiting import Clock


def pids(snapshot: Snapshot) -> set[int]:
    """Return all that there are, listed or not."""
    return {one.pid for one in snapshot.processes} | {one.process.pid for one in snapshot.unlisted}


def test_the_rows_of_the_viewers_processes_go_and_only_theirs() -> None:
    clock = Clock(1000.0)
    source = DemoSource(clock=clock, interval=0.5)
    ender = DemoEnder(source.end, VIEWER_UID)
    seen = source.next(0.0)
    assert seen is not None
    targets = {one.pid: one for one in find_targets(seen).values()}
    other = next(one for one in targets.values() if one.process.user == "ada")

    def end(*chosen: KillTarget) -> str:
        return ender.end(chosen)

    assert end(targets[STRAY_PID]) == "no signal was sent (demo); its row was removed"
    assert end(targets[LEFTOVER_PID], targets[RUN_PID]) == "no signal was sent (demo); 2 rows were removed"
    assert end(other) == "it belongs to ada, and gpuwatch signals only your own processes"
    clock.now += 0.5
    after = source.next(0.0)
    assert after is not None
    assert not {STRAY_PID, LEFTOVER_PID, RUN_PID, *RUN_WORKER_PIDS} & pids(after)
    assert other.pid in pids(after)


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
    if not can_enter("true"):
        unavailable("no PID namespace can be made here")
    meant = (STRAY_PID, LEFTOVER_PID, RUN_PID, *RUN_WORKER_PIDS)
    command = [*PID_NAMESPACE, sys.executable, "-c", REAL, ",".join(map(str, meant)), GPUWATCH, "--demo"]
    with Terminal(command, columns=120, rows=40, env=dict(os.environ)) as terminal:
        terminal.wait_for("GPU 1 nearly full")
        terminal.send("mK")
        terminal.wait_for("no signal was sent")
        terminal.send("q")
        terminal.wait_for(f"exit code 0 alive {' '.join(map(str, meant))}")
    assert not (own_home / "state").exists()
