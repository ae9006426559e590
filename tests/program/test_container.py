"""gpuwatch in a container with PIDs of its own: whose a process is that NVML lists by a number of ours."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpuwatch.kill.outcome import Refusal
from gpuwatch.model.snapshot import Presence, Snapshot, decode
from tests import GPUWATCH
from tests.driver import Driver
from tests.support.environment import environment
from tests.support.process import ROOT
from tests.support.program import PID_NAMESPACE, answers

pytestmark = pytest.mark.slow

OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22-I3)"

PROGRAM = r"""
import json, os, subprocess, sys
from pathlib import Path
from tests.driver import GIB, Driver, Gpu, Proc
from tests.support.process import GpuHolder

folder, library, gpuwatch, version = sys.argv[1:]
if version:
    subprocess.run(["mount", "-t", "tmpfs", "none", "/proc/driver"], check=True)
    Path("/proc/driver/nvidia").mkdir()
    Path("/proc/driver/nvidia/version").write_text(version + "\n")
driver = Driver(Path(folder), Path(library))
with GpuHolder(uid=os.getuid()) as mine:
    driver.gpus = [Gpu(0, memory_used=13 * GIB)]
    driver.procs = [Proc(0, 54321, memory=GIB, sm=0), Proc(0, mine.pid, memory=12 * GIB, sm=40)]
    driver.write()

    def run(*words):
        words = [str(mine.pid) if word == "PID" else word for word in words]
        done = subprocess.run([gpuwatch, *words], env=driver.env(), capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)
        return [done.returncode, done.stdout, done.stderr]

    found = {"pid": mine.pid, "once": run("--once"), "json": run("--once", "--json"),
             "explain": run("explain", "PID"), "strays": run("strays", "--json"),
             "kill": run("kill", "--yes", "--allow-root-kill", "PID")}
    print(json.dumps({**found, "alive": mine.alive()}))
"""


class Inside(NamedTuple):
    """What was said in the container of one training in it."""

    pid: int
    once: str
    snapshot: Snapshot
    explained: str
    strays: list[Any]
    of_strays: str
    """What was said beside them."""
    killed: int
    said: str
    alive: bool


def inside(driver: Driver, version: str) -> Inside:
    """Run a training, and then gpuwatch, in a PID namespace of their own; `version` is what the kernel module says.

    NVML lists the training by its number there, and another process by a number of the host.
    """
    if not ROOT or shutil.which("unshare") is None:
        pytest.skip("a PID namespace needs root, and unshare(1)")
    words = (driver.folder, driver.library, GPUWATCH, version)
    (found,) = answers(PROGRAM, *words, enter=(*PID_NAMESPACE, "--kill-child"), env=environment())
    code, out, err = found["kill"]
    shown = decode(found["json"][1].encode())
    strays = json.loads(found["strays"][1])
    of_strays, explained = found["strays"][2], found["explain"][1]
    return Inside(found["pid"], found["once"][1], shown, explained, strays, of_strays, code, out + err, found["alive"])


@pytest.mark.parametrize("version", ["", OPEN.format("560.35.03")])
def test_a_number_that_may_be_anothers_is_nobodys_for_sure_and_is_not_ended(
    driver: Driver, version: str, own_home: Path
) -> None:
    seen = inside(driver, version)
    assert seen.alive
    (process,) = [one for one in seen.snapshot.processes if one.pid == seen.pid]
    assert (process.presence, process.uid, process.user) == (Presence.UNSURE, None, "root?")
    assert seen.snapshot.confined
    (row,) = [line for line in seen.once.splitlines() if "root?" in line]
    assert f" {seen.pid} " in row
    assert "perhaps train.py" in row
    assert "people" not in seen.once
    head, *points = seen.explained.splitlines()
    assert head.startswith(f"PID {seen.pid} · root?")
    assert "may be a process outside this container" in " ".join(points)
    assert seen.strays == []
    assert "GPU 0 could not be checked: the driver may mean processes outside of this container" in seen.of_strays
    assert seen.killed == 1
    assert f"PID {seen.pid} is not ended: gpuwatch runs in a container with its own PIDs" in seen.said
    lines = [json.loads(line) for file in own_home.rglob("actions.jsonl") for line in file.read_text().splitlines()]
    assert [(line["event"], line["result"]) for line in lines] == [("refused", Refusal.OTHER_NAMESPACE.word)]


def test_where_the_driver_is_known_to_list_by_our_numbers_all_is_as_on_the_host(driver: Driver) -> None:
    seen = inside(driver, OPEN.format("565.57.01"))
    (process,) = [one for one in seen.snapshot.processes if one.pid == seen.pid]
    assert (process.presence, process.uid, process.user) == (Presence.SEEN, 0, "root")
    assert "perhaps" not in seen.once
    assert "outside of this container" not in seen.explained
    assert (seen.killed, seen.alive) == (0, False)
    assert f"PID {seen.pid}: exited after" in seen.said
